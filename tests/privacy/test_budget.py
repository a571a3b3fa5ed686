import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suture.errors import StudyError
from suture.privacy.accounting import budget as module
from suture.privacy.accounting.budget import Budget, fits, largest, learn_if_fits
from suture.privacy.accounting.events import GAUSSIAN, NON_PRIVATE, Step, times

ONE = ((Step(GAUSSIAN, 4.83, 1.0), 1),)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.floats(0.3, 3.0), st.integers(1, 10**6))
def test_largest_finds_the_crossing(answer, power, guess):
    asked = []

    def cost(n: int) -> float:
        asked.append(n)
        return float(n) ** power

    assert largest(cost, (answer + 0.5) ** power, guess, 10**7) == answer
    assert len(asked) <= 45
    assert all(1 <= n <= 10**7 for n in asked)


def test_largest_at_its_ends():
    assert largest(lambda n: 0.0, 1.0, limit=77) == 77
    assert largest(lambda n: math.inf, 1.0, limit=77) == 0
    assert largest(lambda n: 0.0 if n < 5 else math.inf, 1.0, guess=50, limit=77) == 4


@pytest.mark.parametrize(
    "arguments",
    [(0.0, 1e-5, "pld"), (math.nan, 1e-5, "pld"), (1.0, 0.0, "pld"), (1.0, 1e-5, "gdp")],
)
def test_a_budget_must_mean_something(arguments):
    with pytest.raises(StudyError):
        Budget(*arguments)


def test_forty_rounds_of_the_chapters_sepsis_story_fit_and_the_next_does_not():
    """Exact Gaussian DP: sigma 4.83 for T = 40 at epsilon 6 (medical privacy stack)."""
    budget = Budget(6.0, 1e-5, "pld")
    assert [fits(times(ONE, n), ONE, budget) for n in (0, 38, 39, 40)] == [True, True, True, False]


def test_the_accountant_is_asked_once_for_a_hundred_equal_charges(monkeypatch):
    step = ((Step(GAUSSIAN, 1.7301, 0.02), 50),)  # used nowhere else: nothing is known about it yet
    budget, asked, real = Budget(5.0, 1e-5, "pld"), [], module.epsilon_of
    monkeypatch.setattr(module, "epsilon_of", lambda *args: asked.append(args) or real(*args))
    spent = ()
    for _ in range(100):
        assert fits(spent, step, budget)
        spent = module.add(spent, step)
    assert 1 <= len(asked) <= 15


def test_what_takes_turns_is_not_computed_each_time(monkeypatch):
    first, second = ((Step(GAUSSIAN, 1.7302, 0.02), 50),), ((Step(GAUSSIAN, 80.0, 1.0), 1),)
    budget, asked, real = Budget(5.0, 1e-5, "pld"), [], module.epsilon_of
    monkeypatch.setattr(module, "epsilon_of", lambda *args: asked.append(args) or real(*args))
    spent = ()
    for turn in range(100):
        event = (first, second)[turn % 2]
        assert fits(spent, event, budget)
        spent = module.add(spent, event)
    assert len(asked) <= 40


@settings(max_examples=10, deadline=None)
@given(st.lists(st.sampled_from([1.0, 2.0, 3.0]), min_size=1, max_size=12))
def test_known_or_computed_the_answer_is_the_accountants(noises):
    budget, spent = Budget(4.0, 1e-5, "rdp"), ()
    for noise in noises:
        event = ((Step(GAUSSIAN, noise, 0.3), 5),)
        total = module.add(spent, event)
        truth = module.epsilon_of(total, 1e-5, "rdp") <= 4.0
        assert fits(spent, event, budget) == truth
        spent = total if truth else spent


def test_planning_teaches_the_ledger_only_what_is_true():
    assert not learn_if_fits(times(ONE, 41), Budget(6.0, 1e-5, "pld"))
    assert not fits(times(ONE, 40), ONE, Budget(6.0, 1e-5, "pld"))
    assert learn_if_fits(times(ONE, 40), Budget(6.0, 1e-5, "pld"))
    assert not fits((), ((Step(NON_PRIVATE, 0.0, 1.0), 1),), Budget(6.0, 1e-5, "pld"))
    assert fits((), ((Step(NON_PRIVATE, 0.0, 1.0), 1),), Budget(math.inf, 1e-5, "pld"))
