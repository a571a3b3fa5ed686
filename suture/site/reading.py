"""Whose rows pass the wall, who is trained on and who is tested on; and the rows themselves as typed
columns, from a file, a server or memory, in one pass.

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

Single patients' rows, to be scored inside the site, are encoded by the same public rules.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from suture.errors import DataError, StudyError
from suture.schema.clinical import convert
from suture.schema.outcome import Survival
from suture.schema.table import Category, Condition, Number, Schema
from suture.site.images import of_any
from suture.site.preprocess import (
    Counts,
    Vocabulary,
    codes,
    encode,
    numbers,
    sql_number,
    sql_text,
    sql_typed,
    texts,
    typed,
    unit_change,
    vocabulary_of,
)
from suture.site.sources import (
    Column,
    Columns,
    Opened,
    Source,
    SourceSpec,
    check_columns,
    open_table,
    record_columns,
)
from suture.site.sql import quoted

Keys = NDArray[np.uint64]
Mask = NDArray[np.bool_]
NOBODY: Keys = np.zeros((0, 2), np.uint64)


# --- keys and the split -----------------------------------------------------------------------------------------------


def hashed(identifiers: Sequence[str], key: str) -> Keys:
    """128 bits of SHA-256("key:identifier"): a million patients share none, but for 1e-26."""
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
    """Without a patient column each row is its own unit: no promise to a patient can rest on it."""
    return hashed([str(i) for i in range(rows)], key)


def first_rows(keys: Keys) -> NDArray[np.intp]:
    """Where each patient begins, in keys that are in order.

    >>> first_rows(np.array([[1, 5], [2, 1], [2, 1]], np.uint64)).tolist()
    [0, 1]
    """
    start = np.ones(min(1, len(keys)), bool)
    return np.flatnonzero(np.append(start, (keys[1:] != keys[:-1]).any(axis=1)))


def distinct(keys: Keys) -> Keys:
    """Each patient's key once, in order."""
    ordered = keys[np.lexsort((keys[:, 1], keys[:, 0]))]
    return ordered[first_rows(ordered)]


def among(keys: Keys, chosen: Keys) -> Mask:
    """Which keys are in the list."""
    return np.isin(_whole(keys), _whole(chosen)) if len(chosen) else np.zeros(len(keys), bool)


def _whole(keys: Keys) -> NDArray[np.bytes_]:
    """A key's 16 bytes as one value; of fixed length, so trailing zeros lose nothing."""
    return np.ascontiguousarray(keys, np.uint64).view("S16").ravel()


