"""Private models of radiographs from wavelet scattering, with intervals over seeds.

    python benchmarks/scattering.py [--tables pneumonia radiographs] [--epsilon 1 8 0] [--seeds 5]

PneumoniaMNIST at ten hospitals (official test part; dealt out evenly, by label, or with a scanner's
look each) and the generated `radiographs`. Epsilon 0: without privacy. The settings are the
recommended ones; nothing was chosen on the parts that are reported.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
from scipy import stats

import suture
from suture.study import Study

SEEDS = (42, 43, 44, 45, 46)
TABLES = {
    "pneumonia": ("pneumonia", {"hospitals": 10}),
    "pneumonia-label": ("pneumonia", {"hospitals": 10, "split": "label"}),
    "pneumonia-scanner": ("pneumonia", {"hospitals": 10, "split": "scanner"}),
    "radiographs": ("radiographs", {"images": 5000, "size": 32}),
}


def study(table: str, epsilon: float, seed: int, method: dict[str, object]) -> Study:
    """One training."""
    name, options = TABLES[table]
    promise = {"privacy": {"unit": "patient", "epsilon": epsilon}} if epsilon else {}
    return Study(
        name=f"{table} {epsilon:g}",
        outcome="abnormal" if name == "radiographs" else "pneumonia",
        seed=seed,
        simulation=True,
        cohort={"name": name, **options},
        model={"kind": "scattering"},
        method=method,
        evaluation={"every": 1000},
        **promise,
    )


def interval(values: list[float]) -> str:
    """Mean and half of the 95 % interval over seeds."""
    if len(values) < 2:
        return f"{values[0]:.3f}"
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    return f"{np.mean(values):.3f} ± {half:.3f}"


def main() -> None:
    """Print one row for each table and epsilon as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--epsilon", nargs="+", type=float, default=[1.0, 8.0, 0.0])
    parser.add_argument("--seeds", type=int, default=len(SEEDS), choices=range(1, 6))
    chosen = parser.parse_args()
    print("| table | epsilon | AUC | accuracy | ECE |\n|---|--:|--:|--:|--:|", flush=True)
    for table in chosen.tables:
        for epsilon in chosen.epsilon:
            method: dict[str, object] = {"name": "recommended"}
            runs = [
                suture.run(study(table, epsilon, seed, method)).metrics["global"]
                for seed in SEEDS[: chosen.seeds]
            ]
            columns = [interval([run[key] for run in runs]) for key in ("auc", "accuracy", "ece")]
            shown = f"{epsilon:g}" if epsilon else "none"
            print(f"| {table} | {shown} | {' | '.join(columns)} |", flush=True)


if __name__ == "__main__":
    main()
