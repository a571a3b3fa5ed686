"""MOON. Li, He, Song: Model-Contrastive Federated Learning. CVPR 2021, arXiv:2103.16257, Algorithm
1.

FedAvg whose local loss also pulls a row's representation towards the global model's and away from
that of the site's previous model (`training.contrastive`). The previous model stays at the site.

| here | paper |
|---|---|
| `params` | w^t |
| `own["params"]` | w_i^(t-1), the site's model after the last round it took part in |
| `contrast`, `temperature` | mu, tau |

Two things differ from the paper's experiments: the representation is the last hidden layer and
there is no projection head of its own; and a site's first round has no previous model, so both
representations are the global model's and the term is the constant log 2: FedAvg, exactly.

**Not private.** The method is here as a baseline without a promise: nothing is clipped, its event
is non-private whatever noise is planned, and a study with [privacy] refuses it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import dp_accounting
import numpy as np
from pydantic import Field

from suture.errors import StudyError
from suture.methods.base import Arrays, State, Trained, Weighting
from suture.methods.declared import Choice, Citation, Declared, Setup
from suture.methods.fedavg import Weighted
from suture.models.dense import Dense, dense_only
from suture.privacy.door import Payload, Session
from suture.privacy.unit import Patients
from suture.training.contrastive import needs_hidden, train_contrastive


@dataclass(frozen=True)
class Moon(Trained):
    """FedAvg with a contrast between the global and the site's previous model."""

    network: Dense
    contrast: float = 1.0
    temperature: float = 0.5
    weighting: Weighting = "size"
    name: str = "moon"
    label: str = "MOON (not private)"

    def __post_init__(self) -> None:
        needs_hidden(self.network)
        if self.local.dropout:
            raise StudyError(
                "method 'moon' compares representations of the same row; set model.dropout to 0, "
                f"found {self.local.dropout:g}"
            )

    def round_event(
        self, round_: int, site: str, size: int, noise: float | None
    ) -> dp_accounting.DpEvent:
        """Nothing bounds one patient's part, whatever noise is planned."""
        return dp_accounting.NonPrivateDpEvent()

    def site_step(self, session: Session, own: State, message: Arrays) -> tuple[Payload, State]:
        """Local training on the contrastive loss; the trained model stays as the next round's
        previous one."""
        start = np.ascontiguousarray(message["params"], np.float32)
        local = replace(self.local, clip=None, noise_multiplier=None)

        def train(data: Patients, key: bytes) -> State:
            before = own.get("params", start)
            return {
                "params": train_contrastive(
                    self.network, start, before, data, local, self.contrast, self.temperature, key
                )
            }

        found = session.unprotected("training", train)["params"]
        return {"delta": found.then(lambda after: start - after)}, {"params": found.value}


class Contrast(Weighted):
    """MOON's own."""

    contrast: float = Field(default=1.0, ge=0)
    temperature: float = Field(default=0.5, gt=0)


def build(setup: Setup) -> Moon:
    """From a study."""
    own = Contrast.model_validate(setup.settings)
    network = dense_only(setup.network, "method 'moon'")
    return Moon(network, setup.local, own.contrast, own.temperature, own.weighting or "size")


DECLARED = Declared(
    "moon",
    build,
    Contrast,
    cites=(
        Citation("Model-Contrastive Federated Learning", "Li, He, Song", 2021, "arXiv:2103.16257"),
    ),
    space=lambda settings: (
        Choice("method.contrast", (0.1, 1.0, 5.0, 10.0)),
        Choice("method.temperature", (0.1, 0.5, 1.0)),
    ),
    unproven="moon is not private: its contrastive loss is trained without clipping or noise, so "
    "no budget pays for it. Use fedavg, fedprox or scaffold, which have a proof, or leave out "
    "[privacy]",
)
