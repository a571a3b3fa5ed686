"""What every accountant must do, whichever it is: the conformance suite of
`suture.privacy.accounting.accountant`."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from suture.errors import StudyError, UnknownEvent
from suture.privacy.accounting.accountant import ACCOUNTANTS, epsilon
from suture.privacy.accounting.events import compose

every_accountant = pytest.mark.parametrize("accountant", ACCOUNTANTS)
rates, noises, counts = st.floats(0.001, 1.0), st.floats(0.4, 8.0), st.integers(1, 3000)


def sampled(rate: float, noise: float, count: int = 1) -> SelfComposedDpEvent:
    return SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), count)


UNKNOWN = [
    dp_accounting.UnsupportedDpEvent(),
    dp_accounting.ZCDpEvent(0.1, 0.2),
    dp_accounting.ZCDpEvent(-0.1),
    dp_accounting.ZCDpEvent(math.inf),
    PoissonSampledDpEvent(0.1, dp_accounting.ZCDpEvent(0.1)),
    dp_accounting.RandomizedResponseDpEvent(0.5, 2),
    dp_accounting.SampledWithoutReplacementDpEvent(100, 10, GaussianDpEvent(1.0)),
    PoissonSampledDpEvent(0.1, LaplaceDpEvent(1.0)),
    PoissonSampledDpEvent(0.1, PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0))),
    PoissonSampledDpEvent(1.5, GaussianDpEvent(1.0)),
    PoissonSampledDpEvent(math.nan, GaussianDpEvent(1.0)),
    GaussianDpEvent(-1.0),
    GaussianDpEvent(math.nan),
    GaussianDpEvent(math.inf),
    SelfComposedDpEvent(GaussianDpEvent(1.0), -1),
    SelfComposedDpEvent(GaussianDpEvent(1.0), 2.5),
    "gaussian",
    None,
]


@every_accountant
def test_nothing_costs_nothing(accountant):
    for event in (
        NoOpDpEvent(),
        ComposedDpEvent([]),
        SelfComposedDpEvent(GaussianDpEvent(1.0), 0),
        sampled(0.0, 1.0),
    ):
        assert epsilon(event, 1e-5, accountant) == 0.0


@every_accountant
def test_what_is_not_private_costs_infinity(accountant):
    for event in (
        NonPrivateDpEvent(),
        GaussianDpEvent(0.0),
        sampled(0.01, 0.0),
        LaplaceDpEvent(0.0),
    ):
        assert epsilon(ComposedDpEvent([event, GaussianDpEvent(1.0)]), 1e-5, accountant) == math.inf


@every_accountant
@pytest.mark.parametrize("event", UNKNOWN, ids=repr)
def test_an_unknown_event_is_refused_wherever_it_hides(accountant, event):
    for hidden in (
        event,
        ComposedDpEvent([GaussianDpEvent(1.0), event]),
        SelfComposedDpEvent(event, 3),
    ):
        with pytest.raises(UnknownEvent):
            epsilon(hidden, 1e-5, accountant)


def test_a_subclass_is_not_taken_for_what_it_derives_from():
    class Louder(GaussianDpEvent):
        pass

    with pytest.raises(UnknownEvent):
        epsilon(Louder(1.0), 1e-5)


@every_accountant
def test_delta_and_accountant_are_checked(accountant):
    for delta in (0.0, 1.0, -1e-5, math.nan):
        with pytest.raises(StudyError, match="delta"):
            epsilon(GaussianDpEvent(1.0), delta, accountant)
    with pytest.raises(StudyError, match="pld, rdp, basic"):
        epsilon(GaussianDpEvent(1.0), 1e-5, accountant + "x")


@every_accountant
@settings(max_examples=15, deadline=None)
@given(rate=rates, noise=noises, count=counts)
def test_more_steps_never_cost_less(accountant, rate, noise, count):
    costs = [
        epsilon(sampled(rate, noise, count + more), 1e-5, accountant) for more in (0, 1, count)
    ]
    assert costs == sorted(costs)


@every_accountant
@settings(max_examples=15, deadline=None)
@given(rate=rates, noise=noises, count=counts)
def test_more_noise_costs_less(accountant, rate, noise, count):
    quiet, loud = (
        epsilon(sampled(rate, sigma, count), 1e-5, accountant) for sigma in (noise, noise * 1.1)
    )
    assert loud <= quiet * (1 + 1e-9)


@every_accountant
@settings(max_examples=15, deadline=None)
@given(rate=st.floats(0.001, 0.9), noise=noises, count=counts)
def test_a_smaller_sampling_rate_costs_less(accountant, rate, noise, count):
    few, many = (epsilon(sampled(q, noise, count), 1e-5, accountant) for q in (rate, rate * 1.1))
    assert few <= many * (1 + 1e-9)


@every_accountant
def test_a_larger_delta_costs_less(accountant):
    costs = [
        epsilon(sampled(0.02, 1.0, 1000), delta, accountant) for delta in (1e-8, 1e-6, 1e-5, 1e-3)
    ]
    assert costs == sorted(costs, reverse=True)
    assert len(set(costs)) == 4


@every_accountant
@settings(max_examples=10, deadline=None)
@given(
    st.permutations(
        [sampled(0.1, 1.0, 7), GaussianDpEvent(9.0), LaplaceDpEvent(11.0), sampled(0.1, 1.0, 3)]
    )
)
def test_order_and_nesting_do_not_matter(accountant, events):
    flat = epsilon(ComposedDpEvent(list(events)), 1e-5, accountant)
    nested = epsilon(
        ComposedDpEvent([ComposedDpEvent(list(events[:2])), *events[2:]]), 1e-5, accountant
    )
    merged = epsilon(compose([(event, 1) for event in events]), 1e-5, accountant)
    by_hand = epsilon(
        ComposedDpEvent([sampled(0.1, 1.0, 10), GaussianDpEvent(9.0), LaplaceDpEvent(11.0)]),
        1e-5,
        accountant,
    )
    assert flat == nested == merged == by_hand


@every_accountant
def test_a_rate_of_one_is_no_sampling(accountant):
    assert epsilon(sampled(1.0, 2.0, 10), 1e-5, accountant) == epsilon(
        SelfComposedDpEvent(GaussianDpEvent(2.0), 10), 1e-5, accountant
    )


@pytest.mark.parametrize(("noise", "count"), [(1.0, 1), (5.0, 40), (20.0, 1000), (0.5, 3)])
def test_gaussians_against_the_exact_formula(noise, count):
    """Balle & Wang 2018, by way of `dp_accounting`: T releases are one with sigma/sqrt(T)."""
    exact = dp_accounting.get_epsilon_gaussian(noise / math.sqrt(count), 1e-5)
    event = SelfComposedDpEvent(GaussianDpEvent(noise), count)
    assert epsilon(event, 1e-5, "pld") == pytest.approx(exact, rel=1e-9)
    # The grid itself, which sampled and mixed events go through: a Laplace release of no
    # consequence takes it there.
    on_grid = epsilon(ComposedDpEvent([event, LaplaceDpEvent(1e7)]), 1e-5, "pld")
    assert exact <= on_grid <= exact * 1.005
    assert exact <= epsilon(event, 1e-5, "rdp") <= exact * 1.2
    if count == 1:
        assert epsilon(event, 1e-5, "basic") == pytest.approx(exact, rel=1e-9)
    else:
        assert epsilon(event, 1e-5, "basic") > exact


@pytest.mark.parametrize(
    ("rate", "noise", "count"),
    [
        (0.01, 1.0, 1000),
        (0.0252, 1.0, 2000),
        (0.3, 3.0, 50),
        (0.001, 0.7, 10_000),
        (0.9, 8.0, 100),
        (0.05, 0.5, 20),
    ],
)
def test_sampled_gaussians_against_the_library(rate, noise, count):
    event = sampled(rate, noise, count)
    library = PLDAccountant(value_discretization_interval=2e-4)
    library.compose(event)
    reference = library.get_epsilon(1e-5)
    assert epsilon(event, 1e-5, "pld") == pytest.approx(reference, rel=2e-3)


@pytest.mark.parametrize(
    ("rate", "noise", "count"), [(0.01, 1.0, 1000), (0.0252, 1.0, 20_000), (0.001, 0.8, 10_000)]
)
def test_renyi_against_the_library(rate, noise, count):
    library = RdpAccountant(orders=[*np.arange(1.5, 12, 0.1), *range(12, 64)])
    library.compose(sampled(rate, noise, count))
    assert epsilon(sampled(rate, noise, count), 1e-5, "rdp") == pytest.approx(
        library.get_epsilon(1e-5), rel=2e-3
    )


def test_laplace_against_the_library():
    event = SelfComposedDpEvent(LaplaceDpEvent(3.0), 20)
    reference = PLDAccountant(value_discretization_interval=1e-4)
    reference.compose(event)
    assert epsilon(event, 1e-5, "pld") == pytest.approx(reference.get_epsilon(1e-5), rel=2e-3)
    renyi = RdpAccountant(orders=np.arange(1.1, 64, 0.1))
    renyi.compose(event)
    assert epsilon(event, 1e-5, "rdp") == pytest.approx(renyi.get_epsilon(1e-5), rel=2e-3)
    # One release: epsilon(delta) = 1/b + 2 ln(1 - delta), by hand.
    assert epsilon(LaplaceDpEvent(3.0), 0.01, "basic") == pytest.approx(
        1 / 3 + 2 * math.log(0.99), rel=1e-12
    )
    assert epsilon(LaplaceDpEvent(3.0), 0.01, "pld") == pytest.approx(
        1 / 3 + 2 * math.log(0.99), rel=5e-3
    )


def test_a_mixture_against_the_library():
    event = ComposedDpEvent(
        [
            sampled(0.02, 1.1, 500),
            SelfComposedDpEvent(GaussianDpEvent(12.0), 5),
            LaplaceDpEvent(4.0),
        ]
    )
    library = PLDAccountant(value_discretization_interval=2e-4)
    library.compose(event)
    assert epsilon(event, 1e-5, "pld") == pytest.approx(library.get_epsilon(1e-5), rel=3e-3)


def test_basic_composition_by_hand():
    """T steps of (eps0, delta/T): eps0 by the Gaussian's exact formula, amplified by Poisson
    sampling."""
    rate, noise, count = 0.1, 2.0, 50
    inner = dp_accounting.get_epsilon_gaussian(noise, 1e-5 / count / rate)
    by_hand = count * math.log(1 + rate * (math.exp(inner) - 1))
    assert epsilon(sampled(rate, noise, count), 1e-5, "basic") == pytest.approx(by_hand, rel=1e-9)
    one = PLDAccountant(value_discretization_interval=1e-4)
    one.compose(sampled(rate, noise, 1))
    assert one.get_delta(by_hand / count) == pytest.approx(1e-5 / count, rel=1e-3)


@settings(max_examples=30, deadline=None)
@given(rate=st.floats(0.001, 0.5), noise=st.floats(0.6, 5.0), count=st.integers(200, 5000))
def test_tight_loose_looser(rate, noise, count):
    """PLD is never above RDP (within its 0.5 %), and for hundreds of steps RDP is far below basic
    composition."""
    pld, rdp, basic = (epsilon(sampled(rate, noise, count), 1e-5, name) for name in ACCOUNTANTS)
    assert pld <= rdp * 1.005
    assert rdp <= basic or basic == 0.0


def test_a_single_step_is_dearest_under_rdp():
    """Where the order does not hold: one step, which basic composition analyses exactly."""
    pld, rdp, basic = (epsilon(sampled(0.01, 1.0, 1), 1e-5, name) for name in ACCOUNTANTS)
    assert basic <= pld <= basic * 1.005
    assert rdp > basic
