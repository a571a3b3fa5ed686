"""A study that asks for fairness, from files to the report: penalty, ensemble, thresholds,
resume."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import suture
from suture.errors import StudyError
from suture.study import Study

STUDY = """
[study]
name = "fair"
outcome = "ill"

[schema]
patient = "id"
groups = ["sex"]
protected = { column = "sex", values = ["F", "M"] }
[schema.features]
marker = { kind = "number", low = -2, high = 3 }
man = { kind = "flag" }

[model]
hidden = []

[method]
name = "fairfed"
rounds = 6
local_epochs = 1
batch = 60
rate = 1.0
ensemble = true
ensemble_epochs = 2

[privacy]
unit = "patient"
epsilon = 4

[evaluation]
holdout = 0.3
group_thresholds = true
compare = ["fedavg"]
"""


def hospitals(folder: Path, n: int = 300) -> str:
    text = STUDY
    for site in range(2):
        rng = np.random.default_rng(site)
        man, truth = rng.integers(0, 2, n), rng.random(n) < 0.5
        ill = truth & ((man == 1) | (rng.random(n) < 0.4))
        rows = [
            f"{site}-{i},{'FM'[man[i]]},{truth[i] + 0.4 * rng.normal():.3f},{man[i]},{int(ill[i])}"
            for i in range(n)
        ]
        (folder / f"{site}.csv").write_text("id,sex,marker,man,ill\n" + "\n".join(rows))
        text += f'\n[[site]]\nname = "h{site}"\ndata = "{site}.csv"\npatients = {2 * n // 3}\n'
    (folder / "study.toml").write_text(text)
    return text


def test_a_fair_study_runs_reports_and_resumes(tmp_path: Path) -> None:
    """In a simulation all is exact."""
    text = hospitals(tmp_path).replace('name = "fair"', 'name = "fair"\nsimulation = true')
    (tmp_path / "study.toml").write_text(text)
    result = suture.run(tmp_path / "study.toml", out=tmp_path / "run", threads=2)
    fair, plain = (result.data["methods"][name] for name in ("fairfed", "fedavg"))
    assert fair["label"] == "FedAvg, fair, ensemble"
    assert fair["privacy"]["epsilon"] <= 4
    assert "at most 1" in fair["privacy"]["statement"]
    assert "never leave the hospital" in fair["privacy"]["statement"]
    for found in (fair, plain):
        gap = found["metrics"]["fairness"]["sex"]
        low, high = gap["intervals"]["parity_gap"]
        assert 0 <= low <= gap["parity_gap"] <= high <= 1
        assert set(gap["groups"]) == {"F", "M"}
        assert found["metrics"]["group_thresholds"]["parity_gap"] is not None
        last = found["history"][-1]
        assert 0 <= last["groups"]["sex"]["F"]["positive_rate"] <= 1
        assert last["fairness"]["sex"]["parity_gap"] == pytest.approx(gap["parity_gap"])
    assert set(fair["metrics"]["parts"]) == {"global model", "own model"}
    assert set(fair["facts"]["released_mean_risk"]) == {"F", "M"}
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "Gaps between groups" in page
    assert "thresholds by group" in page
    kept = result.data["methods"]["fairfed"]["metrics"]["global"]
    (tmp_path / "run" / "result.json").unlink()
    again = suture.resume(tmp_path / "run")
    assert again.data["methods"]["fairfed"]["metrics"]["global"] == kept
    assert json.dumps(again.data["methods"]["fairfed"]["metrics"]["fairness"])


def test_a_fair_study_of_real_patients_shows_noisy_gaps_or_says_why_none(tmp_path: Path) -> None:
    """Of the two columns of groups, only `man` has declared values that the evaluation counts by."""
    text = hospitals(tmp_path, 3000).replace('groups = ["sex"]', 'groups = ["sex", "man"]')
    text = text.replace("holdout = 0.3", "holdout = 0.3\nepsilon = 3")
    (tmp_path / "study.toml").write_text(text)
    result = suture.run(tmp_path / "study.toml", out=tmp_path / "run", threads=2)
    for name in ("fairfed", "fedavg"):
        found = json.loads((tmp_path / "run" / "result.json").read_text())["methods"][name]
        noisy, none = (found["metrics"]["fairness"][column] for column in ("man", "sex"))
        told = found["metrics"]["evaluation"]["gaps"]["man"]
        assert noisy["parity_gap"] == told["flagged"]["value"]
        assert noisy["intervals"]["parity_gap"] == told["flagged"]["interval"]
        low, high = noisy["intervals"]["parity_gap"]
        assert 0 <= low <= noisy["parity_gap"] <= high <= 1
        assert (none["parity_gap"], none["odds_gap"], none["groups"]) == (None, None, {})
        assert "schema.features declares" in none["withheld"]
        assert "withheld" not in noisy
        assert not {"group_thresholds", "parts"} & set(found["metrics"])  # exact, so not computed
        assert "fairness" not in found["history"][-1]
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "Gaps between groups" in page
    assert none["withheld"] in page
    assert result.data["methods"]["fairfed"]["privacy"]["epsilon"] <= 4
    other = tmp_path / "silent"
    other.mkdir()
    hospitals(other, 3000)
    silent = Study.from_text(text.replace("epsilon = 3", "epsilon = 0"))
    alone = suture.run(silent, base=other).data["methods"]["fairfed"]
    for column in ("sex", "man"):
        gap = alone["metrics"]["fairness"][column]
        assert (gap["parity_gap"], gap["withheld"]) == (
            None,
            "the study plans no evaluation (evaluation.epsilon)",
        )


def test_without_protected_groups_the_study_says_what_is_missing(tmp_path: Path) -> None:
    text = hospitals(tmp_path).replace('protected = { column = "sex", values = ["F", "M"] }', "")
    with pytest.raises(StudyError, match="needs the groups to treat alike"):
        suture.run(Study.from_text(text), base=tmp_path)
