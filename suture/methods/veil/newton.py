"""What VEIL's server does with secure sums: centres and spreads, a varied choice of concepts, and
Newton steps whose curvature is measured once and corrected from gradients. All of it is
post-processing: it costs no privacy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from suture.methods.base import State
from suture.methods.veil.secure import FURTHEST, Layout, centres
from suture.methods.veil.teams import Teams
from suture.models.concepts import Concepts
from suture.training.contributions import as_matrix

Floats = NDArray[np.float64]
Parts = Mapping[str, Floats]

VARIETY = 0.7
"""A further concept of a feature counts this much of the one before: concepts of one feature say
much the same."""
FIRST = 0.7
"""The first step goes only so far: at the base rate curvature is smaller than where risks
differ."""
SAMPLING = 0.3
"""Curvature of n patients and m concepts is off by about this times sqrt(m / n) of a concept's
largest; a ridge covers it."""
MOST_STEP = 4.0
"""No step moves a weight further than this."""


def start_state(concepts: int) -> State:
    """The server's state, before anything is known."""
    return {
        "weights": np.zeros(concepts, np.float32),
        "bias": np.zeros(1, np.float32),
        "base": np.zeros(1, np.float32),
        "chosen": np.zeros(concepts, np.int32),
        "quorums": np.zeros(concepts, np.int32),
        "centre": np.zeros(concepts, np.int8),
        "spread": np.ones(concepts),
        "gradient": np.zeros(concepts + 1),
        "curvature": np.zeros((0, 0)),
        "forecast": np.zeros(0),
        "move": np.zeros(0),
        "noise": np.zeros(1),
        "t": np.zeros(1, np.int32),
    }


def advance(
    state: State,
    phase: str,
    sums: Sequence[tuple[Layout, Parts]],
    teams: Teams,
    known: Concepts,
    concepts: int,
) -> None:
    """Put what was opened in a round, one layout and its parts for each sum, into the state."""
    whole, d = teams.patients(teams.all), len(known)
    found, parts = sums[0]
    if phase == "moments":
        take_moments(
            state,
            known,
            [(teams.part(i, d), f.patients, p, f.noises) for i, (f, p) in enumerate(sums)],
        )
    elif phase == "look":
        gradient = np.zeros(d)
        for i, (f, p) in enumerate(sums):
            gradient[teams.part(i, d)] = p["gradient"] * whole / f.patients
        choose_concepts(state, gradient, [concept.feature for concept in known.items], concepts)
    elif phase == "curvature":
        take_curvature(
            state, parts["products"], whole / found.patients, found.noises["products"], whole
        )
    else:
        take_gradient(
            state, np.append(parts["bias"], parts.get("gradient", ())) * whole / found.patients
        )


def take_moments(
    state: State,
    known: Concepts,
    sums: Sequence[tuple[NDArray[np.int64], int, Parts, Mapping[str, float]]],
) -> None:
    """Base rate, centre and spread of every concept; each sum: its concepts, its patients, what was
    found, its noise."""
    people = sum(patients for _, patients, _, _ in sums)
    positives = sum(float(found["positives"][0]) for _, _, found, _ in sums)
    rate = float(np.clip(positives / people, 0.5 / people, 1 - 0.5 / people))
    state["bias"][0] = state["base"][0] = np.clip(np.log(rate / (1 - rate)), -FURTHEST, FURTHEST)
    for part, patients, found, noise in sums:
        mean = np.clip(found["means"] / patients, -1, 1)
        # A concept that is 0 or 1 is its own square.
        square = np.abs(mean)
        graded = known.graded[part]
        if "squares" in found:
            square[graded] = found["squares"] / patients
        floor = 2 * max(noise.values(), default=0.0) / patients + 1e-3
        state["centre"][part] = np.rint(127 * mean).astype(np.int8)
        state["spread"][part] = np.sqrt(np.maximum(square - mean**2, 0) + floor)


