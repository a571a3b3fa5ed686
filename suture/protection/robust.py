"""Robust aggregation, which needs to see every update, and means of bounded updates, which do not.

| rule           | keeps its sense with up to             | paper |
|----------------|----------------------------------------|-------|
| `median`       | fewer than half of the sites wrong     | Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed |
| `trimmed_mean` | ``wrong`` of n sites, n > 2 wrong      | Learning, ICML 2018 (arXiv:1803.01498)                         |
| `krum`         | ``wrong`` of n sites, n >= 2 wrong + 3 | Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning     |
|                |                                        | with Adversaries, NIPS 2017 (arXiv:1703.02757)                 |

Median and trimmed mean work entry by entry: with at most so many wrong updates every entry of the
result lies between two honest sites' entries. Krum takes the update whose nearest neighbours are
nearest (``keep`` of them: multi-Krum, a mean). None of them weighs sites by size: a hostile site
would claim to be large. These are pure functions over a matrix with one row per site.

`screen` comes first: it rejects updates that are not finite, of another shape, sent twice or for
another round, and says why.

`Bounded` is a weighted mean through a secure sum. A site's update is shortened to ``bound`` in L2
norm, multiplied by its public share of the weight and rounded to whole steps of a grid; the words
are summed (under masks, or by a trusted party) and turned back into the mean over the sites that
stayed. Shortening and rounding come after the update's noise, so they cost no privacy. No entry of
the sum can leave the word: all shares together are at most 1, so it is at most ``bound`` plus
rounding. The site's own software keeps the bound, and under masks nobody can check it. Against
sites that change their software use robust aggregation, which needs to see every update; both
together would need proofs about masked values.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from suture.errors import RunError
from suture.privacy.noise.source import Array, Arrays
from suture.protection.envelope import layout

Floats = NDArray[np.float64]
Rule = Literal["mean", "median", "trimmed-mean", "krum"]


@dataclass(frozen=True)
class Reply:
    """One update as it came: from whom, for which round, what."""

    site: str
    round: int
    payload: Arrays


def screen(
    replies: Sequence[Reply], sites: Sequence[str], round_: int
) -> tuple[list[Reply], dict[str, str]]:
    """The replies that can be used, in order, and why the others cannot, by site.

    A site that sends two different replies for the round is trusted with neither; the same one
    twice counts once. The right names, types and shapes are those of most replies.
    """
    rejected: dict[str, str] = {}
    by_site: dict[str, Reply] = {}
    for reply in replies:
        if reply.site not in sites:
            rejected[reply.site] = "the site was not asked"
        elif reply.round != round_:
            rejected[reply.site] = f"the answer is for round {reply.round}, not {round_}"
        elif reply.site in by_site and not _same(reply.payload, by_site[reply.site].payload):
            rejected[reply.site] = "two different answers for the same round"
        else:
            by_site.setdefault(reply.site, reply)
    layouts = {s: layout(reply.payload) for s, reply in by_site.items() if s not in rejected}
    usual = Counter(layouts.values()).most_common(1)[0][0] if layouts else ()
    used = []
    for site, found in layouts.items():
        if found != usual:
            rejected[site] = "the update has other names, types or shapes than most sites'"
        elif not all(np.all(np.isfinite(array)) for array in by_site[site].payload.values()):
            rejected[site] = "the update is not finite"
        else:
            used.append(by_site[site])
    return used, rejected


def aggregate(rule: Rule, updates: Floats, weights: Sequence[float], wrong: int) -> Floats:
    """One update from many rows, ``wrong`` of them hostile; only `mean` uses ``weights``."""
    if rule == "mean":
        return np.average(updates, axis=0, weights=np.asarray(weights, np.float64))
    if rule == "median":
        return median(updates)
    if rule == "trimmed-mean":
        return trimmed_mean(updates, wrong)
    return krum(updates, wrong)


def most_wrong(rule: Rule, count: int) -> int:
    """The most hostile updates among ``count`` that a rule's promise covers.

    >>> [most_wrong(rule, 10) for rule in ("mean", "median", "trimmed-mean", "krum")]
    [0, 4, 4, 3]
    """
    if rule == "mean":
        return 0
    return max(0, (count - 3) // 2 if rule == "krum" else (count - 1) // 2)


def bounded(updates: Floats, bound: float) -> Floats:
    """Every update shortened to an L2 norm of at most ``bound``."""
    norms = np.linalg.norm(updates, axis=1)
    return np.asarray(updates * np.minimum(1.0, bound / np.maximum(norms, bound))[:, None])


def median(updates: Floats) -> Floats:
    """The median of every entry."""
    _some(updates, 1, "median")
    return np.asarray(np.median(updates, axis=0))


def trimmed_mean(updates: Floats, wrong: int) -> Floats:
    """The mean of every entry without its ``wrong`` largest and ``wrong`` smallest values."""
    _some(updates, 2 * wrong + 1, f"a mean trimmed by {wrong} on each side")
    ordered = np.sort(updates, axis=0)
    return np.asarray(np.mean(ordered[wrong : len(updates) - wrong], axis=0))


def krum(updates: Floats, wrong: int, keep: int = 1) -> Floats:
    """The mean of the ``keep`` updates nearest to their n - wrong - 2 nearest neighbours."""
    count = len(updates)
    _some(updates, 2 * wrong + 3, f"Krum with {wrong} wrong")
    if not 1 <= keep <= count - wrong:
        raise RunError(
            f"multi-Krum: expected to keep 1 to {count - wrong} of {count} updates, found {keep}"
        )
    # Around the median the honest updates are small numbers, so their distances keep their digits.
    near = updates - np.median(updates, axis=0)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.sum(near**2, axis=1)
        distances = np.maximum(squares[:, None] + squares[None, :] - 2 * near @ near.T, 0)
    distances[~np.isfinite(distances)] = math.inf
    np.fill_diagonal(distances, math.inf)
    nearest = np.sort(distances, axis=1)[:, : count - wrong - 2]
    order = np.argsort(nearest.sum(axis=1), kind="stable")
    return np.asarray(updates[order[:keep]].mean(axis=0))


def _some(updates: Floats, least: int, what: str) -> None:
    if updates.ndim != 2 or len(updates) < least:
        raise RunError(f"{what} needs at least {least} updates, found {len(updates)}")


def _same(one: Arrays, other: Arrays) -> bool:
    return layout(one) == layout(other) and all(
        one[name].tobytes() == other[name].tobytes() for name in one
    )


@dataclass(frozen=True)
class Bounded:
    """The grid of one mean: words of ``word`` bits, ``parties`` sites, updates of norm ``bound``."""

    bound: float
    parties: int
    word: Literal[32, 64] = 32

    def __post_init__(self) -> None:
        if not (0 < self.bound < float("inf") and self.parties >= 1 and self.word in (32, 64)):
            raise RunError(
                "expected a norm bound above 0, at least one site and words of 32 or 64 bits, "
                f"found {self}"
            )

    @property
    def steps(self) -> float:
        """Grid steps in a unit of the update."""
        # In 64 bits a step is below a float64's precision; a product must not round up to 2^63.
        return min(2.0 ** (self.word - 1) - 1 - self.parties, 2.0**62) / self.bound

    def shortened(self, update: Array) -> Floats:
        """The update within the norm bound."""
        values = np.asarray(update, np.float64)
        norm = float(np.linalg.norm(values))
        if not np.isfinite(norm):
            raise RunError("an update that is not finite cannot be summed; lower method.rate")
        return values * (self.bound / norm) if norm > self.bound else values

    def is_long(self, update: Array) -> bool:
        """Whether an update is longer than the bound."""
        return float(np.linalg.norm(np.asarray(update, np.float64))) > self.bound

    def words(self, update: Array, share: float) -> Array:
        """A site's words; ``share`` is its public part of the weight of all sites asked."""
        if not 0 <= share <= 1:
            raise RunError(f"expected a share of the weight between 0 and 1, found {share}")
        whole = np.rint(self.shortened(update) * share * self.steps)
        return whole.astype(np.int32 if self.word == 32 else np.int64)

    def mean(self, total: Array, share: float) -> Floats:
        """The weighted mean over the sites in the sum, whose shares add up to ``share``."""
        if not 0 < share <= 1 + 1e-9:
            raise RunError(
                f"expected that the sites in the sum have a share of the weight, found {share}"
            )
        return total.astype(np.float64) / (self.steps * share)

    def error(self, survivors: int, share: float) -> float:
        """The most by which rounding can move an entry of the mean: half a step per site."""
        return (survivors / 2) / (self.steps * share) * (1 + 1e-9)


def shares(weights: dict[str, float]) -> dict[str, float]:
    """Public weights as parts of one."""
    whole = sum(weights.values())
    return {site: weight / whole for site, weight in weights.items()}
