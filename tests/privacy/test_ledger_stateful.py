"""Any order of opening, charging, keeping, noting, killing, rolling back and writing off keeps the
ledger's promises."""

import os
import shutil
import tempfile
from fractions import Fraction
from pathlib import Path

import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent, PoissonSampledDpEvent, ZCDpEvent
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from suture.errors import BudgetExhausted, LedgerError, PrivacyError
from suture.privacy.accounting.accountant import epsilon_of
from suture.privacy.accounting.events import normal_form
from suture.privacy.ledger.chain import VARIABLE
from suture.privacy.ledger.ledger import Budget, Ledger, RolledBack

EVENTS = (
    GaussianDpEvent(4.83),
    GaussianDpEvent(12.0),
    ZCDpEvent(0.01),
    ZCDpEvent(0.003),
    PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0)),
    ComposedDpEvent([GaussianDpEvent(12.0), ZCDpEvent(0.003)]),
)
LIFETIME = Budget(20.0, 1e-4, "pld")
accounts = st.sampled_from(["a/one", "a/releases", "b/one", "c/one"])
events = st.sampled_from(EVENTS)
small = st.integers(0, 3)


class Machine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.base = Path(tempfile.mkdtemp())
        self.home, self.backup = self.base / "home", self.base / "backup"
        self.home.mkdir()
        self.before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = str(self.base / "witness")
        self.ledger = self.open()
        self.answers, self.kept_then = {}, {}
        self.entries, self.reserved, self.lost = 0, 0.0, False

    def open(self, **options):
        return Ledger.open(self.home / "ledger.sqlite", "boston", **options)

    def teardown(self):
        self.ledger.close()
        shutil.rmtree(self.base)
        os.environ.pop(VARIABLE)
        if self.before is not None:
            os.environ[VARIABLE] = self.before

    @initialize()
    def lifetime(self):
        self.ledger.open_lifetime(LIFETIME)
        self.ledger.note("a", "admitted", {"epsilon": 9.0, "delta": 1e-4})

    @rule(
        account=accounts,
        epsilon=st.sampled_from([0.7, 2.0, 6.5]),
        plan=st.none() | st.lists(events, max_size=6),
    )
    def open_account(self, account, epsilon, plan):
        wanted = None if plan is None else normal_form(ComposedDpEvent(plan))
        accountant = "pld" if plan is None else "rdp"
        before, known = self.ledger.head(), account in self.ledger.books().studies
        try:
            self.ledger.open_study(account, Budget(epsilon, 1e-5, accountant), wanted)
        except BudgetExhausted:
            assert not known
            after = Fraction(repr(before.epsilon)) + Fraction(repr(epsilon))
            dear = wanted is not None and epsilon_of(wanted, 1e-5, accountant) > epsilon
            assert dear or after > 20 or account.startswith("a/")
        except PrivacyError as error:  # another promise
            if not known:
                raise AssertionError from error
        else:
            assert self.ledger.head().epsilon >= before.epsilon

    @rule(account=accounts, event=events, number=st.integers(0, 30))
    def charge_and_keep(self, account, event, number):
        """As the door does it: pay, then keep the answer, then send it."""
        books = self.ledger.books()
        if account not in books.studies:
            with pytest.raises(LedgerError):
                self.ledger.charge(account, 0, event, bytes([number]))
            return
        able, context = self.ledger.can_pay(account, event, bytes([number])), f"{account} {number}"
        try:
            receipt = self.ledger.charge(account, number, event, bytes([number]))
        except (BudgetExhausted, LedgerError):
            assert not able
            return
        assert able
        assert receipt.repeated == (bytes([number]).hex() in books.of(account).paid)
        if receipt.repeated and context in self.answers:
            assert self.ledger.kept(context) == self.answers[context]
            return
        self.answers[context] = os.urandom(5)
        self.ledger.keep(context, self.answers[context])

    @rule(facts=small)
    def note(self, facts):
        before = self.ledger.head()
        self.ledger.note("a", "consent", {"patients": facts})
        self.ledger.note("*", "erased", {"tombstone": facts}, again=True)
        assert self.ledger.head() == before

    @rule()
    def reopen(self):
        before = self.ledger.head()
        self.ledger.close()
        self.ledger = self.open()
        self.ledger.verify()
        assert self.ledger.head() == before

    @rule()
    def back_up(self):
        self.ledger.close()
        shutil.rmtree(self.backup, ignore_errors=True)
        shutil.copytree(self.home, self.backup)
        self.kept_then = dict(self.answers)
        self.ledger = self.open()

    @precondition(lambda self: self.entries > 0)
    @rule(delete=st.booleans(), head_too=st.booleans())
    def lose_and_write_off(self, delete, head_too):
        newest = self.ledger.head()
        self.ledger.close()
        if delete or not self.backup.exists():
            shutil.rmtree(self.home)
            self.home.mkdir()
            self.answers = {}
        else:
            shutil.rmtree(self.home)
            shutil.copytree(self.backup, self.home)
            self.answers = dict(self.kept_then)
            if head_too:
                (self.home / "ledger.head.jsonl").unlink()
        ledger = self.open(rolled_back=True)
        if ledger.holds(newest):  # nothing was charged since the backup
            (self.home / "ledger.head.jsonl").exists() or shutil.copy(
                self.backup / "ledger.head.jsonl", self.home
            )
            ledger.close()
            self.ledger = self.open()
            return
        found = ledger.head()
        ledger.close()
        for _ in range(2):
            with pytest.raises(LedgerError):
                self.open()
        if (self.home / "ledger.head.jsonl").exists():
            with pytest.raises(RolledBack) as refused:
                self.open()
            assert refused.value.found == found
            assert refused.value.seen.entries <= newest.entries
        self.ledger = self.open(rolled_back=True)
        lost = (
            self.ledger.forgotten()
        )  # two, where a backup from before an earlier write-off is put back
        assert newest in [memory.head for memory in lost]
        for memory in lost:
            if not self.ledger.holds(memory.head):
                self.ledger.write_off(memory.head, anew=memory.anew)
        self.ledger.close()
        self.ledger = self.open()
        assert self.ledger.head().epsilon >= newest.epsilon
        assert all(account.closed for account in self.ledger.books().studies.values())
        self.lost = True

    @invariant()
    def nothing_is_overspent_and_nothing_shrinks(self):
        books, head = self.ledger.books(), self.ledger.head()
        for account in books.studies.values():
            assert account.epsilon <= account.budget.epsilon * (1 + 1e-9)
        assert self.lost or (head.epsilon <= LIFETIME.epsilon and head.delta <= LIFETIME.delta)
        assert head.entries >= self.entries
        assert head.epsilon >= self.reserved
        self.entries, self.reserved = head.entries, head.epsilon

    @invariant()
    def answers_never_change(self):
        for context, answer in self.answers.items():
            assert self.ledger.kept(context) == answer
            with pytest.raises(LedgerError):
                self.ledger.keep(context, answer + b"?")


TestLedger = Machine.TestCase
TestLedger.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