def choose_concepts(state: State, gradient: Floats, features: Sequence[str], room: int) -> None:
    """Choose ``room`` concepts, the largest gradient for its spread first, each feature counting
    less every time."""
    score = np.abs(gradient) / state["spread"]
    kinds = np.unique(np.asarray(features), return_inverse=True)[1]
    weight = np.ones(len(score))
    for _ in range(min(room, len(score))):
        best = int(np.argmax(score * weight))
        state["chosen"][best] = 1
        state["quorums"][best] += 1
        score[best] = -1.0
        weight[kinds == kinds[best]] *= VARIETY
    state["gradient"] = np.append(0.0, gradient)


def take_curvature(state: State, products: Floats, scale: float, noise: float, people: int) -> None:
    """The curvature at the base rate from sums of products, ridge-damped, and a first, shortened
    step.

    ``scale`` brings a sum over one team to everybody's; ``noise`` is the noise's deviation in
    ``products``. The ridge is the spectral norm that a symmetric Gaussian matrix of this noise has
    (2 sigma sqrt(m)), and what sampling adds.
    """
    ids = np.flatnonzero(state["chosen"])
    rate = 1 / (1 + np.exp(-float(state["base"][0])))
    size = len(ids) + 1
    values, vectors = np.linalg.eigh(as_matrix(products, size) * scale * rate * (1 - rate))
    ridge = 2 * noise * scale * rate * (1 - rate) * np.sqrt(size) + 1.0
    if scale > 1:
        ridge += SAMPLING * np.sqrt(size * scale / people) * rate * (1 - rate) * people
    state["curvature"] = (vectors * (np.maximum(values, 0) + ridge)) @ vectors.T
    gradient = state["gradient"][np.append(0, ids + 1)]
    state["gradient"] = gradient
    step = np.linalg.solve(state["curvature"], gradient) * FIRST
    # Risks that differ are larger on average than the risk of the average patient: with log odds
    # spread like a Gaussian of variance v the mean risk stays what it was when the bias is sqrt(1 +
    # pi v / 8) of itself (MacKay 1992).
    spread = float(
        np.sum((vectors.T @ step) ** 2 * np.maximum(values, 0)) / (rate * (1 - rate) * people)
    )
    step[0] += float(state["bias"][0]) * (np.sqrt(1 + np.pi * spread / 8) - 1)
    _move(state, ids, step)
    state["forecast"] = (1 - FIRST) * gradient


def take_gradient(state: State, gradient: Floats) -> None:
    """A step with the curvature as it is known by now: what the last step did to the gradient
    corrects it.

    The correction is Powell's damped form of the Broyden-Fletcher-Goldfarb-Shanno update (Nocedal &
    Wright 2006, Procedure 18.2), which keeps the curvature positive definite whatever noise does.
    """
    ids = np.flatnonzero(state["chosen"])
    move, matrix = state["move"], state["curvature"]
    known = matrix @ move
    length = float(move @ known)
    if length > 0:
        change = state["gradient"] - gradient
        along = float(move @ change)
        part = 1.0 if along >= 0.2 * length else 0.8 * length / (length - along)
        mixed = part * change + (1 - part) * known
        matrix = (
            matrix - np.outer(known, known) / length + np.outer(mixed, mixed) / float(move @ mixed)
        )
    state["curvature"], state["gradient"] = matrix, gradient
    step = np.asarray(np.linalg.solve(matrix, gradient), np.float64)
    _move(state, ids, step)
    state["forecast"] = np.zeros_like(gradient)


def _move(state: State, ids: NDArray[np.int64], step: Floats) -> None:
    """Move the model; weights are those of concepts as they are, so that the bias takes what
    centring leaves."""
    step = step * min(1.0, MOST_STEP / max(float(np.max(np.abs(step))), 1e-30))
    state["move"] = step
    state["weights"][ids] += step[1:].astype(np.float32)
    shift = float(step[1:] @ centres(state["centre"][ids]).astype(np.float64))
    state["bias"] = (state["bias"] + step[0] - shift).astype(np.float32)
