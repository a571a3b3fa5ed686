"""Who is trained on and who is tested on: decided for each patient alone.

Whether a patient is held out for testing is decided by a keyed hash of that patient's identifier alone:
the first 64 bits of SHA-256("key:identifier"), as a fraction of 2^64, below ``holdout``. Adding or removing one patient
therefore moves no other patient between training and test. The privacy proof needs this: were the split drawn by
shuffling, one patient more would change many training rows, and neighbouring tables would not have neighbouring
training sets. The site's name is not part of the hash, so a person known by one identifier at two sites is on the same
side at both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def hashed(identifiers: Sequence[str], split_key: str) -> NDArray[np.uint64]:
    """128 bits of SHA-256("key:identifier") each: among a million patients two share them with chance below 1e-26.

    >>> hashed(["p1"], "key").shape
    (1, 2)
    """
    prefix = hashlib.sha256(f"{split_key}:".encode())
    digests = bytearray()
    for identifier in identifiers:
        digest = prefix.copy()
        digest.update(identifier.encode())
        digests += digest.digest()[:16]
    return np.frombuffer(bytes(digests), ">u8").astype(np.uint64).reshape(-1, 2)


def row_keys(rows: int, split_key: str) -> NDArray[np.uint64]:
    """Without a patient column each row is its own unit, known by its place: no promise to a patient can rest on it.

    >>> bool((row_keys(2, "key") == hashed(["0", "1"], "key")).all())
    True
    """
    return hashed([str(i) for i in range(rows)], split_key)


def first_rows(keys: NDArray[np.uint64]) -> NDArray[np.intp]:
    """Where each patient begins, in keys that are in order.

    >>> first_rows(np.array([[1, 5], [2, 1], [2, 1]], np.uint64)).tolist()
    [0, 1]
    """
    return np.flatnonzero(np.append(np.ones(min(1, len(keys)), bool), (keys[1:] != keys[:-1]).any(axis=1)))


def distinct(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Each patient's key once, in order.

    >>> distinct(np.array([[2, 1], [1, 5], [2, 1]], np.uint64)).tolist()
    [[1, 5], [2, 1]]
    """
    ordered = keys[np.lexsort((keys[:, 1], keys[:, 0]))]
    return ordered[first_rows(ordered)]


def limit(holdout: float) -> int:
    """The share as a bound on the first 64 bits.

    >>> limit(0.25) == 2**62
    True
    """
    return int(holdout * 2**64)


def held_out(keys: NDArray[np.uint64], holdout: float) -> NDArray[np.bool_]:
    """Which rows belong to patients who are tested on.

    >>> held_out(hashed(["p1", "p2", "p1"], "key"), 0.5).tolist()
    [True, False, True]
    """
    if holdout >= 1:
        return np.ones(len(keys), bool)
    tested: NDArray[np.bool_] = keys[:, 0] < np.uint64(limit(holdout))
    return tested
