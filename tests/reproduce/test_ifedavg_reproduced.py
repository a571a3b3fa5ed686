"""iFedAvg's reproduction: the paper's settings, its tables from results, and the score of planted faults."""

import pytest

from suture.reproduce import ifedavg
from suture.reproduce.detection import score
from suture.result import Result


def test_the_papers_settings():
    study = ifedavg.study("outbreak diagnosis", 8273)
    assert (study.method.rounds, study.method.rate, study.method.momentum) == (1000, 0.002, 0.5)
    assert (study.method.rate_decay, study.method.rate_steps, study.method.weighting) == (0.9, 50, "uniform")
    assert (study.model.hidden, study.model.activation, study.model.dropout) == ((128, 64), "tanh", 0.2)
    assert (study.model.scaling, study.method.class_weights) == ("site", "balanced")
    assert study.evaluation.holdout == 0.33
    assert study.methods == ifedavg.METHODS


def test_means_and_worst_clients_by_hand():
    def result(a, b):
        sites = {
            "a": {"f1_weighted": a, "rows": 50},
            "b": {"f1_weighted": b, "rows": 50},
            "c": {"f1_weighted": 0, "rows": 3},
        }
        methods = {name: {"metrics": {"sites": sites}} for name in ifedavg.METHODS}
        return Result({"name": "x", "methods": methods})

    runs = [result(0.5, 0.9), result(0.7, 0.7)]
    assert ifedavg._summary(runs, "ifedavg", "f1", "mean") == pytest.approx(0.7)
    assert ifedavg._summary(runs, "ifedavg", "f1", "worst") == pytest.approx(0.6)
    (row,) = ifedavg._table({"har": runs}, "f1", "worst")
    assert row["paper iFedAvg"] == 0.950
    assert row["our FedAvg"] == pytest.approx(0.6)


def test_plain_faults_are_found_and_clean_twins_left_alone():
    found = score([4], rounds=1, strengths=1)
    by_kind = {row["fault"]: row["found by our tests"] for row in found["faults"]}
    assert {kind for kind, share in by_kind.items() if share == 1.0} >= {
        "unit", "offset", "scale", "positives_only", "never", "flip",
    }  # fmt: skip
    ours, paper = found["rules"]
    assert (ours["precision"], ours["false flags a clean twin"]) == (1.0, 0.0)
    assert paper["false flags a clean twin"] > 0
