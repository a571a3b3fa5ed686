"""The generated cohort of FedCVR (its sections 6.3 and 8.2, Tables 2 to 4): 30,000 invented patients.

Where each figure comes from: docs/ready-federations.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit

from suture.cohorts import Cohort, Columns, one_of, rows, site_of, within
from suture.errors import StudyError
from suture.schema.table import Flag, Number, Schema

AGE = (28, 77)
SYSTOLIC = (135.7, 18.0)
DIASTOLIC = (83.0, 12.0)
PRESSURE_CORRELATION = 0.6
CHOLESTEROL = (225.0, 45.0)
SMOKER = DIABETIC = 0.512
THRESHOLD = 5.448
"""The 82.9 % quantile of `risk_points` over 20 million patients (seed 0; standard error 0.0006)."""
MIDDLE, CEILING = 6.119, 0.848
"""Solved over 2 million patients (seed 0): 17.1 % high, and the AUC of the points themselves, which
is that of the true probability."""

HOSPITALS = (
    ("young-clinic", 13_130),
    ("cardiology", 4_730),
    ("diabetes-smoking", 9_250),
    ("community", 1_620),
    ("geriatric", 1_270),
)
"""Table 3: the five specialised hospitals and their sizes."""

SCHEMA = Schema(
    patient="patient_id",
    groups=("sex",),
    missing="refuse",
    features={
        "age": Number(low=AGE[0], high=AGE[1], unit="years", label="Age"),
        "systolic_bp": Number(low=75, high=195, unit="mmHg", label="Systolic pressure"),
        "diastolic_bp": Number(low=40, high=125, unit="mmHg", label="Diastolic pressure"),
        "cholesterol": Number(low=75, high=375, unit="mg/dL", label="Cholesterol"),
        "smoker": Flag(label="Smoker"),
        "diabetic": Flag(label="Diabetic"),
    },
)
"""Six encoded inputs, as in the paper. Bounds are the generator's limits: nothing is clipped."""

OUTCOME = "high_risk"
_BATCH = 8192


def risk_points(table: Columns) -> NDArray[np.float64]:
    """How many times a patient's risk has doubled, by rules of thumb of the clinical guidelines.

    - Blood pressure: risk doubles with each 20/10 mmHg above 115/75, the worse of the two readings
      counts (JNC 7).
    - Age: one doubling per decade from 45, where ATP III begins to count age.
    - Cholesterol: half a doubling for each 40 mg/dL (1 mmol/L) above the desirable 200 (ATP III).
    - Smoking, and diabetes: one doubling each.

    >>> import numpy as np
    >>> one = {"age": 55, "systolic_bp": 135, "diastolic_bp": 75, "cholesterol": 240, "smoker": 1, "diabetic": 0}
    >>> risk_points({name: np.array([value]) for name, value in one.items()})
    array([3.5])
    """
    pressure = np.maximum((table["systolic_bp"] - 115) / 20, (table["diastolic_bp"] - 75) / 10)
    points: NDArray[np.float64] = (
        np.maximum(pressure, 0)
        + np.maximum(table["age"] - 45, 0) / 10
        + np.maximum(table["cholesterol"] - 200, 0) / 80
        + table["smoker"]
        + table["diabetic"]
    )
    return points


def hospital_of(table: Columns) -> NDArray[np.int8]:
    """The index in `HOSPITALS` of each patient, by the rules of Table 3.

    >>> import numpy as np
    >>> two = {"age": [49, 70], "systolic_bp": [140, 140], "cholesterol": [230, 200], "smoker": [1, 0]}
    >>> hospital_of({name: np.array(values) for name, values in {**two, "diabetic": [0, 0]}.items()})
    array([0, 4], dtype=int8)
    """
    rules = [
        (table["age"] < 50, 0),
        ((table["systolic_bp"] > 135) & (table["cholesterol"] > 220), 1),
        ((table["diabetic"] == 1) | (table["smoker"] == 1), 2),
        (table["age"] > 65, 4),
    ]
    hospitals = [np.int8(index) for _, index in rules]
    return np.select([rule for rule, _ in rules], hospitals, np.int8(3))


def _draw(rng: np.random.Generator) -> Columns:
    """The next patients of the stream; those outside the limits are left out."""
    first, second, third = rng.standard_normal((3, _BATCH))
    second = PRESSURE_CORRELATION * first + np.sqrt(1 - PRESSURE_CORRELATION**2) * second
    table: Columns = {
        "age": rng.integers(AGE[0], AGE[1], _BATCH, endpoint=True),
        "systolic_bp": SYSTOLIC[0] + SYSTOLIC[1] * first,
        "diastolic_bp": DIASTOLIC[0] + DIASTOLIC[1] * second,
        "cholesterol": CHOLESTEROL[0] + CHOLESTEROL[1] * third,
        "smoker": (rng.random(_BATCH) < SMOKER).astype(np.int8),
        "diabetic": (rng.random(_BATCH) < DIABETIC).astype(np.int8),
        "sex": np.where(rng.random(_BATCH) < 0.5, "F", "M"),
    }
    admitted = np.ones(_BATCH, bool)
    for name, feature in SCHEMA.features.items():
        if isinstance(feature, Number):
            admitted &= (table[name] >= feature.low) & (table[name] <= feature.high)
    return rows(table, admitted)


