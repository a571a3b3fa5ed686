"""People of several hospitals: the count is noisy, paid for by every site, and told in the
statement; linked, each person is trained on once."""

import json

import pytest
from support.ready import sign_all

from suture.cohorts.starter import write_starter
from suture.engine.conduct import run
from suture.errors import BudgetExhausted, CharterError, StudyError
from suture.privacy.ledger.ledger import Ledger
from suture.releases.overlap import overlap
from suture.study import Study

SHARED = 40


@pytest.fixture
def study(tmp_path):
    """Five hospitals of files, of which the first two share 40 people."""
    write_starter(tmp_path, files=True, patients=600)
    asked = Study.from_toml(tmp_path / "study.toml").replace(
        model={"hidden": [4]},
        method={"name": "fedavg", "rounds": 2},
        privacy={"epsilon": 8.0, "noise_multiplier": 12.0, "accountant": "rdp"},
        protection={"sum": "trusted"},
    )
    lifetime = {"epsilon": 100.0, "delta": 1e-3, "accountant": "rdp"}
    asked = asked.replace(
        sites=[{**site, "lifetime": lifetime} for site in asked.to_dict()["sites"]]
    )
    (tmp_path / "study.toml").write_text(asked.to_toml())
    rows = {}
    for site in asked.sites:
        path = tmp_path / site.data.path
        lines = path.read_text().splitlines()
        at = lines[0].split(",").index(asked.table.patient)
        cells = [line.split(",") for line in lines[1:]]
        names = {
            name: f"{site.name}-{i}" for i, name in enumerate(dict.fromkeys(c[at] for c in cells))
        }
        if len(rows) < 2:
            names = {
                k: f"both-{v.split('-')[-1]}" if int(v.split("-")[-1]) < SHARED else v
                for k, v in names.items()
            }
        for cell in cells:
            cell[at] = names[cell[at]]
        path.write_text("\n".join([lines[0], *(",".join(c) for c in cells)]) + "\n")
        rows[site.name] = set(names.values())
    return asked, rows


def test_every_site_pays_and_the_answer_is_one(study, tmp_path):
    asked, rows = study
    found = overlap(asked, tmp_path, epsilon=20.0)
    assert found["sensitivity"] == 1
    assert abs(found["people"] - SHARED) <= 6 * found["noise_sd"] + 1  # but for 1 case in 10^8
    again = overlap(asked, tmp_path, epsilon=20.0)
    assert again["people"] == found["people"]
    for site in rows:
        ledger = Ledger.read(tmp_path / ".suture" / site / "ledger.sqlite")
        charges = [entry for entry in ledger.rows() if entry.is_charge]
        assert [(entry.study, entry.what) for entry in charges] == [
            (f"{asked.name}/overlap", "overlap")
        ]
        assert ledger.spent(f"{asked.name}/overlap") <= 20.0
        ledger.close()


def test_what_a_site_cannot_pay_for_is_not_counted(study, tmp_path):
    asked, _ = study
    with pytest.raises(BudgetExhausted):
        overlap(asked, tmp_path, epsilon=101.0)
    with pytest.raises(StudyError, match="above 0"):
        overlap(asked, tmp_path, epsilon=0.0)


def test_the_statement_says_what_a_person_of_several_hospitals_is_promised(study, tmp_path):
    asked, rows = study
    plain = run(asked, base=tmp_path)
    words = plain.data["privacy"]["statement"]
    assert "promised the sum of those k epsilons" in words
    assert "Nobody has counted" in words
    found = overlap(asked, tmp_path, epsilon=20.0)
    told = run(asked.replace(name="second"), base=tmp_path).data["privacy"]["statement"]
    assert "Nobody has counted" in told  # a count is of one study's cohort
    linked = asked.replace(name="linked", link_people=True)
    overlap(linked, tmp_path, epsilon=20.0)
    result = run(linked, base=tmp_path)
    words = result.data["privacy"]["statement"]
    assert "takes part at one of them" in words
    assert "people do, by a noisy count" in words
    assert found["people"] > 0
    people = len(set().union(*rows.values()))
    noted = 0
    for site in rows:
        ledger = Ledger.read(tmp_path / ".suture" / site / "ledger.sqlite")
        notes = [json.loads(e.event) for e in ledger.notes("consent", "linked")]
        noted += sum(note["people who take part elsewhere"] for note in notes)
        ledger.close()
    assert noted == sum(map(len, rows.values())) - people == SHARED


def test_people_are_linked_on_one_machine_only(study, tmp_path):
    asked, _ = study
    sites = asked.to_dict()["sites"]
    del sites[0]["data"]
    with pytest.raises(StudyError, match="link_people"):
        asked.replace(sites=sites, link_people=True)
    assert asked.digest != asked.replace(link_people=True).digest


def test_the_command(suture_command, study, tmp_path):
    sign_all(study[0], tmp_path)
    done = suture_command("overlap", "study.toml", "--epsilon", "5", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "people (" in done.stdout
    assert "promised the sum" in done.stdout
    assert "keyed hashes" in done.stdout
    wrong = suture_command("overlap", "study.toml", "--epsilon", "-1", "--json", cwd=tmp_path)
    assert wrong.returncode == StudyError.exit_code


def test_a_charter_that_asks_for_masks_lets_no_count_leave(study, tmp_path):
    from suture.engine.federation import request
    from suture.privacy.charter import Charter, Signed
    from suture.privacy.signing import new_keys, read_private

    asked, _ = study
    site = asked.sites[0].name
    wanted = request(asked, asked.table, site)
    charter = Charter(
        study=asked.name, plan=asked.digest, protocol="1", expires="2999-01-01", outcome=asked.outcome,
        features=wanted.features, groups=wanted.groups, cohort=wanted.cohort,
        regions=tuple(set(wanted.regions.values())), sites=tuple(wanted.regions), minimum_sites=2,
        epsilon=50.0, delta=0.1, require_masked=True,
    )  # fmt: skip
    home = tmp_path / ".suture" / site
    home.mkdir(parents=True)
    new_keys(tmp_path / "b.key", home / "trust.pub")
    signed = Signed(charter).signed_by(read_private(tmp_path / "b.key"))
    (home / "charter.toml").write_text(signed.to_toml())
    with pytest.raises(CharterError, match="only sums under masks"):
        overlap(asked, tmp_path, epsilon=1.0)
