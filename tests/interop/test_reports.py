"""Reports: of a run with and without privacy, before training, at one site; what is charged,
refused and drawn."""

import json

import numpy as np
import pytest

from suture.engine import conduct, federation
from suture.errors import BudgetExhausted, PrivacyError, RunError, StudyError
from suture.interop import before_training
from suture.interop.before_training import check
from suture.interop.report import of_run, render, write_report
from suture.privacy.ledger.ledger import Ledger
from suture.site.sources import ConsentSpec
from suture.study import LifetimeSpec, Study


def study(**changes):
    fields = {
        "name": "shifts",
        "outcome": "outcome",
        "seed": 3,
        "cohort": {"name": "outbreak", "faults": "none", "flip": "Kalihun"},
        "model": {"hidden": [32, 16], "activation": "tanh", "dropout": 0.2, "scaling": "site"},
        "method": {"name": "ifedavg", "rounds": 40, "local_epochs": 1, "batch": 8, "rate": 0.01, "momentum": 0.5,
                   "class_weights": "balanced", "output_layer": "scalar", "share_layers": True},
        "evaluation": {"holdout": 0.1},
    }  # fmt: skip
    return Study(**{**fields, **changes})


@pytest.fixture(scope="module")
def result():
    return conduct.run(study(), threads=1)


def test_a_run_says_who_turned_the_outcome_round(result, tmp_path):
    found = of_run(result.data, result.model)
    assert [(item["site"], item["kind"]) for item in found["findings"]] == [
        ("Kalihun", "outcome turned round")
    ]
    scales = dict(
        zip(found["sites"], (min(v) for v in found["layers"]["w_out"]["values"]), strict=True)
    )
    assert scales.pop("Kalihun") < 0 < min(scales.values())
    written = write_report(found, tmp_path)
    assert [name.rsplit("/", 1)[1] for name in written] == [
        "interop.html", "interop.json", "interop-heat-b-in.png", "interop-heat-w-in.png", "interop-heat-b-out.png",
        "interop-heat-w-out.png",
    ]  # fmt: skip
    assert json.loads((tmp_path / "interop.json").read_text())["findings"] == found["findings"]
    page = (tmp_path / "interop.html").read_text()
    assert "Ask: What does 1 stand for" in page
    assert "https://" not in page.split("<main>")[1].split("</main>")[0]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2934384, 10231938, 8273, 2019231, 62739])
def test_f_out_alone_finds_the_turned_outcome_in_every_seed_of_the_paper(seed):
    run = conduct.run(study(seed=seed))
    silent = {key: value for key, value in run.data.items() if key != "profiles"}
    found = of_run(silent, run.model)["findings"]
    assert [(item["site"], item["kind"]) for item in found] == [("Kalihun", "outcome turned round")]


def test_pseudonyms_hide_every_name(result):
    found = of_run(result.data, result.model, pseudonyms=True)
    text = json.dumps(found)
    assert not any(site in text for site in result.data["cohort"]["sites"] if site != "Bo")
    assert sorted(found["sites"]) == found["sites"] == [f"hospital {i:02d}" for i in range(1, 13)]
    named = {item["site"] for item in found["findings"]}
    row = found["sites"].index(named.pop())
    assert found["layers"]["w_out"]["values"][row][0] < 0


def test_a_run_that_shows_nothing_is_refused(result):
    with pytest.raises(RunError, match="share_layers"):
        of_run({**result.data, "method": "fedavg"}, result.model)
    with pytest.raises(RunError, match="share_layers"):
        of_run(result.data, {"shared": np.zeros(3)})


def test_under_privacy_the_layers_are_the_only_evidence_and_cost_nothing_more():
    private = {"unit": "patient", "epsilon": 4.0, "accountant": "rdp"}
    shown, hidden = (
        conduct.run(
            study(
                privacy=private,
                model={"hidden": [16]},
                method={"name": "ifedavg", "rounds": 3, "local_epochs": 1, "share_layers": share},
            ),
            threads=1,
        )
        for share in (True, False)
    )
    assert shown.privacy["sites"] == hidden.privacy["sites"]
    assert "profiles" not in shown.data
    assert "layers" not in hidden.model
    found = of_run(shown.data, shown.model)
    assert found["findings"] == []
    assert any("noise" in notice for notice in found["notices"])
    said = "showing the layers cost nothing more"
    assert [said in run.privacy["statement"] for run in (shown, hidden)] == [True, False]


def test_fitted_settings_are_refused_under_privacy():
    private = {"unit": "patient", "epsilon": 4.0}
    with pytest.raises(StudyError, match="no budget pays for"):
        study(privacy=private, model={"scaling": "site"})
    with pytest.raises(StudyError, match="no budget pays for"):
        study(privacy=private, method={"class_weights": "balanced"})


