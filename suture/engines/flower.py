"""A carrier over Flower: the coordinator drives a hub's Runtime API itself, in its own process.

What `flwr run` would give to a ServerApp process, this process does: it starts a run, claims the run's task with the
hub's secret, keeps it alive with heartbeats, pushes messages and pulls answers. A Suture run does not depend on one
Flower run: if the hub was restarted or let the task lapse, another is started and what is unanswered is asked again,
which costs nothing twice, because a site answers the same request with the same bytes and charges once.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from suture.engines import quiet

quiet.need_flower()

import httpx  # noqa: E402
from flwr.app import Message, Metadata  # noqa: E402
from flwr.app.message import make_message, remove_content_from_message  # noqa: E402
from flwr.common.constant import SUPERLINK_NODE_ID, SubStatus  # noqa: E402
from flwr.common.serde import message_to_proto  # noqa: E402
from flwr.proto.control_pb2 import ListNodesRequest, StartRunRequest  # noqa: E402
from flwr.proto.fab_pb2 import Fab  # noqa: E402
from flwr.proto.message_pb2 import (  # noqa: E402
    ConfirmMessageReceivedRequest,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node  # noqa: E402
from flwr.proto.runtime_pb2 import (  # noqa: E402
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushAppMessagesRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType  # noqa: E402
from flwr.supercore.control.control_http_client import ControlHttpClient  # noqa: E402
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree  # noqa: E402
from flwr.supercore.interceptors import (  # noqa: E402
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.runtime import RuntimeHttpClient  # noqa: E402

from suture.engines.application import application, application_hash  # noqa: E402
from suture.engines.node import bounded, trusting  # noqa: E402
from suture.engines.parcels import parcel, pull, unwrapped  # noqa: E402
from suture.errors import Refused, RunError, SutureError, TooFewSites  # noqa: E402
from suture.study import Study  # noqa: E402

log = logging.getLogger("suture.coordinator")
FASTEST, SLOWEST, HELD = 0.005, 0.5, 0.5
NODES_SECONDS = 1.0
BEAT_SECONDS = 10.0
LARGEST_ANSWER = 256 << 20
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"


class _Bearer:
    """Puts the operator's token on every request."""

    def __init__(self, token: str) -> None:
        self._token = token

    def intercept(self, context: Any, call_next: Any) -> Any:
        """Add the header."""
        context.request.headers["authorization"] = f"Bearer {self._token}"
        return call_next(context)


@dataclass
class _Task:
    """A Flower run that this process drives."""

    run: int
    client: RuntimeHttpClient
    beat: threading.Event = field(default_factory=threading.Event)


@dataclass
class _Waiting:
    """A request that has no answer yet."""

    data: bytes
    sent: str = ""
    """The message's id; empty: not on its way."""
    to: str = ""
    """When the node it was sent to had last come up."""
    why: str = "it is not connected to the hub"


class Hub:
    """A hub, as its operator or a coordinator uses it."""

    def __init__(self, operator: Mapping[str, str], address: str | None = None) -> None:
        self.address = address or operator["hub"]
        self._operator = operator
        with TemporaryDirectory() as folder:
            file = Path(folder) / "ca.pem"
            file.write_text(operator["ca"], encoding="ascii")
            self._verify = trusting(file)
        version = RuntimeVersionHttpInterceptor(component_name="flwr-serverapp")
        self._version = version
        self.control = ControlHttpClient(
            f"https://{self.address}",
            interceptors=[version, _Bearer(operator["token"])],
            verify=self._verify,
            timeout=15.0,
        )

    def nodes(self) -> dict[str, Any]:
        """Enrolled sites by name. A name that was enrolled twice counts as its last enrolment."""
        found = self.control.ListNodes(ListNodesRequest()).nodes_info
        alive = [node for node in found if node.status != "unregistered"]
        return {node.name: node for node in sorted(alive, key=lambda node: node.registered_at) if node.name}

    def runtime(self, token: str | None = None) -> RuntimeHttpClient:
        """A client of the Runtime API: for a claimed task, or to claim one."""
        own = (
            RuntimeTokenHttpInterceptor(token=token)
            if token
            else SuperExecAuthHttpInterceptor(
                master_secret=bytes.fromhex(self._operator["secret"]), protected_methods=[_ACQUIRE]
            )
        )
        client = RuntimeHttpClient(
            f"https://{self.address}", interceptors=[self._version, own], verify=self._verify, timeout=30.0
        )
        bounded(client, LARGEST_ANSWER)
        return client

    def close(self) -> None:
        """Let go of the connection."""
        self.control.close()


