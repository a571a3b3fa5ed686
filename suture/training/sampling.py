"""Poisson sampling of patients: each patient is in each batch independently with probability q, and nobody is told who.

Steps x patients independent trials laid end to end are walked by the distances between successes, which are geometric
(Devroye, "Non-Uniform Random Variate Generation", 1986, X.2): the work is in proportion to the patients drawn, not to
the patients there are.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from suture.models.compiled import compiled
from suture.privacy.mechanisms import Keystream


def poisson_batches(
    patients: int, rate: float, steps: int, stream: Keystream
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Patient indices of ``steps`` batches, end to end, and where each batch ends.

    >>> from suture.privacy.mechanisms import seeded_key
    >>> picks, ends = poisson_batches(3, 1.0, 2, Keystream(seeded_key(1)))
    >>> picks.tolist(), ends.tolist()
    ([0, 1, 2, 0, 1, 2], [3, 6])
    """
    trials = steps * patients
    mean = trials * rate
    # Room for six standard deviations more than expected; a rarer walk goes round the loop again.
    room = int(mean + 6.0 * math.sqrt(mean)) + 16
    inverse = -0.0 if rate >= 1.0 else 1.0 / math.log1p(-rate)
    ends = np.zeros(steps, np.int64)
    parts: list[NDArray[np.int64]] = []
    at = -1
    while at < trials:
        words = np.empty(room, np.uint64)
        stream.fill(words)
        picks = np.empty(room, np.int64)
        at, found = _walk(words, inverse, at, trials, patients, picks, ends)
        parts.append(picks[:found])
    return parts[0] if len(parts) == 1 else np.concatenate(parts), np.cumsum(ends)


@compiled
def _walk(words, inverse, at, trials, patients, picks, counts):  # type: ignore[no-untyped-def]
    """Walk on from trial ``at`` until the trials or the words run out; returns where it stands and what it found."""
    found = 0
    for i in range(len(words)):
        uniform = (float(words[i] >> np.uint64(11)) + 0.5) * 2.0**-53
        skip = math.floor(math.log(uniform) * inverse)
        # In floating point, since a skip at a tiny rate may not fit an integer.
        if skip >= float(trials - at - 1):
            return trials, found
        at += 1 + int(skip)
        step = at // patients
        picks[found] = at - step * patients
        counts[step] += 1
        found += 1
    return at, found
