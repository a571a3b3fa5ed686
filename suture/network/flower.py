"""All that Suture does with Flower, at the coordinator, at a site and at the hub; the only module
that imports `flwr`.

Flower carries bytes between a coordinator, a hub and sites. It is imported so that it reports to
nobody: no telemetry, no check for updates, no log of its own. A pinned version's own modules are
used (its Control, Runtime and Fleet clients and the SuperLink's application), not its command
lines, so that an upgrade of Flower changes this file and no other. Importing it without Flower
raises `MissingExtra`.

Bytes travel as one `RecordDict` of `ConfigRecord`s, each with a piece of them. Flower stores a
message as a tree of objects that are pushed and pulled one by one, so one small record is the
cheapest shape; pieces keep any single object far below what a server must hold in memory at once.

`Flower` is the coordinator's carrier. What `flwr run` would give to a ServerApp process, this
process does: it starts a run, claims the run's task with the hub's secret, keeps it alive with
heartbeats, pushes messages and pulls answers. A Suture run does not depend on one Flower run: if
the hub was restarted or let the task lapse, another is started and what is unanswered is asked
again. This costs nothing twice, because a site answers the same request with the same bytes and
charges once.

`SiteNode` is a SuperNode with one difference: nothing that arrives is ever installed, imported or
run. Requests go to the site's own handler. The site opens every connection (outbound only), knows
the hub by its certificate, and is known to it by its own key. It outlives the hub: when the hub is
away the site keeps trying, ever more slowly.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suture.errors import MissingExtra, Refused, RunError, SutureError, TooFewSites
from suture.network.certificates import public_pem, read_key, trusting
from suture.network.wire import application
from suture.privacy.files import write_whole

if TYPE_CHECKING:
    from suture.network.coordinator import Answers
    from suture.network.node import Handler
    from suture.network.settings import SiteSettings
    from suture.study import Study

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
if find_spec("flwr") is None:
    raise MissingExtra("a federation over a network needs Flower: pip install 'suture[flower]'")

import httpx as httpx  # it comes with Flower: other modules import it from here
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from flwr.app import ConfigRecord, Message, Metadata, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, SUPERLINK_NODE_ID, SubStatus
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto import control_pb2, fleet_pb2, message_pb2, runtime_pb2
from flwr.proto.fab_pb2 import Fab
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node, NodeInfo
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

PIECE = 8 << 20
NODE_BEAT_SECONDS, TASK_BEAT_SECONDS = HEARTBEAT_DEFAULT_INTERVAL * 0.6, 10.0
NODES_SECONDS = 1.0
FASTEST, SLOWEST, HELD = 0.005, 0.5, 0.5
SITE_FASTEST, SITE_SLOWEST = 0.02, 30.0
LARGEST_ANSWER = 256 << 20
MOST_LEFT_OVER = 50
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
_WHOLE_SECONDS = 10.0
_IDLE = {
    "ControlSensitiveResponseMiddleware",
    "ControlLicenseMiddleware",
    "RuntimeTracingMiddleware",
    "ControlEventLogMiddleware",
    "FleetEventLogMiddleware",
}
log = logging.getLogger("suture.site")


class Incomplete(Refused):
    """A message that did not arrive whole; it can be asked for again."""


def silence() -> None:
    """Let the loggers of Flower and its libraries report errors only."""
    for name in ("flwr", "httpx", "httpcore", "uvicorn", "uvicorn.access", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.ERROR)


def parcel(data: bytes) -> RecordDict:
    """Bytes as records.

    >>> unwrapped(parcel(b"x" * 20))
    b'xxxxxxxxxxxxxxxxxxxx'
    """
    pieces = [data[i : i + PIECE] for i in range(0, len(data), PIECE)] or [b""]
    return RecordDict(
        {f"suture-{i:05d}": ConfigRecord({"piece": piece}) for i, piece in enumerate(pieces)}
    )


def unwrapped(content: RecordDict) -> bytes:
    """The bytes of a parcel; anything else is refused."""
    pieces = []
    for i, name in enumerate(sorted(content)):
        record = content[name]
        fits = isinstance(record, ConfigRecord) and name == f"suture-{i:05d}"
        piece = record["piece"] if fits and set(record) == {"piece"} else None
        if not isinstance(piece, bytes):
            raise Refused("a message that is not a Suture parcel")
        pieces.append(piece)
    return b"".join(pieces)


def _bounded(client: Any, most: int) -> None:
    """Let a client read no answer that is longer than ``most`` or does not state its length."""

    def check(response: httpx.Response) -> None:
        length = response.headers.get("content-length")
        if length is None or int(length) > most:
            raise Refused(f"an answer of {length or 'unknown'} bytes; at most {most} are read")

    client._client.event_hooks = {"response": [check]}


class _Mailbox:
    """What a coordinator and a site both do with messages at the hub."""

    def __init__(self, client: Any, node_id: int) -> None:
        self._client, self._node = client, Node(node_id=node_id)

    def close(self) -> None:
        self._client.close()

    def _push(self, make: Callable[..., Any], run: int, messages: Sequence[Message]) -> Any:
        """Push messages, then those of their objects that the hub does not hold yet."""
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
        answer = self._client.PushMessages(
            make(
                messages_list=[message_to_proto(remove_content_from_message(m)) for m in messages],
                message_object_trees=[get_object_tree(m) for m in messages],
            )
        )
        objects = {key: o for m in messages for key, o in get_all_nested_objects(m).items()}
        where = {"node": self._node, "run_id": run, "session_id": answer.session_id}
        for key in answer.objects_to_push:
            content = objects[key].deflate()
            self._client.PushObject(
                message_pb2.PushObjectRequest(**where, object_id=key, object_content=content)
            )
        return answer

    def _pull(self, run: int, message_id: str, tree: message_pb2.ObjectTree, most: int) -> Message:
        """The message of an object tree, its objects fetched one by one until ``most`` bytes."""
        contents: dict[str, bytes] = {}
        for item in iterate_object_tree(tree):
            if item.object_id not in contents:
                contents[item.object_id] = self._fetch(run, item.object_id)
            if sum(map(len, contents.values())) > most:
                raise Refused(f"a message of more than {most} bytes; the rest was not fetched")
        message = inflate_object_from_contents(message_id, contents)
        if not isinstance(message, Message):
            raise Refused("an object that is not a message")
        message.metadata.__dict__["_message_id"] = message_id
        return message

    def _fetch(self, run: int, object_id: str) -> bytes:
        until, wait = time.monotonic() + _WHOLE_SECONDS, 0.005
        asked = message_pb2.PullObjectRequest(node=self._node, run_id=run, object_id=object_id)
        while True:
            found = self._client.PullObject(asked)
            if found.object_found and found.object_available:
                return bytes(found.object_content)
            if not found.object_found or time.monotonic() > until:
                raise Incomplete("parts of the message did not arrive at the hub")
            time.sleep(wait)
            wait = min(wait * 1.5, 0.5)

    def _confirm(self, run: int, message_id: str) -> None:
        self._client.ConfirmMessageReceived(
            message_pb2.ConfirmMessageReceivedRequest(
                node=self._node, run_id=run, message_object_id=message_id
            )
        )


class Task(_Mailbox):
    """A Flower run that this process drives."""

    def __init__(self, client: RuntimeHttpClient, run: int) -> None:
        super().__init__(client, SUPERLINK_NODE_ID)
        self.run = run

    def send(self, requests: Iterable[tuple[int, bytes]], seconds: float) -> list[str]:
        """Send bytes to nodes; the messages' ids, in the same order."""
        messages = [
            make_message(
                metadata=Metadata(
                    run_id=self.run,
                    message_id="",
                    src_node_id=SUPERLINK_NODE_ID,
                    dst_node_id=node_id,
                    reply_to_message_id="",
                    group_id="",
                    created_at=time.time(),
                    ttl=max(1.0, seconds),
                    message_type="query",
                ),
                content=parcel(data),
            )
            for node_id, data in requests
        ]
        answer = self._push(runtime_pb2.PushAppMessagesRequest, self.run, messages)
        return list(answer.message_ids)

    def answers(
        self, message_ids: Iterable[str]
    ) -> list[tuple[str, message_pb2.Message, message_pb2.ObjectTree]]:
        """What has come in: the id that each replies to, and what `read` needs."""
        asked = runtime_pb2.PullAppMessagesRequest(message_ids=list(message_ids))
        found = self._client.PullMessages(asked)
        pairs = zip(found.messages_list, found.message_object_trees, strict=True)
        return [(head.metadata.reply_to_message_id, head, tree) for head, tree in pairs]

    def read(self, head: message_pb2.Message, tree: message_pb2.ObjectTree) -> bytes:
        """The bytes of an answer; `Incomplete` where the request must be sent again."""
        if head.HasField("error"):
            raise Incomplete(str(head.error.reason)[:200])
        message_id = head.metadata.message_id
        message = self._pull(self.run, message_id, tree, LARGEST_ANSWER)
        self._confirm(self.run, message_id)
        if not message.has_content():
            raise Incomplete("it sent an answer without content")
        return unwrapped(message.content)

    def beat(self) -> None:
        self._client.SendTaskHeartbeat(runtime_pb2.SendTaskHeartbeatRequest())

    def claim(self) -> None:
        """Take the task up, so that no other coordinator gets it."""
        self._client.PullTaskInput(runtime_pb2.PullTaskInputRequest())

    def end(self, *, failed: bool = False) -> None:
        status, details = (SubStatus.FAILED, "left over") if failed else (SubStatus.COMPLETED, "")
        output = runtime_pb2.PushTaskOutputRequest(sub_status=status, details=details)
        self._client.PushTaskOutput(output)


