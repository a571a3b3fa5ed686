"""The sum over all patients of their clipped gradients, in double precision: what one round of FedSGD asks of a site.

What the privacy proof needs of this file: one patient more or less moves the sum by at most ``clip`` in L2 norm. Each
patient's gradient is a function of the patient's own rows, is formed, and is scaled to at most ``clip * (1 - 1e-6)``. All
is float64: the rounding of a sum over N patients is at most N^2 * 2^-53 clips, below the 1e-6 left over for up to 90,000
patients a site. A patient whose gradient is not finite contributes exactly zero. Where every patient has one row, the norm
is had without forming the gradient (Goodfellow 2015, as in `dpsgd.py`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from suture.models.dense import Dense
from suture.privacy.unit import Patients
from suture.training.local import Local, weights_of

Floats = NDArray[np.float64]
MARGIN = 1e-6
MOST_PATIENTS = 90_000
_VALUES = 1 << 22
"""Gradient entries held at a time: 32 MB."""


def clipped_sum(network: Dense, params: NDArray[np.float32], data: Patients, local: Local, clip: float) -> Floats:
    """The sum over patients of the gradient of their rows' summed loss, each scaled to at most ``clip`` in norm.

    >>> rows = Patients(np.ones((2, 1), np.float32), np.array([1, 0]), np.arange(3))
    >>> clipped_sum(Dense((1, 1)), np.zeros(2, np.float32), rows, Local(), 9.0).tolist()
    [0.0, 0.0]
    >>> far = clipped_sum(Dense((1, 1)), np.array([0, 9], np.float32), rows, Local(), 0.5)
    >>> round(float(np.linalg.norm(far)), 3)
    0.5
    """
    layers = [(w.astype(np.float64), b.astype(np.float64)) for w, b in network.layers(params)]
    weights = np.asarray(weights_of(local, data.y, network.classes), np.float64)
    total = np.zeros(network.n_params)
    for first, end in _chunks(data, network.n_params):
        rows = slice(int(data.starts[first]), int(data.starts[end]))
        with np.errstate(over="ignore", invalid="ignore"):
            inputs, errors = _passes(network, layers, data.x[rows].astype(np.float64), data.y[rows], weights)
            inputs = [np.hstack([a, np.ones((len(a), 1))]) for a in inputs]
            total += (
                _sum_of_rows(inputs, errors, clip)
                if data.one_row_each
                else _sum_of_patients(inputs, errors, clip, data.starts[first:end] - rows.start)
            )
    return total


def _sum_of_rows(inputs: list[Floats], errors: list[Floats], clip: float) -> Floats:
    """One row a patient: a layer's gradient is an outer product, whose norm is the product of two norms."""
    squares = sum(np.sum(a * a, axis=1) * np.sum(d * d, axis=1) for a, d in zip(inputs, errors, strict=True))
    fine, factors = _factors(np.sqrt(squares), clip)
    return np.concatenate(
        [(a[fine].T @ (d[fine] * factors[:, None])).ravel() for a, d in zip(inputs, errors, strict=True)]
    )


def _sum_of_patients(inputs: list[Floats], errors: list[Floats], clip: float, starts: NDArray[np.int64]) -> Floats:
    """Several rows a patient: each patient's gradient is formed."""
    outer = [(a[:, :, None] * d[:, None, :]).reshape(len(a), -1) for a, d in zip(inputs, errors, strict=True)]
    gradients = np.hstack([np.add.reduceat(block, starts, axis=0) for block in outer])
    fine, factors = _factors(np.linalg.norm(gradients, axis=1), clip)
    return np.asarray(factors @ gradients[fine])


def _factors(norms: Floats, clip: float) -> tuple[NDArray[np.bool_], Floats]:
    """Whose gradient is finite, and what those are multiplied by."""
    fine = np.isfinite(norms)
    return fine, np.minimum(1.0, clip * (1 - MARGIN) / np.maximum(norms[fine], 1e-300))


def _passes(
    network: Dense, layers: list[tuple[Floats, Floats]], x: Floats, y: NDArray[np.int32], weights: Floats
) -> tuple[list[Floats], list[Floats]]:
    """Each layer's inputs, and the derivative of a row's loss with respect to each layer's outputs."""
    inputs = [x]
    for w, b in layers[:-1]:
        z = inputs[-1] @ w + b
        inputs.append(np.maximum(z, 0) if network.activation == "relu" else np.tanh(z))
    z = inputs[-1] @ layers[-1][0] + layers[-1][1]
    if network.sizes[-1] == 1:
        error = 1 / (1 + np.exp(-z)) - y[:, None]
    else:
        e = np.exp(z - z.max(axis=1, keepdims=True))
        error = e / e.sum(axis=1, keepdims=True)
        error[np.arange(len(y)), y] -= 1
    errors = [error * weights[y][:, None]]
    for (w, _), a in zip(layers[:0:-1], inputs[:0:-1], strict=True):
        slope = (a > 0).astype(np.float64) if network.activation == "relu" else 1 - a**2
        errors.append((errors[-1] @ w.T) * slope)
    return inputs, errors[::-1]


def _chunks(data: Patients, size: int) -> list[tuple[int, int]]:
    """Ranges of whole patients whose rows' gradients fit the memory allowed; a patient of many rows is a range alone."""
    most = max(1, _VALUES // size)
    found, first = [], 0
    while first < data.patients:
        end = int(np.searchsorted(data.starts, data.starts[first] + most, side="right")) - 1
        end = min(max(end, first + 1), data.patients)
        found.append((first, end))
        first = end
    return found