def _stream(seed: int, labels: str = "rule") -> Iterator[Columns]:
    """An endless sequence of patients, the same for a seed, numbered in order of arrival."""
    rng, coins = (np.random.default_rng([seed, key]) for key in (0x_CA_2D_10, 0x_C0_15))
    arrived = 0
    while True:
        table = _draw(rng)
        names = np.arange(arrived, arrived + len(table["age"]))
        points, limit = risk_points(table), np.float64(THRESHOLD)
        if labels == "drawn":
            points, limit = points - MIDDLE, -logit(coins.random(len(points)))
        yield {"patient_id": names, **table, OUTCOME: (points > limit).astype(np.int8)}
        arrived += len(names)


def _scaled(patients: int) -> list[int]:
    """Table 3's sizes for another number of patients: largest remainders, at least one each."""
    exact = [size * patients / 30_000 for _, size in HOSPITALS]
    sizes = [max(1, int(size)) for size in exact]
    order = sorted(range(len(exact)), key=lambda i: int(exact[i]) - exact[i])
    for i in order[: max(0, patients - sum(sizes))]:
        sizes[i] += 1
    sizes[0] -= sum(sizes) - patients  # for a handful of patients, the minimum of one is too many
    return sizes


def _fill(seed: int, sizes: list[int], specialised: bool, labels: str) -> list[Columns]:
    """The first patients of the stream that belong to each hospital."""
    parts: list[list[Columns]] = [[] for _ in sizes]
    missing = np.array(sizes)
    for table in _stream(seed, labels):
        if not missing.any():
            break
        if specialised:
            belongs = hospital_of(table)
            chosen = [np.flatnonzero(belongs == i)[: missing[i]] for i in range(len(sizes))]
        else:
            ends = np.minimum(np.cumsum(missing), len(table["age"]))
            chosen = [np.arange(a, b) for a, b in zip(np.append(0, ends[:-1]), ends, strict=True)]
        for i in np.flatnonzero(missing):
            if len(chosen[i]):
                parts[i].append(rows(table, chosen[i]))
                missing[i] -= len(chosen[i])
    return [
        {name: np.concatenate([part[name] for part in own]) for name in own[0]} for own in parts
    ]


def cardio(
    seed: int,
    *,
    split: Literal["specialised", "iid"] = "specialised",
    patients: int = 30_000,
    sites: int = 5,
    test_fraction: float = 0.0,
    labels: Literal["rule", "drawn"] = "rule",
) -> Cohort:
    """The cohort, either at the paper's five specialised hospitals or dealt out evenly to ``sites``
    hospitals.

    ``patients`` other than 30,000 scales the hospitals in proportion. ``test_fraction`` adds fresh
    patients to each site for testing (that share of its training patients), so that the training
    sizes stay those of the paper.
    """
    one_of("cardio", "split", split, "specialised", "iid")
    one_of("cardio", "labels", labels, "rule", "drawn")
    within("cardio", "test_fraction", test_fraction, 0, 10)
    specialised = split == "specialised"
    if specialised and sites != len(HOSPITALS):
        raise StudyError(
            f"cohort cardio: the specialised split has 5 sites, found sites = {sites}; set split = "
            '"iid"'
        )
    if not 1 <= sites <= patients:
        found = f"{sites} sites, {patients} patients"
        raise StudyError(f"cohort cardio: expected 1 <= sites <= patients, found {found}")
    names, sizes = [name for name, _ in HOSPITALS], _scaled(patients)
    where = "at its five specialised hospitals"
    if not specialised:
        names = [f"hospital-{i + 1}" for i in range(sites)]
        sizes = [patients // sites + (i < patients % sites) for i in range(sites)]
        where = f"dealt out evenly to {sites} hospitals"
    tables = _fill(
        seed, [size + round(test_fraction * size) for size in sizes], specialised, labels
    )
    members = tuple(
        site_of(name, "generated", table, size)
        for name, size, table in zip(names, sizes, tables, strict=True)
    )
    words = f"{patients:,} generated patients in the manner of FedCVR, {where}; seed {seed}."
    words += f" Labels are drawn: no AUC above {CEILING} can be had." if labels == "drawn" else ""
    return Cohort("cardio", OUTCOME, SCHEMA, members, f"{words} No real patient is in it.")
