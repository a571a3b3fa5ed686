"""Lemmas 1 and 2 of docs/veil.md: what one patient, with all of their rows, can change in each statistic."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suture.training.concept_statistics import (
    as_matrix,
    curvature,
    gradient,
    patient_weights,
    products,
    risk,
    second_moments,
    vote_scores,
)


@st.composite
def tables(draw):
    """Up to five patients with up to four rows each, some at the corners of what is allowed."""
    seed, patients, width = draw(st.integers(0, 10**6)), draw(st.integers(2, 5)), draw(st.integers(1, 4))
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 5, patients) if draw(st.booleans()) else np.ones(patients, int)
    rows = int(counts.sum())
    values = rng.uniform(-1, 1, (rows, width))
    if draw(st.booleans()):
        values = np.sign(values)
    y = rng.integers(0, 2, rows)
    p = np.where(rng.random(rows) < 0.3, 1.0 - y, rng.random(rows))
    return values.astype(np.float32), y - p, p, np.concatenate([[0], np.cumsum(counts)])


def without(table, patient):
    values, residual, p, starts = table
    keep = np.ones(len(values), bool)
    keep[starts[patient] : starts[patient + 1]] = False
    counts = np.delete(np.diff(starts), patient)
    return values[keep], residual[keep], p[keep], np.concatenate([[0], np.cumsum(counts)])


@settings(max_examples=200, deadline=None)
@given(tables(), st.floats(0.3, 3.0))
def test_one_patient_moves_each_statistic_by_at_most_its_sensitivity(table, limit):
    for patient in range(len(table[3]) - 1):
        found = []
        for values, residual, p, starts in (table, without(table, patient)):
            linear = patient_weights(values, limit, starts, power=1)
            weights = patient_weights(values, limit, starts)
            found.append(
                (
                    vote_scores(values, residual, starts),
                    gradient(values, residual, linear),
                    gradient(values, residual, weights),
                    second_moments(values, weights),
                    curvature(values, p, weights),
                    products(values, weights),
                )
            )
        moved = [a - b for a, b in zip(*found, strict=True)]
        assert np.max(np.abs(moved[0])) <= 1 + 1e-9
        for change, bound in zip(moved[1:], (limit, limit, limit**2, limit**2 / 4, limit**2), strict=True):
            assert np.linalg.norm(change) <= bound * (1 + 1e-9)


def test_a_patients_rows_are_added_before_they_are_clipped():
    values, starts = np.ones((12, 1), np.float32), np.array([0, 12])
    assert vote_scores(values, np.full(12, 0.5), starts).tolist() == [1.0]


def test_one_row_each_takes_the_fast_path_to_the_same_sum():
    rng = np.random.default_rng(0)
    values, residual = rng.uniform(-1, 1, (50, 7)).astype(np.float32), rng.uniform(-1, 1, 50)
    expected = (values.astype(np.float64) * residual[:, None]).sum(axis=0)
    np.testing.assert_allclose(vote_scores(values, residual, np.arange(51)), expected, rtol=1e-12)


def test_curvature_and_its_matrix():
    rng = np.random.default_rng(1)
    values, p = rng.uniform(-1, 1, (30, 4)).astype(np.float32), rng.random(30)
    weights = rng.random(30)
    expected = (values.astype(np.float64).T * (weights * p * (1 - p))) @ values.astype(np.float64)
    np.testing.assert_allclose(as_matrix(curvature(values, p, weights), 4), expected, rtol=1e-9)
    assert np.linalg.norm(curvature(values, p, weights)) == pytest.approx(np.linalg.norm(expected))


def test_risk_does_not_overflow():
    assert risk(np.array([-1e9, 0.0, 1e9])).tolist() == pytest.approx([0.0, 0.5, 1.0], abs=1e-15)
