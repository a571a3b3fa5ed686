"""Peak memory of a whole `suture run` on 1,000,000 rows x 20 feature columns. Target: under 1.5 GB.

    python benchmarks/memory.py [--rows 1000000] [--format csv|parquet]

This process imports nothing but the standard library: Linux counts a parent's memory into the peak
of the child it starts, so a large parent would be measured instead of the run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET_GB = 1.5
NUMBERS, CATEGORIES, FLAGS = 14, 3, 3

GENERATE = """
import sys, duckdb
rows, path, kind = int(sys.argv[1]), sys.argv[2], sys.argv[3]
columns = ["range AS patient_id", "(random() < 0.2)::INT AS outcome"]
columns += [f"round(random() * 200 - 50, 3) AS n{i}" for i in range({numbers})]
columns += [f"(['north', 'east', 'south', 'west'])[1 + (random() * 4)::INT % 4] AS c{i}" for i in range({categories})]
columns += [f"(random() < 0.3)::INT AS f{i}" for i in range({flags})]
query = f"SELECT {', '.join(columns)} FROM range({rows})"
duckdb.sql(f"COPY ({query}) TO '{path}' (FORMAT {kind})")
"""


def study(data: str) -> str:
    """A study file over one hospital with all the rows."""
    numbers = [f'n{i} = {{ kind = "number", low = -50, high = 150 }}' for i in range(NUMBERS)]
    values = '["north", "east", "south", "west"]'
    categories = [f'c{i} = {{ kind = "category", values = {values} }}' for i in range(CATEGORIES)]
    flags = [f'f{i} = {{ kind = "flag" }}' for i in range(FLAGS)]
    return "\n".join(
        [
            '[study]\nname = "memory"\noutcome = "outcome"\n[[site]]\nname = "large"',
            f'data = "{data}"\n[schema]\npatient = "patient_id"\n[schema.features]',
            *numbers,
            *categories,
            *flags,
            '[method]\nname = "fedavg"\nrounds = 2\nlocal_epochs = 1',
            '[privacy]\nunit = "patient"\nepsilon = 8.0\n[evaluation]\nholdout = 0.2',
        ]
    )


def measured(command: list[str], folder: Path) -> tuple[float, float]:
    """Seconds and peak resident gigabytes of one command; its output is shown only if it fails."""
    begun = time.perf_counter()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(
            f"{' '.join(command)} failed:\n{(folder / 'log').read_text(errors='replace')[-3000:]}"
        )
    unit = 1 if sys.platform == "darwin" else 1024
    return time.perf_counter() - begun, usage.ru_maxrss * unit / 1e9


def main() -> None:
    """Generate, run, print; exit code 1 where the target is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--format", choices=("csv", "parquet"), default="csv")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="suture-") as name:
        folder, file = Path(name), f"rows.{asked.format}"
        code = GENERATE
        for key, value in (("numbers", NUMBERS), ("categories", CATEGORIES), ("flags", FLAGS)):
            code = code.replace(f"range({{{key}}})", f"range({value})")
        measured([sys.executable, "-c", code, str(asked.rows), file, asked.format], folder)
        (folder / "study.toml").write_text(study(file))
        megabytes = (folder / file).stat().st_size / 1e6
        seconds, peak = measured(
            [sys.executable, "-m", "suture.cli.main", "run", "study.toml", "--out", "run"], folder
        )
        if not (folder / "run" / "result.json").exists():
            raise SystemExit("the run wrote no result.json")
    print(
        f"{asked.rows:,} rows x {NUMBERS + CATEGORIES + FLAGS} features, {asked.format}, "
        f"{megabytes:.0f} MB file"
    )
    print(f"suture run: {seconds:.1f} s, peak memory {peak:.2f} GB (target under {TARGET_GB} GB)")
    raise SystemExit(peak >= TARGET_GB)


if __name__ == "__main__":
    main()