def files(folder):
    """Three sites as files, the third with ages in months; real files keep ledgers at home."""
    rng = np.random.default_rng(1)
    names = []
    for i in range(4):
        lines = ["id,age,ill"]
        for n in range(400):
            age = rng.normal(45, 12)
            lines.append(
                f"{i}-{n},{age * (12 if i == 2 else 1):.1f},{int(age + rng.normal(0, 10) > 50)}"
            )
        (folder / f"s{i}.csv").write_text("\n".join(lines))
        names.append({"name": f"s{i}", "data": f"s{i}.csv", "patients": 300})
    return Study(
        name="before",
        outcome="ill",
        sites=names,
        schema={
            "patient": "id",
            "features": {"age": {"kind": "number", "low": 0, "high": 100, "unit": "years"}},
        },
        privacy={"unit": "patient", "epsilon": 1.0},
    )


def test_before_training_a_private_profile_is_charged_once(tmp_path):
    wanted = files(tmp_path)
    with pytest.raises(PrivacyError, match="--epsilon"):
        check(wanted, tmp_path)
    found = check(wanted, tmp_path, epsilon=2.0)
    # Noise is new in every test: the planted fault leads, whatever the weaker sites' ties say.
    first = found["findings"][0]
    assert (first["site"], first["feature"], first["direction"]) == ("s2", "age", "higher")
    assert check(wanted, tmp_path, epsilon=2.0)["findings"] == found["findings"]
    ledger = Ledger.open(tmp_path / ".suture" / "s2" / "ledger.sqlite", "s2")
    assert 0 < ledger.spent("before/interop") <= 2.0
    assert ledger.rounds_charged("before/interop") == 1
    ledger.close()


def test_who_did_not_consent_is_not_in_a_profile(tmp_path):
    wanted = files(tmp_path)
    (tmp_path / "consent.csv").write_text("id\n" + "\n".join(f"0-{n}" for n in range(100)) + "\n")
    first = wanted.sites[0].model_copy(
        update={"consent": ConsentSpec(path="consent.csv", patient="id")}
    )
    wanted = wanted.model_copy(update={"sites": (first, *wanted.sites[1:])})
    here = federation.survey(wanted, tmp_path, 1)
    taken = {
        place.name: before_training._profile(wanted, here, place).patients.sum()
        for place in here.places
    }
    assert taken == {"s0": 100, "s1": 400, "s2": 400, "s3": 400}


def test_a_profile_counts_against_the_lifetime_budget(tmp_path):
    wanted = files(tmp_path)
    first = wanted.sites[0].model_copy(update={"lifetime": LifetimeSpec(epsilon=1.0)})
    wanted = wanted.model_copy(update={"sites": (first, *wanted.sites[1:])})
    with pytest.raises(BudgetExhausted):
        check(wanted, tmp_path, epsilon=2.0)


def test_one_site_sees_its_own_faults_for_free(tmp_path):
    wanted = files(tmp_path)
    found = check(wanted, tmp_path, site="s2")
    assert [(item["kind"], item["direction"]) for item in found["findings"]] == [
        ("outside the bounds", "higher")
    ]
    assert check(wanted, tmp_path, site="s0")["findings"] == []
    with pytest.raises(StudyError, match="no site 'x'"):
        check(wanted, tmp_path, site="x")


def test_a_page_of_600_features_and_50_sites_is_made():
    rng = np.random.default_rng(1)
    values = rng.normal(size=(50, 600))
    layer = {
        "columns": [f"feature {j}" for j in range(600)],
        "values": values.tolist(),
        "circles": (np.abs(values) > 3).astype(int).tolist(),
        "crosses": [0] * 600,
    }
    found = {
        "name": "<script>alert(1)</script>", "sites": [f"site {i}" for i in range(50)], "layers": {"b_in": layer},
        "findings": [], "notices": [], "headline": "x", "banner": "", "method": [], "tolerance": {}, "nothing": "none",
        "command": "suture interop",
    }  # fmt: skip
    page = render(found)
    assert "<script>alert" not in page
    assert len(page) < 2_000_000


def test_the_command_line_checks_one_site(suture_command, tmp_path):
    wanted = files(tmp_path)
    (tmp_path / "study.toml").write_text(wanted.to_toml())
    found = suture_command(
        "interop", "--before", "study.toml", "--site", "s2", "--out", "x", "--json", cwd=tmp_path
    )
    assert found.returncode == 0, found.stderr
    answer = json.loads(found.stdout)
    assert [item["kind"] for item in answer["findings"]] == ["outside the bounds"]
    assert (tmp_path / "x" / "interop.html").exists()
    refused = suture_command("interop", "--epsilon", "1", "run", cwd=tmp_path)
    assert refused.returncode == StudyError.exit_code
    assert "belong to --before" in refused.stderr
