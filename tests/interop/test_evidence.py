"""Tests on profiles: what is planted is found, what is clean is left alone, and the paper's marks
are the paper's."""

import numpy as np
import pytest

from suture.cohorts.cardio import cardio
from suture.cohorts.outbreak import FAULTS, Fault, outbreak, plant
from suture.cohorts.public import heart
from suture.errors import DataError
from suture.interop import evidence
from suture.interop.evidence import (
    circles,
    crosses,
    findings,
    flags,
    largest_deviation,
    unit_guess,
)
from suture.schema.table import Number, Schema
from suture.site.cohort import load


def profiles(cohort, kind="exact"):
    return {
        site.name: load(
            site.table,
            cohort.schema,
            cohort.outcome,
            site=site.name,
            holdout=0.0,
            split_key="k",
            profile=kind,
        ).profile
        for site in cohort.sites
    }


def report(cohort):
    taken = profiles(cohort)
    return findings(flags(taken, cohort.schema), cohort.schema, taken)


@pytest.mark.parametrize("task", ["diagnosis", "prognosis"])
def test_planted_faults_are_found_and_nothing_else(task):
    for seed in (1, 2):
        found = {(item.site, item.feature) for item in report(outbreak(seed, task=task))}
        assert found == {(fault.site, fault.column) for fault in FAULTS[task]}
        assert report(outbreak(seed, task=task, faults="none")) == []


def test_faults_are_named_for_what_they_are():
    kinds = {(item.site, item.feature): (item.kind, item.direction) for item in report(outbreak(1))}
    assert kinds == {
        ("Foya", "diarrhoea"): ("recorded by outcome", "more for positives"),
        ("Foya", "malaria"): ("recorded by outcome", "more for positives"),
        ("Kalihun", "malaria"): ("never recorded", "lower"),
        ("Kalihun", "referral_time"): ("shifted", "higher"),
    }
    kinds = {
        (item.site, item.feature): (item.kind, item.direction)
        for item in report(outbreak(1, task="prognosis"))
    }
    assert kinds == {
        ("Freetown", "ct"): ("other spread", "narrower"),
        ("Port-Loko", "ct"): ("unit or scale", "lower"),
    }


@pytest.mark.parametrize("seed", range(5))
def test_a_turned_outcome_is_found_in_every_seed(seed):
    found = report(outbreak(seed, faults="none", flip="Kalihun"))
    assert [(item.site, item.kind) for item in found] == [("Kalihun", "outcome turned round")]


@pytest.mark.parametrize(
    ("factor", "direction", "word"), [(1 / 38.67, "lower", "mmol/L"), (38.67, "higher", "mg/dL")]
)
def test_a_change_of_unit_is_found_with_its_direction_and_its_name(factor, direction, word):
    cohort = cardio(3, split="iid", sites=5, patients=2000)
    ill = plant(cohort, (Fault("hospital-2", "cholesterol", "unit", factor),), 1)
    (only,) = report(ill)
    assert (only.site, only.feature, only.kind, only.direction) == (
        "hospital-2",
        "cholesterol",
        "unit or scale",
        direction,
    )
    assert f"cholesterol in {word}" in only.means or f"{word} instead of" in only.means


def test_clipped_profiles_still_find_a_unit_and_its_direction():
    """What a private profile is made of: values outside the bounds count as the bound."""
    cohort = plant(
        cardio(3, split="iid", sites=5, patients=2000),
        (Fault("hospital-2", "cholesterol", "unit", 1 / 38.67),),
        1,
    )
    taken = profiles(cohort, "clipped")
    (only,) = [
        item
        for item in findings(flags(taken, cohort.schema), cohort.schema)
        if item.feature == "cholesterol"
    ]
    assert (only.site, only.direction) == ("hospital-2", "lower")


def test_heart_names_what_is_known_to_be_wrong():
    try:
        cohort = heart(1)
    except DataError as error:
        pytest.skip(str(error))
    kinds = {(item.site, item.feature): item.kind for item in report(cohort)}
    assert kinds["Switzerland", "chol"] == "never recorded"
    assert kinds["VA Long Beach", "chol"] == "recorded less often"
    assert kinds["Cleveland Clinic", "ca"] == "recorded only here"
    assert kinds["Cleveland Clinic", "thal"] == "recorded mostly here"


def test_two_sites_have_nobody_to_be_compared_with():
    cohort = cardio(1, split="iid", sites=2, patients=200)
    assert flags(profiles(cohort), cohort.schema) == []


def test_the_papers_marks_by_hand():
    values = np.zeros((8, 3))
    values[0] = (1.0, 0.0, 0.1)
    values[1:, 2] = np.linspace(-0.1, 0.1, 7)
    marked = circles(values)
    assert marked[0].tolist() == [True, False, False]
    assert not marked[1:].any()
    wide = np.random.default_rng(1).normal(size=(6, 40))
    wide[:, 7] *= 12
    assert np.flatnonzero(crosses(wide)).tolist() == [7]
    assert largest_deviation(4) == 1.5
    assert not circles(np.array([[0.0], [0], [0], [1e9]])).any()


def test_units():
    assert unit_guess(70.0, 154.0) == "kilograms instead of pounds"
    assert unit_guess(1.0, 0.0) == ""


def test_the_number_of_tests_is_what_is_corrected_for():
    assert evidence.tests_made(4, Schema(features={"age": Number(low=0, high=1)}), 2) == 24
