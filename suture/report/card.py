"""The model card: every concept of a VEIL model on one self-contained page, and its weights as a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import altair as alt

from suture import __version__
from suture.report.shell import fill, put
from suture.report.theme import INK, finish, save, table
from suture.report.words import METRICS, NONE, finite, part

if TYPE_CHECKING:
    from suture.explanation.card import Card, Line

RAISES, LOWERS, MARKED = "#D55E00", "#0072B2", "#b26a00"
SHOWN = ("auc", "auprc", "recall_at_90_specificity", "ece", "brier")
LIMIT = 380
"""Pixels of a concept's name in a figure: the longest of the icu cohort's fits."""


def write(card: Card, result: Mapping[str, Any], html: Path, png: Path) -> None:
    """Write the page and the picture."""
    charts = {"weights": weights_chart(card)}
    if card.votes and any(line.rounds for line in card.lines):
        charts["quorums"] = quorum_chart(card)
    put(page(card, result, charts), html)
    save(charts["weights"], png)


def page(card: Card, result: Mapping[str, Any], charts: Mapping[str, Any]) -> str:
    """The page as text."""
    captions = {
        "weights": "Weights of the model, largest first. A concept's value lies between 0 and 1, a measurement's between -1 "
        "and 1 (the ends of its declared bounds).",
        "quorums": "Rounds of this model's training in which enough hospitals agreed on a concept.",
    }
    context = {
        "study": result["name"],
        "outcome": str(result["outcome"]).replace("_", " "),
        "label": card.label,
        "concepts": len(card.lines),
        "bias": f"{card.bias:+.2f}",
        "risk": f"{100 / (1 + math.exp(-card.bias)):.1f} %",
        "promise": promise(result["privacy"]),
        "assumption": card.mode == "secure" and result["privacy"]["protected"],
        "generated": result["cohort"].get("source") == "generated",
        "hospitals": len(result["cohort"]["sites"]),
        "patients": f"{sum(int(site['train']) for site in result['cohort']['sites'].values()):,}",
        "metrics": _metrics(result),
        "groups": _groups(result),
        "folds": bool(part(result, "study", "evaluation").get("folds")),
        "rows": [_row(line, card) for line in card.lines],
        "others": [_row(line, card) for line in card.others],
        "warnings": _warnings(card),
        "trainings": card.trainings,
        "votes": card.votes,
        "footer": [("Command", str(result.get("command", NONE))), ("Suture", __version__)],
    }
    used = {name: text for name, text in captions.items() if name in charts}
    return fill("card.html", context, charts, used, f"{result['name']}-card")


def promise(private: Mapping[str, Any]) -> str:
    """The promise in one line.

    >>> promise({"protected": False})
    'No differential privacy was promised to the training patients.'
    >>> promise({"protected": True, "epsilon": 4.999, "delta": 1e-5, "unit": "patient"})
    'Epsilon 5 at delta 1e-05 for every training patient, with all of their rows, proven and charged before each release.'
    """
    if not private["protected"]:
        return "No differential privacy was promised to the training patients."
    epsilon = math.ceil(private["epsilon"] * 100 - 1e-9) / 100
    return (
        f"Epsilon {epsilon:g} at delta {private['delta']:g} for every training {private['unit']}, with all of their rows, "
        "proven and charged before each release."
    )


def weights_chart(card: Card) -> Any:
    """One bar a concept; an exclamation mark where it is no biological cause."""
    rows = [
        {
            "name": ("! " if line.caution else "") + line.name,
            "weight": line.weight,
            "what": "raises" if line.weight > 0 else "lowers",
            "text": f"{line.weight:+.2f}",
            "chosen": f"{line.chosen} of {card.trainings}" if card.trainings > 1 else "",
        }
        for line in card.lines
    ]
    most = max((abs(line.weight) for line in card.lines), default=1.0)
    axis = alt.Axis(labelLimit=LIMIT, ticks=False, domain=False, labelPadding=8)
    y = alt.Y("name:N", sort=[str(row["name"]) for row in rows], title=None, axis=axis)
    domain = alt.Scale(domain=[-1.1 * most, 1.1 * most], nice=False)
    x = alt.X("weight:Q", title="Weight (log odds)", scale=domain, axis=alt.Axis(tickCount=5, format=".1~f"))
    colour = alt.Color("what:N", scale=alt.Scale(domain=["raises", "lowers"], range=[RAISES, LOWERS]), legend=None)
    drawn = alt.Chart(table(rows))
    text = drawn.mark_text(align="right", fontSize=12, color=INK)
    zero = alt.Chart(table([{"weight": 0}])).mark_rule(color="#9aa0a6").encode(x=x)
    chart = (
        drawn.mark_bar(height=13).encode(x=x, y=y, color=colour)
        + zero
        + text.encode(x=alt.value(464), y=y, text="text:N")
        + text.encode(x=alt.value(520), y=y, text="chosen:N")
    )
    stable = f"; at the right: trainings of {card.trainings} that chose it" if card.trainings > 1 else ""
    return finish(
        chart.properties(width=420, height=alt.Step(20)),
        f"{len(card.lines)} concepts",
        f"Orange raises the risk, blue lowers it; ! is not a biological cause{stable}",
    )


def quorum_chart(card: Card) -> Any:
    """Concept by round: a mark where the hospitals agreed."""
    rows = [
        {"name": line.name, "round": round_, "what": "raises" if line.weight > 0 else "lowers"}
        for line in card.lines
        for round_ in line.rounds
    ]
    axis = alt.Axis(labelLimit=LIMIT, ticks=False, domain=False, labelPadding=8)
    y = alt.Y("name:N", sort=[line.name for line in card.lines], title=None, axis=axis)
    colour = alt.Color("what:N", scale=alt.Scale(domain=["raises", "lowers"], range=[RAISES, LOWERS]), legend=None)
    places = alt.Scale(domain=[0.5, card.rounds + 0.5], nice=False)
    x = alt.X("round:Q", title="Round", scale=places, axis=alt.Axis(tickMinStep=1, grid=False))
    mark = alt.Chart(table(rows)).mark_square(size=70).encode(x=x, y=y, color=colour)
    return finish(mark.properties(width=420, height=alt.Step(18)), "When hospitals agreed")


def _row(line: Line, card: Card) -> dict[str, str]:
    agreement = NONE if line.agreement is None or line.chosen < 2 else f"{line.agreement:.0%}"
    spread = NONE if line.chosen < 2 else f"{line.low:+.2f} to {line.high:+.2f}"
    return {
        "name": line.name,
        "unit": line.unit or NONE,
        "weight": f"{line.weight:+.3f}" if line.weight else NONE,
        "odds": f"× {math.exp(line.weight):.2f}" if line.weight else NONE,
        "flag": line.caution.split(":")[0],
        "rounds": spans(line.rounds) or NONE,
        "count": f"{len(line.rounds)} of {card.votes}" if card.votes else "",
        "chosen": f"{line.chosen} of {card.trainings}" if card.trainings > 1 else NONE,
        "agreement": agreement,
        "spread": spread,
    }


def _warnings(card: Card) -> list[str]:
    """Concepts that are no cause, by why: one line each, not one a concept."""
    found: dict[str, list[str]] = {}
    for line in card.lines:
        if line.caution:
            found.setdefault(line.caution.split(":")[0], []).append(line.name)
    return [f"{why[0].upper()}{why[1:]}: {'; '.join(names)}" for why, names in found.items()]


def spans(rounds: tuple[int, ...]) -> str:
    """Rounds as spans.

    >>> spans((2, 3, 4, 7, 9, 10))
    '2–4, 7, 9–10'
    """
    found = []
    for _, run in groupby(enumerate(rounds), key=lambda pair: pair[1] - pair[0]):
        numbers = [number for _, number in run]
        found.append(f"{numbers[0]}–{numbers[-1]}" if len(numbers) > 1 else str(numbers[0]))
    return ", ".join(found)


def _metrics(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    overall, between = part(result, "metrics", "global"), part(result, "metrics", "intervals", "global")
    rows = []
    for name in SHOWN:
        value = finite(overall.get(name))
        if value is None:
            continue
        ends = between.get(name)
        low, high = (finite(end) for end in ends) if ends else (None, None)
        text = f" (95 % interval {low:.3f} to {high:.3f})" if low is not None and high is not None else ""
        rows.append((METRICS[name], f"{value:.3f}{text}"))
    return rows


def _groups(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One table a group: what the model is worth for each of its values."""
    found = []
    for group, values in part(result, "metrics", "groups").items():
        rows = []
        for value, metrics in values.items():
            figures = [finite(metrics.get(name)) for name in SHOWN]
            rows.append(
                {
                    "name": str(value),
                    "rows": f"{finite(metrics.get('rows')) or 0:,.0f}",
                    "figures": [NONE if figure is None else f"{figure:.3f}" for figure in figures],
                }
            )
        found.append({"name": str(group).replace("_", " ").capitalize(), "rows": rows})
    return found
