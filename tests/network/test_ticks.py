"""Answers leave on ticks, refusals too: how long a site took says nothing."""

import inspect
from types import SimpleNamespace

import numpy as np
import pytest
from support.bench import Bench, the_study

from suture.network import wire
from suture.network.node import TICK
from suture.protection.envelope import seal

DECLARED = 4500


class Clock:
    """Time that passes in odd amounts whenever somebody looks, and is slept through."""

    def __init__(self):
        self.now, self.rng = 1000.0, np.random.default_rng(5)
        self.slept = []

    def monotonic(self):
        self.now += float(self.rng.random()) * 0.7
        return self.now

    def sleep(self, seconds):
        assert seconds >= 0
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def timed(tmp_path, monkeypatch):
    """A bench with default ticks, and a function that says how long an answer took."""
    monkeypatch.setenv("SUTURE_WITNESS", str(tmp_path / "witness"))
    study = the_study(
        sites=[
            {"name": n, "region": "MA", "patients": DECLARED} for n in ("boston", "lyon", "nice")
        ]
    )
    bench, clock = Bench(tmp_path, study, tick=None, witnesses=0), Clock()
    monkeypatch.setattr(
        "suture.network.node.time",
        SimpleNamespace(monotonic=clock.monotonic, sleep=clock.sleep),
    )

    def taken(ask):
        began = []
        first = clock.monotonic

        def noted():
            began.append(first())
            return began[-1]

        monkeypatch.setattr(
            "suture.network.node.time", SimpleNamespace(monotonic=noted, sleep=clock.sleep)
        )
        answer = ask()
        return answer, clock.now - began[0]

    yield bench, study, taken
    bench.close()


def on(seconds, tick):
    return abs(seconds / tick - round(seconds / tick)) < 1e-6


def test_every_answer_and_every_refusal_leaves_on_a_tick(timed):
    bench, study, taken = timed
    other = the_study(name="other")
    large = TICK * 5  # 4,500 patients
    for ask, ok in (
        (lambda: bench.open("boston", other), False),
        (lambda: bench.open("boston", study), True),
        (lambda: bench.open("boston", other), False),
        (lambda: bench.open("boston", study), True),
    ):
        answer, seconds = taken(ask)
        assert answer.header["ok"] is ok
        assert on(seconds, TICK)
    for ask, ok in (
        (lambda: bench.step("boston", study), False),
        (lambda: bench.join("boston", other), False),
        (lambda: bench.join("boston", study), True),
        (lambda: bench.step("boston", study), True),
        (lambda: bench.step("boston", study), True),
        (lambda: bench.step("boston", study, body=seal({})), False),
        (lambda: bench.score("boston", study), False),
        (lambda: wire.unpack(bench.raw("boston", b"nothing")), False),
        (lambda: wire.unpack(bench.raw("boston", b"")), False),
    ):
        answer, seconds = taken(ask)
        assert answer.header["ok"] is ok
        assert on(seconds, large)


def test_opening_takes_the_same_ticks_whatever_is_open(timed):
    """Not the refused ones on small ticks and the accepted ones on those of the study they open."""
    bench, study, _ = timed
    handler, asked = (
        bench.handlers["boston"],
        wire.pack(wire.request("open", study=study.public().to_toml(), seed=42)),
    )
    before = handler._tick(asked)
    bench.open("boston", study)
    assert handler._tick(asked) == before == TICK
    assert handler._tick(b"") == 5 * TICK


@pytest.mark.parametrize(
    "passed", [0.0, 0.15, 0.15000000000000002, 0.3, 0.35, 1.1, 7.000000000000001]
)
def test_no_rounding_makes_a_sleep_negative(timed, passed, monkeypatch):
    bench, _, _ = timed
    moments = iter([0.0, passed])

    def sleep(seconds):
        assert 0 <= seconds <= TICK

    monkeypatch.setattr(
        "suture.network.node.time",
        SimpleNamespace(monotonic=lambda: next(moments), sleep=sleep),
    )
    bench.raw("boston", b"nothing")


def test_a_node_does_not_report_how_long_it_took():
    pytest.importorskip("flwr")
    from suture.network import flower

    assert "clientapp_runtime_list=[0.0]" in inspect.getsource(flower.Fleet.send)
