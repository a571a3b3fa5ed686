"""What each row adds to a sum at the door, in double precision: gradients for FedSGD, and statistics
of concepts for VEIL.

The door adds up each patient's rows, clips the sum and adds it exactly, so that no bound depends on
how many patients there are. Everything here is a function of one row, its patient's number of rows,
the model and public settings, to the last bit: it is computed row by row, because the order in
which a matrix product adds up may depend on how many rows there are, and with weights of someone
else's choice a last bit can become the whole value.

VEIL's bounds per patient are Lemmas 1 and 2 of docs/veil.md: they hold for every table, by weights
here and clipping at the door, and not by an assumption about the rows.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from suture.models.dense import Dense
from suture.models.kernels import compiled
from suture.privacy.unit import Patients
from suture.training.local import Local, check, known, loss_weights

Floats = NDArray[np.float64]
Rows = NDArray[np.float32]


def row_gradients(network: Dense, params: Rows, data: Patients, local: Local) -> Floats:
    """The gradient of each row's weighted loss, rows x parameters; a row that overflows has entries
    that are not finite.

    >>> rows = Patients(np.ones((2, 1), np.float32), np.array([1, 0]), np.arange(3))
    >>> row_gradients(Dense((1, 1)), np.zeros(2, np.float32), rows, Local()).tolist()
    [[-0.5, -0.5], [0.5, 0.5]]
    """
    network.check(params)
    check(network, data, local)
    weights = loss_weights(local, data.y, network.classes)
    y = known(network.labels(data.y), network.classes)
    out = np.empty((data.rows, network.n_params))
    room = np.empty((2, sum(network.sizes)))
    flat, sizes = np.asarray(params, np.float64), np.array(network.sizes, np.int64)
    _row_gradients(data.x, y, weights, flat, sizes, network.activation == "relu", room, out)
    return out


@compiled
def _row_gradients(x, y, class_weights, params, sizes, relu, room, out):  # type: ignore[no-untyped-def]
    """One row at a time; a layer's gradient is the outer product of inputs and errors."""
    last = len(sizes) - 1
    values, errors = room[0], room[1]
    for r in range(len(x)):
        for i in range(sizes[0]):
            values[i] = x[r, i]
        at, here = 0, 0
        for layer in range(last):
            n, k = sizes[layer], sizes[layer + 1]
            z = values[here + n : here + n + k]
            bias = params[at + n * k : at + n * k + k]
            for j in range(k):
                z[j] = bias[j]
            for i in range(n):
                value, w = values[here + i], params[at + i * k : at + i * k + k]
                for j in range(k):
                    z[j] += value * w[j]
            if layer + 1 < last:
                for j in range(k):
                    if relu:
                        z[j] = np.float64(0) if z[j] < 0 else z[j]  # what is not a number stays so
                    else:
                        z[j] = math.tanh(z[j])
            at, here = at + (n + 1) * k, here + n
        if len(class_weights) == 2 * sizes[last] + 2:
            _hazard_errors(values[here:], errors[here:], y[r], class_weights[y[r]])
        else:
            _outcome_errors(values[here:], errors[here:], y[r], class_weights[y[r]])
        for layer in range(last - 1, -1, -1):
            n, k = sizes[layer], sizes[layer + 1]
            d = errors[here : here + k]
            at, here = at - (n + 1) * k, here - n
            for i in range(n):
                value, target = values[here + i], out[r, at + i * k : at + i * k + k]
                for j in range(k):
                    target[j] = value * d[j]
                if layer > 0:
                    w, back = params[at + i * k : at + i * k + k], 0.0
                    for j in range(k):
                        back += d[j] * w[j]
                    slope = 1.0 - value * value
                    if relu:
                        slope = 1.0 if value > 0 else 0.0
                    errors[here + i] = back * slope
            target = out[r, at + n * k : at + n * k + k]
            for j in range(k):
                target[j] = d[j]


@compiled
def _hazard_errors(z, error, label, weight):  # type: ignore[no-untyped-def]
    """The same of the likelihood of a row's follow-up (`suture/training/dpsgd.py`)."""
    interval, event = label // 2, label % 2
    for c in range(len(z)):
        if c > interval:
            error[c] = 0.0
            continue
        share = weight if c < interval or event else weight * 0.5
        error[c] = share / (1.0 + math.exp(-z[c]))
        if c == interval and event:
            error[c] -= weight


