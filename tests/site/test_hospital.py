"""A site's part in a training: pay first, answer through the door, and answer the same request the
same way for ever."""

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent

from suture import cohorts
from suture.errors import BudgetExhausted, PrivacyError, Reason, Refused, RunError
from suture.privacy.ledger.ledger import Budget, Ledger
from suture.privacy.noise.mechanisms import Counts
from suture.privacy.noise.source import seeded_key
from suture.privacy.unit import Patients
from suture.protection.envelope import seal, unseal
from suture.schema.message import Field
from suture.site.cohort import load
from suture.site.hospital import Hospital, Member


class Counting:
    """A method that counts patients, with noise, and keeps at the site how often it did."""

    name = "counting"
    tests = False

    def __init__(self, noise=20.0):
        self.noise, self.touched = noise, 0

    def expects(self, round_, site):
        return {"about": Field("<f4", (1,), 0, 100)}

    def round_event(self, round_, site, size, noise):
        return GaussianDpEvent(self.noise) if self.noise else NonPrivateDpEvent()

    def site_step(self, session, own, message):
        def each(data):
            self.touched += 1
            first = np.zeros(data.rows)
            first[data.starts[:-1]] = 1.0
            return np.ones((data.rows, 1)), first

        found = session.release("count", Counts(1, 1.0, 20.0), each)
        return {"count": found}, {"seen": own.get("seen", np.zeros(1)) + 1}


class Exact(Counting):
    """A method that sends rows as they are."""

    def site_step(self, session, own, message):
        return session.unprotected("rows", lambda data, key: {"x": data.x}), own


class Unsealed(Counting):
    """A method that tries to send an array of its own."""

    def site_step(self, session, own, message):
        return {"count": np.zeros(1)}, own


class Failing(Counting):
    """A method that fails with a value in the error's words."""

    def site_step(self, session, own, message):
        raise ValueError("172 cm")


def hospital(**options):
    cohort = cohorts.load("cardio", 3, patients=300)
    site = cohort.sites[0]
    data = load(
        site.table, cohort.schema, cohort.outcome, site=site.name, holdout=0.0, split_key="x"
    )
    ledger = Ledger.open(None, site.name)
    ledger.open_study("s/counting", Budget(3.0, 1e-5, "pld"))
    return Hospital(site.name, data, (ledger,), seeded_key(1), **options)


@pytest.fixture
def member():
    return Member(hospital(), "s/counting", 20.0, 1)


@pytest.fixture
def keeping():
    return Member(hospital(keeps=True), "s/counting", 20.0, 1)


def message(about=1.0):
    return seal({"about": np.array([about], np.float32)})


def charges(member):
    return [entry.event for entry in member.hospital.ledgers[0].entries()]


def lose_a_patient(member):
    """The same site with another table under the same edition, as after an erasure."""
    data = member.hospital.data
    train = data.train
    end = int(train.starts[-2])
    fewer = Patients(train.x[:end], train.y[:end], train.starts[:-1], None, train.declared)
    object.__setattr__(data, "train", fewer)
    member.hospital.__dict__.pop("_content", None)


def test_it_pays_what_the_method_says_before_anything_is_computed(member):
    class Late(Counting):
        def site_step(self, session, own, sent):
            assert charges(member) == ['{"event":"gaussian","noise":20.0}']
            return super().site_step(session, own, sent)

    assert member.can_pay(Late(), message(), 1)
    assert charges(member) == []
    member.step(Late(), message(), 1)
    assert member.new_charges == 1
    assert member.charged()


def test_what_cannot_be_paid_touches_no_row(member):
    method, round_ = Counting(), 1
    while member.can_pay(method, message(), round_):
        member.step(method, message(), round_)
        round_ += 1
    with pytest.raises(BudgetExhausted):
        member.step(method, message(), round_)
    assert method.touched == len(charges(member)) == round_ - 1


