"""The ledger under fire: edits, cuts, clocks, full and read-only disks, kills, and many writers at
once."""

import json
import os
import random
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from dp_accounting import (
    GaussianDpEvent,
    LaplaceDpEvent,
    NonPrivateDpEvent,
    SelfComposedDpEvent,
    ZCDpEvent,
)

import suture
from suture.errors import BudgetExhausted, LedgerError, PrivacyError
from suture.privacy.accounting.accountant import epsilon, epsilon_of
from suture.privacy.accounting.events import compose, normal_form
from suture.privacy.accounting.planner import dpsgd_event
from suture.privacy.ledger import chain
from suture.privacy.ledger.accounts import BASIC, GDP, ZCDP_FILTER
from suture.privacy.ledger.chain import Head, advance, countersign, head_path, read_head, witnessed
from suture.privacy.ledger.ledger import Budget, Ledger, Untrusted
from suture.privacy.ledger.overview import overview

EVENT = GaussianDpEvent(4.83)  # forty of them cost epsilon 6 at delta 1e-5
SIX = Budget(6.0, 1e-5, "pld")


def mark(number):
    return number.to_bytes(4, "big")


def filled(path, charges, *, durable=False):
    ledger = Ledger.open(path, "boston", durable=durable)
    ledger.open_study("cardio/fedavg", Budget(100.0, 1e-5, "pld"))
    for i in range(charges):
        ledger.charge("cardio/fedavg", i, EVENT, mark(i))
    return ledger


# --- what is reserved ---------------------------------------------------------------------------------------------------


def test_a_lifetime_budget_is_reserved_plan_by_plan(tmp_path):
    ledger = Ledger.open(tmp_path / "ledger.sqlite", "boston", durable=False)
    lifetime = Budget(10.0, 3e-5, "pld")
    ledger.open_lifetime(lifetime)
    plan = normal_form(SelfComposedDpEvent(EVENT, 40))
    ledger.open_study("cardio/fedavg", SIX, plan)
    with pytest.raises(
        BudgetExhausted,
        match=r"lifetime epsilon 6 .* of 10 and 3e-05 .* epsilon 12 and delta 2e-05; nothing was",
    ):
        ledger.open_study("sepsis/fedavg", SIX, plan)  # though nothing is spent yet
    ledger.open_study("sepsis/releases", Budget(3.9, 1e-5, "pld"))
    ledger.open_study("sepsis/more", Budget(0.1, 1e-5, "pld"))  # 6 + 3.9 + 0.1 is 10, in decimals
    assert (ledger.spent_in_all(), ledger.head().epsilon, ledger.head().delta) == (10.0, 10.0, 3e-5)
    with pytest.raises(BudgetExhausted, match="would make it epsilon 10"):
        ledger.open_study("tiny/releases", Budget(1e-9, 1e-9, "pld"))
    for i in range(40):
        ledger.charge("cardio/fedavg", i, EVENT, mark(i))
    with pytest.raises(
        BudgetExhausted,
        match=r"the plan; epsilon 6 of 6 .* 40 charges",
    ):
        ledger.charge("cardio/fedavg", 40, EVENT, b"more")
    assert ledger.spent("cardio/fedavg") == epsilon(SelfComposedDpEvent(EVENT, 40), 1e-5) <= 6.0
    assert ledger.spent_in_all() == 10.0  # no refund and no second count
    ledger.close()
    again = Ledger.open(
        tmp_path / "ledger.sqlite", "boston", durable=False
    )  # it holds for whoever opens it next
    assert again.lifetime == lifetime
    again.open_study("cardio/fedavg", SIX, plan)
    for other in (None, normal_form(SelfComposedDpEvent(EVENT, 39))):
        with pytest.raises(PrivacyError, match="reserved another plan"):
            again.open_study("cardio/fedavg", SIX, other)
    with pytest.raises(PrivacyError, match="promise is made once"):
        again.open_lifetime(Budget(60.0, 1e-5, "pld"))
    again.open_lifetime(lifetime)
    again.close()


