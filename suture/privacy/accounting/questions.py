"""What a person asks before a study: the engines of ``suture plan`` and its subcommands
(docs/planning.md). Epsilons are rounded up throughout.

**`answer`** computes the figure that was left out. Every accountant answers for every hospital; the
worst hospital governs. Two answers are not monotone, because the number of steps is
ceil(patients/batch): *batch* is the largest that fits (for a given number of steps the cost grows
with the batch, so the search goes over numbers of steps first), *patients* the size from which this
hospital and every larger one fit.

**`budget_over_rounds`** adds a training up round by round: by basic composition at the *total*
delta, by the square-root rule (marked where it promises more than can be proven), by RDP and PLD.

**`safe_epsilon`**: the flag on a rate of n patients under noise of sigma patients is right with
probability Phi(n |rate - threshold| / sigma) if the site's own rate is the true one; with sampling
error, events are Binomial(n, rate), and P(right) = sum over k of Binomial(k) P(k + N(0, sigma^2) on
the right side of n threshold), which no epsilon lifts above its limit as noise vanishes (there a
count exactly at the threshold is a coin toss).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from dp_accounting.gaussian_mechanism import get_sigma_gaussian
from scipy import optimize, stats
from scipy.special import ndtr, ndtri

from suture.errors import StudyError
from suture.privacy.accounting.accountant import (
    CLASSICAL_PROVEN_BELOW,
    analytic_sigma,
    check_delta,
    classical_epsilon,
    classical_sigma,
    delta_for,
    epsilon_of,
    epsilon_of_mu,
)
from suture.privacy.accounting.events import GAUSSIAN, NormalForm, Step, normal_form, times
from suture.privacy.accounting.planner import (
    Budget,
    dpsgd_event,
    largest,
    noise_for,
    rounds_that_fit,
    sampling_rate,
    steps_per_epoch,
    steps_that_fit,
)
from suture.privacy.unit import NEIGHBOURS

Found = dict[str, Any]
"""Plain JSON."""
Figure = float | int | None

# --- the missing figure --------------------------------------------------------------------------

_ACCOUNTANTS = ("basic", "rdp", "pld")
_MOST_PATIENTS = 10**9
_EXPECTED = "patients, batch, epochs (or rounds with local_epochs), noise, epsilon and delta"
_SAMPLING = (
    "Poisson: each patient takes part in a step with probability sampling_rate, on their own"
)


@dataclass(frozen=True)
class _Question:
    """One hospital's figures; the unknown one holds a placeholder that is never read."""

    patients: int
    batch: int
    epochs: int
    noise: float
    epsilon: float
    delta: float
    local_epochs: int

    @property
    def rate(self) -> float:
        return sampling_rate(self.patients, self.batch)

    @property
    def steps(self) -> int:
        return self.epochs * steps_per_epoch(self.patients, self.batch)

    def cost(self, accountant: str) -> float:
        step = Step(GAUSSIAN, self.noise, self.rate)
        return epsilon_of(((step, self.steps),), self.delta, accountant)


def answer(
    *,
    patients: Sequence[int] | int | None = None,
    batch: int | None = None,
    epochs: int | None = None,
    rounds: int | None = None,
    local_epochs: int | None = None,
    noise: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
) -> Found:
    """The missing figure for basic composition, RDP and PLD, per hospital, as plain JSON.

    >>> found = answer(patients=[1270], batch=32, epochs=500, noise=1.0, delta=1e-5)
    >>> found["epsilon"]["rdp"], found["epsilon"]["pld"]
    (31.9, 29.97)
    >>> answer(patients=[1270], batch=32, epochs=500, epsilon=13.4, delta=1e-5)["noise"]["pld"]
    1.572
    """
    sizes = [patients] if isinstance(patients, int) else list(patients or [])
    given: Found = {"patients": sizes or None, "batch": batch, "epochs": epochs, "rounds": rounds}
    given |= {"local_epochs": local_epochs, "noise": noise, "epsilon": epsilon, "delta": delta}
    unknown = _unknown(given)
    each = 1 if local_epochs is None else local_epochs
    length = epochs if epochs is not None else (rounds or 1) * each
    question = _Question(1, batch or 1, length, noise or 1.0, epsilon or 1.0, delta or 0.5, each)
    hospitals = [_hospital(replace(question, patients=size), unknown) for size in sizes or [1]]
    worst = {accountant: _worst(hospitals, unknown, accountant) for accountant in _ACCOUNTANTS}
    governing = next(h for h in hospitals if h[unknown]["pld"] == worst["pld"])
    facts = {name: value for name, value in given.items() if value is not None and name != unknown}
    return {
        unknown: worst,
        "unit": "patient",
        "neighbours": NEIGHBOURS,
        "sampling": _SAMPLING,
        "steps": governing["steps"],
        "sampling_rate": governing["sampling_rate"],
        **facts,
        "hospitals": hospitals,
    }


