"""Models of survival: what they predict for a row is the risk of an event by the end of each interval.

`Hazards` is a dense network whose logits are those of the hazard in each interval, that is of an
event there among those who reached it (Gensheimer & Narasimhan, "A scalable discrete-time survival
model for neural networks", PeerJ 2019). `proportional` is a baseline hazard times exp of a score
(Cox 1972).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from suture.models.dense import Dense, Floats
from suture.schema.outcome import cells


@dataclass(frozen=True)
class Hazards(Dense):
    """A dense network with one logit for each interval.

    >>> network = Hazards((6, 8, 4))
    >>> network.classes, network.predict(np.zeros(network.n_params, np.float32), np.zeros((1, 6))).tolist()
    (9, [[0.5, 0.75, 0.875, 0.9375]])
    """

    kind: ClassVar[str] = "hazards"

    @property
    def classes(self) -> int:
        """Labels that training tells apart: an interval with or without an event, or beyond."""
        return 2 * self.sizes[-1] + 1

    def labels(self, y: NDArray[np.int32]) -> NDArray[np.int32]:
        """The cell of each outcome."""
        return cells(y, self.sizes[-1]).astype(np.int32)

    def predict(self, params: Floats, x: Floats) -> Floats:
        """1 less the product of 1 - hazard, where 1 - hazard is 1 / (1 + exp(logit))."""
        z = self.logits(params, x).astype(np.float64)
        return np.asarray(-np.expm1(-np.cumsum(np.logaddexp(0, z), axis=1)), np.float32)


def proportional(score: NDArray[np.floating], hazard: NDArray[np.floating]) -> Floats:
    """Risk by the end of each interval, from a row's score and the baseline's cumulative hazards.

    >>> proportional(np.array([0.0, np.log(2)]), np.array([0.0, np.log(2)])).tolist()
    [[0.0, 0.5], [0.0, 0.75]]
    """
    ratio = np.exp(np.clip(np.asarray(score, np.float64), -40, 40))
    return np.asarray(-np.expm1(-ratio[:, None] * np.asarray(hazard, np.float64)), np.float32)
