"""Examples are promises too: every study file loads, and the notebook script runs as it stands."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from suture.study import Study

ROOT = Path(__file__).parents[1]
STUDIES = sorted((ROOT / "examples").glob("*.toml"))


def test_there_are_examples():
    assert ROOT / "examples" / "demo.toml" in STUDIES


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.name)
def test_every_study_file_loads_and_reads_back_equal(path):
    study = Study.from_toml(path)
    assert study.private
    assert Study.from_text(study.to_toml()) == study


def test_the_notebook_runs_as_it_stands(tmp_path):
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "notebook.py"), str(tmp_path / "run")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    seconds = time.monotonic() - begun
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    assert list(result["methods"]) == ["fedadam", "alone"]
    assert result["privacy"]["epsilon"] <= 8.0
    # fresh patients of 3,000: 600 of them, so the AUC is known to about 0.01
    assert result["metrics"]["global"]["auc"] > 0.9
    assert "<svg" in (tmp_path / "run" / "convergence.svg").read_text(encoding="utf-8")
    low, high = json.loads(done.stdout.splitlines()[-1].removeprefix("risk: "))
    assert low < high
    assert seconds < 120  # under 20 s on two quiet cores; the rest is room for a busy machine
