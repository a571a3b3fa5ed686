"""How long a training of VEIL takes: 152 hospitals, 76,000 patients, 50 rounds, one mode or all.
Target: 10 s.

python benchmarks/veil.py [--modes votes secure] [--threads 2]
"""

from __future__ import annotations

import argparse
import os
import time

from suture.engine import conduct
from suture.study import Study

TARGET_SECONDS = 10.0
MODES = ("votes", "votes+moments", "secure")


def main() -> None:
    """Print each mode's seconds, from the patients' generation to the metrics; exit code 1 over the
    target."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    asked = parser.parse_args()
    slow = False
    for mode in asked.modes:
        study = Study(
            name="speed",
            outcome="died_in_hospital",
            cohort="icu",
            method={"name": "veil", "mode": mode, "rounds": 50},
            privacy={"unit": "patient", "epsilon": 5.0},
        )
        begun, worked = time.perf_counter(), time.process_time()
        found = conduct.run(study, threads=asked.threads).data["methods"]["veil"]
        seconds, worked = time.perf_counter() - begun, time.process_time() - worked
        slow |= seconds >= TARGET_SECONDS
        print(
            f"{mode}: {seconds:.1f} s in all, {found['seconds']:.1f} s of rounds; {worked:.1f} s "
            "of processor; "
            f"{asked.threads} threads, load {os.getloadavg()[0]:.1f}"
        )
    print(f"target {TARGET_SECONDS:g} s")
    raise SystemExit(slow)


if __name__ == "__main__":
    main()
