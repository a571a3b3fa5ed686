"""Two mechanisms of the door: counts (`Counts`) and votes (`Pick`).

**Counts** get the discrete Gaussian on whole numbers, sampled exactly after Canonne, Kamath &
Steinke, "The Discrete Gaussian for Differential Privacy" (NeurIPS 2020), Algorithms 1 to 3:
Bernoulli(exp(-x)) for rational x, the discrete Laplace from it, the discrete Gaussian by rejection.
All arithmetic is on Python integers, so the sample has exactly
the stated distribution: no floating-point number is drawn, and the attacks on rounded noise
(Mironov 2012) have nothing to hold on to. Bits come from AES in counter mode under the release's
key (``source.py``). Sampling time depends on the noise, not on the data.

What it is worth: a count that one patient moves by at most 1, plus discrete Gaussian noise Y of
parameter sigma. The two output distributions differ by a shift of 1 and have monotone likelihood
ratio, so by Neyman and Pearson the best tests cut at a whole number, and the trade-off function is
the polygon through the points (P[Y >= m], P[Y <= m - 2]). With z_k = Phi^-1(P[Y <= k]), every
corner lies on or above the trade-off function of mu-GDP exactly when z_{m-1} - z_{m-2} <= mu; a
polygon whose corners lie above a convex curve lies above it. Hence the release is mu-GDP (Dong,
Roth & Su 2022) with mu = max_k (z_k - z_{k-1}) = `gaussian_mu`. For sigma >= 1 that is 1/sigma to
within 5 %, for sigma >= 5 to within 0.2 %. A shift by s is at most s mu, independent noise on
several counts adds mu^2 up; so every accountant that knows the Gaussian event knows this one.

**Votes** are private selection: the exponential mechanism over signed items, k picks at once by
Gumbel noise (docs/veil.md has the theorems). Scores g are any statistic of which one patient
changes every entry by at most 1 (L-infinity sensitivity 1). The items are the 2d pairs (entry j,
sign s) with utility s * g_j.

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
from fractions import Fraction
from functools import lru_cache
from typing import Literal

import numpy as np
from dp_accounting.dp_event import DpEvent, GaussianDpEvent, NonPrivateDpEvent, ZCDpEvent
from numpy.typing import NDArray
from scipy.special import logsumexp, ndtri_exp

from suture.errors import PrivacyError
from suture.privacy.door import mechanism
from suture.privacy.noise.source import Array, Keystream, generator

Floats = NDArray[np.float64]
LEAST_SIGMA, MOST_SIGMA = 0.5, 20_000
_GRID = 1024
"""Sigmas are multiples of 1/1024, so that sigma squared is a small fraction."""
_SLACK = 1e-7
"""Relative head-room of `gaussian_mu` for rounding in the computation of quantiles."""


@mechanism
@dataclass(frozen=True)
class Counts:
    """A mechanism of the door: counts; a patient adds at most ``sensitivity`` in L2 norm."""

    size: int
    sensitivity: float
    multiplier: float
    noise: Literal["discrete", "gaussian"] = "discrete"
    entrywise: bool = field(default=False, init=False)
    whole: bool = field(default=True, init=False)

    @property
    def event(self) -> DpEvent:
        return GaussianDpEvent(float(self.multiplier))

    @property
    def limit(self) -> float:
        return self.sensitivity

    @property
    def sigma(self) -> Fraction | float:
        """The noise's parameter."""
        if self.noise == "discrete":
            return sigma_for(self.multiplier, self.limit)
        return self.multiplier * self.limit

    def noised(self, total: Floats, key: bytes) -> Array:
        sigma = self.sigma
        if isinstance(sigma, Fraction):
            return np.rint(total).astype(np.int64) + discrete_gaussian(sigma, self.size, key)
        return np.rint(total) + sigma * generator(key).standard_normal(self.size)


