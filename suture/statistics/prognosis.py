"""How good a finished survival model is, from noisy counts of patients by predicted risk and follow-up.

**Round 1** (6 % of the cost) counts patients in 64 fine bins of the score, which is log(-log(1 - m)) of
the mean risk m over the model's intervals, and those with an event in 64 equal parts of the horizon:
the server chooses from them 12 bins of risk and 8 intervals with about as many patients, and events, in
each. **Round 2** counts patients by bin, interval and event, or beyond the horizon: one of 204 cells,
sensitivity 1.

*C-index*: pairs of an event in one interval and a patient who leaves in a later one. The event's bin is
higher, lower, or the same; within a bin 1/2 + w / 12 of the pairs are in order, where w is the width of
the bin in the score, because a difference s of log hazards puts 1 / (1 + exp(-s)) of the pairs in order.
Pairs within an interval are left out: under proportional hazards they are in order as often as others.
*Calibration at the horizon*: in each bin the actuarial estimate of the risk beside the mean prediction.
*Integrated Brier score*: in each bin with survival S and prediction Q, S (1 - S) + (S - Q)^2, over the
ends of the intervals; only for models whose hazards are proportional, because there the score says Q.
Intervals: the delta method of `cells`. Below 15 deviations of the noise in events everything is withheld.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Setting

from suture.errors import StudyError
from suture.methods.base import Answer, Arrays, State
from suture.methods.declared import Declared, Settings, Setup
from suture.methods.registry import declared
from suture.models.concepts import Concepts
from suture.models.hazards import proportional
from suture.models.network import Network
from suture.privacy.door import Rows
from suture.privacy.unit import Patients
from suture.report.words import Cell, Table
from suture.result import Result
from suture.schema.message import Field
from suture.schema.outcome import Survival, parts
from suture.statistics.base import Floats, Statistic, Sum, per_patient
from suture.statistics.cells import plain
from suture.statistics.publish import shown
from suture.statistics.survival import survival
from suture.statistics.table_one import Z95

FINE, REACH, BINS, INTERVALS = 64, 8.0, 12, 8
SHARE = 0.03
ENOUGH = 15.0
WIDEST = 2.0
"""The widest that a bin counts as, in the score: the outer bins have no end."""
CELLS = 2 * INTERVALS + 1


@dataclass(frozen=True)
class Prognosis(Statistic):
    """A finished survival model on the patients that were held out, or on all patients of other
    sites: a ``network``, or weights of ``concepts`` and a baseline."""

    network: Network | None = None
    concepts: Concepts | None = None
    tests: bool = True
    name: str = "prognosis"
    label: str = "an evaluation"

    @cached_property
    def outcome(self) -> Survival:
        """What was predicted."""
        if isinstance(self.public.outcome, Survival):
            return self.public.outcome
        raise StudyError("prognosis needs an outcome with follow-up")

    @cached_property
    def model(self) -> dict[str, Field]:
        """The arrays of the model, as a message holds them."""
        if self.network is not None:
            return {"params": Field("<f4", (self.network.n_params,))}
        if self.concepts is None:
            raise StudyError("evaluate needs a finished model: suture evaluate RUN")
        size, hazards = len(self.concepts), self.outcome.intervals
        found = {"weights": Field("<f4", (size,)), "bias": Field("<f4", (1,))}
        return {**found, "hazard": Field("<f4", (hazards,), 0.0, 1e3)}

    def risks(self, message: Arrays, x: NDArray[np.float32]) -> Floats:
        """The risk of each row by the end of each interval."""
        if self.network is not None:
            return np.asarray(self.network.predict(message["params"], x), np.float64)
        if self.concepts is None:
            raise StudyError("evaluate needs a finished model: suture evaluate RUN")
        values = self.concepts.matrix(x).astype(np.float64)
        score = (values * message["weights"].astype(np.float64)).sum(axis=1) + message["bias"][0]
        return np.asarray(proportional(score, message["hazard"]), np.float64)

    def asks(self, round_: int) -> tuple[Sum, ...]:
        """Fine bins of the score, and of the times of events; then every cell."""
        if round_ == 1:
            return (Sum("fine", FINE, 1.0, SHARE), Sum("events", FINE, 1.0, SHARE))
        return (Sum("cells", BINS * CELLS, 1.0, 1 - 2 * SHARE),)

    def expects(self, round_: int, site: str) -> Mapping[str, Field]:
        """The model; in round 2 the bins, and the intervals as parts of the horizon."""
        fields = dict(self.model)
        if round_ > 1:
            fields["edges"] = Field("<f8", (BINS - 1,), -REACH, REACH)
            fields["times"] = Field("<f8", (INTERVALS,), 0.0, 1.0)
        return fields

    def broadcast(self, state: State, site: str) -> Arrays:
        """The model and, once they are chosen, the bins and intervals."""
        return {key: state[key] for key in (*self.model, "edges", "times") if key in state}

    def adds(self, ask: Sum, data: Patients, site: str, message: Arrays) -> Rows:
        """A row's bin, or its cell."""
        out, rows = np.zeros((data.rows, ask.size), np.float32), np.arange(data.rows)
        if not data.rows:
            return out, per_patient(data)
        time, event = parts(data.y), self.outcome.events(data.y)
        if ask.name == "events":
            out[rows, np.clip((time * FINE).astype(np.int64), 0, FINE - 1)] = event
            return out, per_patient(data)
        score = score_of(self.risks(message, data.x))
        if ask.name == "fine":
            cell = np.clip(((score + REACH) / (2 * REACH) * FINE).astype(np.int64), 0, FINE - 1)
            out[rows, cell] = 1.0
            return out, per_patient(data)
        bins = np.searchsorted(np.asarray(message["edges"]), score, side="right")
        interval = np.searchsorted(np.asarray(message["times"]), time, side="left")
        cell = np.where(interval >= INTERVALS, 2 * INTERVALS, 2 * interval + event)
        out[rows, np.clip(bins, 0, BINS - 1) * CELLS + cell] = 1.0
        return out, per_patient(data)

    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        """After round 1, the bins and intervals."""
        new = super().server_step(state, answers)
        if int(new["round"]) == 1:
            grid = np.linspace(-REACH, REACH, FINE + 1)
            new["edges"] = evenly(new["fine"], grid, BINS)
            times = evenly(new["events"], np.linspace(0, 1, FINE + 1), INTERVALS)
            new["times"] = np.append(times, 1.0)
        return new

    def figures(self, state: State) -> dict[str, object]:
        """C-index, calibration at the horizon and integrated Brier score."""
        noise = self.noise_of(self.asks(2)[0])
        cells = plain(np.asarray(state["cells"]), noise)
        events = float(cells.counts.reshape(BINS, CELLS)[:, 1::2].sum())
        patients = max(0.0, float(cells.counts.sum()))
        found: dict[str, object] = {"patients": patients, "horizon": self.outcome.horizon}
        found["withheld"] = events < ENOUGH * max(noise, 1e-9)
        if found["withheld"]:
            return found
        edges, middle = np.asarray(state["edges"]), self._scores(state)
        value, spread = cells.of(lambda c: np.array([concordance(c, edges)]))
        found["c_index"] = _figure(value[0], spread[0, 0])
        found["calibration"] = self._calibration(state, middle, noise)
        if self.concepts is not None:
            curves = self._curves(state, middle)
            width = np.diff(np.append(0.0, state["times"]))
            value, spread = cells.of(lambda c: np.array([integrated_brier(c, curves, width)]))
            found["ibs"] = _figure(value[0], spread[0, 0])
        return found

    def _scores(self, state: State) -> Floats:
        """The mean score of each bin, by the fine counts."""
        grid = np.linspace(-REACH, REACH, FINE + 1)
        middle = (grid[1:] + grid[:-1]) / 2
        mass = np.maximum(state["fine"], 0.0) + 1e-9
        inside = np.searchsorted(np.asarray(state["edges"]), middle, side="right")
        return np.asarray(np.bincount(inside, mass * middle, BINS) / np.maximum(
            np.bincount(inside, mass, BINS), 1e-12))  # fmt: skip

    def _curves(self, state: State, middle: Floats) -> Floats:
        """Survival of each bin at the ends of the evaluation's intervals, by its mean score."""
        hazard = np.asarray(state["hazard"], np.float64)
        grid = np.linspace(-12, 12, 2401)
        table = np.asarray(proportional(grid, hazard), np.float64)
        rising = np.maximum.accumulate(score_of(table))
        score = np.interp(middle, rising, grid)
        whole = np.linspace(0, 1, len(hazard) + 1)
        at = np.interp(np.asarray(state["times"]), whole, np.append(0.0, hazard))
        return np.asarray(1 - proportional(score, at), np.float64)

    def _calibration(self, state: State, middle: Floats, noise: float) -> dict[str, object]:
        """By bin: the share with the event by the horizon, and what was predicted where the score
        says it."""
        observed, low, high = [], [], []
        for block in np.asarray(state["cells"]).reshape(BINS, CELLS):
            value, spread = plain(block, noise).of(lambda c: 1 - survival(c)[-1:])
            reach = Z95 * math.sqrt(max(0.0, float(spread[0, 0])))
            observed.append(min(1.0, max(0.0, float(value[0]))))
            low.append(max(0.0, float(value[0]) - reach))
            high.append(min(1.0, float(value[0]) + reach))
        predicted = None
        if self.concepts is not None:
            predicted = (1 - self._curves(state, middle)[:, -1]).tolist()
        return {"predicted": predicted, "observed": observed, "low": low, "high": high}


