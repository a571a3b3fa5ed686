"""A coordinator that goes rogue: whatever it asks, the site's own desk refuses, says why, and logs it."""

import logging
import pickle
from contextlib import closing

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from suture import world
from suture.engines import wire
from suture.engines.application import application_hash
from suture.engines.desk import Desk
from suture.engines.settings import SiteSettings
from suture.engines.visit import load_kept
from suture.privacy.charter import Charter, Signed
from suture.privacy.ledger import Ledger
from suture.protection.envelope import seal, unseal
from suture.study import Study

BOARD = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SENTINEL = "73.128"
PATIENTS = 60
WIDTH = 5


def asked(**more):
    fields = {
        "name": "cardio",
        "outcome": "high_risk",
        "sites": [{"name": name, "region": "MA"} for name in ("boston", "lyon", "nice")],
        "schema": {
            "patient": "id",
            "features": {
                "age": {"kind": "number", "low": 0, "high": 100},
                "smoker": {"kind": "flag"},
            },
        },
        "model": {"hidden": []},
        "method": {"name": "fedavg", "rounds": 3, "local_epochs": 1, "batch": 8},
        "privacy": {"unit": "patient", "epsilon": 4.0},
        "evaluation": {"holdout": 0.2},
    }
    return Study(**{**fields, **more})


@pytest.fixture
def home(tmp_path):
    rng = np.random.default_rng(3)
    rows = ["id,age,smoker,high_risk"]
    rows += [f"{i},{SENTINEL if i == 7 else 20 + i % 60},{i % 2},{int(rng.random() < 0.4)}" for i in range(PATIENTS)]
    (tmp_path / "rows.csv").write_text("\n".join(rows) + "\n")
    charter = Charter(
        study="cardio",
        protocol="2026-14",
        expires="2099-12-31",
        outcome="high_risk",
        features=("age", "smoker"),
        regions=("MA",),
        sites=("boston", "lyon", "nice"),
        minimum_sites=3,
        epsilon=4.0,
        delta=1e-5,
        methods=("fedavg",),
    )
    (tmp_path / "charter.toml").write_text(Signed(charter).signed_by(BOARD).to_toml())
    pem = BOARD.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "trust.pub").write_bytes(pem)
    return tmp_path


def desk_at(home, **more):
    settings = {"name": "boston", "hub": {"address": "hub:1"}, "data": "rows.csv", "region": "MA", **more}
    return Desk(SiteSettings(**settings), home)


class Rogue:
    """What a coordinator can send, and what it gets."""

    def __init__(self, desk):
        self.desk = desk

    def send(self, message, app=None):
        data = message if isinstance(message, bytes) else wire.pack(message)
        return wire.unpack(self.desk.answer(data, app or application_hash()))

    def open(self, study):
        return self.send(wire.request("open", study=study.public().to_toml(), seed=42))

    def join(self, study, **sizes):
        opened = self.open(study).header
        given = {"boston": opened.get("patients", 1), "lyon": 50, "nice": 40, **sizes}
        return self.send(wire.request("join", study=wire.digest(study.public().to_toml()), seed=42, sites=given))

    def step(self, study, round_=1, body=None, **more):
        names = {"study": wire.digest(study.public().to_toml()), "seed": 42, "fold": 0, "method": "fedavg"}
        given = {**names, "round": round_, **more}
        return self.send(
            wire.request("step", seal({"params": np.zeros(WIDTH, np.float32)}) if body is None else body, **given)
        )


@pytest.fixture
def rogue(home):
    found = Rogue(desk_at(home))
    yield found
    found.desk.close()


def refused(answer, kind, *words):
    assert answer.header["ok"] is False
    assert answer.header["kind"] == kind, answer.header
    assert all(word in answer.header["why"] for word in words), answer.header["why"]
    assert answer.body == b""


def charges(home):
    with closing(Ledger.open(home / "ledger.sqlite", "boston")) as ledger:
        return ledger.rounds_charged("cardio/fedavg") if ledger.promised("cardio/fedavg") else 0


