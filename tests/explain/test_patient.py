"""One patient explained: exact sums, by hand, and a page that shows them and stays
self-contained."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest

from suture.engine import conduct
from suture.errors import DataError, StudyError
from suture.explain.patient import explain, explain_patient, waterfall
from suture.explain.run import ConceptModel
from suture.models.concepts import dictionary
from suture.schema.table import Category, Number, Schema
from suture.study import Study

SCHEMA = Schema(
    features={
        "age": Number(
            low=20, high=100, unit="years", label="Age", thresholds={"high": 70}, missing="fill"
        ),
        "lactate": Number(low=0, high=20, unit="mmol/L", label="Lactate", normal=(0.5, 2)),
        "sex": Category(values=("F", "M"), label="Sex", protected=True, missing="fill"),
    }
)
KNOWN = dictionary(SCHEMA)
CONCEPTS = [concept.name for concept in KNOWN.items]
# encoded columns: age, lactate, lactate (missing), sex = F, sex = M
REFERENCE = np.array(
    [[-0.5, -0.9, 0, 1, 0], [0.0, -0.8, 0, 0, 1], [0.5, 0, 1, 1, 0], [1.0, -0.7, 0, 1, 0]],
    np.float32,
)
IDENTITY = ((1.0, 0.0), np.diag([0.01, 0.04]))


def weights(**by_name):
    found = np.zeros(len(KNOWN), np.float32)
    for name, weight in by_name.items():
        found[CONCEPTS.index(name)] = weight
    return found


W = weights(
    **{
        "Age": 1.0,
        "Age, high (> 70 years)": 0.5,
        "Lactate, above normal (> 2 mmol/L)": 2.0,
        "Sex: M": -0.3,
        "Lactate, not measured": 0.4,
    }
)
MODEL = ConceptModel(SCHEMA, W, -2.0, dictionary(SCHEMA))
ROW = np.array([0.5, -0.6, 0, 0, 1], np.float32)  # 80 years, lactate 4, man


def caution_of(name):
    return KNOWN.items[CONCEPTS.index(name)].caution


def test_contributions_sum_to_the_log_odds():
    found = explain(MODEL, ROW, REFERENCE, IDENTITY)
    direct = -2.0 + float(KNOWN.matrix(ROW[None, :])[0].astype(np.float64) @ W)
    assert found.log_odds == pytest.approx(direct, abs=1e-12)
    assert math.fsum([found.base, *(part.contribution for part in found.parts)]) == found.log_odds
    assert found.risk == pytest.approx(1 / (1 + math.exp(-direct)))


def test_by_hand():
    found = {part.feature: part for part in explain(MODEL, ROW, REFERENCE, IDENTITY).parts}
    # age: value 0.5 against a mean of 0.25; over 70 against half of the reference
    assert found["age"].contribution == pytest.approx(1.0 * (0.5 - 0.25) + 0.5 * (1 - 0.5))
    assert found["age"].value == "80 years"
    assert found["age"].percentile == 0.5
    assert found["age"].reasons[0] in ("the value itself", "high (> 70 years)")
    # sex: M against one in four
    assert found["sex"].contribution == pytest.approx(-0.3 * 0.75)
    assert found["sex"].value == "M"
    assert found["sex"].caution == caution_of("Sex: M")
    assert found["lactate"].value == "4 mmol/L"
    assert (
        found["lactate"].percentile == 1.0
    )  # of the three reference patients in whom it was measured


def test_interval_and_calibration():
    """Identity scaling with variances 0.01 (slope) and 0.04: half width 1.96 sqrt(0.01 l^2 +
    0.04)."""
    found = explain(MODEL, ROW, REFERENCE, IDENTITY)
    half = 1.959964 * math.sqrt(0.01 * found.log_odds**2 + 0.04)
    assert found.calibrated == pytest.approx(found.risk)
    low, high = found.interval
    assert math.log(high / (1 - high)) == pytest.approx(found.log_odds + half)
    assert math.log(low / (1 - low)) == pytest.approx(found.log_odds - half)


def test_notes_name_what_is_unusual():
    row = np.array([1.0, 0.0, 1, 1, 0], np.float32)
    many = np.repeat(REFERENCE[:3], 40, axis=0)
    notes = explain(MODEL, row, many, IDENTITY).notes
    assert (
        "Higher than in 99 % of this site's patients, so the model has little evidence there: Age"
        in notes
    )
    assert "Not measured, filled with a neutral value: Lactate" in notes
    rare = np.array([[0.0, -0.9, 0, 1, 0]] * 99 + [[0.0, -0.9, 0, 0, 1]], np.float32)
    notes = explain(MODEL, np.array([0, -0.9, 0, 0, 1], np.float32), rare, IDENTITY).notes
    assert notes[0] == "Sex: M: a rare category here (1.0% of this site's patients)"
    far = explain(
        ConceptModel(SCHEMA, 9 * W, -2.0, dictionary(SCHEMA)),
        ROW,
        np.repeat(REFERENCE[:1], 50, axis=0),
        IDENTITY,
    ).notes
    assert any(note.startswith("Few similar patients: 0 of this site's 50") for note in far)


def test_missingness_warns_only_where_it_counts():
    there = explain(MODEL, np.array([0, 0, 1, 1, 0], np.float32), REFERENCE, IDENTITY)
    lactate = next(part for part in there.parts if part.feature == "lactate")
    assert lactate.value == "not measured"
    assert lactate.caution == caution_of("Lactate, not measured")
    assert lactate.percentile is None


def test_what_was_not_measured_is_not_said_to_be_normal():
    """Without lactate the concept 'above normal' is 0, as it is for 1 in 3 of the others: odds
    fall, and the page must not call that a finding."""
    only = weights(**{"Lactate, above normal (> 2 mmol/L)": 2.0})
    row = np.array([0.5, 0, 1, 0, 1], np.float32)
    (lactate,) = explain(
        ConceptModel(SCHEMA, only, -2.0, dictionary(SCHEMA)), row, REFERENCE, IDENTITY
    ).parts
    assert lactate.contribution < 0
    assert lactate.value == "not measured"
    assert lactate.reasons == ("not measured, so it counts as neither low nor high",)
    assert lactate.caution == caution_of("Lactate, not measured")


def test_of_a_measurement_only_the_measuring_is_warned_of():
    """Lactate 4 against a mean of others': its value speaks too, so the warning says "in part"; sex
    is warned of whole."""
    found = {part.feature: part for part in explain(MODEL, ROW, REFERENCE, IDENTITY).parts}
    assert found["lactate"].caution.startswith("in part only because it was measured")
    assert found["sex"].caution == caution_of("Sex: M")
    assert found["age"].caution == ""


def test_the_waterfall_ends_at_the_calibrated_risk():
    """The average patient, every part, the model's risk, the site's calibration: ends meet, and the
    last is the headline."""
    found = explain(MODEL, ROW, REFERENCE, ((2.0, 0.5), np.eye(2) / 100))
    bars = json.loads(next(iter(waterfall(found).to_dict()["datasets"].values())))
    names = [bar["name"] for bar in bars]
    assert names[0] == "This site's average patient"
    assert names[-3:] == ["The shared model", "Calibration at this site", "This patient"]
    for one, two in pairwise(bars[1:-3]):
        assert one["to"] == two["from"]
    assert bars[-4]["to"] == pytest.approx(found.log_odds, abs=1e-12)
    assert bars[-1]["to"] == pytest.approx(2.0 * found.log_odds + 0.5)
    assert bars[-1]["text"] == f"{100 * found.calibrated:.1f} %"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "icu"
    study = Study(
        name="icu",
        outcome="died_in_hospital",
        cohort={"name": "icu", "hospitals": 4, "patients": 1200},
        method={"name": "veil", "mode": "secure", "rounds": 6, "concepts": 15},
        privacy={"unit": "patient", "epsilon": 5.0, "accountant": "rdp"},
    )
    return conduct.run(study, out=folder, threads=1)


def test_a_page_and_a_picture_for_a_patient(run, tmp_path):
    from suture.cohorts import load

    table = load("icu", 42, hospitals=4, patients=1200, test_fraction=0.2).sites[1].table
    patient = str(table["patient_id"][3])
    found = explain_patient(run.folder, site="hospital-002", patient=patient, out=tmp_path)
    expected = run.predict({name: column[3:4] for name, column in table.items()})[0]
    assert found["risk"] == pytest.approx(float(expected), abs=1e-6)
    text = (tmp_path / f"hospital-002-{patient}.html").read_text()
    main = text.split("<main>")[1].split("</main>")[0]
    assert f"Patient {patient}" in text
    for words in (
        "What raises the risk",
        "What lowers the risk",
        "Notes on the data",
        "must not leave either",
    ):
        assert words in main
    assert "http" not in main
    assert "Content-Security-Policy" in text
    assert (tmp_path / f"hospital-002-{patient}.png").read_bytes().startswith(b"\x89PNG")


def test_a_row_from_a_file_gives_the_same_figures(run, tmp_path):
    import pandas as pd

    from suture.cohorts import load

    table = load("icu", 42, hospitals=4, patients=1200, test_fraction=0.2).sites[1].table
    pd.DataFrame({name: column[3:4] for name, column in table.items()}).to_csv(
        tmp_path / "new.csv", index=False
    )
    row = explain_patient(run.folder, site="hospital-002", row=tmp_path / "new.csv", out=tmp_path)
    known = explain_patient(
        run.folder, site="hospital-002", patient=str(table["patient_id"][3]), out=tmp_path
    )
    assert row["risk"] == known["risk"]
    assert row["notes"] == known["notes"]


def test_mistakes_are_answered_without_a_patients_value(run, tmp_path):
    with pytest.raises(StudyError, match="--patient ID, or --row FILE"):
        explain_patient(run.folder, site="hospital-001")
    with pytest.raises(StudyError, match=r"no site .hospital.; .*hospital-001"):
        explain_patient(run.folder, site="hospital", patient="1")
    with pytest.raises(DataError, match="no row"):
        explain_patient(run.folder, site="hospital-001", patient="nobody")
    (tmp_path / "two.csv").write_text("age\n1\n2\n")
    with pytest.raises(DataError, match="one row, found 2"):
        explain_patient(run.folder, site="hospital-001", row=tmp_path / "two.csv")
