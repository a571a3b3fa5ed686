"""The figures of a result, by name, and the ones about methods: ROC, convergence, comparison, calibration, privacy.

Figures about hospitals are in `figures_hospitals`, those about the cohort in `figures_cohort`. Each function takes the
plain result and gives an Altair chart, or None where the result lacks what the figure shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from suture.report import figures_cohort, figures_fairness, figures_hospitals
from suture.report.theme import PALETTE, QUIET, finish, method_colours, save, table
from suture.report.words import (
    METRICS,
    Result,
    bounds,
    finite,
    labels,
    leading_metric,
    number,
    part,
    primary,
    repeats,
    span,
    tidy,
)

__all__ = ["calibration", "comparison", "convergence", "figures_of", "privacy_utility", "roc", "save"]

COMPARED = ("auc", "auprc", "recall", "precision", "f1", "ece")
CONVERGENCE = ("auc", "f1", "recall", "loss")
MOST_ROUNDS = 200  # more points than pixels say nothing more


def figures_of(result: Result) -> dict[str, Any]:
    """Every figure this result can show, by a name that also serves as its file name.

    >>> list(figures_of({"name": "x", "methods": {"a": {"roc": {"fpr": [0, 1], "tpr": [0, 1]}}}}))
    ['roc']
    """
    makers: dict[str, Callable[[Result], Any]] = {
        "comparison": comparison,
        "roc": roc,
        "calibration": calibration,
        "convergence": convergence,
        "hospitals": figures_hospitals.hospitals_compared,
        "hospital_panels": figures_hospitals.panels,
        "fairness": figures_fairness.by_round,
        "privacy_utility": privacy_utility,
        "hospital_sizes": figures_cohort.sizes,
        "histograms": figures_cohort.histograms,
        "box_plots": figures_cohort.boxes,
        "categories": figures_cohort.shares,
    }
    clean = tidy(result)
    return {name: chart for name, make in makers.items() if (chart := make(clean)) is not None}


def roc(result: Result) -> Any:
    """ROC curves of every method, on held-out patients of all hospitals together.

    >>> roc({"name": "x", "methods": {"a": {}}}) is None
    True
    """
    names = labels(result)
    rows, legend = [], {}
    for key, label in _drawn_last(result, names):
        curve = part(result, "methods", key, "roc")
        auc = finite(part(result, "methods", key, "metrics", "global").get("auc"))
        legend[label] = f"{label}, AUC {number(auc)}" if auc is not None else label
        rows += [
            {"method": legend[label], "fpr": round(x, 4), "tpr": round(y, 4), "order": i}
            for i, (x, y) in enumerate(zip(curve.get("fpr") or [], curve.get("tpr") or [], strict=False))
        ]
    if not rows:
        return None
    shared = method_colours(result).to_dict()
    colours = alt.Scale(domain=[legend[n] for n in shared["domain"]], range=shared["range"])
    ticks = alt.Axis(format="%", values=[0, 0.2, 0.4, 0.6, 0.8, 1.0])
    chance = (
        alt.Chart(table([{"x": 0, "y": 0}, {"x": 1, "y": 1}]))
        .mark_line(color="#9aa0a6", strokeDash=[5, 4], strokeWidth=1.5)
        .encode(x="x:Q", y="y:Q")
    )
    lines = (
        alt.Chart(table(rows))
        .mark_line(strokeWidth=2.2, interpolate="linear")
        .encode(
            x=alt.X("fpr:Q", title="False positives among patients without the outcome", axis=ticks),
            y=alt.Y("tpr:Q", title="True positives among patients with the outcome", axis=ticks),
            color=alt.Color("method:N", scale=colours, title=None, legend=alt.Legend(orient="right", offset=18)),
            order="order:Q",
            tooltip=[
                alt.Tooltip("method:N", title="Method"),
                alt.Tooltip("fpr:Q", title="False positive rate", format=".1%"),
                alt.Tooltip("tpr:Q", title="True positive rate", format=".1%"),
            ],
        )
    )
    chart = alt.layer(chance, lines).properties(width=420, height=420)
    return finish(chart, "ROC curve", "Held-out patients of all hospitals together; dashed: a coin toss")


def convergence(result: Result, metrics: Sequence[str] = CONVERGENCE) -> Any:
    """Metrics after every round, one panel a metric, one line a method.

    >>> history = [{"round": r, "global": {"auc": 0.5 + r / 10}} for r in (1, 2)]
    >>> chart = convergence({"name": "x", "methods": {"a": {"history": history}}}, metrics=["auc"])
    >>> chart.to_dict()["title"]["text"]
    'Convergence'
    """
    names = labels(result)
    known = [m for m in metrics if _history(result, m)]
    if not known:
        return None
    single = len(known) == 1
    panels = []
    for metric in known:
        rows = _history(result, metric)
        panels.append(
            alt.Chart(table(rows))
            .mark_line(strokeWidth=2)
            .encode(
                x=alt.X("round:Q", title="Round", axis=alt.Axis(tickMinStep=1, tickCount=6, format="d")),
                y=alt.Y(
                    "value:Q",
                    title=METRICS.get(metric, metric),
                    scale=alt.Scale(zero=False),
                    axis=alt.Axis(tickCount=6),
                ),
                color=alt.Color("method:N", scale=method_colours(result), title=None, legend=_bottom(names)),
                tooltip=[
                    alt.Tooltip("method:N", title="Method"),
                    alt.Tooltip("round:Q", title="Round"),
                    alt.Tooltip("value:Q", title=METRICS.get(metric, metric), format=".3f"),
                ],
            )
            .properties(width=640 if single else 310, height=320 if single else 200)
        )
    chart = panels[0] if single else alt.concat(*panels, columns=2, spacing={"row": 26, "column": 40})
    who = f"{next(iter(names.values()))}. " if len(names) == 1 else ""
    return finish(chart, "Convergence", f"{who}Held-out patients of all hospitals together, over the rounds")


def comparison(result: Result, metrics: Sequence[str] = COMPARED) -> Any:
    """One dot a method with its 95 % interval over seeds, one panel a metric.

    >>> comparison({"name": "x", "methods": {"a": {"metrics": {"global": {"auc": 0.9}}}}}) is None
    True
    """
    names = labels(result)
    if len(names) < 2:
        return None  # one dot compares with nothing; the summary table says it
    panels = []
    known = [m for m in metrics if _final(result, m)]
    if not known and (metric := leading_metric(part(result, "methods", primary(result)))[0]) and _final(result, metric):
        known = [metric]
    for i, metric in enumerate(known):
        rows = _final(result, metric)
        base = alt.Chart(table(rows)).encode(
            y=alt.Y(
                "method:N",
                sort=list(names.values()),
                title=None,
                axis=alt.Axis(labels=i % 3 == 0, ticks=False, domain=False, grid=True, labelPadding=8),
            )
        )
        colour = alt.Color("method:N", scale=method_colours(result), legend=None)
        title = METRICS.get(metric, metric)
        axis = alt.X("low:Q", title=title, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=4))
        bar = base.mark_rule(strokeWidth=2.5).encode(x=axis, x2="high:Q", color=colour)
        dot = base.mark_circle(size=95, opacity=1).encode(
            x="value:Q",
            color=colour,
            tooltip=[
                alt.Tooltip("method:N", title="Method"),
                alt.Tooltip("value:Q", title=title, format=".3f"),
                alt.Tooltip("interval:N", title="95 % interval"),
            ],
        )
        panels.append(alt.layer(bar, dot).properties(width=190, height=max(90, 26 * len(names))))
    if not panels:
        return None
    many = any(row["interval"] for metric in known for row in _final(result, metric))
    note = f"Dots: mean over {repeats(result)}; lines: 95 % interval" if many else "One seed: no intervals"
    chart = alt.concat(*panels, columns=3, spacing={"row": 24, "column": 22})
    note += ". Lower is better for the calibration error, higher for the others" if "ece" in known else ""
    return finish(chart, "Methods compared", note)


def calibration(result: Result) -> Any:
    """Predicted against observed risk, one line a method; the dashed line is a perfectly calibrated model.

    >>> curve = {"predicted": [0.1, 0.9], "observed": [0.2, 0.8], "count": [10, 5]}
    >>> calibration({"name": "x", "methods": {"a": {"calibration": curve}}}).to_dict()["title"]["text"]
    'Calibration'
    """
    names = labels(result)
    rows = []
    for key, label in _drawn_last(result, names):
        curve = part(result, "methods", key, "calibration")
        triples = zip(*(curve.get(k) or [] for k in ("predicted", "observed", "count")), strict=False)
        rows += [{"method": label, "p": round(p, 4), "o": round(o, 4), "rows": n} for p, o, n in triples]
    if not rows:
        return None
    ticks = alt.Axis(format="%", values=[0, 0.2, 0.4, 0.6, 0.8, 1.0])
    perfect = (
        alt.Chart(table([{"x": 0, "y": 0}, {"x": 1, "y": 1}]))
        .mark_line(color="#9aa0a6", strokeDash=[5, 4], strokeWidth=1.5)
        .encode(x="x:Q", y="y:Q")
    )
    base = alt.Chart(table(rows)).encode(
        x=alt.X("p:Q", title="Predicted risk", axis=ticks, scale=alt.Scale(domain=[0, 1])),
        y=alt.Y("o:Q", title="Observed share of patients with the outcome", axis=ticks, scale=alt.Scale(domain=[0, 1])),
        color=alt.Color(
            "method:N", scale=method_colours(result), title=None, legend=alt.Legend(orient="right", offset=18)
        ),
    )
    dots = base.mark_circle(opacity=0.9).encode(
        size=alt.Size("rows:Q", scale=alt.Scale(type="sqrt", range=[25, 260]), legend=None),
        tooltip=[
            alt.Tooltip("method:N", title="Method"),
            alt.Tooltip("p:Q", title="Predicted", format=".1%"),
            alt.Tooltip("o:Q", title="Observed", format=".1%"),
            alt.Tooltip("rows:Q", title="Rows", format=",d"),
        ],
    )
    chart = alt.layer(perfect, base.mark_line(strokeWidth=1.8), dots).properties(width=420, height=420)
    return finish(chart, "Calibration", "Larger dots stand for more rows; dashed: predictions that come true exactly")


def privacy_utility(result: Result, metric: str = "auc", points: Sequence[Mapping[str, Any]] = ()) -> Any:
    """A metric against the epsilon spent, by round; ``points`` add results with ``epsilon``, metric and ``label``.

    >>> privacy_utility({"name": "x", "methods": {"a": {"history": [{"round": 1, "epsilon": None}]}}}) is None
    True
    """
    names = labels(result)
    rows: list[dict[str, Any]] = []
    for key, label in _drawn_last(result, names):
        for entry in _thinned(part(result, "methods", key), "history"):
            spent, value = finite(entry.get("epsilon")), finite(part(entry, "global").get(metric))
            if spent is not None and value is not None:
                rows.append(
                    {"method": label, "epsilon": round(spent, 4), "value": round(value, 5), "at": entry["round"]}
                )
    marked: list[dict[str, Any]] = [
        {"label": str(p.get("label", "")), "epsilon": e, "value": v}
        for p in points
        if (e := finite(p.get("epsilon"))) is not None and (v := finite(p.get(metric))) is not None
    ]
    if not rows and not marked:
        return None
    spread = [row["epsilon"] for row in marked]
    wide = bool(spread) and not rows and min(spread) > 0 and max(spread) / min(spread) > 20
    x = alt.X("epsilon:Q", title="Privacy spent: epsilon proven at the worst hospital (smaller is more private)",
              scale=alt.Scale(type="log" if wide else "linear", nice=True), axis=alt.Axis(tickCount=8))  # fmt: skip
    y = alt.Y("value:Q", title=METRICS.get(metric, metric), scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=6))
    layers: list[Any] = []
    if rows:
        tooltip = [
            alt.Tooltip("method:N", title="Method"),
            alt.Tooltip("at:Q", title="Round"),
            alt.Tooltip("epsilon:Q", title="Epsilon", format=".2f"),
            alt.Tooltip("value:Q", title=METRICS.get(metric, metric), format=".3f"),
        ]
        colour = alt.Color("method:N", scale=method_colours(result), title=None, legend=_bottom(names))
        lines = alt.Chart(table(rows)).mark_line(strokeWidth=2.2)
        layers.append(lines.encode(x=x, y=y, color=colour, order="at:Q", tooltip=tooltip))
    if marked:
        dots = alt.Chart(table(marked)).encode(x=x, y=y)
        line = dots.mark_line(color=PALETTE[0], strokeWidth=2)
        words = dots.mark_text(dy=-14, fontSize=12, color=QUIET).encode(text="label:N")
        layers += [line, dots.mark_circle(size=110, color=PALETTE[0], opacity=1), words]
    chart = alt.layer(*layers).properties(width=640, height=320)
    who = f"{next(iter(names.values()))}, round" if len(names) == 1 else "Each line follows one method, round"
    note = f"{who} by round, on held-out patients of all hospitals" if rows else "Held-out patients of all hospitals"
    return finish(chart, "Privacy against usefulness", note)


def _drawn_last(result: Result, names: Mapping[str, str]) -> list[tuple[str, str]]:
    """Methods with the study's own at the end, so that its line lies on top."""
    first = primary(result)
    return [(k, v) for k, v in names.items() if k != first] + [(k, v) for k, v in names.items() if k == first]


