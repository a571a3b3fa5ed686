"""Where hospitals' data differ, by two kinds of evidence: tests on profiles of the columns, with a
stated false-alarm rate; and the iFedAvg paper's own marks on the affine layers that sites learned.

**Tests.** Is a site's column further from the other sites' than hospitals usually are? For site i
and a figure theta (how often a column is recorded, its mean, its spread, its tie to the outcome)
the reference is the median of the other sites' figures. The hypothesis is not "equal", which no two
hospitals are, but "within the tolerance": |theta_i - reference| <= delta. With d the difference and
se its standard error (sampling, and noise where the profile was released privately),
p = P(T > (|d| - delta) / se) + P(T > (|d| + delta) / se), T Student's, is the largest over that
hypothesis; it is multiplied by m, the number of tests made (Bonferroni). If every site is within
the tolerance of the reference, the probability of one false flag or more in the whole report is at
most alpha, as far as estimates are close to normal. `TOLERANCE` is public and part of the report.
Means and spreads are compared within each class and averaged, so that a hospital with more severe
cases, and otherwise the same, is not flagged.

**Marks** (iFedAvg, section 5.2, as printed). "O": a client's value differs from the feature's mean
over clients by more than 2 standard deviations. "x": a feature's standard deviation over clients
differs from its average over features by more than 2 of its standard deviations. The rule has no
false-alarm rate, and with fewer than six clients "O" cannot occur at all: one of n values is never
more than (n - 1) / sqrt(n) standard deviations from their mean.

**Findings** put all flags of one site and feature into words: direction, certainty, meaning,
question. The words are rules of thumb on top of the tests: what *probably* stands behind a
difference. Only the difference is tested; the meaning is for the hospital to confirm, which is why
every finding ends with a question.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from suture.schema.table import Number, Schema
from suture.site.profile import Profile, profile_columns

Floats = NDArray[np.float64]
Marks = NDArray[np.bool_]
Columns = Sequence[tuple[str, str]]
Raw = tuple[float, float, float, float] | None
TOLERANCE = {
    "recorded": 0.05,
    "recorded by outcome": 0.1,
    "mean": 0.5,
    "spread": 0.405,
    "tie": 0.25,
    "flip": 0.0,
}
"""What counts as ordinary: shares of patients; standard deviations; the log of a ratio (1.5);
standard deviations."""
ALPHA = 0.01
FEWEST = 8.0
"""A figure of a class needs this many patients."""


@dataclass(frozen=True)
class Flag:
    """One test that rejected. ``size`` is signed: this site minus the reference, in the test's own
    unit."""

    site: str
    test: str
    column: str
    feature: str
    here: float
    elsewhere: float
    size: float
    p: float
    """Adjusted for the number of tests."""


@dataclass(frozen=True)
class _Figures:
    """One figure at every site: estimates and squared standard errors, sites x columns (nan: not
    known)."""

    value: Floats
    square: Floats
    freedom: Floats


def tests_made(sites: int, schema: Schema, classes: int) -> int:
    """How many tests a report makes, which is what it corrects for."""
    features, columns = len(schema.features), len(profile_columns(schema))
    numbers = sum(isinstance(f, Number) for f in schema.features.values())
    two = classes == 2
    return sites * (features * (1 + two) + columns * (1 + two) + numbers + two)


def flags(profiles: Mapping[str, Profile], schema: Schema, alpha: float = ALPHA) -> list[Flag]:
    """Every rejected test, most certain first."""
    sites = list(profiles)
    if len(sites) < 3:
        return []
    columns = profile_columns(schema)
    classes = len(profiles[sites[0]].patients)
    count = tests_made(len(sites), schema, classes)
    features = [(name, name) for name in schema.features]
    numbers = {column for name, column in columns if isinstance(schema.features[name], Number)}
    recorded, by_outcome = _recorded(profiles)
    mean, spread, tie = _values(profiles, schema)

    def compared(test: str, names: Columns, figures: _Figures) -> list[Flag]:
        return _compare(sites, names, test, figures, count, alpha)

    found = compared("recorded", features, recorded) + compared("mean", columns, mean)
    found += [flag for flag in compared("spread", columns, spread) if flag.column in numbers]
    if classes == 2:
        found += compared("recorded by outcome", features, by_outcome)
        turned = [flag for flag in _flips(sites, tie, count) if flag.p <= alpha]
        known = {flag.site for flag in turned}
        # A turned outcome explains every turned tie of that site.
        found += turned
        found += [flag for flag in compared("tie", columns, tie) if flag.site not in known]
    return sorted(
        found, key=lambda flag: (flag.p, -abs(flag.size) / max(TOLERANCE[flag.test], 0.1))
    )


def _recorded(profiles: Mapping[str, Profile]) -> tuple[_Figures, _Figures]:
    """The share of patients with a value; and how much it differs between the two classes."""
    rows = []
    for profile in profiles.values():
        n = np.where(profile.patients >= FEWEST, profile.patients, np.nan)
        share = np.clip(profile.recorded / n, 0, 1)
        variance = _share_error(share, n, profile.noise)
        everybody = max(float(profile.patients.sum()), FEWEST)
        overall = np.clip(profile.recorded.sum(axis=1) / everybody, 0, 1)
        noise = profile.noise * np.sqrt(len(profile.patients))
        square = _share_error(overall, np.array(everybody), noise)
        freedom = np.full(len(share), max(2.0, everybody - 1))
        gap, gap_square = share[:, -1] - share[:, 0], variance[:, -1] + variance[:, 0]
        rows.append((overall, square, freedom, gap, gap_square))
    value, square, freedom, gap, gap_square = (np.array(part) for part in zip(*rows, strict=True))
    return _Figures(value, square, freedom), _Figures(gap, gap_square, freedom)


def _share_error(share: Floats, n: Floats, noise: float) -> Floats:
    """Squared error of a share; Agresti and Coull's centre keeps that of "all" and "none" from
    being zero."""
    centre = (share * n + 2) / (n + 4)
    error = centre * (1 - centre) / (n + 4) + noise**2 * (1 + share**2) / n**2
    return np.asarray(error, np.float64)


def _values(profiles: Mapping[str, Profile], schema: Schema) -> tuple[_Figures, _Figures, _Figures]:
    """Means (in reference deviations, class by class against the reference), log spreads, and ties
    to the outcome."""
    columns = profile_columns(schema)
    index = [list(schema.features).index(name) for name, _ in columns]
    numbers = np.array([[isinstance(schema.features[name], Number)] for name, _ in columns])
    rows = []
    for profile in profiles.values():
        n = np.where(profile.recorded[index] >= FEWEST, profile.recorded[index], np.nan)
        mean = profile.total / n
        # A share of few patients is known less well than its own variance says (Agresti and Coull's
        # centre).
        centre = (profile.total + 2) / (n + 4)
        of_number = np.maximum(profile.squares / n - mean**2, 1e-6)
        variance = np.where(numbers, of_number, np.maximum(centre * (1 - centre), 1e-3))
        noise = profile.noise**2 * (1 + mean**2) / n**2
        # Fourth moment over the squared variance. A private profile has none: values within [-1, 1]
        # bound it.
        bound, fourth = (1 + np.abs(mean)) ** 2 / variance, profile.fourths / n / variance**2
        rows.append((mean, variance, n, noise, np.where(np.isnan(profile.fourths), bound, fourth)))
    m, v, n, extra, tail = (np.array(part) for part in zip(*rows, strict=True))
    # The unit is the other sites' deviation within a class; a flag that is nearly always 0 keeps a
    # floor of 0.1.
    unit = np.maximum(np.sqrt(_others(_mean(v))), 0.1)
    reference = np.stack([_others(m[:, :, c]) for c in range(m.shape[2])], axis=2)
    apart = (m - reference) / unit[:, :, None]
    error = (v / n + extra) / unit[:, :, None] ** 2
    known = np.maximum(np.count_nonzero(~np.isnan(apart), axis=2), 1)
    # The smallest class decides how heavy the tails are.
    freedom = np.maximum(np.where(np.isnan(n), np.inf, n).min(axis=2) - 1, 2.0)
    freedom = np.where(np.isfinite(freedom), freedom, 2.0)
    shifted = _Figures(_mean(apart), np.nansum(error, axis=2) / known**2, freedom)
    # (kurtosis - 1) / 4n is the squared error of a log deviation for any law with a fourth moment,
    # and a single wild value raises it too; at least twice the normal law's, because a small
    # sample's own kurtosis is too low.
    log_error = np.maximum(1.0, (tail - 1) / 4) / n + extra * n**2 / (n * v) ** 2 / 4
    spread = _Figures(_mean(0.5 * np.log(v)), np.nansum(log_error, axis=2) / known**2, freedom)
    tie = _Figures((m[:, :, -1] - m[:, :, 0]) / unit, error[:, :, -1] + error[:, :, 0], freedom)
    return shifted, spread, tie


def _mean(values: Floats, axis: int = -1) -> Floats:
    """Mean over what is known; nan where nothing is."""
    known = ~np.isnan(values)
    count = known.sum(axis=axis)
    total = np.where(known, values, 0.0).sum(axis=axis)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _others(values: Floats) -> Floats:
    """For each site the median of the other sites; nan where fewer than two others are known."""
    found = np.full(values.shape, np.nan)
    for i in range(len(values)):
        rest = np.delete(values, i, axis=0)
        enough = np.count_nonzero(~np.isnan(rest), axis=0) >= 2
        if enough.any():
            found[i, enough] = np.nanmedian(rest[:, enough], axis=0)
    return found


def _compare(
    sites: Sequence[str], columns: Columns, test: str, figures: _Figures, count: int, alpha: float
) -> list[Flag]:
    """The sites and columns at which one of ``count`` tests rejects."""
    reference = _others(figures.value)
    # Squared error of the median of the others: pi / 2 times that of their mean.
    median = np.empty(figures.square.shape)
    for i in range(len(sites)):
        rest = np.delete(figures.square, i, axis=0)
        known = np.maximum(np.count_nonzero(~np.isnan(rest), axis=0), 1)
        median[i] = np.pi / 2 * _mean(rest, axis=0) / known
    error = np.sqrt(figures.square + median)
    gap = figures.value - reference
    with np.errstate(invalid="ignore", divide="ignore"):
        near, far = ((np.abs(gap) + sign * TOLERANCE[test]) / error for sign in (-1, 1))
        tails = student.sf(near, figures.freedom) + student.sf(far, figures.freedom)
        p = np.minimum(1.0, tails * count)
    found = []
    for i, j in zip(*np.nonzero(p <= alpha), strict=True):
        feature, column = columns[j]
        numbers = (float(part[i, j]) for part in (figures.value, reference, gap, p))
        found.append(Flag(sites[i], test, column, feature, *numbers))
    return found


def _flips(sites: Sequence[str], tie: _Figures, count: int) -> list[Flag]:
    """Sites whose columns are tied to the outcome the other way round: the slope on the others'
    ties is negative."""
    reference, found = _others(tie.value), []
    for i, site in enumerate(sites):
        known = ~np.isnan(tie.value[i]) & ~np.isnan(reference[i]) & (tie.square[i] > 0)
        x, y, weight = reference[i][known], tie.value[i][known], 1.0 / tie.square[i][known]
        strength = float(weight @ (x * x))
        if strength <= 0:
            continue
        slope = float(weight @ (x * y)) / strength
        freedom = max(2.0, float(tie.freedom[i].min()))
        p = min(1.0, float(student.sf(-slope * np.sqrt(strength), freedom)) * count)
        # A site whose ties are merely weak has a slope near 0; a turned outcome has one near -1.
        if slope < -0.3:
            found.append(Flag(site, "flip", "outcome", "outcome", slope, 1.0, slope - 1.0, p))
    return found


def circles(values: Floats) -> Marks:
    """Which cells (clients x features) get an "O"."""
    spread = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1])
    gap = np.abs(values - values.mean(axis=0))
    return np.asarray((gap > 2 * spread) & (spread > 1e-12), bool)


def crosses(values: Floats) -> Marks:
    """Which features get an "x"."""
    if len(values) < 2 or values.shape[1] < 2:
        return np.zeros(values.shape[1], bool)
    spread = values.std(axis=0, ddof=1)
    return np.asarray(np.abs(spread - spread.mean()) > 2 * spread.std(ddof=1), bool)


def largest_deviation(clients: int) -> float:
    """The most deviations that one of so many values can lie from their mean (Samuelson 1968)."""
    return (clients - 1) / float(np.sqrt(clients)) if clients > 0 else 0.0


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

ASK_IF_MEASURED = "Is {label} measured? Is a code such as 0 or -9 written where it is missing?"
ASK_WHO = "Which patients get {label}, and could other hospitals record it too?"
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
        ASK_IF_MEASURED,
    ),
    "recorded less often": (
        "{label} is {often} recorded here, or stands under another name or code.",
        ASK_IF_MEASURED,
    ),
    "recorded only here": (
        "{label} is recorded here and hardly elsewhere: no other hospital can learn from it or "
        "check it.",
        ASK_WHO,
    ),
    "recorded mostly here": ("{label} is recorded here and seldom elsewhere.", ASK_WHO),
    "recorded more often": ("{label} is recorded here more often than elsewhere.", ASK_WHO),
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
    within tolerance."""
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


