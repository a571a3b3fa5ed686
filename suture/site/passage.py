"""Who may pass the wall: rows of the study's cohort, of patients who consent and are not erased.

Patients are compared by a hash of their identifier under a key of the site's own (`split.hashed`), the same in SQL and
in NumPy. The filter looks at each row and each patient alone, so adding or removing one patient changes nobody else's
passage, and neighbouring tables stay neighbours behind it. It acts before patients are counted: the sizes that a study
takes as public, and plans with, are of those who may pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture.errors import StudyError
from suture.privacy.rule import Condition
from suture.site.preprocess import numbers, sql_number, sql_text, texts
from suture.site.records import Opened, SourceSpec, quoted
from suture.site.schema import Schema
from suture.site.split import distinct, hashed

Keys = NDArray[np.uint64]
NOBODY: Keys = np.zeros((0, 2), np.uint64)


@dataclass
class Passage:
    """One site's filter for one study. Without a consent table everyone who is not erased may pass."""

    key: str
    consenting: Keys | None = None
    withdrawn: Keys = field(default_factory=lambda: NOBODY)
    erased: Keys = field(default_factory=lambda: NOBODY)
    tally: dict[str, int] = field(default_factory=dict)
    """Exact counts of the last reading, for the site's own log."""

    @property
    def by_patient(self) -> bool:
        """Whether patients are looked at, besides the cohort rule."""
        return self.consenting is not None or len(self.erased) > 0

    @property
    def kept_back(self) -> bool:
        """Whether the last reading could keep someone back, so that there is something to note."""
        return self.by_patient or self.tally.get("rows outside the cohort rule", 0) > 0

    def expressions(self, opened: Opened, spec: SourceSpec, schema: Schema) -> dict[str, str]:
        """What to ask of DuckDB beside the study's own columns."""
        wanted = {}
        if schema.include:
            wanted["in_cohort"] = sql_rule(opened, spec, schema.include)
        if self._looks_at(schema) and schema.patient is not None:
            wanted["pass_hi"], wanted["pass_lo"] = sql_key(sql_text(opened, spec, schema.patient), self.key)
        return wanted

    def kept(self, found: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The rows that may pass, out of what DuckDB gave for `expressions` and for the study's own columns."""
        rows = len(next(iter(found.values())))
        in_cohort = np.asarray(found.pop("in_cohort", np.ones(rows, bool)), bool)
        keys = np.column_stack([found.pop("pass_hi"), found.pop("pass_lo")]) if "pass_hi" in found else None
        mask = self._mask(in_cohort, keys)
        return found if mask.all() else {name: column[mask] for name, column in found.items()}

    def kept_in_memory(self, table: Mapping[str, Any], schema: Schema) -> dict[str, NDArray[Any]]:
        """The same for columns in memory."""
        columns = {name: np.asanyarray(column) for name, column in table.items()}
        if not columns:
            return {}
        in_cohort = np.ones(len(next(iter(columns.values()))), bool)
        for condition in schema.include:
            in_cohort &= _holds(columns[condition.column], condition)
        keys = None
        if self._looks_at(schema) and schema.patient is not None:
            keys = hashed([identifier or "" for identifier in texts(columns[schema.patient])], self.key)
        mask = self._mask(in_cohort, keys)
        return columns if mask.all() else {name: column[mask] for name, column in columns.items()}

    def allows(self, identifier: str) -> bool:
        """Whether a patient whose rows come from elsewhere may be looked at: not who is erased or withdrew.

        >>> Passage("k", erased=hashed(["7"], "k")).allows("7"), Passage("k").allows("7")
        (False, True)
        """
        keys = hashed([identifier], self.key)
        return not (among(keys, self.erased).any() or among(keys, self.withdrawn).any())

    def _looks_at(self, schema: Schema) -> bool:
        if self.by_patient and schema.patient is None:
            raise StudyError(
                "consent and erasure are a patient's, and the schema names no patient column; set schema.patient"
            )
        return self.by_patient

    def _mask(self, in_cohort: NDArray[np.bool_], keys: Keys | None) -> NDArray[np.bool_]:
        mask = in_cohort.copy()
        self.tally = {"rows": len(mask), "rows outside the cohort rule": int(np.count_nonzero(~in_cohort))}
        if keys is None:
            return mask
        erased = among(keys, self.erased)
        self.tally["patients"] = len(distinct(keys))
        self.tally["patients erased"] = len(distinct(keys[erased]))
        mask &= ~erased
        if self.consenting is not None:
            consents, withdrew = among(keys, self.consenting), among(keys, self.withdrawn)
            self.tally["patients without consent"] = len(distinct(keys[~consents & ~withdrew]))
            self.tally["patients who withdrew"] = len(distinct(keys[withdrew]))
            mask &= consents
        return mask


def among(keys: Keys, chosen: Keys) -> NDArray[np.bool_]:
    """Which keys are in the list.

    >>> among(hashed(["a", "b"], "k"), hashed(["b", "c"], "k")).tolist()
    [False, True]
    """
    if not len(chosen):
        return np.zeros(len(keys), bool)
    return np.isin(_whole(keys), _whole(chosen))


def sql_key(text: str, key: str) -> tuple[str, str]:
    """`split.hashed` in SQL: the two halves of a patient's key."""
    digest = f"sha256({quoted(key + ':')} || coalesce({text}, ''))"
    return f"('0x' || substr({digest}, 1, 16))::UBIGINT", f"('0x' || substr({digest}, 17, 16))::UBIGINT"


def sql_rule(opened: Opened, spec: SourceSpec, rule: tuple[Condition, ...]) -> str:
    """The cohort rule in SQL: true or false, never NULL."""
    parts = []
    for condition in rule:
        if condition.values is not None:
            values = ", ".join(quoted(value) for value in condition.values)
            parts.append(f"coalesce({sql_text(opened, spec, condition.column)} IN ({values}), false)")
            continue
        number = sql_number(opened, spec, condition.column)  # NaN where missing, infinity where not a number
        parts.append(f"isfinite({number})")
        parts += [f"{number} >= {condition.min!r}::DOUBLE"] if condition.min is not None else []
        parts += [f"{number} <= {condition.max!r}::DOUBLE"] if condition.max is not None else []
    return "(" + " AND ".join(parts) + ")"


def _holds(column: NDArray[Any], condition: Condition) -> NDArray[np.bool_]:
    if condition.values is not None:
        return np.array([text in condition.values for text in texts(column)], bool)
    values = numbers(column)
    low = -np.inf if condition.min is None else condition.min
    high = np.inf if condition.max is None else condition.max
    found: NDArray[np.bool_] = np.isfinite(values) & (values >= low) & (values <= high)
    return found


def _whole(keys: Keys) -> NDArray[np.bytes_]:
    """A key's 16 bytes as one value; of fixed length, so trailing zeros lose nothing."""
    return np.ascontiguousarray(keys, np.uint64).view("S16").ravel()
