"""A row's gradient is a function of that row alone, and patients' sums are those of the fused
kernels, clipped."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.batches import train_on_batches
from support.reference import clipped_sum

from suture.models.dense import Dense
from suture.privacy.door import summed
from suture.privacy.unit import Patients
from suture.training.contributions import row_gradients
from suture.training.local import Local


def rows(seed, patients, features, classes=2, several=True, scale=1.0):
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 5, patients) if several else np.ones(patients, int)
    starts = np.concatenate([[0], np.cumsum(counts)])
    x = (scale * rng.normal(size=(starts[-1], features))).astype(np.float32)
    return Patients(x, rng.integers(0, classes, starts[-1]).astype(np.int32), starts)


def total(network, params, data, local, clip):
    """What the door makes of the rows' gradients, in units of 2^-32 clips, before any noise."""
    values = row_gradients(network, params, data, local)
    return summed(values, np.ones(data.rows), data.starts, clip)


@pytest.mark.parametrize("sizes", [(6, 64, 32, 1), (5, 1), (7, 9, 3), (3, 33, 17, 12)])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("size", [1.0, 1e10, 1e18])
def test_a_rows_gradient_does_not_depend_on_other_rows(sizes, activation, size):
    """Weights of 1e10 and more, as a hostile coordinator sends them: sums that cancel show every
    change of order."""
    rng = np.random.default_rng(1)
    network = Dense(sizes, activation)
    params = (network.init(rng) * size).astype(np.float32)
    data = rows(2, 67, sizes[0], network.classes, several=False)
    whole = row_gradients(network, params, data, Local())
    for some in (slice(0, 1), slice(1, 67), slice(5, 12), slice(66, 67)):
        part = Patients(data.x[some], data.y[some], np.arange(len(data.y[some]) + 1))
        np.testing.assert_array_equal(row_gradients(network, params, part, Local()), whole[some])


@pytest.mark.parametrize("shape", [((5, 1), "relu"), ((5, 7, 1), "tanh"), ((5, 8, 4, 3), "relu")])
@pytest.mark.parametrize("clip", [0.3, 1e3])
@pytest.mark.parametrize("several", [False, True])
def test_the_clipped_sum_is_that_of_the_fused_kernels_and_of_plain_numpy(shape, clip, several):
    network = Dense(*shape)
    data = rows(1, 40, 5, network.classes, several)
    params = network.init(np.random.default_rng(2))
    local = Local(clip=clip, batch=40, rate=1.0, class_weights=(1.0, 2.0, 0.5)[: network.classes])
    found = total(network, params, data, local, clip) * (clip / 2.0**32)
    expected = clipped_sum(network, params, data, local, clip)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=3e-6 * clip)  # the door's margin
    step = params - train_on_batches(network, params, data, local, [np.arange(40)])
    np.testing.assert_allclose(expected / 40, step, atol=2e-6 * max(1.0, min(clip, 10)))


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**31),
    st.booleans(),
    st.sampled_from([1e-3, 1.0, 1e3, 1e18]),
    st.floats(1e-3, 10),
)
def test_no_patient_moves_the_sum_by_more_than_the_clip(seed, several, scale, clip):
    """Every patient of a random table removed in turn, at scales up to where gradients overflow."""
    network = Dense((3, 4, 1))
    data = rows(seed, 6, 3, several=several, scale=scale)
    params = network.init(np.random.default_rng(seed))
    whole = total(network, params, data, Local(), clip)
    for patient in range(6):
        keep = [slice(data.starts[i], data.starts[i + 1]) for i in range(6) if i != patient]
        x, y = (np.concatenate([array[part] for part in keep]) for array in (data.x, data.y))
        starts = np.concatenate([[0], np.cumsum([part.stop - part.start for part in keep])])
        rest = total(network, params, Patients(x, y, starts), Local(), clip)
        assert np.linalg.norm((whole - rest).astype(np.float64)) <= 2.0**32


def test_values_that_overflow_count_as_nothing():
    data = Patients(np.array([[3e38], [1.0]], np.float32), np.array([0, 1], np.int32), np.arange(3))
    params = np.array([3e38, 0.0], np.float32)
    alone = Patients(data.x[1:], data.y[1:], np.arange(2))
    both, one = (total(Dense((1, 1)), params, table, Local(), 1.0) for table in (data, alone))
    assert np.linalg.norm((both - one).astype(np.float64)) <= 2.0**32
