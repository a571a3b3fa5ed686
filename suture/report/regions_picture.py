"""The heat map over regions as one picture: the radiograph with its regions, the same with values, and their list.

One raster serves the PNG, the page and the DICOM secondary capture, so that all three show the same. Orange raises and
blue lowers the risk (Okabe and Ito's, told apart with any common colour blindness); every region also carries its number
in print, so nothing rests on colour. R and L stand where a radiologist expects them: the patient's right is on the left.
"""

from __future__ import annotations

import io
import unicodedata
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt, zoom

from suture.errors import MissingExtra
from suture.explanation.regions import CORNERS, Regions

Raster = NDArray[np.uint8]
RAISES, LOWERS = (213, 94, 0), (0, 114, 178)
INK, QUIET, RULE, PAPER = (27, 27, 27), (95, 99, 104), (217, 220, 225), (255, 255, 255)
PANEL, MARGIN, LIST = 620, 28, 400
LISTED = 3 * MARGIN + 2 * PANEL
HEAD, FOOT = 112, 66
STRONGEST = 0.62
"""Share of colour over grey in the region with the largest value: the radiograph stays visible below."""
FAINT = 0.25
"""Log odds below which even the largest value is drawn pale: colour must not make much of little."""
SHORT = {"chest wall, neck and abdomen": "chest wall, neck, abdomen"}
INSIDE = SHORT | dict.fromkeys(CORNERS, "corner")
"""Names inside the picture, where their place says the rest."""


def pillow() -> Any:
    """Pillow, or the install command."""
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError:
        raise MissingExtra("heat maps are drawn with Pillow: pip install 'suture[imaging]'") from None
    return Image, ImageDraw, ImageFont


