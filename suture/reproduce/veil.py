"""VEIL: Vallabhaneni (paper 000). Table 1 and Figures 1 to 3, the paper's beside ours, on two federations.

The paper uses eICU, which needs a data use agreement. Ours are the generated `icu` federation (152 hospitals, 90 inputs,
8.9 % mortality) and, where its tables are at hand, the open demo of eICU (`eicu`), five folds of whole hospitals each. Every
private row is at a *proven* epsilon, patient level, at every hospital; the paper's are claims (its VEIL leaks signs, see
docs/veil.md). Settings of each method are in `SETTINGS`, the same at every epsilon and on both federations.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from suture import cohorts, conduct
from suture.errors import DataError
from suture.evaluation.significance import interval
from suture.reproduce.veil_references import references
from suture.result import Result
from suture.runfolder import write_whole
from suture.study import Study

if TYPE_CHECKING:
    from suture.conduct import Progress

TITLE = "VEIL (paper 000): the paper's figures beside ours"
EPSILONS = (1.0, 5.0, 10.0, 15.0)
SEED, FOLDS = 42, 5
BEST = "secure"
MEMORY = Path("/dev/shm")

# key -> label, method settings, clip (None: the method bounds contributions itself). Every row: what `suture tune --frugal`
# takes of 20 trials at epsilon 5 on the icu study with seed 1042, 3 folds of hospitals (few: the best that fits);
# docs/tuning.md has studies and trials.
#   secure:    suture tune secure.toml --trials 20 --frugal --size 1
#   few:       suture tune secure.toml --trials 20 --size 1 --most-bytes 375 --most-ece 0.01 --only rounds=4,5
#              --only teams=12,16
#   moments:   suture tune moments.toml --trials 20 --frugal        votes: the same with votes.toml
#   baselines: suture tune baselines.toml --trials 20 --frugal --method fedavg,scaffold
#   without privacy: suture tune moon.toml --trials 20 --frugal     and the same with printed.toml, of whose trials the best
#   with 10 or 20 rounds is taken, for time
_VOTES = {"name": "veil", "mode": "votes", "rounds": 20, "picks": 2, "quorum": 1.64, "server_rate": 0.133}
_MOMENTS = {"name": "veil", "mode": "votes+moments", "rounds": 10, "picks": 6, "quorum": 2.7, "server_rate": 0.263}
_SCAFFOLD = {"name": "scaffold", "rounds": 20, "local_epochs": 5, "batch": 128, "rate": 0.154}
SETTINGS: dict[str, tuple[str, dict[str, Any], float | None]] = {
    "secure": ("VEIL, secure sums", {"name": "veil", "mode": "secure", "rounds": 8, "teams": 8}, None),
    "few": (
        "VEIL, secure sums, few bytes",
        {"name": "veil", "mode": "secure", "rounds": 5, "concepts": 52, "teams": 12},
        None,
    ),
    "moments": ("VEIL, votes and moments", _MOMENTS, None),
    "votes": ("VEIL, votes", _VOTES, None),
    "fedavg": ("DP-FedAvg", {"name": "fedavg", "rounds": 10, "local_epochs": 2, "batch": 128, "rate": 1.99}, 1.41),
    "scaffold": ("DP-SCAFFOLD", _SCAFFOLD, 2.84),
}
_MOON = {
    "name": "moon",
    "rounds": 10,
    "local_epochs": 5,
    "batch": 64,
    "rate": 0.328,
    "contrast": 0.1,
    "temperature": 1.0,
}
WITHOUT = {"moon": ("MOON (not private)", _MOON)}
PRINTED = {
    "name": "veil-printed",
    "rounds": 10,
    "local_epochs": 2,
    "batch": 256,
    "rate": 2.07,
    "picks": 20,
    "quorum": 0.026,
    "server_rate": 0.108,
}
PAPER = {  # method, epsilon -> AUC, AUPRC, recall at 90 % specificity, ECE, megabytes both ways
    ("VEIL", 1.0): (0.807, 0.347, 0.547, 0.010, 0.06),
    ("VEIL", 5.0): (0.835, 0.382, 0.544, 0.010, 0.07),
    ("VEIL", 10.0): (0.834, 0.366, 0.540, 0.010, 0.04),
    ("VEIL", 15.0): (0.825, 0.357, 0.542, 0.010, 0.08),
    ("VEIL", None): (0.795, 0.289, 0.526, 0.010, 0.06),
    ("DP-FedAvg", 1.0): (0.799, 0.342, 0.490, 0.011, 0.89),
    ("DP-FedAvg", 5.0): (0.829, 0.391, 0.540, 0.014, 1.06),
    ("DP-FedAvg", 10.0): (0.829, 0.379, 0.544, 0.015, 1.17),
    ("DP-FedAvg", 15.0): (0.825, 0.393, 0.540, 0.015, 1.46),
    ("DP-SCAFFOLD", 1.0): (0.564, 0.139, 0.205, 0.008, 0.89),
    ("DP-SCAFFOLD", 5.0): (0.596, 0.151, 0.235, 0.009, 0.83),
    ("DP-SCAFFOLD", 10.0): (0.575, 0.125, 0.228, 0.009, 0.81),
    ("DP-SCAFFOLD", 15.0): (0.643, 0.201, 0.302, 0.010, 1.14),
    ("Pooled boosted trees", None): (0.887, 0.549, 0.656, 0.008, 0.0),
}
METRICS = {"auc": "AUC", "auprc": "AUPRC", "recall_at_90_specificity": "recall at 90 % specificity", "ece": "ECE"}


def study(key: str, epsilon: float | None, *, quick: bool = False, cohort: str = "icu") -> Study:
    """One method at one epsilon (None: without privacy) on one federation."""
    if key in SETTINGS:
        _, method, clip = SETTINGS[key]
    else:
        (_, method), clip = WITHOUT[key], None
    private: dict[str, Any] = {"unit": "patient", "epsilon": epsilon, "delta": 1e-5}
    if clip is not None:
        private["clip"] = clip
    name = f"{key} epsilon {epsilon:g}" if epsilon is not None else f"{key} without privacy"
    return Study(
        name=name if cohort == "icu" else f"{cohort} {name}",
        outcome="died_in_hospital",
        seed=SEED,
        cohort=_cohort(quick, cohort),
        # MOON contrasts representations, so it needs a hidden layer; the others are logistic regressions.
        model={"hidden": [32] if key == "moon" else []},
        method=method,
        evaluation={"folds": _folds(quick)},
        **({"privacy": private} if epsilon is not None else {}),
    )


def printed(claimed: float, *, quick: bool = False, cohort: str = "icu") -> Study:
    """Algorithm 1 as printed, at the epsilon that it claims; not private."""
    base = study("votes", None, quick=quick, cohort=cohort)
    name = f"as printed, claims {claimed:g}"
    return base.replace(
        name=name if cohort == "icu" else f"{cohort} {name}", method={**PRINTED, "claimed_epsilon": claimed}
    )


def _cohort(quick: bool, cohort: str) -> dict[str, Any]:
    if cohort == "icu" and quick:
        return {"name": "icu", "hospitals": 36, "patients": 10_000}
    return {"name": cohort}


def _folds(quick: bool) -> int:
    return 2 if quick else FOLDS


def reproduce(
    out: Path, *, quick: bool = False, threads: int | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Run what is not there yet, then write tables (JSON, CSV), figures (PNG, SVG) and one page."""
    from suture.reproduce import pages, veil_figures

    tables: dict[str, Any] = {}
    drawn: dict[str, Any] = {}
    notes, seconds = list(NOTES), 0.0
    for cohort, words in COHORTS.items():
        try:
            found = federation(cohort, out, quick=quick, threads=threads, progress=progress)
        except DataError as error:
            notes.append(f"The eICU demo was not there, so its table is missing: {error}")
            continue
        tables[f"table1_{cohort}"] = {"title": f"Table 1: {words}", "rows": found["rows"]}
        tables[f"upload_{cohort}"] = {
            "title": f"Bytes of one hospital in a whole training, mean: {words}",
            "rows": found["bytes"],
        }
        seconds += found["seconds"]
        drawn |= veil_figures.charts(found["rows"], cohort, words)
    dashboard = _dashboard(out, quick)
    found = {
        "paper": "veil",
        "title": TITLE,
        "quick": quick,
        "over": "folds",
        "seconds": round(seconds, 1),
        "tables": tables,
        "dashboard": dashboard,
        "notes": [*notes, f"Figure 3, the clinician's dashboard of one patient: {dashboard['page']}"],
    }
    captions = {name: veil_figures.caption(name) for name in drawn}
    found["figures"] = [*pages.save_figures(drawn, out), dashboard["picture"]]
    found["page"] = str(pages.write(found, drawn, captions, out))
    pages.write_csv(found["tables"], out)
    write_whole(out / "tables.json", json.dumps(found, indent=1, allow_nan=False).encode())
    return found


