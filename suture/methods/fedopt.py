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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from suture.methods.base import Answer, Arrays, State, Trained, Weighting, mean_delta
from suture.methods.declared import NETWORKS, SERVER_RATE, Citation, Declared, Settings, Setup

Server = Literal["fedadam", "fedyogi", "fedadagrad"]
LABELS = {"fedadam": "FedAdam (FedCVR)", "fedyogi": "FedYogi", "fedadagrad": "FedAdagrad"}
FEDCVR = Citation(
    "A Robust Framework for Secure Cardiovascular Risk Prediction (FedCVR)",
    "Tertulino, Alencar",
    2026,
    "arXiv:2603.13293",
)
ADAPTIVE = Citation("Adaptive Federated Optimization", "Reddi et al.", 2021, "arXiv:2003.00295")


@dataclass(frozen=True)
class FedOpt(Trained):
    """One server optimiser, chosen by ``name``."""

    name: Server = "fedadam"
    weighting: Weighting = "uniform"
    server_rate: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.999
    tau: float = 1e-3

    @property
    def label(self) -> str:
        return LABELS[self.name]

    def init(self, sites: Sequence[str], rng: np.random.Generator) -> State:
        """The model and both moments, kept in float64 so that rounding does not pile up over
        rounds."""
        params = self.network.init(rng).astype(np.float64)
        first = 0.0 if self.name == "fedadam" else self.tau**2
        return {
            "params": params,
            "m": np.zeros_like(params),
            "v": np.full_like(params, first),
            "t": np.array(0),
        }

    def broadcast(self, state: State, site: str) -> Arrays:
        return {"params": state["params"].astype(np.float32)}

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
        return self.network.predict(state["params"].astype(np.float32), x)


class Adaptive(Settings):
    """Settings of an adaptive server."""

    server_rate: float = Field(default=0.1, gt=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.999, ge=0, lt=1)
    tau: float = Field(default=1e-3, gt=0)


class AdaptiveWeighted(Adaptive):
    """The same, with a choice of weights."""

    weighting: Weighting | None = None


def _declared(name: Server, paper: Citation) -> Declared:
    def build(setup: Setup) -> FedOpt:
        own = AdaptiveWeighted.model_validate(setup.settings)
        optimiser = own.model_dump(exclude={"weighting"})
        return FedOpt(setup.network, setup.local, name, own.weighting or "uniform", **optimiser)

    return Declared(
        name,
        build,
        AdaptiveWeighted,
        cites=(paper,),
        space=lambda settings: (SERVER_RATE,),
        global_model=True,
        outcomes=NETWORKS,
    )


DECLARED = (
    _declared("fedadam", FEDCVR),
    _declared("fedyogi", ADAPTIVE),
    _declared("fedadagrad", ADAPTIVE),
)
