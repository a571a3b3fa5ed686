"""A coordinator that asks whatever it likes, of two handlers with neighbouring tables, in lock step:
their transcripts are one.

The clock, the secrets of sessions and the door's output are replaced by functions of what is public
(`rig.patched`). Then whatever differs between the two transcripts was decided by rows, and left
without noise. Nothing here is statistical.

| invariant | where |
|---|---|
| 1. whole transcripts are equal: answers, errors, sizes, charges, heads, status | `Twins.send`, `Twins.same` |
| 2. contributions differ by at most the sensitivity | `Twins.within_sensitivity` |
| 3. another context, mechanism or value: another key | `Twins.keys_differ` |
| 4. the same request again, also after a kill or a change of the table: the same bytes, no charge | `LockStep.again` |
| 5. charge and answer are durable before anything is sent | `LockStep.kill`, `ask_and_kill`, then `again` |
| 6. no masked words serve in two sessions | `Twins.words_once` |
| 7. every opened sum has t - c >= h | `LockStep.sum` |
| 8. rollback is refused | `LockStep.roll_back` |
"""

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from suture.errors import SutureError
from suture.network import wire
from suture.network.wire import application_hash
from suture.protection.envelope import seal

from . import rig

pytestmark = pytest.mark.filterwarnings("default")
TWINS = ("with", "without")
COLLUDERS = 0
MASKED = {"sum": "masked", "threshold": 0.5, **rig.colluders(COLLUDERS)}
EXTREME = [
    0.0,
    -0.0,
    1e-45,
    -1e-38,
    1.0,
    -40.0,
    6e7,
    -1e19,
    3.4e38,
    -3.4e38,
    np.inf,
    -np.inf,
    np.nan,
]
WHERE = [
    "before the charge",
    "after the charge",
    "before it is kept",
    "after it is kept",
    "before the answer leaves",
]
GROUPED = {"groups": ["visit"], "protected": {"column": "visit", "values": ["F", "M"]}}


def studies():
    """One study of each kind that differs at the site."""
    base = {"rounds": 3, "local_epochs": 1, "batch": 32}
    votes = {"name": "veil", "rounds": 4, "concepts": 2, "picks": 2}
    return {
        "fedavg": rig.study(evaluation={"seeds": 2, "holdout": 0.3}),
        "folds": rig.study(evaluation={"folds": 3}),
        "ifedavg": rig.study(
            method={**base, "name": "ifedavg", "share_layers": True, "input_layer": "scalar"}
        ),
        "ditto": rig.study(method={**base, "name": "ditto"}),
        "scaffold": rig.study(method={**base, "name": "scaffold"}),
        "ensemble": rig.study(
            method={**base, "name": "fedadam", "ensemble": True}, evaluation={"holdout": 0.3}
        ),
        "votes": rig.study(method=votes),
        "moments": rig.study(method={**votes, "mode": "votes+moments"}),
        "fairfed": rig.study(
            method={**base, "name": "fairfed", "secure_rates": False}, schema=GROUPED
        ),
        "secure": rig.study(method={**votes, "mode": "secure", "honest": 0.3}, protection=MASKED),
        "fedsgd": rig.study(method={**base, "name": "fedsgd", "honest": 0.3}, protection=MASKED),
        "masked": rig.study(method={**base, "name": "fedavg"}, protection=MASKED),
        "fair sums": rig.study(
            method={**base, "name": "fairfed", "honest": 0.3}, protection=MASKED, schema=GROUPED
        ),
    }


def patients():
    """The patient that one of the tables has more: ordinary, of many rows, or written as no table
    should be."""
    plain = rig.people(1, 900, visit="F")[0]
    odd = [
        [plain],
        [plain | {"age": age} for age in range(12)],
        [plain | {"age": -1e300}],
        [plain | {"age": "inf"}],
        [plain | {"age": "nan"}, plain],
        [plain | {"age": "old"}],
        [plain | {"age": ""}],
        [plain | {"smoker": "maybe"}],
        [plain | {"high_risk": "perhaps"}],
        [plain | {"high_risk": ""}],
        [plain | {"id": ""}],
        [plain | {"id": 'p\n9,"0'}],
        [plain | {"id": "\u202ep0"}],
        [plain | {"visit": "somebody"}],
        [plain | {"age": "9" * 200_000}],
        [plain | {"age": "1e999", "smoker": "TRUE"}],
        [plain | {"id": f"{i}", "age": i} if i else plain for i in range(1)] * 70,
    ]
    return st.sampled_from(odd)


