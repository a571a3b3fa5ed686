"""Every method keeps the same contract, with and without privacy."""

import re
from pathlib import Path

import dp_accounting
import numpy as np
import pytest

import suture
from suture.errors import StudyError
from suture.methods import registry
from suture.methods.base import Answer, Method, Trained, Wrapper
from suture.methods.declared import Public
from suture.methods.ensemble import ALPHA, OWN
from suture.methods.registry import METHODS, MethodSpec, build, declared, ranked
from suture.models.dense import Dense
from suture.privacy.door import rehearse
from suture.privacy.noise.source import seeded_key
from suture.privacy.unit import Patients
from suture.protection.envelope import seal, unseal
from suture.protection.secure_sum import SecureSum
from suture.schema.message import check_message
from suture.study import Study
from suture.training.local import Local

NETWORK = Dense((3, 4, 1))
SITES = ["a", "b", "c"]
ENSEMBLED = tuple(name for name in METHODS if declared(name).global_model)
NOT_PRIVATE = tuple(name for name in METHODS if declared(name).unproven)


def make(name):
    return build(
        name, MethodSpec(warmup=2, picks=2), NETWORK, Local(epochs=1, batch=8, rate=0.1, clip=1.0)
    )


def rows(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(40, 3)).astype(np.float32)
    return Patients(
        x,
        (x[:, 0] + 0.3 * rng.normal(size=40) > 0).astype(np.int32),
        np.arange(41),
        np.arange(40) % 2,
    )


def rounds(method, count, noise, secret=9):
    state = method.init(SITES, np.random.default_rng(1))
    own = {site: {} for site in SITES}
    for round_ in range(count):
        answers = []
        for i, site in enumerate(SITES):
            message = unseal(seal(method.broadcast(state, site)))
            key = seeded_key(secret, site, round_)
            payload, own[site] = rehearse(
                method, rows(i), own[site], message, noise, key, round_ + 1, site
            )
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
            np.testing.assert_array_equal(
                p, method.predict(again, own_again[site], rows(7).x, site)
            )
            assert p.shape == (40,)
            assert np.all((p >= 0) & (p <= 1))

    def test_event_is_that_of_the_noise(self, name, noise):
        event = make(name).round_event(1, "a", 40, noise)
        if noise is None or name in NOT_PRIVATE:
            assert event == dp_accounting.NonPrivateDpEvent()
        elif name == "additive":  # its first round centres: 2 % of what 100 rounds cost
            first = noise / np.sqrt(99 * 0.02 / 0.98)
            assert event == dp_accounting.GaussianDpEvent(pytest.approx(first))
        elif name == "fedsgd":
            assert event == dp_accounting.GaussianDpEvent(pytest.approx(noise))
        elif (
            name == "veil"
        ):  # its first round asks for the rate: a twentieth of what all 100 rounds cost
            assert event == dp_accounting.GaussianDpEvent(pytest.approx(noise * 5**-0.5))
        else:
            step = dp_accounting.PoissonSampledDpEvent(8 / 40, dp_accounting.GaussianDpEvent(noise))
            training = dp_accounting.SelfComposedDpEvent(step, 5)
            if name == "fairfed":  # the group rates beside it: their share of the round
                rho = 0.1 / 0.9 * 5 * (8 / 40) ** 2 * np.expm1(1 / noise**2) / 2
                training = dp_accounting.ComposedDpEvent(
                    [training, dp_accounting.GaussianDpEvent(pytest.approx((2 * rho) ** -0.5))]
                )
            assert event == training

    def test_inputs_are_left_as_they_were(self, name, noise):
        method = make(name)
        state = method.init(SITES, np.random.default_rng(1))
        before = {key: array.copy() for key, array in state.items()}
        message = method.broadcast(state, "a")
        payload, _ = rehearse(method, rows(0), {}, message, noise, seeded_key(1))
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
        if (
            name != "alone"
            and (name, noise) != ("veil", None)
            and (name, noise) != ("fedsgd", None)
            and (name, noise) != ("additive", None)
        ):
            assert any(
                not np.array_equal(one[key], two[key])
                for key in one
                if key not in ("sites", "group", "t")
            )

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


VARIANTS = {
    **{name: (name, {}) for name in METHODS if name != "veil"},
    **{f"{name}, ensemble": (name, {"ensemble": True}) for name in ENSEMBLED},
    "additive, local noise": ("additive", {"local_noise": True}),
    "additive, many rounds": ("additive", {"rounds": 24}),
    "fairfed, every answer by itself": ("fairfed", {"secure_rates": False, "rates_every": 2}),
    **{
        f"veil, {mode}": ("veil", {"mode": mode, "rounds": 6})
        for mode in ("votes", "votes+moments", "secure")
    },
    "veil, secure, several teams": ("veil", {"mode": "secure", "rounds": 6, "teams": 4}),
}
FEDERATIONS = {
    "of unequal size": {"a": (12, None), "b": (90, None), "c": (40, None)},
    "one of them empty": {"a": (0, 40), "b": (40, 40), "c": (40, 40)},
    "declared otherwise": {"a": (33, 40), "b": (55, 40), "c": (1, 40)},
}
"""Of every site the number of its patients, and the number that it declares."""
MANY = {
    "of unequal size": {f"h{i:02d}": (150 + 20 * i, None) for i in range(20)},
    "one of them empty": {f"h{i:02d}": (10 if i else 0, 250) for i in range(20)},
    "declared otherwise": {f"h{i:02d}": (5 + i, 250) for i in range(20)},
}
"""Enough hospitals and patients for several teams."""


