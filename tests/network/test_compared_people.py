"""People of several hospitals, counted between machines: blinded points, noise by both hospitals, a
charge before anything leaves, and what is refused."""

from __future__ import annotations

import hashlib
import json
from collections import Counter

import numpy as np
import pytest

pytest.importorskip("rbcl", reason="pip install 'suture[overlap]'")
from hypothesis import given, settings
from hypothesis import strategies as st
from support.loopback import Loopback
from support.ready import sign_all

from suture.engine.conduct import run
from suture.errors import BudgetExhausted, NotReady, Refused, StudyError
from suture.network import wire
from suture.network.coordinator import Remote
from suture.network.people import SIGNATURE, overlap_between
from suture.network.witnesses import new_identity
from suture.privacy.accounting.accountant import epsilon as epsilon_of
from suture.privacy.ledger.ledger import Ledger
from suture.privacy.noise.mechanisms import Counts
from suture.site.gate import LEDGER
from suture.site.people import POINT, Pair, blinded, comparisons, matched, raised
from suture.study import Study

SHARED = {("a", "b"): 25, ("a", "c"): 7, ("b", "c"): 0}


def study_of(names=("a", "b", "c"), **fields):
    return Study(
        **{
            "name": "ward",
            "outcome": "ill",
            "overlap": 20.0,
            "sites": [{"name": n, "data": f"{n}.csv", "patients": 60} for n in names],
            "schema": {
                "patient": "id",
                "features": {"age": {"kind": "number", "low": 0, "high": 100}},
            },
            "model": {"hidden": []},
            "method": {"name": "fedavg", "rounds": 2, "local_epochs": 1},
            "privacy": {"unit": "patient", "epsilon": 4.0, "accountant": "rdp"},
            **fields,
        }
    )


@pytest.fixture
def folder(tmp_path):
    """Three hospitals; some people are at two of them, each with two rows."""
    people = {name: [f"patient-{name}{i}" for i in range(40)] for name in "abc"}
    for (one, other), count in SHARED.items():
        for i in range(count):
            people[one].append(f"patient-{one}{other}{i}")
            people[other].append(f"patient-{one}{other}{i}")
    for name, known in people.items():
        rows = [f"{who},{20 + i % 70},{i % 2}" for i, who in enumerate(known * 2)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["id,age,ill", *rows]) + "\n")
    return tmp_path


class Sites(Loopback):
    """Sites that know each other and agree to compare people; everything carried is kept."""

    def __init__(self, folder, names="abc", **own):
        given = {"compares_people": True, "lifetime": {"epsilon": 100.0, "delta": 1e-3}, **own}
        super().__init__(**given)
        self.heard, self.spoil = [], lambda site, data: data
        keys = folder / "keys"
        if not keys.exists():
            keys.mkdir()
            for name in names:
                (keys / f"{name}.pub").write_text(new_identity(keys / name))
        self.keys, self.names = keys, names

    def start(self, study, base, folder):
        for name in self.names:
            peers = {n: (self.keys / f"{n}.pub").read_text() for n in self.names if n != name}
            self.settings |= {"identity": str(self.keys / name), "peers": peers}
            single = study.model_copy(
                update={"sites": tuple(s for s in study.sites if s.name == name)}
            )
            self.settings["accepts"] = [study.digest]
            before = dict(self.handlers)
            super().start(single, base, folder)
            self.handlers = {**before, name: self.handlers[name]}

    def exchange(self, requests, seconds):
        requests = {site: self.spoil(site, data) for site, data in requests.items()}
        found = super().exchange(requests, seconds)
        self.heard += [*requests.values(), *found.values()]
        return found


def counted(folder, study=None, **own):
    study = study or study_of()
    carrier = Sites(folder, "".join(site.name for site in study.sites), **own)
    with Remote(carrier) as engine:
        return overlap_between(engine, study, folder), carrier


def charges(folder, name):
    ledger = Ledger.read(folder / ".suture" / name / LEDGER)
    found = [(entry.study, entry.what) for entry in ledger.rows() if entry.is_charge]
    spent = ledger.spent("ward/overlap")
    ledger.close()
    return found, spent


def test_every_two_hospitals_are_counted_and_pay_once(folder):
    found, _ = counted(folder)
    sd = found["noise_sd"]
    assert sd == pytest.approx(np.sqrt(2) * float(comparisons(study_of()).pairs[0].mechanism.sigma))
    for pair in found["pairs"]:
        assert abs(pair["people"] - SHARED[tuple(pair["sites"])]) <= 6 * sd + 1  # 1 case in 10^8
    again, _ = counted(folder)
    assert again == found
    for name in "abc":
        paid, spent = charges(folder, name)
        assert paid == [("ward/overlap", "overlap")] * 2
        assert spent <= 20.0