class _Bearer:
    """Puts the operator's token on every request."""

    def __init__(self, token: str) -> None:
        self._token = token

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        context.request.headers["authorization"] = f"Bearer {self._token}"
        return call_next(context)


class Hub:
    """A hub, as its operator or a coordinator uses it."""

    def __init__(self, operator: Mapping[str, str], address: str | None = None) -> None:
        self.address = address or operator["hub"]
        self._secret, self._trust = bytes.fromhex(operator["secret"]), trusting(operator["ca"])
        self._version = RuntimeVersionHttpInterceptor(component_name="flwr-serverapp")
        self._control = ControlHttpClient(
            f"https://{self.address}",
            interceptors=[self._version, _Bearer(operator["token"])],
            verify=self._trust,
            timeout=15.0,
        )

    def close(self) -> None:
        self._control.close()

    def enrolled(self) -> list[NodeInfo]:
        """Every node whose key is enrolled, in the order of enrolment."""
        found = self._control.ListNodes(control_pb2.ListNodesRequest()).nodes_info
        alive = [node for node in found if node.status != "unregistered"]
        return sorted(alive, key=lambda node: node.registered_at)

    def nodes(self) -> dict[str, NodeInfo]:
        """Enrolled sites by name. A name that was enrolled twice counts as its last enrolment."""
        return {node.name: node for node in self.enrolled() if node.name}

    def register(self, name: str, public: bytes) -> None:
        self._control.RegisterNode(control_pb2.RegisterNodeRequest(public_key=public, name=name))

    def unregister(self, node: NodeInfo) -> None:
        self._control.UnregisterNode(control_pb2.UnregisterNodeRequest(node_id=node.node_id))

    def runs(self) -> list[dict[str, str]]:
        found = self._control.ListRuns(control_pb2.ListRunsRequest()).run_dict.values()
        runs = [
            {"run": str(run.run_id), "status": run.status.status, "since": run.pending_at}
            for run in found
        ]
        return sorted(runs, key=lambda run: run["since"])

    def start(self, application: bytes) -> Task:
        """Start a run of an app and claim its task with the hub's secret."""
        fab = Fab(hash_str=hashlib.sha256(application).hexdigest(), content=application)
        started = self._control.StartRun(control_pb2.StartRunRequest(fab=fab))
        wanted = runtime_pb2.AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
        with contextlib.closing(self._runtime(None)) as client:
            for _ in range(MOST_LEFT_OVER):
                found = client.AcquireTask(wanted)
                if not found.token:
                    raise RunError(
                        f"the hub {self.address} gave this run to another coordinator; start again"
                    )
                task = Task(self._runtime(found.token), found.task.run_id)
                try:
                    task.claim()
                    if task.run == started.run_id:
                        return task
                    # Left by a coordinator that was killed between two calls: ended, not taken up.
                    task.end(failed=True)
                except Exception:
                    task.close()
                    raise
                task.close()
        raise RunError(f"the hub {self.address} has too many runs left over")

    def _runtime(self, token: str | None) -> RuntimeHttpClient:
        own = (
            RuntimeTokenHttpInterceptor(token=token)
            if token
            else SuperExecAuthHttpInterceptor(
                master_secret=self._secret, protected_methods=[_ACQUIRE]
            )
        )
        client = RuntimeHttpClient(
            f"https://{self.address}",
            interceptors=[self._version, own],
            verify=self._trust,
            timeout=30.0,
        )
        _bounded(client, LARGEST_ANSWER)
        return client


