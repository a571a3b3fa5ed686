"""The door: the one way out of a site. It gets what each patient contributes, never a sum, and lets
out what it has noised.

Three rules, kept here and nowhere else:

1. What is *charged* depends on the `Context` alone, which is public: the plan, the edition of the
   table, the account, the method, seed, fold, round, message and session. No row can change
   whether, or what, a site charges.
2. The *noise* is keyed by the context, the mechanism with all of its settings, the site's own state
   and the rows. Another context, mechanism or value gets other noise, so no two answers ever differ
   by something that noise does not cover.
3. The *answer* is kept on disk before it is sent (`suture.privacy.ledger.ledger.Ledger.keep`), and
   a repeated request is answered from there, whatever has become of the rows.

A method sees a `Session`, which gives it no rows. The method hands over a mechanism and a function
that says what each patient adds (`release`), or a training by DP-SGD (`train`), and gets `Sealed`
values back. Only those can be sent. The door clips each patient's contribution, adds up in whole
numbers (so that the sum is exact and no patient changes another's rounding), takes the mechanism's
event off what was charged, and draws the noise.

The trusted base: this file (clipping and sums at its end), and the four mechanisms of `_LIST`,
marked where they are defined (`mechanism`): three that add noise to a sum, and the kernels of
DP-SGD.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import ClassVar, Protocol, TypeAlias, TypeVar

import numpy as np
from dp_accounting.dp_event import DpEvent
from numba import njit
from numpy.typing import NDArray

from suture.errors import PrivacyError
from suture.privacy.accounting.events import NON_PRIVATE, ROUNDING, NormalForm, amounts, normal_form
from suture.privacy.canonical import canonical, digest
from suture.privacy.noise.source import Array, Arrays, State, derive
from suture.privacy.unit import Patients

Rows: TypeAlias = tuple[Array, NDArray[np.float64]]
"""What rows add: one vector and one factor for each row. The door adds up a patient's rows."""

LOCAL = "local."
"""The names of what a site computes without noise and keeps begin so; nothing so named leaves."""
_BLOCK = 1 << 22
"""Entries of contributions held at a time: 32 MB."""
SCALE_BITS = 32
"""The grid of a sum is at most so fine: ``scale <= 2**SCALE_BITS / limit``."""
_LANES = 16
# 1.5 * 2^52: a float64 below 2^51 in size that is added to it is rounded to a whole number (half to
# even, as np.rint does), which then stands in the low bits. It is how LLVM can vectorise the
# conversion on every machine.
_MAGIC = 6755399441055744.0
_MAGIC_BITS = np.float64(_MAGIC).view(np.int64)
_STAMP = object()
_LIST = (
    "suture.protection.secure_sum.Share",
    "suture.privacy.noise.mechanisms.Pick",
    "suture.privacy.noise.mechanisms.Counts",
    "suture.training.mechanism.DpSgd",
)
"""The closed list of mechanisms."""
_Kind = TypeVar("_Kind", bound=type)


@dataclass(frozen=True)
class Context:
    """What is public about one release. Equal contexts are one release, charged and answered once."""

    plan: str
    """The digest of the study that the site has pinned."""
    site: str
    edition: int
    account: str
    method: str
    seed: int
    fold: int
    round: int
    message: bytes
    """The digest of the message."""
    session: bytes = b""
    """Under masks: the digest of the sum's terms. Another sum is another release."""

    @cached_property
    def mark(self) -> bytes:
        """The context in 32 bytes: the ledger's fingerprint, and the name of the kept answer."""
        return digest(self)


class Mechanism(Protocol):
    """A frozen dataclass: what is done to a sum. Its fields alone decide the amount of noise.

    ``event`` is what it costs; ``size``, the numbers in a contribution.
    """

    @property
    def event(self) -> DpEvent: ...

    @property
    def size(self) -> int: ...

    @property
    def limit(self) -> float:
        """The most that a patient may add (L2 norm, or per entry); infinite: no promise."""

    @property
    def entrywise(self) -> bool:
        """Whether the limit is on entries."""

    @property
    def whole(self) -> bool:
        """Whether a patient adds whole numbers within the limit, or else nothing."""

    def noised(self, total: NDArray[np.float64], key: bytes) -> Array: ...


