"""The files of a ledger: rows in a hash chain (SQLite), the head kept apart from them, and who
remembers it (docs/ledger.md).

**The chain.** Each row carries the SHA-256 of its own content and of the row before, and triggers
refuse updates and deletions. ``entries`` holds what the budget rests on: promises, charges,
admissions, write-offs. ``notes`` holds what may depend on patients' rows, and refusals; no head
covers it, so it cannot change anything that leaves the site. Times never go back by more than two
seconds: a charter's expiry and the order of events rest on them.

**The head.** A hash chain shows an edit, not a tail that was cut off, so the number of entries and
the last hash are also kept in a file beside the ledger, written after every commit and before
anything is released: it may lag behind the ledger, never be ahead of it. It has two lines of fixed
length, written in turn and each with its own checksum, so that a write that is cut short leaves the
other intact. (Renaming a new file over the old one takes 4 ms on ext4; this takes 0.05.)

Against someone who can write both files a witness outside the site countersigns a head with Ed25519.
Against a home that is restored or made anew this machine remembers heads (`LocalWitness`), by each
ledger's random name and by its path. A head also says how much epsilon and delta were reserved in
all, so that whoever remembers it knows what a lost tail cost; it holds nothing that depends on rows.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from suture.errors import LedgerError
from suture.privacy.canonical import json_text
from suture.privacy.signing import key_id, sign, verifies

_APPLICATION = 0x53555455  # "SUTU"
PROMISE = "promise"
NOTE = "note "
ADMITTED = "admitted"
"""A note of the gate: a signed charter allows a study so much epsilon here, over all accounts."""
WRITTEN_OFF = "written off"
"""A person's entry: the chain was shorter than a witness remembers; the difference is spent."""
TRAINED, TESTED = "model update", "evaluation"
"""What a charge of a run paid for: training patients in a round, or held-out ones in a count."""
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
VARIABLE = "SUTURE_WITNESS"
_LINE = 1024
_KIND = "ledger head"


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
        return self.fingerprint == PROMISE

    @property
    def is_note(self) -> bool:
        """An event at the gate: admission, refusal, consent, erasure."""
        return self.fingerprint.startswith(NOTE)

    @property
    def is_write_off(self) -> bool:
        return self.fingerprint.startswith(WRITTEN_OFF)

    @property
    def is_charge(self) -> bool:
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
    """The time of the next entry, never before the last one's."""
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


@contextmanager
def opening(
    path: Path | None, site: str, *, read_only: bool = False
) -> Iterator[sqlite3.Connection]:
    """A connection to the file (or to memory), closed again if anything is wrong with it."""
    where = str(path) if path else "memory"
    name = ":memory:" if path is None else str(path)
    if read_only and path is not None:
        # Without a log beside it the file is the whole ledger, and may be on a read-only disk.
        alone = not path.with_name(path.name + "-wal").exists()
        name = f"file:{quote(str(path.resolve()))}?" + ("immutable=1" if alone else "mode=ro")
    try:
        db = sqlite3.connect(
            name,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=64,
            uri=read_only,
        )
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


# --- heads, and their witnesses ------------------------------------------------------------------


@dataclass(frozen=True)
class Witness:
    """What a witness has seen, and its signature (of ``key``)."""

    entries: int
    hash: str
    epsilon: float
    delta: float
    key: str
    signature: str


@dataclass(frozen=True)
class Head:
    """The end of a site's chain; ``witness`` is the last head that was countersigned."""

    site: str
    entries: int
    hash: str
    epsilon: float
    delta: float
    witness: Witness | None = None


def countersign(head: Head, key: Ed25519PrivateKey) -> Head:
    """The same head with a witness's signature on it."""
    signature = sign(_KIND, _content(head), key)
    seen = (head.entries, head.hash, float(head.epsilon), float(head.delta))
    return replace(head, witness=Witness(*seen, key_id(key.public_key()), signature))


