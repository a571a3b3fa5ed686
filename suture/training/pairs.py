"""Two models trained side by side on the same batches, with one clip and one event (APFL and Ditto need this).

Each step asks for a patient's gradient at two points. Both are clipped to C / sqrt(2), so the pair has norm at most C,
and both get noise of standard deviation sigma C: one sampled Gaussian mechanism of multiplier sigma on the joint
vector, which is what `local.event` states. Nothing is paid twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from suture.models.dense import Dense
from suture.models.forward import V, W, pack, unpack
from suture.privacy.mechanisms import Keystream, derive
from suture.privacy.unit import Patients
from suture.training import local as training
from suture.training.local import Local
from suture.training.noise import normals
from suture.training.personal import Layers, _Fused

Floats = NDArray[np.float32]
_NO_WORDS = np.empty((0, 0), np.uint32)


class Pair:
    """Noisy mean gradients of a site's patients at two points, batch by batch.

    >>> from suture.privacy.mechanisms import seeded_key
    >>> rows = Patients(np.ones((4, 1), np.float32), np.array([0, 1, 1, 1]), np.arange(5))
    >>> pair = Pair(Dense((1, 1)), rows, Local(batch=4), seeded_key(1))
    >>> here, there = np.zeros(2, np.float32), np.array([0.0, 100.0], np.float32)
    >>> [[g.tolist() for g in pair.gradients(batch, here, there)] for batch in pair.batches()]
    [[[-0.25, -0.25], [0.25, 0.25]]]
    """

    def __init__(self, network: Dense, data: Patients, local: Local, key: bytes) -> None:
        self._local, self._patients, self._key = local, data.patients, key
        halved = replace(local, rate=0.0, momentum=0.0, proximal=0.0)
        if local.clip is not None:
            noise = None if local.noise_multiplier is None else local.noise_multiplier * math.sqrt(2)
            halved = replace(halved, clip=local.clip / math.sqrt(2), noise_multiplier=noise)
        start = np.zeros(network.n_params, np.float32)
        self._fused = _Fused(network, start, Layers("none", "none"), np.zeros(0, np.float32), data, halved, False)
        self._noise = Keystream(derive(key, "noise"))
        self._masks = Keystream(derive(key, "dropout"))

    def batches(self) -> Iterator[NDArray[np.int64]]:
        """The batches of one local training, drawn as `local.train` draws them."""
        chunk = training._chunk(0, min(self._local.batch, self._patients))
        for picks, ends in training._batches(self._patients, self._local, derive(self._key, "sampling"), chunk):
            yield from np.split(picks, ends[:-1])

    def gradients(self, batch: NDArray[np.int64], first: Floats, second: Floats) -> tuple[Floats, Floats]:
        """The noisy mean gradient of the batch at two points."""
        return self._gradient(batch, first), self._gradient(batch, second)

    def _gradient(self, batch: NDArray[np.int64], params: Floats) -> Floats:
        fused = self._fused
        unpack(fused.memory, fused.table, W, np.ascontiguousarray(params, np.float32))
        fused._turn()
        noise = fused.scratch
        if self._local.private:
            noise[0, : fused.numbers] = normals(fused.numbers, self._noise)
        seed = np.empty(1, np.uint64)
        self._masks.fill(seed)
        fused.run(np.ascontiguousarray(batch, np.int64), np.array([len(batch)]), _NO_WORDS, noise, seed)
        out = np.empty(fused.network.n_params, np.float32)
        pack(fused.memory, fused.table, V, out)  # without momentum the velocity is the gradient itself
        return out