class Twins:
    """Two federations that differ in one patient of the first site; requests go to both."""

    def __init__(self, asked, rows, patient):
        self.folder = Path(tempfile.mkdtemp(prefix="twins-"))
        self.patch, self.watch = pytest.MonkeyPatch(), rig.Watch()
        self.asked, self.name = asked, rig.SITES[0]
        self.sent = {who: [] for who in TWINS}
        self.handlers = {}
        self.patch.setenv("SUTURE_WITNESS", str(self.folder / "witness"))
        try:
            rig.patched(self.patch, self.watch)
        except BaseException:  # a clock left behind would stop every later test of the process
            self.close()
            raise
        self.exact = "none"
        for who in TWINS:
            here = [*rows, *patient] if who == "with" else rows
            for name in rig.SITES:
                home = self.folder / who / name
                rig.furnish(
                    home, name, here if name == self.name else rows, asked, columns=rig.people(1)[0]
                )
                self.start(who, name)

    def home(self, who, name=None):
        return self.folder / who / (name or self.name)

    def start(self, who, name=None):
        name = name or self.name
        self.watch.who = who
        self.handlers[who, name] = rig.handler(
            self.home(who, name), name, self.asked, exact=self.exact
        )

    def one(self, who, name, data):
        """One twin's answer; None where it was killed before it sent one."""
        self.watch.who = who
        try:
            return self.handlers[who, name].answer(data, application_hash())
        except rig.Killed:
            self.start(who, name)
            return None

    def send(self, data, die=""):
        """The same request to both twins: their answers are one."""
        answers = []
        for who in TWINS:
            self.watch.die = die
            answers.append(self.one(who, self.name, data))
            self.watch.die = ""
        assert answers[0] == answers[1], (
            f"\nwith:    {shown(answers[0])}\nwithout: {shown(answers[1])}"
        )
        self.same()
        if answers[0] is None:
            self.reopen()
        return answers[0]

    def reopen(self):
        """What a coordinator does after a site was restarted."""
        self.send(_open(self.asked))
        self.send(_join(self.asked))

    def same(self):
        """Ledgers with their heads, and what an operator may show."""
        kept = [rig.ledger_state(self.home(who)) for who in TWINS]
        assert kept[0] == kept[1], f"ledgers differ: {kept}"
        said = [rig.status(self.home(who)).replace(str(self.folder / who), "") for who in TWINS]
        known = [json.loads(status or "{}") | {"at": None} for status in said]
        assert known[0] == known[1], f"the operators' status differs: {known}"

    def charges(self):
        return rig.charges(self.home(TWINS[0]))

    def within_sensitivity(self):
        """2, over all that the door was about to release to both."""
        known = {}
        for drawn in self.watch.drawn:
            known.setdefault((drawn.context, drawn.mechanism), {})[drawn.who] = drawn
        for pair in known.values():
            if len(pair) == 2:
                one, two = pair["with"], pair["without"]
                assert one.total.shape == two.total.shape
                order = np.inf if one.entrywise else 2
                moved = (
                    float(np.linalg.norm(one.total - two.total, order)) if one.total.size else 0.0
                )
                assert moved <= one.limit * (1 + 1e-6)

    def keys_differ(self):
        """3, where the door shows its keys."""
        meant = {}
        for drawn in self.watch.drawn:
            if drawn.key:
                content = (drawn.context, drawn.mechanism, drawn.total.tobytes())
                assert meant.setdefault(drawn.key, content) == content

    def words_once(self):
        """6, for every site of both federations."""
        seen = {}
        for who, party, session, content in self.watch.words:
            assert seen.setdefault((who, party, content), session) == session

    def close(self):
        for at in self.handlers.values():
            at.close()
        self.patch.undo()
        shutil.rmtree(self.folder, ignore_errors=True)


