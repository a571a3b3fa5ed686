"""How good a model is, from noisy counts of patients by risk and outcome.

**Round 1** (3 % of the cost) counts patients in 64 fine bins of log odds, whatever their outcome:
the server chooses the edges of 24 bins from it, half by mass and half evenly, with the threshold among
them. Edges are then public. **Round 2** counts by bin and outcome, over all sites, by site, and by the
groups of `by`: for each outcome the site releases A c instead of the counts c, where no column of A
is longer than 1, so that a patient moves it by at most 1; least squares turn it back (`cells`).

A is the best for what is shown (`strategy`): with the rows of W the figures' slopes by the counts,
A minimises tr(W (A^T A)^-1 W^T) under diag(A^T A) <= 1. The optimum is X = A^T A = D (D^-1 M D^-1)^(1/2) D
with M = W^T W and D^-2 = diag(v), v the fixed point of v = diag((diag(v)^(1/2) M diag(v)^(1/2))^(1/2))
(Denisov et al. 2022, Theorem 3.2 and Section 3). The slopes follow from round 1, with outcomes guessed from the risks.
A poor guess costs accuracy and nothing else.

AUC counts pairs of bins, and within a bin 1/2 + w (1/m + 1/(1 - m)) / 12 for risks that are evenly
spread over a bin of width w about m and calibrated there (by integrating their densities). A patient's
rows are averaged; the outcome is that of any row. Intervals: the delta method of `cells`, on the log
odds of what lies in [0, 1]. Below 15 deviations of the noise in either outcome a figure is withheld.
Recalibration (slope and intercept of the outcome on the log odds) and every threshold on an edge come
from the same counts, at no further cost.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Setting
from scipy.special import expit, logit, ndtri

from suture.errors import StudyError
from suture.methods.base import Answer, Arrays, Method, State
from suture.methods.declared import Declared, Settings, Setup
from suture.methods.registry import declared
from suture.models.concepts import Concepts
from suture.models.network import Network
from suture.privacy.door import Payload, Rows, Session, protected
from suture.privacy.unit import Patients
from suture.report.words import Cell, Table, p_value
from suture.result import Result
from suture.schema.message import Field
from suture.schema.table import Schema, feature_names
from suture.statistics.base import Floats, Statistic, Sum, any_of, per_patient
from suture.statistics.cells import Cells
from suture.statistics.publish import shown
from suture.statistics.survival import place_of
from suture.statistics.table_one import Z95, Place, cells_of, labels_of
from suture.study import Study

FINE, REACH, BINS = 64, 8.0, 24
SHARES = {"fine": 0.03, "overall": 0.85, "parts": 0.12}
WEIGHTS = {"auc": 1.0, "total": 0.2, "threshold": 0.2, "below": 0.05, "own": 0.05}
"""How much the slopes of an AUC, the total, the patients at or above the threshold, the patients below
each edge and single bins weigh when A is chosen."""
ENOUGH = 15.0
OWN = "own/"


class _Noted(dict[str, NDArray[Any]]):
    """A state that notes which of its arrays are read."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self.seen: dict[str, None] = {}

    def __getitem__(self, key: str) -> NDArray[Any]:
        self.seen[key] = None
        return super().__getitem__(key)


