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
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from suture.schema.table import Number, Schema
from suture.site.profile import Profile, profile_columns

Floats = NDArray[np.float64]
Marks = NDArray[np.bool_]
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
    """How many tests a report makes, which is what it corrects for.

    >>> tests_made(4, Schema(features={"age": Number(low=0, high=1)}), 2)
    24
    """
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

    def compared(test: str, names: list[tuple[str, str]], figures: _Figures) -> list[Flag]:
        return _compare(sites, names, test, figures, (count, alpha))

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
    sites: Sequence[str],
    columns: Sequence[tuple[str, str]],
    test: str,
    figures: _Figures,
    level: tuple[int, float],
) -> list[Flag]:
    """The sites and columns at which a test rejects; ``level`` is the number of tests and alpha."""
    count, alpha = level
    reference = _others(figures.value)
    # Squared error of the median of the others: pi / 2 times that of their mean.
    rests = [np.delete(figures.square, i, axis=0) for i in range(len(sites))]
    known = [np.maximum(np.count_nonzero(~np.isnan(rest), axis=0), 1) for rest in rests]
    means = [_mean(rest, axis=0) for rest in rests]
    median = np.array([np.pi / 2 * one / n for one, n in zip(means, known, strict=True)])
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
    """Which cells (clients x features) get an "O".

    >>> circles(np.array([[0.0], [0], [0], [0], [0], [0], [5]]))[:, 0].tolist()
    [False, False, False, False, False, False, True]
    """
    spread = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1])
    gap = np.abs(values - values.mean(axis=0))
    return np.asarray((gap > 2 * spread) & (spread > 1e-12), bool)


def crosses(values: Floats) -> Marks:
    """Which features get an "x".

    >>> crosses(np.array([[1.0, 1, 1, 1, 1, 1, 9], [1, 1, 1, 1, 1, 1, -9]])).tolist()
    [False, False, False, False, False, False, True]
    """
    if len(values) < 2 or values.shape[1] < 2:
        return np.zeros(values.shape[1], bool)
    spread = values.std(axis=0, ddof=1)
    return np.asarray(np.abs(spread - spread.mean()) > 2 * spread.std(ddof=1), bool)


def largest_deviation(clients: int) -> float:
    """The most standard deviations that one of so many values can lie from their mean (Samuelson
    1968).

    >>> largest_deviation(5) < 2 < largest_deviation(6)
    True
    """
    return (clients - 1) / float(np.sqrt(clients)) if clients > 0 else 0.0