def _raw(profiles: Mapping[str, Profile], site: str, feature: str, schema: Schema) -> Raw:
    """Mean and deviation of a number in its own unit: here, and the median elsewhere; None where
    they are not known exactly."""
    declared = schema.features.get(feature)
    noisy = any(profile.noise for profile in profiles.values())
    if site not in profiles or not isinstance(declared, Number) or noisy:
        return None
    row = list(schema.features).index(feature)
    column = [name for name, _ in profile_columns(schema)].index(feature)
    half = (declared.high - declared.low) / 2
    known = {}
    for name, profile in profiles.items():
        if (n := float(profile.recorded[row].sum())) >= FEWEST:
            mean = float(profile.total[column].sum()) / n
            spread = math.sqrt(max(float(profile.squares[column].sum()) / n - mean * mean, 0.0))
            known[name] = ((mean + 1) * half + declared.low, spread * half)
    here = known.pop(site, None)
    if here is None or not known:
        return None
    means, spreads = zip(*known.values(), strict=True)
    return *here, statistics.median(means), statistics.median(spreads)


def _multiplied(mean: float, spread: float, mean_elsewhere: float, spread_elsewhere: float) -> bool:
    """Whether mean and spread differ by one factor, at least 1.35, as a change of unit makes them."""
    if min(mean, mean_elsewhere, spread, spread_elsewhere) <= 0:
        return False
    by_mean, by_spread = math.log(mean / mean_elsewhere), math.log(spread / spread_elsewhere)
    return abs(by_mean) > 0.3 and abs(by_mean - by_spread) < 0.25


