"""A generated federation of intensive care units in the manner of VEIL: 152 hospitals, 90 encoded
features.

The paper uses the eICU database, which cannot be shipped. What it prints is kept: 152 hospitals,
vital signs as mean, minimum, maximum and standard deviation over 24 hours, laboratory tests as
means, demographics and hospital traits, 90 inputs after encoding, 8.9 % of patients die in
hospital. Everything else is *chosen*: readings from clinical knowledge, and the strength of curves
and products in round figures that make risk visibly non-linear. Pooled models were looked at for
that (logistic regression on the 90 inputs, and boosted trees); no private or federated method was.

- A patient has six hidden organ states (circulation, breathing, kidney, liver, infection,
  consciousness), correlated through one general severity. Vital signs and tests are noisy readings
  of them. Risk is *not* computed from the declared thresholds or normal ranges: it is a smooth
  function (`_risk`) of the hidden states and of the true course of a few signs, with curves that
  bend both ways, products of states, and a part that no feature shows.
- Hospitals differ in size (log-normal, 30 to several thousand), case mix, ethnicity, the
  calibration of their laboratory, which tests they order (sicker patients are tested more) and in
  outcome (a random effect of 0.3 on the log odds, a fifth of it explained by teaching status and
  size).
- Ethnicity and sex have no effect of their own. They are unevenly spread over hospitals, so a model
  can pick them up as stand-ins for the hospital: that is what the warnings on protected attributes
  are there for.
- `INTERCEPT` is solved so that 8.9 % die.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from suture.cohorts.cohort import Cohort, Columns, site_of, within
from suture.errors import StudyError
from suture.schema.table import Category, Feature, Flag, Number, Schema, Thresholds

Floats = NDArray[np.float64]

OUTCOME = "died_in_hospital"
HOSPITALS = 152
PATIENTS = 76_000
INTERCEPT = -6.13  # solved: 8.9 % of 760,000 generated patients (seeds 0 to 9) die
STATES = ("circulation", "breathing", "kidney", "liver", "infection", "consciousness")


OTHER_WAY = {
    "heart_rate": 0.25, "temperature": 0.4, "systolic_bp": 0.2, "diastolic_bp": 0.2, "mean_bp": 0.2,
    "respiratory_rate": 0.15, "sodium": 0.5, "potassium": 0.3, "glucose": 0.2, "white_cells": 0.35, "ph": 0.35,
    "bicarbonate": 0.2,
}  # fmt: skip
"""The share of patients in whom illness drives a reading the other way (a slow pulse)."""


class _Reading(NamedTuple):
    label: str
    unit: str
    bounds: tuple[float, float]
    normal: tuple[float, float]
    low: tuple[float, ...]
    high: tuple[float, ...]
    centre: float  # the median; tests with ``log`` are log-normal around it
    spread: float  # between patients, of what the hidden states do not explain
    loads: dict[str, float]
    swing: float = 0.0  # of a vital sign: typical standard deviation within a patient's day
    log: bool = False
    ordered: float = 1.0  # how often a test is ordered, over all hospitals


VITALS = {
    "heart_rate": _Reading("Heart rate", "/min", (30, 200), (60, 100), (50,), (110, 130), 84, 11,
        {"circulation": 9, "infection": 6}, swing=8),
    "respiratory_rate": _Reading("Respiratory rate", "/min", (4, 60), (12, 20), (10,), (25, 30), 18, 2.6,
        {"breathing": 3.2, "infection": 1.2}, swing=3.2),
    "spo2": _Reading("Oxygen saturation", "%", (60, 100), (94, 100), (88, 92), (), 96.6, 1.1,
        {"breathing": -1.7}, swing=1.4),
    "temperature": _Reading("Temperature", "°C", (32, 42), (36, 37.8), (35.5,), (38.3,), 36.9, 0.4,
        {"infection": 0.35}, swing=0.35),
    "systolic_bp": _Reading("Systolic pressure", "mmHg", (50, 230), (100, 140), (90,), (180,), 124, 14,
        {"circulation": -10}, swing=11),
    "diastolic_bp": _Reading("Diastolic pressure", "mmHg", (25, 140), (60, 90), (50,), (110,), 67, 8,
        {"circulation": -5}, swing=7),
    "mean_bp": _Reading("Mean arterial pressure", "mmHg", (35, 160), (70, 105), (60, 65), (), 84, 9,
        {"circulation": -7}, swing=8),
}  # fmt: skip
LABS = {
    "lactate": _Reading("Lactate", "mmol/L", (0.2, 20), (0.5, 2), (), (4,), 1.6, 0.38,
        {"circulation": 0.34, "liver": 0.12, "infection": 0.14}, log=True, ordered=0.45),
    "creatinine": _Reading("Creatinine", "mg/dL", (0.2, 15), (0.6, 1.3), (), (2, 3.5), 1.05, 0.33,
        {"kidney": 0.48}, log=True, ordered=0.93),
    "bun": _Reading("Urea nitrogen", "mg/dL", (2, 150), (7, 20), (), (40,), 19, 0.38,
        {"kidney": 0.42}, log=True, ordered=0.92),
    "bilirubin": _Reading("Bilirubin", "mg/dL", (0.1, 30), (0.2, 1.2), (), (2, 6), 0.7, 0.45,
        {"liver": 0.55}, log=True, ordered=0.55),
    "albumin": _Reading("Albumin", "g/dL", (1, 5.5), (3.5, 5), (2.5,), (), 3.1, 0.45,
        {"liver": -0.2, "infection": -0.2}, ordered=0.55),
    "sodium": _Reading("Sodium", "mmol/L", (110, 170), (135, 145), (130,), (150,), 138, 3.9,
        {"kidney": 0.6}, ordered=0.94),
    "potassium": _Reading("Potassium", "mmol/L", (2, 8), (3.5, 5), (3,), (5.5,), 4.1, 0.45,
        {"kidney": 0.2}, ordered=0.94),
    "bicarbonate": _Reading("Bicarbonate", "mmol/L", (5, 45), (22, 28), (18,), (35,), 24.5, 2.9,
        {"circulation": -1.6, "kidney": -1.3, "breathing": 0.6}, ordered=0.9),
    "glucose": _Reading("Glucose", "mg/dL", (30, 600), (70, 140), (60,), (180, 300), 136, 0.28,
        {"infection": 0.1}, log=True, ordered=0.93),
    "haemoglobin": _Reading("Haemoglobin", "g/dL", (4, 20), (12, 17), (7, 9), (), 11, 1.9,
        {"circulation": -0.35}, ordered=0.92),
    "platelets": _Reading("Platelets", "K/µL", (5, 800), (150, 400), (50, 100), (), 196, 0.36,
        {"liver": -0.18, "infection": -0.12}, log=True, ordered=0.9),
    "white_cells": _Reading("White cells", "K/µL", (0.5, 60), (4, 11), (4,), (15, 25), 10.4, 0.36,
        {"infection": 0.22}, log=True, ordered=0.91),
    "inr": _Reading("INR", "", (0.8, 10), (0.8, 1.2), (), (1.5, 2.5), 1.2, 0.22,
        {"liver": 0.26}, log=True, ordered=0.6),
    "ph": _Reading("Arterial pH", "", (6.8, 7.7), (7.35, 7.45), (7.2, 7.3), (7.55,), 7.38, 0.05,
        {"breathing": -0.025, "circulation": -0.035, "kidney": -0.02}, ordered=0.4),
    "pao2": _Reading("Arterial oxygen", "mmHg", (30, 400), (75, 100), (60,), (), 98, 0.3,
        {"breathing": -0.16}, log=True, ordered=0.4),
    "gcs": _Reading("Coma scale", "points", (3, 15), (14, 15), (8, 12), (), 14.2, 0.9,
        {"consciousness": -2.3}, ordered=0.85),
}  # fmt: skip

ETHNICITIES = ("Caucasian", "African American", "Hispanic", "Asian", "Native American", "Other")
UNITS = ("Med-Surg ICU", "MICU", "SICU", "CCU-CTICU", "Neuro ICU", "Cardiac ICU")
SOURCES = ("Emergency", "Operating room", "Ward", "Other hospital")
REGIONS = ("Midwest", "Northeast", "South", "West")
BEDS = ("<100", "100 - 249", "250 - 499", ">= 500")
_SUMMARIES = {"mean": "mean", "min": "lowest", "max": "highest", "std": "variation"}


def _schema() -> Schema:
    features: dict[str, Feature] = {
        "age": Number(low=18, high=90, unit="years", label="Age", missing="refuse",
                      thresholds=Thresholds(high=(65, 75, 85))),
        "sex": Category(values=("F", "M"), label="Sex", protected=True, missing="fill"),
        "ethnicity": Category(values=ETHNICITIES, label="Ethnicity", protected=True, missing="fill"),
        "bmi": Number(low=12, high=60, unit="kg/m²", label="Body mass index", normal=(18.5, 30),
                      thresholds=Thresholds(high=(40,))),
    }  # fmt: skip
    for name, sign in VITALS.items():
        cuts = Thresholds(low=sign.low, high=sign.high)
        low, high = sign.bounds
        for key, word in _SUMMARIES.items():
            plain = Number(low=low, high=high, label=f"{sign.label}, {word}", unit=sign.unit)
            more = {"normal": sign.normal, "thresholds": cuts, "missing": "fill"}
            if key == "std":
                wide = Thresholds(high=(2 * sign.swing,))
                more = {"low": 0, "high": 5 * sign.swing, "thresholds": wide, "missing": "fill"}
            features[f"{name}_{key}"] = plain.model_copy(update=more)
    for name, lab in LABS.items():
        cuts = Thresholds(low=lab.low, high=lab.high)
        low, high = lab.bounds
        features[name] = Number(
            low=low, high=high, unit=lab.unit, label=lab.label, normal=lab.normal, thresholds=cuts
        )
    traits = {
        "unit_type": ("Unit", UNITS),
        "source": ("Admitted from", SOURCES),
        "teaching": ("Teaching hospital", None),
        "region": ("Region", REGIONS),
        "beds": ("Hospital beds", BEDS),
    }
    for name, (label, values) in traits.items():
        features[name] = (
            Category(values=values, label=label, proxy=True, missing="fill")
            if values
            else Flag(label=label, proxy=True, missing="fill")
        )
    return Schema(patient="patient_id", groups=("sex", "ethnicity"), features=features)


SCHEMA = _schema()
"""90 inputs: 1 + 2 + 6 + 2 demographic, 28 of vital signs, 32 of tests, 19 of unit and hospital."""


class _Hospital(NamedTuple):
    """What is particular about one hospital."""

    mix: Floats
    shifts: dict[str, float]
    ordering: dict[str, float]
    effect: float
    ethnicity: Floats
    units: Floats
    teaching: bool
    region: int
    beds: int


def sizes(hospitals: int, patients: int) -> list[int]:
    """How many patients each hospital has: quantiles of a log-normal, shuffled, at least 30."""
    quantile = np.exp(0.95 * ndtri((np.arange(hospitals) + 0.5) / hospitals))
    least = np.minimum(30, patients // hospitals)
    scaled = np.maximum(least, np.round(quantile * patients / quantile.sum()))
    order = np.random.default_rng(152).permutation(hospitals)
    return [int(size) for size in scaled[order]]


def icu(
    seed: int, *, hospitals: int = HOSPITALS, patients: int = PATIENTS, test_fraction: float = 0.0
) -> Cohort:
    """The federation. ``test_fraction`` adds fresh patients to each hospital for testing."""
    if not 1 <= hospitals <= patients:
        found = f"{hospitals} and {patients}"
        raise StudyError(f"cohort icu: expected 1 <= hospitals <= patients, found {found}")
    within("icu", "test_fraction", test_fraction, 0, 10)
    members = []
    for i, size in enumerate(sizes(hospitals, patients)):
        rng = np.random.default_rng([seed, 0x1C0, i])
        place = _hospital(rng, size)
        count = size + round(test_fraction * size)
        table = _patients(rng, place, count, first=i * 10_000_000)
        members.append(site_of(f"hospital-{i + 1:03d}", REGIONS[place.region], table, size))
    words = (
        f"{patients:,} generated intensive care patients at {hospitals} hospitals, in the manner of "
        f"VEIL; seed {seed}. No real patient is in it."
    )
    return Cohort("icu", OUTCOME, SCHEMA, tuple(members), words)


def _hospital(rng: np.random.Generator, size: int) -> _Hospital:
    beds = int(np.clip(np.searchsorted([150, 400, 1000], size) + rng.integers(-1, 2), 0, 3))
    teaching = bool(rng.random() < (0.05, 0.12, 0.3, 0.6)[beds])
    region = int(rng.choice(4, p=[0.33, 0.12, 0.33, 0.22]))
    base = np.array([0.74, 0.12, 0.06, 0.02, 0.01, 0.05])
    ethnicity = rng.dirichlet(base * 6)
    ordering = {name: rng.normal(0, 0.8) for name in LABS}
    shifts = {name: rng.normal(0, 0.25) for name in (*LABS, *VITALS)}
    effect = rng.normal(0, 0.27) - 0.15 * teaching + 0.08 * (beds - 1.5) * -1
    mix = rng.normal(0, 0.28, len(STATES))
    units = rng.dirichlet(np.array([0.5, 0.12, 0.08, 0.15, 0.07, 0.08]) * 5)
    return _Hospital(mix, shifts, ordering, float(effect), ethnicity, units, teaching, region, beds)


def _patients(rng: np.random.Generator, place: _Hospital, count: int, first: int) -> Columns:
    general = rng.standard_normal(count)
    own = rng.standard_normal((count, len(STATES)))
    states = place.mix + 0.55 * general[:, None] + np.sqrt(1 - 0.55**2) * own
    # Organ failure is rare and then severe: the upper tail is stretched.
    states = states + 0.35 * np.maximum(states - 0.8, 0) ** 2
    by = dict(zip(STATES, states.T, strict=True))
    age = np.clip(np.round(rng.normal(64, 16, count) + 2 * general), 18, 90)
    unit = rng.choice(len(UNITS), count, p=place.units)
    source = rng.choice(len(SOURCES), count, p=[0.52, 0.18, 0.2, 0.1])
    female = rng.random(count) < 0.46
    ethnicity = rng.choice(len(ETHNICITIES), count, p=place.ethnicity)
    unweighed, bmi = rng.random(count) < 0.06, np.clip(rng.normal(28.5, 6.5, count), 12, 60)
    table: Columns = {
        "patient_id": np.arange(first, first + count),
        "age": age,
        "sex": np.where(female, "F", "M"),
        "ethnicity": np.array(ETHNICITIES)[ethnicity],
        "bmi": np.where(unweighed, np.nan, bmi),
        "unit_type": np.array(UNITS)[unit],
        "source": np.array(SOURCES)[source],
        "teaching": np.full(count, int(place.teaching)),
        "region": np.full(count, REGIONS[place.region]),
        "beds": np.full(count, BEDS[place.beds]),
    }
    course = _vitals(rng, place, by, table)
    tests = _labs(rng, place, by, general, table)
    logit = _risk(by, course, tests, age, source, general, rng) + place.effect
    table[OUTCOME] = (rng.random(count) < 1 / (1 + np.exp(-logit))).astype(np.int8)
    return table


def _driven(
    rng: np.random.Generator, name: str, loads: dict[str, float], by: dict[str, Floats]
) -> Floats:
    """What the hidden states do to a reading: little in the healthy, in some the other way."""
    count = len(by[STATES[0]])
    way = np.where(rng.random(count) < OTHER_WAY.get(name, 0.0), -1.0, 1.0)
    moved: Floats = np.zeros(count)
    for state, load in loads.items():
        moved += load * (0.25 * np.minimum(by[state], 0) + 2.0 * np.maximum(by[state], 0) * way)
    return moved


def _vitals(
    rng: np.random.Generator, place: _Hospital, by: dict[str, Floats], table: Columns
) -> dict[str, Floats]:
    """Four summaries of each sign; returns the true mean in units of its spread."""
    course = {}
    for name, vital in VITALS.items():
        count = len(table["age"])
        part = rng.standard_normal(count)
        mean = vital.centre + vital.spread * part + _driven(rng, name, vital.loads, by)
        mean = mean + place.shifts[name] * vital.spread * 0.5
        swing = vital.swing * np.exp(0.3 * rng.standard_normal(count) + 0.1 * by["circulation"])
        course[name] = part
        down, up = (np.abs(rng.normal(1.5, 0.45, count)) for _ in range(2))
        low, high = vital.bounds
        for key, value in (
            ("mean", mean),
            ("min", mean - down * swing),
            ("max", mean + up * swing),
        ):
            table[f"{name}_{key}"] = np.clip(value, low, high)
        table[f"{name}_std"] = np.clip(swing, 0, 5 * vital.swing)
    return course


def _labs(
    rng: np.random.Generator,
    place: _Hospital,
    by: dict[str, Floats],
    general: Floats,
    table: Columns,
) -> dict[str, Floats]:
    """Tests that were ordered, as calibrated here; returns what the body has, by spread."""
    tests = {}
    for name, lab in LABS.items():
        part = rng.standard_normal(len(general))
        shift = lab.spread * part + _driven(rng, name, lab.loads, by)
        tests[name] = part
        shift = shift + place.shifts[name] * lab.spread * 0.5
        value = lab.centre * np.exp(shift) if lab.log else lab.centre + shift
        willing = np.log(lab.ordered / (1 - lab.ordered)) + place.ordering[name] + 0.35 * general
        ordered = rng.random(len(general)) < 1 / (1 + np.exp(-willing))
        table[name] = np.where(ordered, np.clip(value, *lab.bounds), np.nan)
    table["gcs"] = np.round(table["gcs"])
    return tests


def _risk(
    by: dict[str, Floats],
    course: dict[str, Floats],
    tests: dict[str, Floats],
    age: Floats,
    source: NDArray[np.int64],
    general: Floats,
    rng: np.random.Generator,
) -> Floats:
    """Log odds of death: hidden states, a part of the signs, and a part that nothing shows."""
    c, b, k, v, i, n = (by[state] for state in STATES)

    def softly(x: Floats) -> Floats:
        """0 for the healthy, rising in a bend: log(1 + e^3x) / 3."""
        return np.asarray(np.logaddexp(0, 3 * x) / 3)

    logit: Floats = (
        INTERCEPT
        + 0.62 * softly(c)
        + 0.55 * softly(b)
        + 0.32 * softly(k)
        + 0.30 * softly(v)
        + 0.42 * softly(i)
        + 0.75 * softly(n - 0.2)
        + 0.14 * np.maximum(c, 0) * np.maximum(b, 0)
        + 0.14 * np.maximum(i, 0) * np.maximum(k, 0)
        + 0.75 * np.maximum(age - 55, 0) / 20
        + 0.12 * (age > 60) * np.maximum(n, 0)
        + 0.16 * course["temperature"] ** 2
        + 0.13 * course["heart_rate"] ** 2
        + 0.16 * tests["sodium"] ** 2
        + 0.16 * tests["potassium"] ** 2
        + 0.13 * tests["white_cells"] ** 2
        + 0.15 * tests["lactate"]
        - 0.12 * tests["albumin"]
        + np.choose(source, [0.0, -0.5, 0.25, 0.2])
        + 0.15 * general
        + 0.35 * rng.standard_normal(len(age))
    )
    return logit
