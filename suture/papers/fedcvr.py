"""FedCVR: Tertulino, Alencar, arXiv:2603.13293. Tables 2, 3, 7, 8 and Figures 3 to 8, and a fair
test of what the paper claims (`fedcvr_claim`).

Settings are the paper's Table 5 (100 rounds, 5 local epochs, client rate 0.01, batch 32, server
rate 0.1, beta 0.9 and 0.999, tau 1e-3). The paper does not state the clipping norm, FedProx's mu or
the number of clusters: we take 1.0, 0.1 and 2, untuned. Data are generated in the paper's manner
(suture/cohorts/cardio.py). Training sizes are exactly the paper's; test patients are fresh ones
from the same hospitals, 20 % of each size. Numbers are scaled by declared bounds; the paper fits a
StandardScaler on all hospitals' rows and charges no budget for it.

The paper's epsilon is one figure for all hospitals. Proven epsilon differs by hospital, because a
smaller hospital samples each patient more often: both are printed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy

import altair as alt
import numpy as np

from suture import cohorts
from suture.papers import fedcvr_claim as claim
from suture.papers.reproduction import (
    Chart,
    Content,
    More,
    Row,
    Work,
    by_seed,
    method_of,
    printed,
    rows_under,
    seconds_of,
    summary,
)
from suture.report import figures
from suture.report.theme import PALETTE, finish, table
from suture.report.words import complete
from suture.result import Result
from suture.study import Study

TITLE = "FedCVR, arXiv:2603.13293: the paper's figures beside ours"
LEAD = "fedadam"
"""The method that the paper calls FedCVR."""
ORDER = ("fedavg", "fedprox", "fedcluster", "fedadagrad", "fedyogi", LEAD)
METRICS = {
    "accuracy": "Accuracy",
    "precision": "Precision",
    "recall": "Recall",
    "f1": "F1",
    "loss": "Loss",
}
SHOWN = ("accuracy", "recall", "f1")

PRINTED = printed("fedcvr")
PAPER_TABLE_8: dict[float | None, tuple[float | None, str]] = {
    None: (None, "0.84 ± 0.01"),
    0.5: (80.5, "0.81 ± 0.02"),
    1.0: (13.4, "0.78 ± 0.03"),
    1.5: (6.6, "0.65 ± 0.05"),
}
"""Noise multiplier: claimed epsilon, F1."""


def study(sigma: float | None, *, quick: bool = False) -> Study:
    """The paper's setting at one noise multiplier: all methods at sigma = 1.0, else FedCVR alone."""
    private = {"unit": "patient", "noise_multiplier": sigma, "delta": 1e-5}
    compare = [name for name in ORDER if name != LEAD] + ["alone"] if sigma == 1.0 else []
    return Study(
        name=f"fedcvr sigma {sigma if sigma is not None else 'none'}",
        outcome="high_risk",
        seed=42,
        cohort={"name": "cardio", **({"patients": 6000} if quick else {})},
        method={"name": LEAD, "rounds": 20 if quick else 100, "local_epochs": 2 if quick else 5},
        evaluation={"seeds": 2 if quick else 5, "compare": compare},
        **({} if sigma is None else {"privacy": private}),
    )


def reproduce(work: Work) -> Content:
    """Run the four noise multipliers, then write tables, figures and the page."""
    results = {sigma: work.run(study(sigma, quick=work.quick)) for sigma in PAPER_TABLE_8}
    main = results[1.0]
    gains = zip(by_seed(main, "auc", LEAD), by_seed(main, "auc", "fedavg"), strict=True)
    grid, missing = claim.run(work)
    tables, words = claim.tables(grid, [ours - plain for ours, plain in gains])
    tables |= {
        "table2": ("Table 2: patients by risk", _table_2(main)),
        "table3": ("Table 3: the five specialised hospitals", _table_3(main)),
        "table7": ("Table 7: methods at noise multiplier 1.0", _table_7(main)),
        "table8": ("Table 8: FedCVR by amount of noise", _table_8(results)),
        "epsilon": ("Epsilon claimed by the paper and proven here", _epsilons(results)),
    }
    more: More = {
        "seconds": round(sum(map(seconds_of, results.values())), 1),
        "table_7_seconds": round(seconds_of(main, ORDER), 1),
    }
    drawn = _charts(results)
    drawn["claim"] = (claim.chart(grid), "Does the server's optimiser filter noise? Ours.")
    return work.publish(TITLE, tables, [words, *PRINTED["notes"], *missing], drawn, more)


