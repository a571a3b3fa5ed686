"""Training of dense networks by the compiled kernels of `dpsgd` and `affine`: alone, with dropout, or
between a site's personal affine layers.

The layers and the network are one model with one gradient: clipped together, noised together,
counted once. That is why the layers of a private training may be shown, and cannot carry a
patient's influence past the noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from suture.errors import StudyError
from suture.models.dense import Dense, dense_only
from suture.models.forward import O, W, pack, unpack, workspace
from suture.models.lanes import WIDTH, padded
from suture.models.network import Floats, Network
from suture.privacy.noise.source import Keystream, derive
from suture.privacy.unit import Patients
from suture.training.affine import (
    NONE,
    SCALAR,
    SCALE,
    SHIFT,
    VECTOR,
    Affine,
    affine_workspace,
    run_affine,
    turn_first,
)
from suture.training.dpsgd import Data, Rule, new_block, run, turn
from suture.training.draws import words_for
from suture.training.local import (
    Indices,
    Local,
    batches,
    check,
    chunk_of,
    expected_batch,
    known,
    loss_weights,
)

Words = NDArray[np.uint32]
Seeds = NDArray[np.uint64]
Kind = Literal["none", "vector", "scalar"]
_KINDS = {"none": NONE, "vector": VECTOR, "scalar": SCALAR}
_NO_WORDS = np.empty((0, 0), np.uint32)
_NOTHING = np.zeros(0, np.float32)


@dataclass(frozen=True)
class Layers:
    """Which affine layers there are: f_in and f_out, each none, vector (one number per column) or
    scalar (one for all).

    A scalar f_out has one scale for all logits and a shift for each (iFedAvg, appendix A.4).

    ``spread`` is a prior for every number: normal around the identity with this standard deviation.
    None is the paper's method, without a prior. With it, the most probable layers minimise the
    site's loss plus the squared distance from the identity / (2 spread^2): a site with few patients
    stays near the federation's model, and one with many moves as far as its rows say. (The authors'
    code has such a term, switched off in its published settings.)

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
        """How strongly layers are drawn to the identity, beside a loss that is a mean over
        ``patients`` (the public size)."""
        return 0.0 if self.spread is None else 1.0 / (self.spread * self.spread * max(1, patients))

    def _sizes(self, features: int, outputs: int) -> list[tuple[str, int]]:
        ends = (("in", self.into, features), ("out", self.out, outputs))
        return [(name, size) for name, kind, size in ends if kind != "none"]

    def length(self, features: int, outputs: int) -> int:
        """How many numbers the layers keep."""
        return sum(2 * size for _, size in self._sizes(features, outputs))

    def identity(self, features: int, outputs: int) -> Floats:
        """Where every site starts: shifts 0, scales 1.

        >>> Layers().identity(2, 1).tolist()
        [0.0, 0.0, 1.0, 1.0]
        """
        start = np.array([0, 1], np.float32)
        parts = [np.repeat(start, size) for _, size in self._sizes(features, outputs)]
        return np.concatenate([_NOTHING, *parts])

    def split(self, flat: Floats, features: int, outputs: int) -> dict[str, Floats]:
        """The layers that exist, by name: ``b_in``, ``w_in``, ``b_out``, ``w_out``; views of
        ``flat``.

        >>> {name: part.tolist() for name, part in Layers().split(np.arange(4.0), 2, 1).items()}
        {'b_in': [0.0, 1.0], 'w_in': [2.0, 3.0]}
        """
        length = self.length(features, outputs)
        if flat.shape != (length,):
            raise StudyError(f"expected {length} numbers in the layers, found {flat.shape}")
        found, at = {}, 0
        for name, size in self._sizes(features, outputs):
            for part in ("b", "w"):
                found[f"{part}_{name}"] = flat[at : at + size]
                at += size
        return found


PLAIN = Layers("none", "none")


def train_dense(
    network: Network,
    params: Floats,
    data: Patients,
    local: Local,
    key: bytes,
    anchor: Floats | None = None,
    push: Floats | None = None,
) -> Floats:
    """Parameters after local training; see `mechanism.train`."""
    dense = dense_only(network, "this training")
    if not local.dropout:
        fused = Fused(dense, params, data, local, anchor, push)
        fused.train(key)
        return fused.params()
    if anchor is not None or push is not None:
        raise StudyError(
            "training with dropout has no anchor or push; set model.dropout to 0 for this method"
        )
    return train_affine(dense, params, PLAIN, _NOTHING, data, local, key)[0]


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
    """Network and layers after local training; the randomness is a function of ``key`` alone, and
    the arguments are left as they are.

    With ``frozen`` the network is left alone and only the layers are fitted: this is how a new
    hospital joins.

    >>> from suture.privacy.noise.source import seeded_key
    >>> rows = Patients(np.eye(4, dtype=np.float32), np.array([0, 1, 0, 1]), np.arange(5))
    >>> net, layers, start = Dense((4, 2), "tanh"), Layers("vector", "scalar"), np.zeros(10, np.float32)
    >>> own, local = layers.identity(4, 2), Local(dropout=0.2)
    >>> new, own = train_affine(net, start, layers, own, rows, local, seeded_key(1))
    >>> new.shape, own.shape
    ((10,), (12,))
    """
    fused = FusedAffine(network, params, layers, own, data, local, frozen)
    fused.train(key)
    return fused.params(), fused.layers()


