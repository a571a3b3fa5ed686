"""Erasure: tombstone, certificate, and training anew that is exactly the run without the
patient."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from support.ready import sign_all
from support.starter import write_starter

from suture.engine import erase as erasing
from suture.engine import federation
from suture.engine.access import access
from suture.engine.conduct import run
from suture.engine.plan import first_rounds, plan_of
from suture.errors import BudgetExhausted, DataError, StudyError
from suture.privacy.ledger.ledger import Ledger
from suture.site.gate import is_held_out, named_place
from suture.study import Study

ROUNDS = 6


@pytest.fixture
def study(tmp_path):
    """Five hospitals of files; the noise is so large that the budget pays for many runs."""
    write_starter(tmp_path, files=True, patients=600)
    asked = Study.from_toml(tmp_path / "study.toml").replace(
        model={"hidden": [4]},
        method={"rounds": ROUNDS, "local_epochs": 1, "participation": 0.4},
        privacy={"epsilon": 8.0, "noise_multiplier": 12.0, "accountant": "rdp"},
    )
    lifetime = {"epsilon": 100.0, "delta": 1e-3, "accountant": "rdp"}
    asked = asked.replace(
        sites=[{**site, "lifetime": lifetime} for site in asked.to_dict()["sites"]]
    )
    (tmp_path / "study.toml").write_text(asked.to_toml())
    for site in asked.sites:  # identifiers that are found in a text only if they were put there
        path, lines, at, _ = patients(tmp_path, asked, site.name)
        cells = [line.split(",") for line in lines[1:]]
        path.write_text(
            "\n".join(
                [lines[0], *(",".join([*c[:at], f"MRN-{c[at]}", *c[at + 1 :]]) for c in cells)]
            )
            + "\n"
        )
    return asked


def late(study):
    """The site that first takes part last, and its first round."""
    firsts = first_rounds(
        [s.name for s in study.sites], ROUNDS, study.method.participation, study.seed
    )
    site = max(firsts, key=firsts.get)
    assert firsts[site] > 1
    return site, firsts[site]


def patients(folder, study, site):
    path = folder / next(s.data.path for s in study.sites if s.name == site)
    lines = path.read_text().splitlines()
    at = lines[0].split(",").index(study.table.patient)
    return path, lines, at, sorted({line.split(",")[at] for line in lines[1:]})


def someone(folder, study, site, *, held_out=False):
    names = patients(folder, study, site)[3]
    return next(
        n for n in names if is_held_out(n, study.evaluation.holdout, str(study.seed)) == held_out
    )


def without(folder, study, site, patient):
    """The same folder with the same secrets, fresh ledgers, and a table in which the patient never
    was."""
    other = folder.parent / f"{folder.name}-other"
    shutil.copytree(folder, other)
    for ledger in other.glob(".suture/*/ledger.*"):
        ledger.unlink()
    path, lines, at, _ = patients(other, study, site)
    path.write_text(
        "\n".join([lines[0], *(line for line in lines[1:] if line.split(",")[at] != patient)])
        + "\n"
    )
    return other


def test_an_erased_patient_is_in_no_later_run_and_the_certificate_says_what_was(study, tmp_path):
    site, first = late(study)
    before = run(study, base=tmp_path, out=tmp_path / "one")
    patient = someone(tmp_path, study, site)
    place = named_place(tmp_path / "study.toml", site)
    found = erasing.erase(place, patient, study=study)
    (account,) = found["studies"]
    assert account["account"] == f"{study.name}/fedadam"
    assert account["part"] == "may have been drawn in"
    assert account["rounds"].split("-")[0].split(",")[0] == str(first)
    ledger = Ledger.read(tmp_path / ".suture" / site / "ledger.sqlite")
    assert account["epsilon"] == pytest.approx(ledger.spent(account["account"]), abs=1e-4)
    assert found["total"]["epsilon"] == ledger.spent_in_all()
    assert account["releases"] == len(ledger.entries())
    rows = ledger.rows()
    assert (rows[-1].what, rows[-1].seq, rows[-1].hash) == ("erased", found["entry"], found["hash"])
    ledger.close()
    assert found["rows_still_in_the_table"] >= 1
    for file in found["files"]:
        with open(file, encoding="utf-8") as text:
            assert patient not in text.read()
    assert patient not in json.dumps(found)
    assert before.data["cohort"]["sites"][site]["train"] == next(
        s.patients for s in study.sites if s.name == site
    )
    again = federation.survey(erasing.renamed(study), tmp_path, study.seed)
    here = next(p for p in again.places if p.name == site)
    left = federation.load_site(study, again, here).loaded
    names = patients(tmp_path, study, site)[3]
    tested = [n for n in names if is_held_out(n, study.evaluation.holdout, str(study.seed))]
    assert left.patients == len(names) - 1
    assert left.train_patients == len(names) - len(tested) - 1
    again = erasing.erase(place, patient, study=study)
    assert (again["new"], again["entry"], again["tombstone"]) == (
        False,
        found["entry"],
        found["tombstone"],
    )


def test_someone_held_out_is_in_the_evaluation_and_in_nothing_else(study, tmp_path):
    site, _ = late(study)
    run(study, base=tmp_path)
    patient = someone(tmp_path, study, site, held_out=True)
    found = erasing.erase(named_place(tmp_path / "study.toml", site), patient, study=study)
    (account,) = found["studies"]
    assert account["part"].endswith(
        "no model was trained on them; the noisy evaluation counted them"
    )
    world = federation.survey(study, tmp_path, study.seed)
    tested = plan_of(study, world, "fedadam").evaluation.sites[site]
    assert account["epsilon"] == pytest.approx(tested.epsilon, abs=1e-4)
    assert 0 < account["epsilon"] <= study.evaluation_epsilon == 2.0
    assert found["total"]["epsilon"] == 8.0  # the account's promise, as for everybody in it
    with open(found["files"][1], encoding="utf-8") as page:
        assert "none (held out); its evaluation" in page.read()
    # In folds of hospitals nobody is held out: everybody trained.
    folds = study.replace(evaluation={"folds": 2})
    place = named_place(tmp_path / "study.toml", site)
    assert access(place, patient, study=folds, known=True)["studies"][0]["part"].startswith("may")


def test_someone_held_out_was_in_no_model(study, tmp_path):
    study = study.replace(evaluation={"epsilon": 0})  # nothing about them is released
    (tmp_path / "study.toml").write_text(study.to_toml())
    site, _ = late(study)
    run(study, base=tmp_path)
    patient = someone(tmp_path, study, site, held_out=True)
    found = erasing.erase(named_place(tmp_path / "study.toml", site), patient, study=study)
    assert found["studies"][0]["part"].startswith("held out")
    assert (found["studies"][0]["epsilon"], found["total"]["epsilon"]) == (0.0, 0.0)
    # By the home alone nobody can say so, and the certificate does not.
    blind = erasing.erase(erasing.place_for(tmp_path / ".suture" / site, site), patient)
    assert blind["studies"][0]["part"].startswith("may")
    assert blind["rows_still_in_the_table"] is None


def test_from_scratch_is_the_run_that_would_have_been(study, tmp_path):
    folder = tmp_path / "here"
    folder.mkdir()
    for item in list(tmp_path.iterdir()):
        if item != folder:
            shutil.move(item, folder)
    site, _ = late(study)
    run(study, base=folder)
    patient = someone(folder, study, site)
    clean = run(erasing.renamed(study), base=without(folder, study, site, patient))
    place = named_place(folder / "study.toml", site)
    erasing.erase(place, patient, study=study)
    result, done = erasing.retrain(
        erasing.renamed(study), place, "scratch", base=folder, out=tmp_path / "anew"
    )
    np.testing.assert_array_equal(result.model["params"], clean.model["params"])
    assert result.metrics == clean.metrics
    assert done["from_round"] == 0


def test_from_the_checkpoint_pays_for_the_new_rounds_only(study, tmp_path):
    site, first = late(study)
    run(study, base=tmp_path, out=tmp_path / "one")
    patient = someone(tmp_path, study, site)
    place = named_place(tmp_path / "study.toml", site)
    erasing.erase(place, patient, study=study)
    names = [s.name for s in study.sites]
    charged = {n: charges(tmp_path, n) for n in names}
    _, done = erasing.retrain(
        erasing.renamed(study),
        place,
        "checkpoint",
        base=tmp_path,
        out=tmp_path / "two",
        run=tmp_path / "one",
    )
    assert done["from_round"] == first - 1
    assert f"the checkpoint after round {first - 1} was taken over" in done["words"]
    new = sum(charges(tmp_path, n) - charged[n] for n in names)
    # Two of five sites a round; then both rounds of the evaluation at every site, because the model
    # is another one.
    assert new == 2 * (ROUNDS - first + 1) + 2 * len(names)
    for n in names:
        ledger = Ledger.read(tmp_path / ".suture" / n / "ledger.sqlite")
        anew = [e for e in ledger.entries() if e.study == "cardio-files-anew/fedadam"]
        ledger.close()
        assert [e.round for e in anew if e.what == "evaluation"] == [1, 2]
        assert all(e.round >= first for e in anew if e.what == "model update")
    with pytest.raises(BudgetExhausted, match=r"was not begun: .*--as NAME"):  # a name serves once
        erasing.retrain(
            erasing.renamed(study), place, "scratch", base=tmp_path, out=tmp_path / "four"
        )
    _, told = erasing.retrain(
        erasing.renamed(study, "third"), place, "scratch", base=tmp_path, out=tmp_path / "three"
    )
    assert "the new study's own" in told["words"]
    for n in names:
        ledger = Ledger.read(tmp_path / ".suture" / n / "ledger.sqlite")
        ledger.verify()
        ledger.close()


def charges(folder, site):
    path = folder / ".suture" / site / "ledger.sqlite"
    if not path.exists():
        return 0
    ledger = Ledger.read(path)
    found = len(ledger.entries())
    ledger.close()
    return found


def test_training_anew_that_the_budget_does_not_pay_for_is_refused_before_it_begins(
    study, tmp_path
):
    fields = study.to_dict()
    fields["privacy"].pop(
        "noise_multiplier"
    )  # calibrated: the whole budget is spent on the first run
    spent = Study(**fields)
    run(spent, base=tmp_path)
    site, _ = late(spent)
    place = named_place(tmp_path / "study.toml", site)
    erasing.erase(place, someone(tmp_path, spent, site), study=spent)
    before = {s.name: charges(tmp_path, s.name) for s in spent.sites}
    with pytest.raises(BudgetExhausted, match=r"not begun: .* spent .*--as NAME"):
        erasing.retrain(spent, place, "scratch", base=tmp_path, out=tmp_path / "anew")
    assert {s.name: charges(tmp_path, s.name) for s in spent.sites} == before
    assert not (tmp_path / "anew").exists()
    result, _ = erasing.retrain(
        spent.replace(name="cardio-2"), place, "scratch", base=tmp_path, out=tmp_path / "anew"
    )
    assert result.privacy["epsilon"] <= 8.0


def test_a_lifetime_budget_binds_training_anew_too(study, tmp_path):
    fields = study.to_dict()
    fields["privacy"].pop("noise_multiplier")
    for item in fields["sites"]:
        item["lifetime"] = {"epsilon": 9.0, "delta": 1e-5, "accountant": "rdp"}
    spent = Study(**fields)
    (tmp_path / "study.toml").write_text(spent.to_toml())
    run(spent, base=tmp_path)
    site, _ = late(spent)
    place = named_place(tmp_path / "study.toml", site)
    with pytest.raises(BudgetExhausted, match="lifetime epsilon"):
        erasing.retrain(
            spent.replace(name="cardio-2"), place, "scratch", base=tmp_path, out=tmp_path / "anew"
        )


def test_mistakes_are_told(study, tmp_path):
    site = study.sites[0].name
    place = named_place(tmp_path / "study.toml", site)
    with pytest.raises(StudyError, match="has no ledger"):
        erasing.erase(place, "x")
    run(study, base=tmp_path)
    with pytest.raises(StudyError, match="empty one"):
        erasing.erase(place, "  ")
    with pytest.raises(DataError, match="is the home of site"):
        erasing.place_for(tmp_path / ".suture" / site, "elsewhere")
    with pytest.raises(StudyError, match="no site 'nowhere'"):
        named_place(tmp_path / "study.toml", "nowhere")
    with pytest.raises(DataError, match="does not know this patient"):
        erasing.erase(replace(place, name=site), "never here")
    assert erasing.erase(replace(place, name=site), "here once", known=True)["studies"]


def test_the_command(suture_command, study, tmp_path):
    site, _ = late(study)
    sign_all(study, tmp_path)
    suture_command("run", "study.toml", "--out", "one", cwd=tmp_path, check=True)
    patient = someone(tmp_path, study, site)
    done = suture_command(
        "erase", "--site", site, "--patient", "-", "--study", "study.toml", "--retrain", "checkpoint", "--run", "one",
        "--out", "two", "--json", cwd=tmp_path, input=patient + "\n",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["retraining"]["from_round"] > 0
    assert (tmp_path / "two" / "result.json").exists()
    assert patient not in done.stdout + done.stderr
    certificate = json.loads(
        (
            tmp_path / ".suture" / site / "erasures" / f"erasure-{found['tombstone'][:12]}.json"
        ).read_text()
    )
    assert certificate["retraining"]["how"] == "checkpoint"
    at_home = ("erase", "--site", site, "--patient", "other", "--home", f".suture/{site}")
    unknown = suture_command(*at_home, cwd=tmp_path)
    assert (unknown.returncode, unknown.stdout) == (DataError.exit_code, "")
    assert "does not know this patient" in unknown.stderr
    plain = suture_command(*at_home, "--known", cwd=tmp_path)
    assert plain.returncode == 0
    assert "erased at site" in plain.stdout
    asked = ("access", "--site", site, "--study", "study.toml", "--patient")
    told = suture_command(*asked, patient, cwd=tmp_path)
    assert told.returncode == 0
    assert "cardio-files/fedadam: may have been drawn in" in told.stdout
    assert "erased 20" in told.stdout
    assert patient not in told.stdout
    assert (
        suture_command(*asked, "nobody", "--json", cwd=tmp_path).returncode == DataError.exit_code
    )
    wrong = suture_command(
        "erase",
        "--site",
        site,
        "--patient",
        "x",
        "--home",
        "nowhere",
        "--retrain",
        "scratch",
        cwd=tmp_path,
    )
    assert wrong.returncode == 2


def consent_of(folder, study, site, lines):
    """The study file with a consent table at one site."""
    (folder / "consent.csv").write_text("\n".join(["who,given,gone", *lines]) + "\n")
    spec = {"path": "consent.csv", "patient": "who", "from": "given", "withdrawn": "gone"}
    sites = [
        {**one, **({"consent": spec} if one["name"] == site else {})}
        for one in study.to_dict()["sites"]
    ]
    asked = study.replace(sites=sites)
    (folder / "study.toml").write_text(asked.to_toml())
    return asked


def test_nobody_is_certified_an_influence_that_they_cannot_have_had(study, tmp_path):
    site, _ = late(study)
    names = patients(tmp_path, study, site)[3]
    left = someone(tmp_path, study, site)
    lines = [f"{name},2020-01-01,{'2021-01-01' if name == left else ''}" for name in names]
    asked = consent_of(tmp_path, study, site, lines)
    run(asked, base=tmp_path)
    home = tmp_path / ".suture" / site
    place = named_place(tmp_path / "study.toml", site)
    before = len(Ledger.read(home / "ledger.sqlite").rows())
    with pytest.raises(DataError, match="does not know this patient"):
        erasing.erase(place, "MRN-nobody", study=asked)
    with pytest.raises(DataError, match="had withdrawn before every release"):
        erasing.erase(place, left, study=asked)
    with pytest.raises(DataError, match="does not know this patient"):
        erasing.erase(erasing.place_for(home, site), names[0])
    assert not (home / "erasures").exists()
    assert len(Ledger.read(home / "ledger.sqlite").rows()) == before
    said = erasing.erase(place, "MRN-deleted", study=asked, known=True)
    assert said["rows_still_in_the_table"] == 0
    assert said["studies"][0]["part"].startswith("may")


def test_a_person_learns_what_the_site_knows_of_them(study, tmp_path):
    site, first = late(study)
    names = patients(tmp_path, study, site)[3]
    mine, left = [
        n for n in names if not is_held_out(n, study.evaluation.holdout, str(study.seed))
    ][:2]
    lines = [f"{name},2020-01-01,{'2021-01-01' if name == left else ''}" for name in names]
    asked = consent_of(tmp_path, study, site, lines)
    run(asked, base=tmp_path)
    place = named_place(tmp_path / "study.toml", site)
    found = access(place, mine, study=asked)
    (account,) = found["studies"]
    ledger = Ledger.read(tmp_path / ".suture" / site / "ledger.sqlite")
    assert account["consent"] == "given on every day of a release"
    assert account["epsilon"] == pytest.approx(ledger.spent(account["account"]), abs=1e-4)
    assert account["rounds"].split("-")[0].split(",")[0] == str(first)
    assert account["releases"] == sum(entry.is_charge for entry in ledger.rows())
    assert (found["rows_in_the_table"] >= 1, found["erased"]) == (True, None)
    rows = len(ledger.rows())
    ledger.close()
    spared = access(place, left, study=asked)["studies"][0]
    assert spared["part"].startswith("withdrawn before")
    assert spared["epsilon"] == 0.0
    with pytest.raises(DataError, match="does not know this patient"):
        access(place, "MRN-nobody", study=asked)
    ledger = Ledger.read(tmp_path / ".suture" / site / "ledger.sqlite")
    assert len(ledger.rows()) == rows  # nothing is written, nothing is charged
    ledger.close()
    erasing.erase(place, mine, study=asked)
    assert access(place, mine, study=asked)["erased"]
