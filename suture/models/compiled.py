"""Compiled functions, cached on disk with a key that covers every kernel.

Numba recompiles a cached function when the file it stands in changes, but not when a function that
it calls changes in another file. A corrected noise generator or clipping rule could then lie unused
behind a stale cache, so the key used here is a digest of all sources of `suture.models` and
`suture.training`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit


@cache
def sources_digest() -> str:
    """A digest of every source file that a kernel may be compiled from.

    >>> len(sources_digest())
    32
    """
    digest = hashlib.blake2b(digest_size=16)
    package = Path(__file__).parents[1]
    for path in sorted([*package.glob("models/*.py"), *package.glob("training/*.py")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def compiled(function: Callable[..., Any]) -> Any:
    """Compile with Numba on first use, without the GIL, with multiply-adds fused and no other
    liberty with floats.

    Division follows IEEE 754 (as NumPy's does): Python's check for zero is a branch, which keeps
    LLVM from vectorising.
    """
    dispatcher = njit(nogil=True, error_model="numpy", fastmath={"contract"})(function)
    dispatcher.enable_caching()
    dispatcher._cache._cache_file._source_stamp = sources_digest()
    return dispatcher
