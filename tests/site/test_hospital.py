"""A site's part in a training: what it is asked is read once, and a release belongs to what it was asked for."""

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent

from suture import cohorts
from suture.errors import BudgetExhausted
from suture.privacy.ledger import Budget, Ledger
from suture.privacy.mechanisms import seeded_key
from suture.protection.envelope import seal, unseal
from suture.site.cohort import load
from suture.site.hospital import Hospital, Member


class Asked:
    """A method whose cost is what the message says, and which keeps a count at the site."""

    name = "asked"

    def message_event(self, message, patients, noise):
        level = float(message["noise"][0])
        return GaussianDpEvent(level) if level else NonPrivateDpEvent()

    def site_step(self, data, own, message, noise, key):
        seen = own.get("seen", np.zeros(1)) + 1
        return {"seen": seen, "key": np.frombuffer(key[:8], np.uint8)}, {"seen": seen}


@pytest.fixture
def member():
    cohort = cohorts.load("cardio", 3, patients=300)
    site = cohort.sites[0]
    data = load(site.table, cohort.schema, cohort.outcome, site=site.name, holdout=0.0, split_key="x")
    ledger = Ledger.open(None, site.name)
    ledger.open_study("s/asked", Budget(3.0, 1e-5, "pld"))
    return Member(Hospital(site.name, data, (ledger,), seeded_key(1)), "s/asked", 5.0, 1)


def message(noise):
    return seal({"noise": np.array([noise])})


def test_what_is_charged_is_what_the_message_asks_for(member):
    method, asked, other = Asked(), message(5.0), message(9.0)
    assert member.can_pay(method, asked, 1)
    member.step(method, other, 1)  # asked for one thing, then for another: the other is charged
    ledger = member.hospital.ledgers[0]
    assert [entry.event for entry in ledger.entries()] == ['{"event":"gaussian","noise":9.0}']


def test_a_release_depends_on_the_round_the_message_the_attempt_and_what_the_site_kept(member):
    method, asked = Asked(), message(20.0)
    keys = []
    for round_ in (1, 1, 2):  # the second time the site's own count has moved on
        assert member.can_pay(method, asked, round_)
        keys.append(unseal(member.step(method, asked, round_))["key"].tolist())
    assert member.can_pay(method, asked, 2)
    member.attempt = 1
    keys.append(unseal(member.step(method, asked, 2))["key"].tolist())
    assert len({tuple(key) for key in keys}) == 4
    assert member.new_charges == 4


def test_a_release_that_is_not_private_is_refused_and_nothing_is_charged(member):
    method, free = Asked(), message(0.0)
    assert not member.can_pay(method, free, 1)
    with pytest.raises(BudgetExhausted):
        member.step(method, free, 1)
    assert member.hospital.ledgers[0].entries() == []
