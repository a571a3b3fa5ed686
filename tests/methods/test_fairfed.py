"""The fairness penalty: exact numbers, the bound on one patient, what it costs, and that it closes
a gap."""

from __future__ import annotations

import dp_accounting
import numpy as np
import pytest
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from hypothesis import given, settings
from hypothesis import strategies as st

from suture.errors import DataError, StudyError
from suture.evaluation.groups import gaps
from suture.methods.base import Answer
from suture.methods.ensemble import ALPHA, ALPHAS, OWN, Ensemble
from suture.methods.fairfed import DELTA_STEPS, MOST, SCALE, FairFed, patient_risk, pushes
from suture.methods.fedavg import FedAvg
from suture.models.dense import Dense
from suture.privacy.accounting.accountant import epsilon
from suture.privacy.door import rehearse
from suture.privacy.noise.source import seeded_key
from suture.privacy.unit import Patients
from suture.protection.secure_sum import STEPS
from suture.schema.message import check_message
from suture.training.local import Local
from suture.training.mechanism import by_row, groups_of

NETWORK = Dense((2, 1))
LOCAL = Local(batch=1000, rate=1.0, clip=1.0)


def method(**changes: object) -> FairFed:
    return FairFed(NETWORK, LOCAL, ("F", "M"), **{"parties": 2, "patients": 80, **changes})  # type: ignore[arg-type]


