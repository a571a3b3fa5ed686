"""Figures about hospitals: how each one fares in the end, and its way there beside the federation's.

A thousand panels inform nobody: at most `MOST_PANELS` hospitals are drawn, chosen over the whole range from the worst
to the best, with the worst always among them, and the figure says how many it leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from suture.report.theme import PALETTE, finish, hospital_colours, method_colours, table
from suture.report.words import METRICS, Result, bounds, finite, labels, leading_metric, part, primary, repeats

MOST_PANELS = 24
MOST_ROWS = 30
MOST_DOTS = 100


def chosen(values: Mapping[str, float], most: int) -> list[str]:
    """Names from the lowest value to the highest: all, or ``most`` of them, half the lowest, half spread over the rest.

    >>> chosen({"a": 3, "b": 1, "c": 2}, 5)
    ['b', 'c', 'a']
    >>> chosen({str(i): i for i in range(100)}, 6)
    ['0', '1', '2', '3', '51', '99']
    """
    order = sorted(values, key=lambda name: (values[name], name))
    if len(order) <= most:
        return order
    lowest = (most + 1) // 2
    rest = np.linspace(lowest, len(order) - 1, most - lowest).round().astype(int)
    return order[:lowest] + [order[i] for i in rest]


def hospitals_compared(result: Result) -> Any:
    """The leading metric at every hospital, one dot a method, with 95 % intervals for the study's own method.

    >>> method = {"metrics": {"global": {"auc": 0.9}, "sites": {"a": {"auc": 0.8}, "b": {"auc": 0.9}}}}
    >>> hospitals_compared({"name": "x", "methods": {"m": method}}).to_dict()["title"]["text"]
    'AUC at every hospital'
    """
    names, first = labels(result), primary(result)
    metric = leading_metric(part(result, "methods", first))[0]
    scores = _scores(result, first, metric)
    if not scores:
        return None
    title = f"{METRICS[metric]} at every hospital"
    if len(scores) > MOST_ROWS:
        return _spread(scores, metric, title, names[first])
    note = "Lowest first"
    if len(names) * len(scores) > MOST_DOTS:
        names, note = {first: names[first]}, f"{names[first]}, lowest first"
    rows, whiskers = _dots(result, names, metric, list(scores))
    quiet = alt.Axis(grid=True, ticks=False, domain=False, labelPadding=8)
    y = alt.Y("hospital:N", sort=chosen(scores, MOST_ROWS), title=None, axis=quiet)
    legend = alt.Legend(orient="bottom", columns=4, offset=14) if len(names) > 1 else None
    colour = alt.Color("method:N", scale=method_colours(result), title=None, legend=legend)
    aside = alt.YOffset("method:N", sort=list(names.values())) if len(names) > 1 else alt.value(0)
    scale = alt.Scale(zero=False)
    dots = alt.Chart(table(rows)).encode(
        x=alt.X("value:Q", title=METRICS[metric], scale=scale, axis=alt.Axis(tickCount=8)),
        y=y,
        yOffset=aside,
        color=colour,
        tooltip=[
            alt.Tooltip("hospital:N", title="Hospital"),
            alt.Tooltip("method:N", title="Method"),
            alt.Tooltip("value:Q", title=METRICS[metric], format=".3f"),
        ],
    )
    layers: list[Any] = [dots.mark_circle(size=80, opacity=1)]
    if whiskers:
        rule = alt.Chart(table(whiskers)).mark_rule(strokeWidth=2.5)
        low = alt.X("low:Q", title=METRICS[metric], scale=scale)
        layers.insert(0, rule.encode(x=low, x2="high:Q", y=y, yOffset=aside, color=colour))
        note += f". Lines: 95 % interval of {labels(result)[first]} over {repeats(result)}"
    height = max(90, max(24, 12 + 9 * len(names)) * len(scores))
    return finish(alt.layer(*layers).properties(width=560, height=height), title, note)


def _dots(
    result: Result, names: Mapping[str, str], metric: str, sites: Sequence[str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A row for every method and hospital, and the intervals of the study's own method."""
    first = primary(result)
    rows = [
        {"method": label, "hospital": site, "value": value}
        for key, label in names.items()
        for site, value in _scores(result, key, metric).items()
        if site in sites
    ]
    between = part(result, "methods", first, "metrics", "intervals", "sites")
    whiskers = [
        {"method": names[first], "hospital": site, "low": found[0], "high": found[1]}
        for site in sites
        if (found := bounds(part(between, site), metric))
    ]
    return rows, whiskers


