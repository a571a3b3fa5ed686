"""Released figures: a rate, a histogram, quantiles of one column, noisy and paid for.

Every kind is a vector of counts to which one patient adds exactly one unit, however many rows the patient has: a rate
counts patients with and without the event, a histogram puts each patient into one bin. Add or remove a patient and one
count moves by one, so the L2 sensitivity is 1 (a histogram of rows, with ``cap`` rows a patient, has sensitivity
``cap``). Bins and bounds come from the public schema. Nothing exact leaves, not even the number of patients: the
denominator of a rate is the sum of two noisy counts, at no further cost.

Noise is the discrete Gaussian, sampled exactly (``privacy/discrete.py``), or the Gaussian of the analytic mechanism in
floating point (docs/floating-point.md says what that does not promise). Intervals, shares and quantiles are computed
from the noisy counts alone: post-processing, which costs nothing.

The order is that of every release: event known, ledger charged and durable, then noise. The same question on the same
rows is the same release, bit for bit, and charged once.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from dp_accounting.dp_event import DpEvent, GaussianDpEvent
from numpy.typing import NDArray

from suture import __version__
from suture.errors import DataError, StudyError
from suture.privacy.discrete import discrete_gaussian, sigma_for
from suture.privacy.ledger import Ledger
from suture.privacy.mechanisms import derive, generator
from suture.privacy.release import Release
from suture.site.passage import Passage
from suture.site.preprocess import MISSING, UNKNOWN, outcome_vocabulary
from suture.site.problems import refusal, row_problems
from suture.site.reading import read_columns
from suture.site.records import Source, SourceSpec
from suture.site.schema import Category, Feature, Flag, Number, Schema
from suture.site.split import first_rows

Floats = NDArray[np.float64]
MECHANISMS = ("discrete", "gaussian")


@dataclass(frozen=True)
class Column:
    """One column of a site's table, rows grouped by patient: those of patient i are ``starts[i]:starts[i + 1]``."""

    name: str
    feature: Feature
    values: Floats
    """NaN where missing; codes for categories, 0 and 1 for flags and the outcome."""
    starts: NDArray[np.int64]

    def fingerprint(self) -> bytes:
        """A digest of the content, for the site's own use."""
        digest = hashlib.blake2b(self.name.encode(), digest_size=32)
        for array in (self.values, self.starts):
            digest.update(str(array.shape).encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.digest()


@dataclass(frozen=True)
class Counts:
    """What is to be released: exact counts (never shown), their labels, the sensitivity, and how a patient counts."""

    counts: NDArray[np.int64]
    labels: tuple[str, ...]
    sensitivity: float
    contribution: str


def read_column(
    source: Source, schema: Schema, outcome: str, column: str, *, site: str, passage: Passage | None = None
) -> Column:
    """Read one declared column (a feature or the outcome) of those who may pass, validated as for training.

    >>> schema = Schema.parse({"patient": "id", "features": {"age": {"kind": "number", "low": 0, "high": 100}}})
    >>> table = {"id": np.array([1, 1, 2]), "age": np.array([40.0, 60, 30]), "died": np.array([0, 0, 1])}
    >>> len(read_column(table, schema, "died", "age", site="boston").starts) - 1
    2
    """
    return read_each(source, schema, outcome, [column], site=site, passage=passage)[0]


def read_each(
    source: Source,
    schema: Schema,
    outcome: str,
    columns: Sequence[str],
    *,
    site: str,
    passage: Passage | None = None,
) -> list[Column]:
    """Several declared columns at one reading of the table."""
    for column in columns:
        _declared(schema, outcome, column)
    chosen = [column for column in columns if column in schema.features] or [next(iter(schema.features))]
    features = {name: schema.features[name] for name in chosen}
    narrow = schema.model_copy(update={"features": features, "groups": (), "protected": None})
    read = read_columns(source, narrow, outcome, outcome_vocabulary(2), site, 0.0, "releases", passage)
    problems, found = row_problems(read, narrow), []
    for column in columns:
        feature: Feature = schema.features[column] if column in schema.features else Flag()
        raw = read.features[column] if column in schema.features else read.outcome
        values = raw.astype(np.float64)
        wrong = int(np.count_nonzero(np.isinf(values) if isinstance(feature, Number) else raw == UNKNOWN))
        if wrong:
            problems.append(f"column {column!r}: {wrong:,} rows hold something that the schema does not declare")
        if not isinstance(feature, Number):
            values = np.where(raw == MISSING, np.nan, values)
        order = np.lexsort((values, read.keys[:, 1], read.keys[:, 0]))  # the order of rows in the file changes nothing
        first = first_rows(read.keys[order])
        found.append(Column(column, feature, values[order], np.append(first, len(values)).astype(np.int64)))
    if problems:
        raise refusal(source, site, problems)
    return found


def _declared(schema: Schema, outcome: str, column: str) -> None:
    if column != outcome and column not in schema.features:
        known = ", ".join([outcome, *schema.features])
        raise StudyError(
            f"column {column!r} is not declared in the study; a release needs public bounds. Known: {known}"
        )
    if schema.patient is None:
        raise StudyError('a release protects patients: set schema.patient = "<column that identifies the patient>"')
    if column == schema.image:
        raise StudyError(f"column {column!r} is an image, of which no figure is released; ask for the outcome")


def rate_counts(column: Column, above: float | None = None) -> Counts:
    """Patients with the event in any row, and patients without; those with no value at all count nowhere.

    >>> found = rate_counts(Column("died", Flag(), np.array([0.0, 1, 0, np.nan]), np.array([0, 2, 3, 4])))
    >>> found.counts.tolist(), found.sensitivity
    ([1, 1], 1)
    """
    if isinstance(column.feature, Number):
        if above is None:
            raise StudyError(
                f"column {column.name!r} is a number: say which values count as an event, such as --above 140"
            )
        happened = column.values > above
    elif isinstance(column.feature, Category) or above is not None:
        raise StudyError("a rate needs a flag, the outcome, or a number with --above; ask for a histogram instead")
    else:
        happened = column.values == 1
    events = np.maximum.reduceat(happened, column.starts[:-1])
    known = np.maximum.reduceat(~np.isnan(column.values), column.starts[:-1])
    counts = np.array([np.count_nonzero(events & known), np.count_nonzero(~events & known)], np.int64)
    words = "each patient counts once: with the event when any row has it"
    return Counts(counts, ("with the event", "without"), 1, words)


def bin_edges(feature: Feature, bins: int) -> Floats:
    """The public edges of a number's bins.

    >>> bin_edges(Number(low=0, high=100), 4).tolist()
    [0.0, 25.0, 50.0, 75.0, 100.0]
    """
    if not isinstance(feature, Number):
        raise StudyError("only a number has bins; a category or a flag has its declared values")
    if not 2 <= bins <= 4096:
        raise StudyError(f"expected 2 to 4,096 bins, found {bins}")
    return np.linspace(feature.low, feature.high, bins + 1)


def histogram_counts(column: Column, bins: int = 10, cap: int | None = None) -> Counts:
    """Patients by bin: a number by the mean of the patient's rows, others by their commonest value; or rows, capped.

    >>> age = Column("age", Number(low=0, high=100), np.array([10.0, 30, 90]), np.array([0, 2, 3]))
    >>> histogram_counts(age, 2).counts.tolist(), histogram_counts(age, 2, cap=5).counts.tolist()
    ([1, 1], [2, 1])
    """
    feature, values, starts = column.feature, column.values, column.starts
    if isinstance(feature, Number):
        edges = bin_edges(feature, bins)
        size, labels = bins, tuple(f"{low:.4g} to {high:.4g}" for low, high in itertools.pairwise(edges))
    else:
        labels = feature.values if isinstance(feature, Category) else ("no", "yes")
        size = len(labels)
    if cap is not None:
        if not 1 <= cap <= 1000:
            raise StudyError(f"expected a cap of 1 to 1,000 rows a patient, found {cap}")
        owner = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        kept = np.arange(len(values)) - starts[owner] < cap
        chosen, words = values[kept], f"at most {cap} rows of each patient count, one unit each"
    elif isinstance(feature, Number):
        chosen, words = _means(column), "each patient counts once, in the bin of the mean of their rows"
    else:
        chosen, words = _commonest(column, size), "each patient counts once, under their commonest value"
    chosen = chosen[~np.isnan(chosen)]
    index = chosen.astype(np.int64)
    if isinstance(feature, Number):
        clipped = np.clip(chosen, feature.low, feature.high)
        index = np.clip(np.searchsorted(edges, clipped, side="right") - 1, 0, size - 1)
    return Counts(np.bincount(index, minlength=size).astype(np.int64), labels, cap or 1, words)


def joint_histograms(columns: Sequence[Column], bins: int) -> Counts:
    """Histograms of several numbers as one release: a patient adds at most one unit to each.

    Each of m histograms moves in one bin by at most one, so the L2 sensitivity of all of them together is sqrt(m).

    >>> ages = Column("age", Number(low=0, high=100), np.array([10.0, 90]), np.array([0, 1, 2]))
    >>> found = joint_histograms([ages, ages], 2)
    >>> found.counts.tolist(), round(found.sensitivity, 3)
    ([1, 1, 1, 1], 1.414)
    """
    parts = [histogram_counts(column, bins) for column in columns]
    labels = tuple(f"{c.name}: {label}" for c, part in zip(columns, parts, strict=True) for label in part.labels)
    words = f"each patient counts once in each of {len(parts)} histograms, in the bin of the mean of their rows"
    return Counts(np.concatenate([part.counts for part in parts]), labels, math.sqrt(len(parts)), words)


def _means(column: Column) -> Floats:
    known = ~np.isnan(column.values)
    total = np.add.reduceat(np.where(known, column.values, 0.0), column.starts[:-1])
    rows = np.add.reduceat(known.astype(np.float64), column.starts[:-1])
    means: Floats = np.divide(total, rows, out=np.full(len(rows), np.nan), where=rows > 0)
    return means


def _commonest(column: Column, size: int) -> Floats:
    """The most frequent code of each patient; of equals the first declared."""
    patients = len(column.starts) - 1
    owner = np.repeat(np.arange(patients), np.diff(column.starts))
    known = ~np.isnan(column.values)
    table = np.zeros((patients, size), np.int32)
    np.add.at(table, (owner[known], column.values[known].astype(np.int64)), 1)
    return np.where(table.any(axis=1), table.argmax(axis=1).astype(np.float64), np.nan)


@dataclass(frozen=True)
class Noisy:
    """What left: noisy counts, the noise's standard deviation, and the release with its receipt."""

    counts: NDArray[Any]
    sd: float
    event: DpEvent
    release: Release


def charge_and_add_noise(
    counts: Counts,
    multiplier: float,
    *,
    ledger: Ledger,
    account: str,
    secret: bytes,
    question: str,
    content: bytes,
    mechanism: str = "discrete",
) -> Noisy:
    """Charge the ledger, then add noise worth a Gaussian event of ``multiplier`` to every count.

    ``question`` and ``content`` (the column's fingerprint) decide the randomness: the same release is repeated bit for
    bit and paid for once.
    """
    if mechanism not in MECHANISMS:
        raise StudyError(f"expected mechanism {' or '.join(MECHANISMS)}, found {mechanism!r}")
    event = GaussianDpEvent(float(multiplier))
    sigma = sigma_for(multiplier, counts.sensitivity) if mechanism == "discrete" else multiplier * counts.sensitivity
    software = f"{__version__} {np.__version__} {platform.machine()}"
    text = f"{question} {mechanism} multiplier={multiplier!r} sigma={sigma!r} {software}"
    mark = derive(secret, "released figures", text, content)
    receipt = ledger.charge(account, 0, event, mark, what=question)
    key = derive(secret, "released figures, randomness", mark)
    noisy: NDArray[Any]
    if isinstance(sigma, Fraction):
        noisy = counts.counts + discrete_gaussian(sigma, len(counts.counts), key)
    else:
        noisy = counts.counts + sigma * generator(key).standard_normal(len(counts.counts))
    return Noisy(noisy, float(sigma), event, Release({"counts": noisy}, event, receipt))


def refuse_empty(counts: Counts, site: str) -> None:
    """A site whose patients all lack the column has nothing to release; saying so is for its own operator."""
    if counts.counts.sum() == 0:
        raise DataError(f"site {site!r}: no patient has a value in this column; nothing was charged or released")


def describe_source(source: Source) -> str:
    """The source for the operator's messages."""
    return source.describe() if isinstance(source, SourceSpec) else "generated patients"
