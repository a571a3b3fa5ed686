"""The additive method: a step by hand, scikit-learn's fit without noise, a patient's part under
hostile messages, the noise that was planned, and the shapes' band."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import optimize, stats
from sklearn.linear_model import LogisticRegression

from suture.attacks.audit import Claim, audit, with_patient
from suture.engine.conduct import run
from suture.errors import StudyError
from suture.methods.additive import BIAS, as_centre, gradients_for
from suture.methods.base import Answer
from suture.methods.declared import Public
from suture.methods.links import LOGISTIC, residual
from suture.methods.registry import MethodSpec, build
from suture.models.concepts import terms
from suture.models.dense import Dense
from suture.privacy.door import rehearse
from suture.privacy.noise.source import derive, seeded_key
from suture.privacy.unit import Patients, concatenate
from suture.protection.secure_sum import unpack_words
from suture.schema.message import check_message
from suture.schema.outcome import Classes
from suture.schema.table import Flag, Number, Schema
from suture.study import Study
from suture.training.local import Local


def make(inputs=3, sites=1, patients=1000, honest=1, **changes):
    public = Public(sites=sites, patients=patients, honest=honest)
    return build("additive", MethodSpec(**changes), Dense((inputs, 1)), Local(), public)


def table(seed, count=40, inputs=3, several=False):
    rng = np.random.default_rng(seed)
    starts = np.append(0, np.cumsum(rng.integers(1, 4, count) if several else np.ones(count)))
    x = rng.uniform(-1, 1, (int(starts[-1]), inputs))
    risk = 1 / (1 + np.exp(-2 * x[:, 0] + x[:, 1]))
    y = rng.random(len(x)) < risk
    return Patients(x.astype(np.float32), y.astype(np.int32), starts.astype(np.int64))


def words(payload):
    """The sum in real units, from the array's own name."""
    name = next(name for name in payload if name != "v")
    exponent, _, bits = name.removeprefix("e").partition("w")
    found = unpack_words(payload[name], int(bits)) if bits else payload[name]
    return found.astype(np.float64) / 2.0 ** int(exponent)


def train(method, data, noise=None, key=7):
    state = method.init(["a"], np.random.default_rng(0))
    for round_ in range(1, method.rounds + 1):
        message = dict(method.broadcast(state, "a"))
        check_message(message, method.expects(round_, "a"))
        sent, _ = rehearse(method, data, {}, message, noise, seeded_key(key, round_), round_)
        state = method.server_step(state, [Answer("a", data.size, sent)])
    return state


def test_release_1_and_a_gradient_by_hand():
    """Two patients, the second with two rows of half the weight each."""
    x = np.array([[0.5, 0, 0], [1, -1, 0], [0, 0, 0]], np.float32)
    data = Patients(x, np.array([1, 0, 0]), np.array([0, 1, 3]))
    method = make(patients=2, rounds=30)
    first = words(rehearse(method, data, {}, {}, None, seeded_key(1), 1)[0])
    a, b, c = math.sqrt(2.25), math.sqrt(3), 1.0
    expected = [1 / a + 0.5 / b + 0.5 / c, 0.5 / a + 0.5 / b, -0.5 / b, 0, 1 / a]
    np.testing.assert_allclose(first, expected, atol=2e-3)
    message = {
        "bias": np.array([4 * math.log(0.25 / 0.75)], np.float32),
        "theta": np.zeros(3, np.float32),
        "centre": np.array([127, 0, 0], np.int8),
        "scale": np.array([0.5], np.float32),
    }
    check_message(message, method.expects(2, "a"))
    found = words(rehearse(method, data, {}, message, None, seeded_key(1), 2)[0])
    p = np.array([[BIAS, -1, 0, 0], [BIAS, 0, -2, 0], [BIAS, -2, 0, 0]])
    p /= np.linalg.norm(p, axis=1, keepdims=True)
    # Risk is 1/4: the residual is -1 with the outcome and a third without.
    np.testing.assert_allclose(found, -p[0] + 0.5 * p[1] / 3 + 0.5 * p[2] / 3, atol=2e-3)


