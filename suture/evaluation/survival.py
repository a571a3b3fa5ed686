"""Survival, exactly: Kaplan-Meier, the log-rank test, Cox's regression, and how good predicted risks
are. For generated patients, for a site's own eyes, and as the measure of everything noisy.

Agrees with R's `survival`, lifelines and scikit-survival (tests/evaluation/test_exact_survival.py):

- `concordance` is Harrell's C: of pairs of which it is known who had the event first, the share in
  which that row has the higher risk; equal risks count half. A row whose follow-up ends at the other's
  event is known to have it later.
- `brier` weighs by the inverse of the censoring's Kaplan-Meier estimate (Graf et al. 1999), at equal
  times with events before censoring.
- `cox` maximises Efron's partial likelihood.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
NAMES = ("c_index", "ibs", "calibration_gap")
GROUPS = 10
_PAIRS = 1 << 22


def measured(time: Floats, event: Bools, risk: Floats, edges: Floats) -> dict[str, float | None]:
    """Every metric in `NAMES`, of risks by the end of each interval; None where undefined."""
    found: dict[str, float | None] = dict.fromkeys(NAMES)
    if not len(time) or not np.all(np.isfinite(risk)):
        return found
    # By the mean risk over the intervals, which is the expected time without the event up to the
    # horizon, turned round: risks at the horizon may all be close to 1.
    found["c_index"] = concordance(time, event, risk.mean(axis=1))
    found["ibs"] = integrated_brier(time, event, 1 - risk, edges)
    curve = calibration(time, event, risk[:, -1], float(edges[-1]))
    total = sum(curve["count"])
    gaps = (n * abs(a - b) for a, b, n in zip(*curve.values(), strict=True))
    found["calibration_gap"] = float(sum(gaps) / total) if total else None
    return found


def concordance(time: Floats, event: Bools, risk: Floats) -> float | None:
    """Harrell's C; None where no pair can be compared.

    >>> concordance(np.array([1.0, 2, 3]), np.array([True, True, False]), np.array([0.9, 0.2, 0.5]))
    0.6666666666666666
    """
    won, pairs = 0.0, 0
    rows = np.flatnonzero(event)
    for block in np.array_split(rows, max(1, len(rows) * len(time) // _PAIRS)):
        t, r = time[block][:, None], risk[block][:, None]
        later = (time > t) | ((time == t) & ~event)
        pairs += int(np.count_nonzero(later))
        won += float(np.count_nonzero(later & (risk < r)))
        won += float(np.count_nonzero(later & (risk == r))) / 2
    return won / pairs if pairs else None


def kaplan_meier(time: Floats, event: Bools, first: Bools | None = None) -> tuple[Floats, Floats]:
    """The distinct times, and the share without the event after each. Rows in ``first`` leave before
    the others at the same time, as events do before censoring.

    >>> kaplan_meier(np.array([1.0, 2, 2, 3]), np.array([True, True, False, False]))[1].tolist()
    [0.75, 0.5, 0.5]
    """
    times, at = np.unique(time, return_inverse=True)
    left = np.bincount(at, minlength=len(times))
    reach = np.flip(np.cumsum(np.flip(left))).astype(np.float64)
    if first is not None:
        reach -= np.bincount(at, first, len(times))
    share = np.bincount(at, event, len(times)) / np.maximum(reach, 1.0)
    return times, np.asarray(np.cumprod(1 - share))


def _at(times: Floats, values: Floats, where: Floats) -> Floats:
    """A step function that is 1 before the first time."""
    return np.append(1.0, values)[np.searchsorted(times, where, side="right")]


def brier(time: Floats, event: Bools, survival: Floats, edges: Floats) -> Floats:
    """The Brier score of the survival predicted at each of the ``edges``."""
    times, kept = kaplan_meier(time, ~event, event)
    own = np.maximum(_at(times, kept, time), 1e-12)
    found = []
    for at, predicted in zip(edges, survival.T, strict=True):
        gone = event & (time <= at)
        there = time > at
        weight = max(float(_at(times, kept, np.array([at]))[0]), 1e-12)
        squares = gone * predicted**2 / own + there * (1 - predicted) ** 2 / weight
        found.append(float(np.mean(squares)))
    return np.array(found)


def integrated_brier(time: Floats, event: Bools, survival: Floats, edges: Floats) -> float | None:
    """The mean of the Brier score from the first to the last edge (trapezoids)."""
    if not event.any() or len(edges) < 2:
        return None
    scores = brier(time, event, survival, edges)
    width = float(edges[-1] - edges[0])
    return float(np.diff(edges) @ (scores[1:] + scores[:-1]) / 2 / width)


def calibration(
    time: Floats, event: Bools, risk: Floats, horizon: float, groups: int = GROUPS
) -> dict[str, list[float]]:
    """In groups of equal size by risk: the mean risk at the horizon, the share with the event by
    Kaplan-Meier, and the rows. Equal risks share a group."""
    rank = np.searchsorted(np.sort(risk), risk, side="left")
    group = (rank * groups) // max(len(risk), 1)
    found: dict[str, list[float]] = {"predicted": [], "observed": [], "count": []}
    for g in np.unique(group):
        here = group == g
        times, kept = kaplan_meier(time[here], event[here])
        found["predicted"].append(float(risk[here].mean()))
        found["observed"].append(float(1 - _at(times, kept, np.array([horizon]))[0]))
        found["count"].append(int(np.count_nonzero(here)))
    return found


def log_rank(time: Floats, event: Bools, group: NDArray[np.integer]) -> dict[str, float]:
    """Chi-squared of equal hazards in all groups (0, 1, ...), its degrees of freedom and p-value."""
    times, at = np.unique(time, return_inverse=True)
    count = int(group.max()) + 1
    left = np.zeros((count, len(times)))
    died = np.zeros((count, len(times)))
    np.add.at(left, (group, at), 1)
    np.add.at(died, (group, at), event)
    reach = np.flip(np.cumsum(np.flip(left, 1), axis=1), 1)
    n, d = reach.sum(axis=0), died.sum(axis=0)
    score = (died - reach * d / n).sum(axis=1)
    spread = np.where(n > 1, d * (n - d) / np.maximum(n - 1, 1), 0.0)
    share = reach / n
    variance = np.diag((share * spread).sum(axis=1)) - (share * spread) @ share.T
    u, v = score[1:], variance[1:, 1:]
    statistic = float(u @ np.linalg.solve(v, u))
    return {"statistic": statistic, "degrees": count - 1, "p": float(chi2.sf(statistic, count - 1))}


def cox(
    x: Floats, time: Floats, event: Bools, most: int = 50
) -> tuple[Floats, NDArray[np.float64], float]:
    """Coefficients, their covariance and the log partial likelihood, by Newton's method with Efron's
    treatment of equal times; steps that lose likelihood are halved."""
    order = np.argsort(-time, kind="stable")
    x, time, event = x[order].astype(np.float64), time[order], event[order]
    x = x - x.mean(axis=0)
    beta = np.zeros(x.shape[1])
    best, slope, curve = _efron(x, time, event, beta)
    if np.linalg.matrix_rank(curve, hermitian=True) < len(beta):
        raise ValueError("Cox regression has no one answer: columns repeat others")
    for _ in range(most):
        step = np.linalg.lstsq(curve, slope, rcond=1e-14)[0]
        for halved in range(30):
            tried = beta + step * 0.5**halved
            with np.errstate(all="ignore"):  # a step too far; it is halved
                value, new_slope, new_curve = _efron(x, time, event, tried)
            if np.isfinite(value) and value >= best - 1e-12 * abs(best):
                break
        # Where a column separates the events its coefficient has no end, but the likelihood has one.
        done = float(np.abs(tried - beta).max()) < 1e-11 or value - best < 1e-12 * abs(best)
        beta, best, slope, curve = tried, value, new_slope, new_curve
        if done:
            break
    return beta, np.asarray(np.linalg.pinv(curve, hermitian=True), np.float64), best


def _efron(
    x: Floats, time: Floats, event: Bools, beta: Floats
) -> tuple[float, Floats, NDArray[np.float64]]:
    """The log partial likelihood, its gradient and the information; rows from the latest on."""
    score = x @ beta
    score -= score.max()
    w = np.exp(score)
    size = x.shape[1]
    s0, s1, s2 = 0.0, np.zeros(size), np.zeros((size, size))
    value, slope, curve = 0.0, np.zeros(size), np.zeros((size, size))
    cuts = np.append(np.flatnonzero(np.append(True, time[1:] != time[:-1])), len(time))
    for a, b in pairwise(cuts.tolist()):
        xs, ws = x[a:b], w[a:b]
        s0, s1 = s0 + float(ws.sum()), s1 + ws @ xs
        s2 = s2 + (xs * ws[:, None]).T @ xs
        e = event[a:b]
        d = int(np.count_nonzero(e))
        if not d:
            continue
        xe, we = xs[e], ws[e]
        t0, t1, t2 = float(we.sum()), we @ xe, (xe * we[:, None]).T @ xe
        value += float(score[a:b][e].sum())
        slope += xe.sum(axis=0)
        for j in range(d):
            part = j / d
            m0, m1 = s0 - part * t0, (s1 - part * t1)
            mean = m1 / m0
            value -= float(np.log(m0))
            slope -= mean
            curve += (s2 - part * t2) / m0 - np.outer(mean, mean)
    return value, slope, curve
