"""Consent: a table at the site that says who agreed to which study, since when, and who withdrew.

A patient passes the wall on a day when the latest consent that was given by then is later than the latest withdrawal
by then; a patient who is not in the table does not pass. A date that cannot be read is an error and not a guess: read
wrongly it would let someone in.
"""

from __future__ import annotations

from datetime import date

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from suture.errors import DataError
from suture.site.passage import Keys, sql_key
from suture.site.preprocess import sql_text
from suture.site.records import Opened, SourceSpec, open_table, quoted
from suture.site.split import distinct, first_rows

_NEVER, _UNREADABLE = -(10**9), -(10**9) - 1


class ConsentSpec(SourceSpec):
    """What ``consent = ...`` of a site says: where the table is, and which column is what.

    >>> ConsentSpec.model_validate({"path": "consent.csv", "patient": "id", "from": "given"}).given
    'given'
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    patient: str
    study: str | None = None
    """The column that names the study; without it a consent is for every study."""
    given: str | None = Field(default=None, alias="from")
    """The column of the day from which consent holds; without it, from ever."""
    withdrawn: str | None = None
    """The column of the day of withdrawal; empty: not withdrawn."""


def read_consent(spec: ConsentSpec, *, study: str, today: date, key: str, site: str) -> tuple[Keys, Keys]:
    """The keys of the patients who consent to the study today, and of those who did and withdrew."""
    columns = [spec.patient, *(c for c in (spec.study, spec.given, spec.withdrawn) if c is not None)]
    with open_table(spec, columns, site=site) as opened:
        patient = sql_text(opened, spec, spec.patient)
        high, low = sql_key(patient, key)
        named = (
            "true" if spec.study is None else f"coalesce({sql_text(opened, spec, spec.study)} = {quoted(study)}, false)"
        )
        found = opened.select(
            {
                "hi": high,
                "lo": low,
                "named": f"{named} AND {patient} IS NOT NULL",
                "given": "0::BIGINT" if spec.given is None else _days(opened, spec, spec.given),
                "withdrawn": f"{_NEVER}::BIGINT" if spec.withdrawn is None else _days(opened, spec, spec.withdrawn),
            }
        )
    for name, column in (("from", spec.given), ("withdrawn", spec.withdrawn)):
        unreadable = int(np.count_nonzero(found["given" if name == "from" else name] == _UNREADABLE))
        if unreadable:
            raise DataError(
                f"site {site!r} ({spec.describe()}): column {column!r} ({name}): {unreadable} rows with something else "
                "than a date; write dates as 2026-01-31. Nobody passes until they are corrected"
            )
    chosen = np.asarray(found["named"], bool)
    keys = np.column_stack([found["hi"], found["lo"]])[chosen]
    day = (today - date(1970, 1, 1)).days
    given, withdrawn = found["given"][chosen], found["withdrawn"][chosen]
    return _sorted_out(keys, np.where(given <= day, given, _NEVER), np.where(withdrawn <= day, withdrawn, _NEVER))


def _days(opened: Opened, spec: SourceSpec, column: str) -> str:
    """A date column as days since 1970; two marks for an empty cell and for anything else."""
    text = sql_text(opened, spec, column)
    # DuckDB would read 31/05/26 as a day of the year 31: only the one form that means one day passes.
    written = f"regexp_full_match({text}, '\\d{{4}}-\\d{{2}}-\\d{{2}}([ T].*)?')"
    day = f"date_diff('day', DATE '1970-01-01', CASE WHEN {written} THEN TRY_CAST(substr({text}, 1, 10) AS DATE) END)"
    return f"coalesce({day}, CASE WHEN {text} IS NULL THEN {_NEVER} ELSE {_UNREADABLE} END)::BIGINT"


def _sorted_out(keys: Keys, given: NDArray[np.int64], withdrawn: NDArray[np.int64]) -> tuple[Keys, Keys]:
    """Latest consent and latest withdrawal of each patient, over all their rows."""
    if not len(keys):
        return keys, keys
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    starts = first_rows(keys[order])
    last_given = np.maximum.reduceat(given[order], starts)
    last_withdrawn = np.maximum.reduceat(withdrawn[order], starts)
    patients = distinct(keys)
    consents = (last_given > _NEVER) & (last_given > last_withdrawn)
    return patients[consents], patients[~consents & (last_withdrawn > _NEVER)]
