"""The ledger: what each study has spent at one site, written down before anything leaves.

One SQLite file a site, in WAL mode, for all studies of the site. Rows are only ever added (triggers refuse the rest)
and each carries the SHA-256 of its own content and of the row before, so that an edit, a removal or a change of order
shows; the number of rows and the last hash are kept apart, in a file of their own (``head.py``), so that a shortened
tail shows too. Someone who can write both files *and* rewrite the whole chain is stopped only by a witness outside the
site, who countersigns the head.

A charge is one ``BEGIN IMMEDIATE`` transaction: read what was spent, check, write, commit. Two processes therefore
never both see the last of the budget. The commit and the head are on disk before `Ledger.charge` returns
(``durable=True``: fsync, also against power loss; ``durable=False``: against the death of the process). A crash between
charge and release over-counts; nothing under-counts. The same release, known by its fingerprint, is charged once
(docs/design.md). What the rows add up to, and the site's lifetime budget over all studies: ``accounts.py``.
"""

from __future__ import annotations

import copy
import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dp_accounting.dp_event import DpEvent

from suture.errors import LedgerError, PrivacyError
from suture.privacy.accountant import epsilon_of
from suture.privacy.accounts import Accounts
from suture.privacy.budget import Budget
from suture.privacy.chain import (
    ALL_STUDIES,
    FAULTS,
    NOTE,
    PROMISE,
    Entry,
    Receipt,
    Untrusted,
    genesis,
    inode,
    moment,
    opening,
    prepare,
    site_of,
    words,
)
from suture.privacy.events import NormalForm, form_and_text
from suture.privacy.head import Head, advance, head_path, read_head

_NO_HEAD = "the head kept apart from it (.head.jsonl) is missing, so entries may have been cut off"

__all__ = ["ALL_STUDIES", "Budget", "Entry", "Ledger", "Receipt", "Untrusted"]


