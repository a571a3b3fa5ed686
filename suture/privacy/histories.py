"""What a training costs round by round, by four ways of adding up: the table behind ``suture plan table``.

- basic: the basic composition theorem at the *total* delta (``accountant.py``). Proven, loose.
- sqrt rule: the epsilon of one round times the square root of the rounds. A rule of thumb, not a bound: it is too high
  for few rounds and too low for many (rounds labelled 1 each at delta 1e-5: 3.2 against a true 2.69 at 10 rounds, 10.0
  against a true 10.39 at 100). Rows where it promises more than can be proven are marked.
- rdp and pld: Renyi and privacy-loss-distribution accounting, as the ledgers do it; without sampling, pld is the exact
  Gaussian formula.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from suture.errors import StudyError
from suture.privacy.accountant import epsilon_of
from suture.privacy.budget import Budget
from suture.privacy.calibration import dpsgd_event, rounds_that_fit, sampling_rate, steps_per_epoch
from suture.privacy.events import NormalForm, normal_form, times
from suture.privacy.gaussian import CLASSICAL_PROVEN_BELOW, analytic_sigma, classical_sigma
from suture.privacy.unit import NEIGHBOURS

WAYS = ("basic", "sqrt_rule", "rdp", "pld")
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
) -> dict[str, Any]:
    """Epsilon after 1 to ``rounds`` rounds, four ways; plain JSON. Noise is given, or follows from a round's label.

    >>> found = budget_over_rounds(rounds=100, round_epsilon=1.0, budget=8.0, at=[10, 50, 100])
    >>> [(row["round"], row["pld"], row["sqrt_rule"]) for row in found["rows"]]
    [(10, 2.689, 3.163), (50, 6.825, 7.072), (100, 10.4, 10.0)]
    >>> found["rounds_that_fit"]["rdp"], found["rounds_that_fit"]["pld"]
    (57, 65)
    """
    if (noise is None) == (round_epsilon is None):
        raise StudyError("give the noise multiplier of a round, or the epsilon it is labelled with: one of the two")
    if not 1 <= rounds <= _MOST_ROUNDS:
        raise StudyError(f"expected 1 to {_MOST_ROUNDS:,} rounds, found {rounds}")
    if formula not in ("classical", "analytic"):
        raise StudyError(f"expected formula classical or analytic, found {formula!r}")
    sampled = patients is not None or batch is not None
    if sampled and (patients is None or batch is None):
        raise StudyError("sampling needs both patients and batch; leave both out when everybody takes part in a round")
    if sampled and round_epsilon is not None:
        raise StudyError("a label (round epsilon) says nothing about a sampled round; give its noise multiplier")
    if noise is None:
        sigma = (classical_sigma if formula == "classical" else analytic_sigma)(float(round_epsilon or 0), delta)
    else:
        sigma = noise
    rate, steps = 1.0, 1
    if patients is not None and batch is not None:
        rate, steps = sampling_rate(patients, batch), local_epochs * steps_per_epoch(patients, batch)
    one = normal_form(dpsgd_event(sigma, rate, steps))
    label = float(round_epsilon) if round_epsilon is not None else epsilon_of(one, delta, "pld")
    rows = [_row(one, count, label, delta) for count in _chosen(rounds, at)]
    found: dict[str, Any] = {
        "rounds": rounds,
        "delta": delta,
        "noise": sigma,
        "round_epsilon": _up(label),
        "sampling_rate": rate,
        "steps_per_round": steps,
        "rows": rows,
        "unit": "patient",
        "neighbours": NEIGHBOURS,
        "notes": _notes(round_epsilon, formula),
    }
    if budget is not None:
        found["budget"] = budget
        found["rounds_that_fit"] = _fitting(one, label, delta, budget)
    return found


def _row(one: NormalForm, rounds: int, label: float, delta: float) -> dict[str, Any]:
    form = times(one, rounds)
    row: dict[str, Any] = {"round": rounds}
    for way in WAYS:
        row[way] = _up(label * math.sqrt(rounds) if way == "sqrt_rule" else epsilon_of(form, delta, way))
    row["sqrt_rule_promises_too_much"] = label * math.sqrt(rounds) < epsilon_of(form, delta, "pld")
    return row


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
    found = {way: rounds_that_fit(one, Budget(budget, delta, way)) for way in ("basic", "rdp", "pld")}
    found["sqrt_rule"] = math.floor((budget / label) ** 2 * (1 + 1e-12)) if label > 0 else _MOST_ROUNDS
    return {way: found[way] for way in WAYS}


def _notes(round_epsilon: float | None, formula: str) -> list[str]:
    notes = ["The sqrt rule is a rule of thumb, not a bound; where it lies below PLD it promises what is not true."]
    if round_epsilon is not None and formula == "classical" and round_epsilon >= CLASSICAL_PROVEN_BELOW:
        notes.append(
            f"The classical Gaussian formula is proven for epsilon below {CLASSICAL_PROVEN_BELOW:g} only; the label "
            f"{round_epsilon:g} is taken as what sets the noise, and RDP and PLD say what that noise is worth."
        )
    return notes


def _up(value: float) -> float | None:
    """Four significant figures, rounded up; None for infinity, which JSON lacks."""
    if not math.isfinite(value):
        return None
    if value == 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return float(f"{math.ceil(value / unit * (1 - 1e-9)) * unit:.4g}")