@dataclass(frozen=True)
class Evaluation(Statistic):
    """A model on the patients that were held out, or on all patients of other sites: a ``network``,
    weights of ``concepts``, or what a method has just ``trained`` at the sites ``trainers``."""

    network: Network | None = None
    concepts: Concepts | None = None
    trained: Method | None = None
    trainers: tuple[str, ...] = ()
    threshold: float = 0.5
    by: tuple[str, ...] = ()
    tests: bool = True
    name: str = "evaluate"
    label: str = "an evaluation"

    @cached_property
    def _before(self) -> State:
        """A trained method's state before its first round, which is public: its texts and shapes."""
        if self.trained is None:
            return {}
        return self.trained.init(self.trainers, np.random.default_rng(0))

    @cached_property
    def model(self) -> dict[str, Field]:
        """The arrays of the model, as a message holds them: of a method, those that a risk reads."""
        if self.concepts is not None:
            return {"weights": Field("<f4", (len(self.concepts),)), "bias": Field("<f4", (1,))}
        if self.trained is not None and self.public.schema is not None:
            noted = _Noted(self._before)
            row = np.zeros((1, len(feature_names(self.public.schema))), np.float32)
            self.trained.predict(noted, {}, row, next(iter(self.public.sizes)))
            read = {key: self._before[key] for key in noted.seen}
            kinds = {"f": "<f4", "i": "<i8", "u": "<i8"}
            return {
                key: Field(kinds[array.dtype.kind], array.shape)
                for key, array in read.items()
                if array.dtype.kind in kinds
            }
        if self.network is None:
            raise StudyError("evaluate needs a finished model: suture evaluate RUN")
        return {"params": Field("<f4", (self.network.n_params,))}

    def score(self, message: Arrays, x: NDArray[np.float32], site: str) -> Floats:
        """The risk of each row: of that row alone, to the last bit."""
        if self.concepts is not None:
            odds = (self.concepts.matrix(x).astype(np.float64) * message["weights"]).sum(axis=1)
            return np.asarray(expit(odds + float(message["bias"][0])))
        if self.trained is not None:
            own = {k.removeprefix(OWN): v for k, v in message.items() if k.startswith(OWN)}
            state = {**self._before, **{key: message[key] for key in self.model}}
            return np.asarray(self.trained.predict(state, own, x, site), np.float64)
        if self.network is None:
            raise StudyError("evaluate needs a finished model: suture evaluate RUN")
        return np.asarray(self.network.predict(message["params"], x), np.float64)

    @cached_property
    def columns(self) -> tuple[Place, ...]:
        """Where the columns of `by` stand."""
        return tuple(place_of(self, column) for column in self.by)

    @cached_property
    def strata(self) -> tuple[str, ...]:
        """Sites, and the groups of each column of `by`."""
        groups = [f"{p.name}: {group}" for p in self.columns for group in labels_of(p.feature)]
        return (*(f"site: {site}" for site in self.public.sizes), *groups)

    def asks(self, round_: int) -> tuple[Sum, ...]:
        """Fine bins; then bins by outcome, of all and of each part."""
        if round_ == 1:
            return (Sum("fine", FINE, 1.0, SHARES["fine"]),)
        width, breakdowns = 2 * BINS, math.sqrt(1 + len(self.by))
        return (
            Sum("overall", width, 1.0, SHARES["overall"]),
            Sum("parts", width * len(self.strata), breakdowns, SHARES["parts"]),
        )

    def expects(self, round_: int, site: str) -> Mapping[str, Field]:
        """The model, and from round 2 on the edges of the bins and how counts are sent."""
        fields = dict(self.model)
        if round_ > 1:
            fields["edges"] = Field("<f8", (BINS - 1,), -REACH, REACH)
            fields["strategy"] = Field("<f8", (2, BINS, BINS), -1.0, 1.0)
        return fields

    def broadcast(self, state: State, site: str) -> Arrays:
        """The model and, once they are chosen, the bins."""
        sent = {
            key: np.clip(np.nan_to_num(state[key]), field.low, field.high).astype(field.dtype)
            for key, field in self.model.items()
        }
        return sent | {key: state[key] for key in ("edges", "strategy") if key in state}

    def site_step(self, session: Session, own: State, message: Arrays) -> tuple[Payload, State]:
        """As every statistic; a site's own part of the model stands beside the message."""
        beside = {OWN + key: array for key, array in protected(own).items()}
        return super().site_step(session, own, {**message, **beside})[0], own

    def risks(self, data: Patients, site: str, message: Arrays) -> Floats:
        """The log odds of each row's patient: the mean risk of the patient's rows."""
        p = np.nan_to_num(self.score(message, data.x, site))
        if p.ndim != 1:
            raise StudyError("evaluate: the model must tell two outcomes apart")
        rows = np.diff(data.starts)
        mean = np.add.reduceat(p, data.starts[:-1]) / rows if len(rows) else p
        inside = np.clip(np.repeat(mean, rows), 1e-6, 1 - 1e-6)
        return np.asarray(np.clip(logit(inside), -REACH, REACH))

    def adds(self, ask: Sum, data: Patients, site: str, message: Arrays) -> Rows:
        """A row's place among the bins."""
        out = np.zeros((data.rows, ask.size), np.float32)
        if not data.rows:
            return out, per_patient(data)
        odds, rows = self.risks(data, site, message), np.arange(data.rows)
        if ask.name == "fine":
            cell = np.clip(((odds + REACH) / (2 * REACH) * FINE).astype(np.int64), 0, FINE - 1)
            out[rows, cell] = 1.0
            return out, per_patient(data)
        bins = np.searchsorted(np.asarray(message["edges"]), odds, side="right")
        # Whatever the server sends, no column is longer than 1.
        columns = np.asarray(message["strategy"], np.float64).transpose(0, 2, 1)
        columns = columns / np.maximum(1.0, np.linalg.norm(columns, axis=2, keepdims=True))
        having = (any_of(data, data.y) > 0).astype(np.int64)
        blocks = [np.zeros(data.rows, np.int64)]
        if ask.name == "parts":
            first = len(self.public.sizes)
            blocks = [np.full(data.rows, list(self.public.sizes).index(site))]
            for place in self.columns:
                group, count = cells_of(place, data.x), len(labels_of(place.feature))
                blocks.append(np.where(group < count, first + group, -1))
                first += count
        view = out.reshape(data.rows, -1, 2, BINS)
        for block in blocks:
            here = np.flatnonzero(block >= 0)
            view[here, block[here], having[here]] = columns[having[here], bins[here]]
        return out, per_patient(data)

    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        """After round 1, the bins."""
        new = super().server_step(state, answers)
        if int(new["round"]) == 1:
            new["edges"], new["strategy"], new["means"] = chosen_bins(new["fine"], self.threshold)
        return new

    def figures(self, state: State) -> dict[str, object]:
        """Every figure, over all sites and by part."""
        overall, parts = self.asks(2)
        edges, means = np.asarray(state["edges"]), np.asarray(state["means"])
        strategies = np.asarray(state["strategy"])

        def read(words: Floats, noise: float) -> dict[str, Any]:
            cells, enough = opened(words, strategies, noise)
            return measured(cells, edges, means, self.threshold, enough)

        blocks = np.asarray(state["parts"]).reshape(len(self.strata), -1)
        found = {
            name: read(block, self.noise_of(parts))
            for name, block in zip(self.strata, blocks, strict=True)
        }
        whole = read(np.asarray(state["overall"]), self.noise_of(overall))
        gaps = {
            place.name: group_gaps(
                {g: found[f"{place.name}: {g}"] for g in labels_of(place.feature)}
            )
            for place in self.columns
        }
        return {"threshold": self.threshold, "all": whole, "parts": found, "gaps": gaps}


