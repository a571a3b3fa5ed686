"""The residual network of `residual` as PyTorch modules. Imported only where an image is looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from suture.models.residual import BLOCKS, CENTRE, LARGE, SPREAD

if TYPE_CHECKING:
    from suture.models.residual import Residual


def _group_norm(channels: int) -> nn.GroupNorm:
    """At least four channels a group, at most 32 groups."""
    return nn.GroupNorm(min(32, channels // 4), channels)


class Block(nn.Module):
    """Two convolutions and the way round them (arXiv:1512.03385, section 3.3, option B)."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        stride = 1 if before == after else 2
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = _group_norm(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = _group_norm(after)
        self.downsample = (
            None if stride == 1 else nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), _group_norm(after))
        )

    def forward(self, x: Tensor) -> Tensor:
        around = x if self.downsample is None else self.downsample(x)
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + around)


class Net(nn.Module):
    """Rows of pixels in, logits out."""

    def __init__(self, shape: Residual) -> None:
        super().__init__()
        self.size = shape.size
        self.large = shape.size >= LARGE
        kernel = 7 if self.large else 3
        self.conv1 = nn.Conv2d(1, shape.width, kernel, 2, kernel // 2, bias=False)
        self.bn1 = _group_norm(shape.width)
        before = shape.width
        self.stages: list[str] = []
        for stage, blocks in enumerate(BLOCKS[shape.depth]):
            after = shape.width * 2**stage
            layers = [Block(before if block == 0 else after, after) for block in range(blocks)]
            self.stages.append(f"layer{stage + 1}")
            self.add_module(self.stages[-1], nn.Sequential(*layers))
            before = after
        self.fc = nn.Linear(before, shape.outputs)

    def forward(self, rows: Tensor) -> Tensor:
        x = (rows.reshape(-1, 1, self.size, self.size) - CENTRE) / SPREAD
        x = F.relu(self.bn1(self.conv1(x)))
        if self.large:
            x = F.max_pool2d(x, 3, 2, 1)
        for stage in self.stages:
            x = self.get_submodule(stage)(x)
        return self.fc(x.mean((2, 3)))


def build(shape: Residual, flat: Tensor) -> Net:
    """The network, whose parameters are views of ``flat``; PyTorch's own random start is skipped."""
    with torch.device("meta"):
        net = Net(shape)
    at = 0
    for name, parameter in list(net.named_parameters()):
        holder = net.get_submodule(name.rpartition(".")[0])
        size = parameter.numel()
        view = flat[at : at + size].view(parameter.shape)
        setattr(holder, name.rpartition(".")[2], nn.Parameter(view))
        at += size
    return net
