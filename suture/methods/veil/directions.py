"""Which way each concept may move the risk, so that no two concepts of one measurement contradict
each other ("BUN above 40 lowers the risk, a higher last value raises it").

All columns of one measurement (lowest, last, highest BUN) are a group, by the public clinical
dictionary. A group's risk rises with the value, falls with it, or is higher on both sides of what is
normal; in the last case a straight line would contradict one side, and "value" is left out. Where
the dictionary or the schema says that high or low is worse, that holds; elsewhere the released
gradients decide, which is post-processing. Weights of the other direction stay 0: a convex set, so
that averages of allowed models are allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from suture.models.concepts import Concept

Directions = Literal["medicine", "data", "free"]
Ways = NDArray[np.int8]
UP = {"value": 1, "above": 1, "high": 1, "below": -1, "low": -1}
BOTH = {"value": 0, "above": 1, "high": 1, "below": 1, "low": 1}


def signs(
    concepts: Sequence[Concept], score: NDArray[np.float64], directions: Directions
) -> tuple[Ways, NDArray[np.bool_]]:
    """Of each concept the sign that its weight may have (0: either), and whether it may be chosen:
    one whose own gradient says the opposite may not. ``score`` is each concept's gradient towards
    risk over its spread.

    >>> from suture.models.concepts import dictionary
    >>> from suture.schema.table import Number, Schema
    >>> bun = Number(low=0, high=200, unit="mg/dL", normal=(7, 20), thresholds={"high": 40}, missing="fill")
    >>> known = dictionary(Schema(features={"bun_last": bun})).items
    >>> [concept.kind for concept in known]
    ['value', 'below', 'above', 'high']
    >>> sign, free = signs(known, np.array([3.0, -2.0, -1.0, 2.0]), "medicine")
    >>> sign.tolist(), free.tolist()
    ([1, -1, 1, 1], [True, True, False, True])
    """
    found, allowed = np.zeros(len(concepts), np.int8), np.ones(len(concepts), np.bool_)
    if directions == "free":
        return found, allowed
    groups: dict[str, list[int]] = {}
    for i, concept in enumerate(concepts):
        if concept.kind != "is":
            missing = " missing" if concept.kind == "missing" else ""
            groups.setdefault(concept.measurement + missing, []).append(i)
    for ids in groups.values():
        ways = _ways([concepts[i] for i in ids], directions)
        best = ways[int(np.argmax([np.sum(np.maximum(way * score[ids], 0) ** 2) for way in ways]))]
        found[ids], allowed[ids] = best, best * score[ids] > 0
    return found, allowed


def _ways(group: Sequence[Concept], directions: Directions) -> list[Ways]:
    """The shapes that a measurement's risk may have, as signs of its concepts' weights."""
    kinds, worse = [concept.kind for concept in group], {concept.worse for concept in group}
    if "missing" in kinds:
        return [np.ones(len(group), np.int8), -np.ones(len(group), np.int8)]
    up = np.array([UP[kind] for kind in kinds], np.int8)
    if directions == "medicine" and worse in ({"high"}, {"low"}):
        return [up if worse == {"high"} else -up]
    both = np.array([BOTH[kind] for kind in kinds], np.int8)
    return [up, -up, both] if both.any() else [up, -up]
