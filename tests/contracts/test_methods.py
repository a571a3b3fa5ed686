"""Every method keeps the same contract, with and without privacy."""

import dp_accounting
import numpy as np
import pytest

from suture.errors import StudyError
from suture.methods import METHODS, NOT_PRIVATE, build
from suture.methods.base import Answer
from suture.models.dense import Dense
from suture.privacy.mechanisms import seeded_key
from suture.privacy.unit import Patients
from suture.protection.envelope import seal, unseal
from suture.settings import MethodSpec
from suture.training.local import Local

NETWORK = Dense((3, 4, 1))
SITES = ["a", "b", "c"]


def make(name):
    return build(name, MethodSpec(warmup=2, picks=2), NETWORK, Local(epochs=1, batch=8, rate=0.1, clip=1.0))


def rows(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(40, 3)).astype(np.float32)
    return Patients(x, (x[:, 0] + 0.3 * rng.normal(size=40) > 0).astype(np.int32), np.arange(41), np.arange(40) % 2)


def rounds(method, count, noise, secret=9):
    state = method.init(SITES, np.random.default_rng(1))
    own = {site: {} for site in SITES}
    for round_ in range(count):
        answers = []
        for i, site in enumerate(SITES):
            message = unseal(seal(method.broadcast(state, site)))
            key = seeded_key(secret, site, round_)
            payload, own[site] = method.site_step(rows(i), own[site], message, noise, key)
            answers.append(Answer(site, 40, unseal(seal(payload))))
        state = method.server_step(state, answers)
    return state, own


@pytest.mark.parametrize("noise", [None, 0.7])
@pytest.mark.parametrize("name", METHODS)
class TestEveryMethod:
    def test_rounds_are_deterministic_and_finite(self, name, noise):
        method = make(name)
        first, own = rounds(method, 4, noise)
        again, own_again = rounds(method, 4, noise)
        for key in first:
            np.testing.assert_array_equal(first[key], again[key])
        for site in SITES:
            p = method.predict(first, own[site], rows(7).x, site)
            np.testing.assert_array_equal(p, method.predict(again, own_again[site], rows(7).x, site))
            assert p.shape == (40,)
            assert np.all((p >= 0) & (p <= 1))

    def test_event_is_that_of_the_noise(self, name, noise):
        event = make(name).site_event(40, noise)
        if noise is None or name in NOT_PRIVATE:
            assert event == dp_accounting.NonPrivateDpEvent()
        elif name in ("veil", "fedsgd"):
            assert event == dp_accounting.ZCDpEvent(1 / (2 * noise**2))
        else:
            step = dp_accounting.PoissonSampledDpEvent(8 / 40, dp_accounting.GaussianDpEvent(noise))
            training = dp_accounting.SelfComposedDpEvent(step, 5)
            if name == "fairfed":  # the group rates beside it: their share of the round
                rho = 0.1 / 0.9 * 5 * (8 / 40) ** 2 * np.expm1(1 / noise**2) / 2
                training = dp_accounting.ComposedDpEvent([training, dp_accounting.ZCDpEvent(pytest.approx(rho))])
            assert event == training

    def test_inputs_are_left_as_they_were(self, name, noise):
        method = make(name)
        state = method.init(SITES, np.random.default_rng(1))
        before = {key: array.copy() for key, array in state.items()}
        message = method.broadcast(state, "a")
        payload, _ = method.site_step(rows(0), {}, message, noise, seeded_key(1))
        method.server_step(state, [Answer(site, 40, payload) for site in SITES])
        for key, array in before.items():
            np.testing.assert_array_equal(state[key], array)

    def test_state_is_arrays_that_a_checkpoint_holds(self, name, noise, tmp_path):
        state, _ = rounds(make(name), 3, noise)
        np.savez(tmp_path / "state.npz", **state)
        with np.load(tmp_path / "state.npz", allow_pickle=False) as kept:
            for key, array in state.items():
                np.testing.assert_array_equal(kept[key], array)

    def test_the_key_moves_the_numbers_only_where_something_is_random(self, name, noise):
        one, _ = rounds(make(name), 1, noise, secret=1)
        two, _ = rounds(make(name), 1, noise, secret=2)
        if name != "alone" and (name, noise) != ("veil", None) and (name, noise) != ("fedsgd", None):
            assert any(not np.array_equal(one[key], two[key]) for key in one if key not in ("sites", "group", "t"))

    def test_it_learns_without_noise_and_names_itself(self, name, noise):
        method = make(name)
        assert method.name == name
        assert method.label
        state, own = rounds(method, 25, None)
        y, p = rows(0).y, method.predict(state, own["a"], rows(0).x, "a")
        assert np.mean((p > 0.5) == y) > 0.8


def test_an_unknown_method_lists_the_known_ones():
    with pytest.raises(StudyError, match="fedavg, fedprox, fedadam"):
        make("fedmany")
