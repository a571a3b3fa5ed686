"""A patient is found by identifier, unless they are erased: then their row is not looked at, by
nobody."""

import numpy as np
import pytest

from suture.errors import DataError
from suture.schema.table import Schema
from suture.site.reading import Passage, hashed, patient_rows
from suture.site.sources import SourceSpec

SCHEMA = Schema.parse(
    {
        "patient": "id",
        "features": {"age": {"kind": "number", "low": 20, "high": 80, "missing": "fill"}},
    }
)
TABLE = {"id": np.array(["7", "8", "8"]), "age": np.array([20.0, 50.0, 80.0])}


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_an_erased_patient_is_not_found(tmp_path, kind):
    (tmp_path / "rows.csv").write_text("id,age\n7,20\n8,50\n8,80\n")
    source = TABLE if kind == "memory" else SourceSpec(path=str(tmp_path / "rows.csv"))
    erased = Passage("key", erased=hashed(["8"], "key"))
    assert patient_rows(source, SCHEMA, "8", site="boston").tolist() == [[0.0], [1.0]]
    assert patient_rows(source, SCHEMA, "7", site="boston", passage=erased).tolist() == [[-1.0]]
    with pytest.raises(DataError, match="no row with this identifier that may be used") as caught:
        patient_rows(source, SCHEMA, "8", site="boston", passage=erased)
    assert "'8'" not in str(caught.value)
