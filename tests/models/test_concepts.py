"""The concept dictionary: names, values by hand, and the bound that the privacy proof needs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from suture.errors import StudyError
from suture.models.concepts import dictionary, plain
from suture.schema.table import Category, Flag, Number, Schema
from suture.site.preprocess import Counts, encode

SCHEMA = Schema(
    features={
        "breaths": Number(
            low=0,
            high=60,
            unit="/min",
            label="Respiratory rate",
            normal=(12, 20),
            thresholds={"low": 8, "high": [25, 35]},
        ),
        "sex": Category(values=("F", "M"), label="Sex", protected=True, missing="fill"),
        "teaching": Flag(label="Teaching hospital", proxy=True),
    }
)
KNOWN = dictionary(SCHEMA)


def concepts_of(breaths, sex=0, teaching=1):
    columns = {
        "breaths": np.array([breaths], np.float64),
        "sex": np.array([sex], np.int16),
        "teaching": np.array([teaching], np.int16),
    }
    row = KNOWN.matrix(encode(columns, SCHEMA, None, Counts()))[0]
    return dict(zip([concept.name for concept in KNOWN.items], row.tolist(), strict=True))


def test_names_are_what_a_clinician_reads():
    assert [concept.name for concept in KNOWN.items] == [
        "Respiratory rate",
        "Respiratory rate, below normal (< 12 /min)",
        "Respiratory rate, above normal (> 20 /min)",
        "Respiratory rate, low (< 8 /min)",
        "Respiratory rate, high (> 25 /min)",
        "Respiratory rate, high (> 35 /min)",
        "Respiratory rate, not measured",
        "Sex: F",
        "Sex: M",
        "Teaching hospital: yes",
        "Teaching hospital, not recorded",
    ]
    assert [c.name for c in KNOWN.items if c.protected] == ["Sex: F", "Sex: M"]
    assert [c.feature for c in KNOWN.items if c.proxy] == ["teaching", "teaching"]
    assert KNOWN.items[4].unit == "/min"
    assert "not a biological cause" in KNOWN.items[7].caution
    assert KNOWN.items[0].caution == ""


def test_values_by_hand():
    found = concepts_of(36)
    assert found["Respiratory rate"] == pytest.approx(0.2)
    assert found["Respiratory rate, above normal (> 20 /min)"] == pytest.approx(16 / (16 + 8))
    assert found["Respiratory rate, below normal (< 12 /min)"] == 0
    assert (
        found["Respiratory rate, high (> 25 /min)"]
        == found["Respiratory rate, high (> 35 /min)"]
        == 1
    )
    assert concepts_of(4)["Respiratory rate, below normal (< 12 /min)"] == pytest.approx(
        8 / (8 + 8)
    )
    assert concepts_of(4)["Respiratory rate, low (< 8 /min)"] == 1


@pytest.mark.parametrize(("breaths", "past"), [(25, 0.0), (25.01, 1.0), (24.99, 0.0)])
def test_a_value_at_a_threshold_is_not_beyond_it(breaths, past):
    assert concepts_of(breaths)["Respiratory rate, high (> 25 /min)"] == past


def test_a_missing_value_says_only_that_it_is_missing():
    found = concepts_of(np.nan, sex=-1, teaching=-1)
    assert {name: value for name, value in found.items() if value} == {
        "Respiratory rate, not measured": 1.0,
        "Teaching hospital, not recorded": 1.0,
    }


@given(
    arrays(
        np.float32,
        (3, KNOWN.inputs),
        elements=st.floats(width=32, allow_nan=True, allow_infinity=True),
    )
)
def test_no_row_can_leave_the_interval(x):
    """The sensitivity of every VEIL release is this bound, also for rows that no encoder would
    give."""
    found = KNOWN.matrix(x)
    assert np.all(np.abs(found) <= 1)


def test_the_digest_is_of_the_content():
    assert dictionary(SCHEMA).digest == KNOWN.digest != plain(KNOWN.inputs).digest
    assert KNOWN.digest in repr(KNOWN)
    assert len(repr(KNOWN)) < 100


@pytest.mark.parametrize(
    "wrong",
    [
        {"normal": [20, 12]},
        {"normal": [12, 80]},
        {"thresholds": {}},
        {"thresholds": {"high": 60}},
        {"thresholds": {"low": 30, "high": 25}},
        {"normal": [12, 20], "thresholds": {"high": 18}},
        {"normal": [12, 20], "thresholds": {"high": [25, 25]}},
    ],
)
def test_declarations_that_mean_nothing_are_refused_with_an_example(wrong):
    with pytest.raises(StudyError, match=r"features\.rate.*for example"):
        Schema.parse({"features": {"rate": {"kind": "number", "low": 0, "high": 60, **wrong}}})


def test_a_study_file_keeps_the_declarations():
    parsed = Schema.parse(SCHEMA.model_dump(mode="json", exclude_none=True))
    assert parsed == SCHEMA
