"""VEIL's secure mode: who is asked what, what a sum can carry, what it costs, and what the server
makes of it."""

import numpy as np
import pytest

from suture.engine import conduct
from suture.engine.gather import check_sum, gather
from suture.errors import Refused, StudyError
from suture.methods.base import Answer
from suture.methods.gradients import BIAS, residual
from suture.methods.veil import fit, secure
from suture.methods.veil.directions import signs
from suture.methods.veil.method import Veil
from suture.methods.veil.teams import Teams
from suture.models.concepts import dictionary, plain
from suture.privacy.door import rehearse
from suture.privacy.noise.source import derive, seeded_key
from suture.privacy.unit import Patients
from suture.protection.envelope import seal, unseal
from suture.protection.secure_sum import BLUR, LEAST_SHARE, SecureSum, unpack_words
from suture.protection.terms import ProtectionSpec
from suture.schema.message import check_message
from suture.schema.table import Number, Schema
from suture.study import Study
from suture.training.contributions import risk

SIZES = {f"h{i:02d}": 40 * (i + 1) for i in range(40)}
TEAMS = Teams.of(SIZES, 4)


def test_teams_share_out_hospitals_patients_and_concepts():
    assert TEAMS.count == 4
    assert sum(TEAMS.parties((k,)) for k in TEAMS.all) == 40
    others = [TEAMS.patients((k,)) for k in TEAMS.all]
    assert max(others) - min(others) < 0.02 * sum(others)
    parts = [TEAMS.part(i, 251) for i in range(4)]
    assert np.sort(np.concatenate(parts)).tolist() == list(range(251))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_no_team_is_one_large_hospital():
    """It would be hidden among nobody. The smallest of the others join it, which hardly moves
    patients."""
    sizes = {"large": 4244, **{f"h{i:03d}": 20 + 4 * i for i in range(121)}}
    teams = Teams.of(sizes, 12)
    assert teams.count == 12
    assert [teams.parties((k,)) >= 5 for k in teams.all] == [True] * 12
    with_it = [site for site, team in teams.team.items() if team == teams.team["large"]]
    assert sorted(sizes[site] for site in with_it)[-2] < 100
    assert sum(teams.parties((k,)) for k in teams.all) == 122


def test_few_hospitals_or_patients_are_one_team():
    assert Teams.of({"a": 10**6, "b": 10**6}, 8).count == 1
    assert [Teams.of(dict(list(SIZES.items())[-n:]), 8).count for n in (12, 15, 25)] == [1, 2, 4]
    assert Teams.of({f"h{i}": 8 for i in range(125)}, 8).count == 1
    assert Teams.of(SIZES, 1).count == 1
    assert Teams.of(SIZES, 1).asked("look") == Teams.of(SIZES, 1).asked("step") == ((0,),)


def test_other_sizes_are_another_method_to_a_fingerprint():
    changed = Teams.of({**SIZES, "h00": 41}, 4)
    assert repr(Veil(plain(3), "secure", 6, teams=changed)) != repr(
        Veil(plain(3), "secure", 6, teams=TEAMS)
    )


@pytest.mark.parametrize("teams", [TEAMS, Teams.of(SIZES, 1)])
@pytest.mark.parametrize("rounds", [4, 6, 11])
def test_every_hospital_pays_the_same_in_all(teams, rounds):
    """Everybody is asked in every phase; everybody's training costs rounds / (2 z^2)."""
    method = Veil(plain(30), "secure", rounds, concepts=9, teams=teams)
    state = method.init(list(SIZES), np.random.default_rng(0))
    spent = dict.fromkeys(SIZES, 0.0)
    for t in range(rounds):
        state["t"][0] = t
        groups = method.sums(t + 1, tuple(SIZES))
        assert sorted(site for group in groups for site in group) == sorted(SIZES)
        for site in SIZES:
            check_message(method.broadcast(state, site), method.expects(t + 1, site))
            spent[site] += method.round_event(t + 1, site, 10, 3.0).noise_multiplier ** -2
    assert list(spent.values()) == pytest.approx([rounds / 3.0**2] * 40)