def test_a_lifetime_budget_that_comes_late_stops_what_is_reserved_beyond_it():
    ledger = filled(None, 2)
    ledger.open_lifetime(SIX)
    with pytest.raises(
        BudgetExhausted,
        match=r"epsilon 100 and delta 1e-05 .* lifetime",
    ):
        ledger.charge("cardio/fedavg", 2, EVENT, b"more")
    assert ledger.charge("cardio/fedavg", 1, EVENT, mark(1)).repeated


def test_a_plan_must_fit_its_promise():
    ledger = Ledger.open(None, "boston")
    with pytest.raises(
        BudgetExhausted,
        match=r"plan costs epsilon 6\.088, .* epsilon 6 at",
    ):
        ledger.open_study("cardio/fedavg", SIX, normal_form(SelfComposedDpEvent(EVENT, 41)))
    with pytest.raises(BudgetExhausted, match="the plan costs epsilon infinity"):
        ledger.open_study("cardio/fedavg", SIX, normal_form(NonPrivateDpEvent()))
    assert ledger.rows() == []
    ledger.open_study("cardio/fedavg", SIX, ())  # nothing is planned and nothing can be charged
    assert not ledger.can_pay("cardio/fedavg", EVENT, b"x")


def test_what_is_not_private_is_refused_where_a_lifetime_budget_promises():
    ledger = Ledger.open(None, "boston")
    ledger.open_lifetime(Budget(8.0, 1e-4, "pld"))
    ledger.open_study("c (without privacy)", Budget(float("inf"), 1e-5, "pld"))
    with pytest.raises(BudgetExhausted, match="the lifetime promise is epsilon 8"):
        ledger.charge("c (without privacy)", 0, NonPrivateDpEvent(), b"x")
    with pytest.raises(BudgetExhausted, match="account promises nothing"):
        ledger.charge("c (without privacy)", 0, EVENT, b"x")
    with pytest.raises(PrivacyError, match="lifetime"):
        ledger.open_study("*", SIX)
    assert ledger.spent_in_all() == 0.0


def test_zcdp_plans_are_compared_by_their_rho():
    ledger = Ledger.open(None, "boston")
    plan = normal_form(compose([(ZCDpEvent(0.1), 3), (GaussianDpEvent(20.0), 1)]))
    ledger.open_study("votes/veil", Budget(5.0, 1e-5, "rdp"), plan)
    ledger.charge("votes/veil", 0, ZCDpEvent(0.2), b"a")
    assert not ledger.can_pay("votes/veil", ZCDpEvent(0.1001), b"b")
    ledger.charge("votes/veil", 1, ZCDpEvent(0.1), b"b")  # 0.1 + 0.2 is 0.30000000000000004
    ledger.charge("votes/veil", 1, GaussianDpEvent(20.0), b"c")
    assert not ledger.can_pay("votes/veil", ZCDpEvent(1e-6), b"d")
    assert not ledger.can_pay("votes/veil", GaussianDpEvent(20.0), b"d")
    assert ledger.spent("votes/veil") == pytest.approx(epsilon_of(plan, 1e-5, "rdp"), rel=1e-9)