class Training(Protocol):
    """A frozen dataclass: a training by DP-SGD, with its start and every setting.

    All that comes out of ``run`` is protected.
    """

    @property
    def event(self) -> DpEvent: ...

    def run(self, data: Patients, key: bytes) -> State: ...


@dataclass(frozen=True, eq=False)
class Sealed:
    """An array that may leave: noised by the door, or computed from such arrays and public figures.

    >>> Sealed(np.zeros(1))
    Traceback (most recent call last):
    suture.errors.PrivacyError: only the door seals; hand it a mechanism and what each patient adds
    """

    value: Array
    stamp: InitVar[object] = None

    def __post_init__(self, stamp: object) -> None:
        if stamp is not _STAMP:
            raise PrivacyError(
                "only the door seals; hand it a mechanism and what each patient adds"
            )

    def then(self, function: Callable[..., Array], *others: Sealed) -> Sealed:
        """Post-processing of sealed arrays, which is free (Dwork & Roth 2014, Proposition 2.1)."""
        return Sealed(function(self.value, *(other.value for other in others)), _STAMP)

    @staticmethod
    def public(value: Array) -> Sealed:
        """An array that everybody could compute, such as the amount of noise."""
        return Sealed(value, _STAMP)


Payload: TypeAlias = Mapping[str, Sealed]


def _sealed(found: State) -> dict[str, Sealed]:
    return {part: Sealed(array, _STAMP) for part, array in found.items()}


def mechanism(kind: _Kind) -> _Kind:
    """Enter a class, where it is defined, as the mechanism of its name on the door's list, once.

    >>> mechanism(int)
    Traceback (most recent call last):
    suture.errors.PrivacyError: builtins.int is not on the door's list of mechanisms, or another class took its place
    """
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name not in _LIST or name in Session.kinds:
        raise PrivacyError(
            f"{name} is not on the door's list of mechanisms, or another class took its place"
        )
    Session.kinds[name] = kind
    return kind


