"""The promise before training: budgets, how much noise a budget needs, what each site will release,
and that the budget pays for it.

Composition is monotone: fewer steps of the same kinds never cost more. So once a composition is
*proven* to fit, every smaller one fits without another computation, and a ledger that is charged
the same event a hundred times asks the accountant a handful of times, not a hundred. Nothing is
ever accepted on less than such a proof.

One local epoch of DP-SGD at a site with N patients and batch b is ceil(N/b) steps. In each step
every patient takes part with probability b/N, independently (Poisson sampling), and the clipped sum
gets Gaussian noise of ``noise_multiplier`` times the clip. A site with fewer patients than the
batch takes all of them in one step. Figures are never rounded in the study's favour: noise is
rounded up, rounds down, epsilon up.

What is planned is the event of one round; what is promised is its composition over the rounds, by
the accountant that the ledger will ask, so that the ledger's final figure equals the plan's.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import le

from dp_accounting.dp_event import (
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.gaussian_mechanism import get_sigma_gaussian
from scipy import optimize

from suture.errors import StudyError
from suture.privacy.accounting.accountant import ACCOUNTANTS, epsilon_of
from suture.privacy.accounting.events import (
    GAUSSIAN,
    NON_PRIVATE,
    ROUNDING,
    NormalForm,
    Step,
    add,
    amounts,
    as_event,
    compose,
    event_from_json,
    event_to_json,
    normal_form,
    times,
)
from suture.privacy.canonical import json_text

_MOST_STEPS = 1 << 34
_LEAST_NOISE, _MOST_NOISE = 1e-3, 1e7
_NO_NOISE = "no noise multiplier up to 10 million meets this epsilon: raise epsilon or train less"


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
        """The promise for messages."""
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
    """Read back what `promise_to_text` wrote."""
    value = json.loads(text)
    epsilon, *others = (value["budget"][name] for name in ("epsilon", "delta", "accountant"))
    plan = None if value["plan"] is None else normal_form(event_from_json(value["plan"]))
    return Budget(math.inf if epsilon is None else epsilon, *others), plan


def within(total: NormalForm, plan: NormalForm) -> bool:
    """Whether everything in ``total`` is in the plan, by `amounts`.

    >>> plan = ((Step("gaussian", 2.0, 0.1), 5), (Step("zcdp", 0.1, 1.0), 3), (Step("gaussian", 2.0, 1.0), 4))
    >>> within(((Step("gaussian", 2.0, 0.1), 5), (Step("zcdp", 0.3, 1.0), 1), (Step("gaussian", 1.0, 1.0), 1)), plan)
    True
    >>> within(((Step("gaussian", 2.0, 0.1), 6),), plan), within(((Step("gaussian", 9.0, 0.1), 1),), plan)
    (False, False)
    """
    allowed = amounts(plan)
    return all(
        amount <= allowed.get(step, 0.0) * (1 + ROUNDING) for step, amount in amounts(total).items()
    )


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


_PROVEN: dict[tuple[Budget, tuple[Step, ...]], list[tuple[int, ...]]] = {}
"""Compositions proven to fit, by budget and kinds of step, for all ledgers of a process."""
_LOCK = threading.Lock()


def _learn(form: NormalForm, budget: Budget) -> None:
    steps, counts = zip(*form, strict=True)
    with _LOCK:
        known = _PROVEN.get((budget, steps), ())
        kept = [proven for proven in known if not all(map(le, proven, counts))]
        _PROVEN[budget, steps] = [*kept, counts][-32:]


def fits(spent: NormalForm, event: NormalForm, budget: Budget) -> bool:
    """Whether ``spent`` and then ``event`` stay within the budget."""
    total = add(spent, event)
    if not total or not budget.promises:
        return True
    steps, counts = zip(*total, strict=True)
    if any(all(map(le, counts, proven)) for proven in _PROVEN.get((budget, steps), ())):
        return True
    if any(step.kind == NON_PRIVATE for step, _ in total) or not _proves(total, budget):
        return False
    _learn(_extended(total, event, budget), budget)
    return True


def learn_if_fits(form: NormalForm, budget: Budget) -> bool:
    """Check a planned composition once, so that charging parts of it needs no further proof."""
    proven = bool(form) and budget.promises and _proves(form, budget)
    if proven:
        _learn(form, budget)
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


# --- noise, steps and plans ----------------------------------------------------------------------


def steps_per_epoch(patients: int, batch: int) -> int:
    """Steps in one pass over a site's patients."""
    if patients < 1 or batch < 1:
        raise StudyError(
            f"expected at least one patient and a batch of at least 1, found {patients} and {batch}"
        )
    return -(-patients // batch)


def sampling_rate(patients: int, batch: int) -> float:
    """The probability that a patient takes part in one step."""
    steps_per_epoch(patients, batch)
    return min(1.0, batch / patients)


def dpsgd_event(noise_multiplier: float, sampling_rate: float, steps: int) -> DpEvent:
    """The event of ``steps`` steps of DP-SGD."""
    step = PoissonSampledDpEvent(float(sampling_rate), GaussianDpEvent(float(noise_multiplier)))
    event = SelfComposedDpEvent(step, int(steps))
    normal_form(event)  # refuses rates, noise and counts that mean nothing
    return event


@lru_cache(maxsize=4096)
def noise_for(
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    accountant: str = "pld",
    beside: NormalForm = (),
) -> float:
    """The smallest noise multiplier, to four figures, whose ``steps`` steps cost at most epsilon,
    together with what is released ``beside`` them.

    >>> noise_for(13.4, 1e-5, 32 / 1270, 500 * 40)
    1.572
    """
    Budget(epsilon, delta, accountant)
    if not math.isfinite(epsilon):
        raise StudyError(
            "an infinite epsilon needs no noise: leave out [privacy], or give a finite epsilon"
        )
    normal_form(dpsgd_event(1.0, sampling_rate, steps))

    def cost(noise: float) -> float:
        steps_of = ((Step(GAUSSIAN, noise, sampling_rate), steps),)
        return epsilon_of(add(steps_of, beside), delta, accountant)

    def excess(log_noise: float) -> float:
        return math.log(min(max(cost(math.exp(log_noise)), 1e-12), 1e12) / epsilon)

    # A first guess: the central limit of many small steps is Gaussian (Bu et al. 2020).
    mu = 1 / max(float(get_sigma_gaussian(epsilon, delta)), 1e-9)
    guess = -0.5 * math.log(math.log1p(mu**2 / (sampling_rate**2 * steps)))
    low, high = _bracket(excess, guess)
    if low < high:
        low = optimize.brentq(excess, low, high, xtol=2e-5)
    unit = 10.0 ** (math.floor(low / math.log(10)) - 3)
    count = math.ceil(math.exp(low) / unit) - 1
    # The root is close, not exact: step to the first multiple of the unit that is proven to fit.
    while count > 1 and cost(_multiple(count, unit)) <= epsilon:
        count -= 1
    while cost(_multiple(count, unit)) > epsilon:
        count += 1
    return _multiple(count, unit)


def steps_that_fit(
    epsilon: float,
    delta: float,
    noise: float,
    sampling_rate: float,
    accountant: str = "pld",
    per: int = 1,
) -> int:
    """How many rounds of ``per`` steps each fit the budget; 0 when not even one does."""
    budget = Budget(epsilon, delta, accountant)
    one = normal_form(dpsgd_event(noise, sampling_rate, per))
    if not one or not budget.promises:
        raise StudyError("without sampling, or without a finite epsilon, any number of rounds fits")
    return rounds_that_fit(one, budget)


@lru_cache(maxsize=4096)
def rounds_that_fit(one: NormalForm, budget: Budget, beside: NormalForm = ()) -> int:
    """How many rounds of this normal form fit the budget, with what is released ``beside`` them."""
    steps = sum(count for _, count in one)
    return largest(
        lambda n: epsilon_of(add(times(one, n), beside), budget.delta, budget.accountant),
        budget.epsilon,
        guess=max(1, 1024 // steps),
        limit=max(1, _MOST_STEPS // steps),
    )


@dataclass(frozen=True)
class SitePlan:
    """What one site promises before training.

    ``epsilon`` is the cost of the rounds that the budget pays for, and of what is released ``beside``
    them: all ``rounds``, unless a budget and a noise multiplier were both fixed and the budget ends
    first (``rounds_paid`` < ``rounds``).
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
    """The event of every round of the site, where rounds differ; else each costs ``event``."""
    beside: NormalForm = ()
    """What the same account pays for besides the rounds: the evaluation of the model."""

    @property
    def whole(self) -> NormalForm:
        """Everything that the account may be charged."""
        return add(normal_form(self.spent_after(self.rounds_paid)), self.beside)

    def spent_after(self, taken: int, since: int = 0) -> DpEvent:
        """What the site's rounds ``since`` + 1 to ``taken`` cost together."""
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
    beside: NormalForm = (),
) -> SitePlan:
    """The promise of one site: noise for a budget, the cost of a noise, or both fixed and the
    rounds that fit.

    >>> plan = plan_site("a", 1270, 32, rounds=100, local_epochs=5, delta=1e-5, epsilon=13.4)
    >>> plan.noise_multiplier, round(plan.epsilon, 2), plan.steps_per_round, plan.rounds_paid
    (1.572, 13.4, 200, 100)
    """
    _stated(site, epsilon, noise_multiplier)
    if rounds < 1 or local_epochs < 1:
        raise StudyError(
            f"site {site!r}: expected 1 round and 1 local epoch or more, found {rounds} and "
            f"{local_epochs}"
        )
    rate, steps = sampling_rate(patients, batch), local_epochs * steps_per_epoch(patients, batch)
    steps = steps if local_steps is None else min(steps, local_steps)
    noise = noise_multiplier
    if noise is None:
        noise = noise_for(float(epsilon or 0), delta, rate, steps * rounds, accountant, beside)
    event = dpsgd_event(noise, rate, steps)
    one = normal_form(event)
    paid, whole = rounds, add(times(one, rounds), beside)
    if epsilon is not None and math.isfinite(epsilon):
        budget = Budget(epsilon, delta, accountant)
        if not learn_if_fits(whole, budget):
            paid = min(rounds, rounds_that_fit(one, budget, beside))
    cost = epsilon_of(add(times(one, paid), beside), delta, accountant)
    if epsilon is None and 0 < cost < math.inf:
        learn_if_fits(whole, Budget(cost, delta, accountant))  # the ledger's budget is this cost
    work = (patients, batch, rate, steps, rounds, noise)
    return SitePlan(site, *work, cost, delta, accountant, event, paid, (), beside)


def plan_schedule(
    site: str,
    patients: int,
    events: Callable[[float], Sequence[DpEvent]],
    *,
    delta: float,
    accountant: str = "pld",
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    beside: NormalForm = (),
) -> SitePlan:
    """The promise of a site whose rounds differ: ``events`` gives each round's event at a noise.

    The noise is the smallest, to four significant figures, whose whole schedule fits the budget.

    >>> from dp_accounting import ZCDpEvent
    >>> plan = plan_schedule("a", 100, lambda z: [ZCDpEvent(0.5 / z**2)] * 10, delta=1e-5, epsilon=1.0)
    >>> plan.noise_multiplier, plan.epsilon <= 1.0, plan.rounds_paid
    (12.8, True, 10)
    """
    _stated(site, epsilon, noise_multiplier)

    def form(noise: float, rounds: int | None = None) -> NormalForm:
        return add(normal_form(compose([(event, 1) for event in events(noise)[:rounds]])), beside)

    def cost_of(noise: float, rounds: int | None = None) -> float:
        return epsilon_of(form(noise, rounds), delta, accountant)

    noise = noise_multiplier
    if noise is None:
        noise = _smallest(cost_of, float(epsilon or 0))
    schedule = tuple(events(noise))
    paid = len(schedule)
    if (
        epsilon is not None
        and math.isfinite(epsilon)
        and not learn_if_fits(form(noise), Budget(epsilon, delta, accountant))
    ):
        paid = [n for n in range(paid) if cost_of(noise, n) <= epsilon][-1]
    cost = cost_of(noise, paid)
    if epsilon is None and 0 < cost < math.inf:
        learn_if_fits(form(noise), Budget(cost, delta, accountant))
    work = (patients, patients, 1.0, 1, len(schedule), noise)
    return SitePlan(site, *work, cost, delta, accountant, schedule[0], paid, schedule, beside)


def _stated(site: str, epsilon: float | None, noise_multiplier: float | None) -> None:
    if epsilon is None and noise_multiplier is None:
        raise StudyError(
            f"site {site!r}: expected epsilon, noise_multiplier or both under [privacy], found "
            "neither"
        )


def _smallest(cost: Callable[[float], float], epsilon: float) -> float:
    """The smallest noise multiplier of four figures with ``cost(noise) <= epsilon``; cost falls."""
    low, high = _LEAST_NOISE, _MOST_NOISE
    if cost(high) > epsilon:
        raise StudyError(_NO_NOISE)
    while high / low > 1 + 1e-5:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if cost(middle) <= epsilon else (middle, high)
    unit = 10.0 ** (math.floor(math.log10(high)) - 3)
    count = math.ceil(high / unit * (1 - 1e-9))
    while cost(_multiple(count, unit)) > epsilon:
        count += 1
    return _multiple(count, unit)


def _bracket(excess: Callable[[float], float], start: float) -> tuple[float, float]:
    """Two points around the root of a decreasing function."""
    at, value = start, excess(start)
    while True:
        step = max(0.02, min(abs(value) * 1.2, 2.0))
        following = at + step if value > 0 else at - step
        if following > math.log(_MOST_NOISE):
            raise StudyError(_NO_NOISE)
        if following < math.log(_LEAST_NOISE):
            return math.log(_LEAST_NOISE), math.log(_LEAST_NOISE)
        following_value = excess(following)
        if (value > 0) != (following_value > 0):
            return min(at, following), max(at, following)
        at, value = following, following_value


def _multiple(count: int, unit: float) -> float:
    return float(f"{count * unit:.4g}")
