"""The front desk of a site: every request is read, checked, answered or refused, and noted in the site's log.

It knows no transport: bytes and the hash of the app that sent them in, bytes out. Whatever goes wrong, an answer goes
out, and it holds no patient's values: errors about rows stay in the site's log, and the coordinator is told only that
there is one.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from suture.engines import wire
from suture.engines.application import application_hash
from suture.engines.settings import SiteSettings
from suture.engines.visit import Visit
from suture.errors import DataError, Refused, RunError, SutureError
from suture.protection.envelope import seal, unseal
from suture.site.hospital import fault
from suture.writing import write_whole

STATUS = "status.json"
log = logging.getLogger("suture.site")


class Desk:
    """One site's desk. ``home`` is the site's folder; a cohort's files and homes are relative to ``base``.

    Generated patients have their ledgers under ``ledgers`` (a run's folder), by default the home.
    """

    def __init__(
        self, settings: SiteSettings, home: Path, *, base: Path | None = None, ledgers: Path | None = None
    ) -> None:
        self.settings, self.home = settings, home
        self._base, self._ledgers = base or home, ledgers or home
        self._visits: dict[tuple[str, int], Visit] = {}
        self._accepted = {application_hash(), *settings.applications}
        self.status: dict[str, Any] = {"site": settings.name, "answered": 0, "refused": 0, "last_error": None}
        (self._ledgers / "ledgers").mkdir(parents=True, exist_ok=True)

    def answer(self, data: bytes, app: str) -> bytes:
        """One request's answer, or the refusal; both are in the log."""
        what = "a request"
        try:
            if app not in self._accepted:
                raise Refused(f"app {app[:16]} is not one that this site accepts; it runs none in any case")
            if len(data) > self.settings.largest_message:
                raise Refused(f"a message of {len(data)} bytes; the largest here is {self.settings.largest_message}")
            message = wire.unpack(data)
            given = wire.checked(message)
            what = _named(given)
            header, body = self._dispatch(given, message.body)
        except SutureError as error:
            return self._refuse(what, error)
        except Exception as error:  # a fault must not leave the coordinator waiting; its words may hold a value
            return self._refuse(what, RunError(f"site {self.settings.name!r} failed: {fault(error)}"))
        log.info("%s: answered, %d bytes", what, len(body))
        self._note(answered=self.status["answered"] + 1, **_shown(given))
        return wire.pack(wire.Message({"ok": True, "site": self.settings.name, **header}, body))

    def close(self) -> None:
        """Let go of every ledger."""
        for visit in self._visits.values():
            visit.close()
        self._visits.clear()

    def _dispatch(self, given: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        op = given["op"]
        if op == "open":
            return self._open(given["study"], given["seed"]).opened(), b""
        visit = self._visit(given)
        if op == "join":
            told = visit.join(given["sites"])
            self._remember(given["study"], visit, given["sites"])
            return told, b""
        if op == "step":
            return visit.step(given, body)
        if op == "score":
            header, found = visit.score(given, wire.joined(dict(unseal(body)), given["texts"]))
            return header, seal(found)
        return visit.stage(given, body)

    def _open(self, text: str, seed: int) -> Visit:
        key = (wire.digest(text), seed)
        if key not in self._visits:
            visit = Visit(self.settings, self.home, text, seed, self._base, self._ledgers)
            # One study at a time: rows of the one before are let go, its state is on the disk.
            self.close()
            self._visits[key] = visit
        return self._visits[key]

    def _visit(self, given: dict[str, Any]) -> Visit:
        """A study that was opened, also before the site was last started."""
        found = next((v for (name, _), v in self._visits.items() if name == given["study"] and _same(v, given)), None)
        if found is not None:
            return found
        for path in sorted(self._memory(given["study"]).glob("join-*.json")):
            known = json.loads(path.read_text(encoding="utf-8"))
            if wire.digest(known["study"]) != given["study"]:
                continue
            if known["seed"] == given["seed"] or not known["generated"]:
                visit = self._open(known["study"], known["seed"])
                if not visit.joined and given["op"] != "join":
                    visit.join(known["sites"])
                return visit
        raise Refused(f"study {given['study'][:16]} with seed {given['seed']} was not opened here; open it first")

    def _memory(self, digest: str) -> Path:
        if not digest.isalnum():
            raise Refused("a study is called by its digest")
        return self.home / "federation" / digest

    def _remember(self, digest: str, visit: Visit, sites: dict[str, int]) -> None:
        folder = self._memory(digest)
        folder.mkdir(parents=True, exist_ok=True)
        known = {"study": visit.text, "seed": visit.seed, "sites": sites, "generated": visit.world.generated}
        write_whole(folder / f"join-{visit.seed}.json", json.dumps(known).encode())

    def _refuse(self, what: str, error: SutureError) -> bytes:
        log.warning("%s: refused (%s): %s", what, type(error).__name__, error)
        self._note(refused=self.status["refused"] + 1, last_error=f"{what}: {error}")
        if isinstance(error, DataError) and not self.settings.cohort:
            error = DataError(
                f"site {self.settings.name!r}: its rows are not what the study's schema declares; what exactly is for the "
                "site's own eyes, in its log"
            )
        return wire.pack(wire.refusal(self.settings.name, error))

    def _note(self, **facts: Any) -> None:
        self.status.update(facts, at=datetime.now(UTC).isoformat(timespec="seconds"))
        try:
            write_whole(self.home / STATUS, json.dumps(self.status).encode())
        except RunError as error:
            log.warning("the status cannot be written: %s", error)


def _same(visit: Visit, given: dict[str, Any]) -> bool:
    """Generated patients are new for every seed; real ones are opened once for all."""
    return visit.seed == given["seed"] or not visit.world.generated


def _named(given: dict[str, Any]) -> str:
    parts = [given["op"]]
    if given["op"] in ("step", "stage", "score"):
        parts += [f"{given['method'][:40]!r}", f"seed {given['seed']}"]
    if "round" in given:
        parts.append(f"round {given['round']}")
    return " ".join(parts)


def _shown(given: dict[str, Any]) -> dict[str, Any]:
    return {key: given[key] for key in ("op", "method", "round", "seed") if key in given}
