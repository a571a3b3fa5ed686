"""Alone: every hospital trains by itself. The reference for what federation brings.

The model stays at the hospital as its own state and nothing is sent. Under DP the training is
DP-SGD all the same and is charged, because the model's predictions are shown to others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suture.methods.base import Answer, Arrays, Needs, State, Trained, trained
from suture.methods.declared import NETWORKS, Declared, Setup
from suture.privacy.door import Payload, Session


@dataclass(frozen=True)
class Alone(Trained):
    """Local training only, from a common public start."""

    name: str = "alone"
    label: str = "Alone"
    needs: Needs = "each"
    reference: bool = True

    def site_step(self, session: Session, own: State, message: Arrays) -> tuple[Payload, State]:
        """Go on from the site's own model; send nothing."""
        start = own.get("params", message["params"])
        return {}, {"params": trained(session, self.network, self.local, start).value}

    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        return state

    def predict(
        self, state: State, own: State, x: NDArray[np.float32], site: str
    ) -> NDArray[np.float32]:
        return self.network.predict(own.get("params", state["params"]), x)


def build(setup: Setup) -> Alone:
    """From a study."""
    return Alone(setup.network, setup.local)


DECLARED = Declared("alone", build, outcomes=NETWORKS)
