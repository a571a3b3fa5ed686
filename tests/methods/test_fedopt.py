"""FedAdam is equations (4) to (9) of FedCVR; FedYogi and FedAdagrad are Algorithm 2 of Reddi et
al."""

import numpy as np
import pytest

from suture.methods.base import Answer
from suture.methods.fedopt import FedOpt
from suture.models.dense import Dense
from suture.training.local import Local

NETWORK = Dense((1, 1))  # one weight, one bias


def state_of(method, params):
    state = method.init(["a", "b"], np.random.default_rng(0))
    state["params"] = np.array(params, dtype=np.float64)
    return state


def answers(*deltas, patients=(100, 300)):
    return [
        Answer(site, count, {"delta": np.array(delta, np.float32)})
        for site, count, delta in zip("ab", patients, deltas, strict=True)
    ]


def test_fedadam_two_rounds_by_hand():
    method = FedOpt(NETWORK, Local())
    state = state_of(method, [1.0, -1.0])
    # (4) the mean is uniform: g = [0.5, -0.25]
    state = method.server_step(state, answers([1.0, -0.5], [0.0, 0.0]))
    # (5)-(8): m_hat = g and v_hat = g^2 after one round, so (9) moves by 0.1 * g / (|g| + 0.001)
    expected = np.array([1.0 - 0.1 * 0.5 / 0.501, -1.0 + 0.1 * 0.25 / 0.251])
    np.testing.assert_allclose(state["params"], expected, rtol=1e-12)
    state = method.server_step(state, answers([0.5, 0.5], [0.5, 0.5]))
    m = 0.9 * 0.1 * np.array([0.5, -0.25]) + 0.1 * 0.5
    v = 0.999 * 0.001 * np.array([0.25, 0.0625]) + 0.001 * 0.25
    step = 0.1 * (m / (1 - 0.9**2)) / (np.sqrt(v / (1 - 0.999**2)) + 1e-3)
    np.testing.assert_allclose(state["params"], expected - step, rtol=1e-12)
    np.testing.assert_allclose(state["m"], m, rtol=1e-12)
    assert int(state["t"]) == 2


def test_fedadam_equals_torch_adam():
    torch = pytest.importorskip("torch")
    method = FedOpt(NETWORK, Local(), server_rate=0.1, tau=1e-3)
    state = state_of(method, [0.3, -0.7])
    weights = torch.tensor([0.3, -0.7], dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([weights], lr=0.1, betas=(0.9, 0.999), eps=1e-3)
    rng = np.random.default_rng(5)
    for _ in range(20):
        g = rng.normal(size=2).astype(np.float32)
        state = method.server_step(state, answers(g, g))
        weights.grad = torch.tensor(g.astype(np.float64))
        adam.step()
    np.testing.assert_allclose(state["params"], weights.detach().numpy(), rtol=1e-10)


def test_fedadagrad_has_no_momentum():
    method = FedOpt(NETWORK, Local(), "fedadagrad")
    state = method.server_step(state_of(method, [0.0, 0.0]), answers([3.0, 0.0], [3.0, 0.0]))
    np.testing.assert_allclose(
        state["params"], [-0.1 * 3 / (np.sqrt(9 + 1e-6) + 1e-3), 0.0], rtol=1e-12
    )
    state = method.server_step(state, answers([0.0, 0.0], [0.0, 0.0]))
    assert state["params"][0] == pytest.approx(-0.1 * 3 / (np.sqrt(9 + 1e-6) + 1e-3), rel=1e-12)


def test_fedyogi_second_moment_is_additive():
    method = FedOpt(NETWORK, Local(), "fedyogi")
    state = method.server_step(state_of(method, [0.0, 0.0]), answers([2.0, 0.0], [2.0, 0.0]))
    # v0 = 1e-6 < 4, so v grows by 0.001 * 4; where g = 0 it stays
    np.testing.assert_allclose(state["v"], [1e-6 + 0.004, 1e-6], rtol=1e-12)
    np.testing.assert_allclose(
        state["params"][0], -0.1 * 0.2 / (np.sqrt(0.004001) + 1e-3), rtol=1e-12
    )


def test_weighting_by_size():
    method = FedOpt(NETWORK, Local(), weighting="size")
    state = method.server_step(state_of(method, [0.0, 0.0]), answers([4.0, 0.0], [0.0, 0.0]))
    np.testing.assert_allclose(state["m"], [0.1 * 4 * 100 / 400, 0.0], rtol=1e-12)
