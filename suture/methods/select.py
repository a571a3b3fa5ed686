"""Private tuning: train a few candidates one after another, score all of them at once, keep the best.

Around any method that ends in one global model, with ``method.candidates``. Every candidate's
releases are seen by the coordinator, so a theorem about a choice of which only the winner is shown
(Liu & Talwar 2019, arXiv:1811.07971; Papernot & Steinke 2022, arXiv:2110.03620) does not apply. What
does is plain adaptive composition (Dwork & Roth 2014, Theorem 3.16, for any events): the ledger
composes the rounds of all candidates and the round of the scores, and the choice is
post-processing. Proof, price and experiments: docs/tuning.md.

| here | docs/tuning.md |
|---|---|
| candidate j, rounds j R + 1 to (j + 1) R | A_j, a training of its own with the same noise as the others |
| the last round | S, one noisy sum over all patients of the centred Brier scores |
| `LIMIT` | C, the most that a patient adds to S in L2 norm |
| `PART` | f, the part of the budget (mu^2) that S is given |
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from typing import Any, Self

import dp_accounting
import numpy as np
from numpy.typing import NDArray

from suture.errors import RunError, StudyError
from suture.methods.base import Answer, Arrays, Doubt, Method, State, Trained, Wrapper, mean_delta
from suture.methods.declared import Settings
from suture.privacy.door import Payload, Rows, Session
from suture.privacy.unit import Patients
from suture.protection.secure_sum import Grid, Share
from suture.schema.message import Field
from suture.training.local import steps

LIMIT = 0.25
PART = 0.05
COARSE = 0.003
"""With more noise than this in a candidate's mean Brier score, the choice is close to chance."""
MARK = "select."
LOCAL = {
    "local_epochs": "epochs",
    "local_steps": "most_steps",
    "batch": "batch",
    "rate": "rate",
    "momentum": "momentum",
    "rate_decay": "decay",
    "rate_steps": "decays",
    "clip": "clip",
}
"""Settings of local training that a candidate may state, as `Local` calls them."""


class Selected(Settings):
    """Settings of any method that ends in one global model."""

    candidates: tuple[dict[str, float | int | bool | str], ...] = ()


