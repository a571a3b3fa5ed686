"""FedProx. Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous
Networks. MLSys 2020, arXiv:1812.06127, Algorithm 2.

FedAvg whose local objective gains ``proximal / 2 * ||w - w_t||^2``. The term does not depend on
rows, so it is added after clipping and noise and costs no privacy.

| here | paper |
|---|---|
| `local.proximal` | mu |
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from suture.methods.base import Weighting
from suture.methods.declared import NETWORKS, Citation, Declared, Range, Setup
from suture.methods.fedavg import FedAvg, Weighted
from suture.models.network import Network
from suture.training.local import Local


def fedprox(
    network: Network, local: Local, proximal: float, weighting: Weighting = "size"
) -> FedAvg:
    """FedAvg's server with a proximal local step."""
    return FedAvg(
        network, replace(local, proximal=proximal), weighting, name="fedprox", label="FedProx"
    )


class Proximal(Weighted):
    """Settings of methods whose local objective is pulled towards the global model."""

    proximal: float = Field(default=0.1, ge=0)


def build(setup: Setup) -> FedAvg:
    """From a study."""
    own = Proximal.model_validate(setup.settings)
    return fedprox(setup.network, setup.local, own.proximal, own.weighting or "size")


DECLARED = Declared(
    "fedprox",
    build,
    Proximal,
    cites=(
        Citation(
            "Federated Optimization in Heterogeneous Networks",
            "Li et al.",
            2020,
            "arXiv:1812.06127",
        ),
    ),
    space=lambda settings: (Range("method.proximal", 0.001, 1.0),),
    global_model=True,
    outcomes=NETWORKS,
)
