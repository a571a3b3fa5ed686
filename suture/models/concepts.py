"""Concepts: a public dictionary of readable inputs, derived from the schema alone, never from rows.

Paper 000 (VEIL) calls a feature a concept. Here one feature gives several, each a statement a clinician reads:

| feature  | concepts                                                                      | value            |
|----------|-------------------------------------------------------------------------------|------------------|
| number   | its value                                                                     | -1 to 1, as encoded |
|          | how far it is below, and above, its declared normal range                     | t / (t + width)  |
|          | whether it is beyond each declared threshold: "Respiratory rate, high (> 25 /min)" | 0 or 1      |
| flag     | yes                                                                           | 0 or 1           |
| category | each declared value                                                           | 0 or 1           |
| all      | whether it is missing, where the schema marks missing values                  | 0 or 1           |

In the distance t is how far the value lies outside the normal range and ``width`` the width of that range: 0 inside,
one half at one width beyond, never more than 1. Every concept's value lies in [-1, 1] whatever a row holds: the
sensitivity in docs/veil.md rests on that. A missing value is 0 in every concept of its feature but the one that says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from suture.errors import StudyError
from suture.site.schema import Category, Feature, Flag, Image, Number, Schema

Kind = Literal["value", "below", "above", "low", "high", "is", "missing"]
NONE = -1


class _Maker(Protocol):
    def __call__(self, text: str, kind: Kind, at: float = 0.0, width: float = 1.0, column: int = ...) -> Concept: ...


@dataclass(frozen=True)
class Concept:
    """One readable input. ``column`` is the encoded column it is computed from, ``at`` and ``width`` in encoded units."""

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

    @property
    def caution(self) -> str:
        """Why a clinician should not read this concept as a cause; empty where nothing is declared.

        >>> Concept("Sex: F", "sex", "is", 0, protected=True).caution
        'protected attribute: not a biological cause; review'
        """
        if self.protected:
            return "protected attribute: not a biological cause; review"
        if self.proxy:
            return "tells of the process of care: not a biological cause; review"
        if self.kind == "missing":
            return "tells of what was measured: not a biological cause; review"
        return ""


@dataclass(frozen=True)
class Concepts:
    """An ordered dictionary of concepts over ``inputs`` encoded columns."""

    inputs: int
    items: tuple[Concept, ...] = field(repr=False)
    digest: str = ""
    """A hash of the content: it stands for the dictionary where a release's content is fingerprinted."""

    def __post_init__(self) -> None:
        text = repr((self.inputs, self.items)).encode()
        object.__setattr__(self, "digest", hashlib.blake2b(text, digest_size=16).hexdigest())

    def __len__(self) -> int:
        return len(self.items)

    @cached_property
    def graded(self) -> NDArray[np.bool_]:
        """Which concepts have values between 0 and 1, or below 0; the others are 0 or 1.

        >>> plain(2).graded.tolist()
        [True, True]
        """
        return np.array([concept.kind in ("value", "below", "above") for concept in self.items], bool)

    def matrix(self, x: NDArray[np.float32], ids: Sequence[int] | NDArray[Any] | None = None) -> NDArray[np.float32]:
        """The concepts of encoded rows (all, or only ``ids``), rows x concepts, each value within [-1, 1].

        >>> from suture.site.schema import Number, Schema
        >>> rate = Number(low=0, high=40, normal=(10, 20), thresholds={"high": 25}, missing="fill")
        >>> known = dictionary(Schema(features={"rate": rate}))
        >>> known.matrix(np.array([[-1.0], [0.0], [0.5]], np.float32)).tolist()
        [[-1.0, 0.5, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.5, 0.0, 0.5, 1.0]]
        """
        if x.ndim != 2 or x.shape[1] != self.inputs:
            raise ValueError(f"expected rows of {self.inputs} encoded features, found shape {x.shape}")
        # Encoded rows are within [-1, 1] already; whatever is not is brought there, so that the bound needs no trust.
        x = np.clip(np.nan_to_num(x, nan=0.0), -1, 1)
        wanted = self.items if ids is None else [self.items[i] for i in ids]
        out = np.empty((len(x), len(wanted)), np.float32)
        for j, concept in enumerate(wanted):
            out[:, j] = self._column(concept, x)
        return out

    def _column(self, concept: Concept, x: NDArray[np.float32]) -> NDArray[np.float32]:
        values = x[:, concept.column]
        at = np.float32(concept.at)
        found: NDArray[np.float32]
        if concept.kind == "low":
            found = (values < at).astype(np.float32)
        elif concept.kind == "high":
            found = (values > at).astype(np.float32)
        elif concept.kind in ("below", "above"):
            beyond = np.maximum(at - values if concept.kind == "below" else values - at, np.float32(0))
            found = beyond / (beyond + np.float32(concept.width))
        else:
            found = values
        return found if concept.missing == NONE else found * (x[:, concept.missing] == 0)


