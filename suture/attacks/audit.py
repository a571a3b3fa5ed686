"""The two-world audit: does what a site sends keep the epsilon that is claimed for it?

A mechanism is any callable from a table and a secret key to a message. The audit runs it many
times, each with a fresh key, on two neighbouring tables, one with a canary patient and one without,
and plays the strongest honest adversary: it sees the message itself, knows both tables and how the
canary moves the message, and guesses which table it came from (white-box; Nasr et al., "Tight
Auditing of Differentially Private Machine Learning", USENIX Security 2023).

How the false-alarm rate is kept: the statistic is fitted on one part of the runs, thresholds are
chosen on a second part, and rates are measured on a third that neither has seen, with exact
Clopper-Pearson ends. Several bounds are taken, and the largest counts, so each is allowed its share
of the rate (Bonferroni). A correct mechanism is called broken with at most probability ``rate``,
whatever its message looks like.

Where noise comes from is audited apart (`repeated_noise`).

What an audit cannot do: prove privacy. "Consistent with the claim" means that this canary, this
statistic and this many runs did not refute it; `Audit.reach` says how large an epsilon they could
have shown.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import NDArray

from suture.attacks.bounds import claimed_mu, epsilon_bound, event_bound, mu_bound, reach
from suture.errors import PrivacyError, StudyError
from suture.privacy.accounting import accountant
from suture.privacy.accounting.events import GAUSSIAN, LAPLACE, NormalForm, normal_form
from suture.privacy.noise.source import derive, secure_key
from suture.privacy.unit import Patients
from suture.report.words import finite

Array = NDArray[np.generic]
Message = Array | Mapping[str, Array]
Mechanism = Callable[[Patients, bytes], Message]
Score = Callable[[Message], float]
Reduced = TypeVar("Reduced")
Floats = NDArray[np.float64]

STATED = 0.05
"""Measured figures are stated at 95 %; the verdict is taken at the audit's own, stricter rate."""
LEAST_BYTES = 24
"""Messages shorter than this may be equal by chance: six float32 have some 140 bits between
them."""


@dataclass(frozen=True)
class Claim:
    """What is claimed for one message: (epsilon, delta), and the event behind it where known."""

    epsilon: float
    delta: float
    form: NormalForm | None = None

    def __post_init__(self) -> None:
        if not (self.epsilon >= 0 and 0 <= self.delta < 1):
            raise StudyError(
                f"expected epsilon >= 0 and 0 <= delta < 1, found {self.epsilon} and {self.delta}"
            )

    @classmethod
    def of(cls, event: DpEvent, delta: float = 1e-5, by: str = "pld") -> Claim:
        """The claim of an event, by one of the accountants.

        Where the event's whole trade-off curve is known (Gaussian, Laplace, sampled or not), that
        is tested too.

        >>> from dp_accounting import GaussianDpEvent
        >>> round(Claim.of(GaussianDpEvent(1.0)).epsilon, 3)
        4.377
        """
        form = normal_form(event)
        known = form if all(step.kind in (GAUSSIAN, LAPLACE) for step, _ in form) else None
        return cls(accountant.epsilon(event, delta, by), delta, known)


@dataclass(frozen=True)
class Bound:
    """One lower bound: right and wrong guesses on the measured runs, and the epsilon they prove."""

    name: str
    hits: int
    misses: int
    runs: int
    stated: float
    """Epsilon at 95 %, all bounds together."""
    decided: float
    """Epsilon at the audit's own rate, all bounds together: what the verdict rests on."""


