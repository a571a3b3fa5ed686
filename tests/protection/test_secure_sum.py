"""The secure sum: exact arithmetic, noise that has the stated distribution, and no total without
everybody's noise."""

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from suture.errors import PrivacyError, RunError
from suture.privacy.accounting.accountant import delta_of
from suture.privacy.noise.source import generator, seeded_key
from suture.protection.secure_sum import (
    BLUR,
    LEAST_SHARE,
    Grid,
    SecureSum,
    Share,
    discrete_gaussian,
    on_grid,
    pack_words,
    unpack_words,
    wobble,
)


def gaussian_table(deviation, reach=60, centre=0.0):
    x = np.arange(-reach, reach + 1)
    weight = np.exp(-((x - centre) ** 2) / (2 * deviation**2))
    return x, weight / weight.sum()


@pytest.mark.parametrize("centre", [0.0, 0.5, -0.3])
@pytest.mark.parametrize("deviation", [0.7, 2.0, 4.0])
def test_noise_is_discrete_gaussian_around_any_centre(deviation, centre):
    """200,000 draws, chi-squared on the values that are expected 20 times or more; false alarms
    once in 10,000."""
    x, p = gaussian_table(deviation, centre=centre)
    key = seeded_key(2, int(10 * deviation), int(10 * centre))
    drawn = discrete_gaussian(generator(key), deviation, np.full(200_000, centre))
    counts = np.array([np.count_nonzero(drawn == value) for value in x])
    seen = p * 200_000 >= 20
    expected = np.append(p[seen], 1 - p[seen].sum()) * 200_000
    found = np.append(counts[seen], 200_000 - counts[seen].sum())
    usual = expected > 5
    statistic = np.sum((found[usual] - expected[usual]) ** 2 / expected[usual])
    assert stats.chi2.sf(statistic, usual.sum() - 1) > 1e-4


def sums_of(parties, deviation, centres, others=0.3, reach=90):
    """The exact distribution of a sum of shares, for each centre of the first party."""
    found = []
    for own in centres:
        total = gaussian_table(deviation, reach, own)[1]
        for _ in range(parties - 1):
            total = np.convolve(total, gaussian_table(deviation, reach, others)[1])
        found.append(total)
    return found


def profile(p, q, epsilon):
    """The least delta at epsilon for this pair: the hockey-stick divergence."""
    return float(np.sum(np.maximum(p - np.exp(epsilon) * q, 0.0)))


EPSILONS = [0.0, 0.02, 0.3, 1.0, 2.5, 4.0]


@pytest.mark.parametrize("shift", [0.13, 0.5, 1.0, 2.7])
@pytest.mark.parametrize("deviation", [2.0, 2.9])
@pytest.mark.parametrize("parties", [1, 2, 3])
def test_a_sum_is_as_private_as_the_gaussian_of_theorem_4(deviation, shift, parties):
    """Exact (epsilon, delta) of the sums, both ways and around any centres, against the Gaussian
    that is charged; a lattice's own ripples, which a Gaussian of variance h s^2 would miss, are
    covered by `BLUR`."""
    charged = shift / np.sqrt(parties * deviation**2 - BLUR)
    for own in (0.0, 0.2, 0.47):
        pair = sums_of(parties, deviation, (own, own + shift))
        for epsilon in EPSILONS:
            for p, q in (pair, pair[::-1]):
                assert profile(p, q, epsilon) <= delta_of(epsilon, charged) + 1e-13


def test_the_ripples_of_a_lattice_are_real():
    """What a Gaussian of the same variance would promise is not true of one share: `BLUR` is no
    decoration."""
    worse = 0.0
    for own in np.linspace(0, 1, 21):
        p, q = sums_of(1, 2.0, (own, own + 1.0))
        worse = max(worse, max(profile(p, q, e) / delta_of(e, 1 / 2.0) for e in (0.3, 1.0, 2.5)))
    assert worse > 1.05


@pytest.mark.parametrize("deviation", [0.6, 1.0])
def test_theorem_4_holds_where_wobble_is_large(deviation):
    """With noise below a step the factors e^w count: delta <= e^w delta_mu(epsilon - 2 w), for two
    entries at once, and any variance of the rounding."""
    for share in (0.3, 0.6):
        blur = share * deviation**2
        w = 2 * (wobble(deviation, 1) + wobble(np.sqrt(blur), 1))
        mu = np.hypot(0.7, 0.4) / np.sqrt(deviation**2 - blur)
        for own in (0.0, 0.3):
            first = sums_of(1, deviation, (own, own + 0.7), reach=15)
            second = sums_of(1, deviation, (own, own - 0.4), reach=15)
            p, q = (np.outer(a, b) for a, b in zip(first, second, strict=True))
            for epsilon in (0.1, 1.0, 3.0):
                if epsilon > 2 * w:
                    assert profile(p, q, epsilon) <= np.exp(w) * delta_of(epsilon - 2 * w, mu)


