"""What may be passed on: exact figures about real patients are marked, come first, and are left out
of a copy for release."""

import numpy as np
import pytest
from support.starter import write_starter

from suture.engine.conduct import run
from suture.errors import RunError
from suture.result import Result
from suture.study import Study


@pytest.fixture
def real(tmp_path):
    write_starter(tmp_path, files=True, patients=400)
    study = Study.from_toml(tmp_path / "study.toml")
    small = {"model": {"hidden": [4]}, "method": {"rounds": 2, "local_epochs": 1}}
    return study.replace(
        **small, simulation=False, privacy={"unit": "patient", "epsilon": 4.0, "accountant": "rdp"}
    )


def test_exact_figures_of_real_patients_are_said_first_and_left_out(real, tmp_path, suture_command):
    assert run(real.replace(name="noisy"), base=tmp_path).data["release"] == {
        "patients": "real", "exact": False, "words": "",
    }  # fmt: skip
    found = run(real.replace(evaluation={"describe": True}), base=tmp_path, out=tmp_path / "run")
    terms = found.data["release"]
    assert (terms["patients"], terms["exact"]) == ("real", True)
    assert "NOT FOR RELEASE" in terms["words"]
    assert "NOT FOR RELEASE" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    done = suture_command("report", "run", "--for-release", "copy", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    copy = Result.load(tmp_path / "copy")
    assert copy.data["release"] == {"patients": "real", "exact": False, "words": ""}
    assert copy.privacy == found.privacy
    np.testing.assert_array_equal(copy.model["params"], found.model["params"])
    text = (tmp_path / "copy" / "result.json").read_text(encoding="utf-8")
    page = (tmp_path / "copy" / "report.html").read_text(encoding="utf-8")
    assert "NOT FOR RELEASE" not in page
    assert copy.metrics == found.metrics  # noisy, and paid for
    assert "prevalence" not in text.split('"cohort"')[1].split('"model"')[0]
    for about in copy.data["cohort"]["sites"].values():
        assert set(about) == {"region", "train"}
    assert copy.data["warnings"] == []
    again = suture_command("report", "run", "--for-release", "copy", cwd=tmp_path)
    assert again.returncode == 5
    assert "not empty" in again.stderr


def test_a_simulation_and_a_study_without_a_promise_have_nothing_for_release(real, tmp_path):
    rehearsed = run(real.replace(simulation=True), base=tmp_path)
    assert rehearsed.data["release"]["words"].startswith("SIMULATION")
    with pytest.raises(RunError, match="simulation"):
        rehearsed.for_release()
    fields = real.to_dict()
    del fields["privacy"]
    with pytest.raises(RunError, match="promises no privacy"):
        run(Study(**fields), base=tmp_path).for_release()


def test_generated_patients_may_be_shown(tiny):
    found = run(tiny)
    assert found.data["release"] == {"patients": "generated", "exact": False, "words": ""}
    assert found.for_release() is found
