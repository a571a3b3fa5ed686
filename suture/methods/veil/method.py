"""VEIL with a proof. After Vallabhaneni: VEIL: A Framework for Differentially Private,
Interpretable, and Communication-Efficient Federated Learning, whose Algorithm 1 is in
`printed.py` and is not private.

A sparse logistic model over a public dictionary of concepts, learned from statistics of which one
patient's part is bounded. The proof, theorem by theorem: docs/veil.md. Three modes, each a fixed
schedule of phases:

| mode            | phases                                      | what the server sees                          |
|-----------------|---------------------------------------------|-----------------------------------------------|
| `votes`         | rate, vote ..., scale x 2                   | k signed concepts a hospital and round        |
| `votes+moments` | rate, vote ..., newton x 2                  | the same, then noisy moments of each hospital |
| `secure`        | moments, look, step ...                     | only noisy *sums* over many hospitals         |

The first two are in this file, the third in `secure.py` (what a site sends) and `fit.py` (the
server): the additive model's gradients (`methods/gradients.py`) of the chosen concepts.

| here | paper |
|---|---|
| `picks`, `rounds`, `server_rate` | k, T, eta_g |
| `quorum` | tau; here in standard deviations of what random votes would give, because tau = k/d is what chance gives |
| `weights`, `bias` | W; the paper has no bias |

The noise multiplier z of a site means: its whole training costs as much as ``rounds`` Gaussian
releases of multiplier z, rho = rounds / (2 z^2) in all. `SHARES` says which phase gets how much of
rho. Sums cost exactly what Gaussian releases cost; votes are rho-zCDP.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import dp_accounting
import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Setting

from suture.errors import RunError, StudyError
from suture.methods.base import Answer, Arrays, Doubt, Method, Needs, State
from suture.methods.declared import (
    ROUNDS,
    Choice,
    Citation,
    Declared,
    Fit,
    Public,
    Range,
    Settings,
    Setup,
    Space,
)
from suture.methods.gradients import BIAS
from suture.methods.veil import fit, foresight, secure
from suture.methods.veil.directions import Directions
from suture.methods.veil.server import count_votes, newton_step, scale_step
from suture.methods.veil.teams import Teams
from suture.methods.veil.wire import id_type, pack, unpack
from suture.models.concepts import Concepts, Remember, dictionary, plain
from suture.models.dense import dense_only
from suture.privacy.door import Payload, Rows, Sealed, Session
from suture.privacy.noise.mechanisms import Pick
from suture.privacy.unit import Patients
from suture.protection.secure_sum import Grid, Share, gaussian_cost
from suture.schema.message import Field, UpTo
from suture.training import contributions as statistics

Mode = Literal["votes", "votes+moments", "secure"]
Protected = Literal["allowed", "penalised", "excluded"]
SHARES: dict[str, dict[str, float]] = {
    "votes": {"rate": 0.05, "vote": 0.80, "scale": 0.15},
    "votes+moments": {"rate": 0.04, "vote": 0.56, "newton": 0.40},
    "secure": {"moments": 0.05, "look": 0.30, "step": 0.65},
}
"""Shares of rho by phase, fixed in public; where a schedule lacks a phase the others grow in
proportion."""
LEAST_ROUNDS = {"votes": 4, "votes+moments": 4, "secure": 4}
NORM = (
    3.0  # Bound on the norm of a patient's chosen concepts; beyond it the patient counts for less.
)
ONE_TEAM = Teams((), 1)
STRONGEST = 1024.0
"""No weight or bias in a message is larger."""
SCORE = 8.0
"""Log odds beyond which a patient's score counts as this much when the model's scale is set."""
_MATRICES: Remember[Patients, NDArray[np.float32]] = Remember(1024)
_TESTED: Remember[NDArray[np.float32], NDArray[np.float32]] = Remember(1024)
_SMALL = (
    1 << 21
)  # Up to this many values the concepts of rows to predict for are remembered from round to round.


@dataclass(frozen=True)
class Veil(Method):
    """Private concepts, votes or moments. ``parties`` and ``patients`` are the federation's public
    sizes."""

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
    teams: Teams = ONE_TEAM
    directions: Directions = "medicine"
    protected: Protected = "allowed"
    name: str = "veil"
    phased: bool = True
    by_size: bool = False
    """A round costs the same whatever a hospital's size."""

    def __post_init__(self) -> None:
        if self.rounds < LEAST_ROUNDS[self.mode]:
            raise StudyError(
                f'method.rounds: veil in mode "{self.mode}" needs at least '
                f"{LEAST_ROUNDS[self.mode]}, found {self.rounds}"
            )

    @property
    def label(self) -> str:
        """As written in a table."""
        return f"VEIL ({self.mode})"

    @property
    def needs(self) -> Needs:
        """Votes are read one by one; the secure mode's promise holds only if the server sees the
        sum alone."""
        return "secure sum" if self.mode == "secure" else "each"

    @cached_property
    def schedule(self) -> tuple[str, ...]:
        """The phase of each round."""
        if self.mode == "secure":
            return ("moments", "look", *["step"] * (self.rounds - 2))
        return (
            "rate",
            *["vote"] * (self.rounds - 3),
            *["scale" if self.mode == "votes" else "newton"] * 2,
        )

    @property
    def honest_sites(self) -> int:
        """A sum of fewer sites than this must not be opened: its noise would be less than
        promised."""
        return max(1, int(np.ceil(self.honest * self.parties))) if self.mode == "secure" else 0

    def honest_of(self, group: Sequence[str]) -> int:
        """The same of one sum."""
        return self.teams.least(group, self.honest) if self.teams.sizes else self.honest_sites

    def phase_rho(self, phase: str, noise: float) -> float:
        """What one answer to a phase costs at this noise multiplier, as a rho that adds up."""
        return self.rounds / (2 * noise**2) * self._parts[phase]

    @cached_property
    def _parts(self) -> dict[str, float]:
        """Of the whole training's rho, what one answer to each phase costs."""
        shares, counts = SHARES[self.mode], Counter(self.schedule)
        total = sum(shares[phase] for phase in counts)
        return {phase: shares[phase] / total / counts[phase] for phase in counts}

    # --- privacy: known before rows are touched ------------------------------------------------------------------------

    def phase(self, round_: int) -> str:
        """What a round asks: by the public schedule, never by the message."""
        return self.schedule[round_ - 1]

    def _sum(self, phase: str, site: str) -> int:
        """The number of the secure sum that a site adds to."""
        return self._sums[phase][self.teams.team.get(site, 0)]

    @cached_property
    def _sums(self) -> dict[str, dict[int, int]]:
        """For each phase: every team, and the number of the sum that it adds to."""
        return {
            phase: {
                team: i for i, members in enumerate(self.teams.asked(phase)) for team in members
            }
            for phase in set(self.schedule)
        }

    def expects(self, round_: int, site: str) -> Mapping[str, Field]:
        """The sparse model, and in the secure mode what centres the concepts."""
        phase, d = self.phase(round_), len(self.dictionary)
        chosen = UpTo("concepts", min(d, max(self.concepts, 1)))
        one = Field("<f4", (1,), -STRONGEST, STRONGEST)
        ids = Field(id_type(d), (chosen,), 0, d - 1, rising=True)
        if self.mode != "secure":
            # Half precision: a weight to one part in 2,000, in half of the bytes.
            weights = Field("<f2", (chosen,), -STRONGEST, STRONGEST)
            return {"ids": ids, "weights": weights, "bias": one}
        if phase == "moments":
            return {}
        base = Field("<f4", (1,), -secure.FURTHEST, secure.FURTHEST)
        if phase == "look":
            part = self.teams.part(self._sum(phase, site), d)
            return {"base": base, "centre": Field("|i1", (len(part),), -127, 127)}
        return {
            "base": base,
            "bias": one,
            "ids": ids,
            "weights": Field("<f4", (chosen,), -STRONGEST, STRONGEST),
            "centre": Field("|i1", (chosen,), -127, 127),
            "scale": Field("<f4", (1,), *secure.SCALES),
        }

    def round_event(
        self, round_: int, site: str, size: int, noise: float | None
    ) -> dp_accounting.DpEvent:
        """What round 1, 2, ... of the schedule costs this hospital."""
        phase = self.phase(round_)
        rho = None if noise is None else self.phase_rho(phase, noise)
        if phase == "vote":
            return Pick(self.picks, len(self.dictionary), rho).event
        return gaussian_cost(rho)

    def foresees(
        self, noise: Mapping[str, float], sizes: Mapping[str, int], rounds: int
    ) -> tuple[Doubt, ...]:
        """The vote, rehearsed; in the secure mode, a strong sign beside the noise of the look."""
        d = len(self.dictionary)
        if self.mode != "secure":
            cost = {site: self.phase_rho("vote", level) for site, level in noise.items()}
            vote = (d, self.picks, self.quorum, self.concepts, self.schedule.count("vote"))
            return foresight.doubts(*foresight.rehearse(cost, sizes, *vote))
        level = max(noise.values())
        sums = [self._layout("look", i, 0, 0.0, level) for i in range(self.teams.count)]
        weak = max(
            one.noise * math.sqrt(foresight.SPREAD * one.grid.size) / one.patients for one in sums
        )
        weak /= foresight.STRONG
        text = f"the noise in what concepts are chosen by is {weak:.1f} times a strong sign's part"
        return (Doubt("look", text),) if weak >= 0.5 else ()

    def mechanism(self) -> str:
        """For the privacy statement."""
        votes = (
            f"In {self.schedule.count('vote')} rounds each hospital named {self.picks} concepts "
            "with a sign, by the "
            "exponential mechanism on sums to which a patient contributes at most 1 for each "
            "concept. "
        )
        moments = (
            "Sums and moments of concepts, to which a patient's contribution is bounded, left with "
            "discrete Gaussian "
            "noise. "
        )
        words = (votes if "vote" in self.schedule else "") + moments
        if self.mode == "secure":
            sums = [
                self.teams.parties(team)
                for phase in self.schedule
                for team in self.teams.asked(phase)
            ]
            words += (
                f"ASSUMPTION: the server sees only sums over at least {min(sums)} and at most "
                f"{max(sums)} hospitals (secure sums), and of the hospitals "
                f"in every sum at least {self.honest:.0%} add their share of the noise and keep it "
                "to themselves. A hospital's "
                "share alone does not protect its patients. "
            )
        return words + "Proof: docs/veil.md."

    # --- the server's side ---------------------------------------------------------------------------------------------

    def init(self, sites: Sequence[str], rng: np.random.Generator) -> State:
        """No concept has a weight; nothing is random."""
        d = len(self.dictionary)
        if self.mode == "secure":
            return fit.start_state(d)
        return {
            "weights": np.zeros(d, np.float32),
            "bias": np.zeros(1, np.float32),
            "chosen": np.zeros(d, np.int32),
            "quorums": np.zeros(d, np.int32),
            "t": np.zeros(1, np.int32),
        }

    def broadcast(self, state: State, site: str) -> Arrays:
        """The sparse global model."""
        ids = np.flatnonzero(state["chosen"]).astype(np.int32)
        if self.mode == "secure":
            return self._ask(state, site, ids)
        return {
            "ids": ids.astype(id_type(len(self.dictionary))),
            "weights": state["weights"][ids].astype(np.float16),
            "bias": state["bias"],
        }

    def _ask(self, state: State, site: str, ids: NDArray[np.int32]) -> Arrays:
        """What the secure mode sends a site: as much of the model as the phase needs."""
        phase = self.schedule[min(int(state["t"][0]), self.rounds - 1)]
        if phase == "moments":
            return {}
        if phase == "look":
            part = self.teams.part(self._sum(phase, site), len(self.dictionary))
            return {"base": state["base"], "centre": state["centre"][part]}
        theta = np.clip(state["theta"], -STRONGEST, STRONGEST).astype(np.float32)
        return {
            "base": state["base"],
            "bias": theta[:1] * np.float32(BIAS),
            "ids": ids.astype(id_type(len(self.dictionary))),
            "weights": theta[1:],
            "centre": state["centre"][ids],
            "scale": state["scale"],
        }

    def sums(self, round_: int, sites: Sequence[str]) -> list[tuple[str, ...]]:
        """The hospitals of every secure sum of a round."""
        found = self.teams.asked(self.schedule[round_ - 1])
        return [
            tuple(site for site in sites if self.teams.team.get(site, 0) in members)
            for members in found
        ]

    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        """The next model. Everything here is post-processing of releases and of public sizes."""
        phase = self.schedule[int(state["t"][0])]
        if self.mode == "secure":
            return self._secure_step(state, answers)
        new = {key: array.copy() for key, array in state.items()}
        new["t"] += 1
        if phase == "vote":
            votes = [
                unpack(answer.payload["votes"], len(self.dictionary), self.picks)
                for answer in answers
            ]
            sizes = [answer.patients for answer in answers]
            count_votes(new, votes, sizes, self.quorum, self.concepts, self._rate(state))
            return new
        found, noises = self._open(answers, phase, int(np.count_nonzero(state["chosen"])))
        if phase == "rate":
            people = sum(answer.patients for answer in answers)
            rate = np.clip(found["positives"][0] / people, 0.5 / people, 1 - 0.5 / people)
            new["bias"][0] = np.log(rate / (1 - rate))
        elif phase == "newton":
            newton_step(new, found["gradient"], found["curvature"], noises["curvature"])
        else:
            scale_step(new, found["gradient"], found["curvature"], noises["curvature"], SCORE)
        return new

    def _secure_step(self, state: State, answers: Sequence[Answer]) -> State:
        """The next model from secure sums, one answer each."""
        phase = self.schedule[int(state["t"][0])]
        new = {key: array.copy() for key, array in state.items()}
        new["t"] += 1
        chosen, base = int(np.count_nonzero(state["chosen"])), float(state["base"][0])
        sums, noise = [], float(state["noise"][0]) or None
        for i, answer in enumerate(answers):
            found = self._layout(phase, i, chosen, base, noise)
            total, level = secure.opened(
                found, np.asarray(answer.payload[found.name]), answer.sites
            )
            if phase == "moments" and level is not None:
                new["noise"][0] = level
                found = self._layout(phase, i, 0, 0.0, level)
            # Who dropped out of a sum under masks is missing among its patients, and in its noise.
            sums.append((replace(found, patients=answer.patients, parties=answer.sites), total))
        if phase == "moments":
            fit.take_moments(new, sums, self.teams, self.dictionary)
        elif phase == "look":
            reading = fit.Reading(self.concepts, self.directions, self.protected)
            step = self._layout("step", 0, self.concepts, base, noise)
            fit.take_look(new, sums, self.teams, self.dictionary, reading, step, self.rounds)
        else:
            fit.take_gradient(new, sums, self.rounds)
        return new

    def _layout(
        self, phase: str, sum_: int, chosen: int, base: float, noise: float | None
    ) -> secure.Layout:
        rate = float(statistics.risk(np.array([base]))[0])
        rho = None if noise is None else self.phase_rho(phase, noise)
        return secure.layout(
            phase, self.teams, sum_, self.dictionary, chosen, rate, rho, self.honest
        )

    def _rate(self, state: State) -> float:
        """The step falls to three tenths over the votes: early rounds find concepts, late ones
        settle weights."""
        votes = self.schedule.count("vote")
        return float(self.server_rate * 0.3 ** ((int(state["t"][0]) - 1) / max(votes - 1, 1)))

    def predict(
        self, state: State, own: State, x: NDArray[np.float32], site: str
    ) -> NDArray[np.float32]:
        """Risk by the global model: the same at every site, and for a row whichever other rows
        there are."""
        ids = np.flatnonzero(state["weights"])
        if len(x) * len(self.dictionary) <= _SMALL:
            values = _TESTED.get(x, lambda: self.dictionary.matrix(x), self.dictionary.digest)[
                :, ids
            ]
        else:
            values = self.dictionary.matrix(x, ids)
        return statistics.risk(
            statistics.logits(values, state["weights"][ids], state["bias"][0])
        ).astype(np.float32)

    # --- the site's side -----------------------------------------------------------------------------------------------

    def site_step(self, session: Session, own: State, message: Arrays) -> tuple[Payload, State]:
        """The statistic that the phase asks for, protected. Nothing is kept at the site."""
        phase = self.phase(session.round)
        if self.mode == "secure":
            return self._share(session, phase, message), own
        rho = None if session.noise is None else self.phase_rho(phase, session.noise)
        ids, bias = message["ids"], float(message["bias"][0])
        dense = np.zeros(len(self.dictionary), np.float32)
        dense[ids] = message["weights"]
        if phase == "vote":

            def votes(data: Patients) -> Rows:
                values = self._values(data)
                return values, data.y - statistics.risk(statistics.logits(values, dense, bias))

            d = len(self.dictionary)
            picked = session.release("votes", Pick(self.picks, d, rho), votes)
            return {"votes": picked.then(lambda found: pack(found[0], found[1], d))}, own
        payload: dict[str, Sealed] = {}
        for name, grid in self._grids(phase, len(ids), rho).items():

            def each(data: Patients, name: str = name) -> Rows:
                return self._statistic(name, phase, data, dense, ids, bias)

            words = session.release(name, Share(grid), each)
            short = np.int32 if grid.short(self.patients, self.parties) else np.int64
            # One letter each: names travel with every message.
            payload[name[0]] = words.then(lambda found, short=short: found.astype(short))
            # How much noise was added is public; sent along as a variance, it adds up as the noise
            # does.
            payload[f"{name[0]}v"] = Sealed.public(
                np.array([int(np.ceil(grid.deviation**2))], np.int64)
            )
        return payload, own

    def _values(self, data: Patients) -> NDArray[np.float32]:
        return _MATRICES.get(data, lambda: self.dictionary.matrix(data.x), self.dictionary.digest)

    def _share(self, session: Session, phase: str, message: Arrays) -> Payload:
        """A site's part of a secure sum."""
        sum_ = self._sum(phase, session.site)
        ids = message.get("ids", np.zeros(0, np.int32)).astype(np.int32)
        weights = message.get("weights", np.zeros(0, np.float32)).astype(np.float32)
        base, scale = (
            float(message[key][0]) if key in message else 1.0 for key in ("base", "scale")
        )
        bias = float(message["bias"][0]) if "bias" in message else base
        model = secure.Model(bias, weights, ids, message.get("centre", np.zeros(0, np.int8)), scale)
        found = self._layout(phase, sum_, len(ids), base, session.noise)
        part = self.teams.part(sum_, len(self.dictionary))

        def each(data: Patients) -> Rows:
            values = self._values(data)
            return secure.contributions(phase, data, values, model, part, self.dictionary)

        words = session.release(phase, Share(found.grid), each)
        levels = secure.level_digits(found, session.noise)
        return {found.name: words.then(lambda sum_: secure.packed(found, [sum_, levels]))}

    def _open(
        self, answers: Sequence[Answer], phase: str, chosen: int
    ) -> tuple[dict[str, NDArray[np.float64]], dict[str, float]]:
        """The sums over all hospitals in real units, and the standard deviation of the noise in
        each."""
        found, noises = {}, {}
        for name, grid in self._grids(phase, chosen, None).items():
            parts = [answer.payload[name[0]] for answer in answers]
            if any(part.shape != (grid.size,) for part in parts):
                raise RunError(
                    f"phase {phase!r}: expected {grid.size} numbers as {name!r} from every hospital"
                )
            found[name] = grid.open(np.sum([part.astype(np.int64) for part in parts], axis=0))
            variance = sum(float(answer.payload[f"{name[0]}v"][0]) for answer in answers)
            noises[name] = float(np.sqrt(variance)) / grid.steps
        return found, noises

    def _statistic(
        self,
        name: str,
        phase: str,
        data: Patients,
        dense: NDArray[np.float32],
        ids: NDArray[np.int32],
        bias: float,
    ) -> Rows:
        """What rows add to one vector of a phase; a patient's part is within its sensitivity in
        `_grids`."""
        one = np.ones((data.rows, 1), np.float32)
        if phase == "rate":
            return one, statistics.patient_weights(one, 1.0, data.starts) * data.y
        values = self._values(data)
        logit = statistics.logits(values, dense, bias)
        if phase == "newton":
            basis, limit = np.hstack([one, values[:, ids]]), NORM
        else:
            score = np.clip(logit - bias, -SCORE, SCORE).astype(np.float32) / np.float32(SCORE)
            basis, limit = np.hstack([one, score[:, None]]), float(np.sqrt(2))
        p = statistics.risk(logit)
        w = statistics.patient_weights(basis, limit, data.starts)
        if name == "gradient":
            return basis, w * (data.y - p)
        return statistics.row_products(basis), w * p * (1 - p)

    def _grids(self, phase: str, chosen: int, rho: float | None) -> dict[str, Grid]:
        """Sensitivity, cost and size of every vector of a phase; their costs add up to the
        phase's."""

        def grid(sensitivity: float, share: float, size: int) -> Grid:
            return Grid(sensitivity, None if rho is None else rho * share, size)

        if phase == "rate":
            return {"positives": grid(1.0, 1.0, 1)}
        size, limit = (chosen + 1, NORM) if phase == "newton" else (2, float(np.sqrt(2)))
        return {
            "gradient": grid(limit, 0.5, size),
            "curvature": grid(limit**2 / 4, 0.5, size * (size + 1) // 2),
        }

    def facts(self, state: State) -> dict[str, object]:
        """For the model card."""
        return {"vote_rounds": self.schedule.count("vote"), "secure_sum": self.mode == "secure"}

    def noted(self, before: State, after: State) -> dict[str, object]:
        """Which concepts the hospitals agreed on."""
        return agreed(before, after)


def agreed(before: State, after: State) -> dict[str, object]:
    """The concepts that reached a quorum between two rounds, for the model card.

    >>> agreed({"quorums": np.array([0, 1])}, {"quorums": np.array([0, 2])})
    {'quorum': [1]}
    """
    if "quorums" not in after:
        return {}
    return {"quorum": np.flatnonzero(after["quorums"] > before["quorums"]).tolist()}


class Voting(Settings):
    """VEIL's own settings."""

    mode: Mode | None = None
    picks: int = Setting(default=4, ge=1)
    quorum: float | None = Setting(default=None, ge=0)
    concepts: int = Setting(default=60, ge=1)
    server_rate: float = Setting(default=0.1, gt=0)
    honest: float = Setting(default=0.5, gt=0, le=1)
    teams: int = Setting(default=12, ge=1)
    directions: Directions = "medicine"
    protected: Protected = "allowed"


def mode_for(public: Public) -> Mode:
    """The mode where none is stated: sums where the study masks them and there are enough hospitals
    for a sum to hide one (docs/veil.md, Which mode), or else votes, which need no trust."""
    return "secure" if public.masked and public.sites >= 3 else "votes"


def build(setup: Setup) -> Veil:
    """From a study."""
    own, public = Voting.model_validate(setup.settings), setup.public
    two_outcomes("veil", public)
    width = dense_only(setup.network, "method 'veil'").inputs
    known = plain(width) if public.schema is None else dictionary(public.schema)
    mode = own.mode or mode_for(public)
    if mode == "secure":
        setup.every_site("the secure mode of veil")
    elif (own.directions, own.protected) != ("medicine", "allowed"):
        raise StudyError(
            f'method.directions and method.protected are for mode "secure", found mode "{mode}"; '
            "leave them out"
        )
    return Veil(
        known,
        mode,
        setup.rounds,
        min(own.picks, len(known)),
        2.0 if own.quorum is None else own.quorum,
        own.concepts,
        own.server_rate,
        public.sites,
        public.patients,
        own.honest,
        Teams.of(public.sizes, min(own.teams, len(known)) if mode == "secure" else 1),
        own.directions,
        own.protected,
    )


def two_outcomes(name: str, public: Public) -> None:
    """Concepts are made from two outcomes and from values on the scale of their declared bounds."""
    if not public.outcome.two:
        raise StudyError(
            f"method {name!r} tells two outcomes apart, found {public.outcome.count} classes; use "
            "another method"
        )
    if public.scaling == "site":
        raise StudyError(
            f"method {name!r} reads values on the scale of their bounds; leave out model.scaling = "
            '"site"'
        )


def suits(public: Public) -> Fit:
    """A sparse model that a clinician can read; votes need many hospitals to agree."""
    if public.images or not public.outcome.two:
        return Fit(0.0, "reads the columns of a table and tells two outcomes apart")
    if public.epsilon is not None and public.sites < 20 and mode_for(public) == "votes":
        return Fit(1.0, "with few hospitals votes may leave it without a concept; mask the sums")
    return Fit(2.5, "a sparse model over clinical concepts, explained to the clinician")


SEARCHED: dict[str, Space] = {
    "votes": (
        ROUNDS,
        Choice("method.picks", (1, 2, 4, 6, 8, 12)),
        Range("method.quorum", 0.0, 3.0, log=False),
        Range("method.server_rate", 0.03, 1.0),
        Choice("method.concepts", (20, 40, 60)),
    ),
    "secure": (
        Choice("method.rounds", (4, 5, 6, 8, 10)),
        Choice("method.concepts", (28, 36, 44, 52, 60)),
        Choice("method.teams", (4, 8, 12, 16)),
    ),
}
PAPER = Citation(
    "VEIL: A Framework for Differentially Private, Interpretable, and Communication-Efficient "
    "Federated Learning",
    "Vallabhaneni",
    2025,
    "VEIL",
)
DECLARED = Declared(
    "veil",
    build,
    Voting,
    cites=(PAPER,),
    uses=frozenset(),
    searches=(),
    space=lambda settings: SEARCHED["secure" if settings.mode == "secure" else "votes"],
    clipped=False,
    # The first rounds of the secure mode only measure: a short training has no model yet.
    early=lambda settings: settings.mode != "secure",
    suits=suits,
    model="concepts",
)