def _unknown(given: Found) -> str:
    """The figure asked for; `StudyError` unless it is exactly one and the rest make sense."""
    epochs, rounds, local_epochs = given["epochs"], given["rounds"], given["local_epochs"]
    if epochs is not None and (rounds is not None or local_epochs is not None):
        raise StudyError(
            "expected epochs, or rounds with local_epochs; found both: give the length of training "
            "once"
        )
    single = ("patients", "batch", "noise", "epsilon", "delta")
    missing = [name for name in single if given[name] is None]
    if epochs is None and rounds is None:
        missing.append("epochs" if local_epochs is None else "rounds")
    if len(missing) != 1:
        found = "none is missing" if not missing else f"missing are {', '.join(missing)}"
        raise StudyError(f"expected all but one of {_EXPECTED}; {found}")
    counts = [(name, given[name]) for name in ("batch", "epochs", "rounds", "local_epochs")]
    for name, value in [*counts, *(("patients", size) for size in given["patients"] or [])]:
        if value is not None and (value != int(value) or value < 1):
            raise StudyError(f"expected {name} to be a whole number of at least 1, found {value}")
    for name in ("noise", "epsilon"):
        if given[name] is not None and not 0 < given[name] < math.inf:
            raise StudyError(f"expected {name} to be above 0 and finite, found {given[name]}")
    if given["delta"] is not None:
        check_delta(given["delta"])
    return missing[0]


def _hospital(question: _Question, unknown: str) -> Found:
    solve: dict[str, Callable[[_Question, str], Figure]] = {
        "epsilon": lambda q, by: _up(q.cost(by)),
        "noise": lambda q, by: noise_for(q.epsilon, q.delta, q.rate, q.steps, by),
        "delta": lambda q, by: delta_for(dpsgd_event(q.noise, q.rate, q.steps), q.epsilon, by),
        "epochs": _length,
        "rounds": _length,
        "batch": _largest_batch,
        "patients": _smallest_patients,
    }
    found = {by: solve[unknown](question, by) for by in _ACCOUNTANTS}
    report: Found = {"patients": question.patients}
    if unknown in ("epsilon", "noise", "delta"):
        report |= {"steps": question.steps, "sampling_rate": question.rate}
    else:  # steps and rate follow from the answer, so each accountant has its own
        solved = {by: _with(question, unknown, value) for by, value in found.items()}
        report["steps"] = {by: None if q is None else q.steps for by, q in solved.items()}
        report["sampling_rate"] = {by: None if q is None else q.rate for by, q in solved.items()}
    return {**report, unknown: found}


def _with(question: _Question, unknown: str, value: Figure) -> _Question | None:
    if value is None:
        return None
    if unknown == "rounds":
        return replace(question, epochs=int(value) * question.local_epochs)
    return replace(question, **{unknown: int(value)})


def _worst(hospitals: list[Found], unknown: str, accountant: str) -> Figure:
    values = [hospital[unknown][accountant] for hospital in hospitals]
    if any(value is None for value in values):
        return None
    worst: Figure = min(values) if unknown in ("epochs", "rounds", "batch") else max(values)
    return worst


def _length(q: _Question, accountant: str) -> int:
    """Rounds that fit; an epoch is a round of one local epoch."""
    per = q.local_epochs * steps_per_epoch(q.patients, q.batch)
    return steps_that_fit(q.epsilon, q.delta, q.noise, q.rate, accountant, per)


