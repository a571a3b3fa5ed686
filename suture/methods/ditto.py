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

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suture.methods.base import Arrays, State, Trained, Weighting, private_local, update_of
from suture.methods.declared import NETWORKS, Citation, Declared, Range, Setup
from suture.methods.fedprox import Proximal
from suture.models.dense import Dense, dense_only
from suture.privacy.door import Payload, Session
from suture.training.mechanism import DpSgd


@dataclass(frozen=True)
class Ditto(Trained):
    """FedAvg with a personal model beside it, tied to it by a spring."""

    network: Dense
    pull: float = 0.1
    weighting: Weighting = "uniform"
    name: str = "ditto"
    label: str = "Ditto"

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

    def predict(
        self, state: State, own: State, x: NDArray[np.float32], site: str
    ) -> NDArray[np.float32]:
        """The personal model's risk; a site that never trained has the global model."""
        return self.network.predict(own.get("params", state["params"]), x)


def build(setup: Setup) -> Ditto:
    """From a study."""
    own = Proximal.model_validate(setup.settings)
    network = dense_only(setup.network, "method 'ditto'")
    return Ditto(network, setup.local, own.proximal, own.weighting or "uniform")


DECLARED = Declared(
    "ditto",
    build,
    Proximal,
    cites=(
        Citation(
            "Ditto: Fair and Robust Federated Learning Through Personalization",
            "Li, Hu, Beirami, Smith",
            2021,
            "arXiv:2012.04221",
        ),
    ),
    space=lambda settings: (Range("method.proximal", 0.001, 1.0),),
    outcomes=NETWORKS,
)
