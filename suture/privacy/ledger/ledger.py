"""The ledger: what each study has reserved and spent at one site, written down before anything
leaves.

Each site has one SQLite file in WAL mode for all of its studies. Rows are only ever added, and each
carries the SHA-256 of its own content and of the row before, so that an edit, a removal or a change
of order shows (``chain.py``). The number of rows and the last hash are kept in a file of their own,
so that a shortened tail shows too; a home that comes back older as a whole is found by whoever
remembers its head, and refused until a person writes the difference off as spent.

The chain holds promises, charges, admissions and write-offs, and nothing that depends on rows.
Notes on consent and erasure do, so they have a chain of their own, which no head covers. Answers
are kept beside them, once and for all.

A charge is one ``BEGIN IMMEDIATE`` transaction: read what was spent, check, write, commit. Two
processes therefore never both see the last of the budget. The commit and the head are on disk
before `Ledger.charge` returns (``durable=True``: fsync, also against power loss; ``durable=False``:
against the death of the process). A crash between charge and release over-counts; nothing
under-counts. The same release, known by its fingerprint, is charged once (docs/design.md). What the
rows add up to, and by which theorem: ``accounts.py``.
"""

from __future__ import annotations

import copy
import hashlib
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dp_accounting.dp_event import DpEvent

from suture.errors import BudgetExhausted, LedgerError, PrivacyError
from suture.privacy.accounting.events import NormalForm, as_event, form_and_text, normal_form
from suture.privacy.accounting.planner import Budget, promise_to_text
from suture.privacy.canonical import json_text
from suture.privacy.ledger.accounts import Accounts, written_off
from suture.privacy.ledger.chain import (
    ADMITTED,
    ALL_STUDIES,
    FAULTS,
    NOTE,
    PROMISE,
    TRAINED,
    WRITTEN_OFF,
    Entry,
    Head,
    LocalWitness,
    Memory,
    Receipt,
    RolledBack,
    Untrusted,
    advance,
    as_seen,
    digest_of,
    genesis,
    head_path,
    identity,
    inode,
    moment,
    opening,
    prepare,
    read_head,
    remembered_site,
    site_of,
    words,
)

_NO_HEAD = "the head kept apart from it (.head.jsonl) is missing, so entries may have been cut off"

__all__ = ["ALL_STUDIES", "Budget", "Entry", "Ledger", "Receipt", "RolledBack", "Untrusted"]


@dataclass(frozen=True)
class _Tail:
    """The end of the notes' chain."""

    count: int
    hash: str
    time: str = ""


