"""Votes on the wire: k concepts with signs, packed to the bit.

A vote is a number below 2d: twice the concept, plus 1 for a risk-lowering one. Each takes
ceil(log2(2d)) bits, in the order the concepts were picked. Five votes among 251 concepts are 6
bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture.errors import RunError

Ids = NDArray[np.int64]


def bits(concepts: int) -> int:
    """Bits of one vote.

    >>> bits(251), bits(256), bits(257), bits(1)
    (9, 9, 10, 1)
    """
    return max(1, (2 * concepts - 1).bit_length())


def id_type(concepts: int) -> str:
    """The narrowest type that counts the concepts of a model sent to a site.

    >>> id_type(251), id_type(40_000)
    ('<i2', '<i4')
    """
    return "<i2" if concepts <= 2**15 else "<i4"


def pack(ids: Ids, signs: Ids, concepts: int) -> NDArray[np.uint8]:
    """Votes to bytes.

    >>> pack(np.array([3, 250]), np.array([1, -1]), 251).tolist()
    [3, 125, 64]
    """
    codes = 2 * ids + (signs < 0)
    each = (codes[:, None] >> np.arange(bits(concepts) - 1, -1, -1)) & 1
    return np.packbits(each.astype(np.uint8).ravel())


def unpack(data: NDArray[Any], concepts: int, picks: int) -> tuple[Ids, Ids]:
    """Bytes back to concepts and signs; anything else is refused.

    >>> ids, signs = unpack(np.array([3, 125, 64], np.uint8), 251, 2)
    >>> ids.tolist(), signs.tolist()
    ([3, 250], [1, -1])
    """
    width = bits(concepts)
    if data.dtype != np.uint8 or data.shape != ((width * picks + 7) // 8,):
        raise RunError(
            f"expected {picks} votes in {(width * picks + 7) // 8} bytes, found {data.dtype} of "
            f"{data.shape}"
        )
    each = np.unpackbits(data)[: width * picks].reshape(picks, width).astype(np.int64)
    codes = each @ (1 << np.arange(width - 1, -1, -1))
    ids = codes // 2
    if np.any(ids >= concepts) or len(set(ids.tolist())) < picks:
        raise RunError(f"expected {picks} different concepts out of {concepts} in a vote")
    return ids, np.where(codes % 2 == 1, -1, 1)
