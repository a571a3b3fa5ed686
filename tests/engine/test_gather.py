"""From answers to what the server's step sees: masked sums change no model, robust rules hold,
rejections are recorded."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from suture.engine.conduct import run
from suture.engine.embedded import Embedded
from suture.engine.gather import check, gather, question
from suture.errors import RunError, StudyError
from suture.methods.fedavg import FedAvg
from suture.models.dense import Dense
from suture.network.masking import context
from suture.privacy.door import root_key
from suture.protection.envelope import seal
from suture.protection.terms import ProtectionSpec
from suture.site import hospital
from suture.study import Study
from suture.training.local import Local

METHOD = FedAvg(Dense((1, 1)), Local())
SIZES = {"a": 100, "b": 300, "c": 200, "d": 200, "e": 200}
PLAN = {
    "study": "a digest, of every setting of the method too",
    "seed": 1,
    "fold": 0,
    "method": "fedavg",
}
OTHER = {"study": "another", "seed": 2, "fold": 1, "method": "fedprox"}
MASKED, PLAIN = ProtectionSpec(sum="masked"), ProtectionSpec()


def answers(**updates):
    return {
        site: seal({"delta": np.asarray(values, np.float32)}) for site, values in updates.items()
    }


def gathered(protection, sealed, method=METHOD):
    return gather(method, protection, SIZES, sealed, 1, dict.fromkeys(SIZES, b"the same question"))


FIVE = answers(a=[1, 0], b=[2, 0], c=[0, 5], d=[0, -5], e=[0, 1])


def test_a_masked_mean_is_the_weighted_mean():
    """(100 x 1 + 300 x 2) / 1000 and 200 x (5 - 5 + 1) / 1000, to the stated error."""
    found = gathered(MASKED, FIVE)
    (answer,) = found.answers
    assert (answer.site, answer.patients) == ("sum of all sites", 1000)
    assert found.error == pytest.approx(2.5 * 100 / 2**31, rel=1e-6)
    assert np.all(np.abs(answer.payload["delta"] - [0.7, 0.2]) <= found.error)
    assert found.shortened == 0
    assert found.up > sum(map(len, FIVE.values()))


def test_a_site_that_drops_out_leaves_the_mean_of_the_others():
    sealed = {site: data for site, data in FIVE.items() if site != "b"}
    found = gathered(MASKED, sealed)
    assert found.answers[0].patients == 700
    assert np.all(np.abs(found.answers[0].payload["delta"] - [1 / 7, 2 / 7]) <= found.error)
    del sealed["c"]
    with pytest.raises(
        RunError,
        match="the threshold is 4; nothing was opened",
    ):
        gathered(MASKED, sealed)


def test_a_norm_bound_shortens_under_masks_and_without():
    bound = ProtectionSpec(norm_bound=2.0)
    found = gathered(bound, FIVE)
    assert [answer.payload["delta"].tolist() for answer in found.answers][2:4] == [
        [0.0, 2.0],
        [0.0, -2.0],
    ]
    assert found.shortened == 2
    masked = gathered(ProtectionSpec(sum="masked", norm_bound=2.0), FIVE)
    assert masked.shortened == 2
    assert np.all(np.abs(masked.answers[0].payload["delta"] - [0.7, 0.2]) <= masked.error)


@pytest.mark.parametrize(
    ("protection", "expected"),
    [
        ({"aggregation": "median"}, [0.0, 0.0]),
        ({"aggregation": "trimmed-mean"}, [1 / 3, 1 / 3]),
        ({"aggregation": "krum"}, [1.0, 0.0]),
        ({"aggregation": "krum", "keep": 2}, [1.5, 0.0]),
    ],
)
def test_robust_rules_by_hand(protection, expected):
    """Krum, two nearest of five: (1,0): 1 + 2; (2,0): 1 + 5; (0,5): 16 + 26; (0,-5): 26 + 29;
    (0,1): 2 + 5."""
    (answer,) = gathered(ProtectionSpec(**protection), FIVE).answers
    assert answer.payload["delta"].tolist() == pytest.approx(expected)
    assert answer.patients == 1000


def test_updates_that_cannot_be_used_are_rejected_and_the_others_count():
    sealed = {**FIVE, "e": answers(e=[np.nan, 0])["e"], "stranger": FIVE["a"]}
    found = gathered(ProtectionSpec(aggregation="median"), sealed)
    assert found.rejected == {"stranger": "the site was not asked", "e": "the update is not finite"}
    assert found.answers[0].payload["delta"].tolist() == [0.5, 0.0]
    with pytest.raises(RunError, match="no site's answer can be used"):
        gathered(PLAIN, {})


def test_sites_must_have_been_asked_the_same():
    with pytest.raises(RunError, match="one message for all sites"):
        question(METHOD, {"a": b"1", "b": b"2"})


def test_whatever_decides_what_a_site_adds_is_part_of_the_question():
    """Other sizes or another norm bound for all sites but one would make the sum that site's
    update."""
    same = {"a": b"1", "b": b"1"}
    tiny = ProtectionSpec(sum="masked", norm_bound=1e-9)
    digests = {
        question(METHOD, same, *context(MASKED, SIZES, 1, PLAN)),
        question(METHOD, same, *context(tiny, SIZES, 1, PLAN)),
        question(METHOD, same, *context(MASKED, {**SIZES, "a": 300, "b": 100}, 1, PLAN)),
        question(METHOD, same, *context(MASKED, SIZES, 2, PLAN)),
        *(
            question(METHOD, same, *context(MASKED, SIZES, 1, {**PLAN, name: other}))
            for name, other in OTHER.items()
        ),
        question(METHOD, {"a": b"2", "b": b"2"}, *context(MASKED, SIZES, 1, PLAN)),
        question(SimpleNamespace(name="fedprox"), same, *context(MASKED, SIZES, 1, PLAN)),
    }
    assert len(digests) == 10
    again = question(METHOD, same, *context(ProtectionSpec(sum="masked"), dict(SIZES), 1, PLAN))
    assert again in digests


def test_masks_and_robust_rules_exclude_each_other():
    with pytest.raises(StudyError, match=r"exclude each other: .* norm_bound"):
        Study(
            name="s",
            outcome="y",
            cohort="cardio",
            protection={"sum": "masked", "aggregation": "median"},
        )


@pytest.mark.parametrize(
    ("name", "protection", "sites", "why"),
    [
        ("scaffold", {"sum": "masked"}, 5, "needs each of them"),
        ("fedavg", {"sum": "masked"}, 2, "at least 3 sites in a sum, found 2"),
        ("veil", {"sum": "masked"}, 5, "needs each of them"),
        (
            "scaffold",
            {"aggregation": "median"},
            5,
            "serve methods that average updates; scaffold does not",
        ),
        (
            "fedavg",
            {"aggregation": "krum", "wrong": 2},
            5,
            'with 5 sites in a round "krum" covers 1 hostile ones at most',
        ),
        ("fedavg", {"aggregation": "trimmed-mean", "wrong": 3}, 5, "covers 2 hostile"),
        ("fedavg", {"aggregation": "krum", "keep": 5}, 5, "cannot keep 5"),
    ],
)
def test_what_cannot_be_is_refused(name, protection, sites, why):
    from suture.methods.registry import MethodSpec, build

    method = build(name, MethodSpec(), Dense((2, 2, 1)), Local())
    with pytest.raises(StudyError, match=why):
        check(method, ProtectionSpec(**protection), sites)


def test_a_sum_of_fewer_than_the_honest_sites_is_never_opened():
    from suture.methods.declared import Public
    from suture.methods.registry import MethodSpec, build

    spec = MethodSpec(name="veil", mode="secure", honest=0.9)
    method = build("veil", spec, Dense((2, 1)), Local(), Public(sites=20))
    with pytest.raises(
        StudyError,
        match=r"14 of 20 sites .* noise of 18",
    ):
        check(method, MASKED, 20)
    with pytest.raises(StudyError, match="18 of 20 sites would be opened"):
        check(method, ProtectionSpec(sum="masked", threshold=0.89), 20)
    check(method, ProtectionSpec(sum="masked", threshold=0.94), 20)
    check(method, ProtectionSpec(sum="masked", threshold=0.89, colluders=0), 20)


def study(name, **changes):
    small = {
        "cohort": {"name": "cardio", "split": "iid", "sites": 5, "patients": 400},
        "model": {"hidden": [4]},
        "method": {
            "name": name,
            **(
                {"rounds": 4, "mode": "secure"}
                if name == "veil"
                else {"rounds": 3, "local_epochs": 1}
            ),
        },
        "privacy": {"unit": "patient", "noise_multiplier": 2.0, "accountant": "rdp"},
    }
    return Study(name="s", outcome="high_risk", **small).replace(**changes)


@pytest.fixture
def same_keys(monkeypatch):
    """Under masks a site's noise is other noise (the sum's terms are in its key) and there is more
    of it (spare rounds); here it is held the same, so that what masks themselves do to a model
    shows."""

    def key(secret, context, *rest):
        return root_key(secret, replace(context, plan="", session=b""), *rest)

    monkeypatch.setattr(hospital, "root_key", key)


@pytest.mark.parametrize("name", ["fedavg", "fedadam", "ifedavg", "apfl", "ditto", "finetune"])
def test_masks_do_not_change_a_model_beyond_rounding(name, same_keys):
    """One round with and without masks: an entry of the mean moves by at most 1.2e-7, plus a
    float32's last digit. (After it the models differ, and with them what is asked and hence the
    noise.) Adam's step at the server is sharper."""
    one = {"rounds": 2 if name == "finetune" else 1}
    plain, masked = (
        run(study(name, method=one)),
        run(study(name, method=one, protection={"sum": "masked"})),
    )
    for key, array in plain.model.items():
        if array.dtype.kind == "f":
            assert np.max(np.abs(array - masked.model[key])) < (
                2e-5 if name == "fedadam" else 3e-7
            ), key
    notes = masked.data["methods"][name]["protection"]
    assert notes["sum"] == "masked"
    assert notes["error"] == pytest.approx(2.5 * 100 / 2**31, rel=1e-6)
    assert notes["rejected"] == {}
    assert plain.data["methods"][name]["protection"] is None


