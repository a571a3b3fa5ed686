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
    local_delta,
    local_event,
    mean_delta,
    start_weights,
    weights_field,
    with_momentum,
)
from suture.models.network import Network
from suture.privacy.door import Payload, Session
from suture.schema.message import Field
from suture.training.local import Local


@dataclass(frozen=True)
class FedAvg(Base):
    """Average of locally trained models, weighted by the number of patients."""

    network: Network
    local: Local
    weighting: Literal["size", "uniform"] = "size"
    name: str = "fedavg"
    label: str = "FedAvg"
    needs: Literal["sum", "each"] = "sum"
    pooled: bool = False
    momentum: float = 0.0
    """The server's, over rounds."""

    def init(self, sites: Sequence[str], rng: np.random.Generator) -> State:
        """One model."""
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
        """One round of local DP-SGD."""
        return local_event(self.local, size, noise)

    def site_step(self, session: Session, own: State, message: Arrays) -> tuple[Payload, State]:
        """Local training from the global model."""
        return {"delta": local_delta(session, self.network, self.local, message["params"])}, own

    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        """w <- w - mean(w - w_k), which is the mean of the w_k; or with momentum."""
        return with_momentum(state, mean_delta(answers, self.weighting), self.momentum)

    def predict(
        self, state: State, own: State, x: NDArray[np.float32], site: str
    ) -> NDArray[np.float32]:
        """The global model's risk."""
        return self.network.predict(state["params"], x)
