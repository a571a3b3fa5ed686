"""The figures of iFedAvg in kind: violins over clients, heat maps of the layers, and the rows
behind a marked cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import altair as alt
import numpy as np
from numpy.typing import NDArray

from suture.cohorts.cohort import Cohort
from suture.interop.report import heat_maps
from suture.papers.ifedavg.tables import LABELS, Report, Results, client_scores
from suture.papers.reproduction import Chart, Row
from suture.report.figures import heat_map as static
from suture.report.theme import PALETTE, finish, table
from suture.schema.table import Number

Floats = NDArray[np.float64]
BEHIND = {
    "outbreak prognosis": (("Freetown", "ct", "3"), ("Port-Loko", "ct", "3")),
    "outbreak diagnosis": (
        ("Foya", "diarrhoea", "4"),
        ("Kalihun", "referral_time", "16"),
        ("Foya", "malaria", "17"),
        ("Kalihun", "malaria", "17"),
    ),
    "heart": (("Switzerland", "chol", "2"), ("VA Long Beach", "chol", "2")),
}
"""Cells whose rows are drawn, after the paper's examples; for HAR and VSN the cell furthest from
its column's mean."""
OTHERS = "all others"


def charts(
    found: Mapping[str, Results],
    reports: Mapping[str, Report],
    turned: Report,
    layered: Report,
    federations: Mapping[str, Cohort],
) -> dict[str, tuple[Chart, str]]:
    """Figures 2 to 20 in kind, each with its caption."""
    drawn: dict[str, tuple[Chart, str]] = {}
    for name, results in found.items():
        stem = name.replace(" ", "_")
        for metric, title, numbers in (("f1", "Weighted F1", "5 to 8"), ("auc", "AUC", "9 to 12")):
            words = f"Figures {numbers} in kind: {title} at every client, {name}."
            chart = violins(results, metric, f"{title} at every client: {name}")
            drawn[f"violin_{metric}_{stem}"] = chart, words
        for layer, made in heat_maps(reports[name]).items():
            words = f"Figures 2 to 4 and 13 to 17 in kind: {layer}, {name}, first seed."
            drawn[f"heat_{layer}_{stem}"] = static(made, f"{layer}: {name}"), words
        for site, column, number in BEHIND.get(name) or _furthest(reports[name]):
            words = (
                f"Figure {number} in kind: the rows behind {site}'s {column}, {name}, first seed."
            )
            key = f"rows_{stem}_{site}_{column}".replace(" ", "_")
            drawn[key] = behind(federations[name], site, column), words
    outputs, flipped = heat_maps(layered), heat_maps(turned)
    for layer in ("b_out", "w_out"):
        words = f"Figure 18 in kind: {layer} of f_out as a vector, first seed."
        drawn[f"figure18_{layer}"] = static(outputs[layer], f"{layer}: outbreak diagnosis"), words
        title = f"{layer} with Kalihun's outcome turned round"
        words = f"Figure 19 in kind: {layer} of f_out with one scale, clean twin, first seed."
        drawn[f"figure19_{layer}"] = static(flipped[layer], title), words
    title = "w_in with f_out trained too: outbreak diagnosis"
    words = "Figure 20 in kind: beside the map of w_in without f_out."
    drawn["figure20_w_in"] = static(outputs["w_in"], title), words
    return drawn


def _furthest(report: Report) -> tuple[tuple[str, str, str], ...]:
    """The cell of b that is furthest from its column's mean, in that column's deviations."""
    values = np.array(report["layers"]["b_in"]["values"], np.float64)
    away = np.abs(values - values.mean(axis=0)) / np.maximum(values.std(axis=0, ddof=1), 1e-9)
    i, j = np.unravel_index(int(np.argmax(away)), away.shape)
    return ((report["sites"][i], report["layers"]["b_in"]["columns"][j], "2, 13"),)


def _by_class(cohort: Cohort, site: str, column: str) -> dict[tuple[str, str], Floats]:
    """A column's values at one client and at all others, for each class."""
    plain = ("without the outcome", "with the outcome")
    gathered: dict[tuple[str, str], list[Floats]] = {}
    for one in cohort.sites:
        parts = [one.table, *([one.test] if one.test else [])]
        values = np.concatenate([np.asarray(part[column], np.float64) for part in parts])
        labels = np.concatenate([np.asarray(part[cohort.outcome]) for part in parts])
        for label in np.unique(labels):
            named = str(label) if isinstance(cohort.classes, tuple) else plain[int(label)]
            who = site if one.name == site else OTHERS
            gathered.setdefault((who, named), []).append(values[labels == label])
    return {key: np.concatenate(arrays) for key, arrays in gathered.items()}


