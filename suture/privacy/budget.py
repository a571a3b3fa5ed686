"""Budgets, and which compositions are known to fit them.

Composition is monotone: fewer steps of the same kinds never cost more. So once a composition is *proven* to fit,
every smaller one fits without another computation, and a ledger that is charged the same event a hundred times asks
the accountant a handful of times, not a hundred. Nothing is ever accepted on less than such a proof.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass

from suture.errors import StudyError
from suture.privacy.accountant import ACCOUNTANTS, epsilon_of
from suture.privacy.events import NON_PRIVATE, NormalForm, Step, add, times


@dataclass(frozen=True)
class Budget:
    """What a study may spend at one site: (epsilon, delta) by a named accountant. Infinite epsilon: no promise.

    >>> Budget(8.0, 1e-5, "pld")
    Budget(epsilon=8.0, delta=1e-05, accountant='pld')
    """

    epsilon: float
    delta: float
    accountant: str

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise StudyError(f"expected a budget epsilon above 0 (or infinity: no promise), found {self.epsilon}")
        if not 0 < self.delta < 1:
            raise StudyError(f"expected a budget delta between 0 and 1, found {self.delta}")
        if self.accountant not in ACCOUNTANTS:
            raise StudyError(f"expected an accountant out of {', '.join(ACCOUNTANTS)}; found {self.accountant!r}")

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

    def to_text(self) -> str:
        """Canonical JSON; it has no infinity, so null stands for "no promise".

        >>> Budget.from_text(Budget(8.0, 1e-5, "pld").to_text())
        Budget(epsilon=8.0, delta=1e-05, accountant='pld')
        """
        epsilon = float(self.epsilon) if self.promises else None
        value = {"accountant": self.accountant, "delta": float(self.delta), "epsilon": epsilon}
        return json.dumps(value, separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> Budget:
        """Read back what `to_text` wrote."""
        value = json.loads(text)
        return cls(math.inf if value["epsilon"] is None else value["epsilon"], value["delta"], value["accountant"])


def largest(cost: Callable[[int], float], target: float, guess: int = 1, limit: int = 1 << 40) -> int:
    """The largest n in 1..limit with ``cost(n) <= target``, or 0; ``cost`` must not decrease.

    Costs grow like a power of n, so the search interpolates on logarithms and bisects when that stalls: about eight
    evaluations where plain bisection needs forty.

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
        return max(
            low + 1, min(high - 1, int(math.sqrt(max(low, 1) * high)) if high > 4 * low + 4 else (low + high) // 2)
        )
    share = math.log(target / low_cost) / math.log(high_cost / low_cost)
    middle = math.exp(math.log(low) + share * math.log(high / low))
    # Past the crossing after a success, before it after a failure: the bracket closes from both ends.
    return max(low + 1, min(high - 1, math.ceil(middle) if lopsided > 0 else math.floor(middle)))


class _Known:
    """Compositions proven to fit, per budget and kinds of step; shared by all ledgers of the process."""

    def __init__(self) -> None:
        self._fitting: dict[tuple[Budget, tuple[Step, ...]], list[tuple[int, ...]]] = {}
        self._lock = threading.Lock()

    def covers(self, form: NormalForm, budget: Budget) -> bool:
        counts = tuple(count for _, count in form)
        for proven in self._fitting.get((budget, tuple(step for step, _ in form)), ()):
            if all(count <= most for count, most in zip(counts, proven, strict=True)):
                return True
        return False

    def learn(self, form: NormalForm, budget: Budget) -> None:
        counts = tuple(count for _, count in form)
        key = (budget, tuple(step for step, _ in form))
        with self._lock:
            kept = [
                proven
                for proven in self._fitting.get(key, ())
                if not all(most <= count for most, count in zip(proven, counts, strict=True))
            ]
            self._fitting[key] = [*kept, counts][-32:]


_KNOWN = _Known()


def fits(spent: NormalForm, event: NormalForm, budget: Budget) -> bool:
    """Whether ``spent`` and then ``event`` stay within the budget.

    >>> from suture.privacy.events import GAUSSIAN
    >>> one = ((Step(GAUSSIAN, 5.0, 1.0), 1),)
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
    """Check a planned composition once, so that a ledger charged with parts of it need not ask again.

    >>> from suture.privacy.events import GAUSSIAN
    >>> learn_if_fits(((Step(GAUSSIAN, 5.0, 1.0), 40),), Budget(6.0, 1e-5, "pld"))
    True
    """
    proven = bool(form) and budget.promises and _proves(form, budget)
    if proven:
        _KNOWN.learn(form, budget)
    return proven


def _proves(form: NormalForm, budget: Budget) -> bool:
    return epsilon_of(form, budget.delta, budget.accountant) <= budget.epsilon


def _extended(total: NormalForm, event: NormalForm, budget: Budget) -> NormalForm:
    """A composition beyond ``total`` that fits too: more of the same event, or of everything when kinds are mixed."""

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
