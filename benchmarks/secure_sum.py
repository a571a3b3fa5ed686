"""What a secure sum under masks costs: bytes and processor time of a site and of the server, and
the rounding error.

    python benchmarks/secure_sum.py [--sites 10 50 150] [--parameters 100000] [--dropouts 0 0.2]
    [--word 32] [--json]

All parties run in this process (`suture/protection/masked.py`), one thread, so a site's processor
time is what it would spend on its own machine. Bytes are sealed messages, without the network's own
overhead; the model that goes down is not among them. Dropouts leave after they have shared their
keys and before they send masked words, which is when they cost most. The mean of normal updates is
computed twice, by the protocol and in float64; the largest difference is printed beside the bound.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from suture.protection.masked import secure_total
from suture.protection.robust import Bounded
from suture.protection.terms import NORM_BOUND, threshold_of


def measured(sites: int, parameters: int, dropouts: float, word: Any) -> dict[str, Any]:
    """One sum."""
    rng = np.random.default_rng(6)
    grid = Bounded(NORM_BOUND, sites, word)
    names = [f"site {i}" for i in range(sites)]
    updates = {name: rng.normal(0, 0.01, parameters) for name in names}
    gone = names[: min(int(dropouts * sites), sites - threshold_of(sites))]
    words = {name: {"delta": grid.words(updates[name], 1 / sites)} for name in names}
    begun = time.process_time()
    total = secure_total(words, leave={"mask": gone})
    seconds = time.process_time() - begun
    part = len(total.survivors) / sites
    exact = np.mean([updates[name] for name in total.survivors], axis=0)
    found = grid.mean(total.words["delta"], part)
    cost = total.cost
    return {
        "sites": sites,
        "dropped_out": len(gone),
        "up_kB": max(cost.up.values()) / 1e3,
        "down_kB": max(cost.down.values()) / 1e3,
        "plain_kB": parameters * 4 / 1e3,
        "site_seconds": max(cost.site_seconds.values()),
        "server_seconds": cost.server_seconds,
        "all_parties_seconds": seconds,
        "largest_error": float(np.max(np.abs(found - exact))),
        "error_bound": grid.error(len(total.survivors), part),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sites", type=int, nargs="+", default=[10, 50, 150])
    parser.add_argument("--parameters", type=int, default=100_000)
    parser.add_argument("--dropouts", type=float, nargs="+", default=[0.0, 0.2])
    parser.add_argument("--word", type=int, default=32, choices=(32, 64))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    for sites in args.sites:
        for dropouts in args.dropouts:
            rows.append(measured(sites, args.parameters, dropouts, args.word))
            print(f"{sites} sites, {rows[-1]['dropped_out']} dropped out: done", file=sys.stderr)
    if args.json:
        print(json.dumps(rows))
        return
    print(
        f"{args.parameters:,} parameters in words of {args.word} bits; an update in float32 is "
        f"{rows[0]['plain_kB']:.0f} kB"
    )
    print(
        "| sites | dropped out | up, kB | down, kB | a site, s | server, s | all parties, s | "
        "error | bound |"
    )
    print("|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for row in rows:
        print(
            f"| {row['sites']} | {row['dropped_out']} | {row['up_kB']:.1f} | {row['down_kB']:.1f} "
            f"| {row['site_seconds']:.3f} | {row['server_seconds']:.3f} | "
            f"{row['all_parties_seconds']:.1f} "
            f"| {row['largest_error']:.1e} | {row['error_bound']:.1e} |"
        )


if __name__ == "__main__":
    main()
