"""The ledger: what each study has spent at one site, written down before anything leaves.

One SQLite file a site, in WAL mode. Rows are only ever added (triggers refuse the rest) and each carries the SHA-256
of its own content and of the row before, so that an edit, a removal or a change of order shows; the number of rows
and the last hash are kept apart in ``head``, so that a shortened tail shows too. Someone who can write the file *and*
rewrite the whole chain is not stopped by this; that needs a signature or a witness outside the site.

A charge is one ``BEGIN IMMEDIATE`` transaction: read what was spent, check, write, commit. Two processes therefore
never both see the last of the budget. The commit is on disk before `Ledger.charge` returns (``durable=True``: fsync,
also against power loss; ``durable=False``: against the death of the process). A crash between charge and release
over-counts; nothing under-counts. The same release, known by its fingerprint, is charged once (docs/design.md).

Measured: a charge takes about 60 microseconds in memory and 0.1 ms on a file without fsync, once the accountant has
answered how many such events fit (``budget.py``).
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dp_accounting.dp_event import DpEvent

from suture.errors import BudgetExhausted, LedgerError, PrivacyError
from suture.privacy.accountant import epsilon_of
from suture.privacy.budget import Budget, fits
from suture.privacy.chain import BUSY_SECONDS, PROMISE, Entry, Receipt, genesis, inode, prepare, words
from suture.privacy.events import NON_PRIVATE, NormalForm, add, event_from_json, event_to_text, normal_form

__all__ = ["Budget", "Entry", "Ledger", "Receipt"]


@dataclass
class _Study:
    budget: Budget
    spent: NormalForm = ()
    charges: int = 0
    rounds: set[int] = field(default_factory=set)


class Ledger:
    """The ledger of one site; open it with `Ledger.open`.

    >>> from dp_accounting import GaussianDpEvent
    >>> ledger = Ledger.open(None, "boston")
    >>> ledger.open_study("cardio", Budget(6.0, 1e-5, "pld"))
    >>> ledger.charge("cardio", 0, GaussianDpEvent(5.0), b"first release").repeated
    False
    >>> ledger.charge("cardio", 0, GaussianDpEvent(5.0), b"first release").repeated
    True
    >>> round(ledger.spent("cardio"), 3)
    0.726
    """

    def __init__(self, db: sqlite3.Connection, path: Path | None, site: str) -> None:
        self._db, self._path, self.site = db, path, site
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._inode = inode(path) if path else None
        self._studies: dict[str, _Study] = {}
        self._count, self._hash = 0, genesis(site)

    @classmethod
    def open(cls, path: Path | None, site: str, *, durable: bool = True) -> Ledger:
        """Open or create the ledger of ``site``; ``path=None`` keeps it in memory. The whole chain is verified.

        >>> Ledger.open(None, "boston").entries()
        []
        """
        where = str(path) if path else "memory"
        try:
            db = sqlite3.connect(
                str(path) if path else ":memory:",
                timeout=BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=64,
            )
        except sqlite3.Error as error:
            raise LedgerError(f"cannot open the ledger of site {site!r} at {where}: {error}") from error
        try:
            prepare(db, site, where, durable, in_memory=path is None)
            ledger = cls(db, path, site)
            ledger.verify()
        except sqlite3.Error as error:
            db.close()
            raise LedgerError(words(error, site, where)) from error
        except LedgerError:
            db.close()
            raise
        return ledger

    def open_study(self, study: str, budget: Budget) -> None:
        """Record a study's promise, once. The same promise again is fine; another one is refused."""
        with self._transaction():
            known = self._studies.get(study)
            if known is None:
                self._append(study, -1, PROMISE, _budget_text(budget), PROMISE)
                self._studies[study] = _Study(budget)
            elif known.budget != budget:
                raise PrivacyError(
                    f"site {self.site!r} promised {_budget_words(known.budget)} to study {study!r}; "
                    f"{_budget_words(budget)} was asked for now. A promise is made once: "
                    f"keep it, or start a study under another name"
                )

    def budget(self, study: str) -> Budget:
        """The promise of a study."""
        with self._reading():
            return self._known(study).budget

    def promised(self, study: str) -> bool:
        """Whether the study was promised a finite epsilon here.

        >>> Ledger.open(None, "boston").promised("cardio")
        False
        """
        with self._reading():
            known = self._studies.get(study)
            return known is not None and known.budget.promises

    def can_pay(self, study: str, event: DpEvent, fingerprint: bytes) -> bool:
        """Whether `charge` would succeed now; writes nothing."""
        form, text = normal_form(event), event_to_text(event)
        with self._reading():
            state = self._known(study)
            paid = self._paid(study, fingerprint.hex())
            if paid is not None:
                return paid.event == text
            return _acceptable(form, state.budget) and fits(state.spent, form, state.budget)

    def charge(
        self, study: str, round: int, event: DpEvent, fingerprint: bytes, *, what: str = "model update"
    ) -> Receipt:
        """Charge one release. When this returns the charge is on disk; when it raises nothing may leave.

        `BudgetExhausted` when everything the study was charged, and this, would exceed its budget. The same fingerprint
        with the same event is the same release, bit for bit, and free; with another event it is an error.
        """
        form, text, key = normal_form(event), event_to_text(event), fingerprint.hex()
        if not fingerprint:
            raise LedgerError(f"site {self.site!r}, study {study!r}, round {round}: a charge needs a fingerprint")
        with self._transaction():
            state = self._known(study)
            paid = self._paid(study, key)
            if paid is not None:
                if paid.event != text:
                    raise LedgerError(
                        f"site {self.site!r}, study {study!r}, round {round}: this release was paid for as "
                        f"{paid.event} (entry {paid.seq}) and is now called {text}; nothing was charged"
                    )
                return _receipt(paid, repeated=True)
            self._refuse_if_too_much(state, study, round, form)
            entry = self._append(study, round, what, text, key)
            _book(state, entry, form)
        return _receipt(entry, repeated=False)

    def spent(self, study: str) -> float:
        """The epsilon of everything the study was charged, by its own accountant and delta."""
        with self._reading():
            state = self._known(study)
            form, budget = state.spent, state.budget
        return epsilon_of(form, budget.delta, budget.accountant)

    def entries(self, study: str | None = None) -> list[Entry]:
        """Charges in the order they were made, of one study or of all."""
        with self._reading():
            return [e for e in self._rows(0) if not e.is_promise and study in (None, e.study)]

    def rounds_charged(self, study: str) -> int:
        """How many different rounds the study was charged for."""
        with self._reading():
            return len(self._known(study).rounds)

    def verify(self) -> None:
        """Recompute the whole chain; `LedgerError` names the first bad entry."""
        with self._reading():
            self._studies, self._count, self._hash = {}, 0, genesis(self.site)
            self._catch_up()

    def close(self) -> None:
        """Close the file. Closing twice is fine."""
        with self._lock:
            self._db.close()

    def _refuse_if_too_much(self, state: _Study, study: str, round: int, form: NormalForm) -> None:
        where = f"site {self.site!r}, study {study!r}, round {round}"
        if not _acceptable(form, state.budget):
            raise BudgetExhausted(
                f"{where}: a release that is not private has no finite cost, and the promise is "
                f"{_budget_words(state.budget)}; nothing was released"
            )
        if not fits(state.spent, form, state.budget):
            budget = state.budget
            now = epsilon_of(state.spent, budget.delta, budget.accountant)
            after = epsilon_of(add(state.spent, form), budget.delta, budget.accountant)
            raise BudgetExhausted(
                f"{where}: epsilon {_up(now)} of {budget.epsilon:g} is spent in {state.charges} charges and this "
                f"release would make it {_up(after)} ({budget.accountant}, delta {budget.delta:g}); "
                f"nothing was released"
            )

    def _append(self, study: str, round: int, what: str, event: str, fingerprint: str) -> Entry:
        moment = datetime.now(UTC).isoformat(timespec="microseconds")
        draft = Entry(self._count + 1, moment, study, int(round), what, event, fingerprint, self._hash, "")
        values = (draft.seq, moment, study, draft.round, what, event, fingerprint, self._hash, draft.digest())
        self._db.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
        self._db.execute("UPDATE head SET entries = ?, hash = ? WHERE id = 1", (draft.seq, values[-1]))
        self._count, self._hash = draft.seq, values[-1]
        return Entry(*values)

    def _paid(self, study: str, fingerprint: str) -> Entry | None:
        row = self._db.execute(
            "SELECT * FROM entries WHERE study = ? AND fingerprint = ?", (study, fingerprint)
        ).fetchone()
        return Entry(*row) if row else None

    def _known(self, study: str) -> _Study:
        state = self._studies.get(study)
        if state is None:
            raise LedgerError(
                f"site {self.site!r} holds no promise for study {study!r}; call open_study with a budget first"
            )
        return state

    def _rows(self, after: int) -> Iterator[Entry]:
        for row in self._db.execute("SELECT * FROM entries WHERE seq > ? ORDER BY seq", (after,)):
            yield Entry(*row)

    def _catch_up(self) -> None:
        """Read what other processes have added since, checking each link of the chain."""
        head = self._db.execute("SELECT entries, hash FROM head WHERE id = 1").fetchone()
        if head == (self._count, self._hash):
            return
        for entry in self._rows(self._count):
            problem = None
            if entry.seq != self._count + 1:
                problem = f"entry {self._count + 1} is missing"
            elif entry.previous != self._hash:
                problem = f"entry {entry.seq} does not follow from the one before"
            elif entry.hash != entry.digest():
                problem = f"entry {entry.seq} was changed after it was written"
            if problem:
                raise self._untrusted(problem)
            self._take_in(entry)
            self._count, self._hash = entry.seq, entry.hash
        if head != (self._count, self._hash):
            found = "no head" if head is None else f"a head at entry {head[0]}"
            raise self._untrusted(
                f"entry {self._count + 1} is missing or the head was changed: the last is {self._count}, with {found}"
            )

    def _take_in(self, entry: Entry) -> None:
        try:
            if entry.is_promise:
                self._studies[entry.study] = _Study(_budget_from(entry.event))
            else:
                _book(self._studies[entry.study], entry, normal_form(event_from_json(json.loads(entry.event))))
        except (KeyError, ValueError, TypeError, PrivacyError) as error:
            raise self._untrusted(f"entry {entry.seq} cannot be understood ({type(error).__name__})") from error

    def _untrusted(self, problem: str) -> LedgerError:
        return LedgerError(
            f"the ledger of site {self.site!r} at {self._path or 'memory'} cannot be trusted: {problem}. Nothing was "
            f"charged and nothing may leave; restore the file from the site's backup and find out who changed it"
        )

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._guarded():
            self._db.execute("BEGIN")
            try:
                self._catch_up()
                yield
            finally:
                self._db.execute("ROLLBACK")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """One write transaction; on any error nothing is written and what is held in memory is read again."""
        with self._guarded():
            self._db.execute("BEGIN IMMEDIATE")
            count = self._count
            try:
                self._catch_up()
                count = self._count
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                if self._count != count:
                    self._studies, self._count, self._hash = {}, 0, genesis(self.site)
                raise

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        where = str(self._path or "memory")
        with self._lock:
            # A forked copy of the connection would share SQLite's locks, or hold a second copy of a ledger in memory.
            if os.getpid() != self._pid:
                raise LedgerError(f"the ledger of site {self.site!r} was opened by another process; open it again here")
            if self._path and inode(self._path) != self._inode:
                raise LedgerError(
                    f"the ledger of site {self.site!r} at {where} was moved, removed or replaced while "
                    f"open; nothing was charged"
                )
            try:
                yield
            except sqlite3.Error as error:
                raise LedgerError(words(error, self.site, where)) from error


