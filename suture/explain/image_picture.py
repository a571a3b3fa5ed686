"""The heat map over regions as one picture: the radiograph with its regions, the same with values,
and their list.

One raster serves the PNG, the page and the DICOM secondary capture, so that all three show the
same. Orange raises and blue lowers the risk (Okabe and Ito's, told apart with any common colour
blindness); every region also carries its number in print, so nothing rests on colour. R and L stand
where a radiologist expects them: the patient's right is on the left.
"""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt, zoom

from suture.errors import MissingExtra
from suture.explain.regions import CORNERS, Mask, Regions
from suture.explain.run import Floats, Rows

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw as Pen
    from PIL.ImageFont import FreeTypeFont, ImageFont

    Font = Callable[[int], FreeTypeFont | ImageFont]

Raster = NDArray[np.uint8]
RAISES, LOWERS = (213, 94, 0), (0, 114, 178)
INK, QUIET, PAPER = (27, 27, 27), (95, 99, 104), (255, 255, 255)
PANEL, MARGIN, LIST = 620, 28, 400
SECOND = 2 * MARGIN + PANEL
"""Where the coloured panel begins."""
LISTED = 3 * MARGIN + 2 * PANEL
HEAD, FOOT = 112, 66
STRONGEST = 0.62
"""Share of colour over grey in the region with the largest value: the radiograph stays visible
below."""
FAINT = 0.25
"""Log odds below which even the largest value is drawn pale: colour must not make much of
little."""
SHORT = {"chest wall, neck and abdomen": "chest wall, neck, abdomen"}
INSIDE = SHORT | dict.fromkeys(CORNERS, "corner")
"""Names inside the picture, where their place says the rest."""
MISSING = "heat maps are drawn with Pillow: pip install 'suture[imaging]'"


def draw(image: Rows, regions: Regions, values: Floats, words: tuple[str, str, str]) -> Raster:
    """The picture, rows x columns x 3: ``image`` is square, from 0 to 1, of any size; ``words`` are
    title, subtitle and note.

    Columns from `LISTED` on are the list of regions, which a page leaves out because it has one of
    its own.
    """
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError:
        raise MissingExtra(MISSING) from None
    sheet = Image.new("RGB", (LISTED + LIST + MARGIN, HEAD + PANEL + FOOT), PAPER)
    pen = ImageDraw.Draw(sheet)
    font = ImageFont.load_default
    title, subtitle, note = (_drawable(text) for text in words)
    pen.text((MARGIN, 22), title, font=font(30), fill=INK)
    pen.text((MARGIN, 66), subtitle, font=font(18), fill=QUIET)
    order = 1 if len(image) > PANEL // 2 else 3
    grey = np.clip(_zoomed(np.asarray(image, np.float64), order), 0, 1) * 255
    # The region whose smoothed mask is largest, so that edges have no steps.
    square = (regions.size, regions.size)
    index = np.argmax(
        np.stack([_zoomed(mask.reshape(square), 1) for mask in regions.masks]), axis=0
    )
    edges = _edges(index)
    reach = max(float(np.abs(values).max()), FAINT)
    plain = np.repeat(grey[:, :, None], 3, axis=2)
    share = (STRONGEST * np.abs(values) / reach)[index][:, :, None]
    colour = np.where((values > 0)[:, None], np.array(RAISES), np.array(LOWERS)).astype(float)
    coloured = (1 - share) * plain + share * colour[index]
    for left, raster, light in ((MARGIN, plain, 0.45), (SECOND, coloured, 0.6)):
        raster[edges] = (1 - light) * raster[edges] + light * np.array(PAPER)
        sheet.paste(Image.fromarray(np.asarray(np.rint(raster), np.uint8)), (left, HEAD))
        for side, edge in (("R", left + 8), ("L", left + PANEL - 24)):
            place = (edge, HEAD + PANEL // 2 - 14)
            pen.text(place, side, font=font(24), fill=PAPER, stroke_width=2, stroke_fill=INK)
    for number, name in enumerate(regions.names):
        row, column = _label_place(index == number)
        text = INSIDE.get(name, name)
        half = pen.textlength(text, font=font(18)) / 2 + 5  # labels stay inside the panel
        middle = SECOND + min(max(column, half), PANEL - half)
        for word, size, below in ((text, 18, -11), (f"{values[number]:+.2f}", 21, 11)):
            at, letters = (middle, HEAD + row + below), font(size)
            pen.text(
                at, word, font=letters, fill=PAPER, anchor="mm", stroke_width=2, stroke_fill=INK
            )
    _list(pen, font, regions.names, values, reach)
    first = "The radiograph and its regions. Sides are the patient's: their left is on the right."
    second = "Orange raises, blue lowers the risk; numbers are changes of the log odds."
    for left, down, text in ((MARGIN, 12, first), (SECOND, 12, second), (MARGIN, 37, note)):
        pen.text((left, HEAD + PANEL + down), text, font=font(17), fill=QUIET)
    return np.asarray(sheet, np.uint8)


def png(raster: Raster) -> bytes:
    """The raster as a PNG file."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra(MISSING) from None
    buffer = io.BytesIO()
    Image.fromarray(raster).save(buffer, format="PNG", compress_level=4)
    return buffer.getvalue()


def _drawable(text: str) -> str:
    """What Pillow's own font can draw: accents are dropped here (and kept on the page).

    >>> _drawable("São José, site β")
    'Sao Jose, site ?'
    """
    plain = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return "".join(c if c.isascii() or c == "·" else "?" for c in plain)


def _zoomed(array: Floats | Rows, order: int) -> Floats:
    return np.asarray(zoom(array, PANEL / len(array), order=order, mode="nearest", grid_mode=True))


def _edges(index: NDArray[np.intp]) -> Mask:
    found = np.zeros(index.shape, bool)
    found[:-1] |= index[:-1] != index[1:]
    found[:, :-1] |= index[:, :-1] != index[:, 1:]
    found[1:] |= found[:-1]
    return found


def _label_place(mask: Mask) -> tuple[int, int]:
    """Row and column where the label has most room: widest first, because text is."""
    if not mask.any():
        return 0, 0
    room = distance_transform_edt(np.pad(mask, 1), sampling=(2.2, 1.0))[1:-1, 1:-1]
    rows, columns = np.nonzero(room >= room.max() - 0.75)
    middle = np.argmin((rows - np.median(rows)) ** 2 + (columns - np.median(columns)) ** 2)
    return int(rows[middle]), int(columns[middle])


def _list(pen: Pen, font: Font, names: tuple[str, ...], values: Floats, reach: float) -> None:
    """Regions by size of their value, with bars from a common middle."""
    step = min(40, (PANEL - 34) // len(names))
    pen.text((LISTED, HEAD), "Regions, largest value first", font=font(17), fill=INK)
    zero, half = LISTED + 316, 62
    for line, number in enumerate(np.argsort(-np.abs(values), kind="stable")):
        top, value = HEAD + 36 + line * step, float(values[number])
        if top + step > HEAD + PANEL + 4:
            break
        pen.text((LISTED, top), SHORT.get(names[number], names[number]), font=font(16), fill=INK)
        ends = sorted((zero, zero + half * value / reach))
        bar = (ends[0], top + 3, ends[1], top + 18)
        pen.rectangle(bar, fill=RAISES if value > 0 else LOWERS)
        pen.text((LISTED + 246, top), f"{value:+.2f}", font=font(16), fill=INK, anchor="ra")
    pen.line((zero, HEAD + 34, zero, HEAD + 36 + step * len(names) - 12), fill=QUIET)
