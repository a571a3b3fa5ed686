"""`suture card`: every concept of a finished VEIL run's model, for whoever must approve or use it:
a self-contained page, and the weights as a picture.

Everything is read from the run's folder: no row is touched. Weights, quorums and choices are made
from releases that the sites' ledgers paid for; metrics are the exact ones of the result, which no
budget covers, and the page says so.

Stability is measured over the run's own trainings (seeds and folds): how many of them chose a
concept, and whether those agree on its sign. One training says nothing about it, and then the page
says that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt
import numpy as np

from suture.explain.run import (
    LOWERS,
    RAISES,
    Answer,
    ConceptModel,
    FinishedRun,
    Floats,
    cautions,
    write_page,
)
from suture.models.concepts import Concept, label_of
from suture.privacy.software import VERSION
from suture.report.theme import INK, Figure, finish, table
from suture.report.words import METRICS, NONE, finite, part
from suture.schema.record import Record, Statement
from suture.schema.table import Number

CURVES, POINTS, BARS = 12, 41, 40
"""How many shapes and weights are drawn, and the points of a curve."""
SHOWN = ("auc", "auprc", "recall_at_90_specificity", "ece", "brier")
NAMES = alt.Axis(labelLimit=380, ticks=False, domain=False, labelPadding=8)
"""Concepts' names in a figure: the longest of the icu cohort's fits."""
COLOURS = alt.Scale(domain=["raises", "lowers"], range=[RAISES, LOWERS])
CAPTIONS = {
    "weights": "Weights of the model, largest first. A concept's value lies between 0 and 1, a "
    "measurement's between -1 and 1 (the ends of its declared bounds).",
    "shapes": "What each number adds to the log odds over its declared bounds, the strongest first; "
    "0 where its terms are 0.",
    "noise": "What each number adds to the log odds over its declared bounds, the strongest first; 0 "
    "in the middle of its normal range. The band is where 95 % of curves would lie if only the noise "
    "that protects patients were drawn again, at most; it does not cover chance in the patients.",
    "quorums": "Rounds of this model's training in which enough hospitals agreed on a concept.",
}


@dataclass(frozen=True)
class Line:
    """One concept of the model, or one that other trainings chose."""

    name: str
    unit: str
    weight: float
    caution: str
    rounds: tuple[int, ...]
    """Rounds of the model's own training in which it reached the quorum, or was chosen."""
    chosen: int
    """Trainings that gave it a weight."""
    agreement: float | None
    """Share of those in which it has its more frequent sign."""
    low: float
    high: float
    """Smallest and largest weight over the trainings that chose it."""


class Card(NamedTuple):
    """Everything the page shows about the model: its concepts, and those of other trainings."""

    lines: tuple[Line, ...]
    others: tuple[Line, ...]
    trainings: int
    votes: int
    """Rounds in which hospitals voted; 0 in a mode without votes."""


class OneTraining(NamedTuple):
    """The weights that one training ended with, and the concepts that reached a quorum by round."""

    weights: Floats
    quorums: Mapping[int, Sequence[int]]


def model_card(folder: str | Path, *, out: Path | None = None) -> Answer:
    """Write ``card.html`` and ``card.png``; returns where they are and the table."""
    run = FinishedRun.open(folder)
    model = run.concept_model("a model card")
    card = read_card(run, model, _trainings(run))
    charts = {"weights": (_weights_chart(card), CAPTIONS["weights"])}
    spread = float(_facts(run).get("weight_noise", 0.0))
    shapes = read_shapes(model, spread)
    if shapes:
        charts["shapes"] = _shapes_chart(shapes), CAPTIONS["noise" if spread else "shapes"]
    if card.votes and any(line.rounds for line in card.lines):
        charts["quorums"] = _quorum_chart(card, run.study.method.rounds), CAPTIONS["quorums"]
    path, context = (out or run.folder) / "card", _context(card, run, model.bias)
    return {
        **write_page(path, "card.html", context, charts, f"{run.record['name']}-card"),
        "concepts": len(card.lines),
        "trainings": card.trainings,
        "lines": [asdict(line) for line in card.lines],
        "others": [asdict(line) for line in card.others],
    }


def _trainings(run: FinishedRun) -> list[OneTraining]:
    """Every finished training of the method, the model's own first."""
    keys = []
    for path in sorted((run.folder / "checkpoints").glob(f"{run.method}-*.npz")):
        parts = path.stem.removeprefix(f"{run.method}-").split("-")
        # A checkpoint before a round is not a whole training.
        if "round" not in parts and parts[0].isdigit():
            keys.append((int(parts[0]), int(parts[-1]) if "fold" in parts else 0, path.stem))
    found = []
    for *_, key in sorted(keys):
        loaded = run.kept.load(key)
        if loaded is not None and loaded[2] is not None:
            history, state = loaded[0].history, loaded[0].state
            quorums = {int(one["round"]): one.get("quorum", []) for one in history}
            found.append(OneTraining(np.asarray(state["weights"], np.float64), quorums))
    return found