def held_out(keys: Keys, holdout: float) -> Mask:
    """Which rows belong to patients who are tested on."""
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
    """One site's filter for one study. Without a consent table, all pass who are not erased."""

    key: str
    consenting: Keys | None = None
    withdrawn: Keys = field(default_factory=lambda: NOBODY)
    erased: Keys = field(default_factory=lambda: NOBODY)
    tally: dict[str, int] = field(default_factory=dict)
    """Exact counts of the last reading, for the site's own log."""
    problems: tuple[str, ...] = ()
    """What could not be read in the consent table, in counts: for the site only."""
    linked: str = ""
    """The key under which people of several hospitals are compared, where they are."""
    elsewhere: Keys = field(default_factory=lambda: NOBODY)
    """People who take part at another hospital, under that key."""

    @property
    def by_patient(self) -> bool:
        """Whether patients are looked at, besides the cohort rule."""
        return self.consenting is not None or len(self.erased) > 0 or len(self.elsewhere) > 0

    @property
    def kept_back(self) -> bool:
        """Whether the last reading could keep someone back, so that there is something to note."""
        return self.by_patient or self.tally.get("rows outside the cohort rule", 0) > 0

    def expressions(self, opened: Opened, schema: Schema) -> dict[str, str]:
        """What to ask of DuckDB besides the study's own columns."""
        wanted = {"in_cohort": _sql_rule(opened, schema)} if schema.include else {}
        patient = self._patient(schema)
        if patient is not None:
            wanted["pass_hi"], wanted["pass_lo"] = sql_key(sql_text(opened, patient), self.key)
            if len(self.elsewhere):
                linked = sql_key(sql_text(opened, patient), self.linked)
                wanted["link_hi"], wanted["link_lo"] = linked
        return wanted

    def kept(self, found: Columns) -> Columns:
        """The rows that may pass, of what DuckDB gave for `expressions` and other columns."""
        rows = len(next(iter(found.values())))
        in_cohort = np.asarray(found.pop("in_cohort", np.ones(rows, bool)), bool)
        keys, linked = None, None
        if "pass_hi" in found:
            keys = np.column_stack([found.pop("pass_hi"), found.pop("pass_lo")])
        if "link_hi" in found:
            linked = np.column_stack([found.pop("link_hi"), found.pop("link_lo")])
        return self._only(found, in_cohort, keys, linked)

    def kept_in_memory(self, table: Mapping[str, Column], schema: Schema) -> Columns:
        """The same for columns in memory."""
        columns = {name: np.asanyarray(column) for name, column in table.items()}
        if not columns:
            return {}
        in_cohort = np.ones(len(next(iter(columns.values()))), bool)
        for condition in schema.include:
            in_cohort &= _holds(columns[condition.column], condition)
        patient = self._patient(schema)
        keys, linked = None, None
        if patient is not None:
            identifiers = [known or "" for known in texts(columns[patient])]
            keys = hashed(identifiers, self.key)
            linked = hashed(identifiers, self.linked) if len(self.elsewhere) else None
        return self._only(columns, in_cohort, keys, linked)

    def allows(self, identifier: str) -> bool:
        """Whether a patient whose rows come from elsewhere may be looked at."""
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

    def _only(
        self, columns: Columns, in_cohort: Mask, keys: Keys | None, linked: Keys | None
    ) -> Columns:
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
            if linked is not None:
                other = among(linked, self.elsewhere)
                self.tally["people who take part elsewhere"] = len(distinct(keys[other]))
                mask &= ~other
        return columns if mask.all() else _rows(columns, mask)


def _sql_rule(opened: Opened, schema: Schema) -> str:
    """The cohort rule in SQL: true or false, never NULL."""
    parts = []
    for condition in schema.include:
        if condition.values is not None:
            values = ", ".join(map(quoted, condition.values))
            parts.append(f"coalesce({sql_text(opened, condition.column)} IN ({values}), false)")
            continue
        # NaN: missing, infinity: not a number
        number = sql_number(opened, condition.column, schema.features.get(condition.column))
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


# --- reading ----------------------------------------------------------------------------------------------------------

NO_GROUP = "missing"  # the group of a test row whose cell is empty


@dataclass(frozen=True)
class Wanted:
    """What to read of a table, and how its rows are split."""

    schema: Schema
    outcome: str | None  # None: the patients only
    labels: Vocabulary  # the outcome's texts
    holdout: float
    split_key: str
    features: bool = False  # whether to read the features too, where there is no outcome
    survival: Survival | None = None  # how follow-up is read, where the outcome is an event

    def __post_init__(self) -> None:
        if not 0 <= self.holdout <= 1:
            raise StudyError(
                "evaluation.holdout must be from 0 to 1 (0.2 holds out a fifth), found "
                f"{self.holdout:g}"
            )

    @property
    def columns(self) -> list[str]:
        """The columns to read: all that the study names, or those needed to count patients."""
        found = [] if self.schema.patient is None else [self.schema.patient]
        found += [condition.column for condition in self.schema.include]
        if self.outcome is not None:
            time = [] if self.survival is None else [self.survival.time]
            return [*found, self.outcome, *time, *self.schema.features, *self.schema.groups]
        return [*found, *self.schema.features] if self.features else found


