"""One patient's risk, taken apart: what each feature contributes, and how certain that is.

The model is additive over concepts, so the explanation is the model and not an approximation of it:
a contribution is weight * (the patient's concept - the reference patients' mean), and the
reference's log odds plus all contributions *is* the patient's log odds. Concepts of one feature are
shown together, as a clinician reads them.

Plain values in, plain values out; `suture.explain.patient` reads the rows and writes the page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from suture.explain.percentiles import Histogram
from suture.explain.run import ConceptModel, Floats, Rows, calibrated_interval, sigmoid
from suture.models.concepts import Concept, label_of
from suture.schema.table import Number, Schema

EXTREME = 0.01
RARE = 0.02
SIMILAR_SHARE = 0.25
FEW = 10
MATERIAL = 0.02
"""A contribution to the log odds smaller than this is worth neither a line nor a warning."""
SIDES = {"below": -1, "low": -1, "above": 1, "high": 1}
NOT_MEASURED = "not measured, so it counts as neither low nor high"
MEASURING = Concept("", "", "missing", 0).caution


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
    reasons: tuple[str, ...]
    caution: str = ""
    margin: float = 0.0
    """Half of the 95 % interval that the noise of a federation's histogram leaves around
    ``percentile``; 0 for the site's own patients."""


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
    concepts: int = 0
    federation: str = ""
    """Where percentiles come from, in words, when not from the site's own patients."""

    @property
    def risk(self) -> float:
        """The model's risk."""
        return sigmoid(self.log_odds)

    @property
    def amplifiers(self) -> list[Part]:
        """What raises the risk above the reference's, largest first."""
        raising = [part for part in self.parts if part.contribution > MATERIAL]
        return sorted(raising, key=lambda part: -part.contribution)

    @property
    def mitigators(self) -> list[Part]:
        """What lowers it, largest first."""
        lowering = [part for part in self.parts if part.contribution < -MATERIAL]
        return sorted(lowering, key=lambda part: part.contribution)


def explain(
    model: ConceptModel,
    row: Rows,
    reference: Rows,
    scaling: tuple[tuple[float, float], Floats],
    federation: Mapping[str, Histogram] | None = None,
) -> Explanation:
    """Explain one encoded row against encoded reference rows of the same site."""
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
    parts = tuple(_part(model.schema, said, row, reference) for said in features.values())
    if federation is not None:
        parts = tuple(
            _among_all(part, features[part.feature][0][0], model.schema, row, federation)
            for part in parts
        )
    log_odds = math.fsum([base, *(part.contribution for part in parts)])
    calibrated, interval = calibrated_interval(log_odds, scaling)
    distance = np.abs(others - mine) @ np.abs(weights)
    similar = np.count_nonzero(distance < SIMILAR_SHARE * float(np.abs(weights).sum()))
    return Explanation(
        log_odds=log_odds,
        base=base,
        parts=parts,
        interval=interval,
        calibrated=calibrated,
        notes=_notes(model, row, reference, int(similar)),
        reference=len(reference),
        concepts=len(used),
    )


def _part(
    schema: Schema, said: list[tuple[Concept, float, float]], row: Rows, reference: Rows
) -> Part:
    """One feature's part: ``said`` holds its concepts, their values and their contributions."""
    first, total = said[0][0], math.fsum(change for *_, change in said)
    missing = _missing(first, row)
    # The concepts that speak: present in this patient, or absent where most others have them.
    speaking = sorted(said, key=lambda one: -abs(one[2]))
    reasons = _reasons([(concept, v) for concept, v, change in speaking if abs(change) > 1e-9])[:3]
    caution = _caution([c for c, _, change in said if abs(change) > MATERIAL], measured=not missing)
    if missing:
        # "Not low" would read as a finding, and nothing was found.
        reasons = (NOT_MEASURED,)
        caution = caution or (MEASURING if abs(total) > MATERIAL else "")
    percentile = None
    if first.kind not in ("is", "missing") and not missing:
        column = _measured(first, reference)
        percentile = float(np.mean(column < row[first.column])) if len(column) else None
    label = label_of(first.feature, schema.features[first.feature])
    value = _value([concept for concept, *_ in said], schema, row)
    return Part(first.feature, label, value, total, percentile, reasons, caution)


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


def _among_all(
    part: Part, first: Concept, schema: Schema, row: Rows, federation: Mapping[str, Histogram]
) -> Part:
    """The part with its percentile among the federation's patients; none where no histogram was
    released."""
    feature = schema.features[part.feature]
    known = part.percentile is not None and part.feature in federation
    if not known or not isinstance(feature, Number):
        return replace(part, percentile=None)
    share, margin = federation[part.feature].below(_raw(first, feature, row))
    return replace(part, percentile=share, margin=margin)


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
    texts = {
        "bound": "At or beyond the declared bounds, counted as the bound",
        "below": "Lower than in 99 % of this site's patients, so the model has little evidence there",
        "above": "Higher than in 99 % of this site's patients, so the model has little evidence there",
        "never": "Never measured in this site's training patients",
        "filled": "Not measured, filled with a neutral value",
    }
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
    notes += [f"{text}: {'; '.join(found[key])}" for key, text in texts.items() if key in found]
    if similar < FEW:
        notes.append(
            f"Few similar patients: {similar} of this site's {len(reference)} are close to this one"
        )
    return tuple(notes)


def _rarity(concept: Concept, row: Rows, reference: Rows) -> str:
    """Where a value lies among the reference patients': a key of the notes, or "usual"."""
    column, value = _measured(concept, reference), row[concept.column]
    if not len(column):
        return "never"
    low, high = np.quantile(column, [EXTREME, 1 - EXTREME])
    if value < low or value > high:
        return "below" if value < low else "above"
    return "bound" if abs(value) >= 1 else "usual"