def read_card(run: FinishedRun, model: ConceptModel, trainings: Sequence[OneTraining]) -> Card:
    """The card of a run's model and of its other trainings."""
    weights = np.asarray(model.weights, np.float64)
    every = np.stack([one.weights for one in trainings] or [weights])
    rounds: dict[int, list[int]] = {}
    for round_, places in trainings[0].quorums.items() if trainings else ():
        for place in places:
            rounds.setdefault(place, []).append(round_)
    lines = [
        _line(concept, float(weights[i]), every[:, i], tuple(rounds.get(i, ())))
        for i, concept in enumerate(model.concepts.items)
        if weights[i] or np.any(every[:, i])
    ]
    mine = sorted((line for line in lines if line.weight), key=lambda line: -abs(line.weight))
    others = [line for line in lines if not line.weight]
    others.sort(key=lambda line: (-line.chosen, line.name))
    return Card(tuple(mine), tuple(others), len(every), int(_facts(run).get("vote_rounds", 0)))


def _facts(run: FinishedRun) -> Mapping[str, Any]:
    """What the method says about its model."""
    return run.record["methods"][run.method].get("facts") or {}


def _sizes(record: Record) -> list[int]:
    """Training patients of every site: public."""
    return [int(site["train"]) for site in record["cohort"]["sites"].values()]


def _line(concept: Concept, weight: float, every: Floats, rounds: tuple[int, ...]) -> Line:
    """The line of one concept, from its weight in the model and in every training."""
    chosen = every[every != 0]
    count = len(chosen)
    more = max(int(np.sum(chosen > 0)), int(np.sum(chosen < 0)))
    return Line(
        name=concept.name,
        unit="" if concept.kind == "missing" else concept.unit,
        weight=weight,
        caution=concept.caution,
        rounds=rounds,
        chosen=count,
        agreement=more / count if count else None,
        low=float(chosen.min()) if count else math.nan,
        high=float(chosen.max()) if count else math.nan,
    )


def _context(card: Card, run: FinishedRun, bias: float) -> dict[str, object]:
    record = run.record
    return {
        "card": card, "run": run, "record": record, "bias": bias, "exp": math.exp, "spans": _spans,
        "sizes": _sizes(record), "promise": _promise(record["privacy"]),
        "assumption": _facts(run).get("secure_sum", False) and record["privacy"]["protected"],
        "metrics": _metrics(record), "groups": _groups(record),
        "warnings": cautions(((line.caution, line.name) for line in card.lines), "; "),
        "footer": [("Command", str(record.get("command", NONE))), ("Suture", VERSION)],
    }  # fmt: skip


def _promise(private: Statement) -> str:
    epsilon, delta = private["epsilon"], private["delta"]
    if not private["protected"] or epsilon is None:
        return "No differential privacy was promised to the training patients."
    return (
        f"Epsilon {math.ceil(epsilon * 100 - 1e-9) / 100:g} at delta {delta:g} for every training "
        f"{private['unit']}, with all of their rows, proven and charged before each release."
    )


def _direction(line: Line) -> str:
    return "raises" if line.weight > 0 else "lowers"


def _weights_chart(card: Card) -> Figure:
    """One bar per concept; an exclamation mark where it is no biological cause."""
    several = card.trainings > 1
    rows = [
        {
            "name": ("! " if line.caution else "") + line.name,
            "weight": line.weight,
            "what": _direction(line),
            "text": f"{line.weight:+.2f}",
            "chosen": f"{line.chosen} of {card.trainings}" if several else "",
        }
        for line in card.lines[:BARS]
    ]
    most = max((abs(line.weight) for line in card.lines), default=1.0)
    y = alt.Y("name:N", sort=[str(row["name"]) for row in rows], title=None, axis=NAMES)
    domain = alt.Scale(domain=[-1.1 * most, 1.1 * most], nice=False)
    ticks = alt.Axis(tickCount=5, format=".1~f")
    x = alt.X("weight:Q", title="Weight (log odds)", scale=domain, axis=ticks)
    drawn = alt.Chart(table(rows))
    text = drawn.mark_text(align="right", fontSize=12, color=INK)
    zero = alt.Chart(table([{"weight": 0}])).mark_rule(color="#9aa0a6").encode(x=x)
    colour = alt.Color("what:N", scale=COLOURS, legend=None)
    chart = (
        drawn.mark_bar(height=13).encode(x=x, y=y, color=colour)
        + zero
        + text.encode(x=alt.value(464), y=y, text="text:N")
        + text.encode(x=alt.value(520), y=y, text="chosen:N")
    )
    stable = f"; at the right: trainings of {card.trainings} that chose it" if several else ""
    words = f"Orange raises the risk, blue lowers it; ! is not a biological cause{stable}"
    sized = chart.properties(width=420, height=alt.Step(20))
    strongest = f", the {BARS} strongest" if len(card.lines) > BARS else ""
    return finish(sized, f"{len(card.lines)} concepts{strongest}", words)