def shown(answer):
    if answer is None:
        return "killed"
    message = wire.unpack(answer)
    return f"{json.dumps(message.header)[:600]} and {len(message.body)} bytes"


def changed(draw, arrays):
    """A message with some of its arrays replaced by what nobody should send."""
    found = dict(arrays)
    for _ in range(draw(st.integers(0, 2))):
        if not found:
            break
        name = draw(st.sampled_from(sorted(found)))
        array = found[name]
        way = draw(
            st.sampled_from(["extreme", "pattern", "dtype", "shape", "gone", "more", "integer"])
        )
        if way == "extreme":
            array = (
                np.full_like(array, draw(st.sampled_from(EXTREME)))
                if array.dtype.kind == "f"
                else array
            )
        elif way == "pattern" and array.dtype.kind == "f" and array.size:
            picks = draw(st.lists(st.sampled_from(EXTREME[:10]), min_size=1, max_size=4))
            array = np.resize(np.array(picks, array.dtype), array.shape)
        elif way == "dtype":
            array = array.astype(
                draw(st.sampled_from([np.float64, np.float32, np.int32, np.uint8]))
            )
        elif way == "shape":
            array = np.resize(array, draw(st.sampled_from([(0,), (1,), (7,), (2, 3)])))
        elif way == "integer" and array.dtype.kind in "iu":
            array = np.full_like(array, draw(st.integers(-128, 127)) % 128)
        if way == "gone":
            del found[name]
        elif way == "more":
            found[f"{name}x"] = array
        else:
            found[name] = array
    return found


@st.composite
def requests(draw, asked):
    """Any request: mostly what a study allows, often not."""
    op = draw(
        st.sampled_from(["step", "step", "step", "score", "stage", "open", "join", "garbage"])
    )
    found, names = rig.as_study(asked), rig.training(asked)
    odd = draw(st.integers(0, 3)) == 0
    rounds = st.integers(-1, 6) if odd else st.integers(1, found.method.rounds)
    given = {
        **names,
        "seed": draw(st.sampled_from([42, 43, 7, -1, 1 << 70])) if odd else found.seed,
        "fold": draw(st.integers(0, 4)) if odd or found.evaluation.folds else 0,
        "method": draw(
            st.sampled_from([names["method"], "fedavg", "alone", "pooled", "veil", "../x"])
        )
        if odd
        else names["method"],
    }
    if op == "garbage":
        return (
            draw(st.binary(max_size=40))
            if odd
            else rig.packed("step", b"S2", **{**given, "round": "1"})
        )
    if op == "open":
        texts = [
            rig.text_of(asked),
            rig.text_of(asked) + "# x\n",
            rig.text_of(found.replace(seed=7)),
            "nonsense [",
        ]
        return rig.packed("open", **{**given, "study": draw(st.sampled_from(texts))})
    if op == "join":
        sizes = rig.sizes_of(asked)
        if odd:
            sizes = draw(
                st.sampled_from(
                    [{}, {**sizes, "north": 1}, {**sizes, "far": 9}, {**sizes, "east": -1}]
                )
            )
        return rig.packed("join", **{**given, "sites": sizes})
    round_ = draw(rounds)
    body = seal(changed(draw, _honest(asked, round_, given)))
    if draw(st.integers(0, 9)) == 0:
        body = draw(st.binary(max_size=30))
    more = {
        "round": round_,
        "stage": draw(st.sampled_from([*wire_stages(), "x"])),
        "groups": draw(st.booleans()),
        "texts": {},
    }
    return rig.packed(op, body, **{**given, **more})


def wire_stages():
    from suture.protection.terms import STAGES

    return STAGES


def _honest(asked, round_, given):
    """What an honest server sends, where it would send anything."""
    found = rig.as_study(asked)
    fold = (
        given["fold"]
        if found.evaluation.folds and 1 <= given["fold"] <= found.evaluation.folds
        else 0
    )
    if found.evaluation.folds and not fold:
        fold = 1
    return rig.message_of(asked, min(max(round_, 1), found.method.rounds), fold)


