"""Concepts: a public dictionary of readable inputs, derived from the schema alone, never from rows.

VEIL calls a feature a concept. Here one feature gives several, each a statement that a clinician
can read:

| feature  | concepts                                                                      | value            |
|----------|-------------------------------------------------------------------------------|------------------|
| number   | its value                                                                     | -1 to 1, as encoded |
|          | how far it is below, and above, its declared normal range                     | t / (t + width)  |
|          | whether it is beyond each declared threshold: "Respiratory rate, high (> 25 /min)" | 0 or 1      |
| flag     | yes                                                                           | 0 or 1           |
| category | each declared value                                                           | 0 or 1           |
| all      | whether it is missing, where the schema marks missing values                  | 0 or 1           |

In the distance, t is how far the value lies outside the normal range and ``width`` the width of
that range: 0 inside, one half at one width beyond, never more than 1. Every concept's value lies in
[-1, 1] whatever a row holds: the sensitivity in docs/veil.md rests on that. A missing value is 0 in
every concept of its feature but the one for missing values.

`terms` gives the same features in another form, made for noisy gradients (docs/additive.md): a
number as a straight line through the middle of its normal range and as two hinges, each of which
starts at a normal limit and reaches 1 at the declared bound, on a logarithmic scale where the bound
is far from normal.
"""

from __future__ import annotations

import hashlib
import math
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Generic, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from suture.errors import StudyError
from suture.schema.clinical import LEVELS, Measure, read_name
from suture.schema.table import Category, Feature, Flag, Image, Number, Schema

Kind = Literal["value", "below", "above", "low", "high", "is", "missing"]
NONE = -1
FAR = 4.0
"""A bound beyond so many times the upper normal limit asks for a logarithmic scale."""
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class Concept:
    """One readable input, from one encoded ``column``; ``at``, ``width`` are in encoded units."""

    name: str
    feature: str
    kind: Kind
    column: int
    missing: int = NONE
    """The encoded column that says whether the feature is missing; -1 where there is none."""
    at: float = 0.0
    width: float = 1.0
    unit: str = ""
    protected: bool = False
    proxy: bool = False
    straight: bool = False
    """Of `terms`: a line or hinge that reaches 1 after ``width``."""
    log: tuple[float, float] | None = None
    """Of `terms`: the scale is log(first + second * encoded value)."""
    worse: str = ""
    """Which values are worse, as the schema declares or else the clinical dictionary: "high",
    "low", "both" or nothing."""

    @property
    def measurement(self) -> str:
        """What was measured: the columns of its lowest, last and highest values have the same.

        >>> Concept("", "bun_max", "value", 0).measurement
        'bun'
        """
        found = _named(self.feature, self.unit)
        return self.feature if found is None else found.name

    @property
    def caution(self) -> str:
        """Why a clinician should not read this concept as a cause; empty where nothing is declared."""
        if self.protected:
            why = "protected attribute"
        elif self.proxy:
            why = "tells of the process of care"
        elif self.kind == "missing":
            why = "tells of what was measured"
        else:
            return ""
        return f"{why}: not a biological cause; review"


class Terms(Protocol):
    """Public inputs of an additive model, a function of a row's encoded values alone."""

    @property
    def inputs(self) -> int:
        """Encoded values in a row."""

    @property
    def items(self) -> tuple[Concept, ...]:
        """What each term is called, and which feature it belongs to."""

    @property
    def digest(self) -> str:
        """Stands for the terms in a release's fingerprint."""

    def __len__(self) -> int: ...

    def matrix(self, x: NDArray[np.float32], /) -> NDArray[np.float32]:
        """The terms of encoded rows, each row's from that row alone."""


@dataclass(frozen=True)
class Concepts:
    """An ordered dictionary of concepts over ``inputs`` encoded columns."""

    inputs: int
    items: tuple[Concept, ...] = field(repr=False)
    digest: str = ""
    """A hash of the content, which stands for the dictionary in a release's fingerprint."""

    def __post_init__(self) -> None:
        text = repr((self.inputs, self.items)).encode()
        object.__setattr__(self, "digest", hashlib.blake2b(text, digest_size=16).hexdigest())

    def __len__(self) -> int:
        return len(self.items)

    @cached_property
    def graded(self) -> NDArray[np.bool_]:
        """Which concepts have values between 0 and 1, or below 0; the others are 0 or 1."""
        return np.isin([concept.kind for concept in self.items], ("value", "below", "above"))

    def matrix(
        self, x: NDArray[np.float32], ids: Sequence[int] | NDArray[np.integer] | None = None
    ) -> NDArray[np.float32]:
        """The concepts of encoded rows (all, or only ``ids``), rows x concepts, each value within
        [-1, 1].

        >>> from suture.schema.table import Number, Schema
        >>> rate = Number(low=0, high=40, normal=(10, 20), thresholds={"high": 25}, missing="fill")
        >>> known = dictionary(Schema(features={"rate": rate}))
        >>> known.matrix(np.array([[-1.0], [0.0], [0.5]], np.float32)).tolist()
        [[-1.0, 0.5, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.5, 0.0, 0.5, 1.0]]
        """
        if x.ndim != 2 or x.shape[1] != self.inputs:
            raise ValueError(f"expected rows of {self.inputs} encoded inputs, found {x.shape}")
        # Encoded rows are within [-1, 1] already; clipping means that the bound needs no trust.
        x = np.clip(np.nan_to_num(x, nan=0.0), -1, 1)
        wanted = self.items if ids is None else [self.items[i] for i in ids]
        out = np.empty((len(x), len(wanted)), np.float32)
        for j, concept in enumerate(wanted):
            found, at = x[:, concept.column], np.float32(concept.at)
            if concept.straight:
                found = _straight(concept, found)
            elif concept.kind == "low":
                found = (found < at).astype(np.float32)
            elif concept.kind == "high":
                found = (found > at).astype(np.float32)
            elif concept.kind in ("below", "above"):
                distance = at - found if concept.kind == "below" else found - at
                beyond = np.maximum(distance, np.float32(0))
                found = beyond / (beyond + np.float32(concept.width))
            out[:, j] = found if concept.missing == NONE else found * (x[:, concept.missing] == 0)
        return out