@compiled
def _outcome_errors(z, error, label, weight):  # type: ignore[no-untyped-def]
    """Derivative of the weighted cross-entropy with respect to the logits."""
    if len(z) == 1:
        error[0] = weight * (1.0 / (1.0 + math.exp(-z[0])) - label)
        return
    top = z[0]
    for c in range(1, len(z)):
        top = max(top, z[c])
    mass = 0.0
    for c in range(len(z)):
        error[c] = math.exp(z[c] - top)
        mass += error[c]
    for c in range(len(z)):
        error[c] = weight * (error[c] / mass - (1.0 if c == label else 0.0))


def risk(logit: NDArray[np.floating]) -> Floats:
    """The logistic function in float64."""
    found: Floats = 1 / (1 + np.exp(-np.clip(np.asarray(logit, np.float64), -40, 40)))
    return found


def patient_weights(
    values: Rows, limit: float, starts: NDArray[np.int64], power: int = 2
) -> Floats:
    """The weight of each row: min(1, (limit / norm)^power), divided among the patient's rows.

    Power 1 bounds what is linear in a row's values, power 2 also what is quadratic. Weights depend
    on what is measured and never on the outcome, so a weighted fit estimates the same model.

    >>> patient_weights(np.array([[2.0], [0.5]], np.float32), 1.0, np.array([0, 1, 2])).round(3).tolist()
    [0.25, 1.0]
    """
    squares = np.empty(len(values))
    _square_rows(np.ascontiguousarray(values), squares)
    weight: Floats = np.minimum(1.0, limit**2 / np.maximum(squares, 1e-30)) ** (power / 2)
    # A float32 product may round up; a hair less keeps the bound strict.
    weight *= 1 - 1e-6
    counts = np.diff(starts)
    return weight if len(counts) == len(values) else weight / np.repeat(counts, counts)


@compiled
def _square_rows(values: Rows, out: Floats) -> None:
    """Row by row, so that no other row can change the order in which one is added up."""
    for i in range(values.shape[0]):
        total = 0.0
        for j in range(values.shape[1]):
            total += np.float64(values[i, j]) * np.float64(values[i, j])
        out[i] = total


def row_products(values: Rows) -> Floats:
    """Each row's value value^T as a vector of size (size + 1) / 2 entries.

    The diagonal comes first, then the upper triangle times sqrt(2), so that the vector's norm is
    the matrix's.

    >>> row_products(np.array([[1.0, 2.0]], np.float32)).round(3).tolist()
    [[1.0, 4.0, 2.828]]
    """
    wide = values.astype(np.float64)
    first, second = np.triu_indices(values.shape[1], 1)
    return np.hstack([wide * wide, np.sqrt(2) * (wide[:, first] * wide[:, second])])


def logits(values: Rows, weights: NDArray[np.floating], bias: float) -> Floats:
    """Each row's weighted sum plus the bias, added up in a fixed order: the same bits whichever
    other rows there are."""
    if weights.shape != (values.shape[1],):
        raise ValueError(
            f"expected one weight per column ({values.shape[1]}), found shape {weights.shape}"
        )
    out, wide = np.empty(len(values)), np.ascontiguousarray(weights, np.float64)
    _dot_rows(np.ascontiguousarray(values), wide, float(bias), out)
    return out


@compiled
def _dot_rows(values: Rows, weights: Floats, bias: float, out: Floats) -> None:
    """Eight running sums, so that LLVM can use lanes; the number of columns alone decides which
    column goes to which."""
    lanes = values.shape[1] // 8 * 8
    for i in range(values.shape[0]):
        a = b = c = d = e = f = g = h = 0.0
        for j in range(0, lanes, 8):
            v, w = values[i, j : j + 8], weights[j : j + 8]
            a += w[0] * v[0]
            b += w[1] * v[1]
            c += w[2] * v[2]
            d += w[3] * v[3]
            e += w[4] * v[4]
            f += w[5] * v[5]
            g += w[6] * v[6]
            h += w[7] * v[7]
        total = bias + (((a + b) + (c + d)) + ((e + f) + (g + h)))
        for j in range(lanes, values.shape[1]):
            total += weights[j] * values[i, j]
        out[i] = total


def as_matrix(vector: Floats, size: int) -> Floats:
    """The symmetric matrix of a sum of `row_products`.

    >>> as_matrix(np.array([1.0, 2.0, np.sqrt(2)]), 2).round(9).tolist()
    [[1.0, 1.0], [1.0, 2.0]]
    """
    matrix = np.zeros((size, size))
    matrix[np.triu_indices(size, 1)] = vector[size:] / np.sqrt(2)
    matrix += matrix.T
    matrix[np.diag_indices(size)] = vector[:size]
    return matrix
