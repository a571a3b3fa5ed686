"""What a round's message may hold: for every array a type, a shape and a range, checked before any
row is touched.

A message carries numbers only. What is asked of a site (phase, team, sum, questions) follows from
the round and the site's name, at the site. Without ranges a coordinator could choose weights so
large that one patient's score overflows, and read the patient off the error (docs/threat-model.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture.errors import Reason, Refused

LARGEST = 2.0**20
"""Weights beyond this are no model: a message that holds one is refused."""


@dataclass(frozen=True)
class UpTo:
    """A length that the sender chooses, the same wherever a message names it."""

    name: str
    most: int


@dataclass(frozen=True)
class Field:
    """One array of a message. ``rising``: whole numbers, each larger than the one before."""

    dtype: str
    shape: tuple[int | UpTo, ...]
    low: float = -LARGEST
    high: float = LARGEST
    rising: bool = False


def check_message(message: Mapping[str, NDArray[Any]], fields: Mapping[str, Field]) -> None:
    """Refuse a message that is not exactly what a round's message holds.

    >>> check_message({"params": np.zeros(2, np.float32)}, {"params": Field("<f4", (2,))})
    >>> check_message({"params": np.full(2, 3e38, np.float32)}, {"params": Field("<f4", (2,))})
    Traceback (most recent call last):
    suture.errors.Refused: 'params' of the round's message is outside -1.04858e+06 to 1.04858e+06
    """
    if set(message) != set(fields):
        wanted = ", ".join(sorted(fields)) or "nothing"
        found = ", ".join(sorted(str(name)[:40] for name in message)[:20]) or "nothing"
        raise _refused(f"the round's message should hold {wanted}; found {found}")
    lengths: dict[str, int] = {}
    for name, field in fields.items():
        array, where = message[name], f"{name!r} of the round's message"
        if array.dtype.str != field.dtype or array.ndim != len(field.shape):
            raise _refused(f"{where} should be {field.dtype} with {len(field.shape)} dimensions")
        for found_length, wanted_length in zip(array.shape, field.shape, strict=True):
            fine = found_length == wanted_length
            if isinstance(wanted_length, UpTo):
                same = lengths.setdefault(wanted_length.name, found_length) == found_length
                fine = found_length <= wanted_length.most and same
            if not fine:
                raise _refused(f"{where} has the wrong length")
        # What is not a number is its array's least and largest, and fails both comparisons.
        if array.size and not (array.min() >= field.low and array.max() <= field.high):
            raise _refused(f"{where} is outside {field.low:g} to {field.high:g}")
        if field.rising and not bool(np.all(array[1:] > array[:-1])):
            raise _refused(f"{where} must rise")


def _refused(text: str) -> Refused:
    return Refused(text, Reason.MESSAGE)
