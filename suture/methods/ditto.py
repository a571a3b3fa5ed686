"""Ditto. Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization. ICML 2021,
arXiv:2012.04221, Algorithm 1, with FedAvg as its global solver.

Every site trains, beside the global model, one of its own that is pulled towards the global: v minimises
F_k(v) + lambda / 2 ||v - w||^2.

| here | paper |
|---|---|
| `params` | w^t |
| `own["params"]` | v_k |
| `pull` (method.proximal) | lambda |

Under DP the gradients of both models on a batch are one release (`training.pairs`): the same event as FedAvg's.
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
class Ditto:
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
        rate, hold, pull = np.float32(local.rate), np.float32(local.momentum), np.float32(self.pull)
        speed_w, speed_v = np.zeros_like(w), np.zeros_like(v)
        pair = Pair(self.network, data, local, key)
        for batch in pair.batches():
            of_w, of_v = pair.gradients(batch, w, v)
            speed_w = hold * speed_w + of_w
            speed_v = hold * speed_v + of_v + pull * (v - begin)
            w, v = w - rate * speed_w, v - rate * speed_v
        return {"delta": begin - w}, {"params": v}

    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        """FedAvg on the global model."""
        return {"params": (state["params"] - mean_delta(answers, self.weighting)).astype(np.float32)}

    def predict(self, state: State, own: State, x: NDArray[np.float32], site: str) -> NDArray[np.float32]:
        """The personal model's risk; a site that never trained has the global model."""
        return self.network.predict(own.get("params", state["params"]), x)