def test_releases_chosen_one_after_the_other_pass_a_filter():
    """Gaussian: sum of 1/z^2 (Smith & Thakurta); with rho-zCDP in it: rho, a Gaussian being 1/(2
    z^2)."""
    ledger = Ledger.open(None, "boston")
    ledger.open_study("a/releases", Budget(1.0, 1e-5, "pld"))
    ledger.charge("a/releases", 0, GaussianDpEvent(8.0), b"1")
    ledger.charge("a/releases", 0, GaussianDpEvent(6.0), b"2")
    together = (1 / 64 + 1 / 36) ** -0.5  # both are one Gaussian release of this noise
    assert ledger.spent("a/releases") == pytest.approx(
        epsilon(GaussianDpEvent(together), 1e-5), rel=1e-12
    )
    with pytest.raises(BudgetExhausted, match="needs an account of its own"):
        ledger.charge("a/releases", 0, ZCDpEvent(1e-6), b"3")
    for other in (dpsgd_event(4.0, 0.01, 3), LaplaceDpEvent(50.0)):
        with pytest.raises(BudgetExhausted, match="need a plan"):
            ledger.charge("a/releases", 0, other, b"3")
    ledger.open_study("b/votes", Budget(1.0, 1e-5, "pld"))
    ledger.charge("b/votes", 0, ZCDpEvent(0.004), b"1")
    ledger.charge("b/votes", 0, GaussianDpEvent(10.0), b"2")
    assert ledger.spent("b/votes") == pytest.approx(
        epsilon(ZCDpEvent(0.009), 1e-5, "rdp"), rel=1e-12
    )
    assert [account["theorem"] for account in overview(ledger)["accounts"]] == [GDP, ZCDP_FILTER]
    assert overview(ledger)["total"] == {
        "epsilon": 2.0,
        "delta": 2e-5,
        "accountant": "basic",
        "theorem": BASIC,
    }
    ledger.open_study("c/releases", Budget(1.0, 1e-5, "rdp"))
    ledger.charge("c/releases", 0, GaussianDpEvent(10.0), b"1")
    ledger.charge("c/releases", 0, ZCDpEvent(0.004), b"2")
    assert ledger.spent("c/releases") == pytest.approx(
        epsilon(ZCDpEvent(0.009), 1e-5, "rdp"), rel=1e-12
    )
    ledger.open_study(
        "d/releases", Budget(1.0, 1e-5, "basic")
    )  # its shares of delta would not be a filter
    ledger.charge("d/releases", 0, GaussianDpEvent(10.0), b"1")
    assert ledger.spent("d/releases") == epsilon(GaussianDpEvent(10.0), 1e-5, "pld")


def test_a_charter_binds_all_accounts_of_its_study_whatever_they_are_called():
    ledger = Ledger.open(None, "boston")
    ledger.note("cardio", "admitted", {"charter": "0", "epsilon": 6.0, "delta": 2e-5})
    ledger.open_study("cardio/fedavg", Budget(4.0, 1e-5, "pld"))
    ledger.open_study("sepsis/fedavg", Budget(50.0, 1e-5, "pld"))
    with pytest.raises(
        BudgetExhausted,
        match=r"charter's epsilon 4 and delta 1e-05 of 6 and 2e-05",
    ):
        ledger.open_study("cardio/releases", Budget(2.1, 1e-5, "pld"))
    ledger.open_study("cardio/releases", Budget(2.0, 1e-5, "pld"))
    ledger.charge("cardio/releases", 0, EVENT, b"x")
    ledger.note(
        "cardio", "admitted", {"charter": "1", "epsilon": 5.0, "delta": 2e-5}
    )  # the board approves less
    with pytest.raises(BudgetExhausted, match="the charter's promise is epsilon 5"):
        ledger.charge("cardio/releases", 1, EVENT, b"more")
    ledger.charge("sepsis/fedavg", 0, EVENT, b"another study")
    ledger.note(
        "cardio", "admitted", {"charter": "2", "epsilon": 7.0, "delta": 3e-5}
    )  # the board approves more
    ledger.charge("cardio/releases", 1, EVENT, b"more")


def test_the_total_is_infinite_where_nothing_was_promised():
    ledger = filled(None, 3)
    assert ledger.spent_in_all() == 100.0
    ledger.open_study("open", Budget(float("inf"), 1e-5, "pld"))
    assert ledger.spent_in_all() == 100.0
    ledger.charge("open", 0, NonPrivateDpEvent(), b"x")
    assert ledger.spent_in_all() == float("inf")
    assert overview(ledger)["total"]["epsilon"] is None


# --- notes ------------------------------------------------------------------------------------------------------------


