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
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from suture.schema.clinical import other_units, recognise
from suture.schema.table import Feature, Number, Schema
from suture.site.profile import NORMAL, Profile, profile_columns

Floats = NDArray[np.float64]
Marks = NDArray[np.bool_]
Columns = Sequence[tuple[str, str]]
Raw = tuple[float, float, float, float] | None
TOLERANCE = {
    "recorded": 0.05,
    "recorded by outcome": 0.1,
    "outside": 0.05,
    "mean": 0.5,
    "spread": 0.5,
    "tie": 0.25,
    "flip": 0.0,
}
"""What counts as ordinary: shares of patients; standard deviations; a factor above 1 (and its
inverse below); standard deviations."""
ALPHA = 0.01
FEWEST = 8.0
"""A figure of a class needs this many patients."""
DEGENERATE = 1e-3
"""The least deviation that counts, as a share of half the bounds: elsewhere nothing may vary."""


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
    return sites * (features * (1 + two) + columns * (1 + two) + 2 * numbers + two)


def flags(profiles: Mapping[str, Profile], schema: Schema, alpha: float = ALPHA) -> list[Flag]:
    """Every rejected test, most certain first."""
    sites = list(profiles)
    if len(sites) < 3:
        return []
    columns = profile_columns(schema)
    two = len(profiles[sites[0]].patients) == 2
    count = tests_made(len(sites), schema, len(profiles[sites[0]].patients))
    features = [(name, name) for name in schema.features]
    mean, spread, tie = _values(profiles, schema)
    turned: list[Flag] = []
    if two:
        turned = [flag for flag in _flips(profiles, tie, count) if flag.p <= alpha]
    if turned:
        # A turned outcome explains nearly all else that a site shows by class: what is left to
        # report is what remains once it is turned back.
        back = {flag.site for flag in turned}
        profiles = {site: p.turned() if site in back else p for site, p in profiles.items()}
        mean, spread, tie = _values(profiles, schema)
    recorded, by_outcome, outside = _recorded(profiles)
    found = list(turned)
    tests = [("recorded", features, recorded), ("outside", features, outside)]
    tests += [("mean", columns, mean), ("spread", columns, spread)]
    if two:
        tests += [("recorded by outcome", features, by_outcome), ("tie", columns, tie)]
    for test, names, figures in tests:
        found += _compare(sites, names, test, figures, count, alpha)
    return sorted(
        found, key=lambda flag: (flag.p, -abs(flag.size) / max(TOLERANCE[flag.test], 0.1))
    )


def _recorded(profiles: Mapping[str, Profile]) -> tuple[_Figures, _Figures, _Figures]:
    """The share of patients with a value; how much it differs between the two classes; and the
    share of values outside the bounds or far from all others."""
    rows = []
    for profile in profiles.values():
        n = np.where(profile.patients >= FEWEST, profile.patients, np.nan)
        share = np.clip(profile.recorded / n, 0, 1)
        variance = _share_error(share, n, profile.noise)
        everybody = max(float(profile.patients.sum()), FEWEST)
        noise = profile.noise * np.sqrt(len(profile.patients))
        known = profile.recorded.sum(axis=1)
        overall = np.clip(known / everybody, 0, 1)
        square = _share_error(overall, np.array(everybody), noise)
        freedom = np.full(len(share), max(2.0, everybody - 1))
        gap, gap_square = share[:, -1] - share[:, 0], variance[:, -1] + variance[:, 0]
        gap_freedom = _welch(variance[:, [0, -1]], np.tile(n[[0, -1]] - 1, (len(share), 1)))
        known = np.where(known >= FEWEST, known, np.nan)
        out = np.clip(profile.far / known, 0, 1)
        out_square = _share_error(out, known, 0.0)
        rows.append(
            (overall, square, freedom, gap, gap_square, gap_freedom, out, out_square, known - 1)
        )
    parts = [np.array(part) for part in zip(*rows, strict=True)]
    return _Figures(*parts[:3]), _Figures(*parts[3:6]), _Figures(*parts[6:])


