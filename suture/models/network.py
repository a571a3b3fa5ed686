"""What training, methods and pages need of a network, whatever it is made of, and every kind of it.

To add a kind of network, write one module with a class like `Network`, and list the class in
`KINDS`. If no trainer in `suture.training.mechanism` can train it, add one there.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from suture.errors import RunError
from suture.models.concepts import Terms, plain, terms
from suture.models.dense import Dense, Description, Floats, Settings, Trainer, dense_only
from suture.models.hazards import Hazards
from suture.models.residual import Residual
from suture.models.scattering import Scattering
from suture.schema.table import Schema


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

    featured: ClassVar[bool]
    """Whether it is linear in public features of a row, so that noisy sums can fit it."""

    @classmethod
    def shaped(cls, settings: Settings, inputs: int, outputs: int, base: Path) -> Self:
        """The network of a study, for so many inputs and logits; files are below ``base``."""

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
        """How many labels training tells apart: one logit means two."""

    def labels(self, y: NDArray[np.int32]) -> NDArray[np.int32]:
        """The labels that training uses, 0 to ``classes`` - 1, from the codes of outcomes."""

    @property
    def inputs(self) -> int:
        """Numbers in a row."""

    def init(self, rng: np.random.Generator) -> Floats:
        """Initial parameters."""

    def logits(self, params: Floats, x: Floats) -> Floats:
        """The last layer's outputs, rows x outputs."""

    def predict(self, params: Floats, x: Floats) -> Floats:
        """The probability of outcome 1 for each row if there is one logit, else of each class."""


KINDS: dict[str, type[Network]] = {
    network.kind: network for network in (Dense, Hazards, Residual, Scattering)
}


def shaped(kind: str, settings: Settings, inputs: int, outputs: int, base: Path) -> Network:
    """The network of a study's ``[model]``, for so many encoded inputs and logits."""
    return KINDS[kind].shaped(settings, inputs, outputs, base)


def rebuilt(model: Description) -> Network:
    """The network of a result's ``model``, which `Network.described` wrote.

    >>> rebuilt({"kind": "residual", "size": 28, "depth": 8, "width": 8, "outputs": 1}).n_params
    19513
    >>> rebuilt({"sizes": [2, 1], "activation": "tanh"})
    Dense(sizes=(2, 1), activation='tanh')
    """
    kind = model.get("kind", "dense")
    if kind not in KINDS:
        raise RunError(
            f"the result has a network of kind {kind!r}; this version of Suture knows "
            f"{', '.join(KINDS)}"
        )
    return KINDS[kind].rebuilt(model)


def terms_of(network: Network, schema: Schema | None, what: str) -> Terms:
    """What an additive model is made of: features of pictures, or terms of a table's columns."""
    if isinstance(network, Scattering):
        return network
    width = dense_only(network, what).inputs
    return plain(width) if schema is None else terms(schema)
