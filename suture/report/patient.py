"""The clinician's page about one patient: four layers, self-contained, printable; and the waterfall as a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import altair as alt

from suture import __version__
from suture.report.shell import fill, put
from suture.report.theme import INK, finish, save, table

if TYPE_CHECKING:
    from suture.explanation.patient import Explanation, Part

RAISES, LOWERS, TOTAL = "#D55E00", "#0072B2", "#5f6368"
SHOWN = 10
"""Bars in the waterfall; the rest is one bar."""


def write(
    found: Explanation, patient: str, site: str, result: Mapping[str, Any], html: Path, png: Path, rows: int = 1
) -> None:
    """Write the page and the picture."""
    chart = waterfall(found)
    put(page(found, patient, site, result, chart, rows), html)
    save(chart, png)


def page(found: Explanation, patient: str, site: str, result: Mapping[str, Any], chart: Any, rows: int = 1) -> str:
    """The page as text."""
    private = result["privacy"]
    context = {
        "patient": patient,
        "site": site,
        "study": result["name"],
        "outcome": str(result["outcome"]).replace("_", " "),
        "risk": percent(found.calibrated),
        "model_risk": percent(found.risk),
        "base": percent(_sigmoid(found.base)),
        "interval": f"{percent(found.interval[0])} to {percent(found.interval[1])}",
        "reference": f"{found.reference:,}",
        "rows": rows,
        "amplifiers": [_line(part) for part in found.amplifiers[:8]],
        "mitigators": [_line(part) for part in found.mitigators[:8]],
        "more": max(0, len(found.amplifiers) - 8) + max(0, len(found.mitigators) - 8),
        "warnings": found.warnings,
        "notes": found.notes,
        "concepts": found.concepts,
        "footer": [
            ("Model", f"{result['methods'][result['method']]['label']}, {found.concepts} concepts"),
            ("Privacy of the model", privacy_words(private)),
            ("Suture", __version__),
        ],
    }
    caption = "From the site's average patient to this one. Bars are log odds; they add up to the model's risk exactly."
    return fill("patient.html", context, {"waterfall": chart}, {"waterfall": caption}, f"{site}-{patient}")


def waterfall(found: Explanation) -> Any:
    """The waterfall: the average patient, the largest contributions, the rest together, this patient."""
    ordered = sorted(found.parts, key=lambda part: -abs(part.contribution))
    shown, rest = ordered[:SHOWN], ordered[SHOWN:]
    steps = [(f"{part.label}: {part.value}", part.contribution) for part in shown]
    if rest:
        steps.append((f"{len(rest)} other features", sum(part.contribution for part in rest)))
    levels = [found.base]
    for _, change in steps:
        levels.append(levels[-1] + change)
    floor, ceiling = min(levels) - 0.5, max(levels) + 0.9
    bars = [_bar("This site's average patient", floor, found.base, "total", percent(_sigmoid(found.base)))]
    for i, (name, change) in enumerate(steps):
        bars.append(_bar(name, levels[i], levels[i + 1], "raises" if change > 0 else "lowers", f"{change:+.2f}"))
    bars.append(_bar("This patient", floor, found.log_odds, "total", percent(found.risk)))
    order = [str(bar["name"]) for bar in bars]
    x = alt.X("from:Q", title="Log odds", scale=alt.Scale(domain=[floor, ceiling], nice=False, zero=False))
    y = alt.Y(
        "name:N", sort=order, title=None, axis=alt.Axis(labelLimit=330, ticks=False, domain=False, labelPadding=8)
    )
    colours = alt.Scale(domain=["raises", "lowers", "total"], range=[RAISES, LOWERS, TOTAL])
    colour = alt.Color("what:N", scale=colours, legend=None)
    drawn = alt.Chart(table(bars))
    chart = drawn.mark_bar(height=18).encode(x=x, x2="to:Q", y=y, color=colour) + drawn.mark_text(
        align="left", dx=6, fontSize=12, color=INK
    ).encode(x=alt.X("end:Q"), y=y, text="text:N")
    return finish(
        chart.properties(width=560, height=alt.Step(28)),
        "What makes this patient's risk differ",
        "Orange raises, blue lowers; percentages are the model's risk before and after",
    )


def _bar(name: str, start: float, end: float, what: str, text: str) -> dict[str, Any]:
    return {"name": name, "from": start, "to": end, "end": max(start, end), "what": what, "text": text}


def _line(part: Part) -> dict[str, Any]:
    percentile = None if part.percentile is None else round(100 * part.percentile)
    return {
        "label": part.label,
        "value": part.value,
        "percentile": None if percentile is None else f"higher than {min(percentile, 99)} % of this site's patients",
        "effect": f"odds × {_factor(part.contribution)}",
        "reasons": "; ".join(part.reasons),
        "caution": part.caution,
    }


def _factor(contribution: float) -> str:
    return f"{math.exp(contribution):.2f}"


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-max(-40.0, min(40.0, value))))


def percent(share: float) -> str:
    """A share in percent, with one decimal."""
    return f"{100 * share:.1f} %"


def privacy_words(private: Mapping[str, Any]) -> str:
    """What is proven about the model, for a page's foot."""
    if not private["protected"]:
        return "none: the model was trained without differential privacy"
    return f"epsilon {private['epsilon']:.3g} at delta {private['delta']:g} for every training patient"
