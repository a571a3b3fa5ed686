"""Ditto. Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization.
ICML 2021, arXiv:2012.04221, Algorithm 1, with FedAvg as its global solver.

Every site trains, beside the global model, one of its own that is pulled towards the global: v
minimises F_k(v) + lambda / 2 ||v - w||^2.

| here | paper |
|---|---|
| `params` | w^t |
| `own["params"]` | v_k |
| `pull` (method.proximal) | lambda |

Under DP the gradients of both models on a batch are one release (`training.pairs`): the same event
as FedAvg's.
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
class Ditto(Base):
    """FedAvg with a personal model beside it, tied to it by a spring."""

    network: Dense
    local: Local
    pull: float = 0.1
    weighting: Literal["size", "uniform"] = "uniform"
    name: str = "ditto"
    label: str = "Ditto"
    needs: Literal["sum", "each"] = "sum"
    pooled: bool = False

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
        extra = {"own": np.array(own.get("params", begin), np.float32), "pull": self.pull}
        local = private_local(self.local, session.noise)
        found = session.train(
            "training", DpSgd(self.network, local, session.size, begin, "tied", extra)
        )
        return {"delta": update_of(session, begin, found["params"], self.local)}, {
            "params": found["own"].value
        }

    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        """FedAvg on the global model."""
        return {
            "params": (state["params"] - mean_delta(answers, self.weighting)).astype(np.float32)
        }

    def predict(
        self, state: State, own: State, x: NDArray[np.float32], site: str
    ) -> NDArray[np.float32]:
        """The personal model's risk; a site that never trained has the global model."""
        return self.network.predict(own.get("params", state["params"]), x)
