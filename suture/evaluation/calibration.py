"""Calibration: does a predicted risk of 20 % come true for 20 % of patients?

The expected calibration error (ECE) is Naeini et al., "Obtaining well calibrated probabilities using Bayesian binning",
AAAI 2015: the mean gap between predicted and observed risk over bins, weighted by the rows in each bin. Bins of equal
width are the custom in the literature; bins of equal mass do not leave the high-risk bins nearly empty when the outcome
is rare.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Kind = Literal["width", "mass"]


def ece(y: ArrayLike, p: ArrayLike, bins: int = 10, kind: Kind = "width") -> float | None:
    """Expected calibration error; ``None`` without rows.

    Bins of equal width are half-open, ``[0, 0.1), ..., [0.9, 1]``. Bins of equal mass are cut in the order of the
    predictions, and rows with the same prediction always share a bin.

    >>> ece([0, 0, 1, 1], [0.25, 0.25, 0.75, 0.75], bins=2)
    0.25
    """
    curve = reliability(y, p, bins, kind)
    total = sum(curve["count"])
    if not total:
        return None
    gaps = (n * abs(a - b) for n, a, b in zip(curve["count"], curve["predicted"], curve["observed"], strict=True))
    return float(sum(gaps) / total)


def reliability(y: ArrayLike, p: ArrayLike, bins: int = 10, kind: Kind = "width") -> dict[str, list[Any]]:
    """The reliability curve: mean prediction, observed share and number of rows for every bin that holds rows.

    >>> reliability([0, 0, 1, 1], [0.1, 0.3, 0.6, 0.8], bins=2)
    {'predicted': [0.2, 0.7], 'observed': [0.0, 1.0], 'count': [2, 2]}
    """
    labels = np.asarray(y, dtype=np.float64)
    predictions = np.asarray(p, dtype=np.float64)
    if labels.shape != predictions.shape or labels.ndim != 1:
        raise ValueError(f"expected one prediction a label, found shapes {labels.shape} and {predictions.shape}")
    if bins < 1:
        raise ValueError(f"expected at least one bin, found {bins}")
    if kind not in ("width", "mass"):
        raise ValueError(f"expected kind 'width' or 'mass', found {kind!r}")
    if len(predictions) and not (predictions.min() >= 0.0 and predictions.max() <= 1.0):
        raise ValueError("expected probabilities between 0 and 1")
    index = _equal_width(predictions, bins) if kind == "width" else _equal_mass(predictions, bins)
    count = np.bincount(index, minlength=bins)
    used = count > 0
    predicted = np.bincount(index, predictions, bins)[used] / count[used]
    observed = np.bincount(index, labels, bins)[used] / count[used]
    return {"predicted": predicted.tolist(), "observed": observed.tolist(), "count": count[used].tolist()}


def width_edges(bins: int) -> NDArray[np.float64]:
    """The inner edges of bins of equal width on [0, 1].

    >>> width_edges(4).tolist()
    [0.25, 0.5, 0.75]
    """
    return np.arange(1, bins) / bins


def _equal_width(predictions: NDArray[np.float64], bins: int) -> NDArray[np.intp]:
    return np.searchsorted(width_edges(bins), predictions, side="right")


def _equal_mass(predictions: NDArray[np.float64], bins: int) -> NDArray[np.intp]:
    # The rank of the first row with the same value decides, so that ties never straddle two bins.
    first = np.searchsorted(np.sort(predictions), predictions, side="left")
    return (first * bins) // max(len(predictions), 1)


def platt(y: ArrayLike, p: ArrayLike, strength: float = 5.0) -> tuple[float, float]:
    """Platt scaling: slope and intercept of a logistic regression of the outcome on the model's log odds.

    Shrunk towards leaving the model as it is (slope 1, intercept 0) with a Gaussian prior of precision ``strength``, so
    that a hospital with few patients is not worse off. The two numbers are computed from rows: they stay at the site
    that fitted them, or are released and charged like anything else.

    >>> slope, intercept = platt([0, 0, 0, 1] * 500, [0.5] * 2000)
    >>> round(intercept, 2)
    -1.08
    """
    (slope, intercept), _ = platt_fit(y, p, strength)
    return slope, intercept


def platt_fit(y: ArrayLike, p: ArrayLike, strength: float = 5.0) -> tuple[tuple[float, float], NDArray[np.float64]]:
    """Slope and intercept of `platt`, and their covariance (the inverse curvature, Laplace's approximation).

    >>> _, covariance = platt_fit([0, 1] * 500, [0.4, 0.6] * 500)
    >>> covariance.shape
    (2, 2)
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
    return (float(coefficient[0]), float(coefficient[1])), np.asarray(np.linalg.inv(hessian), np.float64)


def rescale(p: ArrayLike, slope: float, intercept: float) -> NDArray[np.float64]:
    """Predictions after Platt scaling.

    >>> rescale([0.5, 0.9], 1.0, 0.0).round(6).tolist()
    [0.5, 0.9]
    """
    scaled: NDArray[np.float64] = 1 / (1 + np.exp(-(slope * log_odds(p) + intercept)))
    return scaled


def cross_fitted(y: ArrayLike, p: ArrayLike, seed: int = 0) -> NDArray[np.float64]:
    """Predictions of one site, each half rescaled by Platt scaling that was fitted on the other half.

    What a hospital gains that calibrates the model on its own patients and keeps the result; nobody's own outcome enters
    their prediction.

    >>> cross_fitted([0, 1], [0.4, 0.6]).shape
    (2,)
    """
    labels, predictions = np.asarray(y), np.asarray(p, np.float64)
    half = np.random.default_rng([seed, len(labels)]).permutation(len(labels)) % 2 == 0
    out = predictions.copy()
    for mine, other in ((half, ~half), (~half, half)):
        if mine.any() and other.any():
            out[mine] = rescale(predictions[mine], *platt(labels[other], predictions[other]))
    return out


def log_odds(p: ArrayLike) -> NDArray[np.float64]:
    """ln(p / (1 - p)), with certainties taken as one in a million.

    >>> log_odds([0.5, 1.0]).round(2).tolist()
    [0.0, 13.82]
    """
    inside = np.clip(np.asarray(p, np.float64), 1e-6, 1 - 1e-6)
    return np.asarray(np.log(inside / (1 - inside)))
