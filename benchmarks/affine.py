"""A step of iFedAvg side by side with plain PyTorch: ``python benchmarks/affine.py``.

Both train a 261-128-64-6 network (that of HAR) with tanh, dropout 0.2 after every layer's input,
f_in before it, SGD with momentum and weighted cross-entropy. They take turns within one run, and
each is judged by its median turn.
"""

import time
from itertools import pairwise
from statistics import median

import numpy as np
import torch
from suture.training.fused import Layers, train_affine
from torch import nn

from suture.bench.dpsgd import Turn, rows_for
from suture.models.dense import Dense
from suture.privacy.noise.source import seeded_key
from suture.training.local import Local, steps

HAR = Dense((261, 128, 64, 6), "tanh")
HAR_PATIENTS = 240


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
    layers, data = Layers(), rows_for(HAR, HAR_PATIENTS, seed=1)
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
    torch.set_num_threads(1)
    data = rows_for(HAR, HAR_PATIENTS, seed=1)
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


def main() -> None:
    """Print both sides and the ratio, for three batch sizes."""
    for batch in (8, 16, 32):
        found = measure_affine(batch)
        print(
            f"batch {batch:2d}: Suture {found['suture us']:.0f} us a step, plain PyTorch "
            f"{found['pytorch us']:.0f} us, "
            f"ratio {found['ratio']:.1f} (PyTorch / Suture, processor time, one thread each)"
        )


if __name__ == "__main__":
    main()