PHASES = ["moments", "look", "step"]


@pytest.mark.parametrize("phase", PHASES)
def test_a_message_costs_what_the_phase_is_charged(phase):
    """Theorem 4 with every number: the honest half's noise less the rounding's, the sensitivity
    in steps."""
    method = Veil(plain(30), "secure", 6, concepts=9, teams=TEAMS)
    rho = method.phase_rho(phase, 20.0)
    grid = method._layout(phase, 0, 9, -2.0, 20.0).grid
    assert grid.honest == -(-TEAMS.parties(TEAMS.asked(phase)[0]) // 2)
    assert grid.deviation >= LEAST_SHARE
    assert grid.sensitivity == 1.0
    cost = grid.steps**2 / (2 * (grid.honest * grid.deviation**2 - BLUR))
    assert cost <= rho * (1 + 1e-9)
    assert cost > 0.9 * rho or grid.deviation == LEAST_SHARE


@pytest.mark.parametrize("phase", PHASES)
def test_every_vector_keeps_to_its_sensitivity(phase):
    """Random tables with several rows a patient, any centre and scale, one patient removed: the
    exact statistics, before noise. A patient moves them by 1 at most, and some by nearly 1."""
    rng = np.random.default_rng(4)
    known, most = plain(12), 0.0
    method = Veil(known, "secure", 6, teams=Teams.of(SIZES, 2))
    ids, part = np.array([0, 3, 4, 7, 9, 11], np.int32), method.teams.part(1, 12)
    centre = rng.integers(-127, 128, len(part) if phase == "look" else len(ids)).astype(np.int8)
    for _ in range(60):
        counts = rng.integers(1, 4, 6)
        x = np.sign(rng.normal(size=(counts.sum(), 12))).astype(np.float32)
        y, ends = rng.integers(0, 2, counts.sum()).astype(np.int32), np.append(0, np.cumsum(counts))
        whole = Patients(x, y, ends)
        rest = Patients(whole.x[counts[0] :], whole.y[counts[0] :], whole.starts[1:] - counts[0])
        weights = np.array([3.0, -4.0, 2.0, 0, 1, -1], np.float32)
        model = secure.Model(0.5, weights, ids, centre, float(rng.choice([2.0**-10, 0.7, 2.0**10])))
        found = []
        for data in (whole, rest):
            values, weights = secure.contributions(phase, data, data.x, model, part, known)
            found.append(weights @ values)
        most = max(most, float(np.linalg.norm(found[0] - found[1])))
    assert 0.9 < most <= 1


def answer(found, sum_, noise, key):
    """A hospital's share of a sum, as its door and method make it of exact numbers."""
    words = found.grid.share(sum_, derive(key, "sum"))
    return {found.name: secure.packed(found, [words, secure.level_digits(found, noise)])}


def test_residuals_of_every_possible_model_at_the_start_fit_the_words():
    """All outcomes in one entry, and none: at the base rate neither sum wraps around."""
    method = Veil(plain(8), "secure", 6, concepts=2, teams=Teams.of(SIZES, 1))
    for base in (-4.0, -2.0, 0.0, 3.0):
        found, patients = method._layout("step", 0, 2, base, None), sum(SIZES.values())
        p = float(risk(np.array([base]))[0])
        y = np.arange(patients) < round(p * patients)
        far = np.array([np.abs(residual(np.full(patients, p), y)).sum(), -1.0, 0.5])
        box = SecureSum(("a", "b"))
        for site, share in (("a", 0.3), ("b", 0.7)):
            box.add(site, answer(found, share * far, None, seeded_key(1)))
        seen, _ = secure.opened(found, box.total()[found.name], 2)
        np.testing.assert_allclose(seen, far, atol=1.01 * found.grid.step)


@pytest.mark.parametrize("sites", [1, 9, 152])
def test_the_noise_level_arrives_whole(sites):
    """64 z of every hospital, added in digits that cannot overflow."""
    method = Veil(plain(3), "secure", 6, teams=Teams.of({f"h{i}": 50 for i in range(sites)}, 1))
    found = method._layout("moments", 0, 0, 0.0, 0.01)
    parts = np.zeros(8)
    box = SecureSum(tuple(map(str, range(sites))))
    for i in range(sites):
        box.add(str(i), answer(found, parts, 123.5, seeded_key(i)))
    assert secure.opened(found, box.total()[found.name], sites)[1] == 123.5


def opened(method, state, patients, sealed):
    return gather(
        method,
        ProtectionSpec(),
        patients,
        sealed,
        1,
        {},
        1,
        method.sums(int(state["t"][0]) + 1, tuple(patients)),
    ).answers


def small_federation(seed=2, patients=4500):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (patients, 3)).astype(np.float32)
    y = (rng.random(patients) < risk(x @ np.array([1.5, -1.0, 0.2]) - 1)).astype(np.int32)
    third = patients // 3
    rows = {s: Patients(x[i::3], y[i::3], np.arange(third + 1)) for i, s in enumerate("abc")}
    return x, y, rows


