"""Robust aggregation: a few wrong or hostile updates must not carry the model away. It needs to see every update.

| rule           | keeps its sense with up to             | paper |
|----------------|----------------------------------------|-------|
| `median`       | fewer than half of the sites wrong     | Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed |
| `trimmed_mean` | ``wrong`` of n sites, n > 2 wrong      | Learning, ICML 2018 (arXiv:1803.01498)                         |
| `krum`         | ``wrong`` of n sites, n >= 2 wrong + 3 | Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning     |
|                |                                        | with Adversaries, NIPS 2017 (arXiv:1703.02757)                 |

Median and trimmed mean work entry by entry: with at most so many wrong updates every entry of the result lies between two
honest sites' entries. Krum takes the update whose nearest neighbours are nearest (``keep`` of them: multi-Krum, a mean).
None of them weighs sites by size: a hostile site would claim to be large. Pure functions over a matrix, a row a site.

`screen` comes before any of them: updates that are not finite, of another shape, sent twice or for another round are
rejected, with the reason, and recorded.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from suture.errors import RunError

Floats = NDArray[np.float64]
Rule = Literal["mean", "median", "trimmed-mean", "krum"]


@dataclass(frozen=True)
class Reply:
    """One update as it came: from whom, for which round, what."""

    site: str
    round: int
    payload: Mapping[str, NDArray[Any]]


def screen(replies: Sequence[Reply], sites: Sequence[str], round_: int) -> tuple[list[Reply], dict[str, str]]:
    """The replies that can be used, in order, and why the others cannot, by site.

    A site that sends two different replies for the round is trusted with neither; the same one twice counts once. The
    right names, types and shapes are those of most replies.

    >>> good = {"delta": np.zeros(2, np.float32)}
    >>> replies = [Reply("a", 1, good), Reply("b", 1, {"delta": np.array([np.nan, 0], np.float32)}), Reply("c", 2, good)]
    >>> used, rejected = screen(replies, ("a", "b", "c"), 1)
    >>> [reply.site for reply in used], rejected
    (['a'], {'c': 'the answer is for round 2, not 1', 'b': 'the update is not finite'})
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
    layouts = {site: _layout(reply.payload) for site, reply in by_site.items() if site not in rejected}
    usual = Counter(layouts.values()).most_common(1)[0][0] if layouts else ()
    used = []
    for site, layout in layouts.items():
        if layout != usual:
            rejected[site] = "the update has other names, types or shapes than most sites'"
        elif not all(np.all(np.isfinite(array)) for array in by_site[site].payload.values()):
            rejected[site] = "the update is not finite"
        else:
            used.append(by_site[site])
    return used, rejected


def aggregate(rule: Rule, updates: Floats, weights: Sequence[float], wrong: int) -> Floats:
    """One update from many, a row each; ``wrong`` is how many rows may be hostile, ``weights`` are used by `mean` only."""
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
    """Every update shortened to an L2 norm of at most ``bound``.

    >>> bounded(np.array([[3.0, 4.0], [0.3, 0.4]]), 1.0).tolist()
    [[0.6000000000000001, 0.8], [0.3, 0.4]]
    """
    norms = np.linalg.norm(updates, axis=1)
    return np.asarray(updates * np.minimum(1.0, bound / np.maximum(norms, bound))[:, None])


def median(updates: Floats) -> Floats:
    """The median of every entry.

    >>> median(np.array([[1.0, 5.0], [2.0, -1e9], [3.0, 7.0]])).tolist()
    [2.0, 5.0]
    """
    _some(updates, 1, "median")
    return np.asarray(np.median(updates, axis=0))


def trimmed_mean(updates: Floats, wrong: int) -> Floats:
    """The mean of every entry without its ``wrong`` largest and ``wrong`` smallest values.

    >>> trimmed_mean(np.array([[1.0], [2.0], [3.0], [6.0], [1e9]]), 1).tolist()
    [3.6666666666666665]
    """
    _some(updates, 2 * wrong + 1, f"a mean trimmed by {wrong} on each side")
    ordered = np.sort(updates, axis=0)
    return np.asarray(np.mean(ordered[wrong : len(updates) - wrong], axis=0))


def krum(updates: Floats, wrong: int, keep: int = 1) -> Floats:
    """The update with the least sum of squared distances to its n - wrong - 2 nearest; with ``keep``, the mean of that many.

    >>> krum(np.array([[1.0], [1.1], [1.3], [0.9], [50.0]]), 1).tolist()
    [1.0]
    """
    count = len(updates)
    _some(updates, 2 * wrong + 3, f"Krum with {wrong} wrong")
    if not 1 <= keep <= count - wrong:
        raise RunError(f"multi-Krum: expected to keep 1 to {count - wrong} of {count} updates, found {keep}")
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


def _layout(payload: Mapping[str, NDArray[Any]]) -> tuple[Any, ...]:
    return tuple((name, payload[name].dtype.str, payload[name].shape) for name in sorted(payload))


def _same(one: Mapping[str, NDArray[Any]], other: Mapping[str, NDArray[Any]]) -> bool:
    return _layout(one) == _layout(other) and all(one[name].tobytes() == other[name].tobytes() for name in one)
