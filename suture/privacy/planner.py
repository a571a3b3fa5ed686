"""The promise before training: what each site will release, what it costs, and that the budget pays for it.

What is planned is the event of one round; what is promised is its composition over the rounds, by the same accountant
that the ledger will ask, so that what the ledger finds at the end equals the plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dp_accounting.dp_event import DpEvent

from suture.errors import StudyError
from suture.privacy.accountant import epsilon_of
from suture.privacy.answer import answer
from suture.privacy.budget import Budget, learn_if_fits
from suture.privacy.calibration import (
    dpsgd_event,
    noise_for,
    rounds_that_fit,
    sampling_rate,
    steps_per_epoch,
    steps_that_fit,
)
from suture.privacy.events import NormalForm, compose, normal_form, times

__all__ = [
    "SitePlan",
    "answer",
    "dpsgd_event",
    "noise_for",
    "plan_schedule",
    "plan_site",
    "sampling_rate",
    "steps_per_epoch",
    "steps_that_fit",
]


@dataclass(frozen=True)
class SitePlan:
    """What one site promises before training.

    ``epsilon`` is what the rounds that the budget pays for cost: all ``rounds``, unless both a budget and a noise
    multiplier were fixed and the budget ends first (``rounds_paid`` < ``rounds``).
    """

    site: str
    patients: int
    batch: int
    sampling_rate: float
    steps_per_round: int
    rounds: int
    noise_multiplier: float
    epsilon: float
    delta: float
    accountant: str
    event: DpEvent
    rounds_paid: int
    schedule: tuple[DpEvent, ...] = ()
    """The event of every round the site takes part in, where rounds differ; else each costs ``event``."""

    def spent_after(self, taken: int, since: int = 0) -> DpEvent:
        """What the first ``taken`` rounds of the site cost together, without the first ``since`` of them.

        >>> plan_site("a", 100, 10, rounds=3, local_epochs=1, delta=1e-5, noise_multiplier=1.0).spent_after(2).count
        20
        """
        if not self.schedule:
            return compose([(self.event, taken - since)] if taken > since else [])
        return compose([(event, 1) for event in self.schedule[since:taken]])


def plan_site(
    site: str,
    patients: int,
    batch: int,
    *,
    rounds: int,
    local_epochs: int,
    delta: float,
    local_steps: int | None = None,
    accountant: str = "pld",
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
) -> SitePlan:
    """The promise of one site: noise for a budget, the cost of a noise, or both fixed and the rounds that fit.

    >>> plan = plan_site("a", 1270, 32, rounds=100, local_epochs=5, delta=1e-5, epsilon=13.4)
    >>> plan.noise_multiplier, round(plan.epsilon, 2), plan.steps_per_round, plan.rounds_paid
    (1.572, 13.4, 200, 100)
    >>> plan = plan_site("a", 1270, 32, rounds=100, local_epochs=5, delta=1e-5, epsilon=13.4, noise_multiplier=1.5)
    >>> plan.rounds_paid, plan.epsilon <= 13.4
    (89, True)
    """
    if epsilon is None and noise_multiplier is None:
        raise StudyError(f"site {site!r}: expected epsilon, noise_multiplier or both under [privacy], found neither")
    if rounds < 1 or local_epochs < 1:
        raise StudyError(
            f"site {site!r}: expected 1 round and 1 local epoch or more, found {rounds} and {local_epochs}"
        )
    rate, steps = sampling_rate(patients, batch), local_epochs * steps_per_epoch(patients, batch)
    steps = steps if local_steps is None else min(steps, local_steps)
    if noise_multiplier is None:
        noise_multiplier = noise_for(float(epsilon or 0), delta, rate, steps * rounds, accountant)
    event = dpsgd_event(noise_multiplier, rate, steps)
    one = normal_form(event)
    paid = rounds
    if epsilon is not None and math.isfinite(epsilon):
        budget = Budget(epsilon, delta, accountant)
        if not learn_if_fits(times(one, rounds), budget):
            paid = min(rounds, rounds_that_fit(one, budget))
    cost = epsilon_of(times(one, paid), delta, accountant)
    if epsilon is None and 0 < cost < math.inf:
        learn_if_fits(times(one, rounds), Budget(cost, delta, accountant))  # the ledger's budget is then this cost
    return SitePlan(site, patients, batch, rate, steps, rounds, noise_multiplier, cost, delta, accountant, event, paid)


def plan_schedule(
    site: str,
    patients: int,
    events: Callable[[float], Sequence[DpEvent]],
    *,
    delta: float,
    accountant: str = "pld",
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
) -> SitePlan:
    """The promise of a site whose rounds differ: ``events`` gives the event of each round at a noise multiplier.

    The noise is the smallest, to four significant figures, whose whole schedule fits the budget.

    >>> from dp_accounting import ZCDpEvent
    >>> plan = plan_schedule("a", 100, lambda z: [ZCDpEvent(0.5 / z**2)] * 10, delta=1e-5, epsilon=1.0)
    >>> plan.noise_multiplier, plan.epsilon <= 1.0, plan.rounds_paid
    (12.8, True, 10)
    """
    if epsilon is None and noise_multiplier is None:
        raise StudyError(f"site {site!r}: expected epsilon, noise_multiplier or both under [privacy], found neither")

    def form(noise: float, rounds: int | None = None) -> NormalForm:
        return normal_form(compose([(event, 1) for event in events(noise)[:rounds]]))

    if noise_multiplier is None:
        noise_multiplier = _smallest(lambda noise: epsilon_of(form(noise), delta, accountant), float(epsilon or 0))
    schedule = tuple(events(noise_multiplier))
    paid = len(schedule)
    if (
        epsilon is not None
        and math.isfinite(epsilon)
        and not learn_if_fits(form(noise_multiplier), Budget(epsilon, delta, accountant))
    ):
        fitting = [n for n in range(paid) if epsilon_of(form(noise_multiplier, n), delta, accountant) <= epsilon]
        paid = fitting[-1]
    cost = epsilon_of(form(noise_multiplier, paid), delta, accountant)
    if epsilon is None and 0 < cost < math.inf:
        learn_if_fits(form(noise_multiplier), Budget(cost, delta, accountant))
    return SitePlan(
        site,
        patients,
        patients,
        1.0,
        1,
        len(schedule),
        noise_multiplier,
        cost,
        delta,
        accountant,
        schedule[0],
        paid,
        schedule,
    )


def _smallest(cost: Callable[[float], float], epsilon: float) -> float:
    """The smallest noise multiplier of four significant figures with ``cost(noise) <= epsilon``; cost must fall."""
    low, high = 1e-3, 1e7
    if cost(high) > epsilon:
        raise StudyError("no noise multiplier up to 10 million meets this epsilon: raise epsilon or train less")
    while high / low > 1 + 1e-5:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if cost(middle) <= epsilon else (middle, high)
    unit = 10.0 ** (math.floor(math.log10(high)) - 3)
    count = math.ceil(high / unit * (1 - 1e-9))
    while cost(float(f"{count * unit:.4g}")) > epsilon:
        count += 1
    return float(f"{count * unit:.4g}")
