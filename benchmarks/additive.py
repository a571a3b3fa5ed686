"""The additive method on real and generated tables, beside its references: the tables of
docs/additive.md.

    python benchmarks/additive.py --tables physionet framingham --epsilon 1 3 --seeds 5

PhysioNet 2012 and Framingham come from SUTURE_DATA or ../shared/data; `rhc` and `flchain` from the
wheel SurvSet 0.2.11 (PyPI), unpacked in the folder that SURVSET names. LightGBM and interpret-core
(DP-EBM) are used where they are installed. Every seed is another random 80 / 20 split by patient,
another deal of the patients to the sites, and fresh noise. No setting differs between tables.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

import suture
from suture import cohorts
from suture.evaluation.metrics import binary, ece
from suture.models.concepts import terms
from suture.schema.table import Category, Number, Schema
from suture.site.reading import encode_rows
from suture.study import Study

SURVSET = Path(os.environ.get("SURVSET", "survset"))
"""Where the wheel of the PyPI package SurvSet is unpacked."""


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


def cohort(name: str, sites: int, **options: Any) -> Table:
    """A ready federation, all of its patients together."""
    found = cohorts.load(name, 42, **options)
    columns = {
        key: np.concatenate([site.table[key] for site in found.sites])
        for key in found.sites[0].table
    }
    frame = pd.DataFrame(columns).rename(
        columns={"patient_id": "patient", found.outcome: "outcome"}
    )
    schema = found.schema.model_copy(update={"patient": "patient", "groups": ()})
    return Table(name, frame, schema, sites)


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
    "physionet": lambda: cohort("physionet", 12),
    "framingham": lambda: cohort("framingham", 5),
    "rhc": rhc,
    "flchain": flchain,
    "icu": lambda: cohort("icu", 20, patients=20_000),
    "cardio": lambda: cohort("cardio", 5, patients=10_000),
}

MASKED = {"sum": "masked", "threshold": 0.9}
"""As `suture init` writes it: all sites but a tenth must stay in a sum."""
ARMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "recommended, masked": ({"name": "recommended"}, MASKED),
    "recommended, trusted sum": ({"name": "recommended"}, {}),
    "masked, a third may drop out": ({"name": "recommended"}, {"sum": "masked"}),
    "13 rounds, masked": ({"name": "additive", "rounds": 13}, MASKED | {"spare": 0}),
    "13 rounds, masked, keys once": (
        {"name": "additive", "rounds": 13},
        MASKED | {"spare": 0, "keys": "study"},
    ),
    "13 rounds, trusted sum": ({"name": "additive", "rounds": 13}, {}),
    "local noise": ({"name": "additive", "rounds": 41, "local_noise": True}, {}),
    "12 features, masked": ({"name": "additive", "rounds": 41, "features": 12}, MASKED),
    "monotone, masked": ({"name": "additive", "rounds": 41, "monotone": True}, MASKED),
    "fedavg": ({"name": "fedavg", "rounds": 40, "local_epochs": 2}, {}),
    "fedsgd": ({"name": "fedsgd", "rounds": 50, "server_rate": 0.03}, {}),
    "fedadam, as shipped before": ({"name": "fedadam", "rounds": 100, "local_epochs": 5}, {}),
    "veil, secure": ({"name": "veil", "mode": "secure", "rounds": 8}, {}),
}
"""Method and protection of each arm; no setting depends on the table."""


def deal(table: Table, seed: int) -> tuple[pd.DataFrame, pd.DataFrame, np.ndarray, np.ndarray]:
    """Training and test rows, and the site of each: 80 / 20, at random."""
    rng = np.random.default_rng(seed)
    shuffled = table.frame.iloc[rng.permutation(len(table.frame))].reset_index(drop=True)
    first = int(0.8 * len(shuffled))
    train, test = shuffled[:first], shuffled[first:]
    return train, test, *(np.arange(len(part)) % table.sites for part in (train, test))


def federated(
    table: Table,
    seed: int,
    epsilon: float,
    method: dict[str, Any],
    protection: dict[str, Any],
    **more: Any,
) -> dict[str, float]:
    """One run of the real engine: files, ledgers, noise, masks. ``more`` are tables of the study."""
    train, test, at, tested = deal(table, seed)
    with tempfile.TemporaryDirectory() as folder:
        sites = []
        for i in range(table.sites):
            for kind, part, where in (("train", train, at), ("test", test, tested)):
                part[where == i].to_parquet(Path(folder, f"{kind}-{i}.parquet"))
            sites.append({"name": f"site-{i:02d}", "data": f"train-{i}.parquet", "test": f"test-{i}.parquet"})  # fmt: skip
        study = Study(
            name=table.name, outcome=table.outcome, seed=seed, simulation=True, sites=sites,
            schema=table.schema, method=method, protection=protection,
            privacy={"unit": "patient", "epsilon": epsilon, **more.pop("privacy", {})},
            evaluation={"every": 1000}, **more,
        )  # fmt: skip
        begun = time.perf_counter()
        found = suture.run(study, base=folder)
    told = found.data["methods"][study.method.name]
    figures = told["metrics"]["global"]
    sent = (told["communication"]["bytes_up"], told["communication"]["bytes_down"])
    return {
        "auc": figures["auc"], "ece": figures["ece_mass"], "seconds": time.perf_counter() - begun,
        "up": sent[0] / table.sites / 1000, "down": sent[1] / table.sites / 1000,
    }  # fmt: skip


def pooled(table: Table, seed: int, kind: str, epsilon: float) -> dict[str, float]:
    """References that hold all rows: exact logistic regression on the same terms, LightGBM and
    DP-EBM on the plain columns."""
    train, test, *_ = deal(table, seed)
    y, truth = train["outcome"].to_numpy(int), test["outcome"].to_numpy(int)
    columns = list(table.schema.features)
    if kind == "exact logistic":
        from sklearn.linear_model import LogisticRegression

        x, q = (
            terms(table.schema).matrix(encode_rows({c: part[c] for c in columns}, table.schema))
            for part in (train, test)
        )
        p = LogisticRegression(max_iter=2000).fit(x, y).predict_proba(q)[:, 1]
    else:
        x, q = (
            pd.DataFrame({
                c: part[c].astype("category").cat.set_categories(sorted(train[c].dropna().unique())).cat.codes
                if isinstance(table.schema.features[c], Category)
                else pd.to_numeric(part[c], errors="coerce")
                for c in columns
            })
            for part in (train, test)
        )  # fmt: skip
        if kind == "LightGBM":
            import lightgbm

            fit = lightgbm.LGBMClassifier(n_jobs=1, verbose=-1, random_state=seed).fit(x, y)
        else:
            from interpret.privacy import DPExplainableBoostingClassifier

            numbers = table.schema.features.items()
            bounds = {c: (f.low, f.high) if isinstance(f, Number) else (-1, 50) for c, f in numbers}
            x, q = (
                part.clip({c: b[0] for c, b in bounds.items()}, {c: b[1] for c, b in bounds.items()}, axis=1)
                .fillna({c: sum(b) / 2 for c, b in bounds.items()})
                for part in (x, q)
            )  # fmt: skip
            fit = DPExplainableBoostingClassifier(
                epsilon=epsilon, delta=1e-5, random_state=seed, n_jobs=1,
                privacy_bounds=bounds, feature_types=["continuous"] * len(columns),
            ).fit(x, y)  # fmt: skip
        p = fit.predict_proba(q)[:, 1]
    return {"auc": float(binary(truth, p)["auc"] or 0), "ece": ece(truth, p, kind="mass") or 0.0}


def interval(values: list[float]) -> str:
    """Mean and the half width of its 95 % interval over seeds (Student's t)."""
    if len(values) < 2:
        return f"{values[0]:.4f}"
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{np.mean(values):.4f} ± {half:.4f}"


def main() -> None:
    """Print one line for each table, arm and epsilon."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    every = [*ARMS, "exact logistic", "LightGBM", "DP-EBM, pooled"]
    parser.add_argument("--arms", nargs="+", choices=every, default=every)
    parser.add_argument("--epsilon", nargs="+", type=float, default=[0.5, 1.0, 3.0, 8.0])
    parser.add_argument("--seeds", type=int, default=5)
    asked = parser.parse_args()
    print("| table | arm | epsilon | AUC | ECE | less exact logistic | kB up, down a site | s |")
    print("|---|---|--:|---|---|---|---|--:|", flush=True)
    for name in asked.tables:
        table, seeds = TABLES[name](), range(asked.seeds)
        exact = [pooled(table, seed, "exact logistic", 0.0) for seed in seeds]
        for arm in asked.arms:
            private = arm not in ("exact logistic", "LightGBM")
            for epsilon in asked.epsilon if private else [float("inf")]:
                found = [
                    federated(table, seed, epsilon, *ARMS[arm])
                    if arm in ARMS
                    else pooled(table, seed, arm, epsilon)
                    for seed in seeds
                ]
                auc, error = ([one[key] for one in found] for key in ("auc", "ece"))
                gap = interval([one["auc"] - other["auc"] for one, other in zip(found, exact, strict=True)])  # fmt: skip
                sent = taken = "–"
                if arm in ARMS:
                    up, down, seconds = (
                        np.mean([one[key] for one in found]) for key in ("up", "down", "seconds")
                    )
                    sent, taken = f"{up:.1f}, {down:.1f}", f"{seconds:.1f}"
                shown = f"{epsilon:g}" if private else "–"
                cells = (name, arm, shown, interval(auc), interval(error), gap, sent, taken)
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
