"""One radiograph explained: prediction, interval, a value for every region, and what makes them less sure.

Plain values for the page, the picture and the secondary capture; what is made here is about one patient and is for that
patient's clinicians, at that site.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suture.explanation.patient import sigmoid
from suture.explanation.regions import CORNERS, OUTSIDE, Regions
from suture.explanation.shapley import LEAST_RISK, RegionValues

NOTICED, WORTH = 3, 0.05
"""A corner among so many largest values is worth a warning, if it moves the log odds by so much."""
ALMOST = 0.05
"""Log odds by which Kernel SHAP may differ from the exact values before it is worth a note."""


@dataclass(frozen=True)
class Interval:
    """A risk with its 95 % interval, and in words where the interval comes from and what it leaves out."""

    risk: float
    low: float
    high: float
    words: str


@dataclass(frozen=True)
class ImageExplanation:
    """Everything that the page shows about one radiograph."""

    found: RegionValues
    regions: Regions
    background: str
    """In words; values against another background are other values."""
    interval: Interval | None
    without: str
    """Why there is no interval, where there is none."""
    notes: tuple[str, ...]

    @property
    def risk(self) -> float:
        """What to show: the calibrated risk where the site's patients gave one, else the model's."""
        return self.interval.risk if self.interval else self.found.risk

    @property
    def base(self) -> float:
        """The model's risk for the background alone."""
        return sigmoid(self.found.base)

    @property
    def ordered(self) -> list[tuple[str, float]]:
        """Regions and values, largest first by size."""
        order = np.argsort(-np.abs(self.found.values), kind="stable")
        return [(self.found.names[i], float(self.found.values[i])) for i in order]


def outside_share(values: NDArray[np.float64], names: tuple[str, ...]) -> float:
    """Share of the total weight (absolute values) in regions without lung, heart or great vessels.

    >>> outside_share(np.array([3.0, -1.0]), ("heart", "left top corner"))
    0.25
    """
    total = float(np.abs(values).sum())
    outside = sum(abs(float(v)) for v, name in zip(values, names, strict=True) if name in OUTSIDE)
    return outside / total if total else 0.0


def notes_of(found: RegionValues, regions: Regions, pixels: NDArray[np.float32]) -> tuple[str, ...]:
    """What a reader should know before trusting the values, in sentences."""
    notes = []
    order = np.argsort(-np.abs(found.values), kind="stable")[:NOTICED]
    corners = [found.names[i] for i in order if found.names[i] in CORNERS and abs(found.values[i]) > WORTH]
    if corners:
        notes.append(
            f"The {' and the '.join(corners)} of the image {'is' if len(corners) == 1 else 'are'} among the {NOTICED} regions "
            "with the largest values. No organ is there: the model may be reading a marker, a label or the scanner."
        )
    share = outside_share(found.values, found.names)
    if share > 0.5:
        notes.append(f"{share:.0%} of the weight lies outside lungs, heart and mediastinum.")
    if not LEAST_RISK * 2 < found.risk < 1 - LEAST_RISK * 2:
        notes.append("The model is saturated here (risk below 0.0002 % or above 99.9998 %): values are cut off.")
    if found.difference is not None and found.difference > ALMOST:
        notes.append(
            f"Kernel SHAP with {found.samples:,} sets differs from the exact values by up to {found.difference:.2f}: regions "
            "act together here, so a single region's value says less."
        )
    if math.isclose(float(pixels.min()), float(pixels.max()), abs_tol=1e-6):
        notes.append("The image is one flat grey: nothing in it can be explained.")
    return tuple(notes)
