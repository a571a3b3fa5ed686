"""Dense networks: affine layers with ReLU or tanh between them, and one or several logits at the end.

All parameters are one flat float32 vector, which is what travels, is averaged, and is noised. Layer by layer it holds
the weights, *inputs x outputs* in row order, then the biases. A layer's block is thus one (inputs + 1) x outputs matrix
whose last row multiplies a constant 1, and the compiled kernels use it as such. PyTorch keeps *outputs x inputs*: see
`to_torch`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from suture.errors import StudyError
from suture.models.forward import compute_logits
from suture.models.network import Network, probabilities

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Dense:
    """The shape of a dense network; the parameters live outside of it.

    >>> network = Dense((6, 64, 32, 1))
    >>> network.n_params, network.classes
    (2561, 2)
    """

    sizes: tuple[int, ...]
    activation: Literal["relu", "tanh"] = "relu"

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(int(size) for size in self.sizes))
        if len(self.sizes) < 2 or min(self.sizes) < 1:
            raise StudyError(f"expected at least input and output sizes, each 1 or more, found {self.sizes}")
        if self.activation not in ("relu", "tanh"):
            raise StudyError(f"expected activation 'relu' or 'tanh', found {self.activation!r}")

    @property
    def n_params(self) -> int:
        """Length of the parameter vector."""
        return sum((a + 1) * b for a, b in zip(self.sizes[:-1], self.sizes[1:], strict=True))

    @property
    def classes(self) -> int:
        """How many outcomes are told apart: one logit means two."""
        return 2 if self.sizes[-1] == 1 else self.sizes[-1]

    @property
    def inputs(self) -> int:
        """Features in a row."""
        return self.sizes[0]

    def init(self, rng: np.random.Generator) -> Floats:
        """Initial parameters as PyTorch's ``Linear`` draws them: uniform within 1/sqrt(inputs), weights and biases.

        >>> bool(np.abs(Dense((4, 1)).init(np.random.default_rng(0))).max() <= 0.5)
        True
        """
        bounds = np.concatenate(
            [np.full((a + 1) * b, a**-0.5) for a, b in zip(self.sizes[:-1], self.sizes[1:], strict=True)]
        )
        return np.asarray(rng.uniform(-1.0, 1.0, self.n_params) * bounds, np.float32)

    def layers(self, params: Floats) -> list[tuple[Floats, Floats]]:
        """Views of each layer's weights (inputs x outputs) and biases.

        >>> [(w.shape, b.shape) for w, b in Dense((3, 2, 1)).layers(np.zeros(11, np.float32))]
        [((3, 2), (2,)), ((2, 1), (1,))]
        """
        self._check(params)
        parts, at = [], 0
        for a, b in zip(self.sizes[:-1], self.sizes[1:], strict=True):
            parts.append((params[at : at + a * b].reshape(a, b), params[at + a * b : at + (a + 1) * b]))
            at += (a + 1) * b
        return parts

    def _check(self, params: Floats) -> None:
        if params.shape != (self.n_params,):
            raise StudyError(f"a {self.sizes} network has {self.n_params} parameters, found shape {params.shape}")

    def logits(self, params: Floats, x: Floats) -> Floats:
        """The last layer's outputs, rows x outputs."""
        self._check(params)
        if x.ndim != 2 or x.shape[1] != self.sizes[0]:
            raise StudyError(f"a {self.sizes} network takes {self.sizes[0]} features, found shape {x.shape}")
        return compute_logits(self.sizes, self.activation == "relu", params, x)

    def predict(self, params: Floats, x: Floats) -> Floats:
        """Probabilities: of outcome 1, one a row, for one logit; of each class, rows x classes, otherwise.

        >>> Dense((2, 1)).predict(np.zeros(3, np.float32), np.ones((2, 2), np.float32)).tolist()
        [0.5, 0.5]
        """
        return probabilities(self.logits(params, x))

    def loss(self, params: Floats, x: Floats, y: NDArray[np.int32]) -> float:
        """Mean cross-entropy over rows, from the logits, so that confident mistakes stay finite.

        >>> round(Dense((2, 1)).loss(np.zeros(3, np.float32), np.ones((2, 2), np.float32), np.array([0, 1])), 6)
        0.693147
        """
        z = self.logits(params, x).astype(np.float64)
        if self.sizes[-1] == 1:
            margins = z[:, 0] * (1 - 2 * np.asarray(y, np.float64))
            return float(np.logaddexp(0.0, margins).mean())
        return float((np.logaddexp.reduce(z, axis=1) - z[np.arange(len(z)), y]).mean())

    def to_torch(self, params: Floats) -> Floats:
        """The same parameters in the order of PyTorch's ``parameters_to_vector`` (outputs x inputs, then biases).

        >>> Dense((2, 2)).to_torch(np.array([1, 2, 3, 4, 5, 6], np.float32)).tolist()
        [1.0, 3.0, 2.0, 4.0, 5.0, 6.0]
        """
        return np.concatenate([part for w, b in self.layers(params) for part in (w.T.ravel(), b)])

    def from_torch(self, params: Floats) -> Floats:
        """Inverse of `to_torch`.

        >>> Dense((2, 2)).from_torch(np.array([1, 3, 2, 4, 5, 6], np.float32)).tolist()
        [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
        """
        self._check(params)
        parts = []
        for w, b in self.layers(params):
            parts += [w.reshape(w.shape[1], w.shape[0]).T.ravel(), b]
        return np.concatenate(parts).astype(np.float32)


def dense_only(network: Network, what: str) -> Dense:
    """The network, for ``what`` only a dense one serves.

    >>> dense_only(Dense((2, 1)), "method 'ifedavg'").sizes
    (2, 1)
    """
    if isinstance(network, Dense):
        return network
    raise StudyError(f'{what} works with dense networks only; use another method, or model.kind = "dense"')