def test_an_honest_round_is_answered_and_charged_once_however_often_it_is_asked(rogue, home):
    study = asked()
    assert rogue.join(study).header["ok"]
    first = rogue.step(study)
    assert first.header["ok"]
    assert first.header["new"] == 1
    assert set(unseal(first.body)) == {"delta"}
    again = rogue.step(study)
    assert again.body == first.body
    assert again.header["new"] == 0
    rogue.desk.close()
    restarted = Rogue(desk_at(home))  # state and promise are on the site's disk
    assert restarted.step(study).body == first.body
    second = restarted.step(study, 2)
    assert second.header["new"] == 1
    assert second.body != first.body
    restarted.desk.close()
    assert charges(home) == 2


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"privacy": {"unit": "patient", "epsilon": 40.0}}, "epsilon"),
        ({"privacy": {"unit": "patient", "noise_multiplier": 0.01}}, "epsilon"),
        ({"privacy": None}, "privacy"),
        ({"outcome": "smoker_next_year"}, "outcome"),
        ({"method": {"name": "fedadam", "rounds": 3}}, "method"),
        ({"name": "another"}, "study"),
        ({"sites": [{"name": "boston", "region": "MA"}]}, "sites"),
    ],
)
def test_what_the_charter_does_not_allow_is_refused_before_rows_are_read(rogue, change, word):
    fields = {**asked().to_dict(), **{key: value for key, value in change.items() if value is not None}}
    for key, value in change.items():
        if value is None:
            del fields[key]
    answer = rogue.open(Study(**fields))
    refused(answer, "CharterError", word, "nothing was read")


def test_lower_noise_cannot_even_be_said(rogue):
    study = asked()
    rogue.join(study)
    refused(rogue.step(study, noise=0.01), "Refused", "found noise besides")


def test_raw_rows_cannot_be_asked_for(rogue):
    refused(rogue.send(wire.request("rows", study="x")), "Refused", "'rows' is not one of")
    refused(
        rogue.open(asked(method={"name": "pooled"}, privacy={"unit": "patient", "epsilon": 4.0})),
        "CharterError",
        "pooled",
    )


