"""Readers of public data sets: real interoperability faults and the benchmarks of iFedAvg (paper 003).

The files are not part of Suture. They are looked for in the folder that the environment variable SUTURE_DATA names,
else in ``shared/data`` beside the checkout; where they are not there, the error says what to download and from where.
Rows belong to real people (heart, har): such a federation is treated as real patients are, with secrets and ledgers.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture.cohorts.cohort import Cohort, CohortSite
from suture.cohorts.paper_split import split_as_printed
from suture.errors import DataError, StudyError
from suture.site.schema import Category, Flag, Number, Schema

DOWNLOADS = {
    "heart_uci": "the four processed.*.data files of https://archive.ics.uci.edu/dataset/45/heart+disease, each with the "
    "header age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,target added and .csv appended",
    "har": "https://archive.ics.uci.edu/dataset/341 (HAPT), as hapt_features.npz with X (rows x features), "
    "feature_names, subject and activity (1 to 12)",
    "pneumoniamnist": "PneumoniaMNIST of MedMNIST v2 at 28 x 28 (https://medmnist.com, pneumoniamnist.npz), as "
    "pneumoniamnist_28.npz with train_images, train_labels, val_images, val_labels, test_images, test_labels",
    "vsn": "the vehicle sensor network data of Duarte and Hu (2004), as vsn_ditto_train.npz with X, y (+1/-1) and sensor",
}
HOSPITALS = {
    "cleveland": ("Cleveland Clinic", "US-OH"),
    "hungarian": ("Budapest", "HU"),
    "switzerland": ("Switzerland", "CH"),
    "va": ("VA Long Beach", "US-CA"),
}
HEART = Schema(
    patient="patient_id",
    groups=("sex",),
    features={
        "age": Number(low=20, high=90, unit="years", label="Age"),
        "sex": Flag(label="Male"),
        "cp": Category(values=("1", "2", "3", "4"), label="Chest pain type"),
        "trestbps": Number(low=60, high=220, unit="mmHg", label="Resting blood pressure"),
        "chol": Number(low=60, high=620, unit="mg/dL", label="Cholesterol"),
        "fbs": Flag(label="Fasting blood sugar over 120 mg/dL"),
        "restecg": Category(values=("0", "1", "2"), label="Resting ECG"),
        "thalach": Number(low=50, high=220, unit="beats/min", label="Maximum heart rate"),
        "exang": Flag(label="Angina on exercise"),
        "oldpeak": Number(low=-3, high=7, unit="mm", label="ST depression on exercise"),
        "slope": Category(values=("1", "2", "3"), label="Slope of the ST segment"),
        "ca": Number(low=0, high=3, label="Vessels coloured by fluoroscopy"),
        "thal": Category(values=("3", "6", "7"), label="Thallium scan"),
    },
)
"""Bounds are round figures of human physiology, not fitted to the files."""

ACTIVITIES = (
    "walking", "upstairs", "downstairs", "sitting", "standing", "lying", "stand to sit", "sit to stand",
    "sit to lie", "lie to sit", "stand to lie", "lie to stand",
)  # fmt: skip


def data_folder(name: str) -> Path:
    """The folder of a data set, or a `DataError` that says how to get it."""
    given = os.environ.get("SUTURE_DATA")
    root = Path(given) if given else Path(__file__).parents[2].parent / "shared" / "data"
    folder = root / name
    if not folder.is_dir():
        raise DataError(
            f"the data set {name!r} is not in {root}; put it there, or set SUTURE_DATA to the folder that holds {name}/. "
            f"It is: {DOWNLOADS[name]}"
        )
    return folder


def heart(seed: int, *, zero_cholesterol: str = "missing", missing: str = "indicator", split: str = "hash") -> Cohort:
    """The UCI heart disease data at the four hospitals that collected them (Detrano et al. 1989); outcome: target > 0.

    A cholesterol or a resting pressure of 0 is nobody's: it stands for a missing value. ``zero_cholesterol =
    "recorded"`` leaves it in, as the files have it. ``missing = "fill"`` fills missing values without marking them.
    ``split = "paper"`` sets test patients apart as paper 003 does (`paper_split`).
    """
    if missing not in ("indicator", "fill"):
        raise StudyError(f'cohort heart: missing must be "indicator" or "fill", found {missing!r}')
    if zero_cholesterol not in ("missing", "recorded"):
        raise StudyError(f'cohort heart: zero_cholesterol must be "missing" or "recorded", found {zero_cholesterol!r}')
    folder = data_folder("heart_uci")
    sites = []
    for key, (name, region) in HOSPITALS.items():
        path = folder / f"processed.{key}.data.csv"
        try:
            with path.open(encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file))
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error}; it is part of: {DOWNLOADS['heart_uci']}") from None
        table: dict[str, NDArray[Any]] = {"patient_id": np.array([f"{key}-{i}" for i in range(len(rows))])}
        for column in HEART.features:
            table[column] = np.array([_number(row[column]) for row in rows])
        impossible = ("chol", "trestbps") if zero_cholesterol == "missing" else ("trestbps",)
        for column in impossible:
            table[column] = np.where(table[column] == 0, np.nan, table[column])
        table["high_risk"] = np.array([int(float(row["target"]) > 0) for row in rows])
        sites.append(CohortSite(name, region, table))
    whole = Cohort(
        "heart",
        "high_risk",
        HEART.model_copy(update={"missing": missing}),
        tuple(sites),
        "920 patients of four hospitals, UCI heart disease",
        generated=False,
    )
    return split_as_printed(whole, split, seed)


def _number(text: str) -> float:
    return float("nan") if text.strip() in ("", "?") else float(text)


def har(seed: int, *, activities: int = 6, split: str = "hash") -> Cohort:
    """Activity from a smartphone's sensors, 30 people, each a site; the 6 basic activities or all 12 (HAPT).

    Bounds are the columns' smallest and largest values: the table is public, and no promise is made about it. A window
    is its own unit, and neighbouring windows overlap by half, so a random split is easier than new people would be.
    """
    if activities not in (6, 12):
        raise StudyError(f"cohort har: activities must be 6 or 12, found {activities}")
    with np.load(data_folder("har") / "hapt_features.npz", allow_pickle=False) as archive:
        x, names, person, activity = (archive[key] for key in ("X", "feature_names", "subject", "activity"))
    keep = activity <= activities
    x, person, activity = x[keep].astype(np.float64), person[keep], activity[keep]
    labels = np.array(ACTIVITIES)[activity - 1]
    schema = _all_numbers(x, [str(name) for name in names])
    sites = []
    for number in np.unique(person):
        mine = person == number
        table: dict[str, NDArray[Any]] = {str(name): x[mine, i] for i, name in enumerate(names)}
        sites.append(CohortSite(f"subject {number:02d}", "", {**table, "activity": labels[mine]}))
    words = f"{len(x):,} windows of 30 people, {activities} activities (HAPT)"
    whole = Cohort("har", "activity", schema, tuple(sites), words, generated=False, classes=ACTIVITIES[:activities])
    return split_as_printed(whole, split, seed)


def vsn(seed: int, *, split: str = "hash") -> Cohort:
    """Vehicles told apart by the acoustic and seismic sensors that they pass (Duarte and Hu 2004), each sensor a site.

    The columns are standardised per sensor already. Some sensors have fewer than ten rows.
    """
    with np.load(data_folder("vsn") / "vsn_ditto_train.npz", allow_pickle=False) as archive:
        x, y, sensor = archive["X"].astype(np.float64), archive["y"], archive["sensor"]
    names = [f"acoustic {i}" if i < 50 else f"seismic {i - 50}" for i in range(x.shape[1])]
    sites = []
    for number in np.unique(sensor):
        mine = sensor == number
        table: dict[str, NDArray[Any]] = {name: x[mine, i] for i, name in enumerate(names)}
        sites.append(CohortSite(f"sensor {number:02d}", "", {**table, "vehicle": (y[mine] > 0).astype(np.int8)}))
    words = f"{len(x):,} rows of 23 sensors"
    whole = Cohort("vsn", "vehicle", _all_numbers(x, names), tuple(sites), words, generated=False)
    return split_as_printed(whole, split, seed)


def _all_numbers(x: NDArray[np.float64], names: list[str]) -> Schema:
    """Every column a number between its smallest and largest value, none missing."""
    low, high = x.min(axis=0), x.max(axis=0)
    high = np.where(high > low, high, low + 1)
    features = {name: Number(low=float(a), high=float(b)) for name, a, b in zip(names, low, high, strict=True)}
    return Schema(missing="refuse", features=dict(features))