def _thinned(method: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    entries = [e for e in method.get(name) or [] if isinstance(e, Mapping) and finite(e.get("round")) is not None]
    if len(entries) <= MOST_ROUNDS:
        return [dict(e) for e in entries]
    keep = np.unique(np.linspace(0, len(entries) - 1, MOST_ROUNDS).round().astype(int))
    return [dict(entries[i]) for i in keep]


def _history(result: Result, metric: str) -> list[dict[str, Any]]:
    rows = []
    for key, label in _drawn_last(result, labels(result)):
        for entry in _thinned(part(result, "methods", key), "history"):
            value = finite(part(entry, "global").get(metric))
            if value is not None:
                rows.append({"method": label, "round": entry["round"], "value": round(value, 5)})
    return rows


def _final(result: Result, metric: str) -> list[dict[str, Any]]:
    rows = []
    for key, label in labels(result).items():
        metrics = part(result, "methods", key, "metrics")
        value = finite(part(metrics, "global").get(metric))
        reach = bounds(part(metrics, "intervals", "global"), metric)
        if value is not None:
            low, high = reach or (value, value)
            rows.append({"method": label, "value": value, "low": low, "high": high, "interval": span(reach)})
    return rows


def _bottom(names: Mapping[str, str]) -> alt.Legend | None:
    return (
        alt.Legend(orient="bottom", columns=min(4, len(names)), offset=14, symbolSize=180) if len(names) > 1 else None
    )
