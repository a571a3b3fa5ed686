"""What the cohort looks like: histograms over declared bounds and box-plot statistics, hospital by
hospital.

These are exact statistics of rows, down to single values at the ends of the whiskers: only
simulation on generated patients may call this. For real patients under privacy the section stays
out of the result.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from suture.errors import StudyError
from suture.report.words import Found
from suture.schema.record import FeatureSummary

Floats = NDArray[np.float64]


def describe(
    columns: Mapping[str, Mapping[str, ArrayLike]], bounds: Mapping[str, Found], bins: int = 30
) -> dict[str, FeatureSummary]:
    """The ``cohort.features`` section, from columns by site and by feature.

    ``bounds`` declares each feature as in a study file: ``low`` and ``high``, and optionally
    ``unit`` and ``label``. Values outside the bounds count in the first or last bin, as training clips
    them; missing ones (NaN) are left out. At most ``bins`` bins of equal width; a column of whole
    numbers gets bins that hold whole numbers of them.

    >>> found = describe({"a": {"age": [20.5, 40, 60]}}, {"age": {"low": 0, "high": 90, "unit": "years"}}, bins=3)
    >>> found["age"]["edges"], found["age"]["counts"], found["age"]["unit"]
    ([0.0, 30.0, 60.0, 90.0], {'a': [1, 1, 1]}, 'years')
    """
    found: dict[str, FeatureSummary] = {}
    for feature, declared in bounds.items():
        low, high = float(declared["low"]), float(declared["high"])
        if not low < high:
            raise StudyError(
                f"feature '{feature}': expected low < high, found {low:g} and {high:g}"
            )
        named = {site: of[feature] for site, of in columns.items() if feature in of}
        clipped = {site: _clipped(column, low, high) for site, column in named.items()}
        edges = _edges(low, high, list(clipped.values()), bins)
        found[feature] = {
            "label": str(declared.get("label") or feature.replace("_", " ").capitalize()),
            "unit": str(declared.get("unit") or ""),
            "edges": edges.tolist(),
            "counts": {s: np.histogram(values, edges)[0].tolist() for s, values in clipped.items()},
            "box": {site: _box(values) for site, values in clipped.items() if len(values)},
        }
    return found


def _clipped(column: ArrayLike, low: float, high: float) -> Floats:
    values = np.asarray(column, dtype=np.float64)
    return np.clip(values[~np.isnan(values)], low, high)


def _edges(low: float, high: float, columns: list[Floats], bins: int) -> Floats:
    """Equal bins; each holds as many whole numbers, or years of age would look like a comb."""
    whole = all(np.array_equal(v, np.round(v)) for v in (np.array([low, high]), *columns))
    if not whole:
        return np.linspace(low, high, bins + 1)
    numbers = int(high) - int(low) + 1
    least = -(-numbers // bins)
    step = next((s for s in range(least, 2 * least) if numbers % s == 0), least)
    return np.asarray(low - 0.5 + step * np.arange(-(-numbers // step) + 1), dtype=np.float64)


def _box(values: Floats) -> dict[str, float]:
    """Tukey's box plot: whiskers end at the last value within 1.5 box lengths of the box."""
    ordered = np.sort(values)
    # Linear interpolation, numpy's own default; its general function takes four times as long for
    # 500 values.
    at = np.array([0.25, 0.5, 0.75]) * (len(values) - 1)
    under = ordered[at.astype(np.intp)]
    q1, median, q3 = (under + (at % 1) * (ordered[np.ceil(at).astype(np.intp)] - under)).tolist()
    reach = 1.5 * (q3 - q1)
    first, last = (
        np.searchsorted(ordered, q1 - reach),
        np.searchsorted(ordered, q3 + reach, "right"),
    )
    inside = ordered[first:last]
    outliers = len(values) - len(inside)
    low, high = float(inside[0]), float(inside[-1])
    box = {"low": low, "q1": q1, "median": median, "q3": q3, "high": high}
    return {**box, "outliers": outliers}
