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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import dp_accounting
import numpy as np
from numpy.typing import NDArray

from suture.methods.base import (
    Answer,
    Arrays,
    Base,
    State,
    local_event,
    mean_delta,
    private_local,
    start_weights,
    update_of,
    weights_field,
)
from suture.models.dense import Dense
from suture.privacy.door import Payload, Session
from suture.schema.message import Field
from suture.training.local import Local
from suture.training.mechanism import DpSgd


@dataclass(frozen=True)
class Apfl(Base):
    """A mixture of a global and a personal model at every site."""

    network: Dense
    local: Local
    alpha: float = 0.5
    adaptive: bool = False
    weighting: Literal["size", "uniform"] = "uniform"
    name: str = "apfl"
    needs: Literal["sum", "each"] = "sum"
    pooled: bool = False

    @property
    def label(self) -> str:
        """As written in a table."""
        return "APFL (adaptive)" if self.adaptive else f"APFL (alpha {self.alpha:g})"

    def init(self, sites: Sequence[str], rng: np.random.Generator) -> State:
        """One global model; the personal ones start there too."""
        return start_weights(self.network, rng)

    def broadcast(self, state: State, site: str) -> Arrays:
        """The global model."""
        return {"params": state["params"]}

    def expects(self, round_: int, site: str) -> Mapping[str, Field]:
        """The global model."""
        return {"params": weights_field(self.network)}

    def round_event(
        self, round_: int, site: str, size: int, noise: float | None
    ) -> dp_accounting.DpEvent:
        """One round of local DP-SGD on the pair."""
        return local_event(self.local, size, noise)

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

    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        """FedAvg on the global model."""
        return {
            "params": (state["params"] - mean_delta(answers, self.weighting)).astype(np.float32)
        }

    def predict(
        self, state: State, own: State, x: NDArray[np.float32], site: str
    ) -> NDArray[np.float32]:
        """The mixture's risk; a site that never trained has the global model."""
        if "params" not in own:
            return self.network.predict(state["params"], x)
        alpha = np.float32(own["alpha"])
        mixed = np.asarray(alpha * own["params"] + (1 - alpha) * state["params"], np.float32)
        return self.network.predict(mixed, x)