@dataclass(frozen=True)
class Read:
    """Typed columns of one table, with the key of each row's patient."""

    keys: Keys
    no_patient: int
    """Rows without a patient identifier: they belong to nobody and are not among the columns."""
    outcome: NDArray[np.integer]
    features: Columns
    groups: Columns
    protected: NDArray[np.int16] | None = None
    """The code of each row's protected group, where the schema declares one."""
    unreadable: tuple[str, ...] = ()  # why some lines of the file were left out

    def only(self, mask: Mask) -> Read:
        """The same columns with some of the rows."""
        if mask.all():
            return self
        return replace(
            self,
            keys=self.keys[mask],
            outcome=self.outcome[mask],
            features=_rows(self.features, mask),
            groups=_rows(self.groups, mask),
            protected=None if self.protected is None else self.protected[mask],
        )


def _rows(columns: Columns, mask: Mask) -> Columns:
    return {name: column[mask] for name, column in columns.items()}


def check_readable(
    source: Source, schema: Schema, outcome: str, *, site: str, survival: Survival | None = None
) -> None:
    """Whether the study's columns are there, before a budget is promised. No server is asked."""
    columns = Wanted(schema, outcome, Vocabulary({}), 0.0, "", survival=survival).columns
    if not isinstance(source, SourceSpec):
        check_columns(list(source), columns, f"site {site!r} (in memory)")
        return
    for column in source.units:
        unit_change(source, column, schema.features.get(column))
    if source.features is not None:
        asked = record_columns(source, columns, f"site {site!r} ({source.describe()})")
        for name, feature in schema.features.items():
            unit = feature.unit if isinstance(feature, Number) else ""
            made = asked.columns[name].target
            if unit and made and convert(made, unit) != (1.0, 0.0):
                raise StudyError(
                    f"schema.features.{name}: the unit is {unit!r}, and {source.features} makes it in "
                    f"{made!r}; state the same unit in both"
                )
    elif source.kind != "sql":
        with open_table(source, columns, site=site):
            pass


def read_columns(source: Source, wanted: Wanted, site: str, passage: Passage | None) -> Read:
    """A table's typed columns, of the rows that may pass."""
    passage, schema = passage or Passage(""), wanted.schema
    if not isinstance(source, SourceSpec):
        check_columns(list(source), wanted.columns, f"site {site!r} (in memory)")
        return _read_memory(passage.kept_in_memory(source, schema), wanted)
    with open_table(source, wanted.columns, site=site) as opened:
        asked = {**_expressions(opened, wanted), **passage.expressions(opened, schema)}
        found = opened.select(asked)
    found, absent = passage.kept(found), 0
    if schema.patient is None:
        keys = row_keys(len(found["row"]), wanted.split_key)
    else:
        nobody = np.asarray(found.pop("absent"), bool)
        absent = int(np.count_nonzero(nobody))
        found = _rows(found, ~nobody) if absent else found
        keys = np.column_stack([found.pop("hi"), found.pop("lo")])
    features = {name: found[f"f{i}"] for i, name in enumerate(schema.features) if f"f{i}" in found}
    groups = {name: found[f"g{i}"] for i, name in enumerate(schema.groups) if f"g{i}" in found}
    outcome = found.get("y", np.zeros(0, np.int16))
    if wanted.survival is not None and "time" in found:
        outcome = wanted.survival.encode(found["time"], outcome)
    problems = tuple(opened.problems)
    return Read(keys, absent, outcome, features, groups, found.get("protected"), problems)


def _expressions(opened: Opened, wanted: Wanted) -> dict[str, str]:
    """What to ask of DuckDB, so that one pass over the rows gives every typed column."""
    schema, outcome = wanted.schema, wanted.outcome
    if schema.patient is None:
        asked, tested = {"row": "1::TINYINT"}, "true"
    else:
        patient = sql_text(opened, schema.patient)
        high, low = sql_key(patient, wanted.split_key)
        asked = {"hi": high, "lo": low, "absent": f"{patient} IS NULL"}
        tested = sql_held_out(high, wanted.holdout)
    if outcome is not None or wanted.features:
        for i, (name, feature) in enumerate(schema.features.items()):
            asked[f"f{i}"] = sql_typed(opened, name, feature)
    if outcome is None:
        return asked
    asked["y"] = wanted.labels.sql(sql_text(opened, outcome))
    if wanted.survival is not None:
        asked["time"] = sql_number(opened, wanted.survival.time)
    for i, name in enumerate(schema.groups):
        # Only the groups of test patients are ever looked at.
        group = f"coalesce({sql_text(opened, name)}, '{NO_GROUP}')"
        asked[f"g{i}"] = f"CASE WHEN {tested} THEN {group} ELSE '' END"
    if schema.protected is not None:
        declared = vocabulary_of(Category(values=schema.protected.values))
        asked["protected"] = declared.sql(sql_text(opened, schema.protected.column))
    return asked


