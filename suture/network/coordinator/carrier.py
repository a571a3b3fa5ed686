"""A carrier over Flower: the coordinator drives a hub's Runtime API itself, in its own process.

What `flwr run` would give to a ServerApp process, this process does: it starts a run, claims the
run's task with the hub's secret, keeps it alive with heartbeats, pushes messages and pulls answers.
A Suture run does not depend on one Flower run: if the hub was restarted or let the task lapse,
another is started and what is unanswered is asked again. This costs nothing twice, because a site
answers the same request with the same bytes and charges once.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from suture.errors import Refused, RunError, SutureError, TooFewSites
from suture.network.coordinator.remote import Answers
from suture.network.flower import Hub, Incomplete, NodeInfo, Task, httpx
from suture.network.wire import application
from suture.study import Study

log = logging.getLogger("suture.coordinator")
FASTEST, SLOWEST, HELD = 0.005, 0.5, 0.5
NODES_SECONDS = 1.0
BEAT_SECONDS = 10.0


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
        """End the Flower run and disconnect from the hub."""
        self.end()
        self.hub.close()

    def end(self) -> None:
        """End the Flower run."""
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
        log.debug("%s: %s", text, error)
        return text

    def _running(self) -> Task:
        """The Flower run that this process drives; a new one if there is none."""
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
    """Tell the hub that the task is alive, until it is dropped."""
    while not dropped.wait(BEAT_SECONDS):
        with contextlib.suppress(Exception):  # the main loop meets the same trouble
            task.beat()
