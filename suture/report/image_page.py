"""The radiologist's page about one image, and the page about where a model looks at each hospital."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import altair as alt
import numpy as np
from numpy.typing import NDArray

from suture import __version__
from suture.report.patient import LOWERS, RAISES, percent, privacy_words
from suture.report.shell import fill
from suture.report.tables import Cell, Table
from suture.report.theme import INK, finish, table
from suture.report.words import signed

if TYPE_CHECKING:
    from suture.explanation.image import ImageExplanation


def headline(found: ImageExplanation, outcome: str) -> str:
    """The first line of page and picture."""
    text = f"{outcome[:1].upper()}{outcome[1:]}: {percent(found.risk)}"
    if found.interval:
        text += f" (95 % interval {percent(found.interval.low)} to {percent(found.interval.high)})"
    return text


def page(
    found: ImageExplanation, name: str, site: str, result: Mapping[str, Any], picture: bytes, files: Sequence[str]
) -> str:
    """The page as text, with the picture inside."""
    values = found.found
    context = {
        "image": name,
        "site": site,
        "study": result["name"],
        "outcome": _outcome(result),
        "risk": percent(found.risk),
        "interval": found.interval and f"{percent(found.interval.low)} to {percent(found.interval.high)}",
        "interval_words": found.interval.words if found.interval else found.without,
        "model_risk": percent(values.risk),
        "base": percent(found.base),
        "background": found.background,
        "regions": found.regions.source,
        "picture": base64.b64encode(picture).decode(),
        "alternative": _alternative(found),
        "table": values_table(found),
        "notes": found.notes,
        "count": len(values.names),
        "sets": f"{2 ** len(values.names):,}",
        "samples": f"{values.samples:,}",
        "exact": values.exact,
        "difference": None if values.difference is None else f"{values.difference:.2g}",
        "leftover": f"{max(values.leftover, 1e-16):.0e}",
        "sum": f"{signed(values.base)} {signed(float(values.values.sum()))} = {signed(values.log_odds)}",
        "files": list(files),
        "footer": [
            ("Model", str(result["methods"][result["method"]]["label"])),
            ("Privacy of the model", privacy_words(result["privacy"])),
            ("Suture", __version__),
        ],
    }
    return fill("image.html", context, {"values": chart(found)}, {"values": _CAPTION}, f"{site}-{name}")


_CAPTION = (
    "Change of the log odds by each region against the background; all bars together lead from the base to the risk."
)


def values_table(found: ImageExplanation) -> Table:
    """Regions and their values, largest first."""
    kernel = dict(zip(found.found.names, found.found.kernel, strict=True))
    rows = tuple(
        (
            Cell(name),
            Cell(signed(value)),
            Cell(f"× {math.exp(value):.2f}"),
            *((Cell(signed(kernel[name])),) if found.found.exact else ()),
        )
        for name, value in found.ordered
    )
    heads = ("Region", "Log odds", "Odds", *(("Kernel SHAP",) if found.found.exact else ()))
    kind = "exact Shapley values" if found.found.exact else "Kernel SHAP"
    return Table(f"Values of all regions ({kind})", heads, rows, "Sides are the patient's.")


def chart(found: ImageExplanation) -> Any:
    """Values as bars, largest first."""
    rows = [
        {"region": name, "value": value, "what": "raises" if value > 0 else "lowers", "text": signed(value, 2)}
        for name, value in found.ordered
    ]
    y = alt.Y(
        "region:N", sort=[str(row["region"]) for row in rows], title=None,
        axis=alt.Axis(labelLimit=260, ticks=False, domain=False, labelPadding=8),
    )  # fmt: skip
    scale = alt.Scale(domain=["raises", "lowers"], range=[RAISES, LOWERS])
    base = alt.Chart(table(rows))
    reach = max(float(np.abs(found.found.values).max()), 1e-3) * 1.25
    x = alt.X("value:Q", title="Change of the log odds", scale=alt.Scale(domain=[-reach, reach], nice=False))
    bars = base.mark_bar(height=16).encode(x=x, y=y, color=alt.Color("what:N", scale=scale, legend=None))
    up = base.transform_filter("datum.value > 0").mark_text(align="left", dx=5, fontSize=12, color=INK)
    down = base.transform_filter("datum.value <= 0").mark_text(align="right", dx=-5, fontSize=12, color=INK)
    texts = [part.encode(x=x, y=y, text="text:N") for part in (up, down)]
    layered = alt.layer(bars, *texts).properties(width=560, height=alt.Step(26))
    return finish(layered, "Which regions move this prediction", "Orange raises, blue lowers the risk")


def hospitals_page(
    names: Sequence[str], hospitals: Sequence[str], weights: NDArray[np.float64], facts: Mapping[str, Any]
) -> str:
    """Mean absolute value of each region at each hospital (hospitals x regions), as a map and a table."""
    share = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-12)
    rows = tuple(
        (Cell(hospital), *(Cell(f"{100 * part:.0f}") for part in share[i]), Cell(f"{weights[i].sum():.2f}"))
        for i, hospital in enumerate(hospitals)
    )
    remark = (
        "Percent of the hospital's weight; last, all its weight in log odds. R and L are the patient's right and left."
    )
    heads = [_narrow(name) for name in names]
    found = Table("Weight of each region at each hospital", ("Hospital", *heads, "log odds"), rows, remark)
    context = {
        "name": f"Where the model looks: {facts['study']}",
        "intro": facts["intro"],
        "findings": list(facts["findings"]),
        "table": found,
        "dice": dice_table(facts["dice"]) if facts["dice"] else None,
        "notes": list(facts["notes"]),
        "footer": [*facts["footer"], ("Suture", __version__)],
    }
    charts = {"weights": hospitals_chart(names, hospitals, weights)}
    captions = {
        "weights": "Mean absolute region value of each hospital's images: darker regions move predictions more."
    }
    return fill("image_weights.html", context, charts, captions, f"{facts['study']}-regions")


def dice_table(dice: Mapping[str, Any]) -> Table:
    """Dice of top regions and lesions at each hospital and over all."""
    rows = tuple(
        (Cell(name), Cell(str(part["images"])), *(Cell(f"{part[key]:.2f}") for key in ("regions", "pixels", "ceiling")))
        for name, part in (*dice["sites"].items(), ("all", dice))
    )
    remark = (
        "Regions: top regions against those with the lesion. Pixels: theirs against the lesion's, at most the ceiling."
    )
    heads = ("Hospital", "Images with lesion", "Dice, regions", "Dice, pixels", "Ceiling, pixels")
    return Table("Do values point at lesions?", heads, rows, remark)


def hospitals_chart(names: Sequence[str], hospitals: Sequence[str], weights: NDArray[np.float64]) -> Any:
    """Hospitals x regions as a map of one colour."""
    share = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-12)
    middle = 0.6 * float(share.max())
    cells = [
        {"hospital": hospital, "region": name, "share": float(share[i, j]), "text": f"{100 * share[i, j]:.0f}"}
        for i, hospital in enumerate(hospitals)
        for j, name in enumerate(names)
    ]
    x = alt.X("region:N", sort=list(names), title=None, axis=alt.Axis(labelAngle=-45, labelLimit=220))
    y = alt.Y("hospital:N", sort=list(hospitals), title=None)
    base = alt.Chart(table(cells)).encode(x=x, y=y)
    top = float(share.max())
    scale = alt.Scale(domain=[0, top / 2, top], range=["#ffffff", "#f0b85a", "#8a3b00"], interpolate="rgb")
    tiles = base.mark_rect(stroke="#e3e6ea").encode(
        color=alt.Color("share:Q", scale=scale, title="Share of weight", legend=alt.Legend(format=".0%"))
    )
    texts = base.mark_text(fontSize=12).encode(
        text="text:N", color=alt.condition(f"datum.share > {middle}", alt.value("#ffffff"), alt.value(INK))
    )
    layered = alt.layer(tiles, texts).properties(width=44 * len(names), height=30 * len(hospitals))
    return finish(
        layered, "Where predictions come from", "Share of each hospital's mean absolute region values, in percent"
    )


def _narrow(name: str) -> str:
    short = {"mediastinum": "mediast.", "chest wall, neck and abdomen": "else- where"}
    return short.get(name, name.replace("right ", "R ").replace("left ", "L ").replace(" zone", ""))


def _alternative(found: ImageExplanation) -> str:
    told = ", ".join(f"{name} {signed(value, 2)}" for name, value in found.ordered)
    return f"The radiograph with its regions, and the same coloured by their values: {told}."


def _outcome(result: Mapping[str, Any]) -> str:
    return str(result["outcome"]).replace("_", " ")
