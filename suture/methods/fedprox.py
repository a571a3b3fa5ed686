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
from typing import Literal

from suture.methods.fedavg import FedAvg
from suture.models.network import Network
from suture.training.local import Local


def fedprox(
    network: Network, local: Local, proximal: float, weighting: Literal["size", "uniform"] = "size"
) -> FedAvg:
    """FedAvg's server with a proximal local step."""
    return FedAvg(
        network, replace(local, proximal=proximal), weighting, name="fedprox", label="FedProx"
    )
