"""One patient explained, in four layers (paper 000, Figure 3): risk, amplifiers, mitigators, notes on the data.

The model is additive over concepts, so the explanation is the model and not an approximation of it: contributions are
weight * (the patient's concept - the reference patients' mean), and the reference's log odds plus all contributions *is*
the patient's log odds. Concepts of one feature are shown together, as a clinician reads them.

The reference is the site's own training patients: nothing leaves the site. What is made here holds a patient's values
and figures computed from the site's rows; it is for that patient's clinician, at that site.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from suture.models.concepts import Concept, Concepts

Floats = NDArray[np.float64]
Scaling = tuple[tuple[float, float], Floats]
"""Slope and intercept of the site's own Platt scaling, and their covariance."""
EXTREME = 0.01
RARE = 0.02
SIMILAR_SHARE = 0.25
FEW = 10
MATERIAL = 0.02
"""Contributions to the log odds smaller than this are not worth a line, nor a warning."""

SIDES = {"below": -1, "low": -1, "above": 1, "high": 1}
NOT_MEASURED = "not measured, so it counts as neither low nor high"
MEASURING = "tells of what was measured: not a biological cause; review"


@dataclass(frozen=True)
class Part:
    """One feature's contribution to the log odds."""

    feature: str
    label: str
    value: str
    contribution: float
    percentile: float | None
    """Share of the reference patients with a smaller value; None where the feature is not a number or is missing."""
    reasons: tuple[str, ...]
    caution: str = ""
    margin: float = 0.0
    """What the noise of a federation's histogram leaves open about ``percentile`` (95 %); 0 for the site's own patients."""


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
    concepts: int = 0
    warnings: tuple[str, ...] = field(default=())
    federation: str = ""
    """Where percentiles come from, in words, when not from the site's own patients."""

    @property
    def risk(self) -> float:
        """The model's risk."""
        return sigmoid(self.log_odds)

    @property
    def amplifiers(self) -> tuple[Part, ...]:
        """What raises the risk above the reference's, largest first."""
        return tuple(sorted((p for p in self.parts if p.contribution > MATERIAL), key=lambda p: -p.contribution))

    @property
    def mitigators(self) -> tuple[Part, ...]:
        """What lowers it, largest first."""
        return tuple(sorted((p for p in self.parts if p.contribution < -MATERIAL), key=lambda p: p.contribution))


@dataclass(frozen=True)
class Named:
    """How a feature's values read: its label, unit and bounds; texts of a category by encoded column."""

    label: str
    unit: str = ""
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Histogram:
    """A noisy histogram of one number over the federation: public edges, noisy counts, the noise's deviation in each."""

    edges: Floats
    counts: Floats
    deviation: float

    def below(self, value: float) -> tuple[float, float]:
        """The share of patients below a value, read off between the edges, and the half width that noise leaves open.

        >>> found = Histogram(np.array([0.0, 1.0, 2.0]), np.array([60.0, 40.0]), 1.0).below(1.5)
        >>> round(found[0], 3), round(found[1], 3)
        (0.8, 0.012)
        """
        cumulative = np.concatenate(([0.0], np.cumsum(self.counts)))
        total = float(cumulative[-1])
        if total <= 0:
            return 0.5, 0.5
        # The true cumulative counts never fall: the mean of the least increasing curve above and the greatest below.
        rising = (np.maximum.accumulate(cumulative) + np.minimum.accumulate(cumulative[::-1])[::-1]) / 2
        share = float(np.clip(np.interp(value, self.edges, rising) / total, 0, 1))
        bins = float(np.clip(np.interp(value, self.edges, np.arange(len(self.edges))), 0, len(self.counts)))
        spread = math.sqrt((1 - share) ** 2 * bins + share**2 * (len(self.counts) - bins))
        return share, min(0.5, 1.959964 * self.deviation * spread / total)


def sigmoid(logit: float) -> float:
    """The risk of log odds.

    >>> sigmoid(0.0)
    0.5
    """
    return 1 / (1 + math.exp(-max(-40.0, min(40.0, logit))))