class LockStep(RuleBasedStateMachine):
    """Any sequence of requests, kills, restarts and changes of the tables."""

    kinds = tuple(studies())

    def __init__(self):
        super().__init__()
        self.twins = None
        self.answered = {}
        self.backup = None

    @initialize(data=st.data())
    def begin(self, data):
        kind = data.draw(st.sampled_from(self.kinds), label="study")
        count = data.draw(st.sampled_from([64, 63, 5, 1, 0]), label="patients")
        rows = rig.people(count, visit=lambda i: "FM"[i % 2])
        self.asked = studies()[kind]
        self.twins = Twins(self.asked, rows, data.draw(patients(), label="patient"))
        self.later = 2000
        note(f"{kind}, {count} patients")
        for name in rig.SITES:
            for who in TWINS:
                if name != self.twins.name:
                    self.twins.watch.who = who
                    rig.join(self.twins.handlers[who, name], self.asked)
        if data.draw(st.integers(0, 9)):
            self.twins.send(_open(self.asked))
            self.twins.send(_join(self.asked))

    def teardown(self):
        if self.twins is not None:
            self.twins.close()

    def _ask(self, data, die=""):
        before = self.twins.charges()
        answer = self.twins.send(data, die)
        if answer is None:
            return
        known, message = self.answered.get(data), wire.unpack(answer)
        if message.header["ok"] and _op(data) == "step":
            if known is not None:
                assert message.body == known, "the same request had another answer"
                assert self.twins.charges() == before, "the same request was charged again"
            self.answered[data] = message.body

    @rule(data=st.data())
    def ask(self, data):
        self._ask(data.draw(requests(self.asked), label="request"))

    @rule(data=st.data(), where=st.sampled_from(WHERE))
    def ask_and_kill(self, data, where):
        request = data.draw(requests(self.asked), label="request")
        self._ask(request, where)
        self._ask(request)

    @precondition(lambda self: self.answered)
    @rule(data=st.data())
    def again(self, data):
        """4: the same bytes, whatever happened in between."""
        request = data.draw(st.sampled_from(sorted(self.answered)), label="again")
        before = self.twins.charges()
        answer = self.twins.send(request)
        assert self.twins.charges() == before
        message = wire.unpack(answer)
        assert message.header["ok"], shown(answer)
        assert message.body == self.answered[request], "the same request had another answer"

    @rule(data=st.data())
    def honest(self, data):
        """A round as it should be, so that the others meet a training under way."""
        round_ = data.draw(st.integers(1, self.asked.method.rounds), label="round")
        fold = (
            data.draw(st.integers(1, self.asked.evaluation.folds))
            if self.asked.evaluation.folds
            else 0
        )
        given = {**rig.training(self.asked, fold=fold), "round": round_}
        self._ask(rig.packed("step", seal(_honest(self.asked, round_, given)), **given))

    @rule()
    def kill(self):
        """5: the process is gone without a word; what the new one finds is what was on the disk at
        that moment."""
        for who in TWINS:
            home, seen = self.twins.home(who), self.twins.folder / "as it was"
            shutil.copytree(home, seen)
            shutil.rmtree(home)
            shutil.move(seen, home)
            self.twins.start(who)
        self.twins.reopen()

    @rule(what=st.sampled_from(["appended", "changed", "emptied"]))
    def change_the_tables(self, what):
        """The same to both; the patient stays."""
        self.later += 1
        for who in TWINS:
            path = self.twins.home(who) / "rows.csv"
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            if what == "appended":
                lines.append(f"p{self.later},F,44,1,1\n")
            elif what == "emptied":
                lines = [lines[0], *(line for line in lines[1:] if not line.startswith("p1"))]
            else:
                lines = [
                    line.replace(",0,1", ",1,0") if line.startswith("p2") else line
                    for line in lines
                ]
            path.write_text("".join(lines), encoding="utf-8")
            self.twins.start(who)
        self.twins.reopen()

    @precondition(lambda self: self.asked.protection.sum == "masked")
    @rule(data=st.data())
    def sum(self, data):
        """A whole sum under masks, perhaps without some of the sites, perhaps with an odd
        message."""
        round_ = data.draw(st.integers(1, self.asked.method.rounds))
        leave = data.draw(st.sampled_from([(), ("east",), ("south",)]))
        message = changed(data.draw, rig.message_of(self.asked, round_))
        seen = []
        for who in TWINS:
            self.twins.watch.who = who
            handlers = {name: Recording(self.twins, who, name) for name in rig.SITES}
            try:
                opened = rig.summed(handlers, self.asked, message, round_, leave=leave)
                assert (
                    len(opened.sites) - COLLUDERS >= rig.honest_of(self.asked) or not opened.words
                )
                end = {name: array.tobytes() for name, array in opened.words.items()}
            except SutureError as error:
                end = str(error)
            seen.append(([handler.answers for handler in handlers.values()], end))
        assert seen[0] == seen[1]
        self.twins.same()

    @precondition(lambda self: self.backup is None)
    @rule()
    def back_up(self):
        self.backup = {who: self.twins.folder / f"backup-{who}" for who in TWINS}
        for who, folder in self.backup.items():
            self.twins.handlers[who, self.twins.name].close()
            shutil.copytree(self.twins.home(who), folder)
            self.twins.start(who)
        self.twins.reopen()
        self.spent = len(self.twins.charges())

    @precondition(lambda self: self.backup is not None and len(self.twins.charges()) > self.spent)
    @rule()
    def roll_back(self):
        """8: an older home pays for nothing. Then the newest is put back."""
        newest = {}
        for who, folder in self.backup.items():
            self.twins.handlers[who, self.twins.name].close()
            newest[who] = self.twins.folder / f"newest-{who}"
            shutil.copytree(self.twins.home(who), newest[who])
            shutil.rmtree(self.twins.home(who))
            shutil.copytree(folder, self.twins.home(who))
            self.twins.start(who)
        self.twins.reopen()
        for round_ in range(1, self.asked.method.rounds + 1):
            body = seal(
                {
                    name: array + 1 if array.dtype.kind == "f" else array
                    for name, array in _honest(self.asked, round_, {"fold": 1}).items()
                }
            )
            given = {
                **rig.training(self.asked),
                "fold": 1 if self.asked.evaluation.folds else 0,
                "round": round_,
            }
            answer = self.twins.send(rig.packed("step", body, **given))
            assert not wire.unpack(answer).header["ok"], (
                "a home that was rolled back paid for a round"
            )
        for who in TWINS:
            self.twins.handlers[who, self.twins.name].close()
            shutil.rmtree(self.twins.home(who))
            shutil.copytree(newest[who], self.twins.home(who))
            shutil.rmtree(newest[who])
            shutil.rmtree(self.backup[who])
            self.twins.start(who)
        self.twins.reopen()
        self.backup = None

    @invariant()
    def inside(self):
        if self.twins is not None:
            self.twins.within_sensitivity()
            self.twins.keys_differ()
            self.twins.words_once()


