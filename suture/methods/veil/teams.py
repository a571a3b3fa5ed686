"""Who answers what in VEIL's secure mode: a public split of the hospitals into teams, by their
public sizes.

A statistic of many numbers need not be asked of every hospital. Teams have about as many patients
each; in the phases "moments" and "look" every one answers for another part of the concepts. Steps
are asked of all. Nothing here depends on rows. What it means for the promise: docs/veil.md, Theorem
5.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

LEAST_SITES, LEAST_PATIENTS = 5, 2_000
"""Hospitals of every team, and patients on average. A hospital that is large enough for a team of
its own gets the smallest of others beside it: alone it would be hidden among nobody, and a sum of
one is not opened under masks."""
_ORDER = 251
"""Seed of the public order in which concepts are dealt out to teams."""


@dataclass(frozen=True)
class Teams:
    """Hospitals with their public sizes, in ``count`` teams."""

    sizes: tuple[tuple[str, int], ...] = field(repr=False)
    count: int
    digest: str = ""
    """A hash of the sizes: it stands for them where a release's content is fingerprinted."""

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "digest", hashlib.blake2b(repr(self.sizes).encode(), digest_size=16).hexdigest()
        )

    @classmethod
    def of(cls, sizes: Mapping[str, int], most: int) -> Teams:
        """Concepts dealt out to at most ``most`` teams, fewer where they would become too small, and
        one below 15 hospitals: bytes matter less there than the noise in a part's sum.

        >>> Teams.of({f"h{i}": 500 for i in range(60)}, 8).count, Teams.of({"a": 5000, "b": 20}, 8).count
        (8, 1)
        """
        room = min(most, len(sizes) // LEAST_SITES - 1, sum(sizes.values()) // LEAST_PATIENTS)
        return cls(tuple(sizes.items()), max(1, room))

    @cached_property
    def team(self) -> dict[str, int]:
        """Every hospital's team: the largest first, each to the smallest team; then the smallest to
        teams of fewer than `LEAST_SITES`.

        >>> Teams((("a", 5), ("b", 9), ("c", 6)), 1).team
        {'b': 0, 'c': 0, 'a': 0}
        """
        order = sorted(self.sizes, key=lambda pair: -pair[1])
        filled = [0] * self.count
        members: list[list[str]] = [[] for _ in filled]
        for site, patients in order:
            least = filled.index(min(filled))
            members[least].append(site)
            filled[least] += patients
        _even_out(members)
        return {site: k for k, team in enumerate(members) for site in team}

    @cached_property
    def _patients(self) -> tuple[int, ...]:
        return tuple(
            sum(n for site, n in self.sizes if self.team[site] == k) for k in range(self.count)
        )

    @cached_property
    def _sites(self) -> tuple[int, ...]:
        return tuple(sum(self.team[site] == k for site, _ in self.sizes) for k in range(self.count))

    def patients(self, teams: Sequence[int]) -> int:
        """How many patients these teams have."""
        return max(1, sum(self._patients[k] for k in teams))

    def parties(self, teams: Sequence[int]) -> int:
        """How many hospitals these teams have."""
        return max(1, sum(self._sites[k] for k in teams))

    def least(self, group: Sequence[str], honest: float) -> int:
        """Of how many the noise is counted on in the sum of these sites' teams: as many as the
        study says are in them.

        >>> Teams((("a", 5), ("b", 9), ("c", 6)), 1).least(("a",), 0.5)
        2
        """
        return max(
            1, math.ceil(honest * self.parties(sorted({self.team.get(site, 0) for site in group})))
        )

    @property
    def all(self) -> tuple[int, ...]:
        """Every team."""
        return tuple(range(self.count))

    def asked(self, phase: str) -> tuple[tuple[int, ...], ...]:
        """The sums of a phase, each a tuple of the teams that add to it.

        >>> Teams((), 3).asked("look"), Teams((), 3).asked("step")
        (((0,), (1,), (2,)), ((0, 1, 2),))
        """
        return (self.all,) if phase == "step" else tuple((k,) for k in self.all)

    def part(self, sum_: int, concepts: int) -> NDArray[np.int64]:
        """The concepts that sum number ``sum_`` of "moments" or "look" is about."""
        return _part(sum_, self.count, concepts)


@cache
def _part(sum_: int, sums: int, concepts: int) -> NDArray[np.int64]:
    found = np.sort(np.random.default_rng(_ORDER).permutation(concepts)[sum_::sums])
    found.flags.writeable = False
    return found


def _even_out(members: list[list[str]]) -> None:
    """Move the smallest hospitals, last in their lists, from the teams with most of them until no
    team has too few.

    >>> teams = [["large"], ["b", "d", "f", "h", "j", "k", "l"], ["c", "e", "g", "i", "m", "n"]]
    >>> _even_out(teams)
    >>> [len(team) for team in teams], teams[0]
    ([4, 5, 5], ['large', 'l', 'k', 'n'])
    """
    for team in members:
        while len(team) < LEAST_SITES:
            donor = max(members, key=len)
            if len(donor) <= LEAST_SITES:
                return
            team.append(donor.pop())
