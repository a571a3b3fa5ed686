"""`suture audit` on the real path: quiet on the code as it is, loud when the code is broken
underneath it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.batches import train_on_batches

from suture.attacks import audit_site as auditing
from suture.attacks.audit_site import audit_study
from suture.errors import StudyError
from suture.privacy.noise.source import derive, seeded_key
from suture.privacy.unit import Patients
from suture.site import hospital
from suture.training import mechanism
from suture.training.local import Local


@pytest.fixture
def study(tiny):
    return tiny.replace(privacy={"unit": "patient", "epsilon": 4.0})


def quick(study, **options):
    return audit_study(
        study, **{"trials": 120, "messages": 0, "key": seeded_key(4), "threads": 1, **options}
    )


def verdicts(found):
    return {test["what"]: test["broken"] for test in found["tests"]}


@pytest.mark.parametrize("method", ["fedadam", "fedcluster", "alone", "pooled"])
def test_the_code_as_it_is_is_not_flagged(study, method):
    found = quick(study.replace(method={"name": method}))
    assert not found["broken"]
    assert found["verdict"] == "consistent with the claim"
    assert len(found["tests"]) == 3
    assert json.loads(json.dumps(found, allow_nan=False))["method"] == method


def test_the_smallest_hospital_is_audited_unless_another_is_named(study):
    assert quick(study)["site"] == "geriatric"
    assert quick(study, site="cardiology")["site"] == "cardiology"
    with pytest.raises(StudyError, match=r"'nowhere'.*young-clinic"):
        quick(study, site="nowhere")


def test_too_little_noise_is_flagged(study, monkeypatch):
    real = mechanism.train

    def quiet(network, params, data, local, key, *more):
        less = replace(local, noise_multiplier=local.noise_multiplier / 16)
        return real(network, params, data, less, key, *more)

    monkeypatch.setattr(mechanism, "train", quiet)
    found = quick(study)
    assert found["broken"]
    assert found["verdict"].startswith("broken: measured at least ")
    assert verdicts(found)["one step with everybody in it"]


def test_a_reused_key_is_flagged_by_the_canary_that_joins(study, monkeypatch):
    monkeypatch.setattr(hospital, "root_key", lambda secret, *what: derive(secret, "the same"))
    found = verdicts(quick(study))
    assert found == {
        "the first round as sent": False,
        "one step with everybody in it": False,
        "the canary joins for a second step": True,
    }


def test_noise_from_a_short_seed_is_flagged(study, monkeypatch):
    real = mechanism.train

    def short(network, params, data, local, key, *more):
        return real(network, params, data, local, bytes(29) + key[:3], *more)

    monkeypatch.setattr(mechanism, "train", short)
    found = quick(study, trials=40, messages=16_000)  # 24 bits; 32 would need 250,000 messages
    assert verdicts(found)["no noise is used twice"]
    assert "came with noise seen before" in found["verdict"]


def test_rows_clipped_one_by_one_are_flagged(study, monkeypatch):
    real = mechanism.train

    def by_record(network, params, data, local, key, *more):
        rows = Patients(data.x, data.y, np.arange(data.rows + 1))
        return real(network, params, rows, replace(local, batch=10**6), key, *more)

    monkeypatch.setattr(mechanism, "train", by_record)
    found = quick(study)
    assert verdicts(found)["one step with everybody in it"]


def test_bounded_activations_get_a_balanced_ghost(study):
    found = quick(
        study.replace(model={"activation": "tanh"}, privacy={"epsilon": 20.0}), trials=200
    )
    assert not found["broken"]
    assert list(verdicts(found)) == [
        "one step with everybody in it",
        "the canary joins for a second step",
    ]
    assert "bounded activations" in found["left_out"][0]
    assert found["tests"][0]["measured"]["epsilon"] > 0


def test_a_study_without_a_promise_is_refused(study):
    fields = {k: v for k, v in study.to_dict().items() if k != "privacy"}
    with pytest.raises(StudyError, match="no claim to audit"):
        audit_study(type(study)(**fields))


def test_the_ghost_contributes_nothing(study):
    subject = auditing._subject(study, Path(), None)
    ghost, canary = auditing._saturated(subject)
    network = subject.method.network
    for (x, y), moves in ((ghost, False), (canary, True)):
        alone = Patients(x, y, np.array([0, len(x)]))
        params = subject.message["params"]
        after = train_on_batches(network, params, alone, Local(rate=1.0), [np.array([0])])
        assert np.array_equal(after, params) != moves


def test_command_line(suture_command, tmp_path, study):
    path = tmp_path / "study.toml"
    path.write_text(study.to_toml(), encoding="utf-8")
    done = suture_command("audit", path, "--trials", 60, "--messages", 0, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["broken"] is False
    assert found["rate"] == 0.001
    assert "nothing was sent" in found["scope"]
    shown = suture_command("audit", path, "--trials", 60, "--messages", 0)
    assert "verdict: consistent with the claim" in shown.stdout
