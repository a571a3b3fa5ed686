"""What a model card holds: one line a concept, and how stable its choice is over trainings."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suture.models.concepts import Concept


@dataclass(frozen=True)
class Line:
    """One concept of the model, or one that other trainings chose."""

    name: str
    unit: str
    weight: float
    caution: str
    rounds: tuple[int, ...]
    """Rounds of the model's own training in which it reached the quorum, or was chosen."""
    chosen: int
    """Trainings that gave it a weight."""
    agreement: float | None
    """Share of those in which its sign is the more frequent one."""
    low: float
    high: float
    """Smallest and largest weight over the trainings that chose it."""


@dataclass(frozen=True)
class Card:
    """Everything the page shows."""

    label: str
    mode: str
    bias: float
    lines: tuple[Line, ...]
    others: tuple[Line, ...]
    trainings: int
    votes: int
    """Rounds in which hospitals voted; 0 in a mode without votes."""
    rounds: int


def line_of(concept: Concept, weight: float, every: NDArray[np.float64], rounds: tuple[int, ...]) -> Line:
    """The line of one concept, from its weight in the model and in every training.

    >>> line = line_of(Concept("Age", "age", "value", 0), 0.5, np.array([0.5, 0.2, -0.1, 0.0]), (2, 3))
    >>> line.chosen, round(line.agreement, 2), line.low, line.high
    (3, 0.67, -0.1, 0.5)
    """
    chosen = every[every != 0]
    agreement = None
    if len(chosen):
        agreement = max(int(np.sum(chosen > 0)), int(np.sum(chosen < 0))) / len(chosen)
    return Line(
        name=concept.name,
        unit="" if concept.kind == "missing" else concept.unit,
        weight=weight,
        caution=concept.caution,
        rounds=rounds,
        chosen=len(chosen),
        agreement=agreement,
        low=float(chosen.min()) if len(chosen) else math.nan,
        high=float(chosen.max()) if len(chosen) else math.nan,
    )
