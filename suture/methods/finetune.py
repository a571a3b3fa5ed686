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

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from suture.methods.base import Answer, Arrays, State, Trained, Weighting, averaged, trained
from suture.methods.declared import NETWORKS, Choice, Citation, Declared, Setup
from suture.methods.fedavg import Weighted
from suture.privacy.door import Payload, Session


@dataclass(frozen=True)
class FineTune(Trained):
    """FedAvg for ``rounds - tuning`` rounds, then every site for itself."""

    rounds: int = 100
    tuning: int = 10
    rate: float = 0.01
    weighting: Weighting = "uniform"
    name: str = "finetune"
    label: str = "FedAvg, fine-tuned"

    def init(self, sites: Sequence[str], rng: np.random.Generator) -> State:
        """One model and a count of rounds."""
        return {**super().init(sites, rng), "t": np.array(0)}

    def site_step(self, session: Session, own: State, message: Arrays) -> tuple[Payload, State]:
        """Training from the global model, or tuning from the site's own, which then stays."""
        if session.round <= self.rounds - self.tuning:
            return super().site_step(session, own, message)
        start, local = own.get("params", message["params"]), replace(self.local, rate=self.rate)
        return {}, {"params": trained(session, self.network, local, start).value}

    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        """FedAvg while updates arrive."""
        sent = [answer for answer in answers if "delta" in answer.payload]
        new = averaged(state, sent, self.weighting) if sent else {"params": state["params"]}
        return {**new, "t": np.array(int(state["t"]) + 1)}

    def predict(
        self, state: State, own: State, x: NDArray[np.float32], site: str
    ) -> NDArray[np.float32]:
        """The tuned model's risk, once there is one."""
        return self.network.predict(own.get("params", state["params"]), x)


class Tuned(Weighted):
    """Fine-tuning's own."""

    tuning: float = Field(default=0.1, ge=0, lt=1)


def build(setup: Setup) -> FineTune:
    """From a study."""
    own = Tuned.model_validate(setup.settings)
    tuning, weighting = max(1, round(setup.rounds * own.tuning)), own.weighting or "uniform"
    return FineTune(setup.network, setup.local, setup.rounds, tuning, setup.local.rate, weighting)


DECLARED = Declared(
    "finetune",
    build,
    Tuned,
    cites=(
        Citation(
            "Salvaging Federated Learning by Local Adaptation",
            "Yu, Bagdasaryan, Shmatikov",
            2020,
            "arXiv:2002.04758",
        ),
    ),
    space=lambda settings: (Choice("method.tuning", (0.1, 0.2, 0.4)),),
    outcomes=NETWORKS,
)
