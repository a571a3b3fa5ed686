"""The audit flags planted bugs and leaves correct mechanisms alone.

False alarms: each audit's stated rate is 1 in 1,000. Seeds are fixed, so these tests do not
flicker; over fresh seeds the slow matrix of correct mechanisms (5 x 20 audits) would fail one time
in ten at the very most, and in fact far less, because the bounds are conservative.
"""

import json

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from support import planted
from support.planted import BUGS, CLAIM, CORRECT, OUTLIER, ROWS, SIGMA

from suture.attacks.audit import Audit, Bound, Claim, audit, repeated_noise, with_patient
from suture.attacks.bounds import epsilon_of_mu, mu_bound
from suture.errors import PrivacyError, StudyError
from suture.privacy.noise.source import generator, seeded_key


@pytest.mark.parametrize("name", BUGS)
def test_planted_bug_is_flagged(name):
    mechanism, absent, present, claim = BUGS[name]
    found = audit(
        mechanism, absent, present, claim, trials=400, rate=0.001, key=seeded_key(1, name)
    )
    assert found.broken
    assert found.measured > claim.epsilon
    assert found.verdict.startswith("broken: measured at least ")
    assert f"claimed {claim.epsilon:.3g}" in found.verdict


@pytest.mark.parametrize("name", CORRECT)
def test_correct_mechanism_is_not_flagged(name):
    mechanism, absent, present, claim = CORRECT[name]
    found = audit(
        mechanism, absent, present, claim, trials=400, rate=0.001, key=seeded_key(2, name)
    )
    assert not found.broken
    assert found.verdict.startswith("consistent with the claim")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CORRECT, "Gaussian sum, exact direction"])
def test_no_false_alarm_in_twenty_audits(name):
    mechanism, absent, present, claim = CORRECT.get(name, CORRECT["Gaussian sum, outlier"])
    direction = np.ones(planted.D) if "direction" in name else None
    for seed in range(20):
        key = seeded_key(seed, "no false alarm", name)
        found = audit(
            mechanism, absent, present, claim, trials=600, rate=0.001, key=key, direction=direction
        )
        assert not found.broken, f"{name}, seed {seed}: {found.verdict}"


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
def test_every_bug_is_flagged_in_twenty_audits(name):
    mechanism, absent, present, claim = BUGS[name]
    for seed in range(20):
        found = audit(
            mechanism, absent, present, claim, trials=400, key=seeded_key(seed, "always", name)
        )
        assert found.broken, f"{name}, seed {seed}: {found.verdict}"


def test_a_sharp_audit_comes_close_to_the_truth():
    # mu = 0.625 exactly: at 95 % the proven mu lies below, but above six tenths of the epsilon
    found = audit(
        planted.gaussian_sum,
        ROWS,
        OUTLIER,
        CLAIM,
        trials=4000,
        key=seeded_key(5),
        direction=np.ones(planted.D),
    )
    assert 0.6 * CLAIM.epsilon < found.measured < CLAIM.epsilon
    curve = next(b for b in found.bounds if b.name == "curve")
    assert curve.stated == pytest.approx(
        epsilon_of_mu(mu_bound(curve.hits, curve.misses, 2000, 0.05 / 3), 1e-5)
    )


def test_sampling_is_audited_by_its_own_curve():
    claim = Claim.of(PoissonSampledDpEvent(0.3, GaussianDpEvent(1.0)))

    def sampled(table, key, keep=0.3):
        rng = generator(key)
        taken = rng.random(table.patients) < keep
        v = planted.per_patient(table)
        total = sum(
            (planted.clipped(p) for p, t in zip(v, taken, strict=True) if t), np.zeros(planted.D)
        )
        return total + rng.standard_normal(planted.D)

    def everyone(table, key):
        return sampled(table, key, keep=1.1)

    assert not audit(sampled, ROWS, OUTLIER, claim, trials=800, key=seeded_key(6)).broken
    assert audit(
        everyone, ROWS, OUTLIER, claim, trials=3000, key=seeded_key(6), direction=np.ones(5)
    ).broken


def test_own_score_and_threads_give_the_same_numbers():
    def score(message):
        return float(np.sum(message))

    one = audit(
        planted.gaussian_sum, ROWS, OUTLIER, CLAIM, trials=200, key=seeded_key(7), score=score
    )
    two = audit(
        planted.gaussian_sum,
        ROWS,
        OUTLIER,
        CLAIM,
        trials=200,
        key=seeded_key(7),
        score=score,
        threads=2,
    )
    assert one == two
    assert json.loads(json.dumps(one.to_dict()))["trials"] == 200


