"""Metrics of predicted risk, fast enough to be taken at every site in every round.

Everything a binary metric needs is read off *one sort*: a probability's bit pattern, seen as an
integer, sorts like the probability itself, so the label rides along in the lowest bit and no second
array has to be permuted. NumPy's sort works without the interpreter lock, and nothing here keeps
state: call it from any thread.

Conventions, equal to scikit-learn's wherever scikit-learn defines a value:

- a row is predicted positive when ``p >= threshold``; ties between predictions are one step of the
  ROC curve;
- ``auprc`` is average precision; ``recall_at_90_specificity`` is the best recall among thresholds
  whose specificity is at least 0.9, without interpolation; ``loss`` is the mean negative log
  likelihood, clipped at the float64 epsilon;
- nothing predicted positive: ``precision`` and ``f1`` are 0;
- *undefined is None* (``null`` in JSON), never 0 or NaN: ``auc``, ``auprc`` and
  ``recall_at_90_specificity`` where only one class is present, ``recall`` and ``f1`` without
  positives, ``specificity`` without negatives, everything without rows, and everything when a
  prediction is NaN (a model that diverged has no metrics).

Calibration: does a predicted risk of 20 % come true for 20 % of patients? The expected calibration
error (ECE) is Naeini et al., "Obtaining well calibrated probabilities using Bayesian binning", AAAI
2015: the mean gap between predicted and observed risk over bins, weighted by the rows in each bin.
Bins of equal width are the custom in the literature; bins of equal mass do not leave the high-risk
bins nearly empty when the outcome is rare.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from suture.evaluation import survival
from suture.schema.outcome import TWO, Outcome, Survival

NAMES = (
    "accuracy", "precision", "recall", "f1", "specificity", "auc", "auprc",
    "recall_at_90_specificity", "ece", "brier", "loss", "f1_weighted",
)  # fmt: skip
LIGHT = ("accuracy", "precision", "recall", "f1", "auc", "loss")
MULTICLASS = ("accuracy", "f1_weighted", "f1_macro", "auc_ovo", "loss", "ece")
LIGHT_MULTICLASS = ("accuracy", "f1_weighted", "loss")

_EPS = float(np.finfo(np.float64).eps)
_ONE = np.uint64(1)

Floats = NDArray[np.float64]
Metrics = dict[str, float | None]
Kind = Literal["width", "mass"]
Scaling = tuple[tuple[float, float], Floats]
"""Slope and intercept of Platt scaling, and their covariance."""


def binary(y: ArrayLike, p: ArrayLike, threshold: float = 0.5) -> Metrics:
    """Every metric in `NAMES`.

    >>> found = binary([0, 0, 1, 1], [0.1, 0.6, 0.35, 0.8])
    >>> found["auc"], found["accuracy"], found["f1"], found["auprc"]
    (0.75, 0.5, 0.5, 0.8333333333333333)
    """
    found: Metrics = dict.fromkeys(NAMES)
    ordered = _sorted(y, p)
    if ordered is None:
        return found
    ys, ps, below = ordered
    found |= _at_threshold(ps, below, threshold) | _ranking(ps, below)
    gap = ps - ys
    cuts = np.searchsorted(ps, np.arange(1, 10) / 10, side="left")
    running = np.concatenate(([0.0], np.cumsum(gap)))
    bounds = running[np.concatenate(([0], cuts, [len(ps)]))]
    found["ece"] = float(np.abs(np.diff(bounds)).sum() / len(ps))
    found["brier"] = float(gap @ gap / len(ps))
    found["loss"] = _log_loss(ys, ps)
    return found


def light(y: ArrayLike, p: ArrayLike, threshold: float = 0.5) -> Metrics:
    """The metrics in `LIGHT`, for every round's history."""
    ordered = _sorted(y, p)
    if ordered is None:
        return dict.fromkeys(LIGHT)
    ys, ps, below = ordered
    fps, tps = _steps(ps, below)
    found = {
        **_at_threshold(ps, below, threshold),
        "auc": _area(fps, tps) if tps[-1] and fps[-1] else None,
        "loss": _log_loss(ys, ps),
    }
    return {name: found[name] for name in LIGHT}


