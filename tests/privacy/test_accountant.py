"""The figures of the papers page (FedCVR's hospitals, 500 local epochs, batch 32, delta 1e-5), and
one Gaussian release: other libraries' figures, and properties."""

import math

import numpy as np
import pytest
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    ZCDpEvent,
)
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian, get_sigma_gaussian
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate

from suture.errors import StudyError
from suture.privacy.accounting import accountant
from suture.privacy.accounting.accountant import (
    analytic_sigma,
    classical_epsilon,
    classical_sigma,
    delta_for,
    delta_of,
    epsilon,
    epsilon_of,
    epsilon_of_mu,
    loss_at,
    mu_for,
    true_epsilon,
)
from suture.privacy.accounting.events import (
    GAUSSIAN,
    LAPLACE,
    Step,
    compose,
    event_from_json,
    event_to_json,
    normal_form,
)

PATIENTS = (13130, 9250, 4730, 1620, 1270)
# sigma: (RDP, PLD) per hospital, as printed (one decimal, so 0.05 either way; 3.6 at 13,130 and 1.5
# is 3.53 by PLD).
TABLE = {
    0.5: ((60.6, 74.9, 110.7, 201.9, 229.2), (56.6, 69.9, 103.8, 191.3, 218.3)),
    0.8: ((11.8, 14.7, 22.5, 45.5, 53.5), (11.0, 13.7, 21.0, 42.8, 50.4)),
    1.0: ((7.3, 9.1, 13.6, 27.2, 31.9), (6.8, 8.4, 12.7, 25.5, 29.9)),
    1.1: ((6.2, 7.6, 11.4, 22.5, 26.3), (5.7, 7.1, 10.6, 21.0, 24.7)),
    1.5: ((3.8, 4.7, 6.9, 13.2, 15.4), (3.6, 4.3, 6.4, 12.3, 14.4)),
}
# dp_accounting 0.6.0, PLDAccountant with value_discretization_interval 1e-4, run once.
LIBRARY = {
    (13130, 0.5): 56.6083,
    (13130, 1.0): 6.80748,
    (13130, 1.5): 3.52821,
    (1270, 0.5): 218.3268,
    (1270, 1.0): 29.93868,
    (1270, 1.5): 14.39883,
}


def training(patients: int, sigma: float):
    return ((Step(GAUSSIAN, sigma, 32 / patients), 500 * math.ceil(patients / 32)),)


@pytest.mark.parametrize("sigma", TABLE)
@pytest.mark.parametrize("place", range(5))
def test_the_papers_page(sigma, place):
    rdp, pld = (row[place] for row in TABLE[sigma])
    form = training(PATIENTS[place], sigma)
    assert (
        rdp * 0.99 - 0.05 <= epsilon_of(form, 1e-5, "rdp") <= rdp * 1.001 + 0.05
    )  # our orders are finer
    assert epsilon_of(form, 1e-5, "pld") == pytest.approx(pld, rel=5e-3, abs=0.08)


@pytest.mark.parametrize(("patients", "sigma"), LIBRARY)
def test_within_a_fifth_of_a_percent_of_the_librarys_fine_grid_and_never_below(patients, sigma):
    reference = LIBRARY[patients, sigma]
    found = epsilon_of(training(patients, sigma), 1e-5, "pld")
    assert reference * 0.9999 <= found <= reference * 1.002


@pytest.mark.parametrize(
    "step",
    [
        Step(GAUSSIAN, 1.0, 32 / 1270),
        Step(GAUSSIAN, 0.5, 0.01),
        Step(GAUSSIAN, 4.0, 0.5),
        Step(LAPLACE, 5.0, 1.0),
    ],
)
@pytest.mark.parametrize("count", [1, 30, 3000])
def test_the_grid_is_pessimistic_and_fine_enough(step, count, monkeypatch):
    coarse = epsilon_of(((step, count),), 1e-5, "pld")
    monkeypatch.setattr(accountant, "_RESOLUTION", 0.02)
    accountant.loss_tails.cache_clear()
    accountant._epsilon.cache_clear()
    fine = epsilon_of(((step, count),), 1e-5, "pld")
    accountant.loss_tails.cache_clear()
    accountant._epsilon.cache_clear()
    assert fine * (1 - 1e-9) <= coarse <= fine * 1.005


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-8, 1e-10])
def test_small_deltas_against_the_exact_gaussian(delta):
    """A thousand Gaussian releases, forced through the FFT one by one by a rate a hair under 1."""
    exact = get_epsilon_gaussian(20 / math.sqrt(1000), delta)
    found = epsilon_of(((Step(GAUSSIAN, 20.0, 1 - 1e-12), 1000),), delta, "pld")
    assert exact * (1 - 1e-6) <= found <= exact * 1.005


@pytest.mark.parametrize(
    ("count", "library"), [(600, 692.7616694), (611, 703.4841509), (612, 704.4580955)]
)
def test_losses_that_no_float_can_hold_are_not_understated(count, library):
    """Above 700, e^{-loss} leaves the range of floats: 612 steps once cost 702.07. The library's
    figures are those of its accountant with a grid of 0.01."""
    found = epsilon_of(((Step(GAUSSIAN, 0.40625, 0.40625), count),), 1e-5, "pld")
    assert library <= found <= library * 1.001


