"""Findings: flags of one site and feature together, put into words: direction, certainty, meaning, question.

The words are rules of thumb on top of the tests: what *probably* stands behind a difference. Only the difference is
tested; the meaning is for the hospital to confirm, which is why every finding ends with a question.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from suture.interop.evidence import FEWEST, Flag
from suture.site.profile import Profile, profile_columns
from suture.site.schema import Number, Schema

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
"""Well-known conversions, as the value here over the value elsewhere; each also the other way round."""


@dataclass(frozen=True)
class Raw:
    """A number's mean and deviation in its own unit, here and elsewhere."""

    mean: float
    spread: float
    mean_elsewhere: float
    spread_elsewhere: float

    def multiplied(self) -> bool:
        """Whether mean and spread differ by one factor, at least 1.35, as a change of unit makes them."""
        if min(self.mean, self.mean_elsewhere, self.spread, self.spread_elsewhere) <= 0:
            return False
        by_mean, by_spread = math.log(self.mean / self.mean_elsewhere), math.log(self.spread / self.spread_elsewhere)
        return abs(by_mean) > 0.3 and abs(by_mean - by_spread) < 0.25


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

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def sure(p: float) -> str:
    """How sure, in words: the chance of such a flag anywhere in the report if every site were within tolerance.

    >>> sure(1e-9), sure(0.004)
    ('practically certain (under 1 in a million)', 'sure (under 1 in 100)')
    """
    if p < 1e-6:
        return "practically certain (under 1 in a million)"
    if p < 1e-4:
        return "very sure (under 1 in 10,000)"
    return "sure (under 1 in 100)"


def findings(flags: Sequence[Flag], schema: Schema, profiles: Mapping[str, Profile] | None = None) -> list[Finding]:
    """One finding a site and feature, surest first; of several flags the one that explains most leads.

    Exact ``profiles`` let a ratio of raw means be compared with well-known conversions of units.
    """
    groups: dict[tuple[str, str], list[Flag]] = {}
    for flag in flags:
        groups.setdefault((flag.site, flag.feature), []).append(flag)
    found = [
        _finding(site, feature, group, schema, _raw(profiles or {}, site, feature, schema))
        for (site, feature), group in groups.items()
    ]
    # A hospital that records more than others is worth knowing and seldom a fault: it comes last.
    return sorted(found, key=lambda f: (f.kind == "recorded more often", f.p, f.site, f.feature))


def _raw(profiles: Mapping[str, Profile], site: str, feature: str, schema: Schema) -> Raw | None:
    """Raw means and deviations of a number: here, and the median elsewhere; None where they are not known exactly."""
    declared = schema.features.get(feature)
    if site not in profiles or not isinstance(declared, Number) or any(p.noise for p in profiles.values()):
        return None
    row = list(schema.features).index(feature)
    column = [name for name, _ in profile_columns(schema)].index(feature)
    half = (declared.high - declared.low) / 2

    def figures(profile: Profile) -> tuple[float, float]:
        n = float(profile.recorded[row].sum())
        if n < FEWEST:
            return math.nan, math.nan
        mean = float(profile.total[column].sum()) / n
        spread = math.sqrt(max(float(profile.squares[column].sum()) / n - mean * mean, 0.0))
        return (mean + 1) * half + declared.low, spread * half

    here = figures(profiles[site])
    others = [figures(profile) for name, profile in profiles.items() if name != site]
    known = [pair for pair in others if not math.isnan(pair[0])]
    if math.isnan(here[0]) or not known:
        return None
    return Raw(*here, statistics.median(pair[0] for pair in known), statistics.median(pair[1] for pair in known))


def _finding(site: str, feature: str, group: list[Flag], schema: Schema, raw: Raw | None) -> Finding:
    tests = {flag.test: flag for flag in reversed(group)}  # the surest of each test
    declared = schema.features.get(feature)
    label = (declared.label if declared else "") or feature.replace("_", " ")
    p = min(flag.p for flag in group)
    if "flip" in tests:
        words = _flip(tests["flip"])
    elif "recorded by outcome" in tests and abs(tests["recorded by outcome"].size) > abs(_size(tests, "recorded")):
        words = _by_outcome(tests["recorded by outcome"], label)
    elif "recorded" in tests:
        words = _recorded(tests["recorded"], label)
    elif "recorded by outcome" in tests:
        words = _by_outcome(tests["recorded by outcome"], label)
    elif "mean" in tests or "spread" in tests:
        words = _values(tests, label, declared, raw)
    else:
        words = _tie(tests["tie"], label)
    kind, direction, detail, means, ask = words
    return Finding(site, feature, label, kind, direction, detail, p, sure(p), means, ask)


def _size(tests: Mapping[str, Flag], test: str) -> float:
    return tests[test].size if test in tests else 0.0


def _flip(flag: Flag) -> tuple[str, str, str, str, str]:
    return (
        "outcome turned round",
        "reversed",
        f"The features point to the outcome the other way round (slope {flag.here:.2f}; 1 elsewhere).",
        "The outcome is probably coded the other way here: 0 for what others call 1.",
        "What does 1 stand for in your outcome column?",
    )


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def _by_outcome(flag: Flag, label: str) -> tuple[str, str, str, str, str]:
    more = flag.size > 0
    who = "with the outcome" if more else "without the outcome"
    detail = (
        f"Patients {who} have a value more often, by {_percent(abs(flag.here))} (elsewhere {_percent(flag.elsewhere)})."
    )
    means = (
        f"{label} is probably recorded only, or mostly, for patients {who}: a model can read the outcome off the gap."
    )
    return ("recorded by outcome", "more for positives" if more else "more for negatives", detail, means,
            f"When is {label} written down, and for whom is it left out?")  # fmt: skip


