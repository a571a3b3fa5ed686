"""Text burnt into the pixels: what a header cannot be cleaned of. A warning, not a proof of absence.

Letters are small, thin and far brighter (or darker) than what is around them, and stand in a line. So: the thin bright and
the thin dark parts of the picture (top-hat transforms), cut at a fixed height, in connected pieces of a letter's size;
four or more pieces of like height side by side are taken for text. A single letter, such as a side marker, is not.

`benchmarks/burnt_in_text.py` measures how often that finds text and how often it cries wolf; docs/imaging.md has the rates.
Handwriting, vertical text, text as faint as ribs and text larger than a tenth of the picture are not found.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from suture.site.images import resample, square

SIDE = 512
"""Pictures are looked at in this size; smaller ones in their own."""
HEIGHT = 0.15
"""How far a stroke stands out, as a share of the full range."""
GLYPHS = 4
"""Pieces in a line that make a text."""


def has_text(grey: NDArray[np.float32]) -> bool:
    """Whether the picture (pixels from 0 to 1) seems to have a line of text in it.

    >>> has_text(np.zeros((64, 64), np.float32))
    False
    """
    picture = square(np.asarray(grey, np.float32))
    if len(picture) > SIDE:
        picture = resample(picture, SIDE)
    side = len(picture)
    width = max(3, round(0.025 * side)) | 1  # wider than a stroke, narrower than a rib
    bright = picture - ndimage.grey_opening(picture, (width, width))
    dark = ndimage.grey_closing(picture, (width, width)) - picture
    return any(_lines(part > HEIGHT, side) for part in (bright, dark))


def _lines(mask: NDArray[np.bool_], side: int) -> bool:
    labels, count = ndimage.label(mask, np.ones((3, 3)))
    if count < GLYPHS:
        return False
    boxes = ndimage.find_objects(labels)
    sizes = ndimage.sum_labels(mask, labels, np.arange(1, count + 1))
    least, most = max(4, 0.012 * side), 0.10 * side
    pieces = []  # middle row, left, right, height
    for box, size in zip(boxes, sizes, strict=True):
        tall, wide = box[0].stop - box[0].start, box[1].stop - box[1].start
        if least <= tall <= most and wide <= 1.5 * most and size >= tall:
            pieces.append(((box[0].start + box[0].stop) / 2, box[1].start, box[1].stop, tall))
    pieces.sort(key=lambda piece: piece[1])
    best = [1] * len(pieces)
    for i, (row, left, _, tall) in enumerate(pieces):
        for j in range(i):
            other, _, right, height = pieces[j]
            alike = max(tall, height) <= 1.6 * min(tall, height) and abs(row - other) <= 0.4 * max(tall, height)
            if alike and -0.3 * tall <= left - right <= 1.5 * max(tall, height):
                best[i] = max(best[i], best[j] + 1)
    return max(best, default=0) >= GLYPHS
