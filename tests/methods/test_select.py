"""Private tuning: what it costs by hand, what a patient can change, which candidate is taken, and
that candidates know nothing of each other."""

import math

import numpy as np
import pytest
from scipy import stats

import suture
from suture.errors import StudyError
from suture.methods.base import Answer
from suture.methods.declared import Public
from suture.methods.registry import MethodSpec, build
from suture.methods.select import LIMIT, PART
from suture.models.dense import Dense
from suture.privacy.accounting.accountant import epsilon
from suture.privacy.accounting.events import compose
from suture.privacy.door import rehearse
from suture.privacy.noise.source import seeded_key
from suture.privacy.unit import Patients
from suture.schema.message import check_message
from suture.study import Study
from suture.training.local import Local

RATES = ({"server_rate": 0.01}, {"server_rate": 0.1}, {"server_rate": 0.3})


def make(name="fedsgd", candidates=RATES, rounds=13, sites=1, **changes):
    spec = MethodSpec(name=name, rounds=rounds, candidates=candidates, **changes)
    local = Local(clip=1.0, batch=8, epochs=1, rate=0.1)
    return build(name, spec, Dense((2, 1)), local, Public(sites=sites, patients=400))


def patients(seed, count=40):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (count, 2)).astype(np.float32)
    return Patients(x, (x[:, 0] > 0).astype(np.int32), np.arange(count + 1))


def models(message, method):
    """A message of the last round in which candidate i has the weights (message[i], 0), bias 0."""
    order = method.inner.network
    found = {}
    for i, weight in enumerate(message):
        params = np.zeros(order.n_params, np.float32)
        params[0] = weight
        found[f"{i}.params"] = params
    return found


def test_all_candidates_and_the_choice_cost_what_their_sum_costs_by_hand():
    method, z = make(), 20.0
    events = [method.round_event(r, "a", 100, z) for r in range(1, 14)]
    # 12 gradients of multiplier z, and scores that make up PART of the whole: mu^2 adds up.
    mu = math.sqrt(12 / z**2 / (1 - PART))
    found = epsilon(compose((event, 1) for event in events), 1e-5)
    delta = stats.norm.cdf(-found / mu + mu / 2) - math.exp(found) * stats.norm.cdf(
        -found / mu - mu / 2
    )
    assert delta == pytest.approx(1e-5, rel=1e-3)
    assert found == pytest.approx(0.6376, abs=1e-4)  # mu = 0.177705
    # Twice the candidates at the same noise: half of the variance of the whole.
    six = make(candidates=RATES + RATES, rounds=25)
    doubled = [six.round_event(r, "a", 100, z * math.sqrt(2)) for r in range(1, 26)]
    assert epsilon(compose((event, 1) for event in doubled), 1e-5) == pytest.approx(found, rel=1e-6)


def test_the_scores_by_hand_and_the_best_is_kept():
    method = make(candidates=RATES[:2], rounds=5)
    state = method.init(["a"], np.random.default_rng(0))
    for round_ in range(1, 5):
        message = method.broadcast(state, "a")
        check_message(message, method.expects(round_, "a"))
        payload, _ = rehearse(method, patients(1), {}, message, None, seeded_key(round_), round_)
        state = method.server_step(state, [Answer("a", 40, payload)])
    kept = [state[f"select.{i}.params"].copy() for i in range(2)]
    assert not np.array_equal(*kept)
    message = method.broadcast(state, "a")
    check_message(message, method.expects(5, "a"))
    payload, _ = rehearse(method, patients(1), {}, message, None, seeded_key(9), 5)
    state = method.server_step(state, [Answer("a", 40, payload)])
    data = patients(1)
    brier = [
        np.mean((method.inner.network.predict(np.float32(p), data.x) - data.y) ** 2) for p in kept
    ]
    expected = np.array(brier) - np.mean(brier)
    np.testing.assert_allclose(state["select.scores"], expected, atol=1e-4)
    best = int(np.argmin(brier))
    assert method.facts(state)["chosen"] == best
    np.testing.assert_array_equal(state["params"], kept[best])


