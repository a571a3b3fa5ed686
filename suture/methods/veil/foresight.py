"""Whether votes can find anything in a federation, from public facts alone: the vote is rehearsed on
made-up hospitals of the declared sizes, with the noise of the plan."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from suture.methods.base import Doubt
from suture.methods.veil.server import count_votes
from suture.privacy.noise.mechanisms import pick_strength

STRONG, SIGNS = 0.05, 5
"""What a strong sign adds to a hospital's sum for each patient: one that 30 % of patients have and
that raises their risk by 24 points (0.3 x 0.7 x 0.24). So many of them are planted."""
SPREAD = 0.1
"""The variance of a usual concept: rows of many concepts are longer, and a sign's part is less."""
_DRAWS = 8_000_000


def rehearse(
    rho: Mapping[str, float], sizes: Mapping[str, int], d: int, picks: int, quorum: float,
    concepts: int, rounds: int,
) -> tuple[float, float]:  # fmt: skip
    """How often no concept at all is agreed on, and the share of the planted signs that end up among
    the heaviest concepts. Not noise that protects anybody, so it is drawn from a fixed seed."""
    rng, people = np.random.default_rng(0), np.array([sizes[site] for site in rho])
    times = int(np.clip(_DRAWS / (rounds * len(rho) * 2 * d), 10, 200))
    scale = np.array([2 / pick_strength(cost, picks) for cost in rho.values()])
    planted = np.zeros((len(rho), d))
    planted[:, : min(SIGNS, d)] = STRONG * people[:, None]
    none, seen = 0, 0
    for _ in range(times):
        state = {"weights": np.zeros(d, np.float32), "quorums": np.zeros(d, np.int32)}
        for t in range(rounds):
            noisy = np.stack([planted, -planted], 1)
            noisy += scale[:, None, None] * rng.gumbel(size=noisy.shape)
            ids = np.argsort(-noisy.max(axis=1), axis=1)[:, :picks]
            votes = [
                (i, np.where(n[0, i] >= n[1, i], 1, -1)) for i, n in zip(ids, noisy, strict=True)
            ]
            count_votes(state, votes, people.tolist(), quorum, concepts, 0.3 ** (t / rounds))
        heavy = np.argsort(-np.abs(state["weights"]), kind="stable")[:SIGNS]
        none += not state["quorums"].any()
        seen += int(np.count_nonzero((heavy < SIGNS) & (state["weights"][heavy] > 0)))
    return none / times, seen / (times * min(SIGNS, d))


def doubts(none: float, seen: float) -> tuple[Doubt, ...]:
    """What to tell a person of a rehearsal.

    >>> [doubt.level for doubt in doubts(0.6, 0.1)], doubts(0.0, 0.9)
    (['stop', 'look'], ())
    """
    found = []
    if none >= 0.05:
        text = f"in {none:.0%} of rehearsals from public facts the hospitals agree on no concept"
        found.append(Doubt("stop" if none >= 0.5 else "look", text))
    if seen < 0.5:
        text = f"in rehearsals only {seen:.0%} of strong signs end up among the heaviest concepts"
        found.append(Doubt("look", f"{text}; the others are chosen by noise"))
    return tuple(found)
