"""The hub: Flower's SuperLink, in this process, with a guard in front. It carries sealed bytes and sees no rows.

Flower's open distribution leaves its Control API (start a run, register a node) open to whoever reaches the port. The
guard closes that: the Control API takes an operator's token, a task is claimed only with the hub's secret, sites are
known by their enrolled keys, and routes that Suture does not use do not exist. Bodies have a largest size.

A hub's folder: ``hub.toml``, ``ca.pem`` and ``ca.key`` (the authority), ``server.pem`` and ``server.key``,
``operator.json`` (what a coordinator needs; keep it secret), ``state.sqlite`` (Flower's own state, survives restarts).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import secrets
import socket
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from suture.engines import certificates, quiet
from suture.errors import RunError, StudyError
from suture.writing import write_whole

HUB, OPERATOR, READY = "hub.toml", "operator.json", "ready.json"
LARGEST_BODY = 16 << 20
HOLD_SECONDS = 5.0
MOST_PARTIES = 10_000
_PARTY = {"fleet": b"flwr-public-key", "runtime": b"flwr-task-token"}
"""The header by which a party is told from others while it waits; whether it is who it says is checked after."""
_CONTROL = {"start-run", "stop-run", "list-runs", "register-node", "unregister-node", "list-nodes"}
_RUNTIME = {
    "acquire-task",
    "send-task-heartbeat",
    "pull-task-input",
    "push-task-output",
    "push-messages",
    "pull-messages",
    "push-object",
    "pull-object",
    "confirm-message-received",
    "get-nodes",
}
_FLEET = {
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "push-object",
    "pull-object",
    "confirm-message-received",
}
_IDLE = {
    "ControlSensitiveResponseMiddleware",
    "ControlLicenseMiddleware",
    "RuntimeTracingMiddleware",
    "ControlEventLogMiddleware",
    "FleetEventLogMiddleware",
}
ROUTES = {
    *(f"/v1/control/{name}" for name in _CONTROL),
    *(f"/v1/runtime/{name}" for name in _RUNTIME),
    *(f"/v1/fleet/{name}" for name in _FLEET),
}


def make_hub(folder: Path, hosts: Sequence[str], port: int, name: str = "suture") -> dict[str, Any]:
    """A new hub's folder: authority, certificate, operator's token. Returns what was written."""
    if (folder / HUB).exists():
        raise RunError(f"{folder} already holds a hub; its certificate is renewed with: suture hub renew {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    authority, authority_key = certificates.new_authority(name)
    certificate, key = certificates.new_server(authority, authority_key, hosts)
    certificates.write_secret(folder / "ca.key", authority_key)
    certificates.write_secret(folder / "server.key", key)
    token, secret = secrets.token_urlsafe(32), secrets.token_hex(32)
    operator = {"hub": f"{hosts[0]}:{port}", "ca": authority.decode(), "token": token, "secret": secret}
    certificates.write_secret(folder / OPERATOR, json.dumps(operator).encode())
    write_whole(folder / "ca.pem", authority)
    write_whole(folder / "server.pem", certificate)
    listen = ", ".join(json.dumps(host) for host in hosts)
    write_whole(
        folder / HUB, f'name = {json.dumps(name)}\nhosts = [{listen}]\nport = {port}\nbind = "0.0.0.0"\n'.encode()
    )
    return {"folder": str(folder), "hub": operator["hub"], "operator": str(folder / OPERATOR)}


def read_hub(folder: Path) -> dict[str, Any]:
    """A hub's settings."""
    try:
        return tomllib.loads((folder / HUB).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StudyError(f"{folder} is not a hub's folder (no {HUB} in it); make one with: suture hub init") from None
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise StudyError(f"{folder / HUB} cannot be read: {error}") from None


def renew_server(folder: Path) -> dict[str, str]:
    """A new certificate and key for the hub's hosts, by the same authority."""
    from cryptography import x509

    settings = read_hub(folder)
    try:
        authority, key = (folder / "ca.pem").read_bytes(), (folder / "ca.key").read_bytes()
    except OSError as error:
        raise RunError(f"the authority in {folder} cannot be read: {error}") from None
    certificate, server_key = certificates.new_server(authority, key, settings["hosts"])
    (folder / "server.key").unlink(missing_ok=True)
    certificates.write_secret(folder / "server.key", server_key)
    write_whole(folder / "server.pem", certificate)
    until = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    return {"certificate": str(folder / "server.pem"), "until": until.date().isoformat()}


def read_operator(path: Path) -> dict[str, str]:
    """What a coordinator needs to use a hub: address, authority, token, secret."""
    file = path / OPERATOR if path.is_dir() else path
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return {key: str(found[key]) for key in ("hub", "ca", "token", "secret")}
    except FileNotFoundError:
        raise RunError(f"there is no {file}; the hub's operator has it (suture hub init wrote it)") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{file} cannot be read: {type(error).__name__}") from None


class Guard:
    """ASGI middleware: only known routes, only bodies of a stated and bearable size, and nobody asks in vain.

    Flower's parties poll. Here a question for messages waits at the guard until there may be some: a site's until a
    coordinator has pushed all of its messages (it then asks for answers itself), a coordinator's until a site has
    pushed an answer (it then asks for more work). A round then costs few requests, and an idle site one every
    `HOLD_SECONDS`.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._sides = {"fleet": _Side(HOLD_SECONDS), "runtime": _Side(1.0)}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass on, perhaps after a wait, or answer at once."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        length = headers.get(b"content-length")
        if scope["method"] != "POST" or scope["path"] not in ROUTES:
            await _status(send, 404)
            return
        if length is None or not length.isdigit():
            await _status(send, 411)
            return
        if int(length) > LARGEST_BODY:
            await _status(send, 413)
            return
        _, _, side, call = scope["path"].split("/")
        if side in self._sides and call in ("push-messages", "pull-messages"):
            who = headers.get(_PARTY[side], b"")
            mine, other = self._sides[side], self._sides["runtime" if side == "fleet" else "fleet"]
            if call == "push-messages":
                mine.pushing.add(who)
            else:
                if who in mine.pushing:
                    mine.pushing.discard(who)
                    other.wake()
                await mine.wait(who)
        await self._app(scope, receive, send)


class _Side:
    """The parties on one side of the hub, and how much news each has seen."""

    def __init__(self, hold: float) -> None:
        self.pushing: set[bytes] = set()
        self._hold, self._news, self._seen = hold, 0, {}  # type: float, int, dict[bytes, int]
        self._event: asyncio.Event | None = None

    def wake(self) -> None:
        """There is news for this side."""
        self._news += 1
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self, who: bytes) -> None:
        """Until there is news that this party has not asked about, or it has waited long enough."""
        if len(self._seen) > MOST_PARTIES:
            self._seen.clear()
        if self._seen.get(who) == self._news:
            if self._event is None:
                self._event = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._event.wait(), self._hold)
        self._seen[who] = self._news


async def _status(send: Any, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def application(folder: Path, database: str | None = None) -> Any:
    """The SuperLink's own application, with accounts and the guard."""
    quiet.need_flower()
    from flwr.common.constant import ISOLATION_MODE_PROCESS, TRANSPORT_TYPE_GRPC_RERE
    from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
    from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
    from flwr.superlink.config_loader import SuperLinkLifespanConfig
    from flwr.superlink.main import create_app

    operator = read_operator(folder)
    expected = hashlib.sha256(operator["token"].encode()).digest()

    class Accounts(NoOpControlAuthnPlugin):
        """One operator, known by a token."""

        def validate_tokens_in_metadata(self, metadata: Any) -> Any:
            given = [value for key, value in metadata if isinstance(value, str)]
            found = hashlib.sha256((given[0] if len(given) == 1 else "").encode()).digest()
            if not hmac.compare_digest(found, expected):
                return False, None
            return super().validate_tokens_in_metadata(metadata)

    config = SuperLinkLifespanConfig(
        control_address="",
        health_server_address=None,
        host="",
        port=0,
        insecure=False,
        certificates=None,
        superexec_auth_secret=bytes.fromhex(operator["secret"]),
        authn_plugin=Accounts(),
        event_log_plugin=None,
        fleet_event_log_plugin=None,
        enable_event_log=False,
        artifact_provider=None,
        enable_supernode_auth=True,
        fleet_api_type=TRANSPORT_TYPE_GRPC_RERE,
        fleet_api_address=None,
        simulation=False,
        ssl_ca_certfile=None,
        ssl_certfile=None,
        ssl_keyfile=None,
        database=database or str(folder / "state.sqlite"),
        isolation=ISOLATION_MODE_PROCESS,
        runtime_dependency_install=False,
    )
    quiet.silence()
    app = create_app(config, SuperLinkLifespan)
    # Event logs, licences and traces of Flower's commercial edition: each does nothing here and costs a third of a
    # millisecond a request. Authentication, translation and errors stay.
    app.user_middleware = [kept for kept in app.user_middleware if getattr(kept.cls, "__name__", "") not in _IDLE]
    return Guard(app)


def serve(folder: Path, *, bind: str | None = None, port: int | None = None, database: str | None = None) -> None:
    """Run the hub until it is told to stop. ``ready.json`` says where it listens, once it does."""
    quiet.need_flower()
    import uvicorn

    settings = read_hub(folder)
    listener = socket.socket(socket.AF_INET6 if ":" in (bind or settings["bind"]) else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((bind or settings["bind"], settings["port"] if port is None else port))
    except OSError as error:
        raise RunError(f"the hub cannot listen on {bind or settings['bind']}:{settings['port']}: {error}") from None
    server = uvicorn.Server(
        uvicorn.Config(
            application(folder, database),
            ssl_keyfile=str(folder / "server.key"),
            ssl_certfile=str(folder / "server.pem"),
            log_config=None,
            access_log=False,
            timeout_keep_alive=120,
            lifespan="on",
        )
    )
    write_whole(folder / READY, json.dumps({"port": listener.getsockname()[1]}).encode())
    server.run(sockets=[listener])
