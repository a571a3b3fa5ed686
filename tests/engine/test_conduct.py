"""A study from end to end: numbers do not depend on threads, interruption or repetition; the
promise holds."""

import json

import numpy as np
import pytest
from support.starter import write_starter

import suture
from suture.engine.conduct import resume, run
from suture.errors import BudgetExhausted, PrivacyError, RunError, StudyError
from suture.privacy.accounting.accountant import epsilon
from suture.privacy.accounting.events import as_event
from suture.privacy.accounting.planner import plan_site
from suture.privacy.ledger.ledger import Ledger
from suture.result import Result
from suture.study import Study

METRICS = {"auc", "auprc", "f1", "recall", "precision", "accuracy", "ece", "brier"}


def numbers(result):
    """Everything in a result but times and the command."""
    data = json.loads(json.dumps(result.data))
    for key in ("created", "command"):
        data.pop(key)
    for method in data["methods"].values():
        method.pop("seconds")
    return data


def files_study(folder, **changes):
    write_starter(folder, files=True, patients=600)
    study = Study.from_toml(folder / "study.toml")
    small = {
        "model": {"hidden": [4]},
        "method": {"rounds": 4, "local_epochs": 1},
        "privacy": {"accountant": "rdp"},
    }
    lifetime = {
        "epsilon": 200.0,
        "delta": 1e-2,
        "accountant": "rdp",
    }  # several methods and studies, as much as a test wants
    sites = [{**site, "lifetime": lifetime} for site in study.to_dict()["sites"]]
    return study.replace(**small, sites=sites).replace(**changes)


def test_result_holds_what_was_promised(tiny):
    result = run(tiny)
    data = result.data
    assert set(data["metrics"]["global"]) >= METRICS
    assert set(data["metrics"]["sites"]) == set(data["privacy"]["sites"])
    assert set(data["metrics"]["worst_site"]) >= METRICS
    assert set(data["metrics"]["groups"]["sex"]["F"]) >= METRICS
    assert len(data["history"]) == 6
    assert data["communication"]["bytes_up"] == 6 * 5 * (
        len(b"S2.?delta.?") + 4 * (8 * 6 + 8 + 8 + 1)
    )
    assert data["privacy"]["unit"] == "patient"
    json.dumps(data, allow_nan=False)


def test_threads_do_not_change_a_number(tiny):
    assert numbers(run(tiny, threads=1)) == numbers(run(tiny, threads=3))


def test_accountant_finds_what_was_planned(tiny):
    result = run(tiny)
    for site, patients in (
        (name, s["train"]) for name, s in result.data["cohort"]["sites"].items()
    ):
        planned = plan_site(
            site, patients, 32, rounds=6, local_epochs=1, delta=1e-5, accountant="rdp", epsilon=8.0
        )
        assert result.privacy["noise_multiplier"][site] == planned.noise_multiplier
        assert result.privacy["sites"][site] == pytest.approx(planned.epsilon, rel=1e-9)
        assert result.privacy["sites"][site] <= 8.0
    assert result.privacy["epsilon"] == max(result.privacy["sites"].values())


def test_save_and_load(tiny, tmp_path):
    result = run(tiny)
    folder = result.save(tmp_path / "kept")
    again = Result.load(folder)
    assert again.data == result.data
    np.testing.assert_array_equal(again.model["params"], result.model["params"])
    assert "<html" in (folder / "report.html").read_text(encoding="utf-8")


def test_frames_and_repr(tiny):
    result = run(tiny.replace(evaluation={"compare": ["alone"]}))
    assert result.to_frame()["method"].tolist() == ["fedadam", "alone"]
    assert len(result.to_frame("round")) == 12
    assert len(result.to_frame("site")) == 10
    assert "fedadam" in repr(result)
    assert "<table" in result._repr_html_()
    with pytest.raises(ValueError, match="by:"):
        result.to_frame("hospital")


