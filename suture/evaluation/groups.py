"""For whom: the same metrics for every value of a group (sex, ethnicity, ...), and the hospital served worst."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from suture.evaluation.metrics import Metrics, measure


def by_group(
    y: ArrayLike, p: ArrayLike, groups: Mapping[str, ArrayLike], threshold: float = 0.5
) -> dict[str, dict[str, Metrics]]:
    """Metrics and ``rows`` for every value of every group, values in sorted order; groups of one row are kept.

    A missing value (None or NaN) is its own group, "missing": leaving those rows out would hide whom the model fails.

    >>> found = by_group([0, 1, 1], [0.2, 0.9, 0.4], {"sex": ["F", "F", "M"]})
    >>> {value: (m["rows"], m["auc"]) for value, m in found["sex"].items()}
    {'F': (2, 1.0), 'M': (1, None)}
    """
    labels, predictions = np.asarray(y), np.asarray(p)
    found: dict[str, dict[str, Metrics]] = {}
    for group, values in groups.items():
        names = _names(values)
        if names.shape != labels.shape:
            raise ValueError(f"group {group!r}: expected {len(labels)} values, one a row, found {len(names)}")
        kinds, index = np.unique(names, return_inverse=True)
        found[group] = {}
        for i, kind in enumerate(kinds):
            rows = index == i
            found[group][str(kind)] = measure(labels[rows], predictions[rows], threshold, rows=int(rows.sum()))
    return found


def worst(sites: Mapping[str, Mapping[str, float | None]]) -> str | None:
    """The site with the lowest AUC (several classes: one against one); sites without one (a single class) are skipped.

    Of several equal sites the first by name is taken, so that the answer does not depend on the order of sites.

    >>> worst({"a": {"auc": 0.9}, "b": {"auc": 0.7}, "c": {"auc": None}})
    'b'
    """
    for metric in ("auc", "auc_ovo"):
        scored = [(auc, name) for name, found in sites.items() if (auc := found.get(metric)) is not None]
        if scored:
            return min(scored)[1]
    return None


def _names(values: ArrayLike) -> NDArray[np.str_]:
    array = np.asarray(values)
    if array.dtype.kind in "UbSiu":
        return array.astype(np.str_)
    return np.array([_name(v) for v in array.tolist()], dtype=np.str_)


def _name(value: Any) -> str:
    return "missing" if value is None or value != value else str(value)
