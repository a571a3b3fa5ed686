"""New rows to be scored: encoded by the same public rules as training rows, inside the site."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture.errors import DataError
from suture.site.image_column import of_any
from suture.site.preprocess import Counts, encode, typed
from suture.site.records import check_columns
from suture.site.schema import Schema


def encode_rows(columns: Mapping[str, Any], schema: Schema) -> NDArray[np.float32]:
    """Raw columns by name (a dict of arrays, a DataFrame) to the encoded matrix, rows in the order given.

    >>> schema = Schema.parse({"features": {"age": {"kind": "number", "low": 20, "high": 80, "missing": "fill"}}})
    >>> encode_rows({"age": [20, 50]}, schema).tolist()
    [[-1.0], [0.0]]
    """
    check_columns(list(columns), list(schema.features), "the rows to score")
    if schema.image is not None and schema.image_size is not None:
        return of_any(columns[schema.image], schema.image_size, schema.image)
    given = {name: typed(np.asarray(columns[name]), feature) for name, feature in schema.features.items()}
    counts = Counts()
    matrix = encode(given, schema, None, counts)
    wrong = {**counts.not_a_number, **counts.not_declared}
    if wrong:
        named = ", ".join(f"{name!r} ({count})" for name, count in wrong.items())
        raise DataError(f"the rows to score have values that the schema does not declare in: {named}")
    return matrix
