"""A site's columns in figures: how often each is recorded, its mean and spread, by outcome. Before and beside training.

Exact profiles are for the site's own eyes, or for a study that promises nothing. `protect` makes one that may leave:

*Sensitivity.* Every patient counts once: a patient's rows share a weight of 1. One row adds to the vector of sums a 1
(its class), and for each feature a 1 if it is recorded, its value within [-1, 1] (for a category a single 1 among its
values), and for a number the square too. So the row's squared norm is at most 1 + 3 numbers + 2 others, and so is that
of a weighted mean of a patient's rows, because norms are convex. Adding or removing a patient moves the vector by that
much: the Gaussian mechanism with sigma times the root of it is one `GaussianDpEvent(sigma)`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture.errors import StudyError
from suture.privacy.mechanisms import generator
from suture.site.preprocess import MISSING
from suture.site.schema import Category, Image, Number, Schema

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Profile:
    """Weighted sums over a site's patients, by class. Numbers are on the scale of their bounds (-1 to 1)."""

    patients: Floats
    """Patients of each class."""
    recorded: Floats
    """features x classes: patients with a value."""
    total: Floats
    """columns x classes: sum of the values that are there."""
    squares: Floats
    """columns x classes: sum of their squares."""
    outside: Floats
    """features x 2: patients below and above the bounds (exact profiles only; nan otherwise)."""
    fourths: Floats
    """columns x classes: sum of the fourth powers of deviations from the class's mean (exact profiles only; nan otherwise).

    They say how well a spread is known: in a column with heavy tails a single patient can double it."""
    noise: float = 0.0
    """Standard deviation of the noise in every sum."""

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, for JSON."""
        found = {name: getattr(self, name).tolist() for name in ("patients", "recorded", "total", "squares")}
        exact = {
            name: None if np.isnan(values).any() else values.tolist()
            for name, values in (("outside", self.outside), ("fourths", self.fourths))
        }
        return {**found, **exact, "noise": self.noise}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Profile:
        """Read back what `to_dict` gave."""
        arrays = {name: np.array(data[name], np.float64) for name in ("patients", "recorded", "total", "squares")}
        unknown = {"outside": np.full((len(arrays["recorded"]), 2), np.nan), "fourths": arrays["total"] * np.nan}
        for name in unknown:
            if data.get(name) is not None:
                unknown[name] = np.array(data[name], np.float64)
        return cls(**arrays, **unknown, noise=float(data["noise"]))


def profile_columns(schema: Schema) -> list[tuple[str, str]]:
    """The profile's columns, as (feature, column): a category has one a value.

    >>> from suture.site.schema import Flag
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
    columns: dict[str, NDArray[Any]],
    y: NDArray[np.int32],
    starts: NDArray[np.int64],
    schema: Schema,
    classes: int,
    clip: bool,
) -> Profile:
    """The exact profile of typed columns grouped by patient; ``clip`` keeps numbers to their bounds, for `protect`.

    >>> schema = Schema(features={"age": Number(low=0, high=100)})
    >>> found = take({"age": np.array([50.0, 100, np.nan])}, np.array([0, 1, 1]), np.arange(4), schema, 2, True)
    >>> found.patients.tolist(), found.recorded.tolist(), found.total.tolist()
    ([1.0, 2.0], [[1.0, 1.0]], [[0.0, 1.0]])
    """
    sizes = np.diff(starts)
    weight = np.repeat(1.0 / np.maximum(sizes, 1), sizes)

    def by_class(values: NDArray[Any]) -> Floats:
        return np.asarray(np.bincount(y, weights=weight * values, minlength=classes), np.float64)

    recorded, total, squares, outside, fourths = [], [], [], [], []
    for name, feature in schema.features.items():
        raw = columns[name]
        if isinstance(feature, Image):
            raise StudyError(f"column {name!r} is an image: columns are compared in figures, and an image has none")
        if isinstance(feature, Number):
            there = ~np.isnan(raw)
            value = np.where(there, 2 * (raw - feature.low) / (feature.high - feature.low) - 1, 0.0)
            low, high = value < -1, value > 1
            value = np.clip(value, -1, 1) if clip else value
            total.append(by_class(value))
            squares.append(by_class(value * value))
            centre = total[-1] / np.maximum(by_class(there), 1e-12)
            fourths.append(by_class(np.where(there, value - centre[y], 0.0) ** 4))
            outside.append([float(weight @ low), float(weight @ high)])
        else:
            there = raw != MISSING
            codes = range(len(feature.values)) if isinstance(feature, Category) else (1,)
            for code in codes:
                total.append(by_class(raw == code))
                squares.append(total[-1])
                fourths.append(np.zeros(classes))
            outside.append([0.0, 0.0])
        recorded.append(by_class(there))
    kept = (np.array(part, np.float64) for part in (recorded, total, squares, outside, fourths))
    return Profile(by_class(np.ones(len(y))), next(kept), next(kept), next(kept), next(kept), next(kept))


def sensitivity(schema: Schema) -> float:
    """How far one patient can move the vector of sums.

    >>> sensitivity(Schema(features={"age": Number(low=0, high=1), "sex": Category(values=("F", "M"))}))
    2.449489742783178
    """
    return math.sqrt(1 + sum(3 if isinstance(f, Number) else 2 for f in schema.features.values()))


def protect(exact: Profile, schema: Schema, noise_multiplier: float, key: bytes) -> Profile:
    """A profile that may leave once ``GaussianDpEvent(noise_multiplier)`` is paid: noise in every sum.

    ``exact`` must have been taken with ``clip``. Counts of values outside the bounds and fourth
    powers are left out.
    """
    deviation = noise_multiplier * sensitivity(schema)
    rng = generator(key)

    def noisy(sums: Floats) -> Floats:
        return sums + deviation * rng.standard_normal(sums.shape)

    total = noisy(exact.total)
    numbers = np.array([isinstance(schema.features[name], Number) for name, _ in profile_columns(schema)])
    squares = np.where(numbers[:, None], noisy(exact.squares), total)
    return replace(
        exact,
        patients=noisy(exact.patients),
        recorded=noisy(exact.recorded),
        total=total,
        squares=squares,
        outside=np.full_like(exact.outside, np.nan),
        fourths=np.full_like(exact.fourths, np.nan),
        noise=deviation,
    )
