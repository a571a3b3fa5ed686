"""What a ledger's rows add up to: each account's promise and spending, what is reserved in all, and
what still fits.

An account is reserved as a whole when it is opened, and nothing is given back. Three theorems carry
the totals:

- ``PLAN``: an account with a plan. The mechanisms and their numbers are fixed beforehand; in
  whatever order they are asked for and wherever that ends, they cost at most what the whole plan
  costs (composition of f-DP: Dong, Roth & Su 2022; in any adaptive order: Vadhan & Zhang 2023).
- ``GDP`` and ``ZCDP_FILTER``: an account without a plan, whose releases and their noise are chosen
  one after the other, each after having seen the ones before. For Gaussian releases alone the
  squares 1/z^2 add up (Smith & Thakurta 2022). Once rho-zCDP is in it, or where the accountant is
  ``rdp``, rho adds up, a Gaussian being 1/(2 z^2) (Feldman & Zrnic 2021; Whitehouse, Ramdas, Rogers
  & Wu 2023), and is converted by Canonne, Kamath & Steinke 2020, Proposition 12. The first charge
  decides which of the two it is: neither covers changing over in the light of answers. Other
  mechanisms need a plan.
- ``BASIC``: all accounts together, against the lifetime budget and against a study's charter:
  epsilons and deltas add up, though each account may be opened in the light of all answers before
  (Rogers, Roth, Ullman & Vadhan 2016) and accounts are charged in turns (Haney et al. 2023).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction

from suture.errors import LedgerError, PrivacyError
from suture.privacy.accounting.accountant import epsilon_of, proof_of
from suture.privacy.accounting.events import (
    GAUSSIAN,
    NON_PRIVATE,
    ZCDP,
    NormalForm,
    add,
    event_from_json,
    normal_form,
)
from suture.privacy.accounting.planner import Budget, fits, promise_from_text, within
from suture.privacy.ledger.chain import ADMITTED, ALL_STUDIES, Entry, Head

PLAN = "a plan fixed before, composed as a whole (Dong, Roth & Su 2022; any order: Vadhan & Zhang 2023)"
GDP = "adaptive filter of Gaussian DP (Smith & Thakurta 2022)"
ZCDP_FILTER = "adaptive filter of zCDP (Feldman & Zrnic 2021; Whitehouse, Ramdas, Rogers & Wu 2023)"
BASIC = "basic composition of adaptively chosen plans (Rogers, Roth, Ullman & Vadhan 2016; interleaved: Haney et al. 2023)"
NOTHING = "none: nothing is promised"
_ENDLESS = "a release that is not private has no finite cost"


@dataclass
class Account:
    """One account: its promise and what it was charged."""

    budget: Budget
    spent: NormalForm = ()
    charges: int = 0
    rounds: set[int] = field(default_factory=set)
    paid: dict[str, int] = field(default_factory=dict)
    """Fingerprint to entry, from verified rows: an index in the file could be edited."""
    plan: NormalForm | None = None
    """What may be charged at all; None: a filter decides, charge by charge."""
    closed: int = 0
    """The entry that wrote a lost tail off, which closed the account; 0: open."""

    @property
    def epsilon(self) -> float:
        """What was spent, by the account's own accountant and delta."""
        return epsilon_of(self.spent, self.budget.delta, self._by)

    @property
    def proof(self) -> str:
        """What computed ``epsilon``: the accountant, or the exact figure in its place."""
        return proof_of(self.spent, self.budget.delta, self._by) if self.spent else self._by

    @property
    def theorem(self) -> str:
        """What ``epsilon`` rests on."""
        if not self.budget.promises:
            return NOTHING
        if self.plan is not None:
            return PLAN
        return ZCDP_FILTER if self._by == "rdp" or _holds(self.spent, ZCDP) else GDP

    @property
    def _by(self) -> str:
        # "basic" divides delta by the number of steps, which no filter knows beforehand.
        by = self.budget.accountant
        return "pld" if self.plan is None and by == "basic" else by

    def too_much(self, form: NormalForm) -> str | None:
        """Why this event cannot be charged to the account, in words; None: it can."""
        budget = self.budget
        if self.closed:
            return (
                f"the account was closed when entry {self.closed} wrote a lost part of the ledger "
                "off as spent; start a study under another name"
            )
        if not budget.promises:
            return None
        if _holds(form, NON_PRIVATE):
            return f"{_ENDLESS}, and the promise is {budget.words}"
        if self.plan is not None:
            if within(add(self.spent, form), self.plan):
                return None
            return (
                f"the release is not in what is left of the plan; epsilon {_up(self.epsilon)} of "
                f"{budget.epsilon:g} is spent in {self.charges} charges ({budget.accountant}, "
                f"delta {budget.delta:g})"
            )
        if not all(step.kind in (GAUSSIAN, ZCDP) and step.rate == 1 for step, _ in form):
            return (
                "sampled releases and Laplace noise need a plan that is reserved before: without "
                "one, only Gaussian and rho-zCDP releases can be chosen one after the other"
            )
        if self.spent and _holds(form, ZCDP) and self.theorem == GDP:
            return (
                "the account adds up Gaussian releases; a release known by its rho needs an "
                "account of its own"
            )
        by = self._by
        limit = budget if budget.accountant == by else Budget(budget.epsilon, budget.delta, by)
        if fits(self.spent, form, limit):
            return None
        after = epsilon_of(add(self.spent, form), budget.delta, by)
        return (
            f"epsilon {_up(self.epsilon)} of {budget.epsilon:g} is spent in {self.charges} charges "
            f"and this release would make it {_up(after)} ({budget.accountant}, delta "
            f"{budget.delta:g})"
        )


