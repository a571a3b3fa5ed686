"""What training, methods and pages need of a network, whatever it is made of: one flat vector of parameters."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class Network(Protocol):
    """A network's shape; `Dense` for tables and `Residual` for images. The parameters live outside of it."""

    @property
    def n_params(self) -> int:
        """Length of the parameter vector."""

    @property
    def classes(self) -> int:
        """How many outcomes are told apart: one logit means two."""

    @property
    def inputs(self) -> int:
        """Numbers in a row."""

    def init(self, rng: np.random.Generator) -> Floats:
        """Initial parameters."""

    def logits(self, params: Floats, x: Floats) -> Floats:
        """The last layer's outputs, rows x outputs."""

    def predict(self, params: Floats, x: Floats) -> Floats:
        """Probabilities: of outcome 1, one a row, for one logit; of each class, rows x classes, otherwise."""


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
