"""A ready federation: named sites, each with its own table, and the schema they share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from suture.site.schema import Schema


@dataclass(frozen=True)
class CohortSite:
    """One site's rows as columns; ``test`` holds patients never trained on, where the cohort sets some apart."""

    name: str
    region: str
    table: dict[str, NDArray[Any]] = field(repr=False)
    test: dict[str, NDArray[Any]] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Cohort:
    """A federation that needs no files. ``generated`` says that no row belongs to a real person."""

    name: str
    outcome: str
    schema: Schema
    sites: tuple[CohortSite, ...]
    description: str
    generated: bool = True
    classes: int | tuple[str, ...] = 2
    """How many outcomes are told apart, or their labels in order."""
