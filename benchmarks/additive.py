"""The additive method on real and generated tables, beside its references: the tables of
docs/additive.md.

    python benchmarks/additive.py auc --tables physionet framingham --epsilon 1 3 --seeds 5
    python benchmarks/additive.py ablation --tables framingham --epsilon 1

PhysioNet 2012 and Framingham come from SUTURE_DATA or ../shared/data; `rhc` and `flchain` from the
wheel SurvSet 0.2.11 (PyPI), unpacked in the folder that SURVSET names. LightGBM and interpret-core
(DP-EBM) are used where they are installed. Every seed is another random 80 / 20 split by patient,
another deal of the patients to the sites, and fresh noise. No setting differs between tables.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd

import suture
from suture.models.concepts import terms
from suture.schema.table import Category, Flag, Number, Schema
from suture.study import Study

DATA = Path(os.environ.get("SUTURE_DATA") or Path(__file__).parents[2] / "shared" / "data")
SURVSET = Path(os.environ.get("SURVSET", "/tmp/surv/wheel"))

# Plausible bounds and adult normal ranges: public knowledge, written down before any run.
SERIES = {
    "ALP": (10, 1500, 40, 130), "ALT": (1, 5000, 5, 40), "AST": (1, 5000, 5, 40),
    "Albumin": (1, 6, 3.5, 5), "BUN": (1, 200, 7, 20), "Bilirubin": (0, 50, 0.2, 1.2),
    "Cholesterol": (30, 400, 120, 200), "Creatinine": (0.1, 20, 0.6, 1.2),
    "DiasABP": (20, 130, 60, 80), "FiO2": (0.21, 1, 0.21, 0.4), "GCS": (3, 15, 14, 15),
    "Glucose": (20, 800, 70, 140), "HCO3": (5, 50, 22, 28), "HCT": (10, 60, 36, 48),
    "HR": (20, 220, 60, 100), "K": (1.5, 10, 3.5, 5), "Lactate": (0.3, 30, 0.5, 2),
    "MAP": (20, 200, 70, 100), "Mg": (0.5, 6, 1.7, 2.4), "NIDiasABP": (20, 130, 60, 80),
    "NIMAP": (20, 200, 70, 100), "NISysABP": (40, 260, 100, 140), "Na": (100, 180, 135, 145),
    "PaCO2": (10, 120, 35, 45), "PaO2": (20, 500, 75, 100), "Platelets": (1, 1200, 150, 400),
    "RespRate": (4, 60, 12, 20), "SaO2": (50, 100, 95, 100), "SysABP": (40, 260, 100, 140),
    "Temp": (30, 42, 36, 37.8), "TroponinI": (0, 50, 0, 0.4), "TroponinT": (0, 25, 0, 0.1),
    "Urine": (0, 1000, 30, 200), "WBC": (0.1, 100, 4, 11), "pH": (6.8, 7.8, 7.35, 7.45),
    "Weight": (30, 250, 50, 100),
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """One table: rows of one patient each, its public schema, and how many sites it is dealt to."""

    name: str
    frame: pd.DataFrame
    schema: Schema
    sites: int
    outcome: str = "outcome"


def number(low: float, high: float, *normal: float) -> Number:
    return Number(low=low, high=high, normal=normal or None)


def physionet() -> Table:
    """Per stay the last, mean, least and largest value of every series of the first 48 hours."""
    file = str(DATA / "physionet2012" / "events.parquet")
    kinds = {"last": "arg_max(value, minute)", "mean": "avg(value)", "min": "min(value)", "max": "max(value)"}  # fmt: skip
    parts = ", ".join(
        f"{sql} FILTER (parameter = '{name}' AND value BETWEEN {low} AND {high}) AS {name}_{kind}"
        for name, (low, high, *_) in SERIES.items()
        for kind, sql in kinds.items()
    )
    still = ", ".join(
        f"max(value) FILTER (parameter = '{name}' AND value >= 0) AS {name}"
        for name in ("Age", "Gender", "Height", "ICUType")
    )
    stays = duckdb.sql(
        f"SELECT record AS patient, {still}, max((parameter = 'MechVent')::INT) AS MechVent, "
        f"{parts} FROM '{file}' GROUP BY record ORDER BY record"
    ).df()
    deaths = pd.read_csv(DATA / "physionet2012" / "outcomes.csv").set_index("RecordID")
    stays["outcome"] = deaths.loc[stays["patient"], "In-hospital_death"].to_numpy()
    features: dict[str, Any] = {
        "Age": number(15, 100), "Height": number(120, 220), "Gender": Flag(),
        "MechVent": Flag(), "ICUType": Category(values=("1", "2", "3", "4")),
    }  # fmt: skip
    for name, bounds in SERIES.items():
        features |= {f"{name}_{kind}": number(*bounds) for kind in kinds}
    return Table("PhysioNet 2012", stays, Schema(patient="patient", features=features), 12)


def framingham() -> Table:
    """First examination, people without CVD before it; CVD within ten years."""
    found = pd.read_csv(DATA / "framingham" / "framingham.csv.gz")
    found = found[(found["PERIOD"] == 1) & (found["PREVCHD"] == 0) & (found["PREVSTRK"] == 0)]
    found = found.assign(
        patient=found["RANDID"],
        outcome=((found["CVD"] == 1) & (found["TIMECVD"] <= 3652.5)).astype(int),
    )
    features: dict[str, Any] = {
        "SEX": Category(values=("1", "2")), "AGE": number(30, 80), "TOTCHOL": number(80, 500, 120, 200),
        "SYSBP": number(80, 260, 100, 130), "DIABP": number(40, 150, 60, 85), "CURSMOKE": Flag(),
        "CIGPDAY": number(0, 70), "BMI": number(14, 60, 18.5, 25), "DIABETES": Flag(),
        "BPMEDS": Flag(), "HEARTRTE": number(40, 150, 60, 100), "GLUCOSE": number(40, 400, 70, 100),
        "educ": Category(values=("1", "2", "3", "4")),
    }  # fmt: skip
    return Table("Framingham", found, Schema(patient="patient", features=features), 5)


def survset(name: str, days: float, drop: tuple[str, ...]) -> pd.DataFrame:
    """A table of SurvSet whose outcome is death within so many days; who was lost before is left
    out."""
    found = pd.read_pickle(SURVSET / "SurvSet" / "resources" / "pickles" / f"{name}.pickle")
    found = found[(found["time"] > days) | (found["event"] == 1)].copy()
    found["outcome"] = ((found["event"] == 1) & (found["time"] <= days)).astype(int)
    found["patient"] = found["pid"]
    return found.drop(columns=["pid", "event", "time", *drop])


def categories(frame: pd.DataFrame) -> dict[str, Any]:
    """Declared values of the text columns: their code books list them."""
    return {
        name: Category(values=tuple(sorted(map(str, frame[name].dropna().unique()))))
        for name in frame.columns
        if name.startswith("fac_")
    }


def rhc() -> Table:
    """Right heart catheterisation (SUPPORT): death within 180 days; sites dealt at random."""
    frame = survset("rhc", 180, ())
    features: dict[str, Any] = {
        "num_age": number(18, 105), "num_edu": number(0, 30), "num_adld3p": number(0, 7),
        "num_surv2md1": number(0, 1), "num_aps1": number(0, 150), "num_scoma1": number(0, 100),
        "num_meanbp1": number(0, 260, 70, 100), "num_wblc1": number(0, 200, 4, 11),
        "num_hrt1": number(0, 250, 60, 100), "num_resp1": number(0, 100, 12, 20),
        "num_temp1": number(27, 43, 36, 37.8), "num_pafi1": number(10, 940, 300, 500),
        "num_alb1": number(0.3, 29, 3.5, 5), "num_hema1": number(2, 70, 36, 48),
        "num_bili1": number(0, 60, 0.2, 1.2), "num_crea1": number(0, 25, 0.6, 1.2),
        "num_sod1": number(100, 180, 135, 145), "num_pot1": number(1, 12, 3.5, 5),
        "num_paco21": number(1, 160, 35, 45), "num_ph1": number(6.5, 7.8, 7.35, 7.45),
        "num_wtkilo1": number(0, 250, 50, 100), "num_urin1": number(0, 9000, 800, 2000),
    }  # fmt: skip
    return Table("rhc", frame, Schema(patient="patient", features=features | categories(frame)), 5)


def flchain() -> Table:
    """Free light chains: death within ten years."""
    frame = survset("flchain", 3652.5, ("fac_chapter", "fac_sample_yr", "num_sample_yr"))
    features: dict[str, Any] = {
        "num_age": number(50, 105), "num_kappa": number(0, 30, 0.33, 1.94),
        "num_lambda": number(0, 30, 0.57, 2.63), "num_flc_grp": number(1, 10),
        "num_creatinine": number(0.1, 20, 0.6, 1.2),
    }  # fmt: skip
    return Table("flchain", frame, Schema(patient="patient", features=features | categories(frame)), 5)  # fmt: skip


TABLES: dict[str, Callable[[], Table]] = {
    "physionet": physionet, "framingham": framingham, "rhc": rhc, "flchain": flchain,
}  # fmt: skip