def test_notes_are_chained_and_cost_nothing():
    ledger = filled(None, 2)
    first = ledger.note("cardio", "refused", {"why": ["expired"]}, again=True)
    ledger.note("cardio", "refused", {"why": ["expired"]}, again=True)
    ledger.note("cardio", "consent", {"patients": 3})
    same = ledger.note("cardio", "consent", {"patients": 3})
    ledger.note("cardio", "consent", {"patients": 2})
    ledger.note("cardio", "consent", {"patients": 3})
    assert first.is_note
    assert not first.is_charge
    assert [json.loads(e.event) for e in ledger.notes("consent")] == [
        {"patients": n} for n in (3, 2, 3)
    ]
    assert same.seq == ledger.notes("consent")[0].seq
    assert len(ledger.notes("refused", "cardio")) == 2
    assert len(ledger.entries()) == 2
    assert len(ledger.rows()) == 8
    ledger.verify()


def test_nothing_but_promises_charges_and_admissions_moves_the_head():
    with_notes, without = filled(None, 0), filled(None, 0)
    for ledger in (with_notes, without):
        ledger.open_study("cardio/releases", SIX)
    before = with_notes.head()
    for i in range(3):
        with_notes.note("cardio", "consent", {"patients": i})
        with_notes.note("*", "erased", {"tombstone": f"{i}", "key": "00"}, again=True)
        with_notes.note("cardio", "refused", {"why": ["expired"]}, again=True)
        with_notes.keep(f"{i}", b"answer")
    assert with_notes.head() == before
    assert (with_notes.head().entries, with_notes.head().epsilon) == (
        without.head().entries,
        without.head().epsilon,
    )
    assert with_notes.charge("cardio/releases", 0, EVENT, b"x").entry == before.entries + 1
    with_notes.note("cardio", "admitted", {"charter": "0", "epsilon": 500.0, "delta": 1e-3})
    assert with_notes.head().entries == before.entries + 2
    assert [e.what for e in with_notes.notes()][-1] == "admitted"


@pytest.mark.parametrize(
    "edit",
    [
        "UPDATE notes SET event = '{}' WHERE seq = 2",
        "DELETE FROM notes WHERE seq = 2",
        "DELETE FROM notes WHERE seq = 3",
        "UPDATE notes_head SET entries = 2",
    ],
)
def test_notes_that_were_changed_are_found(tmp_path, edit):
    path = tmp_path / "ledger.sqlite"
    ledger = filled(path, 1)
    for i in range(3):
        ledger.note("*", "erased", {"tombstone": f"{i}"}, again=True)
    ledger.close()
    db = sqlite3.connect(path)
    db.execute("DROP TRIGGER notes_keep")
    db.execute("DROP TRIGGER notes_stay")
    db.execute(edit)
    db.commit()
    db.close()
    for opening in (lambda: Ledger.open(path, "boston", durable=False), lambda: Ledger.read(path)):
        with pytest.raises(Untrusted, match="in the notes, entry"):
            opening()


# --- answers ----------------------------------------------------------------------------------------------------------


def test_an_answer_is_kept_once(tmp_path):
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger.open(path, "boston")
    ledger.keep("round 1", b"first")
    ledger.keep("round 1", b"first")
    with pytest.raises(LedgerError, match="kept another answer"):
        ledger.keep("round 1", b"second")
    ledger.keep("empty", b"")
    big = os.urandom(3_000_000)
    ledger.keep("model", big)
    ledger.close()
    ledger = Ledger.open(path, "boston")
    assert [ledger.kept(c) for c in ("round 1", "empty", "model", "other")] == [
        b"first",
        b"",
        big,
        None,
    ]
    db = sqlite3.connect(path)
    for edit in ("UPDATE answers SET answer = x'00'", "DELETE FROM answers"):
        with pytest.raises(sqlite3.IntegrityError, match="kept once"):
            db.execute(edit)
    db.execute("DROP TRIGGER answers_keep")
    db.execute("UPDATE answers SET answer = x'00' WHERE context = 'round 1'")
    db.commit()
    db.close()
    with pytest.raises(Untrusted, match="an answer was changed"):
        ledger.kept("round 1")
    ledger.close()


