"""Gradient inversion: exact where it must be, refused where it cannot be."""

import numpy as np
import pytest

from suture.attacks.reconstruct import (
    best_guess,
    fitted_records,
    likelihoods,
    one_record,
    rms_error,
    several_records,
)
from suture.errors import StudyError


def relu_gradient(x, units, seed=0):
    """First-layer gradient of a batch through ReLU, with arbitrary signals from above."""
    rng = np.random.default_rng(seed)
    w, b = rng.normal(size=(x.shape[1], units)) / np.sqrt(x.shape[1]), rng.normal(size=units) * 0.1
    d = rng.normal(size=(len(x), units)) * (x @ w + b > 0)
    return x.T @ d, d.sum(0)


@pytest.mark.parametrize(("features", "units"), [(6, 64), (784, 64), (40, 3), (1, 1)])
def test_one_record_comes_back_to_rounding(features, units):
    x = np.random.default_rng(1).normal(size=(1, features))
    weights, biases = relu_gradient(x, units, seed=2)
    assert np.abs(one_record(weights, biases) - x[0]).max() < 1e-10


@pytest.mark.parametrize("factor", [1e-6, -3.0, 1e6])
def test_rate_clipping_and_steps_cancel(factor):
    x = np.array([[0.5, -2.0, 7.0]])
    weights, biases = relu_gradient(x, 16)
    np.testing.assert_allclose(one_record(factor * weights, factor * biases), x[0], rtol=1e-9)


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_small_batches_come_back_exactly(count):
    x = np.random.default_rng(count).normal(size=(count, 30))
    found = several_records(*relu_gradient(x, 96, seed=count), np.random.default_rng(0))
    assert found.shape == x.shape
    for record in x:
        assert np.abs(found - record).max(axis=1).min() < 1e-6


def test_a_batch_of_one_is_one_record():
    x = np.random.default_rng(0).normal(size=(1, 9))
    np.testing.assert_allclose(
        several_records(*relu_gradient(x, 20), np.random.default_rng(0)), x, rtol=1e-8
    )


def test_units_that_are_never_inactive_hide_a_batch():
    rng = np.random.default_rng(0)
    x, d = rng.normal(size=(3, 10)), rng.normal(size=(3, 40))
    with pytest.raises(StudyError, match=r"\d of 3 records"):
        several_records(x.T @ d, d.sum(0), rng, tries=300)


def test_too_many_records_and_empty_updates_are_refused():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(9, 30))
    with pytest.raises(StudyError, match=r"1 to 8 .*rank 9"):
        several_records(*relu_gradient(x, 64), rng)
    with pytest.raises(StudyError, match="zero"):
        one_record(np.zeros((3, 4)), np.zeros(4))
    with pytest.raises(StudyError, match=r"\(inputs, units\)"):
        one_record(np.zeros((3, 4)), np.zeros(3))


def test_under_noise_a_typical_record_gives_sign_and_length():
    x = np.array([0.6, 0.8])
    found = one_record(np.outer(x, [-1.0, 2.0]), np.zeros(2), typical=np.array([0.8, 0.6]))
    # the bias says nothing, so the direction is (0.6, 0.8, 0) and the length that of (0.8, 0.6, 1)
    np.testing.assert_allclose(found, x * np.sqrt(2), rtol=1e-9)


def test_best_guess_by_hand():
    people = np.array([[0.0], [2.0]])
    update, deviation = np.array([0.5]), 1.0
    weight = np.exp(-0.125), np.exp(-1.125)  # signatures 0 and 2 at distances 0.5 and 1.5
    assert best_guess(update, people, people, deviation)[0] == pytest.approx(
        2 * weight[1] / sum(weight)
    )
    np.testing.assert_allclose(likelihoods(update, people, deviation), [1.0, np.exp(-1.0)])


def test_best_guess_without_information_is_the_mean():
    people = np.random.default_rng(0).normal(size=(50, 3))
    guess = best_guess(np.zeros(3), people, people, deviation=1e6)
    np.testing.assert_allclose(guess, people.mean(0), atol=1e-9)


def test_rms_error():
    assert rms_error(np.zeros(4), np.array([2.0, 0, 0, 0])) == 1.0


class TestFit:
    """Batches whose activation patterns are alike: images, all of them bright."""

    @staticmethod
    def model(seed):
        rng = np.random.default_rng(seed)
        w, b, v = rng.normal(size=(50, 40)) / 7, rng.normal(size=40) * 0.1, rng.normal(size=40) / 6

        def signals(x, y):
            z = x @ w + b
            p = 1 / (1 + np.exp(-(np.maximum(z, 0) @ v)))
            return (p - y)[:, None] * v * (z > 0)

        return signals

    @pytest.mark.parametrize("count", [1, 2, 3])
    def test_the_batch_is_found(self, count):
        rng = np.random.default_rng(count)
        people = 0.5 + 0.1 * rng.normal(size=(40, 50))
        signals = self.model(5)
        x, y = people[:count], np.arange(count) % 2
        d = signals(x, y)
        found, misfit = fitted_records(
            x.T @ d, d.sum(0), signals, people[count:], rng, tolerance=1e-9
        )
        assert misfit < 1e-6
        for record in x:
            assert np.abs(found - record).max(axis=1).min() < 1e-5

    def test_more_than_asked_for_is_refused(self):
        rng = np.random.default_rng(0)
        people = rng.random((30, 50))
        d = self.model(5)(people[:6], np.zeros(6, int))
        with pytest.raises(StudyError, match=r"1 to 4 .*rank 6"):
            fitted_records(people[:6].T @ d, d.sum(0), self.model(5), people, rng, tolerance=1e-9)
