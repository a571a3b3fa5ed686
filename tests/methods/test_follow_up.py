"""Follow-up as a study's outcome: every method that takes it learns from it, on every engine and within
its budget; the others refuse it by name."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.followed import FEATURES, OUTCOME, SURVIVAL, frame, study

import suture
from suture import cohorts
from suture.cli.options import Engines
from suture.errors import StudyError
from suture.evaluation.survival import concordance, cox
from suture.methods.additive import Additive
from suture.methods.declared import Public
from suture.methods.links import CELLS, LOGISTIC, Proportional, cumulative
from suture.methods.registry import METHODS, MethodSpec, build, declared
from suture.models.concepts import terms
from suture.models.dense import Dense
from suture.models.hazards import Hazards
from suture.privacy.unit import Patients
from suture.schema.outcome import TICKS, Survival, cells
from suture.schema.table import Schema
from suture.site.cohort import load
from suture.site.reading import encode_rows
from suture.study import Study
from suture.training.contributions import row_gradients
from suture.training.local import Local
from suture.training.mechanism import train

SCHEMA = Schema.parse({"patient": "id", "features": FEATURES})
ABLE = [name for name in METHODS if Survival in declared(name).outcomes]
UNABLE = [name for name in METHODS if name not in ABLE]


def rows(n, seed=3):
    table = frame(n, seed)
    x = encode_rows({name: table[name].to_numpy() for name in FEATURES}, SCHEMA)
    y = SURVIVAL.encode(table["days"].to_numpy(), table["death"].to_numpy())
    return Patients(x, y, np.arange(n + 1)), table


# --- the loss of networks -------------------------------------------------------------------------


def likelihood(network, params, data):
    """Minus the log likelihood of each row's follow-up, written out."""
    hazard = 1 / (1 + np.exp(-network.logits(params.astype(np.float32), data.x).astype(float)))
    found = []
    for row, label in zip(hazard, cells(data.y, network.sizes[-1]), strict=True):
        at, event = divmod(int(label), 2)
        value = -np.log1p(-row[:at]).sum()
        if event:
            value -= math.log(row[at])
        elif at < len(row):
            value -= np.log1p(-row[at]) / 2
        found.append(value)
    return np.array(found)


def test_the_gradient_is_that_of_the_likelihood_of_the_follow_up():
    data, _ = rows(30)
    network = Hazards((data.features, 5))
    params = np.random.default_rng(0).normal(0, 0.3, network.n_params).astype(np.float32)
    found = row_gradients(network, params, data, Local())
    for i in range(0, network.n_params, 3):
        step = np.zeros(network.n_params)
        step[i] = 1e-2
        up, down = (likelihood(network, params + way * step, data) for way in (1, -1))
        assert found[:, i] == pytest.approx((up - down) / 2e-2, abs=2e-3)


@pytest.mark.parametrize("dropout", [0.0, 1e-9], ids=["fused", "affine"])
def test_compiled_training_takes_the_same_gradient(dropout):
    data, _ = rows(40)
    network = Hazards((data.features, 4, 5))
    begin = network.init(np.random.default_rng(1))
    local = Local(epochs=1, batch=40, rate=1.0, dropout=dropout)
    after = train(network, begin, data, local, bytes(32))
    mean = row_gradients(network, begin, data, local).mean(axis=0)
    assert begin - after == pytest.approx(mean, abs=2e-5)


def test_an_outcome_outside_the_cells_changes_nothing():
    data, _ = rows(5)
    strange = replace(data, y=np.full(5, -7, np.int32))
    network = Hazards((data.features, 5))
    known = network.labels(strange.y)
    assert known.min() >= 0
    assert known.max() < network.classes


# --- the additive method --------------------------------------------------------------------------


def test_the_first_release_counts_cells_and_every_patient_has_norm_1():
    data, _ = rows(200)
    method = Additive(terms(SCHEMA), link=Proportional(8))
    values, weights = method._first(data)
    each = values * weights[:, None]
    assert np.linalg.norm(each, axis=1) == pytest.approx(1.0, abs=2e-6)
    counts = each.sum(axis=0)[len(method.terms) + 1 :] / math.sqrt(CELLS)
    exact = np.bincount(cells(data.y, 8), minlength=17)
    assert counts == pytest.approx(exact, abs=1e-3)
    assert method.share(1, None).grid.size == len(method.terms) + 1 + 17


