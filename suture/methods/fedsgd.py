"""FedSGD with noise that adds up: every round one gradient of all patients, of which only the noisy sum is opened.

FedSGD: McMahan et al., AISTATS 2017 (arXiv:1602.05629), section 2. The noise: Kairouz, Liu, Steinke: The Distributed Discrete
Gaussian Mechanism for Federated Learning with Secure Aggregation, ICML 2021 (arXiv:2102.06387). The server takes its step with
Adam (`fedopt.py`).

Each site sends the sum of its patients' clipped gradients on an integer grid plus its share of discrete Gaussian noise; the
secure sum over all sites carries the noise that a trusted curator would have added once. Local DP-SGD makes every hospital
hide its patients by itself, which takes a whole curator's noise at each.

| here | there |
|---|---|
| noise multiplier z | one round costs rho = 1 / (2 z^2) in zCDP (docs/veil.md, Theorems 4 and 5) |
| `local.clip` | c, the bound on a patient's summed gradient |
| ``honest_sites`` | the number of sites whose noise is counted on |

Nothing is sampled: every patient takes part in every round. The promise needs the secure sum, as in VEIL's secure mode.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import dp_accounting
import numpy as np
from numpy.typing import NDArray

from suture.errors import DataError, RunError
from suture.methods.base import Answer, Arrays, State
from suture.methods.fedopt import FedOpt
from suture.models.dense import Dense
from suture.privacy.mechanisms import derive
from suture.privacy.unit import Patients
from suture.protection.secure_sum import Grid
from suture.training.full_batch import MOST_PATIENTS, clipped_sum
from suture.training.local import Local


@dataclass(frozen=True)
class FedSgd:
    """One full gradient a round. ``parties`` and ``patients`` are the federation's public sizes."""

    network: Dense
    local: Local
    server: FedOpt
    parties: int = 1
    patients: int = 1 << 40
    honest: float = 0.5
    name: str = "fedsgd"
    label: str = "FedSGD (noise in the sum)"
    needs: Literal["sum", "each", "secure sum"] = "secure sum"
    pooled: bool = field(default=False)

    @property
    def honest_sites(self) -> int:
        """A sum of fewer sites than this must not be opened: its noise would be less than promised."""
        return max(1, math.ceil(self.honest * self.parties))

    def grid(self, noise: float | None) -> Grid:
        """The grid of a gradient, and how much of the noise is a site's own."""
        rho = None if noise is None else 1 / (2 * noise**2)
        return Grid(self.local.clip or 1.0, rho, self.network.n_params, self.honest_sites)

    # --- privacy: known before rows are touched ----------------------------------------------------------------------

    def site_event(self, patients: int, noise: float | None) -> dp_accounting.DpEvent:
        """One noisy sum."""
        return dp_accounting.NonPrivateDpEvent() if noise is None else dp_accounting.ZCDpEvent(1 / (2 * noise**2))

    def message_event(self, message: Arrays, patients: int, noise: float | None) -> dp_accounting.DpEvent:
        """Every message asks for the same."""
        return self.site_event(patients, noise)

    def round_event(self, round_: int, patients: int, noise: float | None) -> dp_accounting.DpEvent:
        """Every round costs the same."""
        return self.site_event(patients, noise)

    def mechanism(self) -> str:
        """For the privacy statement."""
        return (
            f"In every round each hospital summed its patients' gradients, each clipped to {self.local.clip or 1.0:g}, on a "
            "grid of whole numbers, and added its share of discrete Gaussian noise. ASSUMPTION: the server sees only sums over "
            f"the {self.parties} hospitals (a secure sum; docs/secure-sums.md says who is trusted with what), and at least "
            f"{self.honest_sites} of the hospitals add their share of the noise and keep it to themselves. A hospital's share "
            "alone does not protect its patients. Proof: docs/veil.md, Theorems 4 and 5."
        )

    # --- the two sides -----------------------------------------------------------------------------------------------

    def init(self, sites: Sequence[str], rng: np.random.Generator) -> State:
        """The server's model and moments."""
        return self.server.init(sites, rng)

    def broadcast(self, state: State, site: str) -> Arrays:
        """The global model."""
        return self.server.broadcast(state, site)

    def site_step(
        self, data: Patients, own: State, message: Arrays, noise: float | None, key: bytes
    ) -> tuple[Arrays, State]:
        """The site's share of the sum."""
        if data.patients > MOST_PATIENTS:
            raise DataError(f"fedsgd: a site may have up to {MOST_PATIENTS:,} patients, found {data.patients:,}")
        grid = self.grid(noise)
        params = np.ascontiguousarray(message["params"], np.float32)
        clip = math.inf if noise is None and self.local.clip is None else grid.sensitivity
        words = grid.share(clipped_sum(self.network, params, data, self.local, clip), derive(key, "gradient"))
        return {"g": words.astype(np.int32) if self._short(noise) else words}, own

    def _short(self, noise: float | None) -> bool:
        return self.local.clip is not None and self.grid(noise).short(self.patients, self.parties)

    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        """The sum over all patients, divided by their public number, is the gradient of the server's step."""
        if any(answer.payload["g"].shape != (self.network.n_params,) for answer in answers):
            raise RunError(f"fedsgd: expected {self.network.n_params} numbers")
        total = np.sum([answer.payload["g"].astype(np.int64) for answer in answers], axis=0)
        people = sum(answer.patients for answer in answers)
        return self.server.server_step(state, [Answer("all", people, {"delta": self.grid(None).open(total) / people})])

    def predict(self, state: State, own: State, x: NDArray[np.float32], site: str) -> NDArray[np.float32]:
        """The global model's risk."""
        return self.server.predict(state, own, x, site)
