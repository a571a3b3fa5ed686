"""The hub: Flower's SuperLink, in this process, with a guard in front. It carries sealed bytes and
sees no rows.

Flower's open distribution leaves its Control API (start a run, register a node) open to whoever
reaches the port. The guard closes that: the Control API takes an operator's token, a task is
claimed only with the hub's secret, sites are known by their enrolled keys, and routes that Suture
does not use do not exist. Bodies have a largest size.

A hub's folder: ``hub.toml``, ``ca.pem`` and ``ca.key`` (the authority), ``server.pem`` and
``server.key``, ``operator.json`` (what a coordinator needs; keep it secret), ``state.sqlite``
(Flower's own state, survives restarts).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import sys
import threading
import tomllib
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from suture.errors import RunError, StudyError
from suture.network import certificates
from suture.privacy.files import write_whole

HUB, OPERATOR, READY = "hub.toml", "operator.json", "ready.json"
LARGEST_BODY = 16 << 20
HOLD_SECONDS = 5.0
MOST_PARTIES = 10_000
_MESSAGES = "push-messages pull-messages push-object pull-object confirm-message-received"
_CALLS = {
    "control": "start-run stop-run list-runs register-node unregister-node list-nodes",
    "runtime": "acquire-task send-task-heartbeat pull-task-input push-task-output get-nodes",
    "fleet": "activate-node deactivate-node send-node-heartbeat get-run",
}
ROUTES = {f"/v1/{side}/{call}" for side, calls in _CALLS.items() for call in calls.split()}
ROUTES |= {f"/v1/{side}/{call}" for side in ("runtime", "fleet") for call in _MESSAGES.split()}
_PARTY = {"fleet": b"flwr-public-key", "runtime": b"flwr-task-token"}
"""The header by which a party is told from others while it waits; whether it is who it says is
checked after."""

Scope = MutableMapping[str, Any]
Send = Callable[[dict[str, object]], Awaitable[None]]
App = Callable[[Scope, object, Send], Awaitable[None]]


def make_hub(folder: Path, hosts: Sequence[str], port: int, name: str = "suture") -> dict[str, str]:
    """A new hub's folder: authority, certificate, operator's token. Returns what was written."""
    if (folder / HUB).exists():
        raise RunError(f"{folder} already holds a hub; renew it with: suture hub renew {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    authority, authority_key = certificates.new_authority(name)
    certificate, key = certificates.new_server(authority, authority_key, hosts)
    certificates.write_secret(folder / "ca.key", authority_key)
    certificates.write_secret(folder / "server.key", key)
    token, secret = secrets.token_urlsafe(32), secrets.token_hex(32)
    operator = {
        "hub": f"{hosts[0]}:{port}",
        "ca": authority.decode(),
        "token": token,
        "secret": secret,
    }
    certificates.write_secret(folder / OPERATOR, json.dumps(operator).encode())
    write_whole(folder / "ca.pem", authority)
    write_whole(folder / "server.pem", certificate)
    lines = (f"name = {json.dumps(name)}", f"hosts = {json.dumps(list(hosts))}", f"port = {port}")
    write_whole(folder / HUB, "\n".join((*lines, 'bind = "0.0.0.0"', "")).encode())
    return {"folder": str(folder), "hub": operator["hub"], "operator": str(folder / OPERATOR)}


def read_hub(folder: Path) -> dict[str, Any]:
    try:
        return tomllib.loads((folder / HUB).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StudyError(
            f"{folder} is not a hub's folder (no {HUB} in it); make one with: suture hub init"
        ) from None
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
        raise RunError(
            f"there is no {file}; the hub's operator has it (suture hub init wrote it)"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{file} cannot be read: {type(error).__name__}") from None


class Guard:
    """ASGI middleware: only known routes, only bodies of a stated and bearable size, and nobody
    asks in vain.

    Flower's parties poll. Here a question for messages waits at the guard until there may be some:
    a site's until a coordinator has pushed all of its messages (it then asks for answers itself), a
    coordinator's until a site has pushed an answer (it then asks for more work). A round then costs
    few requests, and an idle site one every `HOLD_SECONDS`.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._sides = {"fleet": _Side(HOLD_SECONDS), "runtime": _Side(1.0)}

    async def __call__(self, scope: Scope, receive: object, send: Send) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            refused = _refused(scope, headers.get(b"content-length"))
            if refused:
                await _answer(send, refused)
                return
            await self._wait(scope["path"], headers)
        await self._app(scope, receive, send)

    async def _wait(self, path: str, headers: dict[bytes, bytes]) -> None:
        _, _, side, call = path.split("/")
        if side not in self._sides or call not in ("push-messages", "pull-messages"):
            return
        who = headers.get(_PARTY[side], b"")
        mine, other = self._sides[side], self._sides["runtime" if side == "fleet" else "fleet"]
        if call == "push-messages":
            mine.pushing.add(who)
            return
        if who in mine.pushing:
            mine.pushing.discard(who)
            other.wake()
        await mine.wait(who)


def _refused(scope: Scope, length: bytes | None) -> int:
    """The status with which a request is refused; 0: it may pass."""
    if scope["method"] != "POST" or scope["path"] not in ROUTES:
        return 404
    if length is None or not length.isdigit():
        return 411
    return 413 if int(length) > LARGEST_BODY else 0


class _Side:
    """The parties on one side of the hub, and how much news each has seen."""

    def __init__(self, hold: float) -> None:
        self.pushing: set[bytes] = set()
        self._hold, self._news, self._seen = hold, 0, {}  # type: float, int, dict[bytes, int]
        self._event: asyncio.Event | None = None

    def wake(self) -> None:
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


async def _answer(send: Send, status: int) -> None:
    head = {"status": status, "headers": [(b"content-length", b"0")]}
    await send({"type": "http.response.start", **head})
    await send({"type": "http.response.body", "body": b""})


def serve(
    folder: Path, *, bind: str | None = None, port: int | None = None, database: str | None = None
) -> None:
    """Run the hub until it is told to stop. ``ready.json`` says where it listens, once it does."""
    from suture.network.flower import superlink

    settings, operator = read_hub(folder), read_operator(folder)
    import uvicorn  # it comes with Flower

    bind = bind or str(settings["bind"])
    listener = socket.socket(socket.AF_INET6 if ":" in bind else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((bind, settings["port"] if port is None else port))
    except OSError as error:
        raise RunError(f"the hub cannot listen on {bind}:{settings['port']}: {error}") from None
    state = database or str(folder / "state.sqlite")
    server = uvicorn.Server(
        uvicorn.Config(
            Guard(superlink(operator["token"], operator["secret"], state)),
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


def _end_with_the_pipe() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":  # a run's own hub (`suture.network.local`): it ends with the run
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_pipe, daemon=True).start()
    serve(Path(sys.argv[1]), bind="127.0.0.1", port=0, database=":flwr-in-memory:")