def _share_error(share: Floats, n: Floats, noise: float) -> Floats:
    """Squared error of a share; Agresti and Coull's centre keeps that of "all" and "none" from
    being zero."""
    centre = (share * n + 2) / (n + 4)
    error = centre * (1 - centre) / (n + 4) + noise**2 * (1 + share**2) / n**2
    return np.asarray(error, np.float64)


def _welch(squares: Floats, freedom: Floats) -> Floats:
    """Welch and Satterthwaite's degrees of freedom for a sum over the last axis of figures with
    these squared errors."""
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.nansum(squares, axis=-1) ** 2 / np.nansum(squares**2 / freedom, axis=-1)
    return np.where(np.isfinite(found), np.maximum(found, 1.0), 1.0)


def _values(profiles: Mapping[str, Profile], schema: Schema) -> tuple[_Figures, _Figures, _Figures]:
    """Means (in reference deviations, class by class against the reference), spreads (over the
    reference's), and ties to the outcome."""
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
        v = np.where(numbers, of_number, np.maximum(centre * (1 - centre), 1e-3))
        noise = profile.noise**2 * (1 + mean**2) / n**2
        # (kurtosis - 1) / 4n is the squared relative error of a deviation for any law with a fourth
        # moment; values within [-1, 1] bound the fourth moment of a private profile.
        tail = (1 + np.abs(mean)) ** 2 / v
        relative = np.maximum(1.0, (tail - 1) / 4) / n + noise * n**2 / (n * v) ** 2 / 4
        sums = np.stack([mean, v / n + noise, np.sqrt(v), v * relative, n - 1], axis=-1)
        robust = np.where(np.isnan(n)[..., None], np.nan, profile.robust)
        rows.append((n, np.where(np.isnan(robust), sums, robust)))
    n, figures = (np.array(part) for part in zip(*rows, strict=True))
    m, error, s, s_error, freedom = np.moveaxis(figures, -1, 0)
    exact = not any(np.isnan(profile.joint) for profile in profiles.values())
    floor = np.where(numbers & exact, DEGENERATE, 0.1)
    # The unit is the other sites' deviation within a class.
    unit = np.fmax(_others(_mean(s)), floor[:, 0])[:, :, None]
    # A sample whose values happen to lie close together knows its mean no better than its size
    # allows elsewhere.
    with np.errstate(invalid="ignore"):
        error = np.fmax(error, np.fmax(_others(error * n), floor**2) / n) / unit**2
        s_error = np.where(s_error > 0, s_error, np.fmax(_others(s_error * n), floor**2) / n)
    apart = (m - _others(m)) / unit
    known = np.maximum(np.count_nonzero(~np.isnan(apart), axis=2), 1)
    shifted = _Figures(_mean(apart), np.nansum(error, axis=2) / known**2, _welch(error, freedom))
    usual = np.fmax(_others(s), floor)
    s_error = s_error / usual**2
    ratio = np.where(numbers[:, 0], _mean(s / usual), np.nan)
    spread = _Figures(ratio, np.nansum(s_error, axis=2) / known**2, _welch(s_error, freedom))
    ends = [0, -1]
    difference = (m[:, :, -1] - m[:, :, 0]) / unit[:, :, 0]
    of_tie = _welch(error[:, :, ends], freedom[:, :, ends])
    return shifted, spread, _Figures(difference, error[:, :, ends].sum(axis=2), of_tie)


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
    gap, up = figures.value - reference, TOLERANCE[test]
    down = up
    if test == "spread":  # ratios: as far below 1 as above it, and known in proportion
        median, down = median * np.fmax(figures.value, 1.0) ** 2, up / (1 + up)
    error = np.sqrt(figures.square + median)
    with np.errstate(invalid="ignore", divide="ignore"):
        near = np.where(gap < 0, -gap - down, gap - up) / error
        far = np.where(gap < 0, up - gap, gap + down) / error
        tails = student.sf(near, figures.freedom) + student.sf(far, figures.freedom)
        p = np.minimum(1.0, tails * count)
    found = []
    for i, j in zip(*np.nonzero(p <= alpha), strict=True):
        feature, column = columns[j]
        numbers = (float(part[i, j]) for part in (figures.value, reference, gap, p))
        found.append(Flag(sites[i], test, column, feature, *numbers))
    return found