def trained(method, rows, noise, rounds, seed=1):
    state = method.init(list(rows), np.random.default_rng(0))
    for t in range(rounds):
        sealed = {}
        for site, data in rows.items():
            asked = method.broadcast(state, site)
            sealed[site] = seal(
                rehearse(method, data, {}, asked, noise, seeded_key(seed, t, site), t + 1, site)[0]
            )
        state = method.server_step(
            state, opened(method, state, {s: d.patients for s, d in rows.items()}, sealed)
        )
    return state


def test_without_noise_steps_converge_to_the_root_of_the_weighted_residuals():
    """The same equations, solved by SciPy on all rows together; and a logistic regression is near,
    because both estimate the true model."""
    from scipy.optimize import root
    from sklearn.linear_model import LogisticRegression

    x, y, rows = small_federation()
    sizes = {site: data.patients for site, data in rows.items()}
    method = Veil(plain(3), "secure", 80, concepts=3, teams=Teams.of(sizes, 8))
    state = trained(method, rows, None, 80)
    centre, scale = state["centre"] / 127.0, float(state["scale"][0])
    basis = np.hstack([np.full((len(x), 1), BIAS), (x - centre) / scale])
    unit = basis / np.linalg.norm(basis, axis=1, keepdims=True)
    exact = root(lambda theta: unit.T @ residual(risk(basis @ theta), y), np.zeros(4)).x
    np.testing.assert_allclose(state["weights"], exact[1:] / scale, atol=0.01)
    assert state["bias"][0] == pytest.approx(BIAS * exact[0] - exact[1:] @ centre / scale, abs=0.01)
    pooled = LogisticRegression(C=1e6, tol=1e-8).fit(x, y)
    np.testing.assert_allclose(state["weights"], pooled.coef_[0], atol=0.1)


def test_noise_of_a_large_budget_changes_little_and_the_server_knows_it():
    _, _, rows = small_federation()
    sizes = {site: data.patients for site, data in rows.items()}
    method = Veil(plain(3), "secure", 7, concepts=3, teams=Teams.of(sizes, 8))
    exact, noisy = trained(method, rows, None, 7), trained(method, rows, 0.5, 7)
    assert exact["noise"][0] == 0
    assert noisy["noise"][0] == 0.5
    np.testing.assert_allclose(noisy["weights"], exact["weights"], atol=0.3)


@pytest.mark.parametrize("noise", [2.0, 20.0, 200.0, 20_000.0])
def test_noise_cannot_send_the_model_away(noise):
    """Whatever the noise, the steps together move an average patient's log odds by what `REACH`
    allows: its standard deviation from noise alone is below 1. False alarm: 5 deviations, 1e-6."""
    x, _, rows = small_federation()
    sizes = {site: data.patients for site, data in rows.items()}
    method = Veil(plain(3), "secure", 20, concepts=3, teams=Teams.of(sizes, 8), directions="free")
    state = trained(method, rows, noise, 20)
    spread = np.sqrt(np.mean(((x - x.mean(axis=0)) @ state["weights"].astype(float)) ** 2))
    assert spread < 5.0


