"""What answers at a site: every request is read, checked, answered or refused, and noted in the
site's log.

It knows no transport: bytes and the hash of the app that sent them go in, bytes come out. Whatever
goes wrong, an answer goes out. A refusal is one `Reason` out of a public list: no text, count or
line number leaves, because what went wrong may depend on a row. Answers leave on ticks: at whole
multiples of a time that follows from the declared size of the study that is open. Requests that
open a study, and those that cannot be read, are answered on ticks that are always the same.
"""

from __future__ import annotations

import json
import logging
import math
import time
from datetime import UTC, datetime
from pathlib import Path

from suture.errors import (
    BudgetExhausted,
    CharterError,
    DataError,
    LedgerError,
    Reason,
    Refused,
    RunError,
    StudyError,
    SutureError,
)
from suture.methods.base import Arrays
from suture.network import wire
from suture.network.node.config import STATUS, SiteSettings
from suture.network.node.participant import Participant
from suture.privacy.files import write_whole
from suture.privacy.ledger.chain import RolledBack
from suture.protection.envelope import unseal
from suture.site.hospital import fault

TICK = 0.05
"""Seconds for every 1,000 declared patients."""
log = logging.getLogger("suture.site")


class Handler:
    """Answers one site's requests. ``home`` is the site's folder; a cohort's files and homes are
    relative to ``base``.

    Generated patients have their ledgers under ``ledgers`` (a run's folder), by default the home.
    """

    def __init__(
        self,
        settings: SiteSettings,
        home: Path,
        *,
        base: Path | None = None,
        ledgers: Path | None = None,
    ) -> None:
        self.settings, self.home = settings, home
        self._base, self._ledgers = base or home, ledgers or home
        self._studies: dict[tuple[str, int], Participant] = {}
        self._accepted = {wire.application_hash(), *settings.applications}
        self._answered = self._refused = 0
        self.status: dict[str, object] = {
            "site": settings.name,
            "answered": 0,
            "refused": 0,
            "last_error": None,
        }
        (self._ledgers / "ledgers").mkdir(parents=True, exist_ok=True)

    def answer(self, data: bytes, app: str) -> bytes:
        """One request's answer, or the refusal; both are in the log, and both leave on a tick."""
        begun = time.monotonic()
        tick = self._tick(data)
        answered = self._answer(data, app)
        if tick:
            passed = time.monotonic() - begun
            time.sleep(max(0.0, math.ceil(passed / tick) * tick - passed))
        return answered

    def _tick(self, data: bytes) -> float:
        """Seconds between moments at which answers may leave, whatever the request holds."""
        if self.settings.tick is not None:
            return self.settings.tick
        if self.settings.cohort:
            return 0.0
        known = () if wire.opens(data) else self._studies.values()
        sizes = [found.world.sizes.get(self.settings.name, 1) for found in known]
        return TICK * math.ceil(max(sizes, default=1) / 1000)

    def _answer(self, data: bytes, app: str) -> bytes:
        what = "a request"
        try:
            if app not in self._accepted:
                raise Refused(
                    f"app {app[:16]} is not one that this site accepts; it runs none",
                    Reason.APPLICATION,
                )
            if len(data) > self.settings.largest_message:
                raise Refused(f"a message of {len(data)} bytes", Reason.TOO_LARGE)
            message = wire.unpack(data, request=True)
            given = wire.checked(message)
            what = _named(given)
            header, body = self._dispatch(given, message.body)
        except SutureError as error:
            return self._refuse(what, error)
        except Exception as error:
            # A fault must not leave the coordinator waiting; its words may hold a value.
            text = f"site {self.settings.name!r} failed: {fault(error)}"
            return self._refuse(what, RunError(text))
        log.info("%s: answered, %d bytes", what, len(body))
        self._answered += 1
        shown = {key: given.get(key) for key in ("op", "method", "round", "seed") if key in given}
        self.note(answered=self._answered, **shown)
        return wire.pack(wire.Message({"ok": True, "site": self.settings.name, **header}, body))

    def close(self) -> None:
        """Close every study and its ledger."""
        for participant in self._studies.values():
            participant.close()
        self._studies.clear()

    def _dispatch(self, given: wire.Request, body: bytes) -> tuple[wire.Header, bytes]:
        op = given["op"]
        if op == "open":
            return self._open(given["study"], given["seed"]).opened(), b""
        participant = self._participant(given)
        if op == "witness":
            return participant.witness(given["heads"]), b""
        if op == "join":
            return participant.join(given["sites"], given["vouched"]), b""
        arrays = _arrays(body)
        if op == "step":
            return participant.step(given, body)
        if op == "score":
            return participant.score(given, wire.joined(arrays, given["texts"]))
        return participant.stage(given, body)

    def _open(self, text: str, seed: int) -> Participant:
        made = Participant(self.settings, self.home, text, seed, self._base, self._ledgers)
        key = (made.digest, seed)
        if key not in self._studies:
            # One study at a time: the rows of the one before are dropped, its state is on disk.
            self.close()
            self._studies[key] = made
        return self._studies[key]

    def _participant(self, given: wire.Request) -> Participant:
        """A study that was opened since the site was last started; a coordinator opens it again
        after a restart. Generated patients are new for every seed; real ones are opened once for
        all seeds."""
        for (digest, seed), found in self._studies.items():
            if digest == given["study"] and (seed == given["seed"] or not found.world.generated):
                return found
        raise Refused(
            f"study {given['study'][:16]} with seed {given['seed']} is not open here",
            Reason.NOT_OPEN,
        )

    def _refuse(self, what: str, error: SutureError) -> bytes:
        reason = reason_of(error)
        log.warning("%s: refused (%s, %s): %s", what, reason.name, type(error).__name__, error)
        self._refused += 1
        self.note(refused=self._refused, last_error=f"{what}: {error}")
        return wire.pack(wire.refusal(self.settings.name, reason))

    def note(self, **facts: object) -> None:
        """Change the status, which `suture site status` shows."""
        self.status.update(facts, at=datetime.now(UTC).isoformat(timespec="seconds"))
        try:
            write_whole(self.home / STATUS, json.dumps(self.status).encode())
        except RunError as error:
            log.warning("the status cannot be written: %s", error)


def reason_of(error: SutureError) -> Reason:
    """What a coordinator is told of an error.

    >>> reason_of(DataError("column 'age': 3 rows with text")).name
    'TABLE'
    """
    if isinstance(error, Refused):
        return error.reason
    for kind, reason in _REASONS:
        if isinstance(error, kind):
            return reason
    return Reason.FAULT


_REASONS: tuple[tuple[type[SutureError], Reason], ...] = (
    (BudgetExhausted, Reason.BUDGET),
    (CharterError, Reason.CHARTER),
    (RolledBack, Reason.WITNESS),
    (LedgerError, Reason.LEDGER),
    (DataError, Reason.TABLE),
    (StudyError, Reason.SETTINGS),
)


def _arrays(body: bytes) -> Arrays:
    """The arrays of a request: a body that is no envelope is the sender's fault, not the site's."""
    try:
        return unseal(body)
    except RunError as error:
        raise Refused(str(error), Reason.MESSAGE) from None


def _named(given: wire.Request) -> str:
    """A request in the log."""
    parts = [given["op"]]
    if "method" in given:
        parts += [f"{given['method'][:40]!r}", f"seed {given['seed']}"]
    if "round" in given:
        parts.append(f"round {given['round']}")
    return " ".join(parts)
