"""The hospital: rows on one side, releases on the other, the ledger and the door in between.

`Hospital` holds a site's rows, its secret and its ledger. `Member` is its part in one training: the
noise it adds, the state it keeps, the account its ledger charges. A method object arrives as an
argument; nothing here knows which one.

Order of every step, which is what makes the promise hold: (1) the message is checked against what
the method declares, and the event is known, before rows are touched; (2) an answer that was given
before is given again; (3) the ledger is charged and durable, or `BudgetExhausted`; (4) only then is
anything computed, by the door (`suture/privacy/door.py`); (5) the answer is kept on disk; (6) it
leaves.
"""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray

from suture.errors import BudgetExhausted, RunError, SutureError
from suture.privacy.door import Context, Payload, Session, opened, root_key
from suture.privacy.ledger.chain import TESTED, TRAINED
from suture.privacy.ledger.ledger import Ledger
from suture.privacy.noise.source import Arrays
from suture.privacy.software import software
from suture.protection.envelope import seal, unseal
from suture.schema.message import Field, check_message
from suture.site.cohort import SiteData
from suture.site.sources import Columns

State = Columns  # named arrays that a method keeps between rounds


class SiteMethod(Protocol):
    """The part of a method that a site runs."""

    @property
    def name(self) -> str:
        """The method's name."""

    @property
    def tests(self) -> bool:
        """Whether it works on the patients that are held out."""

    def expects(self, round_: int, site: str) -> Mapping[str, Field]:
        """What a round's message holds."""

    def round_event(self, round_: int, site: str, size: int, noise: float | None) -> DpEvent:
        """What a step costs."""

    def site_step(self, session: Session, own: State, message: Arrays) -> tuple[Payload, State]:
        """What leaves, and the site's own state."""

    def predict(
        self, state: State, own: State, x: NDArray[np.float32], site: str
    ) -> NDArray[np.float32]:
        """Risk for encoded rows."""


@dataclass
class Hospital:
    """One site: its rows, its secret, and the ledger (for pooled training: the ledgers) that must
    pay.

    With ``keeps``, answers are kept on disk. Without it (generated patients, simulation) a repeat
    is computed again.
    """

    name: str
    data: SiteData
    ledgers: tuple[Ledger, ...]
    secret: bytes
    region: str = ""
    edition: int = 1
    keeps: bool = False

    @property
    def patients(self) -> int:
        """The declared number of training patients, which is public."""
        return self.data.train.size

    @cached_property
    def _content(self) -> bytes:
        return self.data.train.fingerprint()

    def serving(self, method: SiteMethod) -> Hospital:
        """The hospital with the patients that a method works on: those who train, or with `tests`
        those who are held out, under the same declared size."""
        if not method.tests:
            return self
        data = self.data
        held = data.test or data.reserved or data.nobody
        held = replace(held, declared=data.train.size)
        return replace(self, data=replace(data, train=held, test=None, reserved=None))


