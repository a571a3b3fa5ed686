"""Do values point at the lesion? Dice between the top regions and what was annotated (paper 004, "SHAP Dice").

The paper calls it "correlation between SHAP values and radiologist-labeled ROIs (Dice-score)" and says no more: neither
how many regions count as top nor whether pixels or regions are compared. Here:

- **regions**: the lesion lies in k regions (those that hold at least a tenth of it); the k regions with the largest values
  above zero are compared with them, Dice of two sets of names. 1 means every region named is one with lesion.
- **pixels**: Dice of the pixels of those top regions and the lesion's pixels. A zone is larger than a lesion, so 1 cannot be
  reached; ``ceiling`` is the most that any choice of regions reaches, and the figure means something only beside it.

Both are measured on images with a lesion only. Neither says that the model is right, nor that it would miss the lesion
without those regions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suture.errors import DataError
from suture.explanation.regions import Regions, grid
from suture.explanation.shapley import Predict, explain_images

HOLDS = 0.1
"""Share of a lesion's pixels that makes a region one with lesion: an edge that strays over a border does not."""


@dataclass(frozen=True)
class Pointing:
    """How well one image's values point at its lesion."""

    regions: float
    pixels: float
    ceiling: float
    wanted: tuple[str, ...]
    named: tuple[str, ...]


def dice(a: NDArray[np.bool_], b: NDArray[np.bool_]) -> float:
    """Dice of two masks: 2 |a and b| / (|a| + |b|); 1 where both are empty.

    >>> dice(np.array([True, True, False]), np.array([True, False, False])).__round__(3)
    0.667
    """
    total = int(a.sum()) + int(b.sum())
    return 2 * int((a & b).sum()) / total if total else 1.0


def pointing(values: NDArray[np.float64], lesion: NDArray[np.bool_], regions: Regions) -> Pointing:
    """Top regions of one image against its lesion mask (rows x columns).

    >>> from suture.explanation.regions import grid
    >>> regions = grid(32)
    >>> lesion = regions.mask("left lower zone")
    >>> found = pointing(np.eye(13)[regions.names.index("left lower zone")], lesion, regions)
    >>> found.regions, found.pixels, found.ceiling
    (1.0, 1.0, 1.0)
    """
    if lesion.shape != regions.index.shape or not lesion.any():
        raise DataError(f"expected a lesion mask of {regions.size} x {regions.size} pixels with a lesion in it")
    share = np.bincount(regions.index[lesion], minlength=len(regions.names)) / lesion.sum()
    wanted = np.flatnonzero(share >= HOLDS)
    order = np.argsort(-values, kind="stable")[: len(wanted)]
    named = order[values[order] > 0]
    shared = len(set(wanted.tolist()) & set(named.tolist()))
    return Pointing(
        regions=2 * shared / (len(wanted) + len(named)),
        pixels=dice(np.isin(regions.index, named), lesion),
        ceiling=_ceiling(lesion, regions),
        wanted=tuple(regions.names[i] for i in wanted),
        named=tuple(regions.names[i] for i in named),
    )


def _ceiling(lesion: NDArray[np.bool_], regions: Regions) -> float:
    """The largest Dice of any union of regions with the lesion: the densest regions first, up to the best number of them."""
    count = len(regions.names)
    inside = np.bincount(regions.index[lesion], minlength=count)
    area = np.maximum(np.bincount(regions.index.ravel(), minlength=count), 1)
    order = np.argsort(-inside / area, kind="stable")
    return float((2 * np.cumsum(inside[order]) / (lesion.sum() + np.cumsum(area[order]))).max())


def shap_dice(
    predict: Predict,
    images: NDArray[np.float32],
    background: NDArray[np.float32],
    lesions: NDArray[np.bool_],
    regions: Regions | None = None,
    *,
    samples: int = 512,
) -> dict[str, float | int]:
    """Paper 004's "SHAP Dice" of a model: Kernel SHAP of every image with a lesion, then `mean_pointing`.

    ``images`` are rows of pixels, ``lesions`` their masks (images x rows x columns), ``regions`` by default the grid.

    >>> from suture.explanation.regions import grid
    >>> zone = grid(16).mask("left lower zone")
    >>> image = np.where(zone, 1, 0).astype(np.float32).reshape(1, -1)
    >>> def reads_the_zone(rows):
    ...     return 1 / (1 + np.exp(-3 * rows[:, zone.ravel()].mean(axis=1)))
    >>> shap_dice(reads_the_zone, image, np.zeros(256, np.float32), zone[None])["regions"]
    1.0
    """
    chosen = regions or grid(lesions.shape[1])
    ill = np.flatnonzero(lesions.any(axis=(1, 2)))
    values = explain_images(predict, images[ill], background, chosen, samples=samples)
    return mean_pointing(values, lesions[ill], chosen)


def mean_pointing(
    values: NDArray[np.float64], lesions: NDArray[np.bool_], regions: Regions | list[Regions]
) -> dict[str, float | int]:
    """Mean over the images that have a lesion; ``lesions`` is images x rows x columns.

    >>> from suture.explanation.regions import grid
    >>> masks = np.stack([grid(32).mask("heart"), np.zeros((32, 32), bool)])
    >>> found = mean_pointing(np.tile(np.eye(13)[6], (2, 1)), masks, grid(32))
    >>> found["images"], found["regions"]
    (1, 1.0)
    """
    with_lesion = np.flatnonzero(lesions.any(axis=(1, 2)))
    if not len(with_lesion):
        raise DataError("no image has an annotated lesion, so no Dice can be measured")
    found = [
        pointing(values[i], lesions[i], regions if isinstance(regions, Regions) else regions[i]) for i in with_lesion
    ]
    return {
        "images": len(found),
        "regions": float(np.mean([item.regions for item in found])),
        "pixels": float(np.mean([item.pixels for item in found])),
        "ceiling": float(np.mean([item.ceiling for item in found])),
    }
