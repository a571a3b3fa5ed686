"""What training, methods and pages need of a network, whatever it is made of: one flat vector of
parameters.

To add a kind of network, write one module with a class like this protocol and list the class in
`suture.models.kinds`. If no trainer in `suture.training.mechanism` can train it, add one there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Trainer = Literal["dense", "images"]
Description = dict[str, Any]
"""A network as plain values: what ``result.json`` keeps of it."""


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


class Network(Protocol):
    """A network's shape; the parameters live outside of it.

    What it computes for a row is a function of that row and the parameters alone, to the last bit,
    whichever other rows are computed with it: the door relies on it wherever risks are summed or
    counted.
    """

    kind: ClassVar[str]
    """``model.kind`` in a study and in a result."""
    trainer: ClassVar[Trainer]
    """Which trainer in `suture.training.mechanism` trains it."""

    @classmethod
    def shaped(cls, settings: Settings, inputs: int, outputs: int, base: Path) -> Self:
        """The network of a study with so many encoded inputs and logits; files are relative to
        ``base``."""

    @classmethod
    def rebuilt(cls, model: Description) -> Self:
        """Inverse of `described`."""

    def described(self) -> Description:
        """What rebuilds the network, as plain values; its parameters are kept elsewhere."""

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
        """With one logit, the probability of outcome 1 for each row; otherwise of each class, rows
        x classes."""


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
