"""Figures about hospitals (how each one fares after the last round, and over the rounds beside the
federation) and about groups of patients.

A thousand panels inform nobody: at most `MOST_PANELS` hospitals are drawn, chosen over the whole
range from the worst to the best, with the worst always among them, and the figure says how many it
leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import altair as alt
import numpy as np

from suture.report.theme import (
    GREY,
    PALETTE,
    Figure,
    finish,
    hospital_hue,
    method_colours,
    table,
    tips,
)
from suture.report.words import METRICS, bounds, labels, leading_metric, primary, repeats
from suture.schema.record import Record, RoundResult

MOST_PANELS = 24
MOST_ROWS = 30
MOST_DOTS = 100
MOST_POINTS = 200
ROUND = alt.X("round:Q", title="Round", axis=alt.Axis(tickMinStep=1, tickCount=6, format="d"))

Entry = TypeVar("Entry")


def chosen(values: Mapping[str, float], most: int) -> list[str]:
    """Names from lowest to highest value: all, or the lowest ``most`` / 2 and as many of the rest.

    >>> chosen({"a": 3, "b": 1, "c": 2}, 5)
    ['b', 'c', 'a']
    >>> chosen({str(i): i for i in range(100)}, 6)
    ['0', '1', '2', '3', '51', '99']
    """
    order = sorted(values, key=lambda name: (values[name], name))
    if len(order) <= most:
        return order
    lowest = (most + 1) // 2
    return order[:lowest] + thin(order[lowest:], most - lowest)


def thin(entries: Sequence[Entry], most: int) -> list[Entry]:
    """All entries, or ``most`` of them at equal distances, with both ends.

    >>> thin(range(9), 3)
    [0, 4, 8]
    """
    if len(entries) <= most:
        return list(entries)
    return [entries[i] for i in np.linspace(0, len(entries) - 1, most).round().astype(int)]


def hospitals_compared(result: Record) -> Figure | None:
    """The leading metric at every hospital, one dot per method; intervals for the study's own.

    >>> from suture.report.words import complete
    >>> method = {"metrics": {"global": {"auc": 0.9}, "sites": {"a": {"auc": 0.8}, "b": {"auc": 0.9}}}}
    >>> hospitals_compared(complete({"methods": {"m": method}})).to_dict()["title"]["text"]
    'AUC at every hospital'
    """
    names, first = labels(result), result["method"]
    metric = leading_metric(primary(result))[0]
    scores = _scores(result, first, metric)
    if not scores:
        return None
    axis, own = METRICS[metric], names[first]
    title = f"{axis} at every hospital"
    if len(scores) > MOST_ROWS:
        low = min(scores, key=lambda name: (scores[name], name))
        note = f"{own}, {len(scores):,} hospitals. Lowest: {low}, {scores[low]:.3f}"
        return finish(_spread(list(scores.values()), axis), title, note)
    note = "Lowest first"
    if len(names) * len(scores) > MOST_DOTS:
        names, note = {first: own}, f"{own}, lowest first"
    rows = [
        {"method": label, "hospital": site, "value": value}
        for key, label in names.items()
        for site, value in _scores(result, key, metric).items()
        if site in scores
    ]
    intervals = primary(result)["metrics"]["intervals"]["sites"]
    whiskers = [
        {"method": own, "hospital": site, "low": ends[0], "high": ends[1]}
        for site in scores
        if (ends := bounds(intervals.get(site, {}), metric))
    ]
    many, scale = len(names) > 1, alt.Scale(zero=False)
    quiet = alt.Axis(grid=True, ticks=False, domain=False, labelPadding=8)
    legend = alt.Legend(orient="bottom", columns=4, offset=14) if many else None
    y = alt.Y("hospital:N", sort=chosen(scores, MOST_ROWS), title=None, axis=quiet)
    aside = alt.YOffset("method:N", sort=list(names.values())) if many else alt.value(0)
    colour = alt.Color("method:N", scale=method_colours(result), title=None, legend=legend)
    x = alt.X("value:Q", title=axis, scale=scale, axis=alt.Axis(tickCount=8))
    shown = tips(hospital="Hospital", method="Method", value=f"{axis}|.3f")
    dots = alt.Chart(table(rows)).mark_circle(size=80, opacity=1)
    layers = [dots.encode(x=x, y=y, yOffset=aside, color=colour, tooltip=shown)]
    if whiskers:
        rule = alt.Chart(table(whiskers)).mark_rule(strokeWidth=2.5)
        low_end = alt.X("low:Q", title=axis, scale=scale)
        layers.insert(0, rule.encode(x=low_end, x2="high:Q", y=y, yOffset=aside, color=colour))
        note += f". Lines: 95 % interval of {own} over {repeats(result)}"
    height = max(90, max(24, 12 + 9 * len(names)) * len(scores))
    return finish(alt.layer(*layers).properties(width=560, height=height), title, note)


def panels(result: Record) -> Figure | None:
    """Every hospital over the rounds, with the whole federation behind it.

    >>> from suture.report.words import complete
    >>> history = [{"round": r, "global": {"auc": 0.7}, "sites": {"a": {"auc": 0.6}}} for r in (1, 2)]
    >>> panels(complete({"methods": {"m": {"history": history}}})).to_dict()["title"]["text"]
    'AUC, hospital by hospital'
    """
    method = primary(result)
    metric = leading_metric(method)[0]
    last = {
        site: value
        for entry in method["history"]
        for site, metrics in entry["sites"].items()
        if (value := metrics.get(metric)) is not None
    }
    if not last:
        return None
    shown = chosen(last, MOST_PANELS)
    rows = [row for entry in thin(method["history"], 100) for row in _at(entry, shown, metric)]
    columns = min(4, len(shown)) if len(shown) != 5 else 3
    width = {4: 155, 3: 215}.get(columns, 320)
    title, scale = METRICS[metric], alt.Scale(zero=False)
    few = alt.Axis(tickCount=4, tickMinStep=1, format="d")
    base = alt.Chart().encode(
        x=alt.X("round:Q", title="Round", axis=few),
        tooltip=tips(
            hospital="Hospital", round="Round|", value="This hospital|.3f", all="Federation|.3f"
        ),
    )
    whole = base.mark_line(color=GREY, strokeWidth=1.8, strokeDash=[4, 3])
    own = base.mark_line(strokeWidth=2.2)
    y = alt.Y("value:Q", title=title, scale=scale, axis=alt.Axis(tickCount=4))
    chart = alt.layer(
        whole.encode(y=alt.Y("all:Q", title=title, scale=scale)),
        own.encode(y=y, color=hospital_hue(result)),
        data=table(rows),
    ).properties(width=width, height=130)
    header = alt.Header(labelLimit=width, labelOrient="top", labelAnchor="start", title=None)
    facet = alt.Facet("hospital:N", sort=shown, title=None, header=header)
    grid = chart.facet(facet=facet, columns=columns, spacing=22)
    if len(shown) % columns:  # else the last row's axis would hang under an empty place
        grid = grid.resolve_axis(x="independent")
    note = f"{labels(result)[result['method']]}, lowest first. Dashed grey: the whole federation"
    if len(shown) < len(last):
        half = (MOST_PANELS + 1) // 2
        note += f". {len(shown)} of {len(last):,} hospitals: the {half} lowest, "
        note += f"{len(shown) - half} spread over the rest"
    return finish(grid, f"{title}, hospital by hospital", note)


def _spread(scores: Sequence[float], title: str) -> alt.Chart:
    """Many hospitals: how many fare how well."""
    shown = [alt.Tooltip("from:Q", title="From", format=".3f"), *tips(to="To|.3f")]
    style = alt.Axis(tickCount=8, format=".2f")
    bars = histogram(scores, min(30, max(8, len(scores) // 6)), title, style, PALETTE[0])
    bars = bars.encode(tooltip=[*shown, *tips(hospitals="Hospitals|")])
    return bars.properties(width=640, height=240)


def histogram(
    values: Sequence[float], bins: int, title: str, axis: alt.Axis, colour: str
) -> alt.Chart:
    """How many hospitals have which value."""
    counts, edges = np.histogram(values, bins=bins)
    rows = [
        {"from": float(a), "to": float(b), "hospitals": int(n)}
        for a, b, n in zip(edges[:-1], edges[1:], counts, strict=True)
    ]
    whole = alt.Axis(tickMinStep=1, format="d", tickCount=5)
    bars = alt.Chart(table(rows)).mark_bar(color=colour, binSpacing=1)
    drawn: alt.Chart = bars.encode(
        x=alt.X("from:Q", bin="binned", title=title, axis=axis),
        x2="to:Q",
        y=alt.Y("hospitals:Q", title="Hospitals", axis=whole),
    )
    return drawn


def _scores(result: Record, key: str, metric: str) -> dict[str, float]:
    sites = result["methods"][key]["metrics"]["sites"] if key else {}
    return {site: v for site, found in sites.items() if (v := found.get(metric)) is not None}


def _at(entry: RoundResult, sites: Sequence[str], metric: str) -> list[dict[str, object]]:
    """One round: each hospital's value beside the federation's."""
    whole = entry["global"].get(metric)
    both = None if whole is None else round(whole, 4)
    return [
        {"hospital": site, "round": entry["round"], "value": round(value, 4), "all": both}
        for site in sites
        if (value := entry["sites"].get(site, {}).get(metric)) is not None
    ]


def groups_by_round(result: Record) -> Figure | None:
    """The share of each group called positive after every round, one panel per group column.

    >>> from suture.report.words import complete
    >>> groups = {"sex": {"F": {"positive_rate": 0.3}, "M": {"positive_rate": 0.4}}}
    >>> found = complete({"methods": {"a": {"history": [{"round": 1, "groups": groups}]}}})
    >>> groups_by_round(found).to_dict()["title"]["text"]
    'Groups over the rounds'
    """
    entries = [entry for entry in primary(result)["history"] if entry["groups"]]
    entries = entries[:: max(1, len(entries) // MOST_POINTS)]
    panels = []
    for column in entries[-1]["groups"] if entries else ():
        rows = [
            {"group": name, "round": entry["round"], "value": round(value, 4)}
            for entry in entries
            for name, metrics in entry["groups"].get(column, {}).items()
            if (value := metrics.get("positive_rate")) is not None
        ]
        if not rows:
            continue
        line = alt.Chart(table(rows), title=column)
        line = line.mark_line(strokeWidth=2, point=len(entries) == 1).encode(
            x=ROUND,
            y=alt.Y("value:Q", title="Called positive", axis=alt.Axis(format="%", tickCount=5)),
            color=alt.Color("group:N", title=None, scale=alt.Scale(range=PALETTE)),
            tooltip=["group:N", "round:Q", alt.Tooltip("value:Q", format=".1%")],
        )
        panels.append(line.properties(width=310, height=200))
    if not panels:
        return None
    chart = alt.concat(*panels, columns=2).resolve_scale(color="independent")
    who = labels(result)[result["method"]]
    note = f"{who}. Held-out patients of all hospitals together"
    return finish(chart, "Groups over the rounds", note)


def bias_accuracy(rows: Sequence[Mapping[str, object]], title: str, subtitle: str) -> Figure:
    """Accuracy against a gap; ours with intervals, the fair radiology paper's as diamonds.

    >>> row = {"name": "FedAvg", "whose": "ours", "accuracy": 0.8, "gap": 0.1, "what": "Parity gap"}
    >>> bias_accuracy([row], "t", "s").to_dict()["title"]["text"]
    't'
    """
    below, zero = alt.Legend(orient="bottom", columns=3), alt.Scale(zero=False)
    shapes = alt.Scale(domain=["ours", "paper"], range=["circle", "diamond"])
    figures = [alt.Tooltip("gap:Q", format=".3f"), alt.Tooltip("accuracy:Q", format=".1%")]
    panels = []
    for what in dict.fromkeys(str(row["what"]) for row in rows):
        base = alt.Chart(table([row for row in rows if row["what"] == what])).encode(
            x=alt.X("gap:Q", title=what, scale=alt.Scale(domainMin=0), axis=alt.Axis(tickCount=6)),
            y=alt.Y("accuracy:Q", title="Accuracy", scale=zero, axis=alt.Axis(format="%")),
            color=alt.Color("name:N", title=None, scale=alt.Scale(range=PALETTE), legend=below),
        )
        points = base.mark_point(size=110, filled=True, opacity=1).encode(
            shape=alt.Shape("whose:N", title=None, scale=shapes),
            tooltip=["name:N", "whose:N", *figures],
        )
        across = base.mark_rule(clip=True).encode(x="gap_low:Q", x2="gap_high:Q")
        along = base.mark_rule().encode(y="accuracy_low:Q", y2="accuracy_high:Q")
        panels.append((across + along + points).properties(width=310, height=280))
    return finish(alt.concat(*panels, columns=2), title, subtitle)
