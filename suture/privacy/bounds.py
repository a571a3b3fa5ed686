"""What counts of right and wrong guesses prove about epsilon: Clopper-Pearson bounds and what follows from them.

A test that guesses "the patient is in the table" from a message has a true positive rate TPR (right when the patient is
there) and a false positive rate FPR (wrong when not). Any (epsilon, delta)-DP mechanism satisfies TPR <= e^epsilon FPR +
delta and 1 - FPR <= e^epsilon (1 - TPR) + delta (Kairouz, Oh & Viswanath 2015, Theorem 2.1), and a mu-GDP one
Phi^-1(1 - FPR) - Phi^-1(FNR) <= mu (Dong, Roth & Su 2022, Definition 2.6). With rates replaced by their Clopper-Pearson
ends (1934) these turn around into lower bounds that are too high with at most the stated probability ``error``, split
evenly between the two rates that a bound rests on (Jagielski, Ullman & Oprea 2020; Nasr et al. 2023 for mu).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from numpy.typing import NDArray
from scipy import special

from suture.errors import StudyError
from suture.privacy.accountant import epsilon_of
from suture.privacy.events import GAUSSIAN, NON_PRIVATE, NormalForm, Step
from suture.privacy.loss import loss_tails

Counts = NDArray[np.int64] | int
Floats = NDArray[np.float64]

# How far the claimed noise is scaled in search of one that fits what was measured, and the least noise that the privacy
# loss distribution is asked about: below, its grid overflows.
_MOST_SCALE, _LEAST_NOISE = 64.0, 0.08
_HALVINGS = 14


def rate_low(successes: Counts, trials: int, error: float) -> Any:
    """Clopper-Pearson lower end: below the true rate except with probability ``error``.

    >>> rate_low(0, 10, 0.025), round(float(rate_low(9, 10, 0.025)), 4)
    (0.0, 0.555)
    """
    k = np.asarray(successes)
    found = np.where(k > 0, special.betaincinv(np.maximum(k, 1), trials - k + 1.0, error), 0.0)
    return found if found.ndim else float(found)


def rate_high(successes: Counts, trials: int, error: float) -> Any:
    """Clopper-Pearson upper end: above the true rate except with probability ``error``.

    >>> round(float(rate_high(0, 1000, 0.025)), 6), rate_high(10, 10, 0.025)
    (0.003682, 1.0)
    """
    k = np.asarray(successes)
    found = np.where(k < trials, special.betaincinv(k + 1.0, np.maximum(trials - k, 1), 1 - error), 1.0)
    return found if found.ndim else float(found)


def epsilon_bound(hits: Counts, misses: Counts, trials: int, delta: float, error: float) -> Any:
    """ln((TPR_low - delta) / FPR_high): at least this epsilon, except with probability ``error``; never below 0.

    ``hits`` of ``trials`` in the world that is guessed, ``misses`` of ``trials`` in the other. With no miss and nine
    hits in ten, epsilon 5 takes 609 runs a world at 95 %:

    >>> round(float(epsilon_bound(609, 0, 609, 0.0, 0.05)), 2)
    5.1
    """
    top = np.asarray(rate_low(hits, trials, error / 2)) - delta
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(top > 0, np.log(np.maximum(top, 1e-300) / rate_high(misses, trials, error / 2)), 0.0)
    found = np.maximum(found, 0.0)
    return found if found.ndim else float(found)


def mu_bound(hits: Counts, misses: Counts, trials: int, error: float) -> Any:
    """Phi^-1(1 - FPR_high) - Phi^-1(FNR_high): at least this mu, if the mechanism is Gaussian-like; never below 0.

    >>> round(float(mu_bound(900, 100, 1000, 0.05)), 3)
    2.347
    """
    fpr = rate_high(misses, trials, error / 2)
    fnr = rate_high(trials - np.asarray(hits), trials, error / 2)
    with np.errstate(invalid="ignore"):
        found = np.asarray(-special.ndtri(fpr) - special.ndtri(fnr))
    found = np.where(np.isfinite(found), np.maximum(found, 0.0), 0.0)
    return found if found.ndim else float(found)


def epsilon_of_mu(mu: float, delta: float) -> float:
    """The epsilon of a mu-GDP mechanism at this delta (Balle & Wang 2018, Theorem 8).

    >>> round(epsilon_of_mu(1.0, 1e-5), 3), epsilon_of_mu(0.0, 1e-5)
    (4.377, 0.0)
    """
    if mu <= 0:
        return 0.0
    with np.errstate(divide="ignore"):
        return float(get_epsilon_gaussian(1 / mu, delta))


def runs_needed(epsilon: float, tpr: float = 0.9, error: float = 0.05) -> int:
    """Runs a world after which a test without a false positive and with this TPR shows ``epsilon`` (rule of thumb).

    The TPR is taken as known, so this is 3.69 e^epsilon / TPR at 95 %.

    >>> runs_needed(5.0)
    609
    """
    if not 0 < tpr <= 1 or not epsilon > 0:
        raise StudyError(f"expected 0 < tpr <= 1 and epsilon > 0, found {tpr} and {epsilon}")
    return math.ceil(-math.log(error / 2) * math.exp(epsilon) / tpr)


def reach(trials: int, delta: float, error: float, gaussian: bool) -> float:
    """The largest epsilon that so many measured runs a world could show: every guess right.

    >>> round(reach(1000, 1e-5, 0.05, gaussian=False), 2), round(reach(1000, 1e-5, 0.05, gaussian=True), 1)
    (5.6, 36.5)
    """
    plain = float(epsilon_bound(trials, 0, trials, delta, error))
    if not gaussian or delta <= 0:
        return plain
    return max(plain, epsilon_of_mu(float(mu_bound(trials, 0, trials, error)), delta))


def claimed_mu(form: NormalForm) -> float | None:
    """The mu of releases that are all Gaussian without sampling (exact: 1/sigma^2 adds up); None for anything else.

    >>> claimed_mu(((Step(GAUSSIAN, 2.0, 1.0), 4),)), claimed_mu(((Step(GAUSSIAN, 2.0, 0.1), 4),))
    (1.0, None)
    """
    if not form or any(step.kind != GAUSSIAN or step.rate < 1 for step, _ in form):
        return None
    return math.sqrt(sum(count / step.noise**2 for step, count in form))


def refutes(form: NormalForm, tpr: float, fpr: float) -> bool:
    """Whether no mechanism with this event can have a test as good as (TPR, FPR): its whole trade-off curve is asked.

    For every epsilon at once, TPR <= e^epsilon FPR + delta(epsilon), with delta(epsilon) from the event's privacy loss
    distribution for removing a patient, which errs upwards: an event is never refuted by its own rounding.

    >>> form = ((Step(GAUSSIAN, 1.0, 1.0), 1),)  # mu = 1: at a false positive rate of 0.1 no more than 0.389
    >>> refutes(form, 0.385, 0.1), refutes(form, 0.395, 0.1)
    (False, True)
    """
    remove, _ = loss_tails(form)
    scale = np.exp(np.minimum(remove.losses, 700.0))
    delta = remove.upper - scale * remove.lower + remove.slack
    return bool(np.any(tpr > scale * fpr + delta))


def event_bound(form: NormalForm, delta: float, hits: int, misses: int, trials: int, error: float) -> float:
    """The epsilon of the noisiest event *of the claimed kind* that could have been told apart this well.

    For Gaussian claims without sampling this is `mu_bound` turned into an epsilon. For sampled or mixed ones all noise
    multipliers are scaled together until the trade-off curve is just not refuted.

    >>> form = ((Step(GAUSSIAN, 1.0, 0.5), 1),)
    >>> event_bound(form, 1e-5, 1000, 0, 1000, 0.05) > epsilon_of(form, 1e-5)
    True
    """
    if not form or any(step.kind == NON_PRIVATE for step, _ in form):
        return 0.0
    if claimed_mu(form) is not None:
        return epsilon_of_mu(float(mu_bound(hits, misses, trials, error)), delta)
    tpr, fpr = float(rate_low(hits, trials, error / 2)), float(rate_high(misses, trials, error / 2))
    low = min(0.0, math.log(_LEAST_NOISE / min(step.noise for step, _ in form)))
    high = math.log(_MOST_SCALE)
    if not refutes(_scaled(form, math.exp(high)), tpr, fpr):
        return 0.0
    if refutes(_scaled(form, math.exp(low)), tpr, fpr):
        return epsilon_of(_scaled(form, math.exp(low)), delta)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if refutes(_scaled(form, math.exp(middle)), tpr, fpr) else (middle, high)
    return epsilon_of(_scaled(form, math.exp(high)), delta)  # the refuted side: the smaller epsilon


def _scaled(form: NormalForm, scale: float) -> NormalForm:
    """The same event with every noise multiplier times ``scale``."""
    return tuple((Step(step.kind, step.noise * scale, step.rate), count) for step, count in form)