@dataclass(frozen=True)
class Audit:
    """The outcome: measured against claimed."""

    claim: Claim
    bounds: tuple[Bound, ...]
    trials: int
    rate: float
    reach: float
    """The largest epsilon these runs could have shown at the audit's rate: every guess right."""
    what: str = ""

    @property
    def measured(self) -> float:
        """At least this epsilon, at 95 %."""
        return max(bound.stated for bound in self.bounds)

    @property
    def broken(self) -> bool:
        """Whether the claim is refuted; wrong with probability ``rate`` at most."""
        return max(bound.decided for bound in self.bounds) > self.claim.epsilon * (1 + 1e-9)

    @property
    def verdict(self) -> str:
        claimed = f"{self.claim.epsilon:.3g}"
        if self.broken:
            return f"broken: measured at least {self.measured:.3g} at 95 %, claimed {claimed}"
        text = f"consistent with the claim: measured at least {self.measured:.3g}"
        text += f", claimed {claimed}"
        if self.reach <= self.claim.epsilon:
            most = f"{self.trials} trials could not have shown more than {self.reach:.3g}"
            text += f"; but {most}: use more"
        return text

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; contains no row and no message."""
        return {
            "what": self.what,
            "verdict": self.verdict,
            "broken": self.broken,
            "claimed": {"epsilon": finite(self.claim.epsilon), "delta": self.claim.delta},
            "measured": {"epsilon": finite(self.measured), "confidence": 1 - STATED},
            "rate": self.rate,
            "trials": self.trials,
            "reach": finite(self.reach),
            "bounds": [
                {"name": b.name, "hits": b.hits, "misses": b.misses, "runs": b.runs,
                 "epsilon": finite(b.stated)}
                for b in self.bounds
            ],
        }  # fmt: skip


def audit(
    mechanism: Mechanism,
    absent: Patients,
    present: Patients,
    claim: Claim,
    *,
    trials: int = 2000,
    rate: float = 0.001,
    direction: Message | None = None,
    score: Score | None = None,
    key: bytes | None = None,
    threads: int = 1,
    what: str = "",
) -> Audit:
    """Run ``mechanism`` on two neighbouring tables; compare what can be told apart with the claim.

    ``direction`` (how the canary moves the message) or ``score`` (any function of a message, larger
    when the canary is there) make the test sharp; without either, a matched filter is fitted on a
    quarter of the runs. ``key`` fixes the randomness for a test; by default it comes from the
    operating system. No message is kept or returned.

    >>> from dp_accounting import GaussianDpEvent
    >>> from suture.privacy.noise.source import generator, seeded_key
    >>> rows = Patients(np.ones((3, 1), np.float32), np.ones(3, np.int32), np.arange(4))
    >>> more = with_patient(rows, np.ones((1, 1), np.float32), np.ones(1, np.int32))
    >>> claim = Claim.of(GaussianDpEvent(2.0))
    >>> noisy = lambda table, key: table.x.sum(0) + 2.0 * generator(key).standard_normal(1)
    >>> audit(noisy, rows, more, claim, trials=400, key=seeded_key(1)).broken
    False
    >>> forgot = lambda table, key: table.x.sum(0) + 0.2 * generator(key).standard_normal(1)
    >>> audit(forgot, rows, more, claim, trials=400, key=seeded_key(1)).broken
    True
    """
    if trials < 40 or not 0 < rate < 1:
        raise StudyError(
            f"expected at least 40 trials and a rate between 0 and 1, found {trials} and {rate}"
        )
    if direction is not None and score is not None:
        raise StudyError("give direction or score, not both")
    secret, tables = secure_key() if key is None else key, (absent, present)

    def runs(
        world: int, start: int, stop: int, reduce: Callable[[Message], Reduced]
    ) -> list[Reduced]:
        def one(i: int) -> Reduced:  # a message is dropped as soon as it is reduced
            return reduce(mechanism(tables[world], derive(secret, "audit", world, i)))

        if threads <= 1:
            return [one(i) for i in range(start, stop)]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(one, range(start, stop)))

    fitted = 0
    if direction is not None:
        along = _flat(direction)
        if not np.any(along):
            raise StudyError(
                "the direction is zero: this canary does not move the message, so nothing can be "
                "tested"
            )
        score = _projection(along / np.linalg.norm(along))
    elif score is None:
        fitted = trials // 4
        score = _matched_filter(*(np.array(runs(world, 0, fitted, _flat)) for world in (0, 1)))
    out, in_ = (np.array(runs(world, fitted, trials, score), np.float64) for world in (0, 1))
    if np.any(np.isnan(out)) or np.any(np.isnan(in_)):
        raise PrivacyError(
            "the audited mechanism gave messages that are not numbers, so nothing can be measured"
        )
    chosen = (trials - fitted) // (2 if fitted == 0 else 3)
    bounds = _judge(out, in_, chosen, claim, rate)
    gaussian = claim.form is not None and claimed_mu(claim.form) is not None
    most = reach(len(out) - chosen, claim.delta, rate / len(bounds), gaussian)
    return Audit(claim, bounds, trials, rate, most, what)


def with_patient(
    rows: Patients, x: NDArray[np.float32], y: NDArray[np.int32], group: int = 0
) -> Patients:
    """The same table with one more patient, who has all of the given rows (and a group)."""
    return Patients(
        np.concatenate([rows.x, np.asarray(x, np.float32)]),
        np.concatenate([rows.y, np.asarray(y, np.int32)]),
        np.append(rows.starts, rows.rows + len(x)),
        None if rows.group is None else np.append(rows.group, group),
        rows.declared,
    )


def _flat(message: Message) -> Floats:
    """A message as one vector, arrays in the order of their names."""
    named = message if isinstance(message, Mapping) else {"": message}
    flat = [np.asarray(named[name], np.float64).ravel() for name in sorted(named)]
    return np.concatenate(flat) if flat else np.zeros(0)


def _projection(along: Floats) -> Score:
    return lambda message: float(_flat(message) @ along)


def _matched_filter(out: Floats, in_: Floats) -> Score:
    """Fisher's linear discriminant; with too many numbers for a covariance, variances only."""
    shift = in_.mean(0) - out.mean(0)
    spread = np.concatenate([out - out.mean(0), in_ - in_.mean(0)])
    variance = (spread**2).mean(0)
    # Numbers that never vary must not divide by zero, and must count for much when the canary moves
    # them.
    floor = 1e-9 * float(variance.max(initial=0.0)) or 1.0
    if 4 * len(shift) <= len(spread):
        covariance = spread.T @ spread / len(spread) + floor * np.eye(len(shift))
        along = np.linalg.solve(covariance, shift)
    else:
        along = shift / (variance + floor)
    size = float(np.linalg.norm(along))
    return _projection(along / size if size > 0 else along)