@given(
    st.lists(st.integers(-5, 2 * TICKS + 9), min_size=1, max_size=5),
    st.sampled_from([-1024.0, -40.0, 0.0, 3.0, 1024.0]),
    st.sampled_from([0.0, 1e-9, 1.0, 100.0]),
)
@settings(deadline=None)
def test_no_residual_leaves_its_bounds(codes, score, hazard):
    y = np.array(codes, np.int32)
    known = {"hazard": np.full(8, hazard)}
    found = Proportional(8).residual(np.full(len(y), score), y, known)
    assert np.all(np.isfinite(found))
    assert np.all(np.abs(found) <= 1)


def test_the_residual_is_0_on_average_where_the_model_is_true():
    rng = np.random.default_rng(5)
    time = rng.exponential(100.0, 200_000)
    y = SURVIVAL.encode(time, np.ones(len(time), int))
    hazard = np.arange(1, 9) / 8  # of 100 days, at a rate of 1 in 100 days
    found = Proportional(8).residual(np.zeros(len(y)), y, {"hazard": hazard})
    # Five standard deviations of the mean: a false alarm in 2 million runs.
    assert abs(found.mean()) < 5 * found.std() / math.sqrt(len(found))


def test_a_noisy_tail_does_not_raise_the_baseline():
    counts = np.array([10.0, 20, 10, 20, 0, 3, 0])
    assert cumulative(counts, 10.0)[-1] <= cumulative(counts)[-1]
    assert np.all(np.diff(cumulative(np.array([-5.0, -3, 4, -9, 2]), 3.0)) >= 0)


def test_shares_of_the_budget_add_up_to_one():
    for link in (LOGISTIC, Proportional(8)):
        method = Additive(terms(SCHEMA), rounds=50, link=link)
        rho = [1 / method.share(r, 3.0).grid.rho for r in (1, 2)]
        first, other = 1 / rho[0], 1 / rho[1]
        assert first / (first + 49 * other) == pytest.approx(link.share)


def test_without_noise_it_ranks_as_cox_does(tmp_path):
    asked = study(tmp_path, each=600, method={"name": "additive", "rounds": 81})
    result = suture.run(asked, base=tmp_path)
    table = frame(4000, 99)
    x = table[list(FEATURES)].to_numpy(float)
    train_x = np.concatenate([frame(600, i)[list(FEATURES)].to_numpy(float) for i in range(3)])
    times, events = (
        np.concatenate([frame(600, i)[name].to_numpy(float) for i in range(3)])
        for name in ("days", "death")
    )
    beta, _, _ = cox(train_x, times, events == 1)
    time, event = table["days"].to_numpy(), table["death"].to_numpy() == 1
    exact = concordance(time, event, x @ beta)
    risk = result.predict({name: table[name].to_numpy() for name in FEATURES})
    assert risk.shape == (4000, 8)
    assert np.all(np.diff(risk, axis=1) >= 0)
    assert abs(concordance(time, event, risk.mean(axis=1)) - exact) < 0.005
    # Calibrated: the mean predicted risk by the horizon beside the share that Kaplan-Meier finds.
    assert result.data["metrics"]["global"]["calibration_gap"] < 0.1


# --- every method ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ABLE)
def test_every_able_method_learns_the_order(name, tmp_path):
    method = {"name": name, "rounds": 25}
    if "batch" in declared(name).uses:
        method |= {"rate": 0.3, "local_epochs": 4, "momentum": 0.5}
    if "server_rate" in declared(name).settings.model_fields:
        method["server_rate"] = 0.2
    asked = study(tmp_path, effect=2.0, method=method, model={"hidden": []})
    found = suture.run(asked, base=tmp_path).data["metrics"]
    assert found["global"]["c_index"] > 0.7
    assert 0 < found["global"]["ibs"] < 0.25
    assert found["worst_site"]["site"] is not None


@pytest.mark.parametrize("name", UNABLE)
def test_the_others_refuse_it(name):
    public = Public(SCHEMA, outcome=SURVIVAL)
    with pytest.raises(StudyError, match=f"{name}.*time until an event"):
        build(name, MethodSpec(), Dense((3, 8)), Local(), public)


