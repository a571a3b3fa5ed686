"""A site on the network: asks the hub for requests over Flower's Fleet API, lets the desk answer, sends the answer.

This is a SuperNode with one difference: nothing that arrives is ever installed, imported or run. Requests go to the
site's own `Desk`. The site opens every connection (outbound only), knows the hub by its certificate, and is known to it
by its own key. It outlives the hub: when the hub is away it keeps trying, ever more slowly.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from suture.engines import quiet

quiet.need_flower()

import httpx  # noqa: E402
from flwr.app import Message  # noqa: E402
from flwr.app.message import remove_content_from_message  # noqa: E402
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL  # noqa: E402
from flwr.common.serde import message_from_proto, message_to_proto  # noqa: E402
from flwr.proto.fleet_pb2 import (  # noqa: E402
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest  # noqa: E402
from flwr.proto.message_pb2 import (  # noqa: E402
    ConfirmMessageReceivedRequest,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node  # noqa: E402
from flwr.proto.run_pb2 import GetRunRequest  # noqa: E402
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree  # noqa: E402
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor  # noqa: E402
from flwr.supercore.primitives.asymmetric import public_key_to_bytes  # noqa: E402
from flwr.supernode.fleet_http_client import FleetHttpClient  # noqa: E402
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor  # noqa: E402

from suture.engines.certificates import read_key  # noqa: E402
from suture.engines.desk import Desk  # noqa: E402
from suture.engines.parcels import parcel, pull, unwrapped  # noqa: E402
from suture.engines.settings import SiteSettings  # noqa: E402
from suture.errors import Refused, RunError  # noqa: E402
from suture.writing import write_whole  # noqa: E402

log = logging.getLogger("suture.site")
FASTEST = 0.02
HELD = 0.5
LONGEST_WAIT = 30.0
BEAT_SECONDS = HEARTBEAT_DEFAULT_INTERVAL * 0.6


def trusting(certificate: Path | None) -> ssl.SSLContext | bool:
    """TLS that trusts the federation's own authority and nobody else."""
    if certificate is None:
        return False
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_verify_locations(cadata=certificate.read_text(encoding="ascii"))
    except (OSError, ValueError, ssl.SSLError) as error:
        raise RunError(f"the authority's certificate {certificate} cannot be read: {error}") from None
    return context


def bounded(client: Any, most: int) -> None:
    """No answer of more than ``most`` bytes is read, and none that does not say how long it is."""

    def check(response: httpx.Response) -> None:
        length = response.headers.get("content-length")
        if length is None or int(length) > most:
            raise Refused(f"an answer of {length or 'unknown'} bytes; at most {most} are read")

    client._client.event_hooks = {"response": [check]}


