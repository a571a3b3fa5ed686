"""Alone: every hospital trains by itself. The reference for what federation brings.

The model stays at the hospital as its own state and nothing is sent. Under DP the training is
DP-SGD all the same and is charged, because the model's predictions are shown to others.
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
    start_weights,
    trained,
    weights_field,
)
from suture.models.network import Network
from suture.privacy.door import Payload, Session
from suture.schema.message import Field
from suture.training.local import Local


@dataclass(frozen=True)
class Alone(Base):
    """Local training only, from a common public start."""

    network: Network
    local: Local
    name: str = "alone"
    label: str = "Alone"
    needs: Literal["sum", "each"] = "each"
    pooled: bool = False
    weighting: Literal["size", "uniform"] = "size"

    def init(self, sites: Sequence[str], rng: np.random.Generator) -> State:
        """The public start."""
        return start_weights(self.network, rng)

    def broadcast(self, state: State, site: str) -> Arrays:
        """The public start; a site that has a model of its own ignores it."""
        return {"params": state["params"]}

    def expects(self, round_: int, site: str) -> Mapping[str, Field]:
        """The public start."""
        return {"params": weights_field(self.network)}

    def round_event(
        self, round_: int, site: str, size: int, noise: float | None
    ) -> dp_accounting.DpEvent:
        """One round of local DP-SGD."""
        return local_event(self.local, size, noise)

    def site_step(self, session: Session, own: State, message: Arrays) -> tuple[Payload, State]:
        """Go on from the site's own model; send nothing."""
        start = own.get("params", message["params"])
        return {}, {"params": trained(session, self.network, self.local, start).value}

    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        """Nothing arrives, nothing changes."""
        return state

    def predict(
        self, state: State, own: State, x: NDArray[np.float32], site: str
    ) -> NDArray[np.float32]:
        """The site's own model's risk."""
        return self.network.predict(own.get("params", state["params"]), x)
