"""The ledger's file: rows in a hash chain, and the settings of SQLite that keep them.

Each row carries the SHA-256 of its own content and of the row before. Triggers refuse updates and
deletions, and ``head`` keeps the number of rows and the last hash apart. ``ledger.py`` says what
the rows mean.

There are two chains. ``entries`` holds what the budget rests on: promises, charges, admissions,
write-offs. ``notes`` holds what may depend on patients' rows (consent counts, erasures) and
refusals; no head covers it, so it cannot change anything that leaves the site.

Times never go back: a clock set back by more than two seconds is an error, because a charter's
expiry and the order of events rest on it. A time server's small correction repeats the last moment.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from suture.errors import LedgerError
from suture.privacy.ledger.head import Head

_APPLICATION = 0x53555455  # "SUTU"
PROMISE = "promise"
NOTE = "note "
ADMITTED = "admitted"
"""A note of the gate: a signed charter allows a study so much epsilon here, over all accounts."""
WRITTEN_OFF = "written off"
"""A person's entry: the chain was shorter than a witness remembers; the difference is spent."""
ALL_STUDIES = "*"
"""The account of the lifetime budget: it covers every other account of the site."""
CLOCK_SLACK_SECONDS = 2.0
FAULTS = (sqlite3.Error, UnicodeError, OverflowError)
"""What SQLite's module raises on a damaged file; the last two where text cannot be decoded."""
BUSY_SECONDS = 60.0
_ENCODE = json.JSONEncoder(separators=(",", ":")).encode  # also of what a damaged row holds
_VERSION = "2"
_ROW = (
    "seq INTEGER PRIMARY KEY, time TEXT NOT NULL, study TEXT NOT NULL, round INTEGER NOT NULL, "
    "what TEXT NOT NULL, event TEXT NOT NULL, fingerprint TEXT NOT NULL, previous TEXT NOT NULL, "
    "hash TEXT NOT NULL"
)
_END = "id INTEGER PRIMARY KEY CHECK (id = 1), entries INTEGER NOT NULL, hash TEXT NOT NULL"
_APPEND, _ONCE = "the ledger is append-only", "an answer is kept once"
_SCHEMA = [
    "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    f"CREATE TABLE entries ({_ROW})",
    "CREATE UNIQUE INDEX one_charge ON entries (study, fingerprint)",
    f"CREATE TABLE head ({_END})",
    f"CREATE TABLE notes ({_ROW})",
    f"CREATE TABLE notes_head ({_END})",
    "CREATE TABLE answers (context TEXT NOT NULL UNIQUE, answer BLOB NOT NULL, hash TEXT NOT NULL)",
    *(
        f"CREATE TRIGGER {table}_{name} BEFORE {act} ON {table} "
        f"BEGIN SELECT RAISE(ABORT, '{why}'); END"
        for table, why in (("entries", _APPEND), ("notes", _APPEND), ("answers", _ONCE))
        for name, act in (("keep", "UPDATE"), ("stay", "DELETE"))
    ),
]


@dataclass(frozen=True)
class Receipt:
    """Proof of a charge: the entry, what it paid for, and whether it had been paid before."""

    entry: int
    study: str
    round: int
    what: str
    event: str
    fingerprint: str
    hash: str
    repeated: bool


@dataclass(frozen=True)
class Entry:
    """One row: a charge, a promise (``event`` holds budget and plan), a note or a write-off."""

    seq: int
    time: str
    study: str
    round: int
    what: str
    event: str
    fingerprint: str
    previous: str
    hash: str

    @property
    def is_promise(self) -> bool:
        """Whether the row records a study's budget."""
        return self.fingerprint == PROMISE

    @property
    def is_note(self) -> bool:
        """Whether the row records an event at the gate: admission, refusal, consent, erasure."""
        return self.fingerprint.startswith(NOTE)

    @property
    def is_write_off(self) -> bool:
        """Whether the row writes a lost tail of the chain off as spent."""
        return self.fingerprint.startswith(WRITTEN_OFF)

    @property
    def is_charge(self) -> bool:
        """Whether the row pays for a release."""
        return not (self.is_promise or self.is_note or self.is_write_off)

    def problem(self, count: int, last_hash: str, last_time: str) -> str | None:
        """Why this row cannot follow ``count`` rows that end with this hash and time, or None."""
        texts = (self.time, *self._content[4:], self.study, self.hash)
        whole = type(self.seq) is int and type(self.round) is int
        if not whole or not all(isinstance(text, str) for text in texts):
            return f"entry {count + 1} cannot be understood"
        if self.seq != self.expected(count):
            return f"entry {count + 1} is missing"
        if self.previous != last_hash:
            return f"entry {self.seq} does not follow from the one before"
        if self.hash != self.digest():
            return f"entry {self.seq} was changed after it was written"
        return f"entry {self.seq} is dated before the one before" if self.time < last_time else None

    def expected(self, count: int) -> int:
        """The number of this row after ``count`` others; a write-off jumps past what was seen."""
        if not self.is_write_off:
            return count + 1
        try:
            return max(count, int(json.loads(self.event)["entries"])) + 1
        except (KeyError, ValueError, TypeError):
            return count + 1

    def digest(self) -> str:
        """What ``hash`` must be: SHA-256 over the other fields as one JSON list."""
        return digest_of(self._content)

    @property
    def _content(self) -> tuple[int | str, ...]:
        numbered = (self.seq, self.time, self.study, self.round)
        return (*numbered, self.what, self.event, self.fingerprint, self.previous)


def digest_of(content: tuple[int | str, ...]) -> str:
    """The hash of a row, from its other fields in order."""
    return hashlib.sha256(_ENCODE(content).encode()).hexdigest()


