"""Noisy gradients of a logistic model, of which one patient's part has norm 1: what the additive
model and VEIL's secure mode have in common. Proofs and experiments: docs/additive.md.

| here | docs/additive.md |
|---|---|
| `centred` | P = (1/4, (x - m) / c) of each row, and 1 / norm(P) divided among a patient's rows |
| `residual` | r = (p - y) / max(p, 1 - p) |
| `whole_step`, `momentum` | the rate over 1 - beta, and beta: from public figures and the noise's known level |
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from suture.training import contributions as statistics

Floats = NDArray[np.float64]
BIAS = 0.25
"""The intercept's entry of P: small, because the start is good and other entries need the room."""
REACH = 0.75
"""Gradients may move the model so far that noise moves an average patient's log odds by about a
half: the steps add up to REACH n mu."""
FEW = 20
"""With so few rounds momentum is lower."""


def momentum(rounds: int) -> float:
    """Few rounds have less time to forget a gradient."""
    return 0.6 if rounds <= FEW else 0.8


def whole_step(rarer: float, people: int, level: float, gradients: int, cap: float) -> float:
    """One gradient's step, momentum included: all of them add up to what the noise allows, and none
    is larger than ``cap`` over ``rarer``, the rarer outcome's share, or steps would swing.

    >>> whole_step(0.1, 1000, 0.0, 4, 10.0), whole_step(0.1, 1000, 50.0, 4, 10.0)
    (100.0, 7.5)
    """
    step = cap / rarer
    return min(step, REACH * people / (level * math.sqrt(gradients))) if level > 0 else step


def residual(p: Floats, y: NDArray[np.int32]) -> Floats:
    """(p - y) / max(p, 1 - p): within [-1, 1], and 0 on average where p is the true risk.

    >>> residual(np.array([0.2, 0.2, 0.75]), np.array([0, 1, 0])).tolist()
    [0.25, -1.0, 1.0]
    """
    found: Floats = (p - (y > 0)) / np.maximum(p, 1 - p)
    return found


def as_centre(code: NDArray[np.int8]) -> NDArray[np.float32]:
    """Centres from their bytes.

    >>> as_centre(np.array([-127, 0], np.int8)).tolist()
    [-1.0, 0.0]
    """
    found: NDArray[np.float32] = code.astype(np.float32) / np.float32(127)
    return found


def unit_weights(rows: NDArray[np.float32], starts: NDArray[np.int64]) -> Floats:
    """1 / norm of each row, divided among the patient's rows."""
    # A limit that no row is shorter than makes min(1, limit / norm) the ratio itself.
    least = 2.0**-20
    found: Floats = statistics.patient_weights(rows, least, starts, power=1) / least
    return found


def centred(
    values: NDArray[np.float32], centre: NDArray[np.int8], scale: float, starts: NDArray[np.int64]
) -> tuple[NDArray[np.float32], Floats]:
    """P of every row, and the rows' weights."""
    bias = np.full((len(values), 1), BIAS, np.float32)
    rows = np.hstack([bias, (values - as_centre(centre)) / np.float32(scale)])
    return rows, unit_weights(rows, starts)
