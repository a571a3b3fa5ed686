"""All that Suture needs of Flower; the only module that imports `flwr`.

Flower carries bytes between a coordinator, a hub and sites. It is imported so that it reports to
nobody: no telemetry, no check for updates, no log of its own. A pinned version's own modules are
used (its Control, Runtime and Fleet clients and the SuperLink's application), not its command
lines, so that an upgrade of Flower changes this file and no other. Importing it without Flower
raises `MissingExtra`.

Bytes travel as one `RecordDict` of `ConfigRecord`s, each with a piece of them. Flower stores a
message as a tree of objects that are pushed and pulled one by one, so one small record is the
cheapest shape; pieces keep any single object far below what a server must hold in memory at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import os
import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from suture.errors import MissingExtra, Refused, RunError
from suture.network.certificates import public_pem, trusting

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
if find_spec("flwr") is None:
    raise MissingExtra("a federation over a network needs Flower: pip install 'suture[flower]'")

import httpx as httpx  # it comes with Flower: other modules import it from here
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from flwr.app import ConfigRecord, Metadata, RecordDict
from flwr.app import Message as Message
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, SUPERLINK_NODE_ID, SubStatus
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto import control_pb2, fleet_pb2, runtime_pb2
from flwr.proto.fab_pb2 import Fab
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.message_pb2 import Message as MessageHead
from flwr.proto.node_pb2 import Node
from flwr.proto.node_pb2 import NodeInfo as NodeInfo
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
BEAT_SECONDS = HEARTBEAT_DEFAULT_INTERVAL * 0.6
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
        """Close the connection."""
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
                PushObjectRequest(**where, object_id=key, object_content=content)
            )
        return answer

    def _pull(self, run: int, message_id: str, tree: ObjectTree, most: int) -> Message:
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
        asked = PullObjectRequest(node=self._node, run_id=run, object_id=object_id)
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
            ConfirmMessageReceivedRequest(node=self._node, run_id=run, message_object_id=message_id)
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

    def answers(self, message_ids: Iterable[str]) -> list[tuple[str, MessageHead, ObjectTree]]:
        """What has come in: the id that each replies to, and what `read` needs."""
        asked = runtime_pb2.PullAppMessagesRequest(message_ids=list(message_ids))
        found = self._client.PullMessages(asked)
        pairs = zip(found.messages_list, found.message_object_trees, strict=True)
        return [(head.metadata.reply_to_message_id, head, tree) for head, tree in pairs]

    def read(self, head: MessageHead, tree: ObjectTree) -> bytes:
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
        """Tell the hub that the task is alive."""
        self._client.SendTaskHeartbeat(runtime_pb2.SendTaskHeartbeatRequest())

    def claim(self) -> None:
        """Take the task up, so that no other coordinator gets it."""
        self._client.PullTaskInput(runtime_pb2.PullTaskInputRequest())

    def end(self, *, failed: bool = False) -> None:
        """End the Flower run."""
        status, details = (SubStatus.FAILED, "left over") if failed else (SubStatus.COMPLETED, "")
        output = runtime_pb2.PushTaskOutputRequest(sub_status=status, details=details)
        self._client.PushTaskOutput(output)


class _Bearer:
    """Puts the operator's token on every request."""

    def __init__(self, token: str) -> None:
        self._token = token

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        """Add the header."""
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
        """Close the connection."""
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
        """Enrol a site's public key (PEM)."""
        self._control.RegisterNode(control_pb2.RegisterNodeRequest(public_key=public, name=name))

    def unregister(self, node: NodeInfo) -> None:
        """Forget a key."""
        self._control.UnregisterNode(control_pb2.UnregisterNodeRequest(node_id=node.node_id))

    def runs(self) -> list[dict[str, str]]:
        """The Flower runs, oldest first."""
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


class Request:
    """A request as it arrived at a site; without data where it could not be read."""

    def __init__(self, message: Message, data: bytes) -> None:
        self.run, self.data = message.metadata.run_id, data
        self._message = message

    def reply(self, data: bytes) -> Message:
        """The answer, ready to be sent."""
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
        """Disconnect a node."""
        self._client.DeactivateNode(fleet_pb2.DeactivateNodeRequest(node_id=node_id))

    def beat(self) -> None:
        """Tell the hub that the site is there."""
        self._client.SendNodeHeartbeat(
            SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        )

    def next(self) -> Request | None:
        """The next request, if there is one."""
        found = self._client.PullMessages(fleet_pb2.PullMessagesRequest(node=self._node))
        if not found.messages_list:
            return None
        head = message_from_proto(found.messages_list[0])
        run, message_id = head.metadata.run_id, head.metadata.message_id
        try:
            message = self._pull(run, message_id, found.message_object_trees[0], self._largest)
            request = Request(message, unwrapped(message.content))
        except Refused as error:
            logging.getLogger("suture.site").warning("a request was not read: %s", error)
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

    config = SuperLinkLifespanConfig(
        control_address="",
        health_server_address=None,
        host="",
        port=0,
        insecure=False,
        certificates=None,
        superexec_auth_secret=bytes.fromhex(secret),
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
        database=database,
        isolation=ISOLATION_MODE_PROCESS,
        runtime_dependency_install=False,
    )
    silence()
    app = create_app(config, SuperLinkLifespan)
    # Event logs, licences and traces of Flower's commercial edition: each does nothing here and
    # costs a third of a millisecond per request. Authentication, translation and errors stay.
    app.user_middleware = [kept for kept in app.user_middleware if not _idle(kept.cls)]
    return app


def _idle(middleware: object) -> bool:
    return isinstance(middleware, type) and middleware.__name__ in _IDLE