class SiteNode:
    """One site's connection. `serve` runs until `stop`."""

    def __init__(self, settings: SiteSettings, home: Path, desk: Desk) -> None:
        self.settings, self.desk = settings, desk
        hub = settings.hub
        if hub.key is None:
            raise RunError("a site needs a key of its own ([hub] key)")
        key = read_key(home / hub.key)
        self._public = public_key_to_bytes(key.public_key())
        certificate = home / hub.certificate if hub.certificate else None
        scheme = "https" if certificate else "http"
        self._client = FleetHttpClient(
            f"{scheme}://{hub.address}",
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(key, key.public_key()),
            ],
            verify=trusting(certificate),
            timeout=30.0,
        )
        bounded(self._client, settings.largest_message + (1 << 20))
        self._node: Node | None = None
        self._node_file = home / "node.id"
        self._unsent: tuple[Message, int, float] | None = None
        self._apps: dict[int, str] = {}
        self._stop = threading.Event()
        self.busy = False

    def stop(self) -> None:
        """End after the request that is being answered."""
        self._stop.set()

    def end(self) -> None:
        """End now if nothing is being answered, else after that. What is kept is on the disk in either case."""
        self.stop()
        if not self.busy:
            os._exit(0)

    def serve(self) -> None:
        """Ask, answer, ask again; a hub that is away or says no is tried again later, and it is in the log."""
        beat = threading.Thread(target=self._beats, daemon=True)
        beat.start()
        wait = FASTEST
        while not self._stop.is_set():
            try:
                if self._node is None:
                    self._activate()
                self._send_again()
                begun = time.monotonic()
                if self._once() or time.monotonic() - begun > HELD:
                    wait = FASTEST  # there was work, or the hub itself made the question wait
                else:
                    self._stop.wait(wait)
                    wait = min(wait * 1.3, self.settings.poll_seconds)
            except (httpx.HTTPError, Refused, ValueError, RuntimeError) as error:
                self._away(error)
                wait = min(max(wait * 2, 0.25), LONGEST_WAIT)
                self._stop.wait(wait)
        self._leave()

    def _away(self, error: Exception) -> None:
        text = _said(error)
        if self.desk.status.get("connection") != text:
            log.warning("the hub does not answer as it should: %s; trying again", text)
        self.desk._note(connection=text)
        if isinstance(error, httpx.HTTPStatusError) and error.response.status_code in (401, 404):
            self._node = None

    def _activate(self) -> None:
        request = ActivateNodeRequest(public_key=self._public, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        try:
            answer = self._client.ActivateNode(request)
        except httpx.HTTPStatusError as error:
            # A site that was killed is online to the hub until its heartbeats are missed; its successor must not wait.
            before = self._last_node()
            if error.response.status_code != httpx.codes.PRECONDITION_FAILED or before is None:
                raise
            self._client.DeactivateNode(DeactivateNodeRequest(node_id=before))
            answer = self._client.ActivateNode(request)
        self._node = Node(node_id=answer.node_id)
        write_whole(self._node_file, str(answer.node_id).encode())
        log.info("connected to %s", self.settings.hub.address)
        self.desk._note(connection="connected")

    def _last_node(self) -> int | None:
        """The number that the hub gave this site when it last connected."""
        try:
            return int(self._node_file.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None

    def _beats(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            node = self._node
            if node is None:
                continue
            try:
                self._client.SendNodeHeartbeat(
                    SendNodeHeartbeatRequest(node=node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
                )
            except Exception as error:  # the main loop meets the same trouble and deals with it
                log.debug("no heartbeat: %s", _said(error))

    def _once(self) -> bool:
        """Answer one request if there is one."""
        found = self._client.PullMessages(PullMessagesRequest(node=self._node))
        if self.desk.status.get("connection") != "connected":
            self.desk._note(connection="connected")
        if not found.messages_list:
            return False
        head = message_from_proto(found.messages_list[0])
        run = head.metadata.run_id
        message_id = head.metadata.message_id
        try:
            message = pull(
                found.message_object_trees[0],
                message_id,
                lambda object_id: self._fetch(run, object_id),
                self.settings.largest_message,
            )
            data = unwrapped(message.content)
        except Refused as error:
            log.warning("a request was not read: %s", error)
            message, data = head, b""
        self._client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=self._node, run_id=run, message_object_id=message_id)
        )
        begun = time.perf_counter()
        self.busy = True
        try:
            answered = self.desk.answer(data, self._app(run))
            self._unsent = (Message(parcel(answered), reply_to=message), run, time.perf_counter() - begun)
            self._send_again()
        finally:
            self.busy = False
        return True

    def _send_again(self) -> None:
        """Send the answer that is ready, if there is one. It waits while the hub is away; a hub that says no has its way."""
        if self._unsent is None:
            return
        try:
            self._send(*self._unsent)
        except httpx.HTTPStatusError:
            self._unsent = None
            raise
        self._unsent = None

    def _fetch(self, run: int, object_id: str) -> bytes:
        for delay in _delays(10.0):
            found = self._client.PullObject(PullObjectRequest(node=self._node, run_id=run, object_id=object_id))
            if not found.object_found:
                raise Refused("a message whose parts are missing at the hub")
            if found.object_available:
                return bytes(found.object_content)
            time.sleep(delay)
        raise Refused("a message whose parts never arrived at the hub")

    def _app(self, run: int) -> str:
        """The hash of the app that a run belongs to, by the hub's word. The app itself is never fetched."""
        if run not in self._apps:
            found = self._client.GetRun(GetRunRequest(node=self._node, run_id=run))
            self._apps[run] = str(found.run.fab_hash)
        return self._apps[run]

    def _send(self, reply: Message, run: int, seconds: float) -> None:
        reply.metadata.__dict__["_message_id"] = reply.object_id
        objects, tree = get_all_nested_objects(reply), get_object_tree(reply)
        answer = self._client.PushMessages(
            PushMessagesRequest(
                node=self._node,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[tree],
                clientapp_runtime_list=[seconds],
            )
        )
        for object_id in answer.objects_to_push:
            self._client.PushObject(
                PushObjectRequest(
                    node=self._node,
                    run_id=run,
                    session_id=answer.session_id,
                    object_id=object_id,
                    object_content=objects[object_id].deflate(),
                )
            )

    def _leave(self) -> None:
        try:
            if self._node is not None:
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))
        except (httpx.HTTPError, RuntimeError, Refused):
            log.debug("the hub was not told of the end")
        self._client.close()
        self.desk.close()


def _delays(most: float) -> Iterator[float]:
    """Ever longer waits that add up to ``most`` seconds."""
    total, wait = 0.0, FASTEST
    while total < most:
        yield wait
        total += wait
        wait = min(wait * 1.5, 0.5)


def _said(error: Exception) -> str:
    """An error in a line, without what a server may have put into its body."""
    if isinstance(error, httpx.HTTPStatusError):
        status = error.response.status_code
        known = {401: "this site's key is not enrolled, or was revoked", 413: "a message is too large for the hub"}
        return f"{known.get(status, 'refused by the hub')} (status {status})"
    return f"{type(error).__name__}: {error}"[:300]
