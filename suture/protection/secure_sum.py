"""The secure sum: hospitals add whole numbers modulo a power of two, and only the total is opened.

A share (`Grid.share`) is a hospital's real vector as noisy whole numbers: words of 32 or 64 bits,
or, where a message must be small, words of a few bits that `pack_words` puts side by side.
`SecureSum` adds shares and opens the sum once every expected party has added. It is *honest and
in-process*: it has the interface of the networked protocol with masks. **Trust assumption**:
whoever runs it sees shares in memory and is trusted not to look; the server, and everybody after
it, sees the total only.

Noise: the whole number for a real value c (in steps of the grid) is drawn with P(k) proportional to
exp(-(k - c)^2 / (2 s^2)): a discrete Gaussian *around the real value*, so that rounding is part of
the noise and costs nothing, however coarse the grid is. With n parties of which at least h add
theirs, the sum of the honest ones' numbers is a discrete Gaussian of variance h s^2 up to a factor
exp(+-`wobble`), and that is a randomised rounding of a *continuous* Gaussian of variance h s^2 -
`BLUR`. So a sum costs what a Gaussian release costs, and sums compose as Gaussians do, exactly.
Proof: docs/veil.md, Theorem 4, after Kairouz, Liu & Steinke 2021 ("The Distributed Discrete
Gaussian Mechanism", arXiv:2102.06387), whose parties round first and pay for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache, cached_property

import numpy as np
from dp_accounting.dp_event import DpEvent, GaussianDpEvent, NonPrivateDpEvent
from numpy.typing import NDArray

from suture.errors import PrivacyError, RunError
from suture.privacy.door import mechanism
from suture.privacy.noise.source import Array, Arrays, generator
from suture.protection.envelope import layout

Floats = NDArray[np.float64]
Words = Array
"""Whole numbers of 32 or 64 bits, or packed ones as bytes."""

LEAST_SHARE = 2.0
"""The least deviation of a party's noise in grid steps: `wobble` < 1e-16 for 300 parties."""
STEPS = 2.0**10
"""Grid steps in one sensitivity, where nothing else is asked for."""
BLUR = 2.0
"""The variance, in steps, of the rounding in Theorem 4: what it takes off the noise's own."""
MOST = 2.0**62


@dataclass(frozen=True)
class Grid:
    """How reals become whole numbers under noise that costs ``rho`` at this L2 sensitivity: as much
    as a Gaussian release of noise multiplier (2 rho)^-1/2, so that rho adds up.

    Without ``rho`` there is no noise and no promise. ``honest`` is the number of parties whose
    noise is relied on. ``step`` is the public distance of two grid points in real units (default: a
    1024th of the sensitivity). Each party's noise is at least `LEAST_SHARE` steps, even where rho
    would allow less.
    """

    sensitivity: float
    rho: float | None
    size: int
    honest: int = 1
    step: float | None = None

    def __post_init__(self) -> None:
        private = self.rho is None or self.rho > 0
        fine = self.step is None or self.step > 0
        if not (self.sensitivity > 0 and private and fine and self.size >= 1 and self.honest >= 1):
            wanted = "expected sensitivity, rho, step, size and parties > 0"
            raise PrivacyError(f"{wanted}, found {self}")

    @property
    def steps(self) -> float:
        """Grid steps in a unit of the real vector."""
        return STEPS / self.sensitivity if self.step is None else 1 / self.step

    @cached_property
    def deviation(self) -> float:
        """Deviation of a party's noise in grid steps: ``honest`` of them cost at most rho."""
        if self.rho is None:
            return 0.0
        # Theorem 4: mu = Delta / sqrt(h s^2 - BLUR) + 4 w. Wobble falls with s, so its value at the
        # least s serves for every s.
        mu = math.sqrt(2 * self.rho)
        w = self.size * (wobble(LEAST_SHARE, self.honest) + wobble(math.sqrt(BLUR), 1))
        if w > 1e-6 * min(mu, 1 / mu):
            raise PrivacyError(f"no noise on this grid is proven to cost rho = {self.rho:g}")
        variance = (self.steps * self.sensitivity / (mu - 4 * w)) ** 2 + BLUR
        return max(LEAST_SHARE, math.sqrt(variance / self.honest))

    @property
    def noise(self) -> float:
        """Standard deviation of the total's noise in real units, from ``honest`` parties."""
        return self.deviation * math.sqrt(self.honest) / self.steps

    def share(self, values: Floats, key: bytes) -> Words:
        """One party's contribution: on the grid, with the party's noise, as 64-bit words."""
        scaled = on_grid(values, self.steps, self.size)
        whole = np.rint(scaled)
        if self.rho is not None:
            whole += discrete_gaussian(generator(key), self.deviation, scaled - whole)
        return whole.astype(np.int64)

    def short(self, patients: int, parties: int) -> bool:
        """Whether any total of so many patients, with its noise, fits words of 32 bits.

        >>> Grid(1.0, 0.01, 5).short(60_000, 150), Grid(1.0, 0.01, 5).short(3_000_000, 150)
        (True, False)
        """
        largest = self.steps * self.sensitivity + 1
        return (patients + parties) * largest + 40 * self.deviation * parties < 2**31

    def open(self, total: Words) -> Floats:
        """The total in real units."""
        return total.astype(np.float64) / self.steps


