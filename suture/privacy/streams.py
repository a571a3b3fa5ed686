"""Does noise repeat? The audit of where noise comes from.

Noise drawn from a seed of 32 bits can be found by trying all seeds, which takes an afternoon and undoes any epsilon. No
statistic of a single message shows this, but repetition does: among n messages about the *same* table, each under a key
of its own, two are equal with probability about n^2 / 2^33 (the birthday paradox). 250,000 messages find a 32-bit seed
with probability 99.9 %. Noise from 128 secret bits never repeats: a repeat among n messages means, at the stated rate,
fewer than n^2 / (2 rate) streams.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture.errors import StudyError
from suture.privacy.mechanisms import derive, secure_key

LEAST_BYTES = 24
"""Messages shorter than this may be equal by chance: six float32 have some 140 bits between them."""


@dataclass(frozen=True)
class Streams:
    """What was found: how many messages, and how many of them were seen before."""

    messages: int
    repeats: int
    rate: float

    @property
    def broken(self) -> bool:
        """A repeat: never with noise from 128 secret bits (probability below 1e-20)."""
        return self.repeats > 0

    @property
    def bits(self) -> float:
        """With repeats: at most so many secret bits. Without: more than so many, both at the stated rate."""
        if self.broken:
            return math.log2(self.messages**2 / (2 * self.rate))
        return math.log2(self.messages**2 / (2 * math.log(1 / self.rate)))

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.broken:
            return (
                f"broken: {self.repeats} of {self.messages:,} messages came with noise seen before, so it is drawn from "
                f"fewer than 2^{math.ceil(self.bits)} streams; claimed 2^128"
            )
        return f"consistent with the claim: {self.messages:,} messages, no noise twice (more than 2^{self.bits:.1f} streams)"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "what": "no noise is used twice",
            "verdict": self.verdict,
            "broken": self.broken,
            "messages": self.messages,
            "repeats": self.repeats,
            "bits": self.bits,
            "rate": self.rate,
        }


def repeated_noise(
    mechanism: Callable[[bytes], NDArray[Any]],
    *,
    messages: int = 250_000,
    rate: float = 0.001,
    key: bytes | None = None,
    threads: int = 1,
) -> Streams:
    """Count repeated messages of a mechanism on one fixed table; only digests are kept.

    >>> from suture.privacy.mechanisms import generator, seeded_key
    >>> good = repeated_noise(lambda key: generator(key).random(8), messages=2000, key=seeded_key(1))
    >>> small = lambda key: np.random.default_rng(key[0] + 256 * key[1]).random(8)  # a seed of 16 bits
    >>> good.repeats, repeated_noise(small, messages=2000, key=seeded_key(1)).repeats > 0
    (0, True)
    """
    if messages < 2:
        raise StudyError(f"expected at least 2 messages, found {messages}")
    secret = secure_key() if key is None else key

    def digest(i: int) -> bytes:
        message = np.ascontiguousarray(mechanism(derive(secret, "streams", i)))
        if message.nbytes < LEAST_BYTES:
            raise StudyError(
                f"expected messages of at least {LEAST_BYTES} bytes, found {message.nbytes}: shorter ones repeat by chance"
            )
        return hashlib.blake2b(message.tobytes(), digest_size=16).digest()

    def digests() -> Iterator[bytes]:
        if threads <= 1:
            yield from map(digest, range(messages))
            return
        with ThreadPoolExecutor(threads) as pool:
            for start in range(0, messages, 10_000):
                yield from pool.map(digest, range(start, min(messages, start + 10_000)), chunksize=500)

    distinct = len(set(digests()))
    return Streams(messages, messages - distinct, rate)
