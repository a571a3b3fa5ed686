"""Survival of all sites' patients: Kaplan-Meier, restricted mean and the log-rank test, with noise.

**Round 1** counts patients by group, interval of follow-up and event: a patient is in one cell, so
the sensitivity is 1. Survival after interval k is the product of 1 - d_j / (n_j - w_j / 2) over j <= k
(the actuarial estimate; with `half = false` 1 - d_j / n_j, Kaplan-Meier's on times rounded up to the
intervals' ends), where n_j are those whose follow-up reaches interval j. Intervals are declared, never
chosen on rows. Variance: `cells`; intervals on the scale of log(-log S).

**Round 2** (with groups) is the log-rank test. With the cumulative hazard L of round 1, which is
public by then, a patient adds M = event - L(time) to their group's score S_g, with follow-up ended
where L reaches 1, so that |M| <= 1. Without noise S is the log-rank's observed minus expected. With
the exposures E (groups x intervals) and the hazards h of round 1, and the noise s of S,

    Cov S = V + s^2 I + E Cov(h) E^T,   V = sum over k of d_k (diag(p_k) - p_k p_k^T), p_gk = E_gk / E_k,

where V is the log-rank's own variance and Cov(h) the hazards' noise. U = S - w sum(S), w the groups'
shares of the exposure, takes out what all groups share of the error of L, and U^T Cov(U)^- U is
compared with chi-squared of groups - 1 degrees. A test that ignores the noise rejects too often
(benchmarks/statistics.py measures both).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import altair as alt
import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Setting
from scipy.stats import chi2

from suture.errors import StudyError
from suture.methods.base import Answer, Arrays, State
from suture.methods.declared import Declared, Settings, Setup
from suture.privacy.door import Rows
from suture.privacy.unit import Patients
from suture.report.theme import PALETTE, Figure, finish, table, tips
from suture.report.words import Cell, Table, p_value
from suture.schema.message import Field
from suture.schema.outcome import Classes
from suture.schema.outcome import Survival as Followed
from suture.schema.table import Number
from suture.statistics.base import Floats, Statistic, Sum, any_of, per_patient
from suture.statistics.cells import Cells, gradient, plain
from suture.statistics.publish import shown
from suture.statistics.table_one import Z95, Place, cells_of, labels_of, places

CELLS = 0.3
"""The share of the cost that round 1 gets where there is a round 2."""


@dataclass(frozen=True)
class Survival(Statistic):
    """Follow-up in the column ``time`` and the event in the study's outcome, or both in an outcome
    with follow-up; groups in ``by``."""

    time: str = ""
    by: str = ""
    intervals: int = 10
    horizon: float | None = None
    half: bool = True
    name: str = "survive"
    label: str = "survival"

    @cached_property
    def _time(self) -> Place:
        return place_of(self, self.time, numbers=True)

    @cached_property
    def _range(self) -> tuple[float, float]:
        """The least and the largest follow-up that can be told."""
        if isinstance(self.public.outcome, Followed):
            if self.time:
                raise StudyError("time: the study's outcome says which column it is; leave it out")
            return 0.0, self.public.outcome.horizon
        feature = self._time.feature
        if not isinstance(feature, Number) or feature.low < 0:
            raise StudyError(f"time: {self.time!r} must be a number with bounds of 0 or more")
        return feature.low, feature.high

    @cached_property
    def edges(self) -> Floats:
        """The ends of the intervals, in the column's own units."""
        low, high = self._range
        last = high if self.horizon is None else self.horizon
        if not low < last <= high:
            raise StudyError(
                f"horizon: expected a time within the bounds of the follow-up, up to {high:g}; "
                f"found {last:g}"
            )
        return np.linspace(0, last, self.intervals + 1)[1:]

    @cached_property
    def groups(self) -> tuple[str, ...]:
        """The groups that are compared."""
        return labels_of(place_of(self, self.by).feature) if self.by else ("all",)

    def asks(self, round_: int) -> tuple[Sum, ...]:
        """Cells by group, event and interval (one more for follow-up beyond the horizon); then
        scores by group."""
        size = len(self.groups) * (2 * len(self.edges) + 1)
        if round_ == 1:
            return (Sum("cells", size, 1.0, CELLS if self.by else 1.0),)
        return (Sum("scores", len(self.groups), 1.0, 1 - CELLS),)

    def expects(self, round_: int, site: str) -> Mapping[str, Field]:
        """In round 2 the cumulative hazard at the ends of the intervals."""
        return {} if round_ == 1 else {"hazard": Field("<f8", (len(self.edges),), 0.0, 1e3)}

    def broadcast(self, state: State, site: str) -> Arrays:
        """The pooled cumulative hazard, once it is known."""
        return {"hazard": state["hazard"]} if "hazard" in state else {}

    def adds(self, ask: Sum, data: Patients, site: str, message: Arrays) -> Rows:
        """A row's cell, or its score."""
        group = np.zeros(data.rows, np.int64)
        if self.by:
            group = cells_of(place_of(self, self.by), data.x)
        time, event, known = self.follow_up(data)
        used = known & (group < len(self.groups))
        rows = np.flatnonzero(used)
        interval = np.searchsorted(self.edges, time, side="left")
        beyond = interval >= len(self.edges)
        out = np.zeros((data.rows, ask.size), np.float32)
        if ask.name == "cells":
            width = 2 * len(self.edges) + 1
            cell = np.where(beyond, 2 * len(self.edges), 2 * interval + event)
            out[rows, group[rows] * width + cell[rows]] = 1.0
            return out, per_patient(data)
        m = martingale(time, event, self.edges, np.asarray(message["hazard"], np.float64))
        out[rows, group[rows]] = m[rows]
        return out, per_patient(data)

    def follow_up(self, data: Patients) -> tuple[Floats, NDArray[np.bool_], NDArray[np.bool_]]:
        """Follow-up in its own units, whether it ended with an event, and where it is known."""
        outcome = self.public.outcome
        if isinstance(outcome, Followed):
            return outcome.times(data.y), outcome.events(data.y), np.ones(data.rows, bool)
        time, known = column_values(self._time, data)
        return time, any_of(data, data.y) > 0, known

    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        """Opened; after round 1 with the cumulative hazard of everybody, cut at what it can be."""
        new = super().server_step(state, answers)
        if int(new["round"]) == 1:
            pooled = new["cells"].reshape(len(self.groups), -1).sum(axis=0)
            new["hazard"] = np.maximum.accumulate(
                np.clip(np.cumsum(hazards(pooled, self.half)), 0, 1e3)
            )
        return new

    def figures(self, state: State) -> dict[str, object]:
        """Curves and restricted means by group, and the test where there are groups."""
        sd = self.noise_of(self.asks(1)[0])
        by_group = state["cells"].reshape(len(self.groups), -1)
        found: dict[str, object] = {
            "by": self.by,
            "times": self.edges.tolist(),
            "groups": {
                name: self._curve(plain(cells, sd))
                for name, cells in zip(self.groups, by_group, strict=True)
            },
        }
        if "scores" in state:
            found["test"] = self._test(state, sd)
        return found

    def _curve(self, cells: Cells) -> dict[str, object]:
        values, spread = cells.of(lambda c: survival(c, self.half))
        low, high = loglog(values, np.sqrt(np.diag(spread)))
        width = np.diff(np.concatenate([[0.0], self.edges]))

        def mean(c: Floats) -> Floats:
            s = np.concatenate([[1.0], survival(c, self.half)])
            return np.atleast_1d(width @ (s[1:] + s[:-1]) / 2)

        restricted, variance = cells.of(mean)
        error = Z95 * math.sqrt(float(variance[0, 0]))
        top = float(self.edges[-1])
        patients = float(cells.counts.sum())
        few = patients < 15 * math.sqrt(float(cells.noise[0, 0]))
        return {
            "patients": max(0.0, patients),
            "withheld": few,
            "survival": None if few else np.clip(values, 0, 1).tolist(),
            "low": None if few else low.tolist(),
            "high": None if few else high.tolist(),
            "restricted_mean": None if few else min(top, max(0.0, float(restricted[0]))),
            "restricted_mean_interval": None
            if few
            else [max(0.0, float(restricted[0]) - error), min(top, float(restricted[0]) + error)],
        }

    def _test(self, state: State, cells_sd: float) -> dict[str, float | None]:
        cells = np.asarray(state["cells"]).reshape(len(self.groups), -1)
        noise = self.noise_of(self.asks(2)[0])
        return log_rank(np.asarray(state["scores"]), noise, cells, cells_sd, self.half)


