"""Metrics for every value of a group (sex, ethnicity, ...), the worst hospital, and gaps between
groups with intervals.

Definitions are fairlearn's (Bird et al.: Fairlearn, Microsoft 2020;
`tests/evaluation/test_fairness.py` holds them equal), counted here from one small table, so that
they cost nothing in every round:

- `parity_gap`: largest difference between groups in the share predicted positive (demographic
  parity);
- `odds_gap`: the larger of the differences in true-positive and false-positive rate (equalised
  odds);
- `opportunity_gap`: the difference in true-positive rate (equal opportunity);
- `worst_accuracy`, `worst_group`: the group with the lowest accuracy; `worst_ece`: the largest
  calibration error of a group.

A rate that is undefined in a group (no patient with the finding in it) leaves the gap undefined:
None, never 0. Intervals are percentile bootstraps over *patients*, because two images of one
patient are not two observations. A gap of two noisy rates is never negative, so its interval rarely
reaches 0 even where groups do equally well: read it as a size, not a test.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from suture.evaluation.metrics import Floats, Metrics, ece, measure
from suture.schema.outcome import TWO, Outcome


def by_group(
    y: ArrayLike,
    p: ArrayLike,
    groups: Mapping[str, ArrayLike],
    threshold: float = 0.5,
    target: Outcome = TWO,
) -> dict[str, dict[str, Metrics]]:
    """Metrics and ``rows`` for every value of every group, in sorted order; groups of one row are
    kept, and a missing value (None or NaN) is its own group: leaving those rows out would hide whom
    the model fails.

    >>> found = by_group([0, 1, 1], [0.2, 0.9, 0.4], {"sex": ["F", "F", "M"]})
    >>> {value: (m["rows"], m["auc"]) for value, m in found["sex"].items()}
    {'F': (2, 1.0), 'M': (1, None)}
    """
    labels, predictions = np.asarray(y), np.asarray(p)
    found: dict[str, dict[str, Metrics]] = {}
    for group, values in groups.items():
        names = _names(values)
        if names.shape != labels.shape:
            raise ValueError(
                f"group {group!r}: expected {len(labels)} values, one per row, found {len(names)}"
            )
        found[group] = {}
        for name in np.unique(names):
            rows = names == name
            found[group][str(name)] = measure(
                labels[rows], predictions[rows], threshold, rows=int(rows.sum()), target=target
            )
    return found


def worst(sites: Mapping[str, Mapping[str, float | None]]) -> str | None:
    """The site with the lowest AUC (several classes: one against one), of equal ones the first by
    name; sites without one (a single class) are skipped."""
    for metric in ("auc", "auc_ovo", "c_index"):
        known = [(auc, name) for name, m in sites.items() if (auc := m.get(metric)) is not None]
        if known:
            return min(known)[1]
    return None


def _names(values: ArrayLike) -> NDArray[np.str_]:
    array = np.asarray(values)
    if array.dtype.kind in "UbSiu":
        return array.astype(np.str_)
    names = ["missing" if v is None or v != v else str(v) for v in array.tolist()]
    return np.array(names, dtype=np.str_)


GAPS = ("parity_gap", "odds_gap", "opportunity_gap")
RESAMPLES = 400
Gaps = dict[str, float | None]
GroupGaps = dict[str, Any]
"""What `fairness` finds: `suture.schema.record.Gaps`."""


def gaps(y: ArrayLike, p: ArrayLike, group: ArrayLike, threshold: float = 0.5) -> Gaps:
    """The gaps between groups, and the lowest accuracy of a group.

    >>> gaps([0, 1, 0, 1], [0.9, 0.9, 0.2, 0.7], ["a", "a", "b", "b"])
    {'parity_gap': 0.5, 'odds_gap': 1.0, 'opportunity_gap': 0.0, 'worst_accuracy': 0.5}
    """
    return gaps_and_rates(y, p, group, threshold)[0]


def gaps_and_rates(
    y: ArrayLike, p: ArrayLike, group: ArrayLike, threshold: float = 0.5
) -> tuple[Gaps, dict[str, Gaps]]:
    """The gaps, and for each group rows, share predicted positive, true- and false-positive rate,
    accuracy, calibration error."""
    labels, risks = np.asarray(y), np.asarray(p, np.float64)
    cells, codes, names = _counted(y, p, group, threshold)
    rates, found = _rates(cells), {}
    for code, name in enumerate(names):
        rows = codes == code
        each = {rate: _known(values[0, code]) for rate, values in rates.items()}
        error = ece(labels[rows], risks[rows])
        found[name] = {"rows": float(rows.sum()), **each, "ece": error}
    return {name: _known(values[0]) for name, values in _gaps_of(cells).items()}, found


def fairness(
    y: ArrayLike,
    p: ArrayLike,
    group: ArrayLike,
    threshold: float = 0.5,
    *,
    patients: ArrayLike | None = None,
    seed: int = 0,
) -> GroupGaps:
    """Gaps, their 95 % intervals, and every group's rates. ``patients`` names the patient of each
    row; by default every row is another patient's.

    >>> found = fairness([0, 1] * 50, [0.2, 0.7] * 50, ["a"] * 50 + ["b"] * 50)
    >>> found["parity_gap"], sorted(found["intervals"])[0], found["worst_group"]
    (0.0, 'odds_gap', 'a')
    """
    found, each = gaps_and_rates(y, p, group, threshold)
    known = [(v["accuracy"], name) for name, v in each.items() if v["accuracy"] is not None]
    errors = [v["ece"] for v in each.values() if v["ece"] is not None]
    owners = np.arange(np.size(y))
    if patients is not None:
        owners = np.unique(np.asarray(patients), return_inverse=True)[1]
    cells = _counted(y, p, group, threshold, owners)[0]
    drawn = _gaps_of(_resampled(cells, np.random.default_rng([seed, 0xFA1])))
    intervals = {}
    for name, values in drawn.items():
        finite = values[np.isfinite(values)]
        if len(finite) > 0.9 * RESAMPLES:
            intervals[name] = [float(edge) for edge in np.quantile(finite, (0.025, 0.975))]
    return {
        **found,
        "worst_group": min(known)[1] if known else None,
        "worst_ece": max(errors) if errors else None,
        "intervals": intervals,
        "groups": each,
    }


def by_column(
    y: ArrayLike,
    p: ArrayLike,
    groups: Mapping[str, ArrayLike],
    threshold: float = 0.5,
    *,
    patients: ArrayLike | None = None,
    seed: int = 0,
) -> dict[str, GroupGaps]:
    """`fairness` for every group column."""
    return {
        column: fairness(y, p, values, threshold, patients=patients, seed=seed)
        for column, values in groups.items()
    }


def group_thresholds(p: ArrayLike, group: ArrayLike, threshold: float = 0.5) -> dict[int, float]:
    """For each group, the threshold at which it has the same share of positives as all together at
    ``threshold``.

    Post-processing in the sense of Hardt, Price, Srebro (NeurIPS 2016), for demographic parity.
    Fitted on a site's own patients and used for its own patients: it never leaves. Group -1 (none
    stated) keeps ``threshold``.

    >>> group_thresholds([0.1, 0.2, 0.6, 0.9], [0, 0, 1, 1])
    {-1: 0.5, 0: 0.15000000000000002, 1: 0.75}
    """
    risks, codes = np.asarray(p, np.float64), np.asarray(group)
    share = float(np.mean(risks[codes >= 0] >= threshold)) if np.any(codes >= 0) else 0.0
    found = {-1: threshold}
    for code in np.unique(codes[codes >= 0]):
        own = np.sort(risks[codes == code])
        above = round(share * len(own))
        low = own[len(own) - above - 1] if above < len(own) else 0.0
        high = own[len(own) - above] if above else 1.0
        found[int(code)] = float((low + high) / 2)
    return found


def _counted(
    y: ArrayLike,
    p: ArrayLike,
    group: ArrayLike,
    threshold: float,
    owners: NDArray[np.intp] | None = None,
) -> tuple[Floats, NDArray[np.intp], list[str]]:
    """Owners x groups x (true negative, false positive, false negative, true positive), where
    without ``owners`` all rows are one owner's; each row's group by number; the groups' names."""
    labels, risks = np.asarray(y).astype(bool), np.asarray(p, np.float64)
    names, codes = np.unique(np.asarray(group).astype(np.str_), return_inverse=True)
    if labels.shape != risks.shape or codes.shape != labels.shape:
        raise ValueError(
            f"expected one group and one risk per row, found {codes.shape}, {risks.shape}, "
            f"{labels.shape}"
        )
    people = 1 if owners is None else int(owners.max(initial=-1)) + 1
    places = codes if owners is None else owners * len(names) + codes
    kinds = 2 * labels.astype(np.intp) + (risks >= threshold)
    counted = np.bincount(places * 4 + kinds, minlength=people * len(names) * 4)
    cells = counted.astype(np.float64).reshape(people, len(names), 4)
    return cells, codes, [str(name) for name in names]