def test_a_listener_sees_no_identifier_no_point_twice_and_no_size_of_a_table(folder):
    """What the coordinator carries: no hash of a person, and never an equal point of two sites."""
    _, carrier = counted(folder)
    whole = b"".join(carrier.heard)
    for who in ("patient-ab0", "patient-a1", "patient-ac3"):
        for form in (who.encode(), hashlib.sha256(who.encode()).digest()):
            assert form not in whole
    bodies = [wire.unpack(data).body for data in carrier.heard]
    asked = [b for b in bodies if len(b) % POINT == 0 and len(b) > SIGNATURE]
    points = [
        Counter(body[i : i + POINT] for i in range(SIGNATURE, len(body), POINT)) for body in asked
    ]
    assert len(points) == 3 * 4  # each of two messages, to and fro, for three pairs
    apart = {frozenset(one) for one in points}
    assert len(apart) == 6
    assert all(not one & other for one in apart for other in apart if one != other)
    pair = comparisons(study_of()).pairs[0]
    assert {len(one) for one in apart} == {
        120 + 2 * pair.middle,
        2 * (120 + 2 * pair.middle),
    }


def test_one_patient_more_at_a_hospital_changes_no_length(folder):
    lengths = []
    for more in ("", "ab0x,30,1\n"):
        (folder / "b.csv").write_text((folder / "b.csv").read_text() + more)
        _, carrier = counted(folder, study_of(name=f"ward{len(lengths)}"))
        lengths.append([len(wire.unpack(data).body) for data in carrier.heard])
    assert lengths[0] == lengths[1]


# --- what is refused ---------------------------------------------------------------------------------------------------


def test_a_site_that_has_not_agreed_takes_no_part_and_pays_nothing(folder):
    with pytest.raises(Refused, match="cannot do"):
        counted(folder, compares_people=False)
    ledger = Ledger.read(folder / ".suture" / "a" / LEDGER)
    assert ledger.rows() == []
    ledger.close()


@pytest.mark.nobody_signs
def test_a_table_nobody_signed_for_is_not_compared(folder):
    with pytest.raises(NotReady):
        counted(folder)
    assert not list(folder.rglob(LEDGER))


def test_a_study_must_say_what_it_costs(folder):
    with pytest.raises(StudyError, match=r"overlap = 0\.1"):
        counted(folder, study_of(overlap=None))
    with pytest.raises(StudyError, match="2 to 20"):
        counted(folder, study_of(names=("a",)))


def test_what_a_lifetime_budget_does_not_hold_is_not_compared(folder):
    with pytest.raises(BudgetExhausted):
        counted(folder, study_of(overlap=101.0))


def spoiled(stage, change):
    def spoil(site, data):
        message = wire.unpack(data)
        if message.header.get("stage") != stage:
            return data
        return wire.pack(wire.Message(message.header, change(message.body)))

    return spoil


@pytest.mark.parametrize("stage", ["answer", "count"])
@pytest.mark.parametrize(
    "change",
    [
        lambda body: body[:-1] + bytes([body[-1] ^ 1]),
        lambda body: body[:SIGNATURE] + body[SIGNATURE + POINT :],
        lambda body: b"",
        lambda body: bytes(SIGNATURE) + body[SIGNATURE:],
    ],
)
def test_a_coordinator_can_put_no_points_of_its_own_in_between(folder, stage, change):
    carrier = Sites(folder)
    carrier.spoil = spoiled(stage, change)
    with Remote(carrier) as engine, pytest.raises(Refused):
        overlap_between(engine, study_of(), folder)


def test_another_site_cannot_ask_in_its_place(folder):
    """A message that 'a' signed for 'c' is not one for 'b'."""
    kept = {}

    def swap(site, data):
        message = wire.unpack(data)
        if message.header.get("stage") != "answer":
            return data
        kept.setdefault(site, message.body)
        return wire.pack(wire.Message(message.header, next(iter(kept.values()))))

    carrier = Sites(folder)
    carrier.spoil = swap
    with Remote(carrier) as engine, pytest.raises(Refused):
        overlap_between(engine, study_of(), folder)


def test_a_second_question_in_the_same_place_is_not_answered(folder):
    """Its answer would carry the same noise: the difference of two counts would be exact."""
    counted(folder)
    text = (folder / "a.csv").read_text().replace("patient-ab0,", "new,")
    (folder / "a.csv").write_text(text)
    with pytest.raises(Refused, match="answered already"):
        counted(folder)


def test_linked_people_stay_on_one_machine(folder):
    with pytest.raises(StudyError, match="counted, not linked: suture overlap"):
        run(study_of(link_people=True), base=folder, engine=Remote(Sites(folder)))


# --- the points ----------------------------------------------------------------------------------------------------------

PAIR = Pair("a", "b", 1, (8, 8), Counts(1, 1.0, 2.0))


