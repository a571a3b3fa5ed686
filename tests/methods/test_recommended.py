"""`method.name = "recommended"`: public facts choose, and the study then is the chosen method's."""

import pytest
from typer.testing import CliRunner

from suture.cli.main import app
from suture.errors import StudyError
from suture.methods.registry import known
from suture.study import Study

FEATURES = {"age": {"kind": "number", "low": 0, "high": 100}, "sex": {"kind": "flag"}}


def study(sites=5, patients=1000, epsilon=1.0, method=None, **changes):
    fields = {
        "name": "s",
        "outcome": "died",
        "sites": [{"name": f"h{i}", "patients": patients} for i in range(sites)],
        "schema": {"patient": "id", "features": FEATURES},
        "method": {"name": "recommended"} | (method or {}),
        "privacy": {"unit": "patient", "epsilon": epsilon} if epsilon else None,
    } | changes
    return Study(**{key: value for key, value in fields.items() if value is not None})


def test_it_is_the_study_of_the_chosen_method_to_the_last_digit_of_its_digest():
    found = study()
    assert (found.method.name, found.method.rounds) == ("additive", 41)
    named = study(method={"name": "additive", "rounds": 41})
    assert found == named
    assert found.digest == named.digest
    assert Study.from_text(found.to_toml()) == found


def test_public_facts_decide():
    assert study(sites=2).method.local_noise is True
    assert study(sites=3).method.local_noise is False
    assert study(epsilon=None).method.rounds == 81
    assert study(sites=9, patients=20_000, epsilon=8.0).method.rounds == 81
    assert study(classes=("a", "b", "c")).method.name == "fedsgd"
    picture = {"patient": "id", "features": {"film": {"kind": "image"}}}
    assert study(schema=picture).method.name == "fedavg"
    assert study(sites=4, patients=None, epsilon=8.0, simulation=True).method.rounds == 41


def test_fewer_sites_that_may_drop_out_need_less_noise_and_get_more_gradients():
    some, none = (
        study(patients=4000, epsilon=3.0, protection={"sum": "masked", "threshold": share})
        for share in (0.67, 0.9)
    )
    assert 41 < some.method.rounds < none.method.rounds


def test_what_the_study_states_stays_and_what_nobody_uses_is_refused():
    assert study(method={"rounds": 13}).method.rounds == 13
    with pytest.raises(StudyError, match="local_epochs: additive does not use it"):
        study(method={"local_epochs": 2})
    both = study(method={"local_epochs": 2}, evaluation={"compare": ["fedavg"]})
    assert both.methods == ("additive", "fedavg")


def test_it_is_no_method_itself():
    assert "recommended" not in known()


def test_a_generated_federation_is_known_by_its_own_figures():
    found = Study(
        name="s", outcome="high_risk", cohort={"name": "cardio", "patients": 3000},
        method={"name": "recommended"}, privacy={"unit": "patient", "epsilon": 1.0},
    )  # fmt: skip
    assert (found.method.name, found.method.rounds) == ("additive", 41)


def test_the_command_prints_the_table_of_a_study():
    sizes = [word for _ in range(5) for word in ("--patients", "1000")]
    told = CliRunner().invoke(app, ["plan", "method", *sizes, "--epsilon", "1"])
    assert told.exit_code == 0
    text = "\n".join(line for line in told.stdout.splitlines() if not line.startswith("#"))
    head = '[study]\nname = "s"\noutcome = "died"\ncohort = "cardio"\n'
    assert Study.from_text(head + text).method == study().method
