"""FedSGD with noise that adds up: every round one gradient of all patients, of which only the noisy
sum is opened.

FedSGD: McMahan et al., AISTATS 2017 (arXiv:1602.05629), section 2. The noise: Kairouz, Liu,
Steinke: The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation,
ICML 2021 (arXiv:2102.06387). The server takes its step with Adam (`fedopt.py`).

Each site sends the sum of its patients' clipped gradients on an integer grid plus its share of
discrete Gaussian noise; the secure sum over all sites carries the noise that a trusted curator
would have added once. Local DP-SGD makes every hospital hide its patients by itself, which takes a
whole curator's noise at each.

| here | there |
|---|---|
| noise multiplier z | one round costs what one Gaussian release of z costs (docs/veil.md, Theorems 4 and 5) |
| `local.clip` | c, the bound on a patient's summed gradient |
| ``honest_sites`` | the number of sites whose noise is counted on |

Nothing is sampled: every patient takes part in every round. The promise needs the secure sum, as in
VEIL's secure mode.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import dp_accounting
import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Setting

from suture.errors import RunError, StudyError
from suture.methods.base import Answer, Arrays, Method, Needs, State, weights_field
from suture.methods.declared import (
    NETWORKS,
    ROUNDS,
    SERVER_RATE,
    Citation,
    Declared,
    Fit,
    Public,
    Setup,
)
from suture.methods.fedopt import Adaptive, FedOpt
from suture.models.dense import Dense, dense_only
from suture.privacy.door import Payload, Rows, Session
from suture.privacy.unit import Patients
from suture.protection.secure_sum import Grid, Share
from suture.schema.message import Field
from suture.training.contributions import row_gradients
from suture.training.local import Local


@dataclass(frozen=True)
class FedSgd(Method):
    """One full gradient a round. ``parties`` and ``patients`` are the federation's public sizes."""

    network: Dense
    local: Local
    server: FedOpt
    parties: int = 1
    patients: int = 1 << 40
    honest: float = 0.5
    name: str = "fedsgd"
    label: str = "FedSGD (noise in the sum)"
    needs: Needs = "secure sum"
    phased: bool = True
    by_size: bool = False
    """A round costs the same at every site."""

    @property
    def honest_sites(self) -> int:
        """A sum of fewer sites than this must not be opened: its noise would be less than
        promised."""
        return max(1, math.ceil(self.honest * self.parties))

    def grid(self, noise: float | None) -> Grid:
        """The grid of a gradient, and how much of the noise is a site's own."""
        rho = None if noise is None else 1 / (2 * noise**2)
        return Grid(self.local.clip or 1.0, rho, self.network.n_params, self.honest_sites)

    # --- privacy: known before rows are touched ----------------------------------------------------------------------

    def expects(self, round_: int, site: str) -> Mapping[str, Field]:
        """The global model."""
        return {"params": weights_field(self.network)}

    def round_event(
        self, round_: int, site: str, size: int, noise: float | None
    ) -> dp_accounting.DpEvent:
        """One noisy sum, the same in every round."""
        return Share(self.grid(noise)).event

    def mechanism(self) -> str:
        """For the privacy statement."""
        return (
            "In every round each hospital summed its patients' gradients, each clipped to "
            f"{self.local.clip or 1.0:g}, on a "
            "grid of whole numbers, and added its share of discrete Gaussian noise. ASSUMPTION: "
            "the server sees only sums over "
            f"the {self.parties} hospitals (a secure sum), and at least "
            f"{self.honest_sites} of the hospitals add their share of the noise and keep it to "
            "themselves. A hospital's share "
            "alone does not protect its patients. Proof: docs/veil.md, Theorems 4 and 5."
        )

    # --- the two sides -----------------------------------------------------------------------------------------------

    def init(self, sites: Sequence[str], rng: np.random.Generator) -> State:
        """The server's model and moments."""
        return self.server.init(sites, rng)

    def broadcast(self, state: State, site: str) -> Arrays:
        """The global model."""
        return self.server.broadcast(state, site)

    def site_step(self, session: Session, own: State, message: Arrays) -> tuple[Payload, State]:
        """The site's share of the sum."""
        params = np.ascontiguousarray(message["params"], np.float32)
        local = self.local

        def each(data: Patients) -> Rows:
            return row_gradients(self.network, params, data, local), np.ones(data.rows)

        short = self._short(session.noise)
        share = Share(
            self.grid(session.noise), unbounded=session.noise is None and local.clip is None
        )
        words = session.release("gradient", share, each)
        return {"g": words.then(lambda found: found.astype(np.int32) if short else found)}, own

    def _short(self, noise: float | None) -> bool:
        return self.local.clip is not None and self.grid(noise).short(self.patients, self.parties)

    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        """The sum over all patients, divided by their public number, is the gradient of the
        server's step."""
        if any(answer.payload["g"].shape != (self.network.n_params,) for answer in answers):
            raise RunError(f"fedsgd: expected {self.network.n_params} numbers")
        total = np.sum([answer.payload["g"].astype(np.int64) for answer in answers], axis=0)
        people = sum(answer.patients for answer in answers)
        return self.server.server_step(
            state, [Answer("all", people, {"delta": self.grid(None).open(total) / people})]
        )

    def predict(
        self, state: State, own: State, x: NDArray[np.float32], site: str
    ) -> NDArray[np.float32]:
        """The global model's risk."""
        return self.server.predict(state, own, x, site)


class Summed(Adaptive):
    """FedSGD's own."""

    honest: float = Setting(default=0.5, gt=0, le=1)


def build(setup: Setup) -> FedSgd:
    """From a study."""
    own = Summed.model_validate(setup.settings)
    setup.every_site("fedsgd")
    if setup.local.dropout:
        raise StudyError("model.dropout: fedsgd takes whole gradients; set it to 0")
    dense = dense_only(setup.network, "method 'fedsgd'")
    optimiser = own.model_dump(exclude={"honest"})
    server = FedOpt(dense, setup.local, "fedadam", "size", **optimiser)
    public = setup.public
    return FedSgd(dense, setup.local, server, public.sites, public.patients, own.honest)


def suits(public: Public) -> Fit:
    """One curator's noise for everybody: the fewer patients a hospital has, the more it helps."""
    if public.images:
        return Fit(0.0, "takes whole gradients of a dense network; images need another method")
    if public.epsilon is None:
        return Fit(1.0, "its gain is in the noise; without [privacy] there is none")
    if public.sites < 3:
        return Fit(1.0, "a secure sum hides little among fewer than three hospitals")
    return Fit(3.0, "one curator's noise for all hospitals together, by a secure sum")


DECLARED = Declared(
    "fedsgd",
    build,
    Summed,
    cites=(
        Citation(
            "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure "
            "Aggregation",
            "Kairouz, Liu, Steinke",
            2021,
            "arXiv:2102.06387",
        ),
    ),
    uses=frozenset({"class_weights"}),
    searches=(ROUNDS,),
    space=lambda settings: (SERVER_RATE,),
    suits=suits,
    one_model=True,
    outcomes=NETWORKS,
)
