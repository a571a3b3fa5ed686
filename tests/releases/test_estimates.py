"""Intervals hold what they say, measured on repeated noise with the discrete Gaussian."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suture.privacy.noise.mechanisms import discrete_gaussian
from suture.privacy.noise.source import seeded_key
from suture.releases.query import quantiles, rate, shares


@pytest.mark.parametrize(("events", "others"), [(48, 3952), (3, 300), (200, 30)])
def test_a_rate_s_interval_holds_the_exact_rate_in_95_of_100(events, others):
    runs = 2000
    noise = discrete_gaussian(Fraction(6), 2 * runs, seeded_key(2, events)).reshape(runs, 2)
    held = 0
    for a, b in noise:
        low, high = rate(events + a, others + b, 6.0)["interval"]
        held += low <= events / (events + others) <= high
    # 95 % of 2,000 with a standard deviation of 0.5 points: four of them are a false alarm in
    # 30,000 a side.
    assert held / runs == pytest.approx(0.95, abs=0.02) or (low == 0.0 and held / runs > 0.93)


def test_a_denominator_that_is_all_noise_gives_no_answer():
    found = rate(3.0, -5.0, 10.0)
    assert found["rate"] is None
    assert found["interval"] == [0.0, 1.0]


def test_quantile_intervals_hold_the_exact_bin():
    rng = np.random.default_rng(4)
    values = np.sort(rng.normal(60, 12, 3000).clip(20, 100))
    edges = np.linspace(20, 100, 65)
    exact = np.histogram(values, edges)[0]
    runs, held = 400, 0
    noise = discrete_gaussian(Fraction(4), 64 * runs, seeded_key(9)).reshape(runs, 64)
    for row in noise:
        for found in quantiles(exact + row, edges, [0.1, 0.5, 0.9], 4.0):
            low, high = found["interval"]
            held += low <= np.quantile(values, found["quantile"]) <= high
    assert held / (3 * runs) > 0.93
    middle = quantiles(exact, edges, [0.5], 1e-6)[0]
    assert middle["value"] == pytest.approx(np.median(values), abs=1.25)


@given(st.lists(st.integers(-20, 1000), min_size=1, max_size=12))
def test_shares_add_up_and_counts_are_never_negative(counts):
    found = shares(np.array(counts), [str(i) for i in range(len(counts))], 3.0)
    assert all(row["count"] >= 0 and row["interval"][0] >= 0 for row in found)
    if sum(max(0, c) for c in counts):
        assert sum(row["share"] for row in found) == pytest.approx(1.0)