def chosen_bins(fine: Floats, threshold: float) -> tuple[Floats, Floats, Floats]:
    """Edges in log odds, the matrices A for those without and with the outcome, and mean risks of
    the bins, from noisy fine counts; who has the outcome is guessed from the risks."""
    mass = np.maximum(fine, 0.0) + 1e-9
    share = np.concatenate([[0.0], np.cumsum(mass) / mass.sum()])
    grid = np.linspace(-REACH, REACH, FINE + 1)
    half = (BINS - 2) // 2
    by_mass = np.interp(np.arange(1, half + 1) / (half + 1), share, grid)
    low, high = np.interp([0.01, 0.995], share, grid)
    evenly = np.linspace(low, high, BINS - 2 - half + 1)
    cut = float(np.clip(logit(threshold), -REACH, REACH))
    edges = np.sort(np.concatenate([by_mass, evenly[: BINS - 2 - half], [cut]]))
    edges = np.clip(edges, -REACH, REACH)
    whole = np.concatenate([[-REACH], edges, [REACH]])
    middle = expit((grid[1:] + grid[:-1]) / 2)

    def within(amounts: Floats) -> Floats:
        """The share of an amount in each bin."""
        under = np.concatenate([[0.0], np.cumsum(amounts)]) / amounts.sum()
        return np.diff(np.interp(whole, grid, under))

    without, having = within(mass * (1 - middle)), within(mass * middle)
    rank = np.cumsum(without) - without / 2  # among those without the outcome
    area = float(having @ rank)
    above = np.concatenate([[-np.inf], edges]) >= cut - 1e-9
    slopes = 1 - (np.cumsum(having) - having / 2) - area, rank - area
    strategies = np.array([strategy(slope, above) for slope in slopes])
    width, plain = within(mass), expit((whole[1:] + whole[:-1]) / 2)
    moment = having * float((mass * middle).sum() / mass.sum())
    means = np.where(width > 1e-6, moment / np.maximum(width, 1e-12), plain)
    return edges, strategies, np.clip(means, expit(whole[:-1]), expit(whole[1:]))


