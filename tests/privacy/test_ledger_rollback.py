"""A home that comes back older, or is deleted and made anew, is refused until a person writes the
difference off."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent

import suture
from suture.errors import BudgetExhausted, LedgerError
from suture.privacy.accounting.events import normal_form
from suture.privacy.ledger import chain as heads
from suture.privacy.ledger.chain import (
    Head,
    countersign,
    head_path,
    witnessed,
)
from suture.privacy.ledger.ledger import Budget, Ledger, RolledBack, Untrusted
from suture.privacy.ledger.overview import overview, releases

EVENT = GaussianDpEvent(4.83)  # forty of them cost epsilon 6 at delta 1e-5
SIX, TWO = Budget(6.0, 1e-5, "pld"), Budget(2.0, 1e-5, "pld")
PLAN = normal_form(SelfComposedDpEvent(EVENT, 40))


@pytest.fixture(autouse=True)
def remembered(tmp_path, monkeypatch):
    monkeypatch.setenv(heads.VARIABLE, str(tmp_path / "witness"))
    return tmp_path / "witness"


@pytest.fixture
def home(tmp_path):
    """A home with a backup of it: one account and three charges then, three charges and another
    account since."""
    path = tmp_path / "boston"
    path.mkdir()
    ledger = at(path)
    ledger.open_lifetime(Budget(10.0, 1e-4, "pld"))
    ledger.open_study("cardio/fedavg", SIX, PLAN)
    charge(ledger, range(3))
    ledger.close()
    shutil.copytree(path, tmp_path / "backup")
    ledger = at(path)
    charge(ledger, range(3, 6))
    ledger.open_study("cardio/releases", TWO)
    ledger.close()
    return path


def at(home, **options):
    return Ledger.open(home / "ledger.sqlite", "boston", **options)


def charge(ledger, rounds, account="cardio/fedavg"):
    for i in rounds:
        ledger.charge(account, i, EVENT, i.to_bytes(4, "big"))


def restore(home):
    shutil.rmtree(home)
    shutil.copytree(home.parent / "backup", home)


def test_a_home_restored_from_its_backup_is_refused_until_it_is_written_off(home):
    newest = at(home).head()
    assert newest == Head("boston", 9, newest.hash, 8.0, 2e-5)
    restore(home)
    for _ in range(2):  # a refused opening must not cover the trace
        with pytest.raises(
            RolledBack,
            match=r"entry 9 with .* epsilon 8 .* Found: 5 entries, epsilon 6 .* write-off",
        ) as found:
            at(home)
        assert (found.value.seen, found.value.found.entries) == (newest, 5)
    with pytest.raises(RolledBack):
        Ledger.read(home / "ledger.sqlite").verify()
    ledger = at(home, rolled_back=True)
    with pytest.raises(LedgerError, match="to write a lost part off"):
        ledger.charge("cardio/fedavg", 3, EVENT, b"x")
    entry = ledger.write_off(newest)
    assert entry.seq == 10
    assert ledger.head() == Head("boston", 10, entry.hash, 8.0, 2e-5)
    assert ledger.holds(newest)
    with pytest.raises(LedgerError, match="nothing to write off"):
        ledger.write_off(newest)
    ledger.close()
    ledger = at(home)
    ledger.verify(countersign(newest, Ed25519PrivateKey.generate()))
    ledger.open_study("cardio/fedavg", SIX, PLAN)
    assert ledger.charge(
        "cardio/fedavg", 2, EVENT, (2).to_bytes(4, "big")
    ).repeated  # what was paid for stays paid for
    with pytest.raises(BudgetExhausted, match=r"closed when entry 10 wrote .* off"):
        ledger.charge("cardio/fedavg", 3, EVENT, b"x")
    with pytest.raises(BudgetExhausted, match=r"lifetime epsilon 8 .* of 10"):
        ledger.open_study("again/fedavg", SIX, PLAN)
    ledger.open_study("again/releases", TWO)
    charge(ledger, range(3), "again/releases")
    assert ledger.spent_in_all() == 10.0
    found = overview(ledger)
    assert [account["closed"] for account in found["accounts"]] == [True, False]
    assert (found["written_off"][0]["entries"], found["written_off"][0]["found"]) == (9, 5)
    row = next(row for row in releases(ledger) if row["kind"] == "write-off")
    assert row["event"].startswith("5 entries found where 9 were seen")
    assert "epsilon 8 and delta 2e-05" in row["event"]
    ledger.close()
    at(home).close()


@pytest.mark.parametrize("how", ["all", "ledger", "made anew and used"])
def test_a_home_that_was_deleted_is_refused(home, how, monkeypatch):
    newest = at(home).head()
    if how == "ledger":
        (home / "ledger.sqlite").unlink()
    else:
        shutil.rmtree(home)
        home.mkdir()
    if how == "made anew and used":  # where nobody remembers
        with monkeypatch.context() as patch:
            patch.setenv(heads.VARIABLE, str(home.parent / "elsewhere"))
            ledger = at(home)
            ledger.open_study("other/releases", TWO)
            ledger.close()
    with pytest.raises(RolledBack) as found:
        at(home)
    assert found.value.seen == newest
    ledger = at(home, rolled_back=True)
    (memory,) = ledger.forgotten()
    assert memory == heads.Memory(newest, anew=True)
    ledger.write_off(memory.head, anew=memory.anew)
    # Nothing of the new chain can be in what was seen, so all of both counts.
    assert ledger.head().epsilon == (10.0 if how == "made anew and used" else 8.0)
    ledger.close()
    at(home).close()


def test_a_home_that_was_moved_is_fine_and_its_place_is_free(home, tmp_path):
    newest = at(home).head()
    home.rename(tmp_path / "moved")
    ledger = at(tmp_path / "moved")
    ledger.open_study("later/releases", TWO)
    ledger.close()
    home.mkdir()
    at(home).close()
    restore(home)  # an older copy of the home that was moved
    with pytest.raises(RolledBack) as found:
        at(home)
    assert found.value.seen.entries == newest.entries + 1


def test_another_site_and_a_ledger_that_is_not_durable_are_not_missed(home):
    shutil.rmtree(home)
    home.mkdir()
    at(home, durable=False).close()
    (home / "ledger.sqlite").unlink()
    head_path(home / "ledger.sqlite").unlink()
    Ledger.open(home / "ledger.sqlite", "leuven").close()
    shutil.rmtree(home)
    home.mkdir()
    with pytest.raises(RolledBack):  # Boston's is missed all the same
        at(home)


def test_a_chain_that_went_on_elsewhere_counts_in_full(home, monkeypatch):
    newest = at(home).head()
    restore(home)
    with monkeypatch.context() as patch:  # on a machine that remembers nothing
        patch.setenv(heads.VARIABLE, str(home.parent / "elsewhere"))
        ledger = at(home)
        charge(ledger, range(10, 16))
        ledger.close()
    with pytest.raises(RolledBack):
        at(home)
    ledger = at(home, rolled_back=True)
    ledger.write_off(newest)
    assert (ledger.head().entries, ledger.head().epsilon, ledger.head().delta) == (12, 14.0, 3e-5)
    ledger.close()
    at(home).close()


def test_older_witnesses_of_the_lost_tail_are_satisfied_and_others_are_not(home):
    ledger = at(home)
    at_seven = Head("boston", 7, ledger.rows()[6].hash, 6.0, 1e-5)
    newest = ledger.head()
    ledger.close()
    restore(home)
    ledger = at(home, rolled_back=True)
    assert not ledger.holds(at_seven)
    ledger.write_off(newest)
    assert ledger.holds(at_seven)
    for other in (
        replace(at_seven, epsilon=9.0),
        Head("boston", 4, "00", 1.0, 1e-6),
        Head("leuven", 1, "00", 0.0, 0.0),
    ):
        assert not ledger.holds(other)
    with pytest.raises(LedgerError, match="of site 'leuven'"):
        ledger.write_off(Head("leuven", 99, "00", 0.0, 0.0))
    ledger.close()


def test_an_edited_write_off_is_found(home):
    newest = at(home).head()
    restore(home)
    ledger = at(home, rolled_back=True)
    ledger.write_off(newest)
    ledger._db.execute("DROP TRIGGER entries_keep")
    ledger._db.execute("UPDATE entries SET event = replace(event, '8.0', '6.0') WHERE seq = 10")
    ledger.close()
    with pytest.raises(Untrusted, match="entry 10 was changed"):
        at(home)


def test_a_home_restored_without_its_head_can_be_written_off(home):
    newest = at(home).head()
    restore(home)
    head_path(home / "ledger.sqlite").unlink()
    with pytest.raises(LedgerError):
        at(home)
    ledger = at(home, rolled_back=True)
    ledger.write_off(newest)
    ledger.close()
    at(home).close()


def test_a_memory_that_a_loss_of_power_tore_is_no_memory(home, remembered):
    for file in remembered.rglob("*.json*"):
        file.write_bytes(b"")
    at(home).close()
    restore(home)
    with pytest.raises(RolledBack):  # it was written anew
        at(home)


def test_without_a_place_to_remember_nothing_is_charged(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(heads.VARIABLE, str(tmp_path / "file" / "witness"))
    with pytest.raises(LedgerError, match=r"nothing may leave|whether the ledger is whole"):
        Ledger.open(tmp_path / "ledger.sqlite", "boston")
    Ledger.open(tmp_path / "other.sqlite", "boston", durable=False).close()
    Ledger.open(None, "boston").close()


def test_signatures_cover_what_is_reserved(home):
    key, other = (Ed25519PrivateKey.from_private_bytes(bytes([i]) * 32) for i in (1, 2))
    head = at(home).head()
    seen = countersign(head, key)
    assert witnessed(seen, (key.public_key(),))
    assert not witnessed(seen, (other.public_key(),))
    for wrong in ({"epsilon": 1.0}, {"delta": 1e-6}, {"entries": 8}, {"signature": "not hex"}):
        changed = replace(seen, witness=replace(seen.witness, **wrong))
        assert not witnessed(changed, (key.public_key(),))


SPENDER = """
import sys
from pathlib import Path
from dp_accounting import GaussianDpEvent
from suture.privacy.ledger.ledger import Budget, Ledger
ledger = Ledger.open(Path(sys.argv[1]) / "ledger.sqlite", "boston")
ledger.open_study("cardio/releases", Budget(2.0, 1e-5, "pld"))
for i in range(int(sys.argv[2])):
    print(ledger.charge("cardio/releases", i, GaussianDpEvent(9.0), f"{sys.argv[3]} {i}".encode()).entry, flush=True)
