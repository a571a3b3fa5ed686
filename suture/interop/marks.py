"""The paper's rule for its heat maps (paper 003, section 5.2), as it is printed there.

"O": a client's value differs from the feature's mean over clients by more than 2 standard deviations.
"x": a feature's standard deviation over clients differs from the average of that over features by more than 2 of its
standard deviations.

The rule has no false-alarm rate, and with fewer than six clients "O" cannot occur at all: one of n values is never more
than (n - 1) / sqrt(n) standard deviations from their mean.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Marks = NDArray[np.bool_]


def circles(values: Values) -> Marks:
    """Which cells (clients x features) get an "O".

    >>> circles(np.array([[0.0], [0], [0], [0], [0], [0], [5]]))[:, 0].tolist()
    [False, False, False, False, False, False, True]
    """
    spread = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1])
    gap = np.abs(values - values.mean(axis=0))
    return np.asarray((gap > 2 * spread) & (spread > 1e-12), bool)


def crosses(values: Values) -> Marks:
    """Which features get an "x".

    >>> crosses(np.array([[1.0, 1, 1, 1, 1, 1, 9], [1, 1, 1, 1, 1, 1, -9]])).tolist()
    [False, False, False, False, False, False, True]
    """
    if len(values) < 2 or values.shape[1] < 2:
        return np.zeros(values.shape[1], bool)
    spread = values.std(axis=0, ddof=1)
    return np.asarray(np.abs(spread - spread.mean()) > 2 * spread.std(ddof=1), bool)


def largest_deviation(clients: int) -> float:
    """The most standard deviations that one of so many values can lie from their mean (Samuelson 1968).

    >>> largest_deviation(5) < 2 < largest_deviation(6)
    True
    """
    return (clients - 1) / float(np.sqrt(clients)) if clients > 0 else 0.0