class Ledger:
    """The ledger of one site; open it with `Ledger.open`, or only to look at it with `Ledger.read`.

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

    def __init__(self, db: sqlite3.Connection, path: Path | None, site: str, durable: bool = True) -> None:
        self._db, self._path, self.site, self._durable = db, path, site, durable
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._inode = inode(path) if path else None
        self._books = Accounts(site, genesis(site))
        self._head_seen = 0

    @classmethod
    def open(cls, path: Path | None, site: str, *, durable: bool = True) -> Ledger:
        """Open or create the ledger of ``site``; ``path=None`` keeps it in memory. The whole chain is verified.

        >>> Ledger.open(None, "boston").entries()
        []
        """
        with opening(path, site) as db:
            prepare(db, site, str(path or "memory"), durable, in_memory=path is None)
            ledger = cls(db, path, site, durable)
            ledger._keep_head(first=True)
            ledger._audit()
            ledger._keep_head()
        return ledger

    @classmethod
    def read(cls, path: Path) -> Ledger:
        """Open an existing ledger to look at it, which writes nothing. The whole chain is verified."""
        if not path.is_file():
            raise LedgerError(f"there is no ledger at {path}; give the site's home folder, such as .suture/<site>")
        with opening(path, "?", read_only=True) as db:
            ledger = cls(db, path, site_of(db, str(path)))
            ledger._audit()
        return ledger

    def open_study(self, study: str, budget: Budget) -> None:
        """Record a study's promise, once. The same promise again is fine; another one is refused."""
        if study == ALL_STUDIES:
            raise PrivacyError(f"{ALL_STUDIES!r} is the account of the lifetime budget; give the study another name")
        with self._transaction():
            known = self._books.studies.get(study)
            if not self._books.same_promise(known.budget if known else None, budget, f"study {study!r}"):
                self._append(study, -1, PROMISE, budget.to_text(), PROMISE)

    def open_lifetime(self, budget: Budget) -> None:
        """Record what all studies together may spend on this site's patients, once; it holds from now on."""
        with self._transaction():
            if not self._books.same_promise(self._books.lifetime, budget, "its patients for all studies together"):
                self._append(ALL_STUDIES, -1, PROMISE, budget.to_text(), PROMISE)

    def note(self, study: str, what: str, facts: Mapping[str, Any], *, again: bool = False) -> Entry:
        """Record something that is not a charge. What was last noted already is noted again only if asked.

        ``facts`` hold counts, names of columns and reasons, never a patient's values.
        """
        text = json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False)
        with self._transaction():
            found = [e for e in self._rows(0) if e.is_note and (e.study, e.what) == (study, what)]
            if not again and found and found[-1].event == text:
                return found[-1]
            return self._append(study, -1, what, text, f"{NOTE}{self._books.count + 1}")

    def budget(self, study: str) -> Budget:
        """The promise of a study."""
        with self._reading():
            return self._books.of(study).budget

    def promised(self, study: str) -> bool:
        """Whether the study was promised a finite epsilon here.

        >>> Ledger.open(None, "boston").promised("cardio")
        False
        """
        with self._reading():
            known = self._books.studies.get(study)
            return known is not None and known.budget.promises

    def can_pay(self, study: str, event: DpEvent, fingerprint: bytes) -> bool:
        """Whether `charge` would succeed now; writes nothing."""
        form, text = form_and_text(event)
        with self._reading():
            paid = self._paid(study, fingerprint.hex())
            return paid.event == text if paid is not None else self._books.accepts(study, form)

    def charge(
        self, study: str, round: int, event: DpEvent, fingerprint: bytes, *, what: str = "model update"
    ) -> Receipt:
        """Charge one release. When this returns the charge is on disk; when it raises nothing may leave.

        `BudgetExhausted` when everything the study was charged, and this, would exceed its budget, or everything the
        site was charged its lifetime budget. The same fingerprint with the same event is the same release, bit for bit,
        and free; with another event it is an error.
        """
        (form, text), key = form_and_text(event), fingerprint.hex()
        if not fingerprint:
            raise LedgerError(f"site {self.site!r}, study {study!r}, round {round}: a charge needs a fingerprint")
        with self._transaction():
            paid = self._paid(study, key)
            if paid is not None and paid.event != text:
                raise LedgerError(
                    f"site {self.site!r}, study {study!r}, round {round}: this release was paid for as "
                    f"{paid.event} (entry {paid.seq}) and is now called {text}; nothing was charged"
                )
            if paid is None:
                self._books.refuse_if_too_much(study, round, form)
            entry = paid or self._append(study, round, what, text, key, form)
        return Receipt(entry.seq, study, entry.round, entry.what, text, key, entry.hash, repeated=paid is not None)

    def spent(self, study: str) -> float:
        """The epsilon of everything the study was charged, by its own accountant and delta."""
        with self._reading():
            return self._books.of(study).epsilon

    def spent_in_all(self, budget: Budget | None = None) -> float:
        """The epsilon of everything the site was charged, at the delta of the lifetime budget (or of ``budget``)."""
        with self._reading():
            chosen = budget or self._books.lifetime
            if chosen is None:
                raise LedgerError(f"site {self.site!r} has no lifetime budget; say at which delta to add up")
            return epsilon_of(self._books.total, chosen.delta, chosen.accountant)

    @property
    def lifetime(self) -> Budget | None:
        """What all studies together may spend, where the site has set it."""
        with self._reading():
            return self._books.lifetime

    def books(self) -> Accounts:
        """A copy of what the rows add up to: every account, the total, the budgets."""
        with self._reading():
            return copy.deepcopy(self._books)

    def entries(self, study: str | None = None) -> list[Entry]:
        """Charges in the order they were made, of one study or of all."""
        return [entry for entry in self.rows() if entry.is_charge and study in (None, entry.study)]

    def notes(self, what: str | None = None, study: str | None = None) -> list[Entry]:
        """Notes in the order they were made."""
        return [e for e in self.rows() if e.is_note and what in (None, e.what) and study in (None, e.study)]

    def rows(self) -> list[Entry]:
        """Every row: promises, notes and charges."""
        with self._reading():
            return list(self._rows(0))

    def rounds_charged(self, study: str) -> int:
        """How many different rounds the study was charged for."""
        with self._reading():
            return len(self._books.of(study).rounds)

    def now(self) -> str:
        """The time by the site's clock; an error if it was set back behind the last entry."""
        with self._reading():
            return moment(self._books.time, self.site)

    def head(self) -> Head:
        """The end of the chain, for a witness to countersign."""
        with self._reading():
            return Head(self.site, self._books.count, self._books.hash)

    def verify(self, witness: Head | None = None) -> None:
        """Recompute the whole chain and check the file; `Untrusted` names the first bad entry.

        With ``witness``, a head that someone outside the site has kept, the chain must also contain it.
        """
        self._audit(thorough=True)
        if witness is not None:
            with self._reading():
                self._holds(witness, "the witness's head")

    def close(self) -> None:
        """Close the file. Closing twice is fine."""
        with self._lock:
            self._db.close()

    # --- the chain ----------------------------------------------------------------------------------------------------

    def _append(
        self, study: str, round: int, what: str, event: str, fingerprint: str, form: NormalForm | None = None
    ) -> Entry:
        time = moment(self._books.time, self.site)
        draft = Entry(self._books.count + 1, time, study, int(round), what, event, fingerprint, self._books.hash, "")
        values = (draft.seq, time, study, draft.round, what, event, fingerprint, draft.previous, draft.digest())
        self._db.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
        self._db.execute("UPDATE head SET entries = ?, hash = ? WHERE id = 1", (draft.seq, values[-1]))
        entry = Entry(*values)
        self._books.take_in(entry, form)
        return entry

    def _paid(self, study: str, fingerprint: str) -> Entry | None:
        seq = self._books.of(study).paid.get(fingerprint)
        if seq is None:
            return None
        row = self._db.execute("SELECT * FROM entries WHERE seq = ?", (seq,)).fetchone()
        entry = Entry(*row) if row and len(row) == 9 else None
        if entry is None or (entry.study, entry.fingerprint, entry.hash) != (study, fingerprint, entry.digest()):
            raise self._untrusted(f"entry {seq} was changed after it was written", seq)
        return entry

    def _rows(self, after: int) -> Iterator[Entry]:
        for row in self._db.execute("SELECT * FROM entries WHERE seq > ? ORDER BY seq", (after,)):
            if len(row) != 9:
                raise self._untrusted("its entries have the wrong number of fields")
            yield Entry(*row)

    def _catch_up(self) -> None:
        """Read what other processes have added since, checking each link of the chain."""
        books = self._books
        head = self._db.execute("SELECT entries, hash FROM head WHERE id = 1").fetchone()
        if head == (books.count, books.hash):
            return
        for entry in self._rows(books.count):
            problem = entry.problem(books.count, books.hash, books.time)
            if problem:
                raise self._untrusted(problem, books.count + 1)
            try:
                books.take_in(entry)
            except (KeyError, ValueError, TypeError, PrivacyError) as error:
                problem = f"entry {entry.seq} cannot be understood ({type(error).__name__})"
                raise self._untrusted(problem, entry.seq) from error
        if head != (books.count, books.hash):
            found = "no head" if head is None else f"a head at entry {head[0]}"
            problem = (
                f"entry {books.count + 1} is missing or the head was changed: the last is {books.count}, with {found}"
            )
            raise self._untrusted(problem, books.count + 1)

    def _audit(self, thorough: bool = False) -> None:
        # The head first, the rows second: a charge in between makes the rows longer, never the head.
        kept = read_head(head_path(self._path), strict=thorough) if self._path else None
        with self._reading(anew=True):
            if thorough:
                found = self._db.execute("PRAGMA integrity_check(1)").fetchone()[0]
                if found != "ok":
                    raise self._untrusted(f"the file is damaged, though every entry reads well ({found})")
            if self._path is None:
                return
            if kept is None and self._books.count:
                raise self._untrusted(_NO_HEAD)
            if kept is not None:
                self._holds(kept, f"the head kept apart in {head_path(self._path).name}")
                self._head_seen = kept.entries

    def _holds(self, head: Head, whose: str) -> None:
        """The chain must contain every head that was ever kept or countersigned."""
        if head.site != self.site:
            raise self._untrusted(f"{whose} is of site {head.site!r}")
        marks = [(head.entries, head.hash)]
        marks += [(head.witness.entries, head.witness.hash)] if head.witness else []
        for entries, expected in marks:
            if entries > self._books.count:
                problem = f"entry {self._books.count + 1} is missing: {whose} is at entry {entries}"
                raise self._untrusted(problem, self._books.count + 1)
            row = self._db.execute("SELECT hash FROM entries WHERE seq = ?", (entries,)).fetchone()
            if (row[0] if row else genesis(self.site)) != expected:
                raise self._untrusted(f"entry {entries} is not the one that {whose} remembers", entries)

    def _keep_head(self, first: bool = False) -> None:
        """Bring the head that is kept apart up to the last entry, one process at a time."""
        if self._path is None or (not first and self._head_seen == self._books.count):
            return
        self._db.execute("BEGIN IMMEDIATE")
        try:
            found = self._db.execute("SELECT entries, hash FROM head WHERE id = 1").fetchone()
            # A ledger without entries gets its head; from then on a missing head is an error. Before `_audit` nothing
            # else may be written: it would cover the trace of entries that were cut off.
            if found is None or (first and found[0]):
                return
            known = advance(head_path(self._path), Head(self.site, *found), durable=self._durable, first=first)
            if known is None:
                raise self._untrusted(_NO_HEAD)
            self._head_seen = known
        finally:
            self._db.execute("ROLLBACK")

    def _untrusted(self, problem: str, entry: int | None = None) -> Untrusted:
        return Untrusted(
            f"the ledger of site {self.site!r} at {self._path or 'memory'} cannot be trusted: {problem}. Nothing was "
            f"charged and nothing may leave; restore the file from the site's backup and find out who changed it",
            entry,
        )

    # --- transactions -------------------------------------------------------------------------------------------------

    @contextmanager
    def _reading(self, anew: bool = False) -> Iterator[None]:
        with self._guarded():
            self._db.execute("BEGIN")
            try:
                if anew:
                    self._books = Accounts(self.site, genesis(self.site))
                self._catch_up()
                yield
            finally:
                self._db.execute("ROLLBACK")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """One write transaction; on any error nothing is written and what is held in memory is read again."""
        with self._guarded():
            self._db.execute("BEGIN IMMEDIATE")
            count = self._books.count
            try:
                self._catch_up()
                count = self._books.count
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                if self._books.count != count:
                    self._books = Accounts(self.site, genesis(self.site))
                raise
            self._keep_head()

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
            except FAULTS as error:
                raise LedgerError(words(error, self.site, where)) from error