def test_without_noise_it_is_scikit_learn_s_weighted_fit():
    """At the end the gradient is 0, so that a logistic regression with the weights
    1 / (norm(P) max(p, 1 - p)) has the same optimum: to .002, from words of 1/1024."""
    data = table(3, 4000)
    method = make(patients=4000, rounds=600)
    state = train(method, data)
    p = method.predict(state, {}, data.x, "a").astype(np.float64)
    rows = (data.x - as_centre(state["centre"])) / state["scale"]
    weights = 1 / (np.sqrt(BIAS**2 + (rows**2).sum(1)) * np.maximum(p, 1 - p))
    fit = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(data.x, data.y, weights)
    np.testing.assert_allclose(state["weights"], fit.coef_[0], atol=2e-3)
    np.testing.assert_allclose(state["bias"], fit.intercept_, atol=2e-3)


def test_the_residual_is_0_on_average_at_the_true_risk():
    p = np.linspace(0.01, 0.99, 99)
    one, zero = residual(p, np.ones(99, int)), residual(p, np.zeros(99, int))
    np.testing.assert_allclose(p * one + (1 - p) * zero, 0, atol=1e-15)
    assert max(np.abs(one).max(), np.abs(zero).max()) <= 1


messages = st.fixed_dictionaries({
    "bias": arrays(np.float32, 1, elements=st.floats(-1024, 1024, width=32)),
    "theta": arrays(np.float32, 3, elements=st.floats(-1024, 1024, width=32)),
    "centre": arrays(np.int8, 3, elements=st.integers(-127, 127)),
    "scale": arrays(np.float32, 1, elements=st.floats(2**-10, 2**10, width=32)),
})  # fmt: skip
rows_of_one = st.integers(1, 4).flatmap(
    lambda k: st.tuples(
        arrays(np.float32, (k, 3), elements=st.floats(width=32)),
        arrays(np.int32, k, elements=st.integers(-3, 3)),
    )
)


@settings(max_examples=60, deadline=None)
@given(message=messages, rows=rows_of_one, round_=st.sampled_from([1, 2]))
def test_no_message_and_no_rows_let_a_patient_add_more_than_1(message, rows, round_):
    """Whatever the coordinator sends and whatever one patient's rows hold. Both sums are rounded
    to 1/1024, which can add half a step at both ends of every entry."""
    method = make(rounds=30)
    asked = message if round_ == 2 else {}
    check_message(asked, method.expects(round_, "a"))
    others = table(1)
    with np.errstate(all="ignore"):
        both = concatenate([others, Patients(rows[0], rows[1], np.array([0, len(rows[1])]))])
    without, with_ = (
        words(rehearse(method, data, {}, asked, None, seeded_key(1), round_)[0])
        for data in (others, both)
    )
    assert np.linalg.norm(with_ - without) <= 1 + math.sqrt(len(with_)) / 1024


def test_the_sum_carries_the_planned_noise_in_both_kinds_of_round():
    """Ten sites of which five are counted on: decoded minus exact over 20 keys x 401 entries has
    the planned variance times 10 / 5, of which rounding is under 1 %; release 1's share is fixed. Two-sided chi-squared tests,
    false alarm 1 in 10,000 each."""
    method = make(400, 10, 100, honest=5, rounds=50)
    assert method.honest_sites == 5
    data = table(5, 10, 400)
    message = {
        "bias": np.zeros(1, np.float32), "theta": np.zeros(400, np.float32),
        "centre": np.zeros(400, np.int8), "scale": np.ones(1, np.float32),
    }  # fmt: skip
    for round_, ratio in ((1, (1 - LOGISTIC.share) / (49 * LOGISTIC.share)), (2, 1.0)):
        asked = message if round_ == 2 else {}
        exact = 10 * words(rehearse(method, data, {}, asked, None, bytes(32), round_)[0])
        squares, count = 0.0, 0
        for trial in range(20):
            total = np.zeros(len(exact))
            for i in range(10):
                key = derive(seeded_key(8, trial), i)
                total += words(rehearse(method, data, {}, asked, 6.0, key, round_)[0])
            squares += float(np.sum((total - exact) ** 2))
            count += len(exact)
        planned = 2 * method.share(round_, 6.0).grid.noise ** 2
        assert 1 <= planned / (36 * ratio * 2) < 1.01
        low, high = stats.chi2.ppf([0.5e-4, 1 - 0.5e-4], count)
        assert low < squares / planned < high


