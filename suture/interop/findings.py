"""Findings: all flags of one site and feature in words: direction, certainty, meaning, question.

The words are rules of thumb on top of the tests: what *probably* stands behind a difference. Only
the difference is tested; the meaning is for the hospital to confirm, which is why every finding
ends with a question.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from suture.interop.evidence import FEWEST, Flag
from suture.schema.table import Number, Schema
from suture.site.profile import Profile, profile_columns

FACTORS = {
    "cholesterol in mmol/L instead of mg/dL": 1 / 38.67,
    "glucose in mmol/L instead of mg/dL": 1 / 18.02,
    "creatinine in µmol/L instead of mg/dL": 88.4,
    "kPa instead of mmHg": 1 / 7.5006,
    "pounds instead of kilograms": 2.2046,
    "inches instead of centimetres": 1 / 2.54,
    "hours instead of days": 24.0,
    "days instead of weeks": 7.0,
    "months instead of years": 12.0,
    "a decimal point moved by one place": 10.0,
    "per cent instead of shares, or centi-units": 100.0,
    "milli-units (a factor of 1,000)": 1000.0,
}
"""Well-known conversions, as the value here over the value elsewhere; each also the other way
round."""


TEXTS = {
    "outcome turned round": (
        "The outcome is probably coded the other way here: 0 for what others call 1.",
        "What does 1 stand for in your outcome column?",
    ),
    "recorded by outcome": (
        "{label} is probably recorded only, or mostly, for patients {who} the outcome: a model can "
        "read the outcome off the gap.",
        "When is {label} written down, and for whom is it left out?",
    ),
    "never recorded": (
        "{label} is never recorded here, or stands under another name or code.",
        "Is {label} measured? Is a code such as 0 or -9 written where it is missing?",
    ),
    "recorded less often": (
        "{label} is {often} recorded here, or stands under another name or code.",
        "Is {label} measured? Is a code such as 0 or -9 written where it is missing?",
    ),
    "recorded only here": (
        "{label} is recorded here and hardly elsewhere: no other hospital can learn from it or "
        "check it.",
        "Which patients get {label}, and could other hospitals record it too?",
    ),
    "recorded mostly here": (
        "{label} is recorded here and seldom elsewhere.",
        "Which patients get {label}, and could other hospitals record it too?",
    ),
    "recorded more often": (
        "{label} is recorded here more often than elsewhere.",
        "Which patients get {label}, and could other hospitals record it too?",
    ),
    "different population or definition": (
        "{which} is {less} common here: another population, or another definition.",
        "How is {label} defined and asked for?",
    ),
    "unit or scale": (
        "{label} is probably in another unit or on another scale here{guess}.",
        "In which unit is {label} written, and on which instrument was it measured?",
    ),
    "shifted": (
        "{label} is {direction} here: another population, another calibration, or a constant added.",
        "Do your patients differ in {label}, or how it is measured?",
    ),
    "other spread": (
        "{label} varies {less} here: another instrument, rounding, or a selected population.",
        "How is {label} measured and rounded?",
    ),
    "tied to the outcome differently": (
        "{label} says something else about the outcome here: permuted or mismatched rows, another "
        "definition.",
        "Does {label} belong to the same patient and time as the outcome?",
    ),
    "outside the bounds": (
        "{label} is probably in another unit here, or a code such as 0 stands for missing.",
        "In which unit is {label} written?",
    ),
    "one value only": ("{label} is a default or a code.", "Where does {label} come from?"),
}
"""For every kind of finding: what it probably means, and what to ask."""


@dataclass(frozen=True)
class Raw:
    """A number's mean and deviation in its own unit, here and elsewhere."""

    mean: float
    spread: float
    mean_elsewhere: float
    spread_elsewhere: float

    def multiplied(self) -> bool:
        """Whether mean and spread differ by one factor, at least 1.35, as a change of unit makes
        them."""
        if min(self.mean, self.mean_elsewhere, self.spread, self.spread_elsewhere) <= 0:
            return False
        by_mean = math.log(self.mean / self.mean_elsewhere)
        by_spread = math.log(self.spread / self.spread_elsewhere)
        return abs(by_mean) > 0.3 and abs(by_mean - by_spread) < 0.25


