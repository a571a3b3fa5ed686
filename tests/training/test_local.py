"""Fused training against a plain reference, its sensitivity, its event and its determinism."""

from __future__ import annotations

import threading
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import reference
from support.batches import train_on_batches

from suture.errors import DataError, StudyError
from suture.models.dense import Dense
from suture.privacy.noise.source import seeded_key
from suture.privacy.unit import Patients
from suture.training.local import Local, event, sampling_rate, steps
from suture.training.mechanism import train


def make_patients(rng, patients, features, classes, rows=(1, 1)) -> Patients:
    counts = rng.integers(rows[0], rows[1] + 1, patients)
    starts = np.concatenate([[0], np.cumsum(counts)])
    x = rng.standard_normal((starts[-1], features)).astype(np.float32)
    return Patients(x, rng.integers(0, classes, starts[-1]), starts)


def relative(ours, theirs) -> float:
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


PRIVATE = {"clip": 0.8, "noise_multiplier": 0.7, "rate": 0.1, "batch": 16}
CASES = {
    "logistic": (Dense((6, 1)), Local(**PRIVATE), (1, 1)),
    "paper": (Dense((6, 64, 32, 1)), Local(**PRIVATE), (1, 1)),
    "tanh": (Dense((5, 17, 9, 1), "tanh"), Local(**PRIVATE), (1, 1)),
    "deep": (Dense((7, 20, 33, 16, 8, 1)), Local(**PRIVATE), (1, 1)),
    "multi-class": (Dense((9, 31, 5)), Local(**PRIVATE), (1, 1)),
    "multi-class tanh": (Dense((9, 16, 16, 19), "tanh"), Local(**PRIVATE), (1, 1)),
    "softmax": (Dense((9, 3)), Local(**PRIVATE), (1, 1)),
    "momentum": (Dense((6, 64, 32, 1)), Local(**PRIVATE, momentum=0.9), (1, 1)),
    "proximal": (Dense((6, 64, 32, 1)), Local(**PRIVATE, proximal=0.5), (1, 1)),
    "class weights": (Dense((6, 12, 1)), Local(**PRIVATE, class_weights=(0.5, 3.0)), (1, 1)),
    "class weights, multi-class": (
        Dense((6, 12, 3)),
        Local(**PRIVATE, class_weights=(0.5, 3.0, 1.5)),
        (1, 1),
    ),
    "large batch": (Dense((6, 8, 1)), Local(**{**PRIVATE, "batch": 200}), (1, 1)),
    "some rows": (Dense((6, 64, 32, 1)), Local(**PRIVATE), (1, 5)),
    "some rows, tanh, multi-class": (
        Dense((6, 20, 4), "tanh"),
        Local(**PRIVATE, momentum=0.5),
        (1, 7),
    ),
    "many rows": (Dense((6, 24, 1)), Local(**PRIVATE), (1, 150)),
    "clipping only": (Dense((6, 24, 1)), Local(clip=0.5, rate=0.1, batch=16), (1, 3)),
    "not private": (
        Dense((6, 64, 32, 1)),
        Local(rate=0.1, batch=16, momentum=0.9, proximal=0.1),
        (1, 1),
    ),
    "not private, rows": (
        Dense((6, 24, 3)),
        Local(rate=0.1, batch=16, class_weights=(1.0, 2.0, 3.0)),
        (1, 40),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_fifty_steps_agree_with_the_plain_reference(name):
    network, local, rows = CASES[name]
    rng = np.random.default_rng(5)
    data = make_patients(rng, 300, network.sizes[0], network.classes, rows)
    params = network.init(rng)
    before = params.copy()
    q = sampling_rate(data.patients, local.batch)
    batches = [np.flatnonzero(rng.random(data.patients) < q) for _ in range(50)]
    batches[7] = np.zeros(0, np.int64)  # an empty batch still takes a step
    noise = rng.standard_normal((50, network.n_params)).astype(np.float32)
    ours = train_on_batches(network, params, data, local, batches, noise)
    theirs = reference.train(network, params, data, local, batches, noise)
    assert relative(ours, theirs) < 1e-4
    # The change itself agrees too: a comparison of weights alone would forgive a training that does
    # little.
    assert relative(ours - params, theirs - params) < 2e-4
    assert np.array_equal(params, before)


def test_a_patient_with_rows_is_one_patient_not_several():
    # Two rows that pull in opposite directions cancel inside a patient, and do not when they belong
    # to two patients.
    x = np.ones((2, 1), np.float32)
    y = np.array([0, 1])
    local = Local(clip=0.1, rate=1.0, batch=8)
    one = Patients(x, y, np.array([0, 2]))
    moved = train_on_batches(Dense((1, 1)), np.zeros(2, np.float32), one, local, [np.array([0])])
    assert np.array_equal(moved, np.zeros(2, np.float32))
    # Two rows that agree are clipped together: gradient (-1, -1), norm sqrt(2), clipped to 0.1, one
    # patient expected.
    agree = Patients(x, np.array([1, 1]), np.array([0, 2]))
    moved = train_on_batches(Dense((1, 1)), np.zeros(2, np.float32), agree, local, [np.array([0])])
    assert moved == pytest.approx(np.full(2, 0.1 / np.sqrt(2)), rel=1e-5)


def test_the_sum_is_divided_by_the_expected_batch_not_the_drawn_one():
    data = Patients(np.ones((10, 1), np.float32), np.ones(10), np.arange(11))
    local = Local(clip=10.0, rate=1.0, batch=4)
    moved = train_on_batches(Dense((1, 1)), np.zeros(2, np.float32), data, local, [np.arange(10)])
    assert moved.tolist() == [10 * 0.5 / 4] * 2
    small = Patients(data.x[:2], data.y[:2], np.arange(3))
    moved = train_on_batches(Dense((1, 1)), np.zeros(2, np.float32), small, local, [np.arange(2)])
    assert moved.tolist() == [0.5] * 2


NETWORKS = [Dense((3, 1)), Dense((3, 5, 1)), Dense((3, 18, 17, 4), "tanh"), Dense((3, 8, 2))]


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    which=st.integers(0, len(NETWORKS) - 1),
    rows=st.sampled_from([1, 2, 3, 16, 17, 70]),
    magnitude=st.sampled_from([1e-20, 1e-3, 1.0, 1e3, 1e10, 1e25]),
    opposed=st.booleans(),
    clip=st.sampled_from([1e-6, 1.0, 100.0]),
)
def test_one_patient_adds_at_most_clip(seed, which, rows, magnitude, opposed, clip):
    network = NETWORKS[which]
    rng = np.random.default_rng(seed)
    others = make_patients(rng, 3, 3, network.classes, (1, 3))
    x = (rng.standard_normal((rows, 3)) * magnitude).astype(np.float32)
    y = rng.integers(0, network.classes, rows)
    if opposed:  # rows whose gradients nearly cancel: the worst case for rounding
        x[1::2] = x[: len(x[1::2]) * 2 : 2] * np.float32(1 + 1e-7)
    data = Patients(
        np.concatenate([others.x, x]),
        np.concatenate([others.y, y]),
        np.append(others.starts, others.rows + rows),
    )
    params = network.init(rng) * np.float32(rng.choice([1e-3, 1.0, 30.0]))
    # A rate so large that the weights before the step do not round the difference away.
    local = Local(clip=clip, rate=1e6, batch=4)
    start = params * np.float32(0)
    for weights in (params, start):
        without = train_on_batches(network, weights, data, local, [np.arange(3)])
        with_them = train_on_batches(network, weights, data, local, [np.arange(4)])
        assert np.all(np.isfinite(with_them))
        difference = (
            np.linalg.norm(with_them.astype(np.float64) - without.astype(np.float64)) * 4 / 1e6
        )
        largest = max(np.abs(with_them).max(), np.abs(without).max()) * 4 / 1e6
        # Beside 1e-5 of the clip, the rounding of the two float32 results that are compared.
        assert difference <= clip * (1 + 1e-5) + 1.2e-7 * largest * np.sqrt(network.n_params)


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_a_factor_too_small_for_float32_does_not_round_up(rows):
    """Norms near 1e38 clipped to 1e-6 would need factors of 1e-44, of which float32 knows one
    digit."""
    for size in np.linspace(1.0, 1.8, 30) * 1e19:
        data = Patients(np.full((rows, 1), size), np.ones(rows), np.array([0, rows]))
        local = Local(clip=1e-6, rate=1.0, batch=1, class_weights=(1e19, 1e19))
        moved = train_on_batches(
            Dense((1, 1)), np.zeros(2, np.float32), data, local, [np.array([0])]
        )
        assert np.linalg.norm(moved) <= 1e-6 * (1 + 1e-5)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("rows", [1, 4, 40])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_a_gradient_that_is_not_finite_adds_exactly_nothing(poison, rows, activation):
    network = Dense((3, 8, 8, 2), activation)
    rng = np.random.default_rng(1)
    good = make_patients(rng, 5, 3, 2)
    x = rng.standard_normal((rows, 3)).astype(np.float32)
    x[rows // 2, 1] = poison
    data = Patients(
        np.concatenate([good.x, x]),
        np.concatenate([good.y, np.zeros(rows)]),
        np.append(good.starts, 5 + rows),
    )
    params = network.init(rng)
    local = Local(clip=1.0, rate=0.5, batch=5)
    with_them = train_on_batches(network, params, data, local, [np.arange(6), np.arange(6)])
    without = train_on_batches(network, params, data, local, [np.arange(5), np.arange(5)])
    if np.isfinite(poison):
        assert np.all(np.isfinite(with_them))
    else:
        assert relative(with_them, without) < 1e-6
    plain = train_on_batches(network, params, data, Local(rate=0.5), [np.arange(6), np.arange(5)])
    assert np.all(np.isfinite(plain))


def test_the_event_says_exactly_what_runs():
    local = Local(epochs=500, batch=32, clip=1.0, noise_multiplier=1.0)
    assert event(local, 1270) == dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(32 / 1270, dp_accounting.GaussianDpEvent(1.0)), 20000
    )
    accountant = dp_accounting.rdp.RdpAccountant()
    assert accountant.compose(event(local, 1270)).get_epsilon(1e-5) == pytest.approx(31.9, rel=0.01)
    whole = Local(batch=32, clip=1.0, noise_multiplier=2.0)
    assert event(whole, 20).event.sampling_probability == 1.0
    for local in (Local(), Local(clip=1.0), Local(clip=1.0, noise_multiplier=0.0)):
        assert event(local, 100) == dp_accounting.NonPrivateDpEvent()


@pytest.mark.parametrize("patients", [1, 20, 100, 101, 700])
@pytest.mark.parametrize("most", [0, 1, 7])
@pytest.mark.parametrize(
    "local", [Local(epochs=3, batch=20), Local(epochs=3, batch=20, clip=1.0, noise_multiplier=1)]
)
def test_train_takes_the_steps_that_the_event_counts(patients, local, most, monkeypatch):
    from suture.training import dpsgd as module

    taken = []
    local = replace(local, most_steps=most)
    monkeypatch.setattr(module, "run", lambda *args: taken.append(len(args[4])))
    data = make_patients(np.random.default_rng(0), patients, 3, 2)
    train(Dense((3, 1)), np.zeros(4, np.float32), data, local, seeded_key(0))
    whole = 3 * -(-patients // 20)
    assert sum(taken) == steps(patients, local) == (min(most, whole) if most else whole)
    if local.private:
        assert sum(taken) == event(local, patients).count


def test_the_noise_of_a_step_has_the_promised_deviation():
    # One patient whose gradient is zero: what moves the weights is noise alone, rate * sigma * clip
    # / L a step.
    network = Dense((50, 40, 1))
    data = Patients(np.zeros((4, 50), np.float32), np.zeros(4), np.arange(5))
    local = Local(epochs=100, batch=1, rate=0.5, clip=1e-12, noise_multiplier=1e12 * 3.0)
    moved = train(network, np.zeros(network.n_params, np.float32), data, local, seeded_key(3))
    expected = 0.5 * 3.0 * np.sqrt(400)
    # n = 2081 normals: the deviation is known to 1/sqrt(2n) = 1.6 %; five deviations: false alarms
    # below 1e-6.
    assert moved.std() == pytest.approx(expected, rel=5 / np.sqrt(2 * network.n_params))
    assert abs(moved.mean()) < 5 * expected / np.sqrt(network.n_params)


def test_every_epoch_without_privacy_sees_each_patient_once():
    # With a linear model far from saturation and one batch an epoch, order cannot matter; with
    # several it does.
    data = make_patients(np.random.default_rng(0), 64, 3, 2, (1, 4))
    network = Dense((3, 1))
    params = np.zeros(4, np.float32)
    whole = Local(epochs=2, batch=64, rate=0.1)
    ours = train(network, params, data, whole, seeded_key(1))
    theirs = reference.train(network, params, data, whole, [np.arange(64)] * 2)
    assert relative(ours, theirs) < 1e-5


@pytest.mark.parametrize(
    "local", [Local(epochs=2), Local(epochs=2, clip=1.0, noise_multiplier=1.0)]
)
def test_randomness_is_a_function_of_the_key_whatever_the_threads(local):
    rng = np.random.default_rng(2)
    network = Dense((6, 64, 32, 1))
    data = make_patients(rng, 500, 6, 2)
    params = network.init(rng)
    alone = [train(network, params, data, local, seeded_key(i)) for i in range(4)]
    together: dict[int, np.ndarray] = {}

    def work(i: int) -> None:
        together[i] = train(network, params, data, local, seeded_key(i))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(alone[i], together[i]) for i in range(4))
    assert not np.array_equal(alone[0], alone[1])


def test_what_cannot_be_trained_is_refused_with_the_reason():
    network, params = Dense((3, 1)), np.zeros(4, np.float32)
    data = make_patients(np.random.default_rng(0), 5, 3, 2)
    key = seeded_key(0)
    with pytest.raises(DataError, match="takes 3 features, the rows have 2"):
        train(network, params, make_patients(np.random.default_rng(0), 5, 2, 2), Local(), key)
    with pytest.raises(StudyError, match="4 parameters"):
        train(network, params[:3], data, Local(), key)
    with pytest.raises(StudyError, match="2 class weights"):
        train(network, params, data, Local(class_weights=(1.0, 2.0, 3.0)), key)
    with pytest.raises(StudyError, match="push"):
        train(network, params, data, Local(), key, None, np.zeros(1, np.float32))


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": -1}, {"batch": 0}, {"rate": -1.0}, {"rate": np.nan}, {"momentum": -0.1}, {"proximal": np.inf},
        {"clip": 0.0}, {"clip": np.inf}, {"noise_multiplier": 1.0}, {"clip": 1.0, "noise_multiplier": -1.0},
        {"clip": 1.0, "noise_multiplier": np.nan}, {"class_weights": (1.0, -1.0)}, {"class_weights": (1.0, np.nan)},
    ],
)  # fmt: skip
def test_settings_without_meaning_are_refused(wrong):
    with pytest.raises(StudyError):
        Local(**wrong)
