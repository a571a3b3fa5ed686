"""A generated federation of intensive care units in the manner of VEIL: 152 hospitals, 90 encoded
features, drawn from the open eICU demo's aggregates (``icu_statistics.csv``).

What is printed, counted and chosen: docs/ready-federations.md.
"""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, ndtri

from suture.cohorts import Cohort, Columns, site_of, within
from suture.errors import StudyError
from suture.schema.table import Category, Feature, Flag, Number, Schema, Thresholds

Floats = NDArray[np.float64]

OUTCOME = "died_in_hospital"
HOSPITALS = 152
PATIENTS = 76_000
INTERCEPT = -3.49
BENT = ("temperature", "heart_rate", "sodium", "potassium", "white_cells")
"""Readings of which both ends are worse than the middle."""
BEND, PRODUCT, UNSEEN = 0.15, 0.15, 0.35


class _Reading(NamedTuple):
    label: str
    unit: str
    bounds: tuple[float, float]
    normal: tuple[float, float]
    low: tuple[float, ...]
    high: tuple[float, ...]
    swing: float = 0.0  # of a vital sign: its scale of variation within a day, for the schema


def _readings(kind: str) -> dict[str, _Reading]:
    read = tomllib.loads(Path(__file__).with_name("icu.toml").read_text("utf-8"))[kind]
    found = {}
    for name, parts in read.items():
        tuples: list[Any] = [tuple(part) if isinstance(part, list) else part for part in parts]
        found[name] = _Reading(*tuples)
    return found


VITALS, LABS = _readings("vitals"), _readings("labs")
BODY = {"age": (18, 90), "bmi": (12, 60)}
READ = (*VITALS, *LABS, *BODY)
"""What the statistics hold; mean pressure follows from the other two."""
DRAWN = tuple(name for name in READ if name != "mean_bp")


def statistics() -> dict[str, dict[str, float]]:
    """The demo's aggregates by reading; an empty cell is 0."""
    with Path(__file__).with_name("icu_statistics.csv").open(encoding="utf-8", newline="") as file:
        read = list(csv.DictReader(file))
    return {
        one["name"]: {key: float(value or 0) for key, value in one.items() if key != "name"}
        for one in read
    }


STATISTICS = statistics()


def correlations(names: tuple[str, ...] = READ) -> Floats:
    """Correlations of the normal copula, drawn to the nearest matrix that can be one."""
    found = np.array([[STATISTICS[a][f"with {b}"] for b in names] for a in names])
    values, vectors = np.linalg.eigh(found)
    whole = vectors * np.maximum(values, 0.02) @ vectors.T
    scale = np.sqrt(np.diag(whole))
    return np.asarray(whole / np.outer(scale, scale))


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

    mix: float
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
    shifts = {name: rng.normal(0, 0.12) for name in DRAWN}
    effect = rng.normal(0, 0.27) - 0.15 * teaching + 0.08 * (beds - 1.5) * -1
    mix = rng.normal(0, 0.2)
    units = rng.dirichlet(np.array([0.5, 0.12, 0.08, 0.15, 0.07, 0.08]) * 5)
    return _Hospital(
        float(mix), shifts, ordering, float(effect), ethnicity, units, teaching, region, beds
    )


def _patients(rng: np.random.Generator, place: _Hospital, count: int, first: int) -> Columns:
    weights = np.array([STATISTICS[name]["weight"] for name in DRAWN])
    together = correlations(DRAWN)
    worse = together @ weights / max(np.sqrt(weights @ together @ weights), 1e-9)
    latent = rng.standard_normal((count, len(DRAWN))) @ np.linalg.cholesky(together).T
    latent += place.mix * worse  # a hospital with graver patients has graver readings
    z = dict(zip(DRAWN, latent.T, strict=True))
    ill = latent @ weights
    severity = (ill - ill.mean()) / max(ill.std(), 1e-9)
    unit = rng.choice(len(UNITS), count, p=place.units)
    source = rng.choice(len(SOURCES), count, p=[0.52, 0.18, 0.2, 0.1])
    female = rng.random(count) < 0.46
    ethnicity = rng.choice(len(ETHNICITIES), count, p=place.ethnicity)
    table: Columns = {
        "patient_id": np.arange(first, first + count),
        "age": np.round(_value("age", z["age"], BODY["age"])),
        "sex": np.where(female, "F", "M"),
        "ethnicity": np.array(ETHNICITIES)[ethnicity],
        "bmi": _lost(rng, "bmi", _value("bmi", z["bmi"], BODY["bmi"])),
        "unit_type": np.array(UNITS)[unit],
        "source": np.array(SOURCES)[source],
        "teaching": np.full(count, int(place.teaching)),
        "region": np.full(count, REGIONS[place.region]),
        "beds": np.full(count, BEDS[place.beds]),
    }
    _vitals(rng, place, z, severity, table)
    _labs(rng, place, z, severity, table)
    odds = INTERCEPT + place.effect + ill + _bends(z)
    odds = odds + np.choose(source, [0.0, -0.5, 0.25, 0.2]) + UNSEEN * rng.standard_normal(count)
    table[OUTCOME] = (rng.random(count) < expit(odds)).astype(np.int8)
    return table


