"""Federations of published data: heart disease, activity and vehicles (the benchmarks of iFedAvg),
eICU, PhysioNet 2012, Framingham, and PneumoniaMNIST.

Rows belong to real people: such a federation is treated as real patients are, with secrets and
ledgers. The dealing is the same for every seed, because ledgers outlive a run and a hospital must
keep its patients. Files, splits and what each set is: docs/ready-federations.md.
"""

from __future__ import annotations

import csv
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from suture.cohorts import Cohort, CohortSite, Columns, one_of, rows, within
from suture.cohorts.icu import OUTCOME, UNITS
from suture.cohorts.icu import SCHEMA as ICU
from suture.cohorts.radiographs import LOOKS, in_bytes, scanned
from suture.errors import DataError, StudyError
from suture.schema.table import Category, Feature, Flag, Image, Number, Schema
from suture.site.eicu import LABS, VITALS, queried, stays
from suture.site.eicu import data_folder as real_data

SHARE, FLOOR, LARGE_ENOUGH = 0.33, 100, 133


def held_out_rows(rows: int) -> int:
    """How many of its rows a client holds out.

    >>> [held_out_rows(n) for n in (9, 123, 137, 303, 1975)]
    [2, 40, 100, 100, 651]
    """
    share = int(SHARE * rows)
    return max(share, FLOOR) if rows >= LARGE_ENOUGH else share


