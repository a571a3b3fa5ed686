"""The budget over the rounds: the chapter's figures, consistency with the accountants, refusals."""

import pytest

from suture.errors import StudyError
from suture.privacy.accounting.accountant import epsilon
from suture.privacy.accounting.planner import dpsgd_event
from suture.privacy.accounting.questions import budget_over_rounds


def test_the_sepsis_story():
    found = budget_over_rounds(rounds=100, round_epsilon=1.0, budget=8.0)
    assert found["rounds_that_fit"] == {"basic": 9, "sqrt_rule": 64, "rdp": 57, "pld": 65}
    assert found["noise"] == pytest.approx(4.8448, abs=1e-4)


def test_the_square_root_rule_is_too_high_and_then_too_low():
    rows = budget_over_rounds(rounds=100, round_epsilon=1.0, at=[10, 50, 100])["rows"]
    assert [row["sqrt_rule_promises_too_much"] for row in rows] == [False, False, True]
    assert [row["sqrt_rule"] for row in rows] == pytest.approx([3.163, 7.072, 10.0])
    assert [row["pld"] for row in rows] == pytest.approx([2.69, 6.82, 10.39], abs=0.011)


def test_sampled_rounds_are_the_accountants():
    found = budget_over_rounds(
        rounds=30, noise=1.0, patients=1270, batch=32, local_epochs=5, at=[30]
    )
    event = dpsgd_event(1.0, 32 / 1270, 30 * 5 * 40)
    for way in ("basic", "rdp", "pld"):
        exact = epsilon(event, 1e-5, way)
        assert exact * (1 - 1e-9) <= found["rows"][0][way] <= exact * 1.002


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"noise": 1.0, "round_epsilon": 1.0},
        {"noise": 1.0, "patients": 10},
        {"round_epsilon": 1.0, "patients": 100, "batch": 10},
        {"noise": 1.0, "at": [0]},
        {"noise": 1.0, "at": [11]},
        {"round_epsilon": 1.0, "formula": "magic"},
    ],
)
def test_what_means_nothing_is_refused(asked):
    with pytest.raises(StudyError):
        budget_over_rounds(rounds=10, **asked)


def test_rounds_shown_end_at_the_last():
    assert [row["round"] for row in budget_over_rounds(rounds=3, noise=5.0)["rows"]] == [1, 2, 3]
    many = [row["round"] for row in budget_over_rounds(rounds=500, noise=5.0)["rows"]]
    assert (many[0], many[-1], len(many) <= 40) == (1, 500, True)
