"""Shamir's secret sharing: a secret is cut into n shares of which any t give it back and any t - 1 say nothing.

Shamir: How to Share a Secret. Communications of the ACM, 1979. The secret is the value at 0 of a polynomial of degree
t - 1 with uniformly random coefficients over the field of p = 2^255 - 19 elements; the share of party i is its value at
i + 1. This is the only mathematics of the secure sum that is written here; every cipher, key agreement and signature comes
from `cryptography`.
"""

from __future__ import annotations

from collections.abc import Sequence

from suture.errors import PrivacyError
from suture.privacy.mechanisms import derive

PRIME = 2**255 - 19
SHARE_BYTES = 32


def element(key: bytes, *labels: str | int | bytes) -> int:
    """A pseudo-random element of the field: 512 bits reduced, so its distance from uniform is below 2^-256.

    >>> element(bytes(32), "a") == element(bytes(32), "a"), 0 <= element(bytes(32), "a") < PRIME
    (True, True)
    """
    wide = derive(key, *labels, "low") + derive(key, *labels, "high")
    return int.from_bytes(wide, "little") % PRIME


def split(secret: int, threshold: int, parties: int, key: bytes) -> list[int]:
    """The shares of parties 0, 1, ...; ``key`` determines the coefficients and must be secret and used once.

    >>> shares = split(7, 2, 3, bytes(32))
    >>> len(shares), (2 * shares[0] - shares[1]) % PRIME
    (3, 7)
    """
    if not 1 <= threshold <= parties or not 0 <= secret < PRIME:
        raise PrivacyError(f"expected 1 <= threshold <= parties, found {threshold} of {parties}")
    coefficients = [element(key, "coefficient", i) for i in range(threshold - 1, 0, -1)]
    shares = []
    for place in range(1, parties + 1):
        value = 0
        # Places are small, so one reduction at the end is cheaper than one a step.
        for coefficient in coefficients:
            value = value * place + coefficient
        shares.append((value * place + secret) % PRIME)
    return shares


def weights(parties: Sequence[int]) -> list[int]:
    """Lagrange's weights at 0: the secret is the sum of weight times share over these parties.

    >>> shares = split(7, 2, 3, bytes(32))
    >>> sum(w * shares[i] for w, i in zip(weights([0, 2]), [0, 2])) % PRIME
    7
    """
    places = [party + 1 for party in parties]
    if len(set(places)) != len(places) or min(places, default=1) < 1:
        raise PrivacyError("shares of different parties are needed, each once")
    found = []
    for place in places:
        above, below = 1, 1
        for other in places:
            if other != place:
                above = above * other % PRIME
                below = below * (other - place) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return found


def join(shares: Sequence[int], weighted: Sequence[int]) -> int:
    """The secret, from shares and the `weights` of their parties, in the same order.

    >>> shares = split(7, 2, 3, bytes(32))
    >>> join([shares[1], shares[2]], weights([1, 2]))
    7
    """
    return sum(share * weight for share, weight in zip(shares, weighted, strict=True)) % PRIME