def measure(
    y: ArrayLike,
    p: ArrayLike,
    threshold: float = 0.5,
    *,
    rows: int | None = None,
    target: Outcome = TWO,
) -> Metrics:
    """`binary` for one probability per row, `multiclass` for one per class, those of survival for
    follow-up. ``rows`` is added only where the caller passes it, since a count is a disclosure
    too."""
    if isinstance(target, Survival):
        found = _survived(target, y, p)
    else:
        found = binary(y, p, threshold) if np.ndim(p) == 1 else multiclass(y, p)
    return found if rows is None else {**found, "rows": rows}


def _survived(target: Survival, y: ArrayLike, p: ArrayLike) -> Metrics:
    codes, risk = np.asarray(y), np.asarray(p, np.float64)
    return survival.measured(target.times(codes), target.events(codes), risk, target.edges)


def measure_lightly(
    y: ArrayLike, p: ArrayLike, threshold: float = 0.5, target: Outcome = TWO
) -> Metrics:
    """`light`, or for one probability per class the metrics in `LIGHT_MULTICLASS`: comparing pairs
    of classes in every round would take too long."""
    if isinstance(target, Survival):
        return _survived(target, y, p)
    if np.ndim(p) == 1:
        return light(y, p, threshold)
    found, _, _ = _table_metrics(y, p)
    return {name: found.get(name) for name in LIGHT_MULTICLASS}


def calibration_of(target: Outcome, y: ArrayLike, p: ArrayLike) -> dict[str, list[float]]:
    """The calibration curve: of one risk, or of survival at the horizon; empty for other outcomes."""
    if isinstance(target, Survival) and len(np.asarray(y)):
        codes, risk = np.asarray(y), np.asarray(p, np.float64)[:, -1]
        about = (target.times(codes), target.events(codes), risk)
        return survival.calibration(*about, target.horizon)
    if target.two:
        return reliability(y, p)
    return {"predicted": [], "observed": [], "count": []}


def roc_curve(y: ArrayLike, p: ArrayLike, points: int = 200) -> dict[str, list[float]]:
    """At most ``points`` true points of the ROC curve, spread evenly along it; empty where only one
    class is present.

    >>> roc_curve([0, 0, 1, 1], [0.1, 0.6, 0.35, 0.8])
    {'fpr': [0.0, 0.0, 0.5, 0.5, 1.0], 'tpr': [0.0, 0.5, 0.5, 1.0, 1.0]}
    """
    if points < 2:
        raise ValueError(f"a curve needs at least 2 points, found points={points}")
    ordered = _sorted(y, p)
    fps, tps = _steps(*ordered[1:]) if ordered else (np.zeros(1), np.zeros(1))
    if not tps[-1] or not fps[-1]:
        return {"fpr": [], "tpr": []}
    fpr, tpr = fps / fps[-1], tps / tps[-1]
    if len(fpr) > points:
        along = fpr + tpr
        keep = np.unique(np.searchsorted(along, np.linspace(0.0, along[-1], points)))
        fpr, tpr = fpr[keep], tpr[keep]
    return {"fpr": fpr.tolist(), "tpr": tpr.tolist()}


def multiclass(y: ArrayLike, p: ArrayLike) -> Metrics:
    """Metrics of a class-probability table: rows x classes, labels ``0 .. classes - 1``.

    ``auc_ovo`` is Hand and Till's mean over the pairs of classes that are present; ``ece`` is that
    of the top class; ``f1_macro`` is the mean over classes that are present or predicted,
    ``f1_weighted`` is weighted by presence.

    >>> found = multiclass([0, 1, 2], [[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.3, 0.4, 0.3]])
    >>> round(found["accuracy"], 3), round(found["auc_ovo"], 3)
    (0.667, 1.0)
    """
    found, labels, table = _table_metrics(y, p)
    if found["accuracy"] is None:
        return found
    top = table.argmax(axis=1)
    found["auc_ovo"] = _one_against_one(labels, table)
    found["ece"] = ece(top == labels, np.minimum(table.max(axis=1), 1.0))
    return found