def _flips(profiles: Mapping[str, Profile], tie: _Figures, count: int) -> list[Flag]:
    """Sites whose columns are tied to the outcome the other way round: the slope on the others'
    ties is negative."""
    reference, found = _others(tie.value), []
    for i, (site, profile) in enumerate(profiles.items()):
        known = ~np.isnan(tie.value[i]) & ~np.isnan(reference[i]) & (tie.square[i] > 0)
        x, y, square = reference[i][known], tie.value[i][known], tie.square[i][known]
        strength = float(np.sum(x * x / square))
        if strength <= 0:
            continue
        slope = float(np.sum(x * y / square)) / strength
        # Ties of one site share its patients. Their sum varies at most ``joint`` times as much as
        # if they did not; where that is unknown, as much as if all were one.
        at_most = float(np.sum(np.abs(x) / np.sqrt(square))) ** 2 / strength
        joint = at_most if np.isnan(profile.joint) else min(profile.joint, at_most)
        freedom = float(np.average(tie.freedom[i][known], weights=x * x / square))
        p = min(1.0, float(student.sf(-slope * math.sqrt(strength / joint), freedom)) * count)
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


TEXTS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("texts.toml").read_text("utf-8"))


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
        means, ask = (text.format(**fields) for text in TEXTS["findings"][kind])
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


FIRST = ("outcome turned round", "recorded by outcome", "columns swapped")
"""What spoils a model most is asked about first."""


def findings(
    flags: Sequence[Flag], schema: Schema, profiles: Mapping[str, Profile] | None = None
) -> list[Finding]:
    """One finding per site and feature, gravest and most certain first; of several flags the one
    that explains most leads.

    Exact ``profiles`` let centre and spread be compared with known conversions of units, and with
    other columns.
    """
    groups: dict[tuple[str, str], dict[str, Flag]] = {}
    for flag in flags:  # the most certain of each test comes first
        groups.setdefault((flag.site, flag.feature), {}).setdefault(flag.test, flag)
    raws = {place: _raw(profiles or {}, *place, schema) for place in groups}
    found = []
    for (site, feature), tests in groups.items():
        label, p = label_of(schema, feature), min(flag.p for flag in tests.values())
        mine = raws[site, feature]
        others = [b for (a, b), raw in raws.items() if a == site and b != feature and raw and mine]
        swapped = [b for b in others if _exchanged(mine, raws[site, b])]
        if swapped and {"mean", "spread"} & set(tests):
            words = _swapped(label_of(schema, swapped[0]))
        else:
            words = _words(tests, label, schema.features.get(feature), feature, mine)
        found.append(Finding.of((site, feature, label), words, p, sure(p)))

    def rank(item: Finding) -> tuple[int, float]:
        # A hospital that records more than others is worth knowing and seldom a fault: it comes
        # last.
        grave = FIRST.index(item.kind) if item.kind in FIRST else len(FIRST)
        return grave + (item.kind == "recorded more often"), item.p

    return sorted(found, key=rank)


