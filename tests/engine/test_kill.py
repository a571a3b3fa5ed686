"""SIGKILL at random moments: the resumed run ends with the same model, and no ledger is below what
was released.

Quick: a handful of kills. Slow: a hundred, half on generated patients and half on files with the
sites' own ledgers.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from support.starter import write_starter

from suture.engine.conduct import run
from suture.engine.folder import RunFolder
from suture.privacy.ledger.ledger import Ledger
from suture.result import Result
from suture.study import Study

ROOT = Path(__file__).parents[2]
ROUNDS = 60


def small(study):
    return study.replace(
        model={"hidden": [16]},
        method={"rounds": ROUNDS, "local_epochs": 40},
        privacy={"unit": "patient", "epsilon": 8.0, "accountant": "rdp"},
    )


def start(folder, cwd):
    """`suture run --resume` in a process of its own, checkpointing after every round."""
    code = "import suture.engine.conduct as c, suture.cli.main, sys; c.CHECKPOINT_SECONDS = 0.0; suture.cli.main.main()"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [
        sys.executable,
        "-c",
        code,
        "run",
        "--resume",
        str(folder),
        "--threads",
        "1",
        "--json",
    ]
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def ledgers(folder, study, base):
    for name in ("young-clinic", "cardiology", "diabetes-smoking", "community", "geriatric"):
        home = (
            base / ".suture" / name / "ledger.sqlite"
            if study.sites
            else folder / "ledgers" / f"{name}.sqlite"
        )
        if home.exists():
            yield Ledger.open(home, name)


def released(folder):
    """Rounds whose answers reached the server, as far as the last checkpoint says."""
    kept = RunFolder(folder).load(f"fedadam-{Study.from_toml(folder / 'study.toml').seed}")
    return kept[0].round if kept else 0


def campaign(tmp_path, kills, *, files, seed):
    """Kill until the quota is used up, on as many runs as it takes; returns (kills done, runs
    finished)."""
    rng = random.Random(seed)
    base = tmp_path / "study"
    if files:
        write_starter(base, files=True, patients=600)
        study = small(Study.from_toml(base / "study.toml"))
    else:
        base.mkdir(parents=True)
        study = small(
            Study(name="kill", outcome="high_risk", cohort={"name": "cardio", "patients": 600})
        )
    whole = run(study, base=base, out=tmp_path / "whole", threads=1)
    done = finished = 0
    while done < kills:
        # The same secrets (they belong to the site), but a ledger that has seen nothing yet.
        fresh = tmp_path / f"base-{finished}"
        shutil.copytree(base, fresh)
        for ledger in fresh.glob(".suture/*/ledger.*"):
            ledger.unlink()
        folder = tmp_path / f"run-{finished}"
        RunFolder.create(folder, study, fresh)
        while not (folder / "result.json").exists():
            process = start(folder, tmp_path)
            try:
                if done < kills:
                    time.sleep(rng.uniform(0.5, 3.5))
                    if process.poll() is None:
                        os.killpg(process.pid, signal.SIGKILL)
                        done += 1
                output = process.communicate(timeout=120)[0]
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
            if process.returncode == 0:
                json.loads(output)
            else:
                assert process.returncode == -signal.SIGKILL
            after = released(folder)
            for ledger in ledgers(folder, study, fresh):
                ledger.verify()
                assert len(ledger.entries()) >= after
                ledger.close()
        again = Result.load(folder)
        for name, array in whole.model.items():
            np.testing.assert_array_equal(again.model[name], array)
        assert again.metrics == whole.metrics
        assert again.privacy == whole.privacy
        for ledger in ledgers(folder, study, fresh):
            paid = [entry.what for entry in ledger.entries()]
            assert paid.count("model update") == ROUNDS
            # Real patients are evaluated once, in two charged rounds, however often it was killed.
            assert paid.count("evaluation") == len(paid) - ROUNDS == (2 if files else 0)
            ledger.close()
        finished += 1
    return done, finished


@pytest.mark.parametrize("files", [False, True], ids=["generated", "files"])
def test_a_few_kills(tmp_path, files):
    done, finished = campaign(tmp_path, 3, files=files, seed=11)
    assert done == 3
    assert finished >= 1


@pytest.mark.slow
@pytest.mark.parametrize("files", [False, True], ids=["generated", "files"])
def test_a_hundred_kills(tmp_path, files):
    done, finished = campaign(tmp_path, 50, files=files, seed=12)
    assert done == 50
    assert finished >= 1