def dictionary(schema: Schema) -> Concepts:
    """Every concept that a schema declares, in the order of its features.

    >>> rate = Number(low=0, high=60, unit="/min", label="Respiratory rate", normal=(12, 20),
    ...               thresholds={"high": 25})
    >>> for concept in dictionary(Schema(features={"rate": rate})).items:
    ...     print(concept.name)
    Respiratory rate
    Respiratory rate, below normal (< 12 /min)
    Respiratory rate, above normal (> 20 /min)
    Respiratory rate, high (> 25 /min)
    Respiratory rate, not measured
    """
    items: list[Concept] = []
    column = 0
    for name, feature in schema.features.items():
        if isinstance(feature, Image):
            raise StudyError(
                f"column {name!r} is an image: readable concepts are made from numbers, categories "
                "and flags"
            )
        width = len(feature.values) if isinstance(feature, Category) else 1
        marked = schema.missing_rule(name) == "indicator"
        missing = column + width if marked else NONE
        items += _of_feature(name, feature, column, missing)
        column += width + marked
    return Concepts(column, tuple(items))


def terms(schema: Schema) -> Concepts:
    """The terms of an additive model: of each number a line and two hinges, of the others the
    declared values. No concept says whether a value is missing. Where a number declares no normal
    range, the clinical dictionary's is taken if the column's name is known and the range is
    possible within the declared bounds.

    >>> rate = Number(low=0, high=32, normal=(8, 24), unit="/min")
    >>> known = terms(Schema(features={"rate": rate, "sex": Category(values=("F", "M"))}))
    >>> [concept.name for concept in known.items]
    ['Rate', 'Rate, below 8 /min', 'Rate, above 24 /min', 'Sex: F', 'Sex: M']
    >>> known.matrix(np.array([[-1.0, 0, 1, 0, 0], [0.75, 0, 0, 0, 1]], np.float32)).tolist()
    [[-1.0, 1.0, 0.0, 0.5, 0.0], [0.75, 0.0, 0.5, 0.0, 0.0]]
    """
    items: list[Concept] = []
    for concept in dictionary(schema).items:
        feature = schema.features[concept.feature]
        if isinstance(feature, Number) and concept.kind == "value":
            normal = feature.normal or _known_range(concept.feature, feature)
            items += _straight_terms(concept, feature, normal)
        elif concept.kind == "is" and isinstance(feature, Category):
            # Halved, so that a category spreads no more than a flag: 1/4 (1 - sum of p^2).
            items.append(replace(concept, straight=True, width=2.0))
        elif concept.kind == "is":
            items.append(concept)
    return Concepts(dictionary(schema).inputs, tuple(items))


@cache
def _named(column: str, unit: str) -> Measure | None:
    """The measure of the clinical dictionary whose level a column holds."""
    found = read_name(column, unit)
    return None if found is None or found.statistic not in LEVELS else found.measure


def _known_range(name: str, feature: Number) -> tuple[float, float] | None:
    """The normal range that public knowledge has for a column of this name, unit and bounds."""
    found = read_name(name, feature.unit)
    if found is None or found.statistic not in LEVELS or found.measure.normal is None:
        return None
    measure, (start, end) = found.measure, found.measure.normal
    # Bounds that go far beyond the possible speak of another unit.
    other = found.unit not in ("", measure.unit) or feature.high > FAR * measure.high
    return None if other or not feature.low <= start < end <= feature.high else (start, end)


