"""Figures about the cohort: sizes of hospitals and share of outcomes, histograms with densities,
box plots.

All are drawn from counts and quantiles that the result holds; no row reaches this module.
"""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import numpy as np
from numpy.typing import NDArray

from suture.report.figures_hospitals import histogram
from suture.report.theme import (
    INK,
    PALETTE,
    Figure,
    finish,
    hospital_colours,
    hospital_hue,
    table,
    tips,
)
from suture.schema.record import FeatureSummary, Record

MOST_ROWS = 30


def sizes(result: Record) -> Figure | None:
    """Patients of each hospital, and the share of them with the outcome, largest hospital first.

    >>> from suture.report.words import complete
    >>> sites = {"a": {"patients": 10, "prevalence": 0.2}, "b": {"patients": 30, "prevalence": 0.1}}
    >>> sizes(complete({"cohort": {"sites": sites}})).to_dict()["title"]["text"]
    'Hospitals'
    """
    known = {
        name: (float(n), site.get("prevalence"))
        for name, site in result["cohort"]["sites"].items()
        if (n := site.get("patients")) is not None
    }
    if not known:
        return None
    order = sorted(known, key=lambda name: (-known[name][0], name))
    patients = [known[name][0] for name in order]
    shares = [share for name in order if (share := known[name][1]) is not None]
    count, outcome = ("Patients", PALETTE[0]), ("Rows with the outcome", PALETTE[1])
    if len(known) > MOST_ROWS:
        spreads = [_size_spread(patients, *count, ",d")]
        spreads += [_size_spread(shares, *outcome, "~%")] if shares else []
        chart = alt.hconcat(*spreads, spacing=36)
        return finish(chart, "Hospitals", f"{len(known):,} hospitals")
    data = table(
        [{"hospital": n, "patients": known[n][0], "prevalence": known[n][1]} for n in order]
    )
    height = max(70, 30 * len(known) if len(known) < 12 else 20 * len(known))

    def bars(
        field: str,
        title: str,
        colour: str,
        styles: tuple[str, str],
        most: float,
        axis: alt.Axis | None,
    ) -> Figure:
        base = alt.Chart(data)
        base = base.encode(y=alt.Y("hospital:N", sort=order, title=None, axis=axis))
        # The domain leaves room for the number written behind the longest bar.
        room = alt.Scale(domain=[0, 1.22 * most], nice=False)
        ticks = alt.Axis(tickCount=4, format=styles[0])
        x = alt.X(f"{field}:Q", title=title, axis=ticks, scale=room)
        figure = alt.Text(f"{field}:Q", format=styles[1])
        words = base.mark_text(align="left", dx=6, fontSize=12, color=INK)
        return alt.layer(
            base.mark_bar(color=colour, height={"band": 0.62}).encode(x=x),
            words.encode(x=f"{field}:Q", text=figure),
        )

    quiet = alt.Axis(ticks=False, domain=False, labelPadding=8)
    left = bars("patients", *count, (",d", ",d"), max(patients), quiet)
    left = left.properties(width=280, height=height)
    if not shares:
        return finish(left, "Hospitals", "Largest first")
    right = bars("prevalence", *outcome, ("%", ".1%"), max(shares), None)
    right = right.properties(width=240, height=height)
    return finish(alt.hconcat(left, right, spacing=36), "Hospitals", "Largest first")


def histograms(result: Record) -> Figure | None:
    """One panel per feature: bars for all hospitals, one smoothed line each for up to eight.

    >>> from suture.report.words import complete
    >>> feature = {"label": "Age", "unit": "years", "edges": [0, 50, 100], "counts": {"a": [1, 3]}}
    >>> histograms(complete({"cohort": {"features": {"age": feature}}})).to_dict()["title"]["text"]
    'Distributions'
    """
    features = _features(result)
    colours = hospital_colours(result)
    width = 290 if len(features) in (1, 2, 4) else 180
    charts = [chart for f in features if (chart := _histogram(f, colours, width)) is not None]
    if not charts:
        return None
    note = "Bars: all hospitals together. "
    note += "Lines: each hospital, smoothed" if colours is not None else "Line: the same, smoothed"
    spacing = {"row": 26, "column": 30}
    chart = alt.concat(*charts, columns=_columns(len(charts)), spacing=spacing)
    return finish(chart, "Distributions", note)


def boxes(result: Record) -> Figure | None:
    """Box plots of every number, hospital by hospital.

    >>> from suture.report.words import complete
    >>> box = {"low": 20, "q1": 30, "median": 40, "q3": 50, "high": 70, "outliers": 2}
    >>> feature = {"label": "Age", "unit": "years", "edges": [0, 100], "counts": {"a": [9]}, "box": {"a": box}}
    >>> boxes(complete({"cohort": {"features": {"age": feature}}})).to_dict()["title"]["text"]
    'Ranges at each hospital'
    """
    features = [found for found in _features(result) if found.get("box")]
    if not features:
        return None
    everywhere = list(dict.fromkeys(site for found in features for site in found["box"]))
    shown, hue, columns = (
        _largest(result, everywhere),
        hospital_hue(result),
        _columns(len(features)),
    )
    charts = []
    for i, found in enumerate(features):
        axis = alt.Axis(labels=i % columns == 0, ticks=False, domain=False, labelPadding=8)
        y = alt.Y("hospital:N", sort=shown, title=None, axis=axis)
        known = [site for site in shown if site in found["box"]]
        size = {"width": 190 if columns == 3 else 270, "height": max(70, 24 * len(known))}
        charts.append(_box_panel(found, known, hue, y).properties(**size))
    note = "Box: middle half of patients, line: median, whiskers: within 1.5 times the box"
    if len(shown) < len(everywhere):
        note += f". The {len(shown)} largest of {len(everywhere):,} hospitals"
    chart = alt.concat(*charts, columns=columns, spacing={"row": 26, "column": 26})
    return finish(chart, "Ranges at each hospital", note)


