"""A coordinator that goes rogue: whatever it asks, the site's own handler refuses, with one reason,
and logs it."""

import logging
import pickle
import shutil
from contextlib import closing

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from suture.engine import federation
from suture.errors import Reason
from suture.network import wire
from suture.network.node import Handler, load_kept
from suture.network.settings import SiteSettings
from suture.network.wire import application_hash
from suture.privacy.charter import Charter, Signed
from suture.privacy.ledger.ledger import Ledger
from suture.protection.envelope import seal, unseal
from suture.study import Study

BOARD = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SENTINEL = "73.128"
PATIENTS = 60
SIZES = {"boston": 50, "lyon": 50, "nice": 40}
WIDTH = 5


def asked(**more):
    fields = {
        "name": "cardio",
        "outcome": "high_risk",
        "sites": [{"name": name, "region": "MA", "patients": size} for name, size in SIZES.items()],
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
    rows += [
        f"{i},{SENTINEL if i == 7 else 20 + i % 60},{i % 2},{int(rng.random() < 0.4)}"
        for i in range(PATIENTS)
    ]
    (tmp_path / "rows.csv").write_text("\n".join(rows) + "\n")
    approve(tmp_path, asked())
    pem = BOARD.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    (tmp_path / "trust.pub").write_bytes(pem)
    return tmp_path


def approve(home, study):
    """The board's charter for one study, in the site's home."""
    charter = Charter(
        study="cardio",
        plan=study.digest,
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
    (home / "charter.toml").write_text(Signed(charter).signed_by(BOARD).to_toml())


def desk_at(home, **more):
    settings = {
        "name": "boston",
        "hub": {"address": "hub:1"},
        "data": "rows.csv",
        "region": "MA",
        "tick": 0,
        **more,
    }
    return Handler(SiteSettings(**settings), home)


class Rogue:
    """What a coordinator can send, and what it gets."""

    def __init__(self, handler):
        self.handler = handler

    def send(self, message, app=None):
        data = message if isinstance(message, bytes) else wire.pack(message)
        return wire.unpack(self.handler.answer(data, app or application_hash()))

    def open(self, study):
        return self.send(wire.request("open", study=study.public().to_toml(), seed=42))

    def join(self, study, **sizes):
        self.open(study)
        return self.send(
            wire.request("join", study=study.digest, seed=42, sites={**SIZES, **sizes}, vouched={})
        )

    def step(self, study, round_=1, body=None, **more):
        given = {**named(study), "round": round_, "heads": {}, "vouched": {}, **more}
        return self.send(
            wire.request(
                "step",
                seal({"params": np.zeros(WIDTH, np.float32)}) if body is None else body,
                **given,
            )
        )

    def score(self, study, round_=1, **more):
        body = seal({"params": np.zeros(WIDTH, np.float32)})
        given = {"round": round_, "groups": True, "texts": {}, "heads": {}, "vouched": {}, **more}
        return self.send(wire.request("score", body, **named(study), **given))


def named(study):
    return {"study": study.digest, "seed": 42, "fold": 0, "method": "fedavg"}


@pytest.fixture
def rogue(home):
    found = Rogue(desk_at(home))
    yield found
    found.handler.close()


def refused(found, answer, reason, *words):
    """One reason out of the public list and nothing else; the words are in the site's own status
    and log."""
    assert answer.header == {"ok": False, "site": "boston", "reason": reason.name}
    assert answer.body == b""
    assert all(word in found.handler.status["last_error"] for word in words), found.handler.status


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
    rogue.handler.close()
    restarted = Rogue(desk_at(home))  # state and promise are on the site's disk
    refused(restarted, restarted.step(study), Reason.NOT_OPEN)
    assert restarted.join(study).header["accounts"]["0/fedavg"]["charged"]
    assert restarted.step(study).body == first.body
    second = restarted.step(study, 2)
    assert second.header["new"] == 1
    assert second.body != first.body
    assert (
        restarted.step(study).body == first.body
    )  # an earlier round's very message is answered again, from the disk
    restarted.handler.close()
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
        ({"sites": [{"name": "boston", "region": "MA", "patients": 50}]}, "sites"),
        ({"model": {"hidden": [3]}}, "not the one that was approved"),
    ],
)
def test_what_the_charter_does_not_allow_is_refused_before_rows_are_read(rogue, change, word):
    fields = {
        **asked().to_dict(),
        **{key: value for key, value in change.items() if value is not None},
    }
    for key, value in change.items():
        if value is None:
            del fields[key]
    answer = rogue.open(Study(**fields))
    refused(rogue, answer, Reason.CHARTER, word, "nothing was read")


