"""Does VEIL's secure mode end where it was best, and do its concepts agree with each other?

    python benchmarks/veil_safe.py                      # 24 cells, 10 seeds each, about 15 minutes
    python benchmarks/veil_safe.py --tables framingham --seeds 3 --method directions=free

PhysioNet 2012 at 12 sites and Framingham at 5 (SUTURE_DATA or ../shared/data), 20 and 60 concepts, 8
and 20 rounds, epsilon 1, 3 and 8. Every seed is another 80 / 20 split, another deal to the sites and
fresh noise; the real engine runs on files and tests every round. Printed for each cell: AUC and ECE
(ten bins of equal mass) of the last round, the largest fall from the best round to the last, how many
seeds fall by more than .01, and how many groups of one measurement have contradicting signs. Exit
code 1 if any does.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from additive import TABLES, Table, deal, interval

import suture
from suture.models.concepts import Concepts, dictionary
from suture.study import Study

MOST = 0.01
RISES = {"value": 1, "above": 1, "high": 1, "below": -1, "low": -1}
MEMORY = Path("/dev/shm")


def contradictions(known: Concepts, weights: Sequence[float]) -> list[str]:
    """Measurements whose risk neither rises all along, nor falls all along, nor is higher on both
    sides of normal. Missing marks of one measurement must have one sign."""
    groups: dict[str, list[tuple[str, float]]] = {}
    for concept, weight in zip(known.items, weights, strict=True):
        if weight and concept.kind != "is":
            missing = " missing" if concept.kind == "missing" else ""
            groups.setdefault(concept.measurement + missing, []).append((concept.kind, weight))
    found = []
    for name, members in groups.items():
        slopes = {np.sign(weight) * RISES.get(kind, 1) for kind, weight in members}
        both = all(kind not in ("value", "missing") and weight > 0 for kind, weight in members)
        if len(slopes) > 1 and not both:
            found.append(name)
    return found


def one(table: Table, seed: int, epsilon: float, method: dict[str, Any]) -> dict[str, Any]:
    """One run: AUC of every round, ECE of the last, contradicting groups, concepts."""
    train, test, at, tested = deal(table, seed)
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        sites = []
        for i in range(table.sites):
            for kind, part, where in (("train", train, at), ("test", test, tested)):
                part[where == i].to_parquet(Path(folder, f"{kind}-{i}.parquet"))
            sites.append({"name": f"site-{i:03d}", "data": f"train-{i}.parquet", "test": f"test-{i}.parquet"})  # fmt: skip
        study = Study(
            name=table.name, outcome=table.outcome, seed=seed, simulation=True, sites=sites,
            schema=table.schema, method={"name": "veil", **method},
            privacy={"unit": "patient", "epsilon": epsilon}, evaluation={"every": 1},
        )  # fmt: skip
        found = suture.run(study, base=folder)
    figures = found.data["methods"]["veil"]["metrics"]["global"]
    rounds = [row["global"]["auc"] for row in found.history]
    weights = np.asarray(found.model["weights"]).tolist()
    return {
        "auc": figures["auc"], "ece": figures["ece_mass"], "rounds": rounds,
        "fall": max(rounds) - rounds[-1], "concepts": int(np.count_nonzero(weights)),
        "against": contradictions(dictionary(table.schema), weights),
    }  # fmt: skip


def main() -> int:
    """Print one line for each cell, then the verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=["physionet", "framingham"])
    parser.add_argument("--concepts", nargs="+", type=int, default=[20, 60])
    parser.add_argument("--rounds", nargs="+", type=int, default=[8, 20])
    parser.add_argument("--epsilon", nargs="+", type=float, default=[1.0, 3.0, 8.0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--method", nargs="*", default=[], help="settings, as directions=free")
    asked = parser.parse_args()
    more = dict(pair.split("=", 1) for pair in asked.method)
    print("| table | concepts | rounds | epsilon | AUC | ECE | largest fall | fell | against |")
    print("|---|--:|--:|--:|---|---|--:|--:|--:|", flush=True)
    bad = 0
    for name in asked.tables:
        table = TABLES[name]()
        for concepts in asked.concepts:
            for rounds in asked.rounds:
                for epsilon in asked.epsilon:
                    method = {"mode": "secure", "concepts": concepts, "rounds": rounds, **more}
                    runs = [one(table, seed, epsilon, method) for seed in range(asked.seeds)]
                    fell = sum(run["fall"] > MOST for run in runs)
                    against = sum(len(run["against"]) for run in runs)
                    bad += fell + against
                    auc, error = (interval([run[key] for run in runs]) for key in ("auc", "ece"))
                    worst = max(run["fall"] for run in runs)
                    cells = (name, concepts, rounds, f"{epsilon:g}", auc, error, f"{worst:.4f}", fell, against)  # fmt: skip
                    print(f"| {' | '.join(map(str, cells))} |", flush=True)
    print(f"{bad} misses" if bad else "no miss")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
