"""The "ready" that a study on real patients needs: nobody without the site's secret can make one,
and one for another study, site or edition does not count."""

from __future__ import annotations

import json
import shutil
import stat
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from support.loopback import Loopback
from support.ready import WHEN, sign, sign_all

from suture.engine.conduct import run
from suture.engine.federation import survey
from suture.errors import NotReady, Reason, StudyError, SutureError
from suture.network import wire
from suture.network.coordinator import Remote
from suture.privacy.noise.source import derive
from suture.privacy.signing import sign as signature
from suture.site import ready
from suture.site.gate import LEDGER, place_of, site_secret
from suture.study import Study

pytestmark = pytest.mark.nobody_signs


def study_of(**fields):
    return Study(
        **{
            "name": "ward",
            "outcome": "ill",
            "sites": [{"name": n, "data": f"{n}.csv", "patients": 50} for n in ("a", "b")],
            "schema": {
                "patient": "id",
                "features": {"age": {"kind": "number", "low": 0, "high": 100}},
            },
            "model": {"hidden": []},
            "method": {"name": "fedavg", "rounds": 2, "local_epochs": 1},
            "privacy": {"unit": "patient", "epsilon": 4.0, "accountant": "rdp"},
            **fields,
        }
    )


@pytest.fixture
def folder(tmp_path):
    for site in "ab":
        rows = [f"{site}{i},{20 + i % 70},{i % 2}" for i in range(60)]
        (tmp_path / f"{site}.csv").write_text("\n".join(["id,age,ill", *rows]) + "\n")
    return tmp_path


@pytest.fixture
def place(folder):
    return place_of(study_of().sites[0], folder)


def untouched(folder):
    return not list(folder.rglob(LEDGER))


# --- a run needs it ---------------------------------------------------------------------------------------------------


def engines(folder):
    return {"embedded": None, "flower": Remote(Loopback())}


@pytest.mark.parametrize("engine", ["embedded", "flower"])
def test_without_a_ready_nothing_is_read_promised_or_charged(folder, engine, monkeypatch):
    monkeypatch.setattr("suture.engine.federation.read_rows", None)
    with pytest.raises(NotReady, match=r"nobody .*has signed that its table is ready"):
        run(study_of(), base=folder, engine=engines(folder)[engine])
    assert untouched(folder)


@pytest.mark.parametrize("engine", ["embedded", "flower"])
def test_the_result_says_who_signed_and_when_and_no_more(folder, engine):
    study = study_of()
    sign_all(study, folder)
    found = run(study, base=folder, engine=engines(folder)[engine]).data
    signer = {"by": "A. Kowal", "when": WHEN.isoformat()}
    assert found["ready"] == {"a": signer, "b": signer}


def test_one_site_without_a_ready_stops_all_before_any_is_charged(folder):
    study = study_of()
    sign(place_of(study.sites[0], folder), study.digest)
    with pytest.raises(NotReady, match="site 'b'"):
        run(study, base=folder)
    assert untouched(folder)


def test_an_unchecked_run_says_so_in_the_result_and_in_the_copy_for_release(folder):
    from suture.report.page import render
    from suture.report.words import complete, unchecked

    result = run(study_of(), base=folder, unchecked=True)
    assert result.data["ready"] == {"a": None, "b": None}
    words = "NOT CHECKED: nobody signed that the tables of a, b were checked before this run"
    for data in (result.data, result.for_release().data):
        assert unchecked(complete(data)).startswith(words)
        assert words in render(data)


def test_generated_patients_and_simulations_need_none(folder, tiny):
    assert "ready" not in run(tiny).data
    assert "ready" not in run(study_of(simulation=True), base=folder).data


def test_a_study_without_privacy_needs_one_too(folder):
    with pytest.raises(NotReady):
        run(study_of(privacy=None), base=folder)


def test_any_other_setting_makes_another_study(folder):
    sign_all(study_of(), folder)
    with pytest.raises(NotReady):
        run(study_of(privacy={"unit": "patient", "epsilon": 5.0}), base=folder)


def test_looking_at_a_study_needs_none(folder):
    assert survey(study_of(), folder, 42).sizes == {"a": 50, "b": 50}


# --- every job that charges, or reads for a study -----------------------------------------------------------------------