# --- the head kept apart ----------------------------------------------------------------------------------------------


def cut(path, keep):
    """Remove the newest entries and make the file's own head agree, as someone who knows the format
    would."""
    db = sqlite3.connect(path)
    db.execute("DROP TRIGGER entries_stay")
    db.execute("DELETE FROM entries WHERE seq > ?", (keep,))
    db.execute(
        "UPDATE head SET entries = ?, hash = (SELECT hash FROM entries WHERE seq = ?)", (keep, keep)
    )
    db.commit()
    db.close()


@pytest.mark.parametrize("keep", [1, 10, 15])
def test_cutting_off_the_newest_entries_is_found_and_located(tmp_path, keep):
    path = tmp_path / "ledger.sqlite"
    filled(path, 15).close()
    cut(path, keep)
    for opening in (lambda: Ledger.open(path, "boston"), lambda: Ledger.read(path)):
        with pytest.raises(Untrusted, match=f"entry {keep + 1} is missing: .* entry 16") as found:
            opening()
        assert found.value.entry == keep + 1


def test_another_chain_of_the_same_length_is_found(tmp_path):
    path, other = tmp_path / "ledger.sqlite", tmp_path / "other.sqlite"
    filled(path, 5).close()
    forged = Ledger.open(other, "boston", durable=False)
    forged.open_study("cardio/fedavg", Budget(100.0, 1e-5, "pld"))
    for i in range(9):
        forged.charge("cardio/fedavg", i, GaussianDpEvent(50.0), mark(i))
    forged.close()
    os.replace(other, path)
    for _ in range(2):  # a failed opening must not cover the trace
        with pytest.raises(Untrusted, match="entry 6 is not the one"):
            Ledger.open(path, "boston")


def test_a_missing_head_and_a_damaged_one_are_found(tmp_path):
    path = tmp_path / "ledger.sqlite"
    ledger = filled(path, 5)
    kept = head_path(path).read_bytes()
    head_path(path).unlink()
    with pytest.raises(Untrusted, match=r"head kept apart from it .* is missing"):
        ledger.charge("cardio/fedavg", 9, EVENT, b"x")
    ledger.close()
    with pytest.raises(Untrusted, match="is missing"):
        Ledger.open(path, "boston")
    head_path(path).write_bytes(b"x" * len(kept))
    with pytest.raises(LedgerError, match="damaged or changed"):
        Ledger.open(path, "boston")
    head_path(path).write_bytes(kept)
    again = Ledger.open(path, "boston")  # one entry more than the head knows: what a crash leaves
    assert read_head(head_path(path)).entries == len(again.rows()) == 7
    again.verify()
    again.close()


def test_a_torn_head_leaves_the_line_before(tmp_path):
    path = tmp_path / "ledger.sqlite"
    filled(path, 4).close()
    content = bytearray(head_path(path).read_bytes())
    newest = max(
        range(2), key=lambda i: json.loads(content[1024 * i : 1024 * (i + 1)])["head"]["entries"]
    )
    content[1024 * newest + 500 : 1024 * newest + 900] = b"\0" * 400
    head_path(path).write_bytes(content)
    assert read_head(head_path(path)).entries == 4
    with pytest.raises(LedgerError, match="damaged"):
        Ledger.read(path).verify()
    ledger = Ledger.open(path, "boston")
    assert read_head(head_path(path)).entries == 5  # put right on opening
    ledger.verify()
    ledger.close()


