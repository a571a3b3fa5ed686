"""Local training with a model-contrastive term: Li, He, Song 2021 (MOON), equations (3) and (4).
Not private.

The representation of a row is the last hidden layer's activation. Beside the cross-entropy, each
row pulls its representation z towards the global model's and pushes it from that of the site's
previous model:

    mu * -log( exp(sim(z, z_glob) / tau) / (exp(sim(z, z_glob) / tau) + exp(sim(z, z_prev) / tau)) )

with sim the cosine. The other two models stand still during a round, so their representations are
computed once. A row without any active unit has no direction: its similarities are 0 and it neither
pulls nor is pulled.

There is no clipping here: what comes out depends on single patients without bound, and no event
pays for it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from suture.errors import StudyError
from suture.models.dense import Dense
from suture.models.dense import Floats as Params
from suture.privacy.noise.source import derive
from suture.privacy.unit import Patients
from suture.training.local import Local, batches, check, known, loss_weights

Floats = NDArray[np.float64]
Layers = list[tuple[Floats, Floats]]


class Pull(NamedTuple):
    """The contrastive term for some rows: directions (unit vectors) of the global and of the
    previous model's representations, mu and tau."""

    towards: Floats
    away: Floats
    mu: float
    temperature: float

    def of(self, rows: NDArray[np.int64]) -> Pull:
        """The same for some of the rows."""
        return self._replace(towards=self.towards[rows], away=self.away[rows])


def train_contrastive(
    network: Dense,
    start: Params,
    previous: Params,
    data: Patients,
    local: Local,
    mu: float,
    temperature: float,
    key: bytes,
) -> Params:
    """Parameters after local training from ``start``, the global model, on the batches that
    `mechanism.train` would draw."""
    network.check(start)
    check(network, data, local)
    flat = start.astype(np.float64)
    speed = np.zeros_like(flat)
    x = data.x.astype(np.float64)
    towards, away = (
        unit_rows(representation(network, model.astype(np.float64), x))
        for model in (start, previous)
    )
    pull = Pull(towards, away, mu, temperature)
    y, weights = known(data.y, network.classes), loss_weights(local, data.y, network.classes)
    for picks, ends in batches(data, local, derive(key, "sampling"), 64):
        for batch in np.split(picks, ends[:-1]):
            spans = (np.arange(data.starts[p], data.starts[p + 1]) for p in batch)
            rows = np.concatenate([np.zeros(0, np.int64), *spans])
            slope = gradient(network, flat, x[rows], y[rows], weights, pull.of(rows))
            speed = local.momentum * speed + slope
            flat = flat - local.rate * speed
    return flat.astype(np.float32)


def representation(network: Dense, params: Floats, x: Floats) -> Floats:
    """The last hidden layer's activations, rows x units."""
    return _activations(network, network.layers(params), x)[-1]


def gradient(
    network: Dense,
    params: Floats,
    x: Floats,
    y: NDArray[np.int32],
    weights: Floats,
    pull: Pull,
) -> Floats:
    """The mean over rows of the gradient of cross-entropy plus the contrastive term."""
    layers = network.layers(params)
    kept = _activations(network, layers, x)
    out, bias = layers[-1]
    scores = kept[-1] @ out + bias
    shared = max(1, len(x))
    delta = _outcome(scores, y) * weights[y][:, None] / shared
    parts = [(kept[-1].T @ delta, delta.sum(axis=0))]
    back = delta @ out.T + pull.mu / shared * _contrast(kept[-1], pull)
    for i in range(len(layers) - 2, -1, -1):
        after = kept[i + 1]
        delta = back * (after > 0 if network.activation == "relu" else 1 - after**2)
        parts.append((kept[i].T @ delta, delta.sum(axis=0)))
        back = delta @ layers[i][0].T
    return np.concatenate([part.ravel() for pair in reversed(parts) for part in pair])


def unit_rows(z: Floats) -> Floats:
    """Each row at length 1; a row of zeros stays what it is.

    >>> unit_rows(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6, 0.8], [0.0, 0.0]]
    """
    lengths = np.linalg.norm(z, axis=1, keepdims=True)
    return np.divide(z, lengths, out=np.zeros_like(z), where=lengths > 0)


def needs_hidden(network: Dense) -> None:
    """Refuse a logistic regression: it has no representation to compare."""
    if len(network.sizes) < 3:
        raise StudyError(
            "this method compares representations, which are a hidden layer's activations; "
            "model.hidden = [] is logistic regression and has none: add a layer, for example "
            "hidden = [32], or use another method"
        )


def _contrast(z: Floats, pull: Pull) -> Floats:
    """Derivative of equation (3) with respect to z, row by row."""
    lengths = np.linalg.norm(z, axis=1, keepdims=True)
    here = unit_rows(z)
    difference = pull.away - pull.towards
    gap = np.sum(here * difference, axis=1, keepdims=True)
    share = 0.5 * (1 + np.tanh(gap / pull.temperature / 2))
    slope = share / pull.temperature * (difference - gap * here)
    return np.divide(slope, lengths, out=np.zeros_like(slope), where=lengths > 0)


def _outcome(scores: Floats, y: NDArray[np.int32]) -> Floats:
    """Derivative of the cross-entropy with respect to the logits."""
    if scores.shape[1] == 1:
        return np.asarray(0.5 * (1 + np.tanh(scores / 2)) - y[:, None])
    e = np.exp(scores - scores.max(axis=1, keepdims=True))
    e /= e.sum(axis=1, keepdims=True)
    inside = np.flatnonzero(y < scores.shape[1])
    e[inside, y[inside]] -= 1
    return np.asarray(e)


def _activations(network: Dense, layers: Layers, x: Floats) -> list[Floats]:
    kept = [x]
    for weights, bias in layers[:-1]:
        sums = kept[-1] @ weights + bias
        kept.append(np.maximum(sums, 0.0) if network.activation == "relu" else np.tanh(sums))
    return kept
