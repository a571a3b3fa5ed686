"""Evaluation: scikit-learn's figures without noise, errors and coverage with it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, roc_auc_score
from support.statistics import NOISE, public, rows, run
from support.statistics import SCHEMA as SHARED
from typer.testing import CliRunner

from suture.cli.main import app
from suture.errors import StudyError
from suture.methods.registry import METHODS, MethodSpec, build, declared, measuring
from suture.models.concepts import plain
from suture.models.dense import Dense
from suture.privacy.unit import Patients
from suture.schema.message import check_message
from suture.schema.table import Number, Schema
from suture.statistics.evaluation import (
    Evaluation,
    against_earlier,
    auc,
    chosen_bins,
    drift,
    group_gaps,
    net_benefit,
    strategy,
)
from suture.training.local import Local

SCHEMA = Schema(patient="id", missing="refuse", features={"x": Number(low=-1, high=1)})
MODEL = {"weights": np.array([8.0], np.float32), "bias": np.zeros(1, np.float32)}


class Begun(Evaluation):
    """With the model in its state from the start, as an engine puts it there."""

    def init(self, sites, rng):
        return {**super().init(sites, rng), **MODEL}


def statistic(n):
    return Begun(public({"a": n}, SCHEMA), 1.0, concepts=plain(1), threshold=0.2)


def draw(n, rng, offset=-2.3, slope=1.5):
    odds = np.clip(offset + slope * rng.normal(size=n), -7.9, 7.9)
    y = (rng.random(n) < 1 / (1 + np.exp(-odds))).astype(np.int32)
    return Patients((odds / 8)[:, None], y, np.arange(n + 1), declared=n), odds, y


def test_without_noise_figures_are_those_of_the_patients():
    data, odds, y = draw(20000, np.random.default_rng(1))
    one = statistic(20000)
    found = one.figures(run(one, {"a": data}, None, 2))["all"]
    p = 1 / (1 + np.exp(-odds))
    assert found["auc"]["value"] == pytest.approx(roc_auc_score(y, odds), abs=0.002)
    assert found["brier"]["value"] == pytest.approx(brier_score_loss(y, p), abs=0.001)
    assert found["sensitivity"]["value"] == pytest.approx((p[y == 1] >= 0.2).mean(), abs=0.01)
    assert found["specificity"]["value"] == pytest.approx((p[y == 0] < 0.2).mean(), abs=0.01)
    assert found["prevalence"]["value"] == pytest.approx(y.mean(), abs=1e-3)
    assert found["observed_over_expected"]["value"] == pytest.approx(y.sum() / p.sum(), abs=0.02)
    assert found["ece"]["value"] < 0.02


def test_by_hand():
    """Ten without and ten with, in the lower and the upper half: every pair in order; within a bin
    nobody meets anybody of the other outcome."""
    edges = np.array([0.0])
    assert auc(np.array([10.0, 0]), np.array([0.0, 10]), edges) == 1.0
    assert net_benefit(np.array([10.0, 0]), np.array([0.0, 10]), edges, 0.5) == 0.5


def test_the_threshold_is_an_edge_and_edges_rise():
    edges, strategies, means = chosen_bins(np.random.default_rng(0).normal(50, 30, 64), 0.3)
    assert np.all(np.diff(edges) >= 0)
    assert np.isclose(edges, np.log(0.3 / 0.7)).any()
    assert strategies.shape == (2, 24, 24)
    assert np.linalg.norm(strategies, axis=1).max() <= 1 + 1e-12
    assert np.all((means >= 0) & (means <= 1))


def test_few_positives_are_withheld():
    data, _, _ = draw(300, np.random.default_rng(2), offset=-4)
    one = statistic(300).planned(NOISE[0.5])
    found = one.figures(run(one, {"a": data}, np.random.default_rng(3), 2))["all"]
    assert found["auc"]["value"] is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "offset", "epsilon", "within", "least", "most"),
    [
        (20000, -3.9, 0.5, 0.02, 0.93, 0.97),
        (20000, -2.45, 0.5, 0.005, 0.93, 0.97),
        (2000, -2.45, 1.0, 0.026, 0.92, 0.985),
    ],
)
def test_an_auc_is_near_the_exact_one_and_its_interval_covers(
    n, offset, epsilon, within, least, most
):
    """1,000 evaluations at prevalence .05, .15 and .15. The 95th percentile of the error; a true 95 %
    interval covers 93 to 97 % of 1,000 with probability above 0.996."""
    rng = np.random.default_rng(5)
    one = statistic(n).planned(NOISE[epsilon])
    _, odds, y = draw(2_000_000, np.random.default_rng(9), offset)
    truth = roc_auc_score(y, odds)
    errors, cover = [], []
    for _ in range(1000):
        data, odds, y = draw(n, rng, offset)
        found = one.figures(run(one, {"a": data}, rng, 2))["all"]["auc"]
        errors.append(abs(found["value"] - roc_auc_score(y, odds)))
        cover.append(found["interval"][0] <= truth <= found["interval"][1])
    assert np.quantile(errors, 0.95) <= within
    assert least <= np.mean(cover) <= most


def test_the_strategy_is_better_than_counts_and_than_the_figure_alone():
    """Of columns of length 1: counts as they are (I) give the slope's squared length; the bound is
    the square of its largest entry, which no strategy can pass."""
    slope = np.linspace(-0.8, 0.2, 24)
    above = np.arange(24) > 12
    a = strategy(slope, above)
    assert np.linalg.norm(a, axis=0) == pytest.approx(np.ones(24), abs=1e-4)
    variance = slope @ np.linalg.inv(a.T @ a) @ slope
    assert 0.64 <= variance < 0.9 < slope @ slope


def test_gaps_hold_for_all_pairs_at_once():
    def rate(value, deviation=0.03):
        one = {"value": value, "deviation": deviation, "interval": [0, 1]}
        return dict.fromkeys(("flagged", "sensitivity", "specificity", "auc"), one)

    found = group_gaps({"a": rate(0.7), "b": rate(0.9, 0.04), "c": rate(0.8)})["auc"]
    assert found["value"] == pytest.approx(0.2)
    assert found["interval"] == pytest.approx([0.2 - 2.394 * 0.05, 0.2 + 2.394 * 0.05], abs=1e-4)
    none = {"value": None, "deviation": None, "interval": None}
    withheld = dict.fromkeys(rate(0.1), none)
    assert group_gaps({"a": rate(0.7), "b": withheld})["auc"]["value"] is None


@pytest.mark.parametrize("name", METHODS)
def test_every_method_s_model_can_be_sent_and_scored(name):
    """What a prediction reads of a method's state is found without a list of names."""
    if declared(name).unproven or declared(name).moves_rows:
        pytest.skip("not under a promise, or pooled")
    fair = {"groups": ("sex",), "protected": {"column": "sex", "values": ("F", "M")}}
    schema = SHARED.model_validate({**SHARED.model_dump(), **fair})
    known = public({"a": 50, "b": 50, "c": 50}, schema)
    trained = build(name, MethodSpec(name=name), Dense((SHARED.width, 1)), Local(), known)
    one = measuring(trained, ("a", "b", "c"), {"honest": 1 / 3}, known)
    state = trained.init(("a", "b", "c"), np.random.default_rng(1))
    message = one.broadcast(state, "a")
    check_message(message, one.expects(1, "a"))
    data, _ = rows(20, np.random.default_rng(2))
    expected = trained.predict(state, {}, data.x, "a")
    assert one.score(message, data.x, "a") == pytest.approx(expected.astype(np.float64), abs=1e-6)


