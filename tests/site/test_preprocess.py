"""Encoding: exact values, and the two ways of parsing (DuckDB, NumPy) held equal."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from suture.schema.outcome import Classes
from suture.schema.table import Flag, Number, Schema
from suture.site.cohort import SiteData, load, refusal
from suture.site.preprocess import BINARY, Counts, encode, outcome_vocabulary, scale
from suture.site.sources import Source, SourceSpec

SCHEMA = Schema.parse(
    {
        "patient": "id",
        "groups": ["ward"],
        "missing": "fill",
        "features": {
            "age": {"kind": "number", "low": 20, "high": 60, "missing": "indicator"},
            "sex": {"kind": "category", "values": ["F", "M", "X"]},
            "smoker": {"kind": "flag"},
            "lactate": {"kind": "number", "low": -1, "high": 3},
        },
    }
)


def read(source: Source | Path, schema: Schema = SCHEMA, **options: Any) -> SiteData:
    return load(source, schema, "ill", site="a", **{"holdout": 0.0, "split_key": "k", **options})


def one_by_one(data: SiteData) -> list[list[float]]:
    return sorted(data.train.x.tolist())


def column(schema_of: dict[str, Any], cells: list[str], path: Path, **options: Any) -> list[float]:
    """The encoded values of one feature, in the order of the cells, as read from a CSV file."""
    schema = Schema.parse({"patient": "id", "missing": "fill", "features": {"x": schema_of}})
    values = []
    for cell in cells:
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([("id", "x", "ill"), ("p", cell, "1")])
        values.append(read(SourceSpec(path=str(path), **options), schema).train.x[0].tolist())
    return [value[0] if len(value) == 1 else value for value in values]


def test_numbers(tmp_path: Path) -> None:
    number = {"kind": "number", "low": 20, "high": 60}
    cells = ["20", "60", "40", " 50 ", "3e1", "19", "1e300", "-7", "", "  ", "NaN"]
    expected = [-1, 1, 0, 0.5, -0.5, -1, 1, -1, 0, 0, 0]
    assert column(number, cells, tmp_path / "x.csv") == expected
    assert column(number, ["42,5", "41.25", ""], tmp_path / "x.csv", decimal=",") == [
        0.125,
        0.0625,
        0,
    ]
    assert column(
        number, ["-999", "?", "NA ", "60"], tmp_path / "x.csv", missing=("-999", "?", "NA")
    ) == [0, 0, 0, 1]


def test_flags_and_categories(tmp_path: Path) -> None:
    flag = {"kind": "flag"}
    yes, no = (
        ["1", "true", "TRUE", "Yes", "y", "T", "1.0", " 1 "],
        ["0", "false", "No", "N", "f", "0.00"],
    )
    assert column(flag, [*yes, *no, ""], tmp_path / "x.csv") == [1.0] * len(yes) + [0.0] * len(
        no
    ) + [0.5]
    ward = {"kind": "category", "values": ["1", "2", "O'Hara"]}
    assert column(ward, ["1", "2.0", " O'Hara", ""], tmp_path / "x.csv") == [
        [1, 0, 0],
        [0, 1, 0],
        [0, 0, 1],
        [0, 0, 0],
    ]


def test_indicator_and_neutral_fill_by_hand() -> None:
    table = {
        "id": np.array([1, 2, 3]),
        "age": np.array([30.0, np.nan, 75.0]),
        "sex": np.array(["M", "", "X"]),
        "smoker": np.ma.MaskedArray([1, 1, 0], [False, True, False]),
        "lactate": np.array([None, "3", 1], object),
        "ward": np.array(["w", None, "v"], object),
        "ill": np.array([0, 1, 1]),
    }
    data = read(table)
    assert one_by_one(data) == sorted(
        [[-0.5, 0, 0, 1, 0, 1, 0], [0, 1, 0, 0, 0, 0.5, 1], [1, 0, 0, 0, 1, 0, 0]]
    )
    assert data.loaded.missing == {"age": 1, "sex": 1, "smoker": 1, "lactate": 1}
    assert data.loaded.clipped == {"age": 1}
    assert data.loaded.warnings == (
        "site 'a': column 'age': 1 of 3 rows outside the declared 20 to 60, clipped to it",
        "site 'a': column 'age': 1 of 3 rows without a value, filled with the neutral one",
        "site 'a': column 'sex': 1 of 3 rows without a value, filled with the neutral one; "
        'missing = "indicator" would tell the model which',
        "site 'a': column 'smoker': 1 of 3 rows without a value, filled with the neutral one; "
        'missing = "indicator" would tell the model which',
        "site 'a': column 'lactate': 1 of 3 rows without a value, filled with the neutral one; "
        'missing = "indicator" would tell the model which',
    )


def test_every_missing_value_is_marked_by_default() -> None:
    features = {
        "age": {"kind": "number", "low": 20, "high": 60},
        "sex": {"kind": "category", "values": ["F", "M"]},
        "smoker": {"kind": "flag"},
    }
    schema = Schema.parse({"patient": "id", "features": features})
    table = {
        "id": np.array([1, 2]),
        "age": np.array([30.0, np.nan]),
        "sex": np.array(["M", ""]),
        "smoker": np.array(["y", ""]),
        "ill": np.array([0, 1]),
    }
    data = read(table, schema)
    # age, age (missing), sex = F, sex = M, sex (missing), smoker, smoker (missing)
    assert one_by_one(data) == [[-0.5, 0, 0, 1, 0, 1, 0], [0, 1, 0, 0, 1, 0.5, 1]]
    assert data.loaded.warnings == tuple(
        f"site 'a': column '{name}': 1 of 2 rows without a value, filled with the neutral one"
        for name in features
    )


def test_all_problems_together_and_no_value_shown(tmp_path: Path) -> None:
    rows = ["id,age,sex,smoker,lactate,ward,ill"]
    rows += [
        "1,geheim,F,1,1,w,1",
        "2,inf,Q,1,1,w,2",
        "3,30,Q,perhaps,1,w,",
        ",30,F,0,1,w,0",
        "4,1e999,F,0,x,w,nein",
    ]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(rows) + "\n")
    data = read(path)
    lines = [
        line.split(";")[0]
        for line in str(refusal(SourceSpec(path=str(path)), "a", data.loaded)).splitlines()
    ]
    assert lines == [
        "site 'a' (rows.csv): 7 problems",
        "  - column 'id': 1 row without a patient identifier",
        "  - outcome 'ill': 1 row without an outcome",
        "  - outcome 'ill': 2 rows with something else than 0 or 1 (or true/false, yes/no)",
        "  - column 'age': 3 rows with text or an infinity where a number is expected",
        "  - column 'lactate': 1 row with text or an infinity where a number is expected",
        "  - column 'sex': 2 rows with something else than a value declared in the schema",
        "  - column 'smoker': 1 row with something else than 0/1, true/false or yes/no",
    ]
    for value in ("geheim", "Q", "perhaps", "nein"):
        assert value not in " ".join((*data.loaded.problems, *data.loaded.warnings)).replace(
            "NA", ""
        )
    # The rows without an outcome, and the one without a patient, are left out; what is not declared
    # is missing.
    assert data.train.x.tolist() == [[0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0]]


def test_missing_refused() -> None:
    schema = Schema.parse(
        {"patient": "id", "missing": "refuse", "features": {"smoker": {"kind": "flag"}}}
    )
    table = {"id": np.array([1, 2]), "smoker": np.array(["y", ""]), "ill": np.array([0, 1])}
    data = read(table, schema)
    assert data.loaded.problems == (
        "column 'smoker': 1 row without a value, and the schema says missing = \"refuse\"",
    )
    assert data.loaded.warnings == ()
    assert one_by_one(data) == [
        [0.5],
        [1.0],
    ]  # filled, with no column more: the width is the schema's


def test_outcomes_of_several_classes() -> None:
    schema = Schema.parse({"patient": "id", "features": {"smoker": {"kind": "flag"}}})
    table: dict[str, NDArray[Any]] = {
        "id": np.arange(4),
        "smoker": np.array([0, 1, 0, 1]),
        "ill": np.array([0, 2, 1, 2]),
    }
    data = read(table, schema, target=Classes(written=3))
    assert data.loaded.class_rows == (1, 1, 2)
    assert sum(data.loaded.class_rows[1:]) == 3
    labels = {**table, "ill": np.array(["home", "ward", "died", "ward"])}
    assert read(
        labels, schema, target=Classes(written=("home", "ward", "died"))
    ).loaded.class_rows == (1, 2, 1)
    data = read(
        {**labels, "ill": np.array(["home", "ward", "ward", "ward"])},
        schema,
        target=Classes(written=("home", "died")),
    )
    assert data.loaded.problems == (
        "outcome 'ill': 3 rows with something else than one of home, died",
    )
    assert data.train.rows == 1
    assert "2 rows with something else than 0 or 1" in read(table, schema).loaded.problems[0]
    assert outcome_vocabulary(Classes()) is BINARY


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(
    st.tuples(finite, finite).filter(lambda b: b[0] < b[1] and math.isfinite(b[1] - b[0])),
    st.lists(st.floats()),
)
def test_scaled_numbers_are_finite_and_within_one(
    bounds: tuple[float, float], cells: list[float]
) -> None:
    feature = Number(low=bounds[0], high=bounds[1])
    schema = Schema(features={"x": feature, "flag": Flag()})
    columns: dict[str, NDArray[Any]] = {
        "x": np.array([*cells, feature.low, feature.high], float),
        "flag": np.full(len(cells) + 2, -1, np.int16),
    }
    x = encode(columns, schema, None, Counts())
    assert np.isfinite(x).all()
    assert (np.abs(x) <= 1).all()
    assert x[-2:, 0].tolist() == [-1.0, 1.0]
    assert columns == {}


@given(st.lists(st.floats(20, 60), min_size=2))
def test_scaling_keeps_the_order(cells: list[float]) -> None:
    scaled = scale(np.sort(np.array(cells)), Number(low=20, high=60))
    assert (np.diff(scaled) >= 0).all()


cell = {
    "age": st.sampled_from(
        ["20", "33.25", "61", "-4", "", " 42 ", "nan", "1_0", "+5", "1e1", ".5", "6."]
    ),
    "sex": st.sampled_from(["F", "M", "X", " F", ""]),
    "smoker": st.sampled_from(["0", "1", "true", "No", "", "1.0", " y"]),
    "lactate": st.floats(-2, 4).map(repr),
    "ward": st.sampled_from(["a", "b", "", " c "]),
    "ill": st.sampled_from(["0", "1", "yes", "FALSE"]),
    "id": st.sampled_from(["p1", "p2", " p2", "p3", "π"]),
}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.fixed_dictionaries(cell), min_size=1, max_size=12))
def test_files_and_memory_agree(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, str]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "agree.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(cell), quoting=csv.QUOTE_ALL)
        writer.writeheader()
        writer.writerows(rows)
    from_file = read(path, holdout=0.5)
    from_memory = read({name: np.array([row[name] for row in rows]) for name in cell}, holdout=0.5)
    _same(from_file, from_memory)


def test_typed_columns_agree(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    table: dict[str, NDArray[Any]] = {
        "id": rng.integers(0, 60, 200),
        "age": np.where(rng.random(200) < 0.1, np.nan, rng.normal(40, 15, 200)),
        "sex": rng.choice(["F", "M", "X"], 200),
        "smoker": rng.random(200) < 0.5,
        "lactate": rng.integers(-2, 5, 200).astype(np.int8),
        "ward": rng.integers(1, 4, 200).astype(np.float32),
        "ill": rng.integers(0, 2, 200).astype(np.float64),
    }
    with duckdb.connect() as connection:
        connection.register("t", table)
        connection.execute(f"COPY (SELECT * FROM t) TO '{tmp_path}/t.parquet' (FORMAT parquet)")
    from_file, from_memory = (
        read(source, holdout=0.3) for source in (tmp_path / "t.parquet", table)
    )
    _same(from_file, from_memory)
    assert set(from_file.test_groups["ward"]) == {"1", "2", "3"}
    assert from_file.loaded.clipped["lactate"] == int(
        ((table["lactate"] < -1) | (table["lactate"] > 3)).sum()
    )


def _same(one: SiteData, other: SiteData) -> None:
    assert one.loaded == other.loaded
    assert one.train.fingerprint() == other.train.fingerprint()
    assert (one.test is None) == (other.test is None)
    if one.test is not None and other.test is not None:
        assert one.test.fingerprint() == other.test.fingerprint()
    assert list(one.test_groups) == list(other.test_groups)
    for name in one.test_groups:
        # rows of one patient with equal content may swap places; their groups then do too
        assert sorted(one.test_groups[name]) == sorted(other.test_groups[name])
