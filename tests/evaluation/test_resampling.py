"""Folds of hospitals: everyone once, sizes balanced, decided by public figures."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suture.engine import conduct
from suture.errors import StudyError
from suture.evaluation.metrics import cross_fitted, ece, platt_fit, rescale
from suture.evaluation.significance import grouped_folds
from suture.study import Study


@given(
    st.lists(st.integers(1, 5000), min_size=5, max_size=60), st.integers(2, 5), st.integers(0, 99)
)
def test_every_hospital_is_held_out_once_and_folds_are_balanced(sizes, folds, seed):
    named = {f"h{i}": size for i, size in enumerate(sizes)}
    parts = grouped_folds(named, folds, seed)
    assert sorted(name for part in parts for name in part) == sorted(named)
    totals = [sum(named[name] for name in part) for part in parts]
    assert max(totals) - min(totals) <= max(sizes)
    assert parts == grouped_folds(named, folds, seed)


def test_more_folds_than_hospitals_are_refused():
    with pytest.raises(ValueError, match="2 to 3 folds"):
        grouped_folds({"a": 1, "b": 1, "c": 1}, 4, 0)


def study(**changes):
    fields = {
        "name": "folds",
        "outcome": "died_in_hospital",
        "cohort": {"name": "icu", "hospitals": 6, "patients": 900},
        "method": {"name": "veil", "mode": "secure", "rounds": 5, "concepts": 8},
        "privacy": {"unit": "patient", "epsilon": 5.0, "accountant": "rdp"},
        "evaluation": {"folds": 3},
    }
    return Study(**{**fields, **changes})


def test_a_run_with_folds_measures_each_hospital_when_it_did_not_train(tmp_path):
    result = conduct.run(study(), out=tmp_path / "run", threads=1)
    found = result.data["methods"]["veil"]
    assert len(found["per_seed"]) == 3
    assert set(found["metrics"]["sites"]) == {f"hospital-{i:03d}" for i in range(1, 7)}
    rows = [site["rows"] for site in found["metrics"]["sites"].values()]
    assert sum(rows) == sum(site["train"] for site in result.data["cohort"]["sites"].values())
    assert set(result.privacy["sites"]) == set(found["metrics"]["sites"])
    assert 4.9 < result.privacy["epsilon"] <= 5.0
    again = conduct.resume(tmp_path / "run")
    assert again.data["metrics"] == result.data["metrics"]


def test_folds_work_for_pooled_and_alone():
    result = conduct.run(
        study(method={"name": "pooled", "rounds": 2, "local_epochs": 1}, model={"hidden": []}),
        threads=1,
    )
    assert len(result.data["methods"]["pooled"]["per_seed"]) == 3


def test_one_fold_and_too_many_folds_are_refused():
    with pytest.raises(StudyError, match="2 and more"):
        study(evaluation={"folds": 1})
    with pytest.raises(StudyError, match="7 folds need as many sites"):
        conduct.run(study(evaluation={"folds": 7}), threads=1)


def test_platt_finds_the_scale_of_a_distorted_model():
    rng = np.random.default_rng(1)
    logit = rng.normal(-2, 1.5, 40_000)
    y = (rng.random(40_000) < 1 / (1 + np.exp(-logit))).astype(int)
    distorted = 1 / (1 + np.exp(-(0.5 * logit + 1)))
    (slope, intercept), _ = platt_fit(y, distorted)
    assert slope == pytest.approx(2.0, abs=0.05)
    assert intercept == pytest.approx(-2.0, abs=0.05)
    assert ece(y, rescale(distorted, slope, intercept)) < 0.01 < ece(y, distorted)
    assert ece(y, cross_fitted(y, distorted)) < 0.01


def test_a_tiny_site_leaves_the_model_nearly_as_it_is():
    (slope, intercept), _ = platt_fit([1], [0.2])
    assert slope == pytest.approx(1.0, abs=0.25)
    assert intercept == pytest.approx(0.0, abs=0.25)
    assert cross_fitted([1], [0.2]).tolist() == [0.2]
