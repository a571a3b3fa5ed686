"""A federation across machines, each machine a process here: hub and sites by their commands, a
study run through them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="pip install 'suture[flower]'")
from typer.testing import CliRunner

from suture.cli.main import app
from suture.errors import Refused, RunError, TooFewSites
from suture.network.enrolment import hub_status, site_status

SITES = ("boston", "lyon", "nice")
STUDY = """
[study]
name = "across"
outcome = "high_risk"

[[site]]
name = "boston"
patients = 80
[[site]]
name = "lyon"
patients = 80
[[site]]
name = "nice"
patients = 80

[schema]
patient = "id"
[schema.features]
age = { kind = "number", low = 0, high = 100 }
smoker = { kind = "flag" }

[model]
hidden = []
[method]
name = "fedavg"
rounds = 2
local_epochs = 1
batch = 8
[privacy]
unit = "patient"
epsilon = 6.0
[federation]
deadline = 40
gathering = 40
"""


def suture(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)


def launch(*args, log):
    with Path(log).open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "suture", *map(str, args)],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )


def end(process):
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def until(holds, seconds=40.0):
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        try:
            if holds():
                return
        except RunError:
            pass
        time.sleep(0.1)
    raise AssertionError("it did not come to hold")


def rows(path, seed):
    rng = np.random.default_rng(seed)
    lines = ["id,age,smoker,high_risk"]
    for i in range(80):
        age = int(rng.integers(20, 90))
        lines.append(f"{i},{age},{int(rng.integers(2))},{int(rng.random() < age / 120)}")
    path.write_text("\n".join(lines) + "\n")


def ready(folder, name, study):
    """A person at the site looks at its table and signs; the tables here are small and made up."""
    signing = ("--sign", "A. Kowal", "--even-so", "a test")
    assert suture("check", folder / study, "--home", folder / name, *signing).exit_code == 0


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    folder = tmp_path_factory.mktemp("across")
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    hub = folder / "hub"
    assert (
        suture(
            "hub", "init", hub, "--host", "localhost", "--host", "127.0.0.1", "--port", port
        ).exit_code
        == 0
    )
    processes = {"hub": launch("hub", "start", hub, "--bind", "127.0.0.1", log=folder / "hub.log")}
    try:
        for i, name in enumerate(SITES):
            home = folder / name
            rows(folder / f"{name}.csv", i)
            (folder / f"{name}.invite").write_text(
                suture("hub", "invite", name, "--hub", hub).stdout
            )
            args = ("--invite", folder / f"{name}.invite", "--data", folder / f"{name}.csv")
            assert suture("site", "init", home, *args, "--without-charter").exit_code == 0
            assert suture("site", "enrol", home).exit_code == 0
        until(lambda: hub_status(hub)["sites"] == [])
        for name in SITES:
            made = json.loads(suture("site", "enrol", folder / name, "--json").stdout)
            told = ("--fingerprint", made["fingerprint"])
            assert suture("hub", "admit", made["request"], "--hub", hub, *told).exit_code == 0
            processes[name] = launch("site", "start", folder / name, log=folder / f"{name}.log")
        until(lambda: sum(site["connected"] for site in hub_status(hub)["sites"]) == 3)
        (folder / "study.toml").write_text(STUDY)
        for name in SITES:
            assert suture("site", "accept", folder / name, folder / "study.toml").exit_code == 0
            ready(folder, name, "study.toml")
        yield folder, hub, processes
    finally:
        for process in processes.values():
            end(process)


def test_a_study_runs_through_a_hub_and_exact_figures_stay(federation):
    folder, hub, _ = federation
    result = suture("run", folder / "study.toml", "--hub", hub, "--out", folder / "run", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads((folder / "run" / "result.json").read_text())
    assert found["methods"]["fedavg"]["rounds_done"] == 2
    # Only the noisy evaluation's figures are here, and for so few patients it withholds them all.
    metrics = found["metrics"]
    assert 0 < metrics["evaluation"]["epsilon"] <= 6.0 / 4
    assert metrics["sites"] == {name: dict.fromkeys(metrics["global"]) for name in SITES}
    assert "rows" not in metrics["global"]  # nor is how many patients were tested
    assert all(entry["global"] == entry["sites"] == {} for entry in found["history"])
    assert found["release"]["exact"] is False
    status = site_status(folder / "boston")
    assert status["connection"] == "connected"
    assert status["round"] == 2
    assert [budget["account"] for budget in status["budgets"]] == ["across/fedavg"]
    assert 0 < status["budgets"][0]["spent"] <= 6.0
    log = (folder / "boston.log").read_text()
    assert "step 'fedavg' seed 42 round 2: answered" in log


def test_the_hub_may_be_killed_and_started_again_and_a_revoked_site_is_gone(federation):
    from suture.cli.options import Engines
    from suture.engine import conduct

    folder, hub, processes = federation
    end(processes["hub"])
    with pytest.raises(RunError, match="is it running"):
        hub_status(hub)
    processes["hub"] = launch("hub", "start", hub, "--bind", "127.0.0.1", log=folder / "hub-2.log")
    until(lambda: sum(site["connected"] for site in hub_status(hub)["sites"]) == 3)
    assert suture("hub", "revoke", "nice", "--hub", hub).exit_code == 0
    assert {site["site"] for site in hub_status(hub)["sites"]} == {"boston", "lyon"}
    (folder / "short.toml").write_text(
        STUDY.replace("gathering = 40", "gathering = 6").replace('"across"', '"short"')
    )
    for name in SITES:
        assert suture("site", "accept", folder / name, folder / "short.toml").exit_code == 0
        ready(folder, name, "short.toml")
    begun = time.monotonic()
    with pytest.raises(
        TooFewSites, match=r"site 'nice' gave no answer within 6 s: it is not enrolled"
    ):
        conduct.run(folder / "short.toml", engine=Engines(hub=hub).open())
    assert time.monotonic() - begun < 25
    # A new key for the same site, admitted: it is back.
    end(processes["nice"])
    made = json.loads(suture("site", "enrol", folder / "nice", "--new-key", "--json").stdout)
    with pytest.raises(Refused, match="not the one read out"):
        suture(
            "hub", "admit", made["request"], "--hub", hub, "--fingerprint", "0000-0000-0000-0000"
        )
    suture("hub", "admit", made["request"], "--hub", hub, "--fingerprint", made["fingerprint"])
    processes["nice"] = launch("site", "start", folder / "nice", log=folder / "nice-2.log")
    until(lambda: sum(site["connected"] for site in hub_status(hub)["sites"]) == 3)


def test_strangers_get_nothing(federation):
    import httpx

    _folder, hub, _ = federation
    from suture.network.hub import read_operator

    address = read_operator(hub)["hub"]
    kind = {"content-type": "application/protobuf", "accept": "application/protobuf"}
    with httpx.Client(verify=False, headers=kind) as stranger:
        assert (
            stranger.post(f"https://{address}/v1/control/list-nodes", content=b"").status_code
            == 401
        )
        assert (
            stranger.post(
                f"https://{address}/v1/control/create-federation", content=b""
            ).status_code
            == 404
        )
        assert stranger.get(f"https://{address}/docs").status_code == 404
        assert stranger.post(
            f"https://{address}/v1/runtime/acquire-task", content=b""
        ).status_code in (401, 403)
        assert (
            stranger.post(f"https://{address}/v1/fleet/pull-messages", content=b"").status_code
            == 401
        )
    with pytest.raises(httpx.ConnectError):
        httpx.post(
            f"https://{address}/v1/control/list-nodes"
        )  # the federation's own authority is nobody else's


def test_the_guard_bounds_bodies_and_wakes_who_waits():
    import asyncio

    from suture.network.hub import LARGEST_BODY, Guard

    passed = []

    async def inner(scope, receive, send):
        passed.append(scope["path"])

    async def ask(guard, path, length, who=b"a", method="POST"):
        said = []

        async def send(event):
            said.append(event)

        party = b"flwr-public-key" if "/fleet/" in path else b"flwr-task-token"
        headers = [(b"content-length", length)] if length is not None else []
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [*headers, (party, who)],
        }
        await guard(scope, None, send)
        return said[0]["status"] if said else 200

    async def play():
        guard = Guard(inner)
        assert await ask(guard, "/v1/fleet/push-object", str(LARGEST_BODY + 1).encode()) == 413
        assert await ask(guard, "/v1/fleet/push-object", None) == 411
        assert await ask(guard, "/v1/fleet/get-fab", b"1") == 404  # nobody fetches an app
        assert await ask(guard, "/v1/fleet/pull-messages", b"1", method="GET") == 404
        assert passed == []
        await ask(
            guard, "/v1/fleet/pull-messages", b"1", b"site"
        )  # the first question is answered at once
        waiting = asyncio.create_task(ask(guard, "/v1/fleet/pull-messages", b"1", b"site"))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await ask(guard, "/v1/runtime/push-messages", b"1", b"run")
        await asyncio.sleep(0.05)
        assert not waiting.done()  # pieces may still be on their way
        await ask(guard, "/v1/runtime/pull-messages", b"1", b"run")
        await asyncio.wait_for(waiting, 1)

    asyncio.run(play())
