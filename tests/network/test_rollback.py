"""A site whose whole home comes back older, with real processes: its peers remember, and a person
deals with it."""

import json
import re
import shutil

import pytest

pytest.importorskip("flwr", reason="pip install 'suture[flower]'")
from support.rig import ROUNDS, SITES, Nursery, Rig, the_study, the_tables, wait_for
from typer.testing import CliRunner

from suture.cli.main import app
from suture.errors import LedgerError, Reason

FIRST, OTHERS = SITES[0], SITES[1:]
NAMES = ("faults", "second", "third", "fourth", "fifth")
STUDIES = {name: the_study().replace(name=name) for name in NAMES}
SETTINGS = {
    "accepts": [study.digest for study in STUDIES.values()],
    "lifetime": {"epsilon": 40.0, "delta": 1e-3},
}


@pytest.fixture
def rig(tmp_path):
    the_tables(tmp_path / "tables")
    nursery = Nursery(tmp_path / "nursery.log")
    try:
        with Rig(tmp_path / "rig", tmp_path / "tables", nursery) as found:
            found.introduce()
            yield found
    finally:
        nursery.close()


def forget(rig, monkeypatch, number):
    """From now on the first site's machine remembers nothing: only its peers can know."""
    folder = str(rig.folder / f"witness-{number}")
    rig.witness[FIRST] = folder
    monkeypatch.setenv("SUTURE_WITNESS", folder)


def refused(rig, name):
    with pytest.raises(
        LedgerError, match=re.escape(f"site 'north' refused: {Reason.WITNESS.value}")
    ) as caught:
        rig.run(STUDIES[name]).end()
    print(f"{name}: {caught.value}")
    assert "refused (WITNESS, Refused): peer" in (rig.homes[FIRST] / "site.log").read_text()
    said = json.loads((rig.homes[FIRST] / "rolled-back.json").read_text())
    assert set(said) == set(OTHERS)  # both remember, each under its own signature
    assert len({statement["signature"] for statement in said.values()}) == 2


def write_off(rig, *options):
    found = CliRunner().invoke(
        app, ["ledger", "write-off", str(rig.homes[FIRST]), *options], catch_exceptions=False
    )
    assert found.exit_code == 0, found.output
    print(found.output.strip())
    return found.output


def takes_part(rig, name):
    found = rig.run(STUDIES[name]).end()
    assert found.data["methods"]["fedadam"]["rounds_done"] == ROUNDS
    assert {site: rig.charged(site, f"{name}/fedadam") for site in SITES} == dict.fromkeys(
        SITES, ROUNDS
    )


@pytest.mark.slow
def test_a_home_that_was_put_back_or_lost_its_ledger_is_refused_by_its_peers_word_until_it_is_written_off(
    rig, monkeypatch
):
    home, copy = rig.homes[FIRST], rig.folder / "copy"
    for name in SITES:
        rig.enrol(name)
        rig.start_site(
            name, **SETTINGS, **({"where": "before", "round_": 2} if name == FIRST else {})
        )
    run = rig.run(STUDIES["faults"])
    rig.reached(FIRST)
    rig.kill(FIRST)
    shutil.copytree(home, copy)  # before the last rounds
    rig.start_site(FIRST, **SETTINGS)
    run.end()
    assert rig.charged(FIRST) == ROUNDS

    # The whole home comes back from the copy, on a machine that remembers nothing.
    rig.kill(FIRST)
    shutil.rmtree(home)
    shutil.copytree(copy, home)
    forget(rig, monkeypatch, 1)
    assert rig.charged(FIRST) == 1  # by itself it is a ledger like any other
    rig.start_site(FIRST, **SETTINGS)
    refused(rig, "second")
    assert {site: rig.charged(site, "second/fedadam") for site in (FIRST,)} == {FIRST: 0}
    rig.kill(FIRST)
    assert "nothing was written" in write_off(rig)
    rig.start_site(FIRST, **SETTINGS)
    refused(rig, "second")  # looking at it changes nothing
    rig.kill(FIRST)
    assert "written off at site 'north'" in write_off(rig, "--yes")
    rig.start_site(FIRST, **SETTINGS)
    takes_part(rig, "third")

    # The ledger is deleted; the site is still itself.
    rig.kill(FIRST)
    for path in home.glob("ledger.*"):
        path.unlink()
    forget(rig, monkeypatch, 2)
    rig.start_site(FIRST, **SETTINGS)
    refused(rig, "fourth")
    rig.kill(FIRST)
    assert "written off at site 'north'" in write_off(rig, "--yes")
    rig.start_site(FIRST, **SETTINGS)
    wait_for(lambda: rig.status(FIRST).get("connection") == "connected", what="the site")
    takes_part(rig, "fifth")
    assert "nothing to write off" in write_off(rig)
