"""What VEIL's server does with releases: pure functions on its state. All of it is post-processing:
it costs no privacy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from suture.methods.base import State
from suture.training.contributions import as_matrix

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]
MOST_STEP = 4.0
"""No Newton step moves a weight further than this: a bound on what noise in a curvature can do."""


def count_votes(
    state: State,
    votes: Sequence[tuple[Ids, Ids]],
    sizes: Sequence[int],
    quorum: float,
    most: int,
    rate: float,
) -> None:
    """One round of votes: concepts past the quorum move by ``rate`` times their agreement; at most
    ``most`` stay.

    A hospital's vote weighs the square root of its size: larger hospitals' votes are less random.
    ``quorum`` counts standard deviations of the net vote that hospitals voting at random would
    give.
    """
    d = len(state["weights"])
    net, squares = np.zeros(d), 0.0
    for (ids, signs), size in zip(votes, sizes, strict=True):
        net[ids] += np.sqrt(size) * signs
        squares += size
    agreement = net / np.sqrt(squares * len(votes[0][0]) / d)
    # In a small federation not even agreement of all reaches the quorum: then unanimity is enough.
    unanimous = sum(np.sqrt(size) for size in sizes) / np.sqrt(squares * len(votes[0][0]) / d)
    past = np.abs(agreement) >= min(quorum, unanimous * (1 - 1e-9))
    state["quorums"] += past.astype(np.int32)
    largest = float(np.max(np.abs(agreement))) or 1.0
    moved = state["weights"] + np.where(past, rate * agreement / largest, 0.0)
    if np.count_nonzero(moved) > most:
        keep = np.argsort(-np.abs(moved), kind="stable")[:most]
        moved[np.setdiff1d(np.arange(d), keep)] = 0.0
    state["weights"] = moved.astype(np.float32)
    state["chosen"] = (moved != 0).astype(np.int32)


def newton_step(state: State, gradient: Floats, curvature: Floats, noise: float) -> None:
    """One ridge-damped Newton step of the logistic likelihood on the chosen concepts and the bias.

    The ridge is the spectral norm that a symmetric Gaussian matrix of this noise has (2 sigma
    sqrt(m)): it keeps the noisy curvature positive definite, and shrinks steps that noise would
    decide.
    """
    ids = np.flatnonzero(state["chosen"])
    size = len(ids) + 1
    matrix = as_matrix(curvature, size) + (2 * noise * np.sqrt(size) + 1.0) * np.eye(size)
    step = np.linalg.solve(matrix, gradient)
    step *= min(1.0, MOST_STEP / max(float(np.max(np.abs(step))), 1e-30))
    state["bias"] = (state["bias"] + step[0]).astype(np.float32)
    state["weights"][ids] += step[1:].astype(np.float32)


def scale_step(
    state: State, gradient: Floats, curvature: Floats, noise: float, score: float
) -> None:
    """One ridge-damped Newton step of Platt scaling: a bias and one factor for all weights."""
    matrix = as_matrix(curvature, 2) + (2 * noise * np.sqrt(2) + 1.0) * np.eye(2)
    step = np.linalg.solve(matrix, gradient)
    # The basis is the score over ``score``, whose present coefficient is ``score``: a factor of 1.
    step *= min(1.0, 1.0 / max(abs(float(step[0])), abs(float(step[1])) / (0.5 * score), 1e-30))
    factor = 1 + step[1] / score
    state["bias"] = (state["bias"] + step[0]).astype(np.float32)
    state["weights"] = (state["weights"] * factor).astype(np.float32)