class Recording:
    """A handler whose answers are kept, and which comes back when it is killed."""

    def __init__(self, twins, who, name):
        self.twins, self.who, self.name, self.answers = twins, who, name, []

    def answer(self, data, app):
        found = self.twins.one(self.who, self.name, data)
        self.answers.append(found)
        return found


def _op(data):
    try:
        return wire.unpack(data).header.get("op")
    except SutureError:
        return None


def _open(asked):
    return rig.packed("open", study=rig.text_of(asked), seed=asked.seed)


def _join(asked):
    given = {"study": rig.called(asked), "seed": asked.seed, "sites": rig.sizes_of(asked)}
    return rig.packed("join", **given)


QUIET = {
    "deadline": None,
    "database": None,
    "derandomize": True,
    "suppress_health_check": list(HealthCheck),
    "phases": (Phase.generate,),  # add Phase.shrink to look into a failure: it takes minutes
}
TestLockStep = LockStep.TestCase
TestLockStep.settings = settings(max_examples=4, stateful_step_count=8, **QUIET)


@pytest.mark.slow
@pytest.mark.parametrize("kind", LockStep.kinds)
def test_every_kind_of_study_at_length(kind):
    from hypothesis.stateful import run_state_machine_as_test

    machine = type("One", (LockStep,), {"kinds": (kind,)})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=10, stateful_step_count=25, **QUIET)
    )