def score_of(risk: Floats) -> Floats:
    """log(-log(1 - m)) of each row's mean risk over the intervals, within the fine bins."""
    mean = np.clip(np.nan_to_num(risk).mean(axis=1), 1e-12, 1 - 1e-12)
    return np.asarray(np.clip(np.log(-np.log1p(-mean)), -REACH, REACH))


def evenly(fine: Floats, grid: Floats, count: int) -> Floats:
    """Edges between ``count`` bins of about the same mass, from noisy fine counts."""
    mass = np.maximum(fine, 0.0) + 1e-9
    share = np.append(0.0, np.cumsum(mass) / mass.sum())
    return np.interp(np.arange(1, count) / count, share, grid)


def concordance(cells: Floats, edges: Floats) -> float:
    """The C-index, from counts by bin and cell."""
    counts = cells.reshape(BINS, CELLS)
    events = counts[:, 1::2]
    leaving = np.column_stack([counts[:, 0:-1:2] + events, counts[:, -1]])
    later = np.flip(np.cumsum(np.flip(leaving, 1), axis=1), 1)[:, 1:]
    below = np.cumsum(later, axis=0) - later
    inside = np.diff(edges, prepend=edges[0] - WIDEST, append=edges[-1] + WIDEST)
    tied = 0.5 + np.minimum(inside, WIDEST)[:, None] / 12
    pairs = float((events * later.sum(axis=0)).sum())
    return float((events * (below + tied * later)).sum()) / max(pairs, 1e-9)


