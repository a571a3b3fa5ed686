"""`suture site accept`: a person at the site reads what a study promises, and exactly that study is
accepted."""

import json

import pytest
from typer.testing import CliRunner

from suture.cli.main import app
from suture.site.gate import accepted
from suture.study import Study

STUDY = """
[study]
name = "ward 7"
outcome = "died"
[[site]]
name = "boston"
patients = 1200
edition = 3
[[site]]
name = "lyon"
patients = 800
[schema]
patient = "mrn"
[schema.features]
age = { kind = "number", low = 18, high = 100 }
smoker = { kind = "flag" }
[method]
rounds = 7
[privacy]
unit = "patient"
epsilon = 4.0
"""


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "boston"
    folder.mkdir()
    hub = 'hub = { address = "localhost:1", certificate = "ca.pem", key = "site.key" }'
    (folder / "site.toml").write_text(f'name = "boston"\ndata = "rows.csv"\n{hub}\n')
    (tmp_path / "study.toml").write_text(STUDY)
    return folder


def accept(home, *more, study=None):
    if study is not None:
        (home.parent / "study.toml").write_text(study)
    return CliRunner().invoke(
        app, ["site", "accept", str(home), str(home.parent / "study.toml"), *more]
    )


def test_what_is_promised_is_shown_and_exactly_this_study_is_accepted(home):
    assert accepted(home) == frozenset()
    done = accept(home)
    assert done.exit_code == 0, done.output
    study = Study.from_text(STUDY)
    for text in (
        "study ward 7",
        "patient column: mrn; outcome: died",
        "features: age, smoker",
        "declared size: 1,200 patients, edition 3",
        "epsilon 4, delta 1e-05, unit: patient",
        "methods: fedadam; 7 rounds",
        "protection: trusted sum, mean",
    ):
        assert text in done.output
    path = home / "studies" / f"ward 7-{study.digest[:12]}.toml"
    assert path.read_text() == STUDY
    assert accepted(home) == {study.digest}
    assert accept(home).exit_code == 0  # again, and no second copy
    assert list(path.parent.iterdir()) == [path]
    other = STUDY.replace("rounds = 7", "rounds = 8")
    assert Study.from_text(other).digest not in accepted(home)
    assert accept(home, study="# a comment\n" + other).exit_code == 0
    assert accepted(home) == {study.digest, Study.from_text(other).digest}
    path.unlink()
    assert accepted(home) == {Study.from_text(other).digest}


def test_one_json_object(home):
    found = json.loads(accept(home, "--json").stdout)
    assert (found["study"], found["patients"], found["epsilon"], found["rounds"]) == (
        "ward 7",
        1200,
        4.0,
        7,
    )
    assert found["digest"] == Study.from_text(STUDY).digest
    assert found["file"] == str(home / "studies" / f"ward 7-{found['digest'][:12]}.toml")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            'name = "boston"',
            'name = "oslo"',
            "does not name this site ('boston'); it has: oslo, lyon",
        ),
        ("patients = 1200", "", "declares no size"),
        (
            'outcome = "died"',
            'outcome = "died"\nsimulation = true',
            "simulation = true has no network",
        ),
    ],
)
def test_what_cannot_be_accepted(home, old, new, words):
    done = accept(home, study=STUDY.replace(old, new, 1))
    assert done.exit_code != 0
    assert words in f"{done.output} {done.exception}"
    assert not (home / "studies").exists()


def test_what_evaluation_costs_is_shown(home):
    done = accept(home, study=STUDY + "[evaluation]\nepsilon = 0.5\n")
    words = "; of it, epsilon 0.5 for a noisy evaluation of the model on its test patients"
    assert f"epsilon 4, delta 1e-05, unit: patient, for each method{words}" in done.output
    assert (
        "of it, epsilon 1 for a noisy evaluation" in accept(home, study=STUDY).output
    )  # a quarter
    off = accept(home, study=STUDY + "[evaluation]\nepsilon = 0\n")
    assert off.exit_code == 0
    assert "evaluation of the model" not in off.output


def test_a_size_is_asked_for_without_privacy_too(home):
    done = accept(home, study=STUDY.split("[privacy]")[0].replace("patients = 1200", ""))
    assert "ask for patients = ..." in f"{done.output} {done.exception}"
    fine = accept(home, study=STUDY.split("[privacy]")[0])
    assert "promise: NONE: no differential privacy" in fine.output


def test_a_file_that_is_no_study_accepts_nothing(home):
    (home / "studies").mkdir()
    (home / "studies" / "notes.toml").write_text("[study\n")
    (home / "studies" / "binary.toml").write_bytes(b"\xff\xfe")
    (home / "studies" / "study.txt").write_text(STUDY)
    assert accepted(home) == frozenset()