class Words(NamedTuple):
    """What a finding says, apart from where and how surely; ``more`` fills the texts of its kind."""

    kind: str
    direction: str
    detail: str
    more: Mapping[str, str] = {}


@dataclass(frozen=True)
class Finding:
    """What one hospital is to be asked about one feature."""

    site: str
    feature: str
    label: str
    kind: str
    direction: str
    detail: str
    p: float
    sure: str
    means: str
    ask: str

    @classmethod
    def of(cls, where: tuple[str, str, str], words: Words, p: float, certainty: str) -> Finding:
        """``where`` is the site, the feature and its label."""
        kind, direction, detail, more = words
        fields = {"label": where[2], "direction": direction, **more}
        means, ask = (text.format(**fields) for text in TEXTS[kind])
        return cls(*where, kind, direction, detail, p, certainty, means, ask)


def sure(p: float) -> str:
    """How sure, in words: the chance of such a flag anywhere in the report if every site were
    within tolerance.

    >>> sure(1e-9), sure(0.004)
    ('practically certain (under 1 in a million)', 'sure (under 1 in 100)')
    """
    if p < 1e-6:
        return "practically certain (under 1 in a million)"
    return "very sure (under 1 in 10,000)" if p < 1e-4 else "sure (under 1 in 100)"


def label_of(schema: Schema, feature: str) -> str:
    """What a feature is called: its label, or its column's name in words."""
    declared = schema.features.get(feature)
    return (declared.label if declared else "") or feature.replace("_", " ")


def findings(
    flags: Sequence[Flag], schema: Schema, profiles: Mapping[str, Profile] | None = None
) -> list[Finding]:
    """One finding per site and feature, most certain first; of several flags the one that explains
    most leads.

    Exact ``profiles`` let a ratio of raw means be compared with well-known conversions of units.
    """
    groups: dict[tuple[str, str], dict[str, Flag]] = {}
    for flag in flags:  # the most certain of each test comes first
        groups.setdefault((flag.site, flag.feature), {}).setdefault(flag.test, flag)
    found = []
    for (site, feature), tests in groups.items():
        label, p = label_of(schema, feature), min(flag.p for flag in tests.values())
        raw = _raw(profiles or {}, site, feature, schema)
        number = isinstance(schema.features.get(feature), Number)
        words = _words(tests, label, number, raw)
        found.append(Finding.of((site, feature, label), words, p, sure(p)))
    # A hospital that records more than others is worth knowing and seldom a fault: it comes last.
    return sorted(found, key=lambda f: (f.kind == "recorded more often", f.p, f.site, f.feature))


def _raw(profiles: Mapping[str, Profile], site: str, feature: str, schema: Schema) -> Raw | None:
    """Raw means and deviations of a number: here, and the median elsewhere; None where they are not
    known exactly."""
    declared = schema.features.get(feature)
    noisy = any(profile.noise for profile in profiles.values())
    if site not in profiles or not isinstance(declared, Number) or noisy:
        return None
    row = list(schema.features).index(feature)
    column = [name for name, _ in profile_columns(schema)].index(feature)
    half = (declared.high - declared.low) / 2

    def figures(profile: Profile) -> tuple[float, float] | None:
        n = float(profile.recorded[row].sum())
        if n < FEWEST:
            return None
        mean = float(profile.total[column].sum()) / n
        spread = math.sqrt(max(float(profile.squares[column].sum()) / n - mean * mean, 0.0))
        return (mean + 1) * half + declared.low, spread * half

    here = figures(profiles[site])
    others = [figures(profile) for name, profile in profiles.items() if name != site]
    known = [pair for pair in others if pair is not None]
    if here is None or not known:
        return None
    means, spreads = zip(*known, strict=True)
    return Raw(*here, statistics.median(means), statistics.median(spreads))


