"""FedAdam (FedCVR), FedYogi and FedAdagrad: adaptive optimisation at the server.

FedCVR: Tertulino, Alencar: A Robust Framework for Secure Cardiovascular Risk Prediction,
arXiv:2603.13293, equations (4) to (9), bias correction included. FedYogi and FedAdagrad: Reddi,
Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: Adaptive Federated Optimization. ICLR 2021,
arXiv:2003.00295, Algorithm 2 (v starts at tau^2, no bias correction; FedAdagrad without momentum,
as both papers describe it).

| here | FedCVR | Adaptive Federated Optimization |
|---|---|---|
| `mean_delta` of the answers | g-bar_t (4) | -Delta_t |
| `m`, `v` | m_t (5), v_t (6) | m_t, v_t |
| `server_rate`, `beta1`, `beta2`, `tau` | eta, beta_1, beta_2, tau | eta, beta_1, beta_2, tau |

The server sees only releases, so its moments are post-processing: adaptivity costs no privacy.
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
    local_delta,
    local_event,
    mean_delta,
    start_weights,
    weights_field,
)
from suture.models.network import Network
from suture.privacy.door import Payload, Session
from suture.schema.message import Field
from suture.training.local import Local

Server = Literal["fedadam", "fedyogi", "fedadagrad"]
LABELS = {"fedadam": "FedAdam (FedCVR)", "fedyogi": "FedYogi", "fedadagrad": "FedAdagrad"}


@dataclass(frozen=True)
class FedOpt(Base):
    """One server optimiser, chosen by ``name``."""

    network: Network
    local: Local
    name: Server = "fedadam"
    weighting: Literal["size", "uniform"] = "uniform"
    server_rate: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.999
    tau: float = 1e-3
    needs: Literal["sum", "each"] = "sum"
    pooled: bool = False

    @property
    def label(self) -> str:
        """As written in a table."""
        return LABELS[self.name]

    def init(self, sites: Sequence[str], rng: np.random.Generator) -> State:
        """The model and both moments, kept in float64 so that rounding does not pile up over
        rounds."""
        params = start_weights(self.network, rng)["params"].astype(np.float64)
        first = 0.0 if self.name == "fedadam" else self.tau**2
        return {
            "params": params,
            "m": np.zeros_like(params),
            "v": np.full_like(params, first),
            "t": np.array(0),
        }

    def broadcast(self, state: State, site: str) -> Arrays:
        """The global model."""
        return {"params": state["params"].astype(np.float32)}

    def expects(self, round_: int, site: str) -> Mapping[str, Field]:
        """The global model."""
        return {"params": weights_field(self.network)}

    def round_event(
        self, round_: int, site: str, size: int, noise: float | None
    ) -> dp_accounting.DpEvent:
        """One round of local DP-SGD."""
        return local_event(self.local, size, noise)

    def site_step(self, session: Session, own: State, message: Arrays) -> tuple[Payload, State]:
        """Local training from the global model."""
        return {"delta": local_delta(session, self.network, self.local, message["params"])}, own

    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        """Equations (4) to (9) for FedAdam; Algorithm 2 of Reddi et al. for the other two."""
        g = mean_delta(answers, self.weighting)
        t = int(state["t"]) + 1
        beta1 = 0.0 if self.name == "fedadagrad" else self.beta1
        m = beta1 * state["m"] + (1 - beta1) * g
        if self.name == "fedadagrad":
            v = state["v"] + g**2
        elif self.name == "fedyogi":
            v = state["v"] - (1 - self.beta2) * g**2 * np.sign(state["v"] - g**2)
        else:
            v = self.beta2 * state["v"] + (1 - self.beta2) * g**2
        m_hat, v_hat = m, v
        if self.name == "fedadam":
            m_hat, v_hat = m / (1 - beta1**t), v / (1 - self.beta2**t)
        params = state["params"] - self.server_rate * m_hat / (np.sqrt(v_hat) + self.tau)
        return {"params": params, "m": m, "v": v, "t": np.array(t)}

    def predict(
        self, state: State, own: State, x: NDArray[np.float32], site: str
    ) -> NDArray[np.float32]:
        """The global model's risk."""
        return self.network.predict(state["params"].astype(np.float32), x)
