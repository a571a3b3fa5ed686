"""The engine of ``suture plan``: give all but one of the figures of a study, get the missing one.

The figures are patients (one hospital or many), batch, length (epochs, or rounds of local epochs), noise, epsilon and
delta; each hospital is answered by each accountant. What stands at the top is the hospital that governs: without a
secure sum the worst one does.

Two answers are not monotone by nature, because the number of steps is ceil(patients/batch): a batch one larger may
save a step, a patient more may cost one. *Batch* is the largest that fits: for every number of steps an epoch, cost
grows with the batch, so the search goes over numbers of steps first. *Patients* is the size from which this hospital
and every larger one fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dp_accounting.gaussian_mechanism import get_sigma_gaussian

from suture.errors import StudyError
from suture.privacy.accountant import delta_for, epsilon_of
from suture.privacy.budget import largest
from suture.privacy.calibration import dpsgd_event, noise_for, sampling_rate, steps_per_epoch, steps_that_fit
from suture.privacy.events import GAUSSIAN, Step
from suture.privacy.unit import NEIGHBOURS

_ACCOUNTANTS = ("basic", "rdp", "pld")
_MOST_PATIENTS = 10**9
_EXPECTED = "patients, batch, epochs (or rounds with local_epochs), noise, epsilon and delta"

Figure = float | int | None


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
        return epsilon_of(((Step(GAUSSIAN, self.noise, self.rate), self.steps),), self.delta, accountant)


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
) -> dict[str, Any]:
    """The missing figure for basic composition, RDP and PLD, per hospital; everything in it is plain JSON.

    >>> found = answer(patients=[1270], batch=32, epochs=500, noise=1.0, delta=1e-5)
    >>> found["epsilon"]["rdp"], found["epsilon"]["pld"]
    (31.9, 29.97)
    >>> answer(patients=[1270], batch=32, epochs=500, epsilon=13.4, delta=1e-5)["noise"]["pld"]
    1.572
    """
    sizes = [patients] if isinstance(patients, int) else list(patients or [])
    given: dict[str, Any] = {"patients": sizes or None, "batch": batch, "epochs": epochs, "rounds": rounds}
    given |= {"local_epochs": local_epochs, "noise": noise, "epsilon": epsilon, "delta": delta}
    unknown = _unknown(given)
    each = 1 if local_epochs is None else local_epochs
    length = epochs if epochs is not None else (rounds or 1) * each
    question = _Question(1, batch or 1, length, noise or 1.0, epsilon or 1.0, delta or 0.5, each)
    hospitals = [_hospital(replace(question, patients=size), unknown) for size in sizes or [1]]
    if unknown == "patients":
        hospitals[0].pop("patients")
        hospitals[0] = {"patients": hospitals[0].pop("answer"), **hospitals[0]}
    worst = {accountant: _worst(hospitals, unknown, accountant) for accountant in _ACCOUNTANTS}
    governing = next(h for h in hospitals if h[unknown]["pld"] == worst["pld"])
    facts = {name: value for name, value in given.items() if value is not None and name != unknown}
    return {
        unknown: worst,
        "unit": "patient",
        "neighbours": NEIGHBOURS,
        "sampling": "Poisson: each patient takes part in a step with probability sampling_rate, on their own",
        "steps": governing["steps"],
        "sampling_rate": governing["sampling_rate"],
        **facts,
        "hospitals": hospitals,
    }


def _unknown(given: dict[str, Any]) -> str:
    """Which figure is asked for; `StudyError` unless it is exactly one and the others make sense."""
    if given["epochs"] is not None and (given["rounds"] is not None or given["local_epochs"] is not None):
        raise StudyError("expected epochs, or rounds with local_epochs; found both: give the length of training once")
    length_given = given["epochs"] is not None or given["rounds"] is not None
    missing = [name for name in ("patients", "batch", "noise", "epsilon", "delta") if given[name] is None]
    if not length_given:
        missing.append("epochs" if given["local_epochs"] is None else "rounds")
    if len(missing) != 1:
        found = "none is missing" if not missing else f"missing are {', '.join(missing)}"
        raise StudyError(f"expected all but one of {_EXPECTED}; {found}")
    for name in ("batch", "epochs", "rounds", "local_epochs"):
        value = given[name]
        if value is not None and (value != int(value) or value < 1):
            raise StudyError(f"expected {name} to be a whole number of at least 1, found {value}")
    for size in given["patients"] or []:
        if size != int(size) or size < 1:
            raise StudyError(f"expected patients to be whole numbers of at least 1, found {size}")
    for name in ("noise", "epsilon"):
        if given[name] is not None and not 0 < given[name] < math.inf:
            raise StudyError(f"expected {name} to be above 0 and finite, found {given[name]}")
    if given["delta"] is not None and not 0 < given["delta"] < 1:
        raise StudyError(f"expected delta between 0 and 1, found {given['delta']}; 1e-5 is usual")
    return missing[0]


def _hospital(question: _Question, unknown: str) -> dict[str, Any]:
    solve: dict[str, Callable[[_Question, str], Figure]] = {
        "epsilon": lambda q, accountant: _up(q.cost(accountant)),
        "noise": lambda q, accountant: noise_for(q.epsilon, q.delta, q.rate, q.steps, accountant),
        "delta": lambda q, accountant: delta_for(dpsgd_event(q.noise, q.rate, q.steps), q.epsilon, accountant),
        "epochs": _length,
        "rounds": _length,
        "batch": _largest_batch,
        "patients": _smallest_patients,
    }
    found = {accountant: solve[unknown](question, accountant) for accountant in _ACCOUNTANTS}
    report: dict[str, Any] = {"patients": question.patients}
    if unknown in ("epsilon", "noise", "delta"):
        report |= {"steps": question.steps, "sampling_rate": question.rate}
    else:  # steps and rate follow from the answer, so each accountant has its own
        solved = {accountant: _with(question, unknown, value) for accountant, value in found.items()}
        report["steps"] = {name: None if q is None else q.steps for name, q in solved.items()}
        report["sampling_rate"] = {name: None if q is None else q.rate for name, q in solved.items()}
    return {**report, ("answer" if unknown == "patients" else unknown): found}


def _with(question: _Question, unknown: str, value: Figure) -> _Question | None:
    if value is None:
        return None
    if unknown == "rounds":
        return replace(question, epochs=int(value) * question.local_epochs)
    return replace(question, **{unknown: int(value)})


def _worst(hospitals: list[dict[str, Any]], unknown: str, accountant: str) -> Figure:
    values = [hospital[unknown][accountant] for hospital in hospitals]
    if any(value is None for value in values):
        return None
    worst: Figure = min(values) if unknown in ("epochs", "rounds", "batch") else max(values)
    return worst


def _length(question: _Question, accountant: str) -> int:
    """Rounds that fit; an epoch is a round of one local epoch."""
    per = question.local_epochs * steps_per_epoch(question.patients, question.batch)
    return steps_that_fit(question.epsilon, question.delta, question.noise, question.rate, accountant, per)


def _largest_batch(question: _Question, accountant: str) -> int | None:
    """The largest batch within the budget, or None when not even single patients fit."""
    size = question.patients

    def cost(batch: int) -> float:
        return replace(question, batch=batch).cost(accountant)

    # ceil(size/s) is the smallest batch with s steps an epoch and the cheapest of them; fewer steps cost more.
    guess = size / _central_limit(question)
    steps = 1 + _last_above(lambda s: cost(-(-size // s)), question.epsilon, guess, size)
    if steps > size:
        return None
    first = -(-size // steps)
    last = size if steps == 1 else -(-size // (steps - 1)) - 1  # larger batches that take as many steps
    return first - 1 + largest(lambda n: cost(first - 1 + n), question.epsilon, limit=last - first + 1)


def _smallest_patients(question: _Question, accountant: str) -> int | None:
    """The size from which every hospital fits, or None when none up to a thousand million does."""
    batch = question.batch

    def cost(size: int) -> float:
        return replace(question, patients=size).cost(accountant)

    # Sizes (k - 1) b + 1 to k b take k steps an epoch; the first of them is the dearest, and the first ones get cheaper
    # with k. So find the last k whose first does not fit, then the size within that block.
    guess = question.epochs * math.expm1(question.noise**-2) / _target_mu(question) ** 2
    blocks = _MOST_PATIENTS // batch + 1
    block = _last_above(lambda k: cost((k - 1) * batch + 1), question.epsilon, guess, blocks)
    if block == 0:
        return 1
    if block == blocks:
        return None
    before = (block - 1) * batch
    return before + 1 + _last_above(lambda n: cost(before + n), question.epsilon, batch / 2, batch)


def _last_above(cost: Callable[[int], float], target: float, guess: float, limit: int) -> int:
    """The last n of 1..limit whose cost, which falls with n, is above the target; 0 when none is."""
    start = max(1, int(min(guess, limit)))
    return largest(lambda n: 1 / max(cost(n), 1e-300), math.nextafter(1 / target, 0.0), start, limit)


def _target_mu(question: _Question) -> float:
    """The Gaussian privacy parameter of the budget: only a first guess of searches comes from it."""
    return 1 / float(get_sigma_gaussian(question.epsilon, question.delta))


def _central_limit(question: _Question) -> float:
    """A batch near the answer, from mu^2 = T q^2 (e^{1/sigma^2} - 1)."""
    batch = question.patients * _target_mu(question) ** 2 / (question.epochs * math.expm1(question.noise**-2))
    return min(max(batch, 1.0), float(question.patients))


def _up(value: float) -> Figure:
    """Four significant figures, rounded up; None for infinity, which JSON lacks."""
    if not math.isfinite(value):
        return None
    if value == 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return float(f"{math.ceil(value / unit * (1 - 1e-12)) * unit:.4g}")
