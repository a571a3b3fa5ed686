"""Where the networks start: weights learnt on public radiographs, before any hospital's patient is
looked at.

The paper starts from ImageNet. A small network for small pictures has no such weights, so ours
learns to tell pneumonia from normal on PneumoniaMNIST (Kermany et al. 2018; training and validation
part, 5,232 images), without privacy: the images are public, and no promise is made about them.
Shifts, scales, mirrors, contrast, gamma and noise are drawn anew for every picture, so that what is
learnt does not depend on one scanner. The last layer is shrunk and its bias set to odds of 1 to 2, a
risk of a third.

The generated cohort plays no part in this: weights and settings are fixed before it is drawn.
"""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np

from suture.cohorts.public import public_images
from suture.models.residual import Residual, one_thread, torch_or_say
from suture.privacy.files import write_whole

Torch = Any
"""PyTorch, or something of its, without importing it."""
NAME = "public-weights.npz"
EPOCHS, BATCH, RATE, MOMENTUM, DECAY = 20, 64, 0.1, 0.9, 1e-4
SHRINK, START = 0.3, -math.log(2)


def public_weights(network: Residual, out: Path, *, epochs: int = EPOCHS, seed: int = 0) -> Path:
    """The file of weights under ``out``, made if missing; a `DataError` without PneumoniaMNIST."""
    path = out / NAME
    if path.exists():
        return path
    torch = torch_or_say()
    one_thread()
    pictures, labels = public_images(network.size)
    flat = torch.from_numpy(network.init(np.random.default_rng(seed)))
    module = network.module(flat)
    optimiser = torch.optim.SGD(
        list(module.parameters()), lr=RATE, momentum=MOMENTUM, weight_decay=DECAY
    )
    rng, drawn = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    x, y = torch.from_numpy(pictures)[:, None], torch.from_numpy(labels.astype(np.float32))
    weights = torch.tensor([float(y.mean() / (1 - y.mean())), 1.0])
    for epoch in range(epochs):
        for group in optimiser.param_groups:
            group["lr"] = RATE * (1 - epoch / epochs)
        for batch in np.array_split(rng.permutation(len(y)), max(1, len(y) // BATCH)):
            shown, truth = _varied(torch, x[batch], drawn), y[batch]
            z = module(shown.reshape(len(batch), -1))[:, 0]
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                z, truth, weight=weights[truth.long()]
            )
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    saved, at = {}, 0
    for name, shape in network.shapes:
        part = flat[at : at + math.prod(shape)].numpy().reshape(shape)
        saved[name] = SHRINK * part if name.startswith("fc") else part
        at += math.prod(shape)
    saved["fc.bias"] = np.array([START], np.float32)
    written = io.BytesIO()
    np.savez(written, allow_pickle=False, **saved)
    write_whole(path, written.getvalue())
    return path


def _varied(torch: Torch, x: Torch, drawn: Torch) -> Torch:
    """Each picture moved, scaled, mirrored, in another contrast and with noise, in its own way."""
    count = len(x)

    def normal(*shape: int) -> Torch:
        return torch.randn(shape, generator=drawn)

    turn = torch.zeros(count, 2, 3)
    scale = 1 + 0.15 * normal(count)
    mirror = torch.where(torch.rand(count, generator=drawn) < 0.5, -1.0, 1.0)
    turn[:, 0, 0], turn[:, 1, 1], turn[:, :, 2] = scale * mirror, scale, 0.15 * normal(count, 2)
    functional = torch.nn.functional
    moved = functional.grid_sample(
        x, functional.affine_grid(turn, x.shape, align_corners=False), align_corners=False
    ).clamp(0, 1)
    shaded = moved ** torch.exp(0.3 * normal(count, 1, 1, 1))
    return (
        (shaded - 0.5) * torch.exp(0.2 * normal(count, 1, 1, 1)) + 0.5 + 0.03 * normal(*x.shape)
    ).clamp(0, 1)
