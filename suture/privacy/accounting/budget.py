"""Budgets, plans, and which compositions are known to fit them.

Composition is monotone: fewer steps of the same kinds never cost more. So once a composition is
*proven* to fit, every smaller one fits without another computation, and a ledger that is charged
the same event a hundred times asks the accountant a handful of times, not a hundred. Nothing is
ever accepted on less than such a proof.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from operator import le

from suture.errors import StudyError
from suture.privacy.accounting.accountant import ACCOUNTANTS, epsilon_of
from suture.privacy.accounting.events import (
    NON_PRIVATE,
    ZCDP,
    NormalForm,
    Step,
    add,
    as_event,
    event_from_json,
    event_to_json,
    normal_form,
    times,
)
from suture.privacy.canonical import json_text

_FLOATING = 1e-9
"""Relative slack where the same rho was added up in another order."""


@dataclass(frozen=True)
class Budget:
    """What a study may spend at one site: (epsilon, delta) by a named accountant.

    An infinite epsilon promises nothing.
    """

    epsilon: float
    delta: float
    accountant: str

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise StudyError(
                f"expected a budget epsilon above 0 (or infinity: no promise), found {self.epsilon}"
            )
        if not 0 < self.delta < 1:
            raise StudyError(f"expected a budget delta between 0 and 1, found {self.delta}")
        if self.accountant not in ACCOUNTANTS:
            names = ", ".join(ACCOUNTANTS)
            raise StudyError(f"expected an accountant of {names}; found {self.accountant!r}")

    @property
    def promises(self) -> bool:
        """False when epsilon is infinite: nothing is promised and nothing is refused."""
        return math.isfinite(self.epsilon)

    @property
    def words(self) -> str:
        """The promise for messages.

        >>> Budget(8.0, 1e-5, "pld").words
        'epsilon 8 at delta 1e-05 by pld'
        """
        if not self.promises:
            return "nothing (no promise)"
        return f"epsilon {self.epsilon:g} at delta {self.delta:g} by {self.accountant}"


def promise_to_text(budget: Budget, plan: NormalForm | None) -> str:
    """What the ledger writes when an account is opened: budget and plan as canonical JSON.

    JSON has no infinity, so an epsilon of null stands for "no promise".

    >>> promise_to_text(Budget(8.0, 1e-5, "pld"), None)
    '{"budget":{"accountant":"pld","delta":1e-05,"epsilon":8.0},"plan":null}'
    """
    epsilon = float(budget.epsilon) if budget.promises else None
    figures = {"accountant": budget.accountant, "delta": float(budget.delta), "epsilon": epsilon}
    planned = None if plan is None else event_to_json(as_event(plan))
    return json_text({"budget": figures, "plan": planned})


def promise_from_text(text: str) -> tuple[Budget, NormalForm | None]:
    """Read back what `promise_to_text` wrote.

    >>> promise_from_text(promise_to_text(Budget(8.0, 1e-5, "pld"), ()))
    (Budget(epsilon=8.0, delta=1e-05, accountant='pld'), ())
    """
    value = json.loads(text)
    epsilon, *others = (value["budget"][name] for name in ("epsilon", "delta", "accountant"))
    plan = None if value["plan"] is None else normal_form(event_from_json(value["plan"]))
    return Budget(math.inf if epsilon is None else epsilon, *others), plan


def within(total: NormalForm, plan: NormalForm) -> bool:
    """Whether everything in ``total`` is in the plan: kind by kind, and rho-zCDP by the sum of rho.

    >>> plan = ((Step("gaussian", 2.0, 0.1), 5), (Step(ZCDP, 0.1, 1.0), 3))
    >>> within(((Step("gaussian", 2.0, 0.1), 5), (Step(ZCDP, 0.3, 1.0), 1)), plan)
    True
    >>> within(((Step("gaussian", 2.0, 0.1), 6),), plan), within(((Step("gaussian", 9.0, 0.1), 1),), plan)
    (False, False)
    """
    planned = dict(plan)
    over = [step.kind for step, count in total if count > planned.get(step, 0)]
    return not over or (set(over) == {ZCDP} and _rho(total) <= _rho(plan) * (1 + _FLOATING))


def _rho(form: NormalForm) -> float:
    return math.fsum(step.noise * count for step, count in form if step.kind == ZCDP)


def largest(
    cost: Callable[[int], float], target: float, guess: int = 1, limit: int = 1 << 40
) -> int:
    """The largest n in 1..limit with ``cost(n) <= target``, or 0; ``cost`` must not decrease.

    Costs grow like a power of n, so the search interpolates on logarithms and bisects when that
    stalls: about eight evaluations where plain bisection needs forty.

    >>> largest(lambda n: float(n * n), 1000.0)
    31
    """
    low, high = 0, limit + 1
    low_cost = high_cost = math.nan
    n, lopsided = max(1, min(guess, limit)), 0
    while high - low > 1:
        n_cost = cost(n)
        fits = n_cost <= target
        if fits:
            low, low_cost = n, n_cost
        else:
            high, high_cost = n, n_cost
        lopsided = max(1, lopsided + 1) if fits else min(-1, lopsided - 1)
        n = _next_guess(low, low_cost, high, high_cost, target, limit, lopsided)
    return low


def _next_guess(
    low: int, low_cost: float, high: int, high_cost: float, target: float, limit: int, lopsided: int
) -> int:
    if high > limit:  # no upper end yet: a little past where a square root law would cross
        ratio = target / low_cost if low_cost > 0 else 1e6
        step = max(1.5, min(ratio**2, 1e6)) if abs(lopsided) < 3 else 64.0
        return min(limit, max(low + 1, int(low * step)))
    if low == 0 and 0 < target < high_cost < math.inf and abs(lopsided) < 4:
        return max(1, min(high - 1, int(0.9 * high * (target / high_cost) ** 2)))
    if low == 0 or not (0 < low_cost < high_cost < math.inf) or abs(lopsided) > 2:
        far = high > 4 * low + 4
        n = int(math.sqrt(max(low, 1) * high)) if far else (low + high) // 2
    else:
        share = math.log(target / low_cost) / math.log(high_cost / low_cost)
        middle = math.exp(math.log(low) + share * math.log(high / low))
        # Past the crossing after a success, before it after a failure: both ends close in.
        n = math.ceil(middle) if lopsided > 0 else math.floor(middle)
    return max(low + 1, min(high - 1, n))


class _Known:
    """Compositions proven to fit, by budget and kinds of step, for all ledgers of a process."""

    def __init__(self) -> None:
        self._fitting: dict[tuple[Budget, tuple[Step, ...]], list[tuple[int, ...]]] = {}
        self._lock = threading.Lock()

    def covers(self, form: NormalForm, budget: Budget) -> bool:
        counts = tuple(count for _, count in form)
        known = self._fitting.get((budget, tuple(step for step, _ in form)), ())
        return any(all(map(le, counts, proven)) for proven in known)

    def learn(self, form: NormalForm, budget: Budget) -> None:
        counts = tuple(count for _, count in form)
        key = (budget, tuple(step for step, _ in form))
        with self._lock:
            known = self._fitting.get(key, ())
            kept = [proven for proven in known if not all(map(le, proven, counts))]
            self._fitting[key] = [*kept, counts][-32:]


_KNOWN = _Known()


def fits(spent: NormalForm, event: NormalForm, budget: Budget) -> bool:
    """Whether ``spent`` and then ``event`` stay within the budget.

    >>> one = ((Step("gaussian", 5.0, 1.0), 1),)
    >>> budget = Budget(6.0, 1e-5, "pld")
    >>> [fits(times(one, n), one, budget) for n in (0, 39, 99)]
    [True, True, False]
    """
    if not budget.promises:
        return True
    total = add(spent, event)
    if not total or _KNOWN.covers(total, budget):
        return True
    if any(step.kind == NON_PRIVATE for step, _ in total) or not _proves(total, budget):
        return False
    _KNOWN.learn(_extended(total, event, budget), budget)
    return True


def learn_if_fits(form: NormalForm, budget: Budget) -> bool:
    """Check a planned composition once, so that charging parts of it needs no further proof."""
    proven = bool(form) and budget.promises and _proves(form, budget)
    if proven:
        _KNOWN.learn(form, budget)
    return proven


def _proves(form: NormalForm, budget: Budget) -> bool:
    return epsilon_of(form, budget.delta, budget.accountant) <= budget.epsilon


def _extended(total: NormalForm, event: NormalForm, budget: Budget) -> NormalForm:
    """A larger composition that fits too: more of the same event, or of everything if mixed."""

    def cost_of(form: NormalForm) -> float:
        return epsilon_of(form, budget.delta, budget.accountant)

    if len(total) > 1:  # kinds that take turns: grow all of them by sixteenths
        grown = largest(lambda n: cost_of(_sixteenths(total, n)), budget.epsilon, 16, 1 << 14)
        if grown:
            return _sixteenths(total, grown)
    more = largest(lambda n: cost_of(add(total, times(event, n))), budget.epsilon, 64, 1 << 20)
    return add(total, times(event, more))


def _sixteenths(form: NormalForm, extra: int) -> NormalForm:
    return tuple((step, -(-count * (16 + extra) // 16)) for step, count in form)
