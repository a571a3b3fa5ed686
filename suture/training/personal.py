"""Local training of a dense network with personal affine layers around it, by `train_affine`; see `affine`.

The layers and the network are one model with one gradient: clipped together, noised together, counted once. That is
what lets the layers of a private training be shown, and keeps them from carrying a patient's influence past the noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from suture.errors import StudyError
from suture.models.dense import Dense
from suture.models.forward import BLOCK, O, W, pack, unpack
from suture.models.lanes import WIDTH, padded
from suture.privacy.mechanisms import Keystream, derive
from suture.privacy.unit import Patients
from suture.training import local as training
from suture.training.affine import NONE, SCALAR, SCALE, SHIFT, VECTOR, affine_workspace, run_affine, turn_first
from suture.training.dpsgd import turn
from suture.training.local import Local
from suture.training.noise import words_for

Floats = NDArray[np.float32]
Kind = Literal["none", "vector", "scalar"]
_KINDS = {"none": NONE, "vector": VECTOR, "scalar": SCALAR}
_NO_WORDS = np.empty((0, 0), np.uint32)


@dataclass(frozen=True)
class Layers:
    """Which affine layers there are: f_in and f_out, each none, vector (one number a column) or scalar (one for all).

    A scalar f_out has one scale for all logits and a shift for each (paper 003, appendix A.4).

    ``spread`` is a prior for every number: normal around the identity with this standard deviation. None is the paper's
    method, which expects nothing. The most probable layers are then the best for the site's loss plus the squared
    distance from the identity / (2 spread^2), so a site of few patients stays near the federation's model, and one of
    many moves as far as its rows say. (The authors' code has such a term, switched off in its published settings.)

    >>> Layers("vector", "scalar").length(5, 3)
    16
    >>> Layers(spread=0.5).pull(40), Layers().pull(40)
    (0.1, 0.0)
    """

    into: Kind = "vector"
    out: Kind = "none"
    spread: float | None = None

    def __post_init__(self) -> None:
        if self.spread is not None and not (math.isfinite(self.spread) and self.spread > 0):
            raise StudyError(f"expected a layer_spread above 0 and finite, found {self.spread}")

    def pull(self, patients: int) -> float:
        """How strongly layers are drawn to the identity, beside a loss that is a mean over ``patients``."""
        return 0.0 if self.spread is None else 1.0 / (self.spread * self.spread * patients)

    def length(self, features: int, outputs: int) -> int:
        """How many numbers the layers keep."""
        return 2 * features * (self.into != "none") + 2 * outputs * (self.out != "none")

    def identity(self, features: int, outputs: int) -> Floats:
        """Where every site starts: shifts 0, scales 1.

        >>> Layers().identity(2, 1).tolist()
        [0.0, 0.0, 1.0, 1.0]
        """
        parts = [
            np.repeat(np.array([0, 1], np.float32), size)
            for kind, size in ((self.into, features), (self.out, outputs))
            if kind != "none"
        ]
        return np.concatenate([np.zeros(0, np.float32), *parts])

    def split(self, flat: NDArray[np.float32], features: int, outputs: int) -> dict[str, Floats]:
        """The layers by name: ``b_in``, ``w_in``, ``b_out``, ``w_out``, as far as they exist; views of ``flat``.

        >>> {name: part.tolist() for name, part in Layers().split(np.arange(4.0), 2, 1).items()}
        {'b_in': [0.0, 1.0], 'w_in': [2.0, 3.0]}
        """
        if flat.shape != (self.length(features, outputs),):
            raise StudyError(f"expected {self.length(features, outputs)} numbers in the layers, found {flat.shape}")
        found, at = {}, 0
        for name, kind, size in (("in", self.into, features), ("out", self.out, outputs)):
            if kind != "none":
                found[f"b_{name}"], found[f"w_{name}"] = flat[at : at + size], flat[at + size : at + 2 * size]
                at += 2 * size
        return found


def train_affine(
    network: Dense,
    params: Floats,
    layers: Layers,
    own: Floats,
    data: Patients,
    local: Local,
    key: bytes,
    *,
    frozen: bool = False,
) -> tuple[Floats, Floats]:
    """Network and layers after local training; the randomness is a function of ``key`` alone, the input stays as it is.

    With ``frozen`` the network is left alone and only the layers are fitted: how a new hospital joins.

    >>> from suture.privacy.mechanisms import seeded_key
    >>> rows = Patients(np.eye(4, dtype=np.float32), np.array([0, 1, 0, 1]), np.arange(5))
    >>> net, layers = Dense((4, 2), "tanh"), Layers("vector", "scalar")
    >>> new, own = train_affine(
    ...     net, np.zeros(10, np.float32), layers, layers.identity(4, 2), rows, Local(dropout=0.2), seeded_key(1))
    >>> new.shape, own.shape
    ((10,), (12,))
    """
    fused = _Fused(network, params, layers, own, data, local, frozen)
    width = words_for(fused.numbers) if local.private else 0
    chunk = training._chunk(width, min(local.batch, data.patients))
    stream, masks = Keystream(derive(key, "noise")), Keystream(derive(key, "dropout"))
    words = np.empty((chunk, width), np.uint32)
    for picks, ends in training._batches(data.patients, local, derive(key, "sampling"), chunk):
        seeds = np.empty(len(ends), np.uint64)
        masks.fill(seeds)
        if width:
            stream.fill(words[: len(ends)])
            fused.run(picks, ends, words[: len(ends)], fused.scratch, seeds)
        else:
            fused.run(picks, ends, _NO_WORDS, fused.scratch, seeds)
    return fused.params(), fused.layers()


def train_affine_on_batches(
    network: Dense,
    params: Floats,
    layers: Layers,
    own: Floats,
    data: Patients,
    local: Local,
    batches: Sequence[NDArray[np.int64]],
    noise: Floats | None = None,
    *,
    frozen: bool = False,
) -> tuple[Floats, Floats]:
    """Training on given batches with given noise (one row a step), for tests and comparisons: it protects nobody.

    >>> rows = Patients(np.ones((1, 1), np.float32), np.array([1]), np.arange(2))
    >>> start = np.array([1.0, 0.0], np.float32)
    >>> new, own = train_affine_on_batches(Dense((1, 1)), start, Layers(), Layers().identity(1, 1), rows,
    ...     Local(rate=1.0), [np.array([0])])
    >>> [round(float(value), 4) for value in (*new, *own)]
    [1.2689, 0.2689, 0.2689, 1.2689]
    """
    fused = _Fused(network, params, layers, own, data, local, frozen)
    ends = np.cumsum([len(batch) for batch in batches], dtype=np.int64)
    picks = np.concatenate([np.zeros(0, np.int64), *batches]).astype(np.int64)
    rows = fused.scratch
    if noise is not None:
        if noise.shape != (len(batches), fused.numbers):
            raise StudyError(f"expected noise of shape {(len(batches), fused.numbers)}, found {noise.shape}")
        rows = np.zeros((len(batches), fused.scratch.shape[1]), np.float32)
        rows[:, : fused.numbers] = noise
    fused.run(picks, ends, _NO_WORDS, rows, np.arange(len(batches), dtype=np.uint64))
    return fused.params(), fused.layers()


class _Fused:
    """A workspace loaded with parameters and layers, and the arguments that stay the same from step to step."""

    def __init__(
        self, network: Dense, params: Floats, layers: Layers, own: Floats, data: Patients, local: Local, frozen: bool
    ) -> None:
        training._check(network, params, data, local)
        features, outputs = network.sizes[0], network.sizes[-1]
        self.network, self.kinds = network, layers
        self.memory, self.table, self.offsets, self.masks = affine_workspace(
            network.sizes, _KINDS[layers.into], _KINDS[layers.out]
        )
        flat = np.ascontiguousarray(params, np.float32)
        for column in (W, O):
            unpack(self.memory, self.table, column, flat)
        for name, values in layers.split(np.asarray(own, np.float32), features, outputs).items():
            self._place(name)[:] = values
        self._turn()
        self.numbers = network.n_params + layers.length(features, outputs)
        self.scratch = np.zeros((1, padded(self.numbers, 32) + WIDTH), np.float32)
        clip = math.inf if local.clip is None else local.clip
        self.data = (data.x, data.y, data.starts)
        self.settings = (
            float(local.dropout),
            frozen,
            0.0 if local.clip is None else float(min(local.batch, data.patients)),
            float(clip),
            float(local.noise_multiplier * clip) if local.noise_multiplier else 0.0,
            float(local.proximal),
            float(local.momentum),
            float(local.rate),
            float(layers.pull(data.patients)),
            np.asarray(training.weights_of(local, data.y, network.classes), np.float32),
            network.activation == "relu",
            np.empty(BLOCK, np.int64),
            np.empty(BLOCK, np.int64),
            np.empty(BLOCK, np.int64),
            np.empty(BLOCK, np.float64),
            np.empty(BLOCK, np.float32),
        )

    def _place(self, name: str) -> Floats:
        row, column = int(name.endswith("out")), SHIFT if name.startswith("b") else SCALE
        at = int(self.offsets[row, column])
        return self.memory[at : at + int(self.offsets[row, 1])]

    def _turn(self) -> None:
        """Transposed weights for the backward pass, those of the first layer too where f_in needs them."""
        turn(self.memory, self.table)
        turn_first(self.memory, self.table)

    def run(
        self,
        picks: NDArray[np.int64],
        ends: NDArray[np.int64],
        words: NDArray[np.uint32],
        noise: Floats,
        seeds: NDArray[np.uint64],
    ) -> None:
        """Take the steps of ``ends``."""
        run_affine(
            self.memory, self.table, self.offsets, self.masks, *self.data, picks, ends, words, noise,
            self.network.n_params, seeds, *self.settings,
        )  # fmt: skip

    def params(self) -> Floats:
        """The network now."""
        out = np.empty(self.network.n_params, np.float32)
        pack(self.memory, self.table, W, out)
        return out

    def layers(self) -> Floats:
        """The affine layers now, flat."""
        names = self.kinds.split(np.zeros(self.numbers - self.network.n_params, np.float32), *self._ends())
        return np.concatenate([np.zeros(0, np.float32), *(self._place(name) for name in names)])

    def _ends(self) -> tuple[int, int]:
        return self.network.sizes[0], self.network.sizes[-1]
