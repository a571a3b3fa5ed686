"""Paper 003, iFedAvg: Tables 1 to 4 and 6, and its figures in kind, on generated and public federations.

The Ebola data are not public: `outbreak` is generated with the printed sizes and rates, so figures on it compare
methods with each other and not with the paper's numbers. HAR here has 261 features computed from the raw recording
instead of the published 561, VSN one public split of it. The four heart-disease hospitals are ours to add. The paper
does not print its batch size; ours is 8 throughout.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from suture import conduct
from suture.interop import shifts
from suture.reproduce.detection import score
from suture.result import Result
from suture.runfolder import write_whole
from suture.study import Study

if TYPE_CHECKING:
    from suture.conduct import Progress

TITLE = "iFedAvg: interpretable data interoperability"
SEEDS = (2934384, 10231938, 8273, 2019231, 62739)
METHODS = ("ifedavg", "apfl", "fedavg", "alone", "pooled")
DATASETS: dict[str, tuple[dict[str, Any], str]] = {
    "outbreak prognosis": ({"name": "outbreak", "task": "prognosis", "missing": "fill"}, "outcome"),
    "outbreak diagnosis": ({"name": "outbreak", "task": "diagnosis", "missing": "fill"}, "outcome"),
    "vsn": ({"name": "vsn"}, "vehicle"),
    "har": ({"name": "har"}, "activity"),
    "heart": ({"name": "heart", "missing": "fill"}, "high_risk"),
}
PAPER = {
    "f1": {
        "mean": {
            "outbreak prognosis": (0.669, 0.653, 0.670, 0.662, 0.673),
            "outbreak diagnosis": (0.867, 0.828, 0.773, 0.844, 0.861),
            "vsn": (0.928, 0.935, 0.871, 0.939, 0.943),
            "har": (0.994, 0.992, 0.967, 0.993, 0.988),
        },
        "worst": {
            "outbreak prognosis": (0.581, 0.546, 0.575, 0.560, 0.541),
            "outbreak diagnosis": (0.790, 0.662, 0.452, 0.654, 0.733),
            "vsn": (0.874, 0.874, 0.398, 0.884, 0.834),
            "har": (0.950, 0.972, 0.909, 0.974, 0.955),
        },
    },
    "auc": {
        "mean": {"outbreak prognosis": (0.725, 0.704, 0.726, 0.708, 0.74), "har": (1.0, 1.0, 0.999, 1.0, 1.0)},
        "worst": {
            "outbreak prognosis": (0.628, 0.573, 0.608, 0.567, 0.581),
            "outbreak diagnosis": (0.799, 0.694, 0.770, 0.689, 0.740),
            "vsn": (0.930, 0.936, 0.124, 0.950, 0.935),
            "har": (0.996, 0.997, 0.991, 0.997, 0.998),
        },
    },
}
"""Tables 1 to 4, in the order of `METHODS`. Table 3's middle rows cannot be read off our copy and are left out."""
PAPER_6 = {
    "outbreak prognosis": (0.002, 0.008),
    "outbreak diagnosis": (0.005, 0.008),
    "vsn": (0.002, None),
    "har": (None, -0.013),
}

FEWEST = 10
"""Held-out rows that a client needs to count: the score of one row is 0 or 1. The paper holds out 100 at least."""

NOTES = (
    "Ebola rows: the paper's figures are on real patients who are not public, ours on generated ones. Compare methods "
    "within a row of ours, not ours with the paper's.",
    "F1 is weighted by class, on each client's own held-out rows; mean over clients, then over seeds. Worst client: the "
    "lowest of the clients' means over seeds.",
    f"Clients with fewer than {FEWEST} held-out rows (small VSN sensors) are trained with and left out of the tables.",
    "33 % are held out by a keyed hash of each row's identifier; the paper's floor of 100 rows is not applied, because "
    "several clients have fewer.",
    "Missing values are filled as in the paper: the site's mean for numbers, 0.5 for yes/no, and not marked.",
    "Pooled has no personal part and sees every client's rows with that client's own scaling, as the paper's does.",
    "Batch size: 8, ours (not printed). Class weights are each client's own inverse prevalences, scaled to mean 1.",
    "Quick runs use 150 rounds at five times the rate, one seed, and no HAR.",
)


def study(dataset: str, seed: int, *, quick: bool = False, name: str = "", **changes: Any) -> Study:
    """The paper's setting on one data set; ``changes`` are further settings of the method."""
    cohort, outcome = DATASETS[dataset]
    cohort = {**cohort, **changes.pop("cohort", {})}
    compare = changes.pop("compare", list(METHODS[1:]))
    return Study(
        name=f"ifedavg {name or dataset} {seed}",
        outcome=outcome,
        seed=seed,
        cohort=cohort,
        model={"hidden": [128, 64], "activation": "tanh", "dropout": 0.2, "scaling": "site"},
        method={
            "name": "ifedavg",
            "rounds": 150 if quick else 1000,
            "local_epochs": 1,
            "batch": 8,
            "rate": 0.01 if quick else 0.002,
            "momentum": 0.5,
            "rate_decay": 0.9,
            "rate_steps": 50,
            "class_weights": "balanced",
            "weighting": "uniform",
            "share_layers": True,
            **changes,
        },
        evaluation={"holdout": 0.33, "compare": compare, "metric": "f1_weighted", "describe": False},
    )