@dataclass
class _Waiting:
    """A request that has no answer yet."""

    data: bytes
    sent: str = ""
    """The message's id; empty: not on its way."""
    to: str = ""
    """When the node that it was sent to had last come up."""
    why: str = "it is not connected to the hub"


class Flower:
    """Carries requests through a hub that is running."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self._task: Task | None = None
        self._dropped = threading.Event()
        self._nodes: dict[str, NodeInfo] = {}
        self._nodes_at = 0.0

    def start(self, study: Study, base: Path, folder: Path | None) -> None:
        """Nothing to start: the hub and the sites run by themselves."""

    def close(self) -> None:
        self.end()
        self.hub.close()

    def end(self) -> None:
        if self._task is not None:
            with contextlib.suppress(httpx.HTTPError, ValueError, SutureError):
                self._task.end()
        self._drop()

    def exchange(self, requests: Mapping[str, bytes], seconds: float) -> Answers:
        """Ask; ask again where a site or the hub came back; at the deadline say who is missing."""
        until = time.monotonic() + seconds
        waiting = {site: _Waiting(data) for site, data in requests.items()}
        found: Answers = {}
        pause, trouble = FASTEST, ""
        while waiting and time.monotonic() < until:
            begun = time.monotonic()
            try:
                task = self._running()
                self._look(waiting)
                self._push(task, waiting, until)
                came = self._pull(task, waiting)
                trouble = ""
            except (httpx.HTTPError, ValueError) as error:
                trouble = self._trouble(error, waiting)
                came = {}
            for site, data in came.items():
                found[site] = data
                del waiting[site]
            held = time.monotonic() - begun > HELD  # the hub itself made the question wait
            pause = FASTEST if came or (held and not trouble) else min(pause * 1.25, SLOWEST)
            if waiting and not came:
                time.sleep(max(0.0, min(pause, until - time.monotonic())))
        for site, left in waiting.items():
            why = trouble or left.why
            found[site] = TooFewSites(f"site {site!r} gave no answer within {seconds:g} s: {why}")
        return found

    def _trouble(self, error: Exception, waiting: Mapping[str, _Waiting]) -> str:
        """Deal with a hub that fails: drop the Flower run, ask everything unanswered again."""
        hub = f"the hub {self.hub.address}"
        status = error.response.status_code if isinstance(error, httpx.HTTPStatusError) else 0
        if status == httpx.codes.UNAUTHORIZED and "/v1/control/" in str(error):
            raise RunError(f"{hub} does not know this operator's token") from None
        if "certificate" in str(error).lower():
            raise RunError(
                f"{hub} has a certificate that this operator's authority did not sign; nothing was "
                "sent"
            ) from None
        text = f"{hub} does not answer ({type(error).__name__})"
        if status:
            text = f"{hub} refused a call (status {status})"
            self._drop()
        if status or isinstance(error, httpx.ConnectError):
            # A hub that went away may have lost requests and answers that were on their way through
            # it. Asked again, a site gives the same bytes and is charged once.
            for left in waiting.values():
                left.sent = ""
        logging.getLogger("suture.coordinator").debug("%s: %s", text, error)
        return text

    def _running(self) -> Task:
        if self._task is None:
            self._nodes_at = 0.0
            self._task, self._dropped = self.hub.start(application()), threading.Event()
            beats = threading.Thread(target=_beats, args=(self._task, self._dropped), daemon=True)
            beats.start()
        return self._task

    def _drop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            self._dropped.set()
            task.close()

    def _look(self, waiting: Mapping[str, _Waiting]) -> None:
        """See who is connected, once per second. A site that was restarted is asked again."""
        if time.monotonic() - self._nodes_at < NODES_SECONDS:
            return
        self._nodes, self._nodes_at = self.hub.nodes(), time.monotonic()
        for site, left in waiting.items():
            node = self._nodes.get(site)
            if node is None:
                left.sent, left.why = "", "it is not enrolled at the hub"
            elif node.status != "online":
                left.why = f"it is {node.status}"
            elif left.sent and left.to != node.last_activated_at:
                left.sent = ""

    def _push(self, task: Task, waiting: Mapping[str, _Waiting], until: float) -> None:
        ready = [
            (left, self._nodes[site])
            for site, left in waiting.items()
            if not left.sent and site in self._nodes and self._nodes[site].status == "online"
        ]
        if not ready:
            return
        requests = [(node.node_id, left.data) for left, node in ready]
        sent = task.send(requests, until - time.monotonic())
        for (left, node), message_id in zip(ready, sent, strict=True):
            left.sent, left.to = message_id, node.last_activated_at
            left.why = "it was asked and has not answered"

    def _pull(self, task: Task, waiting: Mapping[str, _Waiting]) -> Answers:
        asked = {left.sent: site for site, left in waiting.items() if left.sent}
        came: Answers = {}
        for replied, head, tree in task.answers(asked) if asked else ():
            site = asked.get(replied)
            if site is None:
                continue  # late, twice, or nobody's: not taken
            try:
                came[site] = task.read(head, tree)
            except Incomplete as again:
                waiting[site].sent, waiting[site].why = "", str(again)
            except Refused as error:
                came[site] = RunError(f"site {site!r}: {error}")
        return came


def _beats(task: Task, dropped: threading.Event) -> None:
    while not dropped.wait(TASK_BEAT_SECONDS):
        with contextlib.suppress(Exception):  # the main loop meets the same trouble
            task.beat()


class Request:
    """A request as it arrived at a site; without data where it could not be read."""

    def __init__(self, message: Message, data: bytes) -> None:
        self.run, self.data = message.metadata.run_id, data
        self._message = message

    def reply(self, data: bytes) -> Message:
        return Message(parcel(data), reply_to=self._message)


class Fleet(_Mailbox):
    """A site's connection to its hub. No message of more than ``most`` bytes is read."""

    def __init__(
        self, url: str, key: EllipticCurvePrivateKey, trust: ssl.SSLContext | bool, most: int
    ) -> None:
        public = key.public_key()
        self._public, self._largest = public_pem(public), most
        self._apps: dict[int, str] = {}
        version = RuntimeVersionHttpInterceptor(component_name="SuperNode")
        client = FleetHttpClient(
            url,
            interceptors=[version, NodeAuthHttpInterceptor(key, public)],
            verify=trust,
            timeout=30.0,
        )
        _bounded(client, most + (1 << 20))
        super().__init__(client, 0)

    def activate(self) -> int:
        """Connect; the number that the hub gives this site."""
        answer = self._client.ActivateNode(
            fleet_pb2.ActivateNodeRequest(
                public_key=self._public, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL
            )
        )
        self._node = Node(node_id=answer.node_id)
        return int(answer.node_id)

    def deactivate(self, node_id: int) -> None:
        self._client.DeactivateNode(fleet_pb2.DeactivateNodeRequest(node_id=node_id))

    def beat(self) -> None:
        self._client.SendNodeHeartbeat(
            SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        )

    def next(self) -> Request | None:
        found = self._client.PullMessages(fleet_pb2.PullMessagesRequest(node=self._node))
        if not found.messages_list:
            return None
        head = message_from_proto(found.messages_list[0])
        run, message_id = head.metadata.run_id, head.metadata.message_id
        try:
            message = self._pull(run, message_id, found.message_object_trees[0], self._largest)
            request = Request(message, unwrapped(message.content))
        except Refused as error:
            log.warning("a request was not read: %s", error)
            request = Request(head, b"")
        self._confirm(run, message_id)
        return request

    def application(self, run: int) -> str:
        """The hash of the app that a run names, by the hub's word; it is never fetched."""
        if run not in self._apps:
            found = self._client.GetRun(GetRunRequest(node=self._node, run_id=run))
            self._apps[run] = str(found.run.fab_hash)
        return self._apps[run]

    def send(self, reply: Message, run: int) -> None:
        """Send an answer. How long it took may tell of rows: 0 is stated."""

        def push(**messages: Any) -> fleet_pb2.PushMessagesRequest:
            return fleet_pb2.PushMessagesRequest(
                node=self._node, clientapp_runtime_list=[0.0], **messages
            )

        self._push(push, run, [reply])


