"""Sizes, simulation and lifetime: what a study may know about a table before it is read, and who
pays for what."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from suture import cohorts
from suture.engine import federation
from suture.engine import plan as planning
from suture.engine.conduct import run
from suture.errors import CharterError, DataError, StudyError
from suture.privacy.ledger.ledger import Budget, Ledger
from suture.site.gate import (
    LEDGER,
    LIFETIME,
    Place,
    erase_at_site,
    open_ledger,
    open_lifetime,
    place_of,
    secret_of,
    site_secret,
)
from suture.study import LifetimeSpec, Site, Study

HEADER = "id,age,ill"


def rows(patients, first=0):
    return [f"p{i},{20 + i % 70},{i % 2}" for i in range(first, first + patients)]


def write(folder, site="a", lines=()):
    (folder / f"{site}.csv").write_text("\n".join([HEADER, *lines]) + "\n")


def study_of(sites=("a", "b"), patients=50, **fields):
    size = {} if patients is None else {"patients": patients}
    return Study(
        **{
            "name": "ward",
            "outcome": "ill",
            "sites": [{"name": name, "data": f"{name}.csv", **size} for name in sites],
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
    for site, patients in (("a", 40), ("b", 60)):
        write(tmp_path, site, rows(patients))
    return tmp_path


# --- declared sizes ---------------------------------------------------------------------------------------------------


def test_declared_sizes_are_taken_and_nothing_is_counted(folder, monkeypatch):
    def count(*_, **__):
        raise AssertionError("a declared site was counted")

    monkeypatch.setattr(federation, "count_training_patients", count)
    here = federation.survey(study_of(), folder, 42)
    assert here.sizes == {"a": 50, "b": 50}
    assert not here.simulated
    plans = planning.plan_of(study_of(), here, "fedavg").sites
    assert {plan.patients for plan in plans.values()} == {50}


def test_a_copy_of_the_study_that_lost_a_size_is_refused_and_not_counted(folder):
    study = study_of()
    lost = study.model_copy(
        update={"sites": (study.sites[0].model_copy(update={"patients": None}), study.sites[1])}
    )
    with pytest.raises(StudyError, match=r"'a' declares no size.*patients = 1000"):
        federation.survey(lost, folder, 42)


def test_the_plan_is_the_same_whatever_the_table_holds(folder):
    study = study_of()
    plans = []
    for lines in ([], rows(1), rows(40), rows(41), ["p1,x,1", ",,", "p2,inf,maybe"]):
        write(folder, "a", lines)
        here = federation.survey(study, folder, 42)
        plans.append(planning.plan_of(study, here, "fedavg").sites)
    assert all(plan == plans[0] for plan in plans)


@pytest.mark.parametrize("lines", [[], rows(1), rows(49)], ids=["nobody", "one", "nearly"])
def test_no_size_is_refused_and_rows_carry_the_declared_one(folder, lines):
    write(folder, "a", lines)
    study = study_of(evaluation={"holdout": 0.0})
    here = federation.survey(study, folder, 42)
    federation.promise(study, here, None)
    federation.read_rows(study, here)
    train = here.hospitals["a"].data.train
    assert (train.patients, train.declared, train.size) == (len(lines), 50, 50)


def test_a_hold_out_that_takes_everybody_is_fine(folder):
    write(folder, "a", rows(1))
    study = study_of(evaluation={"holdout": 0.999999})
    here = federation.survey(study, folder, 42)
    federation.promise(study, here, None)
    federation.read_rows(study, here)
    assert here.hospitals["a"].data.train.patients == 0


def test_a_missing_file_or_column_is_said_before_anything_is_promised(folder):
    (folder / "b.csv").write_text("id,ill\np1,0\n")
    with pytest.raises(DataError, match=r"site 'b'.*column 'age' is missing"):
        run(study_of(), base=folder)
    (folder / "b.csv").unlink()
    with pytest.raises(DataError, match=r"site 'b'.*no such file"):
        run(study_of(), base=folder)
    assert not (folder / ".suture").exists()


def test_without_privacy_a_size_may_be_declared_or_is_counted(folder):
    plain = study_of(privacy=None, patients=None, evaluation={"holdout": 0.0})
    assert federation.survey(plain, folder, 42).sizes == {"a": 40, "b": 60}
    mixed = plain.replace(
        sites=[{"name": "a", "data": "a.csv", "patients": 7}, {"name": "b", "data": "b.csv"}]
    )
    assert federation.survey(mixed, folder, 42).sizes == {"a": 7, "b": 60}


def test_a_table_that_changes_after_it_was_counted_is_not_refused(folder):
    study = study_of(privacy=None, patients=None, evaluation={"holdout": 0.0})
    here = federation.survey(study, folder, 42)
    write(folder, "a", rows(3))
    federation.promise(study, here, None)
    federation.read_rows(study, here)
    assert here.hospitals["a"].data.train.patients == 3


# --- what is wrong with rows ------------------------------------------------------------------------------------------

WRONG = [*rows(30), "p98,text,1", "p99,50,perhaps", ",50,1"]


def test_whoever_holds_the_rows_is_told_everything_and_a_network_trains_on(folder):
    write(folder, "a", WRONG)
    study = study_of(evaluation={"holdout": 0.0})
    here = federation.survey(study, folder, 42)
    federation.promise(study, here, None)
    with pytest.raises(DataError) as caught:
        federation.read_rows(study, here)
    assert [line.split(";")[0] for line in str(caught.value).splitlines()] == [
        "site 'a' (a.csv): 3 problems",
        "  - column 'id': 1 row without a patient identifier",
        "  - outcome 'ill': 1 row with something else than 0 or 1 (or true/false, yes/no)",
        "  - column 'age': 1 row with text or an infinity where a number is expected",
    ]
    federation.read_rows(study, here, strict=False)
    data = here.hospitals["a"].data
    assert (data.train.patients, len(data.loaded.problems)) == (31, 3)
    assert not any("perhaps" in problem or "p98" in problem for problem in data.loaded.problems)


# --- simulation -------------------------------------------------------------------------------------------------------


def test_a_simulation_counts_and_has_a_ledger_an_account_and_a_budget_for_each_run(folder):
    study = study_of(
        patients=None, simulation=True, evaluation={"holdout": 0.0, "seeds": 3, "folds": 2}
    )
    here = federation.survey(study, folder, 43)
    assert (here.simulated, here.generated, here.sizes) == (True, False, {"a": 40, "b": 60})
    assert all(place.home is None and place.lifetime is None for place in here.places)
    parts = federation.split(study, here)
    assert [planning.account(study, part, "fedavg") for part in parts] == [
        "ward/fedavg/43/fold 1",
        "ward/fedavg/43/fold 2",
    ]
    one = study.replace(evaluation={"seeds": 1, "folds": 0})
    again = federation.survey(one, folder, 43)
    mine, theirs = planning.plan_of(study, here, "fedavg"), planning.plan_of(one, again, "fedavg")
    assert mine.sites == theirs.sites
    assert (
        secret_of(here.places[0], 43)
        == secret_of(here.places[0], 43)
        != secret_of(here.places[0], 44)
    )
    assert not (folder / ".suture").exists()


def test_a_size_that_is_declared_counts_in_a_simulation_too(folder):
    here = federation.survey(study_of(simulation=True), folder, 42)
    assert here.sizes == {"a": 50, "b": 50}


def test_seeds_and_methods_of_a_simulation_run_as_often_as_one_likes(folder):
    study = study_of(patients=None, simulation=True, evaluation={"seeds": 2, "compare": ["alone"]})
    first, again = run(study, base=folder), run(study, base=folder)
    assert len(first.data["methods"]["fedavg"]["per_seed"]) == 2
    assert first.privacy["epsilon"] <= 4.0
    assert "simulation = true" in first.privacy["statement"]
    assert first.privacy["noise_source"] == "seeded: simulation on real patients, not for release"
    np.testing.assert_array_equal(first.model["params"], again.model["params"])
    assert not (folder / ".suture").exists()


def test_the_same_patients_are_split_alike_for_every_seed_of_a_simulation(folder):
    study = study_of(patients=None, simulation=True, evaluation={"seeds": 2})
    found = []
    for seed in (42, 43):
        here = federation.survey(study, folder, seed)
        found.append(federation.load_site(study, here, here.places[0]).train.fingerprint())
    assert found[0] == found[1]


def test_a_simulation_has_no_network(folder):
    study = study_of(simulation=True)
    for only in ("", "a"):
        with pytest.raises(StudyError, match="simulation = true has no network"):
            federation.survey(study, folder, 42, only=only)

    class Elsewhere:
        name = "flower"

    with pytest.raises(StudyError, match="simulation = true has no network"):
        run(study, base=folder, engine=Elsewhere())


def test_a_simulation_does_not_go_round_a_charter_consent_or_erasure(folder):
    study = study_of(patients=None, simulation=True, evaluation={"holdout": 0.0})
    home = folder / ".suture" / "a"
    home.mkdir(parents=True)
    with closing(Ledger.open(home / LEDGER, "a")) as ledger:
        erase_at_site(ledger, site_secret(home), "p3")
    before = (home / LEDGER).read_bytes()
    assert federation.survey(study, folder, 42).sizes == {"a": 39, "b": 60}
    assert (home / LEDGER).read_bytes() == before  # the site's ledger is looked at and left alone
    (folder / "consent.csv").write_text("patient\n" + "\n".join(f"p{i}" for i in range(10)) + "\n")
    consent = {"path": "consent.csv", "patient": "patient"}
    asked = study.replace(sites=[{**site, "consent": consent} for site in study.to_dict()["sites"]])
    assert federation.survey(asked, folder, 42).sizes == {"a": 9, "b": 10}
    (home / "trust.pub").write_text("a key")
    with pytest.raises(CharterError, match="signed charter only"):
        federation.survey(study, folder, 42)


def test_a_cohort_of_real_patients_is_a_simulation_under_privacy(folder, monkeypatch):
    made = cohorts.load("cardio", 42, patients=300)
    seeds = []

    def load(name, seed, **options):
        seeds.append(seed)
        return type(made)(
            made.name, made.outcome, made.schema, made.sites, made.description, generated=False
        )

    monkeypatch.setattr(cohorts, "load", load)
    fields = {
        "name": "s",
        "outcome": "high_risk",
        "cohort": "cardio",
        "privacy": {"unit": "patient", "epsilon": 4.0},
    }
    with pytest.raises(StudyError, match=r"real patients.*simulation = true"):
        federation.survey(Study(**fields), folder, 42)
    here = federation.survey(Study(**fields, simulation=True), folder, 45)
    assert (here.simulated, here.generated) == (True, False)
    assert seeds[-1] == 42  # the same patients at the same hospitals for every seed
    assert not (folder / ".suture").exists()
    plain = federation.survey(Study(**{**fields, "privacy": None}), folder, 42)
    assert plain.places[0].lifetime == LIFETIME


# --- lifetime ---------------------------------------------------------------------------------------------------------


def test_every_real_site_has_a_lifetime_budget(folder):
    assert Budget(**LifetimeSpec().model_dump()) == LIFETIME
    place = place_of(Site(name="a", data="a.csv"), folder)
    assert place.lifetime == LIFETIME
    stated = place_of(Site(name="a", data="a.csv", lifetime={"epsilon": 3.0}), folder)
    assert stated.lifetime == Budget(3.0, 1e-4, "pld")
    study = study_of()
    here = federation.survey(study, folder, 42)
    federation.promise(study, here, None)
    assert all(ledger.lifetime == LIFETIME for ledger in here.ledgers.values())


def test_the_default_does_not_replace_what_was_stated_before(folder):
    place = place_of(Site(name="a", data="a.csv"), folder)
    ledger = Ledger.open(None, "a")
    ledger.open_lifetime(Budget(3.0, 1e-5, "pld"))
    open_lifetime(place, ledger)
    assert ledger.lifetime == Budget(3.0, 1e-5, "pld")


def test_a_study_that_promises_nothing_makes_no_promise_for_the_site(folder):
    study = study_of(privacy=None)
    here = federation.survey(study, folder, 42)
    federation.promise(study, here, None)
    assert all(ledger.lifetime is None for ledger in here.ledgers.values())


def test_generated_patients_have_none(tmp_path):
    here = federation.survey(
        Study(name="s", outcome="high_risk", cohort={"name": "cardio", "patients": 300}),
        tmp_path,
        1,
    )
    assert all(place.lifetime is None for place in here.places)
    assert open_ledger(Place("a", "", {}, None, None), None).lifetime is None
