"""FedAvg. McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep
Networks from Decentralized Data. AISTATS 2017, arXiv:1602.05629, Algorithm 1.

| here | paper |
|---|---|
| `local.epochs`, `local.batch`, `local.rate` | E, B, eta |
| `Answer.patients` | n_k |
| `params` | w_t |

Under DP the local steps are DP-SGD at the site (FedCVR, Algorithm 2); the average is
post-processing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from suture.methods.base import Answer, State, Trained, Weighting, mean_delta, with_momentum
from suture.methods.declared import NETWORKS, Citation, Declared, Fit, Public, Settings, Setup

PAPER = Citation(
    "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    "McMahan et al.",
    2017,
    "arXiv:1602.05629",
)


@dataclass(frozen=True)
class FedAvg(Trained):
    """Average of locally trained models, weighted by the number of patients."""

    weighting: Weighting = "size"
    name: str = "fedavg"
    label: str = "FedAvg"
    pooled: bool = False
    momentum: float = 0.0
    """The server's, over rounds."""

    @property
    def reference(self) -> bool:
        return self.pooled

    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        return with_momentum(state, mean_delta(answers, self.weighting), self.momentum)


class Weighted(Settings):
    """Settings of methods that average."""

    weighting: Weighting | None = None


class FedAvgSettings(Weighted):
    """FedAvg's own."""

    server_momentum: float = Field(default=0.0, ge=0, lt=1)


def build(setup: Setup) -> FedAvg:
    """From a study."""
    own = FedAvgSettings.model_validate(setup.settings)
    return FedAvg(setup.network, setup.local, own.weighting or "size", momentum=own.server_momentum)


def suits(public: Public) -> Fit:
    """The method that needs least: it works for tables and images, with and without masks."""
    return Fit(2.0, "works everywhere; every hospital's update carries all of its noise")


DECLARED = Declared(
    "fedavg",
    build,
    FedAvgSettings,
    cites=(PAPER,),
    suits=suits,
    global_model=True,
    outcomes=NETWORKS,
)
