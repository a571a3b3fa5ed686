"""What a ledger's rows add up to: each study's promise and spending, the site's lifetime budget, and what still fits.

Every charge counts twice: in its own account, against the study's promise, and in the total over all accounts of the
site, against the lifetime budget where the site has set one; and where a charter was admitted for the study, all of
the study's accounts (methods, released rates) together against the charter. Each total is one heterogeneous composition
(DP-SGD rounds, votes, moments, histograms), never a sum of epsilons.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from suture.errors import BudgetExhausted, LedgerError, PrivacyError
from suture.privacy.accountant import epsilon_of
from suture.privacy.budget import Budget, fits
from suture.privacy.chain import ADMITTED, ALL_STUDIES, Entry
from suture.privacy.events import NON_PRIVATE, NormalForm, add, event_from_json, normal_form


@dataclass
class Account:
    """One account: its promise and what it was charged."""

    budget: Budget
    spent: NormalForm = ()
    charges: int = 0
    rounds: set[int] = field(default_factory=set)
    paid: dict[str, int] = field(default_factory=dict)
    """Fingerprint to entry, from verified rows: an index in the file could be edited."""

    @property
    def epsilon(self) -> float:
        """What was spent, by the account's own accountant and delta."""
        return epsilon_of(self.spent, self.budget.delta, self.budget.accountant)


@dataclass
class Accounts:
    """All accounts of one site, as of some row of its ledger.

    >>> from suture.privacy.events import GAUSSIAN, Step
    >>> books = Accounts("boston", "00")
    >>> books.studies["cardio/fedavg"] = Account(Budget(6.0, 1e-5, "pld"))
    >>> books.accepts("cardio/fedavg", ((Step(GAUSSIAN, 4.83, 1.0), 40),))
    True
    >>> books.accepts("cardio/fedavg", ((Step(GAUSSIAN, 4.83, 1.0), 41),))
    False
    """

    site: str
    hash: str
    count: int = 0
    time: str = ""
    studies: dict[str, Account] = field(default_factory=dict)
    total: NormalForm = ()
    lifetime: Budget | None = None
    charters: dict[str, Budget] = field(default_factory=dict)
    """What the latest admitted charter of a study allows for all of the study's accounts together."""

    def of(self, study: str) -> Account:
        """The account of a study."""
        found = self.studies.get(study)
        if found is None:
            raise LedgerError(
                f"site {self.site!r} holds no promise for study {study!r}; call open_study with a budget first"
            )
        return found

    def take_in(self, entry: Entry, form: NormalForm | None = None) -> None:
        """Add one verified row; KeyError, ValueError, TypeError or PrivacyError for one that means nothing."""
        if entry.is_note:
            facts = json.loads(entry.event)
            if entry.what == ADMITTED:
                self.charters[entry.study] = Budget(facts["epsilon"], facts["delta"], "pld")
        elif entry.is_promise:
            budget = Budget.from_text(entry.event)
            if entry.study == ALL_STUDIES:
                self.lifetime = budget
            else:
                self.studies[entry.study] = Account(budget)
        else:
            self.book(entry, normal_form(event_from_json(json.loads(entry.event))) if form is None else form)
        self.count, self.hash, self.time = entry.seq, entry.hash, entry.time

    def book(self, entry: Entry, form: NormalForm) -> None:
        """Count a charge in its account and in the total."""
        state = self.studies[entry.study]
        state.spent = add(state.spent, form)
        state.charges += 1
        state.rounds.add(entry.round)
        state.paid[entry.fingerprint] = entry.seq
        self.total = add(self.total, form)

    def accepts(self, study: str, form: NormalForm) -> bool:
        """Whether this event still fits the study's promise and the site's lifetime budget."""
        return not any(self.too_much(study, form))

    def refuse_if_too_much(self, study: str, round: int, form: NormalForm) -> None:
        """`BudgetExhausted` says which budget, what is spent of it, and what this release would make it."""
        for why in self.too_much(study, form):
            raise BudgetExhausted(f"site {self.site!r}, study {study!r}, round {round}: {why}; nothing was released")

    def too_much(self, study: str, form: NormalForm) -> Iterator[str]:
        """Every budget that this event would exceed, in words."""
        state = self.of(study)
        limits = [(state.budget, state.spent, f"in {state.charges} charges", "")]
        charter = self.charters.get(study.split("/")[0])
        if charter is not None:
            mine = [account for name, account in self.studies.items() if name.split("/")[0] == study.split("/")[0]]
            together: NormalForm = ()
            for account in mine:
                together = add(together, account.spent)
            counted = f"in {sum(account.charges for account in mine)} charges of {len(mine)} accounts"
            limits.append((charter, together, counted, "the charter's "))
        if self.lifetime is not None:
            charges = sum(account.charges for account in self.studies.values())
            counted = f"in {charges} charges of {len(self.studies)} accounts"
            limits.append((self.lifetime, self.total, counted, "lifetime "))
        for budget, spent, counted, which in limits:
            if budget.promises and any(step.kind == NON_PRIVATE for step, _ in form):
                yield f"a release that is not private has no finite cost, and the {which}promise is {budget.words}"
            elif not fits(spent, form, budget):
                now = epsilon_of(spent, budget.delta, budget.accountant)
                after = epsilon_of(add(spent, form), budget.delta, budget.accountant)
                yield (
                    f"{which}epsilon {_up(now)} of {budget.epsilon:g} is spent {counted} and this release would make "
                    f"it {_up(after)} ({budget.accountant}, delta {budget.delta:g})"
                )

    def same_promise(self, known: Budget | None, asked: Budget, whom: str) -> bool:
        """True for the same promise again, False for a first one; another one is refused."""
        if known is None or known == asked:
            return known is not None
        raise PrivacyError(
            f"site {self.site!r} promised {known.words} to {whom}; {asked.words} was asked for now. A promise is made "
            "once: keep it, or start a study under another name"
        )


def _up(value: float) -> str:
    return f"{math.ceil(value * 1000) / 1000:g}" if math.isfinite(value) else "infinity"
