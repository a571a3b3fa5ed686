"""eICU as a federation of its own hospitals: real, de-identified patients (open access demo, or the full database).

Built by `suture.site.eicu`; the schema is that of the generated `icu` cohort for what both have, so that a study file
works on either. Vital signs and tests that were not charted are missing and marked. Values outside the declared bounds are
clipped, as everywhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from suture.cohorts.cohort import Cohort, CohortSite
from suture.cohorts.icu import BEDS, ETHNICITIES, OUTCOME, REGIONS
from suture.cohorts.icu import SCHEMA as GENERATED
from suture.errors import DataError, StudyError
from suture.site.eicu import LABS, VITALS, data_folder, stays
from suture.site.schema import Category, Flag, Schema

UNITS = ("Med-Surg ICU", "MICU", "SICU", "CCU-CTICU", "Neuro ICU", "Cardiac ICU", "CTICU", "CSICU")


def _schema() -> Schema:
    """The generated cohort's declarations; everything may be missing here."""
    known = GENERATED.features
    marked = {"missing": None}
    features: dict[str, Any] = {
        "age": known["age"],
        "sex": Category(values=("Female", "Male"), label="Sex", protected=True, missing="fill"),
        "ethnicity": Category(values=ETHNICITIES, label="Ethnicity", protected=True, missing="fill"),
        "bmi": known["bmi"],
    }
    for name in VITALS:
        for key in ("mean", "min", "max", "std"):
            # One mark of absence for a sign is enough: its mean is missing when the others are.
            rule = marked if key == "mean" else {"missing": "fill"}
            features[f"{name}_{key}"] = known[f"{name}_{key}"].model_copy(update=rule)
    features |= {name: known[name] for name in (*LABS, "gcs")}
    features |= {
        "unit_type": Category(values=UNITS, label="Unit", proxy=True, missing="fill"),
        "teaching": Flag(label="Teaching hospital", proxy=True, missing="fill"),
        "region": Category(values=REGIONS, label="Region", proxy=True, missing="fill"),
        "beds": Category(values=BEDS, label="Hospital beds", proxy=True, missing="fill"),
    }
    return Schema(patient="patient_id", groups=("sex", "ethnicity"), features=features)


SCHEMA = _schema()


def eicu(seed: int, *, folder: str = "eicu_demo", least: int = 5, test_fraction: float = 0.0) -> Cohort:
    """The hospitals with at least ``least`` patients. ``seed`` is not used: the patients are who they are.

    With ``test_fraction`` the given share of each hospital's patients is set apart by `evaluation.holdout`'s hash, not
    here: real patients are never generated afresh.
    """
    if least < 1:
        raise StudyError(f"cohort eicu: least must be at least 1, found {least}")
    table = stays(data_folder(folder))
    hospitals, counts = np.unique(table["hospital"].astype(str), return_counts=True)
    members = []
    for hospital in sorted(hospitals[counts >= least], key=int):
        rows = table["hospital"].astype(str) == hospital
        columns = {name: column[rows] for name, column in table.items() if name != "hospital"}
        region = next((str(text) for text in columns["region"] if text), "")
        members.append(CohortSite(f"hospital-{hospital}", region, columns))
    if not members:
        raise DataError(f"cohort eicu: no hospital has {least} patients or more")
    patients = sum(len(site.table["age"]) for site in members)
    return Cohort(
        name="eicu",
        outcome=OUTCOME,
        schema=SCHEMA,
        sites=tuple(members),
        description=f"eICU: {patients:,} real, de-identified patients at {len(members)} hospitals.",
        generated=False,
    )
