"""A ready federation: named sites, each with its own table, and the schema they share."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture.errors import StudyError
from suture.schema.table import Schema

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
