"""What both sides of a secure sum share: its terms, Shamir's secret sharing, and the masks.

The protocol is described in `masked.py`. Keys: X25519 (RFC 7748) and HKDF with SHA-256 (RFC 5869);
PRG: AES-128 in counter mode; all from `cryptography`. Secret sharing is the only mathematics of the
secure sum that is written here (Shamir: How to Share a Secret. Communications of the ACM, 1979): a
secret is cut into n shares of which any t give it back and any t - 1 say nothing. The secret is the
value at 0 of a polynomial of degree t - 1 with uniformly random coefficients over the field of
p = 2^255 - 19 elements; the share of party i is its value at i + 1.

`ProtectionSpec` is the ``[protection]`` table of a study: how the server combines updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from suture.errors import PrivacyError, RunError
from suture.privacy.noise.source import Arrays, Keystream, State, derive

Bytes = NDArray[np.uint8]
Stage = Literal["advertise", "share", "mask", "agree", "unmask"]

STAGES: tuple[Stage, ...] = ("advertise", "share", "mask", "agree", "unmask")
LEAST_SITES = 3
"""With two sites, each knows the other's words from the sum."""
THRESHOLD = 2 / 3
PRIME = 2**255 - 19
SHARE_BYTES = 32
KEYS_BYTES, SIGNATURE_BYTES, SEALED_BYTES = 96, 64, 2 * SHARE_BYTES + 16


def threshold_of(parties: int, share: float = THRESHOLD) -> int:
    """How many sites must stay: more than this share of them.

    >>> [threshold_of(n) for n in (3, 5, 20, 150)]
    [3, 4, 14, 101]
    """
    return int(Fraction(share).limit_denominator(1000) * parties) + 1


@dataclass(frozen=True)
class Terms:
    """What all parties of one sum agree on; ``identities`` are their raw Ed25519 public keys.

    The consistency check holds if 2 threshold > n + c for c sites that collude with the server (CCS
    2017, Theorem 6.5): two lists need 2 threshold signatures; the n - c honest sites sign once and
    the others twice, which is n + c at most. The default threshold, more than two thirds, allows c
    up to a third. Every opened sum then contains at least ``threshold - c`` honest sites' words.

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
        keys = self.identities
        if len(set(self.parties)) != n or len(set(keys)) != n or len(keys) != n:
            raise PrivacyError("a secure sum needs different sites, each with its own enrolled key")
        if not n < 2 * self.threshold <= 2 * n:
            raise PrivacyError(
                f"secure sum: expected a threshold above half of the {n} sites and at most all, "
                f"found {self.threshold}; with half or fewer a lying server could have two "
                "different lists of dropouts signed"
            )
        if any(len(part) != 32 for part in (self.session, self.asked, *keys)):
            raise PrivacyError("secure sum: expected a session, digest and identities of 32 bytes")

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
        root = b"suture secure sum terms 1".ljust(32)
        return derive(root, self.session, self.asked, self.threshold, *names)

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


def agreement_text(
    terms: Terms, roster: bytes, shared: Sequence[int], survivors: Sequence[int]
) -> bytes:
    """What a site signs in the consistency check."""
    lists = [str(sorted(shared)), str(sorted(survivors))]
    return b"suture secure sum survivors 1\n" + derive(terms.digest, "survivors", roster, *lists)


# --- Shamir's secret sharing ---------------------------------------------------------------


def element(key: bytes, *labels: str | int | bytes) -> int:
    """A pseudo-random element of the field: 512 bits reduced, within 2^-256 of uniform."""
    wide = derive(key, *labels, "low") + derive(key, *labels, "high")
    return int.from_bytes(wide, "little") % PRIME


def split(secret: int, threshold: int, parties: int, key: bytes) -> list[int]:
    """The shares of parties 0, 1, ...; ``key`` gives the coefficients: secret, and used once."""
    if not 1 <= threshold <= parties or not 0 <= secret < PRIME:
        raise PrivacyError(f"expected 1 <= threshold <= parties, found {threshold} of {parties}")
    coefficients = [element(key, "coefficient", i) for i in range(threshold - 1, 0, -1)]
    shares = []
    for place in range(1, parties + 1):
        value = 0
        # Places are small, so one reduction at the end is cheaper than one per step.
        for coefficient in coefficients:
            value = value * place + coefficient
        shares.append((value * place + secret) % PRIME)
    return shares


def weights(parties: Sequence[int]) -> list[int]:
    """Lagrange's weights at 0: the secret is the sum of weight times share over these parties."""
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