def test_a_further_concept_of_a_feature_counts_less():
    schema = Schema(features={name: Number(low=0, high=1, missing="indicator") for name in "ab"})
    known, state = dictionary(schema), fit.start_state(4)
    fit.choose(state, np.array([10.0, 9.0, 7.0, 6.0]), known, 2)
    assert np.flatnonzero(state["chosen"]).tolist() == [0, 2]  # 9 x 0.7 < 7
    state = fit.start_state(4)
    fit.choose(state, np.array([-1.0, 9.0, -1.0, 6.0]), known, 4)
    assert np.flatnonzero(state["chosen"]).tolist() == [1, 3]


def bun(worse=None):
    """Two columns of one measurement."""
    column = Number(
        low=0, high=200, unit="mg/dL", normal=(7, 20), missing="indicator", worse=worse,
        thresholds={"low": 5, "high": 40},
    )  # fmt: skip
    return dictionary(Schema(features={"bun_last": column, "bun_max": column}))


RISING = {"value": 1, "above": 1, "high": 1, "below": -1, "low": -1}


@pytest.mark.parametrize("directions", ["medicine", "data"])
def test_concepts_of_one_measurement_never_contradict_each_other(directions):
    """Any gradients: the allowed signs are those of one shape, for both columns together, and a
    concept whose own gradient says otherwise is not chosen."""
    rng, known, shapes = np.random.default_rng(3), bun(), set()
    for _ in range(200):
        score = rng.normal(size=len(known))
        sign, allowed = signs(known.items, score, directions)
        kinds = np.array([concept.kind for concept in known.items])
        marks = kinds == "missing"
        assert len(set(sign[marks].tolist())) == 1
        slopes = {
            int(s) * RISING[kind] for s, kind in zip(sign[~marks], kinds[~marks], strict=True)
        }
        two_sided = all(sign[(kinds != "value") & ~marks] == 1) and not sign[kinds == "value"].any()
        assert len(slopes) == 1 or two_sided
        assert not allowed[kinds == "value"].any() or not two_sided
        assert np.all(sign[allowed] * score[allowed] > 0)
        shapes.add("both" if two_sided else slopes.pop())
    assert shapes == ({1} if directions == "medicine" else {1, -1, "both"})
    assert not signs(known.items, score, "free")[0].any()


def test_a_declared_direction_counts_before_the_dictionary():
    sign, _ = signs(bun("low").items, np.ones(12), "medicine")
    kinds = [concept.kind for concept in bun().items]
    assert [int(s) for s, kind in zip(sign, kinds, strict=True) if kind == "value"] == [-1, -1]


def test_weights_keep_their_signs_through_noise_and_averaging():
    _, _, rows = small_federation()
    sizes = {site: data.patients for site, data in rows.items()}
    method = Veil(bun_like(), "secure", 12, concepts=9, teams=Teams.of(sizes, 8))
    for seed in range(3):
        state = trained(method, rows, 30.0, 12, seed)
        held = state["signs"][1:] * state["weights"][np.flatnonzero(state["chosen"])]
        assert np.all(held[state["signs"][1:] != 0] >= 0)
        assert np.count_nonzero(held) > 1


def bun_like():
    """Three columns of one measurement without a declared direction."""
    column = Number(low=-1, high=1, normal=(-0.2, 0.2), thresholds={"high": 0.5}, missing="fill")
    return dictionary(Schema(features={f"sodium_{s}": column for s in ("min", "last", "max")}))


