"""iFedAvg and the personalised baselines against plain recomputations."""

import numpy as np
import pytest

from suture.methods.apfl import Apfl
from suture.methods.base import Answer
from suture.methods.ditto import Ditto
from suture.methods.finetune import FineTune
from suture.methods.ifedavg import IFedAvg
from suture.models.dense import Dense
from suture.privacy.canonical import canonical
from suture.privacy.door import Session, rehearse
from suture.privacy.noise.source import derive, seeded_key
from suture.privacy.unit import Patients
from suture.training.affine import Layers, train_affine
from suture.training.local import Local
from suture.training.mechanism import DpSgd

SITES = ["a", "b"]


def rows(seed=0, count=60, flip=False, shift=0.0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 4)).astype(np.float32)
    y = (x[:, 0] - x[:, 1] > 0).astype(np.int32)
    return Patients(x + np.float32(shift), 1 - y if flip else y, np.arange(count + 1))


def trained(method, data, rounds, secret=1):
    state = method.init(list(data), np.random.default_rng(1))
    own = {site: {} for site in data}
    for round_ in range(rounds):
        answers = []
        for site, patients in data.items():
            key = seeded_key(secret, site, round_)
            message = method.broadcast(state, site)
            payload, own[site] = rehearse(
                method, patients, own[site], message, None, key, round_ + 1, site
            )
            answers.append(Answer(site, patients.patients, payload))
        state = method.server_step(state, answers)
    return state, own


def test_only_the_network_leaves_and_it_is_averaged_uniformly():
    method = IFedAvg(Dense((4, 3, 1), "tanh"), Local(rate=0.1))
    assert method.network.sizes == (4, 3, 2)
    data = {"a": rows(0), "b": rows(1, count=20)}
    state = method.init(SITES, np.random.default_rng(1))
    assert set(state) == {"shared"}
    assert method.needs == "sum"
    ends, answers = [], []
    for site in SITES:
        payload, own = rehearse(
            method, data[site], {}, method.broadcast(state, site), None, seeded_key(1, site)
        )
        assert set(payload) == {"delta"}
        begin, kept = state["shared"], Layers().identity(4, 2)
        job = DpSgd(
            method.network,
            Local(rate=0.1),
            data[site].size,
            begin,
            "affine",
            {"layers": Layers(), "own": kept},
        )
        key = derive(seeded_key(1, site), "training", canonical(job))  # as the door gives it
        params, layers = train_affine(
            method.network, begin, Layers(), kept, data[site], Local(rate=0.1), key
        )
        np.testing.assert_array_equal(own["layers"], layers)
        ends.append(params.astype(np.float64))
        answers.append(Answer(site, data[site].patients, payload))
    np.testing.assert_allclose(
        method.server_step(state, answers)["shared"], sum(ends) / 2, atol=1e-6
    )


def test_shown_layers_are_the_sites_own():
    method = IFedAvg(
        Dense((4, 3, 1), "tanh"), Local(rate=0.1), Layers("vector", "scalar"), share=True
    )
    state, own = trained(method, {"a": rows(0), "b": rows(1)}, 3)
    assert method.needs == "each"
    for i, site in enumerate(SITES):
        np.testing.assert_array_equal(state["layers"][i], own[site]["layers"])


@pytest.mark.parametrize("seed", range(5))
def test_a_flipped_label_turns_the_scale_of_f_out_negative(seed):
    method = IFedAvg(
        Dense((4, 8, 1), "tanh"),
        Local(rate=0.1, momentum=0.5, batch=16),
        Layers("vector", "scalar"),
        True,
    )
    data = {str(i): rows(10 * seed + i, 200, flip=i == 2) for i in range(5)}
    state, own = trained(method, data, 40, secret=seed)
    scales = {site: method.layers.split(own[site]["layers"], 4, 2)["w_out"][0] for site in data}
    assert scales["2"] < 0 < min(value for site, value in scales.items() if site != "2")
    p = method.predict(state, own["2"], data["2"].x, "2")
    assert np.mean((p > 0.5) == data["2"].y) > 0.9


def test_a_new_hospital_fits_its_layers_alone():
    method = IFedAvg(Dense((4, 8, 1), "tanh"), Local(rate=0.1, momentum=0.5, batch=16))
    state, _ = trained(method, {"a": rows(0, 300), "b": rows(1, 300)}, 40)
    late, own = rows(2, 200, shift=1.5), {}
    shifted = Patients(late.x * np.array([1, -1, 1, 1], np.float32), late.y, late.starts)
    before = np.mean((method.predict(state, {}, shifted.x, "late") > 0.5) == shifted.y)
    kept = state["shared"].copy()
    for round_ in range(60):
        charged = method.round_event(1, "late", shifted.size, None)
        session = Session(
            shifted, charged, seeded_key(3, round_), round_=1, site="late", noise=None
        )
        own = method.join_step(session, state["shared"], own)
    after = np.mean((method.predict(state, own, shifted.x, "late") > 0.5) == shifted.y)
    np.testing.assert_array_equal(state["shared"], kept)
    assert before < 0.75
    assert after > 0.9


def test_apfl_follows_its_equations():
    """One full-batch step of logistic regression from zero: every gradient is known by hand."""
    data = rows(0, 10)
    method = Apfl(Dense((4, 1)), Local(rate=0.5, batch=10), alpha=0.25)
    state = method.init(SITES, np.random.default_rng(1))
    own = {"params": np.full(5, 0.1, np.float32), "alpha": np.array(0.25, np.float32)}
    payload, new = rehearse(
        method, data, own, {"params": np.zeros(5, np.float32)}, None, seeded_key(1)
    )

    def gradient(params):
        z = data.x @ params[:4] + params[4]
        error = 1 / (1 + np.exp(-z)) - data.y
        return np.append(data.x.T @ error, error.sum()) / 10

    np.testing.assert_allclose(payload["delta"], 0.5 * gradient(np.zeros(5)), atol=1e-6)
    np.testing.assert_allclose(
        new["params"], 0.1 - 0.5 * 0.25 * gradient(np.full(5, 0.025)), atol=1e-6
    )
    adaptive = Apfl(Dense((4, 1)), Local(rate=0.5, batch=10), alpha=0.25, adaptive=True)
    _, moved = rehearse(
        adaptive, data, own, {"params": np.zeros(5, np.float32)}, None, seeded_key(1)
    )
    step = 0.5 * float(np.full(5, 0.1) @ gradient(np.full(5, 0.025)))
    assert float(moved["alpha"]) == pytest.approx(0.25 - step, abs=1e-6)
    assert set(state) == {"params"}


def test_ditto_pulls_the_personal_model_to_the_global_one():
    data = rows(0, 10)
    loose, tight = (
        Ditto(Dense((4, 1)), Local(rate=0.2, batch=10, epochs=50), pull=p) for p in (0.0, 4.0)
    )
    message = {"params": np.ones(5, np.float32)}
    _, far = rehearse(loose, data, {}, message, None, seeded_key(1))
    _, near = rehearse(tight, data, {}, message, None, seeded_key(1))
    assert np.linalg.norm(near["params"] - 1) < 0.5 * np.linalg.norm(far["params"] - 1)


def test_finetune_sends_nothing_while_it_tunes():
    method = FineTune(Dense((4, 1)), Local(rate=0.1), rounds=4, tuning=2, rate=0.1)
    data = {"a": rows(0), "b": rows(1)}
    state, own = trained(method, data, 4)
    two, _ = trained(method, data, 2)
    np.testing.assert_array_equal(state["params"], two["params"])
    assert not np.array_equal(own["a"]["params"], own["b"]["params"])
