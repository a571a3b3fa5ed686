"""FedAvg, FedProx, FedCluster, Alone and Pooled on numbers one can check by hand."""

import numpy as np
import pytest

from suture.methods.alone import Alone
from suture.methods.base import Answer
from suture.methods.fedavg import FedAvg
from suture.methods.fedcluster import FedCluster, group_by_direction
from suture.methods.fedprox import fedprox
from suture.methods.pooled import pooled
from suture.models.dense import Dense
from suture.privacy.canonical import canonical
from suture.privacy.door import rehearse
from suture.privacy.noise.source import derive, seeded_key
from suture.privacy.unit import Patients
from suture.training.local import Local
from suture.training.mechanism import DpSgd, train

NETWORK = Dense((2, 1))
LOCAL = Local(epochs=2, batch=4, rate=0.1)


def rows(seed=0, n=12):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2)).astype(np.float32)
    return Patients(x, (x[:, 0] > 0).astype(np.int32), np.arange(n + 1))


def key_of(root, start):
    """The key that the door gives to a training without noise: of its name and every setting."""
    return derive(root, "training", canonical(DpSgd(NETWORK, LOCAL, rows().size, start)))


def answer(site, patients, *delta):
    return Answer(site, patients, {"delta": np.array(delta, np.float32)})


def test_fedavg_weights_by_patients():
    method = FedAvg(NETWORK, LOCAL)
    new = method.server_step(
        {"params": np.ones(3, np.float32)}, [answer("a", 10, 1, 0, 0), answer("b", 30, 0, 1, 0)]
    )
    np.testing.assert_allclose(new["params"], [0.75, 0.25, 1.0])


def test_fedavg_uniform():
    method = FedAvg(NETWORK, LOCAL, "uniform")
    new = method.server_step(
        {"params": np.ones(3, np.float32)}, [answer("a", 10, 1, 0, 0), answer("b", 30, 0, 1, 0)]
    )
    np.testing.assert_allclose(new["params"], [0.5, 0.5, 1.0])


def test_momentum_at_the_server_in_exact_numbers():
    """v = 1, then 0.5 + 1; the weights fall by 1 and by 1.5."""
    method = FedAvg(NETWORK, LOCAL, momentum=0.5)
    state = {"params": np.ones(3, np.float32)}
    for expected in ([0.0, 1, 1], [-1.5, 1, 1]):
        state = method.server_step(state, [answer("a", 10, 1, 0, 0)])
        np.testing.assert_allclose(state["params"], expected)
    assert set(FedAvg(NETWORK, LOCAL).server_step(state, [answer("a", 10, 1, 0, 0)])) == {"params"}


def test_one_site_fedavg_is_local_training():
    method = FedAvg(NETWORK, LOCAL)
    state = method.init(["a"], np.random.default_rng(1))
    payload, own = rehearse(method, rows(), {}, method.broadcast(state, "a"), None, seeded_key(1))
    assert own == {}
    new = method.server_step(state, [Answer("a", 12, payload)])
    np.testing.assert_allclose(
        new["params"],
        train(NETWORK, state["params"], rows(), LOCAL, key_of(seeded_key(1), state["params"])),
        atol=1e-7,
    )


def test_fedprox_stays_closer_to_the_global_model():
    start = {"params": np.zeros(3, np.float32)}
    free = rehearse(fedprox(NETWORK, LOCAL, 0.0), rows(), {}, start, None, seeded_key(3))[0][
        "delta"
    ]
    held = rehearse(fedprox(NETWORK, LOCAL, 5.0), rows(), {}, start, None, seeded_key(3))[0][
        "delta"
    ]
    assert np.linalg.norm(held) < 0.9 * np.linalg.norm(free)
    plain = rehearse(FedAvg(NETWORK, LOCAL), rows(), {}, start, None, seeded_key(3))[0]["delta"]
    np.testing.assert_array_equal(plain, free)  # without a proximal term it is FedAvg


def test_alone_sends_nothing_and_goes_on_from_its_own_model():
    method = Alone(NETWORK, LOCAL)
    state = method.init(["a"], np.random.default_rng(1))
    payload, own = rehearse(method, rows(), {}, method.broadcast(state, "a"), None, seeded_key(1))
    assert payload == {}
    _, later = rehearse(method, rows(), own, method.broadcast(state, "a"), None, seeded_key(1))
    assert not np.array_equal(own["params"], later["params"])
    assert method.server_step(state, []) is state
    np.testing.assert_array_equal(
        method.predict(state, own, rows().x, "a"), NETWORK.predict(own["params"], rows().x)
    )


def test_pooled_says_so():
    assert pooled(NETWORK, LOCAL).pooled
    assert not FedAvg(NETWORK, LOCAL).pooled


def test_fedcluster_shares_one_model_in_the_warm_up_then_splits():
    method = FedCluster(NETWORK, LOCAL, clusters=2, warmup=2)
    state = method.init(["a", "b", "c"], np.random.default_rng(0))
    first = state["params"][0].copy()
    sent = [answer("a", 10, 1, 0, 0), answer("b", 10, 1, 0.1, 0), answer("c", 10, -1, 0, 0)]
    state = method.server_step(state, sent)
    np.testing.assert_allclose(
        state["params"][0], first - np.array([1 / 3, 0.1 / 3, 0], np.float32), atol=1e-6
    )
    assert state["group"].tolist() == [0, 0, 0]
    state = method.server_step(state, sent)
    assert state["group"].tolist() == [0, 0, 1]
    np.testing.assert_array_equal(state["params"][0], state["params"][1])
    both = state["params"][0].copy()
    state = method.server_step(state, sent)
    np.testing.assert_allclose(
        state["params"][0], both - np.array([1, 0.05, 0], np.float32), atol=1e-6
    )
    np.testing.assert_allclose(
        state["params"][1], both + np.array([1, 0, 0], np.float32), atol=1e-6
    )
    np.testing.assert_array_equal(method.broadcast(state, "c")["params"], state["params"][1])


@pytest.mark.parametrize("clusters", [1, 2, 3])
def test_grouping_never_makes_more_clusters_than_asked(clusters):
    direction = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    direction[2] = 0
    group = group_by_direction(direction, clusters)
    assert group.max() < clusters
    assert group[2] == 0
    assert np.bincount(group).argmax() == 0
