"""Does `suture interop` hold its promise on real tables? ``python benchmarks/real_splits.py [--splits
250] [--wide] [--faults]``

PhysioNet 2012 (8,000 stays; lowest, last and highest value of 37 parameters) and Framingham (4,434
first examinations) are dealt into 12 sites at random, again and again. No site differs, so every
finding is a false alarm. The page promises at most 1 report in 100 with any; of 500 reports a true
1 % gives more than 11 one time in 200, and then this ends with exit code 1. ``--wide`` declares
bounds a hundred times too wide, as a hurried person might. ``--faults`` plants six faults in each of
a few splits and says what was found first.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import duckdb
import numpy as np

from suture.interop.evidence import findings, flags
from suture.schema.table import Category, Flag, Number, Schema
from suture.site.preprocess import MISSING
from suture.site.profile import take

SITES = 12
BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"
DATA = Path(os.environ.get("SUTURE_DATA", BESIDE))
BOUNDS = {
    "ALP": (0, 1500), "ALT": (0, 5000), "AST": (0, 5000), "Albumin": (0.5, 7), "BUN": (0, 200),
    "Bilirubin": (0, 50), "Cholesterol": (20, 600), "Creatinine": (0, 20), "DiasABP": (10, 200),
    "FiO2": (0.2, 1), "GCS": (3, 15), "Glucose": (10, 1000), "HCO3": (2, 60), "HCT": (5, 70),
    "HR": (10, 250), "K": (1, 10), "Lactate": (0, 30), "MAP": (10, 250), "MechVent": (0, 1),
    "Mg": (0, 10), "NIDiasABP": (10, 200), "NIMAP": (10, 250), "NISysABP": (30, 300),
    "Na": (100, 180), "PaCO2": (5, 150), "PaO2": (10, 600), "Platelets": (0, 1500),
    "RespRate": (2, 80), "SaO2": (30, 100), "SysABP": (30, 300), "Temp": (25, 44),
    "TroponinI": (0, 50), "TroponinT": (0, 25), "Urine": (0, 3000), "WBC": (0, 200), "pH": (6.5, 8),
    "Weight": (20, 300),
}  # fmt: skip


def number(low, high, wide):
    """A column's bounds, stretched a hundredfold where asked."""
    reach = 50 * (high - low) if wide else 0
    return Number(low=low - reach, high=high + reach)


def physionet(wide):
    """One row per stay: lowest, last and highest value of every parameter."""
    folder = DATA / "physionet2012"
    parts = ", ".join(
        f"min(value) FILTER (parameter = '{name}') AS \"{name} lowest\", "
        f"arg_max(value, minute) FILTER (parameter = '{name}') AS \"{name} last\", "
        f"max(value) FILTER (parameter = '{name}') AS \"{name} highest\""
        for name in BOUNDS
    )
    once = ", ".join(
        f"max(value) FILTER (parameter = '{name}') AS {name}"
        for name in ("Age", "Gender", "Height", "ICUType")
    )
    found = duckdb.sql(
        f'SELECT {parts}, {once}, any_value("In-hospital_death") AS died FROM (SELECT * FROM '
        f"'{folder}/events.parquet' WHERE value <> -1) e JOIN '{folder}/outcomes.csv' o "
        "ON e.record = o.RecordID GROUP BY e.record ORDER BY e.record"
    ).fetchnumpy()
    features = {
        f"{name} {kind}": number(*bounds, wide)
        for name, bounds in BOUNDS.items()
        for kind in ("lowest", "last", "highest")
    }
    features |= {"Age": number(15, 100, wide), "Height": number(100, 230, wide), "Gender": Flag()}
    features["ICUType"] = Category(values=("1", "2", "3", "4"))
    return _typed(found, features, "died", {"ICUType": 1})


def framingham(wide):
    """One row per person: the first examination."""
    file = DATA / "framingham" / "framingham.csv.gz"
    found = duckdb.sql(f"SELECT * FROM read_csv('{file}') WHERE PERIOD = 1").fetchnumpy()
    bounds = {
        "TOTCHOL": (80, 700), "AGE": (18, 110), "SYSBP": (50, 300), "DIABP": (20, 180),
        "CIGPDAY": (0, 100), "BMI": (10, 70), "HEARTRTE": (20, 220), "GLUCOSE": (20, 600),
    }  # fmt: skip
    features = {name: number(*pair, wide) for name, pair in bounds.items()}
    yes = ("CURSMOKE", "DIABETES", "BPMEDS", "PREVCHD", "PREVAP", "PREVMI", "PREVSTRK", "PREVHYP")
    features |= dict.fromkeys(yes, Flag())
    features |= {"SEX": Category(values=("1", "2")), "educ": Category(values=("1", "2", "3", "4"))}
    return _typed(found, features, "CVD", {"SEX": 1, "educ": 1})


