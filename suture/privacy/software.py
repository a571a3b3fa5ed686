"""What computes a release besides its inputs: versions and processor, because rounding is part of
the result.

Kernels are compiled for the processor they run on, and another processor or compiler rounds
differently in the last bit. Two such results under the same noise would differ by something other
than noise, so they must count as different releases: the fingerprint of a release includes this
text.
"""

from __future__ import annotations

import functools
import hashlib
from importlib import metadata

VERSION = metadata.version("suture")
"""Of the installed package."""


@functools.cache
def software() -> str:
    """One line that changes whenever the arithmetic may."""
    from llvmlite import binding

    features = binding.get_host_cpu_features().flatten()
    versions = " ".join(
        f"{name} {metadata.version(name)}"
        for name in ("numpy", "numba", "llvmlite", "cryptography")
    )
    machine = f"{binding.get_host_cpu_name()} {hashlib.sha256(features.encode()).hexdigest()[:16]}"
    return f"suture {VERSION} {versions} {machine}"
