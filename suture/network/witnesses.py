"""Peers as witnesses: a site whose ledger is older than its peers remember is refused until a
person there deals with it.

A ledger restored from a backup, or deleted, has forgotten what was spent. The site cannot see that
by itself, and the coordinator gains by it; so the other sites of a federation remember. Every site
signs the end of its ledger (its `Head`) with its identity key and a fresh number. Peers, whose
public keys it has got from them itself and not from the hub, answer with the furthest head that
they have ever seen of it, signed over that number. The coordinator carries both and can forge
neither; if it keeps them back, the site stops.

- At `join` enough peers must have vouched, over this opening's number, and the chain must contain
  every head they name. From then on the site signs its heads as checked. A peer that remembers a
  site follows checked heads only: a restored chain that has grown past the old one is longer, and
  still not the one that the peer has seen.
- In every round the coordinator carries new heads to peers and their word back. A site whose ledger
  holds `WINDOW` charges beyond what enough peers remember gives no more, also after a restart or in
  another study: a restored home can forget at most so many.

Enough is ``witnesses`` in ``site.toml``; by default more than half of the peers. With fewer, a
coordinator could show the rounds to some of them and the restored home to the others. What peers
say of a chain that has forgotten it is kept in the home (`ROLLED_BACK`), where ``suture ledger
write-off`` finds it.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TypeGuard, cast, get_type_hints

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from typing_extensions import TypedDict

from suture.errors import LedgerError, Reason, Refused, RunError
from suture.network.certificates import write_secret
from suture.network.settings import SiteSettings
from suture.network.wire import Request, Words
from suture.privacy.files import write_whole
from suture.privacy.ledger.chain import Head
from suture.privacy.ledger.ledger import Ledger
from suture.privacy.signing import sign, verifies

ROLLED_BACK = "rolled-back.json"
"""In the home: what peers have signed about a longer chain than is found there."""
WINDOW = 3
"""Charges that a site makes while too few peers have vouched for them."""
_OWN, _SEEN = "site head", "site head seen"


class Facts(TypedDict):
    """The end of a ledger, as sites tell each other."""

    site: str
    entries: int
    hash: str
    epsilon: float
    delta: float


class Statement(Facts):
    """The same, signed: by the site itself, or by a peer that has seen it."""

    checked: bool
    nonce: str
    signature: str


_SHAPE = get_type_hints(Statement)


def read_identity(home: Path, settings: SiteSettings) -> Ed25519PrivateKey:
    """The site's own signing key, for sums under masks and for the end of its ledger."""
    try:
        return Ed25519PrivateKey.from_private_bytes((home / settings.identity).read_bytes())
    except (OSError, ValueError) as error:
        raise Refused(
            f"this site has no identity ({settings.identity}: {type(error).__name__}); make one: "
            "suture site init",
            Reason.PEERS,
        ) from None


def public_identity(home: Path, settings: SiteSettings) -> str:
    """The public half of the site's identity, as other sites write it down."""
    return read_identity(home, settings).public_key().public_bytes_raw().hex()


def new_identity(path: Path) -> str:
    """Make a site's identity, and return its public half as other sites write it down."""
    key = Ed25519PrivateKey.generate()
    write_secret(path, key.private_bytes_raw())
    return key.public_key().public_bytes_raw().hex()


