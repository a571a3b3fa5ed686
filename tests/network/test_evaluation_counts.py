"""Test patients in a federation on real tables: one noisy evaluation that is paid for once, and
nothing else."""

import json
from contextlib import closing

import numpy as np
import pytest
from support.bench import NAMES, Bench, params, reason, the_study
from test_witness import Carrier

from suture.engine import conduct
from suture.errors import TooFewSites
from suture.network import wire
from suture.network.coordinator import Remote
from suture.privacy.ledger.ledger import Ledger
from suture.protection.envelope import seal, unseal
from suture.statistics.evaluation import BINS, FINE

ACCOUNT, EVALUATION = "cardio/fedavg", "fedavg+evaluation"


@pytest.fixture
def study():
    return the_study()


@pytest.fixture
def bench(tmp_path, study, monkeypatch):
    monkeypatch.setenv("SUTURE_WITNESS", str(tmp_path / "witness"))
    found = Bench(tmp_path, study)
    yield found
    found.close()


def model(study, value=0.0):
    return {"params": params(study, value)}


def second(study):
    """Bins and a way to send counts, as a server of its own mind may choose them."""
    return {
        **model(study),
        "edges": np.linspace(-4, 4, BINS - 1),
        "strategy": np.stack([np.eye(BINS)] * 2),
    }


def evaluate(bench, study, state, round_=1, site="boston"):
    return bench.step(site, study, round_, seal(state), method=EVALUATION)


def spent(bench, site="boston"):
    with closing(Ledger.read(bench.folder / site / "ledger.sqlite")) as ledger:
        return ledger.spent(ACCOUNT)


@pytest.mark.parametrize("masked", [False, True])
def test_the_run_pays_for_one_evaluation_within_its_epsilon(masked, tmp_path, monkeypatch):
    monkeypatch.setenv("SUTURE_WITNESS", str(tmp_path / "witness"))
    study = the_study(protection={"sum": "masked", "spare": 0} if masked else {})
    bench = Bench(tmp_path, study)
    found = conduct.run(study, base=tmp_path, engine=Remote(Carrier(bench)))
    metrics = found.data["metrics"]
    assert metrics["evaluation"]["epsilon"] <= 1.0  # a quarter of the study's 4
    assert metrics["global"]["auc"] is None  # 40 patients: withheld at this noise
    assert found.data["release"]["exact"] is False
    assert "rows" not in json.dumps(metrics)
    for name in NAMES:
        rounds = [round_ for account, round_ in bench.charges(name) if account == ACCOUNT]
        assert rounds == [*range(1, study.method.rounds + 1), 1, 2]
        assert 3.9 < spent(bench, name) <= 4.0
        assert found.privacy["sites"][name] == pytest.approx(spent(bench, name))
    bench.close()


class Missing(Carrier):
    """One site gives no answer in one round of the evaluation."""

    def __init__(self, bench, round_):
        super().__init__(bench)
        self.round = round_

    def exchange(self, requests, seconds):
        answers = super().exchange(requests, seconds)
        for site, data in requests.items():
            asked = wire.unpack(data).header
            found = (site, asked["op"], asked.get("method"), asked.get("round"))
            if found == ("nice", "step", EVALUATION, self.round):
                answers[site] = TooFewSites("site 'nice' gave no answer within 1 s")
        return answers


@pytest.mark.parametrize("round_", [1, 2])
def test_a_site_that_misses_the_evaluation_costs_the_figures_and_not_the_model(
    round_, bench, study, tmp_path
):
    found = conduct.run(study, base=tmp_path, engine=Remote(Missing(bench, round_)))
    assert found.data["methods"]["fedavg"]["rounds_done"] == study.method.rounds
    assert found.model["params"].any()
    why = (
        f"round {round_}: 2 sites answered, 3 are needed (nice: site 'nice' gave no answer within "
        "1 s). What it was charged stays charged"
    )
    assert found.data["metrics"]["evaluation"]["stopped"] == why
    assert f"fedavg, seed 42: no private evaluation: {why}" in found.data["warnings"]
    assert found.data["metrics"]["sites"] == {}
    assert set(found.data["metrics"]["global"].values()) <= {None}
    for name in NAMES:
        assert bench.charges(name)[study.method.rounds :] == [
            (ACCOUNT, number) for number in range(1, round_ + 1)
        ]
    for name in ("boston", "lyon"):
        assert found.privacy["sites"][name] == pytest.approx(spent(bench, name))


