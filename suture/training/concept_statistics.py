"""What a hospital computes for VEIL: statistics of concepts at the global model, each with a bound per patient.

All take rows grouped by patient (``starts``), because the patient is the unit. The bounds are Lemmas 1 and 2 of
docs/veil.md: they hold for every table, by clipping or weighting here and not by an assumption about the rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from suture.models.compiled import compiled

Floats = NDArray[np.float64]
Rows = NDArray[np.float32]


def risk(logit: NDArray[np.floating]) -> Floats:
    """The logistic function in float64.

    >>> risk(np.array([0.0])).tolist()
    [0.5]
    """
    found: Floats = 1 / (1 + np.exp(-np.clip(np.asarray(logit, np.float64), -40, 40)))
    return found


def vote_scores(values: Rows, residual: Floats, starts: NDArray[np.int64]) -> Floats:
    """g_j = sum over patients of clip(sum over the patient's rows of value * residual, -1, 1): one patient moves every
    entry by at most 1 (Lemma 1).

    >>> vote_scores(np.ones((3, 1), np.float32), np.array([0.9, 0.8, -0.2]), np.array([0, 2, 3])).tolist()
    [0.8]
    """
    if len(starts) - 1 == len(values):
        # One row each, |value| <= 1 and |residual| <= 1: nothing to clip, and one product does it.
        return _weighted_sum(values, np.clip(residual, -1, 1))
    per_patient = np.add.reduceat(values.astype(np.float64) * residual[:, None], starts[:-1], axis=0)
    found: Floats = np.clip(per_patient, -1, 1).sum(axis=0)
    return found


def _weighted_sum(values: Rows, weights: Floats) -> Floats:
    """Column sums of weighted rows, added up in float64 whatever the rows' type."""
    out = np.zeros(values.shape[1])
    _add_rows(np.ascontiguousarray(values), np.ascontiguousarray(weights, dtype=np.float64), out)
    return out


@compiled
def _add_rows(values: Rows, weights: Floats, out: Floats) -> None:
    for i in range(values.shape[0]):
        w = weights[i]
        for j in range(values.shape[1]):
            out[j] += w * values[i, j]


def patient_weights(values: Rows, limit: float, starts: NDArray[np.int64], power: int = 2) -> Floats:
    """The weight of each row: min(1, (limit / norm)^power), shared out over the patient's rows.

    Power 1 bounds what is linear in a row's values, power 2 what is quadratic as well. Weights depend on what is
    measured and never on the outcome, so a weighted fit estimates the same model.

    >>> patient_weights(np.array([[2.0], [0.5]], np.float32), 1.0, np.array([0, 1, 2])).round(3).tolist()
    [0.25, 1.0]
    """
    squares = np.einsum("ij,ij->i", values, values, dtype=np.float64)
    weight: Floats = np.minimum(1.0, limit**2 / np.maximum(squares, 1e-30)) ** (power / 2)
    # A float32 product may round up; a hair less keeps the bound strict.
    weight *= 1 - 1e-6
    counts = np.diff(starts)
    return weight if len(counts) == len(values) else weight / np.repeat(counts, counts)


def gradient(values: Rows, residual: Floats, weights: Floats) -> Floats:
    """Sum of weight * value * residual: a patient's part has L2 norm at most ``limit`` (Lemma 2a).

    >>> gradient(np.array([[1.0], [0.5]], np.float32), np.array([0.5, 1.0]), np.ones(2)).tolist()
    [1.0]
    """
    return _weighted_sum(values, weights * np.clip(residual, -1, 1))


def second_moments(values: Rows, weights: Floats) -> Floats:
    """Sum of weight * value^2, entry by entry: a patient's part has L2 norm at most ``limit``^2 (Lemma 2b).

    >>> second_moments(np.array([[1.0], [0.5]], np.float32), np.ones(2)).tolist()
    [1.25]
    """
    return (values.astype(np.float64) ** 2).T @ weights


def curvature(values: Rows, p: Floats, weights: Floats) -> Floats:
    """Sum of weight * p (1 - p) * value value^T as a vector: a patient's part has L2 norm at most ``limit``^2 / 4 (2c).

    >>> curvature(np.array([[1.0, 1.0]], np.float32), np.array([0.5]), np.ones(1)).round(3).tolist()
    [0.25, 0.25, 0.354]
    """
    return products(values, weights * p * (1 - p))


def products(values: Rows, weights: Floats) -> Floats:
    """Sum of weight * value value^T as a vector: a patient's part has L2 norm at most ``limit``^2 (Lemma 2d).

    The diagonal comes first, then the upper triangle times sqrt(2), so that the vector's norm is the matrix's.

    >>> products(np.array([[1.0, 2.0]], np.float32), np.ones(1)).round(3).tolist()
    [1.0, 4.0, 2.828]
    """
    scaled = values.astype(np.float64) * np.sqrt(weights)[:, None]
    matrix = scaled.T @ scaled
    above = np.triu_indices(len(matrix), 1)
    return np.concatenate([np.diag(matrix), np.sqrt(2) * matrix[above]])


def as_matrix(vector: Floats, size: int) -> Floats:
    """The symmetric matrix of a `curvature` vector.

    >>> as_matrix(np.array([1.0, 2.0, np.sqrt(2)]), 2).round(9).tolist()
    [[1.0, 1.0], [1.0, 2.0]]
    """
    matrix = np.zeros((size, size))
    matrix[np.triu_indices(size, 1)] = vector[size:] / np.sqrt(2)
    matrix += matrix.T
    matrix[np.diag_indices(size)] = vector[:size]
    return matrix