def reproduce(
    out: Path, *, quick: bool = False, threads: int | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Run what is not there yet, then write tables (JSON, CSV), figures (PNG, SVG) and one page."""
    seeds = SEEDS[2:3] if quick else SEEDS
    names = [name for name in DATASETS if not (quick and name == "har")]

    def run(wanted: Study) -> Result:
        return _run(wanted, out / "runs", threads, progress)

    results = {name: [run(study(name, seed, quick=quick)) for seed in seeds] for name in names}
    both = {
        name: [
            run(study(name, seed, quick=quick, name=f"{name} f_out", compare=[], output_layer="vector"))
            for seed in seeds
        ]
        for name in names
    }
    clean = {"flip": "Kalihun", "faults": "none"}
    turned = [
        run(
            study("outbreak diagnosis", seed, quick=quick, name="flip", compare=[], output_layer="scalar", cohort=clean)
        )
        for seed in (SEEDS[:2] if quick else SEEDS)
    ]
    found_faults = score(range(3) if quick else range(9), 60, 1 if quick else 3)
    reports = {name: shifts.of_run(runs[0].data, runs[0].model) for name, runs in results.items()}
    flipped = [shifts.of_run(result.data, result.model) for result in turned]
    tables = {
        "table1": {"title": "Table 1: mean over clients, weighted F1", "rows": _table(results, "f1", "mean")},
        "table2": {"title": "Table 2: worst client, weighted F1", "rows": _table(results, "f1", "worst")},
        "table3": {"title": "Table 3: mean over clients, AUC", "rows": _table(results, "auc", "mean")},
        "table4": {"title": "Table 4: worst client, AUC", "rows": _table(results, "auc", "worst")},
        "table6": {"title": "Table 6: what f_out adds, weighted F1", "rows": _table_6(results, both)},
        "flip": {"title": "A turned outcome at Kalihun, seed by seed (Figure 19)", "rows": _flips(flipped)},
        "heart": {
            "title": "The four heart hospitals: what the report says unprompted",
            "rows": _findings(reports["heart"]),
        },
        "rules": {"title": "Finding planted faults: our tests and the paper's rule", "rows": found_faults["rules"]},
        "faults": {"title": "Faults found, by kind and strength", "rows": found_faults["faults"]},
    }
    found: dict[str, Any] = {"paper": "ifedavg", "title": TITLE, "quick": quick, "tables": tables, "notes": NOTES}
    from suture.reproduce import ifedavg_figures, pages

    drawn, captions = ifedavg_figures.charts(results, reports, flipped[0])
    found["figures"] = pages.save_figures(drawn, out)
    found["page"] = str(pages.write(found, drawn, captions, out))
    pages.write_csv(tables, out)
    write_whole(out / "tables.json", json.dumps(found, indent=1, allow_nan=False).encode())
    return found


def _run(wanted: Study, runs: Path, threads: int | None, progress: Progress | None) -> Result:
    """A finished run of exactly this study is used as it is, an unfinished one is resumed."""
    folder = runs / wanted.name.replace(" ", "-")
    command = "suture reproduce ifedavg"
    if (folder / "run.json").exists() and Study.from_toml(folder / "study.toml") == wanted:
        return conduct.resume(folder, threads=threads, progress=progress, command=command)
    return conduct.run(wanted, out=folder, base=runs, threads=threads, progress=progress, command=command)


def client_scores(runs: Sequence[Result], method: str, metric: str) -> dict[str, list[float]]:
    """Every client's metric, one value a seed; clients with few held-out rows are left out (see `FEWEST`)."""
    found: dict[str, list[float]] = {}
    for run in runs:
        for site, metrics in run.data["methods"][method]["metrics"]["sites"].items():
            value = metrics.get("f1_weighted") if metric == "f1" else metrics.get("auc", metrics.get("auc_ovo"))
            if value is not None and (metrics.get("rows") or 0) >= FEWEST:
                found.setdefault(site, []).append(value)
    return found


def _summary(runs: Sequence[Result], method: str, metric: str, which: str) -> float:
    means = [float(np.mean(values)) for values in client_scores(runs, method, metric).values()]
    return float(np.mean(means)) if which == "mean" else min(means)


def _table(results: Mapping[str, Sequence[Result]], metric: str, which: str) -> list[dict[str, Any]]:
    rows = []
    for name, runs in results.items():
        row: dict[str, Any] = {"data": name}
        printed = PAPER[metric][which].get(name, (None,) * len(METHODS))
        for method, paper in zip(METHODS, printed, strict=True):
            label = {
                "ifedavg": "iFedAvg",
                "apfl": "APFL",
                "fedavg": "FedAvg",
                "alone": "Local",
                "pooled": "Centralized",
            }[method]
            row[f"paper {label}"] = paper
            row[f"our {label}"] = _summary(runs, method, metric, which)
        rows.append(row)
    return rows


def _table_6(results: Mapping[str, Sequence[Result]], both: Mapping[str, Sequence[Result]]) -> list[dict[str, Any]]:
    rows = []
    for name, runs in results.items():
        mean, worst = PAPER_6.get(name, (None, None))
        ours = {
            which: _summary(both[name], "ifedavg", "f1", which) - _summary(runs, "ifedavg", "f1", which)
            for which in ("mean", "worst")
        }
        rows.append(
            {
                "data": name,
                "paper average": mean,
                "our average": ours["mean"],
                "paper worst": worst,
                "our worst": ours["worst"],
            }
        )
    return rows


def _flips(reports: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for i, report in enumerate(reports):
        scales = {
            site: min(values) for site, values in zip(report["sites"], report["layers"]["w_out"]["values"], strict=True)
        }
        rest = [value for site, value in scales.items() if site != "Kalihun"]
        rows.append({"seed": str(SEEDS[i]), "w_out at Kalihun": scales["Kalihun"], "lowest w_out elsewhere": min(rest),
                     "found": "yes" if scales["Kalihun"] < 0 < min(rest) else "no"})  # fmt: skip
    return rows


def _findings(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    keys = ("site", "label", "kind", "direction", "detail")
    return [{key: item[key] for key in keys} for item in report["findings"] if item["kind"] != "recorded more often"]
