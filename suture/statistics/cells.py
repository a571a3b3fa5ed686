"""Figures from noisy counts by cell, with intervals that cover sampling and noise.

Every patient is in one cell. A release is z = A c + noise of deviation s in each entry, where c are
the counts and no column of A is longer than 1, so one patient moves z by at most 1. Least squares
turn it back: c' = A^+ z, with noise covariance s^2 C, C = (A^T A)^-1.

**Delta method.** A smooth figure f(c') has the variance g^T (diag(c) + s^2 C) g with g the gradient
of f: counts of independent patients vary like Poisson counts, and for figures that do not change
with the number of patients (shares, survival, AUC) that is the multinomial's variance too, because
then g^T c = 0 (Euler). Counts are not cut at 0 before f is taken: that would be a bias.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Cells:
    """Counts by cell with the covariance of their noise."""

    counts: Floats
    noise: Floats

    def of(self, figure: Callable[[Floats], Floats]) -> tuple[Floats, Floats]:
        """The values of a figure (a function of counts to a vector) and their covariance."""
        value = np.atleast_1d(figure(self.counts))
        slope = gradient(figure, self.counts)
        spread = slope * np.maximum(self.counts, 0.0) @ slope.T + slope @ self.noise @ slope.T
        return value, spread


def plain(counts: Floats, deviation: float) -> Cells:
    """Cells that were released as they are."""
    return Cells(counts, deviation**2 * np.eye(len(counts)))


def gradient(figure: Callable[[Floats], Floats], at: Floats) -> Floats:
    """The derivatives of every value by every count, by central differences."""
    step = 1e-4 * max(1.0, float(np.abs(at).max()))
    columns = []
    for i in range(len(at)):
        move = np.zeros_like(at)
        move[i] = step
        up, down = (np.atleast_1d(figure(at + way * move)) for way in (1, -1))
        columns.append((up - down) / (2 * step))
    return np.stack(columns, axis=1)
