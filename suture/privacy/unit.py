"""The unit of privacy: the patient, with all of their rows.

Two tables are neighbours when they differ by *all rows of one patient*. Everything that trains on
rows therefore receives them grouped by patient, and clips what a patient contributes, never a row.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NEIGHBOURS = "add or remove one patient, with all of the patient's rows"


@dataclass(frozen=True)
class Patients:
    """Encoded rows grouped by patient: the rows of patient ``i`` are ``starts[i]:starts[i + 1]``.

    >>> rows = Patients(np.zeros((3, 2)), np.array([0, 1, 1]), np.array([0, 1, 3]), declared=64)
    >>> rows.patients, rows.rows, rows.features, rows.one_row_each, rows.size
    (2, 3, 2, False, 64)
    """

    x: NDArray[np.float32]
    y: NDArray[np.int32]
    starts: NDArray[np.int64]
    group: NDArray[np.int32] | None = None
    """The protected group of each *patient*: 0, 1, ... in the study's public order, or -1 for none.

    One group per patient, so that a patient changes one group's sum: fairness penalties rely on it.
    """
    declared: int | None = None
    """The public number of patients that a person declared; None: generated patients are counted.

    Sampling rate, steps, divisors and weights follow from `size`, never from the count, so that a
    table with one patient more or less runs the same mechanism. A wrong declaration costs utility
    and nothing else."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", np.ascontiguousarray(self.x, dtype=np.float32))
        object.__setattr__(self, "y", np.ascontiguousarray(self.y, dtype=np.int32))
        object.__setattr__(self, "starts", np.ascontiguousarray(self.starts, dtype=np.int64))
        if self.x.ndim != 2 or len(self.y) != len(self.x):
            shapes = f"{self.x.shape} and {self.y.shape}"
            raise ValueError(f"expected rows x features and one label per row, found {shapes}")
        if len(self.starts) < 1 or self.starts[0] != 0 or self.starts[-1] != len(self.x):
            raise ValueError("starts must begin at 0 and end at the number of rows")
        if np.any(np.diff(self.starts) < 1):
            raise ValueError("every patient needs at least one row")
        if self.group is not None:
            object.__setattr__(self, "group", np.ascontiguousarray(self.group, dtype=np.int32))
            if self.group.shape != (self.patients,) or np.any(self.group < -1):
                shape = self.group.shape
                raise ValueError(f"expected one group per patient, -1 or more, found shape {shape}")
        if self.declared is not None and self.declared < 1:
            raise ValueError(f"expected a declared size of at least 1, found {self.declared}")

    @property
    def patients(self) -> int:
        """The number of patients: secret where a size is declared; only for finding rows."""
        return len(self.starts) - 1

    @property
    def size(self) -> int:
        """The public size: as declared, or counted where nothing is declared."""
        return self.patients if self.declared is None else self.declared

    @property
    def rows(self) -> int:
        return len(self.x)

    @property
    def features(self) -> int:
        return int(self.x.shape[1])

    @property
    def one_row_each(self) -> bool:
        """True when no patient has more than one row."""
        return self.patients == self.rows

    def parts(self, most: int) -> tuple[Patients, ...]:
        """Whole patients, up to ``most`` rows at once (a patient with more stays whole); the same
        objects every time, so that what is computed from one can be remembered."""
        if self.rows <= most:
            return (self,)
        kept: dict[int, tuple[Patients, ...]] = self.__dict__.setdefault("_parts", {})
        if most not in kept:
            found, first = [], 0
            while first < self.patients:
                last = int(np.searchsorted(self.starts, self.starts[first] + most, side="right"))
                end = min(max(last - 1, first + 1), self.patients)
                rows = slice(int(self.starts[first]), int(self.starts[end]))
                group = None if self.group is None else self.group[first:end]
                starts = self.starts[first : end + 1] - rows.start
                found.append(Patients(self.x[rows], self.y[rows], starts, group, self.size))
                first = end
            kept[most] = tuple(found)
        return kept[most]

    def fingerprint(self) -> bytes:
        """A digest of the content for the site's own use: it never leaves."""
        digest = hashlib.blake2b(str(self.declared).encode() + b"\0", digest_size=32)
        arrays: list[NDArray[np.generic]] = [self.x, self.y, self.starts]
        if self.group is not None:
            arrays.append(self.group)
        for array in arrays:
            digest.update(str(array.shape).encode())
            digest.update(array.data)
        return digest.digest()


def concatenate(parts: list[Patients]) -> Patients:
    """The union of several sites' patients, in simulation; sizes add up where any is declared."""
    offsets = np.cumsum([0] + [p.rows for p in parts])
    later = [p.starts[1:] + o for p, o in zip(parts, offsets, strict=False)]
    starts = [np.zeros(1, np.int64), *later]
    groups = [p.group for p in parts if p.group is not None]
    return Patients(
        np.concatenate([p.x for p in parts]),
        np.concatenate([p.y for p in parts]),
        np.concatenate(starts),
        np.concatenate(groups) if len(groups) == len(parts) else None,
        sum(p.size for p in parts) if any(p.declared is not None for p in parts) else None,
    )