@given(st.floats(1e-4, 8), st.floats(0, 1), st.floats(0, 40))
def test_four_wobbles_more_of_mu_cover_the_factors(mu, part, scale):
    """The last lemma of Theorem 4, with w at its largest: the worse of two bounds on a pair whose
    probabilities are within e^w of a Gaussian's is below the profile of mu + 4 w."""
    w, epsilon = part * 1e-6 * min(mu, 1 / mu), scale * mu
    first = np.exp(w) * delta_of(max(epsilon - 2 * w, 0.0), mu)
    second = 1 - np.exp(-w) * (1 - delta_of(epsilon, mu))
    assert min(first, second) <= delta_of(epsilon, mu + 4 * w) * (1 + 1e-10) + 1e-15


@pytest.mark.parametrize("deviation", [0.5, 0.8, 2.0])
def test_wobble_bounds_how_far_a_sum_is_from_a_gaussian(deviation):
    """log P(n) against log of the density of variance 2 s^2, at every n and several centres."""
    for first, second in ((0.0, 0.0), (0.5, 0.5), (0.25, -0.4), (0.5, 0.0)):
        p = np.convolve(
            gaussian_table(deviation, 40, first)[1], gaussian_table(deviation, 40, second)[1]
        )
        n = np.arange(-80, 81)
        near = np.abs(n - first - second) < 8 * deviation
        log_density = -((n - first - second) ** 2) / (4 * deviation**2) - 0.5 * np.log(
            4 * np.pi * deviation**2
        )
        assert np.max(np.abs(np.log(p[near]) - log_density[near])) <= wobble(deviation, 2) + 1e-11


def test_a_grid_costs_what_it_says():
    """Delta on the grid and the parties' joint deviation give mu^2 = 2 rho back, whatever the
    step."""
    for honest in (1, 5, 76):
        for step in (None, 0.5, 3.0):
            grid = Grid(sensitivity=4.0, rho=0.01, size=251, honest=honest, step=step)
            mu = 4.0 * grid.steps / np.sqrt(honest * grid.deviation**2 - BLUR)
            assert mu <= np.sqrt(0.02)
            if grid.deviation > LEAST_SHARE:
                assert mu == pytest.approx(np.sqrt(0.02), rel=1e-10)
            if step is None:
                assert grid.noise == pytest.approx(4.0 / np.sqrt(2 * 0.01), rel=1e-6)
    assert Share(grid).event == GaussianDpEvent(pytest.approx(0.02**-0.5))
    with pytest.raises(PrivacyError, match="no noise on this grid is proven"):
        _ = Grid(1.0, 1e-30, 100).deviation


def test_a_coarse_grid_rounds_without_bias():
    """A value of a third of a step, 40,000 parties: the mean is a third within five standard
    errors."""
    grid = Grid(1.0, 0.5, 40_000, step=1.5)
    words = grid.share(np.full(40_000, 0.5), seeded_key(4))
    assert abs(np.mean(words) - 1 / 3) < 5 * grid.deviation / 200


@pytest.mark.parametrize("bits", [8, 12, 13, 32])
def test_packed_words_come_back(bits):
    rng = np.random.default_rng(bits)
    for size in (1, 2, 7, 31):
        words = rng.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), size)
        data = pack_words(words, bits)
        assert len(data) == -(-size * bits // 8)
        assert unpack_words(data, bits).tolist() == words.tolist()
    with pytest.raises(RunError, match="8 to 32 bits"):
        pack_words(np.array([1]), 5)
    with pytest.raises(RunError, match="words of 12 bits"):
        unpack_words(np.zeros((1, 2), np.uint8), 12)


def test_packed_words_are_added_modulo_their_length():
    rng = np.random.default_rng(1)
    all_words = rng.integers(-9000, 9000, (5, 9))
    box = SecureSum(tuple("abcde"))
    for party, words in zip("abcde", all_words, strict=True):
        box.add(party, {"w13": pack_words(words, 13)})
    total = box.total()["w13"]
    assert np.all((total - all_words.sum(axis=0)) % 2**13 == 0)
    assert np.all(np.abs(total) <= 2**12)


def test_a_large_rho_still_gets_the_least_noise():
    assert Grid(1.0, 1e9, 3, honest=4, step=0.5).deviation == LEAST_SHARE


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
    with pytest.raises(RunError, match=r"'a' .* has added already"):
        box.add("a", {"x": np.array([1])})
    with pytest.raises(RunError, match="'c' is not expected"):
        box.add("c", {"x": np.array([1])})
    with pytest.raises(RunError, match="other shapes"):
        box.add("b", {"x": np.array([1, 2])})
    with pytest.raises(RunError, match="expected whole numbers"):
        box.add("b", {"x": np.array([1.0])})


def test_what_would_wrap_on_the_grid_is_held_at_its_end():
    """An error would tell of rows: what does not fit, or is not a number, is brought into the range
    instead."""
    for wrong, held in (
        (1e19, 2.0**62),
        (-1e300, -(2.0**62)),
        (np.inf, 2.0**62),
        (-np.inf, -(2.0**62)),
        (np.nan, 0.0),
    ):
        assert on_grid(np.array([wrong]), 1.0, 1).tolist() == [held]
    grid = Grid(1.0, 0.5, 1)
    assert abs(int(grid.share(np.array([np.inf]), bytes(32))[0])) <= 2**62 + 40 * grid.deviation
    with pytest.raises(RunError, match="expected 1 values"):
        on_grid(np.array([1.0, 2.0]), 1.0, 1)
