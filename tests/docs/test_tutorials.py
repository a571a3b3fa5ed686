"""The tutorials run as they are printed: one page is one shell session.

In a page of docs/start, ``toml`` blocks with a title are files, ``bash`` blocks are commands,
``python`` blocks are one script, and every line of a ``text`` block must be in the output.
"""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "start").glob("*.md"))
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.M | re.S)
PORT = "18443"
DATA = Path(os.environ.get("SUTURE_DATA") or ROOT.parent / "shared" / "data")


def script(page: str) -> str:
    """The page's commands in order, as one bash script."""
    parts = ["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"]
    blocks = BLOCK.findall(page)
    python = "".join(body for kind, _, body in blocks if kind == "python")
    for kind, title, body in blocks:
        if kind == "toml" and title:
            parts.append(f"cat > {title} <<'END_OF_FILE'\n{body}END_OF_FILE")
        elif kind == "bash":
            parts.append(body)
        elif kind == "python" and python:
            parts.append(f"python - <<'END_OF_SCRIPT'\n{python}END_OF_SCRIPT")
            python = ""
    return "\n".join(parts)


def expected(page: str) -> list[str]:
    lines = [
        line
        for kind, _, body in BLOCK.findall(page)
        if kind == "text"
        for line in body.splitlines()
    ]
    return [" ".join(line.split()) for line in lines if line.strip()]


@pytest.fixture
def shell(tmp_path):
    """An empty folder whose `suture` and `python` are the ones under test."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for name, words in (("suture", "-m suture"), ("python", "")):
        (bin_ / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (bin_ / name).chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    env = {
        **os.environ,
        "PATH": f"{bin_}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "SUTURE_WITNESS": str(tmp_path / "witness"),
        "COLUMNS": "200",
        "SUTURE_DATA": str(DATA),
    }

    def run(text):
        return subprocess.run(
            ["bash", "-c", text],
            cwd=work,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )

    return run


def test_there_is_a_tutorial_for_each_reader():
    assert [page.stem for page in PAGES] == [
        "clinician",
        "data",
        "engineer",
        "privacy-officer",
        "researcher",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_runs_as_printed(page, shell):
    if page.stem == "engineer":
        pytest.importorskip("flwr")
    for name in ("framingham", "physionet2012") if page.stem == "data" else ():
        if not DATA.joinpath(name).is_dir():
            pytest.skip(f"{name} is not in {DATA}; set SUTURE_DATA")
    text = page.read_text(encoding="utf-8")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        text = text.replace(PORT, str(free.getsockname()[1]))
    done = shell(script(text))
    assert done.returncode == 0, done.stdout[-3000:]
    seen = " ".join(re.sub(r"[│┃]", " ", done.stdout).split())
    for line in expected(text):
        assert line in seen, (line, done.stdout[-3000:])
