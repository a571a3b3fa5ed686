"""The strongest privacy at which a safety decision can still be trusted.

A site releases the rate of an adverse event among n patients with Gaussian noise; a regulator flags the drug when the
released rate is above a threshold. One patient moves the count by 1, so noise of standard deviation sigma (in patients)
is sigma/n on the rate. The flag is *reliable* when it is right with at least the asked probability.

Two questions go by that name, and they have different answers:

- without sampling error: the site's own rate *is* the true rate, and noise alone can turn the flag:
  P(right) = Phi(n |rate - threshold| / sigma);
- with sampling error: the site's events are Binomial(n, rate), so a small hospital can be on the wrong side before any
  noise is added. P(right) = sum over k of Binomial(k) P(k + N(0, sigma^2) on the right side of n threshold), which no
  epsilon lifts above its limit as noise vanishes. (In that limit a count exactly at the threshold is a coin toss.)

Rounding is towards reliability: epsilon is rounded up.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import optimize, stats
from scipy.special import ndtr, ndtri

from suture.errors import StudyError
from suture.privacy.gaussian import (
    CLASSICAL_PROVEN_BELOW,
    analytic_sigma,
    classical_epsilon,
    classical_sigma,
    epsilon_of_mu,
)

_LEAST, _MOST = 1e-4, 1e3
MECHANISMS: dict[str, Callable[[float, float], float]] = {"classical": classical_sigma, "analytic": analytic_sigma}


def reliability_of(
    sigma: float, *, rate: float, threshold: float, patients: int, sampling_error: bool = False
) -> float:
    """The probability that the flag is right when the noise, in patients, has standard deviation ``sigma`` (0: the limit).

    >>> round(reliability_of(4.8448, rate=0.011, threshold=0.01, patients=4000), 3)
    0.795
    >>> round(reliability_of(0.0, rate=0.012, threshold=0.01, patients=4000, sampling_error=True), 3)
    0.879
    """
    _check(rate, threshold, patients)
    if not sigma >= 0:
        raise StudyError(f"expected noise of at least 0, found {sigma}")
    if not sampling_error:
        return float(ndtr(patients * abs(rate - threshold) / sigma)) if sigma > 0 else 1.0
    count = np.arange(patients + 1)
    chance = stats.binom.pmf(count, patients, rate)
    kept = chance > 1e-18
    # The edge in whole events: 0.01 * 4000 is 40, not 40.000000000000001.
    edge = round(patients * threshold, 9)
    aside = count[kept] - edge
    above = (np.sign(aside) + 1) / 2 if sigma == 0 else ndtr(aside / sigma)
    flagged = float(np.dot(chance[kept], above))
    return flagged if rate > threshold else 1 - flagged


def safe_epsilon(
    *, rate: float, threshold: float, patients: int, reliability: float = 0.95, delta: float = 1e-5
) -> dict[str, Any]:
    """The smallest reliable epsilon, by mechanism, with and without sampling error; plain JSON.

    >>> found = safe_epsilon(rate=0.012, threshold=0.01, patients=4000)
    >>> found["without_sampling_error"]["classical"]["epsilon"], found["without_sampling_error"]["analytic"]["epsilon"]
    (0.9962, 0.7478)
    >>> found["with_sampling_error"]["reachable"], found["with_sampling_error"]["best_possible"]
    (False, 0.8786)
    """
    _check(rate, threshold, patients)
    if not 0.5 < reliability < 1:
        raise StudyError(f"expected a reliability between 0.5 (a coin toss) and 1, found {reliability}")
    question = {"rate": rate, "threshold": threshold, "patients": patients}
    plain = patients * abs(rate - threshold) / float(ndtri(reliability))
    ceiling = reliability_of(0.0, **question, sampling_error=True)  # type: ignore[arg-type]
    found: dict[str, Any] = {**question, "reliability": reliability, "delta": delta}
    found["events_expected"] = rate * patients
    found["events_at_threshold"] = threshold * patients
    found["without_sampling_error"] = {"reachable": True, "best_possible": 1.0, **_answers(plain, delta)}
    sampled = _most_noise(question, reliability) if ceiling >= reliability else None
    found["with_sampling_error"] = {
        "reachable": sampled is not None,
        "best_possible": math.floor(ceiling * 1e4) / 1e4,
        **(_answers(sampled, delta) if sampled is not None else dict.fromkeys(MECHANISMS)),
    }
    for part, counted in (("without_sampling_error", False), ("with_sampling_error", True)):
        for name, answer in found[part].items():
            if isinstance(answer, dict):
                sigma = MECHANISMS[name](answer["epsilon"], delta)
                answer["reliability"] = reliability_of(sigma, **question, sampling_error=counted)  # type: ignore[arg-type]
    return found


def _most_noise(question: dict[str, Any], reliability: float) -> float:
    """The largest noise at which the flag, sampling error counted, is still reliable."""

    def short(log_sigma: float) -> float:
        return reliability - reliability_of(math.exp(log_sigma), **question, sampling_error=True)

    # Reliability falls with noise apart from ripples of whole events at small noise: look from the noisy side.
    grid = np.linspace(math.log(1e4 * question["patients"]), math.log(1e-3), 400)
    for outer, inner in itertools.pairwise(grid):
        if short(inner) <= 0:
            return math.exp(optimize.brentq(short, inner, outer, xtol=1e-12))
    return math.exp(grid[-1])


def _answers(sigma: float, delta: float) -> dict[str, Any]:
    """What a noise of ``sigma`` patients is called by each mechanism."""
    classical, analytic = _up(classical_epsilon(sigma, delta)), _up(epsilon_of_mu(1 / sigma, delta))
    answers: dict[str, Any] = {}
    for name, epsilon in (("classical", classical), ("analytic", analytic)):
        noise = MECHANISMS[name](epsilon, delta)
        answers[name] = {"epsilon": epsilon, "sigma_patients": noise}
    answers["classical"]["proven"] = classical < CLASSICAL_PROVEN_BELOW
    answers["classical"]["true_epsilon"] = _up(epsilon_of_mu(1 / answers["classical"]["sigma_patients"], delta))
    answers["analytic"]["proven"] = True
    return answers


def _check(rate: float, threshold: float, patients: int) -> None:
    for name, value in (("rate", rate), ("threshold", threshold)):
        if not 0 < value < 1:
            raise StudyError(f"expected {name} between 0 and 1 (0.012 is 1.2 %), found {value}")
    if rate == threshold:
        raise StudyError("the rate equals the threshold: no flag can be reliable on a tie; change one of them")
    if patients < 1 or patients != int(patients):
        raise StudyError(f"expected a whole number of patients of at least 1, found {patients}")


def _up(value: float) -> float:
    """Four significant figures, rounded up; at least the smallest epsilon that is worth stating."""
    value = min(max(value, _LEAST), _MOST)
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return float(f"{math.ceil(value / unit * (1 - 1e-12)) * unit:.4g}")
