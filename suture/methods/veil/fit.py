"""What VEIL's server does with secure sums: centres and spreads, a varied choice of concepts, and
averaged gradient descent whose steps follow from the noise's known level. All of it is
post-processing: it costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suture.methods.base import State
from suture.methods.gradients import BIAS, as_centre, momentum, whole_step
from suture.methods.veil.directions import Directions, signs
from suture.methods.veil.secure import FURTHEST, OUTCOME, ROWS, Layout
from suture.methods.veil.teams import Teams
from suture.models.concepts import Concepts

Floats = NDArray[np.float64]
Sums = Sequence[tuple[Layout, Floats]]

VARIETY = 0.7
"""A further concept of a feature counts this much of the one before: concepts of one feature say
much the same."""
CAP, FIRST = 10.0, 4.0
"""A step is at most CAP over the rarer outcome's share; what the look says may move the model by
FIRST over it, because it is one gradient, however precise."""
LEAST_SPREAD = 1e-4
"""No concept counts as less spread than this (a variance)."""
LATER = 8.0
"""The most that k is, where the average's weights are t^k."""
PENALTY = 0.25
"""A penalised concept's steps are this much of the others': as if its values were half as far
apart."""


@dataclass(frozen=True)
class Reading:
    """What a person wants of the model: at most so many concepts, their directions, and what
    becomes of protected ones."""

    concepts: int = 60
    directions: Directions = "medicine"
    protected: str = "allowed"


def start_state(concepts: int) -> State:
    """The server's state, before anything is known. ``theta`` and what belongs to it are of the
    chosen concepts, after a 1 for the bias."""
    return {
        "weights": np.zeros(concepts, np.float32),
        "bias": np.zeros(1, np.float32),
        "base": np.zeros(1, np.float32),
        "chosen": np.zeros(concepts, np.int32),
        "quorums": np.zeros(concepts, np.int32),
        "centre": np.zeros(concepts, np.int8),
        "scale": np.ones(1, np.float32),
        "variance": np.ones(concepts),
        "floor": np.ones(concepts),
        "theta": np.zeros(1),
        "velocity": np.zeros(1),
        "mean": np.zeros(1),
        "signs": np.zeros(1, np.int8),
        "pace": np.ones(1),
        "noise": np.zeros(1),
        "t": np.zeros(1, np.int32),
    }


def take_moments(state: State, sums: Sums, teams: Teams, known: Concepts) -> None:
    """Base rate, and centre and spread of every concept: averages of a team's rows, each row over
    its norm."""
    people, positives = 0, 0.0
    for i, (found, total) in enumerate(sums):
        part = teams.part(i, len(known))
        positives += float(total[-1]) / OUTCOME
        total = total / ROWS
        # What noise cannot have left possible is clipped to what is.
        mass = float(np.clip(total[0], found.patients / math.sqrt(len(total)), found.patients))
        mean = np.clip(total[1 : len(part) + 1] / mass, -1, 1)
        # A concept that is 0 or 1 is its own square.
        square, graded = np.abs(mean), known.graded[part]
        square[graded] = total[len(part) + 1 : -1] / mass
        state["centre"][part] = np.rint(127 * mean).astype(np.int8)
        state["variance"][part] = np.maximum(square - mean**2, LEAST_SPREAD)
        state["floor"][part] = 2 * found.noise / (ROWS * mass) + 1e-3
        people += found.patients
    rate = float(np.clip(positives / people, 1e-3, 1 - 1e-3))
    state["bias"][0] = state["base"][0] = np.clip(math.log(rate / (1 - rate)), -FURTHEST, FURTHEST)


