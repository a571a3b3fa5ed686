"""`suture explain --patient`: one patient's risk by a finished run's model, explained at the
patient's own site in four layers (VEIL, Figure 3): risk, amplifiers, mitigators, notes on the data.

Only this site's rows are read. Percentiles, calibration and interval come from its own training
patients; on request, percentiles come from histograms that every site has released and charged
(`suture.explain.percentiles`). The page holds a patient's values and figures computed from the
site's rows: it is for that patient's clinicians, at that site.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import altair as alt
import numpy as np

from suture.engine.federation import images_of, survey
from suture.errors import DataError, StudyError
from suture.evaluation.metrics import platt_fit
from suture.explain.contributions import MATERIAL, Explanation, Part, explain
from suture.explain.percentiles import load_percentiles
from suture.explain.run import (
    LOWERS,
    RAISES,
    TOTAL,
    Answer,
    FinishedRun,
    Rows,
    cautions,
    file_stem,
    last_rows,
    percent,
    place_of,
    privacy_words,
    sigmoid,
)
from suture.privacy.software import VERSION
from suture.report.shell import fill, put
from suture.report.theme import INK, Figure, finish, save, table
from suture.schema.table import Schema
from suture.site.cohort import load
from suture.site.reading import encode_rows, patient_rows

PER_MILLE = (1, 2, 5, 10, 20, 50, 100, 200, 350, 500, 650, 800, 900, 950, 980, 990)
"""Ticks of the waterfall's axis."""
BARS = 10
"""Contributions in the waterfall; the rest is one bar."""
LISTED = 8
"""Contributions listed on each side."""
CAPTION = (
    "From the site's average patient to this one. Bars add up to the shared model's risk exactly, "
    "in log odds; the site's calibration comes last."
)


def explain_patient(
    folder: str | Path,
    *,
    site: str,
    patient: str | None = None,
    row: Path | None = None,
    out: Path | None = None,
    percentiles: str = "site",
) -> Answer:
    """Explain one patient of a site, by identifier or from a file with one row; writes a page and a
    picture."""
    if (patient is None) == (row is None):
        raise StudyError(
            "give --patient ID, or --row FILE with one row: suture explain RUN --site S --patient ID"
        )
    if percentiles not in ("site", "federation"):
        raise StudyError(f"--percentiles: expected site or federation, found {percentiles!r}")
    run = FinishedRun.open(folder)
    model = run.concept_model("explaining a patient")
    histograms, words = load_percentiles(run.folder) if percentiles == "federation" else (None, "")
    world = survey(run.study, run.base, run.study.seed)
    place, admission = place_of(world, site), world.admissions.get(site)
    # Who is erased or withdrew is neither explained nor compared with.
    passage = admission.passage if admission else None
    data = load(
        place.source, world.schema, world.outcome, site=site, holdout=0.0,
        split_key=str(run.study.seed), passage=passage, images=images_of(run.study, run.base),
    )  # fmt: skip
    if row is not None:
        rows = _row_of_file(row, model.schema)
    else:
        rows = patient_rows(place.source, model.schema, str(patient), site=site, passage=passage)
    reference, outcomes = last_rows(data.train)
    scaling = platt_fit(outcomes, 1 / (1 + np.exp(-model.log_odds(reference))))
    found = explain(model, rows[-1], reference, scaling, histograms)
    found = replace(found, federation=words)
    name = patient if patient is not None else Path(str(row)).stem
    target = out or run.folder / "explanations"
    target.mkdir(parents=True, exist_ok=True)
    stem = file_stem(site, name)
    html, png = target / f"{stem}.html", target / f"{stem}.png"
    _write(found, run, (site, name, len(rows)), html, png)
    return {
        "page": str(html),
        "picture": str(png),
        "risk": found.risk,
        "calibrated": found.calibrated,
        "interval": found.interval,
        "amplifiers": [part.label for part in found.amplifiers],
        "mitigators": [part.label for part in found.mitigators],
        "notes": list(found.notes),
        "percentiles": percentiles,
    }


def _row_of_file(path: Path, schema: Schema) -> Rows:
    import pandas as pd

    try:
        json = path.suffix == ".json"
        table = pd.read_json(path, orient="records") if json else pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise DataError(
            f"--row {path}: cannot be read as a table with one row ({type(error).__name__})"
        ) from None
    if len(table) != 1:
        raise DataError(f"--row {path}: expected one row, found {len(table)}")
    return encode_rows({str(name): table[name].to_numpy() for name in table.columns}, schema)


