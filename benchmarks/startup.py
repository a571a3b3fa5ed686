"""How long the command line takes to answer `suture --help`. Target: 0.4 s.

python benchmarks/startup.py [--times 9]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET_SECONDS = 0.4


def main() -> None:
    """Call it several times (the first, with cold caches, apart), print the median; exit code 1
    over the target."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=9)
    asked = parser.parse_args()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    }
    seconds = []
    for _ in range(asked.times + 1):
        begun = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "suture.cli.main", "--help"],
            env=environment,
            capture_output=True,
        )
        seconds.append(time.perf_counter() - begun)
        if done.returncode or b"reproduce" not in done.stdout:
            raise SystemExit(f"suture --help failed:\n{done.stderr.decode(errors='replace')}")
    first, *rest = seconds
    median = statistics.median(rest)
    print(
        f"suture --help: median {median:.2f} s of {asked.times} ({min(rest):.2f} to "
        f"{max(rest):.2f}; first {first:.2f})"
    )
    print(f"target {TARGET_SECONDS} s")
    raise SystemExit(median >= TARGET_SECONDS)


if __name__ == "__main__":
    main()
