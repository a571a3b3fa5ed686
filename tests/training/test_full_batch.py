"""The sum of clipped gradients: against the fused kernels, and one patient's bound by search."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suture.models.dense import Dense
from suture.privacy.unit import Patients
from suture.training import full_batch
from suture.training.full_batch import clipped_sum
from suture.training.local import Local, train_on_batches


def rows(seed, patients, features, classes=2, several=True, scale=1.0):
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 5, patients) if several else np.ones(patients, int)
    starts = np.concatenate([[0], np.cumsum(counts)])
    x = (scale * rng.normal(size=(starts[-1], features))).astype(np.float32)
    return Patients(x, rng.integers(0, classes, starts[-1]).astype(np.int32), starts)


@pytest.mark.parametrize("shape", [((5, 1), "relu"), ((5, 7, 1), "tanh"), ((5, 8, 4, 3), "relu")])
@pytest.mark.parametrize("clip", [0.3, 1e6])
@pytest.mark.parametrize("several", [False, True])
def test_the_sum_is_that_of_the_fused_kernels(shape, clip, several):
    network = Dense(*shape)
    data = rows(1, 40, 5, network.classes, several)
    params = network.init(np.random.default_rng(2))
    local = Local(clip=clip, batch=40, rate=1.0, class_weights=(1.0, 2.0, 0.5)[: network.classes])
    step = params - train_on_batches(network, params, data, local, [np.arange(40)])
    found = clipped_sum(network, params, data, local, clip)
    np.testing.assert_allclose(found / 40, step, atol=2e-6 * max(1.0, min(clip, 10)))


def test_chunks_do_not_matter(monkeypatch):
    network, data = Dense((5, 6, 1)), rows(3, 60, 5)
    params = network.init(np.random.default_rng(4))
    whole = clipped_sum(network, params, data, Local(), 0.5)
    monkeypatch.setattr(full_batch, "_VALUES", 100)
    np.testing.assert_allclose(clipped_sum(network, params, data, Local(), 0.5), whole, rtol=0, atol=1e-13)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.booleans(), st.sampled_from([1e-3, 1.0, 1e3, 1e18]), st.floats(1e-3, 10))
def test_no_patient_moves_the_sum_by_more_than_the_clip(seed, several, scale, clip):
    """Every patient of a random table removed in turn, at scales up to where gradients overflow."""
    network = Dense((3, 4, 1))
    data = rows(seed, 6, 3, several=several, scale=scale)
    params = network.init(np.random.default_rng(seed))
    whole = clipped_sum(network, params, data, Local(), clip)
    for patient in range(6):
        keep = [slice(data.starts[i], data.starts[i + 1]) for i in range(6) if i != patient]
        x, y = (np.concatenate([array[part] for part in keep]) for array in (data.x, data.y))
        starts = np.concatenate([[0], np.cumsum([part.stop - part.start for part in keep])])
        rest = clipped_sum(network, params, Patients(x, y, starts), Local(), clip)
        assert np.linalg.norm(whole - rest) <= clip


def test_values_that_overflow_count_as_nothing():
    data = Patients(np.array([[3e38], [1.0]], np.float32), np.array([0, 1], np.int32), np.arange(3))
    params = np.array([3e38, 0.0], np.float32)
    alone = Patients(data.x[1:], data.y[1:], np.arange(2))
    both, one = (clipped_sum(Dense((1, 1)), params, table, Local(), 1.0) for table in (data, alone))
    assert np.all(np.isfinite(both))
    assert np.linalg.norm(both - one) <= 1