def _resampled(cells: Floats, rng: np.random.Generator) -> Floats:
    """Sums over patients drawn with replacement. Patients that count alike are drawn together:
    there are few kinds."""
    flat = cells.reshape(len(cells), int(np.prod(cells.shape[1:])))
    kinds, counts = np.unique(flat, axis=0, return_counts=True)
    if not len(flat):
        return np.zeros((RESAMPLES, *cells.shape[1:]))
    drawn = rng.multinomial(len(flat), counts / len(flat), RESAMPLES)
    return np.asarray((drawn @ kinds).reshape(RESAMPLES, *cells.shape[1:]))


def _rates(cells: Floats) -> dict[str, Floats]:
    tn, fp, fn, tp = (cells[..., i] for i in range(4))
    with np.errstate(invalid="ignore", divide="ignore"):
        return {
            "positive_rate": (fp + tp) / (tn + fp + fn + tp),
            "true_positive_rate": tp / (tp + fn),
            "false_positive_rate": fp / (tn + fp),
            "accuracy": (tn + tp) / (tn + fp + fn + tp),
        }


def _gaps_of(cells: Floats) -> dict[str, Floats]:
    """The gaps of many tables at once: tables x groups x 4."""
    if cells.shape[1] == 0:
        nothing = np.full(len(cells), np.nan)
        return dict.fromkeys((*GAPS, "worst_accuracy"), nothing)
    *rates, accuracy = _rates(cells).values()
    parity, opportunity, fallout = (rate.max(axis=1) - rate.min(axis=1) for rate in rates)
    odds = np.maximum(opportunity, fallout)
    gaps = (parity, odds, opportunity, accuracy.min(axis=1))
    return dict(zip((*GAPS, "worst_accuracy"), gaps, strict=True))


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