def _write(
    found: Explanation, run: FinishedRun, who: tuple[str, str, int], html: Path, png: Path
) -> None:
    """Write the page and the picture; ``who`` is the site, the patient and their number of rows."""
    site, patient, rows = who
    chart = waterfall(found)
    context = {
        "patient": patient,
        "site": site,
        "study": run.record["name"],
        "outcome": run.outcome,
        "risk": percent(found.calibrated),
        "model_risk": percent(found.risk),
        "base": percent(sigmoid(found.base)),
        "interval": f"{percent(found.interval[0])} to {percent(found.interval[1])}",
        "reference": f"{found.reference:,}",
        "rows": rows,
        "amplifiers": [_line(part, bool(found.federation)) for part in found.amplifiers[:LISTED]],
        "mitigators": [_line(part, bool(found.federation)) for part in found.mitigators[:LISTED]],
        "federation": found.federation,
        "more": len(found.amplifiers[LISTED:]) + len(found.mitigators[LISTED:]),
        "warnings": cautions(
            (part.caution, part.label) for part in (*found.amplifiers, *found.mitigators)
        ),
        "least": f"{100 * math.expm1(MATERIAL):.0f} %",
        "notes": found.notes,
        "concepts": found.concepts,
        "footer": [
            ("Model", f"{run.label}, {found.concepts} concepts"),
            ("Privacy of the model", privacy_words(run.record["privacy"])),
            ("Suture", VERSION),
        ],
    }
    charts, captions = {"waterfall": chart}, {"waterfall": CAPTION}
    put(fill("patient.html", context, charts, captions, f"{site}-{patient}"), html)
    save(chart, png)


def waterfall(found: Explanation) -> Figure:
    """From the average patient, by the largest contributions and the rest together, to this
    patient."""
    ordered = sorted(found.parts, key=lambda part: -abs(part.contribution))
    steps = [(f"{part.label}: {part.value}", part.contribution) for part in ordered[:BARS]]
    if rest := ordered[BARS:]:
        steps.append((f"{len(rest)} other features", sum(part.contribution for part in rest)))
    levels = [found.base]
    for _, change in steps:
        levels.append(levels[-1] + change)
    share = min(max(found.calibrated, 1e-9), 1 - 1e-9)
    calibrated = math.log(share / (1 - share))
    # Log odds of the model and of the calibrated risk both end inside the figure, with room for a
    # bar's text.
    floor, ceiling = min(*levels, calibrated) - 0.5, max(*levels, calibrated) + 0.9

    def total(name: str, end: float, risk: float) -> dict[str, float | str]:
        return _bar(name, floor, end, "total", percent(risk))

    bars = [total("This site's average patient", found.base, sigmoid(found.base))]
    bars += [_step(name, *levels[i : i + 2]) for i, (name, _) in enumerate(steps)]
    bars.append(total("The shared model", found.log_odds, found.risk))
    bars.append(_step("Calibration at this site", found.log_odds, calibrated))
    bars.append(total("This patient", calibrated, found.calibrated))
    ticks = [math.log(n / (1000 - n)) for n in PER_MILLE]
    axis = alt.Axis(
        values=[tick for tick in ticks if floor < tick < ceiling],
        labelExpr="replace(format(1 / (1 + exp(-datum.value)), '.2~p'), '%', ' %')",
    )
    domain = alt.Scale(domain=[floor, ceiling], nice=False, zero=False)
    x = alt.X("from:Q", title="Risk (evenly spaced in log odds)", scale=domain, axis=axis)
    names = alt.Axis(labelLimit=330, ticks=False, domain=False, labelPadding=8)
    y = alt.Y("name:N", sort=[str(bar["name"]) for bar in bars], title=None, axis=names)
    colours = alt.Scale(domain=["raises", "lowers", "total"], range=[RAISES, LOWERS, TOTAL])
    colour = alt.Color("what:N", scale=colours, legend=None)
    drawn = alt.Chart(table(bars))
    text = drawn.mark_text(align="left", dx=6, fontSize=12, color=INK)
    chart = drawn.mark_bar(height=18).encode(x=x, x2="to:Q", y=y, color=colour)
    chart += text.encode(x=alt.X("end:Q"), y=y, text="text:N")
    subtitle = "Orange raises, blue lowers; × is what the odds are multiplied by"
    chart = chart.properties(width=560, height=alt.Step(28))
    figure: Figure = finish(chart, "What makes this patient's risk differ", subtitle)
    return figure


def _bar(name: str, start: float, end: float, what: str, text: str) -> dict[str, float | str]:
    bar: dict[str, float | str] = {"name": name, "from": start, "to": end}
    return {**bar, "end": max(start, end), "what": what, "text": text}


def _step(name: str, start: float, end: float) -> dict[str, float | str]:
    change = end - start
    return _bar(name, start, end, "raises" if change > 0 else "lowers", f"× {math.exp(change):.2f}")


def _line(part: Part, federation: bool) -> dict[str, str | None]:
    where = None
    if part.percentile is not None:
        where = _percentile(part.percentile, part.margin, federation)
    return {
        "label": part.label,
        "value": part.value,
        "percentile": where,
        "effect": f"odds × {math.exp(part.contribution):.2f}",
        "reasons": "; ".join(part.reasons),
        "caution": part.caution,
    }


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
