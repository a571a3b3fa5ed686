"""A real federation on this machine: hub and sites in processes of their own, over TLS, with
enrolled keys."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip("flwr", reason="pip install 'suture[flower]'")
from test_parity import FEDERATED, HIDDEN, same, study

from suture.engine import conduct
from suture.network.coordinator import Remote
from suture.network.local import LocalFlower


def processes_of(folder):
    found = subprocess.run(
        ["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True
    ).stdout
    return [
        line for line in found.splitlines() if str(folder) in line and "suture.network." in line
    ]


def test_a_flower_federation_gives_what_one_process_gives_and_leaves_nothing_running(tmp_path):
    asked = study("fedavg", evaluation={"seeds": 1}, federation={"deadline": 60})
    here = conduct.run(asked, threads=1)
    carrier = LocalFlower()
    there = conduct.run(asked, base=tmp_path, out=tmp_path / "run", engine=Remote(carrier))
    same(here, there)
    assert processes_of(tmp_path) == []
    assert not (tmp_path / "run" / "federation" / "hub").exists()  # keys and tokens go with the run
    assert {path.stem for path in (tmp_path / "run" / "ledgers").glob("*.sqlite")} == set(
        there.data["cohort"]["sites"]
    )


class _Kept:
    """A carrier whose federation outlives a run, so that one serves many."""

    def __init__(self, carrier):
        self.start, self.exchange, self.close = carrier.start, carrier.exchange, lambda: None


@pytest.mark.slow
def test_every_method_over_flower_gives_what_one_process_gives(tmp_path):
    """Every method, three seeds, over TLS between processes.

    Under masks every sum is a release with noise of its own, so those models differ; what was done
    and paid does not.
    """
    carrier = LocalFlower()
    differ = []
    try:
        for method in FEDERATED:
            asked = study(method, federation={"deadline": 120})
            here = conduct.run(asked, threads=1)
            there = conduct.run(asked, base=tmp_path, engine=Remote(_Kept(carrier)))
            equal = all(np.array_equal(here.model[name], there.model[name]) for name in here.model)
            if method in HIDDEN:
                told = [found.data["methods"][method] for found in (here, there)]
                assert [one["rounds_done"] for one in told] == [4, 4]
                assert told[1]["protection"]["spare"] == 0
                assert here.data["privacy"]["sites"] == there.data["privacy"]["sites"]
                assert here.model.keys() == there.model.keys()
                assert not equal
            elif not equal or here.data["metrics"] != there.data["metrics"]:
                differ.append(method)
    finally:
        carrier.close()
    assert differ == []
    assert processes_of(tmp_path) == []


def test_an_interrupt_ends_everything(tmp_path):
    file = tmp_path / "study.toml"
    file.write_text(
        study("fedavg")
        .replace(method={"name": "fedavg", "rounds": 2000, "local_epochs": 1})
        .to_toml()
    )
    run = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "suture",
        "run",
        str(file),
        "--engine",
        "flower",
        "--out",
        str(run),
    ]
    # A shell's background jobs ignore interrupts, and their children would too.
    heeding = [
        sys.executable,
        "-c",
        "import os, signal, sys; signal.signal(2, signal.SIG_DFL); os.execv(sys.argv[1], "
        "sys.argv[1:])",
    ]
    with subprocess.Popen(
        [*heeding, *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        until = time.monotonic() + 60
        while not list((run / "checkpoints").glob("*.npz")) and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        try:
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode != 0
    assert "--resume" in said
    assert "Traceback" not in said
    assert processes_of(run) == []


def test_a_killed_coordinator_takes_its_federation_along_and_is_resumed(tmp_path):
    asked = study("scaffold", evaluation={"seeds": 1}, federation={"deadline": 60})
    file = tmp_path / "study.toml"
    file.write_text(asked.to_toml())
    run = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "suture",
        "run",
        str(file),
        "--engine",
        "flower",
        "--out",
        str(run),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not list((run / "checkpoints").glob("*.npz")) and time.monotonic() < until:
        time.sleep(0.05)
    process.kill()
    process.wait()
    while processes_of(run) and time.monotonic() < until:
        time.sleep(0.05)
    assert processes_of(run) == []
    code = subprocess.run(
        [sys.executable, "-m", "suture", "run", "--resume", str(run)],
        capture_output=True,
        env=os.environ,
    ).returncode
    assert code == 0
    from suture.result import Result

    same(conduct.run(asked, threads=1), Result.load(run))
