"""Dense networks: affine layers with ReLU or tanh between them, and one or more logits at the end;
and what all kinds of network share.

All parameters are one flat float32 vector: it is what is sent, averaged and noised. Layer by layer
it holds the weights, *inputs x outputs* in row order, then the biases. A layer is thus one (inputs
+ 1) x outputs matrix whose last row multiplies a constant 1, and the compiled kernels use it as
such. (PyTorch keeps *outputs x inputs*.)

Prediction and training compute blocks of rows on one flat workspace. For each layer l it holds, row
by row and padded to whole lanes,

| A[l]       | inputs of layer l, rows x (size + 1); the last column is 1, which meets the biases  |
| W[l]       | weights and biases of layer l, (size + 1) x next size                               |
| D[l]       | derivative of the loss with respect to layer l's outputs            (training only) |
| T[l]       | transposed weights, for the backward pass                           (training only) |
| G[l], S[l] | summed gradient; gradient of one patient with many rows             (training only) |
| V[l], O[l] | momentum; weights at the start                                      (training only) |

The padding is zero and stays zero, so that whole lanes can be multiplied and squared without masks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from suture.errors import StudyError
from suture.models.kernels import (
    TILE,
    WIDTH,
    aligned,
    compiled,
    float_of_bits,
    load,
    padded,
    product,
    store,
    where_positive,
)

Floats = NDArray[np.float32]
Layout = NDArray[np.int64]
Values = TypeVar("Values", NDArray[np.float32], NDArray[np.float64])
Trainer = Literal["dense", "images", "features"]
Description = dict[str, Any]
"""A network as plain values: what ``result.json`` keeps of it."""

BLOCK = 64  # rows computed together

# Columns of the layout table, which has one row for each layer, and one for the logits.
SIZE, A, A_STRIDE, W, W_STRIDE, D, D_STRIDE, T, G, S, V, O = range(12)  # noqa: E741


class Settings(Protocol):
    """The part of a study's ``[model]`` that decides a network's shape."""

    @property
    def hidden(self) -> tuple[int, ...]: ...
    @property
    def activation(self) -> Literal["relu", "tanh"]: ...
    @property
    def depth(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def weights(self) -> str | None: ...


def probabilities(logits: Floats) -> Floats:
    """Probabilities of logits, rows x outputs, computed in float64.

    >>> probabilities(np.zeros((2, 1), np.float32)).tolist()
    [0.5, 0.5]
    """
    z = logits.astype(np.float64)
    if z.shape[1] == 1:
        return np.asarray(0.5 * (1 + np.tanh(z[:, 0] / 2)), np.float32)
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True), np.float32)


@dataclass(frozen=True)
class Dense:
    """The shape of a dense network; the parameters live outside of it.

    >>> network = Dense((6, 64, 32, 1))
    >>> network.n_params, network.classes
    (2561, 2)
    """

    kind: ClassVar[str] = "dense"
    trainer: ClassVar[Trainer] = "dense"
    featured: ClassVar[bool] = False

    sizes: tuple[int, ...]
    activation: Literal["relu", "tanh"] = "relu"

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(int(size) for size in self.sizes))
        if len(self.sizes) < 2 or min(self.sizes) < 1:
            raise StudyError(
                f"expected at least input and output sizes, each 1 or more, found {self.sizes}"
            )
        if self.activation not in ("relu", "tanh"):
            raise StudyError(f"expected activation 'relu' or 'tanh', found {self.activation!r}")

    @classmethod
    def shaped(cls, settings: Settings, inputs: int, outputs: int, base: Path) -> Dense:
        return cls((inputs, *settings.hidden, outputs), settings.activation)

    @classmethod
    def rebuilt(cls, model: Description) -> Dense:
        return cls(tuple(model["sizes"]), model["activation"])

    def described(self) -> Description:
        return {"kind": self.kind, "sizes": list(self.sizes), "activation": self.activation}

    @property
    def n_params(self) -> int:
        return sum((a + 1) * b for a, b in pairwise(self.sizes))

    @property
    def classes(self) -> int:
        return 2 if self.sizes[-1] == 1 else self.sizes[-1]

    def labels(self, y: NDArray[np.int32]) -> NDArray[np.int32]:
        return y

    @property
    def inputs(self) -> int:
        return self.sizes[0]

    def init(self, rng: np.random.Generator) -> Floats:
        """Drawn as PyTorch's ``Linear`` draws them: uniform within 1/sqrt(inputs)."""
        bounds = np.concatenate([np.full((a + 1) * b, a**-0.5) for a, b in pairwise(self.sizes)])
        return np.asarray(rng.uniform(-1.0, 1.0, self.n_params) * bounds, np.float32)

    def layers(self, params: Values) -> list[tuple[Values, Values]]:
        """Views of each layer's weights (inputs x outputs) and biases.

        >>> [(w.shape, b.shape) for w, b in Dense((3, 2, 1)).layers(np.zeros(11, np.float32))]
        [((3, 2), (2,)), ((2, 1), (1,))]
        """
        self.check(params)
        parts, at = [], 0
        for a, b in pairwise(self.sizes):
            block = params[at : at + (a + 1) * b]
            parts.append((block[: a * b].reshape(a, b), block[a * b :]))
            at += (a + 1) * b
        return parts

    def check(self, params: Values) -> None:
        """Refuse a parameter vector of another length: compiled code relies on it."""
        if params.shape != (self.n_params,):
            raise StudyError(
                f"a {self.sizes} network has {self.n_params} parameters, found shape {params.shape}"
            )

    def logits(self, params: Floats, x: Floats) -> Floats:
        """On a fresh workspace: safe to call from several threads at once."""
        self.check(params)
        if x.ndim != 2 or x.shape[1] != self.sizes[0]:
            raise StudyError(
                f"a {self.sizes} network takes {self.sizes[0]} features, found shape {x.shape}"
            )
        table, floats = layout(self.sizes, training=False)
        flat, rows = (np.ascontiguousarray(part, np.float32) for part in (params, x))
        out = np.empty((len(x), self.sizes[-1]), np.float32)
        _logits(aligned(floats), table, flat, rows, self.activation == "relu", out)
        return out

    def predict(self, params: Floats, x: Floats) -> Floats:
        return probabilities(self.logits(params, x))


