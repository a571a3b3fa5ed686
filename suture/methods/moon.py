"""MOON. Li, He, Song: Model-Contrastive Federated Learning. CVPR 2021, arXiv:2103.16257, Algorithm
1.

FedAvg whose local loss also pulls a row's representation towards the global model's and away from
that of the site's previous model (`training.contrastive`). The previous model stays at the site.

| here | paper |
|---|---|
| `params` | w^t |
| `own["params"]` | w_i^(t-1), the site's model after the last round it took part in |
| `contrast`, `temperature` | mu, tau |

Two things differ from the paper's experiments: the representation is the last hidden layer and
there is no projection head of its own; and a site's first round has no previous model, so both
representations are the global model's and the term is the constant log 2: FedAvg, exactly.

**Not private.** The method is here as a baseline without a promise: nothing is clipped, its event
is non-private whatever noise is planned, and a study with [privacy] refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import dp_accounting
import numpy as np
from numpy.typing import NDArray

from suture.errors import StudyError
from suture.methods.base import (
    Answer,
    Arrays,
    Base,
    State,
    mean_delta,
    start_weights,
    weights_field,
)
from suture.models.dense import Dense
from suture.privacy.door import Payload, Session
from suture.privacy.unit import Patients
from suture.schema.message import Field
from suture.training.contrastive import needs_hidden, train_contrastive
from suture.training.local import Local


@dataclass(frozen=True)
class Moon(Base):
    """FedAvg with a contrast between the global and the site's previous model."""

    network: Dense
    local: Local
    contrast: float = 1.0
    temperature: float = 0.5
    weighting: Literal["size", "uniform"] = "size"
    name: str = "moon"
    label: str = "MOON (not private)"
    needs: Literal["sum", "each"] = "sum"
    pooled: bool = False

    def __post_init__(self) -> None:
        needs_hidden(self.network)
        if self.local.dropout:
            raise StudyError(
                "method 'moon' compares representations of the same row; set model.dropout to 0, "
                f"found {self.local.dropout:g}"
            )

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
        """Nothing bounds one patient's part, whatever noise is planned."""
        return dp_accounting.NonPrivateDpEvent()

    def site_step(self, session: Session, own: State, message: Arrays) -> tuple[Payload, State]:
        """Local training on the contrastive loss; the trained model stays as the next round's
        previous one."""
        start = np.ascontiguousarray(message["params"], np.float32)
        local = replace(self.local, clip=None, noise_multiplier=None)

        def train(data: Patients, key: bytes) -> State:
            before = own.get("params", start)
            return {
                "params": train_contrastive(
                    self.network, start, before, data, local, self.contrast, self.temperature, key
                )
            }

        found = session.unprotected("training", train)["params"]
        return {"delta": found.then(lambda after: start - after)}, {"params": found.value}

    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        """The mean of the sites' models, as in FedAvg."""
        return {
            "params": (state["params"] - mean_delta(answers, self.weighting)).astype(np.float32)
        }

    def predict(
        self, state: State, own: State, x: NDArray[np.float32], site: str
    ) -> NDArray[np.float32]:
        """The global model's risk."""
        return self.network.predict(state["params"], x)
