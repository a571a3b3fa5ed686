"""Peers as witnesses, on real tables: what a coordinator keeps back, forges or replays, and homes
that were set back."""

import json
import shutil
from contextlib import closing

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from support.bench import NAMES, Bench, reason, the_study

from suture.engine import conduct
from suture.network.coordinator import Remote
from suture.network.witnesses import WINDOW
from suture.privacy.accounting.planner import Budget
from suture.privacy.ledger.ledger import Ledger
from suture.privacy.signing import sign


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setenv("SUTURE_WITNESS", str(tmp_path / "witness"))
    found = Bench(tmp_path, the_study())
    yield found
    found.close()


def identity(bench, name):
    return Ed25519PrivateKey.from_private_bytes((bench.folder / name / "identity.key").read_bytes())


def go_on(bench, study, heads, rounds, site="boston"):
    """Rounds at one site with everybody's word carried."""
    for round_ in rounds:
        answer = bench.step(site, study, round_, vouched=bench.words(study, heads[site]))
        assert answer.header["ok"], bench.handlers[site].status
        heads[site] = answer.header["head"]
    return heads


class Carrier:
    """The bench as a coordinator's carrier."""

    def __init__(self, bench):
        self.bench = bench

    def start(self, study, base, folder):
        pass

    def exchange(self, requests, seconds):
        return {site: self.bench.raw(site, data) for site, data in requests.items()}

    def close(self):
        pass


def test_an_honest_federation_never_stops(bench, tmp_path):
    study = the_study()
    found = conduct.run(study, base=tmp_path, engine=Remote(Carrier(bench)))
    assert found.data["methods"]["fedavg"]["rounds_done"] == 6
    assert found.data["methods"]["fedavg"]["dropouts"] == {}
    for name in NAMES:
        # Six rounds of training and the evaluation's two, each once.
        assert [round_ for _, round_ in bench.charges(name)] == [1, 2, 3, 4, 5, 6, 1, 2]


@pytest.mark.parametrize("kept_back", ["heads and words", "words", "one of two words"])
def test_a_site_stops_when_its_peers_word_is_kept_back(bench, kept_back):
    study = the_study()
    heads = bench.joined(study)
    for round_ in range(1, WINDOW + 1):
        vouched = {}
        if kept_back == "one of two words":
            vouched = {"lyon": bench.words(study, heads["boston"])["lyon"]}
        elif kept_back == "words":
            bench.words(study, heads["boston"])
        answer = bench.step("boston", study, round_, vouched=vouched)
        assert answer.header["ok"]
        heads["boston"] = answer.header["head"]
    last = heads["boston"]
    assert reason(bench.step("boston", study, WINDOW + 1)) == "WITNESS"
    assert len(bench.charges("boston")) == WINDOW
    bench.witness("lyon", study, {"boston": last})
    bench.witness("nice", study, {"boston": last})
    vouched = bench.words(study, last)
    answer = bench.step(
        "boston", study, WINDOW + 1, vouched=vouched
    )  # once it is carried, the site goes on
    if answer.header["ok"] is False:  # peers follow a chain one confirmed head at a time
        vouched = bench.words(study, bench.join("boston", study).header["head"])
        answer = bench.step("boston", study, WINDOW + 1, vouched=vouched)
    assert answer.header["ok"]


@pytest.mark.parametrize("way", ["restart", "another study"])
def test_no_fresh_window_comes_with_a_restart_or_another_study(way, tmp_path, monkeypatch):
    """Joining takes fresh words, which peers give only for the ledger's end as it is by then."""
    monkeypatch.setenv("SUTURE_WITNESS", str(tmp_path / "witness"))
    study, other = the_study(), the_study(name="other", privacy={"unit": "patient", "epsilon": 2.0})
    bench = Bench(tmp_path, study, other)
    old = bench.joined(study)
    for round_ in range(1, WINDOW + 1):
        assert bench.step("boston", study, round_).header["ok"]
    if way == "restart":
        bench.start("boston")
    else:
        bench.joined(other)
        for name in ("lyon", "nice"):
            bench.open(name, study)
    now = bench.open("boston", study).header["head"]
    assert reason(bench.join("boston", study)) == "WITNESS"
    assert (
        reason(bench.join("boston", study, bench.words(study, old["boston"]))) == "WITNESS"
    )  # another nonce
    vouched = bench.words(study, now)
    joined = bench.join("boston", study, vouched)
    assert joined.header["ok"]
    known = min(said["entries"] for said in vouched.values())
    more = 0
    while bench.step("boston", study, WINDOW + 1 + more).header["ok"]:
        more += 1
    with closing(Ledger.read(tmp_path / "boston" / "ledger.sqlite")) as ledger:
        behind = [entry for entry in ledger.entries() if entry.round > 0 and entry.seq > known]
    assert len(behind) <= WINDOW  # what a restored home could forget
    bench.close()


def test_forged_old_and_foreign_words_are_ignored(bench):
    study = the_study()
    heads = {name: bench.open(name, study).header["head"] for name in NAMES}
    words = bench.words(study, heads["boston"])
    said = {key: value for key, value in words["lyon"].items() if key != "signature"}

    def signed(content, name="lyon", kind="site head seen"):
        return {**content, "signature": sign(kind, content, identity(bench, name))}

    wrong = {
        "not signed": {**said, "signature": "00" * 64},
        "signed by another site": signed(said, "nice"),
        "signed as its own head": signed(said, kind="site head"),
        "another nonce": signed({**said, "nonce": "0" * 32}),
        "of another site": signed({**said, "site": "nice"}),
        "no text": 7,
        "a number as text": signed({**said, "entries": str(said["entries"])}),
        "true as a number": signed({**said, "entries": True}),
        "one key more": signed({**said, "more": 1}),
    }
    for what, word in wrong.items():
        assert reason(bench.join("boston", study, {**words, "lyon": word})) == "WITNESS", what
    assert (
        reason(bench.join("boston", study, {"lyon": words["lyon"], "boston": words["nice"]}))
        == "WITNESS"
    )
    assert (
        reason(bench.join("boston", study, {"lyon": words["lyon"], "paris": words["nice"]}))
        == "WITNESS"
    )
    assert bench.join("boston", study, words).header["ok"]


