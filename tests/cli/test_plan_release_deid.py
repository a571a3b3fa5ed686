"""The command groups as a user meets them: one JSON object, files where they are asked for, exit
codes, no traceback."""

import json

import pytest
from support.ready import sign_all

from suture.study import Study


def test_plan_table_and_plot(suture_command, tmp_path):
    asked = (
        "plan",
        "table",
        "--round-epsilon",
        1,
        "--rounds",
        100,
        "--budget",
        8,
        "--at",
        10,
        "--at",
        100,
    )
    for name in ("b.png", "b.svg", "b.html"):
        done = suture_command(*asked, "--plot", name, "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / name).stat().st_size > 5000
    found = json.loads(done.stdout)
    assert found["rounds_that_fit"] == {"basic": 9, "sqrt_rule": 64, "rdp": 57, "pld": 65}
    done = suture_command(*asked)
    assert "10*" in done.stdout


def test_safe_epsilon(suture_command):
    asked = (
        "plan",
        "safe-epsilon",
        "--rate",
        0.012,
        "--threshold",
        0.01,
        "--patients",
        4000,
        "--reliability",
        0.95,
    )
    found = json.loads(suture_command(*asked, "--json").stdout)
    assert found["without_sampling_error"]["analytic"]["epsilon"] == pytest.approx(0.75, abs=0.005)
    assert "out of reach" in suture_command(*asked).stdout


def test_options_before_a_sub_command_are_refused(suture_command):
    done = suture_command("plan", "--delta", "1e-5", "table", "--rounds", 3, "--noise", 1)
    assert done.returncode == 2
    assert "after its name" in done.stderr


def test_release_from_a_study_file(suture_command, tmp_path):
    suture_command("init", "mine", "--files", "--patients", 600, cwd=tmp_path, check=True)
    sign_all(Study.from_toml(tmp_path / "mine" / "study.toml"), tmp_path / "mine")
    asked = (
        "release",
        "rate",
        "mine/study.toml",
        "--site",
        "geriatric",
        "--column",
        "high_risk",
        "--epsilon",
        0.5,
    )
    first = json.loads(suture_command(*asked, "--json", cwd=tmp_path).stdout)
    again = json.loads(suture_command(*asked, "--json", cwd=tmp_path).stdout)
    assert again == {**first, "repeated": True}
    assert first["epsilon"] <= 0.5
    bars = (
        "release",
        "histogram",
        "mine/study.toml",
        "--site",
        "geriatric",
        "--column",
        "age",
        "--epsilon",
        1,
    )
    done = suture_command(*bars, "--bins", 4, "--plot", "age.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "age.png").stat().st_size > 5000
    assert "of 8" in done.stdout
    done = suture_command(*asked[:-1], 50, "--json", cwd=tmp_path)
    assert done.returncode == 4
    assert "Traceback" not in done.stderr


def test_deid_evaluate(suture_command):
    found = json.loads(suture_command("deid", "evaluate", "--rows", 100, "--json").stdout)
    assert found["recall"] >= 0.97
    assert found["kept_silently"] == []
    assert found["precision"] >= 0.97