def log_rank(
    scores: Floats, noise: float, cells: Floats, cells_noise: float, half: bool
) -> dict[str, float | None]:
    """Chi-squared of the groups' scores against equal hazards."""
    groups, pooled = len(scores), cells.sum(axis=0)
    used = np.cumsum(hazards(pooled, half)) <= 1
    exposure = np.maximum(at_risk(cells, half), 0.0)[:, used]
    events = np.maximum(pooled[1::2], 0.0)[used]
    if not used.any() or exposure.sum() <= 0 or np.any(exposure.sum(axis=1) <= 0):
        return {"statistic": None, "degrees": groups - 1, "p": None}
    p = exposure / np.maximum(exposure.sum(axis=0), 1.0)
    spread = np.diag((p * events).sum(axis=1)) - (p * events) @ p.T
    slope = gradient(lambda c: hazards(c, half)[used], pooled)
    of_hazards = groups * cells_noise**2 * slope @ slope.T
    spread = spread + noise**2 * np.eye(groups) + exposure @ of_hazards @ exposure.T
    weight = exposure.sum(axis=1) / exposure.sum()
    project = np.eye(groups) - weight[:, None]
    u, spread = project @ scores, project @ spread @ project.T
    statistic = float(u @ np.linalg.pinv(spread, rcond=1e-9, hermitian=True) @ u)
    p_value = float(chi2.sf(statistic, groups - 1))
    return {"statistic": statistic, "degrees": groups - 1, "p": p_value}


