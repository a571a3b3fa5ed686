"""What all parties of a secure sum agree on before it: who takes part, how many must stay, what was asked.

The protocol is described in `masked.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from numpy.typing import NDArray

from suture.errors import PrivacyError
from suture.privacy.mechanisms import derive
from suture.protection.shamir import SHARE_BYTES

Arrays = Mapping[str, NDArray[Any]]
Bytes = NDArray[np.uint8]
Stage = Literal["advertise", "share", "mask", "agree", "unmask"]

STAGES: tuple[Stage, ...] = ("advertise", "share", "mask", "agree", "unmask")
LEAST_SITES = 3
"""With two sites, each knows the other's words from the sum."""
THRESHOLD = 2 / 3
KEYS_BYTES, SIGNATURE_BYTES, SEALED_BYTES = 96, 64, 2 * SHARE_BYTES + 16


def threshold_of(parties: int, share: float = THRESHOLD) -> int:
    """How many sites must stay: more than this share of them.

    >>> [threshold_of(n) for n in (3, 5, 20, 150)]
    [3, 4, 14, 101]
    """
    return int(Fraction(share).limit_denominator(1000) * parties) + 1


@dataclass(frozen=True)
class Terms:
    """What all parties of one sum agree on. ``identities`` are their raw Ed25519 public keys, in the order of ``parties``.

    The consistency check holds if 2 threshold > n + c for c sites that collude with the server (CCS 2017, Theorem 6.5):
    two lists need 2 threshold signatures; the n - c honest sites sign once and the others twice, which is n + c at most.
    The default threshold, more than two thirds, allows c up to a third. Then every sum that is opened contains at least
    ``threshold - c`` honest sites' words.

    >>> terms = Terms(bytes(32), tuple("abcde"), tuple(bytes([i]) * 32 for i in range(5)), 4, bytes(32))
    >>> terms.colluding, terms.dropouts
    (2, 1)
    """

    session: bytes
    parties: tuple[str, ...]
    identities: tuple[bytes, ...]
    threshold: int
    asked: bytes

    def __post_init__(self) -> None:
        n = len(self.parties)
        if n < LEAST_SITES:
            raise PrivacyError(f"a secure sum needs at least {LEAST_SITES} sites, found {n}")
        if len(set(self.parties)) != n or len(set(self.identities)) != n or len(self.identities) != n:
            raise PrivacyError("a secure sum needs different sites, each with its own enrolled key")
        if not n < 2 * self.threshold <= 2 * n:
            raise PrivacyError(
                f"secure sum: expected a threshold above half of the {n} sites and at most all, found {self.threshold}; with "
                "half or fewer a lying server could have two different lists of dropouts signed"
            )
        if len(self.session) != 32 or len(self.asked) != 32 or any(len(key) != 32 for key in self.identities):
            raise PrivacyError("secure sum: expected a session, a digest and identities of 32 bytes")

    @property
    def colluding(self) -> int:
        """How many sites may side with a lying server before the consistency check breaks."""
        return 2 * self.threshold - len(self.parties) - 1

    @property
    def dropouts(self) -> int:
        """How many sites may drop out."""
        return len(self.parties) - self.threshold

    @cached_property
    def digest(self) -> bytes:
        """Everything above in 32 bytes: every signature and every key is bound to it."""
        names = [part for pair in zip(self.parties, self.identities, strict=True) for part in pair]
        return derive(b"suture secure sum terms 1".ljust(32), self.session, self.asked, self.threshold, *names)

    def verified(self, party: int, signature: bytes, message: bytes) -> bool:
        """Whether the signature is this party's, by its enrolled key."""
        try:
            Ed25519PublicKey.from_public_bytes(self.identities[party]).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True


def keys_text(terms: Terms, party: int, keys: bytes) -> bytes:
    """What a site signs when it advertises."""
    return b"suture secure sum keys 1\n" + derive(terms.digest, "keys", party, keys)


def agreement_text(terms: Terms, roster: bytes, shared: Sequence[int], survivors: Sequence[int]) -> bytes:
    """What a site signs in the consistency check."""
    lists = [str(sorted(shared)), str(sorted(survivors))]
    return b"suture secure sum survivors 1\n" + derive(terms.digest, "survivors", roster, *lists)