@pytest.mark.parametrize("name", ["fedavg", "fedsgd"])
def test_one_patient_moves_the_scores_by_no_more_than_was_paid_for(name):
    """An audit of the last round: the separation of two neighbouring tables in deviations of the
    noise is at most, and here at the worst patient exactly, the mu of the event. 2,000 draws each:
    its error is sqrt(2 / 2000) = 0.032, so four of them are a false alarm in 16,000 runs."""
    method = make(name, ({"rate": 0.1}, {"rate": 0.2}) if name == "fedavg" else RATES[:2], 5)
    message, noise = models((1e4, -1e4), method), 1.0
    x = np.zeros((5, 2), np.float32)
    x[4] = (1.0, 0.0)
    without = Patients(x[:4], np.zeros(4, np.int32), np.arange(5), declared=5)
    having = Patients(x, np.array([0, 0, 0, 0, 1], np.int32), np.arange(6), declared=5)
    draws = []
    for table, data in enumerate((without, having)):
        found = [
            next(
                iter(
                    rehearse(method, data, {}, message, noise, seeded_key(table, i), 5)[0].values()
                )
            )
            for i in range(2000)
        ]
        draws.append(np.array(found, np.float64) @ np.array([1.0, -1.0]))
    gap = abs(draws[1].mean() - draws[0].mean()) / math.sqrt(
        draws[0].var() / 2 + draws[1].var() / 2
    )
    # The worst patient's part is clipped to LIMIT along (1, -1).
    mu = 1 / method.round_event(5, "a", 5, noise).noise_multiplier
    assert LIMIT == 0.25
    assert abs(gap - mu) < 4 * 0.032


def test_what_a_site_keeps_belongs_to_one_candidate():
    method = make("fedavg", ({"rate": 0.1}, {"rate": 0.3}), rounds=5)
    message = method.broadcast(method.init(["a"], np.random.default_rng(0)), "a")
    _, own = rehearse(method, patients(2), {}, message, 1.0, seeded_key(1), 1)
    assert int(own["select.candidate"]) == 0
    stale = {**own, "secret": np.ones(1)}
    _, same = rehearse(method, patients(2), stale, message, 1.0, seeded_key(2), 2)
    _, other = rehearse(method, patients(2), stale, message, 1.0, seeded_key(3), 3)
    assert "secret" in same
    assert "secret" not in other


def test_studies_that_cannot_work_say_so():
    for changes, message in (
        ({"rounds": 12}, "1 . a multiple"),
        ({"candidates": ({"server_rate": 0.1},)}, "two or more"),
        ({"candidates": ({"rounds": 3}, {})}, "no setting 'rounds'"),
        ({"candidates": ({"clip": -1.0}, {})}, "clip must be over 0"),
        ({"candidates": ({"server_rate": -1.0}, {})}, "server_rate"),
    ):
        with pytest.raises(StudyError, match=message):
            make(**{"rounds": 13 if "rounds" in changes else 5, **changes})
    with pytest.raises(StudyError, match="need"):
        Study(
            name="a", outcome="high_risk", cohort="cardio",
            method={"name": "fedsgd", "rounds": 13, "candidates": RATES},
        )  # fmt: skip


@pytest.mark.parametrize("protection", [{}, {"sum": "masked", "spare": 0}])
def test_a_whole_run_keeps_its_promise_and_its_model_is_the_winners(protection, tmp_path):
    study = Study(
        name="tuned", outcome="high_risk", cohort={"name": "cardio", "patients": 600},
        model={"hidden": []}, protection=protection,
        method={"name": "fedavg", "rounds": 7, "local_epochs": 1,
                "candidates": [{"rate": 0.001}, {"rate": 0.5, "clip": 0.5}]},
        privacy={"unit": "patient", "epsilon": 8.0},
    )  # fmt: skip
    assert Study.from_text(study.to_toml()) == study
    result = suture.run(study, out=tmp_path / "run")
    told = result.data["methods"]["fedavg"]
    assert told["facts"]["chosen"] == 1
    assert len(told["facts"]["candidates"]) == 2
    assert 0 < result.data["privacy"]["epsilon"] <= 8.0
    assert np.isfinite(result.model["params"]).all()
