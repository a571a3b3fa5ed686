"""Dense networks: hand-computed numbers, agreement with NumPy and PyTorch, and rows that do not
disturb each other."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from support.reference import from_torch, loss, to_torch

from suture.errors import StudyError
from suture.models.dense import Dense, tanh

SHAPES = [
    Dense((6, 1)),
    Dense((6, 64, 32, 1)),
    Dense((5, 17, 9, 1), "tanh"),
    Dense((261, 128, 64, 12)),
    Dense((1, 15, 16, 33, 2), "tanh"),
    Dense((40, 3)),
]


def plain(network: Dense, params, x):
    layers = [(w.astype(np.float64), b.astype(np.float64)) for w, b in network.layers(params)]
    a = x.astype(np.float64)
    for w, b in layers[:-1]:
        z = a @ w + b
        a = np.maximum(z, 0) if network.activation == "relu" else np.tanh(z)
    w, b = layers[-1]
    return a @ w + b


def test_two_layers_by_hand():
    network = Dense((2, 2, 1))
    # W1 = [[1, -1], [2, 0]], b1 = [0.5, 0.25]; W2 = [3, -4], b2 = -1
    params = np.array([1, -1, 2, 0, 0.5, 0.25, 3, -4, -1], np.float32)
    x = np.array([[1.0, 1.0], [-2.0, 0.5]], np.float32)
    # hidden: relu(3.5, -0.75) = (3.5, 0); relu(-0.5, 2.25) = (0, 2.25)
    assert network.logits(params, x).tolist() == [[9.5], [-10.0]]
    assert network.predict(params, x) == pytest.approx(
        [1 / (1 + np.exp(-9.5)), 1 / (1 + np.exp(10.0))], rel=1e-6
    )
    assert loss(network, params, x, np.array([1, 1])) == pytest.approx(
        (np.log1p(np.exp(-9.5)) + 10.0000454) / 2
    )


@pytest.mark.parametrize("network", SHAPES, ids=str)
@pytest.mark.parametrize("rows", [0, 1, 3, 64, 65, 130])
def test_logits_agree_with_plain_numpy(network, rows):
    rng = np.random.default_rng(rows)
    params = network.init(rng)
    x = rng.standard_normal((rows, network.sizes[0])).astype(np.float32)
    ours, theirs = network.logits(params, x), plain(network, params, x)
    assert ours.shape == theirs.shape == (rows, network.sizes[-1])
    assert np.allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("network", SHAPES, ids=str)
def test_a_rows_prediction_does_not_depend_on_the_other_rows_or_threads(network):
    rng = np.random.default_rng(3)
    params = network.init(rng)
    x = rng.standard_normal((203, network.sizes[0])).astype(np.float32)
    whole = network.predict(params, x)
    assert np.array_equal(
        whole, np.concatenate([network.predict(params, x[i : i + 1]) for i in range(203)])
    )
    assert np.array_equal(whole[7:100], network.predict(params, x[7:100]))
    results: list[np.ndarray] = []
    threads = [
        threading.Thread(target=lambda: results.append(network.predict(params, x)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(np.array_equal(whole, result) for result in results)


@pytest.mark.parametrize("network", SHAPES, ids=str)
def test_probabilities_are_probabilities_even_at_the_extremes(network):
    rng = np.random.default_rng(4)
    params = network.init(rng) * np.float32(1000)
    p = network.predict(
        params, (rng.standard_normal((50, network.sizes[0])) * 1000).astype(np.float32)
    )
    assert np.all((p >= 0) & (p <= 1))
    if network.sizes[-1] == 1:
        assert p.shape == (50,)
    else:
        assert p.shape == (50, network.classes)
        assert p.sum(axis=1) == pytest.approx(np.ones(50), abs=1e-5)


def test_loss_is_scikit_learns_log_loss():
    from sklearn.metrics import log_loss

    rng = np.random.default_rng(6)
    for network in (Dense((4, 8, 1)), Dense((4, 8, 3))):
        params = network.init(rng)
        x = rng.standard_normal((40, 4)).astype(np.float32)
        y = rng.integers(0, network.classes, 40)
        p = network.predict(params, x).astype(np.float64)
        if p.ndim == 2:
            p /= p.sum(axis=1, keepdims=True)  # scikit-learn wants sums of 1 to float64 accuracy
        theirs = log_loss(y, p, labels=range(network.classes))
        assert loss(network, params, x, y) == pytest.approx(theirs, rel=1e-5)


def test_init_is_uniform_within_pytorchs_bounds():
    network = Dense((25, 400, 1))
    params = network.init(np.random.default_rng(0))
    (w1, b1), (w2, b2) = network.layers(params)
    assert params.dtype == np.float32
    for values, fan_in in ((w1, 25), (b1, 25), (w2, 400), (b2, 400)):
        assert np.abs(values).max() <= fan_in**-0.5
    # 10,000 uniforms: the deviation is known to 0.45 % (five standard errors 2.3 %), false alarms
    # below 1e-6.
    assert w1.std() == pytest.approx(0.2 / np.sqrt(3), rel=0.023)


def test_torch_order_round_trips_and_is_torchs():
    torch = pytest.importorskip(
        "torch", reason="compares with PyTorch: pip install 'suture[torch]'"
    )
    network = Dense((3, 5, 4, 2), "tanh")
    params = network.init(np.random.default_rng(1))
    assert np.array_equal(from_torch(network, to_torch(network, params)), params)
    module = torch.nn.Sequential(
        torch.nn.Linear(3, 5),
        torch.nn.Tanh(),
        torch.nn.Linear(5, 4),
        torch.nn.Tanh(),
        torch.nn.Linear(4, 2),
    )
    torch.nn.utils.vector_to_parameters(
        torch.from_numpy(to_torch(network, params)), module.parameters()
    )
    x = np.random.default_rng(2).standard_normal((9, 3)).astype(np.float32)
    theirs = module(torch.from_numpy(x)).detach().numpy()
    assert network.logits(params, x) == pytest.approx(theirs, abs=1e-6)


def test_tanh_is_good_to_float32():
    x = np.concatenate(
        [np.linspace(-12, 12, 20_001), np.logspace(-20, 0, 500), [0.0, np.inf, -np.inf]]
    )
    x = x.astype(np.float32)
    ours = np.array([tanh(v) for v in x])
    assert ours == pytest.approx(np.tanh(x.astype(np.float64)), rel=3e-7)
    assert np.isnan(tanh(np.float32(np.nan)))


@pytest.mark.parametrize("sizes", [(), (3,), (3, 0), (0, 1)])
def test_impossible_sizes_are_refused(sizes):
    with pytest.raises(StudyError, match="sizes"):
        Dense(sizes)


def test_wrong_arguments_are_refused_before_compiled_code_sees_them():
    network = Dense((3, 1))
    with pytest.raises(StudyError, match="relu"):
        Dense((3, 1), "gelu")
    with pytest.raises(StudyError, match="4 parameters"):
        network.predict(np.zeros(5, np.float32), np.zeros((2, 3), np.float32))
    with pytest.raises(StudyError, match="3 features"):
        network.predict(np.zeros(4, np.float32), np.zeros((2, 2), np.float32))