def _acceptable(form: NormalForm, budget: Budget) -> bool:
    return not budget.promises or all(step.kind != NON_PRIVATE for step, _ in form)


def _book(state: _Study, entry: Entry, form: NormalForm) -> None:
    state.spent = add(state.spent, form)
    state.charges += 1
    state.rounds.add(entry.round)


def _receipt(entry: Entry, repeated: bool) -> Receipt:
    return Receipt(
        entry.seq, entry.study, entry.round, entry.what, entry.event, entry.fingerprint, entry.hash, repeated
    )


def _budget_text(budget: Budget) -> str:
    # JSON has no infinity: null is "no promise".
    value: dict[str, Any] = {
        "accountant": budget.accountant,
        "delta": float(budget.delta),
        "epsilon": float(budget.epsilon) if budget.promises else None,
    }
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def _budget_from(text: str) -> Budget:
    value = json.loads(text)
    return Budget(math.inf if value["epsilon"] is None else value["epsilon"], value["delta"], value["accountant"])


def _budget_words(budget: Budget) -> str:
    if not budget.promises:
        return "nothing (no promise)"
    return f"epsilon {budget.epsilon:g} at delta {budget.delta:g} by {budget.accountant}"


def _up(value: float) -> str:
    return f"{math.ceil(value * 1000) / 1000:g}" if math.isfinite(value) else "infinity"
