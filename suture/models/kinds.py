"""Every kind of network, by the name that a study and a result give it."""

from __future__ import annotations

from pathlib import Path

from suture.errors import RunError
from suture.models.dense import Dense
from suture.models.network import Description, Network, Settings
from suture.models.residual import Residual

KINDS: dict[str, type[Network]] = {network.kind: network for network in (Dense, Residual)}


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
