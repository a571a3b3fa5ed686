"""The ledger's file: rows in a hash chain, and how SQLite is told to keep them.

Each row carries the SHA-256 of its own content and of the row before. The schema's triggers refuse updates and
deletions, and ``head`` keeps the number of rows and the last hash apart. ``ledger.py`` says what the rows mean.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from suture.errors import LedgerError

_APPLICATION = 0x53555455  # "SUTU"
PROMISE = "promise"
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
    """One row of the ledger. ``event`` is JSON; a study's first row is its promise, with the budget in that place."""

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

    def digest(self) -> str:
        """What ``hash`` must be: SHA-256 over the other fields as one JSON list."""
        content = [self.seq, self.time, self.study, self.round, self.what, self.event, self.fingerprint, self.previous]
        return hashlib.sha256(json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode()).hexdigest()


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


def words(error: sqlite3.Error, site: str, where: str) -> str:
    return (
        f"the ledger of site {site!r} at {where} cannot be read or written ({error}); nothing was charged and nothing "
        f"may leave. Expected a writable SQLite file and space on the disk; check the path, its rights and the disk"
    )
