"""One Gaussian release: the chapter's and the README's figures, another library, and properties."""

import math

import pytest
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian, get_sigma_gaussian
from hypothesis import given
from hypothesis import strategies as st

from suture.errors import StudyError
from suture.privacy.accounting.gaussian import (
    analytic_sigma,
    classical_epsilon,
    classical_sigma,
    delta_of,
    epsilon_of_mu,
    mu_for,
    true_epsilon,
)

DELTAS = st.sampled_from([1e-3, 1e-5, 1e-7, 1e-9])
EPSILONS = st.floats(0.01, 60)


def test_the_classical_label_is_wrong_above_eight_and_a_half():
    assert round(true_epsilon(10, 1e-5), 2) == 10.39
    assert round(true_epsilon(16, 1e-5), 1) == 18.9
    assert true_epsilon(8.3, 1e-5) < 8.3
    assert true_epsilon(8.5, 1e-5) > 8.5


@pytest.mark.parametrize(("rounds", "truth"), [(10, 2.69), (50, 6.82), (100, 10.39)])
def test_rounds_labelled_one_each(rounds, truth):
    assert round(true_epsilon(1.0, 1e-5, rounds), 2) == truth


def test_forty_rounds_within_six():
    per_round = 6 / math.sqrt(40)
    assert round(per_round, 3) == 0.949
    assert round(classical_sigma(per_round, 1e-5), 2) == 5.11
    assert round(true_epsilon(per_round, 1e-5, 40), 2) == 5.62
    assert round(analytic_sigma(6.0, 1e-5) * math.sqrt(40), 2) == 4.83
    assert round(analytic_sigma(6 / 40, 1e-5 / 40), 1) == 26.9


def test_clipping_records_of_a_patient_with_twelve():
    assert round(epsilon_of_mu(12 * mu_for(6.0, 1e-5), 1e-5), 1) == 189.6


@given(EPSILONS, DELTAS)
def test_the_analytic_noise_is_the_library_s(epsilon, delta):
    assert analytic_sigma(epsilon, delta) == pytest.approx(
        get_sigma_gaussian(epsilon, delta), rel=1e-6
    )


@given(st.floats(0.02, 20), DELTAS)
def test_epsilon_is_the_library_s(mu, delta):
    assert epsilon_of_mu(mu, delta) == pytest.approx(
        get_epsilon_gaussian(1 / mu, delta), rel=1e-6, abs=1e-7
    )


@given(EPSILONS, DELTAS)
def test_there_and_back(epsilon, delta):
    mu = mu_for(epsilon, delta)
    assert delta_of(epsilon, mu) <= delta
    assert delta_of(epsilon, mu * (1 + 1e-9)) > delta * (1 - 1e-9)
    assert epsilon_of_mu(mu, delta) == pytest.approx(epsilon, rel=1e-9)
    assert classical_epsilon(classical_sigma(epsilon, delta), delta) == pytest.approx(epsilon)


def test_edges():
    assert epsilon_of_mu(0.0, 1e-5) == 0.0
    assert epsilon_of_mu(1e-6, 1e-5) == 0.0
    assert delta_of(0.0, math.inf) == 1.0
    for call in (
        lambda: mu_for(0, 1e-5),
        lambda: mu_for(1, 0),
        lambda: delta_of(1, -1),
        lambda: classical_sigma(1, 1),
    ):
        with pytest.raises(StudyError):
            call()
