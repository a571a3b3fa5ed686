"""Regions of a frontal chest radiograph, with names a radiologist reads; every pixel belongs to exactly one of them.

A radiograph is looked at as if the patient faced the reader: **the patient's left is on the right of the image**. Names
say the patient's side ("left lower zone" is on the image's right, below), as in a radiologist's report. Zones are thirds
of a lung's height, the custom for frontal views, because lobes overlap there and cannot be told apart.

Two ways to find them: `grid`, fixed shares of the image's height and width, which needs an upright frontal view that
fills the picture and is wrong by as much as a patient differs from that; and `from_masks`, around the lungs and heart
that a U-Net (`suture.models.unet`) has found in this image. Both give the same 13 names, so that values of the two can be
compared. Corners are regions of their own: side markers, scanner labels and other things that are not the patient
stand there, and a model that looks at them must be seen to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suture.errors import DataError

Mask = NDArray[np.bool_]
SIDES = ("right", "left")
ZONES = ("upper zone", "middle zone", "lower zone")
CORNERS = ("right top corner", "left top corner", "right bottom corner", "left bottom corner")
NAMES = (
    *(f"{side} {zone}" for side in SIDES for zone in ZONES),
    "heart",
    "mediastinum",
    *CORNERS,
    "chest wall, neck and abdomen",
)
OUTSIDE = frozenset({*CORNERS, "chest wall, neck and abdomen"})
"""Where no lung, heart or great vessel is: a model of lung disease has little reason to look there."""
SMALLEST = 16
"""Pixels a side below which thirds of a lung are two or three pixels high and a name would promise too much."""
CORNER_HEIGHT, CORNER_WIDTH = 0.17, 0.2
LEAST_LUNG, LEAST_HEART = 0.03, 0.01
"""Share of the image below which a mask is taken to be a failed segmentation: a lung covers about a tenth."""


@dataclass(frozen=True)
class Regions:
    """A partition of the image: ``index[row, column]`` is the number of the region whose name is ``names[number]``."""

    names: tuple[str, ...]
    index: NDArray[np.int16]
    source: str
    """Where they come from, in words, for the page."""

    def __post_init__(self) -> None:
        if self.index.ndim != 2 or self.index.min() < 0 or self.index.max() >= len(self.names):
            raise DataError(f"regions: expected numbers 0 to {len(self.names) - 1} on a square image")

    @property
    def size(self) -> int:
        """Pixels a side."""
        return len(self.index)

    @property
    def masks(self) -> NDArray[np.float32]:
        """One row a region, one column a pixel, 1 inside: rows add up to 1 at every pixel."""
        return np.asarray(self.index.reshape(1, -1) == np.arange(len(self.names))[:, None], np.float32)

    def mask(self, *names: str) -> Mask:
        """The pixels of one or several regions together."""
        return np.isin(self.index, [self.names.index(name) for name in names])

    def centre(self, name: str) -> tuple[float, float]:
        """Row and column at the middle of a region, for its label; a ring's middle may lie outside it."""
        rows, columns = np.nonzero(self.mask(name))
        return (float(rows.mean()), float(columns.mean())) if len(rows) else (0.0, 0.0)


def grid(size: int) -> Regions:
    """The fixed anatomical grid for an upright frontal view that fills a square image.

    >>> regions = grid(64)
    >>> regions.names[int(regions.index[20, 44])], regions.names[int(regions.index[20, 20])]  # image's right, image's left
    ('left upper zone', 'right upper zone')
    >>> regions.names[int(regions.index[40, 38])], regions.names[int(regions.index[0, 63])]
    ('heart', 'left top corner')
    """
    down, across = _places(size)
    lungs = {"right": (across >= 0.12) & (across < 0.43), "left": (across >= 0.57) & (across < 0.88)}
    height = (down >= 0.14) & (down < 0.80)
    # The cardiac silhouette lies two thirds to the patient's left of the midline, that is on the image's right.
    heart = ((across - 0.56) / 0.17) ** 2 + ((down - 0.63) / 0.15) ** 2 < 1
    # A lung's apex is round, so a corner cuts the box around it: what stands in the corner is then not the lung's.
    clear = ~np.logical_or.reduce(_corners(size)) & height & ~heart
    index = _paint({side: lungs[side] & clear for side in SIDES}, heart, (0.14, 0.80))
    return Regions(NAMES, index, "a fixed anatomical grid for upright frontal views, not fitted to this image")


