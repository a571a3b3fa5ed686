"""`suture segment`: train the U-Net that finds lungs and heart, on generated radiographs whose
masks are known.

No patient is in them, so the weights cost nothing and may go anywhere; they are not part of the
package. On real images the U-Net is a guess: generated chests are simpler than real ones, and its
Dice below is on generated images only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture.cohorts.radiographs import REGIONS, radiographs, truth
from suture.errors import StudyError
from suture.models.unet import CLASSES, SIDE, measured_dice, shapes, train_unet
from suture.result import save_model

HOSPITALS = 10
"""As many as there are scanner looks."""
HELD_OUT = 0.25


def train(
    out: Path,
    *,
    images: int = 600,
    epochs: int = 4,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Generate, train, measure on images of other patients, write the weights; returns what was
    measured."""
    if images < 10 * HOSPITALS or epochs < 1:
        raise StudyError(
            f"--images: expected at least {10 * HOSPITALS}, found {images}; --epochs: at least 1"
        )
    if out.suffix != ".npz":
        raise StudyError(f"--out: weights are written as an .npz file, found {out.name!r}")
    start = time.monotonic()
    say(f"generating {images} radiographs and {round(HELD_OUT * images)} to test on")
    (x, classes), (test_x, test_classes) = generated(seed, images // HOSPITALS)
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


def generated(seed: int, each: int) -> list[tuple[NDArray[np.float32], NDArray[np.int8]]]:
    """Images from 0 to 1 and the class of every pixel, to train on and to test on, over all scanner
    looks."""
    cohort = radiographs(seed, hospitals=HOSPITALS, images=each, size=SIDE, test_fraction=HELD_OUT)
    sets = []
    for test in (False, True):
        pictures = [(site.test if test else site.table) or {} for site in cohort.sites]
        x = np.asarray(np.concatenate([table["image"] for table in pictures]) / 255, np.float32)
        known = [
            truth(seed, i, test=test, images=each, size=SIDE, test_fraction=HELD_OUT).masks.regions
            for i in range(HOSPITALS)
        ]
        sets.append((x, classes_of(np.concatenate(known))))
    return sets


def classes_of(regions: NDArray[np.int8]) -> NDArray[np.int8]:
    """The U-Net's classes from the cohort's regions: zones of one side together are that side's
    lung."""
    found = np.zeros(len(REGIONS), np.int8)
    for code, name in enumerate(REGIONS):
        if name.endswith("zone"):
            found[code] = CLASSES.index(f"{name.split()[0]} lung")
        elif name == "heart":
            found[code] = CLASSES.index("heart")
    return found[regions]
