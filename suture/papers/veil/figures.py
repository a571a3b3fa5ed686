"""Figures 1 and 2 of VEIL, drawn from our table: the radar, and performance against epsilon."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import altair as alt

from suture.papers.reproduction import Chart, Row, number
from suture.report.theme import PALETTE, finish, table

AXES = ("AUC", "AUPRC", "Trustworthiness", "Efficiency", "Privacy")
CAPTIONS = {
    "figure1_radar": "Figure 1 in kind ({words}): each axis from the worst (centre) to the best "
    "(rim) of the methods shown, as the paper's caption defines: trustworthiness 1 - ECE, "
    "efficiency log(1 / megabytes), privacy 1 / epsilon.",
    "figure2_privacy": "Figure 2 in kind ({words}): AUC and AUPRC against the proven epsilon; bars "
    "are 95 % intervals over folds, side by side for each epsilon.",
}
_LEGEND = alt.Legend(
    orient="bottom",
    columns=2,
    labelLimit=340,
    symbolType="stroke",
    symbolSize=350,
    symbolStrokeWidth=2.5,
)


def charts(rows: Sequence[Row], cohort: str, words: str) -> dict[str, tuple[Chart, str]]:
    """Both figures of one federation with their captions."""
    return {
        f"{name}_{cohort}": (draw(rows, words), CAPTIONS[name].format(words=words))
        for name, draw in (("figure1_radar", radar), ("figure2_privacy", curves))
    }


def axes(row: Row) -> dict[str, float]:
    """A method's value on each axis of the radar."""
    epsilon = row["epsilon"]
    return {
        "AUC": number(row["our AUC"]),
        "AUPRC": number(row["our AUPRC"]),
        "Trustworthiness": 1 - number(row["our ECE"]),
        "Efficiency": math.log(1 / max(number(row["our MB"]), 1e-6)),
        "Privacy": 1 / epsilon if isinstance(epsilon, float) else 0.0,
    }


def radar(rows: Sequence[Row], words: str) -> Chart:
    """Methods at epsilon 5, and the secure mode at epsilon 1, scaled from the worst to the best of
    those shown."""
    secure = ("VEIL, secure sums", 1.0)
    shown = [r for r in rows if r["epsilon"] == 5.0 or (r["method"], r["epsilon"]) == secure]
    values = {f"{row['method']}, epsilon {row['epsilon']:g}": axes(row) for row in shown}
    points: list[Row] = []
    grid: list[Row] = []
    labels: list[Row] = []
    for i, axis in enumerate(AXES):
        column = [value[axis] for value in values.values()]
        low, high = min(column), max(column)
        angle = math.pi / 2 - 2 * math.pi * i / len(AXES)
        x, y = math.cos(angle), math.sin(angle)
        for name, value in values.items():
            share = 0.06 + 0.94 * ((value[axis] - low) / (high - low) if high > low else 1.0)
            points.append({"method": name, "order": i, "x": share * x, "y": share * y})
        labels.append({"x": 1.2 * x, "y": 1.13 * y, "text": axis})
        grid.append({"x": 0.0, "y": 0.0, "axis": axis, "order": 0})
        grid.append({"x": x, "y": y, "axis": axis, "order": 1})
    points += [{**point, "order": len(AXES)} for point in points if point["order"] == 0]
    across = alt.X("x:Q", axis=None, scale=alt.Scale(domain=[-1.45, 1.45]))
    place: dict[str, Chart] = {
        "x": across,
        "y": alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[-1.0, 1.25])),
    }
    spokes = alt.Chart(table(grid)).mark_line(color="#d9dce1")
    drawn = alt.Chart(table(points)).encode(**place, color=_colour(shown, values), order="order:Q")
    lines = drawn.mark_line(strokeWidth=2).encode(strokeDash=_dash(shown, values))
    text = alt.Chart(table(labels)).mark_text(fontSize=13).encode(**place, text="text:N")
    layers = spokes.encode(**place, detail="axis:N", order="order:Q") + lines
    layers += drawn.mark_point(filled=True, size=45, opacity=1)
    whole = (layers + text).properties(width=520, height=410)
    return finish(whole, "Strengths compared", f"Hospitals that did not train: {words}")


def _colour(shown: Sequence[Row], names: Iterable[str]) -> Chart:
    """A method keeps its colour from figure to figure."""
    kinds = list(dict.fromkeys(row["method"] for row in shown))
    scale = alt.Scale(
        domain=list(names), range=[PALETTE[kinds.index(row["method"])] for row in shown]
    )
    return alt.Color("method:N", title=None, sort=list(names), scale=scale, legend=_LEGEND)


def _dash(shown: Sequence[Row], names: Iterable[str]) -> Chart:
    """Any epsilon but 5 is dashed."""
    dashes = [[1, 0] if row["epsilon"] == 5.0 else [6, 4] for row in shown]
    scale = alt.Scale(domain=list(names), range=dashes)
    return alt.StrokeDash("method:N", title=None, sort=list(names), scale=scale, legend=_LEGEND)


def curves(rows: Sequence[Row], words: str) -> Chart:
    """AUC and AUPRC against epsilon with intervals, one line per private method."""
    private = [row for row in rows if isinstance(row["epsilon"], float)]
    names = list(dict.fromkeys(str(row["method"]) for row in private))
    colours = alt.Scale(domain=names, range=list(PALETTE[: len(names)]))
    legend = alt.Legend(orient="bottom", columns=3)
    colour = alt.Color("method:N", title=None, sort=names, scale=colours, legend=legend)
    log = alt.Scale(type="log", domain=[0.87, 17.5], nice=False)
    ticks = alt.Axis(values=[1, 5, 10, 15], format="d")
    x = alt.X("epsilon:Q", title="Proven epsilon", scale=log, axis=ticks)
    # Side by side, or intervals at one epsilon would hide each other.
    aside = {name: 1.035 ** (i - (len(names) - 1) / 2) for i, name in enumerate(names)}
    panels = []
    for label in ("AUC", "AUPRC"):
        data: list[Row] = [
            {
                "method": row["method"],
                "epsilon": number(row["epsilon"]) * aside[str(row["method"])],
                "value": row[f"our {label}"],
                "low": row[f"our {label} 95% low"],
                "high": row[f"our {label} 95% high"],
            }
            for row in private
        ]
        base = alt.Chart(table(data)).encode(x=x, color=colour)
        y = alt.Y("value:Q", title=label, scale=alt.Scale(zero=False))
        trees = [row for row in rows if "trees" in str(row["method"])]
        level = alt.Chart(table([{"value": row[f"our {label}"]} for row in trees]))
        layers = (
            level.mark_rule(color="#888888", strokeDash=[5, 4]).encode(y="value:Q")
            + base.mark_line(point=True, strokeWidth=2).encode(y=y)
            + base.mark_rule(opacity=0.6, strokeWidth=1.5).encode(y="low:Q", y2="high:Q")
        )
        panels.append(layers.properties(width=340, height=280))
    note = f"Hospitals that did not train: {words}. Dashed: pooled boosted trees, not private"
    return finish(alt.hconcat(*panels, spacing=36), "What privacy costs", note)
