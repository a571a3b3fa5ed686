"""Two models trained side by side on the same batches, with one clip and one event, as APFL and
Ditto need.

Each step takes a patient's gradient at two points. Both are clipped to C / sqrt(2), so the pair has
norm at most C, and both get noise of standard deviation sigma C: one sampled Gaussian mechanism of
multiplier sigma on the joint vector, which is what `local.event` states. Nothing is paid twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from suture.models.dense import Dense, Floats, V, W
from suture.privacy.noise.source import Keystream, derive
from suture.privacy.unit import Patients
from suture.training.affine import NOTHING, PLAIN, FusedAffine
from suture.training.dpsgd import NO_WORDS
from suture.training.local import Indices, Local, batches, chunk_of, normals


def train_mixed(
    network: Dense,
    begin: Floats,
    own: Floats,
    alpha: float,
    adaptive: bool,
    data: Patients,
    local: Local,
    key: bytes,
) -> tuple[Floats, Floats, np.float32]:
    """APFL's local training (Algorithm 1): w from ``begin``, v from ``own``, and the mixture's
    alpha.

    On every batch w steps on its own loss and v on that of alpha v + (1 - alpha) w; with
    ``adaptive``, alpha moves once, by the derivative of the mixture's loss. All of it is a function
    of the pair's noisy gradients, so nothing more is paid.

    >>> from suture.privacy.noise.source import seeded_key
    >>> rows = Patients(np.ones((4, 1), np.float32), np.array([1, 1, 1, 1]), np.arange(5))
    >>> start = np.zeros(2, np.float32)
    >>> w, v, alpha = train_mixed(Dense((1, 1)), start, start, 0.5, False, rows, Local(rate=1.0), seeded_key(1))
    >>> w.tolist(), v.tolist(), float(alpha)
    ([0.5, 0.5], [0.25, 0.25], 0.5)
    """
    begin = np.ascontiguousarray(begin, np.float32)
    w, v, share = begin.copy(), np.array(own, np.float32), np.float32(alpha)
    pair = Pair(network, data, local, key)
    moved = not adaptive
    for batch in pair.batches():
        mixed = share * v + (1 - share) * w
        of_w, of_mixed = pair.gradients(batch, w, mixed)
        if not moved:
            share = np.float32(np.clip(share - local.rate * float((v - w) @ of_mixed), 0.0, 1.0))
            moved = True
        w = w - np.float32(local.rate) * of_w
        v = v - np.float32(local.rate) * share * of_mixed
    return w, v, share


def train_tied(
    network: Dense,
    begin: Floats,
    own: Floats,
    pull: float,
    data: Patients,
    local: Local,
    key: bytes,
) -> tuple[Floats, Floats]:
    """Ditto's local training (Algorithm 1): w from ``begin``, and v from ``own``, pulled to
    ``begin``.

    >>> from suture.privacy.noise.source import seeded_key
    >>> rows = Patients(np.ones((4, 1), np.float32), np.array([1, 1, 1, 1]), np.arange(5))
    >>> start, own = np.zeros(2, np.float32), np.array([1.0, -1.0], np.float32)
    >>> w, v = train_tied(Dense((1, 1)), start, own, 0.5, rows, Local(rate=1.0), seeded_key(1))
    >>> w.tolist(), v.tolist()
    ([0.5, 0.5], [1.0, 0.0])
    """
    begin = np.ascontiguousarray(begin, np.float32)
    w, v = begin.copy(), np.array(own, np.float32)
    rate, hold, spring = np.float32(local.rate), np.float32(local.momentum), np.float32(pull)
    speed_w, speed_v = np.zeros_like(w), np.zeros_like(v)
    pair = Pair(network, data, local, key)
    for batch in pair.batches():
        of_w, of_v = pair.gradients(batch, w, v)
        speed_w = hold * speed_w + of_w
        speed_v = hold * speed_v + of_v + spring * (v - begin)
        w, v = w - rate * speed_w, v - rate * speed_v
    return w, v


class Pair:
    """Noisy mean gradients of a site's patients at two points, batch by batch."""

    def __init__(self, network: Dense, data: Patients, local: Local, key: bytes) -> None:
        self._local, self._data, self._key = local, data, key
        halved = replace(local, rate=0.0, momentum=0.0, proximal=0.0)
        if local.clip is not None:
            sigma, root = local.noise_multiplier, math.sqrt(2)
            noise = None if sigma is None else sigma * root
            halved = replace(halved, clip=local.clip / root, noise_multiplier=noise)
        start = np.zeros(network.n_params, np.float32)
        self._fused = FusedAffine(network, start, PLAIN, NOTHING, data, halved, False)
        self._noise = Keystream(derive(key, "noise"))
        self._masks = Keystream(derive(key, "dropout"))

    def batches(self) -> Iterator[Indices]:
        """The batches of one local training, drawn as `mechanism.train` draws them."""
        chunk = chunk_of(0, self._data, self._local)
        key = derive(self._key, "sampling")
        for picks, ends in batches(self._data, self._local, key, chunk):
            yield from np.split(picks, ends[:-1])

    def gradients(self, batch: Indices, first: Floats, second: Floats) -> tuple[Floats, Floats]:
        """The noisy mean gradient of the batch at two points."""
        return self._gradient(batch, first), self._gradient(batch, second)

    def _gradient(self, batch: Indices, params: Floats) -> Floats:
        fused = self._fused
        fused.load(W, params)
        fused.turn()
        noise = fused.scratch
        if self._local.private:
            noise[0, : fused.numbers] = normals(fused.numbers, self._noise)
        seed = np.empty(1, np.uint64)
        self._masks.fill(seed)
        picks, ends = np.ascontiguousarray(batch, np.int64), np.array([len(batch)])
        fused.run(picks, ends, NO_WORDS, noise, seed)
        return fused.params(V)  # without momentum the velocity is the gradient itself