def biased(seed: int, n: int = 400) -> Patients:
    """Feature 1 is the group. The finding is equally frequent, but half of group 0's was recorded
    as absent."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 2, n)
    truth = rng.random(n) < 0.5
    x = np.stack([truth + 0.3 * rng.normal(size=n), 2.0 * group - 1], axis=1)
    recorded = truth & ((group == 1) | (rng.random(n) < 0.4))
    return Patients(x.astype(np.float32), recorded.astype(np.int32), np.arange(n + 1), group)


def play(
    fair: FairFed | FedAvg | Ensemble,
    tables: list[Patients],
    rounds: int,
    noise: float | None = None,
):
    sites = [str(i) for i in range(len(tables))]
    state, own = fair.init(sites, np.random.default_rng(0)), {site: {} for site in sites}
    for round_ in range(rounds):
        answers = []
        for site, table in zip(sites, tables, strict=True):
            key, message = seeded_key(5, site, round_), fair.broadcast(state, site)
            sent, own[site] = rehearse(
                fair, table, own[site], message, noise, key, round_ + 1, site
            )
            answers.append(Answer(site, table.patients, sent))
        state = fair.server_step(state, answers)
    return state, own


def test_the_loss_is_the_papers_penalty_linearised() -> None:
    """sum_i lambda (a_g N/n_g - sum_h a_h) p_i = lambda N sum_g a_g (mean of group g - mean of
    all), by hand."""
    rng = np.random.default_rng(1)
    group, p, signs = rng.integers(0, 3, 60), rng.random(60), np.array([0.5, -1.0, 0.25])
    counts = np.bincount(group, minlength=3).astype(np.float32)
    each = pushes(signs.astype(np.float32), counts, 0.05)
    ours = float(np.sum(each[group] * p))
    theirs = 0.05 * 60 * sum(signs[g] * (p[group == g].mean() - p.mean()) for g in range(3))
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert each[-1] == pytest.approx(
        0.05 * 0.25
    )  # no group: only the overall rate, -sum of the signs


def test_one_round_in_exact_numbers() -> None:
    """First the counts, then the sums of risks; signs, and lambda boosted because the gap is over
    the threshold."""
    tables = [biased(1, 40), biased(2, 40)]
    fair = method(fairness=0.5, threshold=0.01, boost=1.5)
    state = fair.init(["a", "b"], np.random.default_rng(0))
    message = fair.broadcast(state, "a")
    assert message["pushes"].tolist() == [0, 0, 0]
    sent = [rehearse(fair, table, {}, message, None, seeded_key(1))[0] for table in tables]
    groups = np.concatenate([table.group for table in tables])
    assert (sum(s["sums"] for s in sent) / STEPS).tolist() == [
        np.sum(groups == 0),
        np.sum(groups == 1),
    ]
    state = fair.server_step(state, [Answer(str(i), 40, s) for i, s in enumerate(sent)])
    plain = FedAvg(NETWORK, LOCAL)
    first = plain.init(["a", "b"], np.random.default_rng(0))
    one = [
        rehearse(plain, t, {}, plain.broadcast(first, "a"), None, seeded_key(1))[0] for t in tables
    ]
    expected = plain.server_step(first, [Answer(str(i), 40, s) for i, s in enumerate(one)])
    # Without a penalty the first round is FedAvg, up to the order of batches (one batch here) and
    # the grid of the sum.
    np.testing.assert_allclose(state["params"], expected["params"], atol=2e-6)
    sent = [
        rehearse(fair, table, {}, fair.broadcast(state, "a"), None, seeded_key(2), 2)[0]
        for table in tables
    ]
    risk = np.concatenate([NETWORK.predict(state["params"], table.x) for table in tables]).astype(
        np.float64
    )
    after = fair.server_step(state, [Answer(str(i), 40, s) for i, s in enumerate(sent)])
    rates = np.array([risk[groups == 0].mean(), risk[groups == 1].mean()])
    np.testing.assert_allclose(after["rates"], rates, atol=1e-3)
    np.testing.assert_allclose(after["pressure"], (rates - risk.mean()) / SCALE, atol=5e-3)
    assert float(after["weight"]) == 0.5  # the push is not at its limit yet
    held = {**after, "rates": np.array([0.9, 0.1]), "pressure": np.array([1.5, -1.5])}
    assert float(fair.server_step(held, [Answer("0", 80, sent[0])])["weight"]) == pytest.approx(
        0.75
    )
    turned = {**held, "pressure": np.array([-1.5, 1.5])}
    assert float(fair.server_step(turned, [Answer("0", 80, sent[0])])["weight"]) == 0.5
    for _ in range(30):
        after = fair.server_step({**held, "weight": after["weight"]}, [Answer("0", 80, sent[0])])
    assert float(after["weight"]) == pytest.approx(MOST * 0.5)
    assert fair.facts(after)["fairness_weight"] == pytest.approx(MOST * 0.5)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    rows=st.integers(1, 5),
    group=st.sampled_from([-1, 0, 1]),
    size=st.sampled_from([1.0, 1e4, np.inf, np.nan]),
    weight=st.sampled_from([0.0, 0.5, 1e3]),
    signs=st.sampled_from([(0.3, -0.3), (1.0, -1.0)]),
)
def test_one_patient_moves_what_is_sent_by_at_most_the_bounds(
    seed: int, rows: int, group: int, size: float, weight: float, signs: tuple[float, float]
) -> None:
    """The group sums by 1 and the sum of clipped gradients by C, whatever the patient's rows and
    the server's weights."""
    rng = np.random.default_rng(seed)
    base = biased(seed, 20)
    x = np.concatenate([base.x, np.full((rows, 2), size, np.float32)])
    y = np.append(base.y, rng.integers(0, 2, rows))
    more = Patients(x, y, np.append(base.starts, 20 + rows), np.append(base.group, group))
    fair = method(secure=False)
    state = fair.init(["a"], rng)
    state["pressure"], state["weight"] = (
        np.arctanh(np.array(signs) * 0.99),
        np.array(weight, np.float32),
    )
    state["counts"], state["t"] = np.array([3.0, 17.0], np.float32), np.array(1)
    message = fair.broadcast(state, "a")
    sums = []
    for table in (base, more):
        risk = patient_risk(NETWORK.predict(state["params"], table.x), table.starts)
        sums.append(np.bincount(table.group[table.group >= 0], risk[table.group >= 0], 2))
    assert np.linalg.norm(sums[1] - sums[0]) <= 1 + 1e-9
    with_clip = Local(batch=21, rate=1.0, clip=1.0, noise_multiplier=0.0)
    from support.batches import train_on_batches

    push = by_row(message["pushes"], groups_of(more, 2), more.starts)
    moved = [
        train_on_batches(NETWORK, state["params"], more, with_clip, [np.arange(n)], push=push)
        for n in (20, 21)
    ]
    assert 21 * np.linalg.norm(moved[1].astype(np.float64) - moved[0]) <= 1 + 1e-3


