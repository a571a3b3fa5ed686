"""Table 1: who the patients are, by site, outcome and declared groups, from one noisy sum.

A patient adds, in one stratum of each breakdown (site, outcome, every `by` column): a 1; for each
number whether it is known, its value v in [-1, 1] by the declared bounds, 2 v^2 - 1, and a 1 in one
bin of a histogram; for each flag and category a 1 under its value, or under "missing". Rows of one
patient are averaged. With weights a_i for these entries the vector's norm is at most
sqrt(breakdowns x (1 + sum of a_i^2)), whatever the rows hold: that is the limit the door clips to,
and nobody is clipped.

**Weights.** Noise of one deviation on the vector gives entry i the variance 1 / a_i^2. Where figure i
moves by c_i when its entry moves by 1, the sum of c_i^2 / a_i^2 under a fixed norm is smallest for
a_i^2 proportional to c_i (Lagrange). c comes from public guesses (a deviation of an eighth of the
bounds' width), never from rows; a wrong guess costs precision and nothing else.

**Totals.** Every breakdown adds up to the same patients, so its strata are moved by equal amounts to
the best common total (generalised least squares with independent noise of equal variance, in closed
form). Post-processing costs nothing.

**Intervals** cover sampling and noise: a share by the score interval in Fieller's form,
(m - t n)^2 <= z^2 (n t (1 - t) + noise); a mean likewise; a quantile by testing every bin edge. An
interval that is not bounded, or wider than the bounds, is withheld with its figure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Setting
from scipy.special import ndtri

from suture.errors import StudyError
from suture.methods.base import Arrays, State
from suture.methods.declared import Declared, Settings, Setup
from suture.privacy.door import Rows
from suture.privacy.unit import Patients
from suture.report.words import Cell, Table
from suture.schema.outcome import Classes, Survival
from suture.schema.table import Category, Feature, Flag, Image, Number, Schema
from suture.statistics.base import Floats, Statistic, Sum, any_of, per_patient
from suture.statistics.publish import shown

Z95 = float(ndtri(0.975))
BINS = 20
SPREAD = 0.25
"""The public guess of a number's deviation, in half widths of its bounds."""
QUANTILES = (0.25, 0.5, 0.75)
Interval = tuple[float, float]


class Figure(TypedDict, total=False):
    """One figure of a stratum with its 95 % interval; withheld figures are None."""

    value: float | None
    interval: list[float] | None


class Entry(NamedTuple):
    """One number of a patient's vector: which variable, what of it, and its weight."""

    name: str
    what: str
    weight: float


class Place(NamedTuple):
    """A column of the encoded rows: where it starts, and where missing is marked (-1: nowhere)."""

    name: str
    feature: Number | Category | Flag
    start: int
    missing: int


def places(schema: Schema) -> Iterator[Place]:
    """Where each feature stands in an encoded row."""
    at = 0
    for name, feature in schema.features.items():
        if isinstance(feature, Image):
            raise StudyError(f"column {name!r} is an image: a table describes columns with values")
        width = len(feature.values) if isinstance(feature, Category) else 1
        marked = schema.missing_rule(name) == "indicator"
        yield Place(name, feature, at, at + width if marked else -1)
        at += width + marked


def labels_of(feature: Feature) -> tuple[str, ...]:
    """The declared values of a category or a flag."""
    return feature.values if isinstance(feature, Category) else ("no", "yes")


def cells_of(place: Place, x: NDArray[np.float32]) -> NDArray[np.int64]:
    """The number of each row's declared value; one more for a missing one."""
    count = len(labels_of(place.feature))
    if isinstance(place.feature, Category):
        here = x[:, place.start : place.start + count]
        return np.where(here.max(axis=1) > 0.5, here.argmax(axis=1), count)
    value = x[:, place.start]  # a missing flag is one half
    return np.where(value > 0.75, 1, np.where(value < 0.25, 0, count))


