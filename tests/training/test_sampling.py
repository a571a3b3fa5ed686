"""Poisson sampling: the rate, the spread, independence, and the corners."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from suture.privacy.noise.source import Keystream, seeded_key
from suture.training.local import poisson_batches


def draw(patients: int, rate: float, steps: int, seed: int = 0):
    picks, ends = poisson_batches(
        patients, rate, steps, Keystream(seeded_key(seed, "sampling test"))
    )
    return picks, ends, np.diff(ends, prepend=0)


@pytest.mark.parametrize(
    ("patients", "rate"), [(1270, 32 / 1270), (100, 0.5), (10_000, 1e-3), (50, 0.97)]
)
def test_batch_sizes_are_binomial(patients, rate):
    steps = 4000
    picks, ends, sizes = draw(patients, rate, steps)
    assert len(ends) == steps
    assert ends[-1] == len(picks)
    # Mean and variance within five standard errors: false alarms below 2e-6 together.
    variance = patients * rate * (1 - rate)
    assert abs(sizes.mean() - patients * rate) < 5 * np.sqrt(variance / steps)
    fourth = stats.binom(patients, rate).stats("k") + 3
    assert abs(sizes.var() - variance) < 5 * variance * np.sqrt((float(fourth) - 1) / steps)


def test_every_patient_is_drawn_at_the_same_rate_and_at_most_once_a_step():
    patients, rate, steps = 200, 0.1, 20_000
    picks, _, sizes = draw(patients, rate, steps, seed=1)
    counts = np.bincount(picks, minlength=patients)
    # A sum of 200 squared standard normals; false alarms 1e-6 on either side.
    score = np.sum((counts - steps * rate) ** 2 / (steps * rate * (1 - rate)))
    assert stats.chi2.ppf(1e-6, patients) < score < stats.chi2.isf(1e-6, patients)
    step = np.repeat(np.arange(steps), sizes)
    assert len(np.unique(step * patients + picks)) == len(picks)
    assert np.all(np.diff(step * patients + picks) > 0)


def test_two_patients_and_two_steps_are_independent():
    patients, rate, steps = 4, 0.3, 100_000
    picks, _, sizes = draw(patients, rate, steps, seed=2)
    table = np.zeros((steps, patients), bool)
    table[np.repeat(np.arange(steps), sizes), picks] = True
    # All 16 outcomes of a step, against their probabilities; false alarms 1e-6.
    outcomes = np.bincount(table @ (1 << np.arange(4)), minlength=16)
    ones = np.array([bin(i).count("1") for i in range(16)])
    assert stats.chisquare(outcomes, steps * rate**ones * (1 - rate) ** (4 - ones)).pvalue > 1e-6
    # Neighbouring steps: correlation within five standard errors; false alarms 6e-7.
    for patient in range(patients):
        assert abs(np.corrcoef(table[:-1, patient], table[1:, patient])[0, 1]) < 5 / np.sqrt(steps)


def test_rate_one_takes_everybody_and_tiny_rates_almost_nobody():
    picks, ends, _ = draw(7, 1.0, 3)
    assert picks.tolist() == list(range(7)) * 3
    assert ends.tolist() == [7, 14, 21]
    picks, ends, _ = draw(3, 1e-300, 5)
    assert (len(picks), ends.tolist()) == (0, [0] * 5)


def test_batches_continue_when_the_first_words_run_out(monkeypatch):
    # Words that always say "the very next trial": many more picks than the expected number, so the
    # loop goes round.
    class Full:
        def fill(self, out):
            out[:] = np.uint64(2**64 - 1)

    picks, ends = poisson_batches(100, 0.01, 10, Full())
    assert picks.tolist() == list(range(100)) * 10
    assert ends.tolist() == list(range(100, 1001, 100))
