"""SCAFFOLD. Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled
Averaging for Federated Learning. ICML 2020, arXiv:1910.06378, Algorithm 1 with option II.

| here | paper |
|---|---|
| `params`, `controls`, their mean | x, c_i, c |
| `correction` | c - c_i, added to every local gradient |
| `local.rate`, steps of a round | eta_l, K |

Under DP the local gradients are DP-SGD's, and control variates come from *protected updates only*:
option II makes c_i from x - y_i, which the site releases anyway, so the server computes it and the
site sends no more than in FedAvg. A control variate from a pass over the rows (option I) would be a
second release that somebody has to pay for.

The correction enters the fused local step as a proximal term with a far anchor: pull * (w - anchor)
with anchor = x - correction / pull is correction + pull * (w - x). The second part is a proximal
term of `PULL`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from suture.methods.base import (
    Answer,
    Arrays,
    Needs,
    State,
    Trained,
    Weighting,
    local_delta,
    mean_delta,
    weights_field,
)
from suture.methods.declared import NETWORKS, Citation, Declared, Setup
from suture.methods.fedavg import Weighted
from suture.privacy.door import Payload, Session
from suture.schema.message import Field
from suture.training import local as training

PULL = 2.0**-10


@dataclass(frozen=True)
class Scaffold(Trained):
    """FedAvg with control variates against drift."""

    weighting: Weighting = "size"
    name: str = "scaffold"
    label: str = "SCAFFOLD"
    needs: Needs = "each"

    def init(self, sites: Sequence[str], rng: np.random.Generator) -> State:
        """One model, no correction yet."""
        return {
            **super().init(sites, rng),
            "controls": np.zeros((len(sites), self.network.n_params), np.float32),
            "shares": np.zeros(len(sites), np.float64),
            "sites": np.array(sites, dtype=np.str_),
        }

    def broadcast(self, state: State, site: str) -> Arrays:
        """The global model and the site's correction."""
        return {
            "params": state["params"],
            "correction": self._mean(state) - state["controls"][_place(state, site)],
        }

    def expects(self, round_: int, site: str) -> Mapping[str, Field]:
        """The global model and the site's correction."""
        return {"params": weights_field(self.network), "correction": weights_field(self.network)}

    def site_step(self, session: Session, own: State, message: Arrays) -> tuple[Payload, State]:
        """Local training with the correction in every step."""
        start = np.ascontiguousarray(message["params"], np.float32)
        anchor = start - message["correction"].astype(np.float32) / np.float32(PULL)
        local = replace(self.local, proximal=PULL)
        return {
            "delta": local_delta(session, self.network, local, start, extra={"anchor": anchor})
        }, own

    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        """The mean model, and c_i <- c_i - c + (x - y_i) / (K eta) for every site that answered."""
        new = {key: array.copy() for key, array in state.items()}
        mean = self._mean(state)
        for answer in answers:
            place = _place(state, answer.site)
            count = training.steps(answer.patients, self.local)
            seen = answer.payload["delta"] / np.float32(count * self.local.rate)
            new["controls"][place] = state["controls"][place] - mean + seen
            new["shares"][place] = answer.patients if self.weighting == "size" else 1.0
        new["params"] = (state["params"] - mean_delta(answers, self.weighting)).astype(np.float32)
        return new

    def _mean(self, state: State) -> NDArray[np.float32]:
        total = float(state["shares"].sum())
        mean = (
            state["shares"] @ state["controls"] / total
            if total
            else np.zeros(self.network.n_params)
        )
        return mean.astype(np.float32)


def build(setup: Setup) -> Scaffold:
    """From a study."""
    own = Weighted.model_validate(setup.settings)
    return Scaffold(setup.network, setup.local, own.weighting or "size")


DECLARED = Declared(
    "scaffold",
    build,
    Weighted,
    cites=(
        Citation(
            "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
            "Karimireddy et al.",
            2020,
            "arXiv:1910.06378",
        ),
    ),
    outcomes=NETWORKS,
)


def _place(state: State, site: str) -> int:
    return int(np.flatnonzero(state["sites"] == site)[0])
