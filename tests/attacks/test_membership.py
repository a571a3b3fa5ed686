"""Likelihood-ratio membership: known distributions, known rates, and the bounds of differential
privacy."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from suture.attacks.membership import advantage_bound, attack, likelihood_ratio, tpr_bound
from suture.errors import StudyError


def test_bounds_by_hand():
    assert advantage_bound(math.log(3), 0.0) == pytest.approx(0.5)
    assert advantage_bound(1.0, 1e-5) == pytest.approx((math.e - 1 + 2e-5) / (math.e + 1))
    assert tpr_bound(math.log(3), 0.0, 0.1) == pytest.approx(0.3)
    assert tpr_bound(math.log(3), 0.0, 0.9) == pytest.approx(1 - 0.1 / 3)
    assert advantage_bound(math.inf, 0.0) == tpr_bound(math.inf, 0.0, 0.01) == 1.0


@given(st.floats(0, 12), st.floats(0, 0.1))
def test_the_advantage_bound_is_the_best_point_of_the_tpr_bound(epsilon, delta):
    best = max(tpr_bound(epsilon, delta, fpr) - fpr for fpr in np.linspace(0, 1, 2001))
    assert best <= advantage_bound(epsilon, delta) + 1e-9
    assert best >= advantage_bound(epsilon, delta) - 0.01


def test_gaussian_shift_has_the_known_advantage():
    # shift mu: advantage 2 Phi(mu/2) - 1 at the likelihood ratio's own threshold
    rng = np.random.default_rng(4)
    found = attack(rng.normal(1.0, 1.0, 8000), rng.normal(0.0, 1.0, 8000))
    truth = 2 * stats.norm.cdf(0.5) - 1
    assert found["advantage_low"] < truth < found["advantage_high"]
    assert found["auc"] == pytest.approx(stats.norm.cdf(1 / math.sqrt(2)), abs=0.02)
    strict = stats.norm.sf(stats.norm.isf(0.01) - 1.0)
    assert found["strict_tpr"] == pytest.approx(strict, abs=0.03)
    assert found["strict_fpr"] == pytest.approx(0.01, abs=0.006)


def test_nothing_to_see_is_nothing_seen():
    rng = np.random.default_rng(5)
    found = attack(rng.normal(size=4000), rng.normal(size=4000))
    assert found["advantage_low"] < 0 < found["advantage_high"]
    assert found["auc"] == pytest.approx(0.5, abs=0.03)


def test_intervals_are_clopper_pearson():
    rng = np.random.default_rng(6)
    found = attack(rng.normal(2.0, 1.0, 400), rng.normal(0.0, 1.0, 400))
    tpr = stats.binomtest(round(found["tpr"] * 200), 200).proportion_ci(0.975, "exact")
    fpr = stats.binomtest(round(found["fpr"] * 200), 200).proportion_ci(0.975, "exact")
    assert found["advantage_low"] == pytest.approx(tpr.low - fpr.high)
    assert found["advantage_high"] == pytest.approx(tpr.high - fpr.low)


def test_spread_alone_is_seen_too():
    rng = np.random.default_rng(7)
    assert attack(rng.normal(0, 3.0, 4000), rng.normal(0, 1.0, 4000))["advantage"] > 0.3


def test_observations_that_never_vary():
    found = attack(np.ones(100), np.zeros(100))
    assert (found["tpr"], found["fpr"], found["auc"]) == (1.0, 0.0, 1.0)


def test_several_observations_at_once():
    rng = np.random.default_rng(8)
    present, absent = rng.normal(0.7, 1, (2000, 4)), rng.normal(0, 1, (2000, 4))
    assert likelihood_ratio(present, absent)(present[:3]).shape == (3,)
    assert attack(present, absent)["advantage"] > attack(present[:, 0], absent[:, 0])["advantage"]


def test_too_few():
    with pytest.raises(StudyError, match="at least 40"):
        attack(np.zeros(10), np.zeros(10))
