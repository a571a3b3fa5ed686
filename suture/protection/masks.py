"""The masks of a secure sum: keys behind them, and words that they are added to. Used by both sides.

Keys: X25519 (RFC 7748) and HKDF with SHA-256 (RFC 5869). PRG: AES-128 in counter mode. See `masked.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from suture.errors import RunError
from suture.privacy.mechanisms import Keystream, derive
from suture.protection.shamir import SHARE_BYTES
from suture.protection.terms import Arrays, Bytes, Terms

_PIECE = 1 << 17


def raw(data: bytes) -> Bytes:
    """Bytes as an array that an envelope carries."""
    return np.frombuffer(data, np.uint8)


def to_bytes(value: int) -> bytes:
    """A field element as 32 bytes."""
    return value.to_bytes(SHARE_BYTES, "little")


def commitment(terms: Terms, party: int, own_mask: int) -> bytes:
    """Lets the server see that it has put a site's own mask together rightly, and says nothing about the mask."""
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


def unsigned(words: Arrays) -> dict[str, NDArray[Any]]:
    """A copy as unsigned words, which wrap: arithmetic modulo 2^32 or 2^64. Names in order, as masks run over them."""
    found: dict[str, NDArray[Any]] = {}
    for name in sorted(words):
        if words[name].dtype not in (np.int32, np.int64):
            raise RunError(f"secure sum: {name!r} has type {words[name].dtype}, expected int32 or int64 words")
        found[name] = np.array(words[name], order="C").view(np.uint32 if words[name].dtype == np.int32 else np.uint64)
    return found


def add_mask(words: Mapping[str, NDArray[Any]], key: bytes, sign: int) -> None:
    """Add or subtract PRG(key): AES-128 in counter mode, over all arrays in the order of their names, in place."""
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
