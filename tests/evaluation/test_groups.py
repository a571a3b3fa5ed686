"""Group metrics equal metrics of the rows picked by hand; the worst site is chosen by AUC."""

from __future__ import annotations

import numpy as np
import pytest

from suture.evaluation.groups import by_group, worst
from suture.evaluation.metrics import measure


def test_each_value_gets_its_own_rows() -> None:
    rng = np.random.default_rng(6)
    y, p = rng.integers(0, 2, 300), rng.random(300)
    sex, ward = rng.choice(["F", "M"], 300), rng.integers(0, 3, 300)
    found = by_group(y, p, {"sex": sex, "ward": ward}, threshold=0.4)
    assert list(found) == ["sex", "ward"]
    assert list(found["ward"]) == ["0", "1", "2"]
    for value in "FM":
        rows = sex == value
        assert found["sex"][value] == measure(y[rows], p[rows], 0.4, rows=int(rows.sum()))
    assert sum(m["rows"] or 0 for m in found["ward"].values()) == 300


def test_missing_values_are_a_group_and_one_row_is_enough() -> None:
    found = by_group(
        [0, 1, 1], [0.1, 0.2, 0.9], {"sex": np.array(["F", None, float("nan")], dtype=object)}
    )
    assert {k: v["rows"] for k, v in found["sex"].items()} == {"F": 1, "missing": 2}


def test_wrong_length_names_the_group() -> None:
    with pytest.raises(ValueError, match="'sex': expected 2 values"):
        by_group([0, 1], [0.1, 0.2], {"sex": ["F", "M", "F"]})


def test_worst_site() -> None:
    assert (
        worst(
            {"b": {"auc": 0.7}, "a": {"auc": 0.7}, "c": {"auc": 0.8}, "d": {"auc": None}, "e": {}}
        )
        == "a"
    )
    assert worst({"a": {"auc": None}}) is None
    assert worst({}) is None
