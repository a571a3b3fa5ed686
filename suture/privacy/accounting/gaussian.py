"""One Gaussian release: the classical formula, the analytic one, and exact Gaussian differential
privacy.

Noise N(0, sigma^2) on a figure that one patient moves by at most 1 (divide by the sensitivity
first). Three ways to say what that is worth:

- classical: sigma = sqrt(2 ln(1.25/delta)) / epsilon (Dwork & Roth 2014, Theorem A.1). The proof
  covers epsilon < 1 only. At delta = 1e-5 the figure happens to be safe up to a label of about 8.4
  and is false above: a label of 10 is 10.39 in truth, 16 is 18.9.
- exact: the release is mu-GDP with mu = 1/sigma, and (epsilon, delta)-DP exactly when
  delta >= Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2)
  (Dong, Roth & Su 2022, Corollary 2.13; the same as Balle & Wang 2018, Theorem 8).
- analytic: the smallest sigma for which that holds (Balle & Wang 2018, Algorithm 1).

Releases compose exactly: mu^2 adds up (Dong, Roth & Su 2022, Corollary 3.3). Figures are never
rounded in favour of the study: sigma and epsilon are the nearest float at which the promise holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy import optimize
from scipy.special import log_ndtr

from suture.errors import StudyError
from suture.privacy.accounting.accountant import check_delta

CLASSICAL_PROVEN_BELOW = 1.0
"""The classical formula's proof needs epsilon below this."""


def delta_of(epsilon: float, mu: float) -> float:
    """The smallest delta at which a mu-GDP release is (epsilon, delta)-DP.

    >>> delta_of(1.0, 1.0)
    0.1269367375066439
    """
    _positive(mu, "mu")
    if mu == math.inf:
        return 1.0
    first = float(log_ndtr(mu / 2 - epsilon / mu))
    second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    # e^first - e^second with e^first taken out: the difference of close numbers keeps its digits.
    return min(1.0, math.exp(first) * -math.expm1(min(0.0, second - first)))


def epsilon_of_mu(mu: float, delta: float) -> float:
    """The epsilon of a mu-GDP release at this delta: exact, and rounded up to a float.

    >>> round(epsilon_of_mu(1 / classical_sigma(10, 1e-5), 1e-5), 2)
    10.39
    """
    check_delta(delta)
    if mu == 0:
        return 0.0
    _positive(mu, "mu")
    if delta_of(0.0, mu) <= delta:
        return 0.0
    return _first(lambda epsilon: delta_of(epsilon, mu) - delta, mu * mu / 2 + mu)


def mu_for(epsilon: float, delta: float) -> float:
    """The largest mu whose release is (epsilon, delta)-DP.

    >>> round(mu_for(6.0, 1e-5), 4), round(epsilon_of_mu(mu_for(6.0, 1e-5), 1e-5), 6)
    (1.3095, 6.0)
    """
    _positive(epsilon, "epsilon")
    check_delta(delta)
    return 1 / _first(lambda sigma: delta_of(epsilon, 1 / sigma) - delta, 1 / epsilon)


def classical_sigma(epsilon: float, delta: float) -> float:
    """The classical formula's noise for sensitivity 1; proven for epsilon below 1 only.

    >>> round(classical_sigma(1.0, 1e-5), 4)
    4.8448
    """
    _positive(epsilon, "epsilon")
    check_delta(delta)
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def classical_epsilon(sigma: float, delta: float) -> float:
    """The label that the classical formula puts on this noise.

    >>> round(classical_epsilon(4.8448, 1e-5), 4)
    1.0
    """
    return classical_sigma(sigma, delta)  # sigma and epsilon change places: their product is fixed


def analytic_sigma(epsilon: float, delta: float) -> float:
    """The least noise, for sensitivity 1, that is (epsilon, delta)-DP.

    >>> round(analytic_sigma(1.0, 1e-5), 4), round(analytic_sigma(10.0, 1e-5), 4)
    (3.7306, 0.4999)
    """
    return 1 / mu_for(epsilon, delta)


def true_epsilon(label: float, delta: float, rounds: int = 1) -> float:
    """The true epsilon of ``rounds`` releases that the classical formula labelled ``label`` each.

    >>> [round(true_epsilon(1.0, 1e-5, rounds), 2) for rounds in (10, 50, 100)]
    [2.69, 6.82, 10.39]
    """
    return epsilon_of_mu(math.sqrt(rounds) / classical_sigma(label, delta), delta)


def _first(excess: Callable[[float], float], start: float) -> float:
    """The smallest float at which a decreasing function is no longer above zero."""
    low, high = 0.0, start
    while excess(high) > 0:
        low, high = high, 2 * high
        if high > 1e9:
            raise StudyError("no finite figure meets this promise: raise epsilon or delta")
    if low == 0.0:
        low = start
        while excess(low) <= 0:
            low /= 2
            if low < 1e-12:
                return low
    root = float(optimize.brentq(excess, low, high, xtol=1e-14, rtol=1e-14))
    while excess(root) > 0:  # the root is close, not exact: step to where the promise holds
        root *= 1 + 1e-14
    return root


def _positive(value: float, name: str) -> None:
    if not value > 0:
        raise StudyError(f"expected {name} above 0, found {value}")