def keys_of(numbers):
    return np.array([[n, n + 1] for n in sorted(numbers)], np.uint64).reshape(-1, 2)


@settings(max_examples=25, deadline=None)
@given(
    st.sets(st.integers(0, 12), max_size=8),
    st.sets(st.integers(0, 12), max_size=8),
    st.integers(-20, 20),
)
def test_the_first_counts_the_people_in_both_and_the_strangers_of_the_second(one, other, noise):
    size = 8 + 2 * PAIR.middle
    alpha, beta = b"1" * 32, b"2" * 32
    asked = blinded(PAIR.elements(keys_of(one), alpha, True), alpha)
    again = raised(asked, beta, size)
    mine = blinded(PAIR.elements(keys_of(other), beta, False, noise), beta)
    found = matched(raised(mine, alpha, size), again)
    assert found.x.sum() == len(one & other) + PAIR.middle + noise
    assert len(asked) == len(again) == len(mine) == size * POINT


def test_a_set_that_is_too_large_is_cut_by_a_secret_order():
    many = keys_of(range(20))
    kept = [
        {e for e in PAIR.elements(many, secret, True) if e.startswith(b"person")}
        for secret in (b"1" * 32, b"2" * 32)
    ]
    assert [len(one) for one in kept] == [8, 8]
    assert kept[0] != kept[1]


@given(
    st.sets(st.integers(0, 30), max_size=20),
    st.sets(st.integers(0, 30), max_size=8),
    st.integers(0, 30),
)
def test_one_patient_more_moves_the_count_by_at_most_one_also_where_sets_are_cut(one, other, who):
    def count(mine):
        sets = [
            {e for e in PAIR.elements(keys_of(people), b"1" * 32, first) if e.startswith(b"person")}
            for first, people in ((True, mine), (False, other))
        ]
        return len(sets[0] & sets[1])

    assert abs(count(one | {who}) - count(one - {who})) <= 1


def test_the_order_of_a_set_says_nothing_about_who_is_a_person():
    found = PAIR.elements(keys_of(range(5)), b"1" * 32, True)
    first = [e.startswith(b"person") for e in found[:5]]
    assert not all(first)
    assert len(found) == len(set(found)) == 8 + 2 * PAIR.middle


@pytest.mark.parametrize("points", [b"", b"x", bytes(8 * POINT), b"\xff" * POINT * 8])
def test_what_are_no_different_points_is_refused(points):
    with pytest.raises(StudyError, match="different points"):
        raised(points, b"1" * 32, 8)


def test_what_is_no_point_is_refused():
    with pytest.raises(StudyError, match="no point"):
        raised(b"".join(bytes([255]) * 31 + bytes([i]) for i in range(8)), b"1" * 32, 8)


@pytest.mark.parametrize("hospitals", [2, 3, 7])
def test_all_counts_of_a_hospital_together_cost_what_the_study_says(hospitals):
    names = [f"h{i}" for i in range(hospitals)]
    asked = comparisons(study_of(names=names, overlap=0.7))
    assert len(asked.pairs) == hospitals * (hospitals - 1) // 2
    spent = epsilon_of(asked.event, asked.budget.delta, asked.budget.accountant)
    assert 0.69 < spent <= 0.7


# --- over processes ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.nobody_signs
def test_a_hub_and_a_process_for_each_site_count_the_same_people(folder, suture_command):
    """As a user does it, over TLS; unsigned tables are refused, signed ones are counted and paid
    for, and asking again costs nothing."""
    pytest.importorskip("flwr", reason="pip install 'suture[flower]'")
    lifetime = {"epsilon": 100.0, "delta": 1e-3}
    sites = [
        {"name": n, "data": f"{n}.csv", "patients": 60, "lifetime": lifetime} for n in ("a", "b")
    ]
    study = study_of(sites=sites, federation={"deadline": 60, "gathering": 60})
    (folder / "study.toml").write_text(study.to_toml())
    asked = ("overlap", "study.toml", "--engine", "flower", "--json")
    refused = suture_command(*asked, cwd=folder)
    assert refused.returncode == NotReady.exit_code
    assert "nobody at the site has signed" in refused.stderr
    assert not list(folder.rglob(LEDGER))
    sign_all(study, folder)
    found = json.loads(suture_command(*asked, cwd=folder, check=True).stdout)
    (pair,) = found["pairs"]
    assert pair["sites"] == ["a", "b"]
    assert abs(pair["people"] - SHARED["a", "b"]) <= 6 * found["noise_sd"] + 1  # 1 case in 10^8
    assert charges(folder, "a")[0] == charges(folder, "b")[0] == [("ward/overlap", "overlap")]
    told = suture_command(
        "overlap", "study.toml", "--engine", "flower", "--epsilon", "1", cwd=folder
    )
    assert told.returncode != 0
    assert "overlap = 0.1 in [study]" in told.stderr