def test_a_countersigned_head_outlives_both_files(tmp_path):
    path = tmp_path / "ledger.sqlite"
    ledger = filled(path, 9)
    hub = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    seen = countersign(ledger.head(), hub)
    assert witnessed(seen, (hub.public_key(),))
    assert not witnessed(seen, (Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key(),))
    assert not witnessed(Head("boston", 1, "00", 0.0, 0.0), (hub.public_key(),))
    advance(head_path(path), seen, durable=False)
    ledger.charge("cardio/fedavg", 99, EVENT, b"later")
    assert read_head(head_path(path)).witness == seen.witness  # it stays when the head moves on
    ledger.verify(seen)
    ledger.close()
    cut(path, 5)
    head_path(path).unlink()
    shorter = sqlite3.connect(path)
    last = shorter.execute("SELECT hash FROM entries WHERE seq = 5").fetchone()[0]
    shorter.close()
    advance(head_path(path), Head("boston", 5, last, 100.0, 1e-5), durable=False, first=True)
    ledger = Ledger.open(path, "boston")  # both files agree: only the witness knows better
    with pytest.raises(Untrusted, match=r"entry 6 is missing: the witness.* entry 10"):
        ledger.verify(seen)
    ledger.close()


# --- single bytes -----------------------------------------------------------------------------------------------------


def reads(image, site="boston"):
    """Every row of a ledger file's content, verified in memory; None when something is found."""
    content = bytearray(image)
    if content[18:20] == b"\2\2":
        content[18:20] = b"\1\1"  # a database in memory has no write-ahead log
    db = sqlite3.connect(":memory:", isolation_level=None)
    try:
        db.deserialize(bytes(content))
        if chain.site_of(db, "memory") != site:
            return None
        ledger = Ledger(db, None, site)
        ledger._audit(thorough=False)
        return ledger.rows()
    except (LedgerError, *chain.FAULTS):
        return None
    finally:
        db.close()


def edits(tmp_path, positions, seed):
    """Change single bytes; returns (found, harmless). Anything else fails."""
    path = tmp_path / "ledger.sqlite"
    filled(path, 99).close()
    image = path.read_bytes()
    before, draw, found = reads(image), random.Random(seed), 0
    assert len(before) == 100
    chosen = range(len(image)) if positions is None else draw.sample(range(len(image)), positions)
    for at in chosen:
        edited = bytearray(image)
        edited[at] ^= draw.randrange(1, 256)
        after = reads(edited)
        if after is None:
            found += 1
        else:
            assert after == before, f"byte {at} changes an entry and is not found"
    return found, len(chosen) - found


def test_single_bytes_of_a_ledger_of_a_hundred_entries(tmp_path):
    found, harmless = edits(tmp_path, 800, 5)
    assert found > 200
    assert found + harmless == 800


def test_a_damaged_file_gives_a_ledger_error_and_nothing_else(tmp_path):
    path = tmp_path / "ledger.sqlite"
    filled(path, 30).close()
    before, image, draw = Ledger.read(path).rows(), path.read_bytes(), random.Random(8)
    found = 0
    for at in [*range(0, 100, 3), *draw.sample(range(100, len(image)), 150)]:
        edited = bytearray(image)
        edited[at] ^= draw.randrange(1, 256)
        path.write_bytes(edited)
        try:
            ledger = Ledger.read(path)
            ledger.verify()
            assert ledger.rows() == before
            ledger.close()
        except LedgerError:
            found += 1
    assert found > 40


@pytest.mark.slow
def test_every_single_byte_of_a_ledger_of_a_hundred_entries(tmp_path):
    found, harmless = edits(tmp_path, None, 6)
    print(f"{found} of {found + harmless} single-byte edits are found; the others change no entry")
    assert found > 20_000


def test_every_single_byte_of_the_head(tmp_path):
    path = tmp_path / "ledger.sqlite"
    filled(path, 5).close()
    image, draw = head_path(path).read_bytes(), random.Random(3)
    for at in draw.sample(range(len(image)), 300):
        edited = bytearray(image)
        edited[at] ^= draw.randrange(1, 256)
        head_path(path).write_bytes(edited)
        with pytest.raises(LedgerError):
            Ledger.read(path).verify()