def _words(tests: Mapping[str, Flag], label: str, number: bool, raw: Raw) -> Words:
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
        return _of_recorded(recorded)
    if "mean" in tests or "spread" in tests:
        return _of_values(tests, label, number, raw)
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


def _of_recorded(flag: Flag) -> Words:
    here, elsewhere = flag.here, flag.elsewhere
    detail = f"Recorded for {_percent(here)} of patients (elsewhere {_percent(elsewhere)})."
    if flag.size < 0:
        kind = "never recorded" if here < 0.02 else "recorded less often"
        return Words(kind, "lower", detail, {"often": "rarely" if here < 0.3 else "less often"})
    kind = "recorded mostly here" if here - elsewhere > 0.6 else "recorded more often"
    return Words("recorded only here" if elsewhere <= 0.1 else kind, "higher", detail)


def _of_values(tests: Mapping[str, Flag], label: str, number: bool, raw: Raw) -> Words:
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
    elif raw is not None and _multiplied(*raw):
        kind, here, elsewhere = "unit or scale", raw[0], raw[2]
        parts.append(f"Mean and spread are both about {here / elsewhere:.3g} times the others'.")
        guess = unit_guess(here, elsewhere)
        more["guess"] = f": {guess}, for instance" if guess else ""
    elif mean and spread and abs(spread.size) > 0.6:
        kind = "unit or scale"
    return Words(kind, direction, " ".join(parts), more)


def unit_guess(here: float, elsewhere: float) -> str:
    """The well-known conversion nearest to a ratio of raw means, if one is within 12 %."""
    if here <= 0 or elsewhere <= 0:
        return ""
    ratio = math.log(here / elsewhere)
    away: dict[tuple[str, int], float] = {}
    for name, factor in FACTORS.items():
        for sign in (1, -1):
            away[name, sign] = abs(ratio - sign * math.log(factor))
    name, sign = min(away, key=lambda guess: away[guess])
    if away[name, sign] > math.log(1.12):
        return ""
    if sign < 0 and " instead of " in name:
        first, second = name.split(" instead of ")
        return f"{second} instead of {first}"
    return name
