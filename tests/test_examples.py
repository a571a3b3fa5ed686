"""Examples are promises too: every study file loads, and every notebook runs as it stands."""

import json
import os
import subprocess
import sys
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


NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
EXECUTE = """
import sys, nbclient, nbformat
book = nbformat.read(sys.argv[1], 4)
nbclient.NotebookClient(book, timeout=300, kernel_name="python3").execute(cwd=".")
"""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(path):
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_as_it_stands(path, tmp_path):
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, str(path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if path.stem == "study-from-python":
        run = tmp_path / "runs" / "notebook"
        result = json.loads((run / "result.json").read_text(encoding="utf-8"))
        assert list(result["methods"]) == ["fedadam", "alone"]
        assert result["privacy"]["epsilon"] <= 8.0
        # fresh patients of 3,000: 600 of them, so the AUC is known to about 0.01
        assert result["metrics"]["global"]["auc"] > 0.9
        assert "<svg" in (run / "convergence.svg").read_text(encoding="utf-8")