@dataclass(frozen=True)
class TableOne(Statistic):
    """Counts, means, deviations, quantiles and missing values by stratum."""

    by: tuple[str, ...] = ()
    name: str = "describe"
    label: str = "Table 1"

    @property
    def schema(self) -> Schema:
        """What is declared about the columns."""
        if self.public.schema is None:
            raise StudyError("describe needs a [schema]")
        return self.public.schema

    @cached_property
    def breakdowns(self) -> dict[str, tuple[str, ...]]:
        """The strata of each breakdown."""
        known = {place.name: place for place in places(self.schema)}
        classes = range(self.public.outcome.count)
        found = {"outcome": ("no", "yes") if len(classes) == 2 else tuple(map(str, classes))}
        for column in self.by:
            if column not in known or isinstance(known[column].feature, Number):
                options = [n for n, p in known.items() if not isinstance(p.feature, Number)]
                raise StudyError(
                    f"by: {column!r} is not a declared category or flag; expected one of "
                    f"{', '.join(options) or 'none, as the schema has no such column'}"
                )
            found[column] = (*labels_of(known[column].feature), "missing")
        return {**found, "site": tuple(self.public.sizes)}

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """What a patient adds to one stratum; the squares of the weights of each variable are at
        most 1 together."""
        parts: list[Entry] = [Entry("", "patients", 1.0)]
        # How far a figure moves (in deviations of the variable) for each unit of its entry.
        moves = {"known": 0.5, "value": 1.0, "square": 1 / (4 * SPREAD), "bin": math.sqrt(BINS / 2)}
        weight = {what: math.sqrt(c / sum(moves.values())) for what, c in moves.items()}
        for place in places(self.schema):
            if isinstance(place.feature, Number):
                parts += [Entry(place.name, w, weight[w]) for w in ("known", "value", "square")]
                parts += [Entry(place.name, f"bin {i}", weight["bin"]) for i in range(BINS)]
            else:
                parts += [Entry(place.name, v, 1.0) for v in (*labels_of(place.feature), "missing")]
        return tuple(parts)

    @cached_property
    def _ask(self) -> Sum:
        variables = len(self.schema.features)
        strata = sum(map(len, self.breakdowns.values()))
        limit = math.sqrt(len(self.breakdowns) * (1 + variables))
        return Sum("table", strata * len(self.entries), limit, 1.0)

    def asks(self, round_: int) -> tuple[Sum, ...]:
        """One sum."""
        return (self._ask,)

    def adds(self, ask: Sum, data: Patients, site: str, message: Arrays) -> Rows:
        """Every row's entries in one stratum of each breakdown."""
        each = self._entries(data)
        width, at = len(self.entries), 0
        out = np.zeros((data.rows, ask.size), np.float32)
        rows = np.arange(data.rows)
        for name, strata in self.breakdowns.items():
            stratum = self._stratum(name, data, site)
            for i in range(len(strata)):
                here = rows[stratum == i]
                out[here, at + i * width : at + (i + 1) * width] = each[here]
            at += len(strata) * width
        return out, per_patient(data)

    def _stratum(self, name: str, data: Patients, site: str) -> NDArray[np.int64]:
        if name == "site":
            return np.full(data.rows, list(self.public.sizes).index(site))
        if name == "outcome":
            return any_of(data, self.public.outcome.classes(data.y).astype(np.int64))
        place = next(place for place in places(self.schema) if place.name == name)
        return cells_of(place, data.x)

    def _entries(self, data: Patients) -> NDArray[np.float32]:
        out = np.zeros((data.rows, len(self.entries)), np.float32)
        out[:, 0] = 1.0
        at, rows = 1, np.arange(data.rows)
        for place in places(self.schema):
            if isinstance(place.feature, Number):
                v = np.clip(np.nan_to_num(data.x[:, place.start]), -1, 1)
                known = np.ones(data.rows, bool)
                if place.missing >= 0:
                    known = data.x[:, place.missing] < 0.5
                bins = np.minimum(((v + 1) / 2 * BINS).astype(np.int64), BINS - 1)
                out[:, at : at + 3] = np.stack([np.ones_like(v), v, 2 * v * v - 1], axis=1)
                out[rows, at + 3 + bins] = 1.0
                out[~known, at : at + 3 + BINS] = 0.0
                at += 3 + BINS
            else:
                out[rows, at + cells_of(place, data.x)] = 1.0
                at += len(labels_of(place.feature)) + 1
        return out * np.array([entry.weight for entry in self.entries], np.float32)

    def figures(self, state: State) -> dict[str, object]:
        """The table: for every variable, its figures in all patients and in each stratum."""
        strata = [len(names) for names in self.breakdowns.values()]
        width = len(self.entries)
        weights = np.array([entry.weight for entry in self.entries])
        raw = np.asarray(state["table"], np.float64).reshape(sum(strata), width) / weights
        sd = self.noise_of(self._ask) / weights
        whole, parts = consistent(raw, strata)
        common = math.sqrt(1 / sum(1 / count for count in strata))
        columns = {"all": (whole, sd * common)}
        at = 0
        for (name, labels), count in zip(self.breakdowns.items(), strata, strict=True):
            left = math.sqrt((1 - 1 / count) + (common / count) ** 2)
            for i, label in enumerate(labels):
                if label != "missing" or parts[at + i][0] > Z95 * sd[0] * left:
                    columns[f"{name}: {label}"] = (parts[at + i], sd * left)
            at += count
        return {
            "columns": list(columns),
            "patients": {c: people(values[0], noise[0]) for c, (values, noise) in columns.items()},
            "variables": {
                place.name: self._variable(place, columns) for place in places(self.schema)
            },
        }

    def _variable(
        self, place: Place, columns: Mapping[str, tuple[Floats, Floats]]
    ) -> dict[str, object]:
        first = next(i for i, entry in enumerate(self.entries) if entry.name == place.name)
        feature = place.feature
        found: dict[str, object] = {"label": feature.label or place.name}
        if not isinstance(feature, Number):
            names = (*labels_of(feature), "missing")
            here = slice(first, first + len(names))
            found["shares"] = {
                name: {
                    column: share(values[here], i, noise[here], known=len(names) - 1)
                    for column, (values, noise) in columns.items()
                }
                for i, name in enumerate(names)
            }
            return found
        here = slice(first, first + 3 + BINS)
        found["unit"] = feature.unit
        found["numbers"] = {
            column: number(
                values[here], noise[here], float(values[0]), float(noise[0]) ** 2, feature
            )
            for column, (values, noise) in columns.items()
        }
        return found


