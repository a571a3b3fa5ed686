"""What a study predicts: one of some classes, or the time until an event. Reading, training, metrics
and pages ask the outcome; nobody else knows the kinds of outcomes apart.

Every row holds one whole number, its code ``y``. For classes it is the class. For survival it is
2 t + e: t is the follow-up in `TICKS` parts of the horizon (one more for those who reach the horizon
without the event, however long they are followed), and e is 1 for an event. Horizon and intervals are declared and
public, never chosen on rows.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

Codes = NDArray[np.int32]
Floats = NDArray[np.float64]
MISSING, UNKNOWN = -1, -2
"""Codes of a value that is not there, and of one that is not declared."""
TICKS = 1 << 20


class Positive(BaseModel):
    """An outcome of two classes written as text: this text is 1, every other one 0."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str = Field(min_length=1)


class Outcome(BaseModel):
    """What everybody may ask about an outcome."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @property
    @abstractmethod
    def texts(self) -> Classes:
        """The texts of the outcome's own column."""

    @property
    @abstractmethod
    def outputs(self) -> int:
        """The logits that a network needs."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Of what is predicted for one row: () is one risk."""

    @abstractmethod
    def classes(self, y: NDArray[Any]) -> NDArray[Any]:
        """The class of each code: for survival, whether there was an event."""

    @abstractmethod
    def plain(self) -> dict[str, Any]:
        """What a result says about it: plain values by name."""

    @property
    def count(self) -> int:
        """How many classes rows are counted by."""
        return self.texts.count

    @property
    def two(self) -> bool:
        """Whether it is one of two classes, so that one risk says it all."""
        return self.shape == ()


class Classes(Outcome):
    """One of some classes, written as 0/1 and yes/no (2), 0 to k - 1, labels in order, or one text
    against the rest.

    >>> Classes().two, Classes(written=("home", "ward", "icu")).outputs
    (True, 3)
    """

    written: int | tuple[str, ...] | Positive = 2

    @property
    def texts(self) -> Classes:
        return self

    @property
    def count(self) -> int:
        """How many classes are told apart."""
        if isinstance(self.written, Positive):
            return 2
        return self.written if isinstance(self.written, int) else len(self.written)

    @property
    def outputs(self) -> int:
        return 1 if self.count == 2 else self.count

    @property
    def shape(self) -> tuple[int, ...]:
        return () if self.count == 2 else (self.count,)

    def classes(self, y: NDArray[Any]) -> NDArray[Any]:
        return y

    def plain(self) -> dict[str, Any]:
        return {"classes": list(self.written) if isinstance(self.written, tuple) else self.count}


TWO = Classes()


class Survival(Outcome):
    """Time until an event, as ``outcome = { time = "days", event = "death", horizon = 365 }``.

    The prediction for a row is the risk of an event by the end of each of ``intervals`` equal parts
    of the horizon. With ``cause``, only events whose text is the cause count, and every other event
    ends the follow-up (a cause-specific hazard).

    >>> outcome = Survival(time="days", event="death", horizon=100, intervals=4)
    >>> y = outcome.encode(np.array([25.0, 30, 100, 700]), np.array([1, 0, 1, 1]))
    >>> outcome.events(y).tolist(), outcome.times(y).round(3).tolist(), cells(y, 4).tolist()
    ([True, False, True, False], [25.0, 30.0, 100.0, 100.0], [1, 2, 7, 8])
    """

    time: str = Field(min_length=1)
    event: str = Field(min_length=1)
    horizon: float = Field(gt=0, allow_inf_nan=False)
    intervals: int = Field(default=10, ge=2, le=100)
    cause: str | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _differ(self) -> Survival:
        if self.time == self.event:
            raise ValueError(f"time and event must be two columns, found {self.time!r} twice")
        return self

    @property
    def name(self) -> str:
        """The outcome for people and charters.

        >>> Survival(time="days", event="end", cause="stroke", horizon=365).name
        'end = stroke by days up to 365'
        """
        of = self.event if self.cause is None else f"{self.event} = {self.cause}"
        return f"{of} by {self.time} up to {self.horizon:g}"

    @property
    def texts(self) -> Classes:
        return Classes() if self.cause is None else Classes(written=Positive(text=self.cause))

    @property
    def outputs(self) -> int:
        return self.intervals

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.intervals,)

    @property
    def edges(self) -> Floats:
        """The ends of the intervals, in the units of ``time``."""
        return np.linspace(0, self.horizon, self.intervals + 1)[1:]

    def encode(self, time: Floats, event: NDArray[np.integer]) -> Codes:
        """The code of each row; `MISSING` or `UNKNOWN` where it has none. A time below 0 or that is no
        number is unknown."""
        there = np.isfinite(time) & (time >= 0)
        beyond = there & ((time > self.horizon) | ((time == self.horizon) & (event <= 0)))
        tick = np.rint(np.where(there & ~beyond, time, 0.0) / self.horizon * TICKS)
        code = np.where(beyond, 2 * (TICKS + 1), 2 * tick.astype(np.int64) + (event > 0))
        code = np.where(there & (event >= 0), code, UNKNOWN)
        code = np.where(np.isnan(time) | (event == MISSING), MISSING, code)
        return code.astype(np.int32)

    def classes(self, y: NDArray[Any]) -> NDArray[Any]:
        return np.where(y < 0, y, y & 1)

    def plain(self) -> dict[str, Any]:
        return {"classes": 2, "survival": self.model_dump(mode="json", exclude_none=True)}

    def events(self, y: NDArray[Any]) -> NDArray[np.bool_]:
        """Where there was an event within the horizon."""
        return np.asarray((y > 0) & (y & 1 == 1))

    def times(self, y: NDArray[Any]) -> Floats:
        """Follow-up in the units of the column; a hair beyond the horizon for those who reach it."""
        return parts(y) * self.horizon


def parts(y: NDArray[Any]) -> Floats:
    """Follow-up as a part of the horizon, from survival codes: at most 1 + 1 / TICKS."""
    return np.asarray(np.clip(y.astype(np.int64) >> 1, 0, TICKS + 1) / TICKS, np.float64)


def cells(y: NDArray[Any], intervals: int) -> NDArray[np.int64]:
    """2 interval + event of survival codes, with intervals closed on the right; 2 intervals for
    follow-up beyond the horizon."""
    tick = np.clip(y.astype(np.int64) >> 1, 0, TICKS + 1)
    interval = np.clip(-(-tick * intervals // TICKS) - 1, 0, intervals - 1)
    return np.asarray(np.where(tick > TICKS, 2 * intervals, 2 * interval + (y & 1)), np.int64)
