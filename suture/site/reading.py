"""A table's typed columns, from a file, a server or memory: one pass over the rows, patients as keyed hashes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture.errors import DataError, StudyError
from suture.site.passage import Passage, sql_key
from suture.site.preprocess import Vocabulary, codes, sql_text, sql_typed, texts, typed, vocabulary_of
from suture.site.records import Opened, Source, SourceSpec, check_columns, open_table
from suture.site.schema import Category, Schema
from suture.site.split import hashed, held_out, limit, row_keys

NO_GROUP = "missing"
"""The group of a test row whose cell is empty."""


@dataclass
class Read:
    """Typed columns of one table. ``keys``: 128 bits of each row's patient. ``groups``: only test rows are filled."""

    keys: NDArray[np.uint64]
    no_patient: int
    outcome: NDArray[np.int16]
    features: dict[str, NDArray[Any]]
    groups: dict[str, NDArray[Any]]
    protected: NDArray[np.int16] | None = None
    """The code of each row's protected group, where the schema declares one."""


def _wanted(schema: Schema, outcome: str | None, files: bool = False) -> list[str]:
    """The columns to read: all that the study names, or (to count patients) only the patient's and the cohort rule's."""
    patient = [] if schema.patient is None else [schema.patient]
    patient += [condition.column for condition in schema.include]
    patient += [schema.image] if files and schema.image is not None else []
    return patient if outcome is None else [*patient, outcome, *schema.features, *schema.groups]


def read_columns(
    source: Source,
    schema: Schema,
    outcome: str | None,
    labels: Vocabulary,
    site: str,
    holdout: float,
    split_key: str,
    passage: Passage | None,
    *,
    files: bool = False,
) -> Read:
    """A table's typed columns; with no outcome the patients only, and with ``files`` the names of their images too."""
    passage = passage or Passage("")
    if not 0 <= holdout <= 1:
        raise StudyError(f"evaluation.holdout must be from 0 to 1 (0.2 holds out a fifth), found {holdout:g}")
    if not isinstance(source, SourceSpec):
        check_columns(list(source), _wanted(schema, outcome), f"site {site!r} (in memory)")
        return _read_memory(passage.kept_in_memory(source, schema), schema, outcome, labels, holdout, split_key)
    with open_table(source, _wanted(schema, outcome, files), site=site) as opened:
        wanted = _expressions(opened, source, schema, outcome, labels, holdout, split_key, files)
        found = opened.select({**wanted, **passage.expressions(opened, source, schema)})
    found = passage.kept(found)
    if schema.patient is None:
        keys, absent = row_keys(len(found["row"]), split_key), 0
    else:
        keys, absent = np.column_stack([found.pop("hi"), found.pop("lo")]), int(np.count_nonzero(found.pop("absent")))
    return Read(
        keys,
        absent,
        found.get("y", np.zeros(0, np.int16)),
        {name: found.pop(f"f{i}") for i, name in enumerate(schema.features) if f"f{i}" in found},
        {name: found.pop(f"g{i}") for i, name in enumerate(schema.groups) if outcome is not None},
        found.get("protected"),
    )


def _expressions(
    opened: Opened,
    spec: SourceSpec,
    schema: Schema,
    outcome: str | None,
    labels: Vocabulary,
    holdout: float,
    split_key: str,
    files: bool,
) -> dict[str, str]:
    """What to ask of DuckDB, so that one pass over the rows gives every typed column."""
    if schema.patient is None:
        wanted, tested = {"row": "1::TINYINT"}, "true"
    else:
        patient = sql_text(opened, spec, schema.patient)
        high, low = sql_key(patient, split_key)
        wanted = {"hi": high, "lo": low, "absent": f"{patient} IS NULL"}
        tested = "true" if holdout >= 1 else f"{wanted['hi']} < {limit(holdout)}"
    if outcome is None and not files:
        return wanted
    for i, (name, feature) in enumerate(schema.features.items()):
        wanted[f"f{i}"] = sql_typed(opened, spec, name, feature)
    if outcome is None:
        return wanted
    wanted["y"] = labels.sql(sql_text(opened, spec, outcome))
    for i, name in enumerate(schema.groups):
        # Only the groups of test patients are ever looked at.
        group = f"coalesce({sql_text(opened, spec, name)}, '{NO_GROUP}')"
        wanted[f"g{i}"] = f"CASE WHEN {tested} THEN {group} ELSE '' END"
    if schema.protected is not None:
        declared = vocabulary_of(Category(values=schema.protected.values))
        wanted["protected"] = declared.sql(sql_text(opened, spec, schema.protected.column))
    return wanted


def _read_memory(
    table: Any, schema: Schema, outcome: str | None, labels: Vocabulary, holdout: float, split_key: str
) -> Read:
    """The same typed columns from arrays, without DuckDB: a thousand small generated sites load in a second."""
    columns = {name: np.asanyarray(table[name]) for name in _wanted(schema, outcome) or list(table)[:1]}
    lengths = {len(column) for column in columns.values()}
    if len(lengths) > 1:
        raise DataError(f"a table in memory needs columns of one length, found lengths {sorted(lengths)}")
    rows, absent = lengths.pop(), 0
    if schema.patient is None:
        keys = row_keys(rows, split_key)
    else:
        identifiers = texts(columns[schema.patient])
        absent = sum(identifier is None for identifier in identifiers)
        keys = hashed([identifier or "" for identifier in identifiers], split_key)
    if outcome is None:
        return Read(keys, absent, np.zeros(0, np.int16), {}, {})
    features = {name: typed(columns[name], feature) for name, feature in schema.features.items()}
    tested = held_out(keys, holdout)
    groups = {}
    for name in schema.groups:
        groups[name] = np.full(rows, "", object)
        groups[name][tested] = [text or NO_GROUP for text in texts(columns[name][tested])]
    protected = None
    if schema.protected is not None:
        declared = vocabulary_of(Category(values=schema.protected.values))
        protected = codes(columns[schema.protected.column], declared)
    return Read(keys, absent, codes(columns[outcome], labels), features, groups, protected)
