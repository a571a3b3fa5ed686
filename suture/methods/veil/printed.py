"""VEIL as printed: Algorithm 1 of the paper to the letter, kept so that its table can be repeated
and its leak shown.

**Not private: signs are released unprotected.** Line 9 sends sign(w_j), a deterministic function of
the rows: one patient more can flip it with certainty, so no epsilon bounds the release
(tests/methods/test_veil_printed.py shows two such tables). Its event is `NonPrivate`, a study with
a [privacy] promise refuses it, and the epsilon given to its formula is shown as claimed.

| here | paper |
|---|---|
| `rounds`, `picks`, `quorum`, `server_rate` | T, k, tau, eta_g |
| `claimed_epsilon` | epsilon; epsilon_r = epsilon / T |
| `local` | E epochs, batches of B in the mean (Poisson), rate eta_c |
| `CLIP` | C, of each patient's gradient; the paper does not state it |
| `sensitivity` | equation (1): 2 E |D_c| / B eta_c C |

The paper's client model has no bias and its features are the 90 encoded columns; so here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import dp_accounting
import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Setting

from suture.methods.base import Answer, Arrays, Method, Needs, State
from suture.methods.declared import Choice, Declared, Range, Settings, Setup
from suture.methods.veil.method import PAPER, two_outcomes
from suture.methods.veil.wire import pack, unpack
from suture.models.dense import Dense, dense_only
from suture.privacy.door import Payload, Session
from suture.privacy.noise.source import derive, generator
from suture.privacy.unit import Patients
from suture.schema.message import Field
from suture.training.contributions import logits, risk
from suture.training.local import Local, at_round
from suture.training.mechanism import train

CLIP = 1.0


@dataclass(frozen=True)
class VeilPrinted(Method):
    """Proposals by local weights, signs in the clear."""

    inputs: int
    local: Local
    rounds: int
    picks: int = 10
    quorum: float = 0.1
    server_rate: float = 0.1
    claimed_epsilon: float = 5.0
    name: str = "veil-printed"
    needs: Needs = "each"

    @property
    def label(self) -> str:
        claims = f"claims epsilon {self.claimed_epsilon:g}"
        return f"VEIL as printed (not private: signs are released unprotected; {claims})"

    def at_round(self, round_: int, rounds: int) -> VeilPrinted:
        return replace(self, local=at_round(self.local, round_, rounds))

    def sensitivity(self, patients: int) -> float:
        """Equation (1). The bound is the paper's; with it every selection is nearly uniform.

        >>> VeilPrinted(3, Local(epochs=1, batch=10, rate=0.1), rounds=50).sensitivity(100)
        2.0
        """
        return 2 * self.local.epochs * patients / self.local.batch * self.local.rate * CLIP

    def init(self, sites: Sequence[str], rng: np.random.Generator) -> State:
        """W = 0."""
        return {
            "weights": np.zeros(self.inputs, np.float32),
            "quorums": np.zeros(self.inputs, np.int32),
        }

    def broadcast(self, state: State, site: str) -> Arrays:
        """Clients train from zero: the global model is not sent."""
        return {}

    def expects(self, round_: int, site: str) -> Mapping[str, Field]:
        """Nothing."""
        return {}

    def round_event(
        self, round_: int, site: str, size: int, noise: float | None
    ) -> dp_accounting.DpEvent:
        """The signs are not protected, whatever noise is planned."""
        return dp_accounting.NonPrivateDpEvent()

    def site_step(self, session: Session, own: State, message: Arrays) -> tuple[Payload, State]:
        """ClientUpdate, lines 3 to 10."""
        return session.unprotected("votes", self.votes), own

    def votes(self, data: Patients, key: bytes) -> State:
        """Concepts by the exponential mechanism, with their signs in the clear."""
        weights = self.local_weights(data, key)
        quality = np.abs(weights)
        share = self.claimed_epsilon / self.rounds / (2 * self.picks * self.sensitivity(data.size))
        # k draws without replacement with probabilities proportional to exp(share * quality), by
        # Gumbel's trick.
        noisy = share * quality + generator(derive(key, "proposals")).gumbel(size=self.inputs)
        ids = np.argsort(-noisy, kind="stable")[: self.picks].astype(np.int64)
        return {"votes": pack(ids, np.where(weights[ids] < 0, -1, 1), self.inputs)}

    def local_weights(self, data: Patients, key: bytes) -> NDArray[np.float64]:
        """Line 3: a linear model by clipped gradient descent from zero."""
        network = Dense((self.inputs, 1))
        local = replace(self.local, clip=CLIP, noise_multiplier=None)
        trained = train(
            network, np.zeros(network.n_params, np.float32), data, local, derive(key, "training")
        )
        return trained[: self.inputs].astype(np.float64)

    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        """Lines 13 to 19."""
        counts, signs = np.zeros(self.inputs), np.zeros(self.inputs)
        for answer in answers:
            ids, way = unpack(answer.payload["votes"], self.inputs, self.picks)
            counts[ids] += 1
            signs[ids] += way
        past = (counts >= self.quorum * len(answers)) & (counts > 0)
        moved = np.where(past, self.server_rate * signs / np.maximum(counts, 1), 0.0)
        return {
            "weights": (state["weights"] + moved).astype(np.float32),
            "quorums": state["quorums"] + past.astype(np.int32),
        }

    def predict(
        self, state: State, own: State, x: NDArray[np.float32], site: str
    ) -> NDArray[np.float32]:
        """The sigmoid of W x: a score, not a calibrated risk."""
        return risk(logits(x, state["weights"], 0.0)).astype(np.float32)


class Printed(Settings):
    """Algorithm 1's settings."""

    picks: int = Setting(default=4, ge=1)
    quorum: float | None = Setting(default=None, ge=0)
    server_rate: float = Setting(default=0.1, gt=0)
    claimed_epsilon: float = Setting(default=5.0, gt=0)


def build(setup: Setup) -> VeilPrinted:
    """From a study."""
    own = Printed.model_validate(setup.settings)
    two_outcomes("veil-printed", setup.public)
    width = dense_only(setup.network, "method 'veil-printed'").inputs
    quorum = 0.1 if own.quorum is None else own.quorum
    return VeilPrinted(
        width,
        setup.local,
        setup.rounds,
        min(own.picks, width),
        quorum,
        own.server_rate,
        own.claimed_epsilon,
    )


DECLARED = Declared(
    "veil-printed",
    build,
    Printed,
    cites=(PAPER,),
    clipped=False,
    space=lambda settings: (
        Choice("method.picks", (2, 5, 10, 20)),
        Range("method.quorum", 0.01, 0.5),
        Range("method.server_rate", 0.03, 1.0),
    ),
    unproven="veil-printed is not private: signs are released unprotected, so no budget pays for "
    "it. Use veil, which has a proof, or leave out [privacy]; its method.claimed_epsilon is shown "
    "as claimed",
)