class Flower:
    """Carries requests through a hub that is running."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.bytes_down = self.bytes_up = 0
        self._task: _Task | None = None
        self._nodes: dict[str, Any] = {}
        self._nodes_at = 0.0

    def start(self, study: Study, base: Path, folder: Path | None) -> None:
        """Nothing to start: the hub and the sites run by themselves."""

    def close(self) -> None:
        """End the Flower run and let go of the hub."""
        self._end(SubStatus.COMPLETED)
        self.hub.close()

    def exchange(self, requests: Mapping[str, bytes], seconds: float) -> dict[str, bytes | SutureError]:
        """Ask, wait, ask again where a site or the hub went away and came back; at the deadline say who is missing."""
        until = time.monotonic() + seconds
        waiting = {site: _Waiting(data) for site, data in requests.items()}
        found: dict[str, bytes | SutureError] = {}
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
            found[site] = TooFewSites(f"site {site!r} gave no answer within {seconds:g} s: {trouble or left.why}")
        return found

    def _trouble(self, error: Exception, waiting: Mapping[str, _Waiting]) -> str:
        """What to do about a hub that does not do as asked: a new Flower run, and everything unanswered once more."""
        status = error.response.status_code if isinstance(error, httpx.HTTPStatusError) else 0
        if status == httpx.codes.UNAUTHORIZED and "/v1/control/" in str(error):
            raise RunError(f"the hub {self.hub.address} does not know this operator's token") from None
        text = f"the hub {self.hub.address} does not answer ({type(error).__name__})"
        if "certificate" in str(error).lower():
            raise RunError(
                f"the hub {self.hub.address} has a certificate that this operator's authority did not sign; nothing was sent"
            ) from None
        if status:
            text = f"the hub {self.hub.address} refused a call (status {status})"
            self._drop()
        if status or isinstance(error, httpx.ConnectError):
            # A hub that went away may have lost requests and answers that were on their way through it. Asked again,
            # a site gives the same bytes and is charged once.
            for left in waiting.values():
                left.sent = ""
        log.debug("%s: %s", text, error)
        return text

    def _running(self) -> _Task:
        """The Flower run that this process drives; a new one if there is none."""
        if self._task is not None:
            return self._task
        self._nodes_at = 0.0
        fab = Fab(hash_str=application_hash(), content=application())
        run = int(self.hub.control.StartRun(StartRunRequest(fab=fab)).run_id)
        with contextlib.closing(self.hub.runtime()) as client:
            for _ in range(50):
                found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
                if not found.token:
                    raise RunError(f"the hub {self.hub.address} gave this run to another coordinator; start again")
                own = self.hub.runtime(found.token)
                own.PullTaskInput(PullTaskInputRequest())
                if found.task.run_id == run:
                    break
                # Left over by a coordinator that was killed between two calls: it is ended, not taken up.
                own.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.FAILED, details="left over"))
                own.close()
            else:
                raise RunError(f"the hub {self.hub.address} has too many runs left over")
        self._task = _Task(run, own)
        threading.Thread(target=_beats, args=(self._task,), daemon=True).start()
        return self._task

    def _drop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.beat.set()
            task.client.close()

    def _end(self, status: str) -> None:
        task = self._task
        if task is None:
            return
        with contextlib.suppress(httpx.HTTPError, ValueError, SutureError):
            task.client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=""))
        self._drop()

    def _look(self, waiting: Mapping[str, _Waiting]) -> None:
        """Who is connected, every second while somebody is waited for. A site that came up anew is asked anew."""
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

    def _push(self, task: _Task, waiting: Mapping[str, _Waiting], until: float) -> None:
        ready = {
            site: left
            for site, left in waiting.items()
            if not left.sent and site in self._nodes and self._nodes[site].status == "online"
        }
        if not ready:
            return
        messages = {site: self._message(task, site, left.data, until) for site, left in ready.items()}
        answer = task.client.PushMessages(
            PushAppMessagesRequest(
                messages_list=[message_to_proto(remove_content_from_message(m)) for m in messages.values()],
                message_object_trees=[get_object_tree(m) for m in messages.values()],
            )
        )
        objects = {key: value for m in messages.values() for key, value in get_all_nested_objects(m).items()}
        for object_id in answer.objects_to_push:
            content = objects[object_id].deflate()
            self.bytes_down += len(content)
            task.client.PushObject(
                PushObjectRequest(
                    node=Node(node_id=SUPERLINK_NODE_ID),
                    run_id=task.run,
                    session_id=answer.session_id,
                    object_id=object_id,
                    object_content=content,
                )
            )
        for (site, left), message_id in zip(ready.items(), answer.message_ids, strict=True):
            left.sent, left.to = message_id, self._nodes[site].last_activated_at
            left.why = "it was asked and has not answered"

    def _message(self, task: _Task, site: str, data: bytes, until: float) -> Message:
        metadata = Metadata(
            run_id=task.run,
            message_id="",
            src_node_id=SUPERLINK_NODE_ID,
            dst_node_id=self._nodes[site].node_id,
            reply_to_message_id="",
            group_id="",
            created_at=time.time(),
            ttl=max(1.0, until - time.monotonic()),
            message_type="query",
        )
        message = make_message(metadata=metadata, content=parcel(data))
        message.metadata.__dict__["_message_id"] = message.object_id
        return message

    def _pull(self, task: _Task, waiting: Mapping[str, _Waiting]) -> dict[str, bytes | SutureError]:
        asked = {left.sent: site for site, left in waiting.items() if left.sent}
        if not asked:
            return {}
        found = task.client.PullMessages(PullAppMessagesRequest(message_ids=list(asked)))
        came: dict[str, bytes | SutureError] = {}
        for head, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            site = asked.get(head.metadata.reply_to_message_id)
            if site is None:
                continue  # late, twice, or nobody's: not taken
            try:
                came[site] = self._open(task, head, tree)
            except _Again as again:
                waiting[site].sent, waiting[site].why = "", str(again)
            except Refused as error:
                came[site] = RunError(f"site {site!r}: {error}")
        return came

    def _open(self, task: _Task, head: Any, tree: Any) -> bytes:
        if head.HasField("error"):
            raise _Again(str(head.error.reason)[:200])
        node = Node(node_id=SUPERLINK_NODE_ID)
        until = time.monotonic() + 10.0

        def fetch(object_id: str) -> bytes:
            while True:
                found = task.client.PullObject(PullObjectRequest(node=node, run_id=task.run, object_id=object_id))
                if found.object_found and found.object_available:
                    self.bytes_up += len(found.object_content)
                    return bytes(found.object_content)
                if not found.object_found or time.monotonic() > until:
                    raise _Again("its answer did not arrive whole")
                time.sleep(FASTEST)

        message_id = head.metadata.message_id
        message = pull(tree, message_id, fetch, LARGEST_ANSWER)
        task.client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=node, run_id=task.run, message_object_id=message_id)
        )
        if not message.has_content():
            raise _Again("it sent an answer without content")
        return unwrapped(message.content)


class _Again(Exception):
    """An answer that cannot be used; the request is sent again."""


def _beats(task: _Task) -> None:
    """Tell the hub that the task is alive, until it is dropped."""
    while not task.beat.wait(BEAT_SECONDS):
        with contextlib.suppress(Exception):  # the main loop meets the same trouble and deals with it
            task.client.SendTaskHeartbeat(SendTaskHeartbeatRequest())


def connected(names: Iterable[str], nodes: Mapping[str, Any]) -> list[str]:
    """The names whose site is connected now."""
    return [name for name in names if name in nodes and nodes[name].status == "online"]