@dataclass(frozen=True)
class Reserved:
    """A sum of promises, exact in decimals: ten times 1e-5 is 1e-4.

    >>> (Reserved() + Budget(0.1, 1e-5, "pld") + Budget(0.2, 1e-5, "pld")).fits(Budget(0.3, 2e-5, "pld"))
    True
    """

    epsilon: Fraction = Fraction(0)
    delta: Fraction = Fraction(0)
    accounts: int = 0

    def __add__(self, budget: Budget) -> Reserved:
        if not budget.promises:
            return self
        epsilon, delta = self.epsilon + _exact(budget.epsilon), self.delta + _exact(budget.delta)
        return Reserved(epsilon, delta, self.accounts + 1)

    def fits(self, limit: Budget) -> bool:
        """Whether the sum stays within a limit."""
        if not limit.promises:
            return True
        return self.epsilon <= _exact(limit.epsilon) and self.delta <= _exact(limit.delta)

    @property
    def words(self) -> str:
        return f"epsilon {_up(float(self.epsilon))} and delta {float(self.delta):g}"


@dataclass(frozen=True)
class Loss:
    """One write-off: the chain ended at ``kept``, a witness had ``seen`` more; the new total."""

    entry: int
    kept: int
    seen: Head
    epsilon: float
    delta: float

    def covers(self, head: Head) -> bool:
        """Whether this wrote off what a witness has seen: that head, or one before it."""
        if (head.entries, head.hash) == (self.seen.entries, self.seen.hash):
            return True
        inside = self.kept < head.entries <= self.seen.entries
        return inside and head.epsilon <= self.seen.epsilon and head.delta <= self.seen.delta


