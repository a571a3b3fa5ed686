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
from dataclasses import dataclass

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
    fourths: Floats
    """columns x classes: sum of the fourth powers of deviations from the class's mean (exact
    profiles only; nan otherwise).

    They say how well a spread is known: in a column with heavy tails a single patient can double
    it."""
    noise: float = 0.0  # standard deviation of the noise in every sum

    def to_dict(self) -> dict[str, JsonValue]:
        """Plain lists, for JSON."""
        found: dict[str, JsonValue] = {}
        for name in _ARRAYS:
            values: Floats = vars(self)[name]
            found[name] = None if np.isnan(values).any() else values.tolist()
        return {**found, "noise": self.noise}

    @classmethod
    def from_dict(cls, data: Mapping[str, JsonValue]) -> Profile:
        """Read back what `to_dict` gave."""
        arrays = {name: np.array(data.get(name), np.float64) for name in _ARRAYS}
        if data.get("outside") is None:
            arrays["outside"] = np.full((len(arrays["recorded"]), 2), np.nan)
        if data.get("fourths") is None:
            arrays["fourths"] = arrays["total"] * np.nan
        return cls(**arrays, noise=float(str(data["noise"])))


_ARRAYS = ("patients", "recorded", "total", "squares", "outside", "fourths")


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

    recorded, total, squares, outside, fourths = [], [], [], [], []
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
            centre = total[-1] / np.maximum(by_class(there), 1e-12)
            fourths.append(by_class(np.where(there, value - centre[y], 0.0) ** 4))
            outside.append([float(weight @ low), float(weight @ high)])
        else:
            there = raw != MISSING
            for code in _codes(feature):
                total.append(by_class(raw == code))
                squares.append(total[-1])
                fourths.append(np.zeros(classes))
            outside.append([0.0, 0.0])
        recorded.append(by_class(there))
    parts = [np.array(part, np.float64) for part in (recorded, total, squares, outside, fourths)]
    patients = by_class(np.ones(len(y)))
    return Profile(patients, parts[0], parts[1], parts[2], parts[3], parts[4])


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
    """The profile of noisy sums, without counts outside the bounds and fourth powers."""
    features, columns = len(schema.features), profile_columns(schema)
    numbers = np.array([isinstance(schema.features[name], Number) for name, _ in columns])
    whole = np.asarray(sums, np.float64).reshape(-1, classes)
    total = whole[1 + features : 1 + features + len(columns)]
    squares = total.copy()
    squares[numbers] = whole[1 + features + len(columns) :]
    unknown = (np.full((features, 2), np.nan), np.full_like(total, np.nan))
    return Profile(whole[0], whole[1 : 1 + features], total, squares, *unknown, noise)
