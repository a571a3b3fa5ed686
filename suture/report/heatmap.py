"""Heat maps that stay legible with hundreds of features and dozens of hospitals: drawn on canvas,
in the page itself.

Rows are hospitals, columns features. Colour is the distance from the neutral value (0 for shifts, 1
for scales); "O" and "x" are the paper's marks (see `suture.interop.evidence`). The script holds no
text of a study: names and numbers come as JSON, and are only ever written as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import altair as alt
import numpy as np
from numpy.typing import NDArray

from suture.report.theme import PALETTE, Figure, finish, table
from suture.report.words import Found

MOST_STATIC = 60
"""A printed map shows at most this many columns: the most spread ones, and it says so."""

SCRIPT = (files("suture.report") / "heatmap.js").read_text(encoding="utf-8")


def heat(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: NDArray[np.float64],
    circles: NDArray[np.bool_],
    crosses: NDArray[np.bool_],
    neutral: float,
    about: Sequence[str] = (),
) -> dict[str, Any]:
    """The data of one map; colours end at the 99 % quantile, so that no wild cell blanks the rest.

    ``about`` says each column in words, for the box that opens at a cell.

    >>> made = heat("b", ["a"], ["age"], np.array([[0.5]]), np.array([[False]]), np.array([False]), 0.0)
    >>> made["reach"], made["values"]
    (0.5, [[0.5]])
    """
    away = np.abs(values - neutral)
    reach = float(np.quantile(away, 0.99)) if away.size else 0.0
    return {
        "title": title,
        "rows": list(rows),
        "columns": list(columns),
        "about": list(about) or [""] * len(columns),
        "values": np.round(values, 5).tolist(),
        "circles": circles.astype(int).tolist(),
        "crosses": crosses.astype(int).tolist(),
        "neutral": neutral,
        "reach": max(reach, 1e-6),
    }


def static(made: Found, heading: str) -> Figure:
    """The map as a figure for print; of many columns, only the most spread."""
    hospitals = made["rows"]
    values = np.array(made["values"], np.float64).reshape(len(hospitals), -1)
    order = np.arange(values.shape[1])
    note = "O: over 2 SD from the column's mean. x: the whole column varies unusually"
    if len(order) > MOST_STATIC:
        order = np.sort(np.argsort(-values.std(axis=0))[:MOST_STATIC])
        note += f". The {MOST_STATIC} most spread of {values.shape[1]} columns"
    names = {j: made["columns"][j] + (" (x)" if made["crosses"][j] else "") for j in order.tolist()}
    cells = [
        {"hospital": site, "column": name, "value": float(values[i, j]),
         "mark": "O" if made["circles"][i][j] else ""}
        for i, site in enumerate(hospitals)
        for j, name in names.items()
    ]  # fmt: skip
    neutral, colours = made["neutral"], [PALETTE[0], "#ffffff", PALETTE[1]]
    ends = [neutral - made["reach"], neutral, neutral + made["reach"]]
    scale = alt.Scale(domain=ends, range=colours, clamp=True, interpolate="rgb")
    upright = alt.Axis(labelAngle=-90, labelLimit=160)
    base = alt.Chart(table(cells)).encode(
        x=alt.X("column:N", sort=list(names.values()), title=None, axis=upright),
        y=alt.Y("hospital:N", sort=hospitals, title=None),
    )
    tiles = base.mark_rect(stroke="#e3e6ea")
    tiles = tiles.encode(color=alt.Color("value:Q", scale=scale, title=made["title"]))
    marks = base.mark_text(fontSize=13, fontWeight=700).encode(text="mark:N")
    size = {"width": max(160, 18 * len(names)), "height": max(80, 20 * len(hospitals))}
    return finish(alt.layer(tiles, marks).properties(**size), heading, note)
