"""Test patients in a federation on real tables: noisy counts that are paid for once, and nothing
else."""

import numpy as np
import pytest
from support.bench import NAMES, Bench, params, reason, the_study
from test_witness import Carrier

from suture.engine import conduct
from suture.evaluation.metrics import BINS
from suture.methods.fedavg import FedAvg
from suture.network.coordinator import Remote
from suture.network.witnesses import WINDOW
from suture.protection.envelope import unseal

ACCOUNT = "cardio/fedavg/evaluation"


@pytest.fixture
def study():
    return the_study(evaluation={"epsilon": 3.0})


@pytest.fixture
def bench(tmp_path, study, monkeypatch):
    monkeypatch.setenv("SUTURE_WITNESS", str(tmp_path / "witness"))
    found = Bench(tmp_path, study)
    yield found
    found.close()


def paid(bench, site="boston"):
    return [round_ for account, round_ in bench.charges(site) if account == ACCOUNT]


def test_the_result_has_an_auc_from_counts_that_every_site_has_paid_for_once(
    bench, study, tmp_path
):
    found = conduct.run(study, base=tmp_path, engine=Remote(Carrier(bench)))
    assert 0.0 <= found.data["metrics"]["global"]["auc"] <= 1.0
    for name in NAMES:
        assert paid(bench, name) == [study.method.rounds]


def test_the_same_model_again_is_free_and_gets_the_same_bytes(bench, study):
    bench.joined(study)
    first = bench.score("boston", study)
    assert first.header["ok"]
    assert unseal(first.body)["counts"].shape == (2 * BINS,)
    assert bench.score("boston", study).body == first.body
    bench.start("boston")
    head = bench.open("boston", study).header["head"]
    assert bench.join("boston", study, bench.words(study, head)).header["ok"]
    again = bench.score("boston", study)
    assert again.body == first.body
    assert again.header["noise"] == first.header["noise"]
    assert paid(bench) == [study.method.rounds]


def test_another_model_for_the_round_is_refused(bench, study):
    bench.joined(study)
    assert bench.score("boston", study).header["ok"]
    assert reason(bench.score("boston", study, {"params": params(study, 1.0)})) == "ANSWERED"
    assert reason(bench.score("boston", study, groups=True)) == "ANSWERED"
    for round_ in range(1, study.method.rounds):
        assert reason(bench.score("boston", study, round_=round_)) == "EXACT"
    for round_ in (0, -1, study.method.rounds + 1):
        assert reason(bench.score("boston", study, round_=round_ or -2)) in ("EXACT", "TURN")
    assert reason(bench.score("boston", study, seed=study.seed + 1)) == "TURN"
    assert paid(bench) == [study.method.rounds]


def test_nothing_about_test_patients_without_it(tmp_path, monkeypatch):
    monkeypatch.setenv("SUTURE_WITNESS", str(tmp_path / "witness"))
    study = the_study()
    bench = Bench(tmp_path, study)
    bench.joined(study)
    for round_ in range(1, study.method.rounds + 1):
        assert reason(bench.score("boston", study, round_=round_)) == "EXACT"
    assert bench.charges("boston") == []
    bench.close()


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"params": np.zeros(0, np.float32)},
        {"params": np.zeros(500, np.float32)},
        {"params": np.zeros((5, 1), np.float32)},
        {"params": np.float32(1.0)},
        {"other": np.zeros(5, np.float32)},
    ],
)
def test_a_model_of_another_shape_is_refused_before_anything_is_paid(bench, study, state):
    bench.joined(study)
    assert reason(bench.score("boston", study, state)) == "MESSAGE"
    assert paid(bench) == []
    assert bench.score("boston", study).header["ok"]  # and the round's only answer is not used up


@pytest.mark.parametrize(
    "texts", [{"params": ["a"]}, {"params": "a"}, {"params": [1]}, {"params": [["a"]]}]
)
def test_texts_in_place_of_numbers_are_refused(bench, study, texts):
    bench.joined(study)
    assert reason(bench.score("boston", study, texts=texts)) in ("MESSAGE", "REQUEST")
    assert paid(bench) == []


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_weights_beyond_all_bounds_are_scored_like_any_others(bench, study, value):
    """What is no number is risk 0: no patient decides whether there is an answer."""
    bench.joined(study)
    assert bench.score("boston", study, {"params": params(study, value)}).header["ok"]


def test_each_patient_is_scored_alone(bench, study, monkeypatch):
    """A row's last digit may hang on the rows beside it, which would move other patients over a
    bin's edge."""
    bench.joined(study)
    seen = []

    def predict(self, state, own, x, site):
        seen.append(len(x))
        return np.zeros(len(x), np.float32)

    monkeypatch.setattr(FedAvg, "predict", predict)
    assert bench.score("boston", study).header["ok"]
    assert set(seen[2:]) == {1}  # after two made-up ones
    assert len(seen) > 12


def test_scores_are_witnessed_as_rounds_are(tmp_path, monkeypatch):
    """Found: any number of them was paid for without a peer's word, and a restored home would have
    forgotten them all."""
    monkeypatch.setenv("SUTURE_WITNESS", str(tmp_path / "witness"))
    study = the_study(evaluation={"epsilon": 3.0, "seeds": WINDOW + 1})
    bench = Bench(tmp_path, study)
    bench.joined(study)
    for seed in range(study.seed, study.seed + WINDOW):
        last = bench.score("boston", study, seed=seed)
        assert last.header["ok"]
    assert reason(bench.score("boston", study, seed=study.seed + WINDOW)) == "WITNESS"
    words = bench.words(study, last.header["head"])
    assert bench.score("boston", study, seed=study.seed + WINDOW, vouched=words).header["ok"]
    bench.close()
