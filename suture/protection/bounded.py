"""Weighted means through a secure sum: updates of bounded norm on an integer grid, with a stated error.

A site's update is shortened to ``bound`` in L2 norm, multiplied by its public share of the weight and rounded to whole
steps of a grid; the words are summed (under masks, or by a trusted party) and turned back into the mean over the sites
that stayed. Shortening and rounding come after whatever noise the update carries, so they cost no privacy.

No entry of the sum can leave the word: all shares together are at most 1, so it is at most ``bound`` plus rounding.

The bound is kept by the site's own software. Under masks nobody can check it: a site that changes its software can send
any words. Against such sites use robust aggregation (`robust.py`), which needs to see every update; both together are
not possible without proofs about masked values, which are not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from suture.errors import RunError

Word = Literal[32, 64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Bounded:
    """The grid of one mean: words of ``word`` bits for ``parties`` sites whose updates are at most ``bound`` in norm.

    >>> grid = Bounded(bound=1.0, parties=3)
    >>> words = [grid.words(np.array([0.3, -0.4]), 0.5), grid.words(np.array([3.0, 4.0]), 0.25)]
    >>> mean = grid.mean(words[0] + words[1], 0.75)  # the third site dropped out
    >>> bool(np.all(np.abs(mean - [(0.5 * 0.3 + 0.25 * 0.6) / 0.75, 0]) <= grid.error(2, 0.75)))
    True
    """

    bound: float
    parties: int
    word: Word = 32

    def __post_init__(self) -> None:
        if not (0 < self.bound < float("inf") and self.parties >= 1 and self.word in (32, 64)):
            raise RunError(f"expected a norm bound above 0, at least one site and words of 32 or 64 bits, found {self}")

    @property
    def steps(self) -> float:
        """Grid steps in a unit of the update."""
        # In 64 bits a step is far below a float64's last digits, and a product must not round up to 2^63.
        return min(2.0 ** (self.word - 1) - 1 - self.parties, 2.0**62) / self.bound

    def shortened(self, update: NDArray[Any]) -> Floats:
        """The update within the norm bound."""
        values = np.asarray(update, np.float64)
        norm = float(np.linalg.norm(values))
        if not np.isfinite(norm):
            raise RunError("an update that is not finite cannot be summed; lower method.rate")
        return values * (self.bound / norm) if norm > self.bound else values

    def is_long(self, update: NDArray[Any]) -> bool:
        """Whether an update is longer than the bound."""
        return float(np.linalg.norm(np.asarray(update, np.float64))) > self.bound

    def words(self, update: NDArray[Any], share: float) -> NDArray[Any]:
        """A site's words: ``share`` is its public part of the weight of all sites that were asked."""
        if not 0 <= share <= 1:
            raise RunError(f"expected a share of the weight between 0 and 1, found {share}")
        whole = np.rint(self.shortened(update) * share * self.steps)
        return whole.astype(np.int32 if self.word == 32 else np.int64)

    def mean(self, total: NDArray[Any], share: float) -> Floats:
        """The weighted mean over the sites in the sum, whose shares add up to ``share``."""
        if not 0 < share <= 1 + 1e-9:
            raise RunError(f"expected that the sites in the sum have a share of the weight, found {share}")
        return total.astype(np.float64) / (self.steps * share)

    def error(self, survivors: int, share: float) -> float:
        """The most by which rounding can move an entry of the mean: half a step a site.

        >>> Bounded(bound=100.0, parties=150).error(150, 1.0) < 3.5e-6
        True
        """
        return (survivors / 2) / (self.steps * share) * (1 + 1e-9)


def shares(weights: dict[str, float]) -> dict[str, float]:
    """Public weights as parts of one.

    >>> shares({"a": 3, "b": 1})
    {'a': 0.75, 'b': 0.25}
    """
    whole = sum(weights.values())
    return {site: weight / whole for site, weight in weights.items()}