def draw(
    image: NDArray[np.float32],
    regions: Regions,
    values: NDArray[np.float64],
    title: str,
    subtitle: str,
    note: str,
) -> Raster:
    """The picture, rows x columns x 3: ``image`` is square, from 0 to 1, of any size.

    Columns from `LISTED` on are the list of regions, which a page leaves out, because it has one of its own.
    """
    image_module, draw_module, font_module = pillow()
    width, height = LISTED + LIST + MARGIN, HEAD + PANEL + FOOT
    sheet = image_module.new("RGB", (width, height), PAPER)
    pen = draw_module.Draw(sheet)

    def font(size: int) -> Any:
        return font_module.load_default(size=size)

    title, subtitle, note = (_drawable(text) for text in (title, subtitle, note))
    pen.text((MARGIN, 22), title, font=font(30), fill=INK)
    pen.text((MARGIN, 66), subtitle, font=font(18), fill=QUIET)
    grey = _grown(image)
    index = _grown_index(regions)
    edges = _edges(index)
    reach = max(float(np.abs(values).max()), FAINT)
    plain = np.repeat((grey * 255)[:, :, None], 3, axis=2)
    plain[edges] = 0.55 * plain[edges] + 0.45 * np.array(PAPER)
    for place, raster in ((MARGIN, plain), (2 * MARGIN + PANEL, _coloured(grey, index, values, reach, edges))):
        sheet.paste(image_module.fromarray(np.asarray(np.rint(raster), np.uint8)), (place, HEAD))
        for side, at in (("R", place + 8), ("L", place + PANEL - 24)):
            pen.text((at, HEAD + PANEL // 2 - 14), side, font=font(24), fill=PAPER, stroke_width=2, stroke_fill=INK)
    for number, name in enumerate(regions.names):
        row, column = _label_place(index == number)
        text = INSIDE.get(name, name)
        half = pen.textlength(text, font=font(18)) / 2 + 5  # labels stay inside the panel
        middle = 2 * MARGIN + PANEL + min(max(column, half), PANEL - half)
        for word, size, below in ((text, 18, -11), (f"{values[number]:+.2f}", 21, 11)):
            label = {"font": font(size), "anchor": "mm", "stroke_width": 2, "stroke_fill": INK}
            pen.text((middle, HEAD + row + below), word, fill=PAPER, **label)
    _list(pen, font, regions.names, values, reach, LISTED)
    for at, down, text in (
        (MARGIN, 12, "The radiograph and its regions. Sides are the patient's: their left is on the right."),
        (2 * MARGIN + PANEL, 12, "Orange raises, blue lowers the risk; numbers are changes of the log odds."),
        (MARGIN, 37, note),
    ):
        pen.text((at, HEAD + PANEL + down), text, font=font(17), fill=QUIET)
    return np.asarray(sheet, np.uint8)


def _drawable(text: str) -> str:
    """What Pillow's own font can draw: accents are dropped here (and kept on the page).

    >>> _drawable("São José, site β")
    'Sao Jose, site ?'
    """
    plain = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return "".join(c if c.isascii() or c == "·" else "?" for c in plain)


def png(raster: Raster) -> bytes:
    """The raster as a PNG file."""
    image_module, _, _ = pillow()
    buffer = io.BytesIO()
    image_module.fromarray(raster).save(buffer, format="PNG", compress_level=4)
    return buffer.getvalue()


def _grown(image: NDArray[np.float32]) -> NDArray[np.float64]:
    return np.asarray(np.clip(_zoomed(np.asarray(image, np.float64), order=1 if len(image) > PANEL // 2 else 3), 0, 1))


def _zoomed(array: NDArray[Any], order: int) -> NDArray[Any]:
    return np.asarray(zoom(array, PANEL / len(array), order=order, mode="nearest", grid_mode=True))


def _grown_index(regions: Regions) -> NDArray[np.int16]:
    """Region of every pixel of the panel: the region whose smoothed mask is largest, so that edges have no steps."""
    soft = [_zoomed(mask.reshape(regions.size, regions.size), order=1) for mask in regions.masks]
    return np.asarray(np.argmax(np.stack(soft), axis=0), np.int16)


def _edges(index: NDArray[np.int16]) -> NDArray[np.bool_]:
    found = np.zeros(index.shape, bool)
    found[:-1] |= index[:-1] != index[1:]
    found[:, :-1] |= index[:, :-1] != index[:, 1:]
    found[1:] |= found[:-1]
    return found


def _coloured(
    grey: NDArray[np.float64],
    index: NDArray[np.int16],
    values: NDArray[np.float64],
    reach: float,
    edges: NDArray[np.bool_],
) -> NDArray[np.float64]:
    strength = STRONGEST * np.abs(values) / reach
    colour = np.where((values > 0)[:, None], np.array(RAISES), np.array(LOWERS)).astype(float)
    share = strength[index][:, :, None]
    raster = (1 - share) * (grey * 255)[:, :, None] + share * colour[index]
    raster[edges] = 0.4 * raster[edges] + 0.6 * np.array(PAPER)
    return np.asarray(raster)


def _label_place(mask: NDArray[np.bool_]) -> tuple[int, int]:
    """Row and column where the label has most room: widest first, because text is."""
    if not mask.any():
        return 0, 0
    padded = np.pad(mask, 1)
    room = distance_transform_edt(padded, sampling=(2.2, 1.0))[1:-1, 1:-1]
    rows, columns = np.nonzero(room >= room.max() - 0.75)
    middle = np.argmin((rows - np.median(rows)) ** 2 + (columns - np.median(columns)) ** 2)
    return int(rows[middle]), int(columns[middle])


def _list(pen: Any, font: Any, names: tuple[str, ...], values: NDArray[np.float64], reach: float, left: int) -> None:
    """Regions by size of their value, with bars from a common middle."""
    step = min(40, (PANEL - 34) // len(names))
    pen.text((left, HEAD), "Regions, largest value first", font=font(17), fill=INK)
    zero, half = left + 316, 62
    for line, number in enumerate(np.argsort(-np.abs(values), kind="stable")):
        top = HEAD + 36 + line * step
        if top + step > HEAD + PANEL + 4:
            break
        value = float(values[number])
        pen.text((left, top), SHORT.get(names[number], names[number]), font=font(16), fill=INK)
        end = zero + half * value / reach
        pen.rectangle((min(zero, end), top + 3, max(zero, end), top + 18), fill=RAISES if value > 0 else LOWERS)
        pen.text((left + 246, top), f"{value:+.2f}", font=font(16), fill=INK, anchor="ra")
    pen.line((zero, HEAD + 34, zero, HEAD + 36 + step * len(names) - 12), fill=QUIET)
