"""Figures of plans: the budget over the rounds, and how reliable a safety flag is at each epsilon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from suture.report.theme import PALETTE, QUIET, finish, table

WAYS = {
    "basic": "Basic composition",
    "sqrt_rule": "Square-root rule (no proof)",
    "rdp": "Rényi DP",
    "pld": "PLD",
}
_COLOURS = {"basic": PALETTE[7], "sqrt_rule": PALETTE[1], "rdp": PALETTE[2], "pld": PALETTE[0]}


def over_rounds(found: Mapping[str, Any]) -> Any:
    """Epsilon against the round, one line a way of adding up; dashed is the one without a proof.

    >>> rows = [{"round": r, "basic": 1.0 * r, "sqrt_rule": r**0.5, "rdp": 1.1, "pld": 1.0} for r in (1, 2, 4)]
    >>> over_rounds({"rows": rows, "delta": 1e-5}).to_dict()["title"]["text"]
    'Privacy spent over the rounds'
    """
    rows = [
        {"round": row["round"], "way": text, "epsilon": row[way]}
        for row in found["rows"]
        for way, text in WAYS.items()
        if row[way] is not None
    ]
    tops = [row["pld"] for row in found["rows"] if row["pld"] is not None]
    budget = found.get("budget")
    # Basic composition would squeeze the others flat: the axis ends a little above what matters.
    top = 1.6 * max([*tops, budget or 0.0])
    axis = alt.Scale(domain=[0, top], nice=False)
    order = list(WAYS.values())
    lines = (
        alt.Chart(table(rows))
        .mark_line(strokeWidth=2.4, clip=True)
        .encode(
            x=alt.X("round:Q", title="Round", axis=alt.Axis(tickMinStep=1, tickCount=8, format="d")),
            y=alt.Y("epsilon:Q", title=f"Epsilon at delta {found['delta']:g}", scale=axis, axis=alt.Axis(tickCount=7)),
            color=alt.Color(
                "way:N",
                title=None,
                sort=order,
                scale=alt.Scale(domain=order, range=[_COLOURS[way] for way in WAYS]),
                legend=alt.Legend(orient="bottom", columns=4, symbolSize=500),
            ),
            strokeDash=alt.StrokeDash(
                "way:N", sort=order, scale=alt.Scale(domain=order, range=[[1, 0], [6, 4], [1, 0], [1, 0]]), legend=None
            ),
            tooltip=["way:N", "round:Q", alt.Tooltip("epsilon:Q", format=".3f")],
        )
    )
    layers: list[Any] = [lines]
    if budget is not None:
        mark = alt.Chart(table([{"budget": budget, "text": f"budget {budget:g}"}]))
        layers.append(mark.mark_rule(color=QUIET, strokeDash=[2, 3], strokeWidth=1.5).encode(y="budget:Q"))
        words = mark.mark_text(align="left", dx=6, dy=-8, color=QUIET, fontSize=12)
        layers.append(words.encode(y="budget:Q", x=alt.value(0), text="text:N"))
    chart = alt.layer(*layers).properties(width=640, height=340)
    return finish(chart, "Privacy spent over the rounds", "Lower is better; lines that leave the top go on rising")


def reliability(curves: Sequence[Mapping[str, Any]], threshold: float, target: float) -> Any:
    """How often a safety flag is right against epsilon: one line a site size; ``curves`` has site, epsilon, right.

    >>> point = {"site": "4,000 patients", "epsilon": 1.0, "right": 0.9, "mechanism": "analytic"}
    >>> reliability([point], 0.01, 0.95).to_dict()["title"]["text"]
    'How often the safety flag is right'
    """
    order = list(dict.fromkeys(row["site"] for row in curves))
    kinds = list(dict.fromkeys(row["mechanism"] for row in curves))
    ticks = alt.Axis(values=[0.1, 0.2, 0.5, 1, 2, 5, 10], format="g")
    lines = (
        alt.Chart(table([dict(row) for row in curves]))
        .mark_line(strokeWidth=2.2, clip=True)
        .encode(
            x=alt.X("epsilon:Q", title="Epsilon of the release", scale=alt.Scale(type="log", nice=False), axis=ticks),
            y=alt.Y(
                "right:Q",
                title="Probability of the right flag",
                scale=alt.Scale(domain=[0.5, 1.0]),
                axis=alt.Axis(format="%", tickCount=6),
            ),
            color=alt.Color(
                "site:N",
                title=None,
                sort=order,
                scale=alt.Scale(domain=order, range=list(PALETTE[: len(order)])),
                legend=alt.Legend(orient="bottom", columns=3),
            ),
            strokeDash=alt.StrokeDash(
                "mechanism:N",
                title=None,
                sort=kinds,
                scale=alt.Scale(domain=kinds, range=[[1, 0], [6, 4], [2, 3]][: len(kinds)]),
                legend=alt.Legend(orient="bottom", symbolSize=900),
            ),
            tooltip=["site:N", "mechanism:N", "epsilon:Q", alt.Tooltip("right:Q", format=".1%")],
        )
    )
    mark = alt.Chart(table([{"target": target, "text": f"{target:.0%} asked for"}]))
    rule = mark.mark_rule(color=QUIET, strokeDash=[2, 3], strokeWidth=1.5).encode(y="target:Q")
    words = mark.mark_text(align="left", dx=6, dy=9, color=QUIET, fontSize=12)
    chart = alt.layer(lines, rule, words.encode(y="target:Q", x=alt.value(0), text="text:N"))
    note = f"Flag: released rate above {threshold:.1%}. Noise only; sampling error is not counted here"
    return finish(chart.properties(width=640, height=340), "How often the safety flag is right", note)
