"""Robust aggregation: hand-computed numbers, breakdown points as properties, and what is rejected
before."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from suture.errors import RunError
from suture.protection import robust
from suture.protection.robust import Reply, screen

finite = st.floats(-1e6, 1e6, allow_subnormal=False)
hostile = st.floats(-1e30, 1e30, allow_subnormal=False)


def test_median_by_hand():
    updates = np.array([[1.0, 10.0], [2.0, -5.0], [9.0, 0.0], [4.0, 1.0]])
    assert robust.median(updates).tolist() == [3.0, 0.5]


def test_trimmed_mean_by_hand():
    updates = np.array([[1.0, 10.0], [2.0, -5.0], [9.0, 0.0], [4.0, 1.0], [-100.0, 2.0]])
    assert robust.trimmed_mean(updates, 1).tolist() == [pytest.approx(7 / 3), 1.0]
    assert robust.trimmed_mean(updates, 2).tolist() == [2.0, 1.0]
    assert robust.trimmed_mean(updates, 0).tolist() == updates.mean(axis=0).tolist()


def test_krum_by_hand():
    """Five points, one wrong: scores are sums of the two least squared distances. (0,0): 1+1;
    (1,0): 1+1; (0,1): 1+2; (2,0): 1+4; (9,9): far. The first of the two best wins; the two best
    together have the mean (0.5, 0)."""
    updates = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [2.0, 0.0], [9.0, 9.0]])
    assert robust.krum(updates, 1).tolist() == [0.0, 0.0]
    assert robust.krum(updates, 1, keep=2).tolist() == [0.5, 0.0]


def test_weights_count_for_the_mean_only():
    updates = np.array([[0.0], [4.0], [5.0]])
    assert robust.aggregate("mean", updates, [3, 1, 0], 0).tolist() == [1.0]
    assert robust.aggregate("median", updates, [3, 1, 0], 1).tolist() == [4.0]
    assert robust.aggregate("trimmed-mean", updates, [3, 1, 0], 1).tolist() == [4.0]
    assert robust.aggregate("krum", np.vstack([updates, updates]), [1] * 6, 1).tolist() == [4.0]


def test_norm_bounds_by_hand():
    assert robust.bounded(np.array([[0.0, 0.0], [30.0, 40.0]]), 5.0).tolist() == [
        [0.0, 0.0],
        [3.0, 4.0],
    ]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.data())
def test_entries_stay_between_honest_ones_below_the_breakdown_point(wrong, size, data):
    """2 wrong + 1 updates of which ``wrong`` are anything: median and trimmed mean stay within the
    honest range."""
    honest = data.draw(nps.arrays(np.float64, (wrong + 1, size), elements=finite))
    bad = data.draw(nps.arrays(np.float64, (wrong, size), elements=hostile))
    updates = np.vstack([honest, bad])[data.draw(st.permutations(range(2 * wrong + 1)))]
    low, high = honest.min(axis=0), honest.max(axis=0)
    for found in (robust.median(updates), robust.trimmed_mean(updates, wrong)):
        assert np.all(found >= low)
        assert np.all(found <= high)


def test_one_more_than_the_breakdown_point_breaks_them():
    """The bounds are tight: with wrong + 1 of 2 wrong + 1 hostile, both go wherever the hostile
    want."""
    updates = np.array([[0.0], [1.0], [1e9], [1e9], [1e9]])
    assert robust.median(updates)[0] == 1e9
    assert robust.trimmed_mean(updates, 2)[0] == 1e9


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.floats(-5, 5), st.data())
def test_krum_takes_an_honest_update_when_the_others_are_far(wrong, centre, data):
    """Honest updates within 1 of each other, hostile ones further than 10 x count from all of them:
    one honest wins."""
    count = 2 * wrong + 3
    honest = (
        data.draw(nps.arrays(np.float64, (count - wrong, 2), elements=st.floats(-0.3, 0.3)))
        + centre
    )
    bad = (
        data.draw(nps.arrays(np.float64, (wrong, 2), elements=st.floats(10 * count, 1e20))) + centre
    )
    found = robust.krum(np.vstack([bad, honest]), wrong)
    assert any(np.array_equal(found, row) for row in honest)


def test_krum_survives_values_whose_squares_overflow():
    updates = np.array([[1.0], [1.1], [1e300], [0.9], [-1e300], [1.04], [1.2]])
    # Three nearest: 1.0 has 0.0016 + 0.01 + 0.01, less than 1.1 with 0.0036 + 0.01 + 0.01.
    assert robust.krum(updates, 2)[0] == 1.0


@pytest.mark.parametrize(
    ("call", "needs"),
    [
        (lambda u: robust.krum(u, 1), "at least 5 updates, found 4"),
        (lambda u: robust.trimmed_mean(u, 2), "at least 5 updates, found 4"),
        (lambda u: robust.median(u[:0]), "at least 1 updates, found 0"),
        (lambda u: robust.krum(np.vstack([u, u]), 1, keep=8), "keep 1 to 7 of 8"),
    ],
)
def test_too_few_updates_are_refused(call, needs):
    with pytest.raises(RunError, match=needs):
        call(np.zeros((4, 2)))


@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "krum"])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 20])
def test_the_most_that_a_rule_covers_is_what_it_accepts(rule, count):
    wrong = robust.most_wrong(rule, count)
    if rule == "krum" and count < 3:
        return
    robust.aggregate(rule, np.zeros((count, 2)), [1.0] * count, wrong)
    if rule != "median":
        with pytest.raises(RunError):
            robust.aggregate(rule, np.zeros((count, 2)), [1.0] * count, wrong + 1)


def payload(*values, kind=np.float32):
    return {"delta": np.array(values, kind)}


def test_what_cannot_be_used_is_rejected_with_its_reason():
    replies = [
        Reply("fine", 3, payload(1, 2)),
        Reply("also fine", 3, payload(3, 4)),
        Reply("repeats itself", 3, payload(5, 6)),
        Reply("repeats itself", 3, payload(5, 6)),
        Reply("contradicts itself", 3, payload(5, 6)),
        Reply("contradicts itself", 3, payload(5, 7)),
        Reply("late", 2, payload(1, 2)),
        Reply("infinite", 3, payload(np.inf, 0)),
        Reply("not a number", 3, payload(np.nan, 0)),
        Reply("longer", 3, payload(1, 2, 3)),
        Reply("other type", 3, payload(1, 2, kind=np.float64)),
        Reply("other name", 3, {"gradient": np.zeros(2, np.float32)}),
        Reply("stranger", 3, payload(1, 2)),
    ]
    asked = [reply.site for reply in replies if reply.site != "stranger"]
    used, rejected = screen(replies, asked, 3)
    assert [reply.site for reply in used] == ["fine", "also fine", "repeats itself"]
    assert rejected == {
        "contradicts itself": "two different answers for the same round",
        "late": "the answer is for round 2, not 3",
        "stranger": "the site was not asked",
        "infinite": "the update is not finite",
        "not a number": "the update is not finite",
        "longer": "the update has other names, types or shapes than most sites'",
        "other type": "the update has other names, types or shapes than most sites'",
        "other name": "the update has other names, types or shapes than most sites'",
    }
    assert screen([], asked, 3) == ([], {})
