"""The federation's histogram: what one patient can change, what is charged, what the page says."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent

from suture.engine import conduct
from suture.errors import BudgetExhausted, RunError, StudyError
from suture.explain.patient import explain_patient
from suture.explain.percentiles import FILE, Histogram, load_percentiles, release_percentiles
from suture.privacy.accounting.accountant import epsilon
from suture.privacy.accounting.planner import noise_for
from suture.privacy.ledger.ledger import Ledger
from suture.releases.query import joint_histograms, read_each
from suture.schema.table import Schema
from suture.study import Study

SCHEMA = Schema.parse(
    {
        "patient": "id",
        "features": {
            "age": {"kind": "number", "low": 0, "high": 100},
            "lactate": {"kind": "number", "low": 0, "high": 20, "normal": [0.5, 2.0]},
        },
    }
)


def rows(seed, patients=60):
    rng = np.random.default_rng(seed)
    ids = np.concatenate([np.arange(patients), rng.integers(0, patients, 20)])
    age = rng.uniform(0, 110, len(ids))
    lactate = np.where(rng.random(len(ids)) < 0.2, np.nan, rng.gamma(2, 1.5, len(ids)))
    died = (rng.random(len(ids)) < 1 / (1 + np.exp(3 - 0.04 * age))).astype(int)
    return {"id": ids, "age": age, "lactate": lactate, "died": died}


def test_one_patient_moves_the_joint_histogram_by_root_m_at_most():
    table = rows(1)

    def counts(kept):
        part = {name: column[kept] for name, column in table.items()}
        columns = read_each(part, SCHEMA, "died", ["age", "lactate"], site="s")
        tally = joint_histograms(columns, 8)
        assert tally.sensitivity == pytest.approx(math.sqrt(2))
        return tally.each(tally.table())[0].sum(axis=0)

    whole = counts(np.ones(len(table["id"]), bool))
    moved = [
        np.linalg.norm(counts(table["id"] != patient) - whole) for patient in np.unique(table["id"])
    ]
    assert max(moved) == pytest.approx(math.sqrt(2))  # met by whoever has both values
    assert min(moved) >= 1


@pytest.fixture
def run(tmp_path):
    """Two hospitals with files, ledgers and secrets of their own."""
    sites = []
    for i, name in enumerate(("a", "b")):
        lines = ["id,age,lactate,died"]
        for ids, *rest in zip(*rows(i).values(), strict=True):
            lines.append(
                ",".join(
                    [str(ids), *("" if np.isnan(v) else f"{v:.3f}" for v in rest[:2]), str(rest[2])]
                )
            )
        (tmp_path / f"{name}.csv").write_text("\n".join(lines))
        sites.append(
            {"name": name, "data": f"{name}.csv", "patients": 50, "lifetime": {"epsilon": 100.0}}
        )
    study = Study(
        name="real",
        outcome="died",
        sites=sites,
        schema=SCHEMA.model_dump(mode="json", exclude_none=True),
        method={"name": "veil", "mode": "secure", "rounds": 6},
        privacy={"unit": "patient", "epsilon": 50.0},
    )
    conduct.run(study, out=tmp_path / "run", base=tmp_path, threads=1)
    return tmp_path / "run"


def test_every_site_is_charged_once_and_the_sum_is_kept(run, tmp_path):
    found = release_percentiles(run, epsilon=1.0, budget=1.5)
    columns = found["columns"]
    assert set(columns) <= {"age", "lactate"}
    expected = noise_for(1.0, 1e-5, 1.0, 1, "pld")
    for name in ("a", "b"):
        with_ledger = Ledger.open(tmp_path / ".suture" / name / "ledger.sqlite", name)
        spent = with_ledger.spent("real/releases")
        with_ledger.close()
        assert spent == pytest.approx(epsilon(GaussianDpEvent(expected), 1e-5, "pld"), abs=1e-6)
    kept = json.loads((run / FILE).read_text())
    # Each hospital's own noise, for the joint sensitivity: deviations add up in squares.
    assert kept["noise_sd"] == pytest.approx(
        expected * math.sqrt(len(columns)) * math.sqrt(2), rel=0.01
    )
    again = release_percentiles(run, epsilon=1.0)
    assert again["repeated"] == 2
    assert json.loads((run / FILE).read_text()) == kept
    with pytest.raises(BudgetExhausted):
        release_percentiles(run, epsilon=1.3, bins=10)
    assert json.loads((run / FILE).read_text()) == kept


def test_the_page_says_whose_percentiles_it_shows(run):
    with pytest.raises(RunError, match="suture release percentiles run --epsilon 1"):
        explain_patient(run, site="a", patient="3", percentiles="federation")
    with pytest.raises(StudyError, match="site or federation"):
        explain_patient(run, site="a", patient="3", percentiles="world")
    own = explain_patient(run, site="a", patient="3")
    text = Path(own["page"]).read_text().split("<main>")[1].split("<script")[0]
    assert "Percentiles, notes and similar patients are computed from this site's own" in text
    assert "all hospitals" not in text
    release_percentiles(run, epsilon=1.0, budget=2.0)
    shared = explain_patient(run, site="a", patient="3", percentiles="federation")
    text = Path(shared["page"]).read_text().split("<main>")[1].split("<script")[0]
    assert "a histogram over all 2 hospitals with noise (epsilon" in text
    assert "of this site&#39;s patients. Why" not in text
    assert shared["risk"] == own["risk"]
    _, words = load_percentiles(run)
    assert words in text.replace("&#39;", "'")


def test_shares_below_by_hand():
    """100 patients in four bins; noise of deviation 2: at the middle edge (0.5^2 * 2 + 0.5^2 * 2)
    bins of noise."""
    histogram = Histogram(np.linspace(0, 4, 5), np.array([25.0, 25.0, 25.0, 25.0]), 2.0)
    share, margin = histogram.below(2.0)
    assert share == 0.5
    assert margin == pytest.approx(1.959964 * 2 * 1.0 / 100)
    assert histogram.below(-3.0)[0] == 0.0
    assert histogram.below(9.0)[0] == 1.0
    assert Histogram(np.linspace(0, 4, 5), np.array([-3.0, 1.0, 0.0, 1.0]), 2.0).below(2.0) == (
        0.5,
        0.5,
    )


def test_the_margin_holds_the_truth():
    """95 % margins over 400 draws of noise: fewer than 340 hits has a chance below 1e-9."""
    rng = np.random.default_rng(5)
    exact = rng.multinomial(20_000, np.full(40, 1 / 40)).astype(float)
    truth = exact[:30].sum() / exact.sum()
    hits = 0
    for _ in range(400):
        share, margin = Histogram(
            np.linspace(0, 40, 41), exact + rng.normal(0, 30, 40), 30.0
        ).below(30.0)
        hits += abs(share - truth) <= margin
    assert hits > 340


def test_other_methods_have_no_such_page(tmp_path):
    study = Study(
        name="x",
        outcome="high_risk",
        cohort={"name": "cardio", "patients": 200},
        method={"rounds": 1},
    )
    conduct.run(study, out=tmp_path / "run", threads=1)
    with pytest.raises(StudyError, match="readable concepts"):
        release_percentiles(tmp_path / "run", epsilon=1.0, budget=2.0)
