"""The fused path against Opacus: same start, same batches, same noise, fifty steps."""

from __future__ import annotations

import numpy as np
import pytest
from support.batches import train_on_batches
from support.reference import from_torch, to_torch

from suture.models.dense import Dense
from suture.privacy.unit import Patients
from suture.training.local import Local

torch = pytest.importorskip("torch", reason="compares with Opacus: pip install 'suture[torch]'")
opacus = pytest.importorskip("opacus", reason="compares with Opacus: pip install 'suture[torch]'")

pytestmark = pytest.mark.filterwarnings("ignore")  # Opacus warns about its own hooks


def torch_network(network: Dense, params: np.ndarray):
    """The same network as a torch module."""
    layers = []
    for i, (w, b) in enumerate(network.layers(params)):
        linear = torch.nn.Linear(*w.shape)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(w.T.copy()))
            linear.bias.copy_(torch.from_numpy(b.copy()))
        layers.append(linear)
        if i + 2 < len(network.sizes):
            layers.append(torch.nn.ReLU() if network.activation == "relu" else torch.nn.Tanh())
    return torch.nn.Sequential(*layers)


def with_opacus(network, params, data, local, batches, noise):
    """Opacus' own per-sample gradients, clipping, scaling and step; only its noise is replaced by
    the given one."""
    from opacus.optimizers import DPOptimizer

    rows = iter(noise)

    class GivenNoise(DPOptimizer):
        def add_noise(self):
            flat = torch.from_numpy(
                to_torch(network, next(rows)) * np.float32(local.noise_multiplier * local.clip)
            )
            at = 0
            for p in self.params:
                p.grad = (p.summed_grad + flat[at : at + p.numel()].view_as(p)).view_as(p)
                at += p.numel()

    module = opacus.GradSampleModule(torch_network(network, params))
    start = [p.detach().clone() for p in module.parameters()]
    optimizer = GivenNoise(
        torch.optim.SGD(module.parameters(), lr=local.rate, momentum=local.momentum),
        noise_multiplier=local.noise_multiplier,
        max_grad_norm=local.clip,
        expected_batch_size=local.batch,
    )

    def pull(optimizer):
        for p, first in zip(optimizer.params, start, strict=True):
            p.grad += local.proximal * (p.detach() - first)

    if local.proximal:
        optimizer.attach_step_hook(pull)
    weight = torch.tensor(local.class_weights or [1.0] * network.classes)
    for batch in batches:
        x, y = torch.from_numpy(data.x[batch]), torch.from_numpy(data.y[batch]).long()
        optimizer.zero_grad()
        z = module(x)
        if network.sizes[-1] == 1:
            losses = torch.nn.functional.binary_cross_entropy_with_logits(
                z[:, 0], y.float(), reduction="none"
            )
        else:
            losses = torch.nn.functional.cross_entropy(z, y, reduction="none")
        (losses * weight[y]).mean().backward()
        optimizer.step()
    flat = torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    return from_torch(network, flat)


PRIVATE = {"clip": 0.5, "noise_multiplier": 1.1, "rate": 0.05, "batch": 32}


@pytest.mark.parametrize(
    ("network", "local"),
    [
        (Dense((6, 1)), Local(**PRIVATE)),
        (Dense((6, 64, 32, 1)), Local(**PRIVATE)),
        (Dense((6, 64, 32, 1)), Local(**{**PRIVATE, "clip": 100.0})),
        (Dense((6, 40, 1), "tanh"), Local(**PRIVATE)),
        (Dense((9, 30, 20, 17, 8, 1)), Local(**PRIVATE)),
        (Dense((261, 128, 64, 12)), Local(**PRIVATE)),
        (Dense((8, 16, 3), "tanh"), Local(**PRIVATE, class_weights=(0.5, 1.0, 2.0))),
        (Dense((6, 64, 32, 1)), Local(**PRIVATE, momentum=0.9)),
        (Dense((6, 64, 32, 1)), Local(**PRIVATE, proximal=0.1, momentum=0.5)),
    ],
    ids=[
        "logistic",
        "paper",
        "unclipped",
        "tanh",
        "deep",
        "wide",
        "weighted classes",
        "momentum",
        "proximal",
    ],
)
def test_fifty_steps_agree_with_opacus(network, local):
    rng = np.random.default_rng(11)
    n = 400
    data = Patients(
        rng.standard_normal((n, network.sizes[0])).astype(np.float32),
        rng.integers(0, network.classes, n),
        np.arange(n + 1),
    )
    params = network.init(rng)
    batches = [np.flatnonzero(rng.random(n) < local.batch / n) for _ in range(50)]
    noise = rng.standard_normal((50, network.n_params)).astype(np.float32)
    ours = train_on_batches(network, params, data, local, batches, noise)
    theirs = with_opacus(network, params, data, local, batches, noise)
    assert np.linalg.norm(ours - theirs) / np.linalg.norm(theirs) < 1e-4
    assert np.linalg.norm(ours - theirs) / np.linalg.norm(theirs - params) < 2e-4