class SiteNode:
    """One site's connection. `serve` runs until `end`."""

    def __init__(self, settings: SiteSettings, home: Path, handler: Handler) -> None:
        self.settings, self.handler = settings, handler
        hub = settings.hub
        if hub.key is None:
            raise RunError("a site needs a key of its own ([hub] key)")
        trust = trusting(_read(home / hub.certificate)) if hub.certificate else False
        url = f"{'https' if hub.certificate else 'http'}://{hub.address}"
        self._fleet = Fleet(url, read_key(home / hub.key), trust, settings.largest_message)
        self._node: int | None = None
        self._node_file = home / "node.id"
        self._unsent: tuple[Message, int] | None = None
        self._stop = threading.Event()
        self._busy = False

    def end(self) -> None:
        """End now, or after the request that is being answered."""
        self._stop.set()
        if not self._busy:
            os._exit(0)

    def serve(self) -> None:
        """Ask and answer until stopped; a hub that is away is tried again, ever later."""
        threading.Thread(target=self._beats, daemon=True).start()
        wait = SITE_FASTEST
        while not self._stop.is_set():
            try:
                if self._node is None:
                    self._activate()
                self._send_again()
                begun = time.monotonic()
                if self._once() or time.monotonic() - begun > HELD:
                    wait = SITE_FASTEST  # there was work, or the hub itself made the question wait
                else:
                    self._stop.wait(wait)
                    wait = min(wait * 1.3, self.settings.poll_seconds)
            except (httpx.HTTPError, Refused, ValueError, RuntimeError) as error:
                self._away(error)
                wait = min(max(wait * 2, 0.25), SITE_SLOWEST)
                self._stop.wait(wait)
        self._leave()

    def _away(self, error: Exception) -> None:
        text = _said(error)
        if self.handler.status.get("connection") != text:
            log.warning("the hub does not answer as it should: %s; trying again", text)
        self.handler.note(connection=text)
        if isinstance(error, httpx.HTTPStatusError) and error.response.status_code in (401, 404):
            self._node = None

    def _activate(self) -> None:
        try:
            node = self._fleet.activate()
        except httpx.HTTPStatusError as error:
            # To the hub, a site that was killed is online until its heartbeats are missed; its
            # successor must not wait.
            before = self._last_node()
            if error.response.status_code != httpx.codes.PRECONDITION_FAILED or before is None:
                raise
            self._fleet.deactivate(before)
            node = self._fleet.activate()
        self._node = node
        write_whole(self._node_file, str(node).encode())
        log.info("connected to %s", self.settings.hub.address)
        self.handler.note(connection="connected")

    def _last_node(self) -> int | None:
        try:
            return int(self._node_file.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None

    def _beats(self) -> None:
        while not self._stop.wait(NODE_BEAT_SECONDS):
            if self._node is None:
                continue
            try:
                self._fleet.beat()
            except Exception as error:  # the main loop meets the same trouble and deals with it
                log.debug("no heartbeat: %s", _said(error))

    def _once(self) -> bool:
        request = self._fleet.next()
        if self.handler.status.get("connection") != "connected":
            self.handler.note(connection="connected")
        if request is None:
            return False
        self._busy = True
        try:
            answered = self.handler.answer(request.data, self._fleet.application(request.run))
            self._unsent = (request.reply(answered), request.run)
            self._send_again()
        finally:
            self._busy = False
        return True

    def _send_again(self) -> None:
        """Send the answer that waits, if any; one that the hub refuses is dropped."""
        if self._unsent is None:
            return
        try:
            self._fleet.send(*self._unsent)
        except httpx.HTTPStatusError:
            self._unsent = None
            raise
        self._unsent = None

    def _leave(self) -> None:
        try:
            if self._node is not None:
                self._fleet.deactivate(self._node)
        except (httpx.HTTPError, RuntimeError, Refused):
            log.debug("the hub was not told of the end")
        self._fleet.close()
        self.handler.close()


def _read(certificate: Path) -> str:
    try:
        return certificate.read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        raise RunError(
            f"the authority's certificate {certificate} cannot be read: {error}"
        ) from None


def _said(error: Exception) -> str:
    """An error in a line, without what a server may have put into its body."""
    if isinstance(error, httpx.HTTPStatusError):
        status = error.response.status_code
        known = {
            401: "this site's key is not enrolled, or was revoked",
            413: "a message is too large for the hub",
        }
        return f"{known.get(status, 'refused by the hub')} (status {status})"
    return f"{type(error).__name__}: {error}"[:300]


def superlink(token: str, secret: str, database: str) -> Any:
    """The SuperLink's own application, for one operator who is known by a token."""
    from flwr.common.constant import ISOLATION_MODE_PROCESS, TRANSPORT_TYPE_GRPC_RERE
    from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
    from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
    from flwr.superlink.config_loader import SuperLinkLifespanConfig
    from flwr.superlink.main import create_app

    expected = hashlib.sha256(token.encode()).digest()

    class Accounts(NoOpControlAuthnPlugin):
        def validate_tokens_in_metadata(self, metadata: Any) -> Any:
            given = [value for _, value in metadata if isinstance(value, str)]
            found = hashlib.sha256((given[0] if len(given) == 1 else "").encode()).digest()
            if not hmac.compare_digest(found, expected):
                return False, None
            return super().validate_tokens_in_metadata(metadata)

    absent = (
        "health_server_address", "certificates", "event_log_plugin", "fleet_event_log_plugin",
        "artifact_provider", "fleet_api_address", "ssl_ca_certfile", "ssl_certfile", "ssl_keyfile",
    )  # fmt: skip
    config = SuperLinkLifespanConfig(
        control_address="", host="", port=0, insecure=False, database=database,
        superexec_auth_secret=bytes.fromhex(secret), authn_plugin=Accounts(),
        enable_event_log=False, enable_supernode_auth=True, simulation=False,
        fleet_api_type=TRANSPORT_TYPE_GRPC_RERE, isolation=ISOLATION_MODE_PROCESS,
        runtime_dependency_install=False, **dict.fromkeys(absent),
    )  # fmt: skip
    silence()
    app = create_app(config, SuperLinkLifespan)
    # Event logs, licences and traces of Flower's commercial edition: each does nothing here and
    # costs a third of a millisecond per request. Authentication, translation and errors stay.
    app.user_middleware = [
        kept
        for kept in app.user_middleware
        if not (isinstance(kept.cls, type) and kept.cls.__name__ in _IDLE)
    ]
    return app
