"""SCAFFOLD: corrections from released updates alone, by hand and on drifting hospitals."""

import numpy as np
import pytest

from suture.methods.base import Answer
from suture.methods.fedavg import FedAvg
from suture.methods.scaffold import Scaffold
from suture.models.dense import Dense
from suture.privacy.door import rehearse
from suture.privacy.noise.source import seeded_key
from suture.privacy.unit import Patients
from suture.training.local import Local

NETWORK = Dense((2, 1))


def site(seed, shift):
    rng = np.random.default_rng(seed)
    x = np.clip(rng.normal(size=(64, 2)) + shift, -3, 3).astype(np.float32)
    y = (rng.random(64) < 1 / (1 + np.exp(-(2 * x[:, 0] - x[:, 1])))).astype(np.int32)
    return Patients(x, y, np.arange(65))


def test_control_variates_by_hand():
    """Two sites, K = 2 steps of rate 0.5: c_i becomes delta / (K eta), the corrections are c -
    c_i."""
    method = Scaffold(NETWORK, Local(epochs=1, batch=32, rate=0.5))
    state = method.init(["a", "b"], np.random.default_rng(0))
    assert not np.any(method.broadcast(state, "a")["correction"])
    answers = [
        Answer("a", 64, {"delta": np.array([1.0, 0.0, 2.0], np.float32)}),
        Answer("b", 64, {"delta": np.array([3.0, 0.0, 0.0], np.float32)}),
    ]
    state = method.server_step(state, answers)
    np.testing.assert_allclose(state["controls"], [[1, 0, 2], [3, 0, 0]])
    np.testing.assert_allclose(method.broadcast(state, "a")["correction"], [1, 0, -1])
    np.testing.assert_allclose(method.broadcast(state, "b")["correction"], [-1, 0, 1])
    again = method.server_step(
        state, [Answer("a", 64, {"delta": np.array([2.0, 0.0, 1.0], np.float32)})]
    )
    # c_a <- c_a - c + delta / (K eta) = 1 - 2 + 2, 0, 2 - 1 + 1
    np.testing.assert_allclose(again["controls"][0], [1, 0, 2])


def test_the_correction_is_added_to_every_step():
    """With no gradient to speak of (rate tiny, one step) the site moves by -rate * correction."""
    data = site(0, 0.0)
    method = Scaffold(NETWORK, Local(epochs=1, batch=64, rate=1.0))
    start = np.zeros(3, np.float32)
    plain, _ = rehearse(
        method,
        data,
        {},
        {"params": start, "correction": np.zeros(3, np.float32)},
        None,
        seeded_key(1),
    )
    push = np.array([0.25, -0.5, 1.0], np.float32)
    moved, _ = rehearse(
        method, data, {}, {"params": start, "correction": push}, None, seeded_key(1)
    )
    np.testing.assert_allclose(moved["delta"] - plain["delta"], push, atol=1e-4)


def test_what_is_sent_is_no_more_than_fedavg_sends():
    data, key = site(0, 0.0), seeded_key(1)
    scaffold, fedavg = Scaffold(NETWORK, Local(clip=1.0)), FedAvg(NETWORK, Local(clip=1.0))
    states = [method.init(["a"], np.random.default_rng(0)) for method in (scaffold, fedavg)]
    sent = [
        rehearse(m, data, {}, m.broadcast(s, "a"), 1.0, key)[0]
        for m, s in zip((scaffold, fedavg), states, strict=True)
    ]
    assert {name: array.shape for name, array in sent[0].items()} == {
        n: a.shape for n, a in sent[1].items()
    }


def test_it_drifts_less_than_fedavg():
    """Two hospitals far apart, many local steps: SCAFFOLD ends nearer to the pooled optimum."""
    from sklearn.linear_model import LogisticRegression

    data = {"a": site(1, 1.5), "b": site(2, -1.5)}
    x = np.concatenate([rows.x for rows in data.values()])
    y = np.concatenate([rows.y for rows in data.values()])
    exact = LogisticRegression(C=1e6).fit(x, y)
    target = np.append(exact.coef_[0], exact.intercept_[0])
    local = Local(epochs=30, batch=64, rate=0.2)
    distance = {}
    for method in (Scaffold(NETWORK, local), FedAvg(NETWORK, local)):
        state = method.init(list(data), np.random.default_rng(0))
        for round_ in range(60):
            answers = [
                Answer(
                    s,
                    64,
                    rehearse(
                        method, rows, {}, method.broadcast(state, s), None, seeded_key(round_)
                    )[0],
                )
                for s, rows in data.items()
            ]
            state = method.server_step(state, answers)
        distance[method.name] = float(np.linalg.norm(state["params"] - target))
    assert distance["scaffold"] < 0.5 * distance["fedavg"]
    assert distance["scaffold"] == pytest.approx(0, abs=0.35)