@pytest.mark.parametrize("size", [0, 1, 4096, 10_000])
def test_a_truncated_file_is_found(tmp_path, size):
    path = tmp_path / "ledger.sqlite"
    filled(path, 60).close()
    os.truncate(path, size)
    for _ in range(2):
        with pytest.raises(LedgerError):
            Ledger.open(path, "boston")


# --- clocks and disks -------------------------------------------------------------------------------------------------


def test_a_clock_that_is_set_back_charges_nothing(monkeypatch):
    ledger = filled(None, 3)
    before = ledger.rows()
    for back, fine in ((1.0, True), (3600.0, False), (86400.0 * 400, False)):
        monkeypatch.setattr(
            chain, "clock", lambda back=back: datetime.now(UTC) - timedelta(seconds=back)
        )
        if fine:
            assert ledger.charge("cardio/fedavg", 8, EVENT, b"y").entry == len(before) + 1
            assert ledger.rows()[-1].time >= before[-1].time
            continue
        with pytest.raises(LedgerError, match="was set back"):
            ledger.charge("cardio/fedavg", 9, EVENT, b"x")
        with pytest.raises(LedgerError, match="was set back"):
            ledger.now()
        assert len(ledger.rows()) == len(before) + 1
    monkeypatch.undo()
    assert not ledger.charge("cardio/fedavg", 9, EVENT, b"x").repeated
    ledger.verify()


def test_a_read_only_folder_can_be_looked_at_and_charges_nothing(tmp_path):
    path = tmp_path / "home" / "ledger.sqlite"
    path.parent.mkdir()
    filled(path, 3).close()
    before = {f.name: f.read_bytes() for f in path.parent.iterdir()}
    code = """
import os, sys
from pathlib import Path
from dp_accounting import GaussianDpEvent
from suture.errors import LedgerError
from suture.privacy.ledger.ledger import Ledger
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
path = Path(sys.argv[1])
print(len(Ledger.read(path).entries()))
try:
    Ledger.open(path, "boston").charge("cardio/fedavg", 9, GaussianDpEvent(4.83), b"x")
except LedgerError as error:
    print(error)
"""
    for parent in (*path.parents,):
        if parent != Path("/tmp") and Path("/tmp") in parent.parents:
            parent.chmod(0o755)
    path.parent.chmod(0o555)
    path.chmod(0o444)
    head_path(path).chmod(0o444)
    done = run(code, path)
    path.parent.chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "3"
    assert "nothing" in done.stdout.splitlines()[1]
    assert {f.name: f.read_bytes() for f in path.parent.iterdir()} == before


FULL = """
import resource, signal, sys
from pathlib import Path
from dp_accounting import GaussianDpEvent
from suture.errors import LedgerError
from suture.privacy.ledger.ledger import Budget, Ledger
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path(sys.argv[1])
ledger = Ledger.open(path, "boston", durable=False)
ledger.open_study("cardio/fedavg", Budget(1000.0, 1e-5, "pld"))
paid = 0
if sys.argv[2] == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
try:
    for i in range(100_000):
        ledger.charge("cardio/fedavg", i, GaussianDpEvent(4.83), i.to_bytes(4, "big"))
        paid += 1
except LedgerError as error:
    print(paid)
    print(error)
"""


def test_a_full_disk_charges_nothing_more_and_loses_nothing(tmp_path):
    """No file may grow past 400 kB, which is what a full disk or a quota does to a process."""
    path = tmp_path / "ledger.sqlite"
    done = run(FULL, path, "limit")
    assert done.returncode == 0, done.stderr
    paid, message = done.stdout.splitlines()
    assert "nothing" in message
    assert 10 < int(paid) < 10_000
    ledger = Ledger.open(path, "boston")
    assert (
        int(paid) <= len(ledger.entries()) <= int(paid) + 1
    )  # the last may be paid for in vain, never the reverse
    ledger.verify()
    ledger.close()


