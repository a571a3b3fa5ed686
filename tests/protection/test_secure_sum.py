"""The secure sum: exact arithmetic, noise that has the stated distribution, and no total without everybody's noise."""

import numpy as np
import pytest
from scipy import stats

from suture.errors import PrivacyError, RunError
from suture.privacy.mechanisms import generator, seeded_key
from suture.protection.secure_sum import Grid, SecureSum, discrete_gaussian, on_grid, tau


def gaussian_table(deviation, reach=60):
    x = np.arange(-reach, reach + 1)
    weight = np.exp(-(x**2) / (2 * deviation**2))
    return x, weight / weight.sum()


@pytest.mark.parametrize("deviation", [0.7, 1.0, 4.0])
def test_noise_is_discrete_gaussian(deviation):
    """200,000 draws, chi-squared on the values that are expected 20 times or more; false alarms once in 10,000."""
    x, p = gaussian_table(deviation)
    drawn = discrete_gaussian(generator(seeded_key(2, int(10 * deviation))), deviation, 200_000)
    counts = np.array([np.count_nonzero(drawn == value) for value in x])
    seen = p * 200_000 >= 20
    expected = np.append(p[seen], 1 - p[seen].sum()) * 200_000
    found = np.append(counts[seen], 200_000 - counts[seen].sum())
    usual = expected > 5
    statistic = np.sum((found[usual] - expected[usual]) ** 2 / expected[usual])
    assert stats.chi2.sf(statistic, usual.sum() - 1) > 1e-4


@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("deviation", [0.8, 1.0, 1.5])
def test_the_sum_of_two_costs_no_more_than_is_charged(deviation, shift):
    """Renyi divergences of the exact sum of two discrete Gaussians, against Delta^2/(2 n s^2) + tau d / 4 per order."""
    _, p = gaussian_table(deviation, 40)
    total = np.convolve(p, p)
    rho = shift**2 / (2 * 2 * deviation**2) + tau(deviation, 2) / 4
    a, b = total[shift:], total[:-shift]
    real = (a > 1e-280) & (b > 1e-280)
    for order in (1.5, 2.0, 3.0, 5.0):
        divergence = np.log(np.sum(np.exp(order * np.log(a[real]) + (1 - order) * np.log(b[real])))) / (order - 1)
        assert divergence <= order * rho * (1 + 1e-9)


def test_a_grid_costs_what_it_says():
    """Delta on the grid and the parties' joint deviation give rho back, rounding included."""
    for honest in (1, 5, 76):
        grid = Grid(sensitivity=4.0, rho=0.01, size=251, honest=honest)
        joint = grid.deviation * np.sqrt(honest)
        charged = grid.whole_sensitivity**2 / (2 * joint**2) + tau(grid.deviation, honest) * 251 / 4
        assert charged <= 0.01 * (1 + 1e-12)
        assert grid.noise == pytest.approx(4.0 / np.sqrt(2 * 0.01), rel=0.02)


def test_rounding_neighbours_stays_within_the_whole_sensitivity():
    rng = np.random.default_rng(3)
    grid = Grid(sensitivity=2.0, rho=0.1, size=50)
    for _ in range(200):
        values, change = rng.normal(size=50) * 100, rng.normal(size=50)
        change *= 2.0 / np.linalg.norm(change)
        moved = on_grid(values + change, grid.steps, 50) - on_grid(values, grid.steps, 50)
        assert np.linalg.norm(moved) <= grid.whole_sensitivity


def test_a_large_rho_still_gets_the_least_noise():
    assert Grid(1.0, 1e9, 3, honest=4).deviation == 4.0


def test_without_rho_nothing_is_added():
    grid = Grid(1.0, None, 2)
    assert grid.open(grid.share(np.array([0.5, -2.0]), seeded_key(1))).tolist() == [0.5, -2.0]


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_addition_wraps_and_comes_back(kind):
    top = np.iinfo(kind).max
    box = SecureSum(("a", "b", "c"))
    for party, value in (("a", top), ("b", 5), ("c", -top)):
        box.add(party, {"x": np.array([value], kind)})
    assert box.total()["x"].tolist() == [5]


def test_nothing_is_opened_until_all_have_added():
    box = SecureSum(("a", "b"))
    box.add("a", {"x": np.array([1])})
    with pytest.raises(PrivacyError, match="1 parties have not added yet, first 'b'"):
        box.total()
    with pytest.raises(RunError, match="'a' is not expected, or has added already"):
        box.add("a", {"x": np.array([1])})
    with pytest.raises(RunError, match="'c' is not expected"):
        box.add("c", {"x": np.array([1])})
    with pytest.raises(RunError, match="other shapes"):
        box.add("b", {"x": np.array([1, 2])})
    with pytest.raises(RunError, match="expected whole numbers"):
        box.add("b", {"x": np.array([1.0])})


def test_what_would_wrap_on_the_grid_is_refused():
    for wrong in (np.array([1e19]), np.array([np.inf]), np.array([1.0, 2.0])):
        with pytest.raises(RunError, match="fit 62 bits"):
            on_grid(wrong, 1.0, 1)
