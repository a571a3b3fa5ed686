"""Cohort description: counts, quartiles and whiskers by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from suture.errors import StudyError
from suture.report.describe import describe


def test_numbers_by_hand() -> None:
    ages = np.array([10.0, 20, 30, 40, 50.5, 200, np.nan])
    found = describe(
        {"a": {"age": ages}, "b": {"age": np.array([])}},
        {"age": {"low": 0.0, "high": 100.0}},
        bins=10,
    )["age"]
    assert found["edges"] == [0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
    assert found["counts"]["a"] == [0, 1, 1, 1, 1, 1, 0, 0, 0, 1]
    assert found["counts"]["b"] == [0] * 10
    # 200 is clipped to 100. Sorted 10 20 30 40 50.5 100: quartiles 22.5, 35, 47.875; whiskers reach
    # -15.6 to 85.9.
    expected = {"low": 10.0, "q1": 22.5, "median": 35.0, "q3": 47.875, "high": 50.5, "outliers": 1}
    assert found["box"] == {"a": expected}
    assert found["label"] == "Age"
    json.dumps(found, allow_nan=False)


def test_thirty_bins_hold_every_row() -> None:
    rng = np.random.default_rng(0)
    found = describe(
        {"a": {"x": rng.normal(50, 40, 1000)}}, {"x": {"low": 0, "high": 100, "unit": "mg"}}
    )["x"]
    assert len(found["edges"]) == 31
    assert sum(found["counts"]["a"]) == 1000
    assert found["unit"] == "mg"


def test_whole_numbers_get_bins_of_equal_count() -> None:
    found = describe(
        {"a": {"age": np.repeat(np.arange(28, 78), 3)}}, {"age": {"low": 28.0, "high": 77.0}}
    )["age"]
    assert found["edges"] == [27.5 + 2 * i for i in range(26)]
    assert found["counts"]["a"] == [6] * 25
    prime = describe({"a": {"x": np.arange(0, 67)}}, {"x": {"low": 0.0, "high": 66.0}})["x"]
    assert sum(prime["counts"]["a"]) == 67
    assert len(prime["edges"]) <= 31
    pairs = describe({"a": {"x": np.array([0, 1, 1])}}, {"x": {"low": 0.0, "high": 1.0}})["x"]
    assert pairs["edges"] == [-0.5, 0.5, 1.5]
    assert pairs["counts"]["a"] == [1, 2]


def test_wrong_bounds_name_the_feature() -> None:
    with pytest.raises(StudyError, match=r"'age'.*90 and 18"):
        describe({"a": {"age": [1]}}, {"age": {"low": 90.0, "high": 18.0}})
