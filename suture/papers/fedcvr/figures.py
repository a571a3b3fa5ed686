"""Figures 3 to 8 of FedCVR, drawn from our runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy

import altair as alt

from suture.papers.reproduction import Chart, Row, method_of
from suture.report import figures
from suture.report.theme import PALETTE, finish, table
from suture.report.words import complete
from suture.result import Result

LEAD = "fedadam"
"""The method that the paper calls FedCVR."""
METRICS = {
    "accuracy": "Accuracy",
    "precision": "Precision",
    "recall": "Recall",
    "f1": "F1",
    "loss": "Loss",
}
SHOWN = ("accuracy", "recall", "f1")


def charts(results: Mapping[float | None, Result]) -> dict[str, tuple[Chart, str]]:
    """All six figures with their captions."""
    main = results[1.0]
    methods = {name: m for name, m in main.data["methods"].items() if name != "alone"}
    data = complete(main.data)
    shown = copy(data)
    shown["methods"] = methods
    roc = figures.roc(shown)
    histograms, boxes = figures.histograms(data), figures.boxes(data)
    made = {
        "figure3_histograms": (histograms, "how the features are distributed."),
        "figure4_box_plots": (boxes, "the features at each hospital."),
        "figure5_evolution": (_evolution(main), "FedCVR's metrics over the rounds."),
        "figure6_hospitals_alone": (
            _alone(main),
            "each hospital by itself, and the federated model.",
        ),
        "figure7_roc": (roc, "ROC of the six methods at noise multiplier 1.0, first seed."),
        "figure8_noise": (_noise(results), "FedCVR with and without noise."),
    }
    return {
        name: (chart, f"Figure {name[6]} in kind: {words}") for name, (chart, words) in made.items()
    }


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