def consistent(raw: Floats, strata: list[int]) -> tuple[Floats, Floats]:
    """The best common total of several breakdowns of the same patients, and the strata moved to add
    up to it.

    A breakdown of S strata has a total of variance S: totals are weighted by 1 / S, and a breakdown's
    difference is shared out equally.

    >>> consistent(np.array([[10.0], [20.0], [12.0], [22.0]]), [2, 2])[0].tolist()
    [32.0]
    """
    totals, at = [], 0
    for count in strata:
        totals.append(raw[at : at + count].sum(axis=0))
        at += count
    weight = np.array([1 / count for count in strata])
    whole: Floats = (weight[:, None] * np.array(totals)).sum(axis=0) / weight.sum()
    moved, at = raw.copy(), 0
    for total, count in zip(totals, strata, strict=True):
        moved[at : at + count] += (whole - total) / count
        at += count
    return whole, moved


def people(value: float, sd: float) -> Figure:
    """A number of patients; its interval covers the noise (the patients are not a sample of
    themselves)."""
    low, middle, high = (max(0.0, value + z * sd) for z in (-Z95, 0.0, Z95))
    return {"value": middle, "interval": [low, high]}


def quadratic(a: float, b: float, c: float) -> Interval | None:
    """Where a t^2 + b t + c <= 0, if that is a bounded interval."""
    root = b * b - 4 * a * c
    if a <= 0 or root < 0:
        return None
    return (-b - math.sqrt(root)) / (2 * a), (-b + math.sqrt(root)) / (2 * a)


