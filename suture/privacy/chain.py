"""The ledger's file: rows in a hash chain, and how SQLite is told to keep them.

Each row carries the SHA-256 of its own content and of the row before. The schema's triggers refuse updates and
deletions, and ``head`` keeps the number of rows and the last hash apart. ``ledger.py`` says what the rows mean.

Times never go back: a clock that was set back by more than two seconds is an error, because a charter's expiry and the
order of events rest on it; a time server's small correction repeats the last moment instead.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from suture.errors import LedgerError

_APPLICATION = 0x53555455  # "SUTU"
PROMISE = "promise"
NOTE = "note "
ADMITTED = "admitted"
"""A note of the gate: a signed charter allows a study so much epsilon here, whatever its accounts are called."""
ALL_STUDIES = "*"
"""The account of the lifetime budget: it covers every other account of the site."""
CLOCK_SLACK_SECONDS = 2.0
FAULTS = (sqlite3.Error, UnicodeError, OverflowError)
"""What SQLite's module raises on a damaged file; the last two where its own message or a value cannot be decoded."""
BUSY_SECONDS = 60.0

_SCHEMA = """
CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE entries (
  seq INTEGER PRIMARY KEY, time TEXT NOT NULL, study TEXT NOT NULL, round INTEGER NOT NULL, what TEXT NOT NULL,
  event TEXT NOT NULL, fingerprint TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL);
CREATE UNIQUE INDEX one_charge ON entries (study, fingerprint);
CREATE TABLE head (id INTEGER PRIMARY KEY CHECK (id = 1), entries INTEGER NOT NULL, hash TEXT NOT NULL);
CREATE TRIGGER entries_keep BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER entries_stay BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
"""


@dataclass(frozen=True)
class Receipt:
    """Proof of a charge: the ledger's entry, what it paid for, and whether this very release had been paid before."""

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
    """One row of the ledger: a charge, a promise (``event`` holds the budget) or a note (``event`` holds facts)."""

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
        """True for the row that records a study's budget, False for a charge."""
        return self.fingerprint == PROMISE

    @property
    def is_note(self) -> bool:
        """True for a row that records what happened at the gate: an admission, a refusal, consent counts, an erasure."""
        return self.fingerprint.startswith(NOTE)

    @property
    def is_charge(self) -> bool:
        """True for a row that pays for a release."""
        return not (self.is_promise or self.is_note)

    def problem(self, count: int, last_hash: str, last_time: str) -> str | None:
        """Why this row cannot follow ``count`` rows that end with this hash and time, or None."""
        texts = (self.time, self.study, self.what, self.event, self.fingerprint, self.previous, self.hash)
        if type(self.seq) is not int or type(self.round) is not int or not all(isinstance(t, str) for t in texts):
            return f"entry {count + 1} cannot be understood"
        if self.seq != count + 1:
            return f"entry {count + 1} is missing"
        if self.previous != last_hash:
            return f"entry {self.seq} does not follow from the one before"
        if self.hash != self.digest():
            return f"entry {self.seq} was changed after it was written"
        return f"entry {self.seq} is dated before the one before" if self.time < last_time else None

    def digest(self) -> str:
        """What ``hash`` must be: SHA-256 over the other fields as one JSON list."""
        content = [self.seq, self.time, self.study, self.round, self.what, self.event, self.fingerprint, self.previous]
        return hashlib.sha256(json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode()).hexdigest()


class Untrusted(LedgerError):
    """The ledger does not add up; ``entry`` is the first entry that is wrong, where there is one."""

    def __init__(self, message: str, entry: int | None = None) -> None:
        super().__init__(message)
        self.entry = entry


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
        f"the clock of site {site!r} was set back: it says {now}, and the ledger's last entry is from {last}. Nothing "
        "was charged and nothing may leave; set the clock right (timedatectl status), then run again"
    )


def connect(path: Path | None, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection to the file, or to a database in memory."""
    name = ":memory:" if path is None else str(path)
    if read_only and path is not None:
        # Without a log beside it the file alone is the whole ledger, and can be read where nothing may be written.
        alone = not path.with_name(path.name + "-wal").exists()
        name = f"file:{quote(str(path.resolve()))}?" + ("immutable=1" if alone else "mode=ro")
    return sqlite3.connect(
        name, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=64, uri=read_only
    )


@contextmanager
def opening(path: Path | None, site: str, *, read_only: bool = False) -> Iterator[sqlite3.Connection]:
    """A connection that is closed again if anything is wrong with the file."""
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
        raise LedgerError(f"{where} is a database, but not a ledger of Suture; give the site's home folder")
    found = dict(db.execute("SELECT name, value FROM about").fetchall())
    site = found.get("site")
    if found.get("version") != "1" or not isinstance(site, str):
        raise LedgerError(f"{where} does not say whose ledger it is; restore it from the site's backup")
    return site


def prepare(db: sqlite3.Connection, site: str, where: str, durable: bool, in_memory: bool) -> None:
    db.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")
    if not in_memory:
        _write_ahead(db)
    # WAL with NORMAL survives the death of the process; FULL syncs each commit and survives the loss of power.
    db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
    db.execute("BEGIN IMMEDIATE")
    try:
        tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        application = db.execute("PRAGMA application_id").fetchone()[0]
        if tables and application != _APPLICATION:
            raise LedgerError(f"{where} is a database, but not a ledger of Suture; give the ledger another path")
        if not tables:
            for statement in _statements(_SCHEMA):
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {_APPLICATION}")
            db.execute("INSERT INTO about VALUES ('site', ?), ('version', '1')", (site,))
            db.execute("INSERT INTO head VALUES (1, 0, ?)", (genesis(site),))
        about = dict(db.execute("SELECT name, value FROM about"))
        if about.get("version") != "1" or about.get("site") != site:
            raise LedgerError(
                f"expected version 1 of the ledger of site {site!r} at {where}, found version {about.get('version')} "
                f"of site {about.get('site')!r}; each site needs its own file"
            )
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _write_ahead(db: sqlite3.Connection) -> None:
    """Switch to WAL; another process doing the same at the same moment makes SQLite answer "locked" at once."""
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
            raise sqlite3.OperationalError(f"the file system does not allow a write-ahead log (mode {mode!r})")
        time.sleep(0.01)


def _statements(schema: str) -> Iterator[str]:
    pending = ""
    for line in schema.strip().splitlines():
        pending += line + "\n"
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""


def genesis(site: str) -> str:
    return hashlib.sha256(f"suture ledger 1 of {site}".encode()).hexdigest()


def inode(path: Path | None) -> tuple[int, int] | None:
    try:
        found = os.stat(path) if path else None
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if found else None


def words(error: Exception, site: str, where: str) -> str:
    return (
        f"the ledger of site {site!r} at {where} cannot be read or written ({error}); nothing was charged and nothing "
        f"may leave. Expected a writable SQLite file and space on the disk; check the path, its rights and the disk"
    )