def drawn(y: NDArray[np.generic], count: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which ``count`` rows are held out: classes in proportion, the rest by largest remainder."""
    classes, sizes = np.unique(y, return_counts=True)
    exact = count * sizes / len(y)
    take = np.floor(exact).astype(int)
    take[np.argsort(take - exact, kind="stable")[: count - int(take.sum())]] += 1
    chosen = np.zeros(len(y), bool)
    for label, k in zip(classes, take, strict=True):
        chosen[rng.permutation(np.flatnonzero(y == label))[:k]] = True
    return chosen


def split_as_printed(cohort: Cohort, split: str, seed: int) -> Cohort:
    """The federation with test rows set apart where ``split`` is "paper"."""
    one_of(cohort.name, "split", split, "hash", "paper")
    if split == "hash":
        return cohort
    sites = []
    for i, site in enumerate(cohort.sites):
        if site.test is not None:
            raise StudyError(
                f'cohort {cohort.name}: split = "paper" takes the test rows itself; set '
                "test_fraction = 0"
            )
        y = np.asarray(site.table[cohort.outcome])
        tested = drawn(y, held_out_rows(len(y)), np.random.default_rng([seed, 0x5B_117, i]))
        test = rows(site.table, tested) if tested.any() else None
        sites.append(replace(site, table=rows(site.table, ~tested), test=test))
    return replace(cohort, sites=tuple(sites))


DOWNLOADS = tomllib.loads(Path(__file__).with_name("public.toml").read_text("utf-8"))["downloads"]
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
    return real_data(name, DOWNLOADS[name])


def heart(
    seed: int, *, zero_cholesterol: str = "missing", missing: str = "indicator", split: str = "hash"
) -> Cohort:
    """The UCI heart disease data at the four hospitals that collected them (Detrano et al. 1989);
    outcome: target > 0.

    A cholesterol or a resting pressure of 0 is nobody's: it stands for a missing value.
    ``zero_cholesterol = "recorded"`` leaves it in, as the files have it. ``missing = "fill"`` fills
    missing values without marking them. ``split = "paper"`` sets test patients apart as iFedAvg's
    authors do.
    """
    one_of("heart", "missing", missing, "indicator", "fill")
    one_of("heart", "zero_cholesterol", zero_cholesterol, "missing", "recorded")
    folder = data_folder("heart_uci")
    sites = []
    for key, (name, region) in HOSPITALS.items():
        path = folder / f"processed.{key}.data.csv"
        try:
            with path.open(encoding="utf-8", newline="") as file:
                read = list(csv.DictReader(file))
        except OSError as error:
            raise DataError(
                f"{path} cannot be read: {error}; it is part of: {DOWNLOADS['heart_uci']}"
            ) from None
        table: Columns = {"patient_id": np.array([f"{key}-{i}" for i in range(len(read))])}
        for column in HEART.features:
            table[column] = np.array([_number(row[column]) for row in read])
        impossible = ("chol", "trestbps") if zero_cholesterol == "missing" else ("trestbps",)
        for column in impossible:
            table[column] = np.where(table[column] == 0, np.nan, table[column])
        table["high_risk"] = np.array([int(float(row["target"]) > 0) for row in read])
        sites.append(CohortSite(name, region, table))
    schema = HEART.model_copy(update={"missing": missing})
    words = "920 patients of four hospitals, UCI heart disease"
    whole = Cohort("heart", "high_risk", schema, tuple(sites), words, generated=False)
    return split_as_printed(whole, split, seed)


def _number(text: str) -> float:
    return float("nan") if text.strip() in ("", "?") else float(text)


def har(seed: int, *, activities: int = 6, split: str = "hash") -> Cohort:
    """Activity from a smartphone's sensors, 30 people, each a site; 6 or all 12 activities (HAPT).

    Bounds are the columns' smallest and largest values: the table is public, and no promise is made
    about it. A window is its own unit, and neighbouring windows overlap by half, so a random split
    is easier than new people would be.
    """
    if activities not in (6, 12):
        raise StudyError(f"cohort har: activities must be 6 or 12, found {activities}")
    with np.load(data_folder("har") / "hapt_features.npz", allow_pickle=False) as archive:
        x, person, activity = (archive[key] for key in ("X", "subject", "activity"))
        names = [str(name) for name in archive["feature_names"]]
    keep = activity <= activities
    labels = np.array(ACTIVITIES)[activity[keep] - 1]
    words = f"{keep.sum():,} windows of 30 people, {activities} activities (HAPT)"
    whole = _by_owner(("har", "activity", "subject"), x[keep], names, person[keep], labels, words)
    return split_as_printed(replace(whole, classes=ACTIVITIES[:activities]), split, seed)


def vsn(seed: int, *, split: str = "hash") -> Cohort:
    """Vehicles, told apart by acoustic and seismic sensors (Duarte and Hu 2004), each a site.

    The columns are standardised per sensor already. Some sensors have fewer than ten rows.
    """
    with np.load(data_folder("vsn") / "vsn_ditto_train.npz", allow_pickle=False) as archive:
        x, y, sensor = archive["X"].astype(np.float64), archive["y"], archive["sensor"]
    names = [f"acoustic {i}" if i < 50 else f"seismic {i - 50}" for i in range(x.shape[1])]
    passed, words = (y > 0).astype(np.int8), f"{len(x):,} rows of 23 sensors"
    whole = _by_owner(("vsn", "vehicle", "sensor"), x, names, sensor, passed, words)
    return split_as_printed(whole, split, seed)


def _by_owner(
    called: tuple[str, str, str],
    x: NDArray[np.float32] | NDArray[np.float64],
    names: list[str],
    owner: NDArray[np.int64],
    y: NDArray[np.generic],
    words: str,
) -> Cohort:
    """One site per owner (a person, a sensor). Bounds are each column's smallest and largest."""
    name, outcome, kind = called
    x = x.astype(np.float64)
    low, high = x.min(axis=0), x.max(axis=0)
    bounds = zip(names, low, np.where(high > low, high, low + 1), strict=True)
    features = {column: Number(low=float(a), high=float(b)) for column, a, b in bounds}
    sites = []
    for number in np.unique(owner):
        mine = owner == number
        table: Columns = {column: x[mine, i] for i, column in enumerate(names)}
        sites.append(CohortSite(f"{kind} {number:02d}", "", {**table, outcome: y[mine]}))
    schema = Schema(missing="refuse", features=dict(features))
    return Cohort(name, outcome, schema, tuple(sites), words, generated=False)


EICU_UNITS = (*UNITS, "CTICU", "CSICU")


def _eicu_schema() -> Schema:
    """The generated cohort's declarations; everything may be missing here."""
    known = ICU.features
    features: dict[str, Feature] = {
        "age": known["age"],
        "sex": Category(values=("Female", "Male"), label="Sex", protected=True, missing="fill"),
        "ethnicity": known["ethnicity"],
        "bmi": known["bmi"],
    }
    for name in VITALS:
        for key in ("mean", "min", "max", "std"):
            # One mark of absence for a sign is enough: its mean is missing when the others are.
            rule = {"missing": None if key == "mean" else "fill"}
            features[f"{name}_{key}"] = known[f"{name}_{key}"].model_copy(update=rule)
    features |= {name: known[name] for name in (*LABS, "gcs")}
    features["unit_type"] = known["unit_type"].model_copy(update={"values": EICU_UNITS})
    features |= {name: known[name] for name in ("teaching", "region", "beds")}
    return Schema(patient="patient_id", groups=("sex", "ethnicity"), features=features)


EICU = _eicu_schema()


def eicu(
    seed: int, *, folder: str = "eicu_demo", least: int = 5, test_fraction: float = 0.0
) -> Cohort:
    """The hospitals with at least ``least`` patients. ``seed`` is not used.

    With ``test_fraction`` that share of each hospital's patients is set apart by
    `evaluation.holdout`'s hash, not here: real patients are never generated afresh.
    """
    within("eicu", "least", least, 1)
    table = stays(real_data(folder))
    names = table.pop("hospital").astype(str)
    hospitals, counts = np.unique(names, return_counts=True)
    members = []
    for hospital in sorted(hospitals[counts >= least], key=int):
        own = rows(table, names == hospital)
        region = next((str(text) for text in own["region"] if text), "")
        members.append(CohortSite(f"hospital-{hospital}", region, own))
    if not members:
        raise DataError(f"cohort eicu: no hospital has {least} patients or more")
    patients = sum(len(site.table["age"]) for site in members)
    words = f"eICU: {patients:,} real, de-identified patients at {len(members)} hospitals."
    return Cohort("eicu", OUTCOME, EICU, tuple(members), words, generated=False)


# --- PhysioNet 2012, Framingham ---------------------------------------------------------------------------------------

_READINGS = {
    name: Path(__file__).with_name(f"{name}.csv") for name in ("physionet2012", "framingham")
}
_ENDS = {"min": "lowest", "max": "highest", "last": "last"}
_TYPES = ("Coronary", "Cardiac surgery", "Medical", "Surgical")
_SEX = Category(values=("F", "M"), label="Sex", protected=True, missing="fill")


def _readings(name: str) -> dict[str, tuple[str, Number]]:
    """The columns of a published set and what is declared of them: round figures of physiology."""
    with _READINGS[name].open(encoding="utf-8", newline="") as file:
        read = list(csv.DictReader(file))
    found: dict[str, tuple[str, Number]] = {}
    for one in read:
        normal, below, above = (
            tuple(map(float, one[key].split())) for key in ("normal", "below", "above")
        )
        about: dict[str, object] = {key: one[key] for key in ("low", "high", "unit", "label")}
        about |= {"normal": normal} if normal else {}
        about |= {"thresholds": {"low": below, "high": above}} if below or above else {}
        found[one["name"]] = (one["parameters"], Number.model_validate(about))
    return found


def physionet(seed: int, *, sites: int = 12) -> Cohort:
    """The first 48 hours of 8,000 adult stays (Challenge 2012, sets a and b); outcome: died in
    hospital."""
    folder = data_folder("physionet2012")
    features: dict[str, Feature] = {
        "age": Number(low=15, high=90, unit="years", label="Age"),
        "sex": _SEX,
        "weight": Number(low=30, high=250, unit="kg", label="Weight"),
        "unit_type": Category(values=_TYPES, label="Unit", missing="fill"),
        "ventilated": Flag(label="Ventilated"),
    }
    wanted = []
    for name, (_, number) in _readings("physionet2012").items():
        for end, word in _ENDS.items():
            more = {
                "label": f"{number.label}, {word}",
                "missing": None if end == "last" else "fill",
            }
            features[f"{name}_{end}"] = number.model_copy(update=more)
            wanted.append(f"any_value({end}) FILTER (name = '{name}') AS {name}_{end}")
    fixed = {"age": "Age", "gender": "Gender", "kind": "ICUType", "weight": "Weight"}
    about = ", ".join(
        f"arg_min(value, minute) FILTER (parameter = '{parameter}' AND value >= 0) AS {name}"
        for name, parameter in fixed.items()
    )
    table = queried(
        f"""WITH events AS (FROM read_parquet($events)),
        known AS (SELECT *, unnest(string_split(parameters, ' ')) AS parameter FROM
          read_csv($known)),
        one AS (SELECT record, name, min(value) AS min, max(value) AS max,
          arg_max(value, minute + value / 1e6) AS last FROM events JOIN known USING (parameter)
          WHERE value BETWEEN low AND high GROUP BY record, name),
        charted AS (SELECT record, {", ".join(wanted)} FROM one GROUP BY record),
        fixed AS (SELECT record, {about}, (count(*) FILTER (parameter = 'MechVent') > 0)::TINYINT
          AS ventilated FROM events GROUP BY record)
        SELECT record AS patient_id, * EXCLUDE (record, RecordID, died), died AS {OUTCOME} FROM fixed
        LEFT JOIN charted USING (record) JOIN (SELECT RecordID, "In-hospital_death" AS died
          FROM read_csv($outcomes)) ON RecordID = record
        ORDER BY record""",
        folder,
        DOWNLOADS["physionet2012"],
        files={
            "events": folder / "events.parquet",
            "outcomes": folder / "outcomes.csv",
            "known": _READINGS["physionet2012"],
        },
    )
    gender, kind = table.pop("gender"), table.pop("kind")
    table["sex"] = np.select([gender == 0, gender == 1], ["F", "M"], "").astype(object)
    table["unit_type"] = np.array(_TYPES)[kind.astype(int) - 1]
    words = (
        "PhysioNet 2012: the first 48 hours of {:,} real stays, dealt out at random to {} sites."
    )
    return _dealt("physionet", features, table, OUTCOME, sites, words)


def framingham(seed: int, *, sites: int = 5) -> Cohort:
    """The first examination of people free of cardiovascular disease; outcome: a cardiovascular
    event within ten years."""
    import pandas as pd

    path, readings = data_folder("framingham") / "framingham.csv.gz", _readings("framingham")
    features: dict[str, Feature] = {name: number for name, (_, number) in readings.items()}
    features |= {"sex": _SEX, "diabetic": Flag(label="Diabetic")}
    features["treated"] = Flag(label="Drugs against high blood pressure")
    try:
        read = pd.read_csv(path)
        free = (read[["PREVCHD", "PREVSTRK"]].sum(axis=1) == 0) & (read["TIMECVD"] > 0)
        first = read[free & (read["PERIOD"] == 1)].sort_values("RANDID")
        flags = {"patient_id": "RANDID", "diabetic": "DIABETES", "treated": "BPMEDS"}
        columns = flags | {name: column for name, (column, _) in readings.items()}
        table: Columns = {name: first[column].to_numpy() for name, column in columns.items()}
        event = (first["CVD"] == 1) & (first["TIMECVD"] <= 3652)
        table["sex"] = np.where(first["SEX"] == 2, "F", "M")
    except (OSError, KeyError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read ({type(error).__name__}); it is: {DOWNLOADS['framingham']}"
        ) from None
    table["cvd_in_10_years"] = event.to_numpy(np.int8)
    words = (
        "Framingham: {:,} real people at their first examination, dealt out at random to {} sites."
    )
    return _dealt("framingham", features, table, "cvd_in_10_years", sites, words)


def _dealt(
    name: str, features: dict[str, Feature], table: Columns, outcome: str, sites: int, words: str
) -> Cohort:
    """People dealt out at random; values outside the declared bounds are nobody's."""
    count = len(table[outcome])
    within(name, "sites", sites, 1, count)
    for key, feature in features.items():
        if isinstance(feature, Number):
            value = table[key].astype(np.float64)
            possible = (value >= feature.low) & (value <= feature.high)
            table[key] = np.where(possible, value, np.nan)
    deal = _evenly(count, sites, np.random.default_rng(2012))
    members = [CohortSite(f"site-{i + 1:02d}", "", rows(table, own)) for i, own in enumerate(deal)]
    schema = Schema(patient="patient_id", groups=("sex",), features=features)
    described = words.format(count, sites)
    return Cohort(name, outcome, schema, tuple(members), described, generated=False)


# --- PneumoniaMNIST ---------------------------------------------------------------------------------------------------

SPLITS = {
    "iid": "evenly",
    "label": "with uneven shares of each class",
    "scanner": "evenly, each with a scanner's look",
}
SIDE = 28
SKEW = 0.5
"""Weight of the Dirichlet behind ``split = "label"``: the smaller, the more hospitals differ."""
FEWEST = 20  # training pictures that a hospital has at least
RADIOGRAPH = Image(size=SIDE, label="Chest radiograph")


def pneumonia(seed: int, *, hospitals: int = 10, split: str = "iid", part: str = "test") -> Cohort:
    """The federation. ``split``: "iid"; "label" (each class dealt out unevenly); "scanner" (iid, and
    each hospital's pictures, training and test, have one of the looks of cohort `radiographs`)."""
    one_of("pneumonia", "split", split, *SPLITS)
    one_of("pneumonia", "part", part, "test", "validation")
    within("pneumonia", "hospitals", hospitals, 1, 50)
    images, labels = _part("train")
    tested, tested_labels = _part("val" if part == "validation" else "test")
    rng = np.random.default_rng(0x9E0)
    skewed = split == "label"
    deal = _by_label(labels, hospitals, rng) if skewed else _evenly(len(labels), hospitals, rng)
    test_deal = _evenly(len(tested_labels), hospitals, rng)
    members = []
    for i, (mine, test) in enumerate(zip(deal, test_deal, strict=True)):
        shown, shown_test = images[mine], tested[test]
        if split == "scanner":
            look, noise = LOOKS[i % len(LOOKS)], np.random.default_rng([0x9E0, i])
            shown, shown_test = (
                in_bytes(scanned(some.astype(np.float32) / np.float32(255), look, noise))
                for some in (shown, shown_test)
            )
        table = {"patient_id": _names("train", mine), "image": shown, "pneumonia": labels[mine]}
        names, truth = _names(part, test), tested_labels[test]
        held = {"patient_id": names, "image": shown_test, "pneumonia": truth}
        members.append(CohortSite(f"hospital-{i + 1:02d}", "", table, held))
    words = (
        f"PneumoniaMNIST: {len(labels):,} real radiographs dealt out to {hospitals} hospitals, "
        f"{SPLITS[split]}; tested on the official {part} part"
    )
    schema = Schema(patient="patient_id", features={"image": RADIOGRAPH})
    return Cohort("pneumonia", "pneumonia", schema, tuple(members), words, generated=False)


def public_images(size: int) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
    """The training and validation parts, scaled to ``size``, to start networks from.

    Bilinear, because 28 pixels do not divide evenly into other sizes.
    """
    from scipy.ndimage import zoom

    parts = [_part(name) for name in ("train", "val")]
    shown = np.concatenate([images for images, _ in parts]).astype(np.float32) / 255
    scaled = zoom(shown, (1, size / SIDE, size / SIDE), order=1, grid_mode=True, mode="nearest")
    return np.asarray(scaled, np.float32), np.concatenate([labels for _, labels in parts])


def _names(part: str, index: NDArray[np.intp]) -> NDArray[np.str_]:
    return np.array([f"{part}-{i}" for i in index.tolist()])


def _part(name: str) -> tuple[NDArray[np.uint8], NDArray[np.int8]]:
    path = data_folder("pneumoniamnist") / "pneumoniamnist_28.npz"
    try:
        with np.load(path, allow_pickle=False) as archive:
            images, labels = archive[f"{name}_images"], archive[f"{name}_labels"]
    except (OSError, KeyError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read ({type(error).__name__}); it is: {DOWNLOADS['pneumoniamnist']}"
        ) from None
    return np.asarray(images, np.uint8), np.asarray(labels, np.int8).reshape(-1)


def _evenly(count: int, hospitals: int, rng: np.random.Generator) -> list[NDArray[np.intp]]:
    return [np.sort(some) for some in np.array_split(rng.permutation(count), hospitals)]


def _by_label(
    labels: NDArray[np.int8], hospitals: int, rng: np.random.Generator
) -> list[NDArray[np.intp]]:
    """Each class dealt out by shares of its own, drawn anew until no hospital is too small."""
    while True:
        parts: list[list[NDArray[np.intp]]] = [[] for _ in range(hospitals)]
        for value in (0, 1):
            mine = rng.permutation(np.flatnonzero(labels == value))
            shares = np.cumsum(rng.dirichlet(np.full(hospitals, SKEW)))
            ends = np.rint(shares * len(mine)).astype(int)
            for i, some in enumerate(np.split(mine, ends[:-1])):
                parts[i].append(some)
        deal = [np.sort(np.concatenate(some)) for some in parts]
        if min(map(len, deal)) >= FEWEST:
            return deal
