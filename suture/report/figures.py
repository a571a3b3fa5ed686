"""The figures of a result, by name, and the ones about methods: ROC, convergence, comparison,
calibration, privacy.

Figures about hospitals and groups are in `figures_hospitals`, those about the cohort in
`figures_cohort`. Each function takes a complete result (see `words.complete`) and gives an Altair
chart, or None where the result lacks what the figure shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import altair as alt

from suture.report import figures_cohort, figures_hospitals
from suture.report.figures_hospitals import ROUND, thin
from suture.report.theme import GREY, Figure, finish, method_colours, save, table, tips
from suture.report.words import (
    METRICS,
    bounds,
    complete,
    labels,
    leading_metric,
    number,
    primary,
    repeats,
    span,
)
from suture.schema.record import Record

__all__ = ["figures_of", "save"]

COMPARED = ("auc", "auprc", "recall", "precision", "f1", "ece")
CONVERGENCE = ("auc", "f1", "recall", "loss")
MOST_ROUNDS = 200
"""More points than pixels say nothing more."""


def figures_of(result: Mapping[str, object]) -> dict[str, Figure]:
    """Every figure this result can show, by a name that also serves as its file name.

    >>> list(figures_of({"name": "x", "methods": {"a": {"roc": {"fpr": [0, 1], "tpr": [0, 1]}}}}))
    ['roc']
    """
    makers: dict[str, Callable[[Record], Figure | None]] = {
        "comparison": comparison,
        "roc": roc,
        "calibration": calibration,
        "convergence": convergence,
        "hospitals": figures_hospitals.hospitals_compared,
        "hospital_panels": figures_hospitals.panels,
        "fairness": figures_hospitals.groups_by_round,
        "privacy_utility": privacy_utility,
        "hospital_sizes": figures_cohort.sizes,
        "histograms": figures_cohort.histograms,
        "box_plots": figures_cohort.boxes,
    }
    whole = complete(result)
    return {name: chart for name, make in makers.items() if (chart := make(whole)) is not None}


def roc(result: Record) -> Figure | None:
    """ROC curves of every method, on held-out patients of all hospitals together.

    >>> roc(complete({"methods": {"a": {}}})) is None
    True
    """
    rows, legend = [], {}
    for key, label in _drawn_last(result):
        method = result["methods"][key]
        auc = method["metrics"]["global"].get("auc")
        legend[label] = f"{label}, AUC {number(auc)}" if auc is not None else label
        points = zip(method["roc"]["fpr"], method["roc"]["tpr"], strict=False)
        rows += [
            {"method": legend[label], "fpr": round(x, 4), "tpr": round(y, 4), "order": i}
            for i, (x, y) in enumerate(points)
        ]
    if not rows:
        return None
    shared = method_colours(result).to_dict()
    colours = alt.Scale(domain=[legend[n] for n in shared["domain"]], range=shared["range"])
    lines = alt.Chart(table(rows)).mark_line(strokeWidth=2.2, interpolate="linear")
    without, with_ = "patients without the outcome", "patients with the outcome"
    lines = lines.encode(
        x=alt.X("fpr:Q", title=f"False positives among {without}", axis=_shares()),
        y=alt.Y("tpr:Q", title=f"True positives among {with_}", axis=_shares()),
        color=alt.Color("method:N", scale=colours, title=None, legend=_RIGHT),
        order="order:Q",
        tooltip=tips(method="Method", fpr="False positive rate|.1%", tpr="True positive rate|.1%"),
    )
    chart = alt.layer(_diagonal(), lines).properties(width=420, height=420)
    note = "Held-out patients of all hospitals together; dashed: a coin toss"
    return finish(chart, "ROC curve", note)


def convergence(result: Record) -> Figure | None:
    """Metrics after every round: one panel per metric, one line per method.

    >>> history = [{"round": r, "global": {"auc": 0.5 + r / 10}} for r in (1, 2)]
    >>> convergence(complete({"methods": {"a": {"history": history}}})).to_dict()["title"]["text"]
    'Convergence'
    """
    names = labels(result)
    known = {metric: rows for metric in CONVERGENCE if (rows := _history(result, metric))}
    if not known:
        return None
    single = len(known) == 1
    size = {"width": 640 if single else 310, "height": 320 if single else 200}
    panels: list[alt.Chart] = []
    for metric, rows in known.items():
        title, scale = METRICS[metric], alt.Scale(zero=False)
        line = alt.Chart(table(rows)).mark_line(strokeWidth=2)
        line = line.encode(
            x=ROUND,
            y=alt.Y("value:Q", title=title, scale=scale, axis=alt.Axis(tickCount=6)),
            color=_method_colour(result),
            tooltip=tips(method="Method", round="Round|", value=f"{title}|.3f"),
        )
        panels.append(line.properties(**size))
    chart = alt.concat(*panels, columns=2, spacing={"row": 26, "column": 40})
    who = f"{next(iter(names.values()))}. " if len(names) == 1 else ""
    note = f"{who}Held-out patients of all hospitals together, over the rounds"
    return finish(panels[0] if single else chart, "Convergence", note)


def comparison(result: Record) -> Figure | None:
    """One dot per method with its 95 % interval over seeds, one panel per metric.

    >>> comparison(complete({"methods": {"a": {"metrics": {"global": {"auc": 0.9}}}}})) is None
    True
    """
    names = labels(result)
    if len(names) < 2:
        return None  # one dot compares with nothing; the summary table says it
    known = {metric: rows for metric in COMPARED if (rows := _final(result, metric))}
    lead = leading_metric(primary(result))[0]
    if not known and (rows := _final(result, lead)):
        known = {lead: rows}
    panels = []
    for i, (metric, rows) in enumerate(known.items()):
        quiet = alt.Axis(labels=i % 3 == 0, ticks=False, domain=False, grid=True, labelPadding=8)
        y = alt.Y("method:N", sort=list(names.values()), title=None, axis=quiet)
        base = alt.Chart(table(rows)).encode(y=y)
        colour = alt.Color("method:N", scale=method_colours(result), legend=None)
        title, scale = METRICS[metric], alt.Scale(zero=False)
        x = alt.X("low:Q", title=title, scale=scale, axis=alt.Axis(tickCount=4))
        bar = base.mark_rule(strokeWidth=2.5).encode(x=x, x2="high:Q", color=colour)
        shown = tips(method="Method", value=f"{title}|.3f", interval="95 % interval")
        dot = base.mark_circle(size=95, opacity=1)
        dot = dot.encode(x="value:Q", color=colour, tooltip=shown)
        panels.append(alt.layer(bar, dot).properties(width=190, height=max(90, 26 * len(names))))
    if not panels:
        return None
    note = "One seed: no intervals"
    if any(row["interval"] for rows in known.values() for row in rows):
        note = f"Dots: mean over {repeats(result)}; lines: 95 % interval"
    if "ece" in known:
        note += ". Lower is better for the calibration error, higher for the others"
    chart = alt.concat(*panels, columns=3, spacing={"row": 24, "column": 22})
    return finish(chart, "Methods compared", note)


def calibration(result: Record) -> Figure | None:
    """Predicted against observed risk, one line per method; dashed: perfectly calibrated.

    >>> curve = {"predicted": [0.1, 0.9], "observed": [0.2, 0.8], "count": [10, 5]}
    >>> calibration(complete({"methods": {"a": {"calibration": curve}}})).to_dict()["title"]["text"]
    'Calibration'
    """
    rows = []
    for key, label in _drawn_last(result):
        curve = result["methods"][key]["calibration"]
        points = zip(curve["predicted"], curve["observed"], curve["count"], strict=False)
        rows += [
            {"method": label, "p": round(p, 4), "o": round(o, 4), "rows": n} for p, o, n in points
        ]
    if not rows:
        return None
    observed, whole = "Observed share of patients with the outcome", alt.Scale(domain=[0, 1])
    colours = method_colours(result)
    base = alt.Chart(table(rows)).encode(
        x=alt.X("p:Q", title="Predicted risk", axis=_shares(), scale=whole),
        y=alt.Y("o:Q", title=observed, axis=_shares(), scale=whole),
        color=alt.Color("method:N", scale=colours, title=None, legend=_RIGHT),
    )
    shown = tips(method="Method", p="Predicted|.1%", o="Observed|.1%", rows="Rows|,d")
    area = alt.Size("rows:Q", scale=alt.Scale(type="sqrt", range=[25, 260]), legend=None)
    dots = base.mark_circle(opacity=0.9).encode(size=area, tooltip=shown)
    chart = alt.layer(_diagonal(), base.mark_line(strokeWidth=1.8), dots)
    note = "Larger dots stand for more rows; dashed: predictions that come true exactly"
    return finish(chart.properties(width=420, height=420), "Calibration", note)


def privacy_utility(result: Record) -> Figure | None:
    """AUC against the epsilon spent, round by round.

    >>> privacy_utility(complete({"methods": {"a": {"history": [{"round": 1, "epsilon": None}]}}})) is None
    True
    """
    names = labels(result)
    rows = [
        {"method": label, "epsilon": round(spent, 4), "value": round(auc, 5), "at": entry["round"]}
        for key, label in _drawn_last(result)
        for entry in thin(result["methods"][key]["history"], MOST_ROUNDS)
        if (spent := entry.get("epsilon")) is not None
        and (auc := entry["global"].get("auc")) is not None
    ]
    if not rows:
        return None
    axis = "Privacy spent: epsilon proven at the worst hospital (smaller is more private)"
    scale = alt.Scale(type="linear", nice=True)
    lines = alt.Chart(table(rows)).mark_line(strokeWidth=2.2)
    lines = lines.encode(
        x=alt.X("epsilon:Q", title=axis, scale=scale, axis=alt.Axis(tickCount=8)),
        y=alt.Y("value:Q", title="AUC", scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=6)),
        color=_method_colour(result),
        order="at:Q",
        tooltip=tips(method="Method", at="Round|", epsilon="Epsilon|.2f", value="AUC|.3f"),
    )
    who = "Each line follows one method" if len(names) > 1 else next(iter(names.values()))
    note = f"{who}, round by round, on held-out patients of all hospitals"
    chart = alt.layer(lines).properties(width=640, height=320)
    return finish(chart, "Privacy against usefulness", note)


_RIGHT = alt.Legend(orient="right", offset=18)


def _shares() -> alt.Axis:
    return alt.Axis(format="%", values=[0, 0.2, 0.4, 0.6, 0.8, 1.0])


def _diagonal() -> alt.Chart:
    data = table([{"x": 0, "y": 0}, {"x": 1, "y": 1}])
    line = alt.Chart(data).mark_line(color=GREY, strokeDash=[5, 4], strokeWidth=1.5)
    drawn: alt.Chart = line.encode(x="x:Q", y="y:Q")
    return drawn


def _drawn_last(result: Record) -> list[tuple[str, str]]:
    """Keys and labels, with the study's own method at the end, so that its line lies on top."""
    return sorted(labels(result).items(), key=lambda item: item[0] == result["method"])


def _history(result: Record, metric: str) -> list[dict[str, object]]:
    return [
        {"method": label, "round": entry["round"], "value": round(value, 5)}
        for key, label in _drawn_last(result)
        for entry in thin(result["methods"][key]["history"], MOST_ROUNDS)
        if (value := entry["global"].get(metric)) is not None
    ]


def _final(result: Record, metric: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for key, label in labels(result).items():
        metrics = result["methods"][key]["metrics"]
        value, ends = metrics["global"].get(metric), bounds(metrics["intervals"]["global"], metric)
        if value is not None:
            low, high = ends or (value, value)
            row = {"method": label, "value": value, "low": low, "high": high}
            rows.append({**row, "interval": span(ends)})
    return rows


def _method_colour(result: Record) -> alt.Color:
    """A method's colour, with a legend at the bottom where there are several."""
    many = len(result["methods"])
    legend = alt.Legend(orient="bottom", columns=min(4, many), offset=14, symbolSize=180)
    scale = method_colours(result)
    return alt.Color("method:N", scale=scale, title=None, legend=legend if many > 1 else None)
