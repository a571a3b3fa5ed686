"""The sign leak of Algorithm 1 as printed, on two neighbouring tables; and `veil` under the same
test."""

import dp_accounting
import numpy as np
import pytest

from suture.methods.base import Answer
from suture.methods.veil.method import Veil
from suture.methods.veil.printed import VeilPrinted
from suture.methods.veil.wire import pack, unpack
from suture.models.concepts import plain
from suture.privacy.door import rehearse
from suture.privacy.noise.mechanisms import pick_strength
from suture.privacy.noise.source import seeded_key
from suture.privacy.unit import Patients
from suture.training.local import Local

EPSILON = 1.0
RUNS = 400


def tables():
    """Two hospitals that differ by one patient. The balanced one gives concept 1 no weight; the
    patient tips it."""
    x, y = [[1.0, 0.3], [1.0, -0.2]], [0, 1]
    without = Patients(np.array(x, np.float32), np.array(y, np.int32), np.arange(3))
    withal = Patients(
        np.array([*x, [1.0, 0.1]], np.float32), np.array([*y, 0], np.int32), np.arange(4)
    )
    return without, withal


def share_of_negative_votes(release, data):
    """Among releases that name concept 1, how often with a minus."""
    signs = []
    for run in range(RUNS):
        ids, way = unpack(release(data, seeded_key(3, run)), 2, 1)
        signs += [int(sign) for i, sign in zip(ids, way, strict=True) if i == 0]
    assert len(signs) > RUNS / 8
    return float(np.mean(np.array(signs) < 0))


def printed(data, key):
    method = VeilPrinted(
        2, Local(epochs=1, batch=100, rate=0.5), rounds=1, picks=1, claimed_epsilon=EPSILON
    )
    return rehearse(method, data, {}, {}, None, key)[0]["votes"]


def proven(data, key):
    method = Veil(plain(2), "votes", rounds=4, picks=1)
    noise = 1.0  # the one vote of the schedule costs phase_rho in zCDP
    message = {
        "ids": np.zeros(0, np.int32),
        "weights": np.zeros(0, np.float32),
        "bias": np.zeros(1, np.float32),
    }
    return rehearse(method, data, {}, message, noise, key, 1 + method.schedule.index("vote"))[0][
        "votes"
    ]


def test_the_printed_algorithm_gives_the_patient_away():
    without, withal = tables()
    assert share_of_negative_votes(printed, without) == 0.0
    assert share_of_negative_votes(printed, withal) == 1.0
    # whoever sees one proposal of concept 1 knows with certainty: no finite epsilon allows that,
    # 1.0 was claimed


def test_veil_survives_the_same_test():
    """Its signs do change, by no more than eps0 allows: odds ratio at most e^eps0, with 3.9
    standard errors to spare."""
    without, withal = tables()
    eps0 = pick_strength(Veil(plain(2), "votes", rounds=4, picks=1).phase_rho("vote", 1.0), 1)
    odds = []
    for data in (without, withal):
        share = share_of_negative_votes(proven, data)
        assert 0.05 < share < 0.95  # no table makes a sign certain
        odds.append(np.log(share / (1 - share)))
    error = 2 / np.sqrt(RUNS / 8)
    assert abs(odds[1] - odds[0]) <= eps0 + 3.9 * error


def test_it_is_labelled_and_charged_as_what_it_is():
    method = VeilPrinted(4, Local(), rounds=50, claimed_epsilon=5.0)
    assert "not private: signs are released unprotected" in method.label
    assert "claims epsilon 5" in method.label
    for noise in (None, 2.0):
        assert method.round_event(1, "a", 100, noise) == dp_accounting.NonPrivateDpEvent()


def test_choice_of_concepts_is_uniform_in_practice():
    """Equation (1) makes the exponent so small that the largest ratio of two probabilities is
    exp(eps / (4 k T))."""
    method = VeilPrinted(
        2, Local(epochs=1, batch=10, rate=0.1), rounds=50, picks=10, claimed_epsilon=5.0
    )
    largest = (
        method.sensitivity(1000) / 2
    )  # from zero, no weight can exceed half of the sensitivity
    exponent = 5.0 / 50 / (2 * 10 * method.sensitivity(1000)) * largest
    assert np.exp(exponent) == pytest.approx(1.0025, abs=1e-4)


def test_the_server_keeps_to_lines_13_to_19():
    method = VeilPrinted(3, Local(), rounds=5, picks=1, quorum=0.5, server_rate=0.1)
    votes = [(0, 1), (0, 1), (0, -1), (2, 1)]
    answers = [
        Answer(str(i), 10, {"votes": pack(np.array([j]), np.array([sign]), 3)})
        for i, (j, sign) in enumerate(votes)
    ]
    state = method.server_step(method.init([], np.random.default_rng(0)), answers)
    assert state["weights"].tolist() == pytest.approx([0.1 / 3, 0.0, 0.0])
    assert state["quorums"].tolist() == [1, 0, 0]
