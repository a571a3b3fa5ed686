"""Bounds: exact numbers, by hand and against SciPy."""

import math

import numpy as np
import pytest
from dp_accounting import (
    GaussianDpEvent,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from suture.attacks.bounds import (
    claimed_mu,
    epsilon_bound,
    epsilon_of_mu,
    event_bound,
    mu_bound,
    rate_high,
    rate_low,
    reach,
    refutes,
)
from suture.privacy.accounting.accountant import epsilon_of
from suture.privacy.accounting.events import normal_form


@given(st.integers(1, 2000), st.data())
def test_clopper_pearson_is_scipys(trials, data):
    k = data.draw(st.integers(0, trials))
    exact = stats.binomtest(k, trials).proportion_ci(0.95, "exact")
    assert rate_low(k, trials, 0.025) == pytest.approx(exact.low, rel=1e-9, abs=1e-12)
    assert rate_high(k, trials, 0.025) == pytest.approx(exact.high, rel=1e-9, abs=1e-12)


def test_bounds_work_on_whole_arrays():
    k = np.arange(0, 11)
    assert rate_low(k, 10, 0.025).tolist() == [rate_low(int(i), 10, 0.025) for i in k]
    assert rate_high(k, 10, 0.025).tolist() == [rate_high(int(i), 10, 0.025) for i in k]


def test_epsilon_by_hand():
    # no false positive in 1000: FPR_high = 1 - 0.025^(1/1000); 900 hits: TPR_low from the beta
    # quantile
    fpr = 1 - 0.025 ** (1 / 1000)
    tpr = stats.beta.ppf(0.025, 900, 101)
    assert epsilon_bound(900, 0, 1000, 1e-5, 0.05) == pytest.approx(
        math.log((tpr - 1e-5) / fpr), rel=1e-9
    )
    assert epsilon_bound(10, 10, 1000, 0.0, 0.05) == 0.0
    assert epsilon_bound(0, 0, 1000, 1e-5, 0.05) == 0.0


def test_mu_by_hand():
    fpr = stats.beta.ppf(0.975, 101, 900)
    assert mu_bound(900, 100, 1000, 0.05) == pytest.approx(2 * stats.norm.ppf(1 - fpr), rel=1e-9)
    assert mu_bound(100, 900, 1000, 0.05) == 0.0
    assert epsilon_of_mu(1.0, 1e-5) == pytest.approx(4.377, abs=1e-3)


def test_reach_is_every_guess_right():
    low, high = 0.025 ** (1 / 500), 1 - 0.025 ** (1 / 500)
    assert reach(500, 0.0, 0.05, gaussian=True) == pytest.approx(math.log(low / high), rel=1e-9)
    mu = 2 * stats.norm.ppf(1 - high)
    assert reach(500, 1e-5, 0.05, gaussian=True) == pytest.approx(epsilon_of_mu(mu, 1e-5), rel=1e-6)


def test_the_gaussian_curve_is_refuted_just_above_it():
    form = normal_form(GaussianDpEvent(2.0))
    assert claimed_mu(form) == 0.5
    for fpr in (0.001, 0.05, 0.3):
        tpr = stats.norm.cdf(stats.norm.ppf(fpr) + 0.5)
        assert not refutes(form, tpr, fpr)
        assert refutes(form, tpr + 0.004, fpr)


def test_sampled_claims_are_bounded_by_their_own_kind():
    event = SelfComposedDpEvent(PoissonSampledDpEvent(0.2, GaussianDpEvent(1.0)), 10)
    form = normal_form(event)
    assert claimed_mu(form) is None
    claimed = epsilon_of(form, 1e-5)
    # guesses no better than a coin prove nothing; perfect ones prove far more than the claim
    assert event_bound(form, 1e-5, 500, 500, 1000, 0.05) == 0.0
    assert event_bound(form, 1e-5, 1000, 0, 1000, 0.05) > 2 * claimed
    # a point on the claimed curve itself never proves more than the claim
    fpr = 0.1
    inside = next(t for t in np.linspace(1, 0, 2001) if not refutes(form, t, fpr))
    assert event_bound(form, 1e-5, int(inside * 10_000), 1000, 10_000, 0.05) <= claimed


def test_nothing_is_proven_about_what_promises_nothing():
    assert event_bound(normal_form(NonPrivateDpEvent()), 1e-5, 1000, 0, 1000, 0.05) == 0.0