def _read_memory(table: Columns, wanted: Wanted) -> Read:
    """The same columns from arrays, without DuckDB: a thousand small sites load in a second."""
    schema, key = wanted.schema, wanted.split_key
    columns = {name: table[name] for name in wanted.columns or list(table)[:1]}
    lengths = {len(column) for column in columns.values()}
    if len(lengths) > 1:
        raise DataError(f"columns in memory need one length, found lengths {sorted(lengths)}")
    rows = lengths.pop()
    if schema.patient is None:
        keys = row_keys(rows, key)
    else:
        identifiers = texts(columns[schema.patient])
        somebody = np.array([identifier is not None for identifier in identifiers], bool)
        columns = columns if somebody.all() else _rows(columns, somebody)
        keys = hashed([identifier for identifier in identifiers if identifier is not None], key)
    absent, features = rows - len(keys), {}
    if wanted.outcome is not None or wanted.features:
        features = {name: typed(columns[name], one) for name, one in schema.features.items()}
    if wanted.outcome is None:
        return Read(keys, absent, np.zeros(0, np.int16), features, {})
    tested, groups = held_out(keys, wanted.holdout), {}
    for name in schema.groups:
        groups[name] = np.full(len(keys), "", object)
        groups[name][tested] = [text or NO_GROUP for text in texts(columns[name][tested])]
    protected = None
    if schema.protected is not None:
        declared = vocabulary_of(Category(values=schema.protected.values))
        protected = codes(columns[schema.protected.column], declared)
    outcome: NDArray[np.integer] = codes(columns[wanted.outcome], wanted.labels)
    if wanted.survival is not None:
        outcome = wanted.survival.encode(numbers(columns[wanted.survival.time]), outcome)
    return Read(keys, absent, outcome, features, groups, protected)


# --- rows to be scored ------------------------------------------------------------------------------------------------


def encode_rows(columns: Mapping[str, ArrayLike], schema: Schema) -> NDArray[np.float32]:
    """Raw columns by name (a dict of arrays, a DataFrame) as the encoded matrix, in their order."""
    check_columns(list(columns), list(schema.features), "the rows to score")
    if schema.image is not None and schema.image_size is not None:
        return of_any(columns[schema.image], schema.image_size, schema.image)
    counts, declared = Counts(), schema.features.items()
    given = {name: typed(np.asarray(columns[name]), feature) for name, feature in declared}
    matrix = encode(given, schema, None, counts)
    wrong = {**counts.not_a_number, **counts.not_declared}
    if wrong:
        named = ", ".join(f"{name!r} ({count})" for name, count in wrong.items())
        raise DataError(f"the rows to score have values that the schema does not declare: {named}")
    return matrix


def patient_rows(
    source: Source, schema: Schema, patient: str, *, site: str, passage: Passage | None = None
) -> NDArray[np.float32]:
    """The encoded rows of one patient, in the table's order, if the patient may pass."""
    if schema.patient is None:
        raise DataError(
            f"site {site!r}: the schema declares no patient column, so no patient can be looked up"
        )
    schema = schema if passage else schema.model_copy(update={"include": ()})
    wanted = Wanted(schema, None, Vocabulary({}), 0.0, "lookup", features=True)
    read = read_columns(source, wanted, site, passage)
    chosen = among(read.keys, hashed([patient], wanted.split_key))
    if not chosen.any():
        raise DataError(
            f"site {site!r}: no row with this identifier that may be used, in column "
            f"{schema.patient!r}; check --patient"
        )
    return encode(_rows(read.features, chosen), schema, None, Counts())