def test_resume_of_a_half_finished_run_gives_the_same_result(tiny, tmp_path, monkeypatch):
    whole = run(tiny, out=tmp_path / "whole")

    class Stop(Exception):
        pass

    def stop(step):
        if step.round == 4:
            raise Stop

    monkeypatch.setattr("suture.engine.embedded.Embedded.checkpoint_seconds", 0.0)
    with pytest.raises(Stop):
        run(tiny, out=tmp_path / "half", progress=stop)
    assert not (tmp_path / "half" / "result.json").exists()
    rest = []
    again = resume(tmp_path / "half", progress=lambda step: rest.append(step.round))
    assert rest == [4, 5, 6]
    assert numbers(again) == numbers(whole)
    np.testing.assert_array_equal(again.model["params"], whole.model["params"])
    for site in whole.privacy["sites"]:
        ledger = Ledger.open(tmp_path / "half" / "ledgers" / f"{site}.sqlite", site)
        assert len(ledger.entries()) == 6


def test_a_folder_is_not_overwritten(tiny, tmp_path):
    run(tiny, out=tmp_path / "run")
    with pytest.raises(RunError, match="finished run"):
        run(tiny, out=tmp_path / "run")
    assert resume(tmp_path / "run").data["name"] == "tiny"


def test_resume_needs_a_run_folder(tmp_path):
    with pytest.raises(RunError, match="not a run folder"):
        resume(tmp_path)


def test_without_privacy_every_output_says_so(tiny):
    fields = tiny.to_dict()
    fields.pop("privacy")
    result = run(Study(**fields))
    assert result.privacy["protected"] is False
    assert result.privacy["epsilon"] is None
    assert "no differential privacy" in result.privacy["statement"].lower()


@pytest.mark.parametrize(
    "name", ["fedavg", "fedprox", "fedyogi", "fedadagrad", "fedcluster", "alone", "pooled"]
)
def test_every_method_runs_under_privacy(tiny, name):
    result = run(tiny.replace(method={"name": name}))
    assert result.privacy["epsilon"] <= 8.0
    assert set(result.privacy["sites"]) == set(result.metrics["sites"])


def test_fedcluster_says_how_the_sites_were_grouped(tiny):
    result = run(tiny.replace(method={"name": "fedcluster", "warmup": 2}))
    groups = result.data["methods"]["fedcluster"]["facts"]["groups"]
    assert set(groups) == set(result.metrics["sites"])
    assert set(groups.values()) == {0, 1}


def test_partial_participation_is_planned_for(tiny):
    result = run(tiny.replace(method={"participation": 0.4, "rounds": 10}))
    assert result.privacy["epsilon"] <= 8.0
    assert result.privacy["epsilon"] > 7.5
    assert result.data["communication"]["bytes_up"] == 10 * 2 * 271


def test_files_run_like_a_cohort_and_repeat_for_free(tmp_path):
    study = files_study(tmp_path)
    first = run(study, base=tmp_path, out=tmp_path / "one")
    again = run(study, base=tmp_path, out=tmp_path / "two")
    assert numbers(first) == numbers(again)
    ledger = Ledger.open(tmp_path / ".suture" / "geriatric" / "ledger.sqlite", "geriatric")
    assert len(ledger.entries()) == 6  # four rounds, and two of the evaluation
    assert (tmp_path / ".suture" / "geriatric" / "secret.key").stat().st_mode & 0o077 == 0
    assert "features" not in first.data["cohort"]


def test_another_secret_gives_other_noise(tmp_path):
    results = []
    for name in ("a", "b"):
        study = files_study(tmp_path / name)
        results.append(run(study, base=tmp_path / name))
    assert not np.array_equal(results[0].model["params"], results[1].model["params"])


def test_a_fixed_noise_and_budget_stop_before_the_last_round_and_more_is_refused(tmp_path):
    study = files_study(
        tmp_path, privacy={"epsilon": 8.0, "noise_multiplier": 2.0}, method={"rounds": 200}
    )
    result = run(study, base=tmp_path)
    lead = result.data["methods"]["fedadam"]
    assert 0 < lead["rounds_done"] < 200
    assert "budget spent" in lead["stopped"]
    assert result.privacy["epsilon"] <= 8.0
    with pytest.raises(BudgetExhausted, match="no budget left"):
        run(study.replace(method={"rounds": 300}), base=tmp_path)


def test_a_budget_too_small_for_one_round_says_so(tmp_path):
    study = files_study(tmp_path, privacy={"epsilon": 1.0, "noise_multiplier": 0.5})
    with pytest.raises(BudgetExhausted, match="does not pay for a single round"):
        run(study, base=tmp_path)


