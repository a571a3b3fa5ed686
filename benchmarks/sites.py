"""Whether many sites cost in proportion: time per site and round, and memory per site, at 1,000 and
10,000 sites.

Sizes are compared by processor time, which other work on the machine stretches far less than
wall-clock time.

    python benchmarks/sites.py [--sites 1000 10000] [--patients 60] [--rounds 5]

Each size runs in a process of its own through `suture.run` with a run folder, patient-level DP on,
all cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run(sites: int, patients: int, rounds: int, folder: str) -> None:
    """In the child: one study with this many sites; prints what it took as JSON."""
    sys.path.insert(0, str(ROOT))
    from suture.engine import conduct
    from suture.study import Study

    study = Study(
        name="sites",
        outcome="high_risk",
        cohort={"name": "cardio", "split": "iid", "sites": sites, "patients": sites * patients},
        method={"name": "fedadam", "rounds": rounds, "local_epochs": 1},
        privacy={"unit": "patient", "noise_multiplier": 1.0},
    )
    now = time.perf_counter, time.process_time
    begun, times = [clock() for clock in now], []
    conduct.run(study, out=folder, progress=lambda _: times.append([clock() for clock in now]))
    ended = [clock() for clock in now]
    # The first round also compiles; it counts as start-up.
    marks = {
        "total": (begun, ended),
        "start": (begun, times[0]),
        "rounds": (times[0], times[-1]),
        "end": (times[-1], ended),
    }
    print(
        json.dumps(
            {name: [b - a for a, b in zip(*pair, strict=True)] for name, pair in marks.items()}
        )
    )


def measured(sites: int, patients: int, rounds: int) -> tuple[dict[str, list[float]], float]:
    """Wall-clock and processor seconds of each part, and peak memory in megabytes."""
    with tempfile.TemporaryDirectory(prefix="suture-") as name:
        numbers = [str(number) for number in (sites, patients, rounds)]
        command = [sys.executable, __file__, "--child", *numbers, str(Path(name) / "run")]
        with (Path(name) / "out").open("wb") as output:
            process = subprocess.Popen(command, stdout=output)
            _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"the run with {sites:,} sites failed; see above")
        found: dict[str, list[float]] = json.loads(
            (Path(name) / "out").read_text().splitlines()[-1]
        )
    unit = 1 if sys.platform == "darwin" else 1024
    return found, usage.ru_maxrss * unit / 1e6


def main() -> None:
    """Run every size, print a table and how the last compares with the first."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sites", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--patients", type=int, default=60, help="patients a site")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", nargs=4, metavar="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        sites, patients, rounds, folder = asked.child
        run(int(sites), int(patients), int(rounds), folder)
        return
    print("wall-clock seconds (processor seconds); a site-round in microseconds of processor time")
    print(
        f"{'sites':>7} {'total':>15} {'start':>15} {'rounds':>15} {'end':>15} {'site-round':>11} "
        f"{'peak MB':>8}"
    )
    lines = {}
    for sites in asked.sites:
        found, memory = measured(sites, asked.patients, asked.rounds)
        each = found["rounds"][1] / (asked.rounds - 1) / sites * 1e6
        lines[sites] = (each, found["total"][1] / sites, memory)
        parts = " ".join(f"{f'{wall:.1f} ({cpu:.1f})':>15}" for wall, cpu in found.values())
        print(f"{sites:>7,} {parts} {each:>11.0f} {memory:>8.0f}")
    first, last = lines[asked.sites[0]], lines[asked.sites[-1]]
    if len(lines) > 1:
        growth = asked.sites[-1] / asked.sites[0]
        extra = (last[2] - first[2]) / (asked.sites[-1] - asked.sites[0]) * 1000
        print(
            f"{growth:g} times the sites: a site-round costs {last[0] / first[0]:.2f} times as "
            "much, ",
            end="",
        )
        print(
            f"a site in all {last[1] / first[1]:.2f} times, {extra:.0f} kB of memory a further site"
        )


if __name__ == "__main__":
    main()
