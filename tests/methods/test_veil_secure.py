"""VEIL's secure mode: who is asked what, what a sum can carry, what it costs, and what the server
makes of it."""

import dp_accounting
import numpy as np
import pytest

from suture.engine import conduct
from suture.engine.gather import check_sum, gather
from suture.errors import Refused, StudyError
from suture.methods.base import Answer
from suture.methods.veil import newton, secure
from suture.methods.veil.method import Veil
from suture.methods.veil.teams import Teams
from suture.models.concepts import plain
from suture.privacy.door import rehearse
from suture.privacy.noise.source import derive, seeded_key
from suture.privacy.unit import Patients
from suture.protection.envelope import seal, unseal
from suture.protection.secure_sum import BLUR, LEAST_SHARE, SecureSum, unpack_words
from suture.protection.terms import ProtectionSpec
from suture.schema.message import check_message
from suture.study import Study
from suture.training.contributions import risk, row_products

SIZES = {f"h{i:02d}": 40 * (i + 1) for i in range(40)}
TEAMS = Teams.of(SIZES, 4)


def test_teams_share_out_hospitals_patients_and_concepts():
    assert TEAMS.count == 5
    assert sum(TEAMS.parties((k,)) for k in TEAMS.all) == 40
    assert TEAMS.parties((0,)) == 5  # every eighth of 40 by size, from the fifth
    others = [TEAMS.patients((k,)) for k in (1, 2, 3, 4)]
    assert max(others) - min(others) < 0.02 * sum(others)
    parts = [TEAMS.part(i, 251) for i in range(4)]
    assert np.sort(np.concatenate(parts)).tolist() == list(range(251))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_no_team_is_one_large_hospital():
    """It would be hidden among nobody. The smallest of the others join it, which hardly moves
    patients."""
    sizes = {"large": 4244, **{f"h{i:03d}": 20 + 4 * i for i in range(121)}}
    teams = Teams.of(sizes, 12)
    assert teams.count == 13
    assert [teams.parties((k,)) >= 5 for k in teams.all] == [True] * 13
    with_it = [site for site, team in teams.team.items() if team == teams.team["large"]]
    assert sorted(sizes[site] for site in with_it)[-2] < 100
    assert sum(teams.parties((k,)) for k in teams.all) == 122


def test_few_hospitals_or_patients_are_one_team():
    assert Teams.of({"a": 10**6, "b": 10**6}, 8).count == 1
    assert Teams.of({f"h{i}": 8 for i in range(125)}, 8).count == 1
    assert Teams.of(SIZES, 1).count == 1
    assert Teams.of(SIZES, 1).asked("look") == Teams.of(SIZES, 1).asked("curvature") == ((0,),)


def test_other_sizes_are_another_method_to_a_fingerprint():
    changed = Teams.of({**SIZES, "h00": 41}, 4)
    assert repr(Veil(plain(3), "secure", 6, teams=changed)) != repr(
        Veil(plain(3), "secure", 6, teams=TEAMS)
    )


@pytest.mark.parametrize("teams", [TEAMS, Teams.of(SIZES, 1)])
@pytest.mark.parametrize("rounds", [4, 6, 11])
def test_every_hospital_pays_the_same_in_all(teams, rounds):
    """Team 0 pays with moments' and looks' shares for curvature; everybody's training costs rounds
    / (2 z^2)."""
    method = Veil(plain(30), "secure", rounds, concepts=9, teams=teams)
    state = method.init(list(SIZES), np.random.default_rng(0))
    spent = dict.fromkeys(SIZES, 0.0)
    for t in range(rounds):
        state["t"][0] = t
        asked = {site: method.broadcast(state, site) for site in SIZES}
        groups = method.sums(t + 1, tuple(SIZES))
        for site, message in asked.items():
            event = method.round_event(t + 1, site, 10, 3.0)
            resting = not message
            assert resting == (method.phase(t + 1, site) == "rest")
            check_message(message, method.expects(t + 1, site))
            assert (
                (event == dp_accounting.NoOpDpEvent())
                == resting
                == (not any(site in group for group in groups))
            )
            spent[site] += 0.0 if resting else event.noise_multiplier**-2
    assert list(spent.values()) == pytest.approx([rounds / 3.0**2] * 40)


