"""eICU: the cohort by its rules on a tiny database with the published columns, and the real demo
where it is present."""

import gzip

import numpy as np
import pytest

from suture.cohorts import load
from suture.cohorts.public import EICU as SCHEMA
from suture.errors import DataError, StudyError
from suture.site.cohort import load as load_site
from suture.site.eicu import data_folder, stays

PATIENT = (
    "patientunitstayid,patienthealthsystemstayid,gender,age,ethnicity,hospitalid,admissionheight,hospitaldischargeyear,"
    "hospitaldischargestatus,unittype,unitvisitnumber,admissionweight,uniquepid"
)
ROWS = [
    "1,10,Female,70,Caucasian,5,170,2014,Expired,MICU,1,80,p1",
    "2,10,Female,70,Caucasian,5,170,2014,Expired,MICU,2,80,p1",  # second unit stay
    "3,11,Male,> 89,Other/Unknown,5,,2015,Alive,SICU,1,,p2",
    "4,12,Male,17,Asian,5,170,2014,Alive,MICU,1,80,p3",  # a child
    "5,13,Female,50,Hispanic,6,160,2015,,MICU,1,60,p4",  # outcome unknown
    "6,14,Female,60,Asian,6,160,2014,Alive,MICU,1,60,p5",  # no vital sign
    "7,15,Male,40,,6,180,2014,Alive,CSICU,1,90,p6",
]
VITAL = (
    "patientunitstayid,observationoffset,temperature,sao2,heartrate,respiration,systemicsystolic,systemicdiastolic,"
    "systemicmean"
)
SIGNS = [
    "1,5,,95,80,18,,,",
    "1,60,37.5,97,100,22,120,60,80",
    "1,2000,40,50,190,50,60,30,40",  # after the first day
    "1,-5,40,50,190,50,60,30,40",  # before it
    "3,10,,99,60,,,,",
    "4,10,,99,60,,,,",
    "5,10,,99,60,,,,",
    "7,10,,99,60,,,,",
]
LAB = "patientunitstayid,labresultoffset,labname,labresult"
TESTS = [
    "1,30,lactate,2.0",
    "1,90,lactate,4.0",
    "1,3000,lactate,9",
    "1,30,Hgb,10",
    "1,30,troponin - I,5",
    "3,10,pH,7.4",
]
APS = "patientunitstayid,eyes,motor,verbal"


@pytest.fixture
def database(tmp_path):
    folder = tmp_path / "eicu_demo"
    folder.mkdir()
    tables = {
        "patient": [PATIENT, *ROWS],
        "hospital": ["hospitalid,numbedscategory,teachingstatus,region", "5,<100,t,South", "6,,f,"],
        "vitalPeriodic": [VITAL, *SIGNS],
        "lab": [LAB, *TESTS],
        "apacheApsVar": [APS, "1,4,6,5", "3,-1,6,5"],
    }
    for name, lines in tables.items():
        with gzip.open(folder / f"{name}.csv.gz", "wt") as file:
            file.write("\n".join(lines) + "\n")
    return folder


def test_the_cohort_by_its_rules(database):
    found = stays(database)
    assert found["patient_id"].tolist() == ["p1", "p2", "p6"]
    assert found["age"].tolist() == [70, 90, 40]
    assert found["died_in_hospital"].tolist() == [1, 0, 0]
    first = {name: column[0] for name, column in found.items()}
    assert (first["heart_rate_mean"], first["heart_rate_min"], first["heart_rate_max"]) == (
        90,
        80,
        100,
    )
    assert first["heart_rate_std"] == pytest.approx(10)
    assert first["lactate"] == pytest.approx(3.0)
    assert first["haemoglobin"] == 10
    assert first["gcs"] == 15
    assert first["bmi"] == pytest.approx(80 / 1.7**2)
    assert np.isnan(found["gcs"][1])
    assert np.isnan(found["bmi"][1])
    assert np.isnan(found["lactate"][1])
    assert found["ethnicity"].tolist()[:2] == ["Caucasian", "Other"]


def test_it_loads_as_a_federation(database, monkeypatch):
    monkeypatch.setenv("SUTURE_DATA", str(database.parent))
    cohort = load("eicu", 1, least=1)
    assert [site.name for site in cohort.sites] == ["hospital-5", "hospital-6"]
    assert not cohort.generated
    for site in cohort.sites:
        load_site(site.table, SCHEMA, cohort.outcome, site=site.name, holdout=0.0, split_key="1")
    with pytest.raises(DataError, match="9 patients"):
        load("eicu", 1, least=9)
    with pytest.raises(StudyError, match=r"least.* 1"):
        load("eicu", 1, least=0)


def test_absent_data_says_where_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("SUTURE_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"SUTURE_DATA .* eICU demo .* physionet\.org"):
        load("eicu", 1)
    (tmp_path / "eicu_demo").mkdir()
    with pytest.raises(DataError, match="patient"):
        load("eicu", 1)


def test_the_real_demo():
    try:
        folder = data_folder("eicu_demo")
    except DataError as error:
        pytest.skip(str(error))
    found = stays(folder)
    assert len(np.unique(found["patient_id"])) == len(found["patient_id"])
    assert 900 < len(found["age"]) < 1400
    assert 0.04 < np.mean(found["died_in_hospital"]) < 0.13
    assert np.nanmin(found["age"]) >= 18
    assert 60 < np.nanmean(found["heart_rate_mean"]) < 110
    cohort = load("eicu", 1)
    for site in cohort.sites:
        load_site(site.table, SCHEMA, cohort.outcome, site=site.name, holdout=0.0, split_key="1")