def test_protected_concepts_are_allowed_penalised_or_left_out():
    _, _, rows = small_federation()
    teams = Teams.of({site: data.patients for site, data in rows.items()}, 8)
    columns = [Number(low=-1, high=1, missing="fill", protected=i == 0) for i in range(3)]
    known = dictionary(Schema(features=dict(zip("abc", columns, strict=True))))
    found = {}
    for way in ("allowed", "penalised", "excluded"):
        method = Veil(known, "secure", 4, concepts=3, teams=teams, protected=way)
        found[way] = trained(method, rows, None, 4)["weights"]
    assert found["excluded"][0] == 0
    assert 0 < found["penalised"][0] < 0.9 * found["allowed"][0]


def test_a_site_adds_to_the_sum_of_its_team_and_to_no_other():
    """Finding 11: no message can ask a site of a small team for a phase whose noise is planned for
    all of them."""
    method = Veil(plain(8), "secure", 6, teams=TEAMS)
    data = Patients(np.zeros((1, 8), np.float32), np.zeros(1, np.int32), np.array([0, 1]))
    for site, team in TEAMS.team.items():
        assert method._sum("moments", site) == method._sum("look", site) == team
        assert method._sum("step", site) == 0
        size = method._layout("moments", team, 0, 0.0, None).grid.size
        assert size == 2 + 2 * len(TEAMS.part(team, 8))
        if team in (0, 3):
            payload, own = rehearse(method, data, {}, {}, 2.0, seeded_key(1), 1, site)
            assert (list(payload), own) == (["w12"], {})
    with pytest.raises(Refused, match="should hold"):
        check_message({"ask": np.array([4, 0], np.int32)}, method.expects(1, "h00"))


def test_a_federation_in_teams_runs_within_its_budget_and_in_few_bytes():
    study = Study(
        name="icu",
        outcome="died_in_hospital",
        seed=5,
        cohort={"name": "icu", "hospitals": 24, "patients": 6000},
        method={"name": "veil", "mode": "secure", "rounds": 6, "concepts": 30},
        privacy={"unit": "patient", "epsilon": 4.0},
    )
    result = conduct.run(study, threads=1)
    assert 3.9 < result.privacy["epsilon"] <= 4.0
    assert result.metrics["global"]["auc"] > 0.75
    assert np.count_nonzero(result.model["weights"]) <= 30
    assert "sums over at least 7 and at most 24 hospitals" in result.privacy["statement"]
    assert result.data["communication"]["bytes_up"] / 24 < 1100


def test_answers_of_a_group_are_opened_as_its_sum_only():
    method = Veil(plain(30), "secure", 6, concepts=9, teams=TEAMS)
    state = method.init(list(SIZES), np.random.default_rng(0))
    data = Patients(np.zeros((2, 30), np.float32), np.array([0, 1], np.int32), np.arange(3))
    sealed = {
        site: seal(
            rehearse(
                method, data, {}, method.broadcast(state, site), 5.0, seeded_key(3, site), 1, site
            )[0]
        )
        for site in SIZES
    }
    answers = opened(method, state, dict.fromkeys(SIZES, 2), sealed)
    assert [answer.site for answer in answers] == [f"sum {i} of 4" for i in (1, 2, 3, 4)]
    assert all(isinstance(answer, Answer) and list(answer.payload) == ["w12"] for answer in answers)
    assert sum(answer.patients for answer in answers) == 2 * 40


