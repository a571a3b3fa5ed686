"""Alone: every hospital trains by itself. The reference for what federation brings.

The model stays at the hospital as its own state and nothing is sent. Under DP the training is DP-SGD all the same and
is charged, because the model's predictions are shown to others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import dp_accounting
import numpy as np
from numpy.typing import NDArray

from suture.methods.base import Answer, Arrays, State, local_delta, local_event, start_weights
from suture.models.network import Network
from suture.privacy.unit import Patients
from suture.training.local import Local


@dataclass(frozen=True)
class Alone:
    """Local training only, from a common public start."""

    network: Network
    local: Local
    name: str = "alone"
    label: str = "Alone"
    needs: Literal["sum", "each"] = "each"
    pooled: bool = False

    def init(self, sites: Sequence[str], rng: np.random.Generator) -> State:
        """The public start."""
        return start_weights(self.network, rng)

    def broadcast(self, state: State, site: str) -> Arrays:
        """The public start; a site that has a model of its own ignores it."""
        return {"params": state["params"]}

    def site_event(self, patients: int, noise: float | None) -> dp_accounting.DpEvent:
        """One round of local DP-SGD."""
        return local_event(self.local, patients, noise)

    def site_step(
        self, data: Patients, own: State, message: Arrays, noise: float | None, key: bytes
    ) -> tuple[Arrays, State]:
        """Go on from the site's own model; send nothing."""
        start = own.get("params", message["params"])
        delta = local_delta(self.network, self.local, data, start, noise, key)
        return {}, {"params": (start - delta).astype(np.float32)}

    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        """Nothing arrives, nothing changes."""
        return state

    def predict(self, state: State, own: State, x: NDArray[np.float32], site: str) -> NDArray[np.float32]:
        """The site's own model's risk."""
        return self.network.predict(own.get("params", state["params"]), x)
