"""A site on the network: asks the hub for requests over Flower's Fleet API, lets the handler
answer, and sends the answer.

This is a SuperNode with one difference: nothing that arrives is ever installed, imported or run.
Requests go to the site's own `Handler`. The site opens every connection (outbound only), knows the
hub by its certificate, and is known to it by its own key. It outlives the hub: when the hub is away
the site keeps trying, ever more slowly.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path

from suture.errors import Refused, RunError
from suture.network.certificates import read_key, trusting
from suture.network.flower import BEAT_SECONDS, Fleet, Message, httpx
from suture.network.node.config import SiteSettings
from suture.network.node.handler import Handler
from suture.privacy.files import write_whole

log = logging.getLogger("suture.site")
FASTEST = 0.02
HELD = 0.5
LONGEST_WAIT = 30.0


class SiteNode:
    """One site's connection. `serve` runs until `stop`."""

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
        self.busy = False

    def stop(self) -> None:
        """End after the request that is being answered."""
        self._stop.set()

    def end(self) -> None:
        """End now, or after the request that is being answered."""
        self.stop()
        if not self.busy:
            os._exit(0)

    def serve(self) -> None:
        """Ask and answer until stopped; a hub that is away is tried again, ever later."""
        threading.Thread(target=self._beats, daemon=True).start()
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
        """The number that the hub gave this site when it last connected."""
        try:
            return int(self._node_file.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None

    def _beats(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            if self._node is None:
                continue
            try:
                self._fleet.beat()
            except Exception as error:  # the main loop meets the same trouble and deals with it
                log.debug("no heartbeat: %s", _said(error))

    def _once(self) -> bool:
        """Answer one request if there is one."""
        request = self._fleet.next()
        if self.handler.status.get("connection") != "connected":
            self.handler.note(connection="connected")
        if request is None:
            return False
        self.busy = True
        try:
            answered = self.handler.answer(request.data, self._fleet.application(request.run))
            self._unsent = (request.reply(answered), request.run)
            self._send_again()
        finally:
            self.busy = False
        return True

    def _send_again(self) -> None:
        """Send the answer that waits, if any; one that the hub refuses is dropped."""
        if self._unsent is None:
            return
        try:
            self._send(*self._unsent)
        except httpx.HTTPStatusError:
            self._unsent = None
            raise
        self._unsent = None

    def _send(self, reply: Message, run: int) -> None:
        self._fleet.send(reply, run)

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