@pytest.mark.parametrize("phase", ["moments", "look", "curvature", "step"])
def test_the_pieces_of_a_message_cost_what_the_phase_is_charged(phase):
    """Theorem 4 with every number: the honest half's noise less the rounding's, the sensitivity
    in steps."""
    method = Veil(plain(30), "secure", 6, concepts=9, teams=TEAMS)
    rho = method.phase_rho(phase, 20.0)
    found = method._layout(phase, 0, 9, -2.0, rho)
    parties = TEAMS.parties(TEAMS.asked(phase)[0])
    total = 0.0
    for piece in found.pieces:
        grid = piece.grid
        assert grid.honest == -(-parties // 2)
        assert grid.deviation >= LEAST_SHARE
        delta = grid.sensitivity * grid.steps
        total += delta**2 / (2 * (grid.honest * grid.deviation**2 - BLUR))
    assert total <= rho * (1 + 1e-9)
    assert total > 0.9 * rho or any(piece.grid.deviation == LEAST_SHARE for piece in found.pieces)


@pytest.mark.parametrize("phase", ["moments", "look", "curvature", "step"])
def test_every_vector_keeps_to_its_sensitivity(phase):
    """Random tables with several rows a patient, any centre, one patient removed: the exact
    statistics, before noise."""
    rng = np.random.default_rng(4)
    known = plain(12)
    method = Veil(known, "secure", 6, teams=Teams.of(SIZES, 2))
    ids = np.array([0, 3, 4, 7, 9, 11], np.int32)
    part = method.teams.part(1, 12)
    centre = rng.integers(-127, 128, len(part) if phase == "look" else len(ids)).astype(np.int8)
    for _ in range(60):
        counts = rng.integers(1, 4, 6)
        x = np.sign(rng.normal(size=(counts.sum(), 12))).astype(np.float32)
        whole = Patients(
            x, rng.integers(0, 2, counts.sum()).astype(np.int32), np.append(0, np.cumsum(counts))
        )
        rest = Patients(whole.x[counts[0] :], whole.y[counts[0] :], whole.starts[1:] - counts[0])
        model = secure.Model(0.5, np.array([3.0, -4.0, 2.0, 0, 1, -1], np.float32), ids, centre)
        for piece in method._layout(phase, 0, 6, 0.5, None).pieces:
            found = []
            for data in (whole, rest):
                values, weights = secure.contributions(
                    piece.name, phase, data, data.x, model, part, known
                )
                found.append(weights @ values)
            assert np.linalg.norm(found[0] - found[1]) <= piece.grid.sensitivity


def answer(found, parts, noise, key):
    """A hospital's share of a sum, as its door and method make it of exact parts."""
    words = [piece.grid.share(parts[piece.name], derive(key, piece.name)) for piece in found.pieces]
    return {found.name: secure.packed(found, [*words, secure.level_digits(found, noise)])}


def test_sums_wrap_and_come_back_near_the_forecast():
    method = Veil(plain(8), "secure", 6, concepts=2, teams=Teams.of(SIZES, 1))
    found = method._layout("step", 0, 2, -2.0, None)
    patients = sum(SIZES.values())
    rate = 1 / (1 + np.exp(2.0))
    far = secure.REACH * rate * (1 - rate) * patients * np.array([3.0, -0.7, 0.1])
    box = SecureSum(("a", "b"))
    for site, share in (("a", 0.3), ("b", 0.7)):
        box.add(
            site,
            answer(
                found, {"bias": share * far[:1], "gradient": share * far[1:]}, None, seeded_key(1)
            ),
        )
    words = box.total()[found.name]
    seen, _ = secure.opened(found, words, 2, near=0.9 * far)
    np.testing.assert_allclose(
        [*seen["bias"], *seen["gradient"]], far, atol=1.01 * found.pieces[0].grid.step
    )
    box = SecureSum(("a",))
    near = far * np.array(
        [0.3, 0.6, 4.0]
    )  # 0.9, -0.42 and 0.4 of what the bias and a concept may be off: within 1 and a half
    box.add("a", answer(found, {"bias": near[:1], "gradient": near[1:]}, None, seeded_key(1)))
    kept, _ = secure.opened(found, box.total()[found.name], 1)
    np.testing.assert_allclose(
        [*kept["bias"], *kept["gradient"]], near, atol=1.01 * found.pieces[0].grid.step
    )
    lost, _ = secure.opened(found, words, 2)
    assert abs(lost["bias"][0] - far[0]) > 1
    assert abs(lost["gradient"][0] - far[1]) > 1


@pytest.mark.parametrize("sites", [1, 9, 152])
def test_the_noise_level_arrives_whole(sites):
    """64 z of every hospital, added in digits that cannot overflow."""
    method = Veil(plain(3), "secure", 6, teams=Teams.of({f"h{i}": 50 for i in range(sites)}, 1))
    found = method._layout("moments", 0, 0, 0.0, 0.01)
    parts = {"positives": np.zeros(1), "means": np.zeros(3), "squares": np.zeros(3)}
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


def test_without_noise_steps_converge_to_the_logistic_regression_of_all_rows():
    from sklearn.linear_model import LogisticRegression

    x, y, rows = small_federation()
    sizes = {site: data.patients for site, data in rows.items()}
    method = Veil(plain(3), "secure", 14, concepts=3, teams=Teams.of(sizes, 8))
    state = trained(method, rows, None, 14)
    exact = LogisticRegression(C=1e6, tol=1e-8).fit(x, y)
    # What remains is the grid: a gradient is known to a few steps of 14 bits.
    np.testing.assert_allclose(state["weights"], exact.coef_[0], atol=0.02)
    assert state["bias"][0] == pytest.approx(exact.intercept_[0], abs=0.02)


def test_noise_of_a_large_budget_changes_little_and_the_server_knows_it():
    _, _, rows = small_federation()
    sizes = {site: data.patients for site, data in rows.items()}
    method = Veil(plain(3), "secure", 7, concepts=3, teams=Teams.of(sizes, 8))
    exact, noisy = trained(method, rows, None, 7), trained(method, rows, 0.5, 7)
    assert exact["noise"][0] == 0
    assert noisy["noise"][0] == 0.5
    np.testing.assert_allclose(noisy["weights"], exact["weights"], atol=0.15)


def test_a_further_concept_of_a_feature_counts_less():
    state = newton.start_state(4)
    newton.choose_concepts(state, np.array([10.0, 9.0, -7.0, 6.0]), ["a", "a", "b", "b"], 2)
    assert np.flatnonzero(state["chosen"]).tolist() == [0, 2]  # 9 x 0.7 < 7


def test_curvature_with_room_for_noise_gives_a_short_step():
    rng = np.random.default_rng(3)
    values = rng.normal(size=(400, 2)).astype(np.float32)
    state = newton.start_state(1)
    state["chosen"][0], state["gradient"] = 1, np.array([0.0, 30.0])
    newton.take_curvature(state, row_products(values).sum(axis=0), 1.0, 0.0, 400)
    matrix = values.T.astype(float) @ values / 4 + np.eye(2)
    step = 0.7 * np.linalg.solve(matrix, [0.0, 30.0])
    assert state["weights"][0] == pytest.approx(step[1], rel=1e-5)
    assert state["bias"][0] == pytest.approx(step[0], rel=1e-4)
    assert state["forecast"].tolist() == pytest.approx([0.0, 9.0])


def test_a_step_learns_curvature_from_the_gradient():
    """On a quadratic with one direction twice as curved as was thought, the second step along it is
    exact."""
    state = newton.start_state(1)
    state["chosen"][0] = 1
    state["curvature"], state["gradient"] = np.diag([1.0, 1.0]), np.array([0.0, 8.0])
    newton._move(state, np.array([0]), np.array([0.0, 2.0]))
    newton.take_gradient(state, np.array([0.0, 8.0 - 2 * 2.0]))
    assert state["weights"][0] == pytest.approx(4.0)  # the optimum of 8 w - w^2
    assert state["curvature"][1, 1] == pytest.approx(2.0)


def test_a_site_adds_to_the_sum_of_its_team_and_to_no_other():
    """Finding 11: no message can ask a site of a small team for a phase whose noise is planned for
    all of them."""
    method = Veil(plain(8), "secure", 6, teams=TEAMS)
    data = Patients(np.zeros((1, 8), np.float32), np.zeros(1, np.int32), np.array([0, 1]))
    asked = {"base": np.zeros(1, np.float32), "bias": np.zeros(1, np.float32)}
    for site, team in TEAMS.team.items():
        sizes = {
            piece.name: piece.grid.size
            for piece in method._layout("moments", max(team - 1, 0), 0, 0.0, None).pieces
        }
        assert method._sum("moments", site) == (team - 1 if team else None)
        assert method._sum("curvature", site) == (None if team else 0)
        assert method._sum("step", site) == 0
        assert (method.expects(1, site) == {}) == (team == 0)
        if team in (0, 3):
            payload, own = rehearse(
                method, data, {}, asked if team else {}, 2.0, seeded_key(1), 1, site
            )
            assert list(payload) == (["w10"] if team else [])
            assert own == {}
        assert sum(sizes.values()) == 1 + 2 * len(TEAMS.part(max(team - 1, 0), 8))
    with pytest.raises(Refused, match="should hold"):
        check_message({**asked, "ask": np.array([4, 0], np.int32)}, method.expects(1, "h00"))


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
    assert "sums over at least 5 and at most 24 hospitals" in result.privacy["statement"]
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
    assert all(isinstance(answer, Answer) and list(answer.payload) == ["w10"] for answer in answers)
    assert sum(answer.patients for answer in answers) == 2 * 35


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
        np.testing.assert_array_equal(found[i].payload["w10"], whole[i].payload["w10"])
        assert (found[i].patients, found[i].sites) == (whole[i].patients, len(groups[i]))
    lost = np.asarray(unpack_words(unseal(sealed[gone])["w10"], 10))
    difference = (np.asarray(whole[1].payload["w10"]) - found[1].payload["w10"] - lost) % 2**10
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
    assert (len(group), method.honest_of(group), method.honest_of(group[:3])) == (5, 3, 3)
    check_sum(method, ProtectionSpec(sum="masked"), group)  # opened with 4 of 5 or more
    with pytest.raises(
        StudyError,
        match=r"3 of 3 sites .* noise of 5",
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
    with pytest.raises(StudyError, match="veil sends votes or sums"):
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
        values, weights = secure.contributions(
            "gradient", "step", data, x, model, np.arange(12), plain(12)
        )
        found.append((weights @ values).tolist())
    assert found[0] == found[2] == found[3]
    assert found[0] != found[1]
    assert len(secure._CHOSEN.get(data, list)) == 1
