"""The split of paper 003 (section 4): each client holds out 33 % of its rows, and at least 100.

Drawn by shuffling within each class, as the authors' code does, so the share of the outcome is the same on both sides.
That needs every row of a client at once: one patient more moves others between training and test, and neighbouring
tables would not have neighbouring training sets. `world.survey` therefore refuses it under [privacy]; a private study
keeps the hash of `site/split.py`.

The floor of 100 is for clients that can bear it: their code leaves clients under 133 rows out of the federation. Here
they stay, with 33 % held out and no floor.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture.cohorts.cohort import Cohort
from suture.errors import StudyError

SHARE, FLOOR, LARGE_ENOUGH = 0.33, 100, 133
SPLITS = ("hash", "paper")


def held_out_rows(rows: int) -> int:
    """How many rows a client of so many holds out.

    >>> [held_out_rows(n) for n in (9, 123, 137, 303, 1975)]
    [2, 40, 100, 100, 651]
    """
    share = int(SHARE * rows)
    return max(share, FLOOR) if rows >= LARGE_ENOUGH else share


def drawn(y: NDArray[Any], count: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which ``count`` rows are held out: every class in proportion, what rounding leaves by the largest remainder.

    >>> y = np.array([0] * 6 + [1] * 4)
    >>> chosen = drawn(y, 5, np.random.default_rng(1))
    >>> int(chosen.sum()), int(y[chosen].sum())
    (5, 2)
    """
    classes, sizes = np.unique(y, return_counts=True)
    exact = count * sizes / len(y)
    take = np.floor(exact).astype(int)
    take[np.argsort(take - exact, kind="stable")[: count - int(take.sum())]] += 1
    chosen = np.zeros(len(y), bool)
    for label, k in zip(classes, take, strict=True):
        chosen[rng.permutation(np.flatnonzero(y == label))[:k]] = True
    return chosen


def split_as_printed(cohort: Cohort, split: str, seed: int) -> Cohort:
    """The federation with its test rows set apart where ``split`` is "paper"; "hash" leaves that to the study."""
    if split not in SPLITS:
        raise StudyError(f'cohort {cohort.name}: split must be "hash" or "paper", found {split!r}')
    if split == "hash":
        return cohort
    sites = []
    for i, site in enumerate(cohort.sites):
        if site.test is not None:
            raise StudyError(f'cohort {cohort.name}: split = "paper" takes the test rows itself; set test_fraction = 0')
        y = np.asarray(site.table[cohort.outcome])
        tested = drawn(y, held_out_rows(len(y)), np.random.default_rng([seed, 0x5B_117, i]))
        train, test = ({name: column[mask] for name, column in site.table.items()} for mask in (~tested, tested))
        sites.append(replace(site, table=train, test=test if tested.any() else None))
    return replace(cohort, sites=tuple(sites))