def test_a_peer_takes_in_nothing_but_what_the_site_itself_signed(bench):
    study = the_study()
    heads = bench.joined(study)
    head = heads["boston"]
    content = {key: value for key, value in head.items() if key != "signature"}
    further = {**content, "entries": head["entries"] + 100}
    wrong = {
        "not signed": {**further, "signature": head["signature"]},
        "signed by another": {
            **further,
            "signature": sign("site head", further, identity(bench, "nice")),
        },
        "a peer's word": {
            **further,
            "signature": sign("site head seen", further, identity(bench, "boston")),
        },
    }
    for what, forged in wrong.items():
        assert bench.witness("lyon", study, {"boston": forged}) == {}, what
    assert bench.witness("lyon", study, {"nice": head}) == {}  # in another's name
    assert bench.witness("lyon", study, {"paris": head}) == {}
    assert bench.witness("lyon", study, {"boston": head})["boston"]["entries"] <= head["entries"]


def spent_and_copied(bench, study, rounds):
    """A home that was copied after the join, and went on for some rounds that peers saw."""
    heads = bench.joined(study)
    bench.handlers["boston"].close()
    shutil.copytree(bench.folder / "boston", bench.folder / "copy")
    bench.start("boston")
    now = bench.open("boston", study).header["head"]
    joined = bench.join("boston", study, bench.words(study, now))
    heads = go_on(bench, study, {**heads, "boston": joined.header["head"]}, range(1, rounds + 1))
    bench.words(study, heads["boston"])
    return heads


def put_back(bench, monkeypatch):
    """The copy in the home's place, on a machine that remembers nothing."""
    bench.handlers["boston"].close()
    shutil.rmtree(bench.folder / "boston")
    shutil.copytree(bench.folder / "copy", bench.folder / "boston")
    monkeypatch.setenv("SUTURE_WITNESS", str(bench.folder / "another witness"))


@pytest.mark.parametrize("fork", ["shorter", "as long", "longer", "longer, asked twice"])
def test_a_home_put_back_is_refused_at_join_by_the_peers_word(bench, fork, monkeypatch):
    study = the_study()
    heads = spent_and_copied(bench, study, 4)
    put_back(bench, monkeypatch)
    remembered = json.loads(
        next((bench.folder / "lyon" / "peers").glob(f"{bench.keys['boston']}*")).read_text()
    )
    with closing(Ledger.open(bench.folder / "boston" / "ledger.sqlite", "boston")) as ledger:
        missing = remembered["entries"] - ledger.head().entries
        assert missing > 0
        more = {"shorter": 0, "as long": missing}.get(fork, missing + 3)
        for number in range(
            more
        ):  # what the site does by itself, such as releases from the command line
            ledger.open_study(f"own {number}", Budget(0.1, 1e-9, "pld"))
    bench.start("boston")
    for _ in range(2 if fork.endswith("twice") else 1):
        head = bench.open("boston", study).header["head"]
        words = bench.words(study, head)
    assert reason(bench.join("boston", study, words)) == "WITNESS"
    assert reason(bench.step("boston", study, 1)) == "NOT_OPEN"
    assert heads["boston"]["entries"] >= remembered["entries"]


def test_a_word_about_another_chain_stops_a_site_in_the_middle(tmp_path, monkeypatch):
    """A peer whose word was kept back at the join remembers more; when it comes, the site stops."""
    monkeypatch.setenv("SUTURE_WITNESS", str(tmp_path / "witness"))
    study = the_study()
    bench = Bench(tmp_path, study, witnesses=1)
    spent_and_copied(bench, study, 3)
    shutil.rmtree(tmp_path / "nice" / "peers")  # a peer that has never seen the site
    put_back(bench, monkeypatch)
    bench.start("boston")
    head = bench.open("boston", study).header["head"]
    words = bench.words(study, head)
    joined = bench.join("boston", study, {"nice": words["nice"]})
    assert joined.header["ok"]  # one witness was asked for, and this one knows nothing
    assert reason(bench.step("boston", study, 1, vouched={"lyon": words["lyon"]})) == "WITNESS"
    bench.close()


def test_most_peers_must_vouch(tmp_path, monkeypatch):
    """Two of four would not do: a coordinator could show the rounds to two of them, and the
    restored home to the others."""
    monkeypatch.setenv("SUTURE_WITNESS", str(tmp_path / "witness"))
    names = (*NAMES, "metz", "brest")
    study = the_study(names)
    bench = Bench(tmp_path, study, names=names)
    heads = {name: bench.open(name, study).header["head"] for name in names}
    words = bench.words(study, heads["boston"])
    assert (
        reason(bench.join("boston", study, {name: words[name] for name in ("lyon", "nice")}))
        == "WITNESS"
    )
    assert bench.join(
        "boston", study, {name: words[name] for name in ("lyon", "nice", "metz")}
    ).header["ok"]
    bench.close()
