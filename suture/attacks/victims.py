"""Whose records are attacked: generated patients, generated images that look like chest
radiographs, and PneumoniaMNIST where it is present. Never a site's rows.

PneumoniaMNIST (Yang et al., "MedMNIST v2", Scientific Data 2023, CC BY 4.0) is not part of the
package (see `suture.cohorts.public.data_folder`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suture import cohorts
from suture.cohorts.public import data_folder
from suture.errors import DataError
from suture.models.dense import Dense
from suture.site.cohort import load

SIDE = 28
Images = NDArray[np.float32]
Outcomes = NDArray[np.int32]


@dataclass(frozen=True)
class Victims:
    """A population, and how finely its features are recorded."""

    name: str
    x: Images
    y: Outcomes
    low: float
    high: float
    unit: float
    """The smallest difference between two recorded values, for "exact"."""

    @property
    def network(self) -> Dense:
        """The model they are attacked through: the demo's network on these features."""
        return Dense((self.x.shape[1], 64, 32, 1))


def populations(count: int, seed: int) -> list[Victims]:
    """As many patients of each kind: cardio records, generated radiographs, PneumoniaMNIST."""
    cohort = cohorts.load("cardio", seed, patients=count, split="iid", sites=1)
    table = cohort.sites[0].table
    how = (cohort.schema, cohort.outcome)
    rows = load(table, *how, site="generated", holdout=0.0, split_key="attack").train
    low, high = float(np.floor(rows.x.min())), float(np.ceil(rows.x.max()))
    found = [Victims("cardio record", rows.x, rows.y, low, high, 1e-4)]
    drawn = generated(count, np.random.default_rng([seed, 3]))
    found.append(Victims("generated radiograph", *drawn, 0.0, 1.0, 1 / 255))
    real = pneumonia(count, np.random.default_rng([seed, 4]))
    if real is not None:
        found.append(Victims("PneumoniaMNIST radiograph", *real, 0.0, 1.0, 1 / 255))
    return found


def generated(count: int, rng: np.random.Generator) -> tuple[Images, Outcomes]:
    """Images (784 numbers from 0 to 1 each) and outcomes: two lungs, ribs, perhaps a shadow.

    >>> x, y = generated(3, np.random.default_rng(0))
    >>> x.shape, bool(x.min() >= 0 and x.max() <= 1), sorted(set(y.tolist())) in ([0], [1], [0, 1])
    ((3, 784), True, True)
    """
    v, u = np.meshgrid(np.linspace(-1, 1, SIDE), np.linspace(-1, 1, SIDE), indexing="ij")
    images = np.empty((count, SIDE * SIDE), np.float32)
    outcome = rng.integers(0, 2, count).astype(np.int32)
    for i in range(count):
        ribs = np.sin((9 + 2 * rng.random()) * v + 6 * rng.random())
        picture = 0.75 - 0.12 * (u**2 + v**2) + 0.05 * ribs
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


def pneumonia(count: int, rng: np.random.Generator) -> tuple[Images, Outcomes] | None:
    """Radiographs of PneumoniaMNIST's training part, or None where it is not present."""
    try:
        path = data_folder("pneumoniamnist") / "pneumoniamnist_28.npz"
    except DataError:
        return None
    with np.load(path, allow_pickle=False) as kept:
        chosen = rng.choice(len(kept["train_images"]), count, replace=False)
        images = kept["train_images"][chosen].reshape(count, SIDE * SIDE)
        outcome = kept["train_labels"][chosen].reshape(count)
    return (images / np.float32(255)).astype(np.float32), outcome.astype(np.int32)
