"""Which mode of VEIL for how many hospitals? ``python benchmarks/veil_modes.py [--seeds 3]``

Generated `icu` (20,000 patients) and PhysioNet 2012 (8,000; SUTURE_DATA or ../shared/data), dealt
out at random to 3, 5, 10, 50 and 150 sites: the same patients, only the number of hospitals differs.
Settings are those of VEIL's table (`suture.papers.veil.SETTINGS`). Printed: mean AUC / ECE (ten bins
of equal mass) over seeds.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
from additive import TABLES
from veil_safe import one

from suture.papers.veil import SETTINGS

MODES = {"secure": "secure", "votes+moments": "moments", "votes": "votes"}


def main() -> None:
    """One line for each table, epsilon and number of sites."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=["icu", "physionet"])
    parser.add_argument("--sites", nargs="+", type=int, default=[3, 5, 10, 50, 150])
    parser.add_argument("--epsilon", nargs="+", type=float, default=[1.0, 5.0])
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    print(f"| table | epsilon | sites | {' | '.join(MODES)} |")
    print(f"|---|--:|--:|{'---|' * len(MODES)}", flush=True)
    for name in asked.tables:
        whole = TABLES[name]()
        for epsilon in asked.epsilon:
            for sites in asked.sites:
                cells, table = [], replace(whole, sites=sites)
                for key in MODES.values():
                    method = {k: v for k, v in SETTINGS[key][1].items() if k != "name"}
                    runs = [one(table, seed, epsilon, method) for seed in range(asked.seeds)]
                    auc, error = (float(np.mean([run[k] for run in runs])) for k in ("auc", "ece"))
                    cells.append(f"{auc:.3f} / {error:.3f}")
                print(f"| {name} | {epsilon:g} | {sites} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