def test_masks_change_nothing_in_veil(same_keys):
    """Words are whole numbers already: the very same model, at a higher price in bytes."""
    plain, masked = run(study("veil")), run(study("veil", protection={"sum": "masked"}))
    for key, array in plain.model.items():
        np.testing.assert_array_equal(array, masked.model[key])


def test_references_are_left_alone():
    asked = study(
        "fedavg",
        protection={"sum": "masked", "word": 64},
        evaluation={"compare": ["alone", "pooled"]},
    )
    assert set(run(asked).data["methods"]) == {"fedavg", "alone", "pooled"}
    assert Study.from_text(asked.to_toml()) == asked


class Unmasking(Embedded):
    """An engine that is elsewhere and whose sites do not mask."""

    name = "elsewhere"

    def ask(self, *_):
        pytest.fail("answers were asked for without masks")


def test_masks_are_not_promised_where_the_coordinator_sees_the_answers():
    asked = study("fedavg", protection={"sum": "masked"})
    with pytest.raises(StudyError, match="would see the answers before they are masked"):
        run(asked, engine=Unmasking(1))


def test_a_study_with_a_robust_rule_runs():
    result = run(study("fedadam", protection={"aggregation": "trimmed-mean", "norm_bound": 0.01}))
    notes = result.data["methods"]["fedadam"]["protection"]
    assert notes["aggregation"] == "trimmed-mean"
    assert notes["shortened"] > 0


def test_a_method_that_needs_every_answer_is_refused_before_rows_are_read(tmp_path):
    with pytest.raises(StudyError, match="fedcluster needs each of"):
        run(
            study("fedavg", protection={"sum": "masked"}, evaluation={"compare": ["fedcluster"]}),
            out=tmp_path / "run",
        )
    assert not (tmp_path / "run").exists()


def test_a_mean_goes_on_without_a_rejected_answer_only_where_the_study_allows_it():
    from suture.engine.gather import Gathered
    from suture.engine.round import Training, _note

    found = Gathered([], rejected={"a": "the update is not finite"})
    with pytest.raises(
        RunError,
        match=r"round 3: 1 .*rejected .*not finite.*5 are needed",
    ):
        _note(Training({}), found, 3, PLAIN, 5, 5)
    training = Training({})
    for round_ in (3, 4):
        _note(training, found, round_, PLAIN, 5, 4)
    assert training.protection["rejected"] == {
        "a": {"rounds": 2, "why": "the update is not finite"}
    }
