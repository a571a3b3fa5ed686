"""A table's typed columns, from a file, a server or memory: one pass over the rows, patients as
keyed hashes. And single patients' rows to be scored, encoded by the same public rules, inside the
site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from suture.errors import DataError, StudyError
from suture.schema.table import Category, Schema
from suture.site.images.column import of_any
from suture.site.passage import (
    Keys,
    Mask,
    Passage,
    hashed,
    held_out,
    row_keys,
    sql_held_out,
    sql_key,
)
from suture.site.preprocess import (
    Counts,
    Vocabulary,
    codes,
    encode,
    sql_text,
    sql_typed,
    texts,
    typed,
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
)

NO_GROUP = "missing"
"""The group of a test row whose cell is empty."""


@dataclass(frozen=True)
class Wanted:
    """What to read of a table, and how its rows are split."""

    schema: Schema
    outcome: str | None
    """None: the patients only."""
    labels: Vocabulary
    """The outcome's texts."""
    holdout: float
    split_key: str
    files: bool = False
    """Whether to read the names of image files too, where there is no outcome."""

    def __post_init__(self) -> None:
        if not 0 <= self.holdout <= 1:
            raise StudyError(
                "evaluation.holdout must be from 0 to 1 (0.2 holds out a fifth), found "
                f"{self.holdout:g}"
            )

    @property
    def columns(self) -> list[str]:
        """The columns to read: all that the study names, or (to count patients) only the patient's
        and the cohort rule's."""
        found = [] if self.schema.patient is None else [self.schema.patient]
        found += [condition.column for condition in self.schema.include]
        if self.outcome is not None:
            return [*found, self.outcome, *self.schema.features, *self.schema.groups]
        return [*found, *self.schema.features] if self.files else found


@dataclass(frozen=True)
class Read:
    """Typed columns of one table. ``keys``: 128 bits of each row's patient. ``groups``: only test
    rows are filled."""

    keys: Keys
    no_patient: int
    """Rows without a patient identifier: they belong to nobody and are not among the columns."""
    outcome: NDArray[np.int16]
    features: Columns
    groups: Columns
    protected: NDArray[np.int16] | None = None
    """The code of each row's protected group, where the schema declares one."""
    unreadable: tuple[str, ...] = ()
    """Why some lines of the file were left out."""

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


def check_readable(source: Source, schema: Schema, outcome: str, *, site: str) -> None:
    """Whether the file and the study's columns are there, from the header alone: before a budget is
    promised for nothing.

    A server is not asked: its query would run.
    """
    columns = Wanted(schema, outcome, Vocabulary({}), 0.0, "").columns
    if not isinstance(source, SourceSpec):
        check_columns(list(source), columns, f"site {site!r} (in memory)")
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
    if outcome is not None or wanted.files:
        for i, (name, feature) in enumerate(schema.features.items()):
            asked[f"f{i}"] = sql_typed(opened, name, feature)
    if outcome is None:
        return asked
    asked["y"] = wanted.labels.sql(sql_text(opened, outcome))
    for i, name in enumerate(schema.groups):
        # Only the groups of test patients are ever looked at.
        group = f"coalesce({sql_text(opened, name)}, '{NO_GROUP}')"
        asked[f"g{i}"] = f"CASE WHEN {tested} THEN {group} ELSE '' END"
    if schema.protected is not None:
        declared = vocabulary_of(Category(values=schema.protected.values))
        asked["protected"] = declared.sql(sql_text(opened, schema.protected.column))
    return asked


def _read_memory(table: Columns, wanted: Wanted) -> Read:
    """The same typed columns from arrays, without DuckDB: a thousand small generated sites load in
    a second."""
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
    absent = rows - len(keys)
    if wanted.outcome is None:
        return Read(keys, absent, np.zeros(0, np.int16), {}, {})
    features = {name: typed(columns[name], feature) for name, feature in schema.features.items()}
    tested, groups = held_out(keys, wanted.holdout), {}
    for name in schema.groups:
        groups[name] = np.full(len(keys), "", object)
        groups[name][tested] = [text or NO_GROUP for text in texts(columns[name][tested])]
    protected = None
    if schema.protected is not None:
        declared = vocabulary_of(Category(values=schema.protected.values))
        protected = codes(columns[schema.protected.column], declared)
    outcome = codes(columns[wanted.outcome], wanted.labels)
    return Read(keys, absent, outcome, features, groups, protected)


# --- rows to be scored ------------------------------------------------------------------------------------------------


def encode_rows(columns: Mapping[str, ArrayLike], schema: Schema) -> NDArray[np.float32]:
    """Raw columns by name (a dict of arrays, a DataFrame) as the encoded matrix, rows in the order
    given.

    >>> schema = Schema.parse({"features": {"age": {"kind": "number", "low": 20, "high": 80, "missing": "fill"}}})
    >>> encode_rows({"age": [20, 50]}, schema).tolist()
    [[-1.0], [0.0]]
    """
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
    """The encoded rows of one patient, in the table's order; ``passage`` keeps back patients who
    are erased or withdrew.

    >>> table = {"id": np.array([7, 8]), "age": np.array([20.0, 50.0])}
    >>> age = {"kind": "number", "low": 20, "high": 80, "missing": "fill"}
    >>> patient_rows(table, Schema.parse({"patient": "id", "features": {"age": age}}), "8", site="boston").tolist()
    [[0.0]]
    """
    if schema.patient is None:
        raise DataError(
            f"site {site!r}: the schema declares no patient column, so no patient can be looked up"
        )
    needed = [schema.patient, *schema.features]
    if isinstance(source, SourceSpec):
        needed += [condition.column for condition in schema.include] if passage else []
        with open_table(source, [*dict.fromkeys(needed)], site=site) as opened:
            wanted = {"patient": sql_text(opened, schema.patient)}
            for i, (name, feature) in enumerate(schema.features.items()):
                wanted[f"f{i}"] = sql_typed(opened, name, feature)
            wanted |= passage.expressions(opened, schema) if passage else {}
            found = opened.select(wanted)
        found = passage.kept(found) if passage else found
        identifiers = found["patient"]
        features = {name: found[f"f{i}"] for i, name in enumerate(schema.features)}
    else:
        check_columns(list(source), needed, f"site {site!r} (in memory)")
        table: Mapping[str, Column] = passage.kept_in_memory(source, schema) if passage else source
        identifiers, declared = np.asanyarray(table[schema.patient]), schema.features.items()
        features = {name: typed(np.asanyarray(table[name]), feature) for name, feature in declared}
    chosen = np.array([identifier == patient for identifier in texts(identifiers)], bool)
    if not chosen.any():
        raise DataError(
            f"site {site!r}: no row with this identifier that may be used, in column "
            f"{schema.patient!r}; check --patient"
        )
    return encode(_rows(features, chosen), schema, None, Counts())
