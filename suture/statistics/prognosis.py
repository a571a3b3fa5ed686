"""How good a finished survival model is, from noisy counts of patients by predicted risk and follow-up.

**Round 1** (4 % of the cost) counts patients in 40 fine bins of the score, which is log(-log(1 - m)) of
the mean risk m over the model's intervals, and those with an event in 10 equal parts of the horizon:
the server chooses from them 12 bins of risk and 8 intervals with about as many patients, and events, in
each. **Round 2** counts patients by bin, interval and event, or beyond the horizon: a patient adds
sqrt(.6) to one of 204 cells and sqrt(.4) r to one more sum, where r in [-1, 1] is how much a patient of
that cell is expected to move the C-index, by the bins' own hazards (`expected`, `ranks_of`): the norm is
at most 1. Least squares turn both back into counts (`cells`); a wrong guess costs accuracy, never truth.

*C-index*: pairs of an event in one interval and a patient who leaves in a later one, or without the
event in the same one (half of these leave after the event). The event's bin is higher, lower, or the
same; within a bin 1/2 + w / 12 of the pairs are in order, where w is the width of the bin in the score,
because a difference s of log hazards puts 1 / (1 + exp(-s)) of the pairs in order. Of two events in one
interval either may be the first: half of these pairs are in order. To leave them out would be a bias.
*Calibration at the horizon*: in quarters of the patients by risk (three bins each), the actuarial
estimate of the risk beside the mean prediction. *Integrated Brier score*: in each quarter with survival
S, mean prediction Q and predictions of variance V between its bins, S (1 - S) - V + (S - Q)^2, over the
ends of the intervals (V stands for the variance of survival itself, which is the same where the model is
calibrated); only for models whose hazards are proportional, because there the score says Q. Intervals:
the delta method of `cells`. Below 15 deviations of the noise in events everything is withheld.
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
from suture.statistics.cells import Cells, gradient
from suture.statistics.publish import shown
from suture.statistics.survival import survival
from suture.statistics.table_one import Z95

FINE, REACH, BINS, INTERVALS = 40, 6.0, 12, 8
COARSE, QUARTERS = 10, 4
SHARE = 0.02
ENOUGH = 15.0
WIDEST = 2.0
"""The widest that a bin counts as, in the score: the outer bins have no end."""
CELLS = 2 * INTERVALS + 1
OWN, RANK = math.sqrt(0.6), math.sqrt(0.4)


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
            return (Sum("fine", FINE, 1.0, SHARE), Sum("events", COARSE, 1.0, SHARE))
        return (Sum("cells", BINS * CELLS + 1, 1.0, 1 - 2 * SHARE),)

    def expects(self, round_: int, site: str) -> Mapping[str, Field]:
        """The model; in round 2 the bins, and the intervals as parts of the horizon."""
        fields = dict(self.model)
        if round_ > 1:
            fields["edges"] = Field("<f8", (BINS - 1,), -REACH, REACH)
            fields["times"] = Field("<f8", (INTERVALS,), 0.0, 1.0)
            fields["ranks"] = Field("<f8", (BINS * CELLS,), -1.0, 1.0)
        return fields

    def broadcast(self, state: State, site: str) -> Arrays:
        """The model and, once they are chosen, the bins and intervals."""
        return {key: state[key] for key in (*self.model, "edges", "times", "ranks") if key in state}

    def adds(self, ask: Sum, data: Patients, site: str, message: Arrays) -> Rows:
        """A row's bin, or its cell."""
        out, rows = np.zeros((data.rows, ask.size), np.float32), np.arange(data.rows)
        if not data.rows:
            return out, per_patient(data)
        time, event = parts(data.y), self.outcome.events(data.y)
        if ask.name == "events":
            out[rows, np.clip((time * COARSE).astype(np.int64), 0, COARSE - 1)] = event
            return out, per_patient(data)
        score = score_of(self.risks(message, data.x))
        if ask.name == "fine":
            cell = np.clip(((score + REACH) / (2 * REACH) * FINE).astype(np.int64), 0, FINE - 1)
            out[rows, cell] = 1.0
            return out, per_patient(data)
        bins = np.searchsorted(np.asarray(message["edges"]), score, side="right")
        interval = np.searchsorted(np.asarray(message["times"]), time, side="left")
        cell = np.where(interval >= INTERVALS, 2 * INTERVALS, 2 * interval + event)
        cell = np.clip(bins, 0, BINS - 1) * CELLS + cell
        out[rows, cell] = OWN
        out[:, -1] = RANK * np.asarray(message["ranks"], np.float32)[cell]
        return out, per_patient(data)

    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        """After round 1, the bins and intervals."""
        new = super().server_step(state, answers)
        if int(new["round"]) == 1:
            fine, events = self.asks(1)
            new["fine"] = above_noise(new["fine"], 2 * self.noise_of(fine))
            new["events"] = above_noise(new["events"], self.noise_of(events))
            new["edges"] = evenly(new["fine"], np.linspace(-REACH, REACH, FINE + 1), BINS)
            times = evenly(new["events"], np.linspace(0, 1, COARSE + 1), INTERVALS)
            new["times"] = np.append(times, 1.0)
            share = float(new["events"].sum()) / max(float(new["fine"].sum()), 1.0)
            guess = expected(scores_of(new["fine"], new["edges"]), min(0.9, max(0.05, share)))
            new["ranks"] = ranks_of(guess, new["edges"])
        return new

    def figures(self, state: State) -> dict[str, object]:
        """C-index, calibration at the horizon and integrated Brier score."""
        noise = self.noise_of(self.asks(2)[0])
        cells = opened(np.asarray(state["cells"]), np.asarray(state["ranks"]), noise)
        events = float(cells.counts.reshape(BINS, CELLS)[:, 1::2].sum())
        patients = max(0.0, float(cells.counts.sum()))
        found: dict[str, object] = {"patients": patients, "horizon": self.outcome.horizon}
        found["withheld"] = events < ENOUGH * max(noise, 1e-9)
        if found["withheld"]:
            return found
        edges = np.asarray(state["edges"])
        middle = scores_of(np.asarray(state["fine"]), edges)
        value, spread = cells.of(lambda c: np.array([concordance(c, edges)]))
        found["c_index"] = _figure(value[0], spread[0, 0])
        found["calibration"] = self._calibration(state, middle, cells)
        if self.concepts is not None:
            curves = self._curves(state, middle)
            width = np.diff(np.append(0.0, state["times"]))
            value, spread = cells.of(lambda c: np.array([integrated_brier(c, curves, width)]))
            found["ibs"] = _figure(value[0], spread[0, 0])
        return found

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

    def _calibration(self, state: State, middle: Floats, cells: Cells) -> dict[str, object]:
        """By quarter: the share with the event by the horizon, and what was predicted where the score
        says it."""
        observed, low, high = [], [], []
        value, spread = cells.of(lambda c: 1 - survival(quarters(c))[:, -1])
        for i in range(QUARTERS):
            reach = Z95 * math.sqrt(max(0.0, float(spread[i, i])))
            observed.append(min(1.0, max(0.0, float(value[i]))))
            low.append(max(0.0, float(value[i]) - reach))
            high.append(min(1.0, float(value[i]) + reach))
        predicted = None
        if self.concepts is not None:
            last = 1 - self._curves(state, middle)[:, -1]
            predicted = last.reshape(QUARTERS, -1).mean(axis=1).tolist()
        return {"predicted": predicted, "observed": observed, "low": low, "high": high}


