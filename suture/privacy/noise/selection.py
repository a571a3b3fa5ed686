"""Private selection: the exponential mechanism over signed items, k picks at once by Gumbel noise.

Theorem numbers are those of docs/veil.md. Scores g are any statistic of which one patient changes
every entry by at most 1 (L-infinity sensitivity 1). The items are the 2d pairs (entry j, sign s)
with utility s * g_j.

- One pick: P(j, s) proportional to exp(eps0 * s * g_j / 2) (McSherry & Talwar 2007). A patient
  moves each exponent by at most eps0/2 either way, so the log ratio of the two worlds'
  probabilities lies in an interval of width eps0: the pick is eps0-*bounded range* (Durfee & Rogers
  2019; Dong, Durfee & Rogers 2020), hence eps0^2/8-zCDP (Cesar & Rogers 2021; Rogers & Steinke
  2021, "A Better Privacy Analysis of the Exponential Mechanism").
- k picks: adding Gumbel noise of scale 2/eps0 to each of the 2d utilities once and taking the k
  largest entries is exactly k picks in turn, each without the entries picked before (Durfee &
  Rogers 2019, Lemma 4.2; here a picked entry leaves with both of its signs, which is a restriction
  of the items that depends only on earlier outputs). By adaptive composition (Bun & Steinke 2016,
  Lemma 2.3) they cost k * eps0^2/8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from dp_accounting.dp_event import DpEvent, NonPrivateDpEvent, ZCDpEvent
from numpy.typing import NDArray

from suture.errors import PrivacyError
from suture.privacy.door import mechanism
from suture.privacy.noise.source import Keystream

Floats = NDArray[np.float64]


@mechanism
@dataclass(frozen=True)
class Pick:
    """A mechanism of the door: the ``picks`` largest of ``size`` entries, with their signs.

    A patient moves every entry of the sum by at most 1. It costs rho-zCDP; without ``rho`` there is
    no noise and no promise.

    >>> Pick(2, 3, None).noised(np.array([0.0, -900.0, 500.0]), bytes(32)).tolist()
    [[1, 2], [-1, 1]]
    """

    picks: int
    size: int
    rho: float | None
    limit: float = field(default=1.0, init=False)
    entrywise: bool = field(default=True, init=False)
    whole: bool = field(default=False, init=False)

    @property
    def event(self) -> DpEvent:
        """rho-zCDP."""
        return NonPrivateDpEvent() if self.rho is None else ZCDpEvent(self.rho)

    def noised(self, total: Floats, key: bytes) -> NDArray[np.int64]:
        """Entries in the first row, in the order they were picked; their signs in the second."""
        if self.rho is None:
            return np.stack(signed_top_exact(total, self.picks))
        return np.stack(signed_top(total, self.picks, pick_strength(self.rho, self.picks), key))


def pick_strength(rho: float, picks: int) -> float:
    """The eps0 of each of ``picks`` picks that together cost rho-zCDP.

    >>> pick_strength(0.5, 4)
    1.0
    """
    if not rho > 0 or picks < 1:
        raise PrivacyError(f"expected rho above 0 and at least one pick, found {rho} and {picks}")
    return math.sqrt(8 * rho / picks)


def signed_top(
    scores: Floats, picks: int, eps0: float, key: bytes
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The picked entries in order and their signs (+1 or -1), each pick eps0-bounded range."""
    if not 1 <= picks <= len(scores):
        raise PrivacyError(f"expected 1 to {len(scores)} picks, found {picks}")
    noisy = np.stack([scores, -scores]) + 2 / eps0 * gumbel(key, (2, len(scores)))
    return _largest(noisy, picks)


def gumbel(key: bytes, shape: tuple[int, ...]) -> Floats:
    """Standard Gumbel noise, -ln(-ln u), from 52 secret bits each; u is never 0 or 1.

    What leaves is which items are largest, not their noisy values, so the noise's bits stay unseen.

    >>> from suture.privacy.noise.source import seeded_key
    >>> noise = gumbel(seeded_key(1), (200_000,))
    >>> round(float(np.mean(noise)), 2), round(float(np.var(noise)), 2)  # Euler's constant, pi^2 / 6
    (0.58, 1.65)
    """
    words = np.empty(shape, np.uint64)
    Keystream(key).fill(words)
    found: Floats = -np.log(-np.log(open_uniform(words)))
    return found


def open_uniform(words: NDArray[np.uint64]) -> Floats:
    """The middles of 2^52 equal cells of (0, 1), exact in a float (53 bits would round up to 1).

    >>> ends = open_uniform(np.array([0, 2**64 - 1], np.uint64))
    >>> bool(ends[0] == 2.0**-53), bool(ends[1] == 1 - 2.0**-53)
    (True, True)
    """
    middles: Floats = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return middles


def signed_top_exact(scores: Floats, picks: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The same without noise: not private, for training without a promise."""
    return _largest(np.stack([scores, -scores]), picks)


def _largest(noisy: Floats, picks: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    best = np.max(noisy, axis=0)
    entries = np.argsort(-best, kind="stable")[:picks].astype(np.int64)
    signs = np.where(noisy[0, entries] >= noisy[1, entries], 1, -1).astype(np.int64)
    return entries, signs


def pick_probabilities(scores: Floats, eps0: float) -> Floats:
    """The closed form of one pick, (2, d): row 0 for +, row 1 for -. For tests and audits."""
    exponent = eps0 / 2 * np.stack([scores, -scores])
    weight = np.exp(exponent - exponent.max())
    found: Floats = weight / weight.sum()
    return found