class Coins:
    """Uniform whole numbers and biased coins from a key's bits, all exact."""

    def __init__(self, key: bytes) -> None:
        self._stream = Keystream(key)
        self._pool, self._left = 0, 0

    def bits(self, count: int) -> int:
        """The next ``count`` bits as a whole number."""
        while self._left < count:
            block = np.empty(512, np.uint8)
            self._stream.fill(block)
            self._pool |= int.from_bytes(block.tobytes(), "little") << self._left
            self._left += 8 * len(block)
        taken = self._pool & ((1 << count) - 1)
        self._pool, self._left = self._pool >> count, self._left - count
        return taken

    def below(self, limit: int) -> int:
        """Uniform on 0 .. limit - 1, by rejection."""
        count = (limit - 1).bit_length()
        while True:
            value = self.bits(count)
            if value < limit:
                return value

    def bernoulli_exp(self, top: int, bottom: int) -> bool:
        """True with probability exp(-top/bottom) (Algorithm 1)."""
        while top > bottom:
            if not self._exp_small(1, 1):
                return False
            top -= bottom
        return self._exp_small(top, bottom)

    def _exp_small(self, top: int, bottom: int) -> bool:
        k = 1
        while self.below(bottom * k) < top:  # with probability top / (bottom k)
            k += 1
        return k % 2 == 1

    def laplace(self, scale: int) -> int:
        """P[x] proportional to exp(-|x|/scale) (Algorithm 2, for whole scales)."""
        while True:
            rest = self.below(scale)
            if not self.bernoulli_exp(rest, scale):
                continue
            wholes = 0
            while self.bernoulli_exp(1, 1):
                wholes += 1
            size = rest + scale * wholes
            negative = self.bits(1)
            if size or not negative:  # zero once, not twice
                return -size if negative else size

    def gaussian(self, variance: Fraction) -> int:
        """P[x] proportional to exp(-x^2/(2 variance)) (Algorithm 3)."""
        scale = math.isqrt(variance.numerator // variance.denominator) + 1
        while True:
            candidate = self.laplace(scale)
            # exp(-(|y| - variance/scale)^2 / (2 variance)), as a fraction of whole numbers
            aside = abs(candidate) * scale * variance.denominator - variance.numerator
            bottom = 2 * variance.numerator * variance.denominator * scale * scale
            if self.bernoulli_exp(aside * aside, bottom):
                return candidate


def discrete_gaussian(sigma: Fraction, count: int, key: bytes) -> NDArray[np.int64]:
    """``count`` independent samples of the discrete Gaussian, from the bits of ``key``."""
    if not sigma > 0:
        raise PrivacyError(f"expected noise above 0, found {float(sigma):g}; nothing was released")
    coins, variance = Coins(key), Fraction(sigma) ** 2
    return np.array([coins.gaussian(variance) for _ in range(count)], np.int64)


@lru_cache(maxsize=256)
def gaussian_mu(sigma: Fraction) -> float:
    """The mu of Gaussian DP, rounded up, of a count with this noise that a patient moves by at most
    1.

    >>> round(gaussian_mu(Fraction(10)), 5), round(gaussian_mu(Fraction(1)), 4)
    (0.10004, 1.0458)
    """
    value = float(sigma)
    if not LEAST_SIGMA <= value <= MOST_SIGMA:
        raise PrivacyError(
            f"expected discrete Gaussian noise of at least {LEAST_SIGMA} and at most "
            f"{MOST_SIGMA:,}, found {value:g}; change epsilon"
        )
    return float(np.max(_steps(value, math.ceil(30 * value) + 10))) * (1 + _SLACK)


def _steps(sigma: float, reach: int) -> NDArray[np.float64]:
    """z_k - z_{k-1} for k from -reach + 1 to 0; the others mirror them: P[Y <= k] = 1 - P[Y < -k].

    The largest is the one over the middle (about 1/(24 sigma^2) above 1/sigma); a second, lower
    rise stands near 4.5 sigma^2 (about 1/(40 sigma^2)). A test looks out to 8 sigma^2.
    """
    further = math.ceil(70 * sigma**2 / reach) + 2  # beyond lies under e^-70 of what is summed
    log_mass = -0.5 * (np.arange(-reach - further, reach + further + 1) / sigma) ** 2
    log_mass -= logsumexp(log_mass)
    # ln P[Y <= k] for k = -reach .. -1
    z = ndtri_exp(np.logaddexp.accumulate(log_mass[: reach + further])[further:])
    return np.append(np.diff(z), -2 * z[-1])  # the last step leads from z_{-1} to z_0 = -z_{-1}


def sigma_for(multiplier: float, sensitivity: float = 1.0) -> Fraction:
    """The least sigma (in steps of 1/1024) worth a Gaussian event of this noise multiplier.

    >>> float(sigma_for(10.0)), bool(1 / gaussian_mu(sigma_for(10.0)) >= 10.0)
    (10.0048828125, True)
    """
    wanted = multiplier * sensitivity
    if not 0 < wanted < math.inf:
        raise PrivacyError(f"expected a noise multiplier above 0 and finite, found {multiplier:g}")
    count = max(math.ceil(wanted * _GRID), math.ceil(LEAST_SIGMA * _GRID))
    while gaussian_mu(Fraction(count, _GRID)) * wanted > 1:
        count += 1
    return Fraction(count, _GRID)


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
        return NonPrivateDpEvent() if self.rho is None else ZCDpEvent(self.rho)

    def noised(self, total: Floats, key: bytes) -> NDArray[np.int64]:
        """Entries in the first row, in the order they were picked; their signs in the second."""
        eps0 = None if self.rho is None else pick_strength(self.rho, self.picks)
        return np.stack(signed_top(total, self.picks, eps0, key))


def pick_strength(rho: float, picks: int) -> float:
    """The eps0 of each of ``picks`` picks that together cost rho-zCDP.

    >>> pick_strength(0.5, 4)
    1.0
    """
    if not rho > 0 or picks < 1:
        raise PrivacyError(f"expected rho above 0 and at least one pick, found {rho} and {picks}")
    return math.sqrt(8 * rho / picks)


def signed_top(
    scores: Floats, picks: int, eps0: float | None, key: bytes
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The picked entries in order and their signs (+1 or -1), each pick eps0-bounded range.

    Without ``eps0`` there is no noise: not private, for training without a promise. What leaves is
    which items are largest, not their noisy values, so the noise's bits stay unseen.
    """
    noisy = np.stack([scores, -scores])
    if eps0 is not None:
        if not 1 <= picks <= len(scores):
            raise PrivacyError(f"expected 1 to {len(scores)} picks, found {picks}")
        words = np.empty(noisy.shape, np.uint64)
        Keystream(key).fill(words)
        # Standard Gumbel noise, -ln(-ln u), from 52 secret bits each; u is never 0 or 1.
        noisy = noisy + 2 / eps0 * -np.log(-np.log(open_uniform(words)))
    best = np.max(noisy, axis=0)
    entries = np.argsort(-best, kind="stable")[:picks].astype(np.int64)
    signs = np.where(noisy[0, entries] >= noisy[1, entries], 1, -1).astype(np.int64)
    return entries, signs


def open_uniform(words: NDArray[np.uint64]) -> Floats:
    """The middles of 2^52 equal cells of (0, 1), exact in a float (53 bits would round up to 1).

    >>> ends = open_uniform(np.array([0, 2**64 - 1], np.uint64))
    >>> bool(ends[0] == 2.0**-53), bool(ends[1] == 1 - 2.0**-53)
    (True, True)
    """
    middles: Floats = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return middles
