"""A survival study from the command line: run, evaluate, and what is refused."""

import json

import pytest
from support.followed import study
from typer.testing import CliRunner

from suture.cli.main import app

RUNNER = CliRunner()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("followed")
    asked = study(
        folder, each=500, effect=2.0, privacy={"unit": "patient", "epsilon": 4.0},
        protection={"sum": "masked", "threshold": 0.9},
    )  # fmt: skip
    (folder / "study.toml").write_text(asked.to_toml())
    given = ["run", str(folder / "study.toml"), "--out", str(folder / "run")]
    done = RUNNER.invoke(app, given)
    assert done.exit_code == 0, done.output
    return folder


def test_evaluate_answers_with_the_c_index_under_masks(run):
    given = ["evaluate", str(run / "run"), "--epsilon", "8", "--out", str(run / "e"), "--json"]
    done = RUNNER.invoke(app, given)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    low, high = found["figures"]["c_index"]["interval"]
    assert 0.5 < low < high < 1
    assert found["privacy"]["epsilon"] <= 8
    assert (run / "e" / "prognosis.html").exists()


def test_what_is_for_classes_is_refused_in_words(run):
    for given, words in (
        (["evaluate", str(run / "run"), "--epsilon", "1", "--by", "smoker"], "--by"),
        (["associate", str(run / "study.toml"), "--epsilon", "1"], "time until an event"),
        (["survive", str(run / "study.toml"), "--epsilon", "1", "--time", "age"], "leave it out"),
    ):
        done = RUNNER.invoke(app, given)
        assert done.exit_code != 0
        assert words in str(done.output) + str(done.exception)