def written(folder, **fields):
    study = study_of(**fields)
    file = folder / "study.toml"
    file.write_text(study.to_toml())
    return study, file


def finished(folder):
    """A finished run that a hospital can join, without a trace at the sites of the tests."""
    again = {
        "method": {"name": "ifedavg", "rounds": 2, "local_epochs": 1},
        "model": {"hidden": [2]},
    }
    elsewhere = folder / "elsewhere"
    shutil.copytree(folder, elsewhere, ignore=shutil.ignore_patterns("elsewhere"))
    study, file = written(folder, **again)
    sign_all(study, elsewhere)
    run(study, base=elsewhere, out=folder / "run")
    shutil.rmtree(elsewhere)
    return folder / "run", file


def jobs(folder):
    from suture.attacks.audit_site import audit_study
    from suture.interop.before_training import check
    from suture.releases.overlap import overlap
    from suture.releases.query import release

    study, file = written(folder)
    asked = {"site": "a", "epsilon": 1.0, "base": folder}
    return {
        "interop": lambda: check(study, folder, epsilon=1.0),
        "release": lambda: release(study, "rate", "ill", **asked),
        "audit": lambda: audit_study(file, site="a", trials=40, messages=0),
        "overlap": lambda: overlap(study, folder, epsilon=1.0),
    }


@pytest.mark.parametrize("job", ["interop", "release", "audit", "overlap"])
def test_no_job_charges_or_reads_where_nobody_signed(folder, job):
    with pytest.raises(NotReady, match=r"nobody has signed that its table is ready"):
        jobs(folder)[job]()
    assert untouched(folder)


@pytest.mark.parametrize("job", ["interop", "overlap"])
def test_one_site_without_a_ready_keeps_every_ledger_shut(folder, job):
    asked = jobs(folder)[job]
    sign(place_of(study_of().sites[0], folder), study_of().digest)
    with pytest.raises(NotReady, match="site 'b'"):
        asked()
    assert untouched(folder)


@pytest.mark.parametrize("job", ["interop", "release", "audit", "overlap"])
def test_a_signed_table_is_enough_for_every_job(folder, job):
    asked = jobs(folder)[job]
    sign_all(study_of(), folder)
    asked()


def test_who_joins_signs_for_the_file_as_it_is(folder):
    """Although only the one site of it is read."""
    from suture.interop.join import join

    ran, file = finished(folder)
    asked = {"site": "a", "rounds": 2, "out": folder / "joined"}
    with pytest.raises(NotReady):
        join(ran, file, **asked)
    assert untouched(folder)
    assert not (folder / "joined").exists()
    sign(place_of(study_of().sites[0], folder), Study.from_toml(file).digest)
    assert join(ran, file, **asked)["private"]


def test_a_ledger_of_real_patients_is_locked_until_the_ready_is_seen(place):
    """A job that forgets to ask can promise nothing: the next one, too."""
    from dp_accounting import GaussianDpEvent

    from suture.errors import PrivacyError
    from suture.privacy.accounting.planner import Budget
    from suture.site.gate import borrowed

    budget = Budget(1.0, 1e-5, "rdp")
    with borrowed(place, None) as ledger:
        for forgets in (
            lambda: ledger.open_study("new/job", budget),
            lambda: ledger.charge("new/job", 0, GaussianDpEvent(9.0), b"x"),
        ):
            with pytest.raises(PrivacyError, match="nobody was asked for a signed ready"):
                forgets()
    sign(place, "0" * 64)
    ledger = ready.charging(place, None, "0" * 64)
    ledger.open_study("new/job", budget)
    ledger.close()


# --- a statistic counts as its study --------------------------------------------------------------------------------------


THREE = {"sites": [{"name": n, "data": f"{n}.csv", "patients": 50} for n in ("a", "b", "c")]}


def described(folder, engine, **fields):
    from suture.statistics.publish import ask

    shutil.rmtree(folder / "identities", ignore_errors=True)
    study = study_of(**THREE, protection={"sum": "masked"}, **fields)
    engine = engines(folder)[engine]
    return ask(study, "describe", epsilon=1.0, base=folder, engine=engine).data