def table(seed, patients, declared):
    """Patients of one to three rows, in two groups."""
    rng = np.random.default_rng(seed)
    starts = np.append(0, np.cumsum(rng.integers(1, 4, patients))).astype(np.int64)
    x = np.clip(rng.normal(size=(int(starts[-1]), 3)), -1, 1).astype(np.float32)
    return Patients(
        x, (x[:, 0] > 0).astype(np.int32), starts, rng.integers(-1, 2, patients), declared
    )


def federate(variant, sites, noise):
    """A whole training, with every message checked as a site checks it, and secure sums where the
    method needs them."""
    name, options = VARIANTS[variant]
    data = {site: table(i, *size) for i, (site, size) in enumerate(sites.items())}
    sizes = {site: patients.size for site, patients in data.items()}
    spec = MethodSpec(**{"warmup": 2, "picks": 2, "rounds": 4} | options)
    public = (
        Public(None, len(sizes), sum(sizes.values()), sizes)
        if name in ("additive", "veil", "fedsgd")
        else None
    )
    method = build(name, spec, NETWORK, Local(epochs=1, batch=8, rate=0.1, clip=1.0), public)
    state, own = method.init(list(sizes), np.random.default_rng(1)), {site: {} for site in sizes}
    for round_ in range(1, spec.rounds + 1):
        answers = {}
        for site, patients in data.items():
            message = unseal(seal(method.broadcast(state, site)))
            check_message(message, method.expects(round_, site))
            key = seeded_key(3, site, round_)
            payload, own[site] = rehearse(
                method, patients, own[site], message, noise, key, round_, site
            )
            answers[site] = unseal(seal(payload))
        state = method.server_step(state, together(method, round_, sizes, answers))
    return method, state, own


def together(method, round_, sizes, answers):
    """What the server sees: every answer, or only the sums."""
    if method.needs != "secure sum":
        return [Answer(site, sizes[site], payload) for site, payload in answers.items()]
    groups = method.sums(round_, list(sizes)) or [tuple(sizes)]
    found = []
    for group in groups:
        box = SecureSum(tuple(group))
        for site in group:
            box.add(site, answers[site])
        found.append(Answer("sum", sum(sizes[site] for site in group), box.total(), len(group)))
    assert all(not answers[site] for site in sizes if not any(site in group for group in groups))
    return found


