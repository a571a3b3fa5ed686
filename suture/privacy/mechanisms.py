"""Keys and randomness: where every secret coin of a site comes from.

A site holds one secret key. Each release gets its own key by a pseudo-random function of that secret and of what the
release is (`derive`), and each use inside a release (sampling, noise) gets its own key in the same way, so no two uses
ever share a stream. Two streams are built on a key:

- `generator`: a `numpy.random.Generator` over AES-128 in counter mode (randomgen's `AESCounter`), for general use;
- `Keystream`: AES-128 in counter mode from OpenSSL (through `cryptography`), raw bytes in bulk at several GB/s without
  the GIL, for the fused training path, which turns the bytes into Gaussian noise itself.

Both set the full 128-bit AES key. Neither goes through a seed that a smaller search could enumerate: differential
privacy is only as strong as the unpredictability of the noise (Garfinkel and Leclerc, "Randomness Concerns When
Deploying Differential Privacy", WPES 2020). What floating-point noise does and does not promise is stated in
docs/floating-point.md: Mironov's attack on naive noise ("On Significance of the Least Significant Bits for Differential
Privacy", CCS 2012) is not excluded by proof here.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray
from randomgen import AESCounter

from suture.errors import PrivacyError

KEY_BYTES = 32
Label = str | int | bytes

# Bytes encrypted per call: the zero plaintext stays in cache, and no call is long.
_PIECE = 1 << 18
_ZEROS = memoryview(bytes(_PIECE))


def secure_key() -> bytes:
    """A fresh 256-bit key from the operating system: the only key fit to protect real patients.

    >>> len(secure_key()), secure_key() == secure_key()
    (32, False)
    """
    return os.urandom(KEY_BYTES)


def seeded_key(seed: int, *labels: Label) -> bytes:
    """A key that anyone who knows the seed can compute: for generated cohorts and tests only, never for real patients.

    >>> seeded_key(42, "boston") == seeded_key(42, "boston"), seeded_key(42, "boston") == seeded_key(43, "boston")
    (True, False)
    """
    return derive(b"suture simulation key, not secret".ljust(64, b"\0"), seed, *labels)


def derive(key: bytes, *labels: Label) -> bytes:
    """A 256-bit key for one use: keyed BLAKE2b of the labels, a pseudo-random function of ``key``.

    Each label is encoded with its type and its length, so different label lists never encode to the same bytes.

    >>> key = seeded_key(1)
    >>> derive(key, "noise", 1) == derive(key, "noise", 1)
    True
    >>> len({derive(key, *labels) for labels in [("a", "b"), ("ab",), ("a", b"b"), ("1",), (1,), ()]})
    6
    """
    if not 16 <= len(key) <= 64:
        raise PrivacyError(f"expected a key of 16 to 64 bytes, found {len(key)}; make one with secure_key()")
    digest = hashlib.blake2b(key=key, digest_size=KEY_BYTES, person=b"suture.derive.v1")
    for label in labels:
        kind, content = _encode(label)
        digest.update(kind + len(content).to_bytes(8, "little") + content)
    return digest.digest()


def _encode(label: Label) -> tuple[bytes, bytes]:
    """Type mark and content of a label."""
    if isinstance(label, bytes):
        return b"b", label
    if isinstance(label, str):
        return b"s", label.encode()
    return b"i", str(int(label)).encode()


def generator(key: bytes) -> np.random.Generator:
    """NumPy's generator over AES-128 in counter mode, keyed with 128 bits derived from ``key``.

    The AES key is set directly; randomgen's ``seed=`` is not used, since it passes through a weaker generator first.

    >>> a, b = generator(seeded_key(7)), generator(seeded_key(7))
    >>> bool(a.standard_normal() == b.standard_normal())
    True
    """
    return np.random.Generator(AESCounter(key=int.from_bytes(derive(key, "generator")[:16], "little")))


class Keystream:
    """AES-128 in counter mode: secret, uniformly distributed bits, as many as asked for, in order.

    >>> import numpy as np
    >>> whole, parts = np.empty(10, np.uint32), np.empty(10, np.uint32)
    >>> Keystream(seeded_key(7)).fill(whole)
    >>> stream = Keystream(seeded_key(7))
    >>> stream.fill(parts[:3]); stream.fill(parts[3:])
    >>> bool(np.all(whole == parts))
    True
    """

    def __init__(self, key: bytes) -> None:
        # The counter starts at zero: each key serves one stream, so a counter value is never used twice under it.
        self._cipher = Cipher(algorithms.AES(derive(key, "keystream")[:16]), modes.CTR(bytes(16))).encryptor()

    def fill(self, out: NDArray[Any]) -> None:
        """Overwrite a contiguous array with the next bits of the stream."""
        view = memoryview(out.data).cast("B")
        for start in range(0, len(view), _PIECE):
            piece = view[start : start + _PIECE]
            self._cipher.update_into(_ZEROS[: len(piece)], piece)
