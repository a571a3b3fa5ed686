"""Residual networks for grey images, with group normalisation.

He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition. CVPR 2016, arXiv:1512.03385:
basic blocks; depths 18 and 34 have four stages, depths 8 and 20 three (section 4.2). Batch
normalisation mixes patients, so no bound on one patient's part of a gradient would hold; group
normalisation uses one image only (Wu & He: Group Normalization. ECCV 2018, arXiv:1803.08494).

As in `Dense`, all parameters are one flat float32 vector, in the order of `shapes`, which is
PyTorch's own. Shapes, their count and the starting point are computed without PyTorch, which is
imported when the first image is scored.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from suture.errors import MissingExtra, StudyError
from suture.models.dense import Description, Floats, Settings, Trainer, probabilities

if TYPE_CHECKING:
    from torch import Tensor, nn

Shapes = tuple[tuple[str, tuple[int, ...]], ...]
BLOCKS = {8: (1, 1, 1), 10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 20: (3, 3, 3), 34: (3, 4, 6, 3)}
"""Blocks of two convolutions in each stage, by depth."""
LARGE = 64
"""For images with sides of this many pixels or more, the first layer is the paper's: 7 x 7, stride
2, then pooling; below, 3 x 3."""


def torch_or_say() -> ModuleType:
    try:
        import torch
    except ImportError:
        how = "images need PyTorch; install it: pip install 'suture[imaging]'"
        raise MissingExtra(how) from None
    return torch


def one_thread() -> None:
    """Use one PyTorch thread from now on: Suture runs one thread per core, and sums must not depend
    on how many there are.

    It is not set back: part of the setting holds for the whole process, where other sites' threads
    may be computing."""
    torch_or_say().set_num_threads(1)


@dataclass(frozen=True)
class Residual:
    """The shape of a residual network for ``size`` x ``size`` images, each a row of pixels from 0
    to 1.

    >>> Residual(224, 34, 64).n_params, Residual(28, 8, 8).n_params
    (21278913, 19513)
    """

    kind: ClassVar[str] = "residual"
    trainer: ClassVar[Trainer] = "images"
    featured: ClassVar[bool] = False

    size: int
    depth: int = 8
    width: int = 8
    outputs: int = 1
    weights: str | None = None
    """A local file of ImageNet weights as torchvision saves them (`converted`), or an NPZ file with
    our names (`named`)."""

    def __post_init__(self) -> None:
        if self.depth not in BLOCKS:
            raise StudyError(
                f"model.depth: expected one of {', '.join(map(str, BLOCKS))}, found {self.depth}"
            )
        if self.width < 4 or self.width % 4:
            raise StudyError(f"model.width: expected a multiple of 4, found {self.width}")
        if self.size < 8 or self.outputs < 1:
            raise StudyError(
                f"expected images of at least 8 x 8 pixels and an output, found {self.size}, "
                f"{self.outputs}"
            )
        converts = self.weights is not None and not self.weights.endswith(".npz")
        if converts and not (self.width == 64 and self.depth in (18, 34) and self.size >= LARGE):
            raise StudyError(
                "model.weights: ImageNet weights fit depth 18 or 34 with width 64 and images of "
                f"{LARGE} pixels or more, found depth {self.depth}, width {self.width}, "
                f"{self.size} pixels"
            )

    def __repr__(self) -> str:
        """With PyTorch's version: rounding is part of a release, and this text is part of its
        fingerprint."""
        return (
            f"Residual(size={self.size}, depth={self.depth}, width={self.width}, "
            f"outputs={self.outputs}, weights={self.weights!r}, torch={_version()})"
        )

    @classmethod
    def shaped(cls, settings: Settings, inputs: int, outputs: int, base: Path) -> Residual:
        size = math.isqrt(inputs)
        if size * size != inputs:
            raise StudyError(
                f'model.kind = "residual" needs square images, found rows of {inputs} numbers; use '
                '"dense" for tables'
            )
        weights = None if settings.weights is None else str(base / settings.weights)
        return cls(size, settings.depth, settings.width, outputs, weights)

    @classmethod
    def rebuilt(cls, model: Description) -> Residual:
        return cls(model["size"], model["depth"], model["width"], model["outputs"])

    def described(self) -> Description:
        shape = {"size": self.size, "depth": self.depth, "width": self.width}
        begun = {} if self.weights is None else {"weights_sha256": digest(self.weights)}
        return {"kind": self.kind, **shape, "outputs": self.outputs, **begun}

    @property
    def inputs(self) -> int:
        return self.size * self.size

    @property
    def classes(self) -> int:
        return 2 if self.outputs == 1 else self.outputs

    def labels(self, y: NDArray[np.int32]) -> NDArray[np.int32]:
        return y

    @cached_property
    def shapes(self) -> Shapes:
        """Name and shape of every parameter, with torchvision's names.

        >>> [name for name, _ in Residual(28).shapes[:4]], Residual(28).shapes[-1]
        (['conv1.weight', 'bn1.weight', 'bn1.bias', 'layer1.0.conv1.weight'], ('fc.bias', (1,)))
        """
        kernel = 7 if self.size >= LARGE else 3
        found = _normed("conv1", "bn1", (self.width, 1, kernel, kernel))
        before = self.width
        for stage, blocks in enumerate(BLOCKS[self.depth]):
            after = self.width * 2**stage
            for block in range(blocks):
                at = f"layer{stage + 1}.{block}"
                found += _normed(f"{at}.conv1", f"{at}.bn1", (after, before, 3, 3))
                found += _normed(f"{at}.conv2", f"{at}.bn2", (after, after, 3, 3))
                if before != after:
                    around = f"{at}.downsample"
                    found += _normed(f"{around}.0", f"{around}.1", (after, before, 1, 1))
                before = after
        return (*found, ("fc.weight", (self.outputs, before)), ("fc.bias", (self.outputs,)))

    @cached_property
    def n_params(self) -> int:
        return sum(math.prod(shape) for _, shape in self.shapes)

    def init(self, rng: np.random.Generator) -> Floats:
        """He's initialisation, with scales 1 and shifts 0; if ``weights`` are given, those, with a
        fresh last layer if they are torchvision's."""
        shapes, known = dict(self.shapes), {}
        if self.weights is not None:
            read = named if self.weights.endswith(".npz") else converted
            known = read(Path(self.weights), shapes)
        parts = []
        for name, shape in shapes.items():
            if len(shape) == 4:
                drawn = rng.normal(0.0, math.sqrt(2 / (shape[0] * shape[2] * shape[3])), shape)
            elif name.startswith("fc."):
                drawn = rng.uniform(-1.0, 1.0, shape) / math.sqrt(shapes["fc.weight"][1])
            else:
                drawn = np.full(shape, 1.0 if name.endswith(".weight") else 0.0)
            parts.append(np.asarray(known.get(name, drawn), np.float32).ravel())
        return np.concatenate(parts)

    def logits(self, params: Floats, x: Floats) -> Floats:
        """One image at a time, because the sums of a batch depend on its size."""
        torch = torch_or_say()
        self.check(params, x)
        module = self.module(torch.from_numpy(np.array(params, np.float32)))
        one_thread()
        with torch.no_grad():
            found = [module(torch.from_numpy(x[at : at + 1])).numpy() for at in range(len(x))]
        return np.concatenate([np.zeros((0, self.outputs), np.float32), *found])

    def predict(self, params: Floats, x: Floats) -> Floats:
        return probabilities(self.logits(params, x))

    def check(self, params: Floats, x: Floats) -> None:
        """Refuse parameters or images of another shape."""
        if params.shape != (self.n_params,):
            raise StudyError(f"{self!r} has {self.n_params} parameters, found shape {params.shape}")
        if x.ndim != 2 or x.shape[1] != self.inputs:
            raise StudyError(
                f"the network takes rows of {self.size} x {self.size} pixels, found shape {x.shape}"
            )

    def module(self, flat: Tensor) -> nn.Module:
        """In PyTorch, with views of ``flat`` as parameters: a step on one is a step on both."""
        from suture.models.residual_torch import Net, over

        large, stages = self.size >= LARGE, BLOCKS[self.depth]
        return over(flat, lambda: Net(self.size, large, self.width, stages, self.outputs))