@pytest.mark.parametrize("noise", [None, 0.7])
@pytest.mark.parametrize("kind", FEDERATIONS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_method_trains_whatever_the_sites_are(variant, kind, noise):
    sites = (MANY if variant.endswith("several teams") else FEDERATIONS)[kind]
    method, state, own = federate(variant, sites, noise)
    _, again, _ = federate(variant, sites, noise)
    if variant.endswith("several teams"):
        assert method.teams.count > 1
    for name, array in state.items():
        np.testing.assert_array_equal(array, again[name])
        assert array.dtype.kind not in "f" or np.isfinite(array).all(), name
    x = table(7, 30, None).x
    for site in list(sites)[:3]:
        risk = method.predict(state, own[site], x, site)
        assert risk.shape == (len(x),)
        assert np.all((risk >= 0) & (risk <= 1))
        for rows in (
            slice(0, 1),
            slice(3, 4),
            slice(2, 9),
            slice(5, None),
        ):  # a row's risk is its own, bit for bit
            np.testing.assert_array_equal(
                method.predict(state, own[site], x[rows].copy(), site), risk[rows]
            )
        assert (ALPHA in own[site] and OWN in own[site]) == variant.endswith("ensemble")


# --- the contract itself ---------------------------------------------------------------------------


def asked(kind):
    return {name for name in vars(kind) if not name.startswith("_")}


def test_a_wrapper_passes_on_everything_that_a_run_may_ask():
    assert asked(Method) <= asked(Wrapper)


@pytest.mark.parametrize("name", [name for name in METHODS if declared(name).global_model])
def test_an_ensemble_is_planned_weighed_and_scheduled_as_the_method_inside(name):
    spec = MethodSpec(ensemble=True, rounds=10)
    local = Local(epochs=1, batch=8, rate=0.1, clip=1.0, decay=0.5, decays=2)
    method = build(name, spec, NETWORK, local)
    inner = method.inner
    for plain in ("needs", "weighting", "phased", "by_size", "honest_sites", "reference"):
        assert getattr(method, plain) == getattr(inner, plain), plain
    assert [method.at_round(r, 10).inner.local.rate for r in (1, 6, 10)] == [0.1, 0.05, 0.05]
    for noise in (None, 0.7):
        assert method.round_event(1, "a", 40, noise) == inner.round_event(1, "a", 40, noise)


@pytest.mark.parametrize("name", METHODS)
def test_a_learning_rate_decays_in_every_method_that_has_one(name):
    local = Local(epochs=1, batch=8, rate=0.1, clip=1.0, decay=0.5, decays=2)
    method = build(name, MethodSpec(rounds=10), NETWORK, local)
    if isinstance(method, Trained):
        assert method.at_round(6, 10).local.rate == 0.05
        assert method.at_round(1, 10) is not method.at_round(6, 10)


def test_every_method_but_the_references_cites_its_paper():
    for name in METHODS:
        assert bool(declared(name).cites) != (name in ("alone", "pooled")), name


def study(**method):
    return Study(name="s", outcome="high_risk", cohort="cardio", method=method)


def test_a_setting_that_no_method_of_the_study_uses_is_refused_with_those_that_do():
    with pytest.raises(StudyError, match=r"fedavg does not use it.*veil, veil-printed"):
        study(name="fedavg", quorum=3)
    with pytest.raises(StudyError, match="local_epochs: veil does not use it"):
        study(name="veil", local_epochs=2)
    with pytest.raises(StudyError, match="did you mean 'rounds'"):
        study(name="fedavg", ronds=3)
    with pytest.raises(StudyError, match=r"method.quorum: .*greater than or equal to 0"):
        study(name="veil", quorum=-1)


def test_a_setting_is_used_by_the_methods_compared_with_and_defaults_say_nothing():
    both = Study(
        name="s", outcome="high_risk", cohort="cardio",
        method={"name": "fedavg", "quorum": 3.0}, evaluation={"compare": ["veil"]},
    )  # fmt: skip
    assert both.to_dict()["method"]["quorum"] == 3.0
    assert study(name="fedavg", server_rate=0.1) == study(name="fedavg")
    assert Study.from_text(both.to_toml()) == both


def test_another_method_takes_over_only_what_it_uses():
    tuned = study(name="fedadam", server_rate=0.5, batch=16)
    other = tuned.replace(method={"name": "veil", "quorum": 1.0}).to_dict()["method"]
    assert other["server_rate"] == 0.5  # veil's server has a rate too
    assert other["quorum"] == 1.0
    assert other["batch"] == 32
    with pytest.raises(StudyError, match="proximal"):
        tuned.replace(method={"name": "veil", "proximal": 1.0})


def test_methods_are_ranked_by_what_they_declare():
    few = Public(sites=5, patients=5000, epsilon=1.0)
    best = [one.name for one, fit in ranked(few)]
    assert best[:2] == ["additive", "fedsgd"]
    assert not {"moon", "veil-printed"} & set(best)
    pictures = Public(sites=5, patients=5000, epsilon=1.0, images=True)
    assert "veil" not in [one.name for one, _ in ranked(pictures)]


# --- a method from outside --------------------------------------------------------------------------


def test_the_worked_example_of_the_page_runs_keeps_the_contract_and_is_known_by_entry_point(
    tmp_path, monkeypatch
):
    """docs/methods.md, "A method of your own": the code block of the page itself."""
    page = (Path(__file__).parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(\"\"\"FedDyn.*?)```", page, re.S).group(1)
    (tmp_path / "feddyn.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    import feddyn

    mine = Study(
        name="s", outcome="high_risk", cohort={"name": "cardio", "patients": 600}, seed=3,
        model={"hidden": [4]}, method={"name": "feddyn", "rounds": 3, "local_epochs": 1, "pull": 0.1},
        privacy={"unit": "patient", "epsilon": 8.0},
    )  # fmt: skip
    with pytest.raises(StudyError, match="unknown method 'feddyn'"):
        suture.run(mine)
    monkeypatch.setattr(registry, "_passed", {})
    found = suture.run(mine, methods=[feddyn.DECLARED])
    assert found.data["methods"]["feddyn"]["privacy"]["epsilon"] <= 8.0
    assert found.data["references"][0]["where"] == "arXiv:2111.04263"
    with pytest.raises(StudyError, match=r"method.pul: there is no such setting.*'pull'"):
        suture.run(mine.replace(method={"pul": 1.0}), methods=[feddyn.DECLARED])

    class Point:
        name, value = "feddyn", "feddyn:DECLARED"

        def load(self):
            return feddyn.DECLARED

    monkeypatch.setattr(registry, "_passed", {})
    monkeypatch.setattr(registry, "entry_points", lambda group: [Point()])
    registry._others.cache_clear()
    small = Local(epochs=1, batch=8, rate=0.1, clip=1.0)
    try:
        assert "feddyn" in registry.known()
        for noise in (None, 0.7):
            state, _ = rounds(build("feddyn", MethodSpec(), NETWORK, small), 3, noise)
            again, _ = rounds(build("feddyn", MethodSpec(), NETWORK, small), 3, noise)
            for key, array in state.items():
                np.testing.assert_array_equal(array, again[key])
    finally:
        registry._others.cache_clear()