class Session:
    """One request at a site's door, for which ``charged`` was paid; ``root`` keys its noise.

    ``round``, ``site`` and ``size`` are public: what is asked follows from them, never from what
    the message says.
    """

    kinds: ClassVar[dict[str, type]] = {}
    """The imported mechanisms of the closed list, known by the class itself, not by its name."""

    def __init__(
        self,
        data: Patients,
        charged: DpEvent,
        root: bytes,
        *,
        round_: int,
        site: str,
        noise: float | None,
    ) -> None:
        self._data, self._root = data, root
        self._left = _Left(normal_form(charged))
        self.round, self.site, self.noise = round_, site, noise
        self._used: set[str] = set()

    @property
    def size(self) -> int:
        """The declared number of patients."""
        return self._data.size

    @property
    def features(self) -> int:
        """Encoded columns, by the schema."""
        return self._data.features

    def release(self, name: str, mechanism: Mechanism, each: Callable[[Patients], Rows]) -> Sealed:
        """The noisy sum of what patients add; ``each`` says what the rows of some patients add."""
        key = self._take(name, mechanism, mechanism.event)
        if math.isinf(mechanism.limit):
            total = self._plain(mechanism, each)
        else:
            units, limit = np.zeros(mechanism.size, np.int64), mechanism.limit
            for block in _blocks(self._data, mechanism.size):
                values, weights = each(block)
                if values.shape != (block.rows, mechanism.size) or weights.shape != (block.rows,):
                    raise PrivacyError(
                        f"{name!r}: expected {mechanism.size} numbers and a weight for each row; "
                        "found other shapes"
                    )
                if mechanism.whole:
                    units += counted(values, weights, block.starts, limit)
                else:
                    units += summed(values, weights, block.starts, limit, mechanism.entrywise)
            total = units / (1.0 if mechanism.whole else 2.0**SCALE_BITS / limit)
        return Sealed(mechanism.noised(total, key), _STAMP)

    def train(self, name: str, training: Training) -> dict[str, Sealed]:
        """A training by DP-SGD: everything that comes out of it is protected."""
        key = self._take(name, training, training.event)
        return _sealed(training.run(self._data, key))

    def unprotected(self, name: str, make: Callable[[Patients, bytes], State]) -> dict[str, Sealed]:
        """Anything computed from rows, where the study promises nothing; refused where it does."""
        if not self._left.unpromised:
            raise PrivacyError(
                f"{name!r} is computed without protection, and this release was promised to be "
                "private"
            )
        return _sealed(make(self._data, derive(self._root, "unprotected", name)))

    def keep(self, name: str, make: Callable[[Patients, bytes], State]) -> State:
        """Anything computed from rows that stays at the site; its names begin with `LOCAL`."""
        found = make(self._data, derive(self._root, "kept", name))
        return {LOCAL + part: array for part, array in found.items()}

    def _take(self, name: str, mechanism: object, event: DpEvent) -> bytes:
        """Take an event off what was charged, before computing anything; returns the noise's key."""
        if not any(type(mechanism) is kind for kind in self.kinds.values()):
            kind = type(mechanism).__name__
            raise PrivacyError(f"{kind} is not a mechanism that this door knows: nothing may leave")
        if name in self._used:
            raise PrivacyError(f"{name!r} was released in this round already")
        self._used.add(name)
        self._left.take(normal_form(event), name)
        return derive(self._root, name, canonical(mechanism))

    def _plain(self, mechanism: Mechanism, each: Callable[[Patients], Rows]) -> NDArray[np.float64]:
        """A sum of which no patient's part is bounded: only where nothing is promised."""
        if not self._left.unpromised:
            raise PrivacyError(
                "a sum without a limit on what a patient adds has no finite cost: nothing may leave"
            )
        total = np.zeros(mechanism.size)
        for block in _blocks(self._data, mechanism.size):
            values, weights = each(block)
            total += weights @ values
        return total


def protected(own: Arrays) -> State:
    """The part of a site's own state that may decide what leaves: all but what `keep` computed.

    >>> list(protected({"params": np.zeros(1), "local.alpha": np.zeros(1)}))
    ['params']
    """
    return {name: array for name, array in own.items() if not name.startswith(LOCAL)}


def root_key(secret: bytes, context: Context, own: Arrays, rows: bytes, software: str) -> bytes:
    """The key of a session's noise, from the context, the site's own state and the rows (rule 2).

    ``software`` does the arithmetic: elsewhere the same request rounds differently, and must have
    other noise.
    """
    return derive(secret, "door", context.mark, digest(dict(own)), rows, software)


class Rehearsed(Protocol):
    """What `rehearse` needs of a method."""

    def round_event(
        self, round_: int, site: str, patients: int, noise: float | None, /
    ) -> DpEvent: ...

    def site_step(
        self, session: Session, own: State, message: Arrays, /
    ) -> tuple[Payload, State]: ...


def rehearse(
    method: Rehearsed,
    data: Patients,
    own: State,
    message: Arrays,
    noise: float | None,
    key: bytes,
    round_: int = 1,
    site: str = "a",
) -> tuple[State, State]:
    """A site's step on rows about which nothing is promised, for attacks, audits and tests.

    No ledger is charged. The engines never call it (a test walks their imports).
    """
    charged = method.round_event(round_, site, data.size, noise)
    session = Session(data, charged, key, round_=round_, site=site, noise=noise)
    payload, kept = method.site_step(session, own, message)
    return opened(payload), kept


def opened(payload: Payload) -> State:
    """The arrays of an answer; anything that the door has not sealed is refused."""
    for name, sealed in payload.items():
        if type(sealed) is not Sealed:
            raise PrivacyError(f"{name!r} did not pass the door: nothing may leave")
    return {name: sealed.value for name, sealed in payload.items()}