def take_look(
    state: State, sums: Sums, teams: Teams, known: Concepts, reading: Reading, step: Layout,
    rounds: int,
) -> None:  # fmt: skip
    """Choose concepts by their gradient for their spread, and move the model by what the look says
    already, as far as it is more precise than a step's gradient. ``step`` is the layout of such a
    step if all were chosen: its noise is known."""
    d = len(known)
    gradient, reach, noise = np.zeros(d), np.zeros(d), np.zeros(d)
    for i, (found, total) in enumerate(sums):
        part = teams.part(i, d)
        # Rows were divided by their norm over the part, about this; steps divide by another.
        norm = math.sqrt(float(np.sum(state["variance"][part])))
        gradient[part] = -total[: len(part)] / found.patients
        reach[part], noise[part] = norm, found.noise / found.patients
    spread = np.sqrt(state["variance"] + state["floor"])
    protected = np.array([concept.protected for concept in known.items])
    sign, allowed = signs(known.items, gradient / spread, reading.directions)
    allowed &= ~(protected & (reading.protected == "excluded"))
    choose(state, np.where(allowed, np.abs(gradient) / spread, -1.0), known, reading.concepts)
    ids = np.flatnonzero(state["chosen"])
    scale = math.sqrt(max(float(np.sum(state["variance"][ids])), LEAST_SPREAD))
    state["scale"] = np.array([scale], np.float32)
    state["signs"] = np.append(0, sign[ids]).astype(np.int8)
    slow = protected[ids] & (reading.protected == "penalised")
    state["pace"] = np.append(1.0, np.where(slow, PENALTY, 1.0))
    theta = np.append(float(state["base"][0]) / BIAS, np.zeros(len(ids)))
    # A gradient's weight is its precision: that of a step counts 1, and the step's length for it.
    level, longest = step.noise / step.patients, FIRST / rarer(state)
    far = np.full(len(ids), longest)
    if level > 0:
        weight = (level * scale / (noise * reach)[ids]) ** 2
        far = np.minimum(weight * _length(state, step, rounds), longest)
    theta[1:] += state["pace"][1:] * far * gradient[ids] * reach[ids] / scale
    state["theta"], state["velocity"] = theta, np.zeros_like(theta)
    _hold(state)
    state["mean"] = state["theta"].copy()


def choose(state: State, score: Floats, known: Concepts, room: int) -> None:
    """Choose ``room`` concepts, the largest score first, each feature counting less every time; a
    score below 0 is never chosen."""
    kinds = np.unique([concept.feature for concept in known.items], return_inverse=True)[1]
    weight, left = np.ones(len(score)), score.copy()
    for _ in range(min(room, int(np.count_nonzero(score >= 0)))):
        best = int(np.argmax(np.where(left < 0, -1.0, left * weight)))
        state["chosen"][best] = 1
        state["quorums"][best] += 1
        left[best] = -1.0
        weight[kinds == kinds[best]] *= VARIETY


def take_gradient(state: State, sums: Sums, rounds: int) -> None:
    """One step of the descent, and the average of all models so far: in equal parts where noise sets
    the steps; where it would allow longer ones, the later ones count more (weights t^k)."""
    (found, total), beta = sums[0], momentum(rounds)
    state["velocity"] = beta * state["velocity"] + total / found.patients
    move = (1 - beta) * _length(state, found, rounds) * state["pace"] * state["velocity"]
    state["theta"] = state["theta"] - move
    _hold(state)
    done = int(state["t"][0]) - 2
    room = whole_step(rarer(state), found.patients, found.noise, rounds - 2, math.inf)
    later = min(max(room / _length(state, found, rounds) - 1, 0.0), LATER)
    part = (later + 1) / (done + later + 1)
    state["mean"] = state["mean"] + (state["theta"] - state["mean"]) * part
    if 2 * done >= rounds - 2:  # less than half of the gradients are mostly noise, not a model
        _publish(state, np.flatnonzero(state["chosen"]))


def rarer(state: State) -> float:
    """The rarer outcome's share, as released."""
    return 1 / (1 + math.exp(abs(float(state["base"][0]))))


def _length(state: State, step: Layout, rounds: int) -> float:
    """A whole step from the noise's known level; all rounds but two are steps."""
    return whole_step(rarer(state), step.patients, step.noise, rounds - 2, CAP)


def _hold(state: State) -> None:
    """Weights of the wrong sign are 0."""
    wrong = state["signs"] * state["theta"] < 0
    state["theta"] = np.where(wrong, 0.0, state["theta"])


def _publish(state: State, ids: NDArray[np.int64]) -> None:
    """The averaged model, of concepts as they are: the bias takes what centring leaves."""
    weights = state["mean"][1:] / float(state["scale"][0])
    state["weights"][ids] = weights.astype(np.float32)
    shift = math.fsum(weights * as_centre(state["centre"][ids]))
    state["bias"] = np.array([BIAS * state["mean"][0] - shift], np.float32)