@pytest.mark.parametrize("engine", ["embedded", "flower"])
def test_a_statistic_needs_the_ready_of_the_study_and_no_other(folder, engine):
    study = study_of(**THREE)
    shutil.copy(folder / "a.csv", folder / "c.csv")
    with pytest.raises(NotReady):
        described(folder, engine)
    assert untouched(folder)
    signed = study.replace(model={"hidden": [3]})
    for site in study.sites:
        facts = {"looks": 0, "stops": 0, "even_so": "", "table": signed.table_digest}
        ready.sign_ready(place_of(site, folder), signed.digest, "A. Kowal", WHEN, **facts)
    found = described(folder, engine)
    assert found["ready"]["a"] == {"by": "A. Kowal", "when": WHEN.isoformat()}
    with pytest.raises(NotReady):
        described(folder, engine, outcome="age", schema=other_schema())
    with pytest.raises(NotReady):  # a training is not a statistic
        run(study_of(**THREE), base=folder, engine=engines(folder)[engine])


def other_schema():
    return {"patient": "id", "features": {"ill": {"kind": "flag"}}}


def test_the_table_is_the_same_whatever_is_trained_and_another_with_any_column(folder):
    study = study_of()
    same = [
        study.replace(method={"name": "fedprox"}), study.replace(privacy={"epsilon": 9.0}),
        study.replace(evaluation={"holdout": 0.5}), study.replace(protection={"sum": "masked"}),
    ]  # fmt: skip
    assert {one.table_digest for one in same} == {study.table_digest}
    assert len({one.digest for one in (study, *same)}) == 5
    others = [
        study_of(outcome="age", schema=other_schema()), study_of(name="other"), study_of(seed=1),
        study_of(sites=[{"name": "a", "data": "a.csv", "patients": 50, "edition": 2}]),
    ]  # fmt: skip
    assert study.table_digest not in {one.table_digest for one in others}


# --- what a coordinator hears -----------------------------------------------------------------------------------------


def opened(folder, study, **settings):
    """A site's answer to a coordinator that opens the study, as it travels."""
    carrier = Loopback(**settings)
    carrier.start(study, folder, folder)
    asked = wire.pack(wire.request("open", study=study.public().to_toml(), seed=study.seed))
    try:
        return wire.unpack(carrier.exchange({"a": asked}, 1)["a"]).header
    finally:
        carrier.close()


def test_a_refusal_is_one_public_reason_whatever_the_rows_hold(folder):
    study, heard = study_of(), set()
    for text in ("id,age,ill\n", "id,age,ill\na,-999,1\n", "id,age,ill\na,x,maybe\n" * 5):
        (folder / "a.csv").write_text(text)
        heard.add(json.dumps(opened(folder, study)))
    assert heard == {json.dumps({"ok": False, "site": "a", "reason": "READY"})}
    assert Reason.READY.value.startswith("nobody at the site has signed")


def test_of_a_ready_the_coordinator_hears_who_and_when_whatever_was_found(folder, place):
    study, heard = study_of(), []
    for looks, stops, reason in ((0, 0, ""), (7, 0, ""), (3, 2, "known, and repaired next week")):
        facts = {"looks": looks, "stops": stops, "even_so": reason}
        ready.sign_ready(place, study.digest, "A. Kowal", WHEN, **facts)
        heard.append(opened(folder, study)["ready"])
    assert heard == [{"by": "A. Kowal", "when": WHEN.isoformat()}] * 3


def test_a_site_may_do_without_and_then_says_so(folder):
    assert opened(folder, study_of(), ready_needed=False)["ready"] is None


def test_a_ready_that_vanishes_between_open_and_join_is_missed(folder, place):
    study = study_of()
    file = sign(place, study.digest)
    carrier = Loopback()
    carrier.start(study, folder, folder)
    text = study.public().to_toml()
    carrier.exchange({"a": wire.pack(wire.request("open", study=text, seed=42))}, 1)
    file.unlink()
    sizes = {"a": 50, "b": 50}
    join = wire.request("join", study=study.digest, seed=42, sites=sizes, vouched={})
    header = wire.unpack(carrier.exchange({"a": wire.pack(join)}, 1)["a"]).header
    carrier.close()
    assert header == {"ok": False, "site": "a", "reason": "READY"}


# --- forging ----------------------------------------------------------------------------------------------------------