def explain(
    concepts: Concepts,
    weights: NDArray[np.float32],
    bias: float,
    row: NDArray[np.float32],
    reference: NDArray[np.float32],
    names: dict[str, Named],
    platt: Scaling,
    federation: Mapping[str, Histogram] | None = None,
) -> Explanation:
    """The explanation of one encoded row against encoded reference rows of the same site."""
    ids = np.flatnonzero(weights)
    known = [concepts.items[i] for i in ids]
    w = weights[ids].astype(np.float64)
    mine = concepts.matrix(row[None, :], ids)[0].astype(np.float64)
    others = concepts.matrix(reference, ids).astype(np.float64)
    mean = others.mean(axis=0)
    contributions = w * (mine - mean)
    base = math.fsum([bias, *(w * mean)])
    parts = _parts(known, contributions, mine, row, reference, names)
    if federation is not None:
        parts = tuple(_among_all(part, known, row, names[part.feature], federation) for part in parts)
    log_odds = math.fsum([base, *(part.contribution for part in parts)])
    calibrated, interval = calibrated_interval(log_odds, platt)
    return Explanation(
        log_odds=log_odds,
        base=base,
        parts=parts,
        interval=interval,
        calibrated=calibrated,
        notes=_notes(concepts, row, reference, names, mine, others, np.abs(w)),
        reference=len(reference),
        concepts=len(ids),
        warnings=tuple(dict.fromkeys(f"{part.label}: {part.caution}" for part in parts if part.caution)),
    )


def _parts(
    known: list[Concept],
    contributions: Floats,
    mine: Floats,
    row: NDArray[np.float32],
    reference: NDArray[np.float32],
    names: dict[str, Named],
) -> tuple[Part, ...]:
    parts = []
    for feature in dict.fromkeys(concept.feature for concept in known):
        places = [i for i, concept in enumerate(known) if concept.feature == feature]
        first, total = known[places[0]], math.fsum(contributions[i] for i in places)
        # The concepts that speak: present in this patient, or missing from them where most others have them.
        telling = sorted(places, key=lambda i: -abs(contributions[i]))
        reasons = _reasons([(known[i], float(mine[i])) for i in telling if abs(contributions[i]) > 1e-9])[:3]
        percentile = None
        if first.kind not in ("is", "missing") and not _missing(first, row):
            column = reference[:, first.column]
            present = np.ones(len(column), bool) if first.missing < 0 else reference[:, first.missing] == 0
            if present.any():
                percentile = float(np.mean(column[present] < row[first.column]))
        material = [i for i in places if abs(contributions[i]) > MATERIAL]
        caution = _caution([known[i] for i in material], measured=not _missing(first, row))
        if first.kind != "missing" and _missing(first, row):
            # "Not low" would read as a finding, and nothing was found.
            reasons = (NOT_MEASURED,)
            caution = caution or (MEASURING if abs(total) > MATERIAL else "")
        parts.append(
            Part(
                feature,
                names[feature].label,
                _value(first, known, row, names[feature]),
                total,
                percentile,
                reasons,
                caution,
            )
        )
    return tuple(parts)


def _caution(speaking: list[Concept], *, measured: bool) -> str:
    """Why the part is not all biology. Of a value that was measured only that fact needs the warning."""
    marked = [concept for concept in speaking if concept.caution]
    if not marked:
        return ""
    if measured and all(concept.kind == "missing" for concept in marked) and len(speaking) > len(marked):
        return "in part only because it was measured: that is not a biological cause; review"
    return marked[0].caution


def _among_all(
    part: Part, known: list[Concept], row: NDArray[np.float32], name: Named, federation: Mapping[str, Histogram]
) -> Part:
    """The part with its percentile among the federation's patients; none where no histogram was released."""
    if part.percentile is None or part.feature not in federation or name.low is None or name.high is None:
        return replace(part, percentile=None)
    column = next(concept.column for concept in known if concept.feature == part.feature)
    value = name.low + (float(row[column]) + 1) / 2 * (name.high - name.low)
    share, margin = federation[part.feature].below(value)
    return replace(part, percentile=share, margin=margin)


def _missing(concept: Concept, row: NDArray[np.float32]) -> bool:
    return concept.missing >= 0 and row[concept.missing] > 0


def _value(first: Concept, known: list[Concept], row: NDArray[np.float32], name: Named) -> str:
    if first.kind == "missing":
        return "not measured" if row[first.column] > 0 else "measured"
    if _missing(first, row):
        return "not measured"
    if name.low is not None and name.high is not None:
        value = name.low + (float(row[first.column]) + 1) / 2 * (name.high - name.low)
        return f"{float(f'{value:.3g}'):g} {name.unit}".strip()
    for concept in known:
        if concept.feature == first.feature and concept.kind == "is" and row[concept.column] > 0:
            return concept.name.removeprefix(f"{name.label}: ")
    return "no" if first.name.endswith(": yes") else "another value"


