"""One training step, timed side by side on one thread each.

`measure` compares DP-SGD in Suture, in Opacus, and PyTorch without any privacy. All three train the
same network on the same rows with batches of 32; ours and Opacus draw them by Poisson sampling and
add noise from their usual source (ours cryptographic, Opacus' not). Opacus and PyTorch are given
their batches as ready tensors, with no data loader, which favours them.

Contenders take turns within one run, and each is judged by its median turn, so that a busy machine
slows all alike.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from statistics import median
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from suture.bench.flower_app import perceptron
from suture.errors import MissingExtra
from suture.models.dense import Dense
from suture.privacy.noise.source import secure_key
from suture.privacy.unit import Patients
from suture.training.local import Local, steps
from suture.training.mechanism import train

if TYPE_CHECKING:
    from torch import Tensor, nn, optim

SMALL = Dense((6, 64, 32, 1))
WIDE = Dense((261, 128, 64, 12))
PATIENTS = 1270
BATCH = 32

Turn = Callable[[], float]  # runs for a moment; seconds per step


def measure(turns: int = 7) -> dict[str, float]:
    """Microseconds per step, and how many times faster ours is; needs the ``torch`` extra.

    The ratios are ``dpsgd_vs_opacus``, ``dpsgd_vs_plain_torch`` and ``dpsgd_wide_vs_opacus``.
    """
    torch = _torch()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        small = _race(
            {"suture": _ours(SMALL), "opacus": _opacus(SMALL), "torch": _plain(SMALL)}, turns
        )
        wide = _race({"suture": _ours(WIDE), "opacus": _opacus(WIDE)}, turns)
    finally:
        torch.set_num_threads(threads)
    return {
        "dpsgd_vs_opacus": small["opacus"] / small["suture"],
        "dpsgd_vs_plain_torch": small["torch"] / small["suture"],
        "dpsgd_wide_vs_opacus": wide["opacus"] / wide["suture"],
        "dpsgd_us": small["suture"] * 1e6,
        "dpsgd_opacus_us": small["opacus"] * 1e6,
        "dpsgd_plain_torch_us": small["torch"] * 1e6,
        "dpsgd_wide_us": wide["suture"] * 1e6,
        "dpsgd_wide_opacus_us": wide["opacus"] * 1e6,
    }


def _torch() -> ModuleType:
    try:
        import opacus  # noqa: F401
        import torch
    except ImportError as error:
        raise MissingExtra(
            "this comparison needs PyTorch and Opacus: pip install 'suture[torch]'"
        ) from error
    return torch


def _race(contenders: dict[str, Turn], turns: int) -> dict[str, float]:
    """Median seconds per step of each contender over interleaved turns, after one turn to warm
    up."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Opacus warns about its own hooks
        for turn in range(turns + 1):
            for name, contender in contenders.items():
                seconds = contender()
                if turn:
                    times[name].append(seconds)
    return {name: median(values) for name, values in times.items()}


def rows_for(network: Dense, patients: int = PATIENTS, seed: int = 0) -> Patients:
    """Made-up rows that fit a network, one per patient."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((patients, network.sizes[0])).astype(np.float32)
    y = rng.integers(0, network.classes, patients).astype(np.int32)
    return Patients(x, y, np.arange(patients + 1))


def _ours(network: Dense) -> Turn:
    data, params = rows_for(network), network.init(np.random.default_rng(1))
    local = Local(epochs=20, batch=BATCH, clip=1.0, noise_multiplier=1.0)

    def turn() -> float:
        start = time.perf_counter()
        train(network, params, data, local, secure_key())
        return (time.perf_counter() - start) / steps(PATIENTS, local)

    return turn


def _loss(network: Dense) -> Callable[[Tensor, Tensor], Tensor]:
    from torch.nn import functional

    if network.sizes[-1] == 1:
        return lambda z, y: functional.binary_cross_entropy_with_logits(z[:, 0], y.float())
    return functional.cross_entropy


def _steps(
    network: Dense, module: nn.Module, optimizer: optim.Optimizer, poisson: bool, count: int = 40
) -> Turn:
    torch = _torch()
    data, loss = rows_for(network), _loss(network)
    rng = np.random.default_rng(2)
    batches = []
    for _ in range(count):
        drawn = rng.random(PATIENTS) < BATCH / PATIENTS
        chosen = np.flatnonzero(drawn) if poisson else rng.integers(0, PATIENTS, BATCH)
        batches.append((torch.from_numpy(data.x[chosen]), torch.from_numpy(data.y[chosen]).long()))

    def turn() -> float:
        start = time.perf_counter()
        for x, y in batches:
            optimizer.zero_grad()
            loss(module(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return (time.perf_counter() - start) / count

    return turn


def _opacus(network: Dense) -> Turn:
    torch = _torch()
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    module = GradSampleModule(perceptron(network.sizes))
    optimizer = DPOptimizer(
        torch.optim.SGD(module.parameters(), lr=0.01),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=BATCH,
    )
    return _steps(network, module, optimizer, poisson=True)


def _plain(network: Dense) -> Turn:
    module = perceptron(network.sizes)
    return _steps(network, module, _torch().optim.SGD(module.parameters(), lr=0.01), poisson=False)
