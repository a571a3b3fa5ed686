import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent, UnsupportedDpEvent

from suture.errors import PrivacyError, UnknownEvent
from suture.privacy.ledger import Budget, Ledger
from suture.privacy.release import Release


@pytest.fixture
def ledger():
    opened = Ledger.open(None, "boston")
    opened.open_study("cardio", Budget(8.0, 1e-5, "pld"))
    return opened


def test_a_release_holds_what_was_paid_for(ledger):
    payload = {"w": np.ones(2)}
    release = Release(payload, GaussianDpEvent(2.0), ledger.charge("cardio", 1, GaussianDpEvent(2.0), b"x"))
    payload["rows"] = np.ones(3)
    assert list(release.payload) == ["w"]
    with pytest.raises(AttributeError):
        release.event = NonPrivateDpEvent()


def test_without_a_known_event_and_its_own_receipt_there_is_no_release(ledger):
    receipt = ledger.charge("cardio", 1, GaussianDpEvent(2.0), b"x")
    with pytest.raises(UnknownEvent):
        Release({}, UnsupportedDpEvent(), receipt)
    with pytest.raises(UnknownEvent):
        Release({}, None, receipt)
    with pytest.raises(PrivacyError, match="charge first"):
        Release({}, GaussianDpEvent(2.0), None)
    with pytest.raises(PrivacyError, match="paid for"):
        Release({}, GaussianDpEvent(1.0), receipt)
    with pytest.raises(PrivacyError, match="arrays by name"):
        Release({"mean": 3.0}, GaussianDpEvent(2.0), receipt)