def _value(name: str, z: Floats, bounds: tuple[float, float]) -> Floats:
    """The reading whose normal score is ``z``: the demo's quantiles, straight lines between them,
    and beyond the last one the line on to the bound at five deviations."""
    known = sorted(
        (float(key[1:]), value) for key, value in STATISTICS[name].items() if key[0] == "q"
    )
    at = [-5.0, *(float(ndtri(share / 100)) for share, _ in known), 5.0]
    held = np.clip([value for _, value in known], *bounds)
    return np.asarray(np.interp(z, at, [bounds[0], *held, bounds[1]]))


def _lost(rng: np.random.Generator, name: str, value: Floats) -> Floats:
    return np.where(rng.random(len(value)) < STATISTICS[name]["missing"], np.nan, value)


def _vitals(
    rng: np.random.Generator,
    place: _Hospital,
    z: dict[str, Floats],
    severity: Floats,
    table: Columns,
) -> None:
    """Four summaries of each sign. Mean pressure lies between the two others in each of them."""
    count = len(severity)
    lower, middle, upper = (
        STATISTICS[f"{name}_bp"]["q50"] for name in ("diastolic", "mean", "systolic")
    )
    along = np.clip(rng.normal((middle - lower) / (upper - lower), 0.06, count), 0.1, 0.7)
    measured = rng.random(count)
    found: dict[str, Floats] = {}
    for name, vital in VITALS.items():
        about, (low, high) = STATISTICS[name], vital.bounds
        swing = about["swing"] * np.exp(
            about["swing_sd"] * rng.standard_normal(count) + 0.1 * severity
        )
        down, up = (about[key] * np.exp(0.2 * rng.standard_normal(count)) for key in ("down", "up"))
        if name != "mean_bp":
            mean = _value(name, z[name] + place.shifts[name], vital.bounds)
            found |= {
                f"{name}_mean": mean,
                f"{name}_min": mean - down * swing,
                f"{name}_max": mean + up * swing,
            }
        for key in ("mean", "min", "max"):
            if name == "diastolic_bp":  # a pulse of at least 10 mmHg
                found[f"{name}_{key}"] = np.minimum(
                    found[f"{name}_{key}"], found[f"systolic_bp_{key}"] - 10
                )
            if name == "mean_bp":
                bottom = found[f"diastolic_bp_{key}"]
                found[f"{name}_{key}"] = bottom + along * (found[f"systolic_bp_{key}"] - bottom)
            found[f"{name}_{key}"] = np.clip(found[f"{name}_{key}"], low, high)
        found[f"{name}_std"] = np.clip(swing, 0, 5 * vital.swing)
        # Signs go missing together: who has no pressure has none of the three.
        for key in ("mean", "min", "max", "std"):
            shown = found[f"{name}_{key}"]
            table[f"{name}_{key}"] = np.where(measured < about["missing"], np.nan, shown)


def _labs(
    rng: np.random.Generator,
    place: _Hospital,
    z: dict[str, Floats],
    severity: Floats,
    table: Columns,
) -> None:
    """Tests that were ordered, as calibrated here."""
    for name, lab in LABS.items():
        value = _value(name, z[name] + place.shifts[name], lab.bounds)
        willing = (
            logit(1 - STATISTICS[name]["missing"]) * 1.15 + place.ordering[name] + 0.35 * severity
        )
        table[name] = np.where(rng.random(len(severity)) < expit(willing), value, np.nan)
    table["gcs"] = np.round(table["gcs"])


def _bends(z: dict[str, Floats]) -> Floats:
    """What no straight line has: both ends of five readings, and two products."""
    bent: Floats = BEND * np.sum([z[name] ** 2 - 1 for name in BENT], axis=0)
    for one, other in (("lactate", "respiratory_rate"), ("bun", "age")):
        bent = bent + PRODUCT * np.maximum(z[one], 0) * np.maximum(z[other], 0)
    return bent
