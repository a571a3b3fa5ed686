"""Figures about groups: who is called positive over the rounds, and bias against accuracy (paper 004, Figure 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from suture.report.theme import PALETTE, finish, table
from suture.report.words import Result, finite, labels, part, primary

MOST_POINTS = 200


def by_round(result: Result) -> Any:
    """The share of each group called positive after every round, one panel a group column, under the study's method.

    >>> groups = {"sex": {"F": {"positive_rate": 0.3}, "M": {"positive_rate": 0.4}}}
    >>> by_round({"name": "x", "methods": {"a": {"history": [{"round": 1, "groups": groups}]}}}).to_dict()["title"]["text"]
    'Groups over the rounds'
    """
    key = primary(result)
    history = part(result, "methods", key).get("history") or []
    entries = [entry for entry in history if part(entry, "groups")]
    if not entries:
        return None
    entries = entries[:: max(1, len(entries) // MOST_POINTS)]
    panels = []
    for column in part(entries[-1], "groups"):
        rows = [
            {"group": name, "round": entry["round"], "value": round(value, 4)}
            for entry in entries
            for name in part(entry, "groups", column)
            if (value := finite(part(entry, "groups", column, name).get("positive_rate"))) is not None
        ]
        if not rows:
            continue
        panels.append(
            alt.Chart(table(rows), title=column)
            .mark_line(strokeWidth=2, point=len(entries) == 1)
            .encode(
                x=alt.X("round:Q", title="Round", axis=alt.Axis(tickMinStep=1, tickCount=6, format="d")),
                y=alt.Y("value:Q", title="Called positive", axis=alt.Axis(format="%", tickCount=5)),
                color=alt.Color("group:N", title=None, scale=alt.Scale(range=PALETTE)),
                tooltip=["group:N", "round:Q", alt.Tooltip("value:Q", format=".1%")],
            )
            .properties(width=310, height=200)
        )
    if not panels:
        return None
    chart = alt.concat(*panels, columns=2).resolve_scale(color="independent")
    who = labels(result).get(key, key)
    return finish(chart, "Groups over the rounds", f"{who}. Held-out patients of all hospitals together")


def bias_accuracy(rows: Sequence[dict[str, Any]], title: str, subtitle: str) -> Any:
    """Accuracy against a gap, one point a configuration; ours with intervals (cut at a gap of 0), the paper's as diamonds.

    >>> row = {"name": "FedAvg", "whose": "ours", "accuracy": 0.8, "gap": 0.1, "what": "Parity gap"}
    >>> bias_accuracy([row], "t", "s").to_dict()["title"]["text"]
    't'
    """
    panels = []
    for what in dict.fromkeys(row["what"] for row in rows):
        base = alt.Chart(table([row for row in rows if row["what"] == what])).encode(
            x=alt.X("gap:Q", title=what, scale=alt.Scale(domainMin=0), axis=alt.Axis(tickCount=6)),
            y=alt.Y("accuracy:Q", title="Accuracy", scale=alt.Scale(zero=False), axis=alt.Axis(format="%")),
            color=alt.Color(
                "name:N", title=None, scale=alt.Scale(range=PALETTE), legend=alt.Legend(orient="bottom", columns=3)
            ),
        )
        points = base.mark_point(size=110, filled=True, opacity=1).encode(
            shape=alt.Shape(
                "whose:N", title=None, scale=alt.Scale(domain=["ours", "paper"], range=["circle", "diamond"])
            ),
            tooltip=["name:N", "whose:N", alt.Tooltip("gap:Q", format=".3f"), alt.Tooltip("accuracy:Q", format=".1%")],
        )
        across = base.mark_rule(clip=True).encode(x="gap_low:Q", x2="gap_high:Q")
        along = base.mark_rule().encode(y="accuracy_low:Q", y2="accuracy_high:Q")
        panels.append((across + along + points).properties(width=310, height=280))
    return finish(alt.concat(*panels, columns=2), title, subtitle)
