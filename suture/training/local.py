"""Local training: its settings, what follows from them in public, and batches and noise from secret
bits.

Abadi et al., "Deep Learning with Differential Privacy" (CCS 2016), Algorithm 1, with the patient as
the unit. Each step draws every patient independently with probability q (Poisson sampling, as the
accountants assume), sums a patient's row gradients, clips that sum to L2 norm C, adds N(0, (sigma
C)^2) to the total and divides by the *expected* batch, which is public, never by the number drawn,
which is not. An empty batch is a step like any other.

N is the table's declared size (`Patients.size`), not the count: rate, steps and divisor are then
the same for a table with one patient more or less, and a table without patients trains on noise
alone. Nothing is refused for what rows hold.

| here             | paper | meaning                                    |
|------------------|-------|--------------------------------------------|
| batch / size     | q     | sampling probability of a patient          |
| clip             | C     | largest norm of one patient's contribution |
| noise_multiplier | sigma | noise standard deviation / C               |
| min(batch, size) | L     | expected batch                             |
| rate             | eta   | learning rate                              |

The trainers are in `dpsgd` and `affine` (dense networks) and `imaging`; `mechanism.train` chooses.

**Normals.** Box and Muller, "A Note on the Generation of Random Normal Deviates" (1958): with U
uniform on (0, 1] and T a uniform angle, sqrt(-2 ln U) (cos T, sin T) are two independent standard
normals. No branch depends on the bits, so LLVM vectorises the loop and the time taken says nothing
about the noise. Each pair takes 96 bits: 64 for the radius, of which 63 are used, 32 for the angle.
Both ends of the uniform are resolved: near 0, so that the tail reaches 9.4 standard deviations (32
bits would cut it at 6.7, with a probability of 2^-32 per pair, which a long training would notice
beside delta), and near 1 to 2^-56, so that a pair is without noise once in 2^57 pairs (with u as
one float32: once in 2^25). Logarithm, sine and cosine are float32 polynomials (Cephes), good to
about one unit in the last place.

**Batches.** Each patient is in each batch independently with probability q. Steps x patients
independent trials laid end to end are walked by the distances between successes, which are
geometric (Devroye, "Non-Uniform Random Variate Generation", 1986, X.2): the work is proportional to
the patients drawn, not to the patients there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import dp_accounting
import numpy as np
from numpy.typing import NDArray

from suture.errors import DataError, StudyError
from suture.models.dense import Floats
from suture.models.kernels import bits_of_float, compiled, float_of_bits, padded
from suture.models.network import Network
from suture.privacy.noise.source import Keystream, generator
from suture.privacy.unit import Patients

Indices = NDArray[np.int64]

# Random bits are drawn for as many steps at once as fit a core's cache.
_CHUNK_BYTES = 1 << 19
_CHUNK_PICKS = 1 << 18


@dataclass(frozen=True)
class Local:
    """How one site trains on its own rows; without ``clip`` and noise there is no privacy."""

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
    """A round ends after this many steps, however many the epochs would take; 0: no such limit."""

    def __post_init__(self) -> None:
        weights = self.class_weights
        if not (weights is None or isinstance(weights, str)):
            weights = tuple(float(weight) for weight in weights)
            object.__setattr__(self, "class_weights", weights)
        if self.epochs < 0 or self.batch < 1:
            raise StudyError(
                f"expected epochs >= 0 and batch >= 1, found {self.epochs} and {self.batch}"
            )
        names = ("rate", "momentum", "proximal", "decays", "most_steps", "noise_multiplier")
        values = [(name, self.__dict__[name] or 0.0) for name in names]
        if isinstance(weights, tuple):
            values += [("class_weights", weight) for weight in weights]
        for name, value in values:
            if not 0 <= value < math.inf:
                raise StudyError(f"expected {name} >= 0 and finite, found {value}")
        if not (0 <= self.dropout < 1 and 0 < self.decay <= 1):
            found = f"{self.dropout} and {self.decay}"
            raise StudyError(f"expected 0 <= dropout < 1 and 0 < decay <= 1, found {found}")
        if isinstance(weights, str):
            if weights not in ("balanced", "inverse"):
                raise StudyError(
                    f'expected class_weights "balanced", "inverse" or numbers, found {weights!r}'
                )
            if self.clip is not None:
                raise StudyError(
                    f'class weights "{weights}" are counted from rows; under privacy state them '
                    "as numbers"
                )
        if self.clip is None and self.noise_multiplier is not None:
            raise StudyError(
                "noise_multiplier needs clip: without a clipping norm noise protects nobody"
            )
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise StudyError(f"expected clip > 0 and finite, found {self.clip}")

    @property
    def private(self) -> bool:
        """True only with clipping and noise: clipping alone protects nobody."""
        return self.clip is not None and bool(self.noise_multiplier)


def at_round(local: Local, round_: int, rounds: int) -> Local:
    """The settings of one round: the rate is multiplied by ``decay`` at ``decays`` evenly spaced
    rounds, which public settings alone decide.

    >>> local = Local(rate=1.0, decay=0.9, decays=50)
    >>> [round(at_round(local, r, 1000).rate, 4) for r in (1, 20, 21, 1000)]
    [1.0, 1.0, 0.9, 0.0057]
    """
    if not local.decays or local.decay == 1.0:
        return local
    return replace(local, rate=local.rate * local.decay ** ((round_ - 1) * local.decays // rounds))


def weights_of(local: Local, y: NDArray[np.int32], classes: int) -> tuple[float, ...]:
    """The loss weight of each class: "balanced" is 1 on average over rows, "inverse" over classes.

    "inverse" is that of the iFedAvg paper (appendix A.3): inverse prevalences, scaled to sum to the
    number of classes. A site where one class is rare then takes smaller steps, and pulls less at
    the shared network, than with "balanced".

    >>> weights_of(Local(class_weights="balanced"), np.array([0, 0, 0, 1]), 2)
    (0.6666666666666666, 2.0)
    >>> weights_of(Local(class_weights="inverse"), np.array([0, 0, 0, 1]), 2)
    (0.5, 1.5)
    """
    if isinstance(local.class_weights, tuple):
        return local.class_weights
    if local.class_weights is None:
        return (1.0,) * classes
    counts = np.bincount(known(y, classes), minlength=classes + 1)[:classes]
    present = int(np.count_nonzero(counts))
    if not present:
        return (0.0,) * classes
    if local.class_weights == "inverse":
        inverse = np.divide(1.0, counts, out=np.zeros(len(counts)), where=counts > 0)
        return tuple((inverse * present / inverse.sum()).tolist())
    return tuple(float(counts.sum() / (present * count)) if count else 0.0 for count in counts)


def known(y: NDArray[np.int32], classes: int) -> NDArray[np.int32]:
    """Outcome codes; every code outside the classes becomes ``classes``, whose loss has weight 0.

    >>> known(np.array([0, 1, 2, -7], np.int32), 2).tolist()
    [0, 1, 2, 2]
    """
    return np.where((y >= 0) & (y < classes), y, np.int32(classes)).astype(np.int32, copy=False)


def loss_weights(local: Local, y: NDArray[np.int32], classes: int) -> NDArray[np.float64]:
    """The weight of each code that `known` returns: 0 for whatever is none of the classes."""
    return np.array([*weights_of(local, y, classes), 0.0])


def sampling_rate(patients: int, batch: int) -> float:
    """The probability with which each patient is drawn in a step, from the public size.

    >>> sampling_rate(64, 32), sampling_rate(10, 32)
    (0.5, 1.0)
    """
    return min(1.0, batch / max(1, patients))


def expected_batch(patients: int, local: Local) -> float:
    """What a private sum is divided by, from the public size; 0 without clipping: rows seen."""
    return 0.0 if local.clip is None else float(max(1, min(local.batch, patients)))


def steps(patients: int, local: Local) -> int:
    """How many steps a training takes: ``epochs`` times the batches that cover the public size
    once, or ``most_steps``.

    >>> steps(1270, Local(epochs=500, batch=32)), steps(1270, Local(batch=32, most_steps=3))
    (20000, 3)
    """
    count = local.epochs * math.ceil(patients / local.batch)
    return min(count, local.most_steps) if local.most_steps else count


def event(local: Local, patients: int) -> dp_accounting.DpEvent:
    """The privacy event of one training on a table of this public size: exactly what runs."""
    if not local.private:
        return dp_accounting.NonPrivateDpEvent()
    step = dp_accounting.PoissonSampledDpEvent(
        sampling_rate(patients, local.batch), dp_accounting.GaussianDpEvent(local.noise_multiplier)
    )
    return dp_accounting.SelfComposedDpEvent(step, steps(patients, local))


LARGEST_WEIGHT = 16.0
"""By default, the floats of weights up to this size are finer than `public_grid`."""


def public_grid(local: Local, patients: int, largest: float = LARGEST_WEIGHT) -> float:
    """The step of the grid that a private update is released on: a power of two, from public
    settings alone.

    A 64th to a 128th of the noise of one step, but never finer than the floats of a weight of size
    ``largest``: the low bits of a float, where arithmetic may show what was added to what, do not
    leave (docs/floating-point.md).

    >>> public_grid(Local(rate=0.01, clip=1.0, noise_multiplier=1.0, batch=32), 1000) == 2.0**-18
    True
    """
    noise = local.rate * (local.noise_multiplier or 0.0) * (local.clip or 0.0)
    deviation = noise / max(1.0, expected_batch(patients, local))
    fine = 2.0 ** math.floor(math.log2(deviation / 64)) if deviation > 0 else 0.0
    return max(fine, float(np.spacing(np.float32(largest))))


def on_public_grid(
    update: Floats, local: Local, patients: int, largest: float = LARGEST_WEIGHT
) -> Floats:
    """A private update, rounded to `public_grid`: post-processing, which costs no privacy."""
    if not local.private:
        return update
    step = public_grid(local, patients, largest)
    return np.asarray(np.rint(update.astype(np.float64) / step) * step, np.float32)


def check(network: Network, data: Patients, local: Local, push: Floats | None = None) -> None:
    """Refuse shapes that do not fit: compiled code relies on them. Outcome codes are made safe by
    `known`.

    Nothing here depends on how many rows there are or on what they hold: an error would reveal it.
    """
    if data.features != network.inputs:
        raise DataError(
            f"the network takes {network.inputs} features, the rows have {data.features}"
        )
    if isinstance(local.class_weights, tuple) and len(local.class_weights) != network.classes:
        raise StudyError(
            f"expected {network.classes} class weights, found {len(local.class_weights)}"
        )
    if push is not None and push.shape != (data.rows,):
        raise StudyError(f"expected one push for each row ({data.rows}), found shape {push.shape}")


def chunk_of(words: int, data: Patients, local: Local) -> int:
    """How many steps to draw for at once, so that memory does not grow with the training."""
    by_noise = max(4, _CHUNK_BYTES // (4 * words)) if words else 64
    picks = max(1, round(data.patients * sampling_rate(data.size, local.batch)))
    return max(1, min(by_noise, _CHUNK_PICKS // picks))


def batches(
    data: Patients, local: Local, key: bytes, chunk: int
) -> Iterator[tuple[Indices, Indices]]:
    """The batches of a training, up to ``chunk`` steps at a time: patient indices, and where each
    step's end.

    Who is sampled is as secret as the noise (amplification by sampling relies on it).
    """
    count = steps(data.size, local)
    if local.clip is not None:
        stream, rate = Keystream(key), sampling_rate(data.size, local.batch)
        for start in range(0, count, chunk):
            yield poisson_batches(data.patients, rate, min(chunk, count - start), stream)
        return
    rng = generator(key)
    ends = np.append(np.arange(local.batch, data.patients, local.batch), data.patients)
    left = count
    while left > 0:
        yield rng.permutation(data.patients)[: ends[:left][-1]], ends[:left]
        left -= len(ends)


def words_for(count: int) -> int:
    """How many 32-bit words `fill_normals` consumes for at least ``count`` normals.

    >>> words_for(1), words_for(32), words_for(2561)
    (48, 48, 3888)
    """
    return 3 * padded(count, 32) // 2


def normals(count: int, stream: Keystream) -> NDArray[np.float32]:
    """``count`` standard normals from the next bits of a stream."""
    words = np.empty(words_for(count), np.uint32)
    stream.fill(words)
    out = np.empty(len(words) // 3 * 2, np.float32)
    fill_normals(words, out)
    return out[:count]


@compiled
def fill_normals(words, out):  # type: ignore[no-untyped-def]
    """Turn 3 n words into 2 n standard normals."""
    f = np.float32
    n = len(words) // 3
    high, low, turn = words[:n], words[n : 2 * n], words[2 * n : 3 * n]
    first, second = out[:n], out[n : 2 * n]
    for i in range(n):
        # (high + (low >> 1) / 2^31 + 2^-32) / 2^32, in (0, 1], in three parts: each is a float32,
        # their sum is not.
        large = f(np.int32(high[i] >> np.uint32(8))) * f(2.0**-24)
        middle = f(np.int32(high[i] & np.uint32(255))) * f(2.0**-32)
        small = f(np.int32(low[i] >> np.uint32(1))) * f(2.0**-63) + f(2.0**-64)
        u = large + (middle + small)
        radius = np.sqrt(f(-2) * _log(u, ((large - u) + middle) + small))
        # The angle in quarter turns: nearest whole number q, and the rest within half a quarter.
        q = (turn[i] + np.uint32(1 << 29)) >> np.uint32(30)
        rest = np.int32(turn[i] - (q << np.uint32(30)))
        sine, cosine = _sine_cosine(f(rest) * f(2 * np.pi / 2**32))
        swap = (q & np.uint32(1)) != 0
        x = sine if swap else cosine
        y = cosine if swap else sine
        # Signs by quadrant: cos is negative in quarters 1 and 2, sin in 2 and 3.
        x = -x if ((q + np.uint32(1)) & np.uint32(2)) != 0 else x
        y = -y if (q & np.uint32(2)) != 0 else y
        first[i] = radius * x
        second[i] = radius * y


@compiled
def _log(u, rest):  # type: ignore[no-untyped-def]
    """Natural logarithm of u + rest, at most 1, u a normal, positive float32 and ``rest`` what it
    lost by rounding.

    Never above 0. The rest matters where u is close to 1; below sqrt(1/2) it is less than x's own
    rounding error.
    """
    f = np.float32
    # The offset makes the mantissa fall in [sqrt(1/2), sqrt(2)).
    bits = bits_of_float(u) - np.int32(0x3F3504F3)
    exponent = f(bits >> np.int32(23))
    x = float_of_bits((bits & np.int32(0x007FFFFF)) + np.int32(0x3F3504F3)) - f(1) + rest
    p = f(7.0376836292e-2)
    p = p * x + f(-1.1514610310e-1)
    p = p * x + f(1.1676998740e-1)
    p = p * x + f(-1.2420140846e-1)
    p = p * x + f(1.4249322787e-1)
    p = p * x + f(-1.6668057665e-1)
    p = p * x + f(2.0000714765e-1)
    p = p * x + f(-2.4999993993e-1)
    p = p * x + f(3.3333331174e-1)
    z = x * x
    y = p * x * z + exponent * f(-2.12194440e-4) - f(0.5) * z
    return min(x + y + exponent * f(0.693359375), f(0))


@compiled
def _sine_cosine(x):  # type: ignore[no-untyped-def]
    """Sine and cosine for |x| <= pi/4."""
    f = np.float32
    z = x * x
    s = f(-1.9515295891e-4)
    s = s * z + f(8.3321608736e-3)
    s = s * z + f(-1.6666654611e-1)
    c = f(2.443315711809948e-5)
    c = c * z + f(-1.388731625493765e-3)
    c = c * z + f(4.166664568298827e-2)
    return s * z * x + x, c * z * z - f(0.5) * z + f(1)


def poisson_batches(
    patients: int, rate: float, steps: int, stream: Keystream
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Patient indices of ``steps`` batches, end to end, and where each batch ends.

    >>> from suture.privacy.noise.source import seeded_key
    >>> picks, ends = poisson_batches(3, 1.0, 2, Keystream(seeded_key(1)))
    >>> picks.tolist(), ends.tolist()
    ([0, 1, 2, 0, 1, 2], [3, 6])
    """
    trials = steps * patients
    mean = trials * rate
    # Room for six standard deviations more than expected; a rarer walk goes round the loop again.
    room = int(mean + 6.0 * math.sqrt(mean)) + 16
    inverse = -0.0 if rate >= 1.0 else 1.0 / math.log1p(-rate)
    ends = np.zeros(steps, np.int64)
    parts: list[NDArray[np.int64]] = []
    at = -1
    while at < trials:
        words = np.empty(room, np.uint64)
        stream.fill(words)
        picks = np.empty(room, np.int64)
        at, found = _walk(words, inverse, at, trials, patients, picks, ends)
        parts.append(picks[:found])
    return parts[0] if len(parts) == 1 else np.concatenate(parts), np.cumsum(ends)


@compiled
def _walk(words, inverse, at, trials, patients, picks, counts):  # type: ignore[no-untyped-def]
    """Walk on until trials or words run out; returns where it stands and how many it found."""
    found = 0
    for i in range(len(words)):
        uniform = (float(words[i] >> np.uint64(11)) + 0.5) * 2.0**-53
        skip = math.floor(math.log(uniform) * inverse)
        # In floating point, since a skip at a tiny rate may not fit an integer.
        if skip >= float(trials - at - 1):
            return trials, found
        at += 1 + int(skip)
        step = at // patients
        picks[found] = at - step * patients
        counts[step] += 1
        found += 1
    return at, found
