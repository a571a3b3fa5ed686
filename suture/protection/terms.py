"""How updates become one: the ``[protection]`` table of a study (`ProtectionSpec`), and the terms on
which all parties of one sum under masks agree (`Terms`; the protocol is in `masked.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import BaseModel, ConfigDict, Field, model_validator

from suture.errors import PrivacyError
from suture.privacy.noise.source import derive

Stage = Literal["advertise", "share", "mask", "agree", "unmask"]

STAGES: tuple[Stage, ...] = ("advertise", "share", "mask", "agree", "unmask")
LEAST_SITES = 3
"""With two sites, each knows the other's words from the sum."""
THRESHOLD = 2 / 3
NORM_BOUND = 100.0
"""The norm bound of a masked mean where the study states none: it only sets the grid."""


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


class ProtectionSpec(BaseModel):
    """How updates become one: a trusted sum, a sum under masks, or robust aggregation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sum: Literal["trusted", "masked"] = "trusted"
    threshold: float = Field(default=THRESHOLD, ge=0.5, lt=1)
    """Masked: more than this share of a round's sites must stay, or nothing is opened."""
    colluders: int = Field(default=1, ge=0)
    """So many sites may side with the server, or look for themselves; the promise relies on none of
    their noise."""
    keys: Literal["sum", "study"] = "sum"
    """Masked: new keys for every sum, and shares of them with which it survives that a site leaves;
    or keys agreed on once, and sums that every site on their list must finish."""
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
                "aggregation compares the sites' updates, which masks hide. Take aggregation = "
                '"mean" with norm_bound = 1.0 (a norm-bounded secure sum: the software of each '
                'site shortens its update), or sum = "trusted"'
            )
        return self

    @property
    def spare_rounds(self) -> int:
        """Rounds that are planned and paid for besides the method's own."""
        return self.spare if self.sum == "masked" else 0

    def honest_of(self, sites: int) -> int:
        """Of how many sites' noise a sum can be counted on: of those that stay at least, less those
        that may collude.

        >>> ProtectionSpec().honest_of(12), ProtectionSpec(sum="masked").honest_of(12)
        (11, 8)
        """
        stay = threshold_of(sites, self.threshold) if self.sum == "masked" else sites
        return max(1, stay - self.colluders)

    @property
    def plain(self) -> bool:
        """Whether the study asks for nothing but the usual mean."""
        return self.sum == "trusted" and self.aggregation == "mean" and self.norm_bound is None
