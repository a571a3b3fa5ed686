"""APFL. Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning. arXiv:2003.13461, Algorithm 1.

Every site keeps a model v of its own and is served by the mixture alpha v + (1 - alpha) w of it and the global w. Both
take a step on every batch: w on its own loss, v on the mixture's. With `adaptive` a site moves alpha too, by the
derivative of the mixture's loss (their equation 10), once a round as their experiments do.

| here | paper |
|---|---|
| `params` | w |
| `own["params"]` | v_i |
| `alpha`, `own["alpha"]` | alpha_i |

Under DP the two gradients of a batch are one release (`training.pairs`), so a round is the same event as FedAvg's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import dp_accounting
import numpy as np
from numpy.typing import NDArray

from suture.methods.base import Answer, Arrays, State, local_event, mean_delta, private_local, start_weights
from suture.models.dense import Dense
from suture.privacy.unit import Patients
from suture.training.local import Local
from suture.training.pairs import Pair


@dataclass(frozen=True)
class Apfl:
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

    def site_event(self, patients: int, noise: float | None) -> dp_accounting.DpEvent:
        """One round of local DP-SGD on the pair."""
        return local_event(self.local, patients, noise)

    def site_step(
        self, data: Patients, own: State, message: Arrays, noise: float | None, key: bytes
    ) -> tuple[Arrays, State]:
        """Both models take a step on every batch; the global one's change leaves."""
        local = private_local(self.local, noise)
        begin = np.ascontiguousarray(message["params"], np.float32)
        w, v = begin.copy(), np.array(own.get("params", begin), np.float32)
        alpha = np.float32(own.get("alpha", np.array(self.alpha)))
        pair = Pair(self.network, data, local, key)
        moved = not self.adaptive
        for batch in pair.batches():
            mixed = alpha * v + (1 - alpha) * w
            of_w, of_mixed = pair.gradients(batch, w, mixed)
            if not moved:
                alpha = np.float32(np.clip(alpha - local.rate * float((v - w) @ of_mixed), 0.0, 1.0))
                moved = True
            w = w - np.float32(local.rate) * of_w
            v = v - np.float32(local.rate) * alpha * of_mixed
        return {"delta": begin - w}, {"params": v, "alpha": np.array(alpha, np.float32)}

    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        """FedAvg on the global model."""
        return {"params": (state["params"] - mean_delta(answers, self.weighting)).astype(np.float32)}

    def predict(self, state: State, own: State, x: NDArray[np.float32], site: str) -> NDArray[np.float32]:
        """The mixture's risk; a site that never trained has the global model."""
        if "params" not in own:
            return self.network.predict(state["params"], x)
        alpha = np.float32(own["alpha"])
        mixed = np.asarray(alpha * own["params"] + (1 - alpha) * state["params"], np.float32)
        return self.network.predict(mixed, x)
