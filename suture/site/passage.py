"""Which patients pass the wall, and who of them is trained on and who is tested on.

Patients are compared by a keyed hash of their identifier (`hashed`), the same in SQL and in NumPy.
Everything here is decided for each row and each patient alone, so adding or removing one patient
changes nobody else's fate. The privacy proof needs this: neighbouring tables must have neighbouring
training sets, which a shuffled split would not give.

*Passage.* Rows of the study's cohort pass, of patients who consent and are not erased, compared
under a key of the site's own. This is decided before patients are counted: the sizes that a study
takes as public, and plans with, are of those who may pass.

*Split.* A patient is held out for testing when the first 64 bits of SHA-256("key:identifier"), as a
fraction of 2^64, are below ``holdout``. The site's name is not part of the hash, so a person known
by one identifier at two sites is on the same side at both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from suture.errors import StudyError
from suture.schema.table import Condition, Schema
from suture.site.preprocess import numbers, sql_number, sql_text, texts
from suture.site.sources import Column, Columns, Opened, quoted

Keys = NDArray[np.uint64]
Mask = NDArray[np.bool_]
NOBODY: Keys = np.zeros((0, 2), np.uint64)


# --- keys and the split -----------------------------------------------------------------------------------------------


def hashed(identifiers: Sequence[str], key: str) -> Keys:
    """128 bits of SHA-256("key:identifier") for each: among a million patients, two share them with
    a chance below 1e-26.

    >>> hashed(["p1"], "key").shape
    (1, 2)
    """
    prefix = hashlib.sha256(f"{key}:".encode())
    digests = bytearray()
    for identifier in identifiers:
        digest = prefix.copy()
        digest.update(identifier.encode())
        digests += digest.digest()[:16]
    return np.frombuffer(bytes(digests), ">u8").astype(np.uint64).reshape(-1, 2)


def sql_key(text: str, key: str) -> tuple[str, str]:
    """`hashed` in SQL: the two halves of a patient's key."""
    digest = f"sha256({quoted(key + ':')} || coalesce({text}, ''))"
    high, low = (f"('0x' || substr({digest}, {at}, 16))::UBIGINT" for at in (1, 17))
    return high, low


def row_keys(rows: int, key: str) -> Keys:
    """Without a patient column each row is its own unit, known by its place: no promise to a
    patient can rest on it.

    >>> bool((row_keys(2, "key") == hashed(["0", "1"], "key")).all())
    True
    """
    return hashed([str(i) for i in range(rows)], key)


def first_rows(keys: Keys) -> NDArray[np.intp]:
    """Where each patient begins, in keys that are in order.

    >>> first_rows(np.array([[1, 5], [2, 1], [2, 1]], np.uint64)).tolist()
    [0, 1]
    """
    start = np.ones(min(1, len(keys)), bool)
    return np.flatnonzero(np.append(start, (keys[1:] != keys[:-1]).any(axis=1)))


def distinct(keys: Keys) -> Keys:
    """Each patient's key once, in order.

    >>> distinct(np.array([[2, 1], [1, 5], [2, 1]], np.uint64)).tolist()
    [[1, 5], [2, 1]]
    """
    ordered = keys[np.lexsort((keys[:, 1], keys[:, 0]))]
    return ordered[first_rows(ordered)]


def among(keys: Keys, chosen: Keys) -> Mask:
    """Which keys are in the list.

    >>> among(hashed(["a", "b"], "k"), hashed(["b", "c"], "k")).tolist()
    [False, True]
    """
    return np.isin(_whole(keys), _whole(chosen)) if len(chosen) else np.zeros(len(keys), bool)


def _whole(keys: Keys) -> NDArray[np.bytes_]:
    """A key's 16 bytes as one value; of fixed length, so trailing zeros lose nothing."""
    return np.ascontiguousarray(keys, np.uint64).view("S16").ravel()


def held_out(keys: Keys, holdout: float) -> Mask:
    """Which rows belong to patients who are tested on.

    >>> held_out(hashed(["p1", "p2", "p1"], "key"), 0.5).tolist()
    [True, False, True]
    """
    if holdout >= 1:
        return np.ones(len(keys), bool)
    tested: Mask = keys[:, 0] < np.uint64(int(holdout * 2**64))
    return tested


def sql_held_out(high: str, holdout: float) -> str:
    """`held_out` in SQL, from the first half of a key."""
    return "true" if holdout >= 1 else f"{high} < {int(holdout * 2**64)}"


# --- passage ----------------------------------------------------------------------------------------------------------