def test_a_ready_is_for_its_study_site_and_edition_only(place):
    digest = study_of().digest
    sign(place, digest)
    assert ready.ready_of(place, digest) == {"by": "A. Kowal", "when": WHEN.isoformat()}
    assert ready.ready_of(replace(place, edition=2), digest) is None
    assert ready.ready_of(replace(place, name="b"), digest) is None
    assert ready.ready_of(place, "0" * 64) is None


def test_a_copy_under_another_studys_name_does_not_count(place):
    digest, other = study_of().digest, study_of(seed=1).digest
    file = sign(place, digest)
    shutil.copy(file, ready.ready_file(place.home, other))
    assert ready.ready_of(place, other) is None
    with pytest.raises(NotReady, match="for another site or edition, or was changed"):
        ready.demand(place, other)


def test_a_copy_from_another_site_does_not_count(folder, place):
    study = study_of()
    other = place_of(study.sites[1], folder)
    file = sign(other, study.digest)
    target = ready.ready_file(place.home, study.digest)
    target.parent.mkdir(parents=True)
    shutil.copy(file, target)
    assert ready.ready_of(place, study.digest) is None
    text = json.loads(target.read_text()) | {"site": "a"}
    target.write_text(json.dumps(text))
    assert ready.ready_of(place, study.digest) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("by", "B. Smith"),
        ("when", "2026-11-19T09:30:00+00:00"),
        ("edition", 2),
        ("stops overruled", 5),
        ("even so", "fine"),
        ("signature", "00" * 64),
        ("more", 1),
    ],
)
def test_a_changed_file_does_not_count(place, key, value):
    digest = study_of().digest
    file = sign(place, digest)
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    assert ready.ready_of(place, digest) is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "[[[", '{"signature": 5}', "\xff", "1" * 99]
)
def test_a_file_that_is_no_ready_does_not_count(place, text):
    digest = study_of().digest
    file = sign(place, digest)
    file.write_bytes(text.encode("latin-1"))
    assert ready.ready_of(place, digest) is None


def test_another_key_cannot_sign(place):
    """As whoever lacks the site's secret would: any key of their own, or the study's seed."""
    digest = study_of().digest
    file = sign(place, digest)
    content = json.loads(file.read_text())
    del content["signature"]
    guesses = (bytes(32), derive(bytes(32), "ready"), derive(site_secret(place.home), "ledger"))
    for seed in guesses:
        forged = signature("ready", content, Ed25519PrivateKey.from_private_bytes(seed))
        file.write_text(json.dumps({**content, "signature": forged}))
        assert ready.ready_of(place, digest) is None


def test_a_signature_of_another_kind_cannot_pass(place):
    digest = study_of().digest
    file = sign(place, digest)
    content = json.loads(file.read_text())
    del content["signature"]
    key = Ed25519PrivateKey.from_private_bytes(derive(site_secret(place.home), "ready"))
    file.write_text(json.dumps({**content, "signature": signature("charter", content, key)}))
    assert ready.ready_of(place, digest) is None


# --- signing ----------------------------------------------------------------------------------------------------------


def test_only_the_sites_user_can_read_it(place):
    file = sign(place, study_of().digest)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_stop_is_signed_only_with_a_reason(place):
    digest, facts = study_of().digest, {"looks": 1, "stops": 2}
    with pytest.raises(NotReady, match="2 of the findings say stop"):
        ready.sign_ready(place, digest, "A. Kowal", WHEN, even_so="  ", **facts)
    assert ready.ready_of(place, digest) is None
    ready.sign_ready(place, digest, "A. Kowal", WHEN, even_so="a pilot", **facts)
    kept = json.loads(ready.ready_file(place.home, digest).read_text())
    assert (kept["looks accepted"], kept["stops overruled"], kept["even so"]) == (1, 2, "a pilot")


@pytest.mark.parametrize("name", ["", "   ", "x" * 81, "A\x1b[31m", "A\u202eB"])
def test_a_name_must_be_one(place, name):
    with pytest.raises(StudyError, match="a person's name"):
        sign(place, study_of().digest, name)


def test_an_error_of_the_gate_is_an_error_of_suture():
    assert issubclass(NotReady, SutureError)
    assert NotReady.exit_code == 4