def test_masks_of_teams_do_not_mix_and_a_teams_dropout_is_reckoned_with():
    """One of team 1 is missing at the stage `mask`: the other teams' sums are untouched, and its
    own is that of the others."""
    masked = ProtectionSpec(sum="masked")
    method = Veil(plain(6), "secure", 6, concepts=3, parties=40, teams=TEAMS)
    state = method.init(list(SIZES), np.random.default_rng(0))
    rng, sealed = np.random.default_rng(4), {}
    for site, patients in SIZES.items():
        x = rng.uniform(-1, 1, (patients, 6)).astype(np.float32)
        y = (rng.random(patients) < 0.25).astype(np.int32)
        data = Patients(x, y, np.arange(patients + 1))
        asked = method.broadcast(state, site)
        sealed[site] = seal(
            rehearse(method, data, {}, asked, None, seeded_key(3, site), 1, site)[0]
        )
    groups = method.sums(1, tuple(SIZES))
    messages = {site: seal(method.broadcast(state, site)) for site in SIZES}
    gone = groups[1][2]
    stayed = {site: data for site, data in sealed.items() if site != gone}
    whole = opened(method, state, SIZES, sealed)
    found = gather(method, masked, SIZES, stayed, 1, messages, 1, groups).answers
    assert [answer.site for answer in found] == [f"sum {i} of 4" for i in (1, 2, 3, 4)]
    for i in (0, 2, 3):
        np.testing.assert_array_equal(found[i].payload["w12"], whole[i].payload["w12"])
        assert (found[i].patients, found[i].sites) == (whole[i].patients, len(groups[i]))
    lost = np.asarray(unpack_words(unseal(sealed[gone])["w12"], 12))
    difference = (np.asarray(whole[1].payload["w12"]) - found[1].payload["w12"] - lost) % 2**12
    assert not difference.any()
    assert (found[1].patients, found[1].sites) == (
        whole[1].patients - SIZES[gone],
        len(groups[1]) - 1,
    )
    # The base rate is that of the patients who are in the sums: a missing hospital does not count
    # as one without outcomes.
    rate = risk(method.server_step(state, found)["base"])[0]
    assert rate == pytest.approx(0.25, abs=0.01)


def test_a_sum_of_a_team_needs_the_noise_of_its_own_half():
    method = Veil(plain(6), "secure", 6, parties=40, teams=TEAMS)
    group = tuple(site for site, team in TEAMS.team.items() if team == 0)
    assert (len(group), method.honest_of(group), method.honest_of(group[:3])) == (10, 5, 5)
    check_sum(method, ProtectionSpec(sum="masked"), group)  # opened with most of them
    with pytest.raises(
        StudyError,
        match=r"3 of 3 sites .* noise of 10",
    ):
        check_sum(
            Veil(plain(6), "secure", 6, parties=40, honest=1.0, teams=TEAMS),
            ProtectionSpec(sum="masked"),
            group[:3],
        )


def test_an_audit_says_that_it_has_no_canary_for_votes_and_sums():
    from suture.attacks.audit_site import audit_study
    from suture.errors import StudyError

    study = Study(
        name="icu",
        outcome="died_in_hospital",
        cohort={"name": "icu", "hospitals": 3, "patients": 300},
        method={"name": "veil", "rounds": 6},
        privacy={"unit": "patient", "epsilon": 3.0},
    )
    with pytest.raises(StudyError, match="there is no canary"):
        audit_study(study, trials=10)


def test_with_folds_the_epsilon_of_the_last_round_is_the_folds():
    study = Study(
        name="icu",
        outcome="died_in_hospital",
        cohort={"name": "icu", "hospitals": 4, "patients": 400},
        method={"name": "veil", "mode": "secure", "rounds": 5, "concepts": 5},
        privacy={"unit": "patient", "epsilon": 3.0},
        evaluation={"folds": 2},
    )
    result = conduct.run(study, threads=1)
    assert result.history[-1]["epsilon"] == pytest.approx(result.privacy["epsilon"], rel=1e-6)


def test_only_the_last_choice_of_concepts_is_kept_at_a_site():
    rng = np.random.default_rng(8)
    x = np.sign(rng.normal(size=(20, 12))).astype(np.float32)
    data = Patients(x, rng.integers(0, 2, 20).astype(np.int32), np.arange(21))
    found = []
    for ids in ([0, 3], [1, 5], [0, 3], [0, 3]):
        model = secure.Model(
            0.1, np.ones(2, np.float32), np.array(ids, np.int32), np.zeros(2, np.int8)
        )
        values, weights = secure.contributions("step", data, x, model, np.arange(12), plain(12))
        found.append((weights @ values).tolist())
    assert found[0] == found[2] == found[3]
    assert found[0] != found[1]
    assert len(secure._CHOSEN.get(data, list)) == 1