class Witnesses:
    """One site's side: what it says of its own ledger, remembers of others', and asks of them."""

    def __init__(self, settings: SiteSettings, home: Path, *, generated: bool) -> None:
        self._settings, self._home = settings, home
        self._peers = {name: key for name, key in settings.peers.items() if name != settings.name}
        most = len(self._peers) // 2 + 1 if self._peers else 0
        wanted = most if settings.witnesses is None else settings.witnesses
        self.needed = wanted if self._identified() and not generated else 0
        self._nonce = secrets.token_hex(16)
        self._checked = False
        self._vouched: dict[str, int] = {}

    def own(self, head: Head) -> Statement | dict[str, object]:
        """The end of this site's ledger, signed; nothing where the site has no identity."""
        if not self._peers or not self._identified():
            return {}
        return self._sign(_OWN, _facts(head), self._nonce, checked=self._checked)

    def _identified(self) -> bool:
        return (self._home / self._settings.identity).exists()

    def vouch(self, heads: Words) -> dict[str, object]:
        """Take in other sites' signed heads; return, signed, the furthest that was seen of each."""
        found: dict[str, object] = {}
        for name, said in heads.items():
            key = self._peers.get(name)
            if key is None or not _signed(said, _OWN, key) or said["site"] != name:
                continue
            seen = self._remember(key, _facts(_head(said)), checked=said["checked"])
            found[name] = self._sign(_SEEN, seen, said["nonce"], checked=True)
        return found

    def _sign(self, kind: str, facts: Facts, nonce: str, *, checked: bool) -> Statement:
        content = {**facts, "checked": checked, "nonce": nonce}
        signature = sign(kind, content, read_identity(self._home, self._settings))
        return Statement(**facts, checked=checked, nonce=nonce, signature=signature)

    def check(self, ledger: Ledger, vouched: Words) -> None:
        """Refuse a chain that peers remember as longer or different, or that too few vouch for."""
        heads = self._taken(vouched)
        if len(heads) < self.needed:
            raise Refused(
                f"{len(heads)} of the site's peers vouch for its ledger, {self.needed} must "
                "(witnesses in site.toml)",
                Reason.WITNESS,
            )
        self._take(ledger, heads, vouched)
        self._checked = True

    def passed(self, ledger: Ledger, given: Request) -> dict[str, object]:
        """Before an answer: take in what peers have vouched for, vouch for them, and stop if too
        few have vouched for the last charges. Returns what this site says of its peers."""
        self._take(ledger, self._taken(given["vouched"]), given["vouched"])
        if self.needed:
            known = sorted(self._vouched.values(), reverse=True)
            reached = known[self.needed - 1] if len(known) >= self.needed else 0
            if ledger.head().entries - reached >= WINDOW:
                open_ = sum(entry.round > 0 and entry.seq > reached for entry in ledger.entries())
                if open_ >= WINDOW:
                    raise Refused(
                        f"too few peers have vouched for the last {open_} charges here",
                        Reason.WITNESS,
                    )
        return self.vouch(given["heads"])

    def _take(self, ledger: Ledger, heads: Mapping[str, Head], vouched: Words) -> None:
        """Refuse a chain that lacks what a peer has seen; else remember how far each peer is."""
        before = _statements(self._home)  # what a peer said once counts, carried again or not
        known = {peer: _head(said) for peer, said in before.items()} | dict(heads)
        lost = {peer: seen for peer, seen in known.items() if not ledger.holds(seen)}
        if lost:
            self._checked = False
            said = {peer: vouched[peer] if peer in heads else before[peer] for peer in lost}
            with contextlib.suppress(RunError):  # a full disk changes nothing about the refusal
                write_whole(self._home / ROLLED_BACK, json.dumps(said).encode())
            peer, seen = max(lost.items(), key=lambda item: item[1].entries)
            raise Refused(
                f"peer {peer!r} remembers entry {seen.entries} of this site's ledger, which is not "
                "there: the home was restored or deleted. Put the newest one back, or: suture "
                f"ledger write-off {self._home}",
                Reason.WITNESS,
            )
        for peer, seen in heads.items():
            self._vouched[peer] = max(self._vouched.get(peer, 0), seen.entries)

    def _taken(self, vouched: Words) -> dict[str, Head]:
        """What peers say of this ledger, signed by them over this opening's number."""
        found, mine = {}, (self._settings.name, self._nonce)
        for peer, said in vouched.items():
            key = self._peers.get(peer)
            if key is None or not _signed(said, _SEEN, key):
                continue
            if (said["site"], said["nonce"]) == mine:
                found[peer] = _head(said)
        return found

    def _remember(self, key: str, said: Facts, *, checked: bool) -> Facts:
        path = self._home / "peers" / f"{key}.json"
        known: Facts | None = (
            json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
        )
        if known is not None and (not checked or known["entries"] >= said["entries"]):
            return known
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(said).encode())
        return said


def peers_memories(home: Path) -> dict[str, Head]:
    """What each peer remembered of this site's ledger when `Witnesses.check` last refused it.

    >>> peers_memories(Path("nowhere"))
    {}
    """
    return {peer: _head(said) for peer, said in _statements(home).items()}


def _statements(home: Path) -> dict[str, Statement]:
    path = home / ROLLED_BACK
    try:
        found: dict[str, Statement] = json.loads(path.read_text(encoding="utf-8"))
        for said in found.values():
            _head(said)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise LedgerError(
            f"{path} cannot be read ({type(error).__name__}): what peers said of this ledger"
        ) from None
    return found


def _head(said: Facts) -> Head:
    return Head(said["site"], said["entries"], said["hash"], said["epsilon"], said["delta"])


def _facts(head: Head) -> Facts:
    facts = asdict(head)
    del facts["witness"]
    return cast("Facts", facts)


def _signed(said: object, kind: str, key: str) -> TypeGuard[Statement]:
    """Whether a statement has the shape of one and is signed by this key."""
    if not isinstance(said, dict) or set(said) != set(_SHAPE):
        return False
    if any(type(said[name]) is not expected for name, expected in _SHAPE.items()):
        return False
    content = {name: said[name] for name in _SHAPE if name != "signature"}
    try:
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key))
        return verifies(kind, content, said["signature"], public)
    except ValueError:
        return False
