"""Private selection against closed form, by enumeration: Theorems 1 to 3 of docs/veil.md."""

from itertools import product

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from suture.errors import PrivacyError
from suture.privacy.noise.selection import (
    pick_probabilities,
    pick_strength,
    signed_top,
    signed_top_exact,
)
from suture.privacy.noise.source import seeded_key

SCORES = np.array([1.5, -0.5, 0.25])
EPS0 = 0.9
ORDERS = (1.1, 1.5, 2.0, 4.0, 16.0, 64.0)


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
    ids, signs = signed_top_exact(np.array([0.5, -2.0, 1.0, 0.0]), 3)
    assert ids.tolist() == [1, 2, 0]
    assert signs.tolist() == [-1, 1, 1]


def test_wrong_arguments_are_refused():
    with pytest.raises(PrivacyError, match="1 to 3 picks"):
        signed_top(SCORES, 4, 1.0, seeded_key(1))
    with pytest.raises(PrivacyError, match="rho above 0"):
        pick_strength(0.0, 2)
