"""Threads or one after the other: by measurement, with long steps always in threads."""

import threading

from suture.engine.embedded import Embedded, Pace


def follow(pace, threaded, alone, steps):
    ways = []
    for _ in range(steps):
        ways.append(pace.threaded())
        pace.took(ways[-1], threaded if ways[-1] else alone)
    return ways


def test_both_ways_are_tried_twice_and_the_faster_is_kept():
    assert follow(Pace(), 0.003, 0.001, 7) == [True, False, True, False, False, False, False]
    assert follow(Pace(), 0.001, 0.003, 7) == [True, False, True, False, True, True, True]


def test_long_steps_are_never_tried_one_after_the_other():
    assert follow(Pace(), 0.2, 0.1, 6) == [True] * 6


def test_a_long_first_step_does_not_decide():
    """Compiling and reading are in the first step only."""
    pace = Pace()
    pace.took(pace.threaded(), 3.0)
    assert follow(pace, 0.002, 0.001, 6)[-3:] == [False] * 3


def test_a_round_that_asks_for_little_does_not_decide_either():
    """In VEIL's secure mode one early round asks one team only: whichever way it was done looks
    fast."""
    pace = Pace()
    for seconds in (0.004, 0.002, 0.0001, 0.001):  # threads, alone, threads (little asked), alone
        pace.took(pace.threaded(), seconds)
    assert follow(pace, 0.002, 0.001, 8)[-4:] == [False] * 4


def test_answers_keep_their_order_whichever_way_is_taken():
    names, seen = ["a", "b", "c", "d"], set()

    def work(name):
        seen.add(threading.current_thread().name.split("_")[0])
        return name.upper()

    with Embedded(2) as engine:
        for _ in range(5):
            assert engine.map("ask", work, names, [1, 4, 2, 3]) == ["A", "B", "C", "D"]
    assert seen == {"suture-site", "MainThread"}
