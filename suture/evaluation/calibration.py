"""Calibration: does a predicted risk of 20 % come true for 20 % of patients?

The expected calibration error (ECE) is Naeini et al., "Obtaining well calibrated probabilities
using Bayesian binning", AAAI 2015: the mean gap between predicted and observed risk over bins,
weighted by the rows in each bin. Bins of equal width are the custom in the literature; bins of
equal mass do not leave the high-risk bins nearly empty when the outcome is rare.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Kind = Literal["width", "mass"]
Scaling = tuple[tuple[float, float], Floats]
"""Slope and intercept of Platt scaling, and their covariance."""


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
    labels = np.asarray(y, dtype=np.float64)
    predictions = np.asarray(p, dtype=np.float64)
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
        index = np.searchsorted(width_edges(bins), predictions, side="right")
    else:
        # The rank of the first row with the same value decides, so that ties never straddle bins.
        first = np.searchsorted(np.sort(predictions), predictions, side="left")
        index = (first * bins) // max(len(predictions), 1)
    count = np.bincount(index, minlength=bins)
    used = count > 0
    predicted = np.bincount(index, predictions, bins)[used] / count[used]
    observed = np.bincount(index, labels, bins)[used] / count[used]
    return {
        "predicted": predicted.tolist(),
        "observed": observed.tolist(),
        "count": count[used].tolist(),
    }


def width_edges(bins: int) -> Floats:
    """The inner edges of bins of equal width on [0, 1].

    >>> width_edges(4).tolist()
    [0.25, 0.5, 0.75]
    """
    return np.arange(1, bins) / bins


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
    """Predictions after Platt scaling.

    >>> rescale([0.5, 0.9], 1.0, 0.0).round(6).tolist()
    [0.5, 0.9]
    """
    return np.asarray(1 / (1 + np.exp(-(slope * log_odds(p) + intercept))))


def cross_fitted(y: ArrayLike, p: ArrayLike, seed: int = 0) -> Floats:
    """Predictions of one site, each half rescaled by Platt scaling that was fitted on the other
    half: what a hospital gains by calibrating the model on its own patients. Nobody's own outcome
    enters their prediction.

    >>> cross_fitted([0, 1], [0.4, 0.6]).shape
    (2,)
    """
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
