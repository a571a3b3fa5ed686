"""The command line as a user meets it: processes, exit codes, one JSON object, no traceback for a
user's mistake."""

import json
import subprocess
import sys

import pytest

METRICS = {"auc", "auprc", "f1", "recall", "precision", "accuracy", "ece", "brier"}

STUDY = """
[study]
name = "small"
outcome = "high_risk"
cohort = { name = "cardio", patients = 600 }
[model]
hidden = [8]
[method]
name = "fedavg"
rounds = 3
local_epochs = 1
[privacy]
unit = "patient"
epsilon = 8.0
accountant = "rdp"
"""


@pytest.fixture
def study(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    return path


def one_object(output):
    return json.loads(output)  # fails on anything before or after the object


def test_run_writes_what_the_issue_names(suture_command, study, tmp_path):
    done = suture_command("run", study, "--out", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    printed = one_object(done.stdout)
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert (tmp_path / "out" / "report.html").stat().st_size > 100_000
    assert set(result["metrics"]["global"]) >= METRICS
    for site in result["metrics"]["sites"].values():
        assert set(site) >= METRICS
    assert set(result["metrics"]["worst_site"]) >= METRICS
    for values in result["metrics"]["groups"].values():
        for found in values.values():
            assert set(found) >= METRICS
    privacy = result["privacy"]
    assert {"unit", "neighbours", "accountant", "delta", "epsilon", "sites", "statement"} <= set(
        privacy
    )
    assert privacy["epsilon"] == max(privacy["sites"].values()) <= 8.0
    for public in ("number of training patients", "declared bounds", "schema"):
        assert public in privacy["statement"]
    assert result["communication"]["bytes_up"] > 0
    assert result["communication"]["bytes_down"] > 0
    assert [entry["round"] for entry in result["history"]] == [1, 2, 3]
    assert printed["metrics"]["global"]["auc"] == result["metrics"]["global"]["auc"]


def test_run_prints_a_table_and_where_the_results_are(suture_command, study, tmp_path):
    done = suture_command("run", study, "--out", "out", "--methods", "fedavg,alone", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "FedAvg" in done.stdout
    assert "Alone" in done.stdout
    assert "report: out/report.html" in done.stdout


def test_plan_is_the_issue_s(suture_command):
    common = (
        "plan",
        "--patients",
        1270,
        "--batch",
        32,
        "--epochs",
        500,
        "--delta",
        "1e-5",
        "--json",
    )
    found = one_object(suture_command(*common, "--noise", "1.0").stdout)
    assert found["epsilon"]["rdp"] == pytest.approx(31.9, rel=0.01)
    assert found["epsilon"]["pld"] == pytest.approx(29.9, rel=0.01)
    assert found["epsilon"]["basic"] > found["epsilon"]["rdp"]
    found = one_object(suture_command(*common, "--epsilon", "13.4").stdout)
    assert found["noise"]["pld"] == pytest.approx(1.57, rel=0.01)
    assert found["noise"]["rdp"] > found["noise"]["pld"]


def test_plan_for_people(suture_command):
    done = suture_command(
        "plan", "--patients", 1270, "--patients", 13130, "--batch", 32, "--rounds", 10, "--local-epochs", 5,
        "--epsilon", 8, "--delta", "1e-5",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "13,130 patients" in done.stdout
    assert "PLD" in done.stdout
    assert "unit: patient" in done.stdout


def test_init_files_then_run(suture_command, tmp_path):
    made = suture_command("init", "mine", "--files", "--patients", 600, "--json", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    written = one_object(made.stdout)["written"]
    assert len(written) == 6
    text = (tmp_path / "mine" / "study.toml").read_text()
    (tmp_path / "mine" / "study.toml").write_text(text.replace("rounds = 40", "rounds = 2"))
    refused = suture_command("run", "mine/study.toml", "--json", cwd=tmp_path)
    assert refused.returncode == 4
    assert "suture check study.toml --sign NAME" in refused.stderr
    assert not (tmp_path / "mine" / ".suture" / "community" / "ledger.sqlite").exists()
    signed = suture_command(
        "check", "mine/study.toml", "--sign", "A. Kowal", "--json", cwd=tmp_path
    )
    assert signed.returncode == 0, signed.stderr
    assert len(one_object(signed.stdout)["signed"]) == 5
    done = suture_command("run", "mine/study.toml", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert one_object(done.stdout)["ready"]["community"]["by"] == "A. Kowal"
    assert one_object(done.stdout)["privacy"]["epsilon"] <= 8.0
    again = suture_command("init", "mine", cwd=tmp_path)
    assert again.returncode == 5
    assert "exists already" in again.stderr


def test_report_is_rebuilt_with_figures(suture_command, study, tmp_path):
    assert suture_command("run", study, "--out", "out", cwd=tmp_path).returncode == 0
    (tmp_path / "out" / "report.html").unlink()
    done = suture_command("report", "out", "--figures", "figures", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    written = one_object(done.stdout)["written"]
    assert "out/report.html" in written
    assert {"figures/roc.png", "figures/roc.svg"} <= set(written)
    for name in written:
        assert (tmp_path / name).stat().st_size > 1000


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (("rounds = 3", "rounds = -3"), 2, "method.rounds"),
        (('name = "fedavg"', 'name = "fedsdg"'), 2, "fedavg, fedprox"),
        (('name = "cardio"', 'name = "kardio"'), 2, "cardio"),
        (('outcome = "high_risk"', 'outcome = "death"'), 2, "high_risk"),
        (("epsilon = 8.0", "epsilon = 0.5\nnoise_multiplier = 0.3"), 4, "single round"),
    ],
)
def test_a_user_s_mistake_ends_with_a_message_and_a_code(
    suture_command, study, tmp_path, change, code, message
):
    assert change[0] in STUDY
    study.write_text(STUDY.replace(*change))
    done = suture_command("run", study, "--out", tmp_path / "out", "--json")
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert message in one_object(done.stdout)["error"]["message"]
    assert not (tmp_path / "out").exists()


def test_a_missing_study_file(suture_command, tmp_path):
    done = suture_command("run", tmp_path / "none.toml")
    assert done.returncode == 2
    assert "does not exist" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_hospital_file_leaves_nothing_half_done(suture_command, tmp_path):
    suture_command("init", "mine", "--files", "--patients", 600, cwd=tmp_path)
    (tmp_path / "mine" / "geriatric.csv").unlink()
    done = suture_command("run", "mine/study.toml", "--out", "out", cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert "geriatric" in done.stderr
    assert not (tmp_path / "mine" / ".suture").exists()
    assert not (tmp_path / "out").exists()


def test_run_needs_one_of_study_and_resume(suture_command):
    assert suture_command("run").returncode == 2


def test_the_module_is_the_command(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "suture", "init", "x", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "x" / "study.toml").exists()


def test_a_list_of_no_methods_is_refused(suture_command, study, tmp_path):
    done = suture_command("run", study, "--methods", ",", "--out", tmp_path / "run")
    assert done.returncode == 2
    assert "expected names separated by commas" in done.stderr
    assert not (tmp_path / "run").exists()


def test_init_from_a_table_then_run(suture_command, tmp_path):
    rows = "".join(f"P{i},{i % 2},{40 + i % 30},{i / 7:.3f}\n" for i in range(80))
    (tmp_path / "rows.csv").write_text("id,died,age,blorb\n" + rows)
    made = suture_command("init", "mine", "--from", "rows.csv", "--json", cwd=tmp_path)
    assert made.returncode == 0
    found = one_object(made.stdout)
    assert [gap.partition(":")[0] for gap in found["left"]] == [
        "schema.features.blorb",
        "site.patients",
    ]
    text = (tmp_path / "mine/study.toml").read_text()
    assert 'data = { path = "../rows.csv" }' in text
    refused = suture_command("run", "mine/study.toml", cwd=tmp_path)
    assert refused.returncode != 0
    assert "blorb" in refused.stderr
    assert "Traceback" not in refused.stderr
    again = suture_command("init", "mine", "--from", "rows.csv", cwd=tmp_path)
    assert again.returncode != 0
    assert "exists already" in again.stderr
    for wrong in (["--outcome", "died"], ["--from", "rows.csv", "--files"], ["--from", "rows.doc"]):
        assert suture_command("init", "other", *wrong, cwd=tmp_path).returncode != 0
    assert not (tmp_path / "other").exists()