def _raw(profiles: Mapping[str, Profile], site: str, feature: str, schema: Schema) -> Raw:
    """Centre and spread of a number in its own unit, the mean over classes: here, and the median
    elsewhere; None where they are not known exactly."""
    declared = schema.features.get(feature)
    if site not in profiles or not isinstance(declared, Number):
        return None
    column = [name for name, _ in profile_columns(schema)].index(feature)
    half = (declared.high - declared.low) / 2
    known = {}
    for name, profile in profiles.items():
        centre, spread = _mean(profile.robust[column], axis=0)[[0, 2]]
        if not np.isnan(centre):
            known[name] = ((float(centre) + 1) * half + declared.low, float(spread) * half)
    here = known.pop(site, None)
    if here is None or not known:
        return None
    means, spreads = zip(*known.values(), strict=True)
    return *here, statistics.median(means), statistics.median(spreads)


def _alike(centre: float, spread: float, usual: float, usual_spread: float) -> bool:
    """Whether centre and spread are within the tolerances of what is usual."""
    ordinary = 1 + TOLERANCE["spread"]
    within = usual_spread / ordinary <= spread <= usual_spread * ordinary
    return within and abs(centre - usual) <= TOLERANCE["mean"] * usual_spread


def _exchanged(mine: Raw, other: Raw) -> bool:
    """Whether each of two columns looks like the other does elsewhere, and not like itself."""
    if mine is None or other is None or _alike(*mine) or _alike(*other):
        return False
    return _alike(*mine[:2], *other[2:]) and _alike(*other[:2], *mine[2:])


def _swapped(other: str) -> Words:
    detail = f"Centre and spread are those of {other} elsewhere, and the other way round."
    return Words("columns swapped", "exchanged", detail, {"other": other})


def _multiplied(mean: float, spread: float, mean_elsewhere: float, spread_elsewhere: float) -> bool:
    """Whether mean and spread differ by one factor, at least 1.35, as a change of unit makes them."""
    if min(mean, mean_elsewhere, spread, spread_elsewhere) <= 0:
        return False
    by_mean, by_spread = math.log(mean / mean_elsewhere), math.log(spread / spread_elsewhere)
    return abs(by_mean) > 0.3 and abs(by_mean - by_spread) < 0.25


def _coded(mean: float, spread: float, mean_elsewhere: float, spread_elsewhere: float) -> bool:
    """Whether some of the values are far off to one side: they move centre and spread alike."""
    moved, wider = abs(mean - mean_elsewhere), NORMAL * (spread - spread_elsewhere)
    return wider > spread_elsewhere and abs(moved - wider) < 0.35 * moved


def _words(
    tests: Mapping[str, Flag], label: str, declared: Feature | None, feature: str, raw: Raw
) -> Words:
    """The words of the test that explains most."""
    if flip := tests.get("flip"):
        return turned_round(
            "The features point to the outcome the other way round (slope "
            f"{flip.here:.2f}; 1 elsewhere)."
        )
    recorded, by_outcome = tests.get("recorded"), tests.get("recorded by outcome")
    gap = by_outcome.here if by_outcome else 0.0
    if by_outcome and (abs(gap) > abs(by_outcome.elsewhere) or gap * by_outcome.elsewhere < 0):
        detail = (
            "Share of patients with a value, those with the outcome minus those without: "
            f"{_points(gap)} (elsewhere {_points(by_outcome.elsewhere)})."
        )
        return recorded_by_outcome(gap > 0, detail)
    # Where others leave a gap, a code counts as a value: recorded more often, and far off.
    coded = "outside" in tests or (raw is not None and _coded(*raw))
    if recorded and not (recorded.size > 0 and coded):
        return _of_recorded(recorded)
    if {"mean", "spread", "outside"} & set(tests):
        return _of_values(tests, label, declared, feature, raw)
    if recorded:
        return _of_recorded(recorded)
    if by_outcome:
        detail = f"{_points(gap)} (elsewhere {_points(by_outcome.elsewhere)})."
        words = "Share with a value, with the outcome minus without: "
        return recorded_by_outcome(by_outcome.size > 0, words + detail)
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


def _points(value: float) -> str:
    return f"{100 * value:+.0f} points"