def _normed(conv: str, norm: str, shape: tuple[int, ...]) -> list[tuple[str, tuple[int, ...]]]:
    """A convolution without biases, and the scales and shifts of the normalisation after it."""
    channels = (shape[0],)
    return [(f"{conv}.weight", shape), (f"{norm}.weight", channels), (f"{norm}.bias", channels)]


def _version() -> str:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "none"


def named(path: Path, shapes: dict[str, tuple[int, ...]]) -> dict[str, Floats]:
    """Weights from an NPZ file with an array for every name in `Residual.shapes`, including the
    last layer.

    A study that names such a file declares it public: what it was learnt from is not covered by the
    study's promise.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            found = {name: np.asarray(archive[name], np.float32) for name in shapes}
    except FileNotFoundError:
        raise _wrong(path, "does not exist") from None
    except KeyError as error:
        raise _wrong(path, f"expected an array {error}, found none") from None
    except (OSError, ValueError) as error:
        raise _wrong(path, f"is not a file of plain arrays ({type(error).__name__})") from None
    for name, shape in shapes.items():
        here = found[name]
        if here.shape != shape or not np.isfinite(here).all():
            expected = f"expected {name} of shape {shape} and finite"
            raise _wrong(path, f"{expected}, found shape {here.shape}")
    return found


def converted(path: Path, shapes: dict[str, tuple[int, ...]]) -> dict[str, Floats]:
    """Convert ImageNet weights for colour images; the classifier and the running statistics are
    dropped.

    The first convolution is averaged over its three colours (a grey image is three equal ones; the
    factor of 3 does not matter, because normalisation follows). Scales and shifts of batch
    normalisation become those of group normalisation. Only plain tensors are read: code in the file
    is refused.
    """
    torch = torch_or_say()
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise _wrong(path, "does not exist; give a file such as resnet34-b627a593.pth") from None
    except Exception as error:  # torch.load fails in many ways; each means: not such a file
        raise _wrong(path, f"is not a file of plain tensors ({type(error).__name__})") from None
    if not isinstance(saved, dict):
        raise _wrong(path, f"should hold named tensors, found {type(saved).__name__}")
    found: dict[str, Floats] = {}
    for name, shape in shapes.items():
        if name.startswith("fc."):
            continue
        tensor = saved.get(name)
        array = None if tensor is None else tensor.detach().to(torch.float32).numpy()
        if array is not None and name == "conv1.weight" and array.ndim == 4:
            array = array.mean(axis=1, keepdims=True)
        if array is None or array.shape != shape:
            what = "nothing" if array is None else f"shape {array.shape}"
            raise _wrong(path, f"expected {name} of shape {shape}, found {what}")
        found[name] = array
    return found


def _wrong(path: Path, what: str) -> StudyError:
    return StudyError(f"model.weights: {path}: {what}")


def digest(path: str | Path) -> str:
    """SHA-256 of a weights file: runs with equal digests began with equal weights."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
