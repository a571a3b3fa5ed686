"""APFL. Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning. arXiv:2003.13461,
Algorithm 1.

Every site keeps a model v of its own and is served by the mixture alpha v + (1 - alpha) w of it and
the global w. Both take a step on every batch: w on its own loss, v on the mixture's. With
`adaptive` a site moves alpha too, by the derivative of the mixture's loss (their equation 10), once
a round as their experiments do.

| here | paper |
|---|---|
| `params` | w |
| `own["params"]` | v_i |
| `alpha`, `own["alpha"]` | alpha_i |

Under DP the two gradients of a batch are one release (`training.pairs`), so a round is the same
event as FedAvg's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from suture.methods.base import Arrays, State, Trained, Weighting, private_local, update_of
from suture.methods.declared import NETWORKS, Citation, Declared, Range, Setup
from suture.methods.fedavg import Weighted
from suture.models.dense import Dense, dense_only
from suture.privacy.door import Payload, Session
from suture.training.mechanism import DpSgd


@dataclass(frozen=True)
class Apfl(Trained):
    """A mixture of a global and a personal model at every site."""

    network: Dense
    alpha: float = 0.5
    adaptive: bool = False
    weighting: Weighting = "uniform"
    name: str = "apfl"

    @property
    def label(self) -> str:
        return "APFL (adaptive)" if self.adaptive else f"APFL (alpha {self.alpha:g})"

    def site_step(self, session: Session, own: State, message: Arrays) -> tuple[Payload, State]:
        """Both models take a step on every batch; the global one's change leaves."""
        begin = np.ascontiguousarray(message["params"], np.float32)
        extra = {
            "own": np.array(own.get("params", begin), np.float32),
            "alpha": float(np.float32(own.get("alpha", np.array(self.alpha)))),
            "adaptive": self.adaptive,
        }
        local = private_local(self.local, session.noise)
        found = session.train(
            "training", DpSgd(self.network, local, session.size, begin, "mixed", extra)
        )
        kept = {"params": found["own"].value, "alpha": found["alpha"].value}
        return {"delta": update_of(session, begin, found["params"], self.local)}, kept

    def predict(
        self, state: State, own: State, x: NDArray[np.float32], site: str
    ) -> NDArray[np.float32]:
        """The mixture's risk; a site that never trained has the global model."""
        if "params" not in own:
            return self.network.predict(state["params"], x)
        alpha = np.float32(own["alpha"])
        mixed = np.asarray(alpha * own["params"] + (1 - alpha) * state["params"], np.float32)
        return self.network.predict(mixed, x)


class Mixing(Weighted):
    """APFL's own."""

    alpha: float = Field(default=0.5, ge=0, le=1)
    alpha_adaptive: bool = False


def build(setup: Setup) -> Apfl:
    """From a study."""
    own = Mixing.model_validate(setup.settings)
    network = dense_only(setup.network, "method 'apfl'")
    return Apfl(network, setup.local, own.alpha, own.alpha_adaptive, own.weighting or "uniform")


DECLARED = Declared(
    "apfl",
    build,
    Mixing,
    cites=(
        Citation(
            "Adaptive Personalized Federated Learning",
            "Deng, Kamani, Mahdavi",
            2020,
            "arXiv:2003.13461",
        ),
    ),
    space=lambda settings: (Range("method.alpha", 0.1, 0.9, log=False),),
    outcomes=NETWORKS,
)
