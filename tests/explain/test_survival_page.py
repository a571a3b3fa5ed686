"""A patient of a survival model: the curve, the site's calibration, and sums that are the model."""

import json
import math

import numpy as np
import pytest
from support.followed import SURVIVAL, study

import suture
from suture.explain.patient import (
    Explanation,
    explain_patient,
    hazard_fit,
    survival_curve,
    waterfall,
)
from suture.explain.run import risk_of
from suture.schema.outcome import TICKS

HAZARD = np.linspace(0, 0.8, 9)[1:]


def explanation(**more):
    given = {
        "log_odds": 0.7, "base": 0.1, "parts": (), "interval": (0.7, 0.9),
        "calibrated": risk_of(0.9, HAZARD), "notes": (), "reference": 10, "concepts": 3,
        "hazard": HAZARD,
    }  # fmt: skip
    return Explanation(**{**given, **more})


def test_the_risk_is_that_by_the_horizon():
    assert explanation().risk == pytest.approx(1 - math.exp(-0.8 * math.exp(0.7)), abs=1e-6)
    assert explanation().scale == "hazard"


def test_the_curve_falls_from_1_to_the_calibrated_risk():
    (text,) = survival_curve(explanation(), SURVIVAL).to_dict()["datasets"].values()
    mine = [row for row in json.loads(text) if row["who"] == "This patient"]
    assert mine[0] == {"who": "This patient", "time": 0.0, "share": 1.0}
    assert mine[-1]["time"] == 100
    assert mine[-1]["share"] == pytest.approx(1 - risk_of(0.9, HAZARD), abs=1e-6)
    shares = [row["share"] for row in mine]
    assert shares == sorted(shares, reverse=True)


def test_the_waterfall_labels_its_axis_by_the_baseline():
    drawn = str(waterfall(explanation()).to_dict())
    assert "log hazard" in drawn
    assert "1 - exp(-0.8 * exp(datum.value))" in drawn


def test_a_site_with_twice_the_events_has_twice_the_hazard():
    y = np.array([2 * TICKS + 1] * 400 + [2 * (TICKS + 1)] * 600, np.int32)
    (slope, shift), spread = hazard_fit(y, np.zeros(1000), HAZARD / HAZARD[-1] * 0.2)
    assert slope == 1
    assert shift == pytest.approx(math.log(405 / 205))
    assert spread[1, 1] == pytest.approx(1 / 405)


def test_a_run_s_patient_has_a_page_with_a_curve(tmp_path):
    asked = study(tmp_path, each=200)
    suture.run(asked, base=tmp_path, out=tmp_path / "run")
    found = explain_patient(tmp_path / "run", site="s1", patient="1-7")
    page = (tmp_path / "run" / "explanations" / "s1-1-7.html").read_text(encoding="utf-8")
    assert "Without the event" in page
    assert "hazard ×" in page
    assert "death by days up to 100" in page
    low, high = found["interval"]
    assert 0 < low < found["calibrated"] < high < 1
