"""Figures about the cohort: sizes of hospitals and share of outcomes, histograms with densities, box plots, categories.

All are drawn from counts and quantiles that the result holds; no row reaches this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
from numpy.typing import NDArray

from suture.report.theme import INK, PALETTE, finish, hospital_colours, table
from suture.report.words import Result, finite, part

MOST_ROWS = 30


def sizes(result: Result) -> Any:
    """Patients of each hospital, and the share of them with the outcome, largest hospital first.

    >>> sites = {"a": {"patients": 10, "prevalence": 0.2}, "b": {"patients": 30, "prevalence": 0.1}}
    >>> sizes({"name": "x", "methods": {}, "cohort": {"sites": sites}}).to_dict()["title"]["text"]
    'Hospitals'
    """
    sites = part(result, "cohort", "sites")
    rows: list[dict[str, Any]] = [
        {"hospital": name, "patients": n, "prevalence": finite(part(sites, name).get("prevalence"))}
        for name in sites
        if (n := finite(part(sites, name).get("patients"))) is not None
    ]
    if not rows:
        return None
    rows.sort(key=lambda row: (-row["patients"], row["hospital"]))
    if len(rows) > MOST_ROWS:
        return _size_spread(rows)
    order = [row["hospital"] for row in rows]
    height = max(70, 30 * len(rows) if len(rows) < 12 else 20 * len(rows))
    quiet = alt.Axis(ticks=False, domain=False, labelPadding=8)
    base = alt.Chart(table(rows)).encode(y=alt.Y("hospital:N", sort=order, title=None, axis=quiet))
    bars = base.mark_bar(color=PALETTE[0], height={"band": 0.62}).encode(
        x=alt.X("patients:Q", title="Patients", axis=alt.Axis(tickCount=4, format=",d"), scale=_room(rows, "patients"))
    )
    words = base.mark_text(align="left", dx=6, fontSize=12, color=INK).encode(
        x="patients:Q", text=alt.Text("patients:Q", format=",d")
    )
    left = alt.layer(bars, words).properties(width=280, height=height)
    if all(row["prevalence"] is None for row in rows):
        return finish(left, "Hospitals", "Largest first")
    bare = alt.Chart(table(rows)).encode(y=alt.Y("hospital:N", sort=order, axis=None))
    share = alt.X("prevalence:Q", title="Rows with the outcome", axis=alt.Axis(format="%", tickCount=4),
                  scale=_room(rows, "prevalence"))  # fmt: skip
    stems = bare.mark_bar(color=PALETTE[1], height={"band": 0.62}).encode(x=share)
    values = bare.mark_text(align="left", dx=6, fontSize=12, color=INK).encode(
        x="prevalence:Q", text=alt.Text("prevalence:Q", format=".1%")
    )
    right = alt.layer(stems, values).properties(width=240, height=height)
    return finish(alt.hconcat(left, right, spacing=36), "Hospitals", "Largest first")


def histograms(result: Result) -> Any:
    """One panel a feature: grey bars for all hospitals together, one smoothed line a hospital (up to eight).

    >>> feature = {"label": "Age", "unit": "years", "edges": [0, 50, 100], "counts": {"a": [1, 3]}}
    >>> chart = histograms({"name": "x", "methods": {}, "cohort": {"features": {"age": feature}}})
    >>> chart.to_dict()["title"]["text"]
    'Distributions'
    """
    features = _features(result, "edges")
    colours = hospital_colours(result)
    width = 290 if len(features) in (1, 2, 4) else 180
    charts = [chart for f in features if (chart := _histogram(f, colours, width)) is not None]
    if not charts:
        return None
    columns = min(3, len(charts)) if len(charts) != 4 else 2
    note = "Bars: all hospitals together. "
    note += "Lines: each hospital, smoothed" if colours is not None else "Line: the same, smoothed"
    return finish(alt.concat(*charts, columns=columns, spacing={"row": 26, "column": 30}), "Distributions", note)


def boxes(result: Result) -> Any:
    """Box plots of every number, hospital by hospital: median, quartiles, whiskers within 1.5 interquartile ranges.

    >>> box = {"low": 20, "q1": 30, "median": 40, "q3": 50, "high": 70, "outliers": 2}
    >>> feature = {"label": "Age", "unit": "years", "edges": [0, 100], "counts": {"a": [9]}, "box": {"a": box}}
    >>> chart = boxes({"name": "x", "methods": {}, "cohort": {"features": {"age": feature}}})
    >>> chart.to_dict()["title"]["text"]
    'Ranges at each hospital'
    """
    features = [f for f in _features(result, "edges") if part(f, "box")]
    if not features:
        return None
    everywhere = list(dict.fromkeys(site for f in features for site in part(f, "box")))
    shown = _largest(result, everywhere)
    colours = hospital_colours(result)
    columns = min(3, len(features)) if len(features) != 4 else 2
    charts = [
        _box_panel(f, shown, colours, i % columns == 0, 190 if columns == 3 else 270) for i, f in enumerate(features)
    ]
    note = "Box: middle half of patients, line: median, whiskers: within 1.5 times the box"
    if len(shown) < len(everywhere):
        note += f". The {len(shown)} largest of {len(everywhere):,} hospitals"
    chart = alt.concat(*charts, columns=columns, spacing={"row": 26, "column": 26})
    return finish(chart, "Ranges at each hospital", note)


def shares(result: Result) -> Any:
    """Categories and flags: the share of each value, hospital by hospital.

    >>> feature = {"label": "Smoker", "values": ["no", "yes"], "counts": {"a": [3, 1]}}
    >>> chart = shares({"name": "x", "methods": {}, "cohort": {"features": {"smoker": feature}}})
    >>> chart.to_dict()["title"]["text"]
    'Categories'
    """
    features = [f for f in _features(result, "values") if part(f, "counts")]
    if not features:
        return None
    shown = _largest(result, list(dict.fromkeys(site for f in features for site in part(f, "counts"))))
    columns = min(3, len(features)) if len(features) != 4 else 2
    charts = [_share_panel(f, shown, i % columns == 0, 190 if columns == 3 else 270) for i, f in enumerate(features)]
    chart = alt.concat(*charts, columns=columns, spacing={"row": 26, "column": 26}).resolve_scale(color="independent")
    return finish(chart, "Categories", "Share of rows at each hospital")


def _features(result: Result, needed: str) -> list[dict[str, Any]]:
    features = part(result, "cohort", "features")
    found = [{"label": name, **part(features, name)} for name in features]
    return [f for f in found if f.get(needed) and part(f, "counts")]


def _axis_title(feature: Mapping[str, Any]) -> str:
    unit = feature.get("unit")
    return f"{feature['label']} ({unit})" if unit else str(feature["label"])


def _histogram(feature: Mapping[str, Any], colours: alt.Scale | None, width: int) -> Any:
    edges = np.asarray(feature["edges"], dtype=float)
    counts = {
        site: np.asarray(c, dtype=float) for site, c in part(feature, "counts").items() if len(c) == len(edges) - 1
    }
    whole = np.sum(list(counts.values()), axis=0) if counts else np.zeros(0)
    if not whole.sum():
        return None
    bars = [
        {"from": float(a), "to": float(b), "share": round(float(v), 5)}
        for a, b, v in zip(edges[:-1], edges[1:], whole / whole.sum(), strict=True)
    ]
    named = counts if colours is not None else {"all hospitals": whole}
    middle = (edges[:-1] + edges[1:]) / 2
    lines = [
        {"hospital": site, "x": float(x), "share": round(float(v), 5)}
        for site, c in named.items()
        if c.sum()
        for x, v in zip(middle, _smooth(c / c.sum()), strict=True)
    ]
    # Channels are given as objects: for a text Altair looks through its schema, 2 ms each, panel by panel.
    x = alt.X("from:Q", bin="binned", title=_axis_title(feature), axis=alt.Axis(tickCount=4, grid=False))
    y = alt.Y("share:Q", title="Share of rows", axis=alt.Axis(format="~%", tickCount=4))
    layer = alt.Chart(table(bars)).mark_bar(color="#d5d8dd", binSpacing=0).encode(x=x, x2=alt.X2("to:Q"), y=y)
    hue: Any = alt.ColorValue(PALETTE[0])
    if colours is not None:
        hue = alt.Color(
            "hospital:N", scale=colours, title=None, legend=alt.Legend(orient="bottom", columns=3, offset=14)
        )
    line = alt.Chart(table(lines)).mark_line(strokeWidth=2, interpolate="monotone")
    curve = line.encode(x=alt.X("x:Q"), y=y, color=hue, tooltip=[alt.Tooltip("hospital:N", title="Hospital")])
    return alt.layer(layer, curve).properties(width=width, height=170)


def _smooth(share: NDArray[np.float64]) -> NDArray[np.float64]:
    """A Gaussian kernel 1.5 bins wide, corrected at the ends so that mass does not leak out of the declared bounds."""
    at = np.arange(len(share))
    kernel = np.exp(-0.5 * ((at[:, None] - at[None, :]) / 1.5) ** 2)
    return np.asarray((kernel / kernel.sum(axis=0, keepdims=True)) @ share)


def _box_panel(
    feature: Mapping[str, Any], shown: Sequence[str], colours: alt.Scale | None, named: bool, width: int
) -> Any:
    found = part(feature, "box")
    rows = [{"hospital": site, **part(found, site)} for site in shown if site in found]
    axis = alt.Axis(labels=named, ticks=False, domain=False, labelPadding=8)
    hue: Any = alt.ColorValue(PALETTE[0]) if colours is None else alt.Color("hospital:N", scale=colours, legend=None)
    tips = [("hospital:N", "Hospital", ""), ("median:Q", "Median", ".1f"), ("q1:Q", "Lower quartile", ".1f"),
            ("q3:Q", "Upper quartile", ".1f"), ("outliers:Q", "Values beyond the whiskers", ",d")]  # fmt: skip
    base = alt.Chart(table(rows)).encode(
        y=alt.Y("hospital:N", sort=list(shown), title=None, axis=axis),
        tooltip=[alt.Tooltip(f, title=t, format=how) if how else alt.Tooltip(f, title=t) for f, t, how in tips],
    )
    x = alt.X("low:Q", title=_axis_title(feature), scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=5))
    whisker = base.mark_rule(strokeWidth=1.5, color="#5f6368").encode(x=x, x2=alt.X2("high:Q"))
    box = base.mark_bar(height={"band": 0.6}).encode(x=alt.X("q1:Q"), x2=alt.X2("q3:Q"), color=hue)
    median = base.mark_tick(color="white", thickness=2.5, height={"band": 0.6}).encode(x=alt.X("median:Q"))
    return alt.layer(whisker, box, median).properties(width=width, height=max(70, 24 * len(rows)))


def _share_panel(feature: Mapping[str, Any], shown: Sequence[str], named: bool, width: int) -> Any:
    values = [str(v) for v in feature["values"]]
    rows = [
        {"hospital": site, "value": value, "rows": n, "order": i}
        for site in shown
        for i, (value, n) in enumerate(zip(values, part(feature, "counts").get(site) or [], strict=False))
    ]
    palette = ["#cfd4da", PALETTE[0]] if len(values) == 2 else list(PALETTE)
    return (
        alt.Chart(table(rows))
        .mark_bar(height={"band": 0.62})
        .encode(
            x=alt.X("rows:Q", stack="normalize", title=_axis_title(feature), axis=alt.Axis(format="%", tickCount=4)),
            y=alt.Y("hospital:N", sort=list(shown), title=None,
                    axis=alt.Axis(labels=named, ticks=False, domain=False, labelPadding=8)),
            color=alt.Color("value:N", scale=alt.Scale(domain=values, range=palette), title=None,
                            legend=alt.Legend(orient="top", symbolType="square", columns=4)),
            order="order:Q",
            tooltip=[alt.Tooltip("hospital:N", title="Hospital"), alt.Tooltip("value:N", title="Value"),
                     alt.Tooltip("rows:Q", title="Rows", format=",d")],
        )
        .properties(width=width, height=max(70, 24 * len(shown)))
    )  # fmt: skip


def _largest(result: Result, names: Sequence[str]) -> list[str]:
    if len(names) <= MOST_ROWS:
        return list(names)
    sites = part(result, "cohort", "sites")
    return sorted(names, key=lambda n: (-(finite(part(sites, n).get("patients")) or 0.0), n))[:MOST_ROWS]


def _room(rows: Sequence[Mapping[str, Any]], name: str) -> alt.Scale:
    """A domain that leaves room for the number written behind the longest bar."""
    return alt.Scale(domain=[0, 1.22 * max(row[name] or 0 for row in rows)], nice=False)


def _size_spread(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Many hospitals: how many have how many patients, and how common the outcome is."""
    panels = []
    for name, title, style, colour in (
        ("patients", "Patients", ",d", PALETTE[0]), ("prevalence", "Rows with the outcome", "~%", PALETTE[1])
    ):  # fmt: skip
        values = [row[name] for row in rows if row[name] is not None]
        if not values:
            continue
        counts, edges = np.histogram(values, bins=20)
        data = [
            {"from": float(a), "to": float(b), "hospitals": int(n)}
            for a, b, n in zip(edges[:-1], edges[1:], counts, strict=True)
        ]
        panels.append(
            alt.Chart(table(data))
            .mark_bar(color=colour, binSpacing=1)
            .encode(
                x=alt.X("from:Q", bin="binned", title=title, axis=alt.Axis(format=style, tickCount=5)),
                x2="to:Q",
                y=alt.Y("hospitals:Q", title="Hospitals", axis=alt.Axis(tickMinStep=1, format="d", tickCount=5)),
            )
            .properties(width=310, height=210)
        )
    return finish(alt.hconcat(*panels, spacing=36), "Hospitals", f"{len(rows):,} hospitals")
