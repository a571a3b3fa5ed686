"""`suture explain --patient`: one patient's risk by a finished run's model, explained at the
patient's own site in four layers (VEIL, Figure 3): risk, amplifiers, mitigators, notes on the data.

The model is additive over concepts, so the explanation is the model and not an approximation of it:
a contribution is weight * (the patient's concept - the reference patients' mean), and the
reference's log odds plus all contributions *is* the patient's log odds. Concepts of one feature are
shown together, as a clinician reads them.

Only this site's rows are read. Percentiles, calibration and interval come from its own training
patients; on request, percentiles come from histograms that every site has released and charged
(`suture.explain.percentiles`). The page holds a patient's values and figures computed from the
site's rows: it is for that patient's clinicians, at that site.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import altair as alt
import numpy as np
from numpy.typing import NDArray

from suture.engine.federation import images_of, survey
from suture.errors import DataError, StudyError
from suture.evaluation.metrics import platt_fit
from suture.explain.percentiles import Histogram, load_percentiles
from suture.explain.run import (
    LOWERS,
    RAISES,
    TOTAL,
    Answer,
    ConceptModel,
    FinishedRun,
    Floats,
    Rows,
    calibrated_interval,
    cautions,
    file_stem,
    last_rows,
    percent,
    place_of,
    risk_of,
    write_page,
)
from suture.models.concepts import Concept, label_of
from suture.models.hazards import proportional
from suture.report.theme import INK, Figure, finish, table
from suture.schema.outcome import Survival
from suture.schema.outcome import parts as parts_of
from suture.schema.table import Number, Schema
from suture.site.cohort import load
from suture.site.reading import encode_rows, patient_rows

EXTREME = 0.01
RARE = 0.02
SIMILAR_SHARE = 0.25
FEW = 10
MATERIAL = 0.02
"""A contribution to the log odds smaller than this is worth neither a line nor a warning."""
SIDES = {"below": -1, "low": -1, "above": 1, "high": 1}
NOT_MEASURED = "not measured, so it counts as neither low nor high"
MEASURING = Concept("", "", "missing", 0).caution
UNUSUAL = {
    "bound": "At or beyond the declared bounds, counted as the bound",
    "below": "Lower than in 99 % of this site's patients, so the model has little evidence there",
    "above": "Higher than in 99 % of this site's patients, so the model has little evidence there",
    "never": "Never measured in this site's training patients",
    "filled": "Not measured, filled with a neutral value",
}
PER_MILLE = (1, 2, 5, 10, 20, 50, 100, 200, 350, 500, 650, 800, 900, 950, 980, 990)
"""Ticks of the waterfall's axis."""
BARS = 10
"""Contributions in the waterfall; the rest is one bar."""
LISTED = 8
"""Contributions listed on each side."""
CURVE = (
    "Of patients with these values, how many the model expects to be without the event at each time, "
    "after this site's calibration; beside them the site's average patient."
)
CAPTION = (
    "From the site's average patient to this one. Bars add up to the shared model's risk exactly, "
    "in log odds; the site's calibration comes last."
)


@dataclass(frozen=True)
class Part:
    """One feature's contribution to the log odds."""

    feature: str
    label: str
    value: str
    contribution: float
    percentile: float | None
    """Share of the reference patients with a smaller value; None where the feature is missing or
    not a number."""
    margin: float
    """Half of the 95 % interval that the noise of a federation's histogram leaves around
    ``percentile``; 0 for the site's own patients."""
    reasons: tuple[str, ...]
    caution: str


