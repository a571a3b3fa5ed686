"""Training on given batches with given noise: draws nothing, so it protects nobody, and can be
compared with other implementations step by step."""

import numpy as np

from suture.training.affine import FusedAffine
from suture.training.dpsgd import Fused
from suture.training.imaging import _Step


def train_on_batches(network, params, data, local, batches, noise=None, push=None):
    """Parameters after a step on each batch of patients; ``noise`` is standard normal, one row for
    each step."""
    fused = Fused(network, params, data, local, None, push)
    _run(fused, batches, noise)
    return fused.params()


def train_affine_on_batches(
    network, params, layers, own, data, local, batches, noise=None, *, frozen=False
):
    """The same with affine layers around the network: parameters and layers."""
    fused = FusedAffine(network, params, layers, own, data, local, frozen)
    _run(fused, batches, noise)
    return fused.params(), fused.layers()


def train_images_on_batches(network, params, data, local, batches, noise=None, push=None):
    """The same for images."""
    step = _Step(network, params, data, local, None, push)
    for i, batch in enumerate(batches):
        step.take(np.asarray(batch, np.int64), None if noise is None else noise[i])
    return step.params()


def _run(fused, batches, noise):
    rows = fused.scratch
    if noise is not None:
        assert noise.shape == (len(batches), fused.numbers)
        rows = np.zeros((len(batches), rows.shape[1]), np.float32)
        rows[:, : fused.numbers] = noise
    picks = np.concatenate([np.zeros(0, np.int64), *batches]).astype(np.int64)
    assert all(0 <= patient < fused.patients.patients for patient in picks)
    ends = np.cumsum([len(batch) for batch in batches], dtype=np.int64)
    seeds = np.arange(len(batches), dtype=np.uint64)
    fused.run(picks, ends, np.empty((0, 0), np.uint32), rows, seeds)
