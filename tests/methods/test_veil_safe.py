"""VEIL's secure mode ends where it was best: a small table here, the real ones in
benchmarks/veil_safe.py."""

import runpy
from pathlib import Path

import numpy as np
import pytest

from suture import cohorts
from suture.engine import conduct
from suture.errors import DataError
from suture.study import Study

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
@pytest.mark.parametrize("concepts", [10, 60])
def test_the_last_round_is_near_the_best(concepts, epsilon):
    """3,000 generated patients at eight hospitals, 12 rounds. Noise comes from the study's seed, so
    nothing here is random."""
    study = Study(
        name="small",
        outcome="died_in_hospital",
        seed=3,
        cohort={"name": "icu", "hospitals": 8, "patients": 3000},
        method={"name": "veil", "mode": "secure", "rounds": 12, "concepts": concepts},
        privacy={"unit": "patient", "epsilon": epsilon},
        evaluation={"every": 1},
    )
    result = conduct.run(study, threads=1)
    rounds = [row["global"]["auc"] for row in result.history]
    assert rounds[:6] == [0.5] * 6  # less than half of the ten steps: the base rate
    assert max(rounds) - rounds[-1] <= 0.01
    assert rounds[-1] > 0.6
    assert 0 < np.count_nonzero(result.model["weights"]) <= concepts


@pytest.mark.slow
def test_framingham_neither_falls_nor_contradicts_itself(monkeypatch, capsys):
    """Three seeds of the benchmark's hardest column; the whole grid is its ten seeds."""
    try:
        cohorts.load("framingham", 42)
    except DataError as error:
        pytest.skip(str(error))
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    asked = "veil_safe.py --tables framingham --epsilon 1 --seeds 3"
    monkeypatch.setattr("sys.argv", asked.split())
    main = runpy.run_path(str(ROOT / "benchmarks" / "veil_safe.py"))["main"]
    assert main() == 0, capsys.readouterr().out
