"""`suture check` and `suture run --unchecked`, as people at a site and a coordinator use them."""

import json
import stat

import pytest
from typer.testing import CliRunner

from suture.cli.main import app
from suture.errors import NotReady, StudyError
from suture.network.settings import SiteSettings
from suture.report.console import Console, print_check
from suture.site.gate import LEDGER

pytestmark = pytest.mark.nobody_signs

STUDY = """
[study]
name = "ward"
outcome = "died"
[[site]]
name = "north"
{data}
patients = 320
[schema]
patient = "id"
[schema.features]
age = {{ kind = "number", low = 18, high = {high}, unit = "years" }}
smoker = {{ kind = "flag" }}
[model]
hidden = []
[method]
name = "fedavg"
rounds = 2
[privacy]
unit = "patient"
epsilon = 8.0
"""


def write(folder, high=105, data='data = "north.csv"'):
    """A geriatric clinic: everybody is 65 or older."""
    rows = [f"p{i},{65 + i * 7 % 33},{i % 2},{int(i % 7 < 3)}" for i in range(400)]
    (folder / "north.csv").write_text("\n".join(["id,age,smoker,died", *rows]) + "\n")
    (folder / "study.toml").write_text(STUDY.format(high=high, data=data))
    return folder / "study.toml"


def suture(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def raised(*words):
    return suture(*words).exception


def test_a_clean_table_is_signed_and_the_run_says_by_whom(tmp_path):
    study = write(tmp_path)
    looked = suture("check", study)
    assert looked.exit_code == 0, looked.output
    assert looked.output.endswith(f"next: suture check {study} --sign NAME\n")
    signed = suture("check", study, "--sign", "A. Kowal", "--json")
    assert list(json.loads(signed.stdout)["signed"]) == ["north"]
    done = suture("run", study, "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    assert "Tables signed as ready: north by A. Kowal" in " ".join(done.output.split())
    assert "north by A. Kowal" in (tmp_path / "run" / "report.html").read_text()


def test_a_wrong_bound_is_stopped_before_anything_is_charged(tmp_path):
    """Age to 60 in a geriatric clinic: all rows would be clipped."""
    study = write(tmp_path, high=60)
    looked = suture("check", study, "--json")
    assert looked.exit_code == 3
    (site,) = json.loads(looked.stdout)["sites"]
    first = site["findings"][0]
    assert (first["level"], first["about"], first["column"]) == ("stop", "clipped-bound", "age")
    assert first["text"] == "400 above 60, of 400 rows (100%), would be clipped"
    assert isinstance(raised("check", study, "--sign", "A. Kowal"), NotReady)
    assert isinstance(raised("run", study, "--out", tmp_path / "run"), NotReady)
    assert not list(tmp_path.rglob(LEDGER))
    assert not (tmp_path / "run").exists()


def test_a_stop_may_be_overruled_with_a_reason(tmp_path):
    study = write(tmp_path, high=60)
    done = suture("check", study, "--sign", "A. Kowal", "--even-so", "a pilot with public bounds")
    assert done.exit_code == 0, done.output
    assert suture("run", study, "--out", tmp_path / "run").exit_code == 0
    told = (tmp_path / "run" / "result.json").read_text()
    assert json.loads(told)["ready"]["north"]["by"] == "A. Kowal"
    assert "a pilot" not in told


def test_what_is_found_is_for_the_sites_user_only(tmp_path):
    (site,) = json.loads(suture("check", write(tmp_path), "--json").stdout)["sites"]
    path = tmp_path / ".suture" / "north" / "check"
    (file,) = path.iterdir()
    assert str(file) == site["file"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert json.loads(file.read_text())["findings"] == site["findings"]


def test_the_table_of_a_federations_site_is_its_own(tmp_path, monkeypatch):
    study = write(tmp_path, data="")
    nothing = raised("check", study)
    assert isinstance(nothing, StudyError)
    assert "--home HOME" in str(nothing)
    home = tmp_path / "home"
    home.mkdir()
    settings = SiteSettings(name="north", hub={"address": "nowhere:1"}, data="../north.csv")
    monkeypatch.setattr("suture.network.settings.read_settings", lambda _: settings)
    done = suture("check", study, "--home", home, "--sign", "A. Kowal")
    assert done.exit_code == 0, done.output
    assert len(list((home / "ready").iterdir())) == 1


def test_an_unchecked_run_says_so_aloud(tmp_path):
    study = write(tmp_path)
    done = suture("run", study, "--out", tmp_path / "run", "--unchecked")
    assert done.exit_code == 0, done.output
    assert "NOT CHECKED: nobody signed that the table of north" in " ".join(done.output.split())
    assert json.loads((tmp_path / "run" / "result.json").read_text())["ready"] == {"north": None}
    assert "NOT CHECKED" in (tmp_path / "run" / "report.html").read_text()


def test_behind_a_hub_the_sites_decide(tmp_path):
    error = raised("run", write(tmp_path), "--hub", tmp_path / "operator.json", "--unchecked")
    assert isinstance(error, StudyError)
    assert "every site decides for itself" in str(error)


def test_what_needs_no_ready_is_not_signed(tmp_path):
    study = write(tmp_path)
    study.write_text(study.read_text().replace('name = "ward"', 'name = "ward"\nsimulation = true'))
    assert suture("check", study).exit_code == 0
    error = raised("check", study, "--sign", "A. Kowal")
    assert isinstance(error, StudyError)
    assert "needs nobody's ready" in str(error)
    (tmp_path / "demo.toml").write_text(
        '[study]\nname = "d"\noutcome = "high_risk"\ncohort = "cardio"\n'
    )
    assert "patients are built in" in str(raised("check", tmp_path / "demo.toml"))


@pytest.mark.parametrize("width", [60, 100])
def test_nothing_is_cut_off_in_a_terminal(tmp_path, width):
    found = json.loads(suture("check", write(tmp_path, high=60), "--json").stdout)
    console = Console(width=width, record=True, file=None, force_terminal=False)
    with console.capture() as shown:
        print_check(found, console)
    text = " ".join(shown.get().split())
    for one in found["sites"][0]["findings"]:
        assert one["text"] in text
    assert max(map(len, shown.get().splitlines()[:-2])) <= width