def _reasons(speaking: list[tuple[Concept, float]]) -> tuple[str, ...]:
    """In words; of several thresholds on one side only the one that says the others: below 60 is below 65 too.

    >>> low = [Concept(f"Mean pressure, low (< {at} mmHg)", "map", "low", 0, at=at) for at in (65, 60)]
    >>> _reasons([(low[0], 1.0), (low[1], 1.0)]), _reasons([(low[0], 0.0), (low[1], 0.0)])
    (('low (< 60 mmHg)',), ('not low (< 65 mmHg)',))
    """
    found = []
    for concept, value in speaking:
        side = SIDES.get(concept.kind)
        if side is not None:
            alike = [side * c.at for c, v in speaking if SIDES.get(c.kind) == side and bool(v) == bool(value)]
            if side * concept.at != (max(alike) if value else min(alike)):
                continue
        found.append(_reason(concept, value))
    return tuple(found)


def _reason(concept: Concept, value: float) -> str:
    """In plain words what the concept says of this patient."""
    text = concept.name.split(", ")[-1] if concept.kind in ("below", "above", "low", "high") else concept.name
    if concept.kind == "value":
        return "the value itself"
    if concept.kind == "missing":
        return "not measured" if value else "was measured"
    if concept.kind == "is":
        return text if value else f"not {text}"
    return text if value else f"not {text}"


def calibrated_interval(log_odds: float, platt: Scaling) -> tuple[float, tuple[float, float]]:
    """The calibrated risk and its 95 % interval: what the site's own patients leave open about the scaling.

    >>> risk, (low, high) = calibrated_interval(0.0, ((1.0, 0.0), np.eye(2) / 100))
    >>> risk, round(low, 3), round(high, 3)
    (0.5, 0.451, 0.549)
    """
    (slope, intercept), covariance = platt
    at = np.array([log_odds, 1.0])
    half = 1.959964 * math.sqrt(float(at @ covariance @ at))
    middle = slope * log_odds + intercept
    return sigmoid(middle), (sigmoid(middle - half), sigmoid(middle + half))


def _notes(
    concepts: Concepts,
    row: NDArray[np.float32],
    reference: NDArray[np.float32],
    names: dict[str, Named],
    mine: Floats,
    others: Floats,
    weight: Floats,
) -> tuple[str, ...]:
    """What makes the prediction less sure: values that are rare here, were filled in, or have few like them."""
    notes: list[str] = []
    found: dict[str, list[str]] = {key: [] for key in ("bound", "below", "above", "never", "filled")}
    for concept in concepts.items:
        label = names[concept.feature].label
        if concept.kind == "missing" and row[concept.column] > 0:
            found["filled"].append(label)
        elif concept.kind == "is" and row[concept.column] > 0 and not concept.name.endswith(": yes"):
            share = float(np.mean(reference[:, concept.column] > 0))
            if share < RARE:
                notes.append(f"{concept.name}: a rare category here ({share:.1%} of this site's patients)")
        elif concept.kind == "value" and not _missing(concept, row):
            found.setdefault(_place(concept, row, reference), []).append(label)
    texts = {
        "bound": "At or beyond the declared bounds, counted as the bound",
        "below": "Lower than in 99 % of this site's patients, so the model has little evidence there",
        "above": "Higher than in 99 % of this site's patients, so the model has little evidence there",
        "never": "Never measured in this site's training patients",
        "filled": "Not measured, filled with a neutral value",
    }
    notes += [f"{text}: {'; '.join(found[key])}" for key, text in texts.items() if found[key]]
    distance = np.abs(others - mine) @ weight
    similar = int(np.count_nonzero(distance < SIMILAR_SHARE * float(weight.sum())))
    if similar < FEW:
        notes.append(f"Few similar patients: {similar} of this site's {len(others)} are close to this one")
    return tuple(notes)


def _place(concept: Concept, row: NDArray[np.float32], reference: NDArray[np.float32]) -> str:
    """Where a value lies among the reference patients': a key of the notes, or "usual"."""
    column, value = reference[:, concept.column], row[concept.column]
    if concept.missing >= 0:
        column = column[reference[:, concept.missing] == 0]
    if not len(column):
        return "never"
    low, high = np.quantile(column, [EXTREME, 1 - EXTREME])
    if value < low or value > high:
        return "below" if value < low else "above"
    return "bound" if abs(value) >= 1 else "usual"
