"""The radiologist's page about one image: prediction, interval, a value for every region, and what
makes them less certain."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt
import numpy as np

from suture.explain.regions import CORNERS, OUTSIDE, Regions
from suture.explain.run import (
    LOWERS,
    RAISES,
    FinishedRun,
    Floats,
    Rows,
    percent,
    privacy_words,
    sigmoid,
)
from suture.explain.shapley import LEAST_RISK, RegionValues
from suture.privacy.software import VERSION
from suture.report.shell import fill
from suture.report.theme import INK, Figure, finish, table
from suture.report.words import Cell, Table, signed

NOTICED, WORTH = 3, 0.05
"""A corner among this many largest values is worth a warning if it moves the log odds by so much."""
ALMOST = 0.05
"""Log odds by which Kernel SHAP may differ from the exact values before it is worth a note."""
CAPTION = (
    "Change of the log odds by each region against the background; all bars together lead from the "
    "base to the risk."
)


@dataclass(frozen=True)
class Interval:
    """A risk with its 95 % interval; ``words`` say where it comes from and what it leaves out."""

    risk: float
    low: float
    high: float
    words: str


@dataclass(frozen=True)
class ImageExplanation:
    """Everything that the page shows about one radiograph. It is about one patient, and for that
    patient's clinicians at that site."""

    values: RegionValues
    regions: Regions
    background: str
    """In words; values against another background are other values."""
    interval: Interval | str
    """Or why there is none."""
    notes: tuple[str, ...]

    @property
    def risk(self) -> float:
        """The calibrated risk where the site's patients gave one, else the model's."""
        return self.interval.risk if isinstance(self.interval, Interval) else self.values.risk

    @property
    def between(self) -> str:
        """The interval as text; empty where there is none."""
        if isinstance(self.interval, str):
            return ""
        return f"{percent(self.interval.low)} to {percent(self.interval.high)}"

    @property
    def interval_words(self) -> str:
        """Where the interval comes from, or why there is none."""
        return self.interval if isinstance(self.interval, str) else self.interval.words

    @property
    def ordered(self) -> list[tuple[str, float]]:
        """Regions and values, largest first by size."""
        found = self.values
        order = np.argsort(-np.abs(found.values), kind="stable")
        return [(found.names[i], float(found.values[i])) for i in order]


def outside_share(values: Floats, names: tuple[str, ...]) -> float:
    """Share of the total weight (absolute values) in regions without lung, heart or great vessels.

    >>> outside_share(np.array([3.0, -1.0]), ("heart", "left top corner"))
    0.25
    """
    sizes = np.abs(values)
    outside = np.array([name in OUTSIDE for name in names])
    return float(sizes[outside].sum() / max(float(sizes.sum()), 1e-300))


def notes_of(found: RegionValues, pixels: Rows) -> tuple[str, ...]:
    """What a reader should know before trusting the values, in sentences."""
    notes = []
    order = np.argsort(-np.abs(found.values), kind="stable")[:NOTICED]
    large = [found.names[i] for i in order if abs(found.values[i]) > WORTH]
    if corners := [name for name in large if name in CORNERS]:
        notes.append(
            f"The {' and the '.join(corners)} of the image {'is' if len(corners) == 1 else 'are'} "
            f"among the {NOTICED} regions with the largest values. No organ is there: the model "
            "may be reading a marker, a label or the scanner."
        )
    share = outside_share(found.values, found.names)
    if share > 0.5:
        notes.append(f"{share:.0%} of the weight lies outside lungs, heart and mediastinum.")
    if not LEAST_RISK * 2 < found.risk < 1 - LEAST_RISK * 2:
        notes.append(
            "The model is saturated here (risk below 0.0002 % or above 99.9998 %): values are cut "
            "off."
        )
    if found.difference is not None and found.difference > ALMOST:
        notes.append(
            f"Kernel SHAP with {found.samples:,} sets differs from the exact values by up to "
            f"{found.difference:.2f}: regions act together here, so a single region's value says "
            "less."
        )
    if math.isclose(float(pixels.min()), float(pixels.max()), abs_tol=1e-6):
        notes.append("The image is one flat grey: nothing in it can be explained.")
    return tuple(notes)