def test_more_rounds_later_with_a_spent_budget_are_refused(tmp_path):
    study = files_study(tmp_path)
    run(study, base=tmp_path)
    with pytest.raises(PrivacyError, match="reserved another plan"):
        run(study.replace(method={"rounds": 8}), base=tmp_path)


def test_a_promise_is_made_once(tmp_path):
    study = files_study(tmp_path)
    run(study, base=tmp_path)
    with pytest.raises(PrivacyError, match="promise"):
        run(study.replace(privacy={"epsilon": 9.0}), base=tmp_path)


def test_privacy_cannot_be_dropped_after_a_promise(tmp_path):
    study = files_study(tmp_path)
    run(study, base=tmp_path)
    fields = study.to_dict()
    fields.pop("privacy")
    with pytest.raises(PrivacyError, match="without privacy"):
        run(Study(**fields), base=tmp_path)


def test_seeds_on_the_same_patients_share_one_budget(tmp_path):
    study = files_study(tmp_path, evaluation={"seeds": 2})
    result = run(study, base=tmp_path)
    assert result.privacy["epsilon"] <= 8.0
    ledger = Ledger.open(tmp_path / ".suture" / "geriatric" / "ledger.sqlite", "geriatric")
    assert len(ledger.entries()) == 12  # four rounds and two of the evaluation, twice
    assert len(result.data["methods"]["fedadam"]["per_seed"]) == 2


@pytest.mark.parametrize("folds", [0, 2])
def test_the_total_of_methods_whose_rounds_differ_is_what_the_ledgers_hold(tmp_path, folds):
    evaluation = {"compare": ["veil", "pooled"], "folds": folds}
    study = files_study(
        tmp_path, method={"mode": "votes+moments", "participation": 0.6}, evaluation=evaluation
    )
    result = run(study, base=tmp_path)
    for site, stated in result.privacy["together"].items():
        ledger = Ledger.open(tmp_path / ".suture" / site / "ledger.sqlite", site)
        assert stated == pytest.approx(
            epsilon(as_event(ledger.books().total), study.privacy.delta, "rdp"), rel=1e-9
        )
        ledger.close()


def test_veil_refuses_what_its_concepts_cannot_read(tmp_path):
    study = files_study(tmp_path, method={"name": "veil"})
    fields = study.to_dict()
    fields.pop("privacy")
    with pytest.raises(StudyError, match="scale of their bounds"):
        run(Study(**fields).replace(model={"scaling": "site"}), base=tmp_path)


def test_methods_compared_on_the_same_patients_state_their_total(tmp_path):
    study = files_study(tmp_path, evaluation={"compare": ["fedavg", "pooled"]})
    result = run(study, base=tmp_path)
    together = result.privacy["together"]
    for site, spent in result.privacy["sites"].items():
        assert spent <= 8.0 < together[site]
    assert "what all of them sent" in result.privacy["statement"]
    alone = run(files_study(tmp_path / "one"), base=tmp_path / "one")
    assert alone.privacy["together"] is None


def test_privacy_cannot_be_dropped_through_another_method(tmp_path):
    study = files_study(tmp_path)
    run(study, base=tmp_path)
    fields = study.replace(method={"name": "fedyogi"}).to_dict()
    fields.pop("privacy")
    with pytest.raises(PrivacyError, match="without privacy"):
        run(Study(**fields), base=tmp_path)


def test_nothing_to_measure_on_is_an_error(tiny):
    with pytest.raises(StudyError, match="nothing to measure"):
        run(tiny.replace(evaluation={"holdout": 0.0}))


def test_predict_new_rows(tiny):
    result = suture.run(tiny)
    rows = {
        "age": [30, 88], "systolic_bp": [110, 190], "diastolic_bp": [70, 110], "cholesterol": [170, 330],
        "smoker": [0, 1], "diabetic": [0, 1],
    }  # fmt: skip
    low, high = result.predict(rows)
    assert 0 <= low < high <= 1


def test_a_run_that_the_budget_ends_between_two_looks_shows_its_last_round(tiny):
    promised = {"epsilon": 6.0, "noise_multiplier": 1.1}
    result = run(tiny.replace(method={"rounds": 10}, evaluation={"every": 7}, privacy=promised))
    done = result.data["methods"][result.data["method"]]["rounds_done"]
    assert 0 < done < 10
    assert [entry["round"] for entry in result.data["history"]] == sorted(
        {*range(7, done + 1, 7), done}
    )
