"""APFL's and Ditto's local trainings by hand, on the pair's own gradients; one patient's reach in
both models."""

from __future__ import annotations

import numpy as np
import pytest

from suture.models.dense import Dense
from suture.privacy.noise.source import seeded_key
from suture.privacy.unit import Patients
from suture.training.local import Local
from suture.training.pairs import Pair, train_mixed, train_tied

NETWORK = Dense((4, 5, 1))
RNG = np.random.default_rng(0)
BEGIN, OWN = NETWORK.init(RNG), NETWORK.init(RNG)
DATA = Patients(RNG.standard_normal((60, 4)), RNG.integers(0, 2, 60), np.arange(0, 61, 2))
LOCALS = [
    Local(epochs=2, batch=8, rate=0.1, momentum=0.5),
    Local(epochs=2, batch=8, rate=0.1, clip=0.7, noise_multiplier=1.1, dropout=0.2),
]


@pytest.mark.parametrize("local", LOCALS, ids=["plain", "private"])
@pytest.mark.parametrize("adaptive", [False, True])
def test_a_mixture_takes_apfls_steps(local, adaptive):
    rate, alpha = np.float32(local.rate), np.float32(0.3)
    w, v, pair = BEGIN, OWN, Pair(NETWORK, DATA, local, seeded_key(1))
    for step, batch in enumerate(pair.batches()):
        of_w, of_mixed = pair.gradients(batch, w, alpha * v + (1 - alpha) * w)
        if adaptive and step == 0:
            alpha = np.float32(np.clip(alpha - local.rate * float((v - w) @ of_mixed), 0.0, 1.0))
        w, v = w - rate * of_w, v - rate * alpha * of_mixed
    found = train_mixed(NETWORK, BEGIN, OWN, 0.3, adaptive, DATA, local, seeded_key(1))
    for ours, expected in zip(found, (w, v, alpha), strict=True):
        np.testing.assert_array_equal(ours, expected)
    assert (found[2] != np.float32(0.3)) == adaptive


@pytest.mark.parametrize("local", LOCALS, ids=["plain", "private"])
def test_a_tied_pair_takes_dittos_steps(local):
    rate, hold, pull = np.float32(local.rate), np.float32(local.momentum), np.float32(0.2)
    w, v, pair = BEGIN, OWN, Pair(NETWORK, DATA, local, seeded_key(1))
    speed_w, speed_v = np.zeros_like(w), np.zeros_like(v)
    for batch in pair.batches():
        of_w, of_v = pair.gradients(batch, w, v)
        speed_w, speed_v = hold * speed_w + of_w, hold * speed_v + of_v + pull * (v - BEGIN)
        w, v = w - rate * speed_w, v - rate * speed_v
    found = train_tied(NETWORK, BEGIN, OWN, 0.2, DATA, local, seeded_key(1))
    for ours, expected in zip(found, (w, v), strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_the_input_is_left_as_it_is():
    begin, own = BEGIN.copy(), OWN.copy()
    train_mixed(NETWORK, begin, own, 0.5, True, DATA, LOCALS[0], seeded_key(1))
    train_tied(NETWORK, begin, own, 0.5, DATA, LOCALS[0], seeded_key(1))
    np.testing.assert_array_equal(begin, BEGIN)
    np.testing.assert_array_equal(own, OWN)
