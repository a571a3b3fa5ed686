"""The head of a ledger, kept apart from it, and who remembers it.

A hash chain shows an edit, not a tail that was cut off: what is left is a shorter, valid chain. So
the number of entries and the last hash are also kept in a file beside the ledger, written after
every commit and before anything is released. The file may lag behind the ledger by what a crash
interrupted; it may never be ahead of it. It has two lines of fixed length, written in turn and each
with its own checksum: a write that is cut short leaves the other line intact. (Renaming a new file
over the old one would be simpler, but takes 4 ms on ext4, which flushes; this takes 0.05.)

Someone who can write both files can still cut both. Against that a hub (or any witness outside the
site) countersigns a head with Ed25519 and keeps its copy: the ledger must forever contain the entry
that it names. A head also says how much epsilon and delta were reserved in all (basic composition),
so that whoever remembers it knows what a lost tail cost. It holds nothing that depends on rows.

A home that is restored from its backup, or deleted and made anew, brings an older chain whose head
agrees: a fresh budget, silently. So this machine remembers heads too (`LocalWitness`), in a folder
outside the home (``SUTURE_WITNESS``, by default ``~/.local/state/suture/witness``): the head of
each ledger by its random name, so that a home may be moved, and which ledger lay at which path, so
that a deleted home is missed. A ledger that is opened must contain what is remembered, or a person
must have written the difference off (``suture ledger write-off``). This guards against accidents
only: whoever can write the home can write that folder too.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from suture.errors import LedgerError
from suture.privacy.canonical import json_text
from suture.privacy.signing import key_id, sign, verifies

VARIABLE = "SUTURE_WITNESS"
_LINE = 1024
_KIND = "ledger head"


@dataclass(frozen=True)
class Witness:
    """What a witness has seen, and its signature."""

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
    """The same head with a witness's signature on it.

    >>> key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    >>> signed_head = countersign(Head("boston", 3, "ab", 8.0, 1e-5), key)
    >>> signed_head.witness.entries, witnessed(signed_head, (key.public_key(),))
    (3, True)
    """
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


def newest(path: Path) -> Head | None:
    """The newest readable head in the file, if any: a loss of power may leave none."""
    return _newest(_read_slots(path) or [])


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
        own = newest(_heads(self._identity))
        if own is not None and own.entries:
            found.append(Memory(own, anew=False))
        before = _read(_place(self._path, self._site)).get("ledger")
        if isinstance(before, str) and before != self._identity:
            # A ledger that was last seen elsewhere was moved, not lost.
            here = _read(_about(before)).get("path") == self._path
            gone = newest(_heads(before)) if here else None
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
