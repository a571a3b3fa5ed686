"""What leaves a private training lies on a public grid: coarser than floats, finer than the noise,
blind to rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suture.models.dense import Dense
from suture.privacy.noise.source import seeded_key
from suture.privacy.unit import Patients
from suture.training.local import Local, on_public_grid, public_grid
from suture.training.mechanism import train


@settings(max_examples=200, deadline=None)
@given(
    st.floats(1e-4, 1.0), st.floats(0.01, 10), st.floats(0.3, 30), st.integers(1, 512), st.integers(1, 10**6),
    st.sampled_from([1.0, 16.0, 100.0]),
)  # fmt: skip
def test_the_grid_is_a_power_of_two_from_public_settings(rate, clip, noise, batch, size, largest):
    local = Local(rate=rate, clip=clip, noise_multiplier=noise, batch=batch)
    step = public_grid(local, size, largest)
    assert np.frexp(step)[0] == 0.5
    assert step >= np.spacing(np.float32(largest))  # coarser than the floats that weights are
    deviation = rate * clip * noise / min(batch, size)
    if step > np.spacing(np.float32(largest)):
        assert deviation / 128 <= step <= deviation / 64


def test_an_update_is_rounded_to_the_nearest_multiple():
    local = Local(rate=0.05, clip=1.0, noise_multiplier=1.1, batch=32)
    update = np.random.default_rng(0).normal(0, 3, 10_000).astype(np.float32)
    step = public_grid(local, 1000)
    found = on_public_grid(update, local, 1000)
    assert found.dtype == np.float32
    assert np.all(found.astype(np.float64) / step == np.rint(update.astype(np.float64) / step))
    np.testing.assert_array_equal(found, on_public_grid(found, local, 1000))
    # Beyond 2^24 steps a float32 is on the grid by itself; what is not a number stays so.
    odd = np.array([3e38, -1e30, np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(on_public_grid(odd, local, 1000), odd)


@pytest.mark.parametrize("local", [Local(), Local(clip=1.0), Local(clip=1.0, noise_multiplier=0.0)])
def test_without_noise_nothing_is_rounded(local):
    update = np.array([1 / 3], np.float32)
    assert on_public_grid(update, local, 10) is update


def test_the_grid_is_small_beside_the_noise_of_a_training():
    rng = np.random.default_rng(1)
    network = Dense((6, 8, 1))
    data = Patients(rng.standard_normal((200, 6)), rng.integers(0, 2, 200), np.arange(201))
    local, start = Local(clip=1.0, noise_multiplier=1.0, rate=0.05), network.init(rng)
    delta = start - train(network, start, data, local, seeded_key(1))
    moved = on_public_grid(delta, local, data.size) - delta
    assert 0 < np.abs(moved).max() <= public_grid(local, 200) / 2
    assert np.std(moved) < 0.01 * np.std(delta)