@dataclass(frozen=True)
class Selection(Wrapper):
    """The first candidate inside, the others beside it; ``rounds`` are those of each."""

    others: tuple[Method, ...]
    rounds: int
    settings: tuple[Mapping[str, Any], ...]
    model: tuple[str, ...]
    """The arrays of a state that make a prediction."""

    @property
    def candidates(self) -> tuple[Method, ...]:
        return (self.inner, *self.others)

    @property
    def label(self) -> str:
        return f"{self.inner.label}, best of {len(self.candidates)}"

    @property
    def phased(self) -> bool:
        return True

    def _turn(self, round_: int) -> tuple[int, int]:
        """The candidate of a round, from 0 on, and its own round; the last round is nobody's."""
        before = min(round_ - 1, len(self.candidates) * self.rounds)
        return before // self.rounds, before % self.rounds + 1

    def _of(self, round_: int) -> tuple[Method | None, int]:
        which, own = self._turn(round_)
        return (self.candidates[which] if which < len(self.candidates) else None), own

    def planned(self, noise: float | None) -> Self:
        return self._with([one.planned(noise) for one in self.candidates])

    def at_round(self, round_: int, rounds: int) -> Self:
        which, own = self._turn(round_)
        return self._with(
            [
                one.at_round(own, self.rounds) if i == which else one
                for i, one in enumerate(self.candidates)
            ]
        )

    def _with(self, found: Sequence[Method]) -> Self:
        return replace(self, inner=found[0], others=tuple(found[1:]))

    def sums(self, round_: int, sites: Sequence[str]) -> Sequence[tuple[str, ...]] | None:
        one, own = self._of(round_)
        return None if one is None else one.sums(own, sites)

    # --- the promise -----------------------------------------------------------------------------

    def expects(self, round_: int, site: str) -> Mapping[str, Field]:
        one, own = self._of(round_)
        if one is not None:
            return one.expects(own, site)
        shapes = self.inner.init([site], np.random.default_rng(0))
        return {
            f"{i}.{name}": Field("<f4", shapes[name].shape)
            for i in range(len(self.candidates))
            for name in self.model
        }

    def round_event(
        self, round_: int, site: str, size: int, noise: float | None
    ) -> dp_accounting.DpEvent:
        one, own = self._of(round_)
        if one is None:
            return self.score(noise, size).event
        return one.round_event(own, site, size, noise)

    def score(self, noise: float | None, size: int) -> Share:
        """The mechanism of the last round. How much of the budget it takes is a guess from the
        central limit theorem (Dong, Roth & Su 2022, Corollary 5.4); what it costs is exact."""
        honest = max(1, self.inner.honest_sites) if self.inner.needs == "secure sum" else 1
        if noise is None:
            return Share(Grid(LIMIT, None, len(self.candidates), honest))
        spent = math.fsum(self.rounds * _mu_squared(one, noise, size) for one in self.candidates)
        rho = PART / (1 - PART) * spent / 2
        return Share(Grid(LIMIT, rho, len(self.candidates), honest))

    def mechanism(self) -> str:
        inside = self.inner.mechanism() or (
            "In every round each hospital sent a model update by DP-SGD, clipped by patient."
        )
        return (
            f"{len(self.candidates)} candidates were trained one after another, each of them paid "
            f"for in full. {inside} In the last round each hospital summed by how much each "
            "candidate's Brier score lies above the mean of all candidates, for each patient "
            f"(clipped to a norm of {LIMIT:g}), with noise. The choice follows from that sum. "
            "Proof: docs/tuning.md."
        )

    def foresees(
        self, noise: Mapping[str, float], sizes: Mapping[str, int], rounds: int
    ) -> tuple[Doubt, ...]:
        """Whether the scores tell candidates apart."""
        variance = math.fsum(
            (grid.deviation / grid.steps) ** 2
            for grid in (self.score(level, sizes[site]).grid for site, level in noise.items())
        )
        error = math.sqrt(variance) / max(1, sum(sizes[site] for site in noise))
        text = (
            f"noise of {error:.4f} in each candidate's mean Brier score: differences of less than "
            "about three times that are chosen by chance"
        )
        found = self.inner.foresees(noise, sizes, self.rounds)
        return (*found, Doubt("look", text)) if error > COARSE else found

    # --- a round -----------------------------------------------------------------------------------

    def init(self, sites: Sequence[str], rng: np.random.Generator) -> State:
        """All candidates begin at the same public point."""
        found = [one.init(sites, deepcopy(rng)) for one in self.candidates]
        waiting = {
            f"{MARK}{i}.{name}": array
            for i, state in enumerate(found)
            for name, array in state.items()
        }
        return {**found[0], **waiting, f"{MARK}at": np.zeros((), np.int64)}

    def broadcast(self, state: State, site: str) -> Arrays:
        one, _ = self._of(int(state[f"{MARK}at"]) + 1)
        if one is not None:
            return one.broadcast(_own(state), site)
        return {
            f"{i}.{name}": state[f"{MARK}{i}.{name}"].astype(np.float32)
            for i in range(len(self.candidates))
            for name in self.model
        }

    def site_step(self, session: Session, own: State, message: Arrays) -> tuple[Payload, State]:
        """A step of the round's candidate, with what the site keeps for that one alone; or the
        scores."""
        which, round_ = self._turn(session.round)
        if which == len(self.candidates):
            return self._scores(session, message), own
        marked = f"{MARK}candidate"
        kept = own if marked in own and int(own[marked]) == which else {}
        inside = copy(session)  # the same charge and the same names; only the round is its own
        inside.round = round_
        payload, new = self.candidates[which].site_step(inside, _own(kept), message)
        return payload, {**new, marked: np.array(which)}

    def _scores(self, session: Session, message: Arrays) -> Payload:
        share = self.score(session.noise, session.size)

        def each(data: Patients) -> Rows:
            found = np.stack([self._brier(i, message, data, session.site) for i in every], axis=1)
            counts = np.diff(data.starts)
            centred = (found - found.mean(axis=1, keepdims=True)).astype(np.float32)
            return centred, np.repeat(1.0 / counts, counts)

        every = range(len(self.candidates))
        words = session.release("scores", share, each)
        if self.inner.needs == "secure sum":
            return {"scores": words}
        # As an update, which any sum or mean of updates can carry.
        return {"delta": words.then(lambda w: _mean(share.grid, w, session.size))}

    def _brier(self, which: int, message: Arrays, data: Patients, site: str) -> NDArray[np.float64]:
        """Each row's Brier score by one candidate, within [0, 1]."""
        state = {name: message[f"{which}.{name}"] for name in self.model}
        p = np.nan_to_num(self.candidates[which].predict(state, {}, data.x, site), nan=0.5)
        if p.ndim == 1:
            return np.asarray((p.astype(np.float64) - (data.y > 0)) ** 2)
        truth = np.eye(p.shape[1])[data.y]
        return np.asarray(np.sum((p.astype(np.float64) - truth) ** 2, axis=1) / 2)

    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        """The candidate's step; after its last round the next one's start, after the scores the
        best one's model."""
        at = int(state[f"{MARK}at"]) + 1
        which, round_ = self._turn(at)
        hidden = {name: array for name, array in state.items() if name.startswith(MARK)}
        hidden[f"{MARK}at"] = np.array(at, np.int64)
        if which == len(self.candidates):
            scores = self._opened(answers)
            return {**hidden, **self._kept(hidden, int(np.argmin(scores))), f"{MARK}scores": scores}
        new = self.candidates[which].server_step(_own(state), answers)
        if round_ < self.rounds:
            return {**hidden, **new}
        hidden |= {f"{MARK}{which}.{name}": array for name, array in new.items()}
        # Before the scores are known the last candidate stands for all.
        return {**hidden, **self._kept(hidden, min(which + 1, len(self.candidates) - 1))}

    def _kept(self, state: State, which: int) -> State:
        start = f"{MARK}{which}."
        found = {name.removeprefix(start): a for name, a in state.items() if name.startswith(start)}
        return found | {f"{MARK}chosen": np.array(which)}

    def _opened(self, answers: Sequence[Answer]) -> NDArray[np.float64]:
        if self.inner.needs != "secure sum":
            found = mean_delta(answers, self.weighting)
        else:
            total = np.sum([a.payload["scores"].astype(np.int64) for a in answers], axis=0)
            people = sum(answer.patients for answer in answers)
            found = self.score(None, 1).grid.open(total) / people
        if found.shape != (len(self.candidates),):
            raise RunError(f"candidates: expected {len(self.candidates)} scores")
        return found

    # --- the model ---------------------------------------------------------------------------------

    def predict(
        self, state: State, own: State, x: NDArray[np.float32], site: str
    ) -> NDArray[np.float32]:
        return self._current(state).predict(_own(state), _own(own), x, site)

    def _current(self, state: State) -> Method:
        return self.candidates[int(state.get(f"{MARK}chosen", 0))]

    def facts(self, state: State) -> dict[str, object]:
        """The best candidate's, every candidate's settings and score, and which one was taken."""
        found = self._current(state).facts(_own(state))
        if f"{MARK}scores" not in state:
            return found
        scores = [float(score) for score in state[f"{MARK}scores"]]
        told = [
            {"settings": dict(one), "score": score}
            for one, score in zip(self.settings, scores, strict=True)
        ]
        return {**found, "candidates": told, "chosen": int(state[f"{MARK}chosen"])}

    def noted(self, before: State, after: State) -> dict[str, object]:
        return {}


def _own(state: Arrays) -> State:
    """What belongs to the candidate itself."""
    return {name: array for name, array in state.items() if not name.startswith(MARK)}


def _mean(grid: Grid, words: NDArray[Any], size: int) -> NDArray[np.float32]:
    found: NDArray[np.float32] = (grid.open(words) / max(1, size)).astype(np.float32)
    return found


def _mu_squared(method: Method, noise: float, size: int) -> float:
    """About what a round costs, as the mu^2 of a Gaussian release."""
    if not isinstance(method, Trained):
        return 1 / noise**2
    rate = min(1.0, method.local.batch / max(1, size))
    return steps(size, method.local) * rate**2 * math.expm1(min(1 / noise**2, 500.0))


def shares(rounds: int, candidates: int) -> int:
    """The rounds of each candidate: all but the last are dealt out evenly.

    >>> shares(41, 4)
    10
    """
    if candidates < 2 or (rounds - 1) % candidates or rounds <= candidates:
        raise StudyError(
            f"method.candidates: expected two or more, and method.rounds = 1 + a multiple of their "
            f"number; found {candidates} candidates and rounds = {rounds}"
        )
    return (rounds - 1) // candidates
