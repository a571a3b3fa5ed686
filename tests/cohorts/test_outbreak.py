"""The outbreak federation against the paper's tables, its clean twin, and the readers of public
data."""

import numpy as np
import pytest

from suture.cohorts import load
from suture.cohorts.outbreak import (
    DIAGNOSIS,
    FAULTS,
    PROGNOSIS,
    WORDED_OTHERWISE,
    Fault,
    outbreak,
    plant,
)
from suture.cohorts.public import har, heart, vsn
from suture.errors import DataError, StudyError


@pytest.mark.parametrize(("task", "centres"), [("diagnosis", DIAGNOSIS), ("prognosis", PROGNOSIS)])
def test_sizes_and_rates_are_the_papers(task, centres):
    cohort = outbreak(1, task=task)
    for site in cohort.sites:
        patients, rate = centres[site.name]
        y = site.table["outcome"]
        assert len(y) == patients
        assert abs(y.mean() - rate) <= 0.5 / patients
    assert sum(size for size, _ in centres.values()) == {"diagnosis": 8386, "prognosis": 6382}[task]


def test_the_clean_twin_has_the_same_patients_but_for_the_faults():
    ill, clean = outbreak(5), outbreak(5, faults="none")
    touched = {(fault.site, fault.column) for fault in FAULTS["diagnosis"]}
    for a, b in zip(ill.sites, clean.sites, strict=True):
        for column in a.table:
            same = np.array_equal(
                a.table[column], b.table[column], equal_nan=a.table[column].dtype.kind == "f"
            )
            assert same != ((a.name, column) in touched)


@pytest.mark.parametrize("kind", ["recoded", "ticked"])
def test_one_centre_words_its_symptoms_otherwise(kind):
    ill, usual = outbreak(5, faults=kind), outbreak(5)
    for a, b in zip(ill.sites, usual.sites, strict=True):
        changed = {fault.column for fault in WORDED_OTHERWISE[kind] if fault.site == a.name}
        assert bool(changed) == (a.name == "Bong")
        for column in a.table:
            expected = b.table[column]
            if column in changed and kind == "recoded":
                expected = 1 - expected
            elif column in changed:
                expected = np.where(expected == 1, 1.0, np.nan)
            same = expected.dtype.kind == "f"
            assert np.array_equal(a.table[column], expected, equal_nan=same)


def test_two_columns_change_places():
    usual = outbreak(5, test_fraction=0.1)
    ill = plant(usual, (Fault("Foya", "age", "swapped", other="cough"),), 5)
    for a, b in zip(ill.sites, usual.sites, strict=True):
        for new, old in ((a.table, b.table), (a.test, b.test)):
            names = ("cough", "age") if a.name == "Foya" else ("age", "cough")
            for now, before in zip(("age", "cough"), names, strict=True):
                assert np.array_equal(new[now], old[before], equal_nan=True)


def test_options_are_checked():
    with pytest.raises(StudyError, match="task"):
        outbreak(1, task="cure")
    with pytest.raises(StudyError, match="flip"):
        outbreak(1, flip="Boston")
    with pytest.raises(StudyError, match="cannot plant"):
        plant(outbreak(1), (Fault("Foya", "age", "melt"),), 1)
    with pytest.raises(StudyError, match="cannot plant"):
        plant(outbreak(1), (Fault("Foya", "age", "swapped", other="height"),), 1)
    assert load("outbreak", 1, task="prognosis").outcome == "outcome"


def read(reader, *arguments):
    try:
        return reader(1, *arguments)
    except DataError as error:
        pytest.skip(str(error))


def test_heart_is_four_real_hospitals():
    cohort = read(heart)
    assert [(site.name, len(site.table["age"])) for site in cohort.sites] == [
        ("Cleveland Clinic", 303), ("Budapest", 294), ("Switzerland", 123), ("VA Long Beach", 200),
    ]  # fmt: skip
    assert [round(100 * float(site.table["high_risk"].mean())) for site in cohort.sites] == [
        46,
        36,
        93,
        74,
    ]
    missing = {site.name: float(np.isnan(site.table["chol"]).mean()) for site in cohort.sites}
    assert missing["Switzerland"] == 1.0
    assert missing["VA Long Beach"] == 0.28
    assert not cohort.generated


def test_har_and_vsn():
    cohort = read(har)
    assert len(cohort.sites) == 30
    assert cohort.schema.width == 261
    assert len(cohort.classes) == 6
    assert sum(len(site.table["activity"]) for site in cohort.sites) == 10_411
    sensors = read(vsn)
    assert (len(sensors.sites), sensors.schema.width) == (23, 100)


def test_what_is_missing_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("SUTURE_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"archive\.ics\.uci\.edu"):
        heart(1)
