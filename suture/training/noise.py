"""Standard normal numbers from secret bits, many at a time.

Box and Muller, "A Note on the Generation of Random Normal Deviates" (1958): with U uniform on (0, 1] and T a uniform
angle, sqrt(-2 ln U) (cos T, sin T) are two independent standard normals. No branch depends on the bits, so that LLVM
vectorises the loop and the time taken says nothing about the noise. Each pair takes 96 bits: 64 for the radius, so that
the tail reaches 9.3 standard deviations (32 bits would cut it at 6.7, with a probability of 2^-32 a pair, which a long
training would notice beside delta), 32 for the angle. Logarithm, sine and cosine are float32 polynomials (Cephes), good
to about one unit in the last place.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from suture.models.compiled import compiled
from suture.models.lanes import bits_of_float, float_of_bits, padded
from suture.privacy.mechanisms import Keystream


def words_for(count: int) -> int:
    """How many 32-bit words `fill_normals` consumes for at least ``count`` normals.

    >>> words_for(1), words_for(32), words_for(2561)
    (48, 48, 3888)
    """
    return 3 * padded(count, 32) // 2


def normals(count: int, stream: Keystream) -> NDArray[np.float32]:
    """``count`` standard normals from the next bits of a stream.

    >>> from suture.privacy.mechanisms import seeded_key
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
        # The top 31 bits of each word: (high + (low + 1/2) / 2^31) / 2^31, in (0, 1], rounded to 24 significant bits.
        u = f(np.int32(low[i] >> np.uint32(1))) * f(2.0**-62) + f(2.0**-63)
        u = f(np.int32(high[i] >> np.uint32(1))) * f(2.0**-31) + u
        radius = np.sqrt(f(-2) * _log(u))
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
def _log(u):  # type: ignore[no-untyped-def]
    """Natural logarithm of a normal, positive float32, at most 1: never above 0."""
    f = np.float32
    bits = bits_of_float(u) - np.int32(0x3F3504F3)  # so that the mantissa falls in [sqrt(1/2), sqrt(2))
    exponent = f(bits >> np.int32(23))
    x = float_of_bits((bits & np.int32(0x007FFFFF)) + np.int32(0x3F3504F3)) - f(1)
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
