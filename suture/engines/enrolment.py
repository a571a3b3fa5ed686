"""How a site comes to be known at a hub, and how it is forgotten: invitation, key, enrolment, revocation, status.

1. The hub's operator writes an *invitation* (address and authority; nothing secret).
2. The hospital makes its site from it; the site's key is made there and never leaves.
3. The hospital sends an *enrolment request* (name and public key, signed with that key), and both compare the key's
   fingerprint by telephone.
4. The operator admits it. Revoking takes the key off the hub's list at once.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from suture.engines import certificates, quiet
from suture.engines.desk import STATUS
from suture.engines.hub import read_operator
from suture.engines.masking import new_identity, read_identity
from suture.engines.settings import SITE, read_settings
from suture.errors import Refused, RunError, StudyError
from suture.writing import write_whole

_TEXT = b"suture enrolment 1\n"


def invitation(hub: Path, name: str) -> dict[str, str]:
    """What a hospital needs to know about a hub."""
    operator = read_operator(hub)
    return {"site": name, "hub": operator["hub"], "ca": operator["ca"]}


def make_site(home: Path, invite: Path, data: str, *, region: str = "", charter_needed: bool = True) -> dict[str, str]:
    """A new site's home: key, authority, settings."""
    try:
        given = json.loads(invite.read_text(encoding="utf-8"))
        name, address, authority = str(given["site"]), str(given["hub"]), str(given["ca"])
    except FileNotFoundError:
        raise StudyError(
            f"there is no invitation at {invite}; the hub's operator makes it: suture hub invite NAME"
        ) from None
    except (OSError, ValueError, KeyError, TypeError):
        raise StudyError(
            f"{invite} is not an invitation; the hub's operator makes it: suture hub invite NAME"
        ) from None
    if (home / SITE).exists():
        raise RunError(f"{home} already holds a site; change {home / SITE} instead")
    home.mkdir(parents=True, exist_ok=True)
    certificates.write_secret(home / "node.key", certificates.key_bytes(certificates.new_key()))
    new_identity(home / "identity.key")
    write_whole(home / "ca.pem", authority.encode())
    rows = data if "://" in data or Path(data).is_absolute() else str(Path(data).resolve())
    lines = [
        f"name = {json.dumps(name)}",
        f"data = {json.dumps(rows)}",
        f"region = {json.dumps(region)}",
        "# What may leave about test patients: none, figures (this site's metrics), or scores (every label and risk).",
        'exact_metrics = "none"',
        "# A study runs here only if charter.toml in this folder, signed by a key in trust.pub, allows it.",
        f"charter_needed = {'true' if charter_needed else 'false'}",
        "# What all studies together may spend on this site's patients, once and for good:",
        "# lifetime = { epsilon = 10.0, delta = 1e-5 }",
        "",
        "[hub]",
        f"address = {json.dumps(address)}",
        'certificate = "ca.pem"',
        'key = "node.key"',
        "",
        "# For sums under masks: the other sites' identities, got from them, not from the hub (suture site enrol says them).",
        "[peers]",
        "",
    ]
    write_whole(home / SITE, "\n".join(lines).encode())
    read_settings(home)
    return {"site": name, "settings": str(home / SITE), "key": str(home / "node.key"), "hub": address}


def fingerprint(public: bytes) -> str:
    """A public key's fingerprint, in groups that can be read out.

    >>> fingerprint(b"key")
    '2c70-e12b-7a06-46f9'
    """
    digest = hashlib.sha256(public).hexdigest()[:16]
    return "-".join(digest[i : i + 4] for i in range(0, 16, 4))


def enrolment_request(home: Path, *, new_key: bool = False) -> dict[str, str]:
    """Write the request that the hub's operator admits: name and public key, signed with the key itself."""
    settings = read_settings(home)
    path = home / (settings.hub.key or "node.key")
    if new_key:
        stamp = datetime.now(UTC).strftime("%Y%m%d%H%M%S")
        if path.exists():
            path.rename(path.with_name(f"{path.name}.{stamp}"))
        certificates.write_secret(path, certificates.key_bytes(certificates.new_key()))
    key = certificates.read_key(path)
    public = certificates.public_pem(key.public_key())
    signature = key.sign(_TEXT + settings.name.encode() + b"\n" + public, ec.ECDSA(hashes.SHA256()))
    file = home / f"{settings.name}.enrol"
    content = {"site": settings.name, "key": public.decode(), "signature": base64.b64encode(signature).decode()}
    write_whole(file, json.dumps(content).encode())
    identity = read_identity(home, settings).public_key().public_bytes_raw().hex()
    return {"site": settings.name, "request": str(file), "fingerprint": fingerprint(public), "identity": identity}


