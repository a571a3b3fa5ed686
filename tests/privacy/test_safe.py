"""The smallest safe epsilon: the chapter's exercise, its table, and the limits that no epsilon
lifts."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suture.errors import StudyError
from suture.privacy.accounting.accountant import classical_sigma
from suture.privacy.accounting.questions import MECHANISMS, reliability_of, safe_epsilon


@pytest.mark.parametrize(
    ("rate", "patients", "classical", "analytic"),
    [
        (0.012, 1000, "3.98", "3.50"),
        (0.012, 4000, "1.00", "0.75"),
        (0.012, 16000, "0.249", "0.165"),
        (0.011, 1000, "7.97", "7.88"),
        (0.011, 4000, "1.99", "1.60"),
        (0.011, 16000, "0.498", "0.351"),
    ],
)
def test_the_exercise(rate, patients, classical, analytic):
    found = safe_epsilon(rate=rate, threshold=0.01, patients=patients)["without_sampling_error"]
    for name, printed in (("classical", classical), ("analytic", analytic)):
        step = 10.0 ** -len(printed.split(".")[1])
        assert found[name]["epsilon"] == pytest.approx(
            float(printed), abs=step / 2 + 1e-3 * float(printed)
        )
        assert 0.95 <= found[name]["reliability"] < 0.9503
    assert found["classical"]["proven"] == (found["classical"]["epsilon"] < 1)


def test_sampling_error_puts_it_out_of_reach():
    for patients, best in ((1000, 0.707), (4000, 0.879)):
        found = safe_epsilon(rate=0.012, threshold=0.01, patients=patients)["with_sampling_error"]
        assert not found["reachable"]
        assert found["best_possible"] == pytest.approx(best, abs=5e-4)
        assert found["classical"] is None
    assert safe_epsilon(rate=0.012, threshold=0.01, patients=16000)["with_sampling_error"][
        "reachable"
    ]


@pytest.mark.parametrize(
    ("epsilon", "printed"), [(0.1, 0.532), (0.5, 0.654), (1, 0.798), (2, 0.948), (4, 1), (8, 1)]
)
def test_the_chapter_s_column_by_formula(epsilon, printed):
    # theirs is a mean of 20,000 draws: standard error at most 0.0036, so 0.012 is past 3.3 of them
    sigma = classical_sigma(epsilon, 1e-5)
    assert reliability_of(sigma, rate=0.011, threshold=0.01, patients=4000) == pytest.approx(
        printed, abs=0.012
    )


def test_with_sampling_error_is_what_a_simulation_finds():
    rng = np.random.default_rng(5)
    events = rng.binomial(2000, 0.015, 400_000) + rng.normal(0, 4.0, 400_000)
    exact = reliability_of(4.0, rate=0.015, threshold=0.01, patients=2000, sampling_error=True)
    # 400,000 draws: standard error 0.0005; five of them is a false alarm in 2 million
    assert np.mean(events > 20) == pytest.approx(exact, abs=0.0025)


@settings(deadline=None, max_examples=25)
@given(
    st.floats(0.005, 0.3),
    st.floats(0.005, 0.3),
    st.integers(200, 20_000),
    st.sampled_from([0.8, 0.95, 0.99]),
)
def test_the_answer_is_reliable_and_the_smallest(rate, threshold, patients, asked):
    if abs(rate - threshold) * patients < 0.5:
        return
    found = safe_epsilon(rate=rate, threshold=threshold, patients=patients, reliability=asked)
    for part, counted in (("without_sampling_error", False), ("with_sampling_error", True)):
        for name, answer in found[part].items():
            if not isinstance(answer, dict) or answer["epsilon"] <= 1.1e-4:
                continue
            question = {
                "rate": rate,
                "threshold": threshold,
                "patients": patients,
                "sampling_error": counted,
            }
            sigma = MECHANISMS[name](answer["epsilon"], 1e-5)
            assert reliability_of(sigma, **question) >= asked - 1e-9
            assert reliability_of(sigma * 1.02, **question) < asked


@pytest.mark.parametrize(
    "change",
    [
        {"rate": 0.01},
        {"rate": 1.2},
        {"threshold": 0},
        {"patients": 0},
        {"reliability": 0.5},
        {"delta": 0},
    ],
)
def test_nonsense_is_refused(change):
    with pytest.raises(StudyError):
        safe_epsilon(**{"rate": 0.012, "threshold": 0.01, "patients": 4000, **change})


def test_rounding_is_up():
    found = safe_epsilon(rate=0.012, threshold=0.01, patients=4000)["without_sampling_error"][
        "classical"
    ]
    exact = classical_sigma(8 / 1.6448536269514722, 1e-5)
    assert exact <= found["epsilon"] < exact * 1.001
    assert math.isclose(found["true_epsilon"], 0.748, abs_tol=1e-3)
