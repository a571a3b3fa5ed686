"""The secure sum: hospitals add whole numbers modulo 2^32 or 2^64, and only the total is ever opened.

A share (`Grid.share`) is a hospital's real vector on an integer grid plus its own discrete Gaussian noise, as words of
32 or 64 bits. `SecureSum.add` takes shares, `SecureSum.total` opens the sum once every expected party has
added. This object is *honest and in-process*: it stands where a networked protocol with masks will stand and has the
same interface. **Trust assumption**: whoever runs it sees shares in memory and is trusted not to look; the server, and
everybody after it, sees the total only.

Noise: with n parties of which at least h add theirs, each adds a discrete Gaussian of variance sigma^2/h, so that the
noise of the honest ones alone has variance sigma^2 or more, even when the others reveal theirs. Sums of discrete
Gaussians are not exactly discrete Gaussian; the price is `tau` (Kairouz, Liu & Steinke 2021, "The Distributed Discrete
Gaussian Mechanism", arXiv:2102.06387), which is below 1e-30 for the variances that `Grid` allows and is charged all the
same. With one party there is no such price (Canonne, Kamath & Steinke 2020, Theorem 14).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture.errors import PrivacyError, RunError
from suture.privacy.mechanisms import generator

Floats = NDArray[np.float64]
Words = NDArray[Any]
"""Whole numbers of 32 or 64 bits."""

LEAST_SHARE = 4.0
"""The least standard deviation of one party's noise, in grid steps; `tau` is then below 1e-30."""
STEPS = 2.0**10
"""Grid steps in one sensitivity. Rounding then adds sqrt(size)/1024 to it: 2 % for 500 entries."""
MOST = 2**62


@dataclass(frozen=True)
class Grid:
    """How reals become whole numbers under noise that costs ``rho``-zCDP for a vector of L2 sensitivity ``sensitivity``.

    Without ``rho`` there is no noise and no promise. ``honest`` is the number of parties whose noise is counted on.
    Each party's noise is at least `LEAST_SHARE` steps, also where a large rho would allow less.
    """

    sensitivity: float
    rho: float | None
    size: int
    honest: int = 1

    def __post_init__(self) -> None:
        private = self.rho is None or self.rho > 0
        if not (self.sensitivity > 0 and private and self.size >= 1 and self.honest >= 1):
            raise PrivacyError(f"expected a sensitivity, rho, size and number of parties above 0, found {self}")

    @property
    def steps(self) -> float:
        """Grid steps in a unit of the real vector: a public constant, so that whoever opens a total knows it."""
        return STEPS / self.sensitivity

    @property
    def whole_sensitivity(self) -> float:
        """L2 sensitivity on the grid: rounding two neighbouring vectors moves each entry by up to one step more."""
        return self.steps * self.sensitivity + math.sqrt(self.size)

    @property
    def deviation(self) -> float:
        """Standard deviation of one party's noise, in grid steps, such that ``honest`` of them cost at most ``rho``."""
        if self.rho is None:
            return 0.0
        # rho = (Delta^2 / (h s^2) + tau size / 2) / 2 (Kairouz, Liu & Steinke 2021); tau falls with s.
        deviation = self.whole_sensitivity / math.sqrt(2 * self.rho * self.honest)
        deviation = max(deviation, LEAST_SHARE)
        spare = 2 * self.rho - tau(deviation, self.honest) * self.size / 2
        if spare <= 0:
            raise PrivacyError(f"no noise on this grid costs as little as rho = {self.rho:g}")
        return max(deviation, self.whole_sensitivity / math.sqrt(spare * self.honest))

    @property
    def noise(self) -> float:
        """Standard deviation of the total's noise in real units, when all of ``honest`` add theirs."""
        return self.deviation * math.sqrt(self.honest) / self.steps

    def share(self, values: Floats, key: bytes) -> Words:
        """One party's contribution: on the grid, with the party's noise, as 64-bit words.

        >>> from suture.privacy.mechanisms import seeded_key
        >>> grid = Grid(1.0, 0.5, 2, honest=2)
        >>> total = grid.share(np.array([3.0, -1.0]), seeded_key(1)) + grid.share(np.array([2.0, 5.0]), seeded_key(2))
        >>> bool(np.all(np.abs(grid.open(total) - [5.0, 4.0]) < 6 * grid.noise))
        True
        """
        whole = on_grid(values, self.steps, self.size)
        if self.rho is None:
            return whole
        return whole + discrete_gaussian(generator(key), self.deviation, self.size)

    def short(self, patients: int, parties: int) -> bool:
        """Whether any total of this many patients (each within the sensitivity) and its noise fits words of 32 bits.

        >>> Grid(1.0, 0.01, 5).short(60_000, 150), Grid(1.0, 0.01, 5).short(3_000_000, 150)
        (True, False)
        """
        return (patients + parties) * (self.whole_sensitivity + 1) + 40 * self.deviation * parties < 2**31

    def open(self, total: Words) -> Floats:
        """The total in real units."""
        return total.astype(np.float64) / self.steps


