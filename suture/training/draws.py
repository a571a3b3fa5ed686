"""Noise and batches from secret bits: standard normals, and Poisson samples of patients.

**Normals.** Box and Muller, "A Note on the Generation of Random Normal Deviates" (1958): with U
uniform on (0, 1] and T a uniform angle, sqrt(-2 ln U) (cos T, sin T) are two independent standard
normals. No branch depends on the bits, so LLVM vectorises the loop and the time taken says nothing
about the noise. Each pair takes 96 bits: 64 for the radius, of which 63 are used, 32 for the angle.
Both ends of the uniform are resolved: near 0, so that the tail reaches 9.4 standard deviations (32
bits would cut it at 6.7, with a probability of 2^-32 per pair, which a long training would notice
beside delta), and near 1 to 2^-56, so that a pair is without noise once in 2^57 pairs (with u as
one float32: once in 2^25). Logarithm, sine and cosine are float32 polynomials (Cephes), good to
about one unit in the last place.

**Batches.** Each patient is in each batch independently with probability q. Steps x patients
independent trials laid end to end are walked by the distances between successes, which are
geometric (Devroye, "Non-Uniform Random Variate Generation", 1986, X.2): the work is proportional to
the patients drawn, not to the patients there are.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from suture.models.compiled import compiled
from suture.models.lanes import bits_of_float, float_of_bits, padded
from suture.privacy.noise.source import Keystream


def words_for(count: int) -> int:
    """How many 32-bit words `fill_normals` consumes for at least ``count`` normals.

    >>> words_for(1), words_for(32), words_for(2561)
    (48, 48, 3888)
    """
    return 3 * padded(count, 32) // 2


def normals(count: int, stream: Keystream) -> NDArray[np.float32]:
    """``count`` standard normals from the next bits of a stream.

    >>> from suture.privacy.noise.source import seeded_key
    >>> bool(abs(normals(100_000, Keystream(seeded_key(1))).mean()) < 0.02)
    True
    """
    words = np.empty(words_for(count), np.uint32)
    stream.fill(words)
    out = np.empty(len(words) // 3 * 2, np.float32)
    fill_normals(words, out)
    return out[:count]


@compiled
def fill_normals(words, out):  # type: ignore[no-untyped-def]
    """Turn 3 n words into 2 n standard normals."""
    f = np.float32
    n = len(words) // 3
    high, low, turn = words[:n], words[n : 2 * n], words[2 * n : 3 * n]
    first, second = out[:n], out[n : 2 * n]
    for i in range(n):
        # (high + (low >> 1) / 2^31 + 2^-32) / 2^32, in (0, 1], in three parts: each is a float32,
        # their sum is not.
        large = f(np.int32(high[i] >> np.uint32(8))) * f(2.0**-24)
        middle = f(np.int32(high[i] & np.uint32(255))) * f(2.0**-32)
        small = f(np.int32(low[i] >> np.uint32(1))) * f(2.0**-63) + f(2.0**-64)
        u = large + (middle + small)
        radius = np.sqrt(f(-2) * _log(u, ((large - u) + middle) + small))
        # The angle in quarter turns: nearest whole number q, and the rest within half a quarter.
        q = (turn[i] + np.uint32(1 << 29)) >> np.uint32(30)
        rest = np.int32(turn[i] - (q << np.uint32(30)))
        sine, cosine = _sine_cosine(f(rest) * f(2 * np.pi / 2**32))
        swap = (q & np.uint32(1)) != 0
        x = sine if swap else cosine
        y = cosine if swap else sine
        # Signs by quadrant: cos is negative in quarters 1 and 2, sin in 2 and 3.
        x = -x if ((q + np.uint32(1)) & np.uint32(2)) != 0 else x
        y = -y if (q & np.uint32(2)) != 0 else y
        first[i] = radius * x
        second[i] = radius * y


@compiled
def _log(u, rest):  # type: ignore[no-untyped-def]
    """Natural logarithm of u + rest, at most 1, u a normal, positive float32 and ``rest`` what it
    lost by rounding.

    Never above 0. The rest matters where u is close to 1; below sqrt(1/2) it is less than x's own
    rounding error.
    """
    f = np.float32
    # The offset makes the mantissa fall in [sqrt(1/2), sqrt(2)).
    bits = bits_of_float(u) - np.int32(0x3F3504F3)
    exponent = f(bits >> np.int32(23))
    x = float_of_bits((bits & np.int32(0x007FFFFF)) + np.int32(0x3F3504F3)) - f(1) + rest
    p = f(7.0376836292e-2)
    p = p * x + f(-1.1514610310e-1)
    p = p * x + f(1.1676998740e-1)
    p = p * x + f(-1.2420140846e-1)
    p = p * x + f(1.4249322787e-1)
    p = p * x + f(-1.6668057665e-1)
    p = p * x + f(2.0000714765e-1)
    p = p * x + f(-2.4999993993e-1)
    p = p * x + f(3.3333331174e-1)
    z = x * x
    y = p * x * z + exponent * f(-2.12194440e-4) - f(0.5) * z
    return min(x + y + exponent * f(0.693359375), f(0))


@compiled
def _sine_cosine(x):  # type: ignore[no-untyped-def]
    """Sine and cosine for |x| <= pi/4."""
    f = np.float32
    z = x * x
    s = f(-1.9515295891e-4)
    s = s * z + f(8.3321608736e-3)
    s = s * z + f(-1.6666654611e-1)
    c = f(2.443315711809948e-5)
    c = c * z + f(-1.388731625493765e-3)
    c = c * z + f(4.166664568298827e-2)
    return s * z * x + x, c * z * z - f(0.5) * z + f(1)


def poisson_batches(
    patients: int, rate: float, steps: int, stream: Keystream
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Patient indices of ``steps`` batches, end to end, and where each batch ends.

    >>> from suture.privacy.noise.source import seeded_key
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
    """Walk on from trial ``at`` until the trials or the words run out; returns where it stands and
    how many it found."""
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