def _recorded(flag: Flag, label: str) -> tuple[str, str, str, str, str]:
    detail = f"Recorded for {_percent(flag.here)} of patients (elsewhere {_percent(flag.elsewhere)})."
    if flag.size < 0:
        never = flag.here < 0.02
        often = "never" if never else "rarely" if flag.here < 0.3 else "less often"
        means = f"{label} is {often} recorded here than elsewhere, or stands under another name or code."
        means = means if often == "less often" else means.replace(" than elsewhere", "")
        return ("never recorded" if never else "recorded less often", "lower", detail, means,
                f"Is {label} measured? Is a code such as 0 or -9 written where it is missing?")  # fmt: skip
    means = f"{label} is recorded here and hardly elsewhere: no other hospital can learn from it or check it."
    if flag.elsewhere > 0.1:
        means = f"{label} is recorded here more often than elsewhere."
    kind = "recorded only here" if flag.elsewhere <= 0.1 else "recorded more often"
    if flag.elsewhere > 0.1 and flag.here - flag.elsewhere > 0.6:
        kind, means = "recorded mostly here", f"{label} is recorded here and seldom elsewhere."
    return kind, "higher", detail, means, f"Which patients get {label}, and could other hospitals record it too?"


def _values(tests: Mapping[str, Flag], label: str, declared: Any, raw: Raw | None) -> tuple[str, str, str, str, str]:
    mean, spread = tests.get("mean"), tests.get("spread")
    lead = mean or tests["spread"]
    lower = lead.size < 0
    direction = ("lower" if lower else "higher") if mean else ("narrower" if lower else "wider")
    parts = []
    if mean:
        parts.append(f"The mean is {abs(mean.size):.1f} standard deviations {'below' if mean.size < 0 else 'above'} the "
                     f"others', class by class.")  # fmt: skip
    if spread:
        parts.append(f"The spread is {math.exp(spread.size):.2f} times the others'.")
    detail = " ".join(parts)
    if not isinstance(declared, Number):
        value = lead.column.partition(" = ")[2]
        which = f"{label}, value {value}," if value else label
        means = f"{which} is {'less' if lower else 'more'} common here: another population, or another definition."
        return "different population or definition", direction, detail, means, f"How is {label} defined and asked for?"
    if raw is not None and raw.multiplied():
        guess = unit_guess(raw.mean, raw.mean_elsewhere)
        detail += f" Mean and spread are both about {raw.mean / raw.mean_elsewhere:.3g} times the others'."
        means = f"{label} is probably in another unit here" + (f": {guess}, for instance." if guess else ".")
        return "unit or scale", direction, detail, means, f"In which unit is {label} written?"
    if mean and spread and abs(spread.size) > 0.6:
        means = f"{label} is probably on another scale here: a unit, an instrument or a code. "
        means += f"Values are {direction} than the declared bounds expect."
        return ("unit or scale", direction, detail, means,
                f"In which unit is {label} written, and on which instrument was it measured?")  # fmt: skip
    if mean:
        means = f"{label} is {direction} here: another population, another calibration, or a constant added."
        return "shifted", direction, detail, means, f"Do your patients differ in {label}, or how it is measured?"
    means = (
        f"{label} varies {'less' if lower else 'more'} here: another instrument, rounding, or a selected population."
    )
    return "other spread", direction, detail, means, f"How is {label} measured and rounded?"


def _tie(flag: Flag, label: str) -> tuple[str, str, str, str, str]:
    reverse = flag.here * flag.elsewhere < 0
    detail = (
        f"{flag.column}: patients with the outcome differ from those without by {flag.here:+.1f} standard deviations "
        f"(elsewhere {flag.elsewhere:+.1f})."
    )
    means = f"{label} says something else about the outcome here: permuted or mismatched rows, another definition."
    return ("tied to the outcome differently", "reversed" if reverse else "weaker" if flag.size * flag.elsewhere < 0
            else "stronger", detail, means, f"Does {label} belong to the same patient and time as the outcome?")  # fmt: skip


def unit_guess(here: float, elsewhere: float) -> str:
    """The well-known conversion nearest to a ratio of raw means, if one is within 12 %.

    >>> unit_guess(5.8, 225.0), unit_guess(50.0, 49.0)
    ('cholesterol in mmol/L instead of mg/dL', '')
    """
    if here <= 0 or elsewhere <= 0:
        return ""
    ratio = math.log(here / elsewhere)
    best = min(
        ((abs(ratio - sign * math.log(factor)), name, sign) for name, factor in FACTORS.items() for sign in (1, -1)),
        key=lambda item: item[0],
    )
    if best[0] > math.log(1.12):
        return ""
    name = best[1]
    if best[2] < 0 and " instead of " in name:
        first, second = name.split(" instead of ")
        return f"{second} instead of {first}"
    return name
