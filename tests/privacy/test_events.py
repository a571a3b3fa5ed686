import json
import math

import pytest
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from hypothesis import given
from hypothesis import strategies as st

from suture.errors import UnknownEvent
from suture.privacy.accounting.events import (
    Step,
    add,
    compose,
    event_from_json,
    event_to_json,
    event_to_text,
    normal_form,
    times,
)

noise = st.floats(0.1, 100, allow_nan=False)
simple = st.one_of(
    st.builds(NoOpDpEvent),
    st.builds(NonPrivateDpEvent),
    st.builds(GaussianDpEvent, noise),
    st.builds(LaplaceDpEvent, noise),
    st.builds(PoissonSampledDpEvent, st.floats(0, 1), st.builds(GaussianDpEvent, noise)),
)
events = st.recursive(
    simple,
    lambda inner: st.one_of(
        st.builds(ComposedDpEvent, st.lists(inner, max_size=4)),
        st.builds(SelfComposedDpEvent, inner, st.integers(0, 1000)),
    ),
    max_leaves=8,
)


@given(events)
def test_json_reads_back_bit_for_bit(event):
    text = json.dumps(event_to_json(event))
    assert event_from_json(json.loads(text)) == event
    assert event_to_text(event_from_json(json.loads(text))) == event_to_text(event)


@given(events, events)
def test_composition_adds_counts(first, second):
    both = normal_form(ComposedDpEvent([first, second]))
    assert (
        both
        == add(normal_form(first), normal_form(second))
        == normal_form(compose([(first, 1), (second, 1)]))
    )
    assert normal_form(SelfComposedDpEvent(first, 3)) == times(normal_form(first), 3)


def test_equal_events_merge_by_count():
    one = PoissonSampledDpEvent(0.1, GaussianDpEvent(1.5))
    merged = compose(
        [(SelfComposedDpEvent(one, 5), 2), (one, 1), (GaussianDpEvent(3.0), 1), (NoOpDpEvent(), 9)]
    )
    assert merged == ComposedDpEvent([SelfComposedDpEvent(one, 11), GaussianDpEvent(3.0)])
    assert compose([]) == NoOpDpEvent()
    assert compose([(one, 0)]) == NoOpDpEvent()
    assert compose([(one, 1)]) == one


def test_noise_of_zero_is_not_private_and_a_rate_of_zero_is_nothing():
    assert normal_form(GaussianDpEvent(0.0)) == ((Step("non_private", 0.0, 1.0), 1),)
    assert normal_form(PoissonSampledDpEvent(0.0, GaussianDpEvent(1.0))) == ()


@pytest.mark.parametrize(
    "value",
    [
        {"event": "magic"},
        {"event": "gaussian"},
        {"event": "gaussian", "noise": 1.0, "free": True},
        {"event": "gaussian", "noise": "1"},
        {"event": "gaussian", "noise": math.nan},
        {"event": "self_composed", "count": 1.5, "of": {"event": "no_op"}},
        {"event": "self_composed", "count": True, "of": {"event": "no_op"}},
        {"event": "composed", "of": {"event": "no_op"}},
        {"event": ["gaussian"], "noise": 1.0},
        [],
        None,
    ],
)
def test_unknown_json_is_refused(value):
    with pytest.raises(UnknownEvent):
        event_from_json(value)
    with pytest.raises(UnknownEvent):
        compose([(GaussianDpEvent(1.0), -1)])
