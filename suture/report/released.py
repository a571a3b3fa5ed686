"""A released figure for people: what left, its interval, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
from rich.console import Console
from rich.table import Table

from suture.report.theme import INK, PALETTE, finish, table


def print_release(found: Mapping[str, Any], console: Console | None = None) -> None:
    """The noisy figures, then the price."""
    console = console or Console()
    title = f"{found['kind']} of {found['column']} at {found['site']}, with noise"
    shown = Table(title=title, title_justify="left")
    if found["kind"] == "rate":
        for name in ("rate", "95 % interval (noise)", "95 % interval (noise and sampling)", "patients, noisy"):
            shown.add_column(name, justify="right")
        rate = "–" if found["rate"] is None else f"{found['rate']:.2%}"
        patients = f"{found['patients']:,.0f}"
        shown.add_row(rate, _span(found["interval"], "%"), _span(found["interval_with_sampling"], "%"), patients)
    elif found["kind"] == "histogram":
        for name in ("bin", "patients, noisy", "95 % interval", "share"):
            shown.add_column(name, justify="left" if name == "bin" else "right")
        for row in found["bins"]:
            share = "–" if row["share"] is None else f"{row['share']:.1%}"
            shown.add_row(row["bin"], f"{row['count']:,.0f}", _span(row["interval"], ","), share)
    else:
        for name in ("quantile", "value", "95 % interval"):
            shown.add_column(name, justify="right")
        for row in found["quantiles"]:
            value = "–" if row["value"] is None else f"{row['value']:.4g}"
            shown.add_row(f"{row['quantile']:g}", value, _span(row["interval"], "g"))
    console.print(shown)
    free = " (the same release as before: not charged again)" if found["repeated"] else ""
    lines = [
        f"cost: epsilon {found['epsilon']:g} at delta {found['delta']:g}{free}; noise of {found['noise_sd']:.3g} on every "
        f"count ({found['mechanism']}); {found['contribution']}",
        f"spent by this study's releases here: {found['spent']:g} of {found['budget']:g} ({found['accountant']})",
    ]
    together = found["spent_by_all_accounts"]
    lines.append(
        "the site's ledger also holds a training without privacy: no bound holds for everything together"
        if together is None
        else f"everything in the site's ledger together: epsilon {together:g}"
    )
    for line in lines:
        console.print(line, highlight=False)


def histogram_chart(found: Mapping[str, Any]) -> Any:
    """Noisy counts as bars with their intervals.

    >>> rows = [{"bin": "no", "count": 9.0, "interval": [5.0, 13.0]}]
    >>> found = {"bins": rows, "column": "died", "site": "boston", "epsilon": 0.5, "delta": 1e-5}
    >>> histogram_chart(found).to_dict()["title"]["text"]
    'died at boston, released with noise'
    """
    rows = [
        {"bin": row["bin"], "count": row["count"], "low": row["interval"][0], "high": row["interval"][1]}
        for row in found["bins"]
    ]
    order = [row["bin"] for row in rows]
    base = alt.Chart(table(rows)).encode(
        x=alt.X(
            "bin:N", sort=order, title=found["column"], axis=alt.Axis(labelAngle=-40 if max(map(len, order)) > 6 else 0)
        )
    )
    bars = base.mark_bar(color=PALETTE[0], opacity=0.75).encode(
        y=alt.Y("count:Q", title="Patients, noisy", axis=alt.Axis(tickCount=6)),
        tooltip=["bin:N", alt.Tooltip("count:Q", format=",.0f")],
    )
    whiskers = base.mark_rule(color=INK, strokeWidth=1.5).encode(y=alt.Y("low:Q", title="Patients, noisy"), y2="high:Q")
    chart = alt.layer(bars, whiskers).properties(width=max(460, 46 * len(order)), height=300)
    note = f"Epsilon {found['epsilon']:g} at delta {found['delta']:g}; lines: 95 % interval of the exact count"
    return finish(chart, f"{found['column']} at {found['site']}, released with noise", note)


def _span(ends: list[float], kind: str) -> str:
    if kind == "%":
        return f"{ends[0]:.2%} to {ends[1]:.2%}"
    if kind == ",":
        return f"{ends[0]:,.0f} to {ends[1]:,.0f}"
    return f"{ends[0]:.4g} to {ends[1]:.4g}"