def _typed(found, features, outcome, first):
    columns = {}
    for name, feature in features.items():
        raw = np.ma.filled(np.ma.asarray(found[name], np.float64), np.nan)
        codes = np.nan_to_num(raw - first.get(name, 0), nan=MISSING).astype(np.int16)
        columns[name] = raw if isinstance(feature, Number) else codes
    return columns, np.asarray(found[outcome], np.int32), Schema(features=features)


def deal(columns, y, schema, seed, spoil=None):
    """Profiles of a random 12-way split; ``spoil`` changes one site's columns and outcome."""
    rng = np.random.default_rng([2026, seed])
    dealt = np.array_split(rng.permutation(len(y)), SITES)
    profiles = {}
    for i, rows in enumerate(dealt):
        mine, outcome = {name: values[rows] for name, values in columns.items()}, y[rows]
        if spoil and i == 3:
            mine, outcome = spoil(dict(mine), outcome, rng)
        starts = np.arange(len(rows) + 1)
        profiles[f"site-{i:02d}"] = take(mine, outcome, starts, schema, 2, False)
    return profiles


TABLES = {"physionet2012": physionet, "framingham": framingham}
COLUMNS = {
    "physionet2012": {
        "unit": ("Creatinine last", 88.42), "degrees": "Temp last", "calibration": "Na last",
        "code": "HCO3 last", "deaths only": "Lactate last", "swap": ("SysABP last", "DiasABP last"),
    },
    "framingham": {
        "unit": ("TOTCHOL", 1 / 38.67), "calibration": "SYSBP", "code": "GLUCOSE",
        "deaths only": "BMI", "swap": ("SYSBP", "DIABP"),
    },
}  # fmt: skip


def faults(columns):
    """For each fault: the site's columns and outcome with it, where it is, and what it is called."""

    def changed(name, change):
        return lambda mine, y, rng: ({**mine, name: change(mine[name], y, rng)}, y)

    found = {
        "flipped label": (lambda mine, y, rng: (mine, 1 - y), "outcome", "outcome turned round")
    }
    name, factor = columns["unit"]
    found["unit"] = (changed(name, lambda v, y, rng: v * factor), name, "unit or scale")
    if name := columns.get("degrees"):
        fault = changed(name, lambda v, y, rng: v * 1.8 + 32)
        found["Fahrenheit"] = (fault, name, "unit or scale")
    name = columns["calibration"]
    fault = changed(name, lambda v, y, rng: v + 1.2 * np.nanstd(v))
    found["calibration"] = (fault, name, "shifted")
    name = columns["code"]
    fault = changed(name, lambda v, y, rng: np.where(rng.random(len(v)) < 0.15, -999, v))
    found["sentinel"] = (fault, name, "code for missing")
    name = columns["deaths only"]
    fault = changed(name, lambda v, y, rng: np.where(y == 1, v, np.nan))
    found["deaths only"] = (fault, name, "recorded by outcome")
    a, b = columns["swap"]
    fault = lambda mine, y, rng: ({**mine, a: mine[b], b: mine[a]}, y)  # noqa: E731
    found["swap"] = (fault, a, "columns swapped")
    return found


def planted(name, columns, y, schema, splits):
    """One JSON object per fault: how often it came first under its right name, and what the first
    report said."""
    for fault, (spoil, where, kind) in faults(COLUMNS[name]).items():
        first, extra, said = 0, 0, ""
        partner = COLUMNS[name]["swap"] if fault == "swap" else (where,)
        for seed in range(splits):
            profiles = deal(columns, y, schema, seed, spoil)
            found = findings(flags(profiles, schema), schema, profiles)
            hit = found and (found[0].site, found[0].kind) == ("site-03", kind)
            first += bool(hit and found[0].feature in partner)
            extra += sum(
                (f.site, f.feature) not in {("site-03", one) for one in partner} for f in found
            )
            said = said or (f"{found[0].means} {found[0].detail}" if found else "nothing")
        row = {"table": name, "fault": fault, "splits": splits, "first and named": first}
        print(
            json.dumps({**row, "other findings": extra, "says": said}, ensure_ascii=False),
            flush=True,
        )


def main():
    """One JSON object per table, then the verdict."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--splits", type=int, default=250)
    asked.add_argument("--wide", action="store_true")
    asked.add_argument("--faults", action="store_true")
    asked = asked.parse_args()
    bad = 0
    for name, table in TABLES.items():
        columns, y, schema = table(asked.wide)
        if asked.faults:
            planted(name, columns, y, schema, asked.splits)
            continue
        alarms, kinds = 0, {}
        for seed in range(asked.splits):
            profiles = deal(columns, y, schema, seed)
            found = findings(flags(profiles, schema), schema, profiles)
            alarms += bool(found)
            for item in found:
                key = f"{item.feature}: {item.kind}"
                kinds[key] = kinds.get(key, 0) + 1
        bad += alarms
        line = {
            "table": name,
            "columns": len(columns),
            "splits": asked.splits,
            "with a finding": alarms,
        }
        print(json.dumps({**line, "which": kinds}), flush=True)
    return 1 if bad > 11 else 0


if __name__ == "__main__":
    sys.exit(main())
