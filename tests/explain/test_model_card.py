"""The model card: what it reads from a run, by hand, and what the page says."""

import numpy as np
import pytest

from suture.engine import conduct
from suture.engine.folder import RunFolder
from suture.errors import StudyError
from suture.explain.model_card import OneTraining, model_card, read_card
from suture.explain.run import ConceptModel, FinishedRun
from suture.models.concepts import dictionary
from suture.result import Result
from suture.schema.table import Schema
from suture.study import Study


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    study = Study(
        name="icu <small>",
        outcome="died_in_hospital",
        cohort={"name": "icu", "hospitals": 4, "patients": 400},
        method={"name": "veil", "rounds": 8, "picks": 3},
        privacy={"unit": "patient", "epsilon": 20.0},
        evaluation={"seeds": 2},
    )
    folder = tmp_path_factory.mktemp("card") / "run"
    conduct.run(study, out=folder, threads=1)
    return folder


def test_the_card_says_what_the_run_found(run):
    found = model_card(run)
    result, opened = Result.load(run), RunFolder(run)
    states = [opened.load(f"veil-{seed}") for seed in (42, 43)]
    weights = result.model["weights"]
    names = [
        concept.name for concept in dictionary(Schema.parse(result.data["model"]["schema"])).items
    ]
    assert [line["name"] for line in found["lines"]] == [
        names[i] for i in np.argsort(-np.abs(weights), kind="stable")
    ][: np.count_nonzero(weights)]
    assert found["trainings"] == 2
    for line in found["lines"]:
        place = names.index(line["name"])
        both = [state[0].state["weights"][place] for state in states]
        assert line["chosen"] == np.count_nonzero(both)
        # Rounds of the quorum are as many as the method's own count.
        assert len(line["rounds"]) == states[0][0].state["quorums"][place]
        assert all(
            2 <= round_ <= 6 for round_ in line["rounds"]
        )  # the first sets the rate, the last two the scale
    for line in found["others"]:
        assert weights[names.index(line["name"])] == 0
        assert line["chosen"] == 1


def test_the_page_holds_every_concept_the_promise_and_the_groups(run):
    model_card(run)
    text = (run / "card.html").read_text()
    assert (run / "card.png").read_bytes().startswith(b"\x89PNG")
    assert "<small>" not in text.split("<main>")[0].split("</style>")[1]
    assert "Epsilon 20 at delta 1e-05 for every training patient" in text
    assert "2 of 2" in text
    assert "<caption>Ethnicity</caption>" in text
    assert "https://" not in text.split("<main>")[1].split("</main>")[0]


def test_stability_by_hand(run):
    """Three trainings: +, +, - for the first concept; absent twice for the second; only elsewhere
    for the third."""
    opened = FinishedRun.open(run)
    schema = Schema.parse(opened.record["model"]["schema"])
    every = np.zeros((3, len(dictionary(schema))), np.float32)
    every[:, 0] = [0.5, 0.2, -0.1]
    every[0, 1] = -2.0
    every[2, 2] = 1.0
    model = ConceptModel(schema, every[0], 0.0, dictionary(schema))
    card = read_card(opened, model, [OneTraining(row, {1: [0], 2: [], 3: [0, 1]}) for row in every])
    assert [(line.weight, line.chosen, line.rounds) for line in card.lines] == [
        (-2.0, 1, (3,)),
        (0.5, 3, (1, 3)),
    ]
    first = card.lines[1]
    assert first.agreement == pytest.approx(2 / 3)
    assert (first.low, first.high) == pytest.approx((-0.1, 0.5))
    assert [line.chosen for line in card.others] == [1]
    assert (card.votes, card.trainings) == (5, 3)


def test_another_method_has_no_concepts(tmp_path):
    study = Study(
        name="x",
        outcome="high_risk",
        cohort={"name": "cardio", "patients": 200},
        method={"name": "fedavg", "rounds": 1},
    )
    conduct.run(study, out=tmp_path / "run", threads=1)
    with pytest.raises(StudyError, match="readable concepts"):
        model_card(tmp_path / "run")
