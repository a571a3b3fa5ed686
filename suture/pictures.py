"""Small images for the attacks: generated ones that look like chest radiographs, and PneumoniaMNIST where it is present.

PneumoniaMNIST (Yang et al., "MedMNIST v2", Scientific Data 2023, CC BY 4.0) is not part of the package. It is looked for in
the folder named by ``SUTURE_DATA``, then in ``../shared/data`` beside the checkout.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SIDE = 28
Images = NDArray[np.float32]
PNEUMONIA = Path("pneumoniamnist") / "pneumoniamnist_28.npz"


def generated(count: int, rng: np.random.Generator) -> tuple[Images, NDArray[np.int32]]:
    """Images (rows of 784 numbers from 0 to 1, in steps of 1/255) and outcomes: two lungs, ribs, perhaps a shadow.

    >>> x, y = generated(3, np.random.default_rng(0))
    >>> x.shape, bool(x.min() >= 0 and x.max() <= 1), sorted(set(y.tolist())) in ([0], [1], [0, 1])
    ((3, 784), True, True)
    """
    v, u = np.meshgrid(np.linspace(-1, 1, SIDE), np.linspace(-1, 1, SIDE), indexing="ij")
    images = np.empty((count, SIDE * SIDE), np.float32)
    outcome = rng.integers(0, 2, count).astype(np.int32)
    for i in range(count):
        picture = 0.75 - 0.12 * (u**2 + v**2) + 0.05 * np.sin((9 + 2 * rng.random()) * v + 6 * rng.random())
        for side in (-1, 1):
            x0, y0 = side * (0.42 + 0.08 * rng.random()), 0.1 * rng.normal()
            width, height = 0.28 + 0.06 * rng.random(), 0.62 + 0.12 * rng.random()
            inside = ((u - x0) / width) ** 2 + ((v - y0) / height) ** 2
            picture -= 0.45 / (1 + np.exp(9 * (inside - 1)))
        if outcome[i]:
            x0, y0 = rng.choice([-1, 1]) * (0.3 + 0.25 * rng.random()), 0.6 * rng.random() - 0.2
            picture += 0.4 * np.exp(-((u - x0) ** 2 + (v - y0) ** 2) / (0.02 + 0.05 * rng.random()))
        picture += 0.02 * rng.normal(size=picture.shape)
        images[i] = np.round(np.clip(picture, 0, 1) * 255).ravel() / 255
    return images, outcome


def pneumonia(count: int, rng: np.random.Generator) -> tuple[Images, NDArray[np.int32]] | None:
    """As many radiographs of PneumoniaMNIST's training part, or None where the data set is not present."""
    path = _find()
    if path is None:
        return None
    with np.load(path, allow_pickle=False) as kept:
        chosen = rng.choice(len(kept["train_images"]), count, replace=False)
        images = kept["train_images"][chosen].reshape(count, SIDE * SIDE)
        outcome = kept["train_labels"][chosen].reshape(count)
    return (images / np.float32(255)).astype(np.float32), outcome.astype(np.int32)


def _find() -> Path | None:
    named = os.environ.get("SUTURE_DATA")
    places = [Path(named)] if named else [Path(__file__).resolve().parents[2] / "shared" / "data"]
    return next((place / PNEUMONIA for place in places if (place / PNEUMONIA).is_file()), None)