def witnessed(head: Head, trusted: tuple[Ed25519PublicKey, ...]) -> bool:
    """Whether the head carries a countersignature of a trusted key."""
    if head.witness is None:
        return False
    seen = as_seen(head.site, head.witness)
    return any(verifies(_KIND, _content(seen), head.witness.signature, key) for key in trusted)


def as_seen(site: str, witness: Witness) -> Head:
    """The head that a witness has seen."""
    return Head(site, witness.entries, witness.hash, witness.epsilon, witness.delta)


def _content(head: Head) -> dict[str, object]:
    figures = {"epsilon": float(head.epsilon), "delta": float(head.delta)}
    return {"site": head.site, "entries": head.entries, "hash": head.hash, **figures}


# --- the file ------------------------------------------------------------------------------------


def head_path(ledger: Path) -> Path:
    """Where the head of a ledger is kept: ``ledger.head.jsonl`` beside ``ledger.sqlite``."""
    return ledger.with_suffix(".head.jsonl")


def read_head(path: Path, *, strict: bool = False) -> Head | None:
    """The head, or None without such a file; `LedgerError` where nothing in the file is a head.

    A write that a loss of power cut short leaves the line before it readable; ``strict`` accepts no
    damaged line.
    """
    found = _read_slots(path)
    if found is None:
        return None
    heads = [head for head in found if head is not None]
    if not heads or (strict and len(heads) < len(found)):
        raise LedgerError(
            f"the ledger's head {path} was damaged or changed; nothing was charged and nothing may "
            "leave. Restore it from the site's backup and find out who changed it"
        )
    return max(heads, key=_age)


def advance(path: Path, head: Head, *, durable: bool, first: bool = False) -> int | None:
    """Write ``head`` over the older of the file's two lines; the caller holds the write lock.

    Returns the number of entries that the file then knows of; None where there is no file and it is
    not the ``first``. What a witness has countersigned stays.
    """
    try:
        handle = os.open(path, os.O_RDWR | (os.O_CREAT if first else 0), 0o600)
        try:
            found = _slots(os.pread(handle, 2 * _LINE, 0))
            latest = _newest(found)
            if latest is not None and head.witness is None:
                head = replace(head, witness=latest.witness)
            if latest is not None and _age(latest) >= _age(head):
                return latest.entries
            ages = [(-1, -1) if old is None else _age(old) for old in found]
            slot = len(ages) if len(ages) < 2 else ages.index(min(ages))
            line = _line(head)
            if os.pwrite(handle, line, slot * _LINE) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if durable:
                os.fdatasync(handle)
            return head.entries
        finally:
            os.close(handle)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LedgerError(
            f"the ledger's head {path} cannot be written ({error.strerror}); the charge stands and "
            "nothing may leave. Expected a writable folder and space on the disk"
        ) from None


def _age(head: Head) -> tuple[int, int]:
    return head.entries, -1 if head.witness is None else head.witness.entries


def _newest(slots: list[Head | None]) -> Head | None:
    """The newest readable head, if any: a loss of power may leave none."""
    return max((head for head in slots if head is not None), key=_age, default=None)


def _line(head: Head) -> bytes:
    witness = None if head.witness is None else vars(head.witness)
    line = _line_of({**_content(head), "witness": witness})
    if len(line) != _LINE:
        raise LedgerError(
            f"the site's name is too long for the ledger's head: {len(line)} of {_LINE} bytes"
        )
    return line


def _line_of(content: Mapping[str, object]) -> bytes:
    text = json_text(content)
    check = hashlib.sha256(text.encode()).hexdigest()[:32]
    return f'{{"check":"{check}","head":{text}}}'.encode().ljust(_LINE - 1) + b"\n"