def dense_only(network: object, what: str) -> Dense:
    """The network, for ``what`` needs a dense one.

    >>> dense_only(Dense((2, 1)), "method 'ifedavg'").sizes
    (2, 1)
    """
    if isinstance(network, Dense):
        return network
    raise StudyError(
        f'{what} works with dense networks only; use another method, or model.kind = "dense"'
    )


def layout(sizes: tuple[int, ...], training: bool) -> tuple[Layout, int]:
    """Where everything stands in the workspace, and how many floats it needs.

    >>> table, floats = layout((6, 1), training=False)
    >>> table[:, SIZE].tolist(), table[:, A_STRIDE].tolist()
    ([6, 1], [16, 16])
    """
    table = np.zeros((len(sizes), 12), np.int64)
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
    """Hyperbolic tangent in float32 without branches, for LLVM's sake (after Cephes ``tanhf``)."""
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
def layer(m, t, i, rows, relu):  # type: ignore[no-untyped-def]
    """From A[i] to A[i + 1]."""
    product(
        m, rows, t[i, W_STRIDE], t[i, SIZE] + 1, t[i, A], t[i, A_STRIDE], np.int64(1),
        t[i, W], t[i, W_STRIDE], t[i + 1, A], t[i + 1, A_STRIDE], np.bool_(False),
    )  # fmt: skip
    if i + 2 < len(t):
        _activate(m, t[i + 1, A], t[i + 1, A_STRIDE], rows, t[i + 1, SIZE], relu)


@compiled
def forward(m, t, rows, relu):  # type: ignore[no-untyped-def]
    """From the inputs in A[0] to the logits in A[last], for the first ``rows`` of a block."""
    for i in range(len(t) - 1):
        layer(m, t, i, rows, relu)


@compiled
def put_rows(m, t, x, rows, count):  # type: ignore[no-untyped-def]
    """The first ``count`` of these rows of ``x``, each with the constant 1, into A[0]."""
    at, size = t[0, A], t[0, SIZE]
    for r in range(count):
        row = rows[r]
        for c in range(size):
            m[at + c] = x[row, c]
        m[at + size] = np.float32(1)
        at += t[0, A_STRIDE]


@compiled
def _logits(m, t, params, x, relu, out):  # type: ignore[no-untyped-def]
    """The logits of every row of ``x``, block by block."""
    unpack(m, t, np.int64(W), params)
    last = len(t) - 1
    for start in range(0, len(x), BLOCK):
        rows = min(BLOCK, len(x) - start)
        put_rows(m, t, x, np.arange(start, start + rows), rows)
        forward(m, t, rows, relu)
        for r in range(rows):
            at = t[last, A] + r * t[last, A_STRIDE]
            for c in range(t[last, SIZE]):
                out[start + r, c] = m[at + c]
