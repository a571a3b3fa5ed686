"""The figures behind the generated `icu` cohort, from the open eICU demo: aggregates only.

Writes suture/cohorts/icu_statistics.csv: for each sign and test its quantiles, how often it is
missing, its course over the day, its rank correlations, and the AUC for death that it has by
itself; and `weight`, solved so that the generated readings have those AUCs. AUCs are drawn towards
0.5 by what their standard error explains (the demo has about 100 deaths), because taking noise for
signal would make the whole too easy. No model of the cohort is looked at.

    python benchmarks/icu_statistics.py
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from scipy.special import logit, ndtr, ndtri
from scipy.stats import rankdata

from suture.cohorts import icu
from suture.site.eicu import data_folder, stays

QUANTILES = (0.5, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.5)
PREVALENCE, ROUNDS = 0.089, 12
OUT = Path(icu.__file__).with_name("icu_statistics.csv")


def auc(value: np.ndarray, died: np.ndarray) -> float:
    known = np.isfinite(value)
    ranks, dead = rankdata(value[known]), died[known] == 1
    count = dead.sum()
    return float((ranks[dead].mean() - (count + 1) / 2) / (~dead).sum())


def main() -> None:
    real = stays(data_folder("eicu_demo"))
    died = np.asarray(real["died_in_hospital"], float)
    columns = {
        name: np.asarray(
            real[f"{name}_mean" if name in icu.VITALS else name].astype(float), dtype=float
        )
        for name in icu.READ
    }
    rows: dict[str, dict[str, float | str]] = {}
    for name, value in columns.items():
        known = np.isfinite(value)
        row: dict[str, float | str] = {"name": name, "missing": round(float(1 - known.mean()), 3)}
        row |= {f"q{q:g}": round(float(np.percentile(value[known], q)), 3) for q in QUANTILES}
        d = np.sqrt(2) * ndtri(auc(value, died))
        error = 1 / died[known].sum() + 1 / (1 - died[known]).sum()
        row["auc"] = round(float(ndtr(d * max(0.0, 1 - error / d**2) / np.sqrt(2))), 3)
        if name in icu.VITALS:
            std, low, high = (real[f"{name}_{key}"].astype(float) for key in ("std", "min", "max"))
            moved = np.isfinite(std) & (std > 0)
            row["swing"] = round(float(np.median(std[moved])), 3)
            row["swing_sd"] = round(float(np.std(np.log(std[moved]))), 3)
            row["down"] = round(float(np.median((value - low)[moved] / std[moved])), 3)
            row["up"] = round(float(np.median((high - value)[moved] / std[moved])), 3)
        rows[name] = row
    for name, value in columns.items():
        for other, second in columns.items():
            both = np.isfinite(value) & np.isfinite(second)
            r = np.corrcoef(rankdata(value[both]), rankdata(second[both]))[0, 1]
            rows[name][f"with {other}"] = round(float(2 * np.sin(np.pi * r / 6)), 2)
    _write(list(rows.values()))
    weights = dict.fromkeys(icu.DRAWN, 0.0)
    targets = np.sqrt(2) * ndtri(np.array([float(rows[name]["auc"]) for name in icu.DRAWN]))
    for _ in range(ROUNDS):
        for name in icu.DRAWN:
            rows[name]["weight"] = round(weights[name], 3)
        _write(list(rows.values()))
        icu.STATISTICS.update(icu.statistics())
        cohort = icu.icu(0)
        dead = np.concatenate([site.table[icu.OUTCOME] for site in cohort.sites])
        found = []
        for name in icu.DRAWN:
            key = f"{name}_mean" if name in icu.VITALS else name
            found.append(auc(np.concatenate([site.table[key] for site in cohort.sites]), dead))
        gap = targets - np.sqrt(2) * ndtri(np.array(found))
        far = icu.DRAWN[int(np.argmax(np.abs(gap)))]
        away = np.abs(ndtr(gap / np.sqrt(2)) - 0.5).max()
        print(
            f"intercept {icu.INTERCEPT:.3f}: {dead.mean():.4f} die; AUCs within {away:.3f} ({far})"
        )
        step = np.linalg.solve(icu.correlations(icu.DRAWN), gap)
        weights = {n: weights[n] + 0.8 * float(s) for n, s in zip(icu.DRAWN, step, strict=True)}
        icu.INTERCEPT += logit(PREVALENCE) - logit(dead.mean())
    print(f"set INTERCEPT = {icu.INTERCEPT:.2f} in suture/cohorts/icu.py")


def _write(rows: list[dict[str, float | str]]) -> None:
    fields = list(dict.fromkeys(key for row in rows for key in row))
    with OUT.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
