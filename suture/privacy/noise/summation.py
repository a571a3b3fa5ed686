"""The exact sum over patients, in whole numbers: what a patient adds is bounded and depends on no
other patient.

A patient's rows are added up in float64, the result is clipped (to L2 norm ``limit``, or entry by
entry), put on a public grid of 1 / ``scale`` and added in int64. What the privacy proofs need of
this file, for every table and whatever the values hold:
- A patient's whole numbers are a function of that patient's rows, weights, ``limit`` and ``scale``
  alone.
- Their L2 norm (or, entrywise, each of them) is at most ``limit * scale``. Rounding to the grid
  moves an entry by at most 1/2, hence a vector of d entries by at most sqrt(d) / 2, which is taken
  off beforehand; 1e-7 covers the rounding of the norm in float64.
- A patient with an entry that is not finite adds exactly zero.
- Whole numbers add up without rounding, in any order; |entry| <= 2^32, so 2^30 patients cannot
  overflow.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numba import njit
from numpy.typing import NDArray

SCALE_BITS = 32
"""The grid is at most so fine: ``scale <= 2**SCALE_BITS / limit``."""
MARGIN = 1e-6
_SAFE = 1e-7
_LANES = 16
# 1.5 * 2^52: a float64 below 2^51 in size that is added to it is rounded to a whole number (half to
# even, as np.rint does), which then stands in the low bits. It is how LLVM can vectorise the
# conversion on every machine.
_MAGIC = 6755399441055744.0
_MAGIC_BITS = np.float64(_MAGIC).view(np.int64)


def summed(
    values: NDArray[np.floating],
    weights: NDArray[np.float64],
    starts: NDArray[np.int64],
    limit: float,
    entrywise: bool = False,
) -> NDArray[np.int64]:
    """The sum over patients of their clipped contributions, in units of ``limit / 2**SCALE_BITS``.

    Row r counts ``weights[r] * values[r]``; the rows of patient p are ``starts[p]:starts[p + 1]``.

    >>> total = summed(np.array([[3.0, 4.0], [0.25, 0.0], [0.25, 0.0]]), np.ones(3), np.array([0, 1, 3]), 1.0)
    >>> (total / 2**SCALE_BITS).round(5).tolist()
    [1.1, 0.8]
    """
    out = np.zeros(values.shape[1], np.int64)
    _check_limit(limit)
    add_patients(values, weights, starts, limit, 2.0**SCALE_BITS / limit, entrywise, out)
    return out


def counted(
    values: NDArray[np.floating],
    weights: NDArray[np.float64],
    starts: NDArray[np.int64],
    limit: float,
) -> NDArray[np.int64]:
    """The sum over patients who add whole numbers of L2 norm at most ``limit``; others add nothing.

    (Clipped fractions that are rounded after adding up could move every count by one for one
    patient.) ``starts`` must rise.

    >>> each = np.array([[1.0, 0.0], [0.5, 0.0], [1.0, 1.0], [0.0, 1.0]])
    >>> counted(each, np.ones(4), np.arange(5), 1.0).tolist()
    [1, 1]
    """
    _check_limit(limit)
    if len(starts) == 1:
        return np.zeros(values.shape[1], np.int64)
    with np.errstate(over="ignore", invalid="ignore"):
        each = np.add.reduceat(values.astype(np.float64) * weights[:, None], starts[:-1], axis=0)
        short = np.sqrt(np.sum(each * each, axis=1)) <= limit
        fine = np.all(each == np.rint(each), axis=1) & short
    found: NDArray[np.int64] = each[fine].astype(np.int64).sum(axis=0)
    return found


def add_patients(
    values: NDArray[np.floating],
    weights: NDArray[np.float64],
    starts: NDArray[np.int64],
    limit: float,
    scale: float,
    entrywise: bool,
    out: NDArray[np.int64],
) -> None:
    """Add each patient's clipped contribution, times ``scale`` and rounded, to ``out``.

    >>> out = np.zeros(1, np.int64)
    >>> for block in (np.array([[0.25]]), np.array([[7.0]])):
    ...     add_patients(block, np.ones(1), np.arange(2), 1.0, 1000.0, True, out)
    >>> out.tolist()
    [1250]
    """
    _check_limit(limit)
    if not 0 < scale <= 2.0**SCALE_BITS / limit * (1 + 1e-9):
        raise ValueError(
            f"expected a scale above 0 and at most 2^{SCALE_BITS} / limit, found {scale}"
        )
    if values.ndim != 2 or weights.shape != (len(values),):
        shapes = f"{values.shape} and {weights.shape}"
        raise ValueError(f"expected rows x entries and one weight per row, found {shapes}")
    starts = np.ascontiguousarray(starts, np.int64)
    ends = len(starts) > 0 and starts[0] == 0 and starts[-1] == len(values)
    if not ends or np.any(np.diff(starts) < 0):
        raise ValueError("starts must begin at 0, never fall and end at the number of rows")
    width, bound, units = values.shape[1], float(limit), float(scale)
    if out.shape != (width,) or out.dtype != np.int64:
        raise ValueError(f"expected {width} whole numbers to add to, found {out.dtype} {out.shape}")
    rows = np.ascontiguousarray(values, np.float32 if values.dtype == np.float32 else np.float64)
    factors = np.ascontiguousarray(weights, np.float64)
    reach = _reach(bound, units, width, bool(entrywise))
    _add(rows, factors, starts, bound, units, reach, bool(entrywise), out)


def _check_limit(limit: float) -> None:
    if not (math.isfinite(limit) and limit > 0):
        raise ValueError(f"expected a limit above 0 and finite, found {limit}")


@lru_cache(1024)
def _reach(limit: float, scale: float, width: int, entrywise: bool) -> float:
    """The largest norm, or entry, before rounding, in units of the grid."""
    units = Fraction(limit) * Fraction(scale)
    if entrywise:
        return float(math.floor(units))
    most = float(units)
    return max(0.0, min(most * (1 - MARGIN), most * (1 - _SAFE) - math.sqrt(width) / 2))


@njit(cache=True, nogil=True, error_model="numpy")
def _add(values, weights, starts, limit, scale, reach, entrywise, out):  # type: ignore[no-untyped-def]
    width = values.shape[1]
    padded = (width + _LANES - 1) // _LANES * _LANES
    buffer = np.zeros(padded)
    bits = buffer.view(np.int64)
    for patient in range(len(starts) - 1):
        first, end = starts[patient], starts[patient + 1]
        if first == end:
            continue
        row, weight = values[first], weights[first]
        for j in range(width):
            buffer[j] = weight * row[j]
        for r in range(first + 1, end):
            row, weight = values[r], weights[r]
            for j in range(width):
                buffer[j] += weight * row[j]
        for j in range(width, padded):
            buffer[j] = 0.0
        factor = scale
        if entrywise:
            wrong = 0.0
            for j in range(0, padded, _LANES):
                wrong += _wrong(buffer[j : j + _LANES])
            if wrong != 0.0:
                continue
            for j in range(width):
                buffer[j] = min(max(buffer[j] * scale, -reach), reach)
            factor = 1.0
        else:
            norm = math.sqrt(_square(buffer, scale))
            if not math.isfinite(norm):
                # NaN, or squares that overflow: once more, relative to the largest entry.
                peak = 0.0
                for j in range(width):
                    peak = max(peak, abs(buffer[j])) if buffer[j] == buffer[j] else math.inf
                if not math.isfinite(peak):
                    continue
                for j in range(width):
                    buffer[j] /= peak
                factor = reach / math.sqrt(_square(buffer, 1.0))
            elif norm > reach:
                factor = scale * (reach / norm)
        for j in range(padded):
            buffer[j] = buffer[j] * factor + _MAGIC
        for j in range(width):
            out[j] += bits[j] - _MAGIC_BITS


@njit(cache=True, nogil=True, error_model="numpy")
def _square(buffer, scale):  # type: ignore[no-untyped-def]
    """The squared norm of ``scale * buffer``, in eight sums so that LLVM can use lanes."""
    a = b = c = d = e = f = g = h = 0.0
    for j in range(0, len(buffer), 8):
        v = buffer[j : j + 8]
        a += (scale * v[0]) * (scale * v[0])
        b += (scale * v[1]) * (scale * v[1])
        c += (scale * v[2]) * (scale * v[2])
        d += (scale * v[3]) * (scale * v[3])
        e += (scale * v[4]) * (scale * v[4])
        f += (scale * v[5]) * (scale * v[5])
        g += (scale * v[6]) * (scale * v[6])
        h += (scale * v[7]) * (scale * v[7])
    return ((a + b) + (c + d)) + ((e + f) + (g + h))


@njit(cache=True, nogil=True, error_model="numpy")
def _wrong(values):  # type: ignore[no-untyped-def]
    """Not 0 where some value is not finite."""
    found = 0.0
    for j in range(len(values)):
        found += 0.0 if math.isfinite(values[j]) else 1.0
    return found
