"""One patient's rows, found by their identifier, inside the site and for the site's own clinicians."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture.errors import DataError
from suture.site.passage import Passage
from suture.site.preprocess import Counts, encode, sql_text, sql_typed, texts, typed
from suture.site.records import Source, SourceSpec, check_columns, open_table
from suture.site.schema import Schema


def patient_rows(
    source: Source, schema: Schema, patient: str, *, site: str, passage: Passage | None = None
) -> NDArray[np.float32]:
    """The encoded rows of one patient, in the table's order; ``passage`` keeps back who is erased or withdrew.

    >>> table = {"id": np.array([7, 8]), "age": np.array([20.0, 50.0])}
    >>> age = {"kind": "number", "low": 20, "high": 80, "missing": "fill"}
    >>> patient_rows(table, Schema.parse({"patient": "id", "features": {"age": age}}), "8", site="boston").tolist()
    [[0.0]]
    """
    if schema.patient is None:
        raise DataError(f"site {site!r}: the schema declares no patient column, so no patient can be looked up")
    if isinstance(source, SourceSpec):
        found = _from_file(source, schema, site, passage)
    else:
        check_columns(list(source), [schema.patient, *schema.features], f"site {site!r} (in memory)")
        found = _from_memory(passage.kept_in_memory(source, schema) if passage else source, schema)
    chosen = np.array([identifier == patient for identifier in texts(found.pop("patient"))], bool)
    if not chosen.any():
        raise DataError(
            f"site {site!r}: no row with this identifier that may be used, in column {schema.patient!r}; check --patient"
        )
    return encode({name: column[chosen] for name, column in found.items()}, schema, None, Counts())


def _from_memory(table: Any, schema: Schema) -> dict[str, NDArray[Any]]:
    found = {"patient": np.asanyarray(table[schema.patient])}
    for name, feature in schema.features.items():
        found[name] = typed(np.asanyarray(table[name]), feature)
    return found


def _from_file(spec: SourceSpec, schema: Schema, site: str, passage: Passage | None) -> dict[str, NDArray[Any]]:
    patient = str(schema.patient)
    ruled = [condition.column for condition in schema.include] if passage else []
    with open_table(spec, [*dict.fromkeys([patient, *schema.features, *ruled])], site=site) as opened:
        wanted = {"p": sql_text(opened, spec, patient)}
        for i, (name, feature) in enumerate(schema.features.items()):
            wanted[f"f{i}"] = sql_typed(opened, spec, name, feature)
        found = opened.select(wanted | (passage.expressions(opened, spec, schema) if passage else {}))
    found = passage.kept(found) if passage else found
    return {"patient": found["p"], **{name: found[f"f{i}"] for i, name in enumerate(schema.features)}}
