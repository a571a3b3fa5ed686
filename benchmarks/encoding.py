"""The additive model's encoding given to methods of networks: docs/additive.md, section 6.

    python benchmarks/encoding.py --tables framingham rhc --epsilon 1 3 8 --seeds 3

Each arm trains a linear model (`hidden = []`) on the columns as a study has them, scaled by their
bounds, and on the additive model's terms, centred and scaled to rows of mean square norm 1 by the
noisy sum of its release 1. The release is simulated with a curator's continuous noise, in addition
to the budget of the training (2 % of it). Each method has the same few settings to choose from with
either encoding; the choice is made on the mean AUC of the tables at epsilon 3 with a seed that is
not reported.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np
import pandas as pd
from additive import TABLES, Table, deal, federated, interval
from dp_accounting.gaussian_mechanism import get_sigma_gaussian

from suture.models.concepts import terms
from suture.schema.table import Number, Schema
from suture.site.reading import encode_rows

TUNED_ON, TUNED_AT = 100, 3.0
AVERAGED = {"rounds": 40, "local_epochs": 2}
GRID: dict[str, list[tuple[dict[str, Any], float]]] = {
    "fedsgd": [({"rounds": 50, "server_rate": rate}, 1.0) for rate in (0.05, 0.1, 0.2)],
    "fedavg": [(AVERAGED | {"rate": rate}, 0.3) for rate in (0.3, 1.0, 2.0)],
    "fedadam": [(AVERAGED | {"server_rate": rate}, 0.3) for rate in (0.03, 0.1, 0.2)],
}
"""Of each method: settings and clip."""


def clinical(table: Table, seed: int, epsilon: float) -> Table:
    """The same patients with centred terms as columns."""
    known, rng = terms(table.schema), np.random.default_rng([seed, 7])
    train, *_ = deal(table, seed)

    def values(frame: pd.DataFrame) -> np.ndarray:
        return known.matrix(encode_rows({c: frame[c] for c in table.schema.features}, table.schema))

    x, y = values(train).astype(float), train["outcome"].to_numpy(float)[:, None]
    rows = np.hstack([np.ones_like(y), x, y])
    noise = get_sigma_gaussian(epsilon, 1e-5) / math.sqrt(0.02)
    total = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).sum(axis=0)
    total = total + rng.normal(0, noise, len(total))
    mean, square = total[1:-1] / total[0], (len(x) / total[0]) ** 2
    spread = (
        square - 1 - total[-1] / total[0] - np.sum(mean**2) + len(mean) * (noise / total[0]) ** 2
    )
    scale = math.sqrt(max(spread, square / 20))
    named = {f"t{i}": column for i, column in enumerate(((values(table.frame) - mean) / scale).T)}
    features = {name: Number(low=-1, high=1, missing="fill") for name in named}
    kept = table.frame[["patient", "outcome"]].reset_index(drop=True)
    frame = pd.concat([kept, pd.DataFrame(named)], axis=1)
    return Table(table.name, frame, Schema(patient="patient", features=features), table.sites)


def one(
    table: Table, encoded: bool, seed: int, epsilon: float, name: str, choice: int
) -> dict[str, float]:
    """One training."""
    settings, clip = GRID[name][choice]
    given = clinical(table, seed, epsilon) if encoded else table
    more = {"privacy": {"clip": clip}, "model": {"hidden": []}}
    return federated(given, seed, epsilon, {"name": name, **settings}, {}, **more)


def main() -> None:
    """Print one line for each method, encoding, table and epsilon."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    usual = ["framingham", "flchain", "rhc", "physionet"]
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=usual)
    parser.add_argument("--methods", nargs="+", choices=GRID, default=list(GRID))
    parser.add_argument("--epsilon", nargs="+", type=float, default=[1.0, 3.0, 8.0])
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    tables = [TABLES[name]() for name in asked.tables]
    for name in asked.methods:
        for encoded in (False, True):
            tried = [
                np.mean([one(t, encoded, TUNED_ON, TUNED_AT, name, i)["auc"] for t in tables])
                for i in range(len(GRID[name]))
            ]
            choice = int(np.argmax(tried))
            scaling = "terms" if encoded else "bounds"
            print(f"| {name}, {scaling} | tuned | {GRID[name][choice]} | {tried[choice]:.4f} |")
            for table in tables:
                for epsilon in asked.epsilon:
                    found = [
                        one(table, encoded, s, epsilon, name, choice) for s in range(asked.seeds)
                    ]
                    auc, ece = (interval([f[key] for f in found]) for key in ("auc", "ece"))
                    print(
                        f"| {name}, {scaling} | {table.name} | {epsilon:g} | {auc} | {ece} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