def _of_recorded(flag: Flag) -> Words:
    here, elsewhere = flag.here, flag.elsewhere
    detail = f"Recorded for {_percent(here)} of patients (elsewhere {_percent(elsewhere)})."
    if flag.size < 0:
        kind = "never recorded" if here < 0.02 else "recorded less often"
        return Words(kind, "lower", detail, {"often": "rarely" if here < 0.3 else "less often"})
    kind = "recorded mostly here" if here - elsewhere > 0.6 else "recorded more often"
    return Words("recorded only here" if elsewhere <= 0.1 else kind, "higher", detail)


def _of_values(
    tests: Mapping[str, Flag], label: str, declared: Feature | None, feature: str, raw: Raw
) -> Words:
    mean, spread, outside = tests.get("mean"), tests.get("spread"), tests.get("outside")
    lead = mean or spread or tests["outside"]
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
        parts.append(f"The spread is {spread.here:.2g} times the others'.")
    if outside:
        parts.append(
            f"{_percent(outside.here)} of the values are outside the declared bounds or far from "
            f"the others (elsewhere {_percent(outside.elsewhere)})."
        )
    if recorded := tests.get("recorded"):
        parts.append(_of_recorded(recorded).detail)
    kind = "shifted" if mean else "other spread"
    if not isinstance(declared, Number):
        kind = "different population or definition"
    elif raw is not None and (guess := unit_guess(feature, declared, raw)):
        kind, more["guess"] = "unit or scale", f": {guess}"
    elif raw is not None and _multiplied(*raw):
        kind, here, elsewhere = "unit or scale", raw[0], raw[2]
        parts.append(f"Mean and spread are both about {here / elsewhere:.3g} times the others'.")
    elif (outside and outside.here < 0.5) or (raw is not None and _coded(*raw)):
        kind = "code for missing"
    elif outside or (mean and spread and abs(math.log(max(spread.here, 1e-9))) > 0.6):
        kind = "unit or scale"
    return Words(kind, direction, " ".join(parts), more)


def unit_guess(feature: str, declared: Number, raw: tuple[float, float, float, float]) -> str:
    """The conversion of units that turns centre and spread here into the others': of the clinical
    dictionary where it knows the column, else a power of ten.

    >>> unit_guess("creatinine", Number(low=0, high=20, unit="mg/dL"), (97.0, 44.0, 1.1, 0.5))
    'µmol/L for mg/dL'
    >>> unit_guess("temp", Number(low=30, high=43), (98.7, 1.3, 37.1, 0.7))
    '°F for °C'
    >>> unit_guess("score 7", Number(low=0, high=10), (51.0, 9.8, 5.0, 1.0))
    'a factor of 10'
    """
    mean, spread, usual, usual_spread = raw
    measure = recognise(feature, declared.unit)
    tens = {f"a factor of {10.0**k:g}": (10.0**-k, 0.0) for k in (-3, -2, -1, 1, 2, 3)}
    guesses: dict[str, tuple[float, float]] = {}
    if measure is not None:
        written = declared.unit or measure.shown
        for unit, factor, offset in other_units(measure, declared.unit):
            guesses[f"{unit} for {written}"] = (factor, offset)
            guesses[f"{written} for {unit}"] = (
                1 / factor,
                -offset / factor,
            )  # the others are wrong
    # Hospitals differ; a factor that no dictionary names has to fit better, and is the second choice.
    for known, most in ((guesses, TOLERANCE["mean"]), (tens, 0.2)):
        away = {}
        for words, (factor, offset) in known.items():
            moved = abs(factor * mean + offset - usual) / max(usual_spread, 1e-300)
            wider = abs(math.log(max(factor * spread, 1e-300) / max(usual_spread, 1e-300)))
            if moved <= most and wider <= 0.3:
                away[words] = moved + wider
        if away:
            return min(away, key=lambda words: away[words])
    return ""