def strategy(slope: Floats, above: NDArray[np.bool_]) -> Floats:
    """The matrix A that counts are sent by, for these slopes of an AUC (module text)."""
    size = len(slope)
    work = np.vstack(
        [
            WEIGHTS["auc"] * slope,
            WEIGHTS["total"] * np.ones(size),
            WEIGHTS["threshold"] * above,
            WEIGHTS["below"] * np.tril(np.ones((size, size))),
            WEIGHTS["own"] * np.eye(size),
        ]
    )
    v = np.ones(size)
    for _ in range(100):
        root = _root(np.sqrt(v)[:, None] * (work.T @ work) * np.sqrt(v))
        v, before = np.diag(root), v
        if np.abs(v / before - 1).max() < 1e-6:
            break
    found = _root(root / np.sqrt(np.outer(v, v)))
    return np.asarray(found / np.maximum(1.0, np.linalg.norm(found, axis=0)))


def _root(matrix: Floats) -> Floats:
    """The symmetric root of a positive semidefinite matrix."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T)


def opened(words: Floats, strategies: Floats, noise: float) -> tuple[Cells, bool]:
    """Counts by bin, without and with the outcome, and whether both outcomes stand out of the
    noise."""
    size = strategies.shape[1]
    counts, covariance = np.zeros(2 * size), np.zeros((2 * size, 2 * size))
    for i, half in enumerate(words.reshape(2, size)):
        here, inverse = slice(i * size, (i + 1) * size), np.linalg.inv(strategies[i])
        counts[here], covariance[here, here] = inverse @ half, noise**2 * inverse @ inverse.T
    least = min(float(counts[:size].sum()), float(counts[size:].sum()))
    return Cells(counts, covariance), least >= ENOUGH * max(noise, 1e-9) and least > 0


def measured(
    cells: Cells, edges: Floats, means: Floats, threshold: float, enough: bool
) -> dict[str, Any]:
    """Every figure with its interval; None where withheld."""
    size = len(means)
    top = merged_top(cells, size)
    if not enough:
        empty = {"value": None, "interval": None, "deviation": None}
        return {"patients": max(0.0, float(cells.counts.sum())), **dict.fromkeys(NAMES, empty)}

    def every(c: Floats) -> Floats:
        without, having = c[:size], c[size:]
        said = _above(having, edges, threshold), _above(without, edges, threshold)
        slope, intercept = recalibrated(without, having, means)
        return np.array(
            [
                auc(without, having, edges),
                auprc(without, having, top),
                brier(without, having, means),
                having.sum() / ((without + having) @ means),
                having.sum() / c.sum(),
                said[0] / having.sum(),
                1 - said[1] / without.sum(),
                sum(said) / c.sum(),
                net_benefit(without, having, edges, threshold),
                slope,
                intercept,
            ]
        )

    value, spread = cells.of(every)
    found: dict[str, Any] = {"patients": float(cells.counts.sum())}
    # The noise of P enters an AUC twice: by the products of second order, 1 + 2 (s / P)^2 is enough.
    few = 1 + 2 * float(cells.noise[size:, size:].sum()) / float(cells.counts[size:].sum()) ** 2
    for name, one, variance in zip(FIGURES, value, np.diag(spread), strict=True):
        found[name] = _interval(name, float(one), math.sqrt(max(0.0, float(variance)) * few))
    curve = calibration(cells, means)
    found["ece"] = {key: curve.pop(key) for key in ("value", "interval", "deviation")}
    tp, fp = (np.cumsum(half[::-1])[::-1] / half.sum() for half in (cells.counts[size:], cells.counts[:size]))  # fmt: skip
    found["thresholds"] = {
        "risk": expit(edges).tolist(),
        "sensitivity": _falling(tp[1:]),
        "specificity": [1 - rate for rate in _falling(fp[1:])],
    }
    return found | {"calibration": curve}


def _falling(rates: Floats) -> list[float]:
    """Rates made to fall, within 0 and 1: noise could make them rise."""
    falling: list[float] = np.clip(np.minimum.accumulate(rates), 0.0, 1.0).tolist()
    return falling


def _interval(name: str, value: float, deviation: float) -> dict[str, Any]:
    """On the log odds of what lies in [0, 1], else plain."""
    reach = Z95 * deviation
    if not math.isfinite(value + reach):
        return {"value": None, "interval": None, "deviation": None}
    if name in UNBOUNDED or not 0 < value < 1:
        ends = [value - reach, value + reach]
        if name not in UNBOUNDED:
            value, ends = min(1.0, max(0.0, value)), [max(0.0, ends[0]), min(1.0, ends[1])]
        return {"value": value, "interval": ends, "deviation": deviation}
    step = reach / (value * (1 - value))
    low, high = (float(expit(logit(value) + way * step)) for way in (-1, 1))
    return {"value": value, "interval": [low, high], "deviation": deviation}


def recalibrated(without: Floats, having: Floats, means: Floats) -> tuple[float, float]:
    """Slope and intercept of a logistic regression of the outcome on the log odds of the bins, by
    Newton's steps: what turns the model's risks into calibrated ones (Platt scaling).

    >>> means = np.array([0.2, 0.8])
    >>> [round(b, 6) + 0.0 for b in recalibrated(np.array([80.0, 20]), np.array([20.0, 80]), means)]
    [1.0, 0.0]
    """
    x = np.stack([logit(np.clip(means, 1e-6, 1 - 1e-6)), np.ones(len(means))])
    b, total = np.array([1.0, 0.0]), without + having
    for _ in range(25):
        p = expit(b @ x)
        curve = (x * (total * p * (1 - p))) @ x.T
        if not np.isfinite(curve).all() or np.linalg.eigvalsh(curve)[0] <= 1e-9:
            return math.nan, math.nan
        step = np.linalg.solve(curve, x @ (having - total * p))
        b = b + step / max(1.0, float(np.abs(step).max()))
        if np.abs(step).max() < 1e-10:
            break
    return float(b[0]), float(b[1])


def group_gaps(groups: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The largest difference between groups in each rate, with an interval that holds for every pair
    of groups at once (Bonferroni); None where a group is withheld."""
    pairs = list(combinations(groups.values(), 2))
    reach = float(ndtri(1 - 0.025 / max(1, len(pairs))))
    found: dict[str, dict[str, Any]] = {}
    for name in ("flagged", "sensitivity", "specificity", "auc"):
        known = [(a[name], b[name]) for a, b in pairs]
        if not known or any(a["value"] is None or b["value"] is None for a, b in known):
            found[name] = {"value": None, "interval": None, "deviation": None}
            continue
        a, b = max(known, key=lambda pair: abs(pair[0]["value"] - pair[1]["value"]))
        gap, deviation = abs(a["value"] - b["value"]), math.hypot(a["deviation"], b["deviation"])
        ends = [max(0.0, gap - reach * deviation), min(1.0, gap + reach * deviation)]
        found[name] = {"value": gap, "interval": ends, "deviation": deviation}
    return found