def test_what_needs_classes_is_refused(tmp_path):
    for more, words in (
        ({"classes": ["a", "b"]}, "classes"),
        ({"positive": "yes"}, "positive"),
        ({"method": {"name": "fedavg", "class_weights": [1.0, 2.0]}}, "class_weights"),
    ):
        with pytest.raises(StudyError, match=words):
            study(tmp_path, **more)
    asked = study(tmp_path, method={"name": "fedavg", "rounds": 1, "ensemble": True})
    with pytest.raises(StudyError, match="ensemble"):
        suture.run(asked, base=tmp_path)
    features = {**FEATURES, "days": {"kind": "number", "low": 0, "high": 1}}
    with pytest.raises(StudyError, match="days"):
        study(tmp_path, schema={"patient": "id", "features": features})
    with pytest.raises(StudyError, match=r"horizon.*required"):
        study(tmp_path, outcome={"time": "days", "event": "death"})


def test_a_study_comes_back_from_its_file(tmp_path):
    asked = study(tmp_path)
    assert Study.from_text(asked.to_toml()) == asked
    assert asked.evaluation.metric == "c_index"
    other = study(tmp_path, outcome={**OUTCOME, "horizon": 101})
    assert asked.digest != other.digest
    assert asked.asked == "death by days up to 100"


def test_a_cause_counts_alone_and_other_causes_end_the_follow_up(tmp_path):
    table = frame(50, 0)
    table["end"] = np.where(table["death"] == 1, np.where(table.index % 2, "stroke", "fall"), "no")
    outcome = Survival(time="days", event="end", cause="stroke", horizon=100)
    data = load(
        {name: table[name].to_numpy() for name in table.columns}, SCHEMA, "end",
        site="s", holdout=0.0, split_key="k", target=outcome,
    )  # fmt: skip
    within = (table["end"] == "stroke") & (table["days"] <= 100)
    assert int(outcome.events(data.train.y).sum()) == int(within.sum())
    assert data.loaded.class_rows == (50 - int(within.sum()), int(within.sum()))


def test_rows_without_time_or_event_are_told_in_counts():
    table = frame(20, 0)
    days, death = table["days"].to_numpy(copy=True), table["death"].to_numpy(float, copy=True)
    days[:2], days[2], death[3] = np.nan, -4.0, 7.0
    columns = {name: table[name].to_numpy() for name in FEATURES}
    columns |= {"id": table["id"].to_numpy(), "days": days, "death": death}
    about = {"site": "s", "holdout": 0.0, "split_key": "k", "target": SURVIVAL}
    data = load(columns, SCHEMA, "death", **about)
    words = " ".join(data.loaded.problems)
    assert "2 rows without an outcome" in words
    assert "2 rows with something else" in words
    assert "'days'" in words
    assert "-4" not in words
    assert data.train.rows == 16


# --- the promise ----------------------------------------------------------------------------------


def test_masked_sums_keep_the_promise_and_the_statement_says_so(tmp_path):
    asked = study(
        tmp_path,
        effect=2.0,
        method={"name": "recommended"},
        privacy={"unit": "patient", "epsilon": 2.0},
        protection={"sum": "masked", "threshold": 0.9},
    )
    assert asked.method.name == "additive"
    result = suture.run(asked, base=tmp_path)
    assert 1.0 < result.privacy["epsilon"] <= 2.0
    assert "one vector of norm 1 per patient" in result.privacy["statement"]
    assert result.data["metrics"]["global"]["c_index"] > 0.7
    assert result.data["model"]["survival"]["horizon"] == 100
    curve = result.data["methods"]["additive"]["calibration"]
    assert len(curve["predicted"]) == 10


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "additive"])
def test_over_flower_the_model_is_that_of_one_process_or_within_its_budget(name):
    """Generated patients, with age at the event as the follow-up."""
    schema = cohorts.load("cardio", 42, patients=300).schema
    kept = {key: value for key, value in schema.features.items() if key != "age"}
    asked = Study(
        name="followed",
        outcome={"time": "age", "event": "high_risk", "horizon": 90, "intervals": 6},
        cohort={"name": "cardio", "patients": 900},
        schema=schema.model_copy(update={"features": kept}),
        method={"name": name, "rounds": 6},
        evaluation={"every": 6},
    )
    if name == "additive":
        promise = {"unit": "patient", "epsilon": 4.0}
        asked = asked.replace(privacy=promise, protection={"sum": "masked"})
    apart = suture.run(asked, engine=Engines("flower").open())
    assert apart.data["metrics"]["global"]["c_index"] is not None
    if name == "fedavg":
        alone = suture.run(asked)
        assert apart.model["params"].tobytes() == alone.model["params"].tobytes()
        assert apart.data["metrics"]["global"] == alone.data["metrics"]["global"]
    else:  # noise under masks is new in every sum
        assert 0 < apart.privacy["epsilon"] <= 4
        assert apart.model["hazard"].shape == (6,)
