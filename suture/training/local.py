"""Local training: DP-SGD by patient, and its non-private counterpart.

Abadi et al., "Deep Learning with Differential Privacy" (CCS 2016), Algorithm 1, with the patient as the unit. Each step
draws every patient independently with probability q (Poisson sampling, as the accountants assume), sums a patient's row
gradients, clips that sum to L2 norm C, adds N(0, (sigma C)^2) to the total and divides by the *expected* batch, which
is public, never by the number drawn, which is not. An empty batch is a step like any other.

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import dp_accounting
import numpy as np
from numpy.typing import NDArray

from suture.errors import DataError, StudyError
from suture.models.dense import Dense, dense_only
from suture.models.forward import BLOCK, O, W, pack, unpack, workspace
from suture.models.lanes import WIDTH, padded
from suture.models.network import Network
from suture.models.residual import Residual
from suture.privacy.mechanisms import Keystream, derive, generator
from suture.privacy.unit import Patients
from suture.training.dpsgd import run, turn
from suture.training.noise import words_for
from suture.training.sampling import poisson_batches

Floats = NDArray[np.float32]

# Random bits are drawn for as many steps at once as fit a core's cache.
_CHUNK_BYTES = 1 << 19
_CHUNK_PICKS = 1 << 18
_NO_WORDS = np.empty((0, 0), np.uint32)


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
    class_weights: tuple[float, ...] | Literal["balanced", "inverse"] | None = None
    dropout: float = 0.0
    decay: float = 1.0
    decays: int = 0
    clip: float | None = None
    noise_multiplier: float | None = None
    most_steps: int = 0
    """A round ends after so many steps, however many the epochs would take; 0: no such end."""

    def __post_init__(self) -> None:
        if self.epochs < 0 or self.batch < 1:
            raise StudyError(f"expected epochs >= 0 and batch >= 1, found {self.epochs} and {self.batch}")
        if self.most_steps < 0:
            raise StudyError(f"expected most_steps >= 0, found {self.most_steps}")
        for name, least in (("rate", 0.0), ("momentum", 0.0), ("proximal", 0.0)):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= least):
                raise StudyError(f"expected {name} >= {least:g} and finite, found {value}")
        if not (0 <= self.dropout < 1 and 0 < self.decay <= 1 and self.decays >= 0):
            raise StudyError(
                f"expected 0 <= dropout < 1, 0 < decay <= 1 and decays >= 0, found {self.dropout}, {self.decay} and "
                f"{self.decays}"
            )
        if isinstance(self.class_weights, str):
            named = self.class_weights
            if named not in ("balanced", "inverse"):
                raise StudyError(f'expected class_weights "balanced", "inverse" or numbers, found {named!r}')
            if self.clip is not None:
                raise StudyError(f'class weights "{named}" are counted from rows; under privacy state them as numbers')
        elif self.class_weights is not None:
            object.__setattr__(self, "class_weights", tuple(float(weight) for weight in self.class_weights))
            if not all(math.isfinite(weight) and weight >= 0 for weight in self.class_weights):
                raise StudyError(f"expected class_weights >= 0 and finite, found {self.class_weights}")
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


def at_round(local: Local, round_: int, rounds: int) -> Local:
    """The settings of one round: the rate has been multiplied by ``decay`` at ``decays`` evenly spaced rounds so far.

    The schedule depends on nothing but public settings.

    >>> local = Local(rate=1.0, decay=0.9, decays=50)
    >>> [round(at_round(local, r, 1000).rate, 4) for r in (1, 20, 21, 1000)]
    [1.0, 1.0, 0.9, 0.0057]
    """
    if not local.decays or local.decay == 1.0:
        return local
    return replace(local, rate=local.rate * local.decay ** ((round_ - 1) * local.decays // rounds))


def weights_of(local: Local, y: NDArray[np.int32], classes: int) -> tuple[float, ...]:
    """The loss weight of each class: "balanced" is 1 on average over rows, "inverse" over classes.

    "inverse" is paper 003's (appendix A.3): inverse prevalences scaled to sum to the number of classes. A site where
    one class is rare then takes smaller steps, and pulls less at the shared network, than with "balanced".

    >>> weights_of(Local(class_weights="balanced"), np.array([0, 0, 0, 1]), 2)
    (0.6666666666666666, 2.0)
    >>> weights_of(Local(class_weights="inverse"), np.array([0, 0, 0, 1]), 2)
    (0.5, 1.5)
    """
    if isinstance(local.class_weights, tuple):
        return local.class_weights
    if local.class_weights is None:
        return (1.0,) * classes
    counts = np.bincount(y, minlength=classes)
    present = int(np.count_nonzero(counts))
    if local.class_weights == "inverse":
        inverse = np.divide(1.0, counts, out=np.zeros(len(counts)), where=counts > 0)
        return tuple((inverse * present / inverse.sum()).tolist())
    return tuple(float(len(y) / (present * count)) if count else 0.0 for count in counts)


def sampling_rate(patients: int, batch: int) -> float:
    """The probability with which each patient is drawn in a step.

    >>> sampling_rate(64, 32), sampling_rate(10, 32)
    (0.5, 1.0)
    """
    if patients < 1:
        raise DataError("expected at least one patient to train on, found none")
    return min(1.0, batch / patients)


def steps(patients: int, local: Local) -> int:
    """How many steps `train` takes: ``epochs`` times the batches that cover the patients once, or ``most_steps``.

    >>> steps(1270, Local(epochs=500, batch=32)), steps(1270, Local(batch=32, most_steps=3))
    (20000, 3)
    """
    count = local.epochs * math.ceil(patients / local.batch)
    return min(count, local.most_steps) if local.most_steps else count


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


def train(
    network: Network,
    params: Floats,
    data: Patients,
    local: Local,
    key: bytes,
    anchor: Floats | None = None,
    push: Floats | None = None,
) -> Floats:
    """Parameters after local training; the randomness is a function of ``key`` alone and the input is left as it is.

    The proximal term pulls towards ``anchor``, by default the starting point. ``push`` is one number a row, which times
    the row's risk is added to its loss, before clipping (`methods/fairfed`). Images are trained on by `imaging`.

    Who is sampled is as secret as the noise (amplification by sampling counts on it), so both come from ``key``.

    >>> rows = Patients(np.eye(4, dtype=np.float32), np.array([0, 1, 0, 1]), np.arange(5))
    >>> from suture.privacy.mechanisms import seeded_key
    >>> new = train(Dense((4, 1)), np.zeros(5, np.float32), rows, Local(clip=1.0, noise_multiplier=1.0), seeded_key(1))
    >>> new.shape, new.dtype
    ((5,), dtype('float32'))
    """
    if isinstance(network, Residual):
        from suture.training import imaging

        return imaging.train(network, params, data, local, key, anchor, push)
    dense = dense_only(network, "this training")
    if local.dropout:
        from suture.training.personal import Layers, train_affine

        if anchor is not None or push is not None:
            raise StudyError("training with dropout has no anchor or push; set model.dropout to 0 for this method")
        return train_affine(dense, params, Layers("none", "none"), np.zeros(0, np.float32), data, local, key)[0]
    fused = _Fused(dense, params, data, local, anchor, push)
    width = words_for(network.n_params) if local.private else 0
    chunk = _chunk(width, min(local.batch, data.patients))
    stream = Keystream(derive(key, "noise"))
    words = np.empty((chunk, width), np.uint32)
    for picks, ends in _batches(data.patients, local, derive(key, "sampling"), chunk):
        if width:
            stream.fill(words[: len(ends)])
            fused.run(picks, ends, words[: len(ends)], fused.scratch)
        else:
            fused.run(picks, ends, _NO_WORDS, fused.scratch)
    return fused.params()


def train_on_batches(
    network: Dense,
    params: Floats,
    data: Patients,
    local: Local,
    batches: Sequence[NDArray[np.int64]],
    noise: Floats | None = None,
    push: Floats | None = None,
) -> Floats:
    """Training on given batches (patient indices, one array a step) with given standard-normal noise, one row a step.

    The noise is multiplied by ``noise_multiplier * clip`` here. This function draws nothing, so it protects nobody by
    itself: it exists for tests and for comparison with other implementations. Use `train`.

    >>> rows = Patients(np.ones((1, 1), np.float32), np.array([1]), np.arange(2))
    >>> train_on_batches(Dense((1, 1)), np.zeros(2, np.float32), rows, Local(rate=1.0), [np.array([0])]).tolist()
    [0.5, 0.5]
    """
    fused = _Fused(network, params, data, local, None, push)
    ends = np.cumsum([len(batch) for batch in batches], dtype=np.int64)
    picks = np.concatenate([np.zeros(0, np.int64), *batches]).astype(np.int64)
    if len(picks) and not (picks.min() >= 0 and picks.max() < data.patients):
        raise DataError(f"expected patient indices within 0..{data.patients - 1}, found some outside")
    rows = fused.scratch
    if noise is not None:
        if noise.shape != (len(batches), network.n_params):
            raise StudyError(f"expected noise of shape {(len(batches), network.n_params)}, found {noise.shape}")
        rows = np.zeros((len(batches), fused.scratch.shape[1]), np.float32)
        rows[:, : network.n_params] = noise
    fused.run(picks, ends, _NO_WORDS, rows)
    return fused.params()


class _Fused:
    """A workspace loaded with parameters, and the arguments that stay the same from step to step."""

    def __init__(
        self,
        network: Dense,
        params: Floats,
        data: Patients,
        local: Local,
        anchor: Floats | None = None,
        push: Floats | None = None,
    ) -> None:
        _check(network, params, data, local)
        if push is not None and push.shape != (data.rows,):
            raise StudyError(f"expected one push a row ({data.rows}), found shape {push.shape}")
        self.network = network
        self.memory, self.table = workspace(network.sizes, training=True)
        flat = np.ascontiguousarray(params, np.float32)
        unpack(self.memory, self.table, W, flat)
        if anchor is not None:
            network.layers(anchor)  # checks the length: the compiled code trusts it
        unpack(self.memory, self.table, O, flat if anchor is None else np.ascontiguousarray(anchor, np.float32))
        turn(self.memory, self.table)
        # One lane more than the parameters, since the last row of a layer is read in whole lanes.
        self.scratch = np.zeros((1, padded(network.n_params, 32) + WIDTH), np.float32)
        weights = weights_of(local, data.y, network.classes)
        clip = math.inf if local.clip is None else local.clip
        self.data = (data.x, data.y, data.starts)
        self.settings = (
            0.0 if local.clip is None else float(min(local.batch, data.patients)),
            float(clip),
            float(local.noise_multiplier * clip) if local.noise_multiplier else 0.0,
            float(local.proximal),
            float(local.momentum),
            float(local.rate),
            np.asarray(weights, np.float32),
            network.activation == "relu",
            np.empty(BLOCK, np.int64),
            np.empty(BLOCK, np.int64),
            np.empty(BLOCK, np.int64),
            np.empty(BLOCK, np.float64),
            np.empty(BLOCK, np.float32),
            np.ascontiguousarray(() if push is None else push, np.float32),
        )

    def run(self, picks: NDArray[np.int64], ends: NDArray[np.int64], words: NDArray[np.uint32], noise: Floats) -> None:
        """Take the steps of ``ends``."""
        run(self.memory, self.table, *self.data, picks, ends, words, noise, *self.settings)

    def params(self) -> Floats:
        """The parameters now."""
        out = np.empty(self.network.n_params, np.float32)
        pack(self.memory, self.table, W, out)
        return out


def _check(network: Dense, params: Floats, data: Patients, local: Local) -> None:
    """The compiled code trusts its indices, so everything that becomes one is checked here."""
    network.layers(params)
    if data.features != network.sizes[0]:
        raise DataError(f"the network takes {network.sizes[0]} features, the rows have {data.features}")
    if data.patients < 1:
        raise DataError("expected at least one patient to train on, found none")
    if data.y.min() < 0 or data.y.max() >= network.classes:
        outside = int(np.sum((data.y < 0) | (data.y >= network.classes)))
        raise DataError(f"expected outcomes within 0..{network.classes - 1}, found {outside} rows outside")
    if isinstance(local.class_weights, tuple) and len(local.class_weights) != network.classes:
        raise StudyError(f"expected {network.classes} class weights, found {len(local.class_weights)}")


def _chunk(width: int, batch: int) -> int:
    """How many steps to draw randomness for at once: few enough that memory does not grow with the training."""
    by_noise = max(4, _CHUNK_BYTES // (4 * width)) if width else 64
    return max(1, min(by_noise, _CHUNK_PICKS // batch))


def _batches(
    patients: int, local: Local, key: bytes, chunk: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """The batches of a training, up to ``chunk`` steps at a time: patient indices, and where each step's end."""
    if local.clip is not None:
        stream, count = Keystream(key), steps(patients, local)
        rate = sampling_rate(patients, local.batch)
        for start in range(0, count, chunk):
            yield poisson_batches(patients, rate, min(chunk, count - start), stream)
        return
    rng = generator(key)
    ends = np.append(np.arange(local.batch, patients, local.batch), patients)
    left = steps(patients, local)
    while left > 0:
        yield rng.permutation(patients), ends[:left]
        left -= len(ends)