def _largest_batch(question: _Question, accountant: str) -> int | None:
    """The largest batch within the budget, or None when not even single patients fit."""
    size, target = question.patients, question.epsilon

    def cost(batch: int) -> float:
        return replace(question, batch=batch).cost(accountant)

    # A first guess from the central limit: mu^2 = T q^2 (e^{1/sigma^2} - 1).
    near = size * _target_mu(question) ** 2 / (question.epochs * math.expm1(question.noise**-2))
    guess = size / min(max(near, 1.0), float(size))
    # ceil(size/s) is the smallest and cheapest batch with s steps per epoch; fewer steps cost more.
    steps = 1 + _last_above(lambda s: cost(-(-size // s)), target, guess, size)
    if steps > size:
        return None
    before = -(-size // steps) - 1
    last = size if steps == 1 else -(-size // (steps - 1)) - 1  # the largest with as many steps
    return before + largest(lambda n: cost(before + n), target, limit=last - before)


def _smallest_patients(question: _Question, accountant: str) -> int | None:
    """The size from which every hospital fits, or None when none up to 10^9 patients does."""
    batch, target = question.batch, question.epsilon

    def cost(size: int) -> float:
        return replace(question, patients=size).cost(accountant)

    # Sizes (k - 1) b + 1 to k b take k steps per epoch. The first of them costs most, and these
    # first ones get cheaper with k. So find the last k whose first size does not fit, then the size
    # within that block.
    guess = question.epochs * math.expm1(question.noise**-2) / _target_mu(question) ** 2
    blocks = _MOST_PATIENTS // batch + 1
    block = _last_above(lambda k: cost((k - 1) * batch + 1), target, guess, blocks)
    if block == 0:
        return 1
    if block == blocks:
        return None
    before = (block - 1) * batch
    return before + 1 + _last_above(lambda n: cost(before + n), target, batch / 2, batch)


def _last_above(cost: Callable[[int], float], target: float, guess: float, limit: int) -> int:
    """The last n of 1..limit whose cost, which falls with n, is above the target; 0: none is."""
    start, goal = max(1, int(min(guess, limit))), math.nextafter(1 / target, 0.0)
    return largest(lambda n: 1 / max(cost(n), 1e-300), goal, start, limit)


def _target_mu(question: _Question) -> float:
    """The Gaussian privacy parameter of the budget; searches only start from it."""
    return 1 / float(get_sigma_gaussian(question.epsilon, question.delta))


# --- a budget over rounds ------------------------------------------------------------------------

_WAYS = ("basic", "sqrt_rule", "rdp", "pld")
_MOST_ROUNDS = 1_000_000


def budget_over_rounds(
    *,
    rounds: int,
    delta: float = 1e-5,
    noise: float | None = None,
    round_epsilon: float | None = None,
    formula: str = "classical",
    patients: int | None = None,
    batch: int | None = None,
    local_epochs: int = 1,
    budget: float | None = None,
    at: Sequence[int] = (),
) -> Found:
    """Epsilon after 1 to ``rounds`` rounds, four ways, as plain JSON. Give the noise of a round, or
    the epsilon that labels it.

    >>> found = budget_over_rounds(rounds=100, round_epsilon=1.0, budget=8.0, at=[10, 50, 100])
    >>> [(row["round"], row["pld"], row["sqrt_rule"]) for row in found["rows"]]
    [(10, 2.689, 3.163), (50, 6.825, 7.072), (100, 10.4, 10.0)]
    >>> found["rounds_that_fit"]["rdp"], found["rounds_that_fit"]["pld"]
    (57, 65)
    """
    if (noise is None) == (round_epsilon is None):
        raise StudyError(
            "give either the noise multiplier of a round or the epsilon that it is labelled with"
        )
    if not 1 <= rounds <= _MOST_ROUNDS:
        raise StudyError(f"expected 1 to {_MOST_ROUNDS:,} rounds, found {rounds}")
    if formula not in MECHANISMS:
        raise StudyError(f"expected formula classical or analytic, found {formula!r}")
    if (patients is None) != (batch is None):
        raise StudyError(
            "sampling needs both patients and batch; leave both out when everybody takes part in a "
            "round"
        )
    if patients is not None and round_epsilon is not None:
        raise StudyError(
            "a label (round epsilon) says nothing about a sampled round; give its noise multiplier"
        )
    sigma = MECHANISMS[formula](float(round_epsilon or 0), delta) if noise is None else noise
    rate, steps = 1.0, 1
    if patients is not None and batch is not None:
        rate = sampling_rate(patients, batch)
        steps = local_epochs * steps_per_epoch(patients, batch)
    one = normal_form(dpsgd_event(sigma, rate, steps))
    label = float(round_epsilon) if round_epsilon is not None else epsilon_of(one, delta, "pld")
    found: Found = {
        "rounds": rounds,
        "delta": delta,
        "noise": sigma,
        "round_epsilon": _up(label, _LOOSE),
        "sampling_rate": rate,
        "steps_per_round": steps,
        "rows": [_row(one, count, label, delta) for count in _chosen(rounds, at)],
        "unit": "patient",
        "neighbours": NEIGHBOURS,
        "notes": _notes(round_epsilon, formula),
    }
    if budget is not None:
        found["budget"] = budget
        found["rounds_that_fit"] = _fitting(one, label, delta, budget)
    return found


def _row(one: NormalForm, rounds: int, label: float, delta: float) -> Found:
    form, rule = times(one, rounds), label * math.sqrt(rounds)
    cost = {way: rule if way == "sqrt_rule" else epsilon_of(form, delta, way) for way in _WAYS}
    rounded = {way: _up(value, _LOOSE) for way, value in cost.items()}
    return {"round": rounds, **rounded, "sqrt_rule_promises_too_much": rule < cost["pld"]}


def _chosen(rounds: int, at: Sequence[int]) -> list[int]:
    """The rounds to show: those asked for, or about forty, dense at the start."""
    if at:
        wrong = [count for count in at if not 1 <= count <= rounds]
        if wrong:
            raise StudyError(f"expected rounds from 1 to {rounds}, found {wrong[0]}")
        return sorted(set(at))
    if rounds <= 40:
        return list(range(1, rounds + 1))
    return sorted({round(math.exp(i / 39 * math.log(rounds))) for i in range(40)})


def _fitting(one: NormalForm, label: float, delta: float, budget: float) -> dict[str, int]:
    rule = math.floor((budget / label) ** 2 * (1 + 1e-12)) if label > 0 else _MOST_ROUNDS
    return {
        way: rule if way == "sqrt_rule" else rounds_that_fit(one, Budget(budget, delta, way))
        for way in _WAYS
    }


def _notes(label: float | None, formula: str) -> list[str]:
    notes = [
        "The sqrt rule is a rule of thumb, not a bound; where it lies below PLD it promises what "
        "is not true."
    ]
    if label is not None and formula == "classical" and label >= CLASSICAL_PROVEN_BELOW:
        notes.append(
            "The classical Gaussian formula is proven for epsilon below "
            f"{CLASSICAL_PROVEN_BELOW:g} only; the label {label:g} is taken as what sets the "
            "noise, and RDP and PLD say what that noise is worth."
        )
    return notes


# --- the strongest privacy that a safety decision bears ------------------------------------------

_LEAST, _MOST = 1e-4, 1e3
MECHANISMS: dict[str, Callable[[float, float], float]] = {
    "classical": classical_sigma,
    "analytic": analytic_sigma,
}


def reliability_of(
    sigma: float, *, rate: float, threshold: float, patients: int, sampling_error: bool = False
) -> float:
    """The probability that the flag is right under noise of ``sigma`` patients (0: the limit)."""
    _check(rate, threshold, patients)
    if not sigma >= 0:
        raise StudyError(f"expected noise of at least 0, found {sigma}")
    if not sampling_error:
        return float(ndtr(patients * abs(rate - threshold) / sigma)) if sigma > 0 else 1.0
    count = np.arange(patients + 1)
    chance = stats.binom.pmf(count, patients, rate)
    kept = chance > 1e-18
    # The edge in whole events: 0.01 * 4000 is 40, not 40.000000000000001.
    aside = count[kept] - round(patients * threshold, 9)
    above = (np.sign(aside) + 1) / 2 if sigma == 0 else ndtr(aside / sigma)
    flagged = float(np.dot(chance[kept], above))
    return flagged if rate > threshold else 1 - flagged


def safe_epsilon(
    *, rate: float, threshold: float, patients: int, reliability: float = 0.95, delta: float = 1e-5
) -> Found:
    """The smallest reliable epsilon by mechanism, with and without sampling error, as plain JSON.

    >>> safe_epsilon(rate=0.012, threshold=0.01, patients=4000)["without_sampling_error"]["analytic"]["epsilon"]
    0.7478
    """
    _check(rate, threshold, patients)
    if not 0.5 < reliability < 1:
        raise StudyError(
            f"expected a reliability between 0.5 (a coin toss) and 1, found {reliability}"
        )
    right = partial(reliability_of, rate=rate, threshold=threshold, patients=patients)
    sampled = partial(right, sampling_error=True)
    ceiling, most = sampled(0.0), None
    if ceiling >= reliability:
        most = _most_noise(lambda sigma: reliability - sampled(sigma), patients)
    plain = patients * abs(rate - threshold) / float(ndtri(reliability))
    return {
        "rate": rate,
        "threshold": threshold,
        "patients": patients,
        "reliability": reliability,
        "delta": delta,
        "events_expected": rate * patients,
        "events_at_threshold": threshold * patients,
        "without_sampling_error": {
            "reachable": True,
            "best_possible": 1.0,
            **_answers(plain, delta, right),
        },
        "with_sampling_error": {
            "reachable": most is not None,
            "best_possible": math.floor(ceiling * 1e4) / 1e4,
            **(dict.fromkeys(MECHANISMS) if most is None else _answers(most, delta, sampled)),
        },
    }


def _most_noise(short: Callable[[float], float], patients: int) -> float:
    """The largest noise at which the flag does not fall ``short`` of the asked reliability."""
    # Reliability falls with noise apart from ripples of whole events at small noise: look from the
    # noisy side.
    grid = np.linspace(math.log(1e4 * patients), math.log(1e-3), 400)

    def excess(log_sigma: float) -> float:
        return short(math.exp(log_sigma))

    for outer, inner in itertools.pairwise(grid):
        if excess(inner) <= 0:
            return math.exp(optimize.brentq(excess, inner, outer, xtol=1e-12))
    return math.exp(grid[-1])


def _answers(sigma: float, delta: float, right: Callable[[float], float]) -> dict[str, Found]:
    """What each mechanism calls a noise of ``sigma`` patients, and how reliable its own is."""
    found: dict[str, Found] = {}
    labels = {"classical": classical_epsilon(sigma, delta)}
    labels["analytic"] = epsilon_of_mu(1 / sigma, delta)
    for name, label in labels.items():
        epsilon = _clamped(label)
        noise = MECHANISMS[name](epsilon, delta)
        found[name] = {"epsilon": epsilon, "sigma_patients": noise, "proven": True}
        if name == "classical":
            found[name]["proven"] = epsilon < CLASSICAL_PROVEN_BELOW
            found[name]["true_epsilon"] = _clamped(epsilon_of_mu(1 / noise, delta))
        found[name]["reliability"] = right(noise)
    return found


def _check(rate: float, threshold: float, patients: int) -> None:
    for name, value in (("rate", rate), ("threshold", threshold)):
        if not 0 < value < 1:
            raise StudyError(f"expected {name} between 0 and 1 (0.012 is 1.2 %), found {value}")
    if rate == threshold:
        raise StudyError(
            "the rate equals the threshold: no flag can be reliable on a tie; change one of them"
        )
    if patients < 1 or patients != int(patients):
        raise StudyError(f"expected a whole number of patients of at least 1, found {patients}")


def _clamped(epsilon: float) -> float:
    """Rounded up; at least the smallest epsilon that is worth stating."""
    return _up(min(max(epsilon, _LEAST), _MOST)) or 0.0


_LOOSE = 1e-9


def _up(value: float, slack: float = 1e-12) -> float | None:
    """Four significant figures, rounded up; None for infinity, which JSON lacks."""
    if not math.isfinite(value):
        return None
    if value == 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return float(f"{math.ceil(value / unit * (1 - slack)) * unit:.4g}")