def test_keys_come_from_the_operating_system_unless_given():
    keys = set()

    def spy(table, key):
        keys.add(key)
        return np.zeros(1)

    for _ in range(2):
        audit(spy, ROWS, OUTLIER, CLAIM, trials=40)
    assert len(keys) == 160


def test_an_audit_that_cannot_refute_says_so():
    found = audit(
        planted.noise_over_batch, ROWS, OUTLIER, Claim(9.0, 0.0), trials=100, key=seeded_key(8)
    )
    assert not found.broken
    assert found.reach < 9.0
    assert "could not have shown more" in found.verdict


def test_a_deterministic_message_is_as_broken_as_can_be():
    found = audit(
        lambda t, key: t.x.sum(0), ROWS, OUTLIER, Claim(1.0, 0.0), trials=300, key=seeded_key(1)
    )
    assert found.broken
    assert found.bounds[0].hits == found.bounds[0].runs
    assert found.bounds[0].misses == 0
    same = audit(
        lambda t, key: np.zeros(3), ROWS, OUTLIER, Claim(0.0, 0.0), trials=100, key=seeded_key(1)
    )
    assert same.measured == 0.0
    assert not same.broken


def test_refusals():
    with pytest.raises(StudyError, match="40 trials"):
        audit(planted.gaussian_sum, ROWS, OUTLIER, CLAIM, trials=10)
    with pytest.raises(StudyError, match="not both"):
        audit(planted.gaussian_sum, ROWS, OUTLIER, CLAIM, direction=np.ones(5), score=float)
    with pytest.raises(StudyError, match="direction is zero"):
        audit(planted.gaussian_sum, ROWS, OUTLIER, CLAIM, direction=np.zeros(5))
    with pytest.raises(PrivacyError, match="not numbers"):
        audit(
            lambda t, k: np.full(2, np.nan), ROWS, OUTLIER, CLAIM, trials=40, direction=np.ones(2)
        )
    with pytest.raises(StudyError, match="epsilon >= 0"):
        Claim(-1.0, 0.0)


def test_verdict_takes_the_stricter_rate_for_alarm_and_95_percent_for_the_figure():
    claim = Claim(1.0, 1e-5)
    near = Audit(claim, (Bound("present", 9, 1, 10, stated=1.2, decided=0.9),), 20, 0.001, 5.0)
    over = Audit(claim, (Bound("present", 9, 1, 10, stated=1.2, decided=1.1),), 20, 0.001, 5.0)
    assert not near.broken
    assert over.verdict == "broken: measured at least 1.2 at 95 %, claimed 1"


def test_a_patient_comes_with_all_rows():
    more = with_patient(ROWS, np.ones((12, 5), np.float32), np.ones(12, np.int32))
    assert (more.patients, more.rows) == (ROWS.patients + 1, ROWS.rows + 12)


class TestNoiseThatRepeats:
    def test_a_seed_of_20_bits_is_found(self):
        found = repeated_noise(
            lambda key: planted.short_seed(key, 20), messages=5000, key=seeded_key(1)
        )
        assert found.broken
        assert 2 <= found.repeats <= 30  # about 12 expected
        assert found.bits >= 20
        assert "claimed 2^128" in found.verdict

    def test_full_keys_never_repeat(self):
        found = repeated_noise(planted.full_key, messages=5000, key=seeded_key(1))
        assert found.repeats == 0
        assert found.bits == pytest.approx(np.log2(5000**2 / (2 * np.log(1000))))

    @pytest.mark.slow
    def test_a_seed_of_32_bits_is_found_and_128_bits_are_not_flagged(self):
        assert repeated_noise(planted.short_seed, messages=250_000, key=seeded_key(1)).broken
        for seed in range(20):
            assert not repeated_noise(planted.full_key, messages=5_000, key=seeded_key(seed)).broken
        found = repeated_noise(planted.full_key, messages=250_000, key=seeded_key(1))
        assert not found.broken
        assert found.bits > 32

    def test_short_messages_are_refused(self):
        with pytest.raises(StudyError, match="repeat by chance"):
            repeated_noise(lambda key: np.zeros(2), messages=10)
        with pytest.raises(StudyError, match="at least 2"):
            repeated_noise(planted.full_key, messages=1)


def test_noise_multiplier_of_the_planted_mechanisms():
    assert CLAIM.form[0][0].noise == SIGMA