def _table_metrics(y: ArrayLike, p: ArrayLike) -> tuple[Metrics, NDArray[np.int64], Floats]:
    """What one pass over a class-probability table gives, with the validated labels and table."""
    labels = np.asarray(y).astype(np.int64)
    table = np.asarray(p, dtype=np.float64)
    if table.ndim != 2 or labels.shape != (len(table),):
        raise ValueError(
            f"expected rows x classes and one label per row, found {table.shape} and {labels.shape}"
        )
    if len(labels) and not (labels.min() >= 0 and labels.max() < table.shape[1]):
        raise ValueError(f"expected labels from 0 to {table.shape[1] - 1}")
    found: Metrics = dict.fromkeys(MULTICLASS)
    if not len(labels) or np.isnan(table).any():
        return found, labels, table
    if table.min() < 0.0 or not np.allclose(table.sum(axis=1), 1.0, rtol=0.0, atol=1e-4):
        raise ValueError("expected probabilities: every row not negative and adding up to 1")
    top = table.argmax(axis=1)
    found["accuracy"] = float((top == labels).mean())
    found["f1_weighted"], found["f1_macro"] = _class_f1(labels, top, table.shape[1])
    given = table[np.arange(len(labels)), labels]
    found["loss"] = float(-np.log(np.clip(given, _EPS, 1.0 - _EPS)).mean())
    return found, labels, table


def _sorted(y: ArrayLike, p: ArrayLike) -> tuple[Floats, Floats, Floats] | None:
    """Labels and predictions in rising order of prediction, and how many positives stand before
    each position; None without rows or with a NaN among the predictions."""
    labels, predictions = np.asarray(y), np.ascontiguousarray(p, dtype=np.float64)
    if labels.ndim != 1 or labels.shape != predictions.shape:
        raise ValueError(
            f"expected one prediction per label, found {labels.shape} and {predictions.shape}"
        )
    if not len(labels):
        return None
    kind = labels.dtype.kind
    whole = kind != "f" or bool(np.isin(labels, (0.0, 1.0)).all())
    if not whole or (kind != "b" and not (labels.min() >= 0 and labels.max() <= 1)):
        raise ValueError("expected labels 0 and 1, found other numbers")
    # NaN passes on purpose: it compares false here and is answered with None below.
    if predictions.min() < 0.0 or predictions.max() > 1.0:
        raise ValueError(
            "expected probabilities between 0 and 1, found others (logits need a sigmoid first)"
        )
    # Probabilities are not negative, so the sign bit is free: shifting it out makes room for the
    # label (and -0 is 0).
    keys = (predictions.view(np.uint64) << _ONE) | labels.astype(np.uint64)
    keys.sort()
    ps = (keys >> _ONE).view(np.float64)
    if np.isnan(ps[-1]):  # NaN has the largest exponent: it can only be last
        return None
    ys = (keys & _ONE).astype(np.float64)
    below = np.zeros(len(ys) + 1)  # whole numbers, exact in float64
    np.cumsum(ys, out=below[1:])
    return ys, ps, below


def _steps(ps: Floats, below: Floats) -> tuple[Floats, Floats]:
    """False and true positives for every distinct threshold, from "nobody" to "everybody"."""
    starts = np.concatenate(([0], np.flatnonzero(ps[1:] != ps[:-1]) + 1))[::-1]
    tps = np.concatenate(([0.0], below[-1] - below[starts]))
    fps = np.concatenate(([0.0], (len(ps) - starts))) - tps
    return fps, tps


