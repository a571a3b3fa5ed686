"""A site's columns in figures: how often each is recorded, its mean and spread, by outcome.

Exact profiles are for the site only, or for a study that promises nothing. One that may leave is
made of sums that have passed the door (`contributions`, `from_sums`):

*Sensitivity.* Every patient counts once: a patient's rows share a weight of 1. One row adds to the
vector of sums a 1 (its class), and for each feature a 1 if it is recorded, its value within [-1, 1]
(for a category a single 1 among its values), and for a number the square too. So the row's squared
norm is at most 1 + 3 numbers + 2 others, and so is that of a weighted mean of a patient's rows,
because norms are convex. Adding or removing a patient moves the vector by at most the root of that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from suture.errors import StudyError
from suture.privacy.door import Rows
from suture.privacy.unit import Patients
from suture.schema.table import Category, Feature, Image, Number, Schema
from suture.site.preprocess import MISSING
from suture.site.sources import Column, Columns

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Profile:
    """Weighted sums over a site's patients, by class; numbers scaled by their bounds to -1..1."""

    patients: Floats  # patients of each class
    recorded: Floats  # features x classes: patients with a value
    total: Floats  # columns x classes: sum of the values that are there
    squares: Floats  # columns x classes: sum of their squares
    outside: Floats
    """features x 2: patients below and above the bounds (exact profiles only; nan otherwise)."""
    far: Floats
    """features: patients outside the bounds, or more than `FAR` spreads from the median (exact
    profiles only; nan otherwise)."""
    robust: Floats
    """columns x classes x 5: `trimmed` centre and spread, each with its squared error, and the
    degrees of freedom (numbers of exact profiles; nan otherwise)."""
    joint: float
    """The largest eigenvalue of the columns' correlations within classes (exact profiles only; nan
    otherwise): figures of several columns come from the same patients, and no weighted sum of them
    varies more than this times as much as if they did not."""
    noise: float = 0.0  # standard deviation of the noise in every sum

    def turned(self) -> Profile:
        """The same patients, their two outcomes exchanged."""
        return replace(
            self,
            patients=self.patients[::-1],
            recorded=self.recorded[:, ::-1],
            total=self.total[:, ::-1],
            squares=self.squares[:, ::-1],
            robust=self.robust[:, ::-1],
        )

    def to_dict(self) -> dict[str, JsonValue]:
        """Plain lists, for JSON."""
        found: dict[str, JsonValue] = {}
        for name in _ARRAYS:
            values: Floats = vars(self)[name]
            found[name] = None if np.isnan(values).any() else values.tolist()
        robust = np.where(np.isnan(self.robust), 0.0, self.robust)
        exact = None if np.isnan(self.joint) else {"robust": robust.tolist(), "joint": self.joint}
        return {**found, "exact": exact, "noise": self.noise}

    @classmethod
    def from_dict(cls, data: Mapping[str, JsonValue]) -> Profile:
        """Read back what `to_dict` gave."""
        arrays = {name: np.array(data.get(name), np.float64) for name in _ARRAYS}
        if data.get("outside") is None:
            arrays["outside"] = np.full((len(arrays["recorded"]), 2), np.nan)
        if data.get("far") is None:
            arrays["far"] = np.full(len(arrays["recorded"]), np.nan)
        exact = data.get("exact")
        robust, joint = np.full((*arrays["total"].shape, 5), np.nan), np.nan
        if isinstance(exact, dict):
            robust, joint = np.array(exact["robust"], np.float64), float(str(exact["joint"]))
            robust[robust[..., 4] == 0] = np.nan
        return cls(**arrays, robust=robust, joint=joint, noise=float(str(data["noise"])))


_ARRAYS = ("patients", "recorded", "total", "squares", "outside", "far")
TRIM, FEWEST_CUT = 0.1, 2
"""The share, and the least number, of the values that `trimmed` leaves out at either end."""
NORMAL = 0.7317
"""The trimmed mean distance from the median, of a normal law with deviation 1."""
FAR = 6.0
SAMPLE = 5000
"""As many patients are enough to see how columns go together."""