@pytest.mark.parametrize(("real", "broken"), [(2.0, False), (0.25, True)])
def test_an_audit_of_a_gradient(real, broken):
    """With one party the share carries all of the noise: it keeps its claim, and an eighth of the
    noise does not. False alarms: 1 in 1,000."""
    others = table(3, 11, 4)
    far = np.full((12, 4), 1.0, np.float32)
    absent = with_patient(others, far, np.ones(12, np.int32))
    present = with_patient(others, far, np.zeros(12, np.int32))
    method = make(4, rounds=30)
    message = {
        "bias": np.array([12.0], np.float32), "theta": np.full(4, 4.0, np.float32),
        "centre": np.zeros(4, np.int8), "scale": np.ones(1, np.float32),
    }  # fmt: skip
    claim = Claim.of(method.round_event(2, "a", absent.patients, 2.0))

    def step(data, key):
        return {"g": words(rehearse(method, data, {}, message, real, key, 2)[0])}

    exact = [
        words(rehearse(method, world, {}, message, None, bytes(32), 2)[0])
        for world in (present, absent)
    ]
    assert np.linalg.norm(exact[0] - exact[1]) == pytest.approx(1, abs=0.01)
    found = audit(
        step, absent, present, claim, trials=600, key=seeded_key(1),
        direction={"g": exact[0] - exact[1]},
    )  # fmt: skip
    assert found.broken is broken
    assert found.reach > claim.epsilon


def test_rows_of_a_patient_count_as_one_and_copies_change_nothing():
    data = table(4, 30)
    twice = Patients(np.repeat(data.x, 2, 0), np.repeat(data.y, 2), 2 * data.starts)
    method = make(patients=30, rounds=30)
    once, again = (train(method, rows) for rows in (data, twice))
    np.testing.assert_allclose(once["weights"], again["weights"], atol=1e-3)


def test_the_band_of_the_shapes_is_what_noise_does_at_most():
    """On patients of whom every gradient is 0 on average nothing pulls back: the deviation of the
    weights over 60 trainings x 40 terms is the stated one (chi-squared, false alarm 1 in 1,000)."""
    method = make(40, patients=1, rounds=30)
    state = method.init(["a"], np.random.default_rng(0))
    state |= {"t": np.ones(1, np.int32), "rate": np.array([0.3]), "noise": np.array([2.0])}
    rng, found = np.random.default_rng(5), []
    for _ in range(60):
        now = state
        for _ in range(method.gradients):
            now = {key: array.copy() for key, array in now.items()}
            now["t"] += 1
            method._step(now, rng.normal(0, 2.0, 41))
        found.append(now["mean"][1:])
    squares = np.sum(np.square(found)) / method.weight_noise(state) ** 2
    low, high = stats.chi2.ppf([0.0005, 0.9995], 60 * 40)
    assert low < squares < high


def test_few_rounds_send_few_bytes():
    """PhysioNet's size: 330 terms, 6,400 patients, 12 sites, 13 rounds at epsilon 1."""
    method = make(330, 12, 6400, honest=8, rounds=13)
    data = table(2, 20, 330)
    from suture.protection.envelope import seal

    state, sent = method.init(["a"], np.random.default_rng(0)), 0
    for round_ in range(1, 14):
        message = seal(method.broadcast(state, "a"))
        payload, _ = rehearse(method, data, {}, method.broadcast(state, "a"), 13.0, seeded_key(round_), round_)  # fmt: skip
        sent += len(message) + len(seal(payload))
        state = method.server_step(state, [Answer("a", 6400, payload)])
    assert sent < 20_000


@pytest.mark.parametrize(
    ("changes", "protection", "least"),
    [
        ({}, {}, 2.9),
        ({}, {"sum": "masked"}, 2.4),
        ({"rounds": 13}, {"sum": "masked", "spare": 0}, 2.9),
        ({"local_noise": True}, {}, 2.9),
    ],
)
def test_a_study_keeps_its_promise(changes, protection, least):
    study = Study(
        name="s", outcome="high_risk",
        cohort={"name": "cardio", "split": "iid", "sites": 5, "patients": 1500},
        method={"name": "additive", "rounds": 30} | changes,
        privacy={"unit": "patient", "epsilon": 3.0}, protection=protection,
    )  # fmt: skip
    told = run(study).data["methods"]["additive"]
    assert all(least < spent <= 3.0 for spent in told["privacy"]["sites"].values())
    local = changes.get("local_noise", False)
    assert ("ASSUMPTION" in told["privacy"]["statement"]) is not local
    assert told["metrics"]["global"]["auc"] > 0.9