def _table_2(result: Result) -> list[Row]:
    sites = result.data["cohort"]["sites"].values()
    total = sum(site["train"] for site in sites)
    high = round(sum(site["train"] * site["prevalence"] for site in sites))
    pairs = zip(PRINTED["table_2"].items(), (total - high, high), strict=True)
    return rows_under(
        "risk | paper patients | paper share | our patients | our share",
        ((name, *shown, count, count / total) for (name, shown), count in pairs),
    )


def _table_3(result: Result) -> list[Row]:
    sites = result.data["cohort"]["sites"].items()
    ours = {name: (one["train"], one["test"], one["prevalence"]) for name, one in sites}
    return rows_under(
        "hospital | rule | paper patients | our training patients | our test patients | "
        "our high-risk share",
        ((name, *shown, *ours[name]) for name, shown in PRINTED["table_3"].items()),
    )


def _table_7(result: Result) -> list[Row]:
    tests = result.data["comparison"]["tests"]
    rows = []
    for name in ORDER:
        *figures, p = PRINTED["table_7"][name]
        row: Row = {"method": method_of(result, name)["label"]}
        for metric, paper in zip(("accuracy", "recall", "auc"), figures, strict=True):
            row[f"paper {metric}"] = paper
            row |= summary(f"our {metric}", by_seed(result, metric, name), sd=True)
        test = tests.get(name, {"welch": {"p": None}, "paired": {"p": None}, "difference": None})
        row |= {"paper p": p, "p (Welch)": test["welch"]["p"], "p (paired)": test["paired"]["p"]}
        rows.append({**row, "AUC − FedCVR": test["difference"]})
    return rows


def _table_8(results: Mapping[float | None, Result]) -> list[Row]:
    return [
        {
            "sigma": "none" if sigma is None else sigma,
            "claimed epsilon": claimed,
            "proven epsilon (worst hospital)": results[sigma].privacy["epsilon"],
            "paper F1": f1,
            **summary("our F1", by_seed(results[sigma], "f1"), sd=True),
            "our AUC": summary("auc", by_seed(results[sigma], "auc"))["auc"],
        }
        for sigma, (claimed, f1) in PAPER_TABLE_8.items()
    ]


def _epsilons(results: Mapping[float | None, Result]) -> list[Row]:
    rows = []
    for name, about in results[1.0].data["cohort"]["sites"].items():
        row: Row = {"hospital": name, "patients": about["train"]}
        for sigma, result in results.items():
            if sigma is not None:
                row[f"claimed at sigma {sigma}"] = PAPER_TABLE_8[sigma][0]
                row[f"proven at sigma {sigma}"] = result.privacy["sites"][name]
        rows.append(row)
    return rows


def _charts(results: Mapping[float | None, Result]) -> dict[str, tuple[Chart, str]]:
    main = results[1.0]
    methods = {name: m for name, m in main.data["methods"].items() if name != "alone"}
    data = complete(main.data)
    shown = copy(data)
    shown["methods"] = methods
    histograms, boxes = figures.histograms(data), _with_outliers(figures.boxes(data), main)
    roc, alone = figures.roc(shown), _alone(main)
    made = {
        "figure3_histograms": (histograms, "how the features are distributed."),
        "figure4_box_plots": (boxes, "the features at each hospital; dots: outliers."),
        "figure5_evolution": (_evolution(main), "FedCVR's metrics over the rounds."),
        "figure6_hospitals_alone": (alone, "each hospital by itself, and the federated model."),
        "figure7_roc": (roc, "ROC of the six methods at noise multiplier 1.0, first seed."),
        "figure8_noise": (_noise(results), "FedCVR with and without noise."),
    }
    return {
        name: (chart, f"Figure {name[6]} in kind: {words}") for name, (chart, words) in made.items()
    }