def _read_slots(path: Path) -> list[Head | None] | None:
    try:
        return _slots(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LedgerError(
            f"the ledger's head {path} cannot be read ({error.strerror}); nothing may leave"
        ) from None


def _slots(content: bytes) -> list[Head | None]:
    return [_head(content[at : at + _LINE]) for at in range(0, len(content), _LINE)]


def _head(line: bytes) -> Head | None:
    """The head in one line; None for anything else, so that no damage can pass as a head."""
    try:
        content = json.loads(line)["head"]
        if _line_of(content) != line:
            return None
        witness = content.pop("witness")
        return Head(**content, witness=None if witness is None else Witness(**witness))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


# --- what this machine remembers -----------------------------------------------------------------


@dataclass(frozen=True)
class Memory:
    """A remembered head; ``anew``: of another ledger, which lay at the same path."""

    head: Head
    anew: bool


def folder() -> Path:
    """Where heads are remembered."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return Path(chosen)
    try:
        return Path.home() / ".local" / "state" / "suture" / "witness"
    except RuntimeError:
        raise LedgerError(
            "this account has no home folder, so no head of a ledger can be remembered; set "
            f"{VARIABLE} to a folder that lasts, outside the site's home"
        ) from None


class LocalWitness:
    """What this machine remembers of one ledger."""

    def __init__(self, ledger: Path, site: str, identity: str) -> None:
        self._path, self._site, self._identity = str(ledger.resolve()), site, identity
        self.settled = False
        """Whether this machine knows where the ledger lies."""

    def recall(self) -> list[Memory]:
        """Every head that the ledger must contain: its own, and that of a ledger gone from here."""
        found = []
        own = _newest(_read_slots(_heads(self._identity)) or [])
        if own is not None and own.entries:
            found.append(Memory(own, anew=False))
        before = _read(_place(self._path, self._site)).get("ledger")
        if isinstance(before, str) and before != self._identity:
            # A ledger that was last seen elsewhere was moved, not lost.
            here = _read(_about(before)).get("path") == self._path
            gone = _newest(_read_slots(_heads(before)) or []) if here else None
            if gone is not None and gone.entries and gone.site == self._site:
                found.append(Memory(gone, anew=True))
        return found

    def remember(self, head: Head) -> None:
        """Write the newest head down. Not flushed: losing power makes it older, not wrong."""
        try:
            if not self.settled:
                self._settle()
        except OSError as error:
            raise LedgerError(
                f"the head of the ledger of site {self._site!r} cannot be remembered in {folder()} "
                f"({error.strerror}); the charge stands and nothing may leave. Set {VARIABLE} to a "
                "folder that can be written"
            ) from None
        advance(_heads(self._identity), head, durable=False, first=True)

    def _settle(self) -> None:
        """Remember which ledger lies at this path, and where this ledger lies."""
        for path, content in (
            (_about(self._identity), {"site": self._site, "path": self._path}),
            (_place(self._path, self._site), {"ledger": self._identity, "path": self._path}),
        ):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _read(path) != content:
                draft = path.with_name(f"{path.name}.{os.getpid()}")
                draft.write_text(json.dumps(content), encoding="utf-8")
                draft.replace(path)
        self.settled = True


def remembered_site(ledger: Path) -> str | None:
    """Whose ledger was last seen at this path; None where it was nobody's, or several sites'."""
    seen = [_read(file) for file in folder().glob("*.json")]
    found = {str(about["site"]) for about in seen if about.get("path") == str(ledger.resolve())}
    return found.pop() if len(found) == 1 else None


def _heads(identity: str) -> Path:
    return folder() / f"{identity}.head.jsonl"


def _about(identity: str) -> Path:
    return folder() / f"{identity}.json"


def _place(path: str, site: str) -> Path:
    name = hashlib.sha256(json.dumps([path, site]).encode()).hexdigest()[:32]
    return folder() / "paths" / f"{name}.json"


def _read(path: Path) -> dict[str, object]:
    """A small JSON file; nothing where it is missing or was torn by a loss of power."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise LedgerError(
            f"{path} cannot be read ({error.strerror}), so nobody knows whether the ledger is whole"
        ) from None
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
