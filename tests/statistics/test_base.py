"""Every statistic: what a patient adds stays within the stated limit whatever rows and messages say,
the cost is what was planned, and engines agree."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting.dp_event import GaussianDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.followed import SURVIVAL
from support.statistics import SCHEMA, public

import suture
from suture.cli.options import Engines
from suture.models.concepts import terms
from suture.models.dense import Dense
from suture.models.hazards import Hazards
from suture.privacy.accounting.accountant import epsilon
from suture.privacy.accounting.events import compose
from suture.privacy.unit import Patients
from suture.schema.message import UpTo
from suture.schema.outcome import TICKS
from suture.statistics.base import any_of, per_patient
from suture.statistics.evaluation import Evaluation
from suture.statistics.prognosis import Prognosis
from suture.statistics.publish import ask, figures_of
from suture.statistics.regression import STEPS, Regression
from suture.statistics.survival import Survival
from suture.statistics.table_one import TableOne
from suture.study import Study

SIZES = {"a": 300, "b": 200, "c": 100}
FOLLOWED = replace(public(SIZES), outcome=SURVIVAL)
EVERY = {
    "describe": (TableOne(public(SIZES), by=("sex",)), 1),
    "evaluate": (Evaluation(public(SIZES), network=Dense((SCHEMA.width, 1)), by="sex"), 2),
    "survive": (Survival(public(SIZES), time="age", by="sex"), 2),
    "follow-up": (Survival(FOLLOWED, by="sex"), 2),
    "prognosis": (Prognosis(FOLLOWED, network=Hazards((SCHEMA.width, 8))), 2),
    "prognosis of terms": (Prognosis(FOLLOWED, concepts=terms(SCHEMA)), 2),
    "describe follow-up": (TableOne(FOLLOWED, by=("sex",)), 1),
    "logistic": (Regression(public(SIZES), sites="fixed"), STEPS + 2),
    "linear": (Regression(public(SIZES), family="linear", of="bp"), STEPS + 2),
    "poisson": (Regression(public(SIZES), family="poisson", of="bp", offset="age"), STEPS + 2),
}


def hostile(statistic, round_: int, draw):
    """Any message that the site would read."""
    found = {}
    for name, field in statistic.expects(round_, "a").items():
        shape = tuple(3 if isinstance(n, UpTo) else n for n in field.shape)
        values = st.sampled_from([field.low, field.high, 0.0, 0.5, 1.0])
        array = draw(hnp.arrays(np.float64, shape, elements=values))
        array = np.sort(array) if field.rising else array
        found[name] = np.clip(array, field.low, field.high).astype(field.dtype)
    return found


@pytest.mark.parametrize("name", EVERY)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_patient_never_adds_more_than_the_limit(name, data):
    statistic, rounds = EVERY[name]
    round_ = data.draw(st.integers(1, rounds))
    width = SCHEMA.width
    extreme = st.sampled_from([-1.0, 1.0, 0.0, 0.5, -0.25, 1e30, -1e30, np.nan, np.inf])
    count = data.draw(st.integers(1, 4))
    x = data.draw(hnp.arrays(np.float32, (count, width), elements=extreme))
    codes = st.integers(0, 1 if statistic.public.outcome.two else 2 * TICKS + 2)
    y = data.draw(hnp.arrays(np.int32, count, elements=codes))
    patient = Patients(x, y, np.array([0, count]), declared=100)
    message = hostile(statistic, round_, data.draw)
    for one in statistic.asks(round_):
        with np.errstate(all="ignore"):
            values, weights = statistic.adds(one, patient, "a", message)
        total = weights @ np.nan_to_num(values.astype(np.float64), nan=0.0)
        assert np.all(np.isfinite(total))
        assert np.linalg.norm(total) <= one.limit * (1 + 1e-5)


@pytest.mark.parametrize("name", EVERY)
def test_shares_of_the_cost_add_up_to_one(name):
    statistic, rounds = EVERY[name]
    shares = [one.share for round_ in range(1, rounds + 1) for one in statistic.asks(round_)]
    assert math.fsum(shares) == pytest.approx(1.0)
    events = [(statistic.round_event(r, "a", 100, 3.0), 1) for r in range(1, rounds + 1)]
    once = epsilon(GaussianDpEvent(3.0), 1e-5, "pld")
    assert epsilon(compose(events), 1e-5, "pld") == pytest.approx(once, rel=1e-3)


@pytest.mark.parametrize("sum_", ["trusted", "masked"])
@pytest.mark.parametrize(
    "asked",
    [
        ("describe", 1, {"by": ["smoker"]}),
        ("survive", 2, {"time": "age", "by": "smoker"}),
        ("associate", STEPS + 2, {"on": ["age", "smoker"]}),
    ],
    ids=lambda one: one[0],
)
def test_a_statistic_runs_on_the_engine_within_its_budget(asked, sum_):
    name, rounds, more = asked
    study = Study(
        name="s",
        outcome="high_risk",
        cohort={"name": "cardio", "patients": 1500},
        protection={"sum": sum_},
    )
    result = ask(study, name, epsilon=2.0, rounds=rounds, **more)
    # Under masks a part of the budget is kept for rounds that break off.
    assert (1.9 if sum_ == "trusted" else 0.9) < result.privacy["epsilon"] <= 2.0
    assert figures_of(result)
    assert "predicts nothing" not in str(result.data)
    statement = result.data["methods"][name]["privacy"]["statement"]
    assert "A hospital's share alone does not protect its patients" in statement


def test_a_statistic_is_no_model(tmp_path):
    study = Study(name="s", outcome="high_risk", cohort={"name": "cardio", "patients": 600})
    result = ask(study, "describe", epsilon=1.0)
    assert result.data["methods"]["describe"]["history"] == []
    assert "describe" not in suture.Study.model_fields
    with pytest.raises(suture.SutureError, match="predict"):
        EVERY["describe"][0].predict({}, {}, np.zeros((1, 2), np.float32), "a")


def test_rows_of_a_patient_are_averaged():
    data = Patients(np.zeros((3, 1)), np.array([0, 1, 0]), np.array([0, 2, 3]))
    assert per_patient(data).tolist() == [0.5, 0.5, 1.0]
    assert any_of(data, data.y).tolist() == [1, 1, 0]


@pytest.mark.slow
def test_statistics_run_over_flower_under_masks():
    study = Study(
        name="s",
        outcome="high_risk",
        cohort={"name": "cardio", "patients": 1500},
        protection={"sum": "masked"},
    )
    engine = Engines("flower").open()
    result = ask(study, "survive", epsilon=8.0, rounds=2, engine=engine, time="age", by="smoker")
    found = figures_of(result)
    assert set(found["groups"]) == {"no", "yes"}
    assert found["test"]["p"] < 0.05
    assert result.privacy["epsilon"] <= 8.0
