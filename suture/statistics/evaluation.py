"""How good a finished model is, from noisy counts of patients by risk and outcome.

**Round 1** (3 % of the cost) counts patients in 64 fine bins of log odds, whatever their outcome:
the server chooses the edges of 24 bins from it, half by mass and half evenly, with the threshold among
them. Edges are then public. **Round 2** counts by bin and outcome, over all sites, by site, and by the
groups of `by`. For each outcome a patient in bin b adds sqrt(.3) to the bin's count, sqrt(.7) .6 to the
outcome's total and sqrt(.7) .8 r_b to a sum of ranks r_b in [-1, 1]: the norm is at most 1. Totals and
ranks are what an AUC depends on most, so they get most of the cost; least squares turn the three back
into counts (`cells`).

AUC counts pairs of bins, and within a bin 1/2 + w (1/m + 1/(1 - m)) / 12 for risks that are evenly
spread over a bin of width w about m and calibrated there (by integrating their densities). A patient's
rows are averaged; the outcome is that of any row. Intervals: the delta method of `cells`, on the log
odds of what lies in [0, 1]. Below 15 deviations of the noise in either outcome a figure is withheld.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Setting
from scipy.special import expit, logit

from suture.errors import StudyError
from suture.methods.base import Answer, Arrays, State
from suture.methods.declared import Declared, Settings, Setup
from suture.methods.registry import declared
from suture.models.concepts import Concepts
from suture.models.network import Network
from suture.privacy.door import Rows
from suture.privacy.unit import Patients
from suture.report.words import Cell, Table, p_value
from suture.result import Result
from suture.schema.message import Field
from suture.schema.table import Schema
from suture.statistics.base import Floats, Statistic, Sum, any_of, per_patient
from suture.statistics.cells import Cells
from suture.statistics.publish import shown
from suture.statistics.survival import place_of
from suture.statistics.table_one import Z95, cells_of, labels_of
from suture.study import Study

FINE, REACH, BINS = 64, 8.0, 24
SHARES = {"fine": 0.03, "overall": 0.85, "parts": 0.12}
OWN, TOTAL, RANK = math.sqrt(0.3), math.sqrt(0.7) * 0.6, math.sqrt(0.7) * 0.8
ENOUGH = 15.0


@dataclass(frozen=True)
class Evaluation(Statistic):
    """A finished model on the patients that were held out, or on all patients of other sites: a
    ``network``, or weights of ``concepts``."""

    network: Network | None = None
    concepts: Concepts | None = None
    threshold: float = 0.5
    by: str = ""
    tests: bool = True
    name: str = "evaluate"
    label: str = "an evaluation"

    @cached_property
    def model(self) -> dict[str, Field]:
        """The arrays of the model, as a message holds them."""
        if self.concepts is not None:
            return {"weights": Field("<f4", (len(self.concepts),)), "bias": Field("<f4", (1,))}
        if self.network is None:
            raise StudyError("evaluate needs a finished model: suture evaluate RUN")
        return {"params": Field("<f4", (self.network.n_params,))}

    def score(self, message: Arrays, x: NDArray[np.float32]) -> Floats:
        """The risk of each row."""
        if self.concepts is not None:
            odds = self.concepts.matrix(x).astype(np.float64) @ message["weights"]
            return np.asarray(expit(odds + float(message["bias"][0])))
        if self.network is None:
            raise StudyError("evaluate needs a finished model: suture evaluate RUN")
        return np.asarray(self.network.predict(message["params"], x), np.float64)

    @cached_property
    def strata(self) -> tuple[str, ...]:
        """Sites, and the groups of `by`."""
        groups = labels_of(place_of(self, self.by).feature) if self.by else ()
        sites = [f"site: {site}" for site in self.public.sizes]
        return (*sites, *(f"{self.by}: {group}" for group in groups))

    def asks(self, round_: int) -> tuple[Sum, ...]:
        """Fine bins; then bins by outcome, of all and of each part."""
        if round_ == 1:
            return (Sum("fine", FINE, 1.0, SHARES["fine"]),)
        width = 2 * (BINS + 2)
        breakdowns = math.sqrt(2.0 if self.by else 1.0)
        return (
            Sum("overall", width, 1.0, SHARES["overall"]),
            Sum("parts", width * len(self.strata), breakdowns, SHARES["parts"]),
        )

    def expects(self, round_: int, site: str) -> Mapping[str, Field]:
        """The model, and from round 2 on the edges and ranks of the bins."""
        fields = dict(self.model)
        if round_ > 1:
            fields["edges"] = Field("<f8", (BINS - 1,), -REACH, REACH)
            fields["ranks"] = Field("<f8", (2, BINS), -1.0, 1.0)
        return fields

    def broadcast(self, state: State, site: str) -> Arrays:
        """The model and, once they are chosen, the bins."""
        return {key: state[key] for key in (*self.model, "edges", "ranks") if key in state}

    def risks(self, data: Patients, site: str, message: Arrays) -> Floats:
        """The log odds of each row's patient: the mean risk of the patient's rows."""
        p = np.nan_to_num(self.score(message, data.x))
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
        ranks = np.asarray(message["ranks"], np.float32)
        having = (any_of(data, data.y) > 0).astype(np.int64)
        start, rank = having * (BINS + 2), ranks[having, bins]
        blocks = [np.zeros(data.rows, np.int64)]
        if ask.name == "parts":
            blocks = [np.full(data.rows, list(self.public.sizes).index(site))]
            if self.by:
                group = cells_of(place_of(self, self.by), data.x)
                known = group < len(labels_of(place_of(self, self.by).feature))
                blocks.append(np.where(known, len(self.public.sizes) + group, -1))
        for block in blocks:
            here = block >= 0
            at = (block * 2 * (BINS + 2) + start)[here]
            out[rows[here], at + bins[here]] = OWN
            out[rows[here], at + BINS] = TOTAL
            out[rows[here], at + BINS + 1] = RANK * rank[here]
        return out, per_patient(data)

    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        """After round 1, the bins."""
        new = super().server_step(state, answers)
        if int(new["round"]) == 1:
            new["edges"], new["ranks"], new["means"] = chosen_bins(new["fine"], self.threshold)
        return new

    def figures(self, state: State) -> dict[str, object]:
        """Every figure, over all sites and by part."""
        overall, parts = self.asks(2)
        edges, means = np.asarray(state["edges"]), np.asarray(state["means"])
        ranks = np.asarray(state["ranks"])

        def read(words: Floats, noise: float) -> dict[str, object]:
            cells, enough = opened(words, ranks, noise)
            return measured(cells, edges, means, self.threshold, enough)

        blocks = np.asarray(state["parts"]).reshape(len(self.strata), -1)
        found = {
            name: read(block, self.noise_of(parts))
            for name, block in zip(self.strata, blocks, strict=True)
        }
        whole = read(np.asarray(state["overall"]), self.noise_of(overall))
        return {"threshold": self.threshold, "all": whole, "parts": found}


def chosen_bins(fine: Floats, threshold: float) -> tuple[Floats, Floats, Floats]:
    """Edges in log odds, ranks in [-1, 1] and mean risks of the bins, from noisy fine counts.

    A patient without the outcome is ranked among those with it, and the other way round, as an AUC
    does; who has it is guessed from the risks."""
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
    below = np.interp(whole, grid, share)
    middle = expit((grid[1:] + grid[:-1]) / 2)
    ranks = []
    for guess in (mass * middle, mass * (1 - middle)):  # among those with, and without
        under = np.interp(whole, grid, np.concatenate([[0.0], np.cumsum(guess) / guess.sum()]))
        ranks.append(np.clip(under[1:] + under[:-1] - 1, -1, 1))
    part = np.concatenate([[0.0], np.cumsum(mass * middle)])
    moment = np.interp(whole, grid, part / mass.sum())
    width = np.diff(below)
    plain = expit((whole[1:] + whole[:-1]) / 2)
    means = np.where(width > 1e-6, np.diff(moment) / np.maximum(width, 1e-12), plain)
    return edges, np.array(ranks), np.clip(means, expit(whole[:-1]), expit(whole[1:]))


def opened(words: Floats, ranks: Floats, noise: float) -> tuple[Cells, bool]:
    """Counts by bin, without and with the outcome, and whether both outcomes stand out of the
    noise."""
    size = ranks.shape[1]
    counts, covariance = np.zeros(2 * size), np.zeros((2 * size, 2 * size))
    for i, half in enumerate(words.reshape(2, size + 2)):
        here = slice(i * size, (i + 1) * size)
        a = np.vstack([OWN * np.eye(size), np.full((1, size), TOTAL), RANK * ranks[i : i + 1]])
        inverse = np.linalg.inv(a.T @ a)
        counts[here], covariance[here, here] = inverse @ a.T @ half, noise**2 * inverse
    least = min(float(counts[:size].sum()), float(counts[size:].sum()))
    return Cells(counts, covariance), least >= ENOUGH * max(noise, 1e-9) and least > 0


def measured(
    cells: Cells, edges: Floats, means: Floats, threshold: float, enough: bool
) -> dict[str, object]:
    """Every figure with its interval; None where withheld."""
    size = len(means)
    top = merged_top(cells, size)
    names: dict[str, Callable[[Floats], float]] = {
        "auc": lambda c: auc(c[:size], c[size:], edges),
        "auprc": lambda c: auprc(c[:size], c[size:], top),
        "brier": lambda c: brier(c[:size], c[size:], means),
        "observed_over_expected": lambda c: float(c[size:].sum() / ((c[:size] + c[size:]) @ means)),
        "prevalence": lambda c: float(c[size:].sum() / c.sum()),
        "sensitivity": lambda c: float(_above(c[size:], edges, threshold) / c[size:].sum()),
        "specificity": lambda c: float(1 - _above(c[:size], edges, threshold) / c[:size].sum()),
        "net_benefit": lambda c: net_benefit(c[:size], c[size:], edges, threshold),
    }
    empty = {"value": None, "interval": None, "deviation": None}
    if not enough:
        return {"patients": max(0.0, float(cells.counts.sum())), **dict.fromkeys(names, empty)}
    found: dict[str, object] = {"patients": float(cells.counts.sum())}
    for name, figure in names.items():
        value, spread = cells.of(_vector(figure))
        found[name] = _interval(name, float(value[0]), math.sqrt(max(0.0, float(spread[0, 0]))))
    found["calibration"] = calibration(cells, means)
    return found


def _vector(figure: Callable[[Floats], float]) -> Callable[[Floats], Floats]:
    return lambda counts: np.array([figure(counts)])


def _interval(name: str, value: float, deviation: float) -> dict[str, object]:
    """On the log odds of what lies in [0, 1], else plain."""
    reach = Z95 * deviation
    if name in ("net_benefit", "observed_over_expected") or not 0 < value < 1:
        ends = [value - reach, value + reach]
        if name not in ("net_benefit", "observed_over_expected"):
            value, ends = min(1.0, max(0.0, value)), [max(0.0, ends[0]), min(1.0, ends[1])]
        return {"value": value, "interval": ends, "deviation": deviation}
    step = reach / (value * (1 - value))
    low, high = (float(expit(logit(value) + way * step)) for way in (-1, 1))
    return {"value": value, "interval": [low, high], "deviation": deviation}


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


def calibration(cells: Cells, means: Floats) -> dict[str, object]:
    """Observed shares in up to ten groups of bins, and the root mean square gap less what noise and
    chance add to it."""
    size = len(means)
    total = np.maximum(cells.counts[:size] + cells.counts[size:], 0.0)
    share = np.cumsum(total) / max(total.sum(), 1.0)
    group = np.minimum((share * 10 - 1e-9).astype(int), 9)
    predicted, observed, low, high, squares, weights = [], [], [], [], [], []
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
        weights.append(people)
    gap = math.sqrt(max(0.0, float(np.average(squares, weights=weights)))) if weights else None
    return {
        "predicted": predicted, "observed": observed, "low": low, "high": high, "gap": gap,
    }  # fmt: skip


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


NAMES = {
    "auc": "AUC",
    "auprc": "AUPRC",
    "brier": "Brier score",
    "observed_over_expected": "Observed over expected",
    "prevalence": "Share with the outcome",
    "sensitivity": "Sensitivity",
    "specificity": "Specificity",
    "net_benefit": "Net benefit",
}


def tables(found: Mapping[str, Any]) -> list[Table]:
    """All figures, over all sites and by part."""
    columns = {"All": found["all"], **found["parts"]}
    rows = [
        (Cell(text), *(shown(column[name], 3) for column in columns.values()))
        for name, text in NAMES.items()
    ]
    gap = found["all"].get("calibration", {}).get("gap")
    remark = (
        f"At the threshold {found['threshold']:g}. Small: 95 % intervals, for noise and sampling "
        "together; withheld below 15 deviations of the noise."
    )
    if gap is not None:
        remark += f" Calibration: root mean square gap {gap:.3f}, less what noise and chance add."
    return [Table("The model on held-out patients", ("", *columns), tuple(rows), remark)]


class Evaluated(Settings):
    """What `suture evaluate` may be asked."""

    of: str = ""
    threshold: float = Setting(default=0.5, gt=0, lt=1)
    by: str = ""
    tests: bool = True
    honest: float = Setting(default=0.5, gt=0, le=1)


def build(setup: Setup) -> Evaluation:
    """From a study: of the method's model, only its kind matters."""
    own = Evaluated.model_validate(setup.settings)
    setup.every_site("evaluate")
    schema = setup.public.schema
    if not own.of or schema is None:
        raise StudyError("evaluate needs a finished model: suture evaluate RUN")
    kind = declared(own.of)
    readable = kind.model == "concepts"
    return Evaluation(
        setup.public,
        own.honest,
        network=None if readable else setup.network,
        concepts=kind.concepts(schema) if readable else None,
        threshold=own.threshold,
        by=own.by,
        tests=own.tests,
    )


def model_of(result: Result) -> State:
    """The arrays of a finished model that an evaluation sends."""
    wanted = (
        ("params",) if declared(result.data["method"]).model != "concepts" else ("weights", "bias")
    )
    if any(name not in result.model for name in wanted):
        raise StudyError(
            f"method {result.data['method']!r} keeps no global model, so there is none to evaluate"
        )
    return {
        name: np.ascontiguousarray(np.atleast_1d(result.model[name]), np.float32) for name in wanted
    }


DECLARED = Declared("evaluate", build, Evaluated, uses=frozenset(), searches=(), model="none")