def test_the_cost_is_the_composition_in_the_notes() -> None:
    """Full batch: mu^2 = T (1/sigma^2 + 1/sigma_s^2), exactly, and a tenth goes to the rates."""
    fair = method(share=0.1)
    event = fair.round_event(1, "a", 500, 8.0)
    training, rates = event.events
    assert training == dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(1.0, dp_accounting.GaussianDpEvent(8.0)), 1
    )
    mu_s = 1 / rates.noise_multiplier
    assert mu_s**2 / (mu_s**2 + 1 / 64) == pytest.approx(0.1)
    rounds = 30
    exact = get_epsilon_gaussian(1 / np.sqrt(rounds * (1 / 64 + mu_s**2)), 1e-5)
    proven = epsilon(dp_accounting.SelfComposedDpEvent(event, rounds), 1e-5)
    assert proven == pytest.approx(exact, rel=1e-6)
    assert isinstance(fair.round_event(1, "a", 500, None), dp_accounting.NonPrivateDpEvent)


def test_rates_every_few_rounds_cost_only_the_rounds_that_ask() -> None:
    """Rounds 1, 4, 7: three releases of three times the cost; the others send and pay for an update
    alone."""
    fair, every = method(every=3), method()
    costs = [fair.round_event(r, "a", 40, 8.0) for r in range(1, 8)]
    assert [isinstance(cost, dp_accounting.ComposedDpEvent) for cost in costs] == [
        True,
        False,
        False,
    ] * 2 + [True]
    assert fair.rates_rho(500, 8.0) == pytest.approx(3 * every.rates_rho(500, 8.0))
    state, table = fair.init(["a"], np.random.default_rng(0)), biased(4, 40)
    for done in range(4):
        message = fair.broadcast(state, "a")
        check_message(
            message, fair.expects(done + 1, "a")
        )  # it cannot say whether rates are asked for
        sent, _ = rehearse(fair, table, {}, message, 8.0, seeded_key(7, done), done + 1)
        assert ("sums" in sent) == (done % 3 == 0)
        before, state = state, fair.server_step(state, [Answer("a", 40, sent)])
        moved = "counts" if done == 0 else "rates"
        assert np.array_equal(before[moved], state[moved]) == (done % 3 != 0)
    assert "every 3 rounds" in fair.mechanism()


def test_noise_on_the_rates_is_what_is_paid_for() -> None:
    """500 releases by a site of 60 patients: standard deviation as planned, within 4 standard
    errors."""
    fair, table = method(parties=1, honest=1.0), biased(3, 60)
    state = fair.init(["a"], np.random.default_rng(0))
    message = fair.broadcast(state, "a")
    rho = fair.rates_rho(60, 20.0)
    found = np.array(
        [
            rehearse(fair, table, {}, message, 20.0, seeded_key(9, i))[0]["sums"] / STEPS
            for i in range(500)
        ]
    )
    planned = 1 / np.sqrt(2 * rho)
    assert np.std(found, axis=0) == pytest.approx([planned] * 2, rel=4 / np.sqrt(2 * 500))
    assert np.mean(found, axis=0) == pytest.approx(
        np.bincount(table.group), abs=4 * planned / np.sqrt(500)
    )


