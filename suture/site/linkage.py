"""Linkage risk: how many patients a few harmless columns single out, with every name already gone.

Sweeney ("Simple Demographics Often Identify People Uniquely", 2000) found most of the United States unique by birth date,
sex and ZIP code. The measure here is the size of each patient's group: patients who share their values on the chosen
quasi-identifiers. A group of one is a patient whom anybody who knows those few facts can pick out of the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suture.errors import DataError
from suture.site.records import Opened


def linkage(opened: Opened, quasi: Mapping[str, str], patient: str | None) -> dict[str, Any]:
    """Group sizes on SQL expressions of the quasi-identifiers; ``patient`` is the patient column's expression."""
    import duckdb

    chosen = ", ".join(f"{sql} AS q{i}" for i, sql in enumerate(quasi.values()))
    names = ", ".join(f"q{i}" for i in range(len(quasi)))
    # A patient with several rows counts once for every combination of values they show.
    one = f"SELECT DISTINCT {patient} AS p, {chosen}" if patient is not None else f"SELECT {chosen}"
    query = (
        f"WITH one AS ({one} FROM {opened.relation}), sizes AS (SELECT count(*) AS c FROM one GROUP BY {names}) "
        "SELECT min(c), count(*), sum(c)::BIGINT, coalesce(sum(c) FILTER (c = 1), 0)::BIGINT, "
        "coalesce(sum(c) FILTER (c < 5), 0)::BIGINT, coalesce(sum(c) FILTER (c < 11), 0)::BIGINT FROM sizes"
    )
    try:
        smallest, groups, total, alone, under_5, under_11 = opened.connection.execute(query).fetchone() or (0,) * 6
    except duckdb.Error as error:
        raise DataError(f"{opened.place}: linkage cannot be measured ({type(error).__name__})") from None
    return {
        "quasi_identifiers": list(quasi),
        "smallest_group": int(smallest or 0),
        "groups": int(groups or 0),
        "unique": alone / total if total else 0.0,
        "in_groups_under_5": under_5 / total if total else 0.0,
        "in_groups_under_11": under_11 / total if total else 0.0,
    }
