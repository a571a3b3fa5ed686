"""Plain NumPy DP-SGD in float64: one patient at a time, every gradient formed. Slow, and easy to
check by eye."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from suture.models.dense import Dense
from suture.privacy.unit import Patients
from suture.training.local import Local

Floats = NDArray[np.float64]


def gradient(
    network: Dense, params: Floats, x: Floats, y: NDArray[np.int32], class_weights: Floats
) -> Floats:
    """Sum of the rows' gradients."""
    layers = network.layers(params)
    acts = [x]
    for i, (w, b) in enumerate(layers):
        z = acts[-1] @ w + b
        if i < len(layers) - 1:
            z = np.maximum(z, 0) if network.activation == "relu" else np.tanh(z)
        acts.append(z)
    if network.sizes[-1] == 1:
        d = 1 / (1 + np.exp(-acts[-1])) - y[:, None]
    else:
        e = np.exp(acts[-1] - acts[-1].max(axis=1, keepdims=True))
        d = e / e.sum(axis=1, keepdims=True) - np.eye(network.classes)[y]
    d = d * class_weights[y][:, None]
    parts: list[Floats] = []
    for i in reversed(range(len(layers))):
        parts = [(acts[i].T @ d).ravel(), d.sum(axis=0), *parts]
        if i:
            d = d @ layers[i][0].T
            d = d * (acts[i] > 0) if network.activation == "relu" else d * (1 - acts[i] ** 2)
    return np.concatenate(parts)


def train(
    network: Dense,
    params: NDArray[np.float32],
    data: Patients,
    local: Local,
    batches: Sequence[NDArray[np.int64]],
    noise: NDArray[np.float32] | None = None,
) -> Floats:
    """What `train_on_batches` must compute."""
    start = params.astype(np.float64)
    weights, velocity = start.copy(), np.zeros_like(start)
    class_weights = np.asarray(local.class_weights or (1.0,) * network.classes)
    for step, batch in enumerate(batches):
        total, rows = np.zeros_like(start), 0
        for patient in batch:
            own = slice(data.starts[patient], data.starts[patient + 1])
            g = gradient(
                network, weights, data.x[own].astype(np.float64), data.y[own], class_weights
            )
            rows += own.stop - own.start
            total += g * min(1.0, local.clip / np.linalg.norm(g)) if local.clip is not None else g
        if local.clip is None:
            total /= max(rows, 1)
        else:
            if noise is not None and local.noise_multiplier:
                total += local.noise_multiplier * local.clip * noise[step].astype(np.float64)
            total /= min(local.batch, data.patients)
        total += local.proximal * (weights - start)
        velocity = local.momentum * velocity + total
        weights = weights - local.rate * velocity
    return weights


def clipped_sum(
    network: Dense, params: NDArray[np.float32], data: Patients, local: Local, clip: float
) -> Floats:
    """The sum over patients of the gradient of their rows' summed loss, each clipped to ``clip``;
    one that is not finite counts as zero."""
    wide, total = params.astype(np.float64), np.zeros(network.n_params)
    class_weights = np.asarray(local.class_weights or (1.0,) * network.classes)
    for start, end in pairwise(data.starts):
        x = data.x[start:end].astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            g = gradient(network, wide, x, data.y[start:end], class_weights)
            norm = np.linalg.norm(g)
        if np.isfinite(norm):
            total += g * min(1.0, clip / max(norm, 1e-300))
    return total


def vote_scores(values: NDArray[np.float32], residual: Floats, starts: NDArray[np.int64]) -> Floats:
    """Sum over patients of what their rows' value * residual add up to, clipped to -1..1."""
    weighted = values.astype(np.float64) * residual[:, None]
    return np.clip(np.add.reduceat(weighted, starts[:-1], axis=0), -1, 1).sum(axis=0)


def loss(
    network: Dense, params: NDArray[np.float32], x: NDArray[np.float32], y: NDArray[np.int32]
) -> float:
    """Mean cross-entropy over rows, from the network's logits."""
    z = network.logits(params, x).astype(np.float64)
    if network.sizes[-1] == 1:
        return float(np.logaddexp(0.0, z[:, 0] * (1 - 2 * np.asarray(y, np.float64))).mean())
    return float((np.logaddexp.reduce(z, axis=1) - z[np.arange(len(z)), y]).mean())


def to_torch(network: Dense, params: NDArray[np.float32]) -> NDArray[np.float32]:
    """The same parameters in the order of PyTorch's ``parameters_to_vector`` (outputs x inputs, then
    biases)."""
    return np.concatenate([part for w, b in network.layers(params) for part in (w.T.ravel(), b)])


def from_torch(network: Dense, params: NDArray[np.float32]) -> NDArray[np.float32]:
    """Inverse of `to_torch`."""
    pairs = ((w.reshape(w.shape[::-1]).T.ravel(), b) for w, b in network.layers(params))
    return np.concatenate([part for pair in pairs for part in pair]).astype(np.float32)


def contrastive_loss(z: Floats, towards: Floats, away: Floats, temperature: float) -> Floats:
    """MOON's equation (3), one value per row; ``towards`` and ``away`` are unit vectors."""
    lengths = np.linalg.norm(z, axis=1, keepdims=True)
    here = np.divide(z, lengths, out=np.zeros_like(z), where=lengths > 0)
    return np.logaddexp(0.0, np.sum(here * (away - towards), axis=1) / temperature)


def pick_probabilities(scores: Floats, eps0: float) -> Floats:
    """The closed form of one vote, (2, d): row 0 for +, row 1 for -."""
    exponent = eps0 / 2 * np.stack([scores, -scores])
    weight = np.exp(exponent - exponent.max())
    return weight / weight.sum()
