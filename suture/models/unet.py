"""A small U-Net that finds lungs and heart in a frontal chest view: plain functions over named
arrays, and its training.

Ronneberger, Fischer, Brox, "U-Net: Convolutional Networks for Biomedical Image Segmentation",
MICCAI 2015, arXiv:1505.04597, with group normalisation (Wu, He, ECCV 2018, arXiv:1803.08494). Three
halvings, 8 to 64 channels, 122,492 weights. Images of another size are resized to 64 x 64 and the
answer back, so one file of weights serves all.

Nothing here is private training: `train_unet` adds no noise, so its images must be generated or
public, and its weights then cost no patient any privacy. On real images the answer is a guess that
must be checked, which is why `suture explain` draws the outlines it used.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from suture.errors import DataError
from suture.models.dense import Floats
from suture.models.residual import one_thread, torch_or_say

if TYPE_CHECKING:
    from torch import Tensor

Params = dict[str, "Tensor"]
Weights = dict[str, Floats]
CLASSES = ("other", "right lung", "left lung", "heart")
"""What a pixel can be; sides are the patient's."""
SIDE = 64
INPUTS = 3
"""The image, and each pixel's place down and across: a convolution alone cannot tell left from
right."""
CHANNELS = (8, 16, 32, 64)
GROUP = 4
"""Channels normalised together."""
BATCH, RATE = 8, 1e-2  # of training


def shapes() -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight, in order.

    >>> sum(int(np.prod(shape)) for shape in shapes().values())
    122492
    """
    found: dict[str, tuple[int, ...]] = {}

    def block(name: str, inputs: int, outputs: int) -> None:
        for i, width in ((1, inputs), (2, outputs)):
            found[f"{name}.conv{i}"] = (outputs, width, 3, 3)
            found[f"{name}.scale{i}"] = found[f"{name}.shift{i}"] = (outputs,)

    for level, width in enumerate(CHANNELS):
        block(f"down{level}", CHANNELS[level - 1] if level else INPUTS, width)
    for level in range(len(CHANNELS) - 2, -1, -1):
        block(f"up{level}", CHANNELS[level] + CHANNELS[level + 1], CHANNELS[level])
    found["head.weight"], found["head.bias"] = (len(CLASSES), CHANNELS[0], 1, 1), (len(CLASSES),)
    return found


def init(seed: int) -> Weights:
    """Fresh weights: He's normal for convolutions, ones and zeros for normalisation, small ones for
    the last layer (a class that starts far below the others is learnt late or never)."""
    rng = np.random.default_rng(seed)
    made = {}
    for name, shape in shapes().items():
        if len(shape) == 4:
            spread = 0.3 if name == "head.weight" else np.sqrt(2 / np.prod(shape[1:]))
            made[name] = rng.normal(0, spread, shape).astype(np.float32)
        else:
            made[name] = np.full(shape, 1.0 if ".scale" in name else 0.0, np.float32)
    return made


def forward(params: Params, x: Tensor) -> Tensor:
    """Scores, images x classes x side x side, from what `inputs` makes."""
    import torch
    from torch.nn import functional as f

    def block(name: str, z: Tensor) -> Tensor:
        for i in (1, 2):
            z = f.conv2d(z, params[f"{name}.conv{i}"], padding=1)
            scale, shift = params[f"{name}.scale{i}"], params[f"{name}.shift{i}"]
            z = f.leaky_relu(f.group_norm(z, z.shape[1] // GROUP, scale, shift), 0.1)
        return z

    kept = []
    last = len(CHANNELS) - 1
    for level in range(last):
        x = block(f"down{level}", x)
        kept.append(x)
        x = f.max_pool2d(x, 2)
    x = block(f"down{last}", x)
    for level in range(last - 1, -1, -1):
        wider = f.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        x = block(f"up{level}", torch.cat((kept[level], wider), dim=1))
    return f.conv2d(x, params["head.weight"], params["head.bias"])


def segment(weights: Weights, images: Floats) -> NDArray[np.int8]:
    """The class of every pixel of images (images x side x side, values from 0 to 1)."""
    torch = torch_or_say()
    params = {name: torch.from_numpy(value) for name, value in weights.items()}
    side = images.shape[-1]

    def resized(x: Tensor, to: int, smooth: bool = False) -> Tensor:
        if side == SIDE:
            return x
        how = {"mode": "bilinear", "align_corners": False, "antialias": smooth}
        found: Tensor = torch.nn.functional.interpolate(x, size=(to, to), **how)
        return found

    found = [np.empty((0, side, side), np.int8)]
    with torch.inference_mode():
        for start in range(0, len(images), 64):
            x = torch.from_numpy(np.ascontiguousarray(images[start : start + 64, None], np.float32))
            scores = forward(params, inputs(resized(x, SIDE, side > SIDE)))
            found.append(resized(scores, side).argmax(dim=1).to(torch.int8).numpy())
    return np.concatenate(found)


def inputs(x: Tensor) -> Tensor:
    """Each image (images x 1 x side x side) scaled to mean 0 and standard deviation 1, because
    scanners differ most in brightness and contrast, with the place of every pixel beside it."""
    import torch

    x = (x - x.mean(dim=(1, 2, 3), keepdim=True)) / (x.std(dim=(1, 2, 3), keepdim=True) + 1e-4)
    axis = torch.linspace(-1, 1, x.shape[-1])
    down, across = torch.meshgrid(axis, axis, indexing="ij")
    return torch.cat((x, down.expand_as(x), across.expand_as(x)), dim=1)


def masks(weights: Weights, image: Floats) -> dict[str, NDArray[np.bool_]]:
    """Masks of one image (side x side) by name: the largest connected piece of each, because specks
    are not organs."""
    from scipy import ndimage

    found = segment(weights, image[None])[0]
    organs = {}
    for number, name in enumerate(CLASSES[1:], start=1):
        pieces, count = ndimage.label(found == number)
        largest = np.bincount(pieces.ravel())[1:].argmax() + 1 if count else -1
        organs[name] = ndimage.binary_fill_holes(pieces == largest)
    return organs


def load_weights(path: Path) -> Weights:
    """Weights from a file that `suture segment` wrote."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            found = {name: archive[name].astype(np.float32) for name in archive.files}
    except (OSError, ValueError) as error:
        why = f"cannot be read as U-Net weights ({type(error).__name__})"
        raise DataError(f"{path}: {why}; suture segment writes them") from None
    expected = shapes()
    if {name: value.shape for name, value in found.items()} != expected:
        why = f"holds other arrays than this U-Net's {len(expected)}"
        raise DataError(f"{path}: {why}; train it again: suture segment")
    return found


