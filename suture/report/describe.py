"""What the cohort looks like: histograms over declared bounds and box-plot statistics, hospital by hospital.

These are exact statistics of rows, down to single values at the ends of the whiskers: only simulation on generated
patients may call this. For real patients under privacy the section stays out of the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from suture.errors import StudyError

Declared = Mapping[str, Any] | tuple[float, float]


def describe(
    columns: Mapping[str, Mapping[str, ArrayLike]], bounds: Mapping[str, Declared], bins: int = 30
) -> dict[str, Any]:
    """The ``cohort.features`` section, from columns by site and by feature.

    ``bounds`` declares each feature: ``(low, high)``, or a table as in a study file: ``{"low", "high"}`` for a number,
    ``{"kind": "flag"}``, ``{"kind": "category", "values": [...]}``, each with ``unit`` and ``label`` if wished. Values
    outside the bounds count in the first or last bin, as training clips them; missing ones (NaN, None) are left out.
    At most ``bins`` bins of equal width; a column of whole numbers gets bins that hold whole numbers of them.

    >>> found = describe({"a": {"age": [20.5, 40, 60]}}, {"age": {"low": 0, "high": 90, "unit": "years"}}, bins=3)
    >>> found["age"]["edges"], found["age"]["counts"], found["age"]["unit"]
    ([0.0, 30.0, 60.0, 90.0], {'a': [1, 1, 1]}, 'years')
    >>> describe({"a": {"smoker": [0, 1, 1]}}, {"smoker": {"kind": "flag"}})["smoker"]["counts"]
    {'a': [1, 2]}
    """
    found: dict[str, Any] = {}
    for feature, declared in bounds.items():
        present = {site: named[feature] for site, named in columns.items() if feature in named}
        rule: dict[str, Any] = (
            {"low": declared[0], "high": declared[1]} if isinstance(declared, tuple) else dict(declared)
        )
        block: dict[str, Any] = {
            "label": str(rule.get("label") or feature.replace("_", " ").capitalize()),
            "unit": str(rule.get("unit") or ""),
        }
        kind = rule.get("kind", "number")
        if kind == "number":
            block |= _number(feature, present, rule, bins)
        elif kind in ("flag", "category"):
            block |= _category(present, ["no", "yes"] if kind == "flag" else [str(v) for v in rule["values"]], kind)
        else:
            raise StudyError(f"feature '{feature}': expected kind number, flag or category, found '{kind}'")
        found[feature] = block
    return found


def _number(feature: str, present: Mapping[str, ArrayLike], rule: Mapping[str, Any], bins: int) -> dict[str, Any]:
    low, high = float(rule["low"]), float(rule["high"])
    if not low < high:
        raise StudyError(f"feature '{feature}': expected low < high, found {low:g} and {high:g}")
    columns = {}
    for site, column in present.items():
        values = np.asarray(column, dtype=np.float64)
        columns[site] = np.clip(values[~np.isnan(values)], low, high)
    whole = all(np.array_equal(values, np.round(values)) for values in (np.array([low, high]), *columns.values()))
    edges = _whole_edges(int(low), int(high), bins) if whole else np.linspace(low, high, bins + 1)
    counts, boxes = {}, {}
    for site, values in columns.items():
        counts[site] = np.histogram(values, edges)[0].tolist()
        if len(values):
            boxes[site] = _box(values)
    return {"edges": edges.tolist(), "counts": counts, "box": boxes}


def _whole_edges(low: int, high: int, bins: int) -> NDArray[np.float64]:
    """Edges for whole numbers: every bin holds as many of them, else years of age would look like a comb."""
    numbers = high - low + 1
    least = -(-numbers // bins)
    step = next((s for s in range(least, 2 * least) if numbers % s == 0), least)
    return np.asarray(low - 0.5 + step * np.arange(-(-numbers // step) + 1), dtype=np.float64)


def _box(values: NDArray[np.float64]) -> dict[str, float]:
    """Tukey's box plot: whiskers end at the last value within 1.5 interquartile ranges of the box."""
    ordered = np.sort(values)
    # Linear interpolation, numpy's own default; its general function takes four times as long for 500 values.
    at = np.array([0.25, 0.5, 0.75]) * (len(values) - 1)
    under = ordered[at.astype(np.intp)]
    q1, median, q3 = (under + (at % 1) * (ordered[np.ceil(at).astype(np.intp)] - under)).tolist()
    reach = 1.5 * (q3 - q1)
    inside = ordered[np.searchsorted(ordered, q1 - reach) : np.searchsorted(ordered, q3 + reach, side="right")]
    return {
        "low": float(inside[0]),
        "q1": q1,
        "median": median,
        "q3": q3,
        "high": float(inside[-1]),
        "outliers": len(values) - len(inside),
    }


def _category(present: Mapping[str, ArrayLike], values: list[str], kind: str) -> dict[str, Any]:
    counts = {}
    for site, column in present.items():
        if kind == "flag":
            flags = np.asarray(column, dtype=np.float64)
            yes = int(np.count_nonzero(flags[~np.isnan(flags)]))
            counts[site] = [int(np.count_nonzero(flags == 0)), yes]
        else:
            names, sizes = np.unique(np.asarray(column).astype(np.str_), return_counts=True)
            found = dict(zip(names.tolist(), sizes.tolist(), strict=True))
            counts[site] = [int(found.get(value, 0)) for value in values]
    return {"kind": "category", "values": values, "counts": counts}
