"""One training step, timed side by side on one thread each.

`measure` compares DP-SGD in Suture, in Opacus, and PyTorch without any privacy. All three train the
same network on the same rows with batches of 32; ours and Opacus draw them by Poisson sampling and
add noise from their usual source (ours cryptographic, Opacus' not). Opacus and PyTorch are given
their batches as ready tensors, with no data loader, which favours them.

`measure_affine` compares a step of iFedAvg with the same step in plain PyTorch: a 261-128-64-6
network (that of HAR) with tanh, dropout 0.2 after every layer's input, f_in before it, SGD with
momentum and weighted cross-entropy.

Contenders take turns within one run, and each is judged by its median turn, so that a busy machine
slows all alike.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from suture.errors import MissingExtra
from suture.models.dense import Dense
from suture.privacy.noise.source import secure_key, seeded_key
from suture.privacy.unit import Patients
from suture.training.affine import Layers, train_affine
from suture.training.local import Local, steps
from suture.training.mechanism import train

if TYPE_CHECKING:
    from torch import Tensor, nn, optim

SMALL = Dense((6, 64, 32, 1))
WIDE = Dense((261, 128, 64, 12))
HAR = Dense((261, 128, 64, 6), "tanh")
PATIENTS, HAR_PATIENTS = 1270, 240
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


def _rows(network: Dense, patients: int = PATIENTS, seed: int = 0) -> Patients:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((patients, network.sizes[0])).astype(np.float32)
    y = rng.integers(0, network.classes, patients).astype(np.int32)
    return Patients(x, y, np.arange(patients + 1))


def _ours(network: Dense) -> Turn:
    data, params = _rows(network), network.init(np.random.default_rng(1))
    local = Local(epochs=20, batch=BATCH, clip=1.0, noise_multiplier=1.0)

    def turn() -> float:
        start = time.perf_counter()
        train(network, params, data, local, secure_key())
        return (time.perf_counter() - start) / steps(PATIENTS, local)

    return turn


def _module(network: Dense) -> nn.Module:
    from torch import nn

    layers: list[nn.Module] = []
    for a, b in pairwise(network.sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _loss(network: Dense) -> Callable[[Tensor, Tensor], Tensor]:
    from torch.nn import functional

    if network.sizes[-1] == 1:
        return lambda z, y: functional.binary_cross_entropy_with_logits(z[:, 0], y.float())
    return functional.cross_entropy


def _steps(
    network: Dense, module: nn.Module, optimizer: optim.Optimizer, poisson: bool, count: int = 40
) -> Turn:
    torch = _torch()
    data, loss = _rows(network), _loss(network)
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

    module = GradSampleModule(_module(network))
    optimizer = DPOptimizer(
        torch.optim.SGD(module.parameters(), lr=0.01),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=BATCH,
    )
    return _steps(network, module, optimizer, poisson=True)


def _plain(network: Dense) -> Turn:
    module = _module(network)
    return _steps(network, module, _torch().optim.SGD(module.parameters(), lr=0.01), poisson=False)


def measure_affine(batch: int = 8, repeats: int = 7) -> dict[str, float]:
    """Microseconds of processor time per step on both sides, and how many times faster Suture is
    (medians)."""
    ours, theirs = _affine_ours(batch), _affine_torch(batch)
    ours()
    theirs()
    pairs = [(ours(), theirs()) for _ in range(repeats)]
    mine, other = (median(pair[i] for pair in pairs) for i in (0, 1))
    ratio = median(b / a for a, b in pairs)
    return {"suture us": mine, "pytorch us": other, "ratio": ratio}


def _affine_ours(batch: int, epochs: int = 5) -> Turn:
    layers, data = Layers(), _rows(HAR, HAR_PATIENTS, seed=1)
    start, own = HAR.init(np.random.default_rng(2)), layers.identity(HAR.inputs, HAR.classes)
    local = Local(
        epochs=epochs, batch=batch, rate=0.002, momentum=0.5, dropout=0.2, class_weights="balanced"
    )

    def turn() -> float:
        begun = time.process_time()
        train_affine(HAR, start, layers, own, data, local, seeded_key(1))
        return (time.process_time() - begun) / steps(HAR_PATIENTS, local) * 1e6

    return turn


def _affine_torch(batch: int, epochs: int = 5) -> Turn:
    import torch
    from torch import nn

    torch.set_num_threads(1)
    data = _rows(HAR, HAR_PATIENTS, seed=1)
    x, y = torch.tensor(data.x), torch.tensor(data.y).long()
    drop = nn.Dropout(0.2)
    linear: list[nn.Module] = []
    for a, b in pairwise(HAR.sizes):
        linear += [nn.Linear(a, b), nn.Tanh(), nn.Dropout(0.2)]
    core = nn.Sequential(*linear[:-2])
    shift, scale = nn.Parameter(torch.zeros(HAR.inputs)), nn.Parameter(torch.ones(HAR.inputs))
    counts = torch.bincount(y, minlength=HAR.classes)
    loss = nn.CrossEntropyLoss(weight=len(y) / (HAR.classes * counts.float()))
    optimiser = torch.optim.SGD([*core.parameters(), shift, scale], lr=0.002, momentum=0.5)

    def turn() -> float:
        begun, taken = time.process_time(), 0
        for _ in range(epochs):
            for index in torch.split(torch.randperm(HAR_PATIENTS), batch):
                optimiser.zero_grad()
                loss(core(drop((x[index] + shift) * scale)), y[index]).backward()
                optimiser.step()
                taken += 1
        return (time.process_time() - begun) / taken * 1e6

    return turn