@dataclass
class Member:
    """A hospital's part in one training; the account must have been opened in its ledger."""

    hospital: Hospital
    account: str
    noise: float | None
    seed: int
    plan: str = ""
    fold: int = 0
    own: State = field(default_factory=dict)
    new_charges: int = 0
    session: bytes = b""  # under masks: the digest of the sum's terms
    _context: tuple[tuple[object, ...], Context] | None = field(default=None, repr=False)

    @property
    def patients(self) -> int:
        """The declared number of training patients."""
        return self.hospital.patients

    def charged(self) -> bool:
        """Whether a ledger here has ever paid for a round of this account."""
        return any(ledger.rounds_charged(self.account) for ledger in self.hospital.ledgers)

    def context(self, method: SiteMethod, message: bytes, round_: int) -> Context:
        """What is public about the answer to this message; made once for `can_pay` and `step`."""
        about = (method, message, round_, self.session)
        known = self._context
        if known is None or any(a is not b for a, b in zip(known[0], about, strict=True)):
            site, digest = self.hospital, hashlib.sha256(message).digest()
            known = about, Context(
                self.plan, site.name, site.edition, self.account, method.name, self.seed, self.fold,
                round_, digest, self.session,
            )  # fmt: skip
            self._context = known
        return known[1]

    def _event(self, method: SiteMethod, round_: int) -> DpEvent:
        return method.round_event(round_, self.hospital.name, self.hospital.patients, self.noise)

    def can_pay(self, method: SiteMethod, message: bytes, round_: int) -> bool:
        """Whether the ledger would accept the next step's charge."""
        event, mark = self._event(method, round_), self.context(method, message, round_).mark
        return all(ledger.can_pay(self.account, event, mark) for ledger in self.hospital.ledgers)

    def step(self, method: SiteMethod, message: bytes, round_: int) -> bytes:
        """Answer as before; or pay, let the door compute the answer, keep it, and send it."""
        site, context = self.hospital, self.context(method, message, round_)
        self._context = None
        arrays = unseal(message)
        check_message(arrays, method.expects(round_, site.name))
        mark = context.mark
        kept = site.ledgers[0].kept(mark.hex()) if site.keeps else None
        if kept is not None:
            answer = unseal(kept)
            own = {name: array for name, array in answer.items() if name.startswith("own/")}
            self.own = {name.removeprefix("own/"): array for name, array in own.items()}
            return answer["answer"].tobytes()
        event = self._event(method, round_)
        what = TESTED if method.tests else TRAINED
        receipts = [
            ledger.charge(self.account, round_, event, mark, what=what) for ledger in site.ledgers
        ]
        self.new_charges += sum(not receipt.repeated for receipt in receipts)
        root = root_key(site.secret, context, self.own, site._content, software())
        rows, noise = site.data.train, self.noise
        session = Session(rows, event, root, round_=round_, site=site.name, noise=noise)
        try:
            payload, own = method.site_step(session, self.own, arrays)
        except SutureError:
            raise
        except Exception as error:
            # Its name only: the words of an error from inside a library may hold a value.
            raise RunError(
                f"site {site.name!r}, round {round_}, local training ({method.name}) failed: "
                f"{fault(error)}"
            ) from error
        sealed = seal(finite(opened(payload), site.name, round_))
        if site.keeps:
            state = {f"own/{name}": array for name, array in own.items()}
            site.ledgers[0].keep(
                mark.hex(), seal({"answer": np.frombuffer(sealed, np.uint8), **state})
            )
        self.own = own
        return sealed

    def repeated(self, method: SiteMethod, message: bytes, round_: int) -> bytes | None:
        """The answer that this very message had, if it is kept; nothing is computed."""
        if not self.hospital.keeps:
            return None
        kept = self.hospital.ledgers[0].kept(self.context(method, message, round_).mark.hex())
        return None if kept is None else unseal(kept)["answer"].tobytes()

    def spent(self) -> float:
        """Epsilon proven for this account so far, by the ledger's own accountant."""
        return max(ledger.spent(self.account) for ledger in self.hospital.ledgers)

    def scores(
        self, method: SiteMethod, state: State
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Labels and risks of the test patients: exact, not charged; for simulations only."""
        test = self.hospital.data.test
        if test is None:
            return np.zeros(0, np.int32), np.zeros(0, np.float32)
        return test.y, method.predict(state, self.own, test.x, self.hospital.name)


def fault(error: Exception) -> str:
    """The kind of error and where in the code, without its words, which may hold a patient's value.

    >>> try:
    ...     float("172 cm")
    ... except ValueError as error:
    ...     fault(error).split(" at ")[0]
    'ValueError'
    """
    places = traceback.extract_tb(error.__traceback__)
    last = places[-1] if places else None
    where = f"{Path(last.filename).name}:{last.lineno}" if last else "an unknown place"
    return f"{type(error).__name__} at {where}"


def finite(payload: State, site: str, round_: int) -> State:
    """The answer, if finite. What diverged did so after the noise: saying so costs nothing."""
    if not all(np.isfinite(array).all() for array in payload.values() if array.dtype.kind == "f"):
        raise RunError(
            f"site {site!r}, round {round_}: training diverged (the update is not finite); lower "
            "method.rate"
        )
    return payload


def refusal(site: str, round_: int) -> BudgetExhausted:
    """The error for a round that a site cannot pay for."""
    return BudgetExhausted(
        f"budget spent at {site!r}: round {round_} would cost more than the study promised"
    )