def share(counts: Floats, i: int, noise: Floats, known: int) -> Figure:
    """The share of value ``i`` among patients whose value is known; of "missing", among all.

    >>> share(np.array([50.0, 50.0, 0.0]), 1, np.zeros(3), 2)["value"]
    0.5
    """
    used = np.ones(len(counts), bool) if i >= known else np.arange(len(counts)) < known
    m, n = float(counts[i]), float(counts[used].sum())
    own, others = float(noise[i]) ** 2, float((noise[used] ** 2).sum()) - float(noise[i]) ** 2
    # m - t n has noise (1 - t)^2 own + t^2 others, and sampling n t (1 - t).
    z2 = Z95**2
    people = max(n, 1.0)
    found = quadratic(
        n * n + z2 * (people - own - others), -2 * m * n - z2 * (people - 2 * own), m * m - z2 * own
    )
    if found is None or n <= 0:
        return {"value": None, "interval": None}
    low, high = max(0.0, found[0]), min(1.0, found[1])
    if low > high or high - low > 0.999:
        return {"value": None, "interval": None}
    return {"value": min(1.0, max(0.0, m / n)), "interval": [low, high]}


def number(
    values: Floats, noise: Floats, patients: float, s_patients: float, feature: Number
) -> dict[str, Figure]:
    """Mean, deviation, quartiles and missing values of a number in one stratum."""
    half, middle = (feature.high - feature.low) / 2, (feature.high + feature.low) / 2
    known, total, squares = (float(v) for v in values[:3])
    s_known, s_total, s_square = (float(v) ** 2 for v in noise[:3])
    bins, s_bin = values[3:], float(noise[3]) ** 2
    empty: Figure = {"value": None, "interval": None}
    names = ("mean", "sd", *(f"q{round(100 * q)}" for q in QUANTILES))
    if known <= 0:
        return dict.fromkeys((*names, "missing"), empty)
    mean = total / known
    second = (squares / known + 1) / 2
    variance = second - mean * mean
    z2 = Z95**2
    # (total - t known)^2 <= z^2 (known variance + noise of total + t^2 noise of known)
    reach = quadratic(
        known**2 - z2 * s_known,
        -2 * total * known,
        total**2 - z2 * (known * max(variance, 0.0) + s_total),
    )
    found: dict[str, Figure] = dict.fromkeys(names, empty)
    if reach is not None and reach[1] - reach[0] < 2:
        low, high = max(-1.0, reach[0]), min(1.0, reach[1])
        inside = min(1.0, max(-1.0, mean))
        found["mean"] = _figure(inside, (low, high), middle, half)
        found["sd"] = _deviation(known, mean, second, variance, (s_known, s_total, s_square), half)
    for q, name in zip(QUANTILES, names[2:], strict=True):
        where = quantile(bins, s_bin, q)
        if where is not None:
            found[name] = _figure(where[0], where[1], middle, half)
    found["missing"] = _missing(patients, known, s_patients, s_known)
    return found


def _missing(patients: float, known: float, s_patients: float, s_known: float) -> Figure:
    """The share of patients without a value: (1 - t) patients - known is 0 but for noise and
    sampling."""
    z2, people = Z95**2, max(patients, 1.0)
    found = quadratic(
        patients**2 + z2 * (people - s_patients),
        -2 * patients * (patients - known) - z2 * (people - 2 * s_patients),
        (patients - known) ** 2 - z2 * (s_patients + s_known),
    )
    if found is None or patients <= 0 or found[1] - found[0] > 0.999:
        return {"value": None, "interval": None}
    ends = [min(1.0, max(0.0, end)) for end in found]
    return {"value": min(1.0, max(0.0, 1 - known / patients)), "interval": ends}


def _figure(value: float, reach: Interval, middle: float, half: float) -> Figure:
    low, high = (middle + half * end for end in reach)
    return {"value": middle + half * value, "interval": [low, high]}


def _deviation(
    known: float,
    mean: float,
    second: float,
    variance: float,
    noise: tuple[float, float, float],
    half: float,
) -> Figure:
    """The standard deviation, by the delta method on its square.

    Sampling of a variance under bounded values: E v^4 <= E v^2, so Var(v^2) <= second (1 - second);
    the fourth moment of a normal is taken where it is smaller.
    """
    sampling = min(2 * variance**2, max(second * (1 - second), 0.0)) / known
    s_known, s_total, s_square = noise
    # variance = (Q / P + 1) / 2 - (T / P)^2
    by_known = -(2 * second - 1) / 2 + 2 * mean**2
    spread = (s_square / 4 + 4 * mean**2 * s_total + by_known**2 * s_known) / known**2
    error = Z95 * math.sqrt(sampling + spread)
    # Values within the bounds have a variance of at most 1: an interval up to there says nothing.
    if not 0 < variance + error < 1:
        return {"value": None, "interval": None}
    low, value, high = (
        half * math.sqrt(min(max(end, 0.0), 1.0))
        for end in (variance - error, variance, variance + error)
    )
    return {"value": value, "interval": [low, high]}