def test_drift_compares_two_evaluations(tmp_path):
    same = {"auc": {"value": 0.8, "deviation": 0.03}}
    other = {"auc": {"value": 0.7, "deviation": 0.04}}
    found = drift(same, other, "auc")
    assert found["difference"] == pytest.approx(-0.1)
    assert found["p"] == pytest.approx(0.0455, abs=1e-4)  # two standard deviations
    (tmp_path / "x.json").write_text(json.dumps({"no": 1}))
    with pytest.raises(StudyError, match="earlier evaluation"):
        against_earlier(tmp_path / "x.json", {"all": same})


def test_a_run_under_masks_can_be_evaluated(tmp_path):
    (tmp_path / "study.toml").write_text(
        '[study]\nname = "masked"\noutcome = "high_risk"\n'
        'cohort = { name = "cardio", patients = 1500 }\n[method]\nname = "additive"\nrounds = 6\n'
        '[privacy]\nunit = "patient"\nepsilon = 8.0\n[protection]\nsum = "masked"\nspare = 0\n'
    )
    run_folder, out = str(tmp_path / "run"), str(tmp_path / "told")
    order = ["run", str(tmp_path / "study.toml"), "--out", run_folder]
    assert CliRunner().invoke(app, order).exit_code == 0
    found = CliRunner().invoke(app, ["evaluate", run_folder, "--epsilon", "8", "--out", out])
    assert found.exit_code == 0, found.output