# --- masks -------------------------------------------------------------------------------------

_PIECE = 1 << 17


def raw(data: bytes) -> Bytes:
    """Bytes as an array that an envelope carries."""
    return np.frombuffer(data, np.uint8)


def to_bytes(value: int) -> bytes:
    """A field element as 32 bytes."""
    return value.to_bytes(SHARE_BYTES, "little")


def commitment(terms: Terms, party: int, own_mask: int) -> bytes:
    """Lets the server check a reassembled own mask; reveals nothing about it."""
    return derive(to_bytes(own_mask), "commitment", terms.digest, party)


def mask_private(seed: int) -> X25519PrivateKey:
    """The key behind a site's pairwise masks, from the field element that is shared out."""
    return X25519PrivateKey.from_private_bytes(derive(to_bytes(seed), "mask key"))


def own_mask_key(own_mask: int) -> bytes:
    """The key of PRG(b_u)."""
    return derive(to_bytes(own_mask), "own mask")


def pair_key(terms: Terms, agreed: bytes, one: int, other: int) -> bytes:
    """The key of PRG(s_uv), the same for both."""
    return expand(agreed, derive(terms.digest, "pair", min(one, other), max(one, other)))


def expand(agreed: bytes, info: bytes) -> bytes:
    """A key for one use from an agreed secret."""
    return HKDF(SHA256(), 32, None, info).derive(agreed)


def unsigned(words: Arrays) -> State:
    """A copy as unsigned words, which wrap (modulo 2^32 or 2^64), in the order of their names."""
    found: State = {}
    for name in sorted(words):
        kind = words[name].dtype
        if kind not in (np.int32, np.int64):
            raise RunError(f"secure sum: {name!r} has type {kind}, expected int32 or int64 words")
        wide = np.uint32 if kind == np.int32 else np.uint64
        found[name] = np.array(words[name], order="C").view(wide)
    return found


def add_mask(words: Arrays, key: bytes, sign: int) -> None:
    """Add or subtract PRG(key) in place, over all arrays in the order of their names."""
    stream = Keystream(key)
    step = np.add if sign > 0 else np.subtract
    buffer = np.empty(_PIECE, np.uint8)
    for array in words.values():
        flat = array.reshape(-1)
        mask = buffer.view(array.dtype)
        for start in range(0, len(flat), len(mask)):
            piece = flat[start : start + len(mask)]
            stream.fill(mask[: len(piece)])
            step(piece, mask[: len(piece)], out=piece)


# --- a study's settings ------------------------------------------------------------------------

NORM_BOUND = 100.0
"""The norm bound of a masked mean where the study states none: it only sets the grid."""


class ProtectionSpec(BaseModel):
    """How updates become one: a trusted sum, a sum under masks, or robust aggregation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sum: Literal["trusted", "masked"] = "trusted"
    threshold: float = Field(default=THRESHOLD, ge=0.5, lt=1)
    """Masked: more than this share of a round's sites must stay, or nothing is opened."""
    colluders: int = Field(default=1, ge=0)
    """Masked: so many sites may side with the server; the promise relies on none of their noise."""
    spare: int = Field(default=3, ge=0)
    """Masked: extra rounds to plan for. A sum that breaks off after the masks uses one up."""
    word: Literal[32, 64] = 32
    """Masked: bits of a word of a mean."""
    norm_bound: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """The most an update may be in L2 norm; longer ones are shortened."""
    aggregation: Literal["mean", "median", "trimmed-mean", "krum"] = "mean"
    wrong: int = Field(default=1, ge=0)
    """Trimmed mean and Krum: how many hostile sites to expect."""
    keep: int = Field(default=1, ge=1)
    """Krum: how many of the best updates are averaged (multi-Krum)."""

    @model_validator(mode="after")
    def _not_both(self) -> ProtectionSpec:
        if self.sum == "masked" and self.aggregation != "mean":
            raise ValueError(
                f'sum = "masked" and aggregation = "{self.aggregation}" exclude each other: robust '
                "aggregation compares the "
                'sites\' updates, which masks hide. Take aggregation = "mean" with norm_bound = '
                "1.0 (a norm-bounded secure "
                'sum: the software of each site shortens its update), or sum = "trusted"'
            )
        return self

    @property
    def spare_rounds(self) -> int:
        """Rounds that are planned and paid for besides the method's own."""
        return self.spare if self.sum == "masked" else 0

    @property
    def plain(self) -> bool:
        """Whether the study asks for nothing but the usual mean."""
        return self.sum == "trusted" and self.aggregation == "mean" and self.norm_bound is None
