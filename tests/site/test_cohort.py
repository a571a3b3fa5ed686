"""Splitting and grouping by patient: what the privacy proof needs of them."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import textwrap
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from suture.cohorts.cardio import cardio
from suture.errors import DataError, StudyError
from suture.schema.table import Schema
from suture.site.cohort import SiteData, count_training_patients, load

SCHEMA = Schema.parse(
    {
        "patient": "id",
        "groups": ["sex"],
        "missing": "fill",
        "features": {"v": {"kind": "number", "low": 0, "high": 1000}},
    }
)


def table_of(rows: list[tuple[str, int, int, str]]) -> dict[str, NDArray[Any]]:
    columns = list(zip(*rows, strict=True)) if rows else [(), (), (), ()]
    kinds: list[Any] = [np.str_, np.float64, np.int64, np.str_]
    return {
        n: np.array(c, k) for n, c, k in zip(("id", "v", "ill", "sex"), columns, kinds, strict=True)
    }


def read(rows: list[tuple[str, int, int, str]], holdout: float = 0.4, **options: Any) -> SiteData:
    return load(
        table_of(rows), SCHEMA, "ill", site="a", **{"holdout": holdout, "split_key": "k", **options}
    )


def by_patient(data: SiteData, part: str) -> list[bytes]:
    patients = getattr(data, part)
    if patients is None:
        return []
    bounds = zip(patients.starts[:-1], patients.starts[1:], strict=True)
    return [patients.x[a:b].tobytes() + patients.y[a:b].tobytes() for a, b in bounds]


row = st.tuples(
    st.sampled_from("abcdefghijkl"), st.integers(0, 1000), st.integers(0, 1), st.sampled_from("FM")
)


@settings(max_examples=80, deadline=None)
@given(st.lists(row, min_size=2, max_size=40), st.data())
def test_removing_a_patient_leaves_every_other_where_it_was(rows: list[Any], draw: Any) -> None:
    gone = draw.draw(st.sampled_from(sorted({r[0] for r in rows})))
    rest = [r for r in rows if r[0] != gone]
    if not rest:
        return
    full, less = read(rows), read(rest)
    for part in ("train", "test"):
        before, after = by_patient(full, part), by_patient(less, part)
        assert len(before) - len(after) in (0, 1)
        # the same patients in the same order, one taken out
        remaining = iter(before)
        assert all(patient in remaining for patient in after)
    assert full.loaded.patients == less.loaded.patients + 1


@settings(max_examples=50, deadline=None)
@given(
    st.lists(row, min_size=1, max_size=40), st.randoms(use_true_random=False), st.floats(0, 0.99)
)
def test_the_order_of_rows_changes_nothing(rows: list[Any], random: Any, holdout: float) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)
    one, other = read(rows, holdout), read(shuffled, holdout)
    assert one.train.fingerprint() == other.train.fingerprint()
    assert by_patient(one, "test") == by_patient(other, "test")
    assert one.loaded == other.loaded


@settings(max_examples=50, deadline=None)
@given(st.lists(row, min_size=1, max_size=40), st.floats(0, 0.99))
def test_every_row_is_there_once_and_counts_agree(rows: list[Any], holdout: float) -> None:
    data = read(rows, holdout)
    found = [p.x[:, 0] for p in (data.train, data.test) if p is not None]
    expected = np.sort(np.float32(2 * (np.array([r[1] for r in rows]) / 1000) - 1))
    np.testing.assert_array_equal(np.sort(np.concatenate(found)), expected)
    ids = {r[0] for r in rows}
    held = {
        i
        for i in ids
        if int.from_bytes(hashlib.sha256(f"k:{i}".encode()).digest()[:8], "big")
        < int(holdout * 2**64)
    }
    assert data.loaded.test_patients == len(held)
    assert data.loaded.train_patients == len(ids - held)
    assert sum(data.loaded.class_rows[1:]) == sum(r[2] for r in rows)
    counted = count_training_patients(
        table_of(rows), SCHEMA, site="a", holdout=holdout, split_key="k"
    )
    assert counted == data.train.patients


def test_rows_of_a_patient_stay_together_with_their_group() -> None:
    rows = [
        ("p1", 100, 0, "F"),
        ("p2", 200, 1, "M"),
        ("p1", 300, 1, "F"),
        ("p3", 400, 0, ""),
        ("p2", 500, 0, "M"),
    ]
    data = read(rows, 0.999999)
    assert data.test is not None
    assert data.train.rows == 0
    values = np.rint((data.test.x[:, 0] + 1) * 500).astype(int).tolist()
    groups = dict(zip(values, data.test_groups["sex"].tolist(), strict=True))
    assert groups == {100: "F", 300: "F", 200: "M", 500: "M", 400: "missing"}
    assert np.diff(data.test.starts).tolist().count(2) == 2
    assert data.loaded.warnings == (
        "site 'a': every patient fell into the hold-out: the site has nobody to train on",
    )


def test_holdout_share_and_key() -> None:
    rows = [(f"p{i}", i % 1000, i % 2, "F") for i in range(20_000)]
    data = read(rows, 0.2)
    assert abs(data.loaded.test_patients - 4000) < 5 * np.sqrt(
        20_000 * 0.2 * 0.8
    )  # false alarm 6e-7, and fixed anyway
    other = read(rows, 0.2, split_key="other")
    assert data.loaded.test_patients != other.loaded.test_patients
    assert len(data.test_groups["sex"]) == data.loaded.test_patients


def test_one_row_and_one_class() -> None:
    data = read([("p", 500, 1, "F")], 0.0)
    assert data.train.x.tolist() == [[0.0]]
    assert data.test is None
    assert data.test_groups["sex"].tolist() == []
    assert data.loaded.warnings == (
        "site 'a': all training rows have the same outcome: the site can train, but alone it "
        "learns nothing",
    )
    sides = {bool(read([(f"p{i}", 500, 1, "F")], 0.5).train.rows) for i in range(20)}
    assert sides == {
        True,
        False,
    }  # a site of one patient may have nobody to train on: warned, not an error
    tested = read([("p", 500, 1, "F"), ("q", 1, 0, "F")], 1e-12)
    assert tested.loaded.warnings == (
        "site 'a': no patient fell into the hold-out: the site has nobody to test on",
    )


@settings(max_examples=50, deadline=None)
@given(st.lists(row, min_size=1, max_size=60), st.randoms(use_true_random=False), st.integers(1, 5))
def test_rows_beyond_the_cap_are_not_used_whatever_their_order(
    rows: list[Any], random: Any, most: int
) -> None:
    capped = SCHEMA.model_copy(update={"rows": most})
    shuffled = list(rows)
    random.shuffle(shuffled)
    found, again = (
        load(table_of(given_rows), capped, "ill", site="a", holdout=0.4, split_key="k")
        for given_rows in (rows, shuffled)
    )
    whole = read(rows)
    assert by_patient(found, "train") == by_patient(again, "train")
    assert by_patient(found, "test") == by_patient(again, "test")
    for part in ("train", "test"):
        before, after = getattr(whole, part), getattr(found, part)
        assert (before is None) == (after is None)
        if before is not None:
            np.testing.assert_array_equal(
                np.diff(after.starts), np.minimum(np.diff(before.starts), most)
            )
            first = np.concatenate(
                [np.arange(a, min(b, a + most)) for a, b in pairwise(before.starts)] or [[]]
            )
            np.testing.assert_array_equal(after.x, before.x[first.astype(int)])
    beyond = len(rows) - found.loaded.rows
    assert any("beyond the first" in warning for warning in found.loaded.warnings) == (beyond > 0)


def test_no_rows() -> None:
    data = read([])
    assert (data.train.patients, data.train.rows, data.train.features, data.test) == (0, 0, 1, None)
    assert data.loaded.problems == ()
    assert (
        data.loaded.warnings[0]
        == "site 'a': every patient fell into the hold-out: the site has nobody to train on"
    )
    assert count_training_patients(table_of([]), SCHEMA, site="a", holdout=0.0, split_key="k") == 0


def test_missing_patient_identifier() -> None:
    """A row that belongs to nobody is left out: the others are what they are without it."""
    rows = [("p", 1, 0, "F"), ("", 2, 1, "F"), (" ", 2, 1, "F")]
    data = read(rows, 0.0)
    assert data.train.fingerprint() == read(rows[:1], 0.0).train.fingerprint()
    assert [problem.split(";")[0] for problem in data.loaded.problems] == [
        "column 'id': 2 rows without a patient identifier"
    ]
    assert count_training_patients(table_of(rows), SCHEMA, site="a", holdout=0, split_key="k") == 1


def test_without_a_patient_column_each_row_is_a_unit(tmp_path: Path) -> None:
    schema = SCHEMA.model_copy(update={"patient": None})
    rows = [("p", i, i % 2, "F") for i in range(50)]
    data = load(table_of(rows), schema, "ill", site="a", holdout=0.3, split_key="k")
    assert data.loaded.patients == 50
    assert data.train.one_row_each
    path = tmp_path / "rows.csv"
    path.write_text("id,v,ill,sex\n" + "".join(f"{i},{v},{y},{s}\n" for i, v, y, s in rows))
    again = load(path, schema, "ill", site="a", holdout=0.3, split_key="k")
    assert again.train.fingerprint() == data.train.fingerprint()
    assert again.test_groups["sex"].tolist() == data.test_groups["sex"].tolist()
    for source in (path, table_of(rows)):
        count = count_training_patients(source, schema, site="a", holdout=0.3, split_key="k")
        assert count == data.train.patients


def test_a_table_of_its_own_for_testing() -> None:
    train, test = (
        [("p1", 100, 0, "F"), ("p2", 1200, 1, "M")],
        [("p3", 300, 1, "M"), ("p3", -5, 0, "M")],
    )
    data = read(train, 0.0, test_source=table_of(test))
    assert data.test is not None
    assert (data.train.patients, data.test.patients, data.test.rows) == (2, 1, 2)
    assert data.test_groups["sex"].tolist() == ["M", "M"]
    assert data.loaded.class_rows == (2, 2)
    assert data.loaded.clipped == {"v": 2}
    with pytest.raises(StudyError, match="own test table, so holdout must be 0"):
        read(train, 0.2, test_source=table_of(test))
    both = read(train, 0.0, test_source=table_of([*test, ("p1", 1, 1, "F")]))
    assert both.loaded.problems == (
        "test table: 1 patients are also in the training table; they are not tested on",
    )
    assert both.test is not None
    assert both.test.fingerprint() == data.test.fingerprint()
    assert both.test_groups["sex"].tolist() == ["M", "M"]


def test_arguments() -> None:
    rows = [("p", 1, 0, "F")]
    with pytest.raises(StudyError, match=r"holdout must be from 0 to 1.*found 1\.5"):
        read(rows, 1.5)
    with pytest.raises(StudyError, match="outcome 'v' cannot also be a feature"):
        load(table_of(rows), SCHEMA, "v", site="a", holdout=0.0, split_key="k")
    with pytest.raises(DataError, match="one length"):
        load(
            {**table_of(rows), "v": np.zeros(3)},
            SCHEMA,
            "ill",
            site="a",
            holdout=0.0,
            split_key="k",
        )


def test_a_generated_cohort_loads_with_six_inputs() -> None:
    cohort = cardio(3, patients=3000, test_fraction=0.5)
    for site in cohort.sites:
        data = load(
            site.table,
            cohort.schema,
            cohort.outcome,
            site=site.name,
            holdout=0.0,
            split_key="k",
            test_source=site.test,
        )
        assert data.test is not None
        assert data.train.features == 6
        assert data.loaded.clipped == {}
        assert data.loaded.missing == {}
        assert set(data.test_groups["sex"]) <= {"F", "M"}


def test_protected_groups_are_one_a_patient_from_memory_and_from_a_file(tmp_path: Path) -> None:
    table = {
        "id": np.array(["a", "a", "b", "c", "d"]),
        "sex": np.array(["F", "F", "M", "", "M"]),
        "age": np.array([20.0, 30, 40, 50, 60]),
        "ill": np.array([0, 1, 0, 1, 0]),
    }
    path = tmp_path / "t.csv"
    rows = zip(*table.values(), strict=True)
    path.write_text("id,sex,age,ill\n" + "\n".join(",".join(map(str, row)) for row in rows))
    protected = {"column": "sex", "values": ["F", "M"]}
    fields = {
        "patient": "id",
        "groups": ["sex"],
        "features": {"age": {"kind": "number", "low": 0, "high": 100}},
    }
    schema = Schema.parse({**fields, "protected": protected})
    found = []
    for source in (table, path):
        data = load(source, schema, "ill", site="a", holdout=0.0, split_key="k").train
        assert data.group is not None
        ages = (50 + 50 * data.x[data.starts[:-1], 0]).round().astype(int).tolist()
        found.append(dict(zip(ages, data.group.tolist(), strict=True)))
    assert found[0] == found[1]
    assert {age: group for age, group in found[0].items() if age > 30} == {40: 1, 50: -1, 60: 1}
    assert [group for age, group in found[0].items() if age <= 30] == [0]
    undeclared = Schema.parse({**fields, "protected": {"column": "sex", "values": ["F", "X"]}})
    data = load(table, undeclared, "ill", site="a", holdout=0.0, split_key="k")
    assert "2 rows of a group that schema" in data.loaded.problems[0]
    assert sorted(data.train.group.tolist()) == [-1, -1, -1, 0]  # undeclared counts as no group
    with pytest.raises(StudyError, match="must be one of groups"):
        Schema.parse({**fields, "protected": {"column": "age", "values": ["1", "2"]}})


@pytest.mark.slow
def test_a_million_rows_in_bounded_memory(tmp_path: Path) -> None:
    """1,000,000 rows x 20 columns from CSV: peak resident memory under 700 MB, imports included."""
    path = tmp_path / "big.csv"
    script = """
        import pathlib, resource, sys
        from suture.site.cohort import load
        from suture.schema.table import Schema
        columns = {f"f{i}": {"kind": "number", "low": 0, "high": 100} for i in range(20)}
        schema = Schema.parse({"patient": "pid", "features": columns})
        data = load(sys.argv[1], schema, "y", site="a", holdout=0.2, split_key="k")
        peak, status = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, pathlib.Path("/proc/self/status")
        if status.exists():  # ru_maxrss of a new program begins at its parent's size, VmHWM does not
            peak = next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        print(data.loaded.rows, data.loaded.patients, peak)
    """
    make = """
        import duckdb, sys
        values = ", ".join(f"round(random() * 100, 2) AS f{i}" for i in range(20))
        duckdb.sql(f"COPY (SELECT i // 2 AS pid, {values}, (random() < 0.2)::INT AS y FROM range(1000000) t(i)) "
                   f"TO '{sys.argv[1]}' (HEADER)")
    """
    for text in (make, script):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(text), str(path)],
            check=True,
            capture_output=True,
            text=True,
        )
    rows, patients, peak = map(int, done.stdout.split())
    assert (rows, patients) == (1_000_000, 500_000)
    kilobytes = peak / (1024 if sys.platform == "darwin" else 1)
    assert kilobytes < 700_000, f"peak {kilobytes / 1000:.0f} MB"