def score_of(risk: Floats) -> Floats:
    """log(-log(1 - m)) of each row's mean risk over the intervals, within the fine bins."""
    mean = np.clip(np.nan_to_num(risk).mean(axis=1), 1e-12, 1 - 1e-12)
    return np.asarray(np.clip(np.log(-np.log1p(-mean)), -REACH, REACH))


def scores_of(fine: Floats, edges: Floats) -> Floats:
    """The mean score of each bin, by the fine counts."""
    grid = np.linspace(-REACH, REACH, FINE + 1)
    mass = fine + 1e-9
    whole = np.concatenate([[-REACH], edges, [REACH]])
    below = np.interp(whole, grid, np.append(0.0, np.cumsum(mass)))
    moment = np.interp(whole, grid, np.append(0.0, np.cumsum(mass * (grid[1:] + grid[:-1]) / 2)))
    middle = (whole[1:] + whole[:-1]) / 2
    people = np.diff(below)
    found = np.where(people > 1e-6, np.diff(moment) / np.maximum(people, 1e-12), middle)
    return np.asarray(found, np.float64)


def expected(scores: Floats, events: float) -> Floats:
    """A guess of the counts for ranks: bins of equal mass whose hazards are proportional to exp of the
    score, as many events in each interval, and half of the others leave on the way."""
    there, ratio = np.full(BINS, 1 / BINS), np.exp(scores - scores.mean())
    found = np.zeros((BINS, CELLS))
    for k in range(INTERVALS):
        died = np.minimum(
            there * ratio * (events / INTERVALS) / max(there @ ratio, 1e-9), 0.9 * there
        )
        left = np.minimum((1 - events) / (2 * INTERVALS * BINS), there - died)
        found[:, 2 * k + 1], found[:, 2 * k] = died, left
        there = there - died - left
    found[:, -1] = there
    return found.ravel()


