"""The exact sum over patients: one patient's reach in whole numbers, order, values that are not
numbers, nobody at all."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suture.privacy.door import SCALE_BITS, counted, summed

EXTREMES = [
    0.0,
    1.0,
    -1.0,
    1e-320,
    1e-30,
    0.3,
    1e4,
    -3e38,
    1e154,
    1e200,
    -1e300,
    1.7e308,
    np.inf,
    -np.inf,
    np.nan,
]


@st.composite
def tables(draw):
    """Up to six patients with up to four rows each; some entries, rows or weights are extreme."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    counts, width = (
        rng.integers(1, 5, draw(st.integers(0, 6))),
        draw(st.sampled_from([1, 2, 7, 16, 33, 100])),
    )
    rows = int(counts.sum())
    values = rng.standard_normal((rows, width)) * draw(
        st.sampled_from([1e-12, 1e-3, 1.0, 1e3, 1e30])
    )
    wild = rng.random(values.shape) < draw(st.sampled_from([0.0, 0.02, 0.5]))
    values[wild] = rng.choice(EXTREMES, int(wild.sum()))
    weights = rng.standard_normal(rows)
    odd = rng.random(rows) < draw(st.sampled_from([0.0, 0.2]))
    weights[odd] = rng.choice(EXTREMES, int(odd.sum()))
    with np.errstate(over="ignore"):
        values = values.astype(draw(st.sampled_from([np.float32, np.float64])))
    return values, weights, np.concatenate([[0], np.cumsum(counts)])


LIMITS = st.sampled_from([1e-9, 1e-3, 0.7, 1.0, 3.0, 1e6])


def without(table, patient):
    values, weights, starts = table
    keep = np.ones(len(values), bool)
    keep[starts[patient] : starts[patient + 1]] = False
    return (
        values[keep],
        weights[keep],
        np.concatenate([[0], np.cumsum(np.delete(np.diff(starts), patient))]),
    )


@settings(max_examples=300, deadline=None)
@given(tables(), LIMITS, st.integers(0, SCALE_BITS), st.booleans())
def test_one_patient_moves_the_sum_by_at_most_the_limit_exactly(table, limit, bits, entrywise):
    """In whole numbers and fractions: no rounding on the test's side. Also for coarse scales, where
    rounding is large."""
    scale = 2.0**bits / limit
    whole = summed(*table, limit, entrywise, bits)
    most = Fraction(limit) * Fraction(scale)
    for patient in range(len(table[2]) - 1):
        moved = [
            int(a) - int(b)
            for a, b in zip(
                whole, summed(*without(table, patient), limit, entrywise, bits), strict=True
            )
        ]
        if entrywise:
            assert max(map(abs, moved)) <= most
        else:
            assert sum(m * m for m in moved) <= most**2


@settings(max_examples=100, deadline=None)
@given(tables(), LIMITS, st.booleans(), st.randoms(use_true_random=False))
def test_the_sum_is_the_sum_of_its_patients_in_any_order(table, limit, entrywise, random):
    values, weights, starts = table
    order = list(range(len(starts) - 1))
    random.shuffle(order)
    out = np.zeros(values.shape[1], np.int64)
    for patient in order:
        own = slice(starts[patient], starts[patient + 1])
        one = np.array([0, own.stop - own.start])
        out += summed(values[own], weights[own], one, limit, entrywise)
    np.testing.assert_array_equal(out, summed(values, weights, starts, limit, entrywise))


