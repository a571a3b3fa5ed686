"""How figures look: one palette, one type size, one way to save.

Colours are Okabe and Ito's ("Color universal design", 2008), which people with any common colour
blindness can tell apart; their yellow is replaced by grey, because yellow lines vanish on white paper.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import altair as alt
import vl_convert
from altair.typing import ChartType

from suture.errors import StudyError
from suture.report.words import hospitals, labels
from suture.schema.record import Record

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#000000", "#8C8C8C")
INK, QUIET = "#1b1b1b", "#5f6368"
FONT = "Arial, 'Liberation Sans', 'Helvetica Neue', sans-serif"
VEGALITE = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])

GREY = "#9aa0a6"
Figure: TypeAlias = ChartType
Rows = Sequence[Mapping[str, object]]


def method_colours(result: Record) -> alt.Scale:
    """A method has one colour in every figure; the study's own has the first."""
    names, first = labels(result), result["method"]
    order = [first, *(key for key in names if key != first)]
    colour = {key: PALETTE[i % len(PALETTE)] for i, key in enumerate(order)}
    return alt.Scale(domain=list(names.values()), range=[colour[key] for key in names])


def hospital_colours(result: Record) -> alt.Scale | None:
    """A hospital has one colour in every figure; None where there are too many hospitals."""
    names = hospitals(result)
    if not 0 < len(names) <= len(PALETTE):
        return None
    return alt.Scale(domain=names, range=list(PALETTE[: len(names)]))


def hospital_hue(result: Record) -> alt.Color | alt.ColorValue:
    """A hospital's own colour, without a legend, or one colour for all where there are too many."""
    colours = hospital_colours(result)
    if colours is None:
        return alt.ColorValue(PALETTE[0])
    return alt.Color("hospital:N", scale=colours, legend=None)


def tips(**fields: str) -> list[alt.Tooltip]:
    """What a point shows: fields with their title and, for a number, its format after a bar.

    >>> [tip.to_dict() for tip in tips(method="Method", value="AUC|.3f")][1]
    {'field': 'value', 'format': '.3f', 'title': 'AUC', 'type': 'quantitative'}
    """
    shown = []
    for field, text in fields.items():
        title, bar, style = text.partition("|")
        tip = alt.Tooltip(f"{field}:{'Q' if bar else 'N'}", title=title)
        shown.append(tip.format(style) if style else tip)
    return shown


def table(rows: Rows) -> alt.InlineData:
    """Rows as inline data: figures carry their data, so that they work offline.

    They are handed over as one JSON text, which Vega parses: Altair copies a chart at every step,
    and a text is not copied row by row (half the time of a page went there).

    >>> table([{"x": 1}]).to_dict()
    {'values': '[{"x":1}]', 'format': {'type': 'json'}}
    """
    text = json.dumps(list(rows), allow_nan=False, separators=(",", ":"))
    return alt.InlineData(values=text, format=alt.JsonDataFormat(type="json"))


def finish(chart: Figure, title: str, subtitle: str = "") -> Figure:
    """Title and style of a finished figure (only the top of a Vega-Lite figure has a style)."""
    heading = {"text": title, "anchor": "start", "frame": "group"}
    if subtitle:
        heading["subtitle"] = subtitle
    # One step with all styles: every further one would copy the whole figure.
    return chart.properties(title=heading, background="white", padding=12, config=_STYLE)


_STYLE = alt.Config(
    font=FONT,
    title=alt.TitleConfig(
        fontSize=16, fontWeight=600, color=INK, offset=12, subtitleFontSize=13, subtitleColor=QUIET, subtitlePadding=5
    ),
    axis=alt.AxisConfig(
        labelFontSize=12, titleFontSize=13, titleFontWeight="normal", labelColor=INK, titleColor=INK,
        gridColor="#eceef1", domainColor="#9aa0a6", tickColor="#9aa0a6", titlePadding=8, labelLimit=190, labelFlush=False,
    ),
    legend=alt.LegendConfig(
        labelFontSize=13, titleFontSize=13, titleFontWeight="normal", labelColor=INK, titleColor=INK,
        labelLimit=240, symbolStrokeWidth=3, columnPadding=18, rowPadding=5,
    ),
    header=alt.HeaderConfig(labelFontSize=13, titleFontSize=13, labelFontWeight=600, labelColor=INK, labelPadding=6),
    view=alt.ViewConfig(stroke=None),
)  # fmt: skip


def save(chart: Figure, path: Path) -> None:
    """Write a figure as PNG (twice its size on a screen) or SVG; needs no browser or network."""
    kind = path.suffix.lower()
    if kind not in (".png", ".svg"):
        raise StudyError(
            f"figures are written as .png or .svg, found '{path.name}'; choose one of these endings"
        )
    spec = chart.to_dict()
    if kind == ".png":
        path.write_bytes(vl_convert.vegalite_to_png(spec, vl_version=VEGALITE, scale=2.0))
    else:
        path.write_text(vl_convert.vegalite_to_svg(spec, vl_version=VEGALITE), encoding="utf-8")
