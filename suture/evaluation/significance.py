"""Do two methods differ beyond what another seed would change? Student's t over seeds.

Intervals are Student's t for the mean; `paired_t` is the test for two methods run on the same seeds
(same data splits, same initial weights), `welch_t` (Welch, Biometrika 1947) the one that does not
pair. Both are two-sided and equal `scipy.stats`; they are written on `scipy.special`, which loads
ten times faster.

Where a test is not defined the answer is None, never a p-value that looks like proof: fewer than
two seeds, or values without spread that differ (SciPy answers p = 0 there). Values without spread
that are equal give t = 0, p = 1.

Grouped folds hold out whole hospitals, so that a model is measured on institutions that it has
never seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.special import stdtr, stdtrit

from suture.evaluation.metrics import Floats

Test = dict[str, float | None]


def interval(
    values: Sequence[float], level: float = 0.95
) -> tuple[float, float | None, float | None]:
    """Mean and confidence interval over seeds; one value has a mean and no interval.

    >>> tuple(round(x, 4) for x in interval([0.90, 0.92, 0.94]) if x is not None)
    (0.92, 0.8703, 0.9697)
    >>> interval([0.9])
    (0.9, None, None)
    """
    numbers = _numbers(values)
    if not 0.0 < level < 1.0:
        raise ValueError(f"expected a level between 0 and 1, found {level}")
    mean, n = float(numbers.mean()), len(numbers)
    if n < 2:
        return mean, None, None
    half = float(stdtrit(n - 1, 0.5 + level / 2.0) * numbers.std(ddof=1) / np.sqrt(n))
    return mean, mean - half, mean + half


def over_seeds(
    records: Sequence[Mapping[str, float | None]],
) -> tuple[dict[str, float | None], dict[str, list[float]]]:
    """Means of every metric over seeds, and intervals for those defined in at least two.

    A metric undefined in some seeds (a test split with one class) is averaged over the others;
    undefined in all, None.

    >>> over_seeds([{"auc": 0.90}, {"auc": None}])
    ({'auc': 0.9}, {})
    """
    means: dict[str, float | None] = {}
    intervals: dict[str, list[float]] = {}
    for name in dict.fromkeys(name for record in records for name in record):
        values = [v for record in records if (v := record.get(name)) is not None]
        if not values:
            means[name] = None
            continue
        mean, low, high = interval(values)
        means[name] = mean
        if low is not None and high is not None:
            intervals[name] = [low, high]
    return means, intervals


def paired_t(a: Sequence[float], b: Sequence[float]) -> Test:
    """Paired two-sided t-test, seed by seed; ``difference`` is mean(a) - mean(b)."""
    first, second = _numbers(a), _numbers(b)
    if len(first) != len(second):
        raise ValueError(
            f"a paired test needs the same seeds twice, found {len(first)} and {len(second)} values"
        )
    gaps, n = first - second, len(first)
    difference = float(gaps.mean())
    if n < 2:
        return {"t": None, "p": None, "difference": difference, "df": None}
    error = float(gaps.std(ddof=1)) / math.sqrt(n)
    return _answer(difference, error, float(n - 1), _noise_floor(first, second))


def welch_t(a: Sequence[float], b: Sequence[float]) -> Test:
    """Welch's two-sided t-test (unequal variances, unpaired); ``difference`` is mean(a) - mean(b)."""
    first, second = _numbers(a), _numbers(b)
    difference = float(first.mean() - second.mean())
    if len(first) < 2 or len(second) < 2:
        return {"t": None, "p": None, "difference": difference, "df": None}
    u, v = float(first.var(ddof=1)) / len(first), float(second.var(ddof=1)) / len(second)
    floor, error, df = _noise_floor(first, second), math.sqrt(u + v), None
    if error > floor:
        df = (u + v) ** 2 / (u**2 / (len(first) - 1) + v**2 / (len(second) - 1))
    return _answer(difference, error, df, floor)


def _answer(difference: float, error: float, df: float | None, floor: float) -> Test:
    t, p = (0.0, 1.0) if abs(difference) <= floor else (None, None)
    if error > floor and df is not None:
        t = difference / error
        p = float(2.0 * stdtr(df, -abs(t)))
    return {"t": t, "p": p, "difference": difference, "df": df}


def _noise_floor(a: Floats, b: Floats) -> float:
    """Spread below this is the rounding of the metric itself, not variation between seeds."""
    return 8.0 * float(np.finfo(np.float64).eps) * float(max(np.abs(a).max(), np.abs(b).max()))


def _numbers(values: Sequence[float]) -> Floats:
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or not np.isfinite(numbers).all():
        raise ValueError(
            "expected a flat list of finite numbers; leave out seeds where the metric is undefined"
        )
    if not len(numbers):
        raise ValueError("expected at least one value, found none")
    return numbers


def grouped_folds(sizes: Mapping[str, int], folds: int, seed: int) -> tuple[tuple[str, ...], ...]:
    """Groups dealt out to folds of about equal size: the largest first, each to the smallest fold
    so far, those of equal size in an order drawn from ``seed``. Uses public names and sizes only.

    >>> grouped_folds({"a": 100, "b": 60, "c": 50, "d": 10}, 2, seed=1)
    (('a', 'd'), ('b', 'c'))
    """
    if not 2 <= folds <= len(sizes):
        raise ValueError(
            f"expected 2 to {len(sizes)} folds for {len(sizes)} hospitals, found {folds}"
        )
    names = list(sizes)
    shuffled = [names[i] for i in np.random.default_rng([seed, 0xF01D]).permutation(len(names))]
    parts: list[list[str]] = [[] for _ in range(folds)]
    totals = [0] * folds
    for name in sorted(shuffled, key=lambda name: -sizes[name]):
        smallest = min(range(folds), key=lambda i: (totals[i], i))
        parts[smallest].append(name)
        totals[smallest] += sizes[name]
    order = {name: i for i, name in enumerate(names)}
    return tuple(tuple(sorted(part, key=order.__getitem__)) for part in parts)
