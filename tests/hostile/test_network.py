"""A coordinator, a hub or a peer that plays with the wire: replays, stages out of turn, other
texts, odd headers."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from support.bench import NAMES, Bench, message, reason, the_study

from suture.engine import federation, plan
from suture.errors import SutureError
from suture.network import masking, wire
from suture.network.wire import application_hash
from suture.protection.envelope import seal, unseal

MASKED = {
    "method": {"name": "fedsgd", "rounds": 3, "honest": 0.3},
    "protection": {"sum": "masked", "threshold": 0.5, "colluders": 0, "spare": 2},
}


@pytest.fixture
def benches(tmp_path):
    """Benches that are closed after the test."""
    made = []

    def make(*studies, **settings):
        made.append(Bench(tmp_path / str(len(made)), *studies, **settings))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


# --- replays ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["seeds", "folds", "methods"])
def test_one_message_in_two_trainings_is_two_releases(what, benches):
    """The same bytes to another seed, fold or method: other noise, another charge; to the same one:
    the same answer."""
    more = {"seeds": {"evaluation": {"seeds": 2}}, "folds": {"evaluation": {"folds": 3}}}.get(
        what, {}
    )
    if what == "methods":
        more = {"evaluation": {"compare": ["fedadam"]}}
    study = the_study(**more)
    bench = benches(study, witnesses=0)
    bench.joined(study)
    trainings = {
        "seeds": [{"seed": study.seed}, {"seed": study.seed + 1}],
        "folds": [{"fold": fold} for fold in range(4)],
        "methods": [{"method": name} for name in study.methods],
    }[what]
    answers = [bench.step("boston", study, **given) for given in trainings]
    fine = [(given, a) for given, a in zip(trainings, answers, strict=True) if a.header["ok"]]
    assert len(fine) >= 2, bench.handlers["boston"].status
    assert len({a.body for _, a in fine}) == len(fine)
    assert len(bench.charges("boston")) == len(fine)
    for given, answer in fine:
        assert bench.step("boston", study, **given).body == answer.body
    assert len(bench.charges("boston")) == len(fine)


def test_a_message_of_one_round_sent_in_another_is_another_release(benches):
    study = the_study()
    bench = benches(study, witnesses=0)
    bench.joined(study)
    bodies = [bench.step("boston", study, round_).body for round_ in (1, 2, 5)]
    assert len(set(bodies)) == 3
    assert (
        reason(bench.step("boston", study, 3)) == "ANSWERED"
    )  # a round that was passed over is over
    assert reason(bench.step("boston", study, 5, body=message(study, 1.0))) == "ANSWERED"
    assert [round_ for _, round_ in bench.charges("boston")] == [1, 2, 5]


# --- sums under masks ------------------------------------------------------------------------------------------------


def stage(bench, site, study, name, body, round_=1, **more):
    given = {"round": round_, "stage": name, "heads": {}, "vouched": {}, **more}
    return bench.ask(site, "stage", body, **bench.training(study, **given))


def advertise(study, session=b"s" * 32):
    found = {
        "session": np.frombuffer(session, np.uint8),
        "message": np.frombuffer(message(study), np.uint8),
    }
    return seal(found)


def summed(bench, study, round_=1, at=None):
    """One whole sum by a coordinator; ``at`` sees every exchange first. What the sites sent at
    `mask`."""
    here = federation.survey(study.public(), Path(), study.seed, only="")
    here.sizes = {site.name: site.patients for site in study.sites}
    method = plan.method_of(study, here, study.method.name).at_round(round_, study.method.rounds)
    words = {}

    def carry(name, bodies):
        told = masking.Asked({}, {})
        for site, body in bodies.items():
            answer = stage(bench, site, study, name, body, round_)
            if answer.header["ok"]:
                told.answers[site] = (answer.header, answer.body)
                if name == "mask":
                    words[site] = answer.body
            else:
                told.absent[site] = reason(answer)
        return told

    messages = dict.fromkeys(here.sizes, message(study))
    masking.summed(
        method,
        study.protection,
        here.sizes,
        bench.keys,
        messages,
        round_,
        bench.training(study),
        at or carry,
    )
    return words


def test_the_same_terms_twice_are_two_releases_and_no_more_than_were_planned(benches):
    study = the_study(**MASKED)
    bench = benches(study, witnesses=0)
    bench.joined(study)
    first, second = summed(bench, study), summed(bench, study)
    assert all(first[site] != second[site] for site in NAMES)
    assert [round_ for _, round_ in bench.charges("boston")] == [1, 1]
    for _ in range(study.method.rounds + 2 - 2):
        summed(bench, study)
    with pytest.raises(SutureError):
        summed(bench, study)
    assert len(bench.charges("boston")) == study.method.rounds + 2  # rounds and spare ones


def test_the_same_session_number_gives_other_keys(benches):
    study = the_study(**MASKED)
    bench = benches(study, witnesses=0)
    bench.joined(study)
    found = [stage(bench, "boston", study, "advertise", advertise(study)) for _ in range(2)]
    assert all(answer.header["ok"] for answer in found)
    assert unseal(found[0].body)["keys"].tobytes() != unseal(found[1].body)["keys"].tobytes()
    assert bench.charges("boston") == []


@pytest.mark.parametrize("skipped", ["mask", "agree", "unmask", "", "Advertise", "share "])
def test_a_stage_out_of_turn_is_refused_unpaid(skipped, benches):
    """Found: `mask` right after `advertise` was paid for, and then refused."""
    study = the_study(**MASKED)
    bench = benches(study, witnesses=0)
    bench.joined(study)
    assert reason(stage(bench, "boston", study, skipped, seal({}))) == "SESSION"
    assert stage(bench, "boston", study, "advertise", advertise(study)).header["ok"]
    assert reason(stage(bench, "boston", study, skipped, seal({}))) == "SESSION"
    assert reason(stage(bench, "boston", study, "share", seal({}))) == "SESSION"  # the sum is over
    assert bench.charges("boston") == []


@pytest.mark.parametrize("other", ["seed", "round"])
def test_a_sum_goes_on_in_its_own_training_only(other, benches):
    """Found: `mask` with another seed put another training's words under the masks of the sum that
    was begun."""
    study = the_study(**MASKED, evaluation={"seeds": 2})
    bench = benches(study, witnesses=0)
    bench.joined(study)
    changed = {"seed": study.seed + 1} if other == "seed" else {"round_": 2}
    refused = []

    def carry(name, bodies):
        told = masking.Asked({}, {})
        for site, body in bodies.items():
            given = changed if name == "mask" else {}
            answer = stage(bench, site, study, name, body, **given)
            if answer.header["ok"]:
                told.answers[site] = (answer.header, answer.body)
            else:
                refused.append((name, reason(answer)))
                told.absent[site] = "refused"
        return told

    with pytest.raises(SutureError):
        summed(bench, study, at=carry)
    assert refused == [("mask", "SESSION")] * len(NAMES)
    assert bench.charges("boston") == []


def test_a_repeated_mask_is_the_same_and_another_one_is_none(benches):
    study = the_study(**MASKED)
    bench = benches(study, witnesses=0)
    bench.joined(study)

    def carry(name, bodies):
        told = masking.Asked({}, {})
        for site, body in bodies.items():
            answer = stage(bench, site, study, name, body)
            if name == "mask" and site == "boston":
                assert stage(bench, site, study, name, body).body == answer.body
                assert reason(stage(bench, site, study, name, seal({}))) == "SESSION"
            if answer.header["ok"]:
                told.answers[site] = (answer.header, answer.body)
            else:
                told.absent[site] = reason(answer)
        return told

    summed(bench, study, at=carry)  # boston has left the sum; the others' is opened
    assert [round_ for _, round_ in bench.charges("boston")] == [1]


def test_no_update_leaves_without_masks(benches):
    study = the_study(**MASKED)
    bench = benches(study, witnesses=0)
    bench.joined(study)
    assert reason(bench.step("boston", study)) == "MASKED"
    plain = the_study()
    other = benches(plain, witnesses=0)
    other.joined(plain)
    assert reason(stage(other, "boston", plain, "advertise", advertise(plain))) == "MASKED"


# --- other texts -----------------------------------------------------------------------------------------------------


def test_the_same_digest_with_another_text_changes_nothing(benches, tmp_path):
    """Comments, other waiting times, and paths in the coordinator's text: the site's rows, home and
    papers are its own."""
    study = the_study()
    bench = benches(study, witnesses=0)
    bench.joined(study)
    first = bench.step("boston", study)
    evil = tmp_path / "evil"
    evil.mkdir()
    (evil / "rows.csv").write_text("id,age,smoker,high_risk\n1,30,0,1\n")
    paths = {
        "home": str(evil),
        "data": str(evil / "rows.csv"),
        "charter": str(evil / "c.toml"),
        "trust": str(evil),
    }
    sites = [{"name": n, "region": "MA", "patients": 60, **paths} for n in NAMES]
    texts = [
        "# another text\n" + study.public().to_toml(),
        study.replace(federation={"deadline": 5.0}).public().to_toml(),
        the_study(sites=sites).to_toml(),
    ]
    for text in texts:
        bench.start("boston")
        opened = bench.ask("boston", "open", study=text, seed=study.seed)
        if not opened.header["ok"]:
            assert reason(opened) in ("STUDY", "REQUEST", "SETTINGS")
            continue
        assert bench.join("boston", study).header["ok"]
        assert bench.step("boston", study).body == first.body
    assert sorted(path.name for path in evil.iterdir()) == ["rows.csv"]
    assert len(bench.charges("boston")) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"privacy": {"epsilon": 4.1}},
        {"seed": 43},
        {"evaluation": {"holdout": 0.4}},
        {"method": {"rounds": 7}},
        {"schema": {"rows": 63}},
        {"sites": [{"name": n, "region": "MA", "patients": 61} for n in NAMES]},
        {"sites": [{"name": n, "region": "MA", "patients": 60, "edition": 2} for n in NAMES]},
        {"sites": [{"name": n, "region": "MA", "patients": 60} for n in reversed(NAMES)]},
    ],
)
def test_any_setting_that_changes_makes_a_study_that_nobody_accepted(change, benches):
    bench = benches(the_study())
    assert reason(bench.open("boston", the_study(**change))) == "STUDY"


@pytest.mark.parametrize(
    "text", ["", "x", "[", "a = 1", "name = 'x'\n" * 2, "\0", "\ud7ff" * 5, "[" * 5000]
)
def test_a_text_that_is_no_study_is_refused(text, benches):
    bench = benches(the_study())
    assert reason(bench.ask("boston", "open", study=text, seed=42)) in (
        "SETTINGS",
        "REQUEST",
        "STUDY",
    )


# --- odd headers -----------------------------------------------------------------------------------------------------


def raw(text):
    data = text.encode() if isinstance(text, str) else text
    return b"SUTQ" + struct.pack("<I", len(data)) + data


def spelled(asked, /, **changed):
    given = {
        "round": 1,
        "heads": {},
        "vouched": {},
        "fold": 0,
        "method": "fedavg",
        "study": asked.digest,
        "seed": 42,
    }
    return json.dumps({**wire.request("step").header, **given, **changed})


@pytest.mark.parametrize(
    "odd",
    [
        lambda s: "[" * 100_000 + "]" * 100_000,
        lambda s: '{"op":' * 50_000 + "1" + "}" * 50_000,
        lambda s: spelled(s).replace('"round": 1', '"round": ' + "9" * 5000),
        lambda s: spelled(s, round=2**63),
        lambda s: spelled(s, seed=-(2**63) - 1),
        lambda s: spelled(s, heads={"lyon": 2**200}),
        lambda s: spelled(s, heads={"lyon": {"entries": 10**18 * 100}}),
        lambda s: spelled(s, vouched={"lyon": float("nan")}),
        lambda s: spelled(s, vouched={"lyon": float("inf")}),
        lambda s: spelled(s).replace('"fold": 0', '"fold": 1e999'),
        lambda s: spelled(s, heads={str(i): 0 for i in range(10_001)}),
        lambda s: spelled(s, method="x" * (1 << 20)),
        lambda s: spelled(s, round=True),
        lambda s: spelled(s, round=1.0),
        lambda s: spelled(s, method=["fedavg"]),
        lambda s: spelled(s, study={"a": 1}),
        lambda s: spelled(s, heads=[]),
        lambda s: spelled(s, op=["step"]),
        lambda s: spelled(s, op={}),
        lambda s: spelled(s, format=[3]),
        lambda s: spelled(s)[:-1] + ', "round": 2}',
        lambda s: spelled(s).replace('"fold": 0', '"fold": 00'),
        lambda s: spelled(s).encode("utf-16"),
        lambda s: spelled(s, method="\ud800"),
        lambda s: spelled(s, heads={"\udfff": 1}),
        lambda s: b"\xff" * 50,
        lambda s: "null",
        lambda s: "",
    ],
)
def test_an_odd_header_is_refused_and_the_site_goes_on(odd, benches):
    study = the_study()
    bench = benches(study, witnesses=0)
    bench.joined(study)
    answer = wire.unpack(bench.raw("boston", raw(odd(study)) + message(study)))
    assert reason(answer) == "REQUEST"
    assert bench.charges("boston") == []
    assert bench.step("boston", study).header["ok"]


@pytest.mark.parametrize(
    "changed",
    [
        {"fold": -1},
        {"fold": 2**62},
        {"round": -(2**63)},
        {"seed": 2**63 - 1},
        {"method": ""},
        {"method": "../fedavg"},
        {"method": "fedavg\0"},
        {"method": "pooled"},
        {"study": ""},
        {"study": "../" * 20},
    ],
)
def test_odd_values_name_no_training(changed, benches):
    study = the_study()
    bench = benches(study, witnesses=0)
    bench.joined(study)
    given = {**bench.training(study), "round": 1, "heads": {}, "vouched": {}, **changed}
    assert reason(bench.ask("boston", "step", message(study), **given)) in ("TURN", "NOT_OPEN")
    assert bench.charges("boston") == []


@pytest.mark.parametrize(
    "heads",
    [{"lyon": []}, {"lyon": {}}, {"lyon": None}, {"": {}}, {"../lyon": {"site": "../lyon"}}],
)
def test_odd_heads_are_passed_over(heads, benches):
    study = the_study()
    bench = benches(study)
    bench.joined(study)
    answer = bench.step("boston", study, heads=heads, vouched=heads)
    assert answer.header["ok"]
    assert answer.header["vouched"] == {}


@pytest.mark.parametrize(
    "sites", [{}, {"boston": 60}, {"boston": "60", "lyon": 60, "nice": 60}, {"boston": [60]}]
)
def test_other_sizes_are_refused_also_after_the_join(sites, benches):
    study = the_study()
    bench = benches(study, witnesses=0)
    given = {"study": study.digest, "seed": study.seed, "sites": sites, "vouched": {}}
    bench.open("boston", study)
    assert reason(bench.ask("boston", "join", **given)) == "STUDY"
    bench.joined(study)
    assert reason(bench.ask("boston", "join", **given)) == "STUDY"


def test_every_cut_of_a_request_is_refused(benches):
    study = the_study()
    bench = benches(study, witnesses=0)
    bench.joined(study)
    given = {"round": 1, "heads": {}, "vouched": {}}
    data = wire.pack(wire.request("step", message(study), **bench.training(study, **given)))
    for end in range(0, len(data), 7):
        answer = wire.unpack(bench.handlers["boston"].answer(data[:end], application_hash()))
        assert reason(answer) in ("REQUEST", "MESSAGE")
    assert bench.charges("boston") == []
