"""A network as plain values for ``result.json``, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suture.errors import RunError
from suture.models.dense import Dense
from suture.models.network import Network
from suture.models.residual import Residual, digest


def described(network: Network) -> dict[str, Any]:
    """What rebuilds the network; its parameters are kept elsewhere.

    >>> described(Dense((2, 1)))
    {'kind': 'dense', 'sizes': [2, 1], 'activation': 'relu'}
    """
    if isinstance(network, Residual):
        fields = ("size", "depth", "width", "outputs")
        found: dict[str, Any] = {"kind": "residual", **{name: getattr(network, name) for name in fields}}
        if network.weights is not None:
            found["weights_sha256"] = digest(network.weights)
        return found
    if isinstance(network, Dense):
        return {"kind": "dense", "sizes": list(network.sizes), "activation": network.activation}
    raise RunError(f"a network of kind {type(network).__name__} cannot be described")


def rebuilt(model: Mapping[str, Any]) -> Network:
    """The network of a result's ``model``.

    >>> rebuilt({"kind": "residual", "size": 28, "depth": 8, "width": 8, "outputs": 1}).n_params
    19513
    >>> rebuilt({"sizes": [2, 1], "activation": "tanh"})
    Dense(sizes=(2, 1), activation='tanh')
    """
    if model.get("kind", "dense") == "residual":
        return Residual(model["size"], model["depth"], model["width"], model["outputs"])
    return Dense(tuple(model["sizes"]), model["activation"])