def auc(without: Floats, having: Floats, edges: Floats) -> float:
    """Pairs in the right order, half of the ties, and what order there is within bins."""
    whole = expit(np.concatenate([[-REACH], edges, [REACH]]))
    width, middle = np.diff(whole), (whole[1:] + whole[:-1]) / 2
    inside = np.minimum(width * (1 / middle + 1 / (1 - middle)) / 12, 1 / 6)
    below = np.cumsum(without) - without
    wins = having @ (below + without * (0.5 + inside))
    return float(wins / (having.sum() * without.sum()))


def merged_top(cells: Cells, size: int) -> int:
    """The first of the highest bins that are taken together, so that their patients stand out of the
    noise: precision among a handful of noisy patients would be anything."""
    both = (cells.counts[:size] + cells.counts[size:])[::-1]
    pick = np.tril(np.ones((size, size)))[:, ::-1]
    spread = np.einsum("ij,jk,ik->i", pick, 2 * cells.noise[:size, :size], pick)
    fine = np.flatnonzero(np.cumsum(both) >= 10 * np.sqrt(spread))
    return size - 1 - int(fine[0]) if len(fine) else 0


def auprc(without: Floats, having: Floats, top: int) -> float:
    """Average precision over the bins, from the highest risk down; bins from ``top`` on are one."""
    tp = np.cumsum(np.append(having[:top], having[top:].sum())[::-1])
    fp = np.cumsum(np.append(without[:top], without[top:].sum())[::-1])
    precision = np.clip(tp / np.maximum(tp + fp, 1.0), 0, 1)
    before = np.concatenate([[precision[0]], precision[:-1]])
    gained = np.diff(np.concatenate([[0.0], tp])) / having.sum()
    return float(gained @ ((precision + before) / 2))


