"""The forward pass of a dense network, in blocks of rows, on one flat workspace: shared by
prediction and training.

For each layer l the workspace holds, row by row and padded to whole lanes,

    A[l]  inputs of layer l, rows x (size + 1); the last column is the constant 1 that meets the
    biases W[l]  weights and biases of layer l, (size + 1) x next size D[l]  derivative of the loss
    with respect to layer l's outputs        (training only) T[l]  transposed weights, for the
    backward pass                       (training only) G[l]  summed gradient, S[l] gradient of one
    patient with many rows    (training only) V[l]  momentum, O[l] weights at the start
    (training only)

The padding is zero and stays zero, so that whole lanes can be multiplied and squared without masks.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture.models.compiled import compiled
from suture.models.lanes import (
    TILE,
    WIDTH,
    aligned,
    float_of_bits,
    load,
    padded,
    product,
    store,
    where_positive,
)

BLOCK = 64  # rows computed together

# Columns of the layout table; one row of the table a layer, and one for the logits.
SIZE, A, A_STRIDE, W, W_STRIDE, D, D_STRIDE, T, G, S, V, O = range(12)  # noqa: E741
_COLUMNS = 12

Layout = NDArray[np.int64]


def layout(sizes: tuple[int, ...], training: bool) -> tuple[Layout, int]:
    """Where everything stands in the workspace, and how many floats it needs.

    >>> table, floats = layout((6, 1), training=False)
    >>> table[:, SIZE].tolist(), table[:, A_STRIDE].tolist()
    ([6, 1], [16, 16])
    """
    table = np.zeros((len(sizes), _COLUMNS), np.int64)
    at = 0

    def room(floats: int) -> int:
        nonlocal at
        start, at = at, at + padded(floats)
        return start

    for i, size in enumerate(sizes):
        row = table[i]
        row[SIZE], row[A_STRIDE], row[D_STRIDE] = size, padded(size + 1), padded(size)
        row[A] = room(BLOCK * int(row[A_STRIDE]))
        if training and i:
            row[D] = room(BLOCK * int(row[D_STRIDE]))
        if i + 1 < len(sizes):
            row[W_STRIDE] = padded(sizes[i + 1])
            matrix = padded(size + 1, TILE) * int(row[W_STRIDE])
            row[W] = room(matrix)
            if training:
                row[T] = room(int(row[W_STRIDE] * row[D_STRIDE]))
                for column in (G, S, V, O):
                    row[column] = room(matrix)
    return table, at + WIDTH * int(table[:, W_STRIDE].max())  # transposition reads whole squares


def workspace(sizes: tuple[int, ...], training: bool) -> tuple[NDArray[np.float32], Layout]:
    """A zeroed workspace and its layout."""
    table, floats = layout(sizes, training)
    return aligned(floats), table


@compiled
def unpack(m, t, column, params):  # type: ignore[no-untyped-def]
    """Copy the flat parameters into the padded matrices of one column of the table."""
    p = 0
    for i in range(len(t) - 1):
        for r in range(t[i, SIZE] + 1):
            at = t[i, column] + r * t[i, W_STRIDE]
            for c in range(t[i + 1, SIZE]):
                m[at + c] = params[p]
                p += 1


@compiled
def pack(m, t, column, params):  # type: ignore[no-untyped-def]
    """Copy padded matrices back into a flat vector."""
    p = 0
    for i in range(len(t) - 1):
        for r in range(t[i, SIZE] + 1):
            at = t[i, column] + r * t[i, W_STRIDE]
            for c in range(t[i + 1, SIZE]):
                params[p] = m[at + c]
                p += 1


@compiled
def tanh(x):  # type: ignore[no-untyped-def]
    """Hyperbolic tangent in float32 without branches, so that LLVM can vectorise it (after Cephes
    ``tanhf``)."""
    f = np.float32
    a = min(abs(x), f(9.5))  # beyond, the float32 nearest to tanh is 1
    z = x * x
    small = f(-5.70498872745e-3)
    small = small * z + f(2.06390887954e-2)
    small = small * z + f(-5.37397155531e-2)
    small = small * z + f(1.33314422036e-1)
    small = small * z + f(-3.33332819422e-1)
    small = small * z * x + x
    n = np.floor(a * f(2.885390081777927) + f(0.5))  # exp(2a) = 2^n exp(r)
    r = f(2) * a - n * f(0.693359375) + n * f(2.12194440e-4)
    e = f(1.9875691500e-4)
    e = e * r + f(1.3981999507e-3)
    e = e * r + f(8.3334519073e-3)
    e = e * r + f(4.1665795894e-2)
    e = e * r + f(1.6666665459e-1)
    e = e * r + f(5.0000001201e-1)
    e = (e * r * r + r + f(1)) * float_of_bits((np.int32(n) + np.int32(127)) << np.int32(23))
    large = math.copysign(f(1) - f(2) / (e + f(1)), x)
    result = small if abs(x) < f(0.625) else large
    return result if x == x else x  # not a number stays so


@compiled
def _activate(m, at, stride, rows, size, relu):  # type: ignore[no-untyped-def]
    """Apply the activation in place, then restore the constant column."""
    lanes = (size + WIDTH - 1) // WIDTH * WIDTH
    for r in range(rows):
        row = at + r * stride
        if relu:
            for i in range(0, lanes, WIDTH):
                value = load(m, row + i)
                store(m, row + i, where_positive(value, value))
        else:
            values = m[row : row + lanes]
            for i in range(lanes):
                values[i] = tanh(values[i])
        m[row + size] = np.float32(1)


@compiled
def forward(m, t, rows, relu):  # type: ignore[no-untyped-def]
    """From the inputs in A[0] to the logits in A[last], for the first ``rows`` rows of the
    block."""
    last = len(t) - 1
    for i in range(last):
        size = t[i + 1, SIZE]
        product(
            m, rows, t[i, W_STRIDE], t[i, SIZE] + 1, t[i, A], t[i, A_STRIDE], np.int64(1),
            t[i, W], t[i, W_STRIDE], t[i + 1, A], t[i + 1, A_STRIDE], np.bool_(False),
        )  # fmt: skip
        if i + 1 < last:
            _activate(m, t[i + 1, A], t[i + 1, A_STRIDE], rows, size, relu)


@compiled
def logits(m, t, params, x, relu, out):  # type: ignore[no-untyped-def]
    """The logits of every row of ``x``, block by block."""
    unpack(m, t, np.int64(W), params)
    last = len(t) - 1
    for start in range(0, len(x), BLOCK):
        rows = min(BLOCK, len(x) - start)
        at, size = t[0, A], t[0, SIZE]
        for r in range(rows):
            for c in range(size):
                m[at + c] = x[start + r, c]
            m[at + size] = np.float32(1)
            at += t[0, A_STRIDE]
        forward(m, t, rows, relu)
        for r in range(rows):
            at = t[last, A] + r * t[last, A_STRIDE]
            for c in range(t[last, SIZE]):
                out[start + r, c] = m[at + c]


def compute_logits(sizes: tuple[int, ...], relu: bool, params: Any, x: Any) -> NDArray[np.float32]:
    """The logits, rows x outputs, on a fresh workspace: safe to call from several threads at
    once."""
    m, t = workspace(sizes, training=False)
    out = np.empty((len(x), sizes[-1]), np.float32)
    logits(
        m,
        t,
        np.ascontiguousarray(params, np.float32),
        np.ascontiguousarray(x, np.float32),
        relu,
        out,
    )
    return out
