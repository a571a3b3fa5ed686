"""The figures of iFedAvg in kind: violins over clients, heat maps of the layers, and the rows behind a marked cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import altair as alt
import numpy as np

from suture.cohorts.cohort import Cohort
from suture.report.heatmap import static
from suture.report.interop import heat_maps
from suture.report.theme import PALETTE, finish, table
from suture.reproduce.ifedavg_tables import LABELS, Results, client_scores
from suture.site.schema import Number

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
"""Cells whose rows are drawn, after the paper's examples; for HAR and VSN the cell furthest from its column's mean."""


def charts(
    found: Mapping[str, Results], reports: Mapping[str, Mapping[str, Any]], turned: Mapping[str, Any],
    layered: Mapping[str, Any], federations: Mapping[str, Cohort],
) -> tuple[dict[str, Any], dict[str, str]]:  # fmt: skip
    """Figures 2 to 20 in kind, and a caption for each."""
    drawn: dict[str, Any] = {}
    captions: dict[str, str] = {}

    def add(name: str, chart: Any, caption: str) -> None:
        drawn[name], captions[name] = chart, caption

    for name, results in found.items():
        stem = name.replace(" ", "_")
        for metric, title, numbers in (("f1", "Weighted F1", "5 to 8"), ("auc", "AUC", "9 to 12")):
            chart = violins(results, metric, f"{title} at every client: {name}")
            add(f"violin_{metric}_{stem}", chart, f"Figures {numbers} in kind: how clients fare, {name}.")
        for layer, made in heat_maps(reports[name]).items():
            words = f"Figures 2 to 4 and 13 to 17 in kind: {layer}, {name}, first seed."
            add(f"heat_{layer}_{stem}", static(made, f"{layer}: {name}"), words)
        for site, column, number in BEHIND.get(name) or _furthest(reports[name]):
            words = f"Figure {number} in kind: the rows behind {site}'s {column}, {name}, first seed."
            key = f"rows_{stem}_{site}_{column}".replace(" ", "_")
            add(key, behind(federations[name], site, column), words)
    for layer in ("b_out", "w_out"):
        add(f"figure18_{layer}", static(heat_maps(layered)[layer], f"{layer}: outbreak diagnosis"),
            f"Figure 18 in kind: {layer} of f_out as a vector, first seed.")  # fmt: skip
        add(f"figure19_{layer}", static(heat_maps(turned)[layer], f"{layer} with Kalihun's outcome turned round"),
            f"Figure 19 in kind: {layer} of f_out with one scale, clean twin, first seed.")  # fmt: skip
    add("figure20_w_in", static(heat_maps(layered)["w_in"], "w_in with f_out trained too: outbreak diagnosis"),
        "Figure 20 in kind: beside the map of w_in without f_out.")  # fmt: skip
    return drawn, captions


def _furthest(report: Mapping[str, Any]) -> tuple[tuple[str, str, str], ...]:
    """The cell of b that lies furthest from its column's mean, in that column's deviations, if any is marked."""
    values = np.array(report["layers"]["b_in"]["values"], np.float64)
    away = np.abs(values - values.mean(axis=0)) / np.maximum(values.std(axis=0, ddof=1), 1e-9)
    i, j = np.unravel_index(int(np.argmax(away)), away.shape)
    return ((report["sites"][i], report["layers"]["b_in"]["columns"][j], "2, 13"),)


def behind(cohort: Cohort, site: str, column: str) -> Any:
    """A column's values at one client beside those of all others, by class; what is missing has a bar of its own."""
    classes = cohort.classes if isinstance(cohort.classes, tuple) else ("without the outcome", "with the outcome")
    number = isinstance(cohort.schema.features[column], Number)
    gathered: dict[tuple[str, str], list[Any]] = {}
    for one in cohort.sites:
        parts = [one.table, *([one.test] if one.test else [])]
        values = np.concatenate([np.asarray(part[column], np.float64) for part in parts])
        labels = np.concatenate([np.asarray(part[cohort.outcome]) for part in parts])
        for label in np.unique(labels):
            named = str(label) if isinstance(cohort.classes, tuple) else classes[int(label)]
            gathered.setdefault((site if one.name == site else "all others", named), []).append(values[labels == label])
    everything = np.concatenate([value for parts in gathered.values() for value in parts])
    known = everything[~np.isnan(everything)]
    edges = np.histogram_bin_edges(known, bins=24) if number else np.array([-0.5, 0.5, 1.5])
    rows: list[dict[str, Any]] = []
    for (who, label), arrays in gathered.items():
        values = np.concatenate(arrays)
        counts, _ = np.histogram(values[~np.isnan(values)], edges)
        bars = [f"{(low + high) / 2:.3g}" for low, high in pairwise(edges)]
        for bar, count in zip(
            [*(bars if number else ["no", "yes"]), "missing"], [*counts, np.isnan(values).sum()], strict=True
        ):
            rows.append({"who": who, "class": label, "value": bar, "share": float(count) / max(1, len(values))})
    order = list(dict.fromkeys(row["value"] for row in rows))
    chart = (
        alt.Chart(table(rows))
        .mark_bar()
        .encode(
            x=alt.X("value:N", sort=order, title=column, axis=alt.Axis(labelAngle=-90, labelOverlap=True)),
            y=alt.Y("share:Q", title="Share of rows", axis=alt.Axis(format="%")),
            color=alt.Color(
                "who:N", legend=None, scale=alt.Scale(domain=[site, "all others"], range=list(PALETTE[:2][::-1]))
            ),
            tooltip=["who:N", "class:N", "value:N", alt.Tooltip("share:Q", format=".1%")],
        )
        .properties(width=max(140, min(330, 14 * len(order))), height=90)
        .facet(row=alt.Row("who:N", title=None, sort=[site, "all others"]), column=alt.Column("class:N", title=None))
    )
    return finish(chart, f"{column}: {site} and all others", "Exact rows of the first seed, training and test")