def _read_request(path: Path) -> tuple[str, bytes]:
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        name, public = str(given["site"]), str(given["key"]).encode()
        key = load_pem_public_key(public)
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError("another kind of key")
        text = _TEXT + name.encode() + b"\n" + public
        key.verify(base64.b64decode(given["signature"]), text, ec.ECDSA(hashes.SHA256()))
    except FileNotFoundError:
        raise RunError(f"there is no enrolment request at {path}; the hospital makes it: suture site enrol") from None
    except InvalidSignature:
        raise Refused(f"{path}: the request is not signed with the key in it; it was changed on its way") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is not an enrolment request: {type(error).__name__}") from None
    return name, public


def admit(hub: Path, request: Path, expected: str | None = None) -> dict[str, str]:
    """Enrol a site's key at a running hub; an older key under the same name is revoked first."""
    quiet.need_flower()
    name, public = _read_request(request)
    if expected is not None and expected.replace("-", "").lower() != fingerprint(public).replace("-", ""):
        raise Refused(
            f"the request's key has fingerprint {fingerprint(public)}, not the one read out; nothing was enrolled"
        )
    from flwr.proto.control_pb2 import RegisterNodeRequest

    with closing(_hub(hub)) as known:
        _remove(known, name)
        _call(known, lambda: known.control.RegisterNode(RegisterNodeRequest(public_key=public, name=name)))
    return {"site": name, "fingerprint": fingerprint(public)}


def revoke(hub: Path, name: str) -> dict[str, Any]:
    """Forget a site's keys at a running hub."""
    with closing(_hub(hub)) as known:
        count = _remove(known, name)
    if not count:
        raise RunError(f"no site {name!r} is enrolled at this hub; see: suture hub status")
    return {"site": name, "revoked": count}


def hub_status(hub: Path) -> dict[str, Any]:
    """Who is enrolled and connected, and the runs, by the hub's own word."""
    from flwr.proto.control_pb2 import ListRunsRequest

    with closing(_hub(hub)) as known:
        nodes = _call(known, known.nodes)
        runs = _call(known, lambda: known.control.ListRuns(ListRunsRequest()))
        sites = [
            {
                "site": name,
                "connected": node.status == "online",
                "status": node.status,
                "last_up": node.last_activated_at,
                "fingerprint": fingerprint(_pem(bytes(node.public_key))),
            }
            for name, node in sorted(nodes.items())
        ]
        found = [
            {"run": str(run.run_id), "status": run.status.status, "since": run.pending_at}
            for run in getattr(runs, "run_dict", {}).values()
        ]
        return {"hub": known.address, "sites": sites, "runs": sorted(found, key=lambda run: run["since"])}


def site_status(home: Path) -> dict[str, Any]:
    """A site's last status and what is left of its budgets, from its own files."""
    from suture.privacy.ledger import Ledger

    settings = read_settings(home)
    found: dict[str, Any] = {"site": settings.name, "answered": 0, "refused": 0, "last_error": None}
    if (home / STATUS).exists():
        found |= json.loads((home / STATUS).read_text(encoding="utf-8"))
    found.setdefault("connection", "never started")
    budgets = []
    if (home / "ledger.sqlite").exists():
        with closing(Ledger.read(home / "ledger.sqlite")) as ledger:
            for account in ledger.books().studies:
                budget = ledger.budget(account)
                epsilon = budget.epsilon if math.isfinite(budget.epsilon) else "no limit"
                budgets.append({"account": account, "epsilon": epsilon, "spent": ledger.spent(account)})
    return {**found, "budgets": budgets}


def _hub(path: Path) -> Any:
    quiet.need_flower()
    from suture.engines.flower import Hub

    return Hub(read_operator(path))


def _call(hub: Any, call: Any) -> Any:
    """One call to the hub; what goes wrong is said in a line."""
    import httpx

    try:
        return call()
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        why = "it does not know this operator's token" if status == 401 else f"it refused (status {status})"
        raise RunError(f"hub {hub.address}: {why}") from None
    except httpx.HTTPError as error:
        raise RunError(f"hub {hub.address} does not answer ({type(error).__name__}: {error}); is it running?") from None


def _remove(hub: Any, name: str) -> int:
    from flwr.proto.control_pb2 import ListNodesRequest, UnregisterNodeRequest

    found = _call(hub, lambda: hub.control.ListNodes(ListNodesRequest())).nodes_info
    mine = [node for node in found if node.name == name and node.status != "unregistered"]
    for node in mine:
        _call(hub, lambda node=node: hub.control.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id)))
    return len(mine)


def _pem(public: bytes) -> bytes:
    """A key as the hub keeps it, in the form in which fingerprints are made."""
    from flwr.supercore.primitives.asymmetric import bytes_to_public_key

    key = bytes_to_public_key(public)
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
