"""The door's mechanisms: the discrete Gaussian (its distribution, its variance, and what it is worth,
corner by corner), and private selection against closed form, by enumeration (docs/veil.md, Theorems
1 to 3)."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import logsumexp, ndtr, ndtri
from support.reference import pick_probabilities

from suture.errors import PrivacyError
from suture.privacy.accounting.accountant import epsilon
from suture.privacy.noise.mechanisms import (
    Coins,
    _steps,
    discrete_gaussian,
    gaussian_mu,
    pick_strength,
    sigma_for,
    signed_top,
)
from suture.privacy.noise.source import secure_key, seeded_key

SCORES = np.array([1.5, -0.5, 0.25])
EPS0 = 0.9
ORDERS = (1.1, 1.5, 2.0, 4.0, 16.0, 64.0)


def masses(sigma, reach):
    k = np.arange(-reach, reach + 1)
    weight = np.exp(-0.5 * (k / sigma) ** 2)
    return k, weight / weight.sum()


@pytest.mark.parametrize("sigma", [Fraction(1, 2), Fraction(1), Fraction(17, 8), Fraction(12)])
def test_samples_have_the_stated_distribution(sigma):
    # Pearson's test at a false-alarm rate of 1 in 100,000, on a fixed seed.
    samples = discrete_gaussian(sigma, 30_000, seeded_key(11, str(sigma)))
    k, mass = masses(float(sigma), int(12 * sigma) + 12)
    expected = 30_000 * mass
    kept = expected > 8
    seen = np.array([np.count_nonzero(samples == value) for value in k])
    seen, expected = (
        np.append(seen[kept], seen[~kept].sum()),
        np.append(expected[kept], expected[~kept].sum()),
    )
    statistic = np.sum((seen - expected) ** 2 / np.maximum(expected, 1e-9))
    assert stats.chi2.sf(statistic, len(seen) - 1) > 1e-5


@pytest.mark.parametrize("sigma", [Fraction(1), Fraction(5), Fraction(40)])
def test_variance_and_mean(sigma):
    samples = discrete_gaussian(sigma, 20_000, seeded_key(3, str(sigma)))
    k, mass = masses(float(sigma), int(12 * sigma) + 12)
    variance = float(np.sum(mass * k**2))
    # Five standard errors each: a false alarm in under 1 in a million.
    assert abs(samples.mean()) < 5 * np.sqrt(variance / 20_000)
    assert abs(samples.var() / variance - 1) < 5 * np.sqrt(2 / 20_000)


def test_coins_are_exact_in_the_mean():
    coins = Coins(seeded_key(5))
    tosses = [coins.bernoulli_exp(3, 2) for _ in range(40_000)]
    share = np.exp(-1.5)
    assert abs(np.mean(tosses) - share) < 5 * np.sqrt(share * (1 - share) / 40_000)
    assert {coins.below(5) for _ in range(200)} == set(range(5))
    assert coins.below(1) == 0


def test_the_key_decides_and_fresh_keys_differ():
    one = discrete_gaussian(Fraction(50), 40, seeded_key(1))
    assert np.array_equal(one, discrete_gaussian(Fraction(50), 40, seeded_key(1)))
    assert not np.array_equal(one, discrete_gaussian(Fraction(50), 40, seeded_key(2)))
    assert not np.array_equal(discrete_gaussian(Fraction(50), 40, secure_key()), one)


@pytest.mark.parametrize("sigma", [0.5, 0.8, 1.0, 2.0, 5.0, 10.0])
@pytest.mark.parametrize("shift", [1, 2, 5])
def test_every_corner_of_the_trade_off_lies_above_the_gaussian_s(sigma, shift):
    mu = shift * gaussian_mu(Fraction(sigma))
    k, mass = masses(sigma, int(12 * sigma) + 20)
    below = np.cumsum(mass)
    for cut in range(-int(6 * sigma), int(6 * sigma) + 1):
        alpha = mass[k >= cut].sum()
        beta = mass[k <= cut - 1 - shift].sum()  # P[Y + shift < cut]
        if 1e-12 < alpha < 1 - 1e-12 and beta > 1e-12:
            assert beta >= ndtr(ndtri(1 - alpha) - mu) * (1 - 1e-9)
    assert below[-1] == pytest.approx(1)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0, 5.0, 10.0, 20.0])
def test_the_largest_step_is_over_the_middle(sigma):
    steps = _steps(sigma, int(max(30 * sigma, 8 * sigma**2)) + 10)
    assert int(np.argmax(steps)) == len(steps) - 1
    if sigma >= 5:
        assert (steps[-1] * sigma - 1) * sigma**2 == pytest.approx(1 / 24, rel=0.01)


@pytest.mark.parametrize("sigma", [0.7, 1.3, 3.0])
def test_delta_of_the_noisy_count_is_within_the_claimed_gaussian_s(sigma):
    _, mass = masses(sigma, int(14 * sigma) + 20)
    claimed = 1 / gaussian_mu(Fraction(sigma))
    for delta in (1e-3, 1e-5):
        eps = epsilon(GaussianDpEvent(claimed), delta)
        shifted = np.append(0.0, mass[:-1])  # Y + 1
        exact = np.sum(np.maximum(0.0, shifted - np.exp(eps) * mass))
        assert exact <= delta * (1 + 1e-9)


@settings(deadline=None, max_examples=40)
@given(st.floats(0.3, 200), st.sampled_from([1, 3, 12]))
def test_the_least_sigma_is_enough_and_close(multiplier, sensitivity):
    sigma = sigma_for(multiplier, sensitivity)
    assert gaussian_mu(sigma) * multiplier * sensitivity <= 1
    assert float(sigma) >= multiplier * sensitivity or float(sigma) == 0.5
    assert float(sigma) <= max(0.5, multiplier * sensitivity * 1.3) + 0.002


def test_refusals():
    for call in (
        lambda: discrete_gaussian(Fraction(0), 1, seeded_key(1)),
        lambda: gaussian_mu(Fraction(1, 4)),
        lambda: gaussian_mu(Fraction(30_000)),
        lambda: sigma_for(0.0),
    ):
        with pytest.raises(PrivacyError):
            call()


# --- votes ---


def sequences(scores, picks, eps0):
    """Every ordered outcome of ``picks`` picks in turn and its probability, straight from the
    definition."""
    found = {}

    def go(left, chosen, probability):
        if len(chosen) == picks:
            found[tuple(chosen)] = probability
            return
        weights = {(j, s): np.exp(eps0 * s * scores[j] / 2) for j in left for s in (1, -1)}
        total = sum(weights.values())
        for (j, s), weight in weights.items():
            go([i for i in left if i != j], [*chosen, (j, s)], probability * weight / total)

    go(list(range(len(scores))), [], 1.0)
    return found


def renyi(p, q, order):
    keys = list(p)
    a, b = np.array([p[key] for key in keys]), np.array([q[key] for key in keys])
    return logsumexp(order * np.log(a) + (1 - order) * np.log(b)) / (order - 1)


def test_one_pick_is_the_exponential_mechanism():
    exact = sequences(SCORES, 1, EPS0)
    closed = pick_probabilities(SCORES, EPS0)
    for ((j, s),), probability in exact.items():
        assert closed[0 if s == 1 else 1, j] == pytest.approx(probability, rel=1e-12)


@pytest.mark.parametrize("picks", [1, 2, 3])
def test_one_shot_gumbel_noise_is_picking_in_turn(picks):
    """12,000 draws against the enumerated probabilities; chi-squared, false alarms once in
    10,000."""
    exact = sequences(SCORES, picks, EPS0)
    counts = dict.fromkeys(exact, 0)
    draws = 12_000
    for i in range(draws):
        ids, signs = signed_top(SCORES, picks, EPS0, seeded_key(5, picks, i))
        counts[tuple(zip(ids.tolist(), signs.tolist(), strict=True))] += 1
    expected = np.array([exact[key] * draws for key in exact])
    statistic = float(np.sum((np.array(list(counts.values())) - expected) ** 2 / expected))
    assert stats.chi2.sf(statistic, len(exact) - 1) > 1e-4


def test_a_wrong_scale_would_be_noticed():
    """The same chi-squared test refuses noise of half the scale: it has the power to find the bug
    it looks for."""
    exact = sequences(SCORES, 1, EPS0)
    counts = dict.fromkeys(exact, 0)
    for i in range(12_000):
        ids, signs = signed_top(SCORES, 1, 2 * EPS0, seeded_key(5, i))
        counts[((int(ids[0]), int(signs[0])),)] += 1
    expected = np.array([exact[key] * 12_000 for key in exact])
    assert np.sum((np.array(list(counts.values())) - expected) ** 2 / expected) > 100


@pytest.mark.parametrize("eps0", [0.1, 1.0, 4.0])
def test_bounded_range_over_all_neighbours(eps0):
    """A patient moves every score by at most 1: over all corners the log ratios span eps0 and never
    more."""
    widest = 0.0
    base = np.log(pick_probabilities(SCORES, eps0))
    for change in product((-1, -0.5, 0, 0.5, 1), repeat=3):
        ratio = np.log(pick_probabilities(SCORES + np.array(change), eps0)) - base
        span = float(ratio.max() - ratio.min())
        assert span <= eps0 * (1 + 1e-12)
        assert float(np.abs(ratio).max()) <= eps0 * (1 + 1e-12)
        widest = max(widest, span)
    assert widest == pytest.approx(eps0)


@pytest.mark.parametrize("picks", [1, 2])
@pytest.mark.parametrize("eps0", [0.2, 1.0, 3.0])
def test_renyi_divergence_is_below_the_zcdp_that_is_charged(picks, eps0):
    """Exact distributions over ordered outcomes, every neighbour on a grid, both directions,
    several orders."""
    rho = picks * eps0**2 / 8
    assert pick_strength(rho, picks) == pytest.approx(eps0)
    for base in (np.zeros(3), SCORES):
        here = sequences(base, picks, eps0)
        for change in product((-1, 0, 1), repeat=3):
            there = sequences(base + np.array(change), picks, eps0)
            for order in ORDERS:
                assert renyi(here, there, order) <= order * rho * (1 + 1e-9)
                assert renyi(there, here, order) <= order * rho * (1 + 1e-9)


def test_without_noise_the_largest_are_picked_in_order():
    ids, signs = signed_top(np.array([0.5, -2.0, 1.0, 0.0]), 3, None, b"")
    assert ids.tolist() == [1, 2, 0]
    assert signs.tolist() == [-1, 1, 1]


def test_wrong_arguments_are_refused():
    with pytest.raises(PrivacyError, match="1 to 3 picks"):
        signed_top(SCORES, 4, 1.0, seeded_key(1))
    with pytest.raises(PrivacyError, match="rho above 0"):
        pick_strength(0.0, 2)
