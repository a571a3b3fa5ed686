"""Why a table is refused, every reason at once, with counts and never a value."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from suture.errors import DataError
from suture.site.preprocess import MISSING, UNKNOWN, Counts
from suture.site.reading import Read
from suture.site.records import Source, SourceSpec
from suture.site.schema import Schema


def row_problems(read: Read, schema: Schema) -> list[str]:
    problems = []
    if len(read.keys) == 0:
        problems.append(
            "the table has no rows that may be used; a site needs at least one patient, or leaves the study"
        )
    if read.no_patient:
        problems.append(
            f"column {schema.patient!r}: {rows_of(read.no_patient)} without a patient identifier; fill it in, or remove "
            "them (a row that belongs to nobody cannot be protected)"
        )
    return problems


def value_problems(
    counts: Counts, schema: Schema, y: NDArray[np.int32], outcome: str, classes: int | tuple[str, ...]
) -> list[str]:
    """Every reason to refuse the table, with counts and never a value."""
    problems = []
    missing, unknown = int(np.count_nonzero(y == MISSING)), int(np.count_nonzero(y == UNKNOWN))
    if missing:
        problems.append(f"outcome {outcome!r}: {rows_of(missing)} without an outcome; fill it in, or remove them")
    if unknown:
        expected = "0 or 1 (or true/false, yes/no)" if classes == 2 else f"one of {_classes(classes)}"
        problems.append(f"outcome {outcome!r}: {rows_of(unknown)} with something else than {expected}")
    for name, count in counts.not_a_number.items():
        problems.append(
            f"column {name!r}: {rows_of(count)} with text or an infinity where a number is expected; for decimal commas "
            'set decimal = ",", for texts that mean "missing" set missing = ["NA"], beside the path of the data'
        )
    for name, count in counts.not_declared.items():
        feature = schema.features[name]
        expected = "0/1, true/false or yes/no" if feature.kind == "flag" else "a value declared in the schema"
        problems.append(
            f"column {name!r}: {rows_of(count)} with something else than {expected}; correct them, or "
            f"extend schema.features.{name} for all sites"
        )
    for name, count in counts.missing.items():
        if schema.missing_rule(name) == "refuse":
            problems.append(
                f'column {name!r}: {rows_of(count)} without a value, and the schema says missing = "refuse"'
            )
    return problems


def undeclared(read: Read, schema: Schema) -> list[str]:
    """Rows of a protected group that nobody declared: a fair method could not be fair to them."""
    count = 0 if read.protected is None else int(np.count_nonzero(read.protected == UNKNOWN))
    if schema.protected is None or not count:
        return []
    return [
        f"column {schema.protected.column!r}: {rows_of(count)} of a group that schema.protected.values does not declare; "
        "declare it for all sites, or leave the cell empty (no group)"
    ]


def refusal(source: Source, site: str, problems: list[str]) -> DataError:
    place = f"site {site!r} ({source.describe() if isinstance(source, SourceSpec) else 'in memory'})"
    if len(problems) == 1:
        return DataError(f"{place}: {problems[0]}")
    return DataError(f"{place}: {len(problems)} problems\n" + "\n".join(f"  - {problem}" for problem in problems))


def rows_of(count: int) -> str:
    return f"{count:,} row" + ("" if count == 1 else "s")


def _classes(classes: int | tuple[str, ...]) -> str:
    return f"0 to {classes - 1}" if isinstance(classes, int) else ", ".join(classes)