def test_no_exact_score_of_a_real_patient_leaves_whatever_the_site_s_file_says(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("SUTURE_WITNESS", str(tmp_path / "witness"))
    for exact in ("none", "figures", "scores"):
        study = the_study(name=exact)
        bench = Bench(tmp_path / exact, study, exact_metrics=exact)
        bench.joined(study)
        for round_ in range(1, study.method.rounds + 1):
            assert reason(bench.score("boston", study, round_=round_)) == "EXACT"
        assert reason(bench.score("boston", study, round_=1, method=EVALUATION)) == "EXACT"
        assert bench.charges("boston") == []
        bench.close()


def test_the_same_model_again_is_free_and_gets_the_same_bytes(bench, study):
    bench.joined(study)
    first = evaluate(bench, study, model(study))
    assert first.header["ok"]
    assert unseal(first.body)["fine"].shape == (FINE,)
    assert evaluate(bench, study, model(study)).body == first.body
    bench.start("boston")
    head = bench.open("boston", study).header["head"]
    assert bench.join("boston", study, bench.words(study, head)).header["ok"]
    assert evaluate(bench, study, model(study)).body == first.body
    assert bench.charges("boston") == [(ACCOUNT, 1)]


def test_each_round_scores_one_model(bench, study):
    bench.joined(study)
    assert evaluate(bench, study, model(study)).header["ok"]
    assert reason(evaluate(bench, study, model(study, 1.0))) == "ANSWERED"
    assert evaluate(bench, study, second(study), 2).header["ok"]
    assert reason(evaluate(bench, study, {**second(study), **model(study, 1.0)}, 2)) == "ANSWERED"
    for round_ in (0, 3, study.method.rounds):
        assert reason(evaluate(bench, study, second(study), round_)) in ("TURN", "REQUEST")
    assert len(bench.charges("boston")) == 2


def test_without_it_nothing_about_test_patients_leaves(tmp_path, monkeypatch):
    monkeypatch.setenv("SUTURE_WITNESS", str(tmp_path / "witness"))
    study = the_study(evaluation={"epsilon": 0.0})
    bench = Bench(tmp_path, study)
    bench.joined(study)
    assert reason(evaluate(bench, study, model(study))) == "TURN"
    assert reason(bench.score("boston", study)) == "EXACT"
    assert bench.charges("boston") == []
    bench.close()


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"params": np.zeros(0, np.float32)},
        {"params": np.zeros(500, np.float32)},
        {"params": np.zeros((5, 1), np.float32)},
        {"params": np.full(4, np.nan, np.float32)},
        {"other": np.zeros(5, np.float32)},
    ],
)
def test_a_model_of_another_shape_is_refused_before_anything_is_paid(bench, study, state):
    bench.joined(study)
    assert reason(evaluate(bench, study, state)) == "MESSAGE"
    assert bench.charges("boston") == []


def test_a_strategy_of_the_server_s_choice_does_not_raise_what_a_patient_adds(bench, study):
    """Every entry of A at 1 would let a patient add 24 columns: the door clips to the limit."""
    bench.joined(study)
    assert evaluate(bench, study, model(study)).header["ok"]
    loud = {**second(study), "strategy": np.ones((2, BINS, BINS))}
    answer = evaluate(bench, study, loud, 2)
    assert answer.header["ok"]
    assert spent(bench) <= 1.0