def integrated_brier(cells: Floats, curves: Floats, width: Floats) -> float:
    """Over the ends of the intervals, by their widths."""
    counts = cells.reshape(BINS, CELLS)
    share = counts.sum(axis=1) / max(float(counts.sum()), 1e-9)
    there = np.array([survival(block) for block in counts])
    scores = share @ (there * (1 - there) + (there - curves) ** 2)
    return float(scores @ width)


def _figure(value: float, variance: float) -> dict[str, object]:
    reach = Z95 * math.sqrt(max(0.0, float(variance)))
    ends = [max(0.0, float(value) - reach), min(1.0, float(value) + reach)]
    return {"value": min(1.0, max(0.0, float(value))), "interval": ends}


def tables(found: Mapping[str, Any]) -> list[Table]:
    """Figures over all sites, and calibration by bins of risk."""
    horizon = f"{found['horizon']:g}"
    remark = "Small: 95 % intervals, for noise and sampling together."
    if found["withheld"]:
        row = (Cell("C-index"), Cell("–", "withheld: few events for the noise"))
        return [Table("The model on held-out patients", ("", "All"), (row,), remark)]
    names = {"c_index": "C-index", "ibs": "Integrated Brier score"}
    rows = [(Cell(text), shown(found[key], 3)) for key, text in names.items() if key in found]
    seen = found["calibration"]
    groups = []
    for i, value in enumerate(seen["observed"]):
        ends = {"value": value, "interval": [seen["low"][i], seen["high"][i]]}
        said = "–" if seen["predicted"] is None else f"{100 * seen['predicted'][i]:.1f}"
        groups.append((Cell(f"{i + 1} of {BINS}"), Cell(said), shown(ends, 1, 100)))
    heads = ("Patients by risk", "Predicted, %", "Observed, %")
    return [
        Table("The model on held-out patients", ("", "All"), tuple(rows), remark),
        Table(f"Risk by {horizon}, from the lowest", heads, tuple(groups), remark),
    ]


class Prognosed(Settings):
    """What `suture evaluate` may be asked about a survival model."""

    of: str = ""
    tests: bool = True
    honest: float = Setting(default=0.5, gt=0, le=1)


def build(setup: Setup) -> Prognosis:
    """From a study: of the method's model, only its kind matters."""
    own = Prognosed.model_validate(setup.settings)
    setup.every_site("prognosis")
    schema = setup.public.schema
    if not own.of or schema is None:
        raise StudyError("evaluate needs a finished model: suture evaluate RUN")
    readable = declared(own.of).model == "concepts"
    return Prognosis(
        setup.public,
        own.honest,
        network=None if readable else setup.network,
        concepts=declared(own.of).concepts(schema) if readable else None,
        tests=own.tests,
    )


def baseline(result: Result) -> State:
    """The baseline of a finished model, where it has one."""
    known = result.model.get("hazard")
    return {} if known is None else {"hazard": np.ascontiguousarray(known, np.float32)}


DECLARED = Declared(
    "prognosis",
    build,
    Prognosed,
    uses=frozenset(),
    searches=(),
    model="none",
    outcomes=(Survival,),
)