def _straight_terms(
    value: Concept, feature: Number, normal: tuple[float, float] | None
) -> list[Concept]:
    """A line and two hinges of one number, from its concept "value"."""
    low, high, log = feature.low, feature.high, None
    if normal is None:
        middle, start, end = (low + high) / 2, low + (high - low) / 3, high - (high - low) / 3
    else:
        start, end = normal
        middle = (start + end) / 2
        if low >= 0 and high > FAR * end:
            # log(1 + v / middle): defined at 0, and even on both sides of what is normal.
            half = (high - low) / 2
            log = (1 + (low + half) / middle, half / middle)

    def scale(number: float) -> float:
        return math.log1p(number / middle) if log else 2 * (number - low) / (high - low) - 1

    at, bottom, top = scale(middle), scale(low), scale(high)
    found = [replace(value, at=at, width=max(top - at, at - bottom), straight=True, log=log)]
    sides: tuple[tuple[Kind, float, float], ...] = (("below", start, bottom), ("above", end, top))
    for kind, limit, bound in sides:
        width = abs(bound - scale(limit))
        if width > 0:
            name = f"{value.name}, {kind} {limit:.4g} {value.unit}".strip()
            found.append(replace(found[0], name=name, kind=kind, at=scale(limit), width=width))
    return found


def _straight(concept: Concept, x: NDArray[np.float32]) -> NDArray[np.float32]:
    # In double precision: a logarithm's last bit may depend on where in memory a row stands.
    wide = x.astype(np.float64)
    if concept.log is not None:
        wide = np.log(concept.log[0] + concept.log[1] * wide)
    away = (wide - concept.at) / concept.width
    if concept.kind == "below":
        away = -away
    least = -1 if concept.kind == "value" else 0
    return np.clip(away, least, 1).astype(np.float32)


def plain(width: int) -> Concepts:
    """The encoded columns themselves as concepts, for models without a schema.

    >>> len(plain(3)), plain(3).items[2].name
    (3, 'input 3')
    """
    names = [f"input {i + 1}" for i in range(width)]
    return Concepts(width, tuple(Concept(name, name, "value", i) for i, name in enumerate(names)))


def label_of(name: str, feature: Feature) -> str:
    """What a clinician calls the feature: its label, or the words of its column's name.

    >>> label_of("heart_rate_max", Number(low=0, high=1))
    'Heart rate max'
    """
    return feature.label or name.replace("_", " ").strip().capitalize()


def _of_feature(
    name: str, feature: Number | Category | Flag, column: int, missing: int
) -> list[Concept]:
    label, flags = label_of(name, feature), (feature.protected, feature.proxy)
    unit = feature.unit if isinstance(feature, Number) else ""
    if isinstance(feature, Number):
        public = _named(name, unit)
        worse = feature.worse or (public.worse if public else None) or ""
        found = [
            Concept(text, name, kind, column, missing, at, width, unit, *flags, worse=worse)
            for text, kind, at, width in _of_number(label, feature)
        ]
    else:
        values = feature.values if isinstance(feature, Category) else ("yes",)
        found = [
            Concept(f"{label}: {value}", name, "is", column + i, missing, 0.0, 1.0, unit, *flags)
            for i, value in enumerate(values)
        ]
    if missing != NONE:
        text = f"{label}, not {'measured' if isinstance(feature, Number) else 'recorded'}"
        found.append(Concept(text, name, "missing", missing, NONE, 0.0, 1.0, unit, *flags))
    return found


def _of_number(label: str, feature: Number) -> list[tuple[str, Kind, float, float]]:
    """Text, kind, and in encoded units place and width of each concept of a number."""
    span = feature.high - feature.low

    def concept(kind: Kind, what: str, value: float, width: float = 1.0) -> None:
        limit = f"{value:g} {feature.unit}".strip()
        at = 2 * ((value - feature.low) / span) - 1
        found.append((f"{label}, {what} {limit})", kind, at, width))

    found: list[tuple[str, Kind, float, float]] = [(label, "value", 0.0, 1.0)]
    if feature.normal is not None:
        low, high = feature.normal
        width = 2 * (high - low) / span
        if low > feature.low:
            concept("below", "below normal (<", low, width)
        if high < feature.high:
            concept("above", "above normal (>", high, width)
    if feature.thresholds is not None:
        for value in feature.thresholds.low:
            concept("low", "low (<", value)
        for value in feature.thresholds.high:
            concept("high", "high (>", value)
    return found


class Remember(Generic[K, V]):
    """Values computed from an immutable object, such as the concepts of a table: kept by the
    object's identity and a label until the object is gone or there are too many.

    >>> class Rows: ...
    >>> kept, rows = Remember(2), Rows()
    >>> kept.get(rows, lambda: 5, "a"), kept.get(rows, lambda: 6, "a"), len(kept)
    (5, 5, 1)
    >>> del rows
    >>> len(kept)
    0
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[tuple[int, str], tuple[weakref.ref[K], V]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K, make: Callable[[], V], label: str = "") -> V:
        """The remembered value, made on first use."""
        place = (id(key), label)
        found = self._values.get(place)
        if found is not None:
            return found[1]
        value = make()
        with self._lock:
            while len(self._values) >= self._most:
                self._values.pop(next(iter(self._values)))
            # The callback removes the entry before another object can have the same identity.
            self._values[place] = (weakref.ref(key, lambda _: self._values.pop(place, None)), value)
        return value
