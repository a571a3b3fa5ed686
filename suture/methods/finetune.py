"""FedAvg, then fine-tuning at each site. Yu, Bagdasaryan, Shmatikov: Salvaging Federated Learning
by Local Adaptation. arXiv:2002.04758, section 3 (fine-tuning).

The last `tuning` rounds are spent at the sites: each goes on from the global model by itself, at
the starting learning rate, and sends nothing. A round costs the same event wherever it is spent, so
the plan is FedAvg's.

| here | paper |
|---|---|
| `params` | the global model |
| `own["params"]` | the adapted model |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import dp_accounting
import numpy as np
from numpy.typing import NDArray

from suture.methods.base import (
    Answer,
    Arrays,
    Base,
    State,
    local_delta,
    local_event,
    mean_delta,
    start_weights,
    trained,
    weights_field,
)
from suture.models.network import Network
from suture.privacy.door import Payload, Session
from suture.schema.message import Field
from suture.training.local import Local


@dataclass(frozen=True)
class FineTune(Base):
    """FedAvg for ``rounds - tuning`` rounds, then every site for itself."""

    network: Network
    local: Local
    rounds: int = 100
    tuning: int = 10
    rate: float = 0.01
    weighting: Literal["size", "uniform"] = "uniform"
    name: str = "finetune"
    label: str = "FedAvg, fine-tuned"
    needs: Literal["sum", "each"] = "sum"
    pooled: bool = False

    def init(self, sites: Sequence[str], rng: np.random.Generator) -> State:
        """One model and a count of rounds."""
        return {**start_weights(self.network, rng), "t": np.array(0)}

    def broadcast(self, state: State, site: str) -> Arrays:
        """The global model."""
        return {"params": state["params"]}

    def expects(self, round_: int, site: str) -> Mapping[str, Field]:
        """The global model."""
        return {"params": weights_field(self.network)}

    def round_event(
        self, round_: int, site: str, size: int, noise: float | None
    ) -> dp_accounting.DpEvent:
        """One round of local DP-SGD."""
        return local_event(self.local, size, noise)

    def site_step(self, session: Session, own: State, message: Arrays) -> tuple[Payload, State]:
        """Training from the global model, or tuning from the site's own, which then stays."""
        if session.round <= self.rounds - self.tuning:
            return {"delta": local_delta(session, self.network, self.local, message["params"])}, own
        start = own.get("params", message["params"])
        return {}, {
            "params": trained(
                session, self.network, replace(self.local, rate=self.rate), start
            ).value
        }

    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        """FedAvg while updates arrive."""
        t = np.array(int(state["t"]) + 1)
        sent = [answer for answer in answers if "delta" in answer.payload]
        if not sent:
            return {"params": state["params"], "t": t}
        return {
            "params": (state["params"] - mean_delta(sent, self.weighting)).astype(np.float32),
            "t": t,
        }

    def predict(
        self, state: State, own: State, x: NDArray[np.float32], site: str
    ) -> NDArray[np.float32]:
        """The tuned model's risk, once there is one."""
        return self.network.predict(own.get("params", state["params"]), x)
