"""Tables: the right cell in the right place, best marked, long lists cut and counted."""

from __future__ import annotations

import pytest
from support.sample import sample

from suture.report import words as tables
from suture.report.words import complete


@pytest.fixture(scope="module")
def full() -> dict:
    return complete(sample(methods=4, sites=5, rounds=5, seeds=3))


def test_quality_shows_means_intervals_and_the_best(full: dict) -> None:
    table = tables.quality(full, ["auc", "ece"])
    assert table.heads == ("Method", "AUC", "Calibration error (ECE)")
    for column, name, best in ((1, "auc", max), (2, "ece", min)):
        values = [m["metrics"]["global"][name] for m in full["methods"].values()]
        assert [row[column].text for row in table.rows] == [f"{v:.3f}" for v in values]
        assert [row[column].best for row in table.rows] == [v == best(values) for v in values]
    low, high = full["methods"]["fedavg"]["metrics"]["intervals"]["global"]["auc"]
    assert table.rows[0][1].note == f"{low:.3f} to {high:.3f}"
    assert table.rows[0][1].half == pytest.approx((high - low) / 2)


def test_cost_says_none_without_privacy(full: dict) -> None:
    assert [c.text for c in tables.cost(full).rows[0]] == [
        "FedAvg",
        "8.00",
        "1e-5",
        "6.2 MB",
        "6.2 MB",
        "5",
        "3.2 s",
    ]
    assert tables.cost(full).rows[0][1].note == "geriatric"
    open_result = complete(sample(methods=1, sites=2, rounds=2, seeds=1, private=False))
    assert tables.cost(open_result).rows[0][1].text == "none"


def test_p_values(full: dict) -> None:
    table = tables.significance(full)
    assert table is not None
    assert [row[0].text for row in table.rows] == ["FedProx", "FedCluster", "FedAdagrad"]
    assert tables.significance(complete({"methods": {"a": {}}})) is None


def test_hospitals_lowest_first_and_cut() -> None:
    many = complete(sample(methods=1, sites=200, rounds=2, seeds=1, cohort=False))
    table = tables.hospital_metrics(many)
    assert table is not None
    assert len(table.rows) == tables.MOST_ROWS
    assert table.rows[0][0].text == many["metrics"]["worst_site"]["site"]
    assert "And 170 more hospitals" in table.remark
    promise = tables.promises(many)
    assert promise is not None
    assert promise.rows[0][1].text == "8.00"
    assert len(promise.rows) == tables.MOST_ROWS


def test_a_hospital_without_a_promise_comes_first() -> None:
    found = tables.promises(
        complete({"methods": {"m": {"privacy": {"sites": {"a": 1.0, "b": None}}}}})
    )
    assert found is not None
    assert [row[1].text for row in found.rows] == ["none", "1.00"]


def test_training_patients_come_from_the_cohort_where_the_promise_lacks_them() -> None:
    result = {
        "name": "x",
        "methods": {"m": {"privacy": {"sites": {"a": 1.0}}}},
        "cohort": {"sites": {"a": {"train": 80}}},
    }
    found = tables.promises(complete(result))
    assert found is not None
    assert found.rows[0][3].text == "80"


def test_groups_flag_few_rows_and_the_lowest(full: dict) -> None:
    groups = {"sex": {"F": {"auc": 0.9, "rows": 400}, "M": {"auc": 0.8, "rows": 12}}}
    (table,) = tables.subgroups(complete({"methods": {"m": {"metrics": {"groups": groups}}}}))
    assert [(row[0].note, row[1].note) for row in table.rows] == [("", ""), ("lowest AUC", "few")]
    assert [t.caption for t in tables.subgroups(full)] == ["By sex", "By ethnicity"]


def test_differences_and_gaps_are_read_off_the_result() -> None:
    test = {"difference": -0.01, "paired": {"t": -3.0, "p": 0.04}, "welch": {"t": -2.0, "p": 0.08}}
    gap = {"parity_gap": 0.1, "intervals": {"parity_gap": [0.05, 0.2]}, "worst_group": "F"}
    methods = {"a": {"label": "M", "metrics": {"fairness": {"sex": gap}}}, "b": {}}
    compared = {"against": "a", "tests": {"b": test}}
    found = complete({"methods": methods, "comparison": compared})
    shown, gaps = tables.significance(found), tables.gaps(found)
    assert shown is not None
    assert gaps is not None
    assert [cell.text for cell in shown.rows[0]] == [
        "b",
        "−0.010",
        "−3.00",
        "0.040",
        "−2.00",
        "0.080",
    ]
    assert [cell.text for cell in gaps.rows[0]] == ["M", "sex", "0.100", "–", "–", "–"]
    assert gaps.rows[0][2].note == "0.050 to 0.200"
