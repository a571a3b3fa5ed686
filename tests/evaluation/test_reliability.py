"""Calibration: hand-computed bins of both kinds, and agreement with scikit-learn's curve."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.calibration import calibration_curve

from suture.evaluation.metrics import binary, ece, reliability


def test_equal_width_by_hand() -> None:
    # Bins [0, 0.5) and [0.5, 1]: gaps |0.2 - 0| and |0.75 - 0.5|, with 2 and 2 of 4 rows.
    y, p = [0, 0, 1, 0], [0.1, 0.3, 0.5, 1.0]
    assert ece(y, p, bins=2) == pytest.approx(0.5 * 0.2 + 0.5 * 0.25)
    assert reliability(y, p, bins=2)["count"] == [2, 2]


def test_equal_mass_keeps_ties_together() -> None:
    curve = reliability([0, 1, 0, 1, 1, 1], [0.2, 0.2, 0.2, 0.2, 0.8, 0.9], bins=3, kind="mass")
    assert curve["count"] == [4, 2]
    assert curve["observed"] == [0.5, 1.0]
    spread = reliability(np.zeros(100), np.linspace(0, 1, 100), bins=4, kind="mass")
    assert spread["count"] == [25, 25, 25, 25]


def test_agrees_with_scikit_learn_and_with_binary() -> None:
    rng = np.random.default_rng(5)
    p = rng.random(4000)
    y = (rng.random(4000) < p**2).astype(int)
    observed, predicted = calibration_curve(y, p, n_bins=10)
    curve = reliability(y, p)
    assert curve["observed"] == pytest.approx(observed.tolist(), abs=1e-12)
    assert curve["predicted"] == pytest.approx(predicted.tolist(), abs=1e-12)
    assert binary(y, p)["ece"] == pytest.approx(ece(y, p), abs=1e-12)


def test_edges_fall_in_the_upper_bin_everywhere() -> None:
    p = np.array([np.nextafter(e / 10, 0) for e in range(1, 10)] + [e / 10 for e in range(11)])
    y = np.arange(len(p)) % 2
    assert binary(y, p)["ece"] == pytest.approx(ece(y, p), abs=1e-12)
    assert reliability(y, p)["count"] == [2] * 9 + [2]


def test_no_rows_and_wrong_input() -> None:
    assert ece([], []) is None
    assert reliability([], []) == {"predicted": [], "observed": [], "count": []}
    for call, message in (
        (lambda: ece([0], [1.5]), "between 0 and 1"),
        (lambda: ece([0], [np.nan]), "between 0 and 1"),
        (lambda: ece([0], [0.5], bins=0), "at least one bin"),
        (lambda: ece([0], [0.5], kind="sturges"), "'width' or 'mass'"),
        (lambda: ece([0, 1], [0.5]), "one prediction per label"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
