"""Records read off the update of a dense network: the mathematics of gradient inversion.

The first layer computes W'x + b, so the gradient of one record is x d' for W and d for b, whatever
the layers above do.

- One record: the ratio of the two gives x, to rounding (Phong et al., "Privacy-Preserving Deep
  Learning via Additively Homomorphic Encryption", 2018, Section 3; Geiping et al. 2020, Proposition
  3.1). This holds for any number of local steps on the same record, because x stays and only d adds
  up. `one_record`.
- Several records through ReLU: the gradient is a sum of n such products, a matrix of rank n. Each
  record leaves about half of the units at zero, so its d is the rare combination of the matrix's
  columns with many zeros; finding these combinations separates the records exactly (Dimitrov et
  al., "SPEAR: Exact Gradient Inversion of Batches", 2024). `several_records`.
- Several records whose zeros do not separate them: few numbers are left to find, by least squares.
  `fitted_records`.
- Under noise: the closest product x d' to the noisy matrix in least squares, its leading singular
  pair, is the maximum likelihood estimate under Gaussian noise. `one_record` uses it always;
  without noise it is the ratio.

Gradients are given as (inputs, units) for the weights and (units,) for the biases; any common
factor (the learning rate, the number of steps, clipping) cancels.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from suture.errors import StudyError

Floats = NDArray[np.float64]
Given = NDArray[np.floating]
Signals = Callable[[Floats, NDArray[np.int64]], Floats]

EXACT = 1e-3
"""A relative misfit below this is rounding, not another batch."""


def one_record(weights: Given, biases: Given, typical: Given | None = None) -> Floats:
    """The record behind an update of a single one; under noise, its maximum likelihood estimate.

    Noise hits the scale hardest, since that rests on the bias alone. An adversary who knows a
    ``typical`` record (the population's mean) takes the sign and the length from that instead.

    >>> x, d = np.array([0.25, -1.0, 3.0]), np.array([0.5, 0.0, -2.0, 1.0])
    >>> one_record(np.outer(x, d), d).round(12).tolist()
    [0.25, -1.0, 3.0]
    """
    matrix = _stacked(weights, biases)
    if not np.any(matrix):
        raise StudyError(
            "the update is zero: no record moved the first layer, so there is nothing to invert"
        )
    # The smaller side's eigenvectors give the leading singular pair without a full decomposition of
    # a wide layer.
    wide = matrix.shape[0] < matrix.shape[1]
    leading = np.linalg.eigh(matrix @ matrix.T if wide else matrix.T @ matrix)[1][:, -1]
    side = leading @ matrix if wide else leading
    # One more projection in full precision: the eigenvector of a Gram matrix has only half of the
    # digits.
    side = (matrix @ side) @ matrix
    if typical is not None:
        expected = np.append(np.asarray(typical, np.float64), 1.0)
        length = np.linalg.norm(expected) / np.linalg.norm(side)
        return np.asarray(side[:-1] * np.copysign(length, side @ expected))
    least = 1e-12 * np.abs(side).max()
    scale = side[-1] if abs(side[-1]) > least else np.copysign(least, side[-1])
    return np.asarray(side[:-1] / scale)


def several_records(
    weights: Given, biases: Given, rng: np.random.Generator, tries: int = 4000
) -> Floats:
    """The records behind an update of up to eight through ReLU units, in no particular order.

    Where one record's inactive units are all inactive for another too, the two cannot be told apart
    by zeros, and some rows found are mixtures of records.

    >>> rng = np.random.default_rng(0)
    >>> x, d = rng.random((3, 5)), rng.normal(size=(3, 40)) * (rng.random((3, 40)) < 0.5)
    >>> found = several_records(x.T @ d, d.sum(0), rng)
    >>> bool(np.abs(found[np.argsort(found[:, 0])] - x[np.argsort(x[:, 0])]).max() < 1e-9)
    True
    """
    # What counts as zero, as a share of the largest: differences of float32 are rounded.
    tolerance = 1e-9 if weights.dtype == np.float64 else 1e-4
    left, values, right = _factors(weights, biases, 8, tolerance)
    if len(values) == 1:
        return one_record(weights, biases)[None]
    directions = _sparse_combinations(left, len(values), rng, tolerance * 10, tries)
    # D = left Q, so [x, 1] are the rows of Q^-1 S V'; the last column gives each row's scale.
    rows = np.linalg.solve(directions.T, values[:, None] * right)
    return np.asarray(rows[:, :-1] / rows[:, -1:])


def _stacked(weights: Given, biases: Given) -> Floats:
    """units x (inputs + 1): the bias is the weight of a constant input 1."""
    if weights.ndim != 2 or biases.shape != (weights.shape[1],):
        raise StudyError(
            f"expected (inputs, units) and (units,), found {weights.shape} and {biases.shape}"
        )
    return np.column_stack([np.asarray(weights, np.float64).T, np.asarray(biases, np.float64)])


def _factors(
    weights: Given, biases: Given, most: int, tolerance: float
) -> tuple[Floats, Floats, Floats]:
    """The singular value decomposition of an update of 1 to ``most`` records, cut at its rank."""
    left, values, right = np.linalg.svd(_stacked(weights, biases), full_matrices=False)
    count = int(np.sum(values > tolerance * values[0])) if len(values) and values[0] > 0 else 0
    if not 1 <= count <= most:
        raise StudyError(f"expected an update of 1 to {most} records, found one of rank {count}")
    return left[:, :count], values[:count], right[:count]


def _sparse_combinations(
    columns: Floats, count: int, rng: np.random.Generator, zero: float, tries: int
) -> Floats:
    """``count`` independent combinations of the columns (given as rows) with as many zeros as any.

    A random choice of count - 1 units on which a record is inactive has that record's combination
    as its null vector, and about one choice in 2^(count - 1) is such.
    """
    norms = np.linalg.norm(columns, axis=1)
    alive = np.flatnonzero(norms > zero * norms.max())
    if len(alive) < 2 * count:
        raise StudyError(
            f"expected at least {2 * count} active units for {count} records, found {len(alive)}"
        )
    reduced = columns[alive]
    enough = count - 1 + max(2, len(alive) // 10)  # zeros: more than any combination has by luck
    found: list[tuple[int, Floats]] = []
    for _ in range(tries):
        picked = rng.choice(len(alive), count - 1, replace=False)
        null = np.linalg.svd(reduced[picked])[2][-1]
        values = np.abs(reduced @ null)
        zeros = int(np.sum(values < zero * values.max()))
        if zeros >= enough:
            found.append((zeros, null))
    found.sort(key=lambda pair: -pair[0])
    chosen: list[Floats] = []

    def new(null: Floats) -> bool:
        return bool(np.linalg.svd(np.array([*chosen, null]), compute_uv=False)[-1] > 1e-3)

    for _, null in found:
        # Independent both before and after: polishing may turn one combination into another that is
        # already there.
        if new(null) and new(better := _polished(reduced, null, zero)):
            chosen.append(better)
        if len(chosen) == count:
            return np.array(chosen)
    raise StudyError(
        f"separated {len(chosen)} of {count} records: every other leaves too few units inactive. "
        "Units that are never inactive (tanh) hide the records of a batch from this attack, not from others"
    )


def _polished(columns: Floats, null: Floats, zero: float) -> Floats:
    """The same combination from all of its zeros at once, not only the few that it was found by."""
    values = np.abs(columns @ null)
    limit = zero * values.max()  # tightens to a few times the typical zero: small signals are none
    for _ in range(3):
        zeros = values <= limit
        null = np.asarray(np.linalg.svd(columns[zeros])[2][-1], np.float64)
        values = np.abs(columns @ null)
        limit = min(limit, 8 * float(np.median(values[zeros])) + 1e-15 * float(values.max()))
    return null


def fitted_records(
    weights: Given,
    biases: Given,
    signals: Signals,
    plausible: Given,
    rng: np.random.Generator,
    *,
    starts: int = 12,
    tolerance: float = 1e-4,
) -> tuple[Floats, float]:
    """The records of a batch of up to four, and the relative misfit of the gradient they give.

    The gradient [dW, db] = D'[X, 1] has rank n for n records, so its rows span the same space as
    the records, and X is known up to an n x n matrix: a batch of two images of 784 pixels has two
    unknown numbers, one of four has twelve. They are found by least squares, from plausible records
    as starts, with every combination of outcomes, such that the model's own backward pass gives the
    gradient that was seen (after Zhu, Liu & Han, "Deep Leakage from Gradients", NeurIPS 2019, in
    the few unknowns that rank leaves). A solution that reproduces the gradient to rounding is the
    batch.

    ``signals(x, y)`` is the model's backward pass: for each record, what reaches the first layer's
    units, as it enters the update. ``plausible`` are records of the same kind, to start from.
    """
    left, values, basis = _factors(weights, biases, 4, tolerance)
    count, target = len(values), left * values
    # Each record ends in the constant 1: that fixes one number per record and leaves count - 1 of
    # them free.
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


def best_guess(update: Given, candidates: Given, signatures: Given, deviation: float) -> Floats:
    """The posterior mean of the record, given the population, the model and the noise.

    No guess has a smaller expected squared error, up to the size of the sample. ``candidates`` is a
    sample of the population, ``signatures`` the noiseless update of each candidate (rows),
    ``deviation`` the noise's deviation.
    """
    weight = likelihoods(update, signatures, deviation)
    return np.asarray((weight / weight.sum()) @ np.asarray(candidates, np.float64))


def likelihoods(update: Given, signatures: Given, deviation: float) -> Floats:
    """How likely an update is for each candidate, under Gaussian noise, the likeliest having 1."""
    squares = np.einsum("ij,ij->i", signatures, signatures).astype(np.float64)
    misfit = squares - 2 * np.asarray(signatures @ update.astype(signatures.dtype), np.float64)
    return np.asarray(np.exp(-(misfit - misfit.min()) / (2 * deviation**2)))


def rms_error(found: Given, truth: Given) -> float:
    """Root mean square error over a record's features."""
    error = np.asarray(found, np.float64) - np.asarray(truth, np.float64)
    return float(np.sqrt(np.mean(error**2)))
