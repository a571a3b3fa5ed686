"""What noisy counts say: rates, shares and quantiles with their intervals. Post-processing; no row is touched here.

Intervals cover the noise: in 95 of 100 releases they hold the exact figure of this site's table. A rate has a second
interval that also covers sampling error, for whoever wants the rate of patients like these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

Floats = NDArray[np.float64]


def rate(events: float, others: float, sd: float, level: float = 0.95) -> dict[str, Any]:
    """The rate from noisy counts of patients with and without the event.

    Fieller's interval: r is kept when events (1 - r) - others r is within z standard deviations of 0; it holds at any
    size, also where the denominator is nearly all noise (then it is 0 to 1).

    >>> found = rate(48, 3952, 4.0)
    >>> round(found["rate"], 4), [round(x, 4) for x in found["interval"]]
    (0.012, [0.0101, 0.0139])
    """
    z = float(ndtri(0.5 + level / 2))
    total = events + others
    share = min(1.0, max(0.0, events / total)) if total > 0 else None
    # (events - r total)^2 <= z^2 sd^2 ((1 - r)^2 + r^2), a quadratic in r
    slack = (z * sd) ** 2
    a, b, c = total**2 - 2 * slack, -2 * (events * total - slack), events**2 - slack
    low, high = 0.0, 1.0
    if a > 0 and b * b - 4 * a * c >= 0:
        root = math.sqrt(b * b - 4 * a * c)
        low, high = max(0.0, (-b - root) / (2 * a)), min(1.0, (-b + root) / (2 * a))
    found: dict[str, Any] = {
        "rate": share,
        "interval": [low, high],
        "level": level,
        "interval_with_sampling": [0.0, 1.0],
    }
    if share is not None and total > z * sd:
        spread = z * math.sqrt((sd**2 * ((1 - share) ** 2 + share**2)) / total**2 + max(share, 1 / total) / total)
        found["interval_with_sampling"] = [max(0.0, share - spread), min(1.0, share + spread)]
    return found


def shares(counts: NDArray[Any], labels: Sequence[str], sd: float, level: float = 0.95) -> list[dict[str, Any]]:
    """Each bin's noisy count, its interval, and its share of the sum of the counts; negative counts are shown as 0.

    >>> shares(np.array([90, -3]), ["no", "yes"], 2.0)[1]["count"]
    0.0
    """
    z = float(ndtri(0.5 + level / 2))
    shown = np.maximum(np.asarray(counts, np.float64), 0.0)
    total = float(shown.sum())
    return [
        {
            "bin": label,
            "count": float(count),
            "noisy_count": float(noisy),
            "interval": [max(0.0, float(noisy) - z * sd), max(0.0, float(noisy) + z * sd)],
            "share": float(count) / total if total > 0 else None,
        }
        for label, count, noisy in zip(labels, shown, counts, strict=True)
    ]


def quantiles(
    counts: NDArray[Any], edges: Floats, at: Sequence[float], sd: float, level: float = 0.95
) -> list[dict[str, Any]]:
    """Quantiles from a noisy histogram, with intervals that hold the exact quantile's bin.

    >>> found = quantiles(np.full(10, 100), np.linspace(0, 10, 11), [0.5], 0.01)
    >>> found[0]["value"], found[0]["interval"]
    (5.0, [4.0, 6.0])
    """
    z = float(ndtri(0.5 + level / 2))
    cumulative = np.concatenate(([0.0], np.cumsum(np.asarray(counts, np.float64))))
    total, bins = cumulative[-1], len(counts)
    # The true cumulative counts never fall: the mean of the least increasing curve above and the greatest below.
    rising = (np.maximum.accumulate(cumulative) + np.minimum.accumulate(cumulative[::-1])[::-1]) / 2
    found = []
    for q in at:
        excess = cumulative - q * total
        k = np.arange(bins + 1)
        reach = z * sd * np.sqrt((1 - q) ** 2 * k + q**2 * (bins - k))
        not_below, not_above = np.flatnonzero(excess >= -reach), np.flatnonzero(excess <= reach)
        low = edges[max(0, int(not_below[0]) - 1)] if len(not_below) else edges[0]
        high = edges[min(bins, int(not_above[-1]) + 1)] if len(not_above) else edges[-1]
        value = float(np.interp(q * total, rising, edges)) if total > z * sd * math.sqrt(bins) else None
        found.append({"quantile": q, "value": value, "interval": [float(low), float(high)], "level": level})
    return found