def test_lower_noise_cannot_even_be_said(rogue):
    study = asked()
    rogue.join(study)
    refused(rogue, rogue.step(study, noise=0.01), Reason.REQUEST, "found noise besides")


def test_raw_rows_cannot_be_asked_for(rogue):
    refused(
        rogue, rogue.send(wire.request("rows", study="x")), Reason.REQUEST, "'rows' is not one of"
    )
    pooled = asked(method={"name": "pooled"}, privacy={"unit": "patient", "epsilon": 4.0})
    refused(rogue, rogue.open(pooled), Reason.SETTINGS, "pooled")


def test_code_is_not_run(rogue, tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    study = asked()
    rogue.join(study)
    refused(
        rogue, rogue.step(study, body=pickle.dumps(Bomb())), Reason.MESSAGE, "could not be opened"
    )
    refused(
        rogue, rogue.send(pickle.dumps(Bomb())), Reason.REQUEST, "does not start as a message does"
    )
    assert not (tmp_path / "ran").exists()


def test_another_app_and_another_version_are_refused(rogue):
    study = asked()
    request = wire.request("open", study=study.public().to_toml(), seed=42)
    refused(
        rogue,
        rogue.send(request, app="0" * 64),
        Reason.APPLICATION,
        "not one that this site accepts",
    )
    request.header["suture"] = "9.9.9"
    refused(rogue, rogue.send(request), Reason.REQUEST, "the same version")


def test_an_old_round_is_not_answered_with_new_content(rogue, home):
    study = asked()
    rogue.join(study)
    rogue.step(study, 1)
    rogue.step(study, 2)
    other = seal({"params": np.ones(WIDTH, np.float32)})
    refused(rogue, rogue.step(study, 1, body=other), Reason.ANSWERED, "round 1 is over")
    refused(rogue, rogue.step(study, 2, body=other), Reason.ANSWERED, "answered already")
    for round_ in (0, 4, -1):
        refused(rogue, rogue.step(study, round_), Reason.TURN, "rounds 1 to 3")
    refused(rogue, rogue.step(study, seed=43), Reason.TURN, "seed 43 is not one of the study's")
    refused(rogue, rogue.step(study, method="fedadam"), Reason.TURN, "not one of the study's")
    refused(rogue, rogue.step(study, fold=1), Reason.TURN, "no fold 1")
    rogue.handler.close()
    assert charges(home) == 2


@pytest.mark.parametrize(
    "message",
    [
        {"params": np.zeros(WIDTH + 1, np.float32)},
        {"params": np.zeros(WIDTH, np.float64)},
        {"params": np.full(WIDTH, np.nan, np.float32)},
        {"params": np.full(WIDTH, 3e38, np.float32)},
        {"other": np.zeros(WIDTH, np.float32)},
        {"params": np.zeros(WIDTH, np.float32), "more": np.zeros(1, np.float32)},
    ],
)
def test_a_message_of_another_shape_is_refused_uncharged(rogue, home, message):
    study = asked()
    rogue.join(study)
    refused(rogue, rogue.step(study, body=seal(message)), Reason.MESSAGE)
    rogue.handler.close()
    assert charges(home) == 0


def test_beyond_the_budget_nothing_leaves(home, tmp_path_factory):
    """The whole plan is promised at the start, and a plan beyond the site's lifetime budget is not
    begun."""
    study = asked(evaluation={"holdout": 0.2, "seeds": 2})
    approve(home, study)
    other = tmp_path_factory.mktemp("other") / "home"
    shutil.copytree(home, other)
    found = Rogue(desk_at(other, lifetime={"epsilon": 3.0, "delta": 1e-4}))
    refused(found, found.join(study), Reason.BUDGET)
    refused(found, found.step(study), Reason.NOT_OPEN)
    found.handler.close()
    assert charges(other) == 0
    found = Rogue(desk_at(home))
    assert found.join(study).header["ok"]
    answers = [found.step(study, round_, seed=seed) for seed in (42, 43) for round_ in (1, 2, 3)]
    assert all(answer.header["ok"] for answer in answers)
    assert max(answer.header["spent"] for answer in answers) <= 4.0
    found.handler.close()
    with closing(Ledger.open(home / "ledger.sqlite", "boston")) as ledger:
        charged = [entry.round for entry in ledger.entries("cardio/fedavg") if entry.round > 0]
        assert charged == [
            1,
            2,
            3,
            1,
            2,
            3,
        ]  # all of the plan; there is no seventh round to ask for
        assert ledger.spent("cardio/fedavg") <= 4.0


def test_sizes_and_sites_are_the_study_s(rogue):
    study = asked()
    refused(
        rogue, rogue.join(study, boston=5000), Reason.STUDY, "not those that the study declares"
    )
    refused(rogue, rogue.join(study, madrid=10), Reason.STUDY, "not those that the study declares")
    undeclared = asked(sites=[{"name": name, "region": "MA"} for name in SIZES], privacy=None)
    refused(rogue, rogue.open(undeclared), Reason.STUDY, "declares no size")


def test_exact_figures_and_labels_stay(rogue):
    study = asked()
    rogue.join(study)
    refused(rogue, rogue.score(study), Reason.EXACT, "do not leave this site")


def test_no_charter_no_study(home):
    (home / "charter.toml").unlink()
    found = Rogue(desk_at(home))
    refused(found, found.open(asked()), Reason.CHARTER, "under a signed charter only")
    refused(
        found,
        found.open(Study(name="x", outcome="high_risk", cohort="cardio")),
        Reason.STUDY,
        "rows of its own",
    )
    (home / "trust.pub").unlink()
    refused(found, found.open(asked()), Reason.CHARTER, "under a signed charter only")
    found = Rogue(desk_at(home, charter_needed=False))
    refused(found, found.open(asked()), Reason.STUDY, "was not accepted here")


def test_a_step_before_the_promise_and_a_huge_message_are_refused(home):
    found = Rogue(desk_at(home, largest_message=1 << 16))
    refused(found, found.step(asked()), Reason.NOT_OPEN, "is not open here")
    found.open(asked())
    refused(found, found.step(asked()), Reason.NOT_OPEN, "join it first")
    refused(found, found.send(b"SUTQ" + bytes(1 << 17)), Reason.TOO_LARGE, "bytes")


def test_what_rows_hold_stays_in_the_site_s_log_and_no_value_is_in_it(home, caplog):
    """A table with text where a number should be trains all the same: whether it does must not tell
    of a row."""
    text = (home / "rows.csv").read_text().replace(SENTINEL, SENTINEL + "x")
    (home / "rows.csv").write_text(text)
    found = Rogue(desk_at(home))
    with caplog.at_level(logging.INFO, "suture.site"):
        answer = found.join(asked())
    assert answer.header["ok"]
    assert answer.header["warnings"] == []
    assert answer.header["described"] == {}
    assert "column 'age'" in caplog.text
    assert SENTINEL not in caplog.text
    assert SENTINEL not in (home / "status.json").read_text()
    (home / "rows.csv").write_text(text.replace("age", "years"))
    found = Rogue(desk_at(home))
    refused(found, found.open(asked()), Reason.TABLE, "age")
    status = (home / "status.json").read_text()
    assert SENTINEL not in status
    assert '"refused": 1' in status


@pytest.mark.parametrize(
    "broken",
    ["suture.methods.fedavg.FedAvg.site_step", "suture.network.node.Participant.step"],
)
def test_the_words_of_an_unforeseen_error_go_nowhere(broken, home, caplog, monkeypatch):
    def fails(*_):
        raise ValueError(f"could not convert {SENTINEL}")

    found = Rogue(desk_at(home))
    found.join(asked())
    monkeypatch.setattr(broken, fails)
    with caplog.at_level(logging.DEBUG, "suture.site"):
        answer = found.step(asked())
    refused(found, answer, Reason.FAULT, "ValueError at test_rogue.py")
    assert SENTINEL not in f"{answer} {caplog.text} {(home / 'status.json').read_text()}"


def test_state_is_kept_per_training_and_survives(home):
    handler = desk_at(home)
    found = Rogue(handler)
    study = asked()
    found.join(study)
    found.step(study)
    path = home / "federation" / study.digest / "fedavg-42-0.npz"
    assert load_kept(path).round == 1
    assert federation.survey(study, home, 42, only="").sizes == {}
    handler.close()


def test_a_site_may_let_its_own_figures_leave_and_no_patient_s_risk(home):
    (home / "charter.toml").unlink()
    (home / "trust.pub").unlink()
    study = asked(privacy=None)  # under a promise none leaves: test_evaluation_counts
    found = Rogue(
        desk_at(home, charter_needed=False, exact_metrics="figures", accepts=[study.digest])
    )
    found.join(study)
    assert (
        found.score(study).header["reason"] == "TURN"
    )  # nothing was trained yet: no model of the run to score
    found.step(study)
    answer = found.score(study)
    assert answer.header["figures"]["auc"] == 0.5
    assert unseal(answer.body) == {}
    found.handler.close()
