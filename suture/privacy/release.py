"""A release: what leaves a site, the event that says what it cost, and the receipt that says it was paid.

There is no other way out. A release without an event that the accountants know, or with a receipt for another event,
cannot be built: an unknown cost fails closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import NDArray

from suture.errors import PrivacyError
from suture.privacy.chain import Receipt
from suture.privacy.events import event_to_text


@dataclass(frozen=True, eq=False)
class Release:
    """Arrays by name, the privacy event of computing them, and the ledger's receipt.

    >>> from dp_accounting import GaussianDpEvent
    >>> from suture.privacy.ledger import Budget, Ledger
    >>> ledger = Ledger.open(None, "boston")
    >>> ledger.open_study("cardio", Budget(8.0, 1e-5, "pld"))
    >>> receipt = ledger.charge("cardio", 1, GaussianDpEvent(2.0), b"round 1")
    >>> Release({"sum": np.zeros(3)}, GaussianDpEvent(2.0), receipt).receipt.entry
    2
    """

    payload: Mapping[str, NDArray[Any]]
    event: DpEvent
    receipt: Receipt

    def __post_init__(self) -> None:
        text = event_to_text(self.event)  # UnknownEvent for a cost that is not known
        if not isinstance(self.receipt, Receipt):
            raise PrivacyError(f"expected the ledger's receipt, found {type(self.receipt).__name__}: charge first")
        if self.receipt.event != text:
            raise PrivacyError(
                f"entry {self.receipt.entry} of study {self.receipt.study!r} paid for {self.receipt.event}, but this "
                f"release "
                f"says it is {text}; nothing may leave"
            )
        for name, array in self.payload.items():
            if not isinstance(name, str) or not isinstance(array, np.ndarray):
                raise PrivacyError(f"expected arrays by name in a release, found {type(array).__name__} under {name!r}")
        object.__setattr__(self, "payload", dict(self.payload))
