"""Accountants: what a composition of events costs, as epsilon at a given delta.

Neighbours are tables that differ by one patient, added or removed, with all of the patient's rows (``unit.py``).

- ``pld``: privacy loss distributions, the tightest; see ``loss.py``. Releases that are all Gaussian without sampling
  have an exact formula (Balle & Wang 2018, Theorem 8), which is used instead. A zCDP event states a bound on Renyi
  divergences and no distribution, so a composition that holds one is accounted by ``rdp`` as a whole.
- ``rdp``: Renyi divergences of the sampled Gaussian (Mironov, Talwar & Zhang 2019, Section 3 and Theorem 5) and of
  Laplace (Mironov 2017, Proposition 6), and rho times the order for rho-zCDP (Bun & Steinke 2016, Definition 1.1),
  added up, then converted by Canonne, Kamath & Steinke 2020, Proposition 12.
  The sampled Gaussian is integrated numerically at every order: ``dp_accounting``'s series stops converging below
  sigma = 0.6 at the very orders that are needed there (at sigma = 0.5 and 1,270 patients it then says 283.5 for
  229.2).
- ``basic``: the basic composition theorem (Dwork & Roth 2014, Theorem 3.16). T steps are each (epsilon_i, delta/T)-DP
  by their own exact analysis: Balle & Wang's formula, amplified by Poisson sampling (Balle, Barthe & Gaboardi 2018,
  Theorem 8: (epsilon, delta) becomes (ln(1 + q(e^epsilon - 1)), q delta), which is tight). The total is the sum of
  epsilon_i. It is loose by orders of magnitude, and shown so that the others can be seen to matter.

All three are upper bounds. Measured cold on one core (FedCVR's hospitals, up to 205,500 steps): pld 6 to 32 ms and at
most 0.1 % above the limit of ever finer grids, rdp about 10 ms, basic under 1 ms; asked again, a microsecond.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from dp_accounting.dp_event import DpEvent
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from dp_accounting.rdp import rdp_privacy_accountant as library

from suture.errors import StudyError
from suture.privacy.events import (
    GAUSSIAN,
    LAPLACE,
    NON_PRIVATE,
    ZCDP,
    NormalForm,
    Step,
    as_event,
    compose,
    event_from_json,
    event_to_json,
    normal_form,
)
from suture.privacy.loss import Floats, loss_at, loss_tails

__all__ = ["ACCOUNTANTS", "compose", "delta_for", "epsilon", "epsilon_of", "event_from_json", "event_to_json"]

ACCOUNTANTS = ("pld", "rdp", "basic")

# The conversion to epsilon ignores orders up to 1.01. Small orders serve large epsilons, large orders small ones.
_ORDERS = np.concatenate(
    (1 + np.geomspace(0.011, 1.4, 100), np.arange(2.5, 12, 0.1), np.arange(12, 64), [64, 96, 128, 192, 256, 512, 1024])
)


def epsilon(event: DpEvent, delta: float, accountant: str = "pld") -> float:
    """The epsilon of an event at this delta: 0 for nothing, infinity for what is not private.

    >>> from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
    >>> event = SelfComposedDpEvent(PoissonSampledDpEvent(32 / 1270, GaussianDpEvent(1.0)), 500 * 40)
    >>> [round(epsilon(event, 1e-5, accountant), 1) for accountant in ("pld", "rdp")]
    [30.0, 31.9]
    """
    return epsilon_of(normal_form(event), delta, accountant)


def epsilon_of(form: NormalForm, delta: float, accountant: str = "pld") -> float:
    """The same for an event in normal form.

    >>> epsilon_of((), 1e-5)
    0.0
    """
    if accountant not in ACCOUNTANTS:
        raise StudyError(f"expected an accountant out of {', '.join(ACCOUNTANTS)}; found {accountant!r}")
    if not 0 < delta < 1:
        raise StudyError(f"expected delta between 0 and 1, found {delta}; 1e-5 is usual, well under 1/patients")
    return _epsilon(form, float(delta), accountant)


def delta_for(event: DpEvent, budget: float, accountant: str = "pld") -> float:
    """The smallest delta, to three significant figures and rounded up, at which the event costs at most ``budget``.

    >>> from dp_accounting import GaussianDpEvent
    >>> delta_for(GaussianDpEvent(1.0), 4.378, "pld")
    9.97e-06
    """
    form = normal_form(event)
    low, high = -12.0, 0.0  # powers of ten; below 1e-12 floating point has no say
    if epsilon_of(form, 1 - 1e-12, accountant) > budget:
        return 1.0
    if epsilon_of(form, 10**low, accountant) <= budget:
        return float(10**low)
    while high - low > 1e-4:
        middle = (low + high) / 2
        if epsilon_of(form, 10**middle, accountant) <= budget:
            high = middle
        else:
            low = middle
    unit = 10.0 ** (math.floor(high) - 2)
    return min(1.0, float(f"{math.ceil(10**high / unit * (1 - 1e-12)) * unit:.3g}"))


@lru_cache(maxsize=8192)
def _epsilon(form: NormalForm, delta: float, accountant: str) -> float:
    if not form:
        return 0.0
    if any(step.kind == NON_PRIVATE for step, _ in form):
        return math.inf
    if accountant == "rdp" or (accountant == "pld" and any(step.kind == ZCDP for step, _ in form)):
        return _renyi(form, delta)
    if accountant == "basic":
        steps = sum(count for _, count in form)
        return float(sum(count * _one_step(step, delta / steps) for step, count in form))
    if all(step.kind == GAUSSIAN and step.rate == 1 for step, _ in form):
        return _gaussian(sum(count / step.noise**2 for step, count in form) ** -0.5, delta)
    tails = loss_tails(form)
    if max(tail.slack for tail in tails) > delta / 2:
        # So many steps at so small a delta that the rounding of the FFT could hide in it: RDP has no such limit.
        return _renyi(form, delta)
    return max(tail.epsilon(delta) for tail in tails)


def _gaussian(noise: float, delta: float) -> float:
    """Balle & Wang 2018, Theorem 8."""
    with np.errstate(divide="ignore"):  # the library's search passes through deltas too small for a float
        return float(get_epsilon_gaussian(noise, delta))


def _one_step(step: Step, delta: float) -> float:
    """The exact epsilon of a single step."""
    if step.kind == ZCDP:
        return _renyi(((step, 1),), delta)
    inner = min(delta / step.rate, 1.0)
    if inner >= 1:
        return 0.0
    if step.kind == LAPLACE:
        # delta(epsilon) = 1 - exp((epsilon - 1/b)/2) for epsilon up to 1/b.
        return max(0.0, 1 / step.noise + 2 * math.log1p(-inner))
    base = _gaussian(step.noise, inner)
    return base + math.log(step.rate + (1 - step.rate) * math.exp(-base)) if base > 0 else 0.0


def _renyi(form: NormalForm, delta: float) -> float:
    total = sum(count * _renyi_step(step) for step, count in form)
    return float(library.compute_epsilon(_ORDERS, total, delta)[0])


@lru_cache(maxsize=1024)
def _renyi_step(step: Step) -> Floats:
    """Renyi divergence of one step at each order."""
    if step.kind == ZCDP:
        return np.asarray(step.noise * _ORDERS, np.float64)
    if step.kind == GAUSSIAN and step.rate < 1:
        return np.array([_sampled_gaussian(step, order) for order in _ORDERS])
    plain = library.RdpAccountant(orders=_ORDERS)
    plain.compose(as_event(((step, 1),)))
    return np.asarray(plain.rdp, np.float64)


def _sampled_gaussian(step: Step, order: float) -> float:
    """ln E_Q[(P/Q)^order] / (order - 1), the larger of the two directions (Mironov, Talwar & Zhang 2019, Theorem 5).

    The integrand is analytic with its nearest pole pi sigma^2 off the real line, so the trapezoid rule at this width is
    exact to rounding.
    """
    width = min(step.noise / 8, step.noise**2 / 1.5)
    if order > 1e5 * width:  # a large order is of no use when the noise is this small: leave it out
        return math.inf
    z = np.arange(-13 * step.noise, order + 13 * step.noise, width)
    loss = loss_at(z, step)
    log_plain = -0.5 * (z / step.noise) ** 2 - math.log(step.noise * math.sqrt(2 * math.pi) / width)
    # E_Q[r^a] - 1 = E_Q[r^a - 1 - a (r - 1)], as E_Q[r] = 1: terms of one sign, so small rates do not cancel.
    if order * loss[-1] < 30:
        excess = np.expm1(order * loss) - order * np.expm1(loss)
        return math.log1p(float(np.sum(np.exp(log_plain) * excess))) / (order - 1)
    exponent = order * loss + log_plain
    peak = float(exponent.max())
    return (peak + math.log(float(np.sum(np.exp(exponent - peak))))) / (order - 1)
