"""Fused training against a plain reference, its sensitivity, its event and its determinism."""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suture.errors import DataError, StudyError
from suture.models.dense import Dense
from suture.privacy.mechanisms import seeded_key
from suture.privacy.unit import Patients
from suture.training.local import Local, event, sampling_rate, steps, train, train_on_batches

_spec = importlib.util.spec_from_file_location("reference", Path(__file__).with_name("reference.py"))
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)


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
    "class weights, multi-class": (Dense((6, 12, 3)), Local(**PRIVATE, class_weights=(0.5, 3.0, 1.5)), (1, 1)),
    "large batch": (Dense((6, 8, 1)), Local(**{**PRIVATE, "batch": 200}), (1, 1)),
    "some rows": (Dense((6, 64, 32, 1)), Local(**PRIVATE), (1, 5)),
    "some rows, tanh, multi-class": (Dense((6, 20, 4), "tanh"), Local(**PRIVATE, momentum=0.5), (1, 7)),
    "many rows": (Dense((6, 24, 1)), Local(**PRIVATE), (1, 150)),
    "clipping only": (Dense((6, 24, 1)), Local(clip=0.5, rate=0.1, batch=16), (1, 3)),
    "not private": (Dense((6, 64, 32, 1)), Local(rate=0.1, batch=16, momentum=0.9, proximal=0.1), (1, 1)),
    "not private, rows": (Dense((6, 24, 3)), Local(rate=0.1, batch=16, class_weights=(1.0, 2.0, 3.0)), (1, 40)),
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
    # The change itself agrees too: a comparison of weights alone would forgive a training that does little.
    assert relative(ours - params, theirs - params) < 2e-4
    assert np.array_equal(params, before)
