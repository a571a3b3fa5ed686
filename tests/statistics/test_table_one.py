"""Table 1: exact without noise, consistent totals, coverage under noise, and the differencing attack."""

from __future__ import annotations

import numpy as np
import pytest
from support.statistics import NOISE, public, rows, run

from suture.errors import StudyError
from suture.statistics.table_one import TableOne, consistent, quantile, share

SIZES = {"a": 800, "b": 500, "c": 200}


def made(seed: int = 1):
    rng = np.random.default_rng(seed)
    both = {site: rows(n, rng) for site, n in SIZES.items()}
    return {site: one for site, (one, _) in both.items()}, {
        key: np.concatenate([values[key] for _, values in both.values()])
        for key in ("age", "bp", "man", "smoker", "y")
    }


def test_without_noise_the_table_is_exact():
    tables, values = made()
    statistic = TableOne(public(SIZES), by=("sex",))
    found = statistic.figures(run(statistic, tables, None))
    assert found["patients"]["all"]["value"] == pytest.approx(1500, abs=0.1)
    assert found["patients"]["site: c"]["value"] == pytest.approx(200, abs=0.1)
    age = found["variables"]["age"]["numbers"]
    assert age["all"]["mean"]["value"] == pytest.approx(values["age"].mean(), abs=0.02)
    assert age["all"]["sd"]["value"] == pytest.approx(values["age"].std(), abs=0.05)
    assert age["all"]["q50"]["value"] == pytest.approx(np.median(values["age"]), abs=0.5)
    ill = values["y"] == 1
    assert age["outcome: yes"]["mean"]["value"] == pytest.approx(values["age"][ill].mean(), abs=0.1)
    bp = found["variables"]["bp"]["numbers"]["all"]
    assert bp["missing"]["value"] == pytest.approx(np.isnan(values["bp"]).mean(), abs=0.002)
    assert bp["mean"]["value"] == pytest.approx(np.nanmean(values["bp"]), abs=0.05)
    shares = found["variables"]["sex"]["shares"]
    assert shares["M"]["all"]["value"] == pytest.approx(values["man"].mean(), abs=0.001)
    assert shares["M"]["sex: F"]["value"] == pytest.approx(0, abs=0.001)


def test_strata_of_every_breakdown_add_up_to_the_same_total():
    tables, _ = made()
    statistic = TableOne(public(SIZES)).planned(NOISE[1.0])
    state = run(statistic, tables, np.random.default_rng(3))
    counts = statistic.figures(state)["patients"]
    whole = counts["all"]["value"]
    for name in ("site", "outcome"):
        strata = [one["value"] for key, one in counts.items() if key.startswith(f"{name}:")]
        assert sum(strata) == pytest.approx(whole)


def test_totals_are_weighted_by_their_variance():
    """Two strata (variance 2) against three (variance 3): weights 1/2 and 1/3."""
    raw = np.array([[10.0], [20.0], [9.0], [9.0], [9.0]])
    whole, moved = consistent(raw, [2, 3])
    assert whole[0] == pytest.approx((30 / 2 + 27 / 3) / (1 / 2 + 1 / 3))
    assert moved[:2].sum() == pytest.approx(whole[0])
    assert moved[2:].sum() == pytest.approx(whole[0])


def test_a_share_without_noise_is_the_score_interval():
    """Wilson's interval for 50 of 200: 0.1950 to 0.3143 (Wilson 1927)."""
    found = share(np.array([150.0, 50.0, 0.0]), 1, np.zeros(3), known=2)
    assert found["interval"] == pytest.approx([0.19504, 0.31435], abs=2e-4)


def test_what_noise_drowns_is_withheld():
    found = share(np.array([4.0, 3.0, 0.0]), 1, np.full(3, 5.0), known=2)
    assert found == {"value": None, "interval": None}
    assert quantile(np.zeros(20), 1.0, 0.5) is None


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_intervals_cover(epsilon):
    """1,000 studies: 95 % intervals hold the truth in 93 to 97 % (a true 95 % leaves that range with
    probability 0.004 for each figure, of which there are 12)."""
    rng = np.random.default_rng(7)
    statistic = TableOne(public(SIZES), 1.0).planned(NOISE[epsilon])
    truth = {"mean": 60.0, "sd": None, "q50": 60.0}
    huge = rows(1_000_000, np.random.default_rng(99))[1]
    truth = {"mean": huge["age"].mean(), "sd": huge["age"].std(), "q50": np.median(huge["age"])}
    hits: dict[tuple[str, str], list[bool]] = {}
    for _ in range(1000):
        tables = {site: rows(n, rng)[0] for site, n in SIZES.items()}
        found = statistic.figures(run(statistic, tables, rng))["variables"]
        for column in ("all", "site: a"):
            wanted = {
                **{k: (found["age"]["numbers"][column][k], v) for k, v in truth.items()},
                "missing": (found["bp"]["numbers"][column]["missing"], 0.1),
                "smoker": (found["smoker"]["shares"]["yes"][column], 0.2),
                "man": (found["sex"]["shares"]["M"][column], 0.45),
            }
            for key, (figure, value) in wanted.items():
                if figure["interval"] is not None:
                    low, high = figure["interval"]
                    hits.setdefault((column, key), []).append(low <= value <= high)
    for key, found in hits.items():
        assert 0.925 <= np.mean(found) <= 0.977, (key, np.mean(found))


def test_differencing_finds_a_patient_in_exact_tables_and_not_in_noisy_ones():
    """Two tables, with and without one rare patient: exact counts tell them apart always. Noisy ones
    do so in at most e^epsilon / (1 + e^epsilon) of guesses (0.731 at epsilon 1); 400 guesses at that
    rate exceed 0.80 with probability below 0.001."""
    tables, _ = made()
    less = {**tables}
    c = tables["c"]
    less["c"] = type(c)(c.x[1:], c.y[1:], np.arange(len(c.y)), declared=200)
    exact = TableOne(public(SIZES))
    difference = run(exact, tables, None)["table"] - run(exact, less, None)["table"]
    assert np.abs(difference).max() > 0.5
    noisy = TableOne(public(SIZES), 1.0).planned(NOISE[1.0])
    direction = difference / np.linalg.norm(difference)
    base = run(noisy, less, None)["table"]
    sd, rng, right = noisy.noise_of(noisy.asks(1)[0]), np.random.default_rng(5), 0
    for i in range(400):
        there = i % 2
        seen = base + there * difference + rng.normal(0, sd, len(base))
        score = (seen - base) @ direction
        right += (score > np.linalg.norm(difference) / 2) == there
    assert right / 400 <= 0.80


def test_a_number_is_no_breakdown():
    with pytest.raises(StudyError, match="sex, smoker"):
        _ = TableOne(public(SIZES), by=("age",)).breakdowns