def brier(without: Floats, having: Floats, means: Floats) -> float:
    """The mean square of risk minus outcome."""
    return float((having @ (1 - means) ** 2 + without @ means**2) / (having.sum() + without.sum()))


def _above(counts: Floats, edges: Floats, threshold: float) -> float:
    cut = float(np.clip(logit(threshold), -REACH, REACH))
    return float(counts[np.concatenate([[-np.inf], edges]) >= cut - 1e-9].sum())


def net_benefit(without: Floats, having: Floats, edges: Floats, threshold: float) -> float:
    """True positives less false ones at the threshold's odds, per patient (Vickers & Elkin 2006)."""
    odds = threshold / (1 - threshold)
    gained = _above(having, edges, threshold) - odds * _above(without, edges, threshold)
    return float(gained / (having.sum() + without.sum()))


def calibration(cells: Cells, means: Floats) -> dict[str, Any]:
    """Observed shares in up to ten groups of bins, and the root mean square gap less what noise and
    chance add to it."""
    size = len(means)
    total = np.maximum(cells.counts[:size] + cells.counts[size:], 0.0)
    share = np.cumsum(total) / max(total.sum(), 1.0)
    group = np.minimum((share * 10 - 1e-9).astype(int), 9)
    predicted, observed, low, high, squares, spreads, weights = [], [], [], [], [], [], []
    for g in np.unique(group):
        here = group == g
        people = float(total[here].sum())
        if people < 1:
            continue

        def rate(c: Floats, here: NDArray[np.bool_] = here) -> Floats:
            both = (c[:size] + c[size:])[here].sum()
            return np.array([c[size:][here].sum() / max(both, 1.0)])

        value, spread = cells.of(rate)
        deviation = math.sqrt(max(0.0, float(spread[0, 0])))
        expected = float(total[here] @ means[here] / people)
        predicted.append(expected)
        observed.append(min(1.0, max(0.0, float(value[0]))))
        low.append(max(0.0, float(value[0]) - Z95 * deviation))
        high.append(min(1.0, float(value[0]) + Z95 * deviation))
        squares.append((float(value[0]) - expected) ** 2 - deviation**2)
        spreads.append(deviation**2)
        weights.append(people)
    found: dict[str, Any] = {"value": None, "interval": None, "deviation": None}
    if weights:
        share = np.array(weights) / sum(weights)
        square = float(share @ squares)
        # Of a square of deviation d about m: 2 d^4 + 4 d^2 m^2.
        apart = np.array(squares) + np.array(spreads)
        spread = np.sqrt(float(share**2 @ (2 * np.square(spreads) + 4 * np.array(spreads) * apart)))
        ends = [math.sqrt(max(0.0, square + way * Z95 * spread)) for way in (-1, 1)]
        root = math.sqrt(max(0.0, square))
        found = {"value": root, "interval": ends, "deviation": (ends[1] - ends[0]) / (2 * Z95)}
    curve = {"predicted": predicted, "observed": observed, "count": weights}
    return {**found, **curve, "low": low, "high": high}


