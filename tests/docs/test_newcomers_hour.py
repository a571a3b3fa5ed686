"""The changes of docs/newcomers-hour.md apply to the code as it is, and their tests pass."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "newcomers-hour.md").read_text(encoding="utf-8")
CHANGES = re.findall(r"^```diff\n(.*?)^```$", PAGE, re.M | re.S)


@pytest.fixture
def copy(tmp_path):
    """The repository in a folder of its own, with the page's changes applied."""
    skipped = shutil.ignore_patterns(".git", ".venv*", "site", "gallery", "demo", "*cache*", "runs")
    copy = tmp_path / "suture"
    shutil.copytree(ROOT, copy, ignore=skipped)
    # `site` is left out at the root only
    shutil.copytree(ROOT / "suture" / "site", copy / "suture" / "site", dirs_exist_ok=True)
    for change in CHANGES:
        subprocess.run(["git", "apply", "-C1", "-"], input=change, text=True, cwd=copy, check=True)
    return copy


def test_the_page_has_changes():
    assert len(CHANGES) == 8


@pytest.mark.slow
def test_the_changes_apply_and_their_tests_pass(copy):
    asked = [
        "tests/evaluation/test_metrics.py::test_equal_to_scikit_learn_with_ties",
        "tests/cli/test_sizes.py",
        "tests/contracts/test_commands.py",
        "tests/contracts/test_public_names.py",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *asked],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert (copy / "suture" / "cli" / "sizes.py").exists()
