"""Grouped folds: whole hospitals are held out, so that a model is measured on institutions that it has never seen."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def grouped_folds(sizes: Mapping[str, int], folds: int, seed: int) -> tuple[tuple[str, ...], ...]:
    """Groups dealt out to folds of about equal size: the largest first, each to the smallest fold so far.

    Groups of equal size are dealt in an order drawn from ``seed``. Uses names and sizes only, which are public.

    >>> grouped_folds({"a": 100, "b": 60, "c": 50, "d": 10}, 2, seed=1)
    (('a', 'd'), ('b', 'c'))
    """
    if not 2 <= folds <= len(sizes):
        raise ValueError(f"expected 2 to {len(sizes)} folds for {len(sizes)} hospitals, found {folds}")
    names = list(sizes)
    shuffled = [names[i] for i in np.random.default_rng([seed, 0xF01D]).permutation(len(names))]
    parts: list[list[str]] = [[] for _ in range(folds)]
    totals = [0] * folds
    for name in sorted(shuffled, key=lambda name: -sizes[name]):
        smallest = min(range(folds), key=lambda i: (totals[i], i))
        parts[smallest].append(name)
        totals[smallest] += sizes[name]
    order = {name: i for i, name in enumerate(names)}
    return tuple(tuple(sorted(part, key=order.__getitem__)) for part in parts)