def drift(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Whether a figure of two evaluations differs: its difference, interval and p-value."""
    first, second = before[name], after[name]
    if first["value"] is None or second["value"] is None:
        return {"difference": None, "interval": None, "p": None}
    deviation = math.hypot(first["deviation"], second["deviation"])
    difference = second["value"] - first["value"]
    p = math.erfc(abs(difference) / max(deviation, 1e-12) / math.sqrt(2))
    ends = [difference - Z95 * deviation, difference + Z95 * deviation]
    return {"difference": difference, "interval": ends, "p": p}


def external(trained: Study, other: Study, record: Mapping[str, Any]) -> Study:
    """Other sites' study with the model's shape; their columns must be declared as for training."""
    wanted = Schema.parse(record["model"]["schema"])
    if other.table is None or other.table.features != wanted.features:
        raise StudyError(
            "the other study must declare the features that the model was trained on, with the same "
            "bounds, values and order: copy [schema.features] from the run's study.toml"
        )
    if other.table.missing != wanted.missing:
        raise StudyError(
            f"schema.missing: the model was trained with {wanted.missing!r}; set it so"
        )
    return other.replace(model=trained.model)


def against_earlier(file: Path, found: Mapping[str, Any]) -> Table:
    """What has changed since an earlier evaluation, figure by figure."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        before = data["methods"]["evaluate"]["facts"]["all"]
    except (OSError, ValueError, KeyError):
        raise StudyError(f"{file} is not the evaluate.json of an earlier evaluation") from None
    rows = []
    for name, text in NAMES.items():
        change = drift(before, found["all"], name)
        p = "–" if change["p"] is None else p_value(change["p"])
        figure = {"value": change["difference"], "interval": change["interval"]}
        rows.append((Cell(text), shown(figure, 3), Cell(p)))
    remark = (
        "Differences from the earlier evaluation; p-values count the noise of both and are not "
        f"corrected for {len(NAMES)} comparisons."
    )
    return Table("Drift", ("", "Change", "p"), tuple(rows), remark)


FIGURES = {
    "auc": "AUC",
    "auprc": "AUPRC",
    "brier": "Brier score",
    "observed_over_expected": "Observed over expected",
    "prevalence": "Share with the outcome",
    "sensitivity": "Sensitivity",
    "specificity": "Specificity",
    "flagged": "Share at or above the threshold",
    "net_benefit": "Net benefit",
    "slope": "Recalibration: slope",
    "intercept": "Recalibration: intercept",
}
UNBOUNDED = frozenset(["net_benefit", "observed_over_expected", "slope", "intercept"])
NAMES = FIGURES | {"ece": "Calibration error"}


def tables(found: Mapping[str, Any]) -> list[Table]:
    """All figures, over all sites and by part, and the gaps between groups."""
    columns = {"All": found["all"], **found["parts"]}
    rows = [
        (Cell(text), *(shown(column[name], 3) for column in columns.values()))
        for name, text in NAMES.items()
    ]
    remark = (
        f"At the threshold {found['threshold']:g}. Small: 95 % intervals, for noise and sampling "
        "together. Withheld: too few patients for this noise (fewer than 15 of its deviations with "
        "or without the outcome). Calibration error: root mean square over ten groups of risk, less "
        "what noise and chance add."
    )
    made = [Table("The model on held-out patients", ("", *columns), tuple(rows), remark)]
    for column, gaps in found["gaps"].items():
        rows = [(Cell(FIGURES[name]), shown(gap, 3)) for name, gap in gaps.items()]
        remark = "The largest difference between two groups; intervals hold for all pairs at once."
        made.append(Table(f"Gaps between groups: {column}", ("", "Gap"), tuple(rows), remark))
    return made


class Evaluated(Settings):
    """What `suture evaluate` may be asked."""

    of: str = ""
    threshold: float = Setting(default=0.5, gt=0, lt=1)
    by: tuple[str, ...] = ()
    tests: bool = True
    honest: float = Setting(default=0.5, gt=0, le=1)


def build(setup: Setup) -> Evaluation:
    """From a study: of the method's model, only its kind matters."""
    own = Evaluated.model_validate(setup.settings)
    setup.every_site("evaluate")
    schema, trained = setup.public.schema, setup.trained
    if schema is None or not (own.of or trained):
        raise StudyError("evaluate needs a finished model: suture evaluate RUN")
    kind = declared(own.of) if trained is None else None
    readable = kind is not None and kind.readable(schema)
    return Evaluation(
        setup.public,
        own.honest,
        network=None if readable else setup.network,
        concepts=kind.concepts(schema) if kind is not None and readable else None,
        trained=trained,
        trainers=setup.trainers,
        threshold=own.threshold,
        by=own.by,
        tests=own.tests,
    )


def model_of(result: Result) -> State:
    """The arrays of a finished model that an evaluation sends."""
    schema = Schema.parse(result.data["model"]["schema"])
    readable = declared(result.data["method"]).readable(schema)
    wanted = ("weights", "bias") if readable else ("params",)
    if any(name not in result.model for name in wanted):
        raise StudyError(
            f"method {result.data['method']!r} keeps no global model, so there is none to evaluate"
        )
    return {
        name: np.ascontiguousarray(np.atleast_1d(result.model[name]), np.float32) for name in wanted
    }


DECLARED = Declared("evaluate", build, Evaluated, uses=frozenset(), searches=(), model="none")