def test_code_is_not_run(rogue, tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    study = asked()
    rogue.join(study)
    refused(rogue.step(study, body=pickle.dumps(Bomb())), "RunError", "could not be opened")
    refused(rogue.send(pickle.dumps(Bomb())), "Refused", "does not start as a message does")
    assert not (tmp_path / "ran").exists()


def test_another_app_and_another_version_are_refused(rogue):
    study = asked()
    request = wire.request("open", study=study.public().to_toml(), seed=42)
    refused(rogue.send(request, app="0" * 64), "Refused", "not one that this site accepts")
    request.header["suture"] = "9.9.9"
    refused(rogue.send(request), "Refused", "answers only the same")


def test_an_old_round_is_not_answered_with_new_content(rogue, home):
    study = asked()
    rogue.join(study)
    rogue.step(study, 1)
    rogue.step(study, 2)
    other = seal({"params": np.ones(WIDTH, np.float32)})
    refused(rogue.step(study, 2, body=other), "Refused", "answered already")
    for round_ in (0, 4, -1):
        refused(rogue.step(study, round_), "Refused", "rounds 1 to 3")
    refused(rogue.step(study, seed=43), "Refused", "seed 43 is not one of the study's")
    refused(rogue.step(study, method="fedadam"), "Refused", "not one of the study's")
    refused(rogue.step(study, fold=1), "Refused", "no fold 1")
    rogue.desk.close()
    assert charges(home) == 2


@pytest.mark.parametrize(
    "message",
    [
        {"params": np.zeros(WIDTH + 1, np.float32)},
        {"params": np.zeros(WIDTH, np.float64)},
        {"params": np.full(WIDTH, np.nan, np.float32)},
        {"other": np.zeros(WIDTH, np.float32)},
        {"params": np.zeros(WIDTH, np.float32), "more": np.zeros(1, np.float32)},
    ],
)
def test_a_message_of_another_shape_is_refused_uncharged(rogue, home, message):
    study = asked()
    rogue.join(study)
    assert rogue.step(study, body=seal(message)).header["kind"] == "Refused"
    rogue.desk.close()
    assert charges(home) == 0


def test_beyond_the_budget_nothing_leaves(rogue, home):
    study = asked(
        privacy={"unit": "patient", "epsilon": 4.0, "noise_multiplier": 1.0},
        method={**asked().method.model_dump(exclude_none=True), "rounds": 40},
    )
    rogue.join(study)
    done = 0
    for round_ in range(1, 41):
        answer = rogue.step(study, round_)
        if not answer.header["ok"]:
            break
        done += 1
    refused(answer, "BudgetExhausted", "budget spent")
    rogue.desk.close()
    assert 0 < done < 40
    assert charges(home) == done
    with closing(Ledger.open(home / "ledger.sqlite", "boston")) as ledger:
        assert ledger.spent("cardio/fedavg") <= 4.0


def test_sizes_and_sites_are_the_study_s(rogue):
    study = asked()
    refused(rogue.join(study, boston=5000), "Refused", "number of patients")
    refused(rogue.join(study, madrid=10), "Refused", "found others")


def test_exact_figures_and_labels_stay(rogue):
    study = asked()
    rogue.join(study)
    names = {"study": wire.digest(study.public().to_toml()), "seed": 42, "fold": 0, "method": "fedavg"}
    body = seal({"params": np.zeros(WIDTH, np.float32)})
    refused(
        rogue.send(wire.request("score", body, groups=False, texts={}, **names)), "Refused", "do not leave this site"
    )


def test_no_charter_no_study(home):
    (home / "charter.toml").unlink()
    found = Rogue(desk_at(home))
    refused(found.open(asked()), "Refused", "under a signed charter only")
    refused(found.open(Study(name="x", outcome="high_risk", cohort="cardio")), "Refused", "its own rows only")


def test_a_step_before_the_promise_and_a_huge_message_are_refused(home):
    found = Rogue(desk_at(home, largest_message=1 << 16))
    refused(found.step(asked()), "Refused", "open it first")
    found.open(asked())
    refused(found.step(asked()), "Refused", "join it first")
    refused(found.send(b"SUTQ" + bytes(1 << 17)), "Refused", "bytes; the largest here")


def test_errors_about_rows_stay_in_the_site_s_log_and_no_value_is_in_it(home, caplog):
    text = (home / "rows.csv").read_text().replace(SENTINEL, SENTINEL + "x")
    (home / "rows.csv").write_text(text)
    found = Rogue(desk_at(home))
    with caplog.at_level(logging.INFO, "suture.site"):
        answer = found.join(asked())
    refused(answer, "DataError", "for the site's own eyes")
    assert "refused" in caplog.text
    assert "age" in caplog.text
    assert SENTINEL not in caplog.text
    status = (home / "status.json").read_text()
    assert SENTINEL not in status
    assert '"refused": 1' in status


@pytest.mark.parametrize("broken", ["suture.methods.fedavg.FedAvg.site_step", "suture.engines.visit.Visit.step"])
def test_the_words_of_an_unforeseen_error_go_nowhere(broken, home, caplog, monkeypatch):
    def fails(*_):
        raise ValueError(f"could not convert {SENTINEL}")

    found = Rogue(desk_at(home))
    found.join(asked())
    monkeypatch.setattr(broken, fails)
    with caplog.at_level(logging.DEBUG, "suture.site"):
        answer = found.step(asked())
    refused(answer, "RunError", "ValueError at test_rogue.py")
    assert SENTINEL not in f"{answer} {caplog.text} {(home / 'status.json').read_text()}"


def test_state_is_kept_per_training_and_survives(home):
    desk = desk_at(home)
    found = Rogue(desk)
    study = asked()
    found.join(study)
    found.step(study)
    path = home / "federation" / wire.digest(study.public().to_toml()) / "fedavg-42-0.npz"
    assert load_kept(path).round == 1
    assert world.survey(study, home, 42, only="").sizes == {}
    desk.close()


def test_a_site_may_let_its_own_figures_leave_and_no_patient_s_risk(home):
    (home / "charter.toml").unlink()
    (home / "trust.pub").unlink()
    found = Rogue(desk_at(home, charter_needed=False, exact_metrics="figures"))
    study = asked()
    found.join(study)
    names = {"study": wire.digest(study.public().to_toml()), "seed": 42, "fold": 0, "method": "fedavg"}
    body = seal({"params": np.zeros(WIDTH, np.float32)})
    answer = found.send(wire.request("score", body, groups=True, texts={}, **names))
    assert answer.header["figures"]["auc"] == 0.5
    assert unseal(answer.body) == {}
    found.desk.close()