class _Left:
    """What is left of a charge, by `amounts`."""

    def __init__(self, charged: NormalForm) -> None:
        self.unpromised = any(step.kind == NON_PRIVATE for step, _ in charged)
        self._all = amounts(charged)
        self._left = dict(self._all)

    def take(self, form: NormalForm, name: str) -> None:
        if self.unpromised:
            return
        for step, amount in amounts(form).items():
            self._left[step] = self._left.get(step, 0.0) - amount
            if self._left[step] < -ROUNDING * self._all.get(step, 0.0):
                raise PrivacyError(
                    f"{name!r} costs more than was charged for this release: nothing may leave"
                )


def _blocks(data: Patients, size: int) -> tuple[Patients, ...]:
    """Whole patients, as many at once as the memory for their contributions allows."""
    return data.parts(max(1, _BLOCK // max(size, 1)))


# --- the exact sum over patients, in whole numbers ------------------------------------------------


def summed(
    values: NDArray[np.floating],
    weights: NDArray[np.float64],
    starts: NDArray[np.int64],
    limit: float,
    entrywise: bool = False,
    bits: int = SCALE_BITS,
) -> NDArray[np.int64]:
    """The sum over patients of their clipped contributions, in units of ``limit / 2**bits``.

    Row r counts ``weights[r] * values[r]``; the rows of patient p are ``starts[p]:starts[p + 1]``.
    They are added up in float64, clipped (to L2 norm ``limit``, or entry by entry), put on a public
    grid of 1 / scale and added in int64. What the privacy proofs need, for every table and whatever
    the values hold:
    - A patient's whole numbers are a function of that patient's rows, weights, limit and scale alone.
    - Their L2 norm (or, entrywise, each of them) is at most ``limit * scale``. Rounding to the grid
      moves an entry by at most 1/2, hence a vector of d entries by at most sqrt(d) / 2, which is
      taken off beforehand; 1e-7 covers the rounding of the norm in float64.
    - A patient with an entry that is not finite adds exactly zero.
    - Whole numbers add up without rounding, in any order; |entry| <= 2^32, so 2^30 patients cannot
      overflow.

    >>> total = summed(np.array([[3.0, 4.0], [0.25, 0.0], [0.25, 0.0]]), np.ones(3), np.array([0, 1, 3]), 1.0)
    >>> (total / 2**SCALE_BITS).round(5).tolist()
    [1.1, 0.8]
    """
    _check_limit(limit)
    if not 0 <= bits <= SCALE_BITS:
        raise ValueError(f"expected a scale of 0 to {SCALE_BITS} bits, found {bits}")
    if values.ndim != 2 or weights.shape != (len(values),):
        shapes = f"{values.shape} and {weights.shape}"
        raise ValueError(f"expected rows x entries and one weight per row, found {shapes}")
    starts = np.ascontiguousarray(starts, np.int64)
    ends = len(starts) > 0 and starts[0] == 0 and starts[-1] == len(values)
    if not ends or np.any(np.diff(starts) < 0):
        raise ValueError("starts must begin at 0, never fall and end at the number of rows")
    width, bound, scale = values.shape[1], float(limit), float(2.0**bits / limit)
    rows = np.ascontiguousarray(values, np.float32 if values.dtype == np.float32 else np.float64)
    factors, out = np.ascontiguousarray(weights, np.float64), np.zeros(width, np.int64)
    reach = _reach(bound, scale, width, bool(entrywise))
    _add(rows, factors, starts, bound, scale, reach, bool(entrywise), out)
    return out


def counted(
    values: NDArray[np.floating],
    weights: NDArray[np.float64],
    starts: NDArray[np.int64],
    limit: float,
) -> NDArray[np.int64]:
    """The sum over patients who add whole numbers of L2 norm at most ``limit``; others add nothing.

    (Clipped fractions that are rounded after adding up could move every count by one for one
    patient.) ``starts`` must rise.
    """
    _check_limit(limit)
    if len(starts) == 1:
        return np.zeros(values.shape[1], np.int64)
    with np.errstate(over="ignore", invalid="ignore"):
        each = np.add.reduceat(values.astype(np.float64) * weights[:, None], starts[:-1], axis=0)
        short = np.sqrt(np.sum(each * each, axis=1)) <= limit
        fine = np.all(each == np.rint(each), axis=1) & short
    found: NDArray[np.int64] = each[fine].astype(np.int64).sum(axis=0)
    return found


def _check_limit(limit: float) -> None:
    if not (math.isfinite(limit) and limit > 0):
        raise ValueError(f"expected a limit above 0 and finite, found {limit}")


@lru_cache(1024)
def _reach(limit: float, scale: float, width: int, entrywise: bool) -> float:
    """The largest norm, or entry, before rounding, in units of the grid."""
    units = Fraction(limit) * Fraction(scale)
    if entrywise:
        return float(math.floor(units))
    most = float(units)
    return max(0.0, min(most * (1 - 1e-6), most * (1 - 1e-7) - math.sqrt(width) / 2))


@njit(cache=True, nogil=True, error_model="numpy")
def _add(values, weights, starts, limit, scale, reach, entrywise, out):  # type: ignore[no-untyped-def]
    width = values.shape[1]
    padded = (width + _LANES - 1) // _LANES * _LANES
    buffer = np.zeros(padded)
    bits = buffer.view(np.int64)
    for patient in range(len(starts) - 1):
        first, end = starts[patient], starts[patient + 1]
        if first == end:
            continue
        row, weight = values[first], weights[first]
        for j in range(width):
            buffer[j] = weight * row[j]
        for r in range(first + 1, end):
            row, weight = values[r], weights[r]
            for j in range(width):
                buffer[j] += weight * row[j]
        for j in range(width, padded):
            buffer[j] = 0.0
        factor = scale
        if entrywise:
            wrong = 0.0
            for j in range(0, padded, _LANES):
                wrong += _wrong(buffer[j : j + _LANES])
            if wrong != 0.0:
                continue
            for j in range(width):
                buffer[j] = min(max(buffer[j] * scale, -reach), reach)
            factor = 1.0
        else:
            norm = math.sqrt(_square(buffer, scale))
            if not math.isfinite(norm):
                # NaN, or squares that overflow: once more, relative to the largest entry.
                peak = 0.0
                for j in range(width):
                    peak = max(peak, abs(buffer[j])) if buffer[j] == buffer[j] else math.inf
                if not math.isfinite(peak):
                    continue
                for j in range(width):
                    buffer[j] /= peak
                factor = reach / math.sqrt(_square(buffer, 1.0))
            elif norm > reach:
                factor = scale * (reach / norm)
        for j in range(padded):
            buffer[j] = buffer[j] * factor + _MAGIC
        for j in range(width):
            out[j] += bits[j] - _MAGIC_BITS


@njit(cache=True, nogil=True, error_model="numpy")
def _square(buffer, scale):  # type: ignore[no-untyped-def]
    """The squared norm of ``scale * buffer``, in eight sums so that LLVM can use lanes."""
    a = b = c = d = e = f = g = h = 0.0
    for j in range(0, len(buffer), 8):
        v = buffer[j : j + 8]
        a += (scale * v[0]) * (scale * v[0])
        b += (scale * v[1]) * (scale * v[1])
        c += (scale * v[2]) * (scale * v[2])
        d += (scale * v[3]) * (scale * v[3])
        e += (scale * v[4]) * (scale * v[4])
        f += (scale * v[5]) * (scale * v[5])
        g += (scale * v[6]) * (scale * v[6])
        h += (scale * v[7]) * (scale * v[7])
    return ((a + b) + (c + d)) + ((e + f) + (g + h))


@njit(cache=True, nogil=True, error_model="numpy")
def _wrong(values):  # type: ignore[no-untyped-def]
    """Not 0 where some value is not finite."""
    found = 0.0
    for j in range(len(values)):
        found += 0.0 if math.isfinite(values[j]) else 1.0
    return found