@dataclass(frozen=True)
class Explanation:
    """Everything the page shows. ``log_odds`` = ``base`` + the sum of all contributions, exactly."""

    log_odds: float
    base: float
    parts: tuple[Part, ...]
    interval: tuple[float, float]
    calibrated: float
    notes: tuple[str, ...]
    reference: int
    """The number of reference patients."""
    concepts: int
    hazard: Floats | None = None
    """The baseline's cumulative hazards: then log odds are log hazards, and risks are those by the
    horizon."""

    @property
    def risk(self) -> float:
        """The model's risk."""
        return risk_of(self.log_odds, self.hazard)

    @property
    def scale(self) -> str:
        """What a contribution multiplies."""
        return "odds" if self.hazard is None else "hazard"

    def moving(self, sign: int) -> list[Part]:
        """What raises (1) or lowers (-1) the risk against the reference's, largest first."""
        found = [part for part in self.parts if sign * part.contribution > MATERIAL]
        return sorted(found, key=lambda part: -sign * part.contribution)


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
        split_key=str(run.study.seed), target=world.target, passage=passage, images=images_of(run.study, run.base),
    )  # fmt: skip
    if row is not None:
        rows, name = _row_of_file(row, model.schema), row.stem
    else:
        name = str(patient)
        rows = patient_rows(place.source, model.schema, name, site=site, passage=passage)
    reference, outcomes = last_rows(data.train)
    scores = model.log_odds(reference)
    if model.hazard is None:
        scaling = platt_fit(outcomes, 1 / (1 + np.exp(-scores)))
    else:
        scaling = hazard_fit(outcomes, scores, model.hazard)
    found = explain(model, rows[-1], reference, scaling, histograms)
    moving = (*found.moving(1), *found.moving(-1))
    context = {
        "found": found, "run": run, "site": site, "patient": name, "rows": len(rows),
        "federation": words, "most": LISTED, "percent": percent, "risk_of": risk_of,
        "where": _percentile, "least": f"{100 * math.expm1(MATERIAL):.0f} %", "exp": math.exp,
        "warnings": cautions((part.caution, part.label) for part in moving),
    }  # fmt: skip
    path = (out or run.explanations) / file_stem(site, name)
    charts = {"waterfall": (waterfall(found), CAPTION)}
    if found.hazard is not None and isinstance(world.target, Survival):
        charts["curve"] = (survival_curve(found, world.target), CURVE)
    return {
        **write_page(path, "patient.html", context, charts, f"{site}-{name}"),
        "risk": found.risk,
        "calibrated": found.calibrated,
        "interval": found.interval,
        "amplifiers": [part.label for part in found.moving(1)],
        "mitigators": [part.label for part in found.moving(-1)],
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


def explain(
    model: ConceptModel,
    row: Rows,
    reference: Rows,
    scaling: tuple[tuple[float, float], Floats],
    federation: Mapping[str, Histogram] | None = None,
) -> Explanation:
    """Explain one encoded row against encoded reference rows of the same site; ``federation`` holds
    the histograms that percentiles are read off instead."""
    used = np.flatnonzero(model.weights)
    weights = model.weights[used].astype(np.float64)
    mine = model.concepts.matrix(row[None, :], used)[0].astype(np.float64)
    others = model.concepts.matrix(reference, used).astype(np.float64)
    mean = others.mean(axis=0)
    contributions = weights * (mine - mean)
    base = math.fsum([model.bias, *(weights * mean)])
    features: dict[str, list[tuple[Concept, float, float]]] = {}
    for place, value, change in zip(used, mine, contributions, strict=True):
        concept = model.concepts.items[place]
        features.setdefault(concept.feature, []).append((concept, float(value), float(change)))
    parts = [_part(model.schema, said, row, reference, federation) for said in features.values()]
    log_odds = math.fsum([base, *(part.contribution for part in parts)])
    calibrated, interval = calibrated_interval(log_odds, scaling, model.hazard)
    distance = np.abs(others - mine) @ np.abs(weights)
    similar = np.count_nonzero(distance < SIMILAR_SHARE * float(np.abs(weights).sum()))
    return Explanation(
        log_odds=log_odds,
        base=base,
        parts=tuple(parts),
        interval=interval,
        calibrated=calibrated,
        notes=_notes(model, row, reference, int(similar)),
        reference=len(reference),
        concepts=len(used),
        hazard=model.hazard,
    )


def _part(
    schema: Schema,
    said: list[tuple[Concept, float, float]],
    row: Rows,
    reference: Rows,
    federation: Mapping[str, Histogram] | None,
) -> Part:
    """One feature's part: ``said`` holds its concepts, their values and their contributions."""
    first, total = said[0][0], math.fsum(change for *_, change in said)
    feature, missing = schema.features[first.feature], _missing(first, row)
    # The concepts that speak: present in this patient, or absent where most others have them.
    speaking = sorted(said, key=lambda one: -abs(one[2]))
    reasons = _reasons([(concept, v) for concept, v, change in speaking if abs(change) > 1e-9])[:3]
    caution = _caution([c for c, _, change in said if abs(change) > MATERIAL], measured=not missing)
    if missing:
        # "Not low" would read as a finding, and nothing was found.
        reasons = (NOT_MEASURED,)
        caution = caution or (MEASURING if abs(total) > MATERIAL else "")
    percentile, margin = None, 0.0
    column = _measured(first, reference)
    if first.kind not in ("is", "missing") and not missing and len(column):
        if federation is None:
            percentile = float(np.mean(column < row[first.column]))
        elif isinstance(feature, Number) and first.feature in federation:
            percentile, margin = federation[first.feature].below(_raw(first, feature, row))
    label = label_of(first.feature, feature)
    value = _value([concept for concept, *_ in said], schema, row)
    return Part(first.feature, label, value, total, percentile, margin, reasons, caution)


def _missing(concept: Concept, row: Rows) -> bool:
    return concept.missing >= 0 and row[concept.missing] > 0


def _measured(concept: Concept, reference: Rows) -> Rows:
    """The reference patients' values of a number, of those in whom it was measured."""
    column = reference[:, concept.column]
    return column if concept.missing < 0 else column[reference[:, concept.missing] == 0]


def _caution(speaking: list[Concept], *, measured: bool) -> str:
    """Why a part is not all biology. Where a value was measured, only that fact needs the
    warning."""
    marked = [concept for concept in speaking if concept.caution]
    if not marked:
        return ""
    only_measuring = all(concept.kind == "missing" for concept in marked)
    if measured and only_measuring and len(speaking) > len(marked):
        return "in part only because it was measured: that is not a biological cause; review"
    return marked[0].caution


def _raw(concept: Concept, feature: Number, row: Rows) -> float:
    """A number in its own unit, from its encoded value within [-1, 1]."""
    return feature.low + (float(row[concept.column]) + 1) / 2 * (feature.high - feature.low)


def _value(concepts: list[Concept], schema: Schema, row: Rows) -> str:
    first = concepts[0]
    feature = schema.features[first.feature]
    if first.kind == "missing":
        return "not measured" if row[first.column] > 0 else "measured"
    if _missing(first, row):
        return "not measured"
    if isinstance(feature, Number):
        return f"{float(f'{_raw(first, feature, row):.3g}'):g} {feature.unit}".strip()
    for concept in concepts:
        if concept.kind == "is" and row[concept.column] > 0:
            return concept.name.removeprefix(f"{label_of(first.feature, feature)}: ")
    return "no" if first.name.endswith(": yes") else "another value"


def _reasons(speaking: list[tuple[Concept, float]]) -> tuple[str, ...]:
    """What concepts say in words; of several thresholds on one side, only the one that implies the
    others: below 60 is below 65 too.

    >>> low = [Concept(f"Mean pressure, low (< {at} mmHg)", "map", "low", 0, at=at) for at in (65, 60)]
    >>> _reasons([(low[0], 1.0), (low[1], 1.0)]), _reasons([(low[0], 0.0), (low[1], 0.0)])
    (('low (< 60 mmHg)',), ('not low (< 65 mmHg)',))
    """
    found = []
    for concept, value in speaking:
        if concept.kind == "value":
            found.append("the value itself")
        elif concept.kind == "missing":
            found.append("not measured" if value else "was measured")
        else:
            text, side = concept.name, SIDES.get(concept.kind)
            if side is not None:
                same = [
                    side * c.at
                    for c, v in speaking
                    if SIDES.get(c.kind) == side and bool(v) == bool(value)
                ]
                if side * concept.at != (max(same) if value else min(same)):
                    continue
                text = text.split(", ")[-1]
            found.append(text if value else f"not {text}")
    return tuple(found)


def _notes(model: ConceptModel, row: Rows, reference: Rows, similar: int) -> tuple[str, ...]:
    """What makes the prediction less certain: values that are rare here, were filled in, or have
    few like them."""
    notes: list[str] = []
    found: dict[str, list[str]] = {}
    for concept in model.concepts.items:
        label = label_of(concept.feature, model.schema.features[concept.feature])
        present = row[concept.column] > 0
        if concept.kind == "missing" and present:
            found.setdefault("filled", []).append(label)
        elif concept.kind == "is" and present and not concept.name.endswith(": yes"):
            share = float(np.mean(reference[:, concept.column] > 0))
            if share < RARE:
                notes.append(
                    f"{concept.name}: a rare category here ({share:.1%} of this site's patients)"
                )
        elif concept.kind == "value" and not _missing(concept, row):
            found.setdefault(_rarity(concept, row, reference), []).append(label)
    notes += [f"{text}: {'; '.join(found[key])}" for key, text in UNUSUAL.items() if key in found]
    if similar < FEW:
        notes.append(
            f"Few similar patients: {similar} of this site's {len(reference)} are close to this one"
        )
    return tuple(notes)


def _rarity(concept: Concept, row: Rows, reference: Rows) -> str:
    """Where a value lies among the reference patients': a key of `UNUSUAL`, or "usual"."""
    column, value = _measured(concept, reference), row[concept.column]
    if not len(column):
        return "never"
    low, high = np.quantile(column, [EXTREME, 1 - EXTREME])
    if value < low or value > high:
        return "below" if value < low else "above"
    return "bound" if abs(value) >= 1 else "usual"


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
    calibrated = _score_of(found.calibrated, found.hazard)
    # Log odds of the model and of the calibrated risk both end inside the figure, with room for a
    # bar's text.
    floor, ceiling = min(*levels, calibrated) - 0.5, max(*levels, calibrated) + 0.9
    bars = [
        _bar(
            "This site's average patient",
            floor,
            found.base,
            percent(risk_of(found.base, found.hazard)),
        )
    ]
    bars += [_bar(name, levels[i], levels[i + 1]) for i, (name, _) in enumerate(steps)]
    bars += [
        _bar("The shared model", floor, found.log_odds, percent(found.risk)),
        _bar("Calibration at this site", found.log_odds, calibrated),
        _bar("This patient", floor, calibrated, percent(found.calibrated)),
    ]
    ticks = [_score_of(n / 1000, found.hazard) for n in PER_MILLE]
    risk = "1 / (1 + exp(-datum.value))"
    if found.hazard is not None:
        risk = f"1 - exp(-{max(float(found.hazard[-1]), 1e-9)!r} * exp(datum.value))"
    axis = alt.Axis(
        values=[tick for tick in ticks if floor < tick < ceiling],
        labelExpr=f"replace(format({risk}, '.2~p'), '%', ' %')",
    )
    domain = alt.Scale(domain=[floor, ceiling], nice=False, zero=False)
    title = f"Risk (evenly spaced in log {found.scale})"
    x = alt.X("from:Q", title=title, scale=domain, axis=axis)
    names = alt.Axis(labelLimit=330, ticks=False, domain=False, labelPadding=8)
    y = alt.Y("name:N", sort=[str(bar["name"]) for bar in bars], title=None, axis=names)
    colours = alt.Scale(domain=["raises", "lowers", "total"], range=[RAISES, LOWERS, TOTAL])
    colour = alt.Color("what:N", scale=colours, legend=None)
    drawn = alt.Chart(table(bars))
    text = drawn.mark_text(align="left", dx=6, fontSize=12, color=INK)
    chart = drawn.mark_bar(height=18).encode(x=x, x2="to:Q", y=y, color=colour)
    chart += text.encode(x=alt.X("end:Q"), y=y, text="text:N")
    subtitle = f"Orange raises, blue lowers; × is what the {found.scale} is multiplied by"
    if found.hazard is None:
        subtitle = subtitle.replace("odds is", "odds are")
    chart = chart.properties(width=560, height=alt.Step(28))
    return finish(chart, "What makes this patient's risk differ", subtitle)


def _score_of(risk: float, hazard: Floats | None) -> float:
    """The inverse of `risk_of`."""
    share = min(max(risk, 1e-9), 1 - 1e-9)
    if hazard is None:
        return math.log(share / (1 - share))
    return math.log(-math.log1p(-share) / max(float(hazard[-1]), 1e-9))


def hazard_fit(
    y: NDArray[np.int32], scores: Floats, hazard: Floats, strength: float = 5.0
) -> tuple[tuple[float, float], Floats]:
    """A site's calibration of a proportional hazards model: the log of observed over expected events
    (Crowson, Atkinson & Therneau 2016), shrunk towards none, and its variance.

    >>> found, spread = hazard_fit(np.array([2 * (1 << 20) + 1] * 45), np.zeros(45), np.array([0.5, 1.0]))
    >>> found, float(spread[1, 1])
    ((1.0, 0.0), 0.02)
    """
    grid = np.linspace(0, 1, len(hazard) + 1)
    baseline = np.interp(parts_of(y), grid, np.append(0.0, hazard))
    expected = float(np.sum(baseline * np.exp(np.clip(scores, -40, 40)))) + strength
    observed = float(np.count_nonzero(y & 1)) + strength
    return (1.0, math.log(observed / expected)), np.diag([0.0, 1 / observed])


def survival_curve(found: Explanation, outcome: Survival) -> Figure:
    """The share without the event: of patients like this one, and of the site's average patient."""
    hazard = np.zeros(1) if found.hazard is None else found.hazard
    shift = _score_of(found.calibrated, found.hazard) - found.log_odds
    lines = {"This patient": found.log_odds + shift, "This site's average": found.base + shift}
    rows = [
        {"who": who, "time": float(time), "share": float(1 - risk)}
        for who, score in lines.items()
        for time, risk in zip(
            [0.0, *outcome.edges],
            [0.0, *proportional(np.array([score]), hazard)[0].tolist()],
            strict=True,
        )
    ]
    colours = alt.Scale(domain=list(lines), range=[RAISES, TOTAL])
    chart = alt.Chart(table(rows)).mark_line(point=True)
    chart = chart.encode(
        x=alt.X("time:Q", title=f"{outcome.time} since the values were measured"),
        y=alt.Y("share:Q", title="Share without the event", scale=alt.Scale(domain=[0, 1])),
        color=alt.Color("who:N", scale=colours, legend=alt.Legend(title=None, orient="top")),
        strokeDash=alt.StrokeDash("who:N", legend=None),
    )
    return finish(
        chart.properties(width=520, height=280), "Without the event", "As calibrated here"
    )


def _bar(name: str, start: float, end: float, total: str = "") -> dict[str, float | str]:
    """A change of the log odds, or (with the text ``total``) a level."""
    change = end - start
    what = "total" if total else "raises" if change > 0 else "lowers"
    text = total or f"× {math.exp(change):.2f}"
    bar: dict[str, float | str] = {"name": name, "from": start, "to": end}
    return {**bar, "end": max(start, end), "what": what, "text": text}


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