def test_terms_are_public_and_within_1():
    lactate = Number(low=0, high=20, normal=(0.5, 2), unit="mmol/L")
    known = terms(Schema(features={"lactate": lactate, "age": Number(low=0, high=90), "f": Flag()}))
    raw = np.linspace(-1, 1, 201, dtype=np.float32)
    x = np.zeros((201, 6), np.float32)
    x[:, 0] = raw
    found = known.matrix(x)[:, :3]
    assert np.abs(found).max() == 1.0
    value, mid = 10 * (raw.astype(float) + 1), 1.25
    line = np.log((1 + value / mid) / 2) / math.log((1 + 20 / mid) / 2)
    np.testing.assert_allclose(found[:, 0], line, atol=1e-6)
    above = np.log((mid + value) / (mid + 2)) / math.log((mid + 20) / (mid + 2))
    np.testing.assert_allclose(found[:, 2], np.clip(above, 0, 1), atol=1e-6)
    assert [c.name for c in known.items][3:] == ["Age", "Age, below 30", "Age, above 60", "F: yes"]
    marked = x.copy()
    marked[:, 1] = 1  # lactate was not measured
    assert not known.matrix(marked)[:, :3].any()


@pytest.mark.parametrize("worse", ["high", "low", "both"])
def test_a_monotone_curve_goes_as_declared_however_the_noise_falls(worse):
    schema = Schema(features={"a": Number(low=0, high=40, normal=(1, 2), worse=worse), "f": Flag()})
    public = Public(schema, patients=40)
    spec = MethodSpec(rounds=13, monotone=True)
    method = build("additive", spec, Dense((4, 1)), Local(), public)
    x = np.zeros((200, 4), np.float32)
    x[:, 0] = np.linspace(-1, 1, 200)
    for key in range(8):
        rows = table(key, 40, 4)
        state = train(method, rows, noise=3.0, key=key)
        p = method.predict(state, {}, x, "a")
        low, inside, high = (
            np.diff(p[:5]),
            np.diff(p[5:10]),
            np.diff(p[11:]),
        )  # 1 and 2 are at 5, 10
        if worse != "both":
            steps = np.diff(p) * (1 if worse == "high" else -1)
            assert steps.min() > -1e-6
        else:
            assert low.max() < 1e-6
            assert high.min() > -1e-6
            assert len(inside) == 4


def test_few_features_keep_a_curve():
    data = table(3, 2000, 6)
    state = train(make(6, patients=2000, rounds=40, features=2), data)
    assert np.flatnonzero(state["weights"]).tolist() == [0, 1]  # the two that the outcome follows


def test_a_bare_schema_takes_the_dictionary_s_normal_range():
    bare, told = Number(low=0, high=20), Number(low=0, high=20, normal=(0.5, 2.0))
    same = [terms(Schema(features={"lactate": one})).items for one in (bare, told)]
    assert [(c.at, c.width, c.log) for c in same[0]] == [(c.at, c.width, c.log) for c in same[1]]
    other = Number(low=0, high=2000)  # not in mmol/L
    assert terms(Schema(features={"lactate": other})).items[0].log is None


def test_what_it_cannot_do_is_refused():
    with pytest.raises(StudyError, match="every site in every round"):
        make(participation=0.5)
    with pytest.raises(StudyError, match="tells two outcomes apart, found 3 classes"):
        build("additive", MethodSpec(), Dense((3, 3)), Local(), Public(outcome=Classes(written=3)))
    with pytest.raises(StudyError, match="at least 4, found 3"):
        make(rounds=3)
    with pytest.raises(StudyError, match="scale of their bounds"):
        build("additive", MethodSpec(), Dense((3, 1)), Local(), Public(scaling="site"))


def test_rounds_follow_from_public_figures():
    assert gradients_for(Public(sites=12, patients=6400, epsilon=1.0, honest=8), False) == 40

    def excess(mu, epsilon=8.0, cdf=stats.norm.cdf):  # Balle & Wang 2018, Theorem 8
        far = math.exp(epsilon) * cdf(-epsilon / mu - mu / 2)
        return cdf(-epsilon / mu + mu / 2) - far - 1e-5

    # .75 n mu .15 / 18, and 7 of 10 sites counted on
    large = Public(sites=10, patients=8000, epsilon=8.0, honest=7)
    steps = 0.75 * 8000 * optimize.brentq(excess, 0.5, 5) * math.sqrt(0.7) * 0.15 / 18
    assert gradients_for(large, False) == math.ceil(steps)
    assert gradients_for(Public(sites=10, epsilon=1.0), False) == 40
    assert gradients_for(Public(), False) == 80