@dataclass
class Accounts:
    """All accounts of one site, as of some row of its ledger."""

    site: str
    hash: str
    count: int = 0
    time: str = ""
    studies: dict[str, Account] = field(default_factory=dict)
    total: NormalForm = ()
    """Every charge, for comparison: no limit rests on it, as not all plans were fixed before."""
    lifetime: Budget | None = None
    charters: dict[str, Budget] = field(default_factory=dict)
    """What the latest admitted charter of a study allows for all of its accounts together."""
    reserved: Reserved = Reserved()
    """All promises together, and what was written off."""
    reserved_by: dict[str, Reserved] = field(default_factory=dict)
    """The same for each study: all of its accounts."""
    losses: list[Loss] = field(default_factory=list)

    def of(self, study: str) -> Account:
        """The account of a study."""
        if study not in self.studies:
            raise LedgerError(
                f"site {self.site!r} holds no promise for study {study!r}; call open_study with a "
                "budget first"
            )
        return self.studies[study]

    @property
    def head(self) -> Head:
        """The end of the chain, and what is reserved in all."""
        epsilon, delta = float(self.reserved.epsilon), float(self.reserved.delta)
        return Head(self.site, self.count, self.hash, epsilon, delta)

    @property
    def epsilon(self) -> float:
        """All promises together; infinite where an account without a promise was charged."""
        accounts = self.studies.values()
        unlimited = any(one.spent for one in accounts if not one.budget.promises)
        return math.inf if unlimited else float(self.reserved.epsilon)

    def take_in(self, entry: Entry, form: NormalForm | None = None) -> None:
        """Add one verified row; KeyError, ValueError, TypeError, PrivacyError if it is senseless."""
        if entry.is_note:
            facts = json.loads(entry.event)
            if entry.what == ADMITTED:
                self.charters[entry.study] = Budget(facts["epsilon"], facts["delta"], "pld")
        elif entry.is_write_off:
            self._lose(entry)
        elif entry.is_promise:
            self._open(entry)
        else:
            if form is None:
                form = normal_form(event_from_json(json.loads(entry.event)))
            state = self.studies[entry.study]
            state.spent = add(state.spent, form)
            state.charges += 1
            state.rounds.add(entry.round)
            state.paid[entry.fingerprint] = entry.seq
            self.total = add(self.total, form)
        self.count, self.hash, self.time = entry.seq, entry.hash, entry.time

    def _open(self, entry: Entry) -> None:
        budget, plan = promise_from_text(entry.event)
        if entry.study == ALL_STUDIES:
            self.lifetime = budget
            return
        self.studies[entry.study] = Account(budget, plan=plan)
        self.reserved += budget
        root = _root(entry.study)
        self.reserved_by[root] = self.reserved_by.get(root, Reserved()) + budget

    def _lose(self, entry: Entry) -> None:
        facts = json.loads(entry.event)
        seen = Head(self.site, facts["entries"], facts["hash"], facts["epsilon"], facts["delta"])
        loss = Loss(entry.seq, self.count, seen, facts["reserved epsilon"], facts["reserved delta"])
        after = (_exact(loss.epsilon), _exact(loss.delta))
        if after[0] < self.reserved.epsilon or after[1] < self.reserved.delta:
            raise ValueError("a write-off cannot give anything back")
        self.reserved = Reserved(*after, self.reserved.accounts)
        self.losses.append(loss)
        for account in self.studies.values():
            account.closed = account.closed or entry.seq

    def too_much(self, study: str, form: NormalForm) -> Iterator[str]:
        """Every reason why this event cannot be charged, in words."""
        state = self.of(study)
        why = state.too_much(form)
        if why is not None:
            yield why
        for limit, reserved, which in self._limits(study):
            if not limit.promises or not form:
                continue
            if _holds(form, NON_PRIVATE):
                why = _ENDLESS
            elif not state.budget.promises:
                why = "the account promises nothing, so nothing was reserved for it"
            elif not reserved.fits(limit):
                why = f"{reserved.words} are reserved in {reserved.accounts} accounts"
            else:
                continue
            yield f"{why}, and the {which}promise is {limit.words}"

    def too_much_to_open(
        self, study: str, budget: Budget, plan: NormalForm | None
    ) -> Iterator[str]:
        """Every reason why this account cannot be opened: plan, charter or lifetime budget."""
        if not budget.promises:
            return
        if plan is not None and not fits((), plan, budget):
            cost = epsilon_of(plan, budget.delta, budget.accountant)
            yield f"the plan costs epsilon {_up(cost)}, and the promise is {budget.words}"
        for limit, reserved, which in self._limits(study):
            if not (reserved + budget).fits(limit):
                yield (
                    f"{which}{reserved.words} of {limit.epsilon:g} and {limit.delta:g} are "
                    f"reserved in {reserved.accounts} accounts and this one would make it "
                    f"{(reserved + budget).words}"
                )

    def _limits(self, study: str) -> Iterator[tuple[Budget, Reserved, str]]:
        charter = self.charters.get(_root(study))
        if charter is not None:
            yield charter, self._of_study(_root(study)), "charter's "
        if self.lifetime is not None:
            yield self.lifetime, self.reserved, "lifetime "

    def _of_study(self, root: str) -> Reserved:
        """What a study's accounts reserve. A lost tail may be anyone's: it counts for all."""
        mine = self.reserved_by.get(root, Reserved())
        if not self.losses:
            return mine
        known = self.reserved_by.values()
        epsilon = self.reserved.epsilon - sum(one.epsilon for one in known)
        delta = self.reserved.delta - sum(one.delta for one in known)
        return Reserved(mine.epsilon + epsilon, mine.delta + delta, mine.accounts)

    def same_promise(self, known: Budget | None, asked: Budget, whom: str) -> bool:
        """True for the same promise again, False for a first one; another one is refused."""
        if known is None or known == asked:
            return known is not None
        raise PrivacyError(
            f"site {self.site!r} promised {known.words} to {whom}; {asked.words} was asked for "
            "now. A promise is made once: keep it, or start a study under another name"
        )


def written_off(reserved: Reserved, seen: Head, *, anew: bool) -> tuple[float, float]:
    """Epsilon and delta in all after a write-off: the larger of both, or their sum if nothing is
    shared."""
    epsilon, delta = _exact(seen.epsilon), _exact(seen.delta)
    if anew or epsilon < reserved.epsilon or delta < reserved.delta:
        return _above(reserved.epsilon + epsilon), _above(reserved.delta + delta)
    return _above(epsilon), _above(delta)


def _exact(value: float) -> Fraction:
    """The decimal that a person wrote, not the binary fraction next to it."""
    return Fraction(repr(float(value)))


def _above(value: Fraction) -> float:
    found = float(value)
    return found if _exact(found) >= value else math.nextafter(found, math.inf)


def _holds(form: NormalForm, kind: str) -> bool:
    return kind in [step.kind for step, _ in form]


def _root(study: str) -> str:
    return study.split("/")[0]


def _up(value: float) -> str:
    return f"{math.ceil(value * 1000) / 1000:g}" if math.isfinite(value) else "infinity"
