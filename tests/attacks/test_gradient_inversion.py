"""The attacks on our own messages: exact without protection, chance with it, and within the bound
of DP."""

import json

import numpy as np
import pytest

from suture.attacks import page as attacks_page
from suture.attacks.gradient_inversion import generated, gradient_inversion, pneumonia
from suture.attacks.membership import membership
from suture.errors import StudyError
from suture.study import Study


@pytest.fixture(scope="module")
def inverted(tmp_path_factory):
    study = Study.from_toml("examples/demo.toml")
    study = study.replace(
        method={"name": "fedadam", "rounds": 40, "local_epochs": 2}, evaluation={"compare": []}
    )
    file = tmp_path_factory.mktemp("attacked") / "study.toml"
    file.write_text(study.to_toml())
    return gradient_inversion(epsilons=[100.0, 8.0, 1.0], quick=True, study=file)


@pytest.fixture(scope="module")
def attacked():
    return membership(runs=600, epsilons=[8.0, 1.0, 0.5], threads=1)


def by_level(subject):
    return {row["level"]: row for row in subject["levels"]}


def test_unprotected_records_come_back_exactly(inverted):
    for subject in inverted["subjects"]:
        row = by_level(subject)["none"]
        assert row["exact_records"] == row["records"] == 12
        assert row["max_abs_error"] < 1e-5


def test_protected_records_do_not(inverted):
    for subject in inverted["subjects"]:
        for level, row in by_level(subject).items():
            if level in ("8", "1") or level.startswith("study"):
                assert row["exact_records"] == 0
                assert row["rms_error"] > subject["chance"]["mean"]
                assert row["line_up_low"] <= subject["chance"]["line_up"]


def test_the_best_guess_learns_less_as_epsilon_falls(inverted):
    for subject in inverted["subjects"]:
        rows = by_level(subject)
        assert rows["1"]["best_guess_rms"] == pytest.approx(subject["chance"]["mean"], rel=0.05)
        assert rows["100"]["best_line_up_hits"] > 5 * subject["chance"]["line_up"]
        assert rows["1"]["best_line_up_low"] <= rows["1"]["best_line_up_bound"]


def test_the_studys_own_noise_is_attacked(inverted):
    row = inverted["subjects"][0]["levels"][-1]
    assert row["level"] == "study 'cardio-demo'"
    assert row["noise_multiplier"] == pytest.approx(1.1)


def test_small_batches(inverted):
    for subject in inverted["subjects"]:
        two = subject["batches"][0]
        assert two["records"] == two["exact_records"] == 2
        assert two["max_abs_error"] < 1e-4


def test_membership_stays_within_the_bound(attacked):
    none, *rest = attacked["levels"]
    assert none["adversaries"]["update"]["advantage"] == 1.0
    assert none["adversaries"]["model"]["advantage"] > 0.98
    for level in rest:
        for found in level["adversaries"].values():
            assert found["within_bound"]
            assert found["advantage_high"] <= level["advantage_bound"]
            assert found["strict_tpr_low"] <= level["tpr_bound"]
    assert (
        rest[0]["adversaries"]["update"]["advantage_low"] > 0.15
    )  # at epsilon 8 the attack still works


@pytest.mark.parametrize("name", ["inverted", "attacked"])
def test_page_and_figures(name, request, tmp_path):
    found = request.getfixturevalue(name)
    files = attacks_page.write(found, tmp_path)
    assert files[0] == "attack.html"
    for file in files[1:]:
        assert (tmp_path / file).read_bytes()[:4] == b"\x89PNG"
    page = (tmp_path / "attack.html").read_text(encoding="utf-8")
    assert "default-src &#39;none&#39;" in page  # escaped in an attribute
    assert all(f'data-figure="{file.removesuffix(".png")}"' in page for file in files[1:])
    attacks_page.print_attack(found)


def test_a_name_cannot_become_a_script(attacked):
    hostile = {**attacked, "target": "<script>alert(1)</script>"}
    assert "<script>alert(1)" not in attacks_page.render(hostile)


def test_refusals():
    with pytest.raises(StudyError, match="targets"):
        gradient_inversion(targets=1)
    with pytest.raises(StudyError, match="10, 15, 20"):
        membership(patients=12)


def test_generated_images_are_seeded_and_on_the_grid():
    x, y = generated(5, np.random.default_rng(2))
    again, _ = generated(5, np.random.default_rng(2))
    np.testing.assert_array_equal(x, again)
    np.testing.assert_allclose(x * 255, np.round(x * 255), atol=1e-4)
    assert set(y.tolist()) <= {0, 1}


def test_pneumonia_where_present(monkeypatch, tmp_path):
    found = pneumonia(4, np.random.default_rng(0))
    if found is None:
        pytest.skip(
            "PneumoniaMNIST is not present; set SUTURE_DATA to the folder that holds "
            "pneumoniamnist/"
        )
    assert found[0].shape == (4, 784)
    monkeypatch.setenv("SUTURE_DATA", str(tmp_path))
    assert pneumonia(4, np.random.default_rng(0)) is None


def test_command_line(suture_command, tmp_path):
    done = suture_command(
        "attack",
        "membership",
        "--quick",
        "--epsilons",
        "1",
        "--runs",
        80,
        "--out",
        tmp_path / "m",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [level["epsilon"] for level in found["levels"]] == [None, 1.0]
    assert (tmp_path / "m" / "attack.html").exists()
    wrong = suture_command(
        "attack", "gradient-inversion", "--epsilons", "0,x", "--out", tmp_path / "g"
    )
    assert wrong.returncode == 2
    assert "expected numbers above 0" in wrong.stderr