def _with_outliers(boxes: Chart, main: Result) -> Chart:
    """The box plots with a dot for every value beyond the whiskers: these patients are generated."""
    study = main.data["study"]
    whole = cohorts.load(
        "cardio", study["seed"], **{k: v for k, v in study["cohort"].items() if k != "name"}
    )
    numbers = [key for key, found in main.data["cohort"]["features"].items() if found.get("box")]
    for i, key in enumerate(numbers):
        rows = []
        for site in whole.sites:
            low, high = np.quantile(site.table[key], [0.25, 0.75])
            far = np.abs(site.table[key] - (low + high) / 2) > 2 * (high - low)
            rows += [{"hospital": site.name, "value": float(v)} for v in site.table[key][far]]
        y = alt.Y("hospital:N", sort=[site.name for site in whole.sites])
        dots = alt.Chart(table(rows)).mark_circle(size=9, color="#444444", opacity=0.5)
        if rows:
            boxes.concat[i].layer.append(dots.encode(x="value:Q", y=y))
    boxes.title["subtitle"] += ", dots: patients beyond them"
    return boxes


def _lines(rows: list[Row], colour: str, order: Sequence[str], title: str) -> Chart:
    """A metric against the round, one line per series."""
    whole = alt.Axis(tickMinStep=1, tickCount=6, format="d")
    scale = alt.Scale(domain=list(order), range=list(PALETTE[: len(order)]))
    legend = alt.Legend(orient="bottom", columns=5)
    up = alt.Y("value:Q", title=title, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=6))
    lines = alt.Chart(table(rows)).mark_line(strokeWidth=2)
    return lines.encode(
        x=alt.X("round:Q", title="Round", axis=whole),
        y=up,
        color=alt.Color(f"{colour}:N", title=None, sort=list(order), scale=scale, legend=legend),
        tooltip=[f"{colour}:N", "round:Q", alt.Tooltip("value:Q", format=".3f")],
    )


def _evolution(main: Result) -> Chart:
    rows: list[Row] = [
        {"round": entry["round"], "metric": label, "value": entry["global"][key]}
        for entry in method_of(main, LEAD)["history"]
        for key, label in METRICS.items()
    ]
    chart = _lines(rows, "metric", list(METRICS.values()), "Metric, or loss")
    note = "Noise multiplier 1.0, test patients of all hospitals, mean over seeds"
    return finish(chart.properties(width=640, height=320), "FedCVR over the rounds", note)


def _alone(main: Result) -> Chart:
    """Each hospital's own model on its own test patients; the federated model on everybody's."""
    federated = "federated (FedCVR)"
    panels = [*main.data["cohort"]["sites"], federated]
    rows: list[Row] = [
        {"round": entry["round"], "panel": panel, "metric": METRICS[key], "value": metrics[key]}
        for method in ("alone", LEAD)
        for entry in method_of(main, method)["history"]
        for panel, metrics in (
            entry["sites"].items() if method == "alone" else [(federated, entry["global"])]
        )
        for key in SHOWN
        if metrics[key] is not None
    ]
    lines = _lines(rows, "metric", [METRICS[key] for key in SHOWN], "Metric")
    facet = alt.Facet("panel:N", title=None, sort=panels)
    chart = lines.properties(width=230, height=150).facet(facet=facet, columns=3, spacing=24)
    note = "Noise multiplier 1.0; each hospital on its own patients"
    chart = chart.resolve_axis(x="independent", y="independent")
    return finish(chart, "Hospitals alone, and the federation", note)


def _noise(results: Mapping[float | None, Result]) -> Chart:
    names = {one: "no noise" if one is None else f"noise multiplier {one}" for one in results}
    panels = []
    for key in ("f1", "loss"):
        rows: list[Row] = [
            {"round": entry["round"], "noise": names[sigma], "value": entry["global"][key]}
            for sigma, result in results.items()
            for entry in method_of(result, LEAD)["history"]
        ]
        lines = _lines(rows, "noise", list(names.values()), METRICS[key])
        panels.append(lines.properties(width=340, height=260))
    note = "Test patients of all hospitals, mean over seeds"
    return finish(alt.hconcat(*panels, spacing=36), "What noise does to FedCVR", note)
