"""The normal generator: moments, Kolmogorov-Smirnov, tails, independence within pairs, and exact
corner cases."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from suture.privacy.noise.source import Keystream, seeded_key
from suture.training.local import fill_normals, normals, words_for

N = 4_000_000


@pytest.fixture(scope="module")
def sample():
    return normals(N, Keystream(seeded_key(2024, "noise test"))).astype(np.float64)


def test_moments(sample):
    # Each within five standard errors: false alarms below 6e-7 each, 4e-6 for the six.
    for power, mean, variance in (
        (1, 0, 1),
        (2, 1, 2),
        (3, 0, 15),
        (4, 3, 96),
        (5, 0, 945),
        (6, 15, 10170),
    ):
        assert abs(np.mean(sample**power) - mean) < 5 * np.sqrt(variance / N), f"moment {power}"


def test_kolmogorov_smirnov(sample):
    # False alarms 1e-6 by construction of the threshold.
    assert stats.kstest(sample, "norm").pvalue > 1e-6


def test_equal_probability_cells(sample):
    # 1000 cells of equal probability: finer than a distribution function can show; false alarms
    # 1e-6.
    counts = np.histogram(stats.norm.cdf(sample), np.linspace(0, 1, 1001))[0]
    assert stats.chisquare(counts).pvalue > 1e-6


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("at", [1.0, 2.0, 3.0, 4.0, 4.5])
def test_tails(sample, at, sign):
    # Counts beyond the threshold are Poisson to a good approximation; two-sided false alarms 1e-6
    # for each of ten.
    count, mean = np.sum(sign * sample > at), N * stats.norm.sf(at)
    low, high = stats.poisson.ppf([5e-7, 1 - 5e-7], mean)
    assert low <= count <= high


@pytest.mark.slow
def test_tail_beyond_five_deviations():
    stream, count, total = Keystream(seeded_key(5, "tail")), 0, 0
    for _ in range(100):
        z = normals(4_000_000, stream)
        count += int(np.sum(np.abs(z) > 5))
        total += len(z)
    mean = total * 2 * stats.norm.sf(5)  # about 229
    low, high = stats.poisson.ppf([5e-7, 1 - 5e-7], mean)
    assert low <= count <= high


def test_pairs_and_neighbours_are_independent(sample):
    half = len(sample) // 2
    # normals() puts the cosines of the whole draw in the first half and the sines in the second.
    pairs = sample[:half], sample[half : 2 * half]
    neighbours = sample[:-1], sample[1:]
    for a, b in (pairs, neighbours):
        n = len(a)
        # Correlations of values, of squares and of values with squares, five standard errors each
        # (6e-7 x 6).
        assert abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(n)
        assert abs(np.corrcoef(a**2, b**2)[0, 1]) < 5 / np.sqrt(n)
        assert abs(np.corrcoef(a, b**2)[0, 1]) < 5 / np.sqrt(n)
    # The angle of a pair is uniform, in 256 cells; false alarms 1e-6.
    angles = np.histogram(np.arctan2(pairs[1], pairs[0]), np.linspace(-np.pi, np.pi, 257))[0]
    assert stats.chisquare(angles).pvalue > 1e-6


def one(high: int, low: int, turn: int) -> tuple[float, float]:
    words = np.zeros(48, np.uint32)
    words[0], words[16], words[32] = high, low, turn
    out = np.empty(32, np.float32)
    fill_normals(words, out)
    return float(out[0]), float(out[16])


def test_each_value_is_box_and_mullers_to_float32_accuracy():
    rng = np.random.default_rng(1)
    words = rng.integers(0, 2**32, 30_000, dtype=np.uint32)
    words[:64] >>= np.arange(64, dtype=np.uint32) // 2  # radii out to the tail
    out = np.empty(20_000, np.float32)
    fill_normals(words, out)
    radius, angle = radius_of(words), 2 * np.pi * words[20_000:].astype(np.float64) / 2**32
    error = np.abs(out - np.concatenate([radius * np.cos(angle), radius * np.sin(angle)]))
    assert np.all(error < 1e-6 * np.tile(radius, 2))


def radius_of(words: np.ndarray) -> np.ndarray:
    """In float64, with 1 - u where u is close to 1."""
    high, low = words.astype(np.float64).reshape(3, -1)[:2]
    odd = (2 * (low // 2) + 1) / 2**32
    u, rest = (high + odd) / 2**32, ((2**32 - 1 - high) + (1 - odd)) / 2**32
    return np.sqrt(-2 * np.where(u > 0.5, np.log1p(-rest), np.log(u)))


def test_small_radii_are_as_fine_as_large_ones():
    """Uniforms next to 1 were rounded to 24 bits: a pair had no noise at all once in 2^25 pairs.
    Now once in 2^57."""
    rng = np.random.default_rng(3)
    words = rng.integers(0, 2**32, 30_000, dtype=np.uint32)
    words[:10_000] = 2**32 - 1 - rng.integers(0, 2 ** rng.integers(0, 24, 10_000))
    out = np.empty(20_000, np.float32)
    fill_normals(words, out)
    found = np.hypot(out[:10_000].astype(np.float64), out[10_000:])
    radius = radius_of(words)
    assert radius.min() < 1e-5
    assert np.all(np.abs(found / radius - 1) < 1e-6 + 2.0**-55 / radius**2)
    assert len(np.unique(found)) > 9_990


def test_corners():
    # The smallest uniform gives the largest radius, sqrt(128 ln 2) = 9.42; the largest gives zero.
    assert one(0, 0, 0) == (pytest.approx(np.sqrt(128 * np.log(2)), rel=1e-6), 0.0)
    largest = one(2**32 - 1, 2**32 - 1, 0)
    assert largest[0] == 0.0
    for quarter, expected in enumerate([(1, 0), (0, 1), (-1, 0), (0, -1)]):
        x, y = one(1 << 20, 0, quarter << 30)
        radius = np.sqrt(-2 * np.log(2.0**-12))
        assert (x / radius, y / radius) == (
            pytest.approx(expected[0], abs=1e-6),
            pytest.approx(expected[1], abs=1e-6),
        )


def test_every_word_is_used_once():
    assert words_for(2561) == 3 * 2592 // 2
    a, b = normals(32, Keystream(seeded_key(1))), normals(64, Keystream(seeded_key(1)))
    assert len(a) == 32
    assert len(np.unique(b)) == 64
