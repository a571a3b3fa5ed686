"""The reproduction: the paper's figures as printed, ours from runs, in every file it names."""

import csv
import json

import numpy as np
import pytest

from suture.errors import StudyError
from suture.methods.base import Answer
from suture.methods.fedopt import FedOpt
from suture.models.dense import Dense
from suture.papers import fedcvr, reproduce
from suture.papers import fedcvr_claim as claim
from suture.training.local import Local


def test_an_unknown_paper_lists_the_known_ones(tmp_path):
    with pytest.raises(StudyError, match="fedcvr"):
        reproduce("fedsgd", out=tmp_path)


def test_full_setting_is_the_paper_s_table_5():
    study = fedcvr.study(1.0)
    method = study.method
    assert (method.rounds, method.local_epochs, method.rate, method.batch) == (100, 5, 0.01, 32)
    assert (method.server_rate, method.beta1, method.beta2, method.tau) == (0.1, 0.9, 0.999, 1e-3)
    assert study.model.hidden == (64, 32)
    assert study.privacy is not None
    assert study.privacy.noise_multiplier == 1.0
    assert set(fedcvr.ORDER) <= set(study.methods)
    assert study.evaluation.seeds == 5
    assert not fedcvr.study(None).private


@pytest.mark.slow
def test_quick_reproduction_writes_every_table_and_figure(tmp_path):
    found = reproduce("fedcvr", out=tmp_path, quick=True)
    assert json.loads((tmp_path / "tables.json").read_text())["tables"] == json.loads(
        json.dumps(found["tables"])
    )
    for name in ("verdict", "claim_auc", "table2", "table3", "table7", "table8", "epsilon"):
        rows = list(
            csv.DictReader((tmp_path / f"{name}.csv").read_text(encoding="utf-8").splitlines())
        )
        assert len(rows) == len(found["tables"][name]["rows"])
    figures = sorted(path.name for path in (tmp_path / "figures").glob("*.png"))
    assert [name[:7] for name in figures[1:]] == [f"figure{i}" for i in range(3, 9)]
    assert figures[0] == "claim.png"
    table = {row["sigma"]: row for row in found["tables"]["table8"]["rows"]}
    assert table["none"]["proven epsilon (worst hospital)"] is None
    assert table[0.5]["claimed epsilon"] == 80.5
    proven = [table[sigma]["proven epsilon (worst hospital)"] for sigma in (0.5, 1.0, 1.5)]
    assert proven == sorted(proven, reverse=True)
    rows = found["tables"]["table7"]["rows"]
    assert len(rows) == 6
    assert rows[-1]["p (Welch)"] is None
    assert (tmp_path / "index.html").stat().st_size > 100_000
    again = reproduce("fedcvr", out=tmp_path, quick=True)
    assert again["tables"] == found["tables"]


# --- the claim --------------------------------------------------------------------------------


def test_every_optimiser_has_equal_trials_that_begin_with_the_papers_rates():
    for name, (fixed, second, _, printed) in claim.OPTIMISERS.items():
        found = claim.Cell("rule, IID", 1.0, name).candidates()
        assert len(found) == claim.TRIALS
        assert len({json.dumps(one, sort_keys=True) for one in found}) == claim.TRIALS
        assert found[0] == {**fixed, "rate": 0.01, **({second: printed} if second else {})}
        assert all(one["name"] == fixed["name"] for one in found)


def test_every_cell_is_a_study_that_can_run():
    for cell in claim.cells(quick=False):
        study = cell.study(1, cell.candidates()[-1])
        assert study.private == (cell.level > 0)
        assert study.method.weighting == "size"
        assert study.simulation == (cell.place in claim.REAL)
    whole = [c for c in claim.cells(quick=False) if c.place == "rule, specialised"]
    assert {c.level for c in whole} == {0.0, 0.5, 0.8, 1.0, 1.1, 1.5}
    assert {c.optimiser for c in whole if c.level == 1.0} == set(claim.OPTIMISERS)


