"""The hospital: rows on one side, releases on the other, the ledger in between.

`Hospital` holds a site's rows, its secret and its ledger. `Member` is its part in one training: the noise it adds, the
state it keeps, the account its ledger charges. A method object arrives as an argument; nothing here knows which one.

Order of every step, which is what makes the promise hold: (1) the event is known before rows are touched; (2) the
ledger is charged and durable, or `BudgetExhausted`; (3) only then is anything computed that leaves (the fingerprint, a
keyed hash of the rows among other things, is computed before, and stays); (4) what leaves is a `Release` that carries
the event. See docs/design.md, "One release, one fingerprint, one charge".
"""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Protocol, cast

import dp_accounting
import numpy as np
from numpy.typing import NDArray

from suture.errors import BudgetExhausted, RunError, SutureError
from suture.privacy.ledger import Ledger
from suture.privacy.mechanisms import derive
from suture.privacy.release import Release
from suture.privacy.unit import Patients
from suture.protection.envelope import seal, unseal
from suture.site.cohort import SiteData
from suture.site.software import software

Arrays = Mapping[str, NDArray[Any]]


class SiteMethod(Protocol):
    """The part of a method that a site runs."""

    @property
    def name(self) -> str:
        """The method's name."""

    def site_event(self, patients: int, noise: float | None) -> dp_accounting.DpEvent:
        """What a step costs."""

    def site_step(
        self, data: Patients, own: dict[str, NDArray[Any]], message: Arrays, noise: float | None, key: bytes
    ) -> tuple[Arrays, dict[str, NDArray[Any]]]:
        """What leaves, and the site's own state."""

    def predict(
        self, state: dict[str, NDArray[Any]], own: dict[str, NDArray[Any]], x: NDArray[np.float32], site: str
    ) -> NDArray[np.float32]:
        """Risk for encoded rows."""


class PhasedSiteMethod(Protocol):
    """The part of a method whose cost depends on what the message asks for."""

    def message_event(self, message: Arrays, patients: int, noise: float | None) -> dp_accounting.DpEvent:
        """What answering this message costs."""


@dataclass
class Hospital:
    """One site: its rows, its secret, and the ledger (for pooled training: the ledgers) that must pay."""

    name: str
    data: SiteData
    ledgers: tuple[Ledger, ...]
    secret: bytes
    region: str = ""

    @property
    def patients(self) -> int:
        """The number of training patients, which the study takes as public."""
        return self.data.train.patients

    @cached_property
    def _content(self) -> bytes:
        return self.data.train.fingerprint()


@dataclass(frozen=True)
class _Asked:
    """A message read: what it was read for, its arrays, what answering costs, and the fingerprint of the answer."""

    about: tuple[object, ...]
    arrays: Arrays
    event: dp_accounting.DpEvent
    mark: bytes


@dataclass
class Member:
    """A hospital's part in one training; the account must have been opened in its ledger."""

    hospital: Hospital
    account: str
    noise: float | None
    seed: int
    own: dict[str, NDArray[Any]] = field(default_factory=dict)
    new_charges: int = 0
    attempt: int = 0
    """How often this round's release has been masked before: the next one must be another release, with its own noise."""
    _asked: _Asked | None = field(default=None, repr=False)

    @property
    def patients(self) -> int:
        """The public number of training patients."""
        return self.hospital.patients

    def charged(self) -> bool:
        """Whether a ledger here has ever paid for a round of this account."""
        return any(ledger.rounds_charged(self.account) for ledger in self.hospital.ledgers)

    def _fingerprint(self, method: SiteMethod, message: bytes, round_: int) -> bytes:
        """Everything that determines the release; the software's versions too, because rounding is part of it."""
        own = hashlib.blake2b(seal(self.own)).digest()
        text = f"{method!r} noise={self.noise!r} round={round_} seed={self.seed} {software()}"
        text += f" attempt={self.attempt}" if self.attempt else ""
        content = self.hospital._content
        return derive(self.hospital.secret, "release", text, hashlib.blake2b(message).digest(), own, content)

    def _read(self, method: SiteMethod, message: bytes, round_: int) -> _Asked:
        """The message opened, what answering it costs (decided here from what is asked, not from what the server says it
        costs), and which release it would be. Asked whether it can pay and then to step, a site reads a message once.
        """
        about = (method, message, round_, self.attempt, self.own)
        if self._asked is not None and all(a is b for a, b in zip(self._asked.about, about, strict=True)):
            return self._asked
        opened = unseal(message)
        if _is_phased(type(method)):
            event = cast(PhasedSiteMethod, method).message_event(opened, self.hospital.patients, self.noise)
        else:
            event = method.site_event(self.hospital.patients, self.noise)
        self._asked = _Asked(about, opened, event, self._fingerprint(method, message, round_))
        return self._asked

    def can_pay(self, method: SiteMethod, message: bytes, round_: int) -> bool:
        """Whether the ledger would accept the next step's charge."""
        asked = self._read(method, message, round_)
        return all(ledger.can_pay(self.account, asked.event, asked.mark) for ledger in self.hospital.ledgers)

    def step(self, method: SiteMethod, message: bytes, round_: int) -> bytes:
        """Pay, train, and seal what leaves."""
        site = self.hospital
        asked = self._read(method, message, round_)
        self._asked = None
        receipts = [ledger.charge(self.account, round_, asked.event, asked.mark) for ledger in site.ledgers]
        self.new_charges += sum(not receipt.repeated for receipt in receipts)
        key = derive(site.secret, "randomness", asked.mark)
        try:
            payload, self.own = method.site_step(site.data.train, self.own, asked.arrays, self.noise, key)
        except SutureError:
            raise
        except Exception as error:
            # Its name only: the words of an error from inside a library may hold a value, and this message travels.
            raise RunError(
                f"site {site.name!r}, round {round_}, local training ({method.name}) failed: {fault(error)}"
            ) from error
        if not all(np.isfinite(array).all() for array in payload.values() if array.dtype.kind == "f"):
            raise RunError(
                f"site {site.name!r}, round {round_}: training diverged (the update is not finite); lower method.rate"
            )
        release = Release(payload, asked.event, receipts[0])
        return seal(release.payload)

    def spent(self) -> float:
        """Epsilon proven for this account so far, by the ledger's own accountant."""
        return max(ledger.spent(self.account) for ledger in self.hospital.ledgers)

    def scores(
        self, method: SiteMethod, state: dict[str, NDArray[Any]]
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Labels and risks of the site's test patients. Simulation only: exact, uncharged, stated as not covered."""
        test = self.hospital.data.test
        if test is None:
            return np.zeros(0, np.int32), np.zeros(0, np.float32)
        return test.y, method.predict(state, self.own, test.x, self.hospital.name)


def fault(error: Exception) -> str:
    """What kind of error and where in the code, without its words, which may hold a patient's value.

    >>> try:
    ...     float("172 cm")
    ... except ValueError as error:
    ...     fault(error).split(" at ")[0]
    'ValueError'
    """
    places = traceback.extract_tb(error.__traceback__)
    where = f"{Path(places[-1].filename).name}:{places[-1].lineno}" if places else "an unknown place"
    return f"{type(error).__name__} at {where}"


@cache
def _is_phased(kind: type) -> bool:
    """A check against a protocol is slow, and this one is made at every step of every site."""
    return hasattr(kind, "message_event")


def refusal(site: str, round_: int) -> BudgetExhausted:
    """The error for a round that a site cannot pay for."""
    return BudgetExhausted(f"budget spent at {site!r}: round {round_} would cost more than the study promised")
