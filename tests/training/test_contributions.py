"""Lemmas 1 and 2 of docs/veil.md: what one patient, with all of their rows, can change in each
statistic."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suture.privacy.door import summed
from suture.training.contributions import (
    as_matrix,
    logits,
    patient_weights,
    risk,
    row_products,
)


@st.composite
def tables(draw):
    """Up to five patients with up to four rows each, some at the corners of what is allowed."""
    seed, patients, width = (
        draw(st.integers(0, 10**6)),
        draw(st.integers(2, 5)),
        draw(st.integers(1, 4)),
    )
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
            squares, pairs = values.astype(np.float64) ** 2, row_products(values)
            found.append(
                (
                    summed(values, residual, starts, 1.0, True) / 2.0**32,
                    (linear * residual) @ values,
                    (weights * residual) @ values,
                    weights @ squares,
                    (weights * p * (1 - p)) @ pairs,
                    weights @ pairs,
                )
            )
        moved = [a - b for a, b in zip(*found, strict=True)]
        assert np.max(np.abs(moved[0])) <= 1 + 1e-9
        for change, bound in zip(
            moved[1:], (limit, limit, limit**2, limit**2 / 4, limit**2), strict=True
        ):
            assert np.linalg.norm(change) <= bound * (1 + 1e-9)


def test_a_sum_of_row_products_and_its_matrix():
    rng = np.random.default_rng(1)
    values, weights = rng.uniform(-1, 1, (30, 4)).astype(np.float32), rng.random(30)
    expected = (values.astype(np.float64).T * weights) @ values.astype(np.float64)
    found = weights @ row_products(values)
    np.testing.assert_allclose(as_matrix(found, 4), expected, rtol=1e-9)
    assert np.linalg.norm(found) == pytest.approx(np.linalg.norm(expected))
    assert row_products(values[:0]).shape == (0, 10)


def test_logits_do_not_depend_on_other_rows():
    rng = np.random.default_rng(5)
    values = rng.standard_normal((67, 41)).astype(np.float32)
    weights = rng.standard_normal(41) * 1e18
    whole = logits(values, weights, 0.5)
    np.testing.assert_allclose(whole, values.astype(np.float64) @ weights + 0.5, rtol=1e-10)
    for rows in (slice(0, 1), slice(3, 9), slice(66, 67)):
        np.testing.assert_array_equal(logits(values[rows], weights, 0.5), whole[rows])


def test_risk_does_not_overflow():
    assert risk(np.array([-1e9, 0.0, 1e9])).tolist() == pytest.approx([0.0, 0.5, 1.0], abs=1e-15)