class Untrusted(LedgerError):
    """The ledger does not add up; ``entry`` is the first wrong entry, where there is one."""

    def __init__(self, message: str, entry: int | None = None) -> None:
        super().__init__(message)
        self.entry = entry


class RolledBack(LedgerError):
    """The chain does not hold what a witness has ``seen``; ``found`` is the chain's own head."""

    def __init__(self, message: str, seen: Head, found: Head) -> None:
        super().__init__(message)
        self.seen, self.found = seen, found


def clock() -> datetime:
    """The site's clock."""
    return datetime.now(UTC)


def moment(last: str, site: str) -> str:
    """The time of the next entry, never before the last one's.

    >>> moment("2001-01-01T00:00:00.000000+00:00", "boston") > "2026"
    True
    """
    now = clock().isoformat(timespec="microseconds")
    if now >= last:
        return now
    behind = (datetime.fromisoformat(last) - datetime.fromisoformat(now)).total_seconds()
    if behind <= CLOCK_SLACK_SECONDS:
        return last
    raise LedgerError(
        f"the clock of site {site!r} was set back: it says {now}, and the ledger's last entry is "
        f"from {last}. Nothing was charged and nothing may leave; correct the clock (timedatectl "
        "status), then run again"
    )


def connect(path: Path | None, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection to the file, or to a database in memory."""
    name = ":memory:" if path is None else str(path)
    if read_only and path is not None:
        # Without a log beside it the file is the whole ledger, and may be on a read-only disk.
        alone = not path.with_name(path.name + "-wal").exists()
        name = f"file:{quote(str(path.resolve()))}?" + ("immutable=1" if alone else "mode=ro")
    return sqlite3.connect(
        name,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=64,
        uri=read_only,
    )


@contextmanager
def opening(
    path: Path | None, site: str, *, read_only: bool = False
) -> Iterator[sqlite3.Connection]:
    """A connection to the file (or to memory), closed again if anything is wrong with it."""
    where = str(path) if path else "memory"
    try:
        db = connect(path, read_only=read_only)
    except sqlite3.Error as error:
        raise LedgerError(f"cannot open the ledger of site {site!r} at {where}: {error}") from error
    try:
        yield db
    except FAULTS as error:
        db.close()
        raise LedgerError(words(error, site, where)) from error
    except BaseException:
        db.close()
        raise


def site_of(db: sqlite3.Connection, where: str) -> str:
    """Whose ledger this is, as the file says; `LedgerError` for a file that is not a ledger."""
    if db.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
        raise LedgerError(
            f"{where} is a database, but not a ledger of Suture; give the site's home folder"
        )
    found = dict(db.execute("SELECT name, value FROM about").fetchall())
    site = found.get("site")
    if found.get("version") != _VERSION or not isinstance(site, str):
        raise LedgerError(
            f"{where} does not say whose ledger it is; restore it from the site's backup"
        )
    return site


def prepare(db: sqlite3.Connection, site: str, where: str, durable: bool, in_memory: bool) -> None:
    """Set SQLite up, and create the tables of a new ledger or check whose an old one is."""
    db.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")
    if not in_memory:
        _write_ahead(db)
    # WAL with NORMAL survives the death of the process; FULL also the loss of power.
    db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
    db.execute("BEGIN IMMEDIATE")
    try:
        tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        application = db.execute("PRAGMA application_id").fetchone()[0]
        if tables and application != _APPLICATION:
            raise LedgerError(
                f"{where} is a database, but not a ledger of Suture; give the ledger another path"
            )
        if not tables:
            for statement in _SCHEMA:
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {_APPLICATION}")
            about = {"site": site, "version": _VERSION, "id": secrets.token_hex(16)}
            db.executemany("INSERT INTO about VALUES (?, ?)", about.items())
            db.execute("INSERT INTO head VALUES (1, 0, ?)", (genesis(site),))
            db.execute("INSERT INTO notes_head VALUES (1, 0, ?)", (genesis(site, "notes"),))
        about = dict(db.execute("SELECT name, value FROM about"))
        if about.get("version") != _VERSION or about.get("site") != site:
            raise LedgerError(
                f"expected version {_VERSION} of the ledger of site {site!r} at {where}, found "
                f"version {about.get('version')} of site {about.get('site')!r}; each site needs "
                "its own file"
            )
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _write_ahead(db: sqlite3.Connection) -> None:
    """Switch to WAL. If another process does so at the same time, SQLite says "locked" at once."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            mode = None
        if mode == "wal":
            return
        if mode is not None and time.monotonic() > deadline:
            raise sqlite3.OperationalError(
                f"the file system does not allow a write-ahead log (mode {mode!r})"
            )
        time.sleep(0.01)


def genesis(site: str, chain: str = "ledger") -> str:
    return hashlib.sha256(f"suture {chain} 1 of {site}".encode()).hexdigest()


def identity(db: sqlite3.Connection) -> str:
    """The random name of this very ledger; a copy keeps it, a new one has another."""
    found = db.execute("SELECT value FROM about WHERE name = 'id'").fetchone()
    name = str(found[0]) if found else ""
    if not re.fullmatch("[0-9a-f]{32}", name):  # it becomes part of a file's name
        raise LedgerError("the ledger has lost its own name; restore it from the site's backup")
    return name


def inode(path: Path | None) -> tuple[int, int] | None:
    try:
        found = os.stat(path) if path else None
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if found else None


def words(error: Exception, site: str, where: str) -> str:
    return (
        f"the ledger of site {site!r} at {where} cannot be read or written ({error}); nothing was "
        "charged and nothing may leave. Expected a writable SQLite file and space on the disk; "
        "check the path, its rights and the disk"
    )