def _judge(out: Floats, in_: Floats, chosen: int, claim: Claim, rate: float) -> tuple[Bound, ...]:
    """Thresholds from the first ``chosen`` scores of each world, bounds from the others' rates."""
    form, delta = claim.form, claim.delta
    kinds = ("present", "absent") if form is None else ("present", "absent", "curve")
    share, runs = len(kinds), len(out) - chosen
    bounds = []
    for kind in kinds:
        guessed, other = (-out, -in_) if kind == "absent" else (in_, out)
        cut = _threshold(guessed[:chosen], other[:chosen], kind, delta, rate / share)
        hits, misses = int(np.sum(guessed[chosen:] > cut)), int(np.sum(other[chosen:] > cut))

        def proven(error: float, kind: str = kind, hits: int = hits, misses: int = misses) -> float:
            if kind == "curve" and form is not None:
                return event_bound(form, delta, hits, misses, runs, error)
            return float(epsilon_bound(hits, misses, runs, delta, error))

        bounds.append(Bound(kind, hits, misses, runs, proven(STATED / share), proven(rate / share)))
    return tuple(bounds)


def _threshold(first: Floats, second: Floats, kind: str, delta: float, error: float) -> float:
    """The threshold with the best bound (larger: guess the first world); the middle of equals."""
    pooled = np.unique(np.concatenate([first, second]))
    cuts = np.concatenate([[pooled[0] - 1.0], (pooled[1:] + pooled[:-1]) / 2])
    hits = len(first) - np.searchsorted(np.sort(first), cuts, side="right")
    misses = len(second) - np.searchsorted(np.sort(second), cuts, side="right")
    if kind == "curve":
        value = mu_bound(hits, misses, len(first), error)
    else:
        value = epsilon_bound(hits, misses, len(first), delta, error)
    best = np.flatnonzero(value >= value.max() - 1e-12)
    return float(cuts[best[len(best) // 2]])


@dataclass(frozen=True)
class Streams:
    """What was found: how many messages, and how many of them were seen before."""

    messages: int
    repeats: int
    rate: float

    @property
    def broken(self) -> bool:
        """A repeat: never with noise from 128 secret bits (probability below 1e-20)."""
        return self.repeats > 0

    @property
    def bits(self) -> float:
        """With repeats: at most this many secret bits. Without: more than this many."""
        if self.broken:
            return math.log2(self.messages**2 / (2 * self.rate))
        return math.log2(self.messages**2 / (2 * math.log(1 / self.rate)))

    @property
    def verdict(self) -> str:
        if self.broken:
            return (
                f"broken: {self.repeats} of {self.messages:,} messages came with noise seen "
                f"before, so it is drawn from fewer than 2^{math.ceil(self.bits)} streams; claimed "
                "2^128"
            )
        return (
            f"consistent with the claim: {self.messages:,} messages, no noise twice (more than "
            f"2^{self.bits:.1f} streams)"
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "what": "no noise is used twice", "verdict": self.verdict, "broken": self.broken,
            "messages": self.messages, "repeats": self.repeats, "bits": self.bits, "rate": self.rate,
        }  # fmt: skip


def repeated_noise(
    mechanism: Callable[[bytes], Array],
    *,
    messages: int = 250_000,
    rate: float = 0.001,
    key: bytes | None = None,
) -> Streams:
    """Count repeated messages of a mechanism on one fixed table; only digests are kept.

    Noise drawn from a seed of 32 bits can be found by trying all seeds, which takes an afternoon
    and undoes any epsilon. No statistic of a single message shows this, but repetition does: among
    n messages about the *same* table, each under a key of its own, two are equal with probability
    about n^2 / 2^33 (the birthday paradox). 250,000 messages find a 32-bit seed with probability
    99.9 %. Noise from 128 secret bits never repeats: a repeat among n messages means, at the stated
    rate, fewer than n^2 / (2 rate) streams.

    >>> from suture.privacy.noise.source import generator, seeded_key
    >>> good = repeated_noise(lambda key: generator(key).random(8), messages=2000, key=seeded_key(1))
    >>> small = lambda key: np.random.default_rng(key[0] + 256 * key[1]).random(8)  # a seed of 16 bits
    >>> good.repeats, repeated_noise(small, messages=2000, key=seeded_key(1)).repeats > 0
    (0, True)
    """
    if messages < 2:
        raise StudyError(f"expected at least 2 messages, found {messages}")
    secret = secure_key() if key is None else key

    def digest(i: int) -> bytes:
        message = np.ascontiguousarray(mechanism(derive(secret, "streams", i)))
        if message.nbytes < LEAST_BYTES:
            raise StudyError(
                f"expected messages of at least {LEAST_BYTES} bytes, found {message.nbytes}: "
                "shorter ones repeat by chance"
            )
        return hashlib.blake2b(message.tobytes(), digest_size=16).digest()

    distinct = len({digest(i) for i in range(messages)})
    return Streams(messages, messages - distinct, rate)
