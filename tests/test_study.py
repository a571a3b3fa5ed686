"""Study files: read, written back equal, and every mistake named with its place."""

import pytest

from suture.errors import StudyError
from suture.study import Study

FILES = """
[study]
name = "cardio"
outcome = "high_risk"
seed = 7

[[site]]
name = "boston"
region = "US-MA"
data = "boston.csv"

[[site]]
name = "lyon"
data = { path = "lyon.csv", separator = ";", encoding = "latin-1" }

[schema]
patient = "patient_id"
groups = ["sex", "ethnicity"]
[schema.features]
age = { kind = "number", low = 18, high = 100, unit = "years" }
sex = { kind = "category", values = ["F", "M"] }
smoker = { kind = "flag" }

[method]
name = "fedadam"
rounds = 3

[privacy]
unit = "patient"
epsilon = 8.0
"""


def test_the_issue_s_shape_reads():
    study = Study.from_text(FILES)
    assert [site.name for site in study.sites] == ["boston", "lyon"]
    assert study.privacy is not None
    assert (study.privacy.epsilon, study.privacy.delta, study.privacy.accountant) == (8.0, 1e-5, "pld")
    assert study.table is not None
    assert list(study.table.features) == ["age", "sex", "smoker"]
    assert study.methods == ("fedadam",)


def test_no_privacy_table_means_no_privacy():
    assert not Study(name="a", outcome="y", cohort="cardio").private


@pytest.mark.parametrize("text", [FILES, '[study]\nname = "a b"\noutcome = "high_risk"\ncohort = "cardio"\n'])
def test_written_toml_reads_back_equal(text):
    study = Study.from_text(text)
    assert Study.from_text(study.to_toml()) == study


def test_replace_changes_part_of_a_table():
    study = Study.from_text(FILES).replace(method={"rounds": 9}, evaluation={"compare": ["fedavg", "fedadam"]})
    assert (study.method.name, study.method.rounds) == ("fedadam", 9)
    assert study.methods == ("fedadam", "fedavg")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "lyon"', 'name = "Boston"', "found twice"),
        ('patient = "patient_id"', "", "schema.patient"),
        ("epsilon = 8.0", "", "give epsilon"),
        ("epsilon = 8.0", "epsilon = -1", "greater than 0"),
        ('unit = "patient"', 'unit = "record"', "patient"),
        ('outcome = "high_risk"', 'outcome = "smoker"', "also listed as a feature"),
        ("rounds = 3", "rounds = 0", "method.rounds"),
        ("rounds = 3", "round = 3", "not a setting"),
        ("[method]", "[methods]", "unknown table 'methods'"),
        ("seed = 7", "seeds = 7", "unknown key 'seeds'"),
        ('kind = "flag"', 'kind = "bool"', "smoker"),
        ("low = 18", "low = 200", "low < high"),
        ("[study]", "[study", "not valid TOML"),
        ("seed = 7", 'cohort = "cardio"', "not both"),
        ('name = "boston"', 'name = "../boston"', "sites.0.name"),
    ],
)
def test_mistakes_are_named(old, new, message):
    assert old in FILES
    with pytest.raises(StudyError, match=message.replace("[", r"\[")):
        Study.from_text(FILES.replace(old, new, 1))


def test_a_missing_file_says_what_to_do(tmp_path):
    with pytest.raises(StudyError, match="suture init"):
        Study.from_toml(tmp_path / "none.toml")


def test_no_sites_at_all():
    with pytest.raises(StudyError, match="cohort"):
        Study(name="a", outcome="y")


def test_passwords_are_not_written_down_and_can_be_taken_back():
    text = FILES.replace('data = "boston.csv"', 'data = { url = "postgresql://r:secret@db/heart", query = "SELECT 1" }')
    study = Study.from_text(text)
    written = study.without_passwords().to_toml()
    assert "secret" not in written
    assert "postgresql://r@db/heart" in written
    assert "secret" not in repr(study)
    assert Study.from_text(written).with_passwords_of(study) == study
