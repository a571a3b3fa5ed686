"""Gaps between groups: fairlearn's numbers, intervals that cover, thresholds that close a gap."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suture.evaluation.groups import by_column, fairness, gaps, gaps_and_rates, group_thresholds


def people(seed: int, n: int = 400, groups: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    group = rng.integers(0, groups, n)
    y = rng.random(n) < 0.3 + 0.1 * group
    return (
        y.astype(int),
        np.clip(rng.random(n) * 0.7 + 0.2 * y + 0.05 * group, 0, 1),
        np.array(list("abc"))[group],
    )


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), threshold=st.sampled_from([0.3, 0.5, 0.7]))
def test_gaps_are_fairlearns(seed: int, threshold: float) -> None:
    metrics = pytest.importorskip(
        "fairlearn.metrics", reason="compares with fairlearn: pip install 'suture[imaging]'"
    )
    y, p, group = people(seed)
    found, said = gaps(y, p, group, threshold), (p >= threshold).astype(int)
    options = {"sensitive_features": group}
    assert found["parity_gap"] == pytest.approx(
        metrics.demographic_parity_difference(y, said, **options)
    )
    assert found["odds_gap"] == pytest.approx(metrics.equalized_odds_difference(y, said, **options))
    assert found["opportunity_gap"] == pytest.approx(
        metrics.equal_opportunity_difference(y, said, **options)
    )
    frame = metrics.MetricFrame(
        metrics={"rate": metrics.selection_rate, "tpr": metrics.true_positive_rate, "fpr": metrics.false_positive_rate},
        y_true=y, y_pred=said, sensitive_features=group,
    ).by_group  # fmt: skip
    for name, one in gaps_and_rates(y, p, group, threshold)[1].items():
        expected = [frame.loc[name, key] for key in ("rate", "tpr", "fpr")]
        keys = ("positive_rate", "true_positive_rate", "false_positive_rate")
        assert [one[key] for key in keys] == pytest.approx(expected)


def test_what_is_undefined_is_none() -> None:
    found = gaps([0, 0, 1], [0.1, 0.9, 0.9], ["a", "a", "b"])
    assert found == {
        "parity_gap": 0.5,
        "odds_gap": None,
        "opportunity_gap": None,
        "worst_accuracy": 0.5,
    }
    empty = fairness([], [], [])
    assert empty["parity_gap"] is None
    assert empty["intervals"] == {}
    with pytest.raises(ValueError, match="one group and one risk"):
        gaps([0, 1], [0.5, 0.5], ["a"])


def test_intervals_cover_the_true_gap_and_count_patients_not_rows() -> None:
    """True parity gap 0.3 (rates 0.2 and 0.5): of 60 tables, at least 51 intervals cover it (false
    alarm below 1e-3)."""
    covered = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        group = rng.integers(0, 2, 300)
        p = (rng.random(300) < np.where(group == 1, 0.5, 0.2)).astype(float)
        low, high = fairness(rng.integers(0, 2, 300), p, group, seed=seed)["intervals"][
            "parity_gap"
        ]
        covered += low <= 0.3 <= high
    assert covered >= 51
    y, p, group = people(3)
    once = fairness(y, p, group)["intervals"]["parity_gap"]
    four = fairness(
        *(np.tile(part, 4) for part in (y, p, group)), patients=np.tile(np.arange(400), 4)
    )
    assert np.diff(four["intervals"]["parity_gap"]) == pytest.approx(np.diff(once), rel=0.15)


def test_thresholds_by_group_close_the_parity_gap() -> None:
    y, p, group = people(5)
    codes = np.unique(group, return_inverse=True)[1]
    assert gaps(y, p, group)["parity_gap"] > 0.05
    cut = group_thresholds(p, codes)
    fair = (p >= np.array([cut[int(code)] for code in codes])).astype(float)
    assert gaps(y, fair, group)["parity_gap"] < 0.01
    assert np.mean(fair) == pytest.approx(np.mean(p >= 0.5), abs=0.01)
    assert set(by_column(y, p, {"sex": group, "age": group})) == {"sex", "age"}
