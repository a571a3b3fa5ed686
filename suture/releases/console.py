"""A released statistic for people: what left, its interval, and what it cost."""

from __future__ import annotations

from typing import Any

import altair as alt
from rich.console import Console
from rich.table import Table

from suture.releases.query import Released
from suture.report.theme import INK, PALETTE, finish, table


def print_release(found: Released) -> None:
    """The noisy figures, then the price."""
    console = Console(highlight=False)
    title = f"{found['kind']} of {found['column']} at {found['site']}, with noise"
    shown = Table(title=title, title_justify="left")
    names, rows = _cells(found)
    for name in names:
        shown.add_column(name, justify="left" if name == "bin" else "right")
    for row in rows:
        shown.add_row(*row)
    console.print(shown)
    free = " (the same release as before: not charged again)" if found["repeated"] else ""
    console.print(
        f"cost: epsilon {found['epsilon']:g} at delta {found['delta']:g}{free}; noise of "
        f"{found['noise_sd']:.3g} on every count ({found['mechanism']}); {found['contribution']}"
    )
    console.print(
        f"spent by this study's releases here: {found['spent']:g} of {found['budget']:g} "
        f"({found['accountant']})"
    )
    together = found["spent_by_all_accounts"]
    console.print(
        "the site's ledger also holds a training without privacy: no bound holds for everything "
        "together"
        if together is None
        else f"everything in the site's ledger together: epsilon {together:g}"
    )


def _cells(found: Released) -> tuple[list[str], list[list[str]]]:
    if found["kind"] == "rate":
        noise, sampled = found["interval"], found["interval_with_sampling"]
        names = ["rate", "95 % interval (noise)", "95 % interval (noise and sampling)"]
        spans = [_span(noise, ".2%"), _span(sampled, ".2%")]
        row = [_cell(found["rate"], ".2%"), *spans, f"{found['patients']:,.0f}"]
        return [*names, "patients, noisy"], [row]
    if found["kind"] == "histogram":
        rows = []
        for b in found["bins"]:
            count, share = _cell(b["count"], ",.0f"), _cell(b["share"], ".1%")
            rows.append([b["bin"], count, _span(b["interval"], ",.0f"), share])
        return ["bin", "patients, noisy", "95 % interval", "share"], rows
    rows = [
        [f"{q['quantile']:g}", _cell(q["value"], ".4g"), _span(q["interval"], ".4g")]
        for q in found["quantiles"]
    ]
    return ["quantile", "value", "95 % interval"], rows


def _cell(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _span(ends: list[float], form: str) -> str:
    return f"{ends[0]:{form}} to {ends[1]:{form}}"


def histogram_chart(found: Released) -> Any:
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