def _at_threshold(ps: Floats, below: Floats, threshold: float) -> Metrics:
    n, positives = len(ps), float(below[-1])
    cut = int(np.searchsorted(ps, threshold, side="left"))
    flagged, tp = n - cut, positives - float(below[cut])
    negatives = n - positives
    true_negatives = negatives - (flagged - tp)
    # Every class's F1, weighted by how common the class is; a class that is neither there nor
    # predicted weighs nothing.
    of_positives = 2.0 * tp / (flagged + positives) if positives else 0.0
    of_negatives = 2.0 * true_negatives / (n - flagged + negatives) if negatives else 0.0
    return {
        "f1_weighted": (positives * of_positives + negatives * of_negatives) / n,
        "accuracy": (tp + true_negatives) / n,
        "precision": tp / flagged if flagged else 0.0,
        "recall": tp / positives if positives else None,
        "f1": 2.0 * tp / (flagged + positives) if positives else None,
        "specificity": true_negatives / negatives if negatives else None,
    }


def _ranking(ps: Floats, below: Floats) -> Metrics:
    fps, tps = _steps(ps, below)
    if not tps[-1] or not fps[-1]:
        return {}
    gained = np.diff(tps)
    precision = tps[1:] / (tps[1:] + fps[1:])
    # Whole numbers on both sides: specificity >= 0.9 must not hang on the rounding of a division.
    allowed = int(np.searchsorted(fps * 10.0, fps[-1], side="right")) - 1
    return {
        "auc": _area(fps, tps),
        "auprc": float(gained @ precision / tps[-1]),
        "recall_at_90_specificity": float(tps[allowed] / tps[-1]),
    }


def _area(fps: Floats, tps: Floats) -> float:
    """Trapezoids over whole numbers: exact until the one division."""
    return float(np.diff(fps) @ (tps[1:] + tps[:-1]) / (2.0 * fps[-1] * tps[-1]))


def _log_loss(ys: Floats, ps: Floats) -> float:
    """Mean of -log(probability given to what happened)."""
    given = np.where(ys > 0.5, ps, 1.0 - ps)
    return float(-np.log(np.clip(given, _EPS, 1.0 - _EPS, out=given), out=given).mean())


def _class_f1(
    labels: NDArray[np.int64], top: NDArray[np.intp], classes: int
) -> tuple[float, float]:
    """F1 over the classes that are present or predicted: weighted by presence, and the mean."""
    hits = np.bincount(labels[labels == top], minlength=classes)
    present = np.bincount(labels, minlength=classes)
    either = present + np.bincount(top, minlength=classes)
    seen = either > 0
    f1 = 2.0 * hits[seen] / either[seen]
    return float(f1 @ present[seen] / present.sum()), float(f1.mean())


def _one_against_one(labels: NDArray[np.int64], table: Floats) -> float | None:
    present = np.unique(labels)
    scores: list[float] = []
    for i, a in enumerate(present):
        for b in present[i + 1 :]:
            rows = (labels == a) | (labels == b)
            is_a = labels[rows] == a
            first = light(is_a, np.minimum(table[rows, a], 1.0))["auc"]
            second = light(~is_a, np.minimum(table[rows, b], 1.0))["auc"]
            if first is not None and second is not None:
                scores.append((first + second) / 2.0)
    return float(np.mean(scores)) if scores else None


def ece(y: ArrayLike, p: ArrayLike, bins: int = 10, kind: Kind = "width") -> float | None:
    """Expected calibration error; ``None`` without rows.

    Bins of equal width are half-open, ``[0, 0.1), ..., [0.9, 1]``. Bins of equal mass are cut in
    the order of the predictions, and rows with the same prediction always share a bin.

    >>> ece([0, 0, 1, 1], [0.25, 0.25, 0.75, 0.75], bins=2)
    0.25
    """
    curve = reliability(y, p, bins, kind)
    total = sum(curve["count"])
    gaps = (n * abs(a - b) for a, b, n in zip(*curve.values(), strict=True))
    return float(sum(gaps) / total) if total else None