def hazards(cells: Floats, half: bool) -> Floats:
    """The hazard of each interval, from censored and events by interval and those beyond."""
    found: Floats = cells[..., 1::2] / np.maximum(at_risk(cells, half), 1.0)
    return found


def at_risk(cells: Floats, half: bool) -> Floats:
    """Those whose follow-up reaches each interval, less half of those censored in it."""
    censored, events = cells[..., 0:-1:2], cells[..., 1::2]
    leaving = np.concatenate([censored + events, cells[..., -1:]], axis=-1)
    reach = np.flip(np.cumsum(np.flip(leaving, -1), axis=-1), -1)[..., :-1]
    return np.asarray(reach - censored / 2 if half else reach, np.float64)


def survival(cells: Floats, half: bool = True) -> Floats:
    """The share alive after each interval.

    Four of ten die in the first interval, the rest are followed to the end:

    >>> survival(np.array([0.0, 4, 0, 0, 6])).tolist()
    [0.6, 0.6]
    """
    return np.asarray(np.cumprod(1 - hazards(cells, half), axis=-1), np.float64)


def loglog(values: Floats, deviation: Floats) -> tuple[Floats, Floats]:
    """95 % limits on the scale of log(-log S), within [0, 1]; where S is at an end, plain ones."""
    inside = np.clip(values, 1e-6, 1 - 1e-6)
    log = np.log(inside)
    reach = Z95 * deviation / (inside * np.abs(log))
    low, high = inside ** np.exp(np.minimum(reach, 50)), inside ** np.exp(-np.minimum(reach, 50))
    edge = (values >= 1) | (values <= 0)
    low = np.where(edge, np.clip(values - Z95 * deviation, 0, 1), low)
    high = np.where(edge, np.clip(values + Z95 * deviation, 0, 1), high)
    return low, high


def martingale(time: Floats, event: NDArray[np.bool_], edges: Floats, hazard: Floats) -> Floats:
    """Event minus cumulative hazard at the end of follow-up, which ends with the last interval after
    which the hazard is within 1.

    >>> martingale(np.array([1.0, 1.0, 9.0]), np.array([True, False, True]), np.array([2.0, 4.0]), np.array([0.5, 1.5]))
    array([ 0.75, -0.25, -0.5 ])
    """
    within = int(np.count_nonzero(hazard <= 1))
    if not within:
        return np.zeros(len(time))
    last = edges[within - 1]
    grid = np.concatenate([[0.0], edges[:within]])
    up_to = np.interp(time, grid, np.concatenate([[0.0], hazard[:within]]))
    return np.asarray(np.clip((event & (time <= last)) - up_to, -1, 1), np.float64)


def place_of(statistic: Statistic, column: str, numbers: bool = False) -> Place:
    """Where a declared column stands; a number, or else a category or flag."""
    if statistic.public.schema is None:
        raise StudyError(f"{statistic.name} needs a [schema]")
    known = list(places(statistic.public.schema))
    fitting = [p for p in known if isinstance(p.feature, Number) == numbers]
    for place in fitting:
        if place.name == column:
            return place
    kind = "number" if numbers else "category or flag"
    raise StudyError(
        f"{statistic.name}: {column!r} is not a declared {kind}; expected one of "
        f"{', '.join(p.name for p in fitting) or 'none: the schema has no such column'}"
    )