# --- kills and crowds -------------------------------------------------------------------------------------------------


def run(code, *arguments, timeout=300):
    environment = {**os.environ, "PYTHONPATH": str(Path(suture.__file__).parent.parent)}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True, text=True, env=environment, timeout=timeout,
    )  # fmt: skip


CROWD = """
import os, random, signal, sys, time
from pathlib import Path
from suture.errors import BudgetExhausted
from suture.privacy.ledger.ledger import Budget, Ledger
from dp_accounting import GaussianDpEvent
path, kills, writers, noise = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
study, event, draw = "cardio/fedavg", GaussianDpEvent(noise), random.Random(11)
budget, lifetime = Budget(5.5, 1e-5, "pld"), Budget(6.0, 1e-5, "pld")
warm = Ledger.open(None, "warm")  # the children inherit what fits, and spend their lives writing
warm.open_study(study, budget); warm.open_lifetime(lifetime); warm.charge(study, 0, event, b"warm")
first = Ledger.open(path, "boston", durable=False)
first.open_study(study, budget); first.open_lifetime(lifetime); first.close()

def start(name):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        ledger = Ledger.open(path, "boston", durable=draw.random() < 0.3)
        try:
            for i in range(1_000_000):
                ledger.charge(study, i, event, f"{name} {i}".encode())
                os.write(writer, f"{name} {i}\\n".encode())  # the release leaves only now
                time.sleep(random.uniform(0, 0.03))
        except BudgetExhausted:
            os._exit(0)
        os._exit(1)
    os.close(writer)
    return child, os.fdopen(reader), name

released, running, done, born, crashed = set(), [], 0, 0, 0
def collect(item):
    child, reader, name = item
    lines = reader.read().splitlines()
    status = os.waitpid(child, 0)[1]
    released.update(lines)
    return status
while done < kills:
    while len(running) < writers:
        running.append(start(f"w{born}")); born += 1
    time.sleep(draw.uniform(0.0, 0.12))
    victim = running.pop(draw.randrange(len(running)))
    if os.waitpid(victim[0], os.WNOHANG)[0]:
        sys.exit("a writer ended before its time")
    os.kill(victim[0], signal.SIGKILL)
    collect(victim); done += 1
for item in running:
    if collect(item) != 0:
        sys.exit("a writer failed")
ledger = Ledger.read(path)
ledger.verify()
paid = {bytes.fromhex(e.fingerprint).decode() for e in ledger.entries()}
if not released <= paid or len(paid) > len(released) + kills or len(paid) != len(ledger.entries()):
    sys.exit(f"{len(released)} released, {len(paid)} paid")
if not ledger.spent(study) <= ledger.spent_in_all() == 5.5 or ledger.can_pay(study, event, b"one more"):
    sys.exit(f"overspent: {ledger.spent(study)}")
print(done, len(released), len(paid), round(ledger.spent(study), 4))
"""


def test_writers_are_killed_and_nothing_is_lost_or_overspent(tmp_path):
    """Four writers at once, ten kills; then the survivors spend the budget to its end and not
    beyond."""
    done = run(CROWD, tmp_path / "ledger.sqlite", 10, 4, 25)
    assert done.returncode == 0, done.stderr
    kills, released, paid, spent = done.stdout.split()
    assert int(kills) == 10
    assert 0 <= int(paid) - int(released) <= 10
    assert 5.49 < float(spent) <= 5.5


@pytest.mark.slow
def test_two_hundred_kills_among_eight_writers(tmp_path):
    done = run(CROWD, tmp_path / "ledger.sqlite", 200, 8, 80, timeout=600)
    assert done.returncode == 0, done.stderr
    print("kills, released, paid, epsilon spent of 5.5:", done.stdout)
    kills, released, paid, spent = done.stdout.split()
    assert int(kills) == 200
    assert 0 <= int(paid) - int(released) <= 200
    assert 5.49 < float(spent) <= 5.5
