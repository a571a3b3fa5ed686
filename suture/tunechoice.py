"""Which trial of a search is taken: the best, or the one that sends least of those that are as good.

The second is the one-standard-error rule (Breiman, Friedman, Olshen & Stone 1984, section 3.4.3), with bytes for the size of a
tree, and with the error of the *difference* to the best trial: folds are the same in every trial, so that what makes a fold
hard makes it hard for all, and only differences tell trials apart.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Tried:
    """A finished trial: its mean, its folds' values, and the bytes that a hospital sent in one training on average."""

    number: int
    value: float
    parts: tuple[float, ...]
    sent: float
    ece: float = 0.0
    """Expected calibration error, mean over folds."""


def choose(
    trials: Sequence[Tried],
    *,
    lower: bool = False,
    frugal: bool = False,
    most: float | None = None,
    most_ece: float | None = None,
) -> Tried:
    """The trial to take among those that send at most ``most`` bytes and are calibrated; the earlier one of equals.

    >>> a, b, c = Tried(0, 0.80, (0.82, 0.78), 90), Tried(1, 0.79, (0.795, 0.785), 50), Tried(2, 0.77, (0.79, 0.75), 10)
    >>> choose([a, b, c]).number, choose([a, b, c], frugal=True).number, choose([a, b, c], most=20).number
    (0, 1, 2)
    """
    allowed = [
        trial
        for trial in trials
        if (most is None or trial.sent <= most) and (most_ece is None or trial.ece <= most_ece)
    ]
    if not allowed:
        raise ValueError("expected a trial within the limit, found none")
    sign = -1 if lower else 1
    best = max(allowed, key=lambda trial: sign * trial.value)
    if not frugal:
        return best
    as_good = [trial for trial in allowed if sign * (best.value - trial.value) <= gap_error(best, trial)]
    return min(as_good, key=lambda trial: (trial.sent, -sign * trial.value))


def gap_error(best: Tried, other: Tried) -> float:
    """The standard error of the mean difference, fold by fold; 0 where there is one fold only.

    >>> round(gap_error(Tried(0, 0.80, (0.82, 0.78), 90), Tried(1, 0.79, (0.795, 0.785), 50)), 4)
    0.015
    """
    gaps = [a - b for a, b in zip(best.parts, other.parts, strict=True)]
    return statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else 0.0
