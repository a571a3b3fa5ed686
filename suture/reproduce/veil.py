"""VEIL: Vallabhaneni (paper 000). Table 1 and Figures 1 to 3, the paper's beside ours, on two federations.

The paper uses eICU, which needs a data use agreement. Ours are the generated `icu` federation (152 hospitals, 90 inputs,
8.9 % mortality) and, where its tables are at hand, the open demo of eICU (`eicu`), five folds of whole hospitals each. Every
private row is at a *proven* epsilon, patient level, at every hospital; the paper's are claims (its VEIL leaks signs, see
docs/veil.md). Settings of each method are in `veil_runs.SETTINGS`, the same at every epsilon and on both federations.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from suture import cohorts
from suture.conduct import Progress
from suture.errors import DataError
from suture.evaluation.significance import interval
from suture.reproduce.runs import folder_of
from suture.reproduce.veil_runs import (
    SEED,
    SETTINGS,
    WITHOUT,
    Job,
    epsilons_of,
    options,
    printed,
    study,
    train,
)
from suture.result import Result
from suture.runfolder import write_whole
from suture.study import Study

TITLE = "VEIL (paper 000): the paper's figures beside ours"
BEST = "secure"

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


def reproduce(
    out: Path, *, quick: bool = False, threads: int | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Run what is not there yet, then write tables (JSON, CSV), figures (PNG, SVG) and one page."""
    from suture.reproduce import pages, veil_figures

    begun = time.perf_counter()
    tables: dict[str, Any] = {}
    drawn: dict[str, Any] = {}
    notes, present = list(NOTES), []
    for cohort in COHORTS:
        try:
            cohorts.load(cohort, SEED, **options(quick, cohort))
            present.append(cohort)
        except DataError as error:
            notes.append(f"The eICU demo was not there, so its table is missing: {error}")
    train(present, out, quick, threads, progress)
    for cohort in present:
        words, found = COHORTS[cohort], federation(cohort, out, quick=quick)
        tables[f"table1_{cohort}"] = {"title": f"Table 1: {words}", "rows": found["rows"]}
        tables[f"upload_{cohort}"] = {
            "title": f"Bytes of one hospital in a whole training, mean: {words}",
            "rows": found["bytes"],
        }
        drawn |= veil_figures.charts(found["rows"], cohort, words)
    dashboard = _dashboard(out, quick)
    found = {
        "paper": "veil",
        "title": TITLE,
        "quick": quick,
        "over": "folds",
        "seconds": round(time.perf_counter() - begun, 1),
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


def federation(cohort: str, out: Path, *, quick: bool = False) -> dict[str, Any]:
    """The tables of one federation, from trainings that are there."""
    epsilons = epsilons_of(quick, cohort)
    others = json.loads(Job(None, cohort, quick, out).file.read_text(encoding="utf-8"))

    def load(wanted: Study) -> Result:
        return Result.load(folder_of(wanted, out))

    runs = {
        (key, epsilon): load(study(key, epsilon, quick=quick, cohort=cohort))
        for key in SETTINGS
        for epsilon in (*epsilons, None)
    }
    plain = {key: load(study(key, None, quick=quick, cohort=cohort)) for key in WITHOUT}
    as_printed = {e: load(printed(e, quick=quick, cohort=cohort)) for e in epsilons}
    rows = [_row(SETTINGS[key][0], epsilon, result) for (key, epsilon), result in runs.items()]
    rows += [_row(WITHOUT[key][0], None, result) for key, result in plain.items()]
    rows += [_printed_row(claimed, result) for claimed, result in as_printed.items()]
    rows += [_reference_row(other) for other in others]
    return {"rows": rows, "bytes": _bytes(runs, plain, epsilons)}


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


def _dashboard(out: Path, quick: bool) -> dict[str, str]:
    """Figure 3: a patient of the largest hospital with the highest risk, by the best mode at epsilon 5."""
    from suture.explain import explain_patient

    folder = folder_of(study(BEST, 5.0, quick=quick), out)
    site = max(
        cohorts.load("icu", SEED, **options(quick, "icu")).sites, key=lambda place: len(place.table["patient_id"])
    )
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