def _words(tests: Mapping[str, Flag], label: str, number: bool, raw: Raw | None) -> Words:
    """The words of the test that explains most."""
    if flip := tests.get("flip"):
        return turned_round(
            "The features point to the outcome the other way round (slope "
            f"{flip.here:.2f}; 1 elsewhere)."
        )
    recorded, by_outcome = tests.get("recorded"), tests.get("recorded by outcome")
    if by_outcome and (not recorded or abs(by_outcome.size) > abs(recorded.size)):
        who = "with" if by_outcome.size > 0 else "without"
        detail = (
            f"Patients {who} the outcome have a value more often, by "
            f"{_percent(abs(by_outcome.here))} (elsewhere {_percent(by_outcome.elsewhere)})."
        )
        return recorded_by_outcome(by_outcome.size > 0, detail)
    if recorded:
        return _recorded(recorded)
    if "mean" in tests or "spread" in tests:
        return _values(tests, label, number, raw)
    tie = tests["tie"]
    weaker = "weaker" if tie.size * tie.elsewhere < 0 else "stronger"
    direction = "reversed" if tie.here * tie.elsewhere < 0 else weaker
    detail = (
        f"{tie.column}: patients with the outcome differ from those without by {tie.here:+.1f} "
        f"standard deviations (elsewhere {tie.elsewhere:+.1f})."
    )
    return Words("tied to the outcome differently", direction, detail)


def turned_round(detail: str) -> Words:
    """The outcome is coded the other way; ``detail`` says how that shows."""
    return Words("outcome turned round", "reversed", detail)


def recorded_by_outcome(positives: bool, detail: str) -> Words:
    """A column is recorded more often for patients with the outcome, or for those without."""
    direction = "more for positives" if positives else "more for negatives"
    more = {"who": "with" if positives else "without"}
    return Words("recorded by outcome", direction, detail, more)


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def _recorded(flag: Flag) -> Words:
    here, elsewhere = flag.here, flag.elsewhere
    detail = f"Recorded for {_percent(here)} of patients (elsewhere {_percent(elsewhere)})."
    if flag.size < 0:
        kind = "never recorded" if here < 0.02 else "recorded less often"
        return Words(kind, "lower", detail, {"often": "rarely" if here < 0.3 else "less often"})
    kind = "recorded mostly here" if here - elsewhere > 0.6 else "recorded more often"
    return Words("recorded only here" if elsewhere <= 0.1 else kind, "higher", detail)


def _values(tests: Mapping[str, Flag], label: str, number: bool, raw: Raw | None) -> Words:
    mean, spread = tests.get("mean"), tests.get("spread")
    lead = mean or tests["spread"]
    lower = lead.size < 0
    direction = ("lower" if lower else "higher") if mean else ("narrower" if lower else "wider")
    value = lead.column.partition(" = ")[2]
    which = f"{label}, value {value}," if value else label
    more = {"less": "less" if lower else "more", "which": which, "guess": ""}
    parts = []
    if mean:
        side = "below" if lower else "above"
        parts.append(
            f"The mean is {abs(mean.size):.1f} standard deviations {side} the others', class by "
            "class."
        )
    if spread:
        parts.append(f"The spread is {math.exp(spread.size):.2f} times the others'.")
    kind = "shifted" if mean else "other spread"
    if not number:
        kind = "different population or definition"
    elif raw is not None and raw.multiplied():
        kind, ratio = "unit or scale", raw.mean / raw.mean_elsewhere
        parts.append(f"Mean and spread are both about {ratio:.3g} times the others'.")
        guess = unit_guess(raw.mean, raw.mean_elsewhere)
        more["guess"] = f": {guess}, for instance" if guess else ""
    elif mean and spread and abs(spread.size) > 0.6:
        kind = "unit or scale"
    return Words(kind, direction, " ".join(parts), more)


def unit_guess(here: float, elsewhere: float) -> str:
    """The well-known conversion nearest to a ratio of raw means, if one is within 12 %.

    >>> unit_guess(5.8, 225.0), unit_guess(50.0, 49.0)
    ('cholesterol in mmol/L instead of mg/dL', '')
    """
    if here <= 0 or elsewhere <= 0:
        return ""
    ratio = math.log(here / elsewhere)
    signs = [(name, sign) for name in FACTORS for sign in (1, -1)]

    def away(pair: tuple[str, int]) -> float:
        return abs(ratio - pair[1] * math.log(FACTORS[pair[0]]))

    name, sign = best = min(signs, key=away)
    if away(best) > math.log(1.12):
        return ""
    if sign < 0 and " instead of " in name:
        first, second = name.split(" instead of ")
        return f"{second} instead of {first}"
    return name