COHORTS = {
    "icu": "generated icu federation",
    "eicu": "eICU demo, real patients",
}


def federation(
    cohort: str, out: Path, *, quick: bool = False, threads: int | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Every method and epsilon on one federation."""
    epsilons = ((1.0, 5.0) if cohort == "icu" else (5.0,)) if quick else EPSILONS
    others = references(_cohort(quick, cohort), SEED, _folds(quick))
    runs: dict[tuple[str, float | None], Result] = {}
    # Real patients' ledgers are durable, on disk, a write for every release. The demo's patients are public, and every run
    # here is a simulation, so these ledgers are kept in memory where there is such a folder, and go with the run.
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as home:

        def run(wanted: Study) -> Result:
            return _run(wanted, out / "runs", Path(home), threads, progress)

        for key in SETTINGS:
            for epsilon in (*epsilons, None):
                runs[key, epsilon] = run(study(key, epsilon, quick=quick, cohort=cohort))
        plain = {key: run(study(key, None, quick=quick, cohort=cohort)) for key in WITHOUT}
        as_printed = {e: run(printed(e, quick=quick, cohort=cohort)) for e in epsilons}
    rows = [_row(SETTINGS[key][0], epsilon, result) for (key, epsilon), result in runs.items()]
    rows += [_row(WITHOUT[key][0], None, result) for key, result in plain.items()]
    rows += [_printed_row(claimed, result) for claimed, result in as_printed.items()]
    rows += [_reference_row(other) for other in others]
    results = [*runs.values(), *plain.values(), *as_printed.values()]
    seconds = sum(result.data["methods"][result.data["method"]]["seconds"] for result in results)
    return {"rows": rows, "bytes": _bytes(runs, plain, epsilons), "seconds": seconds}


NOTES = (
    "Generated patients and the eICU demo are not the paper's eICU: figures are beside each other to compare methods within a "
    "column. The demo has 808 patients that meet the criteria, at 125 hospitals of 5 to 10: no private model of them can be "
    "good, and five folds of about 160 patients with some 15 deaths tell methods apart by 0.1 of AUC at best.",
    "Our epsilon is proven for each patient at every hospital. VEIL with secure sums adds an assumption: the server sees only "
    "sums over teams of hospitals, and half of each team add their noise (docs/veil.md). The paper's VEIL releases signs "
    "unprotected: its epsilon is a claim, and the rows 'as printed' are not private.",
    "Every federated baseline but MOON (one hidden layer of 32) is a logistic regression on the encoded inputs, as the paper's "
    "linear clients are.",
    "ECE at site: each test hospital scales the model on half of its patients for the other half, and keeps the scaling.",
    "Small figures: 95 % intervals over folds (Student's), cut at 0 and 1. Megabytes are all hospitals', both ways, as "
    "serialised; the tables of bytes hold a hospital's mean. Keys of a networked secure sum are not counted.",
    "Settings and how they were found: docs/veil.md, How settings were found.",
)


def _run(wanted: Study, runs: Path, base: Path, threads: int | None, progress: Progress | None) -> Result:
    """A finished run of exactly this study is used as it is; an unfinished one on generated patients is resumed."""
    folder = runs / wanted.name.replace(" ", "-").replace(",", "")
    command = "suture reproduce veil"
    same = (folder / "run.json").exists() and Study.from_toml(folder / "study.toml") == wanted
    if same and (folder / "result.json").exists():
        return Result.load(folder)
    if same and wanted.cohort is not None and wanted.cohort.name == "icu":
        return conduct.resume(folder, threads=threads, progress=progress, command=command)
    if folder.exists():
        shutil.rmtree(folder)
    return conduct.run(wanted, out=folder, base=base, threads=threads, progress=progress, command=command)


def _dashboard(out: Path, quick: bool) -> dict[str, str]:
    """Figure 3: a patient of the largest hospital with the highest risk, by the best mode at epsilon 5."""
    from suture.explain import explain_patient

    folder = out / "runs" / study(BEST, 5.0, quick=quick).name.replace(" ", "-")
    options = {key: value for key, value in _cohort(quick, "icu").items() if key != "name"}
    site = max(cohorts.load("icu", SEED, **options).sites, key=lambda place: len(place.table["patient_id"]))
    riskiest = int(np.argmax(Result.load(folder).predict(site.table)))
    patient = str(site.table["patient_id"][riskiest])
    made = explain_patient(folder, site=site.name, patient=patient, out=out / "figures")
    return {"page": f"figures/{Path(made['page']).name}", "picture": f"figures/{Path(made['picture']).name}"}


def _figures(folds: list[Mapping[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, label in {**METRICS, "ece_mass": "ECE, equal mass", "ece_at_site": "ECE at site"}.items():
        values = [fold[key] for fold in folds if fold.get(key) is not None]
        if not values:
            found[f"our {label}"] = None
            continue
        mean, low, high = interval(values)
        found[f"our {label}"] = mean
        if key in ("auc", "auprc"):
            found[f"our {label} sd"] = float(np.std(values, ddof=1)) if len(values) > 1 else None
            # Student's interval knows nothing of 0 and 1, and with two folds reaches far beyond them: it is cut there.
            found[f"our {label} 95% low"] = None if low is None else max(low, 0.0)
            found[f"our {label} 95% high"] = None if high is None else min(high, 1.0)
    return found


def _row(label: str, epsilon: float | None, result: Result) -> dict[str, Any]:
    found = result.data["methods"][result.data["method"]]
    moved = found["communication"]
    paper = PAPER.get(("VEIL" if label.startswith("VEIL") else label, epsilon))
    private = result.privacy["epsilon"]
    return {
        "method": label,
        "epsilon": "none" if epsilon is None else epsilon,
        "proven epsilon": None if private is None else math.ceil(private * 1000) / 1000,
        **_paper(paper),
        **_figures([run["global"] for run in found["per_seed"]]),
        "our MB": (moved["bytes_up"] + moved["bytes_down"]) / 1e6,
    }


def _paper(paper: tuple[float, ...] | None) -> dict[str, Any]:
    names = ("AUC", "AUPRC", "recall at 90 % specificity", "ECE", "MB")
    return {
        f"paper {name}": None if paper is None else value for name, value in zip(names, paper or (0,) * 5, strict=True)
    }


def _printed_row(claimed: float, result: Result) -> dict[str, Any]:
    row = _row("VEIL as printed (not private)", None, result)
    return {
        **row,
        "epsilon": f"claims {claimed:g}",
        **_paper(PAPER[("VEIL", claimed)]),
    }


def _reference_row(other: Mapping[str, Any]) -> dict[str, Any]:
    trees = "trees" in other["label"]
    return {
        "method": other["label"],
        "epsilon": "none",
        "proven epsilon": None,
        **_paper(PAPER[("Pooled boosted trees", None)] if trees else None),
        **_figures(other["folds"]),
        "our MB": 0.0,
    }


def _bytes(
    runs: Mapping[tuple[str, float | None], Result], plain: Mapping[str, Result], epsilons: tuple[float, ...]
) -> list[dict[str, Any]]:
    """What one hospital sends and gets over a whole training, and its share of what DP-FedAvg sends."""

    def moved(result: Result, way: str) -> float:
        data = result.data
        folds = int(data["study"]["evaluation"]["folds"])
        return float(data["communication"][way]) / (len(data["cohort"]["sites"]) * (folds - 1) / folds)

    shown = {SETTINGS[key][0]: runs[key, epsilons[-1]] for key in SETTINGS}
    shown |= {WITHOUT[key][0]: result for key, result in plain.items()}
    whole = moved(runs["fedavg", epsilons[-1]], "bytes_up")
    return [
        {
            "method": label,
            "rounds": int(result.data["study"]["method"]["rounds"]),
            "bytes up": round(moved(result, "bytes_up")),
            "bytes down": round(moved(result, "bytes_down")),
            "up, share of DP-FedAvg's": moved(result, "bytes_up") / whole,
        }
        for label, result in shown.items()
    ]
