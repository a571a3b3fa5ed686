"""Training of the U-Net that finds lungs and heart (`suture.models.unet`), on generated images with true masks.

Nothing here is private training: the images must be generated or public, because the weights are trained without noise.
Adam on the sum of cross-entropy and a soft Dice loss (Milletari, Navab, Ahmadi, "V-Net", 3DV 2016, arXiv:1606.04797),
with contrast, gamma, noise and covered patches drawn anew for every batch, so that a lesion or another scanner does not
hide a lung.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from suture.models.residual import one_thread, torch_or_say
from suture.models.unet import CLASSES, Params, forward, init, inputs, segment

Weights = dict[str, NDArray[np.float32]]
BATCH = 8
RATE = 1e-2


def train_unet(
    images: NDArray[np.float32],
    classes: NDArray[np.int8],
    *,
    epochs: int = 5,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> Weights:
    """Train on images x 64 x 64 (values from 0 to 1) and the class of every pixel; the same seed gives the same weights
    on the same machine."""
    torch = torch_or_say()
    from torch.nn import functional as f

    one_thread()
    rng = np.random.default_rng(seed)
    params: Params = {name: torch.tensor(value, requires_grad=True) for name, value in init(seed).items()}
    steps = epochs * (len(images) // BATCH)
    optimiser = torch.optim.Adam(params.values(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=RATE, total_steps=max(steps, 2))
    for epoch in range(epochs):
        order, total = rng.permutation(len(images)), 0.0
        for start in range(0, len(images) - BATCH + 1, BATCH):
            rows = order[start : start + BATCH]
            x = inputs(torch.from_numpy(varied(images[rows], rng)[:, None]))
            target = torch.from_numpy(classes[rows].astype(np.int64))
            scores = forward(params, x)
            share = scores.softmax(dim=1)[:, 1:]
            wanted = f.one_hot(target, len(CLASSES)).permute(0, 3, 1, 2)[:, 1:].float()
            overlap = (share * wanted).sum(dim=(0, 2, 3))
            soft_dice = (2 * overlap + 1) / (share.sum(dim=(0, 2, 3)) + wanted.sum(dim=(0, 2, 3)) + 1)
            loss = f.cross_entropy(scores, target) + 1 - soft_dice.mean()
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
            total += float(loss.detach())
        say(f"epoch {epoch + 1} of {epochs}: loss {total * BATCH / max(len(images), 1):.3f}")
    return {name: value.detach().numpy() for name, value in params.items()}


def varied(images: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """Another contrast, gamma and noise for every image, and in half of them a patch of another grey."""
    count, side = len(images), images.shape[-1]
    gamma, contrast, noise = (rng.uniform(a, b, (count, 1, 1)) for a, b in ((0.6, 1.6), (0.7, 1.2), (0.0, 0.06)))
    made = np.clip(images, 0, 1) ** gamma * contrast + noise * rng.standard_normal(images.shape)
    for i in np.flatnonzero(rng.random(count) < 0.5):
        height, width = rng.integers(side // 12, side // 4, 2)
        top, left = rng.integers(0, side - height), rng.integers(0, side - width)
        made[i, top : top + height, left : left + width] += rng.uniform(-0.3, 0.5)
    return np.asarray(np.clip(made, 0, 1), np.float32)


def measured_dice(weights: Weights, images: NDArray[np.float32], classes: NDArray[np.int8]) -> dict[str, float]:
    """Mean Dice of each organ over held-out images that show it."""
    found = segment(weights, images)
    dice = {}
    for number, name in enumerate(CLASSES[1:], start=1):
        a, b = found == number, classes == number
        shown = b.any(axis=(1, 2))
        total = a.sum(axis=(1, 2)) + b.sum(axis=(1, 2))
        dice[name] = float(np.mean(2 * (a & b).sum(axis=(1, 2))[shown] / total[shown]))
    return dice