@mechanism
@dataclass(frozen=True)
class Share:
    """A mechanism of the door: a site's share of a sum over sites, on a grid, with its noise."""

    grid: Grid
    unbounded: bool = False
    """What a patient adds is not limited: only where nothing is promised."""
    entrywise: bool = field(default=False, init=False)
    whole: bool = field(default=False, init=False)

    @property
    def event(self) -> DpEvent:
        return gaussian_cost(self.grid.rho)

    @property
    def size(self) -> int:
        return self.grid.size

    @property
    def limit(self) -> float:
        return math.inf if self.unbounded else self.grid.sensitivity

    def noised(self, total: Floats, key: bytes) -> Words:
        return self.grid.share(total, key)


def gaussian_cost(rho: float | None) -> DpEvent:
    """The event of a `Grid`'s noise: rho is half of a Gaussian's squared mu. None: no promise.

    >>> gaussian_cost(0.5)
    GaussianDpEvent(noise_multiplier=1.0)
    """
    return NonPrivateDpEvent() if rho is None else GaussianDpEvent((2 * rho) ** -0.5)


def on_grid(values: Floats, steps: float, size: int) -> Floats:
    """Reals in grid steps, clipped to 62 bits without an error, which would tell about rows."""
    scaled: Floats = np.clip(np.asarray(values, np.float64) * steps, -MOST, MOST)
    scaled[np.isnan(scaled)] = 0.0
    if scaled.shape != (size,):
        raise RunError(f"expected {size} values, found shape {scaled.shape}")
    return scaled


@cache
def wobble(deviation: float, parties: int) -> float:
    """How far a sum's log probabilities can be from a Gaussian's, anywhere and for any centres.

    With eta(r) = 2 sum over m of exp(-2 pi^2 r^2 m^2), Theorem 4 adds -log(1 - eta) for every party
    and for every sum of two.

    >>> wobble(2.0, 300) < 1e-16, round(wobble(0.5, 1), 4)
    (True, 0.0146)
    """
    eta = [2 * math.exp(-2 * math.pi**2 * deviation**2 * k / (k + 1)) for k in range(1, parties)]
    eta += [2 * math.exp(-2 * math.pi**2 * deviation**2)] * parties
    # The terms m = 2, 3, ... add up to less than a hundredth of the first for r of 0.35 or more.
    return -sum(math.log1p(-1.01 * value) for value in eta)


def discrete_gaussian(rng: np.random.Generator, deviation: float, centres: Floats) -> Words:
    """Whole numbers with P(k) proportional to exp(-(k - c)^2 / (2 deviation^2)), |c| <= 1/2.

    By rejection from a two-sided geometric (after Canonne, Kamath & Steinke 2020, Algorithm 3), in
    vectors. Acceptance probabilities are rounded to floats, an error of about 1e-16 of probability.
    """
    size = len(centres)
    if not np.all(np.abs(centres) <= 0.5):
        raise RunError(f"expected {size} centres within a half of 0")
    scale = math.floor(deviation) + 1
    p = -math.expm1(-1 / scale)
    found = np.zeros(size, np.int64)
    open_ = np.arange(size)
    while len(open_):
        # The difference of two geometrics is two-sided geometric with ratio exp(-1/scale). Each
        # round proposes once for every number still open; (|y| - sign(y) c - s^2/t)^2 <= the
        # exponent's bound, so that acceptance is at most 1.
        y = rng.geometric(p, len(open_)) - rng.geometric(p, len(open_))
        c = centres[open_]
        exponent = -((y - c) ** 2) / (2 * deviation**2) + np.abs(y) / scale
        exponent -= deviation**2 / (2 * scale**2) + np.abs(c) / scale
        taken = rng.random(len(open_)) < np.exp(exponent)
        found[open_[taken]] = y[taken]
        open_ = open_[~taken]
    return found


