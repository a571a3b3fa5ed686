"""A step of iFedAvg side by side with the same step written plainly in PyTorch: HAR's network, one thread each.

Both train 261-128-64-6 with tanh, dropout 0.2 after every layer's input, f_in before it, SGD with momentum and weighted
cross-entropy, on the same rows, in turns, so that other work on the machine slows both.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from suture.models.dense import Dense
from suture.privacy.mechanisms import seeded_key
from suture.privacy.unit import Patients
from suture.training.local import Local
from suture.training.personal import Layers, train_affine

ROWS, FEATURES, CLASSES = 240, 261, 6


def measure(batch: int = 8, repeats: int = 7) -> dict[str, float]:
    """Microseconds of processor time a step on both sides, and how many times faster Suture is (medians)."""
    ours, theirs = _suture(batch), _torch(batch)
    ours()
    theirs()
    pairs = [(ours(), theirs()) for _ in range(repeats)]
    mine, other = (float(np.median([pair[i] for pair in pairs])) for i in (0, 1))
    ratio = float(np.median([b / a for a, b in pairs]))
    return {"suture us": mine, "pytorch us": other, "ratio": ratio}


def _data() -> Patients:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(ROWS, FEATURES)).astype(np.float32)
    return Patients(x, rng.integers(0, CLASSES, ROWS).astype(np.int32), np.arange(ROWS + 1))


def _suture(batch: int, epochs: int = 5) -> Callable[[], float]:
    network, layers, data = Dense((FEATURES, 128, 64, CLASSES), "tanh"), Layers(), _data()
    start, own = network.init(np.random.default_rng(2)), layers.identity(FEATURES, CLASSES)
    local = Local(epochs=epochs, batch=batch, rate=0.002, momentum=0.5, dropout=0.2, class_weights="balanced")
    steps = epochs * -(-ROWS // batch)

    def run() -> float:
        begun = time.process_time()
        train_affine(network, start, layers, own, data, local, seeded_key(1))
        return (time.process_time() - begun) / steps * 1e6

    return run


def _torch(batch: int, epochs: int = 5) -> Callable[[], float]:
    import torch
    from torch import nn

    torch.set_num_threads(1)
    data = _data()
    x, y = torch.tensor(data.x), torch.tensor(data.y).long()
    drop = nn.Dropout(0.2)
    core = nn.Sequential(
        nn.Linear(FEATURES, 128), nn.Tanh(), nn.Dropout(0.2), nn.Linear(128, 64), nn.Tanh(), nn.Dropout(0.2),
        nn.Linear(64, CLASSES),
    )  # fmt: skip
    shift, scale = nn.Parameter(torch.zeros(FEATURES)), nn.Parameter(torch.ones(FEATURES))
    counts = torch.bincount(y, minlength=CLASSES)
    loss = nn.CrossEntropyLoss(weight=len(y) / (CLASSES * counts.float()))
    optimiser = torch.optim.SGD([*core.parameters(), shift, scale], lr=0.002, momentum=0.5)

    def run() -> float:
        begun, steps = time.process_time(), 0
        for _ in range(epochs):
            for index in torch.split(torch.randperm(ROWS), batch):
                optimiser.zero_grad()
                loss(core(drop((x[index] + shift) * scale)), y[index]).backward()
                optimiser.step()
                steps += 1
        return (time.process_time() - begun) / steps * 1e6

    return run