def reliability(
    y: ArrayLike, p: ArrayLike, bins: int = 10, kind: Kind = "width"
) -> dict[str, list[float]]:
    """The reliability curve: mean prediction, observed share and number of rows for every bin that
    holds rows.

    >>> reliability([0, 0, 1, 1], [0.1, 0.3, 0.6, 0.8], bins=2)
    {'predicted': [0.2, 0.7], 'observed': [0.0, 1.0], 'count': [2, 2]}
    """
    labels, predictions = np.asarray(y, np.float64), np.asarray(p, np.float64)
    if labels.shape != predictions.shape or labels.ndim != 1:
        raise ValueError(
            f"expected one prediction per label, found {labels.shape} and {predictions.shape}"
        )
    if bins < 1:
        raise ValueError(f"expected at least one bin, found {bins}")
    if kind not in ("width", "mass"):
        raise ValueError(f"expected kind 'width' or 'mass', found {kind!r}")
    if len(predictions) and not (predictions.min() >= 0.0 and predictions.max() <= 1.0):
        raise ValueError("expected probabilities between 0 and 1")
    if kind == "width":
        index = np.searchsorted(np.arange(1, bins) / bins, predictions, side="right")
    else:
        # The rank of the first row with the same value decides, so that ties never straddle bins.
        first = np.searchsorted(np.sort(predictions), predictions, side="left")
        index = (first * bins) // max(len(predictions), 1)
    count = np.bincount(index, minlength=bins)
    used = count > 0
    means = (np.bincount(index, of, bins)[used] / count[used] for of in (predictions, labels))
    predicted, observed = (mean.tolist() for mean in means)
    return {"predicted": predicted, "observed": observed, "count": count[used].tolist()}


def platt_fit(y: ArrayLike, p: ArrayLike, strength: float = 5.0) -> Scaling:
    """Platt scaling: slope and intercept of a logistic regression of the outcome on the model's log
    odds, and their covariance (the inverse curvature, Laplace's approximation).

    Shrunk towards leaving the model as it is (slope 1, intercept 0) with a Gaussian prior of
    precision ``strength``, so that a hospital with few patients is not worse off. The figures are
    computed from rows: they stay at the site that fitted them, or are released and charged like
    anything else.

    >>> (slope, intercept), covariance = platt_fit([0, 0, 0, 1] * 500, [0.5] * 2000)
    >>> round(intercept, 2), covariance.shape
    (-1.08, (2, 2))
    """
    labels, logit = np.asarray(y, np.float64), log_odds(p)
    basis = np.stack([logit, np.ones_like(logit)], axis=1)
    prior, coefficient = np.array([1.0, 0.0]), np.array([1.0, 0.0])
    hessian = strength * np.eye(2)
    for _ in range(50):
        risk = 1 / (1 + np.exp(-(basis @ coefficient)))
        gradient = basis.T @ (labels - risk) - strength * (coefficient - prior)
        hessian = (basis * (risk * (1 - risk))[:, None]).T @ basis + strength * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        coefficient = coefficient + step / max(1.0, float(np.max(np.abs(step))))
        if np.max(np.abs(step)) < 1e-10:
            break
    covariance = np.asarray(np.linalg.inv(hessian), np.float64)
    return (float(coefficient[0]), float(coefficient[1])), covariance


def rescale(p: ArrayLike, slope: float, intercept: float) -> Floats:
    """Predictions after Platt scaling."""
    return np.asarray(1 / (1 + np.exp(-(slope * log_odds(p) + intercept))))


def cross_fitted(y: ArrayLike, p: ArrayLike, seed: int = 0) -> Floats:
    """Predictions of one site, each half rescaled by Platt scaling that was fitted on the other
    half: what a hospital gains by calibrating the model on its own patients. Nobody's own outcome
    enters their prediction."""
    labels, predictions = np.asarray(y), np.asarray(p, np.float64)
    half = np.random.default_rng([seed, len(labels)]).permutation(len(labels)) % 2 == 0
    out = predictions.copy()
    for mine, other in ((half, ~half), (~half, half)):
        if mine.any() and other.any():
            out[mine] = rescale(predictions[mine], *platt_fit(labels[other], predictions[other])[0])
    return out


def log_odds(p: ArrayLike) -> Floats:
    """ln(p / (1 - p)), with certainties taken as one in a million.

    >>> log_odds([0.5, 1.0]).round(2).tolist()
    [0.0, 13.82]
    """
    inside = np.clip(np.asarray(p, np.float64), 1e-6, 1 - 1e-6)
    return np.asarray(np.log(inside / (1 - inside)))