def trimmed(values: Floats) -> tuple[float, float, float]:
    """A trimmed mean, its squared error and its degrees of freedom (Yuen 1974): a few impossible
    values at either end move neither.

    >>> trimmed(np.array([1.0, 2, 3, 4, 5, 6, 7, 735]))
    (4.5, 1.1666666666666667, 3.0)
    >>> trimmed(np.arange(5.0))
    (nan, nan, nan)
    """
    inner, cut = _inner(values)
    if (kept := len(values) - 2 * cut) < 2:
        return np.nan, np.nan, np.nan
    total = float(inner.sum())
    square = (float(inner @ inner) - total * total / len(inner)) / (kept * (kept - 1))
    centre = (total - cut * float(inner.min() + inner.max())) / kept
    return centre, max(square, 0.0), float(kept - 1)


def _inner(values: Floats) -> tuple[Floats, int]:
    """The values with those at either end moved to the last that is kept, and how many those are."""
    n = len(values)
    cut = max(FEWEST_CUT, int(TRIM * n))
    if n <= 2 * cut:
        return values, cut
    low, high = np.partition(values, (cut, n - cut - 1))[[cut, n - cut - 1]]
    return np.minimum(np.maximum(values, low), high), cut


def _robust(value: Floats, who: NDArray[np.int64]) -> tuple[float, ...]:
    """Centre and spread of one class's values, a patient's rows as one."""
    one_each = bool((who[1:] > who[:-1]).all())

    def by_patient(values: Floats) -> Floats:
        if one_each:
            return values
        count = np.bincount(who)
        return np.asarray(np.bincount(who, values)[count > 0] / count[count > 0], np.float64)

    away = np.abs(value - _median(value))
    centre, error, freedom = trimmed(by_patient(value))
    spread, its_error, _ = trimmed(by_patient(away))
    return centre, error, spread / NORMAL, its_error / NORMAL**2, freedom


def _median(values: Floats) -> float:
    middle = len(values) // 2
    return float(np.partition(values, middle)[middle]) if len(values) else np.nan