def read_shapes(model: ConceptModel, spread: float) -> list[list[dict[str, object]]]:
    """Of each number that the model uses a curve: value, what it adds to the log odds, and the ends
    of the 95 % band where noise gives every weight the standard deviation ``spread``."""
    found: list[tuple[float, list[dict[str, object]]]] = []
    for name, feature in model.schema.features.items():
        ids = [i for i, c in enumerate(model.concepts.items) if c.feature == name]
        ids = [i for i in ids if model.concepts.items[i].kind != "missing"]
        if not isinstance(feature, Number) or not np.any(model.weights[ids]):
            continue
        rows = np.zeros((POINTS, model.concepts.inputs), np.float32)
        rows[:, model.concepts.items[ids[0]].column] = np.linspace(-1, 1, POINTS)
        values = model.concepts.matrix(rows, ids).astype(np.float64)
        curve, half = values @ model.weights[ids], 1.959964 * spread * np.sqrt((values**2).sum(1))
        label = f"{label_of(name, feature)}{f' ({feature.unit})' if feature.unit else ''}"
        at = np.linspace(feature.low, feature.high, POINTS)
        points = [
            {"feature": label, "value": float(v), "adds": float(c), "low": float(c - h), "high": float(c + h)}
            for v, c, h in zip(at, curve, half, strict=True)
        ]  # fmt: skip
        found.append((float(np.ptp(curve)), points))
    return [points for _, points in sorted(found, key=lambda one: -one[0])][:CURVES]


def _shapes_chart(shapes: Sequence[Sequence[Mapping[str, object]]]) -> Figure:
    """Small multiples with one scale for what is added."""
    every = [float(str(point[key])) for one in shapes for point in one for key in ("low", "high")]
    y = alt.Scale(domain=[min(every), max(every)])
    panels = []
    for points in shapes:
        drawn = alt.Chart(table(points))
        x = alt.X("value:Q", title=None, scale=alt.Scale(zero=False, nice=False))
        band = drawn.mark_area(opacity=0.22, color=LOWERS).encode(
            x=x, y=alt.Y("low:Q", title=None, scale=y), y2="high:Q"
        )
        line = drawn.mark_line(color=LOWERS).encode(x=x, y=alt.Y("adds:Q", scale=y))
        title = alt.TitleParams(str(points[0]["feature"]), fontSize=12, fontWeight="normal")
        panels.append((band + line).properties(width=170, height=110, title=title))
    return finish(alt.concat(*panels, columns=3), "Shapes", "What a value adds to the log odds")


def _quorum_chart(card: Card, rounds: int) -> Figure:
    rows = [
        {"name": line.name, "round": round_, "what": _direction(line)}
        for line in card.lines
        for round_ in line.rounds
    ]
    y = alt.Y("name:N", sort=[line.name for line in card.lines], title=None, axis=NAMES)
    places = alt.Scale(domain=[0.5, rounds + 0.5], nice=False)
    x = alt.X("round:Q", title="Round", scale=places, axis=alt.Axis(tickMinStep=1, grid=False))
    colour = alt.Color("what:N", scale=COLOURS, legend=None)
    mark = alt.Chart(table(rows)).mark_square(size=70).encode(x=x, y=y, color=colour)
    sized = mark.properties(width=420, height=alt.Step(18))
    return finish(sized, "When hospitals agreed")


def _spans(rounds: tuple[int, ...]) -> str:
    """
    >>> _spans((2, 3, 4, 7, 9, 10))
    '2–4, 7, 9–10'
    """
    found = []
    for _, run in groupby(enumerate(rounds), key=lambda pair: pair[1] - pair[0]):
        numbers = [number for _, number in run]
        found.append(f"{numbers[0]}–{numbers[-1]}" if len(numbers) > 1 else str(numbers[0]))
    return ", ".join(found)


def _metrics(record: Record) -> list[tuple[str, str]]:
    between = part(record, "metrics", "intervals", "global")
    rows = []
    for name in SHOWN:
        value = finite(record["metrics"]["global"].get(name))
        low, high = (finite(end) for end in between.get(name) or (None, None))
        known = low is not None and high is not None
        text = f" (95 % interval {low:.3f} to {high:.3f})" if known else ""
        if value is not None:
            rows.append((METRICS[name], f"{value:.3f}{text}"))
    return rows


def _groups(record: Record) -> list[dict[str, object]]:
    """One table per group: how well the model does for each of its values."""
    found: list[dict[str, object]] = []
    for group, values in part(record, "metrics", "groups").items():
        rows = []
        for value, metrics in values.items():
            figures = [finite(metrics.get(name)) for name in SHOWN]
            texts = [NONE if figure is None else f"{figure:.3f}" for figure in figures]
            count = f"{finite(metrics.get('rows')) or 0:,.0f}"
            rows.append({"name": str(value), "rows": count, "figures": texts})
        found.append({"name": str(group).replace("_", " ").capitalize(), "rows": rows})
    return found
