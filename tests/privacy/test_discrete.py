"""The discrete Gaussian: its distribution, its variance, and the argument for what it is worth,
corner by corner."""

from fractions import Fraction

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import ndtr, ndtri

from suture.errors import PrivacyError
from suture.privacy.accounting.accountant import epsilon
from suture.privacy.noise.discrete import Coins, _steps, discrete_gaussian, gaussian_mu, sigma_for
from suture.privacy.noise.source import secure_key, seeded_key


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
