"""The clinician's page about one patient: four layers, self-contained, printable; and the waterfall as a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import altair as alt

from suture import __version__
from suture.explanation.patient import MATERIAL
from suture.report.shell import fill, put
from suture.report.theme import INK, finish, save, table

if TYPE_CHECKING:
    from suture.explanation.patient import Explanation, Part

RAISES, LOWERS, TOTAL = "#D55E00", "#0072B2", "#5f6368"
RISKS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98, 0.99)
"""Ticks of the waterfall's axis."""
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
        "amplifiers": [_line(part, bool(found.federation)) for part in found.amplifiers[:8]],
        "mitigators": [_line(part, bool(found.federation)) for part in found.mitigators[:8]],
        "federation": found.federation,
        "more": max(0, len(found.amplifiers) - 8) + max(0, len(found.mitigators) - 8),
        "warnings": _warnings(found),
        "least": f"{100 * math.expm1(MATERIAL):.0f} %",
        "notes": found.notes,
        "concepts": found.concepts,
        "footer": [
            ("Model", f"{result['methods'][result['method']]['label']}, {found.concepts} concepts"),
            ("Privacy of the model", privacy_words(private)),
            ("Suture", __version__),
        ],
    }
    caption = (
        "From the site's average patient to this one. Bars add up to the shared model's risk exactly, in log odds; the "
        "site's calibration comes last."
    )
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
    share = min(max(found.calibrated, 1e-9), 1 - 1e-9)
    calibrated = math.log(share / (1 - share))
    # Log odds of the model and of the calibrated risk both end inside the figure, with room for a bar's text.
    floor, ceiling = min(*levels, calibrated) - 0.5, max(*levels, calibrated) + 0.9
    bars = [_bar("This site's average patient", floor, found.base, "total", percent(_sigmoid(found.base)))]
    for i, (name, change) in enumerate(steps):
        bars.append(_bar(name, levels[i], levels[i + 1], "raises" if change > 0 else "lowers", f"× {_factor(change)}"))
    bars.append(_bar("The shared model", floor, found.log_odds, "total", percent(found.risk)))
    moved = calibrated - found.log_odds
    what = "raises" if moved > 0 else "lowers"
    bars.append(_bar("Calibration at this site", found.log_odds, calibrated, what, f"× {_factor(moved)}"))
    bars.append(_bar("This patient", floor, calibrated, "total", percent(found.calibrated)))
    order = [str(bar["name"]) for bar in bars]
    ticks = [math.log(risk / (1 - risk)) for risk in RISKS]
    axis = alt.Axis(
        values=[tick for tick in ticks if floor < tick < ceiling],
        labelExpr="replace(format(1 / (1 + exp(-datum.value)), '.2~p'), '%', ' %')",
    )
    domain = alt.Scale(domain=[floor, ceiling], nice=False, zero=False)
    x = alt.X("from:Q", title="Risk (evenly spaced in log odds)", scale=domain, axis=axis)
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
        "Orange raises, blue lowers; × is what the odds are multiplied by",
    )


def _bar(name: str, start: float, end: float, what: str, text: str) -> dict[str, Any]:
    return {"name": name, "from": start, "to": end, "end": max(start, end), "what": what, "text": text}


def _line(part: Part, federation: bool) -> dict[str, Any]:
    return {
        "label": part.label,
        "value": part.value,
        "percentile": None if part.percentile is None else _percentile(part.percentile, part.margin, federation),
        "effect": f"odds × {_factor(part.contribution)}",
        "reasons": "; ".join(part.reasons),
        "caution": part.caution,
    }


def _warnings(found: Explanation) -> list[str]:
    """Features to be careful with, by why: one line for each reason."""
    why: dict[str, list[str]] = {}
    for part in (*found.amplifiers, *found.mitigators):
        if part.caution:
            why.setdefault(part.caution.split(":")[0], []).append(part.label)
    return [f"{text[0].upper()}{text[1:]}: {', '.join(names)}" for text, names in why.items()]


def _percentile(share: float, margin: float, federation: bool) -> str:
    """Where a value lies, in words.

    >>> _percentile(0.834, 0.0, False), _percentile(0.834, 0.021, True)
    ("Higher than 83 % of this site's patients", "Higher than 83 % (± 3) of all hospitals' patients")
    >>> _percentile(1.0, 0.0, False), _percentile(0.0, 0.0, False)
    ("Higher than 99 % of this site's patients", "Lower than 99 % of this site's patients")
    """
    whose = "all hospitals' patients" if federation else "this site's patients"
    way, at = ("Higher", share) if share >= 0.01 else ("Lower", 1 - share)
    between = f" (± {math.ceil(100 * margin)})" if federation else ""
    return f"{way} than {min(99, round(100 * at))} %{between} of {whose}"


def _factor(contribution: float) -> str:
    return f"{math.exp(contribution):.2f}"


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-max(-40.0, min(40.0, value))))


def percent(share: float) -> str:
    """A share in percent, with one decimal; what is not certain is never rounded to certainty.

    >>> percent(0.123), percent(0.99976), percent(0.0004), percent(1.0)
    ('12.3 %', 'over 99.9 %', 'under 0.1 %', '100.0 %')
    """
    if 0.9995 <= share < 1:
        return "over 99.9 %"
    return "under 0.1 %" if 0 < share < 0.0005 else f"{100 * share:.1f} %"


def privacy_words(private: Mapping[str, Any]) -> str:
    """What is proven about the model, for a page's foot."""
    if not private["protected"]:
        return "none: the model was trained without differential privacy"
    return f"epsilon {private['epsilon']:.3g} at delta {private['delta']:g} for every training patient"
