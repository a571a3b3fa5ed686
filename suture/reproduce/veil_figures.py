"""Figures 1 and 2 of paper 000 from our table: the radar, and performance against epsilon."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from suture.report.theme import PALETTE, finish, table

AXES = ("AUC", "AUPRC", "Trustworthiness", "Efficiency", "Privacy")
CAPTIONS = {
    "figure1_radar": "Figure 1 in kind ({words}): each axis from the worst (centre) to the best (rim) of the methods shown, as "
    "the paper's caption defines: trustworthiness 1 - ECE, efficiency log(1 / megabytes), privacy 1 / epsilon.",
    "figure2_privacy": "Figure 2 in kind ({words}): AUC and AUPRC against the proven epsilon; bars are 95 % intervals over "
    "folds, side by side for each epsilon.",
}


def charts(
    rows: Sequence[Mapping[str, Any]], cohort: str = "icu", words: str = "generated icu federation"
) -> dict[str, Any]:
    """Both figures of one federation."""
    return {f"figure1_radar_{cohort}": radar(rows, words), f"figure2_privacy_{cohort}": curves(rows, words)}


def caption(name: str) -> str:
    """The caption of a figure by its name."""
    kind, cohort = name.rsplit("_", 1)
    words = {"icu": "generated icu federation", "eicu": "eICU demo"}.get(cohort, cohort)
    return CAPTIONS[kind].format(words=words)


def _axes(row: Mapping[str, Any]) -> dict[str, float]:
    return {
        "AUC": row["our AUC"],
        "AUPRC": row["our AUPRC"],
        "Trustworthiness": 1 - row["our ECE"],
        "Efficiency": math.log(1 / max(row["our MB"], 1e-6)),
        "Privacy": 1 / row["epsilon"] if isinstance(row["epsilon"], float) else 0.0,
    }


def radar(rows: Sequence[Mapping[str, Any]], words: str = "") -> Any:
    """Methods at epsilon 5 and the secure mode at epsilon 1, min-max scaled over what is shown."""
    shown = [r for r in rows if r["epsilon"] == 5.0 or (r["epsilon"] == 1.0 and r["method"] == "VEIL, secure sums")]
    values = {f"{row['method']}, epsilon {row['epsilon']:g}": _axes(row) for row in shown}
    names = list(values)
    points, grid, labels = [], [], []
    for i, axis in enumerate(AXES):
        column = [values[name][axis] for name in names]
        low, high = min(column), max(column)
        angle = math.pi / 2 - 2 * math.pi * i / len(AXES)
        for name in names:
            share = (values[name][axis] - low) / (high - low) if high > low else 1.0
            points.append(_point(name, i, 0.06 + 0.94 * share, angle))
        labels.append({"x": 1.2 * math.cos(angle), "y": 1.13 * math.sin(angle), "text": axis})
        grid.append({"x": 0.0, "y": 0.0, "axis": axis, "order": 0})
        grid.append({"x": math.cos(angle), "y": math.sin(angle), "axis": axis, "order": 1})
    points += [{**point, "order": len(AXES)} for point in points if point["order"] == 0]
    scale = alt.Scale(domain=[-1.45, 1.45])
    x, y = alt.X("x:Q", axis=None, scale=scale), alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[-1.0, 1.25]))
    spokes = alt.Chart(table(grid)).mark_line(color="#d9dce1").encode(x=x, y=y, detail="axis:N", order="order:Q")
    drawn = alt.Chart(table(points)).encode(x=x, y=y, color=_colour(shown, names), order="order:Q")
    lines = drawn.mark_line(strokeWidth=2).encode(strokeDash=_dash(shown, names))
    lines += drawn.mark_point(filled=True, size=45, opacity=1)
    text = alt.Chart(table(labels)).mark_text(fontSize=13).encode(x=x, y=y, text="text:N")
    return finish(
        (spokes + lines + text).properties(width=520, height=410),
        "Strengths compared",
        f"Hospitals that did not train: {words}",
    )


_LEGEND = alt.Legend(
    orient="bottom", columns=2, labelLimit=340, symbolType="stroke", symbolSize=350, symbolStrokeWidth=2.5
)


def _colour(shown: Sequence[Mapping[str, Any]], names: list[str]) -> Any:
    """A method keeps its colour from figure to figure."""
    kinds = list(dict.fromkeys(row["method"] for row in shown))
    colours = [PALETTE[kinds.index(row["method"])] for row in shown]
    return alt.Color(
        "method:N", title=None, sort=names, scale=alt.Scale(domain=names, range=colours), legend=_LEGEND
    )  # fmt: skip


def _dash(shown: Sequence[Mapping[str, Any]], names: list[str]) -> Any:
    """Another epsilon than 5 is dashed."""
    dashes = [[1, 0] if row["epsilon"] == 5.0 else [6, 4] for row in shown]
    return alt.StrokeDash(
        "method:N", title=None, sort=names, scale=alt.Scale(domain=names, range=dashes), legend=_LEGEND
    )  # fmt: skip


def _point(name: str, order: int, share: float, angle: float) -> dict[str, Any]:
    return {"method": name, "order": order, "x": share * math.cos(angle), "y": share * math.sin(angle)}


def curves(rows: Sequence[Mapping[str, Any]], words: str = "") -> Any:
    """AUC and AUPRC against epsilon with intervals, one line a private method."""
    private = [row for row in rows if isinstance(row["epsilon"], float)]
    names = list(dict.fromkeys(row["method"] for row in private))
    colour = alt.Color(
        "method:N", title=None, sort=names, scale=alt.Scale(domain=names, range=list(PALETTE[: len(names)])),
        legend=alt.Legend(orient="bottom", columns=3),
    )  # fmt: skip
    panels = []
    # Side by side, or intervals at one epsilon would hide each other.
    aside = {name: 1.035 ** (i - (len(names) - 1) / 2) for i, name in enumerate(names)}
    for label in ("AUC", "AUPRC"):
        data = [
            {
                "method": row["method"],
                "epsilon": row["epsilon"] * aside[row["method"]],
                "value": row[f"our {label}"],
                "low": row[f"our {label} 95% low"],
                "high": row[f"our {label} 95% high"],
            }
            for row in private
        ]
        base = alt.Chart(table(data)).encode(
            x=alt.X("epsilon:Q", title="Proven epsilon", scale=alt.Scale(type="log", domain=[0.87, 17.5], nice=False),
                    axis=alt.Axis(values=[1, 5, 10, 15], format="d")),
            color=colour,
        )  # fmt: skip
        y = alt.Y("value:Q", title=label, scale=alt.Scale(zero=False))
        trees = [row for row in rows if "trees" in row["method"]]
        level = alt.Chart(table([{"value": row[f"our {label}"]} for row in trees])).mark_rule(
            color="#888888", strokeDash=[5, 4]
        )
        panels.append(
            (
                level.encode(y="value:Q")
                + base.mark_line(point=True, strokeWidth=2).encode(y=y)
                + base.mark_rule(opacity=0.6, strokeWidth=1.5).encode(y="low:Q", y2="high:Q")
            ).properties(width=340, height=280)
        )
    chart = alt.hconcat(*panels, spacing=36)
    return finish(
        chart, "What privacy costs", f"Hospitals that did not train: {words}. Dashed: pooled boosted trees, not private"
    )
