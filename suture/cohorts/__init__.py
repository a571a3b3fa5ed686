"""Ready federations, built when asked for: named sites, each with its own table, and the schema they
share. Each file says where its figures come from."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture.errors import StudyError
from suture.schema.table import Schema

__all__ = ["COHORTS", "Cohort", "load", "takes"]
Columns = dict[str, NDArray[Any]]  # a table: a column's name and its values


@dataclass(frozen=True)
class CohortSite:
    """One site's rows; ``test`` holds patients never trained on, where there are some."""

    name: str
    region: str
    table: Columns = field(repr=False)
    test: Columns | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Cohort:
    """A federation that needs no files. ``generated`` says that no row belongs to a real person."""

    name: str
    outcome: str
    schema: Schema
    sites: tuple[CohortSite, ...]
    description: str
    generated: bool = True
    classes: int | tuple[str, ...] = 2  # how many outcomes there are, or their labels in order

    @property
    def sizes(self) -> dict[str, int]:
        """How many patients each site has."""
        column = self.schema.patient
        return {
            site.name: len(np.unique(site.table[column])) if column else _rows(site.table)
            for site in self.sites
        }


def _rows(table: Columns) -> int:
    return len(next(iter(table.values())))


def rows(table: Columns, chosen: NDArray[np.bool_] | NDArray[np.intp] | slice) -> Columns:
    """Some rows of a table."""
    return {name: column[chosen] for name, column in table.items()}


def site_of(name: str, region: str, table: Columns, size: int) -> CohortSite:
    """A site that trains on the first ``size`` rows and is tested on the others."""
    fresh = _rows(table) > size
    test = rows(table, slice(size, None)) if fresh else None
    return CohortSite(name, region, rows(table, slice(size)), test)


def one_of(cohort: str, option: str, value: str, *choices: str) -> None:
    """Refuse an option that is none of the choices."""
    if value not in choices:
        expected = " or ".join(f'"{choice}"' for choice in choices)
        raise StudyError(f"cohort {cohort}: {option} must be {expected}, found {value!r}")


def within(cohort: str, option: str, value: float, low: float, high: float = math.inf) -> None:
    """Refuse a number outside its limits."""
    if not low <= value <= high:
        limits = f"at least {low:,}" if high == math.inf else f"from {low:,} to {high:,}"
        raise StudyError(f"cohort {cohort}: {option} must be {limits}, found {value}")


Builder = Callable[..., Cohort]


class _Builders(Mapping[str, Builder]):
    """Functions by name, imported when one is looked up: a study needs one federation of eleven."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self.modules = modules

    def __getitem__(self, name: str) -> Builder:
        found: Builder = vars(import_module(f"suture.cohorts.{self.modules[name]}"))[name]
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.modules)

    def __len__(self) -> int:
        return len(self.modules)


COHORTS = _Builders({
    **{name: name for name in ("cardio", "icu", "outbreak", "radiographs")},
    **dict.fromkeys(("eicu", "heart", "har", "vsn", "pneumonia", "physionet", "framingham"), "public"),
})  # fmt: skip
"""The built-in federations by the name a study file uses, and the module of each."""


def takes(name: str, option: str) -> bool:
    """Whether a federation has this option; False also for a federation that is not known."""
    return name in COHORTS and option in inspect.signature(COHORTS[name]).parameters


def load(name: str, seed: int, **options: Any) -> Cohort:
    """Build a federation by name.

    >>> load("cardio", 7, patients=300).name
    'cardio'
    >>> load("cardio", 7, patient=300)
    Traceback (most recent call last):
    suture.errors.StudyError: cohort 'cardio' has no option 'patient'; it takes split, patients, sites, test_fraction, labels
    """
    if name not in COHORTS:
        raise StudyError(
            f"cohort {name!r} is not known; expected one of: {', '.join(sorted(COHORTS))}"
        )
    kinds = dict(inspect.signature(COHORTS[name]).parameters)
    del kinds["seed"]
    for option, value in options.items():
        if option not in kinds:
            raise StudyError(
                f"cohort {name!r} has no option {option!r}; it takes {', '.join(kinds)}"
            )
        # An option of the wrong type would otherwise surface as a TypeError deep in the generator.
        wanted = type(kinds[option].default)
        accepted = (int, float) if wanted is float else wanted
        if isinstance(value, bool) or not isinstance(value, accepted):
            example = f'"{kinds[option].default}"' if wanted is str else kinds[option].default
            raise StudyError(f"cohort {name!r}: {option} must look like {example}, found {value!r}")
    return COHORTS[name](seed, **options)
