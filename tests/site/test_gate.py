"""The gate: what a charter does not allow is refused before rows are read, with its reason, and
noted."""

import hashlib
import json
from dataclasses import replace
from datetime import UTC, date, datetime

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from support.starter import write_starter

from suture.engine.conduct import run
from suture.engine.federation import request
from suture.errors import CharterError, LedgerError
from suture.privacy.charter import Charter, Request, Signed, objections, read_charter, trust
from suture.privacy.ledger import chain
from suture.privacy.ledger.ledger import Ledger
from suture.privacy.signing import key_id, new_keys, read_private, read_public
from suture.schema.table import Condition
from suture.site import deid
from suture.site.gate import Papers, admit, check
from suture.site.sources import SourceSpec
from suture.study import Study

BOARD = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
STRANGER = Ed25519PrivateKey.from_private_bytes(bytes(32))
SECRET = bytes(32)
TODAY = date(2026, 6, 1)
ADULTS = (Condition(column="age", min=18, max=89),)

CHARTER = Charter(
    study="cardio",
    plan="ab" * 32,
    protocol="2026-14",
    valid_from="2026-01-01",
    expires="2026-12-31",
    outcome="high_risk",
    features=("age", "smoker"),
    groups=("sex",),
    cohort=ADULTS,
    regions=("US-MA", "FR"),
    sites=("boston", "lyon", "nice"),
    minimum_sites=3,
    epsilon=8.0,
    delta=1e-5,
    methods=("fedadam", "fedavg"),
)
REQUEST = Request(
    study="cardio",
    plan="ab" * 32,
    outcome="high_risk",
    features=("age",),
    groups=("sex",),
    cohort=ADULTS,
    site="boston",
    regions={"boston": "US-MA", "lyon": "FR", "nice": "FR"},
    sites_a_round=3,
    unit="patient",
    epsilon=8.0,
    delta=1e-5,
    methods=("fedadam",),
)


def public(*keys):
    return "".join(
        key.public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        .decode()
        for key in keys
    )


@pytest.fixture
def home(tmp_path):
    """A site's home with a charter that the board signed, and the board's key."""
    (tmp_path / "charter.toml").write_text(Signed(CHARTER).signed_by(BOARD).to_toml())
    (tmp_path / "trust.pub").write_text(public(BOARD))
    return tmp_path


def test_a_study_within_its_charter_has_no_objections():
    assert objections(CHARTER, REQUEST, TODAY) == []
    assert (
        objections(
            CHARTER.model_copy(update={"methods": ()}),
            replace(REQUEST, methods=("fedyogi",)),
            TODAY,
        )
        == []
    )


