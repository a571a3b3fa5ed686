"""Private Cox regression beside the exact one: C-index on held-out people, five sites, five folds.

    SURVSET=unpacked python benchmarks/cox.py --tables framingham flchain rhc --epsilon 1 --repeats 8

Framingham comes from SUTURE_DATA or ../shared/data; `rhc` and `flchain` from the wheel SurvSet 0.2.11
(PyPI), unpacked in the folder that SURVSET names. Every repeat is another random deal of the patients
to folds and sites, with fresh noise. No setting differs between tables. The exact references hold all
rows: Cox's regression with Efron's ties on plain columns, and on the terms that the method fits.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from additive import SURVSET, categories, flchain, interval, rhc
from scipy.linalg import qr

import suture
from suture.cohorts.public import _readings, data_folder
from suture.evaluation.survival import concordance, cox
from suture.models.concepts import terms
from suture.schema.outcome import Survival
from suture.schema.table import Category, Flag, Schema
from suture.site.reading import encode_rows
from suture.study import Study

SITES, FOLDS = 5, 5


@dataclass(frozen=True)
class Followed:
    """People with follow-up in ``time`` and an event in ``event``."""

    name: str
    frame: pd.DataFrame
    schema: Schema
    horizon: float

    @property
    def outcome(self) -> Survival:
        return Survival(time="time", event="event", horizon=self.horizon, intervals=20)


def framingham() -> Followed:
    """First examinations of people without cardiovascular disease; CVD within 24 years."""
    read = pd.read_csv(data_folder("framingham") / "framingham.csv.gz")
    first = read[(read["PERIOD"] == 1) & (read["TIMECVD"] > 0)]
    readings = _readings("framingham")
    features: dict[str, Any] = {name: number for name, (_, number) in readings.items()}
    features |= {"sex": Category(values=("1", "2")), "diabetic": Flag(), "treated": Flag()}
    columns = {"patient": "RANDID", "sex": "SEX", "diabetic": "DIABETES", "treated": "BPMEDS",
               "time": "TIMECVD", "event": "CVD"}  # fmt: skip
    columns |= {name: column for name, (column, _) in readings.items()}
    frame = pd.DataFrame({name: first[column].to_numpy() for name, column in columns.items()})
    return Followed("framingham", frame, Schema(patient="patient", features=features), 8766)


def survset(name: str, horizon: float, schema: Schema) -> Followed:
    """A table of SurvSet with its own follow-up; the columns and bounds of benchmarks/additive.py."""
    found = pd.read_pickle(SURVSET / "SurvSet" / "resources" / "pickles" / f"{name}.pickle")
    columns = ["pid", "time", "event", *schema.features]
    frame = found[columns].rename(columns={"pid": "patient"}).reset_index(drop=True)
    declared = {**schema.features, **categories(frame)}
    return Followed(name, frame, schema.model_copy(update={"features": declared}), horizon)


TABLES = {
    "framingham": framingham,
    "flchain": lambda: survset("flchain", 5250, flchain().schema),
    "rhc": lambda: survset("rhc", 2000, rhc().schema),
}


def independent(x: np.ndarray) -> np.ndarray:
    """Columns that are not sums of others, so that the exact fit has one answer."""
    _, r, order = qr(x - x.mean(axis=0), mode="economic", pivoting=True)
    rank = int(np.count_nonzero(np.abs(np.diag(r)) > 1e-6 * abs(r[0, 0])))
    return np.sort(order[:rank])


def exact(table: Followed, train: pd.DataFrame, test: pd.DataFrame, *, shaped: bool) -> float:
    """The C-index of Cox's regression by someone who holds all rows."""
    x, q = (
        encode_rows({c: part[c].to_numpy() for c in table.schema.features}, table.schema)
        for part in (train, test)
    )
    if shaped:
        x, q = (terms(table.schema).matrix(part) for part in (x, q))
    kept = independent(x.astype(float))
    beta, _, _ = cox(
        x[:, kept].astype(float), train["time"].to_numpy(float), train["event"].to_numpy() == 1
    )
    time, event = test["time"].to_numpy(float), test["event"].to_numpy() == 1
    return concordance(time, event, q[:, kept].astype(float) @ beta) or 0.0


def private(
    table: Followed, train: pd.DataFrame, test: pd.DataFrame, epsilon: float, seed: int, sum_: str
) -> dict[str, float]:
    """One run of the real engine: files, ledgers, noise, masks."""
    with tempfile.TemporaryDirectory() as folder:
        sites = []
        for i in range(SITES):
            for kind, part in (("train", train), ("test", test)):
                part[i::SITES].to_parquet(Path(folder, f"{kind}-{i}.parquet"))
            sites.append(
                {"name": f"s{i}", "data": f"train-{i}.parquet", "test": f"test-{i}.parquet"}
            )
        protection = {"sum": sum_, "threshold": 0.9} if sum_ == "masked" else {"sum": sum_}
        study = Study(
            name=table.name, outcome=table.outcome, seed=seed, simulation=True, sites=sites,
            schema=table.schema, method={"name": "recommended"}, protection=protection,
            privacy={"unit": "patient", "epsilon": epsilon}, evaluation={"every": 1000},
        )  # fmt: skip
        found = suture.run(study, base=folder)
    return dict(found.data["methods"][study.method.name]["metrics"]["global"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--epsilon", nargs="+", type=float, default=[1.0])
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--sum", default="trusted", choices=["trusted", "masked"])
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rows: dict[str, dict[str, list[float]]] = {}
    for name in asked.tables:
        table = TABLES[name]()
        found: dict[str, list[float]] = {}
        for repeat in range(asked.repeats):
            order = np.random.default_rng([7, repeat]).permutation(len(table.frame))
            shuffled = table.frame.iloc[order].reset_index(drop=True)
            folds: dict[str, list[float]] = {}
            for fold in range(FOLDS):
                test = np.arange(len(shuffled)) % FOLDS == fold
                parts = (shuffled[~test], shuffled[test])
                folds.setdefault("exact, plain columns", []).append(
                    exact(table, *parts, shaped=False)
                )
                folds.setdefault("exact, same terms", []).append(exact(table, *parts, shaped=True))
                for epsilon in asked.epsilon:
                    got = private(table, *parts, epsilon, 100 * repeat + fold, asked.sum)
                    for key in ("c_index", "ibs", "calibration_gap"):
                        folds.setdefault(f"epsilon {epsilon:g}, {key}", []).append(got[key])
            for key, values in folds.items():
                found.setdefault(key, []).append(float(np.mean(values)))
            print(name, repeat, {k: round(v[-1], 4) for k, v in found.items()}, flush=True)
        rows[name] = found
        for key, values in found.items():
            print(f"{name:11} {key:28} {interval(values)}", flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
