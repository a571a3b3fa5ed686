"""A small U-Net that finds lungs and heart in a frontal chest view, in plain functions over named arrays.

Ronneberger, Fischer, Brox, "U-Net: Convolutional Networks for Biomedical Image Segmentation", MICCAI 2015,
arXiv:1505.04597; group normalisation (Wu, He, ECCV 2018, arXiv:1803.08494) in the place of none. Three halvings, 8 to 64
channels, 122,492 weights. Images of another size are brought to 64 x 64 and the answer back, so one file of weights
serves all.

Trained on generated images only (`suture.training.segment`), so its weights cost no patient any privacy; on real images it
is a guess that must be looked at, which is why `suture explain` draws the outlines it used.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from suture.errors import DataError
from suture.models.residual import torch_or_say

if TYPE_CHECKING:
    import torch

Params = dict[str, "torch.Tensor"]
CLASSES = ("other", "right lung", "left lung", "heart")
"""What a pixel can be; sides are the patient's."""
SIDE = 64
INPUTS = 3
"""The image and where each pixel is, down and across: a convolution alone cannot tell left from right."""
CHANNELS = (8, 16, 32, 64)
GROUP = 4
"""Channels normalised together."""


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


def init(seed: int) -> dict[str, NDArray[np.float32]]:
    """Fresh weights: He's normal for convolutions, ones and zeros for normalisation, little for the last layer
    (a class that starts far below the others is learnt late or never)."""
    rng = np.random.default_rng(seed)
    made = {}
    for name, shape in shapes().items():
        if len(shape) == 4:
            spread = 0.3 if name == "head.weight" else np.sqrt(2 / np.prod(shape[1:]))
            made[name] = rng.normal(0, spread, shape).astype(np.float32)
        else:
            made[name] = np.full(shape, 1.0 if ".scale" in name else 0.0, np.float32)
    return made


def forward(params: Params, x: torch.Tensor) -> torch.Tensor:
    """Scores of every class at every pixel: what `inputs` made in, images x classes x side x side out."""
    import torch
    from torch.nn import functional as f

    def block(name: str, z: torch.Tensor) -> torch.Tensor:
        for i in (1, 2):
            z = f.conv2d(z, params[f"{name}.conv{i}"], padding=1)
            z = f.group_norm(z, z.shape[1] // GROUP, params[f"{name}.scale{i}"], params[f"{name}.shift{i}"])
            z = f.leaky_relu(z, 0.1)
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


def segment(weights: dict[str, NDArray[np.float32]], images: NDArray[np.float32]) -> NDArray[np.int8]:
    """The class of every pixel: images x side x side with values from 0 to 1 in, the same shape out."""
    torch = torch_or_say()
    from torch.nn import functional as f

    params = {name: torch.from_numpy(value) for name, value in weights.items()}
    side = images.shape[-1]
    found = []
    with torch.inference_mode():
        for start in range(0, len(images), 64):
            x = torch.from_numpy(np.ascontiguousarray(images[start : start + 64, None], np.float32))
            if side != SIDE:
                x = f.interpolate(x, size=(SIDE, SIDE), mode="bilinear", align_corners=False, antialias=side > SIDE)
            scores = forward(params, inputs(x))
            if side != SIDE:
                scores = f.interpolate(scores, size=(side, side), mode="bilinear", align_corners=False)
            found.append(scores.argmax(dim=1).to(torch.int8).numpy())
    return np.concatenate(found) if found else np.empty((0, side, side), np.int8)


def inputs(x: torch.Tensor) -> torch.Tensor:
    """Each image (images x 1 x side x side) to mean 0 and standard deviation 1, because scanners differ in brightness and
    contrast first of all, with the place of every pixel beside it."""
    import torch

    x = (x - x.mean(dim=(1, 2, 3), keepdim=True)) / (x.std(dim=(1, 2, 3), keepdim=True) + 1e-4)
    axis = torch.linspace(-1, 1, x.shape[-1])
    down, across = torch.meshgrid(axis, axis, indexing="ij")
    return torch.cat((x, down.expand_as(x), across.expand_as(x)), dim=1)


def masks(weights: dict[str, NDArray[np.float32]], image: NDArray[np.float32]) -> dict[str, NDArray[np.bool_]]:
    """Masks of one image (side x side) by name, the largest connected piece of each: specks are not organs."""
    from scipy import ndimage

    found = segment(weights, image[None])[0]
    organs = {}
    for number, name in enumerate(CLASSES[1:], start=1):
        pieces, count = ndimage.label(found == number)
        largest = np.bincount(pieces.ravel())[1:].argmax() + 1 if count else -1
        organs[name] = ndimage.binary_fill_holes(pieces == largest)
    return organs


def load_weights(path: Path) -> dict[str, NDArray[np.float32]]:
    """Weights from a file that `suture segment` wrote."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            found = {name: archive[name].astype(np.float32) for name in archive.files}
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: cannot be read as U-Net weights ({type(error).__name__}); suture segment writes them"
        ) from None
    expected = shapes()
    if {name: value.shape for name, value in found.items()} != expected:
        raise DataError(f"{path}: holds other arrays than this U-Net's {len(expected)}; train it anew: suture segment")
    return found
