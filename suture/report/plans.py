"""Figures of plans and releases: the budget over the rounds, how reliable a safety flag is at each
epsilon, and a histogram that was released."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import altair as alt

from suture.errors import StudyError
from suture.report.console import COMPOSITIONS, OVER_ROUNDS, epsilons, rounds_that_fit
from suture.report.shell import fill, put
from suture.report.theme import INK, PALETTE, QUIET, Figure, finish, save, table
from suture.report.words import Found, plain

_COLOURS = {"basic": PALETTE[7], "sqrt_rule": PALETTE[1], "rdp": PALETTE[2], "pld": PALETTE[0]}


def over_rounds(found: Found) -> Figure:
    """Epsilon against the round, one line per way of adding up; dashed is the one without a proof."""
    rows = [
        {"round": row["round"], "way": text, "epsilon": row[way]}
        for row in found["rows"]
        for way, text in COMPOSITIONS.items()
        if row[way] is not None
    ]
    proven = [row["pld"] for row in found["rows"] if row["pld"] is not None]
    budget = found.get("budget")
    # Basic composition would squeeze the others flat: the axis ends a little above what matters.
    axis = alt.Scale(domain=[0, 1.6 * max([*proven, budget or 0.0])], nice=False)
    order = list(COMPOSITIONS.values())
    colours = alt.Scale(domain=order, range=[_COLOURS[way] for way in COMPOSITIONS])
    dashes = alt.Scale(domain=order, range=[[1, 0], [6, 4], [1, 0], [1, 0]])
    legend = alt.Legend(orient="bottom", columns=4, symbolSize=500)
    rounds = alt.Axis(tickMinStep=1, tickCount=8, format="d")
    title = f"Epsilon at delta {found['delta']:g}"
    lines = alt.Chart(table(rows)).mark_line(strokeWidth=2.4, clip=True)
    lines = lines.encode(
        x=alt.X("round:Q", title="Round", axis=rounds),
        y=alt.Y("epsilon:Q", title=title, scale=axis, axis=alt.Axis(tickCount=7)),
        color=alt.Color("way:N", title=None, sort=order, scale=colours, legend=legend),
        strokeDash=alt.StrokeDash("way:N", sort=order, scale=dashes, legend=None),
        tooltip=["way:N", "round:Q", alt.Tooltip("epsilon:Q", format=".3f")],
    )
    marks = () if budget is None else _line_at("budget", budget, f"budget {budget:g}", -8)
    chart = alt.layer(lines, *marks).properties(width=640, height=340)
    note = "Lower is better; lines that leave the top keep rising"
    return finish(chart, "Privacy spent over the rounds", note)


def reliability(curves: Sequence[Found], threshold: float, target: float) -> Figure:
    """How often a safety flag is right against epsilon, one line per site size."""
    order = list(dict.fromkeys(row["site"] for row in curves))
    kinds = list(dict.fromkeys(row["mechanism"] for row in curves))
    colours = alt.Scale(domain=order, range=list(PALETTE[: len(order)]))
    below = alt.Legend(orient="bottom", columns=3)
    dashes = alt.Scale(domain=kinds, range=[[1, 0], [6, 4], [2, 3]][: len(kinds)])
    long = alt.Legend(orient="bottom", symbolSize=900)
    log, half = alt.Scale(type="log", nice=False), alt.Scale(domain=[0.5, 1.0])
    ticks = alt.Axis(values=[0.1, 0.2, 0.5, 1, 2, 5, 10], format="g")
    percent, right = alt.Axis(format="%", tickCount=6), "Probability of the right flag"
    lines = alt.Chart(table(curves)).mark_line(strokeWidth=2.2, clip=True)
    lines = lines.encode(
        x=alt.X("epsilon:Q", title="Epsilon of the release", scale=log, axis=ticks),
        y=alt.Y("right:Q", title=right, scale=half, axis=percent),
        color=alt.Color("site:N", title=None, sort=order, scale=colours, legend=below),
        strokeDash=alt.StrokeDash("mechanism:N", title=None, sort=kinds, scale=dashes, legend=long),
        tooltip=["site:N", "mechanism:N", "epsilon:Q", alt.Tooltip("right:Q", format=".1%")],
    )
    chart = alt.layer(lines, *_line_at("target", target, f"{target:.0%} required", 9))
    flag = f"Flag: released rate above {threshold:.1%}"
    note = f"{flag}. Noise only; sampling error is not counted here"
    chart = chart.properties(width=640, height=340)
    return finish(chart, "How often the safety flag is right", note)


def _line_at(field: str, value: float, text: str, dy: int) -> tuple[alt.Chart, alt.Chart]:
    """A dotted line across the figure, and what it stands for."""
    mark = alt.Chart(table([{field: value, "text": text}]))
    rule = mark.mark_rule(color=QUIET, strokeDash=[2, 3], strokeWidth=1.5)
    words = mark.mark_text(align="left", dx=6, dy=dy, color=QUIET, fontSize=12)
    y = f"{field}:Q"
    return rule.encode(y=y), words.encode(y=y, x=alt.value(0), text="text:N")


def draw_history(found: Found, path: Path) -> Path:
    """Write the budget over the rounds as PNG, SVG or a page (.html) with the table."""
    if not path.parent.is_dir():
        raise StudyError(f"the folder {path.parent} does not exist; make it first")
    chart = over_rounds(found)
    if path.suffix.lower() != ".html":
        save(chart, path)
        return path
    rows = [(f"{row['round']:,}", *epsilons(row)) for row in found["rows"]]
    facts = [("Noise multiplier", f"{found['noise']:.4g}"), ("Delta", f"{found['delta']:g}")]
    facts.append(("Sampling rate", f"{found['sampling_rate']:.4g}"))
    if "rounds_that_fit" in found:
        facts.append((f"Rounds within epsilon {found['budget']:g}", rounds_that_fit(found)))
    context = {
        "name": "Privacy spent over the rounds",
        "intro": f"Unit: {found['unit']}; neighbours: {found['neighbours']}.",
        "tables": [plain(OVER_ROUNDS, ("Round", *COMPOSITIONS.values()), rows)],
        "notes": found["notes"],
        "footer": facts,
    }
    captions = {"over_rounds": OVER_ROUNDS}
    put(fill("tables.html", context, {"over_rounds": chart}, captions, "budget"), path)
    return path


def histogram_chart(found: Found) -> Figure:
    """Noisy counts as bars with their intervals."""
    rows = []
    for row in found["bins"]:
        low, high = row["interval"]
        rows.append({"bin": row["bin"], "count": row["count"], "low": low, "high": high})
    order = [row["bin"] for row in found["bins"]]
    axis = alt.Axis(labelAngle=-40 if max(map(len, order)) > 6 else 0)
    x = alt.X("bin:N", sort=order, title=found["column"], axis=axis)
    base, title = alt.Chart(table(rows)).encode(x=x), "Patients, noisy"
    bars = base.mark_bar(color=PALETTE[0], opacity=0.75).encode(
        y=alt.Y("count:Q", title=title, axis=alt.Axis(tickCount=6)),
        tooltip=["bin:N", alt.Tooltip("count:Q", format=",.0f")],
    )
    whiskers = base.mark_rule(color=INK, strokeWidth=1.5)
    whiskers = whiskers.encode(y=alt.Y("low:Q", title=title), y2="high:Q")
    chart = alt.layer(bars, whiskers).properties(width=max(460, 46 * len(order)), height=300)
    cost = f"Epsilon {found['epsilon']:g} at delta {found['delta']:g}"
    note = f"{cost}; lines: 95 % interval of the exact count"
    return finish(chart, f"{found['column']} at {found['site']}, released with noise", note)