def on_grid(values: Floats, steps: float, size: int) -> Words:
    """Reals rounded to whole grid steps; refuses what would wrap around.

    >>> on_grid(np.array([0.26, -1.0]), 10.0, 2).tolist()
    [3, -10]
    """
    scaled = np.rint(np.asarray(values, np.float64) * steps)
    if scaled.shape != (size,) or not np.all(np.abs(scaled) < MOST):
        raise RunError(f"expected {size} finite values that fit 62 bits on the grid, found shape {scaled.shape}")
    return scaled.astype(np.int64)


def tau(deviation: float, parties: int) -> float:
    """How far a sum of discrete Gaussians is from one: 10 times the sum of exp(-2 pi^2 s^2 k / (k + 1)).

    >>> tau(1.0, 2) < 6e-4, tau(4.0, 1000) < 1e-60
    (True, True)
    """
    return 10 * sum(math.exp(-2 * math.pi**2 * deviation**2 * k / (k + 1)) for k in range(1, parties))


def discrete_gaussian(rng: np.random.Generator, deviation: float, size: int) -> Words:
    """Whole-number noise with P(x) proportional to exp(-x^2 / (2 deviation^2)).

    By rejection from a two-sided geometric (Canonne, Kamath & Steinke 2020, Algorithm 3), in vectors. Acceptance
    probabilities are rounded to floats, an error of about 1e-16 of probability.

    >>> from suture.privacy.mechanisms import seeded_key
    >>> noise = discrete_gaussian(generator(seeded_key(3)), 5.0, 100_000)
    >>> round(float(np.mean(noise)), 1) + 0.0, round(float(np.std(noise)), 1)
    (0.0, 5.0)
    """
    scale = math.floor(deviation) + 1
    p = -math.expm1(-1 / scale)
    found = np.empty(0, np.int64)
    while len(found) < size:
        count = int(1.5 * (size - len(found))) + 16
        # The difference of two geometrics is two-sided geometric with ratio exp(-1/scale).
        y = rng.geometric(p, count) - rng.geometric(p, count)
        accept = np.exp(-((np.abs(y) - deviation**2 / scale) ** 2) / (2 * deviation**2))
        found = np.concatenate([found, y[rng.random(count) < accept]])
    return found[:size]


@dataclass
class SecureSum:
    """Adds what ``parties`` contribute and opens the total only when all have.

    >>> box = SecureSum(("a", "b"))
    >>> box.add("a", {"g": np.array([1, 2])})
    >>> box.add("b", {"g": np.array([10, 20])})
    >>> box.total()["g"].tolist()
    [11, 22]
    """

    parties: tuple[str, ...]
    _sum: dict[str, Words] = field(default_factory=dict, repr=False)
    _added: set[str] = field(default_factory=set, repr=False)

    def add(self, party: str, shares: Mapping[str, NDArray[np.generic]]) -> None:
        """One party's words, once."""
        if party not in self.parties or party in self._added:
            raise RunError(f"secure sum: {party!r} is not expected, or has added already")
        for name, words in shares.items():
            if words.dtype not in (np.int32, np.int64):
                raise RunError(f"secure sum: {party!r} sent {name!r} as {words.dtype}, expected whole numbers")
        if self._added and {n: (a.shape, a.dtype) for n, a in shares.items()} != {
            n: (a.shape, a.dtype) for n, a in self._sum.items()
        }:
            raise RunError(f"secure sum: {party!r} sent other shapes or word lengths than the rest")
        for name, words in shares.items():
            # Unsigned addition wraps: arithmetic modulo 2^32 or 2^64, as masks will need.
            unsigned = np.uint32 if words.dtype == np.int32 else np.uint64
            so_far = self._sum.get(name, np.zeros_like(words)).view(unsigned)
            self._sum[name] = (so_far + words.view(unsigned)).view(words.dtype)
        self._added.add(party)

    def total(self) -> dict[str, Words]:
        """The sum of all parties' words; refused while one is missing, because a part of the noise would be too."""
        absent = [party for party in self.parties if party not in self._added]
        if absent:
            raise PrivacyError(f"secure sum: {len(absent)} parties have not added yet, first {absent[0]!r}; not opened")
        return dict(self._sum)
