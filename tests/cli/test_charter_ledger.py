"""`suture charter` and `suture ledger` as a board, a privacy officer and a witness use them."""

import csv
import json
import sqlite3

import pytest
from support.ready import sign_all
from support.starter import write_starter

from suture.study import Study


@pytest.fixture(scope="module")
def folder(tmp_path_factory, suture_command):
    """A study of files that ran once at sites with a signed charter; the charter was refused once
    before."""
    path = tmp_path_factory.mktemp("consortium")
    write_starter(path, files=True, patients=600)
    study = Study.from_toml(path / "study.toml").replace(
        model={"hidden": [4]}, method={"rounds": 3, "local_epochs": 1}
    )
    (path / "study.toml").write_text(study.to_toml())
    (path / "greedy.toml").write_text(study.replace(privacy={"epsilon": 9.0}).to_toml())
    charter = suture_command(
        "charter",
        "new",
        "study.toml",
        "--protocol",
        "2026-14",
        "--expires",
        "2099-12-31",
        "--exact-metrics",
        cwd=path,
    )
    assert charter.returncode == 0, charter.stderr
    (path / "charter.toml").write_text(charter.stdout)
    suture_command("charter", "keygen", "board", cwd=path, check=True)
    suture_command("charter", "sign", "charter.toml", "--key", "board.key", cwd=path, check=True)
    home = path / ".suture" / "geriatric"
    home.mkdir(parents=True)
    (home / "charter.toml").write_text((path / "charter.toml").read_text())
    (home / "trust.pub").write_text((path / "board.pub").read_text())
    sign_all(Study.from_toml(path / "study.toml"), path)
    return path


def answer(done, code=0):
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def test_a_charter_from_new_to_refusal(suture_command, folder):
    check = ("charter", "check", "charter.toml")
    assert answer(
        suture_command(*check, "study.toml", "--trust", "board.pub", "--json", cwd=folder)
    )["allowed"]
    found = answer(
        suture_command(*check, "greedy.toml", "--trust", "board.pub", "--json", cwd=folder), 4
    )
    assert [item["name"] for item in found["sites"]["geriatric"]] == ["plan", "epsilon"]
    assert found["sites"]["geriatric"][1]["why"] == "the approved epsilon is 8, found 9"
    late = suture_command(
        *check, "study.toml", "--trust", "board.pub", "--on", "2100-01-01", cwd=folder
    )
    assert late.returncode == 4
    assert "expired on 2099-12-31" in late.stderr
    suture_command("charter", "keygen", "stranger", cwd=folder, check=True)
    stranger = answer(
        suture_command(*check, "study.toml", "--trust", "stranger.pub", "--json", cwd=folder), 4
    )
    assert stranger["sites"]["geriatric"][0]["name"] == "not to be trusted"
    again = suture_command("charter", "keygen", "board", "--json", cwd=folder)
    assert again.returncode == 4
    assert "never overwritten" in json.loads(again.stdout)["error"]["message"]
    wrong = suture_command(
        "charter", "new", "study.toml", "--protocol", "1", "--expires", "tomorrow", cwd=folder
    )
    assert wrong.returncode == 2


def test_a_run_is_refused_then_admitted_shown_exported_and_verified(suture_command, folder):
    refused = suture_command("run", "greedy.toml", "--out", "greedy", cwd=folder)
    assert refused.returncode == 4
    assert "nothing was read" in refused.stderr
    assert not (folder / "greedy").exists()
    suture_command("run", "study.toml", "--out", "one", cwd=folder, check=True)
    shown = answer(
        suture_command(
            "ledger", "show", "--study", "study.toml", "--site", "geriatric", "--json", cwd=folder
        )
    )
    assert [row["kind"] for row in shown["rows"]] == [
        "note",
        "note",
        "promise",
        "promise",
        *["release"] * 5,
    ]
    releases = [row for row in shown["rows"] if row["kind"] == "release"]
    assert [(row["what"], row["round"]) for row in releases] == [
        *(("model update", round_) for round_ in (1, 2, 3)),
        *(("evaluation", round_) for round_ in (1, 2)),
    ]
    spent = [row["epsilon"] for row in shown["rows"] if row["kind"] == "release"]
    assert spent == sorted(spent)
    assert spent[-1] == shown["accounts"][0]["epsilon"] <= 8.0
    assert shown["refused"][0]["why"] == ["plan", "epsilon"]
    text = suture_command(
        "ledger", "show", "--home", ".suture/geriatric", "--last", "1", cwd=folder
    )
    assert "cardio-files/fedadam" in text.stdout
    written = answer(
        suture_command(
            "ledger", "export", "--home", ".suture/geriatric", "--out", "x", "--json", cwd=folder
        )
    )
    assert len(written["written"]) == 3
    with (folder / "x" / "ledger.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == len(shown["rows"])
    page = (folder / "x" / "statement.html").read_text()
    for text in (
        "Privacy statement: geriatric",
        "ethics protocol 2026-14",
        shown["head"],
        "cardio-files: plan, epsilon",
    ):
        assert text in page
    assert "<script" not in page
    verified = answer(
        suture_command("ledger", "verify", "--home", ".suture/geriatric", "--json", cwd=folder)
    )
    assert (verified["verified"], verified["head"]) == (True, shown["head"])


def test_a_witness_and_a_cut(suture_command, folder):
    if not (folder / "one").exists():
        suture_command("run", "study.toml", "--out", "one", cwd=folder, check=True)
    home = ("--home", ".suture/community")
    suture_command("charter", "keygen", "hub", cwd=folder, check=True)
    suture_command(
        "ledger",
        "countersign",
        *home,
        "--key",
        "hub.key",
        "--out",
        "seen.json",
        cwd=folder,
        check=True,
    )
    witness = ("ledger", "verify", *home, "--witness", "seen.json", "--trust")
    assert answer(suture_command(*witness, "hub.pub", "--json", cwd=folder))["witnessed"] == 7
    assert suture_command(*witness, "board.pub", cwd=folder).returncode == 4
    db = sqlite3.connect(folder / ".suture" / "community" / "ledger.sqlite")
    db.execute("DROP TRIGGER entries_stay")
    db.execute("DELETE FROM entries WHERE seq > 2")
    db.execute("UPDATE head SET entries = 2, hash = (SELECT hash FROM entries WHERE seq = 2)")
    db.commit()
    db.close()
    found = answer(suture_command("ledger", "verify", *home, "--json", cwd=folder), 4)
    assert (found["verified"], found["entry"]) == (False, 3)
    refused = suture_command("run", "study.toml", "--out", "two", cwd=folder)
    assert refused.returncode == 4
    assert "Expected: entry 7 with hash" in refused.stderr
    assert "Found: 2 entries" in refused.stderr


def test_mistakes(suture_command, folder):
    assert suture_command("ledger", "show", cwd=folder).returncode == 2
    assert suture_command("ledger", "show", "--home", "nowhere", cwd=folder).returncode == 4
    assert (
        suture_command(
            "ledger", "show", "--study", "study.toml", "--site", "nowhere", cwd=folder
        ).returncode
        == 2
    )