def pack_words(words: Words, bits: int) -> NDArray[np.uint8]:
    """Whole numbers modulo 2^bits, side by side.

    >>> pack_words(np.array([1, -1]), 12).tolist()
    [0, 31, 255]
    """
    _check_bits(bits)
    each = (np.asarray(words, np.int64)[:, None] >> np.arange(bits - 1, -1, -1)) & 1
    return np.packbits(each.astype(np.uint8).ravel())


def unpack_words(data: Array, bits: int) -> NDArray[np.int64]:
    """The packed numbers, from -2^(bits-1) up to 2^(bits-1) - 1."""
    _check_bits(bits)
    size = 8 * len(data) // bits
    if data.dtype != np.uint8 or data.ndim != 1 or len(data) != -(-size * bits // 8):
        raise RunError(
            f"expected words of {bits} bits in bytes, found {data.dtype} of shape {data.shape}"
        )
    each = np.unpackbits(data)[: size * bits].reshape(size, bits).astype(np.int64)
    weights = 1 << np.arange(bits - 1, -1, -1)
    weights[0] = -weights[0]
    found: NDArray[np.int64] = each @ weights
    return found


def wrapped(words: Words, bits: int, near: Floats | float = 0.0) -> NDArray[np.int64]:
    """The whole numbers that are equal to ``words`` modulo 2^bits and closest to ``near``.

    >>> wrapped(np.array([5, 4090]), 12).tolist(), wrapped(np.array([5]), 12, near=4000.0).tolist()
    ([5, -6], [4101])
    """
    about = np.rint(np.broadcast_to(near, words.shape)).astype(np.int64)
    half = 1 << (bits - 1)
    found: NDArray[np.int64] = (
        about + ((words.astype(np.int64) - about + half) & ((1 << bits) - 1)) - half
    )
    return found


def _check_bits(bits: int) -> None:
    """With 8 bits or more, the number of bytes gives the number of words."""
    if not 8 <= bits <= 32:
        raise RunError(f"expected words of 8 to 32 bits, found {bits}")


@dataclass
class SecureSum:
    """Adds what ``parties`` contribute, and opens the total only when all of them have.

    Arrays of bytes are packed words, and their name ends in their length: ``"w12"``.
    """

    parties: tuple[str, ...]
    _sum: dict[str, Words] = field(default_factory=dict, repr=False)
    _added: set[str] = field(default_factory=set, repr=False)

    def add(self, party: str, shares: Arrays) -> None:
        """One party's words, once."""
        if party not in self.parties or party in self._added:
            raise RunError(f"secure sum: {party!r} is not expected, or has added already")
        words = {name: _words(party, name, array) for name, array in shares.items()}
        if self._added and layout(words) != layout(self._sum):
            raise RunError(f"secure sum: {party!r} sent other shapes or word lengths than the rest")
        for name, array in words.items():
            # Unsigned addition wraps: arithmetic modulo 2^32 or 2^64, as masks need.
            unsigned = np.uint32 if array.dtype == np.int32 else np.uint64
            so_far = self._sum.get(name, np.zeros_like(array)).view(unsigned)
            self._sum[name] = (so_far + array.view(unsigned)).view(array.dtype)
        self._added.add(party)

    def total(self) -> dict[str, Words]:
        """The sum of all words; refused while a party, and so a part of the noise, is missing."""
        absent = [party for party in self.parties if party not in self._added]
        if absent:
            which = f"{len(absent)} parties have not added yet, first {absent[0]!r}"
            raise PrivacyError(f"secure sum: {which}; not opened")
        found = {}
        for name, words in self._sum.items():
            bits = word_length(name) if words.dtype == np.int64 else 0
            found[name] = wrapped(words, bits) if bits else words
        return found


def word_length(name: str) -> int:
    """The length in bits that a packed array's name ends in; 0 for words of 32 or 64 bits.

    >>> word_length("w12"), word_length("gradient")
    (12, 0)
    """
    digits = name[len(name.rstrip("0123456789")) :]
    return int(digits) if digits else 0


def plain_words(payload: Arrays) -> dict[str, Words]:
    """Packed words as words of 32 bits, which masks can be added to: equal modulo their length.

    >>> plain_words({"w12": pack_words(np.array([5, -3]), 12)})["w12"].tolist()
    [5, -3]
    """
    return {
        name: unpack_words(array, bits).astype(np.int32) if (bits := word_length(name)) else array
        for name, array in payload.items()
    }


def _words(party: str, name: str, array: Array) -> Words:
    if array.dtype == np.uint8 and word_length(name):
        return unpack_words(array, word_length(name))
    if array.dtype not in (np.int32, np.int64) or word_length(name):
        raise RunError(
            f"secure sum: {party!r} sent {name!r} as {array.dtype}, expected whole numbers"
        )
    return array