def site_at(path: Path) -> str:
    """Whose ledger lies, or last lay, at this path; the chain is not checked."""
    if not path.is_file():
        found = remembered_site(path)
        if found is None or not path.parent.is_dir():
            raise LedgerError(
                f"there is no ledger at {path}, and none is remembered; give the site's home folder"
            )
        return found
    with opening(path, "?", read_only=True) as db:
        found = site_of(db, str(path))
        db.close()
    return found


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

    def __init__(
        self, db: sqlite3.Connection, path: Path | None, site: str, durable: bool = True
    ) -> None:
        self._db, self._path, self.site, self._durable = db, path, site, durable
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._inode = inode(path) if path else None
        self._books = Accounts(site, genesis(site))
        self._notes = _Tail(0, genesis(site, "notes"))
        self._head_seen = 0
        self._local = LocalWitness(path, site, identity(db)) if path and durable else None
        self._rolled_back = False
        self.locked = False
        """Set where a person's word is needed first (`suture.site.ready.charging`): until it is
        there, nothing is promised and nothing charged."""

    @classmethod
    def open(
        cls, path: Path | None, site: str, *, durable: bool = True, rolled_back: bool = False
    ) -> Ledger:
        """Open or create the ledger of ``site`` (``path=None``: in memory) and verify its chain.

        `RolledBack` where this machine remembers a later chain; ``rolled_back`` opens it all the
        same, for `write_off` alone. A ledger that is not durable (generated patients) is not
        remembered.
        """
        with opening(path, site) as db:
            prepare(db, site, str(path or "memory"), durable, in_memory=path is None)
            ledger = cls(db, path, site, durable)
            ledger._rolled_back = rolled_back
            ledger._keep_head(first=True)
            ledger._audit()
            if not rolled_back:
                ledger._keep_head()
        return ledger

    @classmethod
    def read(cls, path: Path) -> Ledger:
        """Open an existing ledger to look at it, without writing, and verify its chain."""
        if not path.is_file():
            raise LedgerError(
                f"there is no ledger at {path}; give the site's home folder, such as .suture/<site>"
            )
        with opening(path, "?", read_only=True) as db:
            ledger = cls(db, path, site_of(db, str(path)))
            ledger._audit(recall=False)
        return ledger

    def open_study(self, study: str, budget: Budget, plan: NormalForm | None = None) -> None:
        """Reserve an account as a whole, once: its budget, and the plan of all possible charges.

        Nothing of it is given back. The same promise again is fine; another one is refused, and so
        is one that does not fit what the charter and the lifetime budget leave (`BudgetExhausted`).
        Without a plan only releases that can be chosen one after the other are charged
        (``accounts.py``).
        """
        if study == ALL_STUDIES:
            raise PrivacyError(f"{ALL_STUDIES!r} names the lifetime budget; rename the study")
        plan = None if plan is None or not budget.promises else normal_form(as_event(plan))
        self._unlocked()
        with self._transaction():
            known = self._books.studies.get(study)
            if known and self._books.same_promise(known.budget, budget, f"study {study!r}"):
                if known.plan != plan:
                    raise PrivacyError(
                        f"site {self.site!r} reserved another plan for study {study!r}. A promise "
                        "is made once: keep the rounds, sizes and noise it was made for, or start "
                        "a study under another name"
                    )
                return
            self._not_overtaken()
            for why in self._books.too_much_to_open(study, budget, plan):
                raise BudgetExhausted(
                    f"site {self.site!r}, study {study!r}: {why}; nothing was reserved"
                )
            self._append(study, -1, PROMISE, promise_to_text(budget, plan), PROMISE)

    def open_lifetime(self, budget: Budget) -> None:
        """Record, once, what all studies together may spend on this site's patients."""
        whom = "its patients for all studies together"
        with self._transaction():
            if not self._books.same_promise(self._books.lifetime, budget, whom):
                self._append(ALL_STUDIES, -1, PROMISE, promise_to_text(budget, None), PROMISE)

    def note(
        self, study: str, what: str, facts: Mapping[str, object], *, again: bool = False
    ) -> Entry:
        """Record something that is not a charge; a repetition of the last note only if ``again``.

        ``facts`` hold counts, names of columns and reasons, never a patient's values. An admission,
        on which limits rest, goes into the chain; everything else into the notes.
        """
        text = json_text(facts)
        table = "entries" if what == ADMITTED else "notes"
        with self._transaction():
            self._catch_up_notes()
            asked = f"SELECT * FROM {table} WHERE study = ? AND what = ? ORDER BY seq DESC"
            rows = () if again else (Entry(*row) for row in self._db.execute(asked, (study, what)))
            last = next((entry for entry in rows if entry.is_note), None)
            if last is not None and last.event == text:
                return last
            if what == ADMITTED:
                return self._append(study, -1, what, text, f"{NOTE}{self._books.count + 1}")
            tail = self._notes
            seq, time = tail.count + 1, moment(max(self._books.time, tail.time), self.site)
            row = (seq, time, study, -1, what, text, f"{NOTE}{seq}", tail.hash)
            note = self._insert("notes", "notes_head", row)
            self._notes = _Tail(seq, note.hash, time)
            return note

    def kept(self, context: str) -> bytes | None:
        """The answer that was kept for this context; None: none was."""
        with self._guarded():
            return self._kept(context)

    def keep(self, context: str, answer: bytes) -> None:
        """Keep an answer for good: it is on disk when this returns. A different one is an error."""
        with self._transaction():
            found = self._kept(context)
            if found is None:
                digest = hashlib.sha256(answer).hexdigest()
                self._db.execute(
                    "INSERT INTO answers VALUES (?, ?, ?)", (context, bytes(answer), digest)
                )
            elif found != answer:
                raise LedgerError(
                    f"site {self.site!r} has kept another answer for context {context!r}; nothing "
                    "was changed"
                )

    def budget(self, study: str) -> Budget:
        with self._reading():
            return self._books.of(study).budget

    def promised(self, study: str) -> bool:
        """Whether the study was promised a finite epsilon here."""
        with self._reading():
            known = self._books.studies.get(study)
            return known is not None and known.budget.promises

    def can_pay(self, study: str, event: DpEvent, fingerprint: bytes) -> bool:
        """Whether `charge` would succeed now; writes nothing."""
        form, text = form_and_text(event)
        with self._reading():
            paid = self._paid(study, fingerprint.hex())
            return paid.event == text if paid else not any(self._books.too_much(study, form))

    def charge(
        self,
        study: str,
        round: int,
        event: DpEvent,
        fingerprint: bytes,
        *,
        what: str = TRAINED,
    ) -> Receipt:
        """Charge one release. When this returns the charge is on disk; if it raises, nothing may
        leave.

        `BudgetExhausted` when the charge would exceed the study's budget or the site's lifetime
        budget. The same fingerprint with the same event is the same release, bit for bit, and free;
        with another event it is an error.
        """
        (form, text), key = form_and_text(event), fingerprint.hex()
        where = f"site {self.site!r}, study {study!r}, round {round}"
        if not fingerprint:
            raise LedgerError(f"{where}: a charge needs a fingerprint")
        self._unlocked()
        with self._transaction():
            paid = self._paid(study, key)
            if paid is not None and paid.event != text:
                raise LedgerError(
                    f"{where}: this release was paid for as {paid.event} (entry {paid.seq}) and is "
                    f"now called {text}; nothing was charged"
                )
            if paid is None:
                self._not_overtaken()
                for why in self._books.too_much(study, form):
                    raise BudgetExhausted(f"{where}: {why}; nothing was released")
            entry = paid or self._append(study, round, what, text, key, form)
        paid_for = (study, entry.round, entry.what, text, key)
        return Receipt(entry.seq, *paid_for, entry.hash, repeated=paid is not None)

    def _unlocked(self) -> None:
        if self.locked:
            raise PrivacyError(
                f"site {self.site!r}: nobody was asked for a signed ready, and without one nothing "
                "is promised or charged on real patients"
            )

    def spent(self, study: str) -> float:
        """The epsilon of everything the study was charged, by its own accountant and delta."""
        with self._reading():
            return self._books.of(study).epsilon

    def spent_in_all(self) -> float:
        """The epsilon reserved in all, by basic composition at the delta of `head`.

        Infinite where an account without a promise was charged.
        """
        with self._reading():
            return self._books.epsilon

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
        with self._reading():
            charges = (entry for entry in self._rows(0) if entry.is_charge)
            return [entry for entry in charges if study in (None, entry.study)]

    def notes(self, what: str | None = None, study: str | None = None) -> list[Entry]:
        """Notes in the order they were made, admissions included."""
        notes = (row for row in self.rows() if row.is_note)
        return [n for n in notes if what in (None, n.what) and study in (None, n.study)]

    def rows(self) -> list[Entry]:
        """Every row in the order of time: the chain, and the notes with their own numbers."""
        with self._reading():
            self._catch_up_notes()
            found = [*self._rows(0), *self._rows(0, "notes")]
            if not all(isinstance(entry.time, str) for entry in found):
                raise self._untrusted("the time of an entry cannot be understood")
            return sorted(found, key=lambda entry: entry.time)

    def rounds_charged(self, study: str) -> int:
        """How many different rounds the study was charged for."""
        with self._reading():
            return len(self._books.of(study).rounds)

    def now(self) -> str:
        """The site's time; an error if the clock was set back before the last entry or refusal.

        Other notes depend on rows, so they must not decide whether there is an error.
        """
        last = "SELECT max(time) FROM notes WHERE what = 'refused'"
        with self._reading():
            refused = self._db.execute(last).fetchone()[0]
            return moment(max(self._books.time, refused or ""), self.site)

    def head(self) -> Head:
        """The end of the chain and what is reserved in all, for a witness to countersign."""
        with self._reading():
            return self._books.head

    def holds(self, seen: Head) -> bool:
        """Whether the chain holds, or wrote off, what a witness has seen."""
        with self._reading():
            return seen.site == self.site and self._missing(seen) is None

    def forgotten(self, *seen: Head) -> list[Memory]:
        """What the chain lacks, but this machine, the head kept apart or a witness knows."""
        kept = read_head(head_path(self._path)) if self._path else None
        known = [*(self._local.recall() if self._local else [])]
        known += [Memory(head, anew=False) for head in (kept, *seen) if head is not None]
        lost = {(m.head.entries, m.head.hash): m for m in reversed(known) if not self.holds(m.head)}
        return sorted(lost.values(), key=lambda m: (m.anew, m.head.entries), reverse=True)

    def write_off(self, seen: Head, *, anew: bool = False) -> Entry:
        """A person's decision: what a witness has seen and the chain lost counts as spent.

        The difference in epsilon and delta counts against the lifetime budget and every charter;
        all open accounts are closed, since nobody knows what was charged to them; the chain goes on
        after the number that the witness remembers. Where this chain is known not to be an older
        part of the same one (``anew``, or another entry stands at the number that was seen),
        everything the witness has seen counts.
        """
        allowed, self._rolled_back = self._rolled_back, False
        if self._path is not None and allowed and read_head(head_path(self._path)) is None:
            # The head was lost as well. Nothing can be written without one, and the witness knows
            # more than it did.
            with self._reading():
                advance(head_path(self._path), self._books.head, durable=self._durable, first=True)
        try:
            with self._transaction():
                if seen.site != self.site:
                    whose = f"of site {seen.site!r}, and this is the ledger of {self.site!r}"
                    raise LedgerError(f"that head is {whose}")
                if self._missing(seen) is None:
                    raise LedgerError(
                        f"there is nothing to write off: the ledger of site {self.site!r} holds "
                        f"entry {seen.entries}"
                    )
                books = self._books
                anew = anew or seen.entries <= books.count
                epsilon, delta = written_off(books.reserved, seen, anew=anew)
                facts = {
                    "entries": seen.entries,
                    "hash": seen.hash,
                    "epsilon": float(seen.epsilon),
                    "delta": float(seen.delta),
                    "found": books.count,
                    "reserved epsilon": epsilon,
                    "reserved delta": delta,
                }
                seq = max(books.count, seen.entries) + 1
                mark = f"{WRITTEN_OFF} {seq}"
                entry = self._append(ALL_STUDIES, -1, WRITTEN_OFF, json_text(facts), mark, seq=seq)
        except BaseException:
            self._rolled_back = allowed
            raise
        return entry

    def verify(self, witness: Head | None = None) -> None:
        """Recompute the whole chain and check the file; `Untrusted` names the first bad entry.

        The chain must contain what this machine remembers (`RolledBack`), and the head of a
        ``witness`` outside the site where one is given.
        """
        self._audit(thorough=True)
        if witness is not None:
            with self._reading():
                self._holds(witness, "the witness's head")

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        with self._lock:
            self._db.close()

    # --- the chain ---------------------------------------------------------------------------

    def _append(
        self,
        study: str,
        round: int,
        what: str,
        event: str,
        fingerprint: str,
        form: NormalForm | None = None,
        seq: int | None = None,
    ) -> Entry:
        books = self._books
        seq, now = seq or books.count + 1, moment(books.time, self.site)
        row = (seq, now, study, int(round), what, event, fingerprint, books.hash)
        entry = self._insert("entries", "head", row)
        books.take_in(entry, form)
        return entry

    def _insert(
        self, table: str, head: str, row: tuple[int, str, str, int, str, str, str, str]
    ) -> Entry:
        mark = digest_of(row)
        self._db.execute(f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, mark))
        self._db.execute(f"UPDATE {head} SET entries = ?, hash = ? WHERE id = 1", (row[0], mark))
        return Entry(*row, mark)

    def _kept(self, context: str) -> bytes | None:
        asked = "SELECT answer, hash FROM answers WHERE context = ?"
        row = self._db.execute(asked, (context,)).fetchone()
        if row is None:
            return None
        answer = bytes(row[0])
        if hashlib.sha256(answer).hexdigest() != row[1]:
            raise self._untrusted("an answer was changed after it was kept")
        return answer

    def _paid(self, study: str, fingerprint: str) -> Entry | None:
        seq = self._books.of(study).paid.get(fingerprint)
        if seq is None:
            return None
        row = self._db.execute("SELECT * FROM entries WHERE seq = ?", (seq,)).fetchone()
        entry = Entry(*row) if row and len(row) == 9 else None
        same = entry and (entry.study, entry.fingerprint) == (study, fingerprint)
        if entry is None or not same or entry.hash != entry.digest():
            raise self._untrusted(f"entry {seq} was changed after it was written", seq)
        return entry

    def _rows(self, after: int, table: str = "entries") -> Iterator[Entry]:
        for row in self._db.execute(f"SELECT * FROM {table} WHERE seq > ? ORDER BY seq", (after,)):
            if len(row) != 9:
                raise self._untrusted("its entries have the wrong number of fields")
            yield Entry(*row)

    def _added(self, table: str, head: str, tail: _Tail) -> Iterator[Entry]:
        """What other processes have added to a chain since; each link is checked, then its end."""
        kept = self._db.execute(f"SELECT entries, hash FROM {head} WHERE id = 1").fetchone()
        if kept == (tail.count, tail.hash):
            return
        noted, problem = table == "notes", None
        for entry in self._rows(tail.count, table):
            if problem := entry.problem(tail.count, tail.hash, tail.time):
                break
            yield entry
            tail = _Tail(entry.seq, entry.hash, entry.time)
        following = tail.count + 1
        if problem is None and kept != (tail.count, tail.hash):
            found = "no head" if kept is None else f"a head at entry {kept[0]}"
            problem = f"entry {following} is missing or the head was changed"
            problem += "" if noted else f": the last is {tail.count}, with {found}"
        if problem:
            raise self._untrusted(
                *((f"in the notes, {problem}",) if noted else (problem, following))
            )

    def _catch_up(self) -> None:
        books = self._books
        for entry in self._added("entries", "head", _Tail(books.count, books.hash, books.time)):
            try:
                books.take_in(entry)
            except (KeyError, ValueError, TypeError, PrivacyError) as error:
                problem = f"entry {entry.seq} cannot be understood ({type(error).__name__})"
                raise self._untrusted(problem, entry.seq) from error

    def _catch_up_notes(self) -> None:
        for note in self._added("notes", "notes_head", self._notes):
            self._notes = _Tail(note.seq, note.hash, note.time)

    def _audit(self, thorough: bool = False, recall: bool = True) -> None:
        # The head first, the rows second: a charge in between makes the rows longer, not the head.
        kept = read_head(head_path(self._path), strict=thorough) if self._path else None
        memories = self._local.recall() if self._local is not None and recall else []
        with self._reading(anew=True):
            self._catch_up_notes()
            if thorough:
                found = self._db.execute("PRAGMA integrity_check(1)").fetchone()[0]
                if found != "ok":
                    raise self._untrusted(
                        f"the file is damaged, though every entry reads well ({found})"
                    )
            if self._path is None or self._rolled_back:
                return
            if kept is None and self._books.count:
                raise self._untrusted(_NO_HEAD)
            # Memories first: a home that is older as a whole has a way out; a changed file has not.
            for memory in memories:
                self._heed(memory.head, "this machine")
            if kept is not None:
                self._holds(kept, f"the head kept apart in {head_path(self._path).name}")
                self._head_seen = kept.entries

    def _missing(self, head: Head) -> tuple[int, str] | None:
        """The first entry that was seen but is neither held nor written off, and why; or None."""
        books, asked = self._books, "SELECT hash FROM entries WHERE seq = ?"
        for seen in (head, *([as_seen(head.site, head.witness)] if head.witness else [])):
            if any(loss.covers(seen) for loss in books.losses):
                continue
            if seen.entries > books.count:
                first = books.count + 1
                return first, f"entry {first} is missing: {{whose}} is at entry {seen.entries}"
            row = self._db.execute(asked, (seen.entries,)).fetchone()
            if (row[0] if row else genesis(self.site)) != seen.hash:
                return seen.entries, f"entry {seen.entries} is not the one that {{whose}} remembers"
        return None

    def _holds(self, head: Head, whose: str) -> None:
        """The chain must contain every head that was ever kept or countersigned."""
        if head.site != self.site:
            raise self._untrusted(f"{whose} is of site {head.site!r}")
        missing = self._missing(head)
        if missing is not None:
            raise self._untrusted(missing[1].format(whose=whose), missing[0])

    def _heed(self, seen: Head, who: str) -> None:
        if seen.site == self.site and self._missing(seen) is None:
            return
        found = self._books.head
        home = self._path.parent if self._path else "HOME"
        raise RolledBack(
            f"the ledger of site {self.site!r} at {self._path or 'memory'} is not the one that "
            f"{who} has seen. Expected: entry {seen.entries} with hash {seen.hash[:16]}, epsilon "
            f"{seen.epsilon:g} and delta {seen.delta:g} reserved. Found: {found.entries} entries, "
            f"epsilon {found.epsilon:g} and delta {found.delta:g} reserved. The home was restored "
            "from a backup, or deleted and made anew, and has forgotten what was spent; nothing "
            "was charged and nothing may leave. Put the newest home back, or, if it is lost, write "
            f"the difference off as spent: suture ledger write-off {home}",
            seen,
            found,
        )

    def _not_overtaken(self) -> None:
        """Before a charge: no copy of this home may have gone on in the meantime."""
        for memory in self._local.recall() if self._local is not None else ():
            self._heed(memory.head, "this machine")

    def _keep_head(self, first: bool = False) -> None:
        """Bring the head kept apart, and what this machine remembers, up to the last entry."""
        settled = self._local is None or self._local.settled
        if self._path is None or (settled and not first and self._head_seen == self._books.count):
            return
        self._db.execute("BEGIN IMMEDIATE")  # one process at a time
        try:
            found = self._db.execute("SELECT entries FROM head WHERE id = 1").fetchone()
            # A ledger without entries gets its head; then a missing head is an error. Before
            # `_audit` nothing else may be written: it would hide that entries were cut off.
            if found is None or (first and found[0]):
                return
            head = self._books.head
            known = advance(head_path(self._path), head, durable=self._durable, first=first)
            if known is None:
                raise self._untrusted(_NO_HEAD)
            if self._local is not None and not first:
                self._local.remember(head)
            self._head_seen = known
        finally:
            self._db.execute("ROLLBACK")

    def _untrusted(self, problem: str, entry: int | None = None) -> Untrusted:
        return Untrusted(
            f"the ledger of site {self.site!r} at {self._path or 'memory'} cannot be trusted: "
            f"{problem}. Nothing was charged and nothing may leave; restore the file from the "
            "site's backup and find out who changed it",
            entry,
        )

    # --- transactions ------------------------------------------------------------------------

    @contextmanager
    def _reading(self, anew: bool = False) -> Iterator[None]:
        with self._guarded():
            self._db.execute("BEGIN")
            try:
                if anew:
                    self._books = Accounts(self.site, genesis(self.site))
                    self._notes = _Tail(0, genesis(self.site, "notes"))
                self._catch_up()
                yield
            finally:
                self._db.execute("ROLLBACK")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """One write transaction; on an error nothing is written, and the memory is read again."""
        with self._guarded():
            if self._rolled_back:
                raise LedgerError(
                    f"the ledger of site {self.site!r} was opened to write a lost part off, and "
                    "nothing else; open it again to charge"
                )
            self._db.execute("BEGIN IMMEDIATE")
            count, notes = self._books.count, self._notes
            try:
                self._catch_up()
                count = self._books.count
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                self._notes = notes
                if self._books.count != count:
                    self._books = Accounts(self.site, genesis(self.site))
                raise
            self._keep_head()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        where = str(self._path or "memory")
        with self._lock:
            # A forked connection would share SQLite's locks, or copy a ledger in memory.
            ledger = f"the ledger of site {self.site!r}"
            if os.getpid() != self._pid:
                raise LedgerError(f"{ledger} was opened by another process; open it again here")
            if self._path and inode(self._path) != self._inode:
                raise LedgerError(
                    f"{ledger} at {where} was moved, removed or replaced while open; nothing was "
                    "charged"
                )
            try:
                yield
            except FAULTS as error:
                raise LedgerError(words(error, self.site, where)) from error