def test_where_rounding_could_hide_in_delta_rdp_answers():
    form = training(13130, 1.0)
    assert accountant.loss_tails(form)[0].slack > 1e-10
    assert epsilon_of(form, 1e-10, "pld") == epsilon_of(form, 1e-10, "rdp")


@pytest.mark.parametrize(
    "step", [Step(GAUSSIAN, 0.5, 0.0252), Step(GAUSSIAN, 10.0, 0.5), Step(GAUSSIAN, 0.3, 1e-3)]
)
@pytest.mark.parametrize("place", [0, 60, 120])
def test_renyi_divergences_against_adaptive_quadrature(step, place):
    order = accountant._ORDERS[place]
    peaks = [0.0, 0.5, 1.0, float(order)]

    def integrand(z: float) -> float:
        log_plain = -0.5 * (z / step.noise) ** 2 - math.log(step.noise * math.sqrt(2 * math.pi))
        ratio = loss_at(np.array([z]), step)[0]
        excess = math.expm1(order * ratio) - order * math.expm1(ratio)
        return math.exp(log_plain) * excess

    top = order + 14 * step.noise
    total, _ = integrate.quad(
        integrand, -14 * step.noise, top, points=peaks, limit=400, epsrel=1e-10, epsabs=0
    )
    assert accountant._renyi_step(step)[place] == pytest.approx(
        math.log1p(total) / (order - 1), rel=1e-6
    )


def test_delta_for_is_the_inverse_of_epsilon():
    event = SelfComposedDpEvent(GaussianDpEvent(5.0), 40)
    for name in accountant.ACCOUNTANTS:
        budget = epsilon(event, 1e-5, name)
        found = delta_for(event, budget, name)
        assert found == pytest.approx(1e-5, rel=0.02)
        assert epsilon(event, found, name) <= budget
    assert delta_for(event, 1e6, "pld") == 1e-12
    assert delta_for(GaussianDpEvent(0.0), 5.0, "pld") == 1.0


@pytest.mark.parametrize("rho", [1e-4, 0.02, 0.5, 3.0])
def test_zcdp_costs_what_a_gaussian_of_the_same_rho_costs_by_rdp(rho):
    """A Gaussian of noise multiplier s is exactly 1/(2 s^2)-zCDP, and its Renyi divergence is rho
    times the order."""
    vote, gaussian = ZCDpEvent(rho), GaussianDpEvent((2 * rho) ** -0.5)
    assert epsilon(vote, 1e-5, "rdp") == pytest.approx(epsilon(gaussian, 1e-5, "rdp"), rel=1e-9)
    theirs = RdpAccountant(orders=accountant._ORDERS)
    theirs.compose(SelfComposedDpEvent(vote, 10))
    assert epsilon(SelfComposedDpEvent(vote, 10), 1e-5, "rdp") == pytest.approx(
        theirs.get_epsilon(1e-5), rel=1e-9
    )
    assert epsilon(vote, 1e-5, "pld") == epsilon(vote, 1e-5, "rdp") > epsilon(gaussian, 1e-5, "pld")


def test_votes_moments_and_training_compose_in_one_event():
    """Votes first (500 picks, eps0 = 0.1), then moments, then DP-SGD: rho-zCDP adds to the Renyi
    divergences."""
    votes = SelfComposedDpEvent(ZCDpEvent(0.1**2 / 8), 500)
    training = SelfComposedDpEvent(PoissonSampledDpEvent(0.02, GaussianDpEvent(1.1)), 500)
    whole = ComposedDpEvent([votes, GaussianDpEvent(4.0), training])
    same = ComposedDpEvent([GaussianDpEvent((2 * 0.625) ** -0.5), GaussianDpEvent(4.0), training])
    assert epsilon(whole, 1e-5, "rdp") == pytest.approx(epsilon(same, 1e-5, "rdp"), rel=1e-9)
    assert epsilon(whole, 1e-5, "pld") == epsilon(whole, 1e-5, "rdp")  # as a whole, and stated
    assert epsilon(whole, 1e-5, "basic") > epsilon(whole, 1e-5, "rdp")
    assert event_from_json(event_to_json(whole)) == whole
    assert compose([(whole, 2)]) == compose([(whole, 1), (whole, 1)])
    assert normal_form(ZCDpEvent(0.0)) == ()


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


def test_a_release_with_hardly_any_noise_beside_sampled_ones_has_a_cost():
    """The search for noise passes through such figures: e^loss leaves the range of floats there."""
    nearly_open = Step(GAUSSIAN, 0.02, 1.0)
    sampled = Step(GAUSSIAN, 1.0, 0.01)
    alone = epsilon_of(((nearly_open, 1),), 1e-5, "pld")
    together = epsilon_of(((nearly_open, 1), (sampled, 10)), 1e-5, "pld")
    assert alone < together < 1.05 * alone
