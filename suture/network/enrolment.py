"""How a site comes to be known at a hub, and how it is forgotten: invitation, key, enrolment,
revocation, status.

1. The hub's operator writes an *invitation* (address and authority; nothing secret).
2. The hospital makes its site from it; the site's key is made there and never leaves.
3. The hospital sends an *enrolment request* (name and public key, signed with that key), and both
   compare the key's fingerprint by telephone.
4. The operator admits it. Revoking takes the key off the hub's list at once.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from typing_extensions import TypedDict

from suture.errors import Refused, RunError, StudyError
from suture.network import certificates
from suture.network.hub import read_operator
from suture.network.settings import SITE, STATUS, read_settings
from suture.network.witnesses import new_identity, public_identity
from suture.privacy.files import write_whole
from suture.privacy.ledger.ledger import Ledger

if TYPE_CHECKING:
    from suture.network.flower import Hub

_TEXT = b"suture enrolment 1\n"


class EnrolledSite(TypedDict):
    site: str
    connected: bool
    status: str
    last_up: str
    fingerprint: str


class HubStatus(TypedDict):
    hub: str
    sites: list[EnrolledSite]
    runs: list[dict[str, str]]


class Spent(TypedDict):
    account: str
    epsilon: float | str
    spent: float


class SiteStatus(TypedDict, total=False):
    site: str
    connection: str
    answered: int
    refused: int
    last_error: str | None
    op: str
    method: str
    round: int
    seed: int
    at: str
    budgets: list[Spent]


def invitation(hub: Path, name: str) -> dict[str, str]:
    operator = read_operator(hub)
    return {"site": name, "hub": operator["hub"], "ca": operator["ca"]}


def make_site(
    home: Path, invite: Path, data: str, *, region: str = "", charter_needed: bool = True
) -> dict[str, str]:
    """A new site's home: key, authority, settings."""
    try:
        given = json.loads(invite.read_text(encoding="utf-8"))
        name, address, authority = str(given["site"]), str(given["hub"]), str(given["ca"])
    except (OSError, ValueError, KeyError, TypeError):
        found = "is not an invitation" if invite.exists() else "does not exist"
        raise StudyError(
            f"{invite} {found}; the hub's operator makes one with: suture hub invite NAME"
        ) from None
    if (home / SITE).exists():
        raise RunError(f"{home} already holds a site; change {home / SITE} instead")
    home.mkdir(parents=True, exist_ok=True)
    certificates.write_key(home / "node.key")
    new_identity(home / "identity.key")
    write_whole(home / "ca.pem", authority.encode())
    rows = data if "://" in data or Path(data).is_absolute() else str(Path(data).resolve())
    values = map(json.dumps, (name, rows, region, charter_needed, address))
    text = Path(__file__).with_name("site.toml").read_text("utf-8")
    write_whole(home / SITE, text.format(*values).encode())
    read_settings(home)
    key, settings = str(home / "node.key"), str(home / SITE)
    return {"site": name, "settings": settings, "key": key, "hub": address}


def fingerprint(public: bytes) -> str:
    """A public key's fingerprint, in groups that can be read out.

    >>> fingerprint(b"key")
    '2c70-e12b-7a06-46f9'
    """
    digest = hashlib.sha256(public).hexdigest()[:16]
    return "-".join(digest[i : i + 4] for i in range(0, 16, 4))


def enrolment_request(home: Path, *, new_key: bool = False) -> dict[str, str]:
    """Write the signed request (name, public key) that the hub's operator admits."""
    settings = read_settings(home)
    path = home / (settings.hub.key or "node.key")
    if new_key:
        stamp = datetime.now(UTC).strftime("%Y%m%d%H%M%S")
        if path.exists():
            path.rename(path.with_name(f"{path.name}.{stamp}"))
        certificates.write_key(path)
    key = certificates.read_key(path)
    public = certificates.public_pem(key.public_key())
    name, file = settings.name, home / f"{settings.name}.enrol"
    signed = key.sign(_TEXT + name.encode() + b"\n" + public, ec.ECDSA(hashes.SHA256()))
    signature = base64.b64encode(signed).decode()
    content = {"site": name, "key": public.decode(), "signature": signature}
    write_whole(file, json.dumps(content).encode())
    identity = public_identity(home, settings)
    key_print = fingerprint(public)
    return {"site": name, "request": str(file), "fingerprint": key_print, "identity": identity}


