"""Shared by all tests: the machine's shape, and small studies."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session", autouse=True)
def machine_witness(tmp_path_factory):
    """What this machine remembers of ledgers stays in the session, also for processes that tests
    start."""
    before = os.environ.get("SUTURE_WITNESS")
    os.environ["SUTURE_WITNESS"] = str(tmp_path_factory.mktemp("witness"))
    yield
    os.environ.pop("SUTURE_WITNESS", None)
    if before is not None:
        os.environ["SUTURE_WITNESS"] = before


@pytest.fixture(scope="session", autouse=True)
def everybody_is_ready():
    """In the processes of the tests a person at each site signs as soon as a study asks for it, so
    that a test about something else need not say so. Tests of the "ready" itself are marked
    ``nobody_signs``."""
    from support import ready as person

    from suture.site import ready

    found = ready.ready_of
    signing = {"on": True}

    def signed(place, study, table=""):
        if signing["on"] and not ready.ready_file(place.home, study).exists():
            person.sign(place, study)
        return found(place, study, table)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ready, "ready_of", signed)
        yield signing


@pytest.fixture(autouse=True)
def nobody_signs(request, everybody_is_ready):
    everybody_is_ready["on"] = request.node.get_closest_marker("nobody_signs") is None
    yield
    everybody_is_ready["on"] = True


@pytest.fixture(scope="session")
def suture_command():
    """Run the command line in a process of its own, as a user does."""

    def call(*arguments, cwd=None, check=False, **options):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "140"}
        command = [sys.executable, "-m", "suture", *map(str, arguments)]
        return subprocess.run(
            command,
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            check=check,
            timeout=600,
            **options,
        )

    return call


@pytest.fixture
def tiny():
    """A study that trains in well under a second: 300 generated patients, 6 rounds, a promise."""
    from suture.study import Study

    return Study(
        name="tiny",
        outcome="high_risk",
        seed=3,
        cohort={"name": "cardio", "patients": 600},
        model={"hidden": [8]},
        method={"name": "fedadam", "rounds": 6, "local_epochs": 1},
        privacy={"unit": "patient", "epsilon": 8.0, "accountant": "rdp"},
    )
