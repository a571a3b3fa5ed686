"""FedSGD with noise in the sum: the noise is the planned one, the claim survives an audit, and the
ledger agrees."""

import dp_accounting
import numpy as np
import pytest
from scipy import stats
from support.reference import clipped_sum

from suture.attacks.audit import Claim, audit, with_patient
from suture.engine.conduct import run
from suture.errors import StudyError
from suture.methods.declared import Public
from suture.methods.registry import MethodSpec, build
from suture.models.dense import Dense
from suture.privacy.door import rehearse
from suture.privacy.noise.source import derive, seeded_key
from suture.privacy.unit import Patients
from suture.protection.masked import secure_total
from suture.study import Study
from suture.training.local import Local

NETWORK = Dense((4, 1))


def make(sites=1, patients=1000, network=NETWORK, **changes):
    return build(
        "fedsgd",
        MethodSpec(**changes),
        network,
        Local(clip=1.0),
        Public(sites=sites, patients=patients),
    )


def table(seed, count=11):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 4)).astype(np.float32)
    return Patients(x, (x[:, 0] > 0).astype(np.int32), np.arange(count + 1))


def test_the_sum_carries_the_noise_of_one_curator():
    """Ten sites, of which five are counted on and seven stay: decoded minus exact, over 40 keys x
    1,001 entries, has the variance 1.001 z^2 times 7 / 5, by a two-sided chi-squared test (false
    alarm 1 in 10,000)."""
    network = Dense((1000, 1))
    method = make(10, 100, network, honest=0.5)
    assert method.honest_sites == 5
    rng = np.random.default_rng(5)
    data = Patients(
        rng.normal(size=(3, 1000)).astype(np.float32), np.array([0, 1, 1], np.int32), np.arange(4)
    )
    message = {"params": np.zeros(1001, np.float32)}
    exact = 7 * clipped_sum(network, message["params"], data, Local(clip=1.0), 1.0)
    squares, keys = 0.0, 40
    for trial in range(keys):
        words = {
            f"s{i}": rehearse(method, data, {}, message, 3.0, derive(seeded_key(8, trial), i))[0]
            for i in range(7 + 3)
        }
        stayed = [f"s{i}" for i in range(7)]
        total = (
            secure_total(words, leave={"mask": ["s7", "s8", "s9"]}, key=seeded_key(2)).words["g"]
            if trial == 0
            else np.sum([words[s]["g"] for s in stayed], axis=0)
        )
        squares += float(np.sum((method.grid(None).open(total) - exact) ** 2))
    planned = 1.001 * 3.0**2 * 7 / 5
    low, high = stats.chi2.ppf([0.5e-4, 1 - 0.5e-4], keys * 1001)
    assert low < squares / planned < high


def test_the_event_is_a_gaussian_and_the_same_every_round():
    method = make()
    assert (
        method.round_event(1, "a", 7, 2.0)
        == method.round_event(3, "b", 70, 2.0)
        == dp_accounting.GaussianDpEvent(2.0)
    )
    assert method.round_event(1, "a", 7, None) == dp_accounting.NonPrivateDpEvent()
    assert "at least 1 of the hospitals add their share" in method.mechanism()


def worlds():
    rows = table(3)
    far = np.full((12, 4), 40.0, np.float32)
    return with_patient(rows, far, np.ones(12, np.int32)), with_patient(
        rows, far, np.zeros(12, np.int32)
    )


@pytest.mark.parametrize(("real", "broken"), [(2.0, False), (0.25, True)])
def test_an_audit_of_one_curator_s_noise(real, broken):
    """With one party the share carries all of the noise: it keeps its claim, and an eighth of the
    noise does not. False alarms: 1 in 1,000."""
    absent, present = worlds()
    method = make()
    message = {"params": np.array([1.0, 1.0, 1.0, 1.0, 0.0], np.float32)}
    claim = Claim.of(method.round_event(1, "a", absent.patients, 2.0))

    def step(data, key):
        return {"g": rehearse(method, data, {}, message, real, key)[0]["g"].astype(np.float64)}

    exact = [
        clipped_sum(NETWORK, message["params"], world, Local(clip=1.0), 1.0)
        for world in (present, absent)
    ]
    found = audit(
        step,
        absent,
        present,
        claim,
        trials=600,
        key=seeded_key(1),
        direction={"g": exact[0] - exact[1]},
    )
    assert found.broken is broken
    assert found.reach > claim.epsilon


def test_what_it_cannot_do_is_refused():
    with pytest.raises(StudyError, match="every site in every round"):
        make(participation=0.5)
    with pytest.raises(StudyError, match="whole gradients"):
        build("fedsgd", MethodSpec(), NETWORK, Local(dropout=0.5))


def test_any_number_of_patients_is_summed_exactly():
    """90,001 patients: sums are whole numbers, so that no bound depends on how many there are, and
    none is refused."""
    many = Patients(
        np.zeros((90_001, 4), np.float32), np.zeros(90_001, np.int32), np.arange(90_002)
    )
    sent, _ = rehearse(make(), many, {}, {"params": np.zeros(5, np.float32)}, None, bytes(32))
    assert sent["g"].tolist() == [0, 0, 0, 0, 90_001 * 512]


@pytest.mark.parametrize(
    ("protection", "least"),
    [({}, 2.9), ({"sum": "masked"}, 2.64), ({"sum": "masked", "spare": 0}, 2.9)],
)
def test_a_study_keeps_its_promise(protection, least):
    """Under masks three spare rounds are planned for, and not spent where no sum breaks off: 12 of
    15 rounds."""
    study = Study(
        name="s",
        outcome="high_risk",
        cohort={"name": "cardio", "split": "iid", "sites": 5, "patients": 1500},
        model={"hidden": []},
        method={"name": "fedsgd", "rounds": 12, "honest": 0.6},
        privacy={"unit": "patient", "epsilon": 3.0, "accountant": "rdp"},
        protection=protection,
    )
    result = run(study)
    told = result.data["methods"]["fedsgd"]
    assert all(least < spent <= 3.0 for spent in told["privacy"]["sites"].values())
    assert (
        "at least 3 of the hospitals add their share of the noise" in told["privacy"]["statement"]
    )
    assert told["metrics"]["global"]["auc"] > 0.7  # it learns; chance is 0.5