class Fused:
    """A workspace loaded with parameters, and the arguments that stay the same from step to
    step."""

    def __init__(
        self,
        network: Dense,
        params: Floats,
        data: Patients,
        local: Local,
        anchor: Floats | None = None,
        push: Floats | None = None,
    ) -> None:
        network.check(params)
        check(network, data, local, push)
        self.network, self.patients, self.local = network, data, local
        self.memory, self.table = self._workspace()
        self.numbers = network.n_params
        self.load(W, params)
        if anchor is not None:
            network.check(anchor)
        self.load(O, params if anchor is None else anchor)
        y = known(data.y, network.classes)
        weights = loss_weights(local, data.y, network.classes).astype(np.float32)
        pushes = () if push is None else np.where(y < network.classes, push, 0)
        pushed = np.ascontiguousarray(pushes, np.float32)
        relu = network.activation == "relu"
        self.data = Data(data.x, y, data.starts, pushed, weights, relu)
        clip = math.inf if local.clip is None else float(local.clip)
        scale = float(local.noise_multiplier * clip) if local.noise_multiplier else 0.0
        expected, proximal = expected_batch(data.size, local), float(local.proximal)
        self.rule = Rule(expected, clip, scale, proximal, float(local.momentum), float(local.rate))
        self.block = new_block()
        self._ready()

    def _workspace(self) -> tuple[Floats, Indices]:
        return workspace(self.network.sizes, training=True)

    def _ready(self) -> None:
        self.turn()
        # One lane more than the numbers, since the last row of a layer is read in whole lanes.
        self.scratch = np.zeros((1, padded(self.numbers, 32) + WIDTH), np.float32)

    def load(self, column: int, params: Floats) -> None:
        """Put parameters into one column of the workspace."""
        unpack(self.memory, self.table, column, np.ascontiguousarray(params, np.float32))

    def turn(self) -> None:
        """Transpose the weights for the backward pass."""
        turn(self.memory, self.table)

    def train(self, key: bytes) -> None:
        """Draw batches and noise from ``key``, and take every step."""
        width = words_for(self.numbers) if self.local.private else 0
        chunk = chunk_of(width, self.patients, self.local)
        stream, masks = Keystream(derive(key, "noise")), Keystream(derive(key, "dropout"))
        words = np.empty((chunk, width), np.uint32)
        for picks, ends in batches(self.patients, self.local, derive(key, "sampling"), chunk):
            drawn = words[: len(ends)] if width else _NO_WORDS
            if width:
                stream.fill(drawn)
            seeds = np.empty(len(ends), np.uint64)
            masks.fill(seeds)
            self.run(picks, ends, drawn, self.scratch, seeds)

    def run(self, picks: Indices, ends: Indices, words: Words, noise: Floats, seeds: Seeds) -> None:
        """Take the steps of ``ends``; ``seeds`` are for dropout."""
        place = self.memory, self.table
        run(*place, self.data, picks, ends, words, noise, self.rule, self.block)

    def params(self, column: int = W) -> Floats:
        """The parameters now."""
        out = np.empty(self.network.n_params, np.float32)
        pack(self.memory, self.table, column, out)
        return out


class FusedAffine(Fused):
    """The same with affine layers around the network, and dropout."""

    def __init__(
        self,
        network: Dense,
        params: Floats,
        layers: Layers,
        own: Floats,
        data: Patients,
        local: Local,
        frozen: bool,
    ) -> None:
        self.kinds, self.own, self.frozen = layers, np.asarray(own, np.float32), frozen
        super().__init__(network, params, data, local)

    def _workspace(self) -> tuple[Floats, Indices]:
        kinds = _KINDS[self.kinds.into], _KINDS[self.kinds.out]
        memory, table, self.offsets, self.masks = affine_workspace(self.network.sizes, *kinds)
        return memory, table

    def _ready(self) -> None:
        for name, values in self._split(self.own).items():
            self._place(name)[:] = values
        self.numbers += len(self.own)
        dropout, pull = float(self.local.dropout), float(self.kinds.pull(self.patients.size))
        size = self.network.n_params
        self.affine = Affine(self.offsets, self.masks, size, dropout, self.frozen, pull)
        super()._ready()

    def _split(self, flat: Floats) -> dict[str, Floats]:
        return self.kinds.split(flat, self.network.sizes[0], self.network.sizes[-1])

    def _place(self, name: str) -> Floats:
        row, column = int(name.endswith("out")), SHIFT if name.startswith("b") else SCALE
        at = int(self.offsets[row, column])
        return self.memory[at : at + int(self.offsets[row, 1])]

    def turn(self) -> None:
        """Transpose the first layer's weights too, which f_in's derivative needs."""
        super().turn()
        turn_first(self.memory, self.table)

    def run(self, picks: Indices, ends: Indices, words: Words, noise: Floats, seeds: Seeds) -> None:
        """Take the steps of ``ends``; ``seeds`` are for dropout."""
        place, how = (self.memory, self.table, self.affine), (self.rule, self.block)
        run_affine(*place, self.data, picks, ends, words, noise, seeds, *how)

    def layers(self) -> Floats:
        """The affine layers now, flat."""
        return np.concatenate([_NOTHING, *map(self._place, self._split(self.own))])
