"""Outcomes and their codes: what goes in comes out, and nothing else passes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from suture.schema.outcome import MISSING, TICKS, TWO, UNKNOWN, Classes, Positive, Survival, cells

YEAR = Survival(time="days", event="death", horizon=365, intervals=4)


@given(st.lists(st.tuples(st.floats(0, 365), st.booleans()), min_size=1, max_size=30))
def test_times_and_events_within_the_horizon_come_back(rows):
    time = np.array([t for t, _ in rows])
    event = np.array([int(e) for _, e in rows])
    y = YEAR.encode(time, event)
    assert YEAR.events(y).tolist() == [bool(e) for e in event]
    reached = (time == 365) & (event == 0)
    assert np.abs(YEAR.times(y) - time)[~reached] == pytest.approx(0, abs=365 / TICKS)
    assert np.all(YEAR.times(y)[reached] > 365)
    assert np.all(cells(y, 4)[reached] == 8)
    # The interval is the one that holds the time, closed on the right, but for rounding at its ends.
    inside = np.clip(np.ceil(time / 365 * 4) - 1, 0, 3)
    near = np.abs(time / 365 * 4 - np.rint(time / 365 * 4)) < 1e-5
    assert np.all((cells(y, 4) // 2 == inside) | near | reached)


def test_follow_up_beyond_the_horizon_has_no_event():
    y = YEAR.encode(np.array([366.0, 1e9]), np.array([1, 0]))
    assert not YEAR.events(y).any()
    assert cells(y, 4).tolist() == [8, 8]
    assert YEAR.classes(y).tolist() == [0, 0]


def test_what_is_missing_or_impossible_has_no_code():
    time = np.array([np.nan, 5.0, -1.0, np.inf, 5.0])
    y = YEAR.encode(time, np.array([1, MISSING, 1, 0, UNKNOWN]))
    assert y.tolist() == [MISSING, MISSING, UNKNOWN, UNKNOWN, UNKNOWN]
    assert YEAR.classes(y).tolist() == y.tolist()


def test_what_may_be_asked_of_every_outcome():
    assert (TWO.two, TWO.count, TWO.outputs, TWO.shape) == (True, 2, 1, ())
    three = Classes(written=("a", "b", "c"))
    assert (three.two, three.count, three.outputs, three.shape) == (False, 3, 3, (3,))
    assert (YEAR.two, YEAR.count, YEAR.outputs, YEAR.shape) == (False, 2, 4, (4,))
    assert YEAR.edges.tolist() == [91.25, 182.5, 273.75, 365.0]
    cause = Survival(time="t", event="end", cause="stroke", horizon=1)
    assert cause.texts == Classes(written=Positive(text="stroke"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"horizon": 0},
        {"horizon": float("inf")},
        {"intervals": 1},
        {"intervals": 1000},
        {"event": "days"},
        {"cause": ""},
    ],
)
def test_what_no_study_can_mean_is_refused(wrong):
    with pytest.raises(ValidationError):
        Survival(**{"time": "days", "event": "death", "horizon": 365, **wrong})