def panels(result: Result, metric: str | None = None) -> Any:
    """Every hospital's way through the rounds, with the whole federation's behind it.

    >>> history = [{"round": r, "global": {"auc": 0.7}, "sites": {"a": {"auc": 0.6}}} for r in (1, 2)]
    >>> chart = panels({"name": "x", "methods": {"m": {"history": history}}})
    >>> chart.to_dict()["title"]["text"]
    'AUC, hospital by hospital'
    """
    first = primary(result)
    method = part(result, "methods", first)
    metric = metric or leading_metric(method)[0]
    history = [e for e in method.get("history") or [] if isinstance(e, Mapping)]
    last = _last(history, metric)
    if not last:
        return None
    shown = chosen(last, MOST_PANELS)
    rows = _trajectories(_thin(history, 100), shown, metric)
    columns = min(4, len(shown)) if len(shown) != 5 else 3
    width = 155 if columns == 4 else 215 if columns == 3 else 320
    colours = hospital_colours(result)
    hue: Any = alt.value(PALETTE[0])
    if colours is not None:
        hue = alt.Color("hospital:N", scale=colours, legend=None)
    base = alt.Chart().encode(
        x=alt.X("round:Q", title="Round", axis=alt.Axis(tickCount=4, tickMinStep=1, format="d")),
        tooltip=[
            alt.Tooltip("hospital:N", title="Hospital"),
            alt.Tooltip("round:Q", title="Round"),
            alt.Tooltip("value:Q", title="This hospital", format=".3f"),
            alt.Tooltip("all:Q", title="Federation", format=".3f"),
        ],
    )
    title, scale = METRICS.get(metric, metric), alt.Scale(zero=False)
    whole = base.mark_line(color="#9aa0a6", strokeWidth=1.8, strokeDash=[4, 3]).encode(
        y=alt.Y("all:Q", title=title, scale=scale)
    )
    own = base.mark_line(strokeWidth=2.2).encode(
        y=alt.Y("value:Q", title=METRICS.get(metric, metric), scale=scale, axis=alt.Axis(tickCount=4)),
        color=hue,
    )
    header = alt.Header(labelLimit=width, labelOrient="top", labelAnchor="start", title=None)
    chart = (
        alt.layer(whole, own, data=table(rows))
        .properties(width=width, height=130)
        .facet(facet=alt.Facet("hospital:N", sort=shown, title=None, header=header), columns=columns, spacing=22)
    )
    if len(shown) % columns:
        chart = chart.resolve_axis(x="independent")  # else the last row's axis would hang under an empty place
    note = f"{labels(result)[first]}, lowest first. Dashed grey: the whole federation"
    if len(shown) < len(last):
        half = (MOST_PANELS + 1) // 2
        note += (
            f". {len(shown)} of {len(last):,} hospitals: the {half} lowest, {len(shown) - half} spread over the rest"
        )
    return finish(chart, f"{title}, hospital by hospital", note)


def _spread(scores: Mapping[str, float], metric: str, title: str, label: str) -> Any:
    """Many hospitals: how many fare how well."""
    counts, edges = np.histogram(list(scores.values()), bins=min(30, max(8, len(scores) // 6)))
    rows = [
        {"from": float(a), "to": float(b), "hospitals": int(n)}
        for a, b, n in zip(edges[:-1], edges[1:], counts, strict=True)
    ]
    chart = (
        alt.Chart(table(rows))
        .mark_bar(color=PALETTE[0], binSpacing=1)
        .encode(
            x=alt.X("from:Q", bin="binned", title=METRICS[metric], axis=alt.Axis(tickCount=8, format=".2f")),
            x2="to:Q",
            y=alt.Y("hospitals:Q", title="Hospitals", axis=alt.Axis(tickMinStep=1, format="d", tickCount=5)),
            tooltip=[
                alt.Tooltip("from:Q", title="From", format=".3f"),
                alt.Tooltip("to:Q", title="To", format=".3f"),
                alt.Tooltip("hospitals:Q", title="Hospitals"),
            ],
        )
        .properties(width=640, height=240)
    )
    low = min(scores, key=lambda name: (scores[name], name))
    note = f"{label}, {len(scores):,} hospitals. Lowest: {low}, {scores[low]:.3f}"
    return finish(chart, title, note)


def _scores(result: Result, key: str, metric: str) -> dict[str, float]:
    sites = part(result, "methods", key, "metrics", "sites")
    return {site: v for site, found in sites.items() if (v := finite(part(found).get(metric))) is not None}


def _last(history: Sequence[Mapping[str, Any]], metric: str) -> dict[str, float]:
    """Each hospital's last known value."""
    found: dict[str, float] = {}
    for entry in history:
        for site, metrics in part(entry, "sites").items():
            if (value := finite(part(metrics).get(metric))) is not None:
                found[site] = value
    return found


def _thin(history: Sequence[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    if len(history) <= most:
        return list(history)
    return [history[i] for i in np.unique(np.linspace(0, len(history) - 1, most).round().astype(int))]


def _trajectories(history: Sequence[Mapping[str, Any]], shown: Sequence[str], metric: str) -> list[dict[str, Any]]:
    rows = []
    for entry in history:
        whole, at = finite(part(entry, "global").get(metric)), entry.get("round")
        for site in shown:
            value = finite(part(entry, "sites", site).get(metric))
            if value is not None:
                both = None if whole is None else round(whole, 4)
                rows.append({"hospital": site, "round": at, "value": round(value, 4), "all": both})
    return rows
