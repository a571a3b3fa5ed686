"""Records of a small batch by fitting: what is left when zeros do not separate them.

The first layer's gradient [dW, db] = D'[X, 1] has rank n for n records, so its rows span the same space as the records
themselves, and X is known up to an n x n matrix: a batch of two images of 784 pixels has two unknown numbers, one of four
has twelve. They are found by least squares, from plausible records as starts, with every combination of outcomes, such that
the model's own backward pass gives the gradient that was seen (after Zhu, Liu & Han, "Deep Leakage from Gradients", NeurIPS
2019, in the few unknowns that rank leaves; a solution that reproduces the gradient to rounding is the batch).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from suture.errors import StudyError
from suture.privacy.attacks.gradient_inversion import stacked

Floats = NDArray[np.float64]
Signals = Callable[[Floats, NDArray[np.int64]], Floats]

EXACT = 1e-3
"""A relative misfit below this is rounding, not another batch."""


def fitted_records(
    weights: NDArray[np.floating],
    biases: NDArray[np.floating],
    signals: Signals,
    plausible: NDArray[np.floating],
    rng: np.random.Generator,
    *,
    most: int = 4,
    starts: int = 12,
    tolerance: float = 1e-4,
) -> tuple[Floats, float]:
    """The records of a batch of up to ``most``, and the relative misfit of the gradient they give.

    ``signals(x, y)`` is the model's backward pass: for each record, what reaches the first layer's units, as it enters
    the update. ``plausible`` are records of the same kind, to start from.

    >>> w = np.random.default_rng(3).normal(size=(6, 30))
    >>> def signals(x, y):  # one ReLU layer, then a sum through a sigmoid
    ...     active = x @ w > 0
    ...     return (1 / (1 + np.exp(-(x @ w * active).sum(1) / 9)) - y)[:, None] * active
    >>> people = np.random.default_rng(4).random((20, 6))
    >>> x, y = people[:2], np.array([0, 1])
    >>> found, misfit = fitted_records(x.T @ signals(x, y), signals(x, y).sum(0), signals, people[2:], np.random.default_rng(0))
    >>> misfit < 1e-6, bool(min(np.abs(found - x).max(), np.abs(found[::-1] - x).max()) < 1e-5)
    (True, True)
    """
    matrix = stacked(weights, biases)
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    count = int(np.sum(values > tolerance * values[0])) if len(values) and values[0] > 0 else 0
    if not 1 <= count <= most:
        raise StudyError(f"expected an update of 1 to {most} records, found one of rank {count}")
    basis, target = right[:count], left[:, :count] * values[:count]
    # Each record ends in the constant 1: that fixes one number a record and leaves count - 1 of them free.
    last = basis[:, -1]
    fixed = last / (last @ last)
    free = np.linalg.svd(last[None])[2][1:]
    scale = float(np.linalg.norm(target))

    def mixing(unknown: Floats) -> Floats:
        return np.asarray(fixed + unknown.reshape(count, count - 1) @ free)

    best, found = np.inf, np.zeros((count, weights.shape[0]))
    for _ in range(starts):
        chosen = plausible[rng.choice(len(plausible), count, replace=False)]
        start = np.column_stack([np.asarray(chosen, np.float64), np.ones(count)]) @ basis.T @ free.T
        for outcomes in itertools.combinations_with_replacement((0, 1), count):
            y = np.array(outcomes)

            def misfit(unknown: Floats, y: NDArray[np.int64] = y) -> Floats:
                m = mixing(unknown)
                return np.asarray((signals((m @ basis)[:, :-1], y).T @ m - target).ravel() / scale)

            if count == 1:
                solution, error = np.zeros(0), float(np.linalg.norm(misfit(np.zeros(0))))
            else:
                fit = optimize.least_squares(misfit, start.ravel(), method="trf", max_nfev=60)
                solution, error = fit.x, float(np.sqrt(2 * fit.cost))
            if error < best:
                best, found = error, (mixing(solution) @ basis)[:, :-1]
            if best < EXACT:
                return found, best
    return found, best