def dictionary(schema: Schema) -> Concepts:
    """Every concept that a schema declares, in the order of its features.

    >>> rate = Number(low=0, high=60, unit="/min", label="Respiratory rate", normal=(12, 20), thresholds={"high": 25})
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
                f"column {name!r} is an image: readable concepts are made from numbers, categories and flags"
            )
        width = len(feature.values) if isinstance(feature, Category) else 1
        marked = schema.missing_rule(name) == "indicator"
        missing = column + width if marked else NONE
        items += _of_feature(name, feature, column, missing)
        column += width + marked
    return Concepts(column, tuple(items))


def plain(width: int) -> Concepts:
    """The encoded columns themselves as concepts, for models without a schema.

    >>> len(plain(3)), plain(3).items[2].name
    (3, 'input 3')
    """
    return Concepts(width, tuple(Concept(f"input {i + 1}", f"input {i + 1}", "value", i) for i in range(width)))


def label_of(name: str, feature: Feature) -> str:
    """What a clinician calls the feature: its label, or its column's name in words.

    >>> label_of("heart_rate_max", Number(low=0, high=1))
    'Heart rate max'
    """
    return feature.label or name.replace("_", " ").strip().capitalize()


def _of_feature(name: str, feature: Number | Category | Flag, column: int, missing: int) -> list[Concept]:
    label = label_of(name, feature)
    flags = (feature.protected, feature.proxy)

    def concept(text: str, kind: Kind, at: float = 0.0, width: float = 1.0, column: int = column) -> Concept:
        unit = feature.unit if isinstance(feature, Number) else ""
        own = NONE if kind == "missing" else missing
        return Concept(text, name, kind, column, own, at, width, unit, *flags)

    if isinstance(feature, Number):
        found = _of_number(label, feature, concept)
    elif isinstance(feature, Flag):
        found = [concept(f"{label}: yes", "is")]
    else:
        found = [concept(f"{label}: {value}", "is", column=column + i) for i, value in enumerate(feature.values)]
    if missing != NONE:
        absent = "not measured" if isinstance(feature, Number) else "not recorded"
        found.append(concept(f"{label}, {absent}", "missing", column=missing))
    return found


def _of_number(label: str, feature: Number, concept: _Maker) -> list[Concept]:
    span = feature.high - feature.low

    def encoded(value: float) -> float:
        return 2 * ((value - feature.low) / span) - 1

    def text(value: float) -> str:
        return f"{value:g} {feature.unit}".strip()

    found = [concept(label, "value")]
    if feature.normal is not None:
        low, high = feature.normal
        width = 2 * (high - low) / span
        if low > feature.low:
            found.append(concept(f"{label}, below normal (< {text(low)})", "below", encoded(low), width))
        if high < feature.high:
            found.append(concept(f"{label}, above normal (> {text(high)})", "above", encoded(high), width))
    if feature.thresholds is not None:
        for value in feature.thresholds.low:
            found.append(concept(f"{label}, low (< {text(value)})", "low", encoded(value)))
        for value in feature.thresholds.high:
            found.append(concept(f"{label}, high (> {text(value)})", "high", encoded(value)))
    return found
