"""Means through whole numbers: the stated error holds, nothing wraps, and noise sums to the planned
variance."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from suture.errors import RunError
from suture.privacy.noise.source import derive, seeded_key
from suture.protection.masked import secure_total
from suture.protection.robust import Bounded, shares
from suture.protection.secure_sum import Grid


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 8), st.integers(1, 5), st.sampled_from([32, 64]), st.floats(1e-3, 1e3), st.data()
)
def test_the_mean_is_within_the_stated_error(parties, size, word, bound, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    updates = rng.normal(size=(parties, size)) * bound / 3
    weight = shares({str(i): float(rng.integers(1, 1000)) for i in range(parties)})
    grid = Bounded(bound, parties, word)
    stayed = data.draw(
        st.lists(st.integers(0, parties - 1), min_size=1, max_size=parties, unique=True)
    )
    total = sum(grid.words(updates[i], weight[str(i)]) for i in stayed)
    part = sum(weight[str(i)] for i in stayed)
    wanted = sum(weight[str(i)] * grid.shortened(updates[i]) for i in stayed) / part
    slack = 1e-12 * bound
    assert np.all(np.abs(grid.mean(total, part) - wanted) <= grid.error(len(stayed), part) + slack)


@pytest.mark.parametrize("word", [32, 64])
def test_the_largest_updates_do_not_wrap(word):
    """Every site at the bound in the same entry: the sum is the bound itself, the most there can
    be."""
    grid = Bounded(7.0, 150, word)
    words = [grid.words(np.array([7e9, 0.0]), 1 / 150) for _ in range(150)]
    assert grid.mean(np.sum(words, axis=0, dtype=words[0].dtype), 1.0)[0] == pytest.approx(
        7.0, abs=grid.error(150, 1.0)
    )


def test_what_is_longer_than_the_bound_is_shortened_and_not_turned():
    grid = Bounded(5.0, 3)
    assert grid.shortened(np.array([30.0, 40.0])).tolist() == [3.0, 4.0]
    assert grid.shortened(np.array([3.0, 4.0])).tolist() == [3.0, 4.0]


def test_what_makes_no_sense_is_refused():
    with pytest.raises(RunError, match="not finite"):
        Bounded(1.0, 3).words(np.array([np.nan]), 0.1)
    with pytest.raises(RunError, match="norm bound above 0"):
        Bounded(0.0, 3)
    with pytest.raises(RunError, match="between 0 and 1"):
        Bounded(1.0, 3).words(np.zeros(1), 1.5)
    with pytest.raises(RunError, match="share of the weight"):
        Bounded(1.0, 3).mean(np.zeros(1, np.int32), 0.0)


SITES = [f"site {i}" for i in range(20)]


@pytest.mark.parametrize(("gone", "stage"), [(6, "mask"), (6, "share"), (3, "mask"), (6, "unmask")])
def test_the_decoded_noise_has_the_planned_central_variance(gone, stage):
    """20 sites, 14 must stay, each adds 1/14 of the central variance: with 14 in the sum the noise
    is the planned one, with s it is s/14 of it. The planned one is a central Gaussian's for rho =
    0.5, and two squared grid steps for being discrete. 40,000 entries, chi-squared on both sides; a
    false alarm once in 10,000."""
    size = 40_000
    grid = Grid(sensitivity=1.0, rho=0.5, size=size, honest=14)
    values = {s: np.random.default_rng(i).normal(size=size) for i, s in enumerate(SITES)}
    words = {s: {"g": grid.share(values[s], derive(seeded_key(31, gone, stage), s))} for s in SITES}
    total = secure_total(words, leave={stage: SITES[:gone]}, key=seeded_key(1))
    stayed = len(total.survivors)
    assert stayed == (20 if stage == "unmask" else 20 - gone)
    planned = 1.0**2 / (2 * 0.5) + 2 / 1024**2
    assert grid.noise**2 == pytest.approx(planned, rel=1e-8)
    noise = grid.open(total.words["g"]) - sum(values[s] for s in total.survivors)
    statistic = float(np.sum(noise**2)) / (planned * stayed / 14)
    low, high = stats.chi2.ppf([0.5e-4, 1 - 0.5e-4], size)
    assert low < statistic < high
    # The test can fail: with one more share, or one less, the statistic would be outside.
    assert not low < statistic * (stayed + 1) / stayed < high