@pytest.mark.parametrize("entrywise", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_patient_with_an_entry_that_is_no_number_counts_for_nothing(bad, entrywise):
    rng = np.random.default_rng(0)
    for width in (1, 5, 40):
        for at in range(width):
            values = rng.standard_normal((5, width))
            values[2, at] = bad
            found = summed(values, np.ones(5), np.array([0, 1, 4, 5]), 1.0, entrywise)
            rest = summed(values[[0, 4]], np.ones(2), np.arange(3), 1.0, entrywise)
            np.testing.assert_array_equal(found, rest)


def test_values_by_hand():
    one = 2**SCALE_BITS
    values = np.array([[3.0, 4.0], [0.0, 0.25], [0.0, 0.5]])
    found = summed(values, np.array([1.0, 2.0, -1.0]), np.array([0, 1, 3]), 1.0)
    np.testing.assert_allclose(found, np.array([0.6, 0.8 + 0.0]) * one * (1 - 1e-6), atol=1)
    clipped = summed(values, np.ones(3), np.array([0, 1, 3]), 1.0, entrywise=True)
    assert clipped.tolist() == [one, one + 3 * one // 4]
    huge = summed(np.array([[1e300, -1e300, 0.0]]), np.ones(1), np.arange(2), 1.0)
    np.testing.assert_allclose(huge, np.array([1, -1, 0]) / np.sqrt(2) * one * (1 - 1e-6), atol=1)
    assert summed(
        np.array([[1e300, -1e-300]]), np.ones(1), np.arange(2), 2.0, entrywise=True
    ).tolist() == [one, 0]


def test_nobody_adds_nothing():
    for entrywise in (False, True):
        assert summed(
            np.zeros((0, 3)), np.zeros(0), np.zeros(1, np.int64), 1.0, entrywise
        ).tolist() == [0, 0, 0]


def test_what_is_inside_the_limit_is_rounded_to_the_nearest():
    rng = np.random.default_rng(1)
    values = rng.standard_normal((50, 9)) / 10
    found = summed(values, np.ones(50), np.arange(51), 1.0)
    np.testing.assert_array_equal(
        found, np.rint(values * 2.0**SCALE_BITS).astype(np.int64).sum(axis=0)
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"limit": 0.0}, "limit"),
        ({"limit": np.inf}, "limit"),
        ({"weights": np.ones(2)}, "one weight per row"),
        ({"starts": np.array([0, 1, 2])}, "starts"),
        ({"starts": np.array([0, 4, 3])}, "starts"),
        ({"starts": np.array([-1, 3])}, "starts"),
    ],
)
def test_shapes_are_checked_before_the_compiled_code_trusts_them(change, says):
    given = {
        "values": np.ones((3, 2)),
        "weights": np.ones(3),
        "starts": np.arange(4),
        "limit": 1.0,
    } | change
    with pytest.raises(ValueError, match=says):
        summed(**given)
    with pytest.raises(ValueError, match="scale"):
        summed(np.ones((3, 2)), np.ones(3), np.arange(4), 1.0, bits=33)


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), limit=st.sampled_from([0.5, 1.0, 2.0**0.5, 3.0**0.5, 7.0]))
def test_counts_move_by_whole_numbers_within_the_limit_and_by_nothing_else(seed, limit):
    rng = np.random.default_rng(seed)
    rows = rng.integers(1, 4, 5)
    starts = np.append(0, np.cumsum(rows)).astype(np.int64)
    values = rng.integers(-2, 3, (int(starts[-1]), 3)) * rng.choice(
        [1.0, 0.5, 1e-12], (int(starts[-1]), 1), p=[0.8, 0.1, 0.1]
    )
    wild = rng.random(values.shape) < 0.03
    values[wild] = rng.choice(EXTREMES, int(wild.sum()))
    weights = rng.choice([1.0, 0.0, 2.0, np.nan], len(values), p=[0.85, 0.05, 0.05, 0.05])
    total = counted(values, weights, starts, limit)
    assert total.dtype == np.int64
    for patient in range(5):
        end = int(starts[patient + 1])
        alone = counted(
            values[starts[patient] : end],
            weights[starts[patient] : end],
            np.array([0, rows[patient]]),
            limit,
        )
        with np.errstate(all="ignore"):
            own = (values * weights[:, None])[starts[patient] : end]
            wanted = np.add.reduceat(own, [0], axis=0)[0]  # in the same order of adding up
            fine = (
                np.all(np.isfinite(wanted))
                and np.all(wanted == np.rint(wanted))
                and np.linalg.norm(wanted) <= limit
            )
        assert alone.tolist() == (wanted.tolist() if fine else [0, 0, 0])
        total = total - alone
    assert total.tolist() == [0, 0, 0]


def test_counts_of_nobody_and_without_a_limit():
    assert counted(np.zeros((0, 4)), np.zeros(0), np.zeros(1, np.int64), 1.0).tolist() == [0] * 4
    for limit in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match="expected a limit"):
            counted(np.zeros((1, 1)), np.ones(1), np.arange(2), limit)
