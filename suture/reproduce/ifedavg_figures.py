"""The figures of iFedAvg in kind: violins over clients with the spread over seeds, and the heat maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from suture.report.heatmap import static
from suture.report.interop import heat_maps
from suture.report.theme import PALETTE, finish, table
from suture.reproduce import ifedavg
from suture.result import Result

LABELS = {"ifedavg": "iFedAvg", "apfl": "APFL", "fedavg": "FedAvg", "alone": "Local", "pooled": "Centralized"}


def charts(
    results: Mapping[str, Sequence[Result]], reports: Mapping[str, Mapping[str, Any]], turned: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Figures 2 to 20 in kind, and a caption for each."""
    drawn: dict[str, Any] = {}
    captions: dict[str, str] = {}
    for name, runs in results.items():
        stem = name.replace(" ", "_")
        for metric, title, numbers in (("f1", "Weighted F1", "5 to 8"), ("auc", "AUC", "9 to 12")):
            drawn[f"violin_{metric}_{stem}"] = violins(runs, metric, f"{title} at every client: {name}")
            captions[f"violin_{metric}_{stem}"] = f"Figures {numbers} in kind: how clients fare, {name}."
        for layer, made in heat_maps(reports[name]).items():
            drawn[f"heat_{layer}_{stem}"] = static(made, f"{layer}: {name}")
            captions[f"heat_{layer}_{stem}"] = f"Figures 2 to 4, 13 to 17 in kind: {layer}, {name}, first seed."
    for layer in ("b_out", "w_out"):
        drawn[f"figure19_{layer}"] = static(heat_maps(turned)[layer], f"{layer} with Kalihun's outcome turned round")
        captions[f"figure19_{layer}"] = f"Figure 19 in kind: {layer} of f_out with one scale, clean twin, first seed."
    return drawn, captions


def violins(runs: Sequence[Result], metric: str, title: str) -> Any:
    """One violin a method over the clients' means; red: the standard deviation over seeds of the median client."""
    points: list[dict[str, Any]] = []
    bars: list[dict[str, Any]] = []
    for method, label in LABELS.items():
        scores = ifedavg.client_scores(runs, method, metric)
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
        panels.append(alt.layer(shape, dots, reach, middle).properties(width=120, height=260, title=label))
    note = f"{len(runs)} {'seed' if len(runs) == 1 else 'seeds'}; dots: clients; orange: median client and its SD over seeds"
    return finish(alt.hconcat(*panels, spacing=8), title, note)


def _density(values: Sequence[float], low: float) -> list[dict[str, float]]:
    """A kernel density estimate by Silverman's rule, mirrored, its widest place 1."""
    grid = np.linspace(low, 1.0, 80)
    data = np.array(values)
    width = max(0.9 * min(data.std(ddof=1) if len(data) > 1 else 0.02, 0.2) * len(data) ** -0.2, 0.006)
    height = np.exp(-0.5 * ((grid[:, None] - data[None, :]) / width) ** 2).sum(axis=1)
    height = height / height.max()
    return [{"value": float(v), "low": -float(h), "high": float(h)} for v, h in zip(grid, height, strict=True)]