def _far(values: Floats, outside: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which values are outside the bounds, or far from the others: a code, in bounds that are too
    wide to tell. A spread of zero tells nothing."""
    away = np.abs(values - _median(values))
    spread = trimmed(away)[0] / NORMAL
    return outside | (away > FAR * spread) if spread > 0 else outside


def _joint(columns: Sequence[Floats], y: NDArray[np.int32], classes: int) -> float:
    """The largest eigenvalue of the columns' correlations within classes; what is missing is at
    the mean."""
    held = []
    for values in columns:
        here = values[:SAMPLE]
        part = np.zeros(len(here))
        for c in range(classes):
            known = (y[:SAMPLE] == c) & ~np.isnan(here)
            if np.count_nonzero(known):
                inner, _ = _inner(here[known])
                part[known] = inner - inner.mean()
        if (norm := float(np.linalg.norm(part))) > 0:
            held.append(part / norm)
    matrix = np.array(held)
    return float(np.linalg.eigvalsh(matrix @ matrix.T)[-1]) if held else 1.0


def profile_columns(schema: Schema) -> list[tuple[str, str]]:
    """The profile's columns, as (feature, column): a category has one for each value.

    >>> from suture.schema.table import Flag
    >>> profile_columns(Schema(features={"age": Number(low=0, high=9), "sex": Category(values=("F", "M"))}))
    [('age', 'age'), ('sex', 'sex = F'), ('sex', 'sex = M')]
    """
    found = []
    for name, feature in schema.features.items():
        if isinstance(feature, Category):
            found += [(name, f"{name} = {value}") for value in feature.values]
        else:
            found.append((name, name))
    return found


def take(
    columns: Columns,
    y: NDArray[np.int32],
    starts: NDArray[np.int64],
    schema: Schema,
    classes: int,
    clip: bool,
) -> Profile:
    """The exact profile of typed columns by patient; ``clip`` keeps numbers to their bounds."""
    sizes = np.diff(starts)
    weight = np.repeat(1.0 / np.maximum(sizes, 1), sizes)

    def by_class(values: Column) -> Floats:
        return np.asarray(np.bincount(y, weights=weight * values, minlength=classes), np.float64)

    who = np.repeat(np.arange(len(sizes)), sizes)
    mine = [y == c for c in range(classes)]
    recorded, total, squares, outside, far = [], [], [], [], []
    robust: list[list[tuple[float, ...]]] = []
    every: list[Floats] = []
    for name, feature in schema.features.items():
        raw = columns[name]
        if isinstance(feature, Image):
            raise StudyError(f"column {name!r} is an image, which has no figures to compare")
        if isinstance(feature, Number):
            there = ~np.isnan(raw)
            value = np.where(there, _scaled(raw, feature), 0.0)
            low, high = value < -1, value > 1
            value = np.clip(value, -1, 1) if clip else value
            total.append(by_class(value))
            squares.append(by_class(value * value))
            robust.append([_robust(value[there & one], who[there & one]) for one in mine])
            every.append(np.where(there, value, np.nan))
            outside.append([float(weight @ low), float(weight @ high)])
            far.append(float(weight[there] @ _far(raw[there], low[there] | high[there])))
        else:
            there = raw != MISSING
            for code in _codes(feature):
                total.append(by_class(raw == code))
                squares.append(total[-1])
                robust.append([(np.nan,) * 5] * classes)
                every.append(np.where(there, raw == code, np.nan))
            outside.append([0.0, 0.0])
            far.append(0.0)
        recorded.append(by_class(there))
    parts = [
        np.array(part, np.float64) for part in (recorded, total, squares, outside, far, robust)
    ]
    patients, joint = by_class(np.ones(len(y))), _joint(every, y, classes)
    return Profile(patients, parts[0], parts[1], parts[2], parts[3], parts[4], parts[5], joint)


def _scaled(raw: Column, feature: Number) -> Floats:
    return np.asarray(2 * (raw - feature.low) / (feature.high - feature.low) - 1, np.float64)


def _codes(feature: Feature) -> Sequence[int]:
    return range(len(feature.values)) if isinstance(feature, Category) else (1,)


def sensitivity(schema: Schema) -> float:
    """How far one patient can move the vector of sums."""
    return math.sqrt(1 + sum(3 if isinstance(f, Number) else 2 for f in schema.features.values()))


def table(
    columns: Columns, y: NDArray[np.int32], starts: NDArray[np.int64], schema: Schema
) -> Patients:
    """Typed columns as rows by patient: numbers scaled and clipped to their bounds."""
    parts = []
    for name, feature in schema.features.items():
        raw = columns[name]
        if isinstance(feature, Number):
            parts.append(np.clip(_scaled(raw, feature), -1, 1))
        else:
            parts.append(np.where(raw < 0, np.nan, raw.astype(np.float64)))
    return Patients(np.column_stack(parts).astype(np.float32), y, starts)


def width(schema: Schema, classes: int) -> int:
    """Numbers in the vector of sums."""
    numbers = sum(isinstance(feature, Number) for feature in schema.features.values())
    return classes * (1 + len(schema.features) + len(profile_columns(schema)) + numbers)


def contributions(block: Patients, schema: Schema, classes: int) -> Rows:
    """What rows of a `table` add to the sums: a patient's rows share a weight of 1."""
    x = block.x.astype(np.float64)
    there = ~np.isnan(x)
    recorded, total, squares = [], [], []
    for i, feature in enumerate(schema.features.values()):
        value = np.where(there[:, i], x[:, i], 0.0)
        recorded.append(there[:, i].astype(np.float64))
        if isinstance(feature, Number):
            total.append(value)
            squares.append(value * value)
        else:
            codes = _codes(feature)
            total += [(there[:, i] & (x[:, i] == code)).astype(np.float64) for code in codes]
    each = np.column_stack([np.ones(block.rows), *recorded, *total, *squares])
    mine = block.y[:, None] == np.arange(classes)
    rows = np.diff(block.starts)
    spread = (each[:, :, None] * mine[:, None, :]).reshape(block.rows, -1)
    return spread, np.repeat(1.0 / np.maximum(rows, 1), rows)


def from_sums(sums: Floats, schema: Schema, classes: int, noise: float) -> Profile:
    """The profile of noisy sums: without counts outside the bounds and robust figures."""
    features, columns = len(schema.features), profile_columns(schema)
    numbers = np.array([isinstance(schema.features[name], Number) for name, _ in columns])
    whole = np.asarray(sums, np.float64).reshape(-1, classes)
    total = whole[1 + features : 1 + features + len(columns)]
    squares = total.copy()
    squares[numbers] = whole[1 + features + len(columns) :]
    empty = (np.full((features, 2), np.nan), np.full(features, np.nan))
    unknown = (*empty, np.full((*total.shape, 5), np.nan), np.nan)
    return Profile(whole[0], whole[1 : 1 + features], total, squares, *unknown, noise)