def test_the_gap_closes_and_the_truth_is_served_better() -> None:
    tables = [biased(seed) for seed in (1, 2)]
    test = biased(9, 2000)
    truth = test.x[:, 0] > 0.5
    local = Local(epochs=2, batch=50, rate=0.5)

    def after(fair: FairFed | FedAvg) -> tuple[float, float]:
        state, _ = play(fair, tables, 25)
        p = fair.predict(state, {}, test.x, "0")
        return float(gaps(truth, p, test.group)["parity_gap"] or 0), float(
            np.mean((p > 0.5) == truth)
        )

    unfair, fair = (
        after(FedAvg(NETWORK, local)),
        after(FairFed(NETWORK, local, ("F", "M"), fairness=0.5, parties=2)),
    )
    assert unfair[0] > 0.1
    assert fair[0] < unfair[0] / 2
    assert fair[1] > unfair[1]


def test_an_ensemble_sends_what_the_method_inside_sends_and_keeps_its_own_model() -> None:
    tables = [biased(seed, 60) for seed in (1, 2)]
    inner = method()
    both = Ensemble(inner, NETWORK, LOCAL, rounds=3, epochs=3, fairness=0.5)
    state, own = play(both, tables, 3, noise=2.0)
    alone, _ = play(inner, tables, 3, noise=2.0)
    np.testing.assert_array_equal(state["params"], alone["params"])
    assert both.round_event(1, "a", 60, 2.0) == inner.round_event(1, "a", 60, 2.0)
    assert "no promise covers them" in both.mechanism()
    for site, table in zip("01", tables, strict=True):
        alpha = float(own[site][ALPHA])
        assert alpha in ALPHAS
        mixed = alpha * NETWORK.predict(own[site][OWN], table.x) + (1 - alpha) * NETWORK.predict(
            state["params"], table.x
        )
        np.testing.assert_allclose(both.predict(state, own[site], table.x, site), mixed, rtol=1e-6)
        assert both.predict(state, {}, table.x, site) == pytest.approx(
            NETWORK.predict(state["params"], table.x)
        )
    few = Ensemble(inner, NETWORK, LOCAL, rounds=1)
    _, kept = play(few, [biased(1, 8)], 1)
    assert float(kept["0"][ALPHA]) == 0.0


def test_a_sites_own_training_closes_its_own_gap() -> None:
    """One site's labels are biased and the other's are not: each follows its own gap, not the
    federation's."""
    fine = biased(2)
    tables = [
        biased(1),
        Patients(fine.x, (fine.x[:, 0] > 0.5).astype(np.int32), fine.starts, fine.group),
    ]
    local, test = Local(batch=50, rate=0.5), biased(9, 2000)

    def gap_at(site: str, weight: float) -> float:
        both = Ensemble(
            FairFed(NETWORK, local, ("F", "M"), fairness=0.01, parties=2),
            NETWORK, local, rounds=2, epochs=12, rate=0.5, fairness=0.01, own_fairness=weight,
        )  # fmt: skip
        _, own = play(both, tables, 2)
        return float(
            gaps(test.y, NETWORK.predict(own[site][OWN], test.x), test.group)["parity_gap"] or 0
        )

    assert gap_at("0", 0.0) > 0.1
    assert gap_at("0", 1.0) < gap_at("0", 0.0) / 2
    assert gap_at("1", 1.0) < 0.1


def test_what_is_missing_is_said() -> None:
    with pytest.raises(StudyError, match="protected = "):
        FairFed(NETWORK, LOCAL, ())
    table = biased(1, 10)
    fair = method()
    message = fair.broadcast(fair.init(["a"], np.random.default_rng(0)), "a")
    with pytest.raises(DataError, match="no protected group"):
        rehearse(fair, Patients(table.x, table.y, table.starts), {}, message, None, seeded_key(1))
    # A group beyond those declared counts as none: an error would tell of rows.
    told = [
        rehearse(
            fair,
            Patients(table.x, table.y, table.starts, np.full(10, code)),
            {},
            message,
            None,
            seeded_key(1),
        )[0]
        for code in (2, -1)
    ]
    assert {name: array.tolist() for name, array in told[0].items()} == {
        n: a.tolist() for n, a in told[1].items()
    }
    assert not told[0]["sums"].any()
    assert DELTA_STEPS == 2**24