def from_masks(masks: Mapping[str, Mask], source: str = "lungs and heart found by a U-Net in this image") -> Regions:
    """Regions around found lungs and heart: masks named "right lung", "left lung" and "heart" (the patient's sides).

    A mask that cannot be one (too small, or a left lung on the image's left) is refused, not repaired: the caller falls
    back to `grid` and says so.
    """
    right, left, heart = (np.asarray(masks[name], bool) for name in ("right lung", "left lung", "heart"))
    size = len(heart)
    down, across = _places(size)
    for name, mask, least in (
        ("right lung", right, LEAST_LUNG),
        ("left lung", left, LEAST_LUNG),
        ("heart", heart, LEAST_HEART),
    ):
        if mask.mean() < least:
            raise DataError(f"the {name} was found on {mask.mean():.1%} of the image only, less than {least:.0%}")
    if across[right].mean() >= across[left].mean():
        raise DataError("the left lung was found on the image's left: the image is mirrored, or not a frontal view")
    both = right | left
    index = _paint({"right": right & ~heart, "left": left & ~right & ~heart}, heart, _reach(down, both))
    return Regions(NAMES, index, source)


def cells(regions: Regions, count: int) -> Regions:
    """A finer partition, ``count`` x ``count`` square cells named after the region that holds most of each.

    For measuring how well values point at a lesion: a zone is far larger than most lesions.

    >>> fine = cells(grid(64), 8)
    >>> len(fine.names), fine.names[10]
    (64, 'right upper zone, row 2, column 3')
    """
    size = regions.size
    step = np.minimum(np.arange(size) * count // size, count - 1)
    index = (step[:, None] * count + step[None, :]).astype(np.int16)
    names = []
    for cell in range(count * count):
        most = int(np.bincount(regions.index[index == cell]).argmax())
        names.append(f"{regions.names[most]}, row {cell // count + 1}, column {cell % count + 1}")
    return Regions(tuple(names), index, f"{count} x {count} cells over {regions.source}")


def _paint(lungs: Mapping[str, Mask], heart: Mask, reach: tuple[float, float]) -> NDArray[np.int16]:
    """Numbers of all pixels; later lines paint over earlier ones, anatomy over corners."""
    down, across = _places(len(heart))
    index = np.full(heart.shape, NAMES.index("chest wall, neck and abdomen"), np.int16)
    for name, place in zip(CORNERS, _corners(len(heart)), strict=True):
        index[place] = NAMES.index(name)
    midline = (_inner(lungs["right"], across, last=True), _inner(lungs["left"], across, last=False))
    between = (across >= midline[0]) & (across <= midline[1]) & (down >= reach[0]) & (down < reach[1])
    index[between & ~lungs["right"] & ~lungs["left"]] = NAMES.index("mediastinum")
    for side in SIDES:
        low, high = _reach(down, lungs[side])
        third = np.clip((down - low) / max(high - low, 1e-9) * 3, 0, 2).astype(int)
        for number, zone in enumerate(ZONES):
            index[lungs[side] & (third == number)] = NAMES.index(f"{side} {zone}")
    index[heart] = NAMES.index("heart")
    return index


def _corners(size: int) -> tuple[Mask, ...]:
    """In the order of `CORNERS`: the patient's right is on the image's left."""
    down, across = _places(size)
    top, bottom = down < CORNER_HEIGHT, down >= 1 - CORNER_HEIGHT
    image_left, image_right = across < CORNER_WIDTH, across >= 1 - CORNER_WIDTH
    return top & image_left, top & image_right, bottom & image_left, bottom & image_right


def _inner(lung: Mask, across: NDArray[np.float64], *, last: bool) -> NDArray[np.float64]:
    """In every row of pixels the lung's edge towards the midline, but never further than 0.12 of the width from it: above
    the apex and beside a narrow lung the chest wall begins there."""
    if last:
        return np.asarray(np.where(lung, across, 0.42).max(axis=1, keepdims=True).clip(0.38, 0.5))
    return np.asarray(np.where(lung, across, 0.58).min(axis=1, keepdims=True).clip(0.5, 0.62))


def _reach(down: NDArray[np.float64], mask: Mask) -> tuple[float, float]:
    rows = down[:, :1][mask.any(axis=1)]
    return float(rows.min()), float(rows.max()) + 1 / len(mask)


def _places(size: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Middle of every pixel, as a share of the height from the top and of the width from the image's left."""
    if size < SMALLEST:
        raise DataError(f"regions need an image of at least {SMALLEST} x {SMALLEST} pixels, found {size} x {size}")
    middle = (np.arange(size) + 0.5) / size
    return np.broadcast_to(middle[:, None], (size, size)), np.broadcast_to(middle[None, :], (size, size))
