"""`suture card`: what a finished VEIL run's model holds, for whoever must approve or use it: a page and a picture.

Everything here is read from the run's folder: no row is touched. Weights, quorums and choices are made from releases that
the sites' ledgers paid for; metrics are the exact ones of the result, which no budget covers, and the page says so.

Stability is measured over the run's own trainings (seeds and folds): how many chose a concept, and whether those that did
agree on its sign. One training says nothing about it, and then the page says that.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture.errors import RunError, StudyError
from suture.explanation.card import Card, line_of
from suture.methods import Public, build
from suture.models.concepts import dictionary
from suture.models.dense import Dense
from suture.result import Result
from suture.runfolder import RunFolder
from suture.site.schema import Schema
from suture.study import Study
from suture.training.local import Local

METHOD = "veil"


def model_card(folder: str | Path, *, out: Path | None = None) -> dict[str, Any]:
    """Write ``card.html`` and ``card.png``; returns where they are and the table."""
    folder = Path(folder).resolve()
    result = Result.load(folder)
    if result.data["method"] != METHOD:
        raise StudyError(
            f"a model card lists the concepts of a veil model; this run's method is {result.data['method']!r}. "
            "suture report shows its figures"
        )
    _, study, _ = RunFolder.open(folder)
    card = read_card(result, study, _trainings(folder))
    from suture.report import card as page

    target = out or folder
    target.mkdir(parents=True, exist_ok=True)
    html, png = target / "card.html", target / "card.png"
    page.write(card, result.data, html, png)
    return {
        "page": str(html),
        "picture": str(png),
        "concepts": len(card.lines),
        "trainings": card.trainings,
        "lines": [line.__dict__ | {"rounds": list(line.rounds)} for line in card.lines],
        "others": [line.__dict__ | {"rounds": list(line.rounds)} for line in card.others],
    }


def _trainings(folder: Path) -> list[tuple[dict[str, NDArray[Any]], list[dict[str, Any]]]]:
    """Final state and history of every training of the method, the model's own first."""
    opened, keys = RunFolder(folder), []
    for path in sorted((folder / "checkpoints").glob(f"{METHOD}-*.npz")):
        parts = path.stem.removeprefix(f"{METHOD}-").split("-")
        if "round" not in parts and parts[0].isdigit():  # checkpoints before a round are not whole trainings
            keys.append((int(parts[0]), int(parts[-1]) if "fold" in parts else 0, path.stem))
    found = []
    for *_, key in sorted(keys):
        loaded = opened.load(key)
        if loaded is not None and loaded[2] is not None:
            found.append((loaded[0].state, loaded[0].history))
    return found


def read_card(
    result: Result, study: Study, trainings: Sequence[tuple[dict[str, NDArray[Any]], list[dict[str, Any]]]]
) -> Card:
    """The card of a run's model and of its other trainings."""
    schema = Schema.parse(result.data["model"]["schema"])
    known = dictionary(schema)
    weights = np.asarray(result.model.get("weights", np.zeros(0)), np.float64)
    if weights.shape != (len(known),):
        raise RunError(f"the run's model has {len(weights)} weights, its schema {len(known)} concepts")
    states = [state for state, _ in trainings] or [result.model]
    every = np.stack([np.asarray(state["weights"], np.float64) for state in states])
    history = trainings[0][1] if trainings else []
    rounds: dict[int, list[int]] = {}
    for entry in history:
        for place in entry.get("quorum", []):
            rounds.setdefault(int(place), []).append(int(entry["round"]))
    lines = [
        line_of(concept, float(weights[i]), every[:, i], tuple(rounds.get(i, ())))
        for i, concept in enumerate(known.items)
        if weights[i] or np.any(every[:, i])
    ]
    mine = sorted((line for line in lines if line.weight), key=lambda line: -abs(line.weight))
    others = sorted((line for line in lines if not line.weight), key=lambda line: (-line.chosen, line.name))
    method = build(METHOD, study.method, Dense((known.inputs, 1)), Local(), Public(schema, *_public(result)))
    schedule: Sequence[str] = getattr(method, "schedule", ())
    return Card(
        label=method.label,
        mode=study.method.mode,
        bias=float(result.model["bias"][0]),
        lines=tuple(mine),
        others=tuple(others),
        trainings=len(states),
        votes=sum(phase == "vote" for phase in schedule),
        rounds=study.method.rounds,
    )


def _public(result: Result) -> tuple[int, int]:
    """How many hospitals and patients the study has: public, and part of the method's settings."""
    sites = result.data["cohort"]["sites"]
    return len(sites), sum(int(site["train"]) for site in sites.values())