@dataclass
class Passage:
    """One site's filter for one study. Without a consent table, everyone who is not erased may
    pass."""

    key: str
    consenting: Keys | None = None
    withdrawn: Keys = field(default_factory=lambda: NOBODY)
    erased: Keys = field(default_factory=lambda: NOBODY)
    tally: dict[str, int] = field(default_factory=dict)
    """Exact counts of the last reading, for the site's own log."""
    problems: tuple[str, ...] = ()
    """What could not be read in the consent table, in counts: for the site only."""

    @property
    def by_patient(self) -> bool:
        """Whether patients are looked at, besides the cohort rule."""
        return self.consenting is not None or len(self.erased) > 0

    @property
    def kept_back(self) -> bool:
        """Whether the last reading could keep someone back, so that there is something to note."""
        return self.by_patient or self.tally.get("rows outside the cohort rule", 0) > 0

    def expressions(self, opened: Opened, schema: Schema) -> dict[str, str]:
        """What to ask of DuckDB besides the study's own columns."""
        wanted = {"in_cohort": _sql_rule(opened, schema.include)} if schema.include else {}
        patient = self._patient(schema)
        if patient is not None:
            wanted["pass_hi"], wanted["pass_lo"] = sql_key(sql_text(opened, patient), self.key)
        return wanted

    def kept(self, found: Columns) -> Columns:
        """The rows that may pass, of what DuckDB gave for `expressions` and for the study's own
        columns."""
        rows = len(next(iter(found.values())))
        in_cohort = np.asarray(found.pop("in_cohort", np.ones(rows, bool)), bool)
        keys = None
        if "pass_hi" in found:
            keys = np.column_stack([found.pop("pass_hi"), found.pop("pass_lo")])
        return self._only(found, in_cohort, keys)

    def kept_in_memory(self, table: Mapping[str, Column], schema: Schema) -> Columns:
        """The same for columns in memory."""
        columns = {name: np.asanyarray(column) for name, column in table.items()}
        if not columns:
            return {}
        in_cohort = np.ones(len(next(iter(columns.values()))), bool)
        for condition in schema.include:
            in_cohort &= _holds(columns[condition.column], condition)
        patient = self._patient(schema)
        keys = None
        if patient is not None:
            keys = hashed([known or "" for known in texts(columns[patient])], self.key)
        return self._only(columns, in_cohort, keys)

    def allows(self, identifier: str) -> bool:
        """Whether a patient whose rows come from elsewhere may be looked at: not someone who is
        erased or withdrew.

        >>> Passage("k", erased=hashed(["7"], "k")).allows("7"), Passage("k").allows("7")
        (False, True)
        """
        keys = hashed([identifier], self.key)
        return not (among(keys, self.erased).any() or among(keys, self.withdrawn).any())

    def _patient(self, schema: Schema) -> str | None:
        """The patient column, where patients are looked at."""
        if self.by_patient and schema.patient is None:
            raise StudyError(
                "consent and erasure concern patients, and the schema names no patient column; set "
                "schema.patient"
            )
        return schema.patient if self.by_patient else None

    def _only(self, columns: Columns, in_cohort: Mask, keys: Keys | None) -> Columns:
        mask, outside = in_cohort.copy(), int(np.count_nonzero(~in_cohort))
        self.tally = {"rows": len(mask), "rows outside the cohort rule": outside}
        if keys is not None:
            erased = among(keys, self.erased)
            self.tally["patients"] = len(distinct(keys))
            self.tally["patients erased"] = len(distinct(keys[erased]))
            mask &= ~erased
            if self.consenting is not None:
                consents, withdrew = among(keys, self.consenting), among(keys, self.withdrawn)
                self.tally["patients without consent"] = len(distinct(keys[~consents & ~withdrew]))
                self.tally["patients who withdrew"] = len(distinct(keys[withdrew]))
                mask &= consents
        return columns if mask.all() else {name: column[mask] for name, column in columns.items()}


def _sql_rule(opened: Opened, rule: Sequence[Condition]) -> str:
    """The cohort rule in SQL: true or false, never NULL."""
    parts = []
    for condition in rule:
        if condition.values is not None:
            values = ", ".join(map(quoted, condition.values))
            parts.append(f"coalesce({sql_text(opened, condition.column)} IN ({values}), false)")
            continue
        number = sql_number(opened, condition.column)  # NaN: missing, infinity: not a number
        parts.append(f"isfinite({number})")
        parts += [f"{number} >= {condition.min!r}::DOUBLE"] if condition.min is not None else []
        parts += [f"{number} <= {condition.max!r}::DOUBLE"] if condition.max is not None else []
    return "(" + " AND ".join(parts) + ")"


def _holds(column: Column, condition: Condition) -> Mask:
    if condition.values is not None:
        return np.array([text in condition.values for text in texts(column)], bool)
    values = numbers(column)
    low = -np.inf if condition.min is None else condition.min
    high = np.inf if condition.max is None else condition.max
    found: Mask = np.isfinite(values) & (values >= low) & (values <= high)
    return found