def train_unet(
    images: Floats,
    classes: NDArray[np.int8],
    *,
    epochs: int = 5,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> Weights:
    """Train on images x 64 x 64 (values from 0 to 1) and the class of every pixel; the same seed
    gives the same weights on the same machine.

    Adam on the sum of cross-entropy and a soft Dice loss (Milletari, Navab, Ahmadi, "V-Net", 3DV
    2016, arXiv:1606.04797), with contrast, gamma, noise and covered patches drawn for every batch,
    so that a lesion or another scanner does not hide a lung.
    """
    torch = torch_or_say()
    from torch.nn import functional as f

    one_thread()
    rng = np.random.default_rng(seed)
    fresh = init(seed).items()
    params: Params = {name: torch.tensor(value, requires_grad=True) for name, value in fresh}
    steps = epochs * (len(images) // BATCH)
    optimiser = torch.optim.Adam(params.values(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=max(steps, 2))
    for epoch in range(epochs):
        order, total = rng.permutation(len(images)), 0.0
        for start in range(0, len(images) - BATCH + 1, BATCH):
            rows = order[start : start + BATCH]
            x = inputs(torch.from_numpy(varied(images[rows], rng)[:, None]))
            target = torch.from_numpy(classes[rows].astype(np.int64))
            scores = forward(params, x)
            share = scores.softmax(dim=1)[:, 1:]
            wanted = f.one_hot(target, len(CLASSES)).permute(0, 3, 1, 2)[:, 1:].float()
            parts = (share * wanted, share, wanted)
            overlap, found, true = (part.sum(dim=(0, 2, 3)) for part in parts)
            soft_dice = (2 * overlap + 1) / (found + true + 1)
            loss = f.cross_entropy(scores, target) + 1 - soft_dice.mean()
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
            total += float(loss.detach())
        say(f"epoch {epoch + 1} of {epochs}: loss {total * BATCH / max(len(images), 1):.3f}")
    return {name: value.detach().numpy() for name, value in params.items()}


def varied(images: Floats, rng: np.random.Generator) -> Floats:
    """The images with random contrast, gamma and noise, and a grey patch in half of them."""
    count, side = len(images), images.shape[-1]
    gamma, contrast, noise = (
        rng.uniform(a, b, (count, 1, 1)) for a, b in ((0.6, 1.6), (0.7, 1.2), (0.0, 0.06))
    )
    made = np.clip(images, 0, 1) ** gamma * contrast + noise * rng.standard_normal(images.shape)
    for i in np.flatnonzero(rng.random(count) < 0.5):
        height, width = rng.integers(side // 12, side // 4, 2)
        top, left = rng.integers(0, side - height), rng.integers(0, side - width)
        made[i, top : top + height, left : left + width] += rng.uniform(-0.3, 0.5)
    return np.asarray(np.clip(made, 0, 1), np.float32)


def measured_dice(weights: Weights, images: Floats, classes: NDArray[np.int8]) -> dict[str, float]:
    """Mean Dice of each organ over held-out images that show it."""
    found = segment(weights, images)
    dice = {}
    for number, name in enumerate(CLASSES[1:], start=1):
        a, b = found == number, classes == number
        shown = b.any(axis=(1, 2))
        total = a.sum(axis=(1, 2)) + b.sum(axis=(1, 2))
        dice[name] = float(np.mean(2 * (a & b).sum(axis=(1, 2))[shown] / total[shown]))
    return dice