def behind(cohort: Cohort, site: str, column: str) -> Chart:
    """A column's values at one client beside those of all others, by class; missing values have a
    bar of their own."""
    gathered = _by_class(cohort, site, column)
    everything = np.concatenate(list(gathered.values()))
    edges, bars = np.array([-0.5, 0.5, 1.5]), ["no", "yes"]
    if isinstance(cohort.schema.features[column], Number):
        edges = np.histogram_bin_edges(everything[~np.isnan(everything)], bins=24)
        bars = [f"{(low + high) / 2:.3g}" for low, high in pairwise(edges)]
    rows: list[Row] = []
    for (who, label), values in gathered.items():
        counts, _ = np.histogram(values[~np.isnan(values)], edges)
        counted = zip([*bars, "missing"], [*counts, np.isnan(values).sum()], strict=True)
        for bar, count in counted:
            share = float(count) / max(1, len(values))
            rows.append({"who": who, "class": label, "value": bar, "share": share})
    order = list(dict.fromkeys(str(row["value"]) for row in rows))
    sideways = alt.Axis(labelAngle=-90, labelOverlap=True)
    colours = alt.Scale(domain=[site, OTHERS], range=list(PALETTE[:2][::-1]))
    chart = alt.Chart(table(rows)).mark_bar()
    chart = chart.encode(
        x=alt.X("value:N", sort=order, title=column, axis=sideways),
        y=alt.Y("share:Q", title="Share of rows", axis=alt.Axis(format="%")),
        color=alt.Color("who:N", legend=None, scale=colours),
        tooltip=["who:N", "class:N", "value:N", alt.Tooltip("share:Q", format=".1%")],
    ).properties(width=max(140, min(330, 14 * len(order))), height=90)
    above = alt.Row("who:N", title=None, sort=[site, OTHERS])
    panels = chart.facet(row=above, column=alt.Column("class:N", title=None))
    note = "Exact rows of the first seed, training and test"
    return finish(panels, f"{column}: {site} and all others", note)


def violins(results: Results, metric: str, title: str) -> Chart:
    """One violin per method over the clients' means; orange: the median client and its standard
    deviation over seeds."""
    by_method = {label: client_scores(results, method, metric) for method, label in LABELS.items()}
    lowest = min(float(np.mean(v)) for found in by_method.values() for v in found.values())
    low = max(0.0, round(lowest, 4) - 0.05)
    panels = [
        _violin(found, label, low, i == 0) for i, (label, found) in enumerate(by_method.items())
    ]
    seeds = f"{len(results)} {'seed' if len(results) == 1 else 'seeds'}"
    note = f"{seeds}; dots: clients; orange: median client and its SD over seeds"
    return finish(alt.hconcat(*panels, spacing=8), title, note)


def _violin(scores: Mapping[str, list[float]], label: str, low: float, first: bool) -> Chart:
    """One panel: the shape, the clients, and the median client's reach; the first has the axis."""
    dots: list[Row] = [
        {"method": label, "client": site, "value": round(float(np.mean(v)), 4), "low": 0}
        for site, v in scores.items()
    ]
    medians = [
        float(np.median([v[i] for v in scores.values() if i < len(v)]))
        for i in range(max(map(len, scores.values())))
    ]
    middle = float(np.mean(medians))
    half = float(np.std(medians, ddof=1)) if len(medians) > 1 else 0.0
    scale = alt.Scale(domain=[low, 1.0], clamp=True)
    axis = alt.Axis(labels=first, ticks=False, domain=False)
    heading = "Client's mean over seeds" if first else None
    x = alt.X("low:Q", title=None, axis=None, scale=alt.Scale(domain=[-1.1, 1.1]))
    y = alt.Y("value:Q", title=heading, scale=scale, axis=axis)
    shape = alt.Chart(table(_density([float(np.mean(v)) for v in scores.values()], low)))
    shape = shape.mark_area(orient="horizontal", opacity=0.35, color=PALETTE[0])
    clients = alt.Chart(table(dots)).mark_circle(size=30, color=PALETTE[6], opacity=0.55)
    hover = ["method:N", "client:N", alt.Tooltip("value:Q", format=".3f")]
    reach = alt.Chart(table([{"low": 0, "value": middle - half, "top": middle + half}]))
    centre = alt.Chart(table([{"low": 0, "value": middle}])).mark_point(
        shape="diamond", size=90, filled=True, color=PALETTE[1], opacity=1
    )
    # A mark at the foot of the panel, not a title: titles stand above whatever sticks out, each at
    # another height.
    name = alt.Chart(table([{"text": label}])).mark_text(
        fontSize=13, fontWeight=700, baseline="top"
    )
    return alt.layer(
        shape.encode(y=y, x=x, x2="high:Q"),
        clients.encode(y=y, x=x, tooltip=hover),
        reach.mark_rule(color=PALETTE[1], strokeWidth=4).encode(y=y, y2="top:Q", x=x),
        centre.encode(y=y, x=x),
        name.encode(x=alt.value(60), y=alt.value(268), text="text:N"),
    ).properties(width=120, height=260)


def _density(values: Sequence[float], low: float) -> list[Row]:
    """A kernel density estimate by Silverman's rule, mirrored; 1 where it is widest."""
    grid, data = np.linspace(low, 1.0, 80), np.array(values)
    spread = min(data.std(ddof=1) if len(data) > 1 else 0.02, 0.2)
    width = max(0.9 * spread * len(data) ** -0.2, 0.006)
    height = np.exp(-0.5 * ((grid[:, None] - data[None, :]) / width) ** 2).sum(axis=1)
    height = height / height.max()
    return [
        {"value": float(v), "low": -float(h), "high": float(h)}
        for v, h in zip(grid, height, strict=True)
    ]