def _read_request(path: Path) -> tuple[str, bytes]:
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        name, public = str(given["site"]), str(given["key"]).encode()
        key = load_pem_public_key(public)
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError("another kind of key")
        text = _TEXT + name.encode() + b"\n" + public
        key.verify(base64.b64decode(given["signature"]), text, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise Refused(
            f"{path}: the request is not signed with the key in it; it was changed on its way"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"{path} is not an enrolment request ({type(error).__name__}); the hospital makes one "
            "with: suture site enrol"
        ) from None
    return name, public


def admit(hub: Path, request: Path, expected: str | None = None) -> dict[str, str]:
    """Enrol a site's key at a running hub; an older key under the same name is revoked first."""
    name, public = _read_request(request)
    found = fingerprint(public)
    if expected is not None and expected.replace("-", "").lower() != found.replace("-", ""):
        raise Refused(
            f"the request's key has fingerprint {found}, not the one read out; nothing was enrolled"
        )
    with _connected(hub) as known:
        _remove(known, name)
        known.register(name, public)
    return {"site": name, "fingerprint": found}


def revoke(hub: Path, name: str) -> dict[str, str | int]:
    with _connected(hub) as known:
        count = _remove(known, name)
    if not count:
        raise RunError(f"no site {name!r} is enrolled at this hub; see: suture hub status")
    return {"site": name, "revoked": count}


def hub_status(hub: Path) -> HubStatus:
    """Who is enrolled and connected, and the runs, by the hub's own word."""
    with _connected(hub) as known:
        sites: list[EnrolledSite] = [
            {
                "site": name,
                "connected": node.status == "online",
                "status": node.status,
                "last_up": node.last_activated_at,
                "fingerprint": fingerprint(node.public_key),
            }
            for name, node in sorted(known.nodes().items())
        ]
        return {"hub": known.address, "sites": sites, "runs": known.runs()}


def site_status(home: Path) -> SiteStatus:
    """A site's last status and what is left of its budgets, from its own files."""
    settings = read_settings(home)
    found: SiteStatus = {"site": settings.name, "answered": 0, "refused": 0, "last_error": None}
    if (home / STATUS).exists():
        found.update(json.loads((home / STATUS).read_text(encoding="utf-8")))
    found.setdefault("connection", "never started")
    budgets: list[Spent] = []
    if (home / "ledger.sqlite").exists():
        with closing(Ledger.read(home / "ledger.sqlite")) as ledger:
            for account in ledger.books().studies:
                epsilon = ledger.budget(account).epsilon
                most = epsilon if math.isfinite(epsilon) else "no limit"
                spent = ledger.spent(account)
                budgets.append({"account": account, "epsilon": most, "spent": spent})
    return {**found, "budgets": budgets}


@contextmanager
def _connected(path: Path) -> Iterator[Hub]:
    """A running hub; what goes wrong in a call to it is said in a line."""
    from suture.network.flower import Hub, httpx

    hub = Hub(read_operator(path))
    try:
        yield hub
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        known = status == httpx.codes.UNAUTHORIZED
        why = "it does not know this operator's token" if known else f"it refused (status {status})"
        raise RunError(f"hub {hub.address}: {why}") from None
    except httpx.HTTPError as error:
        raise RunError(
            f"hub {hub.address} does not answer ({type(error).__name__}: {error}); is it running?"
        ) from None
    finally:
        hub.close()


def _remove(hub: Hub, name: str) -> int:
    mine = [node for node in hub.enrolled() if node.name == name]
    for node in mine:
        hub.unregister(node)
    return len(mine)
