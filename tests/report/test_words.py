"""Words and numbers: what counts as private, what is rounded which way, what is said in one
sentence."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sample import sample

from suture.report import words


@given(st.floats(0.0, 1000.0))
def test_epsilon_is_never_printed_smaller_than_proven(value: float) -> None:
    printed = float(words.epsilon(value))
    assert printed >= value - 1e-8
    assert printed < value + 0.0100001


@pytest.mark.parametrize(
    ("privacy", "private"),
    [
        ({"epsilon": 8.0, "sites": {"a": 7.0, "b": 8.0}}, True),
        ({"epsilon": 8.0, "sites": {"a": 7.0, "b": None}}, False),
        ({"epsilon": None, "sites": {}}, False),
        ({"epsilon": math.inf}, False),
        ({"epsilon": 8.0, "protected": False}, False),
        ({}, False),
    ],
)
def test_private_only_with_an_epsilon_for_everyone(privacy: dict, private: bool) -> None:
    result = words.complete({"methods": {"m": {"privacy": privacy}}})
    assert words.protected(words.primary(result)) is private


def test_headline_names_what_matters() -> None:
    full = words.complete(sample(methods=2, sites=2, rounds=3, seeds=3))
    text = words.headline(full)
    assert "trained at 2 hospitals on 14,288 patients" in text
    assert "patient-level differential privacy" in text
    assert "ε\u00a0=\u00a08.00 or less, δ\u00a0=\u00a01e-5" in text
    assert f"AUC {full['methods']['fedavg']['metrics']['global']['auc']:.3f}" in text
    open_result = words.complete(sample(methods=1, sites=2, rounds=3, seeds=1, private=False))
    assert words.headline(open_result).endswith("without differential privacy.")


def test_a_result_without_any_section_still_speaks() -> None:
    bare = words.complete({"name": "x", "methods": {"fedavg": {}}})
    assert (
        words.headline(bare)
        == "fedavg reaches AUC – on held-out patients, without differential privacy."
    )
    assert words.hospitals(bare) == []
    assert words.unprotected(bare) == ["fedavg"]


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (words.number, 0.95712, "0.957"),
        (words.number, None, "–"),
        (words.number, math.nan, "–"),
        (words.number, "0.9", "–"),
        (words.signed, 0.0123, "+0.012"),
        (words.signed, -0.004, "−0.004"),
        (words.count, 13130, "13,130"),
        (words.count, None, "–"),
        (words.span, [0.951, 0.9634], "0.951 to 0.963"),
        (words.span, [0.5, None], ""),
        (words.span, None, ""),
        (words.delta, 1e-5, "1e-5"),
        (words.delta, 2.5e-6, "2.5e-6"),
        (words.p_value, 0.00002, "< 0.001"),
        (words.p_value, 0.0, "< 0.001"),
        (words.p_value, 0.0412, "0.041"),
        (words.p_value, 0.9996, "1.000"),
        (words.p_value, None, "–"),
        (words.size, 512, "512 B"),
        (words.size, 999, "999 B"),
        (words.size, 1_234_567, "1.2 MB"),
        (words.size, 12_340_000_000, "12.3 GB"),
        (words.size, None, "–"),
        (words.duration, 3.21, "3.2 s"),
        (words.duration, 125.4, "2 min 5 s"),
        (words.moment, "2026-11-15T20:30:00Z", "15 November 2026, 20:30 UTC"),
        (words.moment, "2026-11-15T21:30:00+01:00", "15 November 2026, 20:30 UTC"),
        (words.moment, "yesterday", "yesterday"),
        (words.combined, None, ""),
        (
            words.combined,
            {"sum": "masked", "error": 1.164e-07, "shortened": 2, "rejected": {}},
            "opened as sums under masks only; rounding moved an entry of a mean by at most 1.2e-07; "
            "2 shortened to the norm bound",
        ),
        (
            words.combined,
            {"aggregation": "median", "rejected": {"oslo": {"rounds": 3, "why": "not finite"}}},
            "combined by median; rejected from oslo in 3 rounds: not finite",
        ),
    ],
)
def test_what_people_read(write: Callable[[object], str], value: object, text: str) -> None:
    assert write(value) == text


def test_what_a_result_says_about_itself() -> None:
    methods = {
        "a": {"metrics": {"sites": {"x": {}, "y": {}}}, "privacy": {"epsilon": 1.0}},
        "b": {},
    }
    cohort, study = {"sites": {"z": {}, "x": {}}}, {"evaluation": {"folds": 5}}
    found = words.complete({"methods": methods, "cohort": cohort, "study": study})
    assert words.hospitals(found) == ["z", "x", "y"]
    assert words.unprotected(found) == ["b"]
    assert [words.repeats(found), words.repeats(words.complete({}))] == ["folds", "seeds"]
    metrics = {"global": {"auc": None, "f1": 0.5}}
    other = words.complete({"methods": {"a": {"metrics": metrics}}})
    assert words.leading_metric(words.primary(other)) == ("f1", 0.5)


def test_what_many_hospitals_share_is_said_once_with_the_worst_of_them() -> None:
    many = [
        f"site 'h{i}': column 'bmi': {i} of 1,000 rows without a value, filled" for i in range(1, 6)
    ]
    other = "site 'h1': column 'bmi': 4 of 1,000 rows outside the declared 10 to 60, clipped to it"
    assert words.merged_notes([many[0], other, *many[1:], "a word of ours"]) == [
        "column 'bmi': 15 of 5,000 rows without a value, filled (at 5 hospitals; most at h5: 5 of "
        "1,000)",
        other,
        "a word of ours",
    ]


def test_the_worst_is_the_largest_share_and_one_row_counts_with_rows() -> None:
    notes = [
        f"site 's{i}': column 'x': 1 of {n} row{'s' * (n > 1)} without a value"
        for i, n in enumerate((9, 1, 5, 7))
    ]
    assert words.merged_notes(notes) == [
        "column 'x': 4 of 22 rows without a value (at 4 hospitals; most at s1: 1 of 1)"
    ]


def test_few_hospitals_keep_their_own_words_and_repeats_are_said_once() -> None:
    notes = [f"site 's{i}': all training rows have the same outcome" for i in range(5)]
    assert words.merged_notes([*notes, *notes]) == notes
