"""How much noise a budget needs, and how many rounds a noise lasts.

One local epoch of DP-SGD at a site with N patients and batch b is ceil(N/b) steps; in each, every patient takes part
with probability b/N on their own (Poisson sampling), and the clipped sum gets Gaussian noise of ``noise_multiplier``
times the clip. A site with fewer patients than the batch takes all of them in one step. Figures are never rounded in
the study's favour: noise is rounded up, rounds down, epsilon up.

Measured cold for FedCVR's hospitals: noise for a budget 0.05 to 0.25 s a hospital, rounds that fit 0.02 to 0.1 s.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

from dp_accounting.dp_event import DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.gaussian_mechanism import get_sigma_gaussian
from scipy import optimize

from suture.errors import StudyError
from suture.privacy.accountant import epsilon_of
from suture.privacy.budget import Budget, largest
from suture.privacy.events import GAUSSIAN, NormalForm, Step, normal_form, times

_MOST_STEPS = 1 << 34
_LEAST_NOISE, _MOST_NOISE = 1e-3, 1e7


def steps_per_epoch(patients: int, batch: int) -> int:
    """Steps in one pass over a site's patients.

    >>> steps_per_epoch(1270, 32), steps_per_epoch(20, 32)
    (40, 1)
    """
    if patients < 1 or batch < 1:
        raise StudyError(f"expected at least one patient and a batch of at least 1, found {patients} and {batch}")
    return -(-patients // batch)


def sampling_rate(patients: int, batch: int) -> float:
    """The probability that a patient takes part in one step.

    >>> sampling_rate(64, 32), sampling_rate(20, 32)
    (0.5, 1.0)
    """
    steps_per_epoch(patients, batch)
    return min(1.0, batch / patients)


def dpsgd_event(noise_multiplier: float, sampling_rate: float, steps: int) -> DpEvent:
    """The event of ``steps`` steps of DP-SGD.

    >>> event = dpsgd_event(1.1, 0.25, 4)
    >>> event.count, event.event.sampling_probability, event.event.event.noise_multiplier
    (4, 0.25, 1.1)
    """
    step = PoissonSampledDpEvent(float(sampling_rate), GaussianDpEvent(float(noise_multiplier)))
    event = SelfComposedDpEvent(step, int(steps))
    normal_form(event)  # refuses rates, noise and counts that mean nothing
    return event


@lru_cache(maxsize=4096)
def noise_for(epsilon: float, delta: float, sampling_rate: float, steps: int, accountant: str = "pld") -> float:
    """The smallest noise multiplier, to four significant figures, whose ``steps`` steps cost at most ``epsilon``.

    >>> noise_for(13.4, 1e-5, 32 / 1270, 500 * 40)
    1.572
    """
    Budget(epsilon, delta, accountant)
    if not math.isfinite(epsilon):
        raise StudyError("an infinite epsilon needs no noise: leave out [privacy], or give a finite epsilon")
    normal_form(dpsgd_event(1.0, sampling_rate, steps))

    def cost(noise: float) -> float:
        return epsilon_of(((Step(GAUSSIAN, noise, sampling_rate), steps),), delta, accountant)

    def excess(log_noise: float) -> float:
        return math.log(min(max(cost(math.exp(log_noise)), 1e-12), 1e12) / epsilon)

    low, high = _bracket(excess, _first_guess(epsilon, delta, sampling_rate, steps))
    if low < high:
        low = optimize.brentq(excess, low, high, xtol=2e-5)
    unit = 10.0 ** (math.floor(low / math.log(10)) - 3)
    count = math.ceil(math.exp(low) / unit) - 1
    # The root is close, not exact: step to the first multiple of the unit that is proven to fit.
    while count > 1 and cost(_multiple(count, unit)) <= epsilon:
        count -= 1
    while cost(_multiple(count, unit)) > epsilon:
        count += 1
    return _multiple(count, unit)


def steps_that_fit(
    epsilon: float, delta: float, noise: float, sampling_rate: float, accountant: str = "pld", per: int = 1
) -> int:
    """How many rounds of ``per`` steps each fit the budget; 0 when not even one does.

    >>> steps_that_fit(6.0, 1e-5, 4.83, 1.0), steps_that_fit(13.4, 1e-5, 1.572, 32 / 1270, per=200)
    (40, 100)
    """
    budget = Budget(epsilon, delta, accountant)
    one = normal_form(dpsgd_event(noise, sampling_rate, per))
    if not one or not budget.promises:
        raise StudyError("without sampling, or without a finite epsilon, any number of rounds fits")
    return rounds_that_fit(one, budget)


@lru_cache(maxsize=4096)
def rounds_that_fit(one: NormalForm, budget: Budget) -> int:
    """The same for a round in normal form.

    >>> rounds_that_fit(((Step(GAUSSIAN, 4.83, 1.0), 1),), Budget(6.0, 1e-5, "pld"))
    40
    """
    steps = sum(count for _, count in one)
    return largest(
        lambda n: epsilon_of(times(one, n), budget.delta, budget.accountant),
        budget.epsilon,
        guess=max(1, 1024 // steps),
        limit=max(1, _MOST_STEPS // steps),
    )


def _first_guess(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """ln of a noise multiplier near the answer: the central limit of many small steps is Gaussian (Bu et al. 2020)."""
    mu = 1 / max(float(get_sigma_gaussian(epsilon, delta)), 1e-9)
    return -0.5 * math.log(math.log1p(mu**2 / (rate**2 * steps)))


def _bracket(excess: Callable[[float], float], start: float) -> tuple[float, float]:
    """Two points around the root of a decreasing function, found by steps in the direction it asks for."""
    at, value = start, excess(start)
    while True:
        step = max(0.02, min(abs(value) * 1.2, 2.0))
        following = at + step if value > 0 else at - step
        if following > math.log(_MOST_NOISE):
            raise StudyError("no noise multiplier up to 10 million meets this epsilon: raise epsilon or train less")
        if following < math.log(_LEAST_NOISE):
            return math.log(_LEAST_NOISE), math.log(_LEAST_NOISE)
        following_value = excess(following)
        if (value > 0) != (following_value > 0):
            return min(at, following), max(at, following)
        at, value = following, following_value


def _multiple(count: int, unit: float) -> float:
    return float(f"{count * unit:.4g}")
