"""VEIL with a proof. After Vallabhaneni: VEIL: A Framework for Differentially Private, Interpretable, and
Communication-Efficient Federated Learning (paper 000), whose Algorithm 1 is in `veil_printed.py` and is not private.

A sparse logistic model over a public dictionary of concepts, learned from statistics of which one patient's part is
bounded. The proof, theorem by theorem: docs/veil.md. Three modes, each a fixed schedule of phases:

| mode            | phases                                         | what the server sees                         |
|-----------------|------------------------------------------------|----------------------------------------------|
| `votes`         | rate, vote ..., scale x 2                      | k signed concepts a hospital and round       |
| `votes+moments` | rate, vote ..., newton x 2                     | the same, then noisy moments of each hospital |
| `secure`        | rate, look, newton, (grow, newton) ..., newton | only noisy *sums* over all hospitals          |

| here | paper |
|---|---|
| `picks`, `rounds`, `server_rate` | k, T, eta_g |
| `quorum` | tau; here in standard deviations of what random votes would give, because tau = k/d is what chance gives |
| `weights`, `bias` | W; the paper has no bias |

The noise multiplier z of a site means: its whole training costs rho = rounds / (2 z^2) in zCDP, as much as that many
Gaussian releases of multiplier z. `SHARES` says which phase gets how much of rho.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import dp_accounting
import numpy as np
from numpy.typing import NDArray

from suture.errors import RunError, StudyError
from suture.methods.base import Answer, Arrays, State
from suture.methods.veil_server import add_concepts, count_votes, newton_step, scale_step
from suture.methods.veil_wire import pack, unpack
from suture.models.concepts import Concepts
from suture.models.remember import Remember
from suture.privacy.mechanisms import derive
from suture.privacy.selection import pick_strength, signed_top, signed_top_exact
from suture.privacy.unit import Patients
from suture.protection.secure_sum import Grid
from suture.training import concept_statistics as statistics

Mode = Literal["votes", "votes+moments", "secure"]
PHASES = ("rate", "vote", "scale", "look", "grow", "newton")
SHARES: dict[str, dict[str, float]] = {
    "votes": {"rate": 0.05, "vote": 0.80, "scale": 0.15},
    "votes+moments": {"rate": 0.04, "vote": 0.56, "newton": 0.40},
    "secure": {"rate": 0.02, "look": 0.12, "grow": 0.22, "newton": 0.64},
}
"""Shares of rho by phase, fixed in public; where a schedule lacks a phase the others grow in proportion."""
LEAST_ROUNDS = {"votes": 4, "votes+moments": 4, "secure": 3}
LOOK_NORM, NORM = 4.0, 3.0
"""Bounds on the norm of a patient's concepts, all and chosen ones; beyond them the patient counts for less."""
SCORE = 8.0
"""Log odds beyond which a patient's score counts as this much when the model's scale is set."""
_MATRICES: Remember[Patients, NDArray[np.float32]] = Remember(1024)
_TESTED: Remember[NDArray[np.float32], NDArray[np.float32]] = Remember(1024)
_SMALL = 1 << 21
"""Up to this many values the concepts of rows to predict for are remembered from round to round."""


