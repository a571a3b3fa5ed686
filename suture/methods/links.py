"""What an additive model's score means for an outcome: how the first release counts the outcomes, the
residual of a row, and the prediction. The method asks its link and knows no outcome itself.

| | `Logistic` (two classes) | `Proportional` (survival) |
|---|---|---|
| release 1 counts | the outcome y, beside x | the cell of follow-up: 2 interval + event |
| residual, within [-1, 1] | (p - y) / max(p, 1 - p) | clip(L(t) exp(score) - event, -1, 1) |
| what the score scales | odds | the hazard of the baseline L, from the noisy cells |

The residual of survival is the martingale's (Therneau, Grambsch & Fleming 1990) with a baseline that
is known beforehand, so that a patient is in one term of the sum and the clip bounds it, without
person-periods and without risk sets.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture.methods.gradients import residual
from suture.models.hazards import proportional
from suture.schema.message import Field
from suture.schema.outcome import Classes, Outcome, Survival, cells, parts
from suture.training.contributions import risk

Floats = NDArray[np.float64]
Rows = NDArray[np.float32]
LEAST = 1e-3


class Link(ABC):
    """How scores and outcomes belong together."""

    words: str
    """What exp of the score multiplies."""

    @property
    @abstractmethod
    def share(self) -> float:
        """Of the budget, release 1's part."""

    @property
    @abstractmethod
    def entries(self) -> int:
        """Numbers about outcomes in release 1."""

    @abstractmethod
    def counted(self, y: NDArray[np.int32], norms: Floats) -> Rows:
        """What rows add about their outcomes, beside (1, x) of these norms."""

    @abstractmethod
    def rest(self) -> tuple[float, float]:
        """Of a row's whole norm: the square that outcomes of mean 1 add to that of (1, x); and by
        what the sum of (1, x) is to be multiplied, since outcomes take a fixed part of each row."""

    @abstractmethod
    def start(
        self, total: Floats, mass: float, noise: float
    ) -> tuple[float, float, Mapping[str, Floats]]:
        """From the opened entries, each with this ``noise``: the score of an average patient, the rarer outcome's share, and
        arrays that later messages and the model hold."""

    @abstractmethod
    def fields(self) -> Mapping[str, Field]:
        """Those arrays, as messages hold them."""

    @abstractmethod
    def unknown(self) -> Mapping[str, Floats]:
        """The same before the first release."""

    @abstractmethod
    def residual(self, score: Floats, y: NDArray[np.int32], known: Mapping[str, Any]) -> Floats:
        """Within [-1, 1], and 0 on average where the model is true."""

    @abstractmethod
    def predict(self, score: Floats, known: Mapping[str, Any]) -> Rows:
        """From scores."""


@dataclass(frozen=True)
class Logistic(Link):
    """Two classes."""

    words = "odds"

    @property
    def share(self) -> float:
        """Between .01 and .06 it makes no difference."""
        return 0.02

    @property
    def entries(self) -> int:
        return 1

    def counted(self, y: NDArray[np.int32], norms: Floats) -> Rows:
        return (y > 0).astype(np.float32)[:, None]

    def rest(self) -> tuple[float, float]:
        return 1.0, 1.0

    def start(
        self, total: Floats, mass: float, noise: float
    ) -> tuple[float, float, Mapping[str, Floats]]:
        rate = float(np.clip(total[0] / mass, LEAST, 1 - LEAST))
        return math.log(rate / (1 - rate)), min(rate, 1 - rate), {}

    def fields(self) -> Mapping[str, Field]:
        return {}

    def unknown(self) -> Mapping[str, Floats]:
        return {}

    def residual(self, score: Floats, y: NDArray[np.int32], known: Mapping[str, Any]) -> Floats:
        return residual(risk(score), y)

    def predict(self, score: Floats, known: Mapping[str, Any]) -> Rows:
        return risk(score).astype(np.float32)


LOGISTIC = Logistic()


@dataclass(frozen=True)
class Proportional(Link):
    """Survival, in equal intervals of the horizon. Cells get ``CELLS`` of release 1's part."""

    intervals: int
    words = "hazard"

    @property
    def share(self) -> float:
        """2 % for centre and scale as without follow-up, and 10 % for the cells."""
        return 0.12

    @property
    def entries(self) -> int:
        return 2 * self.intervals + 1

    def counted(self, y: NDArray[np.int32], norms: Floats) -> Rows:
        """One cell, of such a weight that it is a fixed part of the row's whole norm."""
        out = np.zeros((len(y), self.entries), np.float32)
        weight = norms * math.sqrt(CELLS / (1 - CELLS))
        out[np.arange(len(y)), cells(y, self.intervals)] = weight
        return out

    def rest(self) -> tuple[float, float]:
        return 0.0, 1 / math.sqrt(1 - CELLS)

    def start(
        self, total: Floats, mass: float, noise: float
    ) -> tuple[float, float, Mapping[str, Floats]]:
        counts = total / math.sqrt(CELLS)
        hazard = np.clip(cumulative(counts, noise / math.sqrt(CELLS)), 0, MOST)
        events = float(counts[1::2].sum() / max(counts.sum(), 1.0))
        return 0.0, float(np.clip(events, LEAST, 1.0)), {"hazard": hazard}

    def fields(self) -> Mapping[str, Field]:
        return {"hazard": Field("<f8", (self.intervals,), 0.0, MOST)}

    def unknown(self) -> Mapping[str, Floats]:
        return {"hazard": np.zeros(self.intervals)}

    def residual(self, score: Floats, y: NDArray[np.int32], known: Mapping[str, Any]) -> Floats:
        grid = np.linspace(0, 1, self.intervals + 1)
        baseline = np.interp(parts(y), grid, np.append(0.0, known["hazard"]))
        expected = baseline * np.exp(np.clip(score, -40, 40))
        return np.asarray(np.clip(expected - (y & 1), -1, 1))

    def predict(self, score: Floats, known: Mapping[str, Any]) -> Rows:
        return proportional(score, known["hazard"])


CELLS = 5 / 6
MOST = 100.0
"""The largest cumulative hazard."""


def cumulative(counts: Floats, noise: float = 0.0) -> Floats:
    """The cumulative hazard at the end of each interval: events over the follow-up in it, of those who
    reach it, with half of it for those who leave in it. Where fewer reach it than three deviations of
    the noise, the hazard is taken to be smaller than they say, not larger.

    Half of ten die in the first interval, and one of five in the second:

    >>> cumulative(np.array([0.0, 5, 0, 1, 4])).round(3).tolist()
    [0.667, 0.889]
    """
    leaving = np.append(counts[0:-1:2] + counts[1::2], counts[-1])
    reach = np.flip(np.cumsum(np.flip(leaving)))
    ahead = np.arange(len(counts) - 1, 0, -2)
    through = np.maximum((reach[:-1] + reach[1:]) / 2, np.maximum(3 * noise * np.sqrt(ahead), 1.0))
    return np.asarray(np.cumsum(np.maximum(counts[1::2], 0.0) / through))


def link_of(outcome: Outcome) -> Link | None:
    """The link of an outcome; None where an additive model has none."""
    if isinstance(outcome, Survival):
        return Proportional(outcome.intervals)
    return LOGISTIC if isinstance(outcome, Classes) and outcome.two else None