REFUSALS = {
    "not yet valid": ({}, date(2025, 12, 31), "valid from 2026-01-01, today is 2025-12-31"),
    "expired": ({}, date(2027, 1, 1), "protocol 2026-14 expired on 2026-12-31"),
    "study": ({"study": "sepsis"}, TODAY, "for study 'cardio', found 'sepsis'"),
    "plan": (
        {"plan": "cd" * 32},
        TODAY,
        "the study is not the one that was approved (its digest is cdcdcdcdcdcd, approved is "
        "abababababab)",
    ),
    "outcome": ({"outcome": "death"}, TODAY, "outcome is 'high_risk', found 'death'"),
    "feature": ({"features": ("age", "income")}, TODAY, "not approved as a feature: 'income'"),
    "group": ({"groups": ("religion",)}, TODAY, "not approved as a group: 'religion'"),
    "method": ({"methods": ("fedyogi",)}, TODAY, "not approved as a method: 'fedyogi'"),
    "site": (
        {"regions": {**REQUEST.regions, "oslo": "FR"}},
        TODAY,
        "not approved as a site: 'oslo'",
    ),
    "region": (
        {"regions": {**REQUEST.regions, "nice": "NO"}},
        TODAY,
        "not approved as a region: 'NO'",
    ),
    "this site": ({"site": "oslo"}, TODAY, "not for this site, 'oslo'"),
    "cohort": ({"cohort": ()}, TODAY, "age from 18 to 89; the study's is every row"),
    "too few sites": (
        {"regions": {"boston": "US-MA", "lyon": "FR"}},
        TODAY,
        "at least 3 sites must take part, found 2",
    ),
    "too few a round": ({"sites_a_round": 2}, TODAY, "in every round, found 2"),
    "exact figures": ({"describe": True}, TODAY, "exact histograms"),
    "no privacy": ({"unit": None, "epsilon": None, "delta": None}, TODAY, "promises no privacy"),
    "unit": ({"unit": "record"}, TODAY, "unit is the patient, found 'record'"),
    "no epsilon": ({"epsilon": None}, TODAY, "no epsilon"),
    "epsilon": ({"epsilon": 8.01}, TODAY, "approved epsilon is 8, found 8.01"),
    "delta": ({"delta": 1.1e-5}, TODAY, "approved delta is 1e-05, found 1.1e-05"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_each_refusal_by_its_name(name):
    changes, today, text = REFUSALS[name]
    found = objections(CHARTER, replace(REQUEST, **changes), today)
    assert [item.name for item in found] == [name]
    assert text in found[0].text


def test_compared_methods_add_up():
    asked = replace(REQUEST, methods=("fedadam", "fedavg"))
    assert [item.name for item in objections(CHARTER, asked, TODAY)] == ["epsilon", "delta"]
    assert "found 16 (2 methods of 8 each)" in objections(CHARTER, asked, TODAY)[0].text
    assert objections(CHARTER, replace(asked, epsilon=4.0, delta=5e-6), TODAY) == []


def test_all_reasons_come_at_once(home):
    ledger = Ledger.open(None, "boston")
    asked = replace(REQUEST, outcome="death", epsilon=80.0, site="oslo")
    with pytest.raises(CharterError, match="nothing was read") as found:
        admit(ledger, SECRET, Papers.at(home, None, None, None), asked)
    for text in ("death", "80", "oslo"):
        assert text in str(found.value)
    facts = json.loads(ledger.notes("refused")[0].event)
    assert facts["why"] == ["outcome", "this site", "epsilon"]
    assert facts["charter"] == CHARTER.digest


LAW = {
    "lawful_basis": "GDPR Art. 6(1)(e)",
    "purpose": "predict readmission",
    "controller": "dpo@boston.example",
    "automated_decisions": "none",
    "retention": "2030-01-01",
    "require_masked": True,
    "require_deidentified": True,
}


def test_older_charters_keep_their_digest_and_what_the_law_asks_for_is_signed():
    assert CHARTER.digest == "b9a10691d99b7b5e"  # of the first version, without these fields
    lawful = Charter.model_validate({**CHARTER.plain(), **LAW})
    assert set(lawful.plain()) - set(CHARTER.plain()) == set(LAW)
    assert len(lawful.law) == len(LAW)
    with pytest.raises(ValueError, match="may run until"):
        Charter.model_validate({**CHARTER.plain(), "retention": "2026-06-01"})


def test_only_sums_under_masks_leave_where_the_charter_asks_for_them():
    strict = Charter.model_validate({**CHARTER.plain(), "require_masked": True})
    assert [o.name for o in objections(strict, REQUEST, TODAY)] == ["masked"]
    assert objections(strict, replace(REQUEST, masked=True), TODAY) == []


def test_a_table_counts_as_de_identified_by_the_report_about_exactly_this_file(home):
    strict = Charter.model_validate({**CHARTER.plain(), "require_deidentified": True})
    (home / "charter.toml").write_text(Signed(strict).signed_by(BOARD).to_toml())
    (home / "rows.csv").write_text("id,name,age\n" + "".join(f"{i},Ann B,{i}\n" for i in range(30)))
    report = deid.apply(home / "rows.csv", home / "clean.csv", patient="id", drop=["name"])
    assert report["sha256"] == hashlib.sha256((home / "clean.csv").read_bytes()).hexdigest()

    def reasons(*tables):
        papers = Papers.at(home, None, None, None, tuple(map(SourceSpec.model_validate, tables)))
        return [o.text for o in check(papers, REQUEST, TODAY)[1]]

    clean = str(home / "clean.csv")
    assert reasons(clean) == []
    assert "there is no rows.csv.report.json" in reasons(clean, str(home / "rows.csv"))[0]
    assert "there is no table" in reasons()[0]
    server = {"url": "postgresql://db.example/ward", "query": "SELECT 1"}
    assert "not a file" in reasons(server)[0]
    with (home / "clean.csv").open("a") as file:
        file.write("31\n")
    assert "another edition" in reasons(clean)[0]


def test_a_charter_tells_what_the_law_asks_for_in_ledger_and_result(home):
    told = {key: value for key, value in LAW.items() if not key.startswith("require")}
    lawful = Charter.model_validate({**CHARTER.plain(), **told})
    (home / "charter.toml").write_text(Signed(lawful).signed_by(BOARD).to_toml())
    ledger = Ledger.open(None, "boston")
    admission = admit(ledger, SECRET, Papers.at(home, None, None, None), REQUEST)
    noted = json.loads(ledger.notes("admitted")[0].event)
    for name, text in lawful.law.items():
        assert noted[name] == text
        assert f"{name}: {text}" in admission.terms


# --- signatures -------------------------------------------------------------------------------------------------------


def attempt(home, asked=REQUEST):
    """What the gate answers, and the names it noted."""
    ledger = Ledger.open(None, "boston")
    try:
        admit(ledger, SECRET, Papers.at(home, None, None, None), asked)
    except CharterError as error:
        noted = [json.loads(entry.event)["why"] for entry in ledger.notes("refused")]
        assert len(noted) == 1
        return str(error), noted[0]
    return None, [entry.what for entry in ledger.notes()]


@pytest.fixture(autouse=True)
def summer(monkeypatch):
    monkeypatch.setattr(chain, "clock", lambda: datetime(2026, 6, 1, 12, tzinfo=UTC))


def test_the_boards_charter_is_accepted_and_noted_once(home):
    assert attempt(home) == (None, ["admitted"])
    ledger = Ledger.open(None, "boston")
    for _ in range(3):
        admission = admit(ledger, SECRET, Papers.at(home, None, None, None), REQUEST)
    assert len(ledger.rows()) == 1
    assert admission.charter == CHARTER
    assert not admission.exact_metrics


def test_nothing_is_enforced_where_nothing_is_kept(tmp_path):
    assert attempt(tmp_path) == (None, [])


def test_an_edited_charter_is_refused(home):
    text = (home / "charter.toml").read_text()
    for old, new in (
        ("epsilon = 8.0", "epsilon = 80.0"),
        ("2026-12-31", "2036-12-31"),
        ('["age", "smoker"]', '["age", "smoker", "income"]'),
        ("exact_metrics = false", "exact_metrics = true"),
        ("max = 89.0", "max = 120.0"),
    ):
        assert old in text
        (home / "charter.toml").write_text(text.replace(old, new))
        message, noted = attempt(home)
        assert "edited after signing" in message
        assert noted == ["not to be trusted"]
    (home / "charter.toml").write_text(
        "# a comment and more space change nothing\n" + text.replace(" = ", "   =  ")
    )
    assert attempt(home)[0] is None


def test_a_forged_charter_is_refused(home):
    (home / "charter.toml").write_text(Signed(CHARTER).signed_by(STRANGER).to_toml())
    assert (
        f"signed by {key_id(STRANGER.public_key())}, whom this site does not trust"
        in attempt(home)[0]
    )
    forged = Signed(
        CHARTER,
        ((key_id(BOARD.public_key()), Signed(CHARTER).signed_by(STRANGER).signatures[0][1]),),
    )
    (home / "charter.toml").write_text(
        forged.to_toml()
    )  # a stranger's signature under the board's name
    assert "forged" in attempt(home)[0]
    (home / "charter.toml").write_text(
        Signed(CHARTER, ((key_id(BOARD.public_key()), "nonsense"),)).to_toml()
    )
    assert "forged" in attempt(home)[0]
    (home / "charter.toml").write_text(Signed(CHARTER).to_toml())
    assert "not signed" in attempt(home)[0]


def test_one_trusted_signature_of_several_is_enough(home):
    (home / "charter.toml").write_text(
        Signed(CHARTER).signed_by(STRANGER).signed_by(BOARD).signed_by(BOARD).to_toml()
    )
    assert attempt(home)[0] is None
    assert len(read_charter(home / "charter.toml").signatures) == 2
    (home / "trust.pub").write_text(public(STRANGER, BOARD))
    assert len(read_public(home / "trust.pub")) == 2
    assert attempt(home)[0] is None


def test_a_study_file_cannot_bring_its_own_keys(home, tmp_path):
    (tmp_path / "theirs.toml").write_text(Signed(CHARTER).signed_by(STRANGER).to_toml())
    (tmp_path / "theirs.pub").write_text(public(STRANGER))
    papers = Papers.at(home, tmp_path / "theirs.toml", tmp_path / "theirs.pub", None)
    assert papers.trust == home / "trust.pub"
    with pytest.raises(CharterError, match="does not trust"):
        admit(Ledger.open(None, "boston"), SECRET, papers, REQUEST)
    (home / "trust.pub").unlink()
    assert Papers.at(home, None, tmp_path / "theirs.pub", None).trust == tmp_path / "theirs.pub"


def test_a_charter_needs_a_key_and_a_key_needs_a_charter(home):
    (home / "trust.pub").rename(home / "elsewhere.pub")
    assert "no trusted key" in attempt(home)[0]
    (home / "elsewhere.pub").rename(home / "trust.pub")
    (home / "charter.toml").unlink()
    assert attempt(home)[1] == ["no charter"]
    (home / "trust.pub").write_text("not a key")
    (home / "charter.toml").write_text(Signed(CHARTER).signed_by(BOARD).to_toml())
    assert "no public key" in attempt(home)[0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[charter]\n",
        "charter = 1\n",
        "\x00",
        "[charter]\nstudy = 'x'\n[other]\n",
        "[[signature]]\nkey = 1\nvalue = 2\n",
    ],
)
def test_what_is_not_a_charter_is_refused(home, text):
    (home / "charter.toml").write_text(text)
    assert attempt(home)[1] == ["not to be trusted"]


def test_a_clock_that_was_set_back_revives_no_charter(home, monkeypatch):
    ledger = Ledger.open(None, "boston")
    monkeypatch.setattr(chain, "clock", lambda: datetime(2027, 6, 1, tzinfo=UTC))
    with pytest.raises(CharterError, match="expired"):
        admit(ledger, SECRET, Papers.at(home, None, None, None), REQUEST)
    monkeypatch.setattr(chain, "clock", lambda: datetime(2026, 6, 1, tzinfo=UTC))
    with pytest.raises(LedgerError, match="set back"):
        admit(ledger, SECRET, Papers.at(home, None, None, None), REQUEST)


@given(st.text(min_size=1, max_size=20), st.floats(1e-3, 1e3), st.booleans())
def test_a_signed_charter_survives_its_file(tmp_path_factory, name, epsilon, exact):
    path = tmp_path_factory.mktemp("charter") / "charter.toml"
    charter = CHARTER.model_copy(
        update={"study": name, "epsilon": epsilon, "exact_metrics": exact, "sites": (name,)}
    )
    path.write_text(Signed(charter).signed_by(BOARD).to_toml(), encoding="utf-8", newline="")
    assert trust(read_charter(path), (BOARD.public_key(),), "it") == charter


def test_keys_are_made_once_and_kept_from_others(tmp_path):
    name = new_keys(tmp_path / "board.key", tmp_path / "board.pub")
    assert (tmp_path / "board.key").stat().st_mode & 0o077 == 0
    assert key_id(read_private(tmp_path / "board.key").public_key()) == name
    assert key_id(read_public(tmp_path / "board.pub")[0]) == name
    with pytest.raises(CharterError, match="never overwritten"):
        new_keys(tmp_path / "board.key", tmp_path / "other.pub")
    with pytest.raises(CharterError, match="not a private key"):
        read_private(tmp_path / "board.pub")
    with pytest.raises(CharterError, match="cannot be read"):
        read_private(tmp_path / "missing.key")


# --- in a run ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.undo()  # the real clock
    write_starter(tmp_path, files=True, patients=600)
    small = {
        "model": {"hidden": [4]},
        "method": {"rounds": 2, "local_epochs": 1},
        "privacy": {"accountant": "rdp"},
    }
    return Study.from_toml(tmp_path / "study.toml").replace(**small)


def charter_for(study, **changes):
    asked = request(study, study.table, study.sites[0].name)
    fields = {
        "study": asked.study, "plan": asked.plan, "protocol": "2026-14", "expires": "2099-12-31", "outcome": asked.outcome,
        "features": asked.features, "groups": asked.groups, "cohort": asked.cohort, "epsilon": asked.epsilon,
        "regions": tuple(asked.regions.values()), "sites": tuple(asked.regions), "delta": asked.delta,
        "methods": asked.methods, "exact_metrics": True,
    }  # fmt: skip
    return Charter(**{**fields, **changes})


def give(folder, study, sites, **changes):
    for site in sites:
        home = folder / ".suture" / site
        home.mkdir(parents=True, exist_ok=True)
        (home / "charter.toml").write_text(
            Signed(charter_for(study, **changes)).signed_by(BOARD).to_toml()
        )
        (home / "trust.pub").write_text(public(BOARD))


def test_a_refusal_comes_before_any_row_is_read(study, tmp_path):
    names = [site.name for site in study.sites]
    give(tmp_path, study, names[:1], epsilon=1.0)
    for site in study.sites:
        (tmp_path / site.data.path).unlink()  # reading would be a DataError
    with pytest.raises(
        CharterError, match=f"site '{names[0]}' refuses .*\n.*approved epsilon is 1, found"
    ):
        run(study, base=tmp_path)
    ledger = Ledger.read(tmp_path / ".suture" / names[0] / "ledger.sqlite")
    assert [entry.what for entry in ledger.rows()] == ["refused"]
    ledger.close()


def test_the_statement_says_where_a_charter_was_enforced(study, tmp_path):
    names = [site.name for site in study.sites]
    give(tmp_path, study, names[:2])
    result = run(study, base=tmp_path)
    words = result.privacy["statement"]
    assert f"enforced its signed charter at: {names[0]} (protocol 2026-14, charter " in words
    assert f"No charter was enforced at: {', '.join(names[2:])}." in words
    assert result.privacy["charters"][names[4]] is None


def only_noisy(result, names):
    """Whether what is said of test patients, at every site, is the charged evaluation alone."""
    tested = result.metrics["evaluation"]["parts"]
    assert set(result.metrics["sites"]) == set(names)
    for name in names:
        found = {
            m: figure["value"] for m, figure in tested[f"site: {name}"].items() if m != "patients"
        }
        found["recall"] = found.pop("sensitivity")
        assert result.metrics["sites"][name] == found
    assert all(entry["sites"] == entry["global"] == {} for entry in result.history)


def test_exact_metrics_that_may_not_leave_are_not_computed(study, tmp_path):
    """Under a promise no exact metric leaves, also where a charter would allow it."""
    names = [site.name for site in study.sites]
    give(tmp_path, study, names[:2], exact_metrics=False)
    give(tmp_path, study, names[2:4], exact_metrics=True)
    result = run(study, base=tmp_path)
    only_noisy(result, names)
    assert not any(name in text for text in result.data["warnings"] for name in names)
    assert "exact figures withheld" in result.privacy["statement"]
    assert set(result.privacy["sites"]) == set(names)


def test_hospitals_held_out_whole_are_not_measured_where_exact_metrics_may_not_leave(
    study, tmp_path
):
    study = study.replace(evaluation={"folds": 2, "epsilon": 0})
    names = [site.name for site in study.sites]
    give(tmp_path, study, names[:2], exact_metrics=False)
    give(tmp_path, study, names[2:4], exact_metrics=True)
    result = run(study, base=tmp_path)
    assert result.metrics["sites"] == {}
    assert "evaluation" not in result.metrics
    assert set(result.privacy["sites"]) == set(names)


def test_a_run_without_any_exact_metric_still_gives_a_model_and_a_report(study, tmp_path):
    study = study.replace(evaluation={"epsilon": 0})
    give(tmp_path, study, [site.name for site in study.sites], exact_metrics=False)
    result = run(study, base=tmp_path, out=tmp_path / "run")
    assert result.metrics["sites"] == {}
    assert set(result.metrics["global"].values()) == {None}
    assert np.isfinite(result.model["params"]).all()
    assert (tmp_path / "run" / "report.html").exists()
