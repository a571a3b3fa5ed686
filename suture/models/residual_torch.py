"""The residual network of `suture.models.residual` as PyTorch modules; imported only where an image
is scored or trained on."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CENTRE, SPREAD = 0.5, 0.25
"""Pixels, which are from 0 to 1, are shifted and scaled by public constants: a mean of patients'
pixels would be a release."""


def _group_norm(channels: int) -> nn.GroupNorm:
    """Groups of at least four channels, and at most 32 groups."""
    return nn.GroupNorm(min(32, channels // 4), channels)


class Block(nn.Module):
    """Two convolutions and a shortcut around them (arXiv:1512.03385, section 3.3, option B)."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        stride = 1 if before == after else 2
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = _group_norm(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = _group_norm(after)
        shortcut = (nn.Conv2d(before, after, 1, stride, bias=False), _group_norm(after))
        self.downsample = None if stride == 1 else nn.Sequential(*shortcut)

    def forward(self, x: Tensor) -> Tensor:
        around = x if self.downsample is None else self.downsample(x)
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + around)


class Net(nn.Module):
    """Takes rows of pixels and returns logits."""

    def __init__(
        self, size: int, large: bool, width: int, stages: tuple[int, ...], outputs: int
    ) -> None:
        super().__init__()
        self.size, self.large = size, large
        kernel = 7 if large else 3
        self.conv1 = nn.Conv2d(1, width, kernel, 2, kernel // 2, bias=False)
        self.bn1 = _group_norm(width)
        before = width
        self.stages = [f"layer{stage + 1}" for stage in range(len(stages))]
        for stage, blocks in enumerate(stages):
            after = width * 2**stage
            layers = [Block(before if block == 0 else after, after) for block in range(blocks)]
            self.add_module(self.stages[stage], nn.Sequential(*layers))
            before = after
        self.fc = nn.Linear(before, outputs)

    def forward(self, rows: Tensor) -> Tensor:
        x = (rows.reshape(-1, 1, self.size, self.size) - CENTRE) / SPREAD
        x = F.relu(self.bn1(self.conv1(x)))
        if self.large:
            x = F.max_pool2d(x, 3, 2, 1)
        for stage in self.stages:
            x = self.get_submodule(stage)(x)
        return self.fc(x.mean((2, 3)))


def over(flat: Tensor, build: Callable[[], nn.Module]) -> nn.Module:
    """What ``build`` makes, with views of ``flat`` for parameters instead of random ones."""
    with torch.device("meta"):
        net = build()
    at = 0
    for name, parameter in list(net.named_parameters()):
        owner, _, own = name.rpartition(".")
        part = flat[at : at + parameter.numel()].view(parameter.shape)
        setattr(net.get_submodule(owner), own, nn.Parameter(part))
        at += parameter.numel()
    return net