@dataclass(frozen=True)
class Veil:
    """Private concepts, votes or moments. ``parties`` and ``patients`` are the federation's public sizes."""

    dictionary: Concepts
    mode: Mode = "votes"
    rounds: int = 50
    picks: int = 5
    quorum: float = 2.0
    concepts: int = 60
    server_rate: float = 0.1
    parties: int = 1
    patients: int = 1 << 40
    honest: float = 0.5
    name: str = "veil"
    pooled: bool = False

    def __post_init__(self) -> None:
        if self.rounds < LEAST_ROUNDS[self.mode]:
            raise StudyError(
                f'method.rounds: veil in mode "{self.mode}" needs at least {LEAST_ROUNDS[self.mode]}, found {self.rounds}'
            )

    @property
    def label(self) -> str:
        """As written in a table."""
        return f"VEIL ({self.mode})"

    @property
    def needs(self) -> Literal["sum", "each", "secure sum"]:
        """Votes are read one by one; the secure mode's promise holds only if the server sees the sum alone."""
        return "secure sum" if self.mode == "secure" else "each"

    @cached_property
    def schedule(self) -> tuple[str, ...]:
        """The phase of each round."""
        if self.mode == "votes":
            return ("rate", *["vote"] * (self.rounds - 3), *["scale"] * 2)
        if self.mode == "votes+moments":
            return ("rate", *["vote"] * (self.rounds - 3), *["newton"] * 2)
        pairs = ["grow", "newton"] * ((self.rounds - 3) // 2)
        return ("rate", "look", "newton", *pairs, *["newton"] * ((self.rounds - 3) % 2))

    @property
    def _honest(self) -> int:
        """How many hospitals' noise a sum can count on."""
        return max(1, int(np.ceil(self.honest * self.parties))) if self.mode == "secure" else 1

    @property
    def honest_sites(self) -> int:
        """A sum of fewer sites than this must not be opened: its noise would be less than promised."""
        return self._honest if self.mode == "secure" else 0

    @property
    def _stages(self) -> int:
        return sum(phase in ("look", "grow") for phase in self.schedule)

    def phase_rho(self, phase: str, noise: float) -> float:
        """What one round of a phase costs in zCDP at this noise multiplier."""
        shares, counts = SHARES[self.mode], Counter(self.schedule)
        total = sum(shares[name] for name in counts)
        return self.rounds / (2 * noise**2) * shares[phase] / total / counts[phase]

    # --- privacy: known before rows are touched ------------------------------------------------------------------------

    def site_event(self, patients: int, noise: float | None) -> dp_accounting.DpEvent:
        """The whole training divided by its rounds: what a round costs on average."""
        return _zcdp(None if noise is None else 1 / (2 * noise**2))

    def message_event(self, message: Arrays, patients: int, noise: float | None) -> dp_accounting.DpEvent:
        """What answering this message costs: the site charges for what it is asked, whatever the server planned."""
        return _zcdp(None if noise is None else self.phase_rho(self._phase(message), noise))

    def round_event(self, round_: int, patients: int, noise: float | None) -> dp_accounting.DpEvent:
        """What round 1, 2, ... of the schedule will cost."""
        return _zcdp(None if noise is None else self.phase_rho(self.schedule[round_ - 1], noise))

    def mechanism(self) -> str:
        """For the privacy statement."""
        votes = (
            f"In {self.schedule.count('vote')} rounds each hospital named {self.picks} concepts with a sign, by the "
            "exponential mechanism on sums to which a patient contributes at most 1 for each concept. "
        )
        moments = (
            "Sums and moments of concepts, to which a patient's contribution is bounded, left with discrete Gaussian "
            "noise. "
        )
        words = (votes if "vote" in self.schedule else "") + moments
        if self.mode == "secure":
            words += (
                f"ASSUMPTION: the server sees only sums over all {self.parties} hospitals (a secure sum, which in this run was "
                f"computed in one process by a party trusted not to look), and at least {self._honest} of the hospitals add "
                "their share of the noise and keep it to themselves. A hospital's share alone does not protect its patients. "
            )
        return words + "Proof: docs/veil.md."

    # --- the server's side ---------------------------------------------------------------------------------------------

    def init(self, sites: Sequence[str], rng: np.random.Generator) -> State:
        """No concept has a weight; nothing is random."""
        d = len(self.dictionary)
        return {
            "weights": np.zeros(d, np.float32),
            "bias": np.zeros(1, np.float32),
            "chosen": np.zeros(d, np.int32),
            "moments": np.zeros(d, np.float64),
            "quorums": np.zeros(d, np.int32),
            "t": np.zeros(1, np.int32),
        }

    def broadcast(self, state: State, site: str) -> Arrays:
        """The phase and the sparse global model."""
        ids = np.flatnonzero(state["chosen"]).astype(np.int32)
        phase = self.schedule[min(int(state["t"][0]), self.rounds - 1)]
        return {
            "phase": np.array([PHASES.index(phase)], np.int32),
            "ids": ids,
            "weights": state["weights"][ids],
            "bias": state["bias"],
        }

    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        """The next model. Everything here is post-processing of releases and of public sizes."""
        phase = self.schedule[int(state["t"][0])]
        new = {key: array.copy() for key, array in state.items()}
        new["t"] += 1
        if phase == "vote":
            votes = [unpack(answer.payload["votes"], len(self.dictionary), self.picks) for answer in answers]
            count_votes(
                new, votes, [answer.patients for answer in answers], self.quorum, self.concepts, self._rate(state)
            )
            return new
        found, noises = self._open(answers, phase, int(np.count_nonzero(state["chosen"])))
        if phase == "rate":
            people = sum(answer.patients for answer in answers)
            rate = np.clip(found["positives"][0] / people, 0.5 / people, 1 - 0.5 / people)
            new["bias"][0] = np.log(rate / (1 - rate))
        elif phase in ("look", "grow"):
            if phase == "look":
                new["moments"] = np.maximum(found["squares"], 0) + 2 * noises["squares"] + 100
            done = sum(name in ("look", "grow") for name in self.schedule[: int(state["t"][0])])
            room = self.concepts * (done + 1) // self._stages - int(np.count_nonzero(state["chosen"]))
            add_concepts(new, found["gradient"], room)
        elif phase == "newton":
            newton_step(new, found["gradient"], found["curvature"], noises["curvature"])
        else:
            scale_step(new, found["gradient"], found["curvature"], noises["curvature"], SCORE)
        return new

    def _rate(self, state: State) -> float:
        """The step falls to three tenths over the votes: early rounds find concepts, late ones settle weights."""
        votes = self.schedule.count("vote")
        return float(self.server_rate * 0.3 ** ((int(state["t"][0]) - 1) / max(votes - 1, 1)))

    def predict(self, state: State, own: State, x: NDArray[np.float32], site: str) -> NDArray[np.float32]:
        """Risk by the global model: the same at every site."""
        if len(x) * len(self.dictionary) <= _SMALL:
            values = _TESTED.get(x, lambda: self.dictionary.matrix(x), self.dictionary.digest)
            logit = values @ state["weights"] + state["bias"][0]
        else:
            ids = np.flatnonzero(state["weights"])
            logit = self.dictionary.matrix(x, ids) @ state["weights"][ids] + state["bias"][0]
        return statistics.risk(logit).astype(np.float32)

    # --- the site's side -----------------------------------------------------------------------------------------------

    def site_step(
        self, data: Patients, own: State, message: Arrays, noise: float | None, key: bytes
    ) -> tuple[Arrays, State]:
        """The statistic that the phase asks for, protected. Nothing is kept at the site."""
        phase = self._phase(message)
        rho = None if noise is None else self.phase_rho(phase, noise)
        ids, weights = message["ids"], message["weights"].astype(np.float32)
        values = _MATRICES.get(data, lambda: self.dictionary.matrix(data.x), self.dictionary.digest)
        dense = np.zeros(len(self.dictionary), np.float32)
        dense[ids] = weights
        logit = values @ dense + float(message["bias"][0])
        if phase == "vote":
            scores = statistics.vote_scores(values, data.y - statistics.risk(logit), data.starts)
            if rho is None:
                picked = signed_top_exact(scores, self.picks)
            else:
                picked = signed_top(scores, self.picks, pick_strength(rho, self.picks), derive(key, "votes"))
            return {"votes": pack(*picked, len(self.dictionary))}, own
        parts = self._statistics(phase, data, values, logit, ids, float(message["bias"][0]))
        payload: dict[str, NDArray[np.generic]] = {}
        for name, grid in self._grids(phase, len(ids), rho).items():
            words = grid.share(parts[name], derive(key, name))
            # One letter each: names travel with every message.
            payload[name[0]] = words.astype(np.int32) if grid.short(self.patients, self.parties) else words
            # How much noise was added is public; sent along as a variance, it adds up as the noise does.
            payload[f"{name[0]}v"] = np.array([int(np.ceil(grid.deviation**2))], np.int64)
        return payload, own

    def _open(
        self, answers: Sequence[Answer], phase: str, chosen: int
    ) -> tuple[dict[str, NDArray[np.float64]], dict[str, float]]:
        """The sums over all hospitals in real units, and the standard deviation of the noise in each."""
        found, noises = {}, {}
        for name, grid in self._grids(phase, chosen, None).items():
            parts = [answer.payload[name[0]] for answer in answers]
            if any(part.shape != (grid.size,) for part in parts):
                raise RunError(f"phase {phase!r}: expected {grid.size} numbers as {name!r} from every hospital")
            found[name] = grid.open(np.sum([part.astype(np.int64) for part in parts], axis=0))
            variance = sum(float(answer.payload[f"{name[0]}v"][0]) for answer in answers)
            noises[name] = float(np.sqrt(variance)) / grid.steps
        return found, noises

    def _statistics(
        self,
        phase: str,
        data: Patients,
        values: NDArray[np.float32],
        logit: NDArray[np.float32],
        ids: NDArray[np.int32],
        bias: float,
    ) -> dict[str, NDArray[np.float64]]:
        """The real vectors of a phase, each within its sensitivity in `_grids`."""
        one = np.ones((data.rows, 1), np.float32)
        if phase == "rate":
            weights = statistics.patient_weights(one, 1.0, data.starts)
            return {"positives": statistics.gradient(one, data.y.astype(np.float64), weights)}
        p = statistics.risk(logit)
        if phase in ("look", "grow"):
            w = statistics.patient_weights(values, LOOK_NORM, data.starts, power=1)
            found = {"gradient": statistics.gradient(values, data.y - p, w)}
            if phase == "look":
                w = statistics.patient_weights(values, LOOK_NORM, data.starts)
                found["squares"] = statistics.second_moments(values, w)
            return found
        if phase == "newton":
            basis, limit = np.hstack([one, values[:, ids]]), NORM
        else:
            score = np.clip(logit - bias, -SCORE, SCORE).astype(np.float32) / np.float32(SCORE)
            basis, limit = np.hstack([one, score[:, None]]), float(np.sqrt(2))
        w = statistics.patient_weights(basis, limit, data.starts)
        return {"gradient": statistics.gradient(basis, data.y - p, w), "curvature": statistics.curvature(basis, p, w)}

    def _grids(self, phase: str, chosen: int, rho: float | None) -> dict[str, Grid]:
        """Sensitivity, cost and size of every vector of a phase; their costs add up to the phase's."""

        def grid(sensitivity: float, share: float, size: int) -> Grid:
            return Grid(sensitivity, None if rho is None else rho * share, size, self._honest)

        d = len(self.dictionary)
        if phase == "rate":
            return {"positives": grid(1.0, 1.0, 1)}
        if phase == "look":
            return {"gradient": grid(LOOK_NORM, 0.7, d), "squares": grid(LOOK_NORM**2, 0.3, d)}
        if phase == "grow":
            return {"gradient": grid(LOOK_NORM, 1.0, d)}
        size, limit = (chosen + 1, NORM) if phase == "newton" else (2, float(np.sqrt(2)))
        return {"gradient": grid(limit, 0.5, size), "curvature": grid(limit**2 / 4, 0.5, size * (size + 1) // 2)}

    def _phase(self, message: Arrays) -> str:
        """The phase a message asks for; one that this mode does not have is refused."""
        index = int(message["phase"][0])
        if not 0 <= index < len(PHASES) or PHASES[index] not in self.schedule:
            raise RunError(f"the server asks for phase {index}, which veil in mode {self.mode!r} does not have")
        return PHASES[index]


def _zcdp(rho: float | None) -> dp_accounting.DpEvent:
    return dp_accounting.NonPrivateDpEvent() if rho is None else dp_accounting.ZCDpEvent(rho)