def test_tuning_never_sees_a_seed_that_is_reported(monkeypatch):
    asked = []

    def seen(study, scratch):
        asked.append(study.seed)
        return study.method.rate

    monkeypatch.setattr(claim, "_auc", seen)
    found = claim.measure(claim.Cell("rule, IID", 1.0, "FedAvg"))
    tuned, tested = asked[: claim.TRIALS], asked[claim.TRIALS :]
    assert set(tuned) == {1042}
    assert tested == [42, 43, 44, 45, 46]
    # The largest rate "won", and is what is measured.
    best = max(one["rate"] for one in claim.Cell("rule, IID", 1.0, "FedAvg").candidates())
    assert found == {"settings": [{"name": "fedavg", "rate": best}], "auc": [best] * 5}


def test_first_moment_alone_is_server_momentum():
    """FedAvgM by hand: m = 0.9 m + 0.1 g, corrected for its start, times the rate."""
    fixed, _, _, rate = claim.OPTIMISERS[claim.FIRST]
    method = FedOpt(Dense((2, 1)), Local(), server_rate=rate, tau=fixed["tau"])
    state = method.init(["a"], np.random.default_rng(0))
    params, m = state["params"].copy(), np.zeros(3)
    for t, g in enumerate(([1.0, -2.0, 0.5], [0.5, 0.5, 3.0]), 1):
        answer = Answer("a", 1, {"delta": np.array(g, np.float32)})
        state = method.server_step(state, [answer])
        m = 0.9 * m + 0.1 * np.array(g)
        params = params - m / (1 - 0.9**t)
        np.testing.assert_allclose(state["params"], params, rtol=1e-5)


def made_up(gain):
    """A grid in which FedAdam gains ``gain`` per unit of noise, and so does the first moment."""
    rng, grid = np.random.default_rng(1), {}
    for cell in claim.cells(quick=False):
        helped = cell.optimiser in (claim.FIRST, claim.FEDADAM)
        wobble = 0.001 * rng.standard_normal(cell.seeds)
        auc = 0.8 + gain * cell.level * helped + wobble
        grid[cell] = {"settings": [cell.candidates()[0]], "auc": auc.tolist()}
    return grid


@pytest.mark.parametrize(("gain", "said"), [(0.05, "is supported"), (0.0, "is not supported"),
                                            (-0.05, "is not supported")])  # fmt: skip
def test_the_verdict_follows_the_figures(gain, said):
    grid = made_up(gain)
    found, words = claim.tables(grid, [0.01, 0.012, 0.011])
    assert said in words
    by_name = {row["claim"]: row for row in found["verdict"][1]}
    grows = by_name["That advantage grows with noise"]
    # Mean noise of the noisy cells: 0.5, 0.8, 1, 1.1, 1.5 twice, and 1.0 twice.
    assert grows["effect on AUC"] == pytest.approx(gain * (2 * 4.9 + 2) / 12, abs=0.002)
    first = by_name["Under noise the first moment helps"]["effect on AUC"]
    second = by_name["Under noise the second moment helps"]["effect on AUC"]
    assert first == pytest.approx(gain * 11.8 / 12, abs=0.002)
    assert second == pytest.approx(0.0, abs=0.002)
    assert len(found["claim_settings"][1]) == len(grid)


def test_a_finished_cell_is_not_trained_again(tmp_path, monkeypatch):
    cell, trained = claim.Cell("rule, IID", 1.0, "FedAvg"), []

    def measured(one):
        trained.append(one)
        return {"settings": [], "auc": [0.5]}

    monkeypatch.setattr(claim, "measure", measured)
    assert claim._kept(tmp_path, cell) == claim._kept(tmp_path, cell)
    assert len(trained) == 1
    monkeypatch.setitem(claim.PLACES, "rule, IID", {"name": "cardio", "patients": 300})
    claim._kept(tmp_path, cell)
    assert len(trained) == 2
