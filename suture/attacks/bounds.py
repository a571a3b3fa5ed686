"""What counts of right and wrong guesses prove about epsilon: Clopper-Pearson bounds and what
follows from them.

A test that guesses "the patient is in the table" from a message has a true positive rate TPR (right
when the patient is there) and a false positive rate FPR (wrong when not). Any (epsilon, delta)-DP
mechanism satisfies TPR <= e^epsilon FPR + delta and 1 - FPR <= e^epsilon (1 - TPR) + delta
(Kairouz, Oh & Viswanath 2015, Theorem 2.1), and a mu-GDP one Phi^-1(1 - FPR) - Phi^-1(FNR) <= mu
(Dong, Roth & Su 2022, Definition 2.6). With rates replaced by their Clopper-Pearson ends (1934)
these turn around into lower bounds that are too high with at most the stated probability ``error``,
split evenly between the two rates that a bound rests on (Jagielski, Ullman & Oprea 2020; Nasr et
al. 2023 for mu).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

from suture.privacy.accounting.accountant import epsilon_of, epsilon_of_mu, loss_tails
from suture.privacy.accounting.events import GAUSSIAN, NON_PRIVATE, NormalForm, Step

Counts = NDArray[np.int64] | int
Floats = NDArray[np.float64]

# How far the claimed noise is scaled in search of one that fits what was measured, and the least
# noise that the privacy loss distribution is asked about: below, its grid overflows.
_MOST_SCALE, _LEAST_NOISE = 64.0, 0.08
_HALVINGS = 14


def rate_low(successes: Counts, trials: int, error: float) -> Floats:
    """Clopper-Pearson lower end: below the true rate except with probability ``error``."""
    k = np.asarray(successes)
    found = special.betaincinv(np.maximum(k, 1), trials - k + 1.0, error)
    return np.where(k > 0, found, 0.0)


def rate_high(successes: Counts, trials: int, error: float) -> Floats:
    """Clopper-Pearson upper end: above the true rate except with probability ``error``."""
    k = np.asarray(successes)
    found = special.betaincinv(k + 1.0, np.maximum(trials - k, 1), 1 - error)
    return np.where(k < trials, found, 1.0)


def rate_ends(successes: int, trials: int, error: float) -> tuple[float, float]:
    """Both ends: the true rate lies between them except with probability ``error``."""
    low, high = rate_low(successes, trials, error / 2), rate_high(successes, trials, error / 2)
    return float(low), float(high)


def epsilon_bound(hits: Counts, misses: Counts, trials: int, delta: float, error: float) -> Floats:
    """max(0, ln((TPR_low - delta) / FPR_high)): at least this epsilon, but for ``error``.

    ``hits`` of ``trials`` in the world that is guessed, ``misses`` of ``trials`` in the other. With
    no miss and nine hits in ten, showing epsilon 5 takes 609 runs per world at 95 %:

    >>> round(float(epsilon_bound(609, 0, 609, 0.0, 0.05)), 2)
    5.1
    """
    top = rate_low(hits, trials, error / 2) - delta
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log(np.maximum(top, 1e-300) / rate_high(misses, trials, error / 2))
    return np.maximum(np.where(top > 0, found, 0.0), 0.0)


def mu_bound(hits: Counts, misses: Counts, trials: int, error: float) -> Floats:
    """max(0, Phi^-1(1 - FPR_high) - Phi^-1(FNR_high)): at least this mu, if Gaussian-like."""
    fpr = rate_high(misses, trials, error / 2)
    fnr = rate_high(trials - np.asarray(hits), trials, error / 2)
    with np.errstate(invalid="ignore"):
        found = -special.ndtri(fpr) - special.ndtri(fnr)
    return np.where(np.isfinite(found), np.maximum(found, 0.0), 0.0)


def reach(trials: int, delta: float, error: float, gaussian: bool) -> float:
    """The largest epsilon that this many measured runs per world could show: every guess right.

    >>> round(reach(1000, 1e-5, 0.05, gaussian=False), 2), round(reach(1000, 1e-5, 0.05, gaussian=True), 1)
    (5.6, 36.5)
    """
    plain = float(epsilon_bound(trials, 0, trials, delta, error))
    if not gaussian or delta <= 0:
        return plain
    return max(plain, epsilon_of_mu(float(mu_bound(trials, 0, trials, error)), delta))


def claimed_mu(form: NormalForm) -> float | None:
    """The mu of Gaussian releases without sampling (exact: 1/sigma^2 adds up), else None."""
    if not form or any(step.kind != GAUSSIAN or step.rate < 1 for step, _ in form):
        return None
    return math.sqrt(sum(count / step.noise**2 for step, count in form))


def refutes(form: NormalForm, tpr: float, fpr: float) -> bool:
    """Whether no mechanism with this event allows a test as good as (TPR, FPR).

    For every epsilon at once, TPR <= e^epsilon FPR + delta(epsilon), with delta(epsilon) from the
    event's privacy loss distribution for removing a patient, which errs upwards: an event is never
    refuted by its own rounding.

    >>> form = ((Step(GAUSSIAN, 1.0, 1.0), 1),)  # mu = 1: at a false positive rate of 0.1 no more than 0.389
    >>> refutes(form, 0.385, 0.1), refutes(form, 0.395, 0.1)
    (False, True)
    """
    remove, _ = loss_tails(form)
    scale = np.exp(np.minimum(remove.losses, 700.0))
    return bool(np.any(tpr > scale * fpr + remove.delta() + remove.slack))


def event_bound(
    form: NormalForm, delta: float, hits: int, misses: int, trials: int, error: float
) -> float:
    """The epsilon of the noisiest event *of the claimed kind* that can be told apart this well.

    For Gaussian claims without sampling this is `mu_bound` turned into an epsilon. For sampled or
    mixed ones all noise multipliers are scaled together until the trade-off curve is just not
    refuted.
    """
    if not form or any(step.kind == NON_PRIVATE for step, _ in form):
        return 0.0
    if claimed_mu(form) is not None:
        return epsilon_of_mu(float(mu_bound(hits, misses, trials, error)), delta)
    tpr, fpr = float(rate_low(hits, trials, error / 2)), float(rate_high(misses, trials, error / 2))

    def scaled(log: float) -> NormalForm:
        """The same event with every noise multiplier times e^log."""
        return tuple((Step(s.kind, s.noise * math.exp(log), s.rate), count) for s, count in form)

    low = min(0.0, math.log(_LEAST_NOISE / min(step.noise for step, _ in form)))
    high = math.log(_MOST_SCALE)
    if not refutes(scaled(high), tpr, fpr):
        return 0.0
    if refutes(scaled(low), tpr, fpr):
        return epsilon_of(scaled(low), delta)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if refutes(scaled(middle), tpr, fpr) else (middle, high)
    return epsilon_of(scaled(high), delta)  # the refuted side: the smaller epsilon
