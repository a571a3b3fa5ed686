"""Regions of a frontal chest radiograph, with names a radiologist reads; every pixel belongs to
exactly one of them. And the background: what a region shows when it is left out
(docs/explaining-images.md).

**The patient's left is on the right of the image**; names say the patient's side. `grid` takes fixed
shares of the image, `from_masks` goes around the lungs and heart that a U-Net
(`suture.models.unet`) has found; both give the same 13 names, so that values can be compared.
Corners are regions of their own: a model that looks at a scanner's label must be seen to.

Backgrounds: ``site``, the mean image of the site's own training patients, computed from rows, so it
stays at the site; ``blur``, the image itself, blurred until structure is gone (Gaussian, a tenth of
the width), in which a bright marker leaves a faint patch.

`suture segment` trains that U-Net on generated radiographs whose masks are known: no patient is in
them, so the weights cost nothing and may go anywhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from suture.cohorts.radiographs import REGIONS, radiographs, truth
from suture.errors import DataError, StudyError
from suture.explain.run import Answer, Floats, Rows
from suture.models.unet import CLASSES, SIDE, measured_dice, shapes, train_unet
from suture.result import save_model

BACKGROUNDS = {
    "site": "the mean image of this site's own training patients, which stays at the site",
    "blur": "the image itself, blurred (Gaussian, a tenth of the width)",
}
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
FIXED = "a fixed anatomical grid for upright frontal views, not fitted to this image"
FOUND = "lungs and heart found by a U-Net in this image"
OUTSIDE = frozenset({*CORNERS, "chest wall, neck and abdomen"})
"""Where no lung, heart or great vessel is: a model of lung disease has little reason to look
there."""
SMALLEST = 16
"""Pixels per side below which thirds of a lung are two or three pixels high and a name would promise
too much."""
CORNER_HEIGHT, CORNER_WIDTH = 0.17, 0.2
LEAST = {"right lung": 0.03, "left lung": 0.03, "heart": 0.01}
"""Share of the image below which a mask is taken to be a failed segmentation: a lung covers about a
tenth."""
HOSPITALS, HELD_OUT = 10, 0.25
"""To train the U-Net on: as many hospitals as there are scanner looks, and the share to test on."""


@dataclass(frozen=True)
class Regions:
    """A partition of the image: ``index[row, column]`` is the number of the region whose name is
    ``names[number]``."""

    names: tuple[str, ...]
    index: NDArray[np.int16]
    source: str
    """Where they come from, in words, for the page."""

    def __post_init__(self) -> None:
        if self.index.ndim != 2 or self.index.min() < 0 or self.index.max() >= len(self.names):
            raise DataError(
                f"regions: expected numbers 0 to {len(self.names) - 1} on a square image"
            )

    @property
    def size(self) -> int:
        """Pixels per side."""
        return len(self.index)

    @property
    def masks(self) -> Rows:
        """One row per region, one column per pixel, 1 inside: rows add up to 1 at every pixel."""
        numbers = np.arange(len(self.names))[:, None]
        return np.asarray(self.index.reshape(1, -1) == numbers, np.float32)

    def mask(self, *names: str) -> Mask:
        """The pixels of one or several regions together."""
        return np.isin(self.index, [self.names.index(name) for name in names])


def blurred(image: Rows) -> Rows:
    """The image (a row of pixels) without detail.

    >>> flat = np.full(256, 0.25, np.float32)
    >>> bool(np.allclose(blurred(flat), flat))
    True
    """
    size = round(len(image) ** 0.5)
    square = image.reshape(size, size).astype(np.float64)
    soft = gaussian_filter(square, sigma=size / 10, mode="nearest")
    return np.asarray(soft.reshape(-1), np.float32)


def mean_image(images: Rows) -> Rows:
    """The mean of rows of pixels."""
    return np.asarray(images.mean(axis=0, dtype=np.float64), np.float32)


def grid(size: int) -> Regions:
    """The fixed anatomical grid for an upright frontal view that fills a square image."""
    down, across = _places(size)
    right, left = (across >= 0.12) & (across < 0.43), (across >= 0.57) & (across < 0.88)
    height = (down >= 0.14) & (down < 0.80)
    # The cardiac silhouette lies two thirds to the patient's left of the midline, that is on the
    # image's right.
    heart = ((across - 0.56) / 0.17) ** 2 + ((down - 0.63) / 0.15) ** 2 < 1
    # A lung's apex is round, so a corner cuts the box around it: what stands in the corner is then
    # not the lung's.
    clear = ~np.logical_or.reduce(_corners(size)) & height & ~heart
    index = _paint({"right": right & clear, "left": left & clear}, heart, (0.14, 0.80))
    return Regions(NAMES, index, FIXED)


def from_masks(masks: Mapping[str, Mask]) -> Regions:
    """Regions around found lungs and heart: masks named "right lung", "left lung" and "heart" (the
    patient's sides).

    A mask that cannot be one (too small, or a left lung on the image's left) is refused, not
    repaired: the caller falls back to `grid` and says so.
    """
    right, left, heart = (np.asarray(masks[name], bool) for name in LEAST)
    down, across = _places(len(heart))
    for (name, least), mask in zip(LEAST.items(), (right, left, heart), strict=True):
        share = mask.mean()
        if share < least:
            raise DataError(f"the {name} covers {share:.1%} of the image, less than {least:.0%}")
    if across[right].mean() >= across[left].mean():
        raise DataError(
            "the left lung was found on the image's left: the image is mirrored, or not a frontal "
            "view"
        )
    lungs = {"right": right & ~heart, "left": left & ~right & ~heart}
    return Regions(NAMES, _paint(lungs, heart, _reach(down, right | left)), FOUND)


def _paint(lungs: Mapping[str, Mask], heart: Mask, reach: tuple[float, float]) -> NDArray[np.int16]:
    """Numbers of all pixels; later lines paint over earlier ones, anatomy over corners."""
    down, across = _places(len(heart))
    index = np.full(heart.shape, NAMES.index("chest wall, neck and abdomen"), np.int16)
    for name, place in zip(CORNERS, _corners(len(heart)), strict=True):
        index[place] = NAMES.index(name)
    # In every row of pixels the lungs' edges towards the midline, but never further than 0.12 of the
    # width from it: above the apex and beside a narrow lung the chest wall begins there.
    right, left = lungs["right"], lungs["left"]
    begins = np.where(right, across, 0.42).max(axis=1, keepdims=True).clip(0.38, 0.5)
    ends = np.where(left, across, 0.58).min(axis=1, keepdims=True).clip(0.5, 0.62)
    between = (across >= begins) & (across <= ends) & (down >= reach[0]) & (down < reach[1])
    index[between & ~right & ~left] = NAMES.index("mediastinum")
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


def _reach(down: Floats, mask: Mask) -> tuple[float, float]:
    rows = down[:, :1][mask.any(axis=1)]
    return float(rows.min()), float(rows.max()) + 1 / len(mask)


def _places(size: int) -> tuple[Floats, Floats]:
    """Middle of every pixel, as a share of the height from the top and of the width from the
    image's left."""
    if size < SMALLEST:
        raise DataError(
            f"regions need an image of at least {SMALLEST} x {SMALLEST} pixels, found {size} x {size}"
        )
    middle, square = (np.arange(size) + 0.5) / size, (size, size)
    return np.broadcast_to(middle[:, None], square), np.broadcast_to(middle[None, :], square)


def train_segmentation(
    out: Path,
    *,
    images: int = 600,
    epochs: int = 4,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> Answer:
    """Train the U-Net, measure it on images of other patients and write its weights; returns what
    was measured."""
    if images < 10 * HOSPITALS or epochs < 1:
        raise StudyError(
            f"--images: expected at least {10 * HOSPITALS}, found {images}; --epochs: at least 1"
        )
    if out.suffix != ".npz":
        raise StudyError(f"--out: weights are written as an .npz file, found {out.name!r}")
    start = time.monotonic()
    say(f"generating {images} radiographs and {round(HELD_OUT * images)} to test on")
    (x, classes), (test_x, test_classes) = _known(seed, images // HOSPITALS)
    weights = train_unet(x, classes, epochs=epochs, seed=seed, say=say)
    dice = measured_dice(weights, test_x, test_classes)
    out.parent.mkdir(parents=True, exist_ok=True)
    save_model(out, weights)
    return {
        "weights": str(out),
        "dice": dice,
        "images": len(x),
        "tested": len(test_x),
        "parameters": sum(int(np.prod(shape)) for shape in shapes().values()),
        "seconds": time.monotonic() - start,
    }


def _known(seed: int, each: int) -> list[tuple[Rows, NDArray[np.int8]]]:
    """Images from 0 to 1 and the U-Net's class of every pixel, to train on and to test on, over all
    scanner looks. Zones of one side together are that side's lung."""
    lungs = {name: f"{name.split()[0]} lung" for name in REGIONS if name.endswith("zone")}
    named = [CLASSES.index(c) if (c := lungs.get(name, name)) in CLASSES else 0 for name in REGIONS]
    cohort = radiographs(seed, hospitals=HOSPITALS, images=each, size=SIDE, test_fraction=HELD_OUT)
    sets = []
    for test in (False, True):
        pictures = [(site.test if test else site.table) or {} for site in cohort.sites]
        x = np.asarray(np.concatenate([table["image"] for table in pictures]) / 255, np.float32)
        known = [
            truth(seed, i, test=test, images=each, size=SIDE, test_fraction=HELD_OUT).masks.regions
            for i in range(HOSPITALS)
        ]
        sets.append((x, np.array(named, np.int8)[np.concatenate(known)]))
    return sets