def _columns(panels: int) -> int:
    return min(3, panels) if panels != 4 else 2


def _features(result: Record) -> list[FeatureSummary]:
    features = result["cohort"]["features"].values()
    return [found for found in features if found.get("edges") and found.get("counts")]


def _axis_title(feature: FeatureSummary) -> str:
    unit = feature.get("unit")
    return f"{feature['label']} ({unit})" if unit else feature["label"]


def _histogram(feature: FeatureSummary, colours: alt.Scale | None, width: int) -> Figure | None:
    edges = np.asarray(feature["edges"], dtype=float)
    counts = {
        site: np.asarray(found, dtype=float)
        for site, found in feature["counts"].items()
        if len(found) == len(edges) - 1
    }
    whole = np.sum(list(counts.values()), axis=0) if counts else np.zeros(0)
    if not whole.sum():
        return None
    bars = [
        {"from": float(a), "to": float(b), "share": round(float(v), 5)}
        for a, b, v in zip(edges[:-1], edges[1:], whole / whole.sum(), strict=True)
    ]
    middle = (edges[:-1] + edges[1:]) / 2
    lines = [
        {"hospital": site, "x": float(x), "share": round(float(v), 5)}
        for site, found in (counts if colours else {"all hospitals": whole}).items()
        if found.sum()
        for x, v in zip(middle, _smooth(found / found.sum()), strict=True)
    ]
    # Channels are given as objects: for a text Altair looks through its schema, 2 ms each, panel by
    # panel.
    ticks = alt.Axis(tickCount=4, grid=False)
    x = alt.X("from:Q", bin="binned", title=_axis_title(feature), axis=ticks)
    y = alt.Y("share:Q", title="Share of rows", axis=alt.Axis(format="~%", tickCount=4))
    layer = alt.Chart(table(bars)).mark_bar(color="#d5d8dd", binSpacing=0)
    hue: alt.Color | alt.ColorValue = alt.ColorValue(PALETTE[0])
    if colours is not None:
        below = alt.Legend(orient="bottom", columns=3, offset=14)
        hue = alt.Color("hospital:N", scale=colours, title=None, legend=below)
    line = alt.Chart(table(lines)).mark_line(strokeWidth=2, interpolate="monotone")
    curve = line.encode(x=alt.X("x:Q"), y=y, color=hue, tooltip=tips(hospital="Hospital"))
    both = alt.layer(layer.encode(x=x, x2=alt.X2("to:Q"), y=y), curve)
    return both.properties(width=width, height=170)


def _smooth(share: NDArray[np.float64]) -> NDArray[np.float64]:
    """A Gaussian kernel 1.5 bins wide, corrected at the ends so that no mass leaks out."""
    at = np.arange(len(share))
    kernel = np.exp(-0.5 * ((at[:, None] - at[None, :]) / 1.5) ** 2)
    return np.asarray((kernel / kernel.sum(axis=0, keepdims=True)) @ share)


def _box_panel(
    feature: FeatureSummary, sites: Sequence[str], hue: alt.Color | alt.ColorValue, y: alt.Y
) -> Figure:
    rows = [{"hospital": site, **feature["box"][site]} for site in sites]
    base = alt.Chart(table(rows)).encode(
        y=y,
        tooltip=tips(
            hospital="Hospital", median="Median|.1f", q1="Lower quartile|.1f",
            q3="Upper quartile|.1f", outliers="Values beyond the whiskers|,d",
        ),
    )  # fmt: skip
    title, band = _axis_title(feature), {"band": 0.6}
    x = alt.X("low:Q", title=title, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=5))
    whisker = base.mark_rule(strokeWidth=1.5, color="#5f6368").encode(x=x, x2=alt.X2("high:Q"))
    box = base.mark_bar(height=band).encode(x=alt.X("q1:Q"), x2=alt.X2("q3:Q"), color=hue)
    median = base.mark_tick(color="white", thickness=2.5, height=band)
    return alt.layer(whisker, box, median.encode(x=alt.X("median:Q")))


def _largest(result: Record, names: Sequence[str]) -> list[str]:
    if len(names) <= MOST_ROWS:
        return list(names)
    sites = result["cohort"]["sites"]
    size = {name: sites[name].get("patients", 0) if name in sites else 0 for name in names}
    return sorted(names, key=lambda name: (-size[name], name))[:MOST_ROWS]


def _size_spread(values: Sequence[float], title: str, colour: str, style: str) -> alt.Chart:
    """Many hospitals: how many have which value."""
    axis = alt.Axis(format=style, tickCount=5)
    return histogram(values, 20, title, axis, colour).properties(width=310, height=210)