def ranks_of(guess: Floats, edges: Floats) -> Floats:
    """How far one more patient in each cell moves the C-index, the furthest by 1."""
    scale = 1 / max(float(guess.max()), 1e-12)
    slope = gradient(lambda c: np.array([concordance(c, edges)]), guess * scale)[0]
    return np.asarray(slope / max(float(np.abs(slope).max()), 1e-12))


def opened(words: Floats, ranks: Floats, noise: float) -> Cells:
    """Counts by cell from what round 2 released: least squares, with the covariance of the noise."""
    plain_, total = words[:-1], float(words[-1])
    across = OWN * plain_ + RANK * ranks * total
    shrink = RANK**2 / (OWN**2 + RANK**2 * float(ranks @ ranks))
    inverse = (np.eye(len(ranks)) - shrink * np.outer(ranks, ranks)) / OWN**2
    return Cells(inverse @ across, noise**2 * inverse)


def above_noise(counts: Floats, least: float) -> Floats:
    """Counts that stand out of the noise, and 0 for the others, which would spread the bins over
    places where nobody is."""
    found = np.where(counts > least, counts, 0.0)
    return found if found.any() else np.ones_like(found)


def evenly(fine: Floats, grid: Floats, count: int) -> Floats:
    """Edges between ``count`` bins of about the same mass, from counts in fine bins."""
    mass = fine + 1e-9
    share = np.append(0.0, np.cumsum(mass) / mass.sum())
    return np.interp(np.arange(1, count) / count, share, grid)


def concordance(cells: Floats, edges: Floats) -> float:
    """The C-index, from counts by bin and cell."""
    counts = cells.reshape(BINS, CELLS)
    events = counts[:, 1::2]
    leaving = np.column_stack([counts[:, 0:-1:2] + events, counts[:, -1]])
    later = np.flip(np.cumsum(np.flip(leaving, 1), axis=1), 1)[:, 1:] + counts[:, 0:-1:2] / 2
    below = np.cumsum(later, axis=0) - later
    inside = np.diff(edges, prepend=edges[0] - WIDEST, append=edges[-1] + WIDEST)
    tied = 0.5 + np.minimum(inside, WIDEST)[:, None] / 12
    pairs = float((events * later.sum(axis=0)).sum())
    both = float((events.sum(axis=0) ** 2).sum()) / 2
    won = float((events * (below + tied * later)).sum())
    return (won + both / 2) / max(pairs + both, 1e-9)


def integrated_brier(cells: Floats, curves: Floats, width: Floats) -> float:
    """Over the ends of the intervals, by their widths."""
    counts, by = quarters(cells), curves.reshape(QUARTERS, -1, curves.shape[1])
    share, there = counts.sum(axis=1) / max(float(counts.sum()), 1e-9), survival(counts)
    inside = there * (1 - there) - by.var(axis=1)
    return float(share @ (inside + (there - by.mean(axis=1)) ** 2) @ width)


def quarters(cells: Floats) -> Floats:
    """Counts of three neighbouring bins together."""
    return np.asarray(cells.reshape(QUARTERS, BINS // QUARTERS, CELLS).sum(axis=1))


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
        groups.append((Cell(f"{i + 1} of {QUARTERS}"), Cell(said), shown(ends, 1, 100)))
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
    readable = declared(own.of).readable(schema)
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
