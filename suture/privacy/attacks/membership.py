"""Membership inference by likelihood ratio: was this patient in the table?

LiRA (Carlini et al., "Membership Inference Attacks From First Principles", S&P 2022): the adversary trains shadow models
with and without the target, fits a normal distribution to what is observed in each world, and decides by the likelihood
ratio. Here shadows are trained for one target, on the rest of the table itself, which is what differential privacy grants
its adversary: knowledge of everybody else. Half of the runs are shadows, the other half are attacked.

Differential privacy bounds every such attack: TPR <= e^epsilon FPR + delta, hence the advantage TPR - FPR is at most
(e^epsilon - 1 + 2 delta) / (e^epsilon + 1) (Humphries et al. 2023, Theorem 3.2; Kairouz, Oh & Viswanath 2015).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture.errors import StudyError
from suture.privacy.bounds import rate_high, rate_low

Floats = NDArray[np.float64]


def advantage_bound(epsilon: float, delta: float) -> float:
    """The largest TPR - FPR that (epsilon, delta)-DP allows.

    >>> round(advantage_bound(1.0, 0.0), 4), advantage_bound(0.0, 0.0), advantage_bound(math.inf, 1e-5)
    (0.4621, 0.0, 1.0)
    """
    if math.isinf(epsilon):
        return 1.0
    # (e^eps - 1 + 2 delta)/(e^eps + 1), in the form that does not overflow.
    shrunk = math.exp(-epsilon)
    return min(1.0, (1 - shrunk + 2 * delta * shrunk) / (1 + shrunk))


def tpr_bound(epsilon: float, delta: float, fpr: float) -> float:
    """The largest true positive rate that (epsilon, delta)-DP allows at a false positive rate.

    >>> round(tpr_bound(1.0, 0.0, 0.01), 5), round(tpr_bound(8.0, 1e-5, 0.01), 5)
    (0.02718, 0.99967)
    """
    if math.isinf(epsilon):
        return 1.0
    other = 1 - math.exp(-epsilon) * (1 - delta - fpr)  # the same promise for the other guess
    return min(1.0, other, math.exp(min(epsilon, 50.0)) * fpr + delta)


@dataclass(frozen=True)
class Attack:
    """How well one adversary told both worlds apart, on runs that its shadows were not."""

    tpr: float
    fpr: float
    advantage: float
    advantage_low: float
    advantage_high: float
    low_fpr: float
    """The false positive rate that the strict threshold aims at."""
    strict_fpr: float
    strict_tpr: float
    strict_tpr_low: float
    strict_tpr_high: float
    auc: float
    runs: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def likelihood_ratio(present: Floats, absent: Floats) -> Callable[[Floats], Floats]:
    """ln of the ratio of two normal densities fitted to shadow observations (rows, or single numbers).

    >>> score = likelihood_ratio(np.array([0.9, 1.1]), np.array([-0.1, 0.1]))
    >>> bool(score(np.array([1.0]))[0] > 0 > score(np.array([0.0]))[0])
    True
    """
    fits = []
    for shadows in (present, absent):
        rows = shadows.reshape(len(shadows), -1)
        # A floor: without noise an observation may not vary at all, and its density would be infinite.
        spread = rows.std(axis=0) + 1e-6 * (np.abs(rows).max(axis=0) + 1e-6)
        fits.append((rows.mean(axis=0), spread))

    def score(observed: Floats) -> Floats:
        rows = observed.reshape(len(observed), -1)
        first, second = (
            -(((rows - mean) / spread) ** 2).sum(axis=1) / 2 - np.log(spread).sum() for mean, spread in fits
        )
        return np.asarray(first - second, np.float64)

    return score


def attack(present: Floats, absent: Floats, *, low_fpr: float = 0.01, error: float = 0.05) -> Attack:
    """Attack the second half of the observations with shadows of the first half.

    The decision for the advantage is the likelihood ratio's own (above zero: present). The interval of the advantage
    takes both rates at the ends of their Clopper-Pearson intervals, ``error`` for both together.

    >>> rng = np.random.default_rng(0)
    >>> found = attack(rng.normal(2.0, 1.0, 2000), rng.normal(0.0, 1.0, 2000))
    >>> 0.64 < found.advantage < 0.72, found.advantage_low < 0.6827 < found.advantage_high
    (True, True)
    """
    runs = min(len(present), len(absent)) // 2
    if runs < 20:
        raise StudyError(f"expected at least 40 observations of each world, found {min(len(present), len(absent))}")
    score = likelihood_ratio(present[:runs], absent[:runs])
    strict = float(np.quantile(score(absent[:runs]), 1 - low_fpr, method="higher"))
    inside, outside = score(present[runs : 2 * runs]), score(absent[runs : 2 * runs])
    hits, misses = int(np.sum(inside > 0)), int(np.sum(outside > 0))
    strict_hits = int(np.sum(inside > strict))
    low, high = (_ends(count, runs, error / 2) for count in (hits, misses))
    strict_ends = _ends(strict_hits, runs, error)
    order = np.argsort(np.concatenate([outside, inside]), kind="stable")
    ranks = np.empty(2 * runs)
    ranks[order] = np.arange(1, 2 * runs + 1)
    return Attack(
        tpr=hits / runs,
        fpr=misses / runs,
        advantage=(hits - misses) / runs,
        advantage_low=low[0] - high[1],
        advantage_high=low[1] - high[0],
        low_fpr=low_fpr,
        strict_fpr=float(np.mean(outside > strict)),
        strict_tpr=strict_hits / runs,
        strict_tpr_low=strict_ends[0],
        strict_tpr_high=strict_ends[1],
        auc=float((ranks[runs:].sum() - runs * (runs + 1) / 2) / runs**2),
        runs=runs,
    )


def _ends(count: int, runs: int, error: float) -> tuple[float, float]:
    return float(rate_low(count, runs, error / 2)), float(rate_high(count, runs, error / 2))
