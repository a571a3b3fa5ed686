"""VEIL's table: what is run is what is claimed, and the figures draw what the table holds."""

import sys

import numpy as np
import pytest

from suture import cohorts
from suture.errors import MissingExtra
from suture.papers import reproduce, veil
from suture.papers.reproduction import page_table
from suture.privacy.unit import Patients

ICU = veil.Federation("icu")


def test_every_method_is_run_at_the_same_epsilon_on_held_out_hospitals():
    for key in veil.SETTINGS:
        for epsilon in veil.EPSILONS:
            study = ICU.study(key, epsilon)
            assert study.privacy.epsilon == epsilon
            assert study.privacy.delta == 1e-5
            assert study.evaluation.folds == 5
            assert study.cohort.options() == {}
            assert study.method.model_dump().get("concepts", 0) <= 60
        assert not ICU.study(key, None).private
        assert veil.Federation("eicu").study(key, 5.0).method == ICU.study(key, 5.0).method
    for key in veil.WITHOUT:
        assert not ICU.study(key, None).private
    assert not ICU.printed(5.0).private
    assert ICU.printed(5.0).method.claimed_epsilon == 5.0


def test_the_papers_table_is_complete():
    for method in ("VEIL", "DP-FedAvg", "DP-SCAFFOLD"):
        for epsilon in veil.EPSILONS:
            assert len(veil.PAPER[method, epsilon]) == 5
    assert veil.PAPER["VEIL", 5.0][:4] == (0.835, 0.382, 0.544, 0.010)


def test_an_interval_of_a_metric_is_cut_at_0_and_1():
    """Two folds of 0.9 and 0.98: Student's interval is 0.94 +- 12.706 x 0.04."""
    metrics = dict.fromkeys(
        ("auprc", "recall_at_90_specificity", "ece", "ece_mass", "ece_at_site"), 0.5
    )
    found = veil.measured([{**metrics, "auc": 0.9}, {**metrics, "auc": 0.98}])
    assert found["our AUC"] == pytest.approx(0.94)
    assert found["our AUC 95% low"] == pytest.approx(0.94 - 12.7062 * 0.04, abs=1e-4)
    assert found["our AUC 95% high"] == 1.0
    assert (found["our AUPRC 95% low"], found["our AUPRC 95% high"]) == (0.5, 0.5)


def test_the_pages_footnote_says_what_intervals_are_over():
    row = {
        "method": "a",
        "paper AUC": 0.8,
        "our AUC": 0.81,
        "our AUC 95% low": 0.8,
        "our AUC 95% high": 0.82,
    }
    assert page_table("t", [row], "folds").remark.endswith("our 95 % interval over folds.")


def rows():
    made = []
    for i, (label, _, _) in enumerate(veil.SETTINGS.values()):
        for epsilon in (1.0, 5.0):
            auc = 0.8 + 0.01 * i + 0.002 * epsilon
            made.append(
                {
                    "method": label,
                    "epsilon": epsilon,
                    "our AUC": auc,
                    "our AUC 95% low": auc - 0.01,
                    "our AUC 95% high": auc + 0.01,
                    "our AUPRC": auc / 2,
                    "our AUPRC 95% low": auc / 2 - 0.01,
                    "our AUPRC 95% high": auc / 2 + 0.01,
                    "our ECE": 0.01 * (i + 1),
                    "our MB": 0.1 * (i + 1),
                }
            )
    return made


def test_the_radar_scales_each_axis_from_worst_to_best():
    axes = veil.axes(
        {"our AUC": 0.8, "our AUPRC": 0.4, "our ECE": 0.25, "our MB": 1.0, "epsilon": 5.0}
    )
    assert axes == {
        "AUC": 0.8,
        "AUPRC": 0.4,
        "Trustworthiness": 0.75,
        "Efficiency": 0.0,
        "Privacy": 0.2,
    }
    assert (
        veil.axes(
            {**axes, "our AUC": 1, "our AUPRC": 1, "our ECE": 0, "our MB": 1, "epsilon": "none"}
        )["Privacy"]
        == 0
    )
    trees = {
        "method": "Pooled boosted trees (LightGBM)",
        "epsilon": "none",
        "our AUC": 0.87,
        "our AUPRC": 0.45,
    }
    drawn = veil.charts([*rows(), trees], "icu", "generated icu federation")
    assert {caption[:8] for _, caption in drawn.values()} == {"Figure 1", "Figure 2"}
    for chart, _ in drawn.values():
        chart.to_dict()


def test_references_are_measured_on_hospitals_that_did_not_train():
    found = veil.references(cohorts.load("icu", 3, hospitals=6, patients=900), 3, 2)
    assert [other["label"].split()[0] for other in found] == ["Pooled", "Pooled", "Logistic"]
    for other in found:
        assert len(other["folds"]) == 2
        assert all(0.4 < fold["auc"] <= 1 for fold in other["folds"])


def test_without_scikit_learn_nothing_is_trained(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    with pytest.raises(MissingExtra, match=r"scikit-learn.*suture\[baselines\]"):
        reproduce("veil", out=tmp_path, quick=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_quick_reproduction_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(veil, "COHORTS", {"icu": "generated icu federation"})
    found = reproduce("veil", out=tmp_path, quick=True, threads=1)
    table = found["tables"]["table1_icu"]["rows"]
    # Every setting at three epsilons, those without privacy, printed without noise, references.
    assert len(table) == len(veil.SETTINGS) * 3 + len(veil.WITHOUT) + 1 + 2 + 3
    for row in table:
        if isinstance(row["epsilon"], float):
            assert 0 < row["proven epsilon"] <= row["epsilon"] + 1e-3
    assert (tmp_path / "index.html").exists()
    assert (tmp_path / found["dashboard"]["picture"]).exists()


def test_a_patient_alone_at_a_hospital_is_not_scored_by_its_own_outcome():
    """Too few for a model: the score is the others' rate, whichever outcome the patient has."""
    x, starts = np.zeros((6, 2), np.float32), np.arange(7)
    for y in np.eye(6, dtype=np.int32):
        scores = veil._alone(Patients(x, y, starts), seed=1)
        assert scores[y == 1][0] in (0.5 / 5, 0.5 / 6)  # nobody among the other four or five
