"""Intervals and t-tests equal SciPy's, and say None where SciPy would warn or overstate."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from suture.evaluation.significance import interval, over_seeds, paired_t, welch_t

seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=100, deadline=None)
@given(seeds, st.integers(2, 12), st.sampled_from([0.9, 0.95, 0.99]))
def test_interval_equals_scipy(seed: int, n: int, level: float) -> None:
    values = np.random.default_rng(seed).normal(0.9, 0.02, n)
    low, high = stats.t.interval(level, n - 1, values.mean(), stats.sem(values))
    assert interval(values, level) == pytest.approx((values.mean(), low, high), rel=1e-9)


@settings(max_examples=100, deadline=None)
@given(seeds, st.integers(2, 12), st.integers(2, 12))
def test_tests_equal_scipy(seed: int, n: int, m: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(0.9, 0.02, n), rng.normal(0.89, 0.03, m)
    welch, expected = welch_t(a, b), stats.ttest_ind(a, b, equal_var=False)
    assert (welch["t"], welch["p"], welch["df"]) == pytest.approx(
        (expected.statistic, expected.pvalue, expected.df)
    )
    assert welch["difference"] == a.mean() - b.mean()
    k = min(n, m)
    paired, expected = paired_t(a[:k], b[:k]), stats.ttest_rel(a[:k], b[:k])
    assert (paired["t"], paired["p"], paired["df"]) == pytest.approx(
        (expected.statistic, expected.pvalue, k - 1)
    )


def test_by_hand() -> None:
    # Differences 1, 2, 3: mean 2, standard error 1/sqrt(3), t = 2 sqrt(3); p of t with 2 df in
    # closed form.
    found = paired_t([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    t = 2 * np.sqrt(3)
    assert found["t"] == pytest.approx(t)
    assert found["p"] == pytest.approx(1 - t / np.sqrt(2 + t * t))


@pytest.mark.parametrize("test", [paired_t, welch_t])
def test_degenerate(test) -> None:
    assert test([0.9, 0.9], [0.9, 0.9])["p"] == 1.0
    constant = test([0.9, 0.9, 0.9], [0.8, 0.8, 0.8])
    assert (constant["t"], constant["p"]) == (None, None)
    assert constant["difference"] == pytest.approx(0.1)
    single = test([0.9], [0.8])
    assert (single["t"], single["p"], single["df"]) == (None, None, None)
    json.dumps(constant, allow_nan=False)
    assert all(type(v) is float for v in test([0.9, 0.8, 0.7], [0.5, 0.6, 0.2]).values())
    with pytest.raises(ValueError, match="at least one value"):
        test([], [])
    with pytest.raises(ValueError, match="finite"):
        test([0.9, float("nan")], [0.8, 0.7])


def test_rounding_is_not_variation() -> None:
    # 0.9 - 0.8 and 0.8 - 0.7 differ in the last bit only: that is no evidence with p = 1e-16.
    assert paired_t([0.9, 0.8], [0.8, 0.7])["p"] is None


def test_pairing_needs_the_same_seeds() -> None:
    with pytest.raises(ValueError, match="found 2 and 3"):
        paired_t([0.1, 0.2], [0.1, 0.2, 0.3])


def test_one_value_has_no_interval() -> None:
    assert interval([0.5]) == (0.5, None, None)
    assert interval([0.5, 0.5]) == (0.5, 0.5, 0.5)
    with pytest.raises(ValueError, match="at least one"):
        interval([])
    with pytest.raises(ValueError, match="level"):
        interval([0.5], level=95)


def test_over_seeds_skips_undefined() -> None:
    means, intervals = over_seeds(
        [{"auc": 0.8, "f1": None}, {"auc": 0.9, "f1": None}, {"auc": None, "f1": None}]
    )
    assert means == {"auc": pytest.approx(0.85), "f1": None}
    assert intervals == {"auc": pytest.approx(list(interval([0.8, 0.9])[1:]))}