def headline(found: ImageExplanation, outcome: str) -> str:
    """The first line of page and picture."""
    text = f"{outcome[:1].upper()}{outcome[1:]}: {percent(found.risk)}"
    return f"{text} (95 % interval {found.between})" if found.between else text


def page(
    found: ImageExplanation,
    run: FinishedRun,
    where: tuple[str, str],
    picture: bytes,
    files: Sequence[str],
) -> str:
    """The page as text, with the picture inside; ``where`` is the site and the image's name."""
    values, (site, name) = found.values, where
    total = float(values.values.sum())
    listed = ", ".join(f"{region} {signed(value, 2)}" for region, value in found.ordered)
    context = {
        "image": name,
        "site": site,
        "study": run.record["name"],
        "outcome": run.outcome,
        "risk": percent(found.risk),
        "interval": found.between,
        "interval_words": found.interval_words,
        "model_risk": percent(values.risk),
        "base": percent(sigmoid(values.base)),
        "background": found.background,
        "regions": found.regions.source,
        "picture": base64.b64encode(picture).decode(),
        "alternative": "The radiograph with its regions, and the same coloured by their values: "
        f"{listed}.",
        "table": _table(found),
        "notes": found.notes,
        "count": len(values.names),
        "sets": f"{2 ** len(values.names):,}",
        "samples": f"{values.samples:,}",
        "exact": values.exact,
        "difference": None if values.difference is None else f"{values.difference:.2g}",
        "leftover": f"{max(values.leftover, 1e-16):.0e}",
        "sum": f"{signed(values.base)} {signed(total)} = {signed(values.log_odds)}",
        "files": list(files),
        "footer": [
            ("Model", run.label),
            ("Privacy of the model", privacy_words(run.record["privacy"])),
            ("Suture", VERSION),
        ],
    }
    charts, captions = {"values": _chart(found)}, {"values": CAPTION}
    return fill("image.html", context, charts, captions, f"{site}-{name}")


def _table(found: ImageExplanation) -> Table:
    """Regions and their values, largest first."""
    exact = found.values.exact
    kernel = dict(zip(found.values.names, found.values.kernel, strict=True))
    rows = []
    for name, value in found.ordered:
        cells = [name, signed(value), f"× {math.exp(value):.2f}"]
        cells += [signed(kernel[name])] if exact else []
        rows.append(tuple(Cell(text) for text in cells))
    heads = ("Region", "Log odds", "Odds", *(("Kernel SHAP",) if exact else ()))
    kind = "exact Shapley values" if exact else "Kernel SHAP"
    return Table(f"Values of all regions ({kind})", heads, tuple(rows), "Sides are the patient's.")


def _chart(found: ImageExplanation) -> Figure:
    """Values as bars, largest first."""
    rows = [
        {"region": name, "value": value, "what": "raises" if value > 0 else "lowers", "text": signed(value, 2)}
        for name, value in found.ordered
    ]  # fmt: skip
    names = alt.Axis(labelLimit=260, ticks=False, domain=False, labelPadding=8)
    y = alt.Y("region:N", sort=[name for name, _ in found.ordered], title=None, axis=names)
    reach = max(float(np.abs(found.values.values).max()), 1e-3) * 1.25
    domain = alt.Scale(domain=[-reach, reach], nice=False)
    x = alt.X("value:Q", title="Change of the log odds", scale=domain)
    colours = alt.Scale(domain=["raises", "lowers"], range=[RAISES, LOWERS])
    base = alt.Chart(table(rows))
    bars = base.mark_bar(height=16).encode(
        x=x, y=y, color=alt.Color("what:N", scale=colours, legend=None)
    )
    up = base.transform_filter("datum.value > 0").mark_text(align="left", dx=5)
    down = base.transform_filter("datum.value <= 0").mark_text(align="right", dx=-5)
    texts = [
        text.encode(x=x, y=y, text="text:N", size=alt.value(12), color=alt.value(INK))
        for text in (up, down)
    ]
    chart = alt.layer(bars, *texts).properties(width=560, height=alt.Step(26))
    subtitle = "Orange raises, blue lowers the risk"
    figure: Figure = finish(chart, "Which regions move this prediction", subtitle)
    return figure
