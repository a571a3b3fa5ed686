"""Keys and randomness: where every secret coin of a site comes from.

A site holds one secret key. Each release gets its own key by a pseudo-random function of that
secret and of what the release is (`derive`), and each use inside a release (sampling, noise) gets
its own key in the same way, so no two uses share a stream. Two streams are built on a key:

- `generator`: a `numpy.random.Generator` over AES-128 in counter mode (randomgen's `AESCounter`);
- `Keystream`: AES-128 in counter mode from OpenSSL (through `cryptography`): raw bytes at several
  GB/s without the GIL, for the fused training path, which makes Gaussian noise from them itself.

Both set the full 128-bit AES key. Neither uses a seed that a smaller search could enumerate:
differential privacy is only as strong as the unpredictability of the noise (Garfinkel and Leclerc,
"Randomness Concerns When Deploying Differential Privacy", WPES 2020). What floating-point noise
does and does not promise is stated in docs/floating-point.md: Mironov's attack on naive noise ("On
Significance of the Least Significant Bits for Differential Privacy", CCS 2012) is not excluded by
proof here.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray
from randomgen import AESCounter

from suture.errors import PrivacyError

Array: TypeAlias = NDArray[Any]
Arrays: TypeAlias = Mapping[str, Array]
"""Named arrays, as messages, answers and states are."""
State: TypeAlias = dict[str, Array]
Label = str | int | bytes
KEY_BYTES = 32

# Bytes encrypted per call: the zero plaintext stays in cache, and no call is long.
_PIECE = 1 << 18
_ZEROS = memoryview(bytes(_PIECE))


def secure_key() -> bytes:
    """A fresh 256-bit key from the operating system: the only key fit to protect real patients."""
    return os.urandom(KEY_BYTES)


def seeded_key(seed: int, *labels: Label) -> bytes:
    """A key that anyone who knows the seed can compute: never for real patients, only for generated
    cohorts and tests."""
    return derive(b"suture simulation key, not secret".ljust(64, b"\0"), seed, *labels)


def derive(key: bytes, *labels: Label) -> bytes:
    """A 256-bit key for one use: keyed BLAKE2b of the labels, a pseudo-random function of ``key``.

    Each label is encoded with its type and length, so different lists never give the same bytes.

    >>> key = seeded_key(1)
    >>> len({derive(key, *labels) for labels in [("a", "b"), ("ab",), ("a", b"b"), ("1",), (1,), ()]})
    6
    """
    if not 16 <= len(key) <= 64:
        raise PrivacyError(
            f"expected a key of 16 to 64 bytes, found {len(key)}; make one with secure_key()"
        )
    digest = hashlib.blake2b(key=key, digest_size=KEY_BYTES, person=b"suture.derive.v1")
    for label in labels:
        if isinstance(label, bytes):
            kind, content = b"b", label
        elif isinstance(label, str):
            kind, content = b"s", label.encode()
        else:
            kind, content = b"i", str(int(label)).encode()
        digest.update(kind + len(content).to_bytes(8, "little") + content)
    return digest.digest()


def generator(key: bytes) -> np.random.Generator:
    """NumPy's generator over AES-128 in counter mode, keyed with 128 bits derived from ``key``.

    The AES key is set directly; randomgen's ``seed=`` passes through a weaker generator first.
    """
    secret = int.from_bytes(derive(key, "generator")[:16], "little")
    return np.random.Generator(AESCounter(key=secret))


class Keystream:
    """AES-128 in counter mode: secret, uniformly distributed bits, as many as asked for."""

    def __init__(self, key: bytes) -> None:
        # The counter starts at zero: each key serves one stream, so no counter value is used twice.
        cipher = Cipher(algorithms.AES(derive(key, "keystream")[:16]), modes.CTR(bytes(16)))
        self._cipher = cipher.encryptor()

    def fill(self, out: Array) -> None:
        """Overwrite a contiguous array with the next bits of the stream."""
        view = memoryview(out.data).cast("B")
        for start in range(0, len(view), _PIECE):
            piece = view[start : start + _PIECE]
            self._cipher.update_into(_ZEROS[: len(piece)], piece)