def column_values(place: Place, data: Patients) -> tuple[Floats, NDArray[np.bool_]]:
    """A number in its own units (within its bounds), and where it is known."""
    feature = place.feature
    if not isinstance(feature, Number):
        raise StudyError(f"{place.name!r} is not a number")
    x = np.clip(np.nan_to_num(data.x[:, place.start].astype(np.float64)), -1, 1)
    known = np.ones(data.rows, bool)
    if place.missing >= 0:
        known = data.x[:, place.missing] < 0.5
    return feature.low + (x + 1) / 2 * (feature.high - feature.low), known


class Survived(Settings):
    """What `suture survive` may be asked."""

    time: str = ""
    by: str = ""
    intervals: int = Setting(default=10, ge=1, le=1000)
    horizon: float | None = Setting(default=None, gt=0)
    half: bool = True
    honest: float = Setting(default=0.5, gt=0, le=1)


def build(setup: Setup) -> Survival:
    """From a study."""
    own: Any = Survived.model_validate(setup.settings)
    setup.every_site("survive")
    return Survival(setup.public, **own.model_dump())


DECLARED = Declared(
    "survive",
    build,
    Survived,
    uses=frozenset(),
    searches=(),
    model="none",
    outcomes=(Classes, Followed),
)


def tables(found: Mapping[str, Any], unit: str) -> list[Table]:
    """Survival at the end of each interval and restricted means by group, and the test."""
    groups = found["groups"]
    rows = []
    for i, time in enumerate(found["times"]):
        cells = [_share(group, i) for group in groups.values()]
        rows.append((Cell(f"{time:g} {unit}".strip()), *cells))
    last = found["times"][-1]
    means = []
    for group in groups.values():
        ends = group["restricted_mean_interval"]
        means.append(shown({"value": group["restricted_mean"], "interval": ends}, 2))
    rows.append((Cell(f"Mean survival within {last:g} {unit}".strip()), *means))
    remark = "Small: 95 % intervals, for noise and sampling together."
    if "test" in found and found["test"]["p"] is not None:
        test = found["test"]
        remark += (
            f" Log-rank test with the noise counted: chi-squared {test['statistic']:.2f}, "
            f"degrees of freedom {test['degrees']}, p {p_value(test['p'])}."
        )
    heads = ("Time", *(f"{found['by']}: {name}" if found["by"] else name for name in groups))
    return [Table("Share without the event, %", heads, tuple(rows), remark)]


def _share(group: Mapping[str, Any], i: int) -> Cell:
    if group["withheld"]:
        return Cell("–", "withheld: few patients for the noise")
    ends = [group["low"][i], group["high"][i]]
    return shown({"value": group["survival"][i], "interval": ends}, 1, 100)


def curve(found: Mapping[str, Any], unit: str) -> Figure:
    """Survival by group with its interval."""
    rows = [
        {"group": name, "time": time, "survival": value, "low": low, "high": high}
        for name, group in found["groups"].items()
        if not group["withheld"]
        for time, value, low, high in zip(
            [0.0, *found["times"]],
            [1.0, *group["survival"]],
            [1.0, *group["low"]],
            [1.0, *group["high"]],
            strict=True,
        )
    ]
    names = list(found["groups"])
    scale = alt.Scale(domain=names, range=[PALETTE[i % len(PALETTE)] for i in range(len(names))])
    legend = alt.Legend(title=None, orient="top") if len(names) > 1 else None
    colour = alt.Color("group:N", scale=scale, legend=legend)
    dash = alt.StrokeDash("group:N", legend=None)
    base = alt.Chart(table(rows)).encode(
        x=alt.X("time:Q", title=f"Time ({unit})" if unit else "Time"), color=colour
    )
    y = alt.Y("survival:Q", title="Share without the event", scale=alt.Scale(domain=[0, 1]))
    band = base.mark_area(opacity=0.15).encode(y=alt.Y("low:Q", title=""), y2="high:Q")
    line = base.mark_line(point=True).encode(
        y=y, strokeDash=dash, tooltip=tips(group="Group", time="Time|.3g", survival="Share|.3f")
    )
    return finish((band + line).properties(width=520, height=320), "Survival", "95 % intervals")
