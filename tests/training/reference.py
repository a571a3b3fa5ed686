"""Plain NumPy DP-SGD in float64: one patient at a time, every gradient formed. Slow, and easy to check by eye."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from suture.models.dense import Dense
from suture.privacy.unit import Patients
from suture.training.local import Local

Floats = NDArray[np.float64]


def gradient(network: Dense, params: Floats, x: Floats, y: NDArray[np.int32], class_weights: Floats) -> Floats:
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
            g = gradient(network, weights, data.x[own].astype(np.float64), data.y[own], class_weights)
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
