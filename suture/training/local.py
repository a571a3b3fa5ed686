"""Local training: DP-SGD by patient, and its non-private counterpart.

Abadi et al., "Deep Learning with Differential Privacy" (CCS 2016), Algorithm 1, with the patient as the unit. Each step
draws every patient independently with probability q (Poisson sampling, as the accountants assume), sums a patient's row
gradients, clips that sum to L2 norm C, adds N(0, (sigma C)^2) to the total and divides by the *expected* batch, which is
public, never by the number drawn, which is not.

| here             | paper | meaning                                    |
|------------------|-------|--------------------------------------------|
| batch / patients | q     | sampling probability of a patient          |
| clip             | C     | largest norm of one patient's contribution |
| noise_multiplier | sigma | noise standard deviation / C               |
| min(batch, n)    | L     | expected batch                             |
| rate             | eta   | learning rate                              |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import dp_accounting
import numpy as np
from numpy.typing import NDArray

from suture.errors import DataError, StudyError
from suture.models.dense import Dense
from suture.privacy.mechanisms import derive, generator
from suture.privacy.unit import Patients

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Local:
    """How one site trains on its own rows; ``clip`` and ``noise_multiplier`` both None means without privacy.

    >>> Local(epochs=5, clip=1.0, noise_multiplier=1.1).private
    True
    >>> Local(clip=1.0).private, Local().private
    (False, False)
    """

    epochs: int = 1
    batch: int = 32
    rate: float = 0.01
    momentum: float = 0.0
    proximal: float = 0.0
    class_weights: tuple[float, ...] | None = None
    clip: float | None = None
    noise_multiplier: float | None = None

    def __post_init__(self) -> None:
        if self.epochs < 0 or self.batch < 1:
            raise StudyError(f"expected epochs >= 0 and batch >= 1, found {self.epochs} and {self.batch}")
        for name, least in (("rate", 0.0), ("momentum", 0.0), ("proximal", 0.0)):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= least):
                raise StudyError(f"expected {name} >= {least:g} and finite, found {value}")
        if self.clip is not None and not (math.isfinite(self.clip) and self.clip > 0):
            raise StudyError(f"expected clip > 0 and finite, found {self.clip}")
        if self.noise_multiplier is not None:
            if self.clip is None:
                raise StudyError("noise_multiplier needs clip: without a clipping norm noise protects nobody; set clip")
            if not (math.isfinite(self.noise_multiplier) and self.noise_multiplier >= 0):
                raise StudyError(f"expected noise_multiplier >= 0 and finite, found {self.noise_multiplier}")

    @property
    def private(self) -> bool:
        """True only with clipping and noise: clipping alone protects nobody."""
        return self.clip is not None and bool(self.noise_multiplier)


def sampling_rate(patients: int, batch: int) -> float:
    """The probability with which each patient is drawn in a step.

    >>> sampling_rate(64, 32), sampling_rate(10, 32)
    (0.5, 1.0)
    """
    if patients < 1:
        raise DataError("expected at least one patient to train on, found none")
    return min(1.0, batch / patients)


def steps(patients: int, local: Local) -> int:
    """How many steps `train` takes: ``epochs`` times the batches that cover the patients once.

    >>> steps(1270, Local(epochs=500, batch=32))
    20000
    """
    return local.epochs * math.ceil(patients / local.batch)


def event(local: Local, patients: int) -> dp_accounting.DpEvent:
    """The privacy event of one call of `train`: exactly what runs, for an accountant to compose.

    >>> event(Local(batch=32, clip=1.0, noise_multiplier=1.0), 64).count
    2
    >>> type(event(Local(clip=1.0), 64)).__name__
    'NonPrivateDpEvent'
    """
    if not local.private:
        return dp_accounting.NonPrivateDpEvent()
    step = dp_accounting.PoissonSampledDpEvent(
        sampling_rate(patients, local.batch), dp_accounting.GaussianDpEvent(local.noise_multiplier)
    )
    return dp_accounting.SelfComposedDpEvent(step, steps(patients, local))


def train(network: Dense, params: Floats, data: Patients, local: Local, key: bytes) -> Floats:
    """Parameters after local training; the randomness is a function of ``key`` alone and the input is left as it is.

    >>> rows = Patients(np.eye(4, dtype=np.float32), np.array([0, 1, 0, 1]), np.arange(5))
    >>> from suture.privacy.mechanisms import seeded_key
    >>> new = train(Dense((4, 1)), np.zeros(5, np.float32), rows, Local(clip=1.0, noise_multiplier=1.0), seeded_key(1))
    >>> new.shape, new.dtype
    ((5,), dtype('float32'))
    """
    count = steps(data.patients, local)
    rng = generator(derive(key, "sampling"))
    if local.clip is not None:
        q = sampling_rate(data.patients, local.batch)
        batches = [np.flatnonzero(rng.random(data.patients) < q) for _ in range(count)]
    else:
        batches = []
        for _ in range(local.epochs):
            order = rng.permutation(data.patients)
            batches += [order[i : i + local.batch] for i in range(0, data.patients, local.batch)]
    noise = None
    if local.private:
        noise = generator(derive(key, "noise")).standard_normal((count, network.n_params), np.float32)
    return train_on_batches(network, params, data, local, batches, noise)


def train_on_batches(
    network: Dense,
    params: Floats,
    data: Patients,
    local: Local,
    batches: Sequence[NDArray[np.int64]],
    noise: Floats | None = None,
) -> Floats:
    """Training on given batches (patient indices, one array a step) with given standard-normal noise, one row a step.

    The noise is multiplied by ``noise_multiplier * clip`` here. This function draws nothing, so it protects nobody by
    itself: it exists for tests and for comparison with other implementations. Use `train`.
    """
    weights = params.astype(np.float32).copy()
    velocity = np.zeros_like(weights)
    size = min(local.batch, data.patients)
    for step, batch in enumerate(batches):
        total = np.zeros_like(weights)
        n_rows = 0
        for patient in batch:
            rows = slice(data.starts[patient], data.starts[patient + 1])
            g = _gradient(network, weights, data.x[rows], data.y[rows], local.class_weights)
            n_rows += rows.stop - rows.start
            norm = float(np.sqrt(np.sum(g.astype(np.float64) ** 2)))
            if not math.isfinite(norm):
                continue
            total += g * np.float32(min(1.0, local.clip / max(norm, 1e-30))) if local.clip is not None else g
        if local.clip is not None:
            if noise is not None and local.noise_multiplier:
                total += np.float32(local.noise_multiplier * local.clip) * noise[step]
            total /= np.float32(size)
        else:
            total /= np.float32(max(n_rows, 1))
        total += np.float32(local.proximal) * (weights - params)
        velocity = np.float32(local.momentum) * velocity + total
        weights = weights - np.float32(local.rate) * velocity
    return weights


def _gradient(
    network: Dense, params: Floats, x: Floats, y: NDArray[np.int32], class_weights: tuple[float, ...] | None
) -> Floats:
    """Sum of the rows' gradients."""
    layers = network.layers(params)
    acts = [x]
    for i, (w, b) in enumerate(layers):
        z = acts[-1] @ w + b
        if i < len(layers) - 1:
            z = np.maximum(z, np.float32(0)) if network.activation == "relu" else np.tanh(z)
        acts.append(z)
    z = acts[-1]
    if network.sizes[-1] == 1:
        d = (0.5 * (1 + np.tanh(z / 2)) - y[:, None]).astype(np.float32)
    else:
        e = np.exp(z - z.max(axis=1, keepdims=True))
        d = e / e.sum(axis=1, keepdims=True)
        d[np.arange(len(d)), y] -= 1
    if class_weights is not None:
        d = d * np.asarray(class_weights, np.float32)[y][:, None]
    parts: list[Floats] = []
    for i in reversed(range(len(layers))):
        parts = [(acts[i].T @ d).ravel(), d.sum(axis=0), *parts]
        if i:
            d = d @ layers[i][0].T
            d = d * (acts[i] > 0) if network.activation == "relu" else d * (1 - acts[i] ** 2)
    return np.concatenate(parts)