def violins(results: Results, metric: str, title: str) -> Any:
    """One violin a method over the clients' means; red: the standard deviation over seeds of the median client."""
    points: list[dict[str, Any]] = []
    bars: list[dict[str, Any]] = []
    for method, label in LABELS.items():
        scores = client_scores(results, method, metric)
        points += [
            {"method": label, "client": site, "value": round(float(np.mean(v)), 4)} for site, v in scores.items()
        ]
        medians = [
            float(np.median([v[i] for v in scores.values() if i < len(v)]))
            for i in range(max(map(len, scores.values())))
        ]
        half = float(np.std(medians, ddof=1)) if len(medians) > 1 else 0.0
        middle = float(np.mean(medians))
        bars.append({"method": label, "low": middle - half, "middle": middle, "high": middle + half})
    low = max(0.0, min(point["value"] for point in points) - 0.05)
    scale = alt.Scale(domain=[low, 1.0], clamp=True)
    wide = alt.X("low:Q", title=None, axis=None, scale=alt.Scale(domain=[-1.1, 1.1]))
    panels = []
    for i, label in enumerate(LABELS.values()):
        mine = [point for point in points if point["method"] == label]
        axis = alt.Axis(labels=i == 0, ticks=False, domain=False)
        y = alt.Y("value:Q", title="Client's mean over seeds" if i == 0 else None, scale=scale, axis=axis)
        shape = (
            alt.Chart(table(_density([point["value"] for point in mine], low)))
            .mark_area(orient="horizontal", opacity=0.35, color=PALETTE[0])
            .encode(y=y, x=wide, x2="high:Q")
        )
        dots = (
            alt.Chart(table([{**point, "low": 0} for point in mine]))
            .mark_circle(size=30, color=PALETTE[6], opacity=0.55)
            .encode(y=y, x=wide, tooltip=["method:N", "client:N", alt.Tooltip("value:Q", format=".3f")])
        )
        bar = [{"low": 0, "value": bars[i]["low"], "top": bars[i]["high"], "middle": bars[i]["middle"]}]
        reach = alt.Chart(table(bar)).mark_rule(color=PALETTE[1], strokeWidth=4).encode(y=y, y2="top:Q", x=wide)
        middle = (
            alt.Chart(table([{"low": 0, "value": bars[i]["middle"]}]))
            .mark_point(shape="diamond", size=90, filled=True, color=PALETTE[1], opacity=1)
            .encode(y=y, x=wide)
        )
        # A mark at the foot of the panel, not a title: titles stand above whatever sticks out, each at another height.
        name = (
            alt.Chart(table([{"text": label}]))
            .mark_text(fontSize=13, fontWeight=700, baseline="top")
            .encode(x=alt.value(60), y=alt.value(268), text="text:N")
        )
        panels.append(alt.layer(shape, dots, reach, middle, name).properties(width=120, height=260))
    seeds = f"{len(results)} {'seed' if len(results) == 1 else 'seeds'}"
    note = f"{seeds}; dots: clients; orange: median client and its SD over seeds"
    return finish(alt.hconcat(*panels, spacing=8), title, note)


def _density(values: Sequence[float], low: float) -> list[dict[str, float]]:
    """A kernel density estimate by Silverman's rule, mirrored, its widest place 1."""
    grid = np.linspace(low, 1.0, 80)
    data = np.array(values)
    width = max(0.9 * min(data.std(ddof=1) if len(data) > 1 else 0.02, 0.2) * len(data) ** -0.2, 0.006)
    height = np.exp(-0.5 * ((grid[:, None] - data[None, :]) / width) ** 2).sum(axis=1)
    height = height / height.max()
    return [{"value": float(v), "low": -float(h), "high": float(h)} for v, h in zip(grid, height, strict=True)]