"""


def test_whole_home_rollback_with_real_processes(tmp_path):
    home, backup = tmp_path / "boston", tmp_path / "backup"
    home.mkdir()

    def spend(count, name):
        environment = {**os.environ, "PYTHONPATH": str(Path(suture.__file__).parent.parent)}
        return subprocess.run(
            [sys.executable, "-c", SPENDER, str(home), str(count), name],
            capture_output=True,
            text=True,
            env=environment,
        )

    assert spend(2, "a").stdout.split() == ["2", "3"]
    shutil.copytree(home, backup)
    assert spend(3, "b").returncode == 0
    restore(home)
    refused = spend(3, "c")
    assert refused.returncode != 0
    assert refused.stdout == ""
    assert "RolledBack" in refused.stderr
    shutil.rmtree(home)
    home.mkdir()
    gone = spend(3, "d")
    assert (gone.stdout, "RolledBack" in gone.stderr) == ("", True)


def test_the_command(home, suture_command):
    newest = at(home).head()
    assert "nothing to write off" in suture_command("ledger", "write-off", home, check=True).stdout
    restore(home)
    verified = suture_command("ledger", "verify", "--home", home, "--json")
    assert verified.returncode == 4
    assert f"suture ledger write-off {home}" in json.loads(verified.stdout)["problem"]
    asked = suture_command("ledger", "write-off", home, check=True).stdout
    assert (
        "seen: 9 entries, epsilon 8, delta 2e-05; found: 5 entries, epsilon 6, delta 1e-05" in asked
    )
    assert "run again with --yes" in asked
    with pytest.raises(RolledBack):
        at(home)
    done = json.loads(
        suture_command("ledger", "write-off", home, "--yes", "--json", check=True).stdout
    )
    assert (done["written"], done["found"], done["entries"], done["epsilon"], done["delta"]) == (
        True,
        5,
        10,
        8.0,
        2e-5,
    )
    assert done["seen"] == [{"entries": 9, "hash": newest.hash, "epsilon": 8.0, "delta": 2e-5}]
    at(home).close()
    shown = suture_command("ledger", "show", "--home", home, check=True).stdout
    assert "all together: basic composition of adaptively chosen plans" in shown
    shutil.rmtree(home)
    home.mkdir()
    gone = suture_command("ledger", "write-off", home, "--yes", check=True).stdout
    assert "written off at site 'boston': entry 11, epsilon 8" in gone
    assert suture_command("ledger", "write-off", home.parent / "nowhere").returncode == 4


def test_the_command_takes_the_head_of_a_witness_elsewhere(
    home, tmp_path, suture_command, remembered
):
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    seen = countersign(at(home).head(), key)
    content = {**vars(seen), "witness": vars(seen.witness)}
    (tmp_path / "seen.json").write_text(json.dumps(content))
    restore(home)
    shutil.rmtree(remembered)
    at(home).close()  # this machine has forgotten too
    done = suture_command(
        "ledger",
        "write-off",
        home,
        "--witness",
        tmp_path / "seen.json",
        "--yes",
        "--json",
        check=True,
    )
    assert json.loads(done.stdout)["epsilon"] == 8.0
    assert at(home).holds(seen)
    (tmp_path / "seen.json").write_text("{}")
    assert (
        suture_command("ledger", "write-off", home, "--witness", tmp_path / "seen.json").returncode
        == 4
    )