def test_a_release_belongs_to_its_round_message_seed_fold_plan_session_and_edition(member):
    found = set()

    def answer(sent=None, round_=1):
        member.own = {}
        found.add(int(unseal(member.step(Counting(), sent or message(), round_))["count"][0]))
        return member.new_charges

    assert answer() == 1
    assert answer() == 1  # the same again is paid for
    assert len(found) == 1
    assert answer(round_=2) == 2
    assert answer(message(2.0)) == 3
    for number, (name, value) in enumerate(
        {"seed": 2, "fold": 1, "plan": "p", "session": b"s"}.items(), 4
    ):
        setattr(member, name, value)
        assert answer() == number
    member.hospital.edition = 2
    assert answer() == 8
    assert len(found) > 4  # other noise; two of eight draws of deviation 20 may be equal


def test_what_the_site_kept_moves_the_noise_and_not_the_charge(member):
    first = member.step(Counting(), message(), 1)
    found = {first}
    for seen in range(2, 6):
        member.own = {"seen": np.full(1, float(seen))}
        found.add(member.step(Counting(), message(), 1))
    assert len(found) > 1
    assert member.new_charges == 1


def test_an_answer_is_kept_and_given_again_whatever_has_become_of_the_rows(keeping):
    method = Counting()
    assert keeping.repeated(method, message(), 1) is None
    first = keeping.step(method, message(), 1)
    own = keeping.own
    lose_a_patient(keeping)
    again = Member(keeping.hospital, "s/counting", 20.0, 1)  # as after a restart: no state
    assert again.step(method, message(), 1) == first
    assert again.repeated(method, message(), 1) == first
    np.testing.assert_array_equal(again.own["seen"], own["seen"])
    assert again.new_charges == 0
    assert method.touched == 1
    assert len(charges(keeping)) == 1


def test_without_keeping_a_repeat_is_computed_again_and_not_charged(member):
    method = Counting()
    first = member.step(method, message(), 1)
    member.own = {}
    assert member.step(method, message(), 1) == first
    assert method.touched == 2
    assert member.new_charges == 1
    assert member.repeated(method, message(), 1) is None


def test_a_message_that_was_charged_but_not_answered_is_not_charged_again(keeping):
    with pytest.raises(RunError):
        keeping.step(Failing(), message(), 1)
    assert len(charges(keeping)) == 1
    method = Counting()
    keeping.step(method, message(), 1)
    assert method.touched == 1
    assert len(charges(keeping)) == 1


@pytest.mark.parametrize(
    "sent",
    [
        {"about": np.array([101.0], np.float32)},
        {"about": np.array([np.nan], np.float32)},
        {"about": np.array([np.inf], np.float32)},
        {"about": np.array([1.0])},
        {"about": np.ones(2, np.float32)},
        {"about": np.ones(1, np.float32), "more": np.ones(1, np.float32)},
        {},
    ],
)
def test_a_message_out_of_range_is_refused_before_rows_or_ledger(keeping, sent):
    method = Counting()
    with pytest.raises(Refused) as refused:
        keeping.step(method, seal(sent), 1)
    assert refused.value.reason is Reason.MESSAGE
    assert method.touched == 0
    assert charges(keeping) == []


def test_a_release_that_is_not_private_is_refused_where_the_account_promises(member):
    method = Exact(noise=0.0)
    assert not member.can_pay(method, message(), 1)
    with pytest.raises(BudgetExhausted):
        member.step(method, message(), 1)
    with pytest.raises(PrivacyError, match="without protection"):  # a cost that is not what it does
        member.step(Exact(), message(), 1)


def test_where_nothing_is_promised_rows_may_leave(member):
    member.hospital.ledgers[0].open_study("s/free", Budget(np.inf, 1e-5, "pld"))
    free = Member(member.hospital, "s/free", None, 1)
    found = unseal(free.step(Exact(noise=0.0), message(), 1))
    np.testing.assert_array_equal(found["x"], member.hospital.data.train.x)
    assert free.spent() == np.inf


def test_only_what_the_door_sealed_leaves(member):
    with pytest.raises(PrivacyError, match="did not pass the door"):
        member.step(Unsealed(), message(), 1)
    assert member.own == {}


def test_an_error_from_inside_tells_no_value(member):
    with pytest.raises(RunError) as failed:
        member.step(Failing(), message(), 1)
    assert "172" not in str(failed.value)
    assert "ValueError at test_hospital.py" in str(failed.value)