def quantile(bins: Floats, noise: float, q: float) -> tuple[float, Interval] | None:
    """A quantile and its interval in [-1, 1]: edges at which the share below may be ``q``.

    At edge j, T = (1 - q) below - q above is 0 in expectation where the share below is q; its variance
    is n q (1 - q) by sampling and ((1 - q)^2 j + q^2 (B - j)) x noise. Between edges T is taken as
    linear.
    """
    size = len(bins)
    n = float(bins.sum())
    if n <= 0:
        return None
    below = np.concatenate([[0.0], np.cumsum(bins)])
    j = np.arange(size + 1)
    statistic = (1 - q) * below - q * (n - below)
    error = np.sqrt(n * q * (1 - q) + noise * ((1 - q) ** 2 * j + q**2 * (size - j)))
    edges = np.linspace(-1, 1, size + 1)
    point = _crossing(edges, statistic)
    low = _crossing(edges, statistic + Z95 * error)
    high = _crossing(edges, statistic - Z95 * error)
    if point is None or low is None or high is None:
        return None
    return point, (min(low, point), max(high, point))


def _crossing(edges: Floats, values: Floats) -> float | None:
    """Where a rising curve passes 0; noise can make it pass several times: the middle of those."""
    up = np.flatnonzero((values[:-1] < 0) & (values[1:] >= 0))
    if not len(up):
        return None
    where = edges[up] - values[up] * (edges[up + 1] - edges[up]) / (values[up + 1] - values[up])
    return float(where.mean())


class Described(Settings):
    """What `suture describe` may be asked."""

    by: tuple[str, ...] = ()
    honest: float = Setting(default=0.5, gt=0, le=1)


def build(setup: Setup) -> TableOne:
    """From a study."""
    own = Described.model_validate(setup.settings)
    setup.every_site("describe")
    return TableOne(setup.public, own.honest, by=own.by)


DECLARED = Declared(
    "describe",
    build,
    Described,
    uses=frozenset(),
    searches=(),
    model="none",
    outcomes=(Classes, Survival),
)


def tables(found: Mapping[str, Any], outcome: str) -> list[Table]:
    """Table 1 as a page shows it: one column for all patients and one for each stratum."""
    columns = found["columns"]
    rows = [(Cell("Patients"), *(shown(found["patients"][column], 0) for column in columns))]
    for variable in found["variables"].values():
        label = variable["label"]
        if "shares" in variable:
            for value, by in variable["shares"].items():
                name = Cell(f"{label}: {value}, %")
                rows.append((name, *(shown(by[column], 1, 100) for column in columns)))
            continue
        unit = f", {variable['unit']}" if variable["unit"] else ""
        for key, text in NAMES.items():
            by = {column: variable["numbers"][column][key] for column in columns}
            missing = key == "missing"
            name = Cell(f"{label}, {text}" + ("" if missing else unit))
            cells = (shown(by[column], 1, 100 if missing else 1) for column in columns)
            rows.append((name, *cells))
    heads = ("", *(c.replace("outcome:", f"{outcome}:").capitalize() for c in columns))
    remark = (
        "Small: 95 % intervals, for noise and sampling together (for numbers of patients: noise). "
        "Shares of values are of patients whose value is known. A dash: the interval has no bound, "
        "so the figure is withheld. Strata of each breakdown add up to the same total."
    )
    return [Table("Patients, with noise that protects each of them", heads, tuple(rows), remark)]


NAMES = {
    "mean": "mean",
    "sd": "standard deviation",
    "q25": "first quartile",
    "q50": "median",
    "q75": "third quartile",
    "missing": "missing, %",
}
