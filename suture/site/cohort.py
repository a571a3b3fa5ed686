"""A site's rows, validated, encoded, grouped by patient and split by patient (see `split`).

Rows are ordered by their patient's hash and, within a patient, by their content: the order of a file or of a server's
answer changes nothing.

Every figure in `Loaded` is computed from rows. It is for the site's own operator and has paid for nothing, so it must
not leave the site; the number of training patients is the one figure that the study declares public.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from suture.errors import DataError, StudyError
from suture.privacy.unit import Patients
from suture.site import image_column
from suture.site.image_column import ImageFiles
from suture.site.passage import Passage
from suture.site.preprocess import (
    Counts,
    Vocabulary,
    encode,
    fitted_scales,
    marked,
    outcome_vocabulary,
    standardise,
)
from suture.site.problems import refusal, row_problems, rows_of, undeclared, value_problems
from suture.site.profile import Profile, take
from suture.site.reading import Read, read_columns
from suture.site.records import Source, SourceSpec, source_of
from suture.site.schema import Number, Schema, feature_names
from suture.site.split import distinct, first_rows, held_out

Place: TypeAlias = Source | str | os.PathLike[str]


@dataclass(frozen=True)
class Loaded:
    """What was read. Exact figures, for the site's own eyes."""

    rows: int
    patients: int
    train_patients: int
    test_patients: int
    class_rows: tuple[int, ...]
    """Rows of each class, training and test together."""
    clipped: dict[str, int] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    """Image files that could not be used and were skipped, by name: for a list in the site's home, and nowhere else."""

    @property
    def positives(self) -> int:
        """Rows with outcome 1 (any class but the first, where there are more than two)."""
        return sum(self.class_rows[1:])


@dataclass(frozen=True)
class SiteData:
    """One site's encoded rows. Stays in the site's process."""

    train: Patients
    test: Patients | None
    test_groups: dict[str, NDArray[np.str_]]
    """For each group column, the group of each test row."""
    loaded: Loaded
    scales: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Mean and deviation of each encoded number column, where the site standardised it; never leaves."""
    profile: Profile | None = None
    """The table's columns in figures, where asked for; exact, so it leaves only where nothing is promised."""


def count_training_patients(
    source: Place,
    schema: Schema,
    *,
    site: str,
    holdout: float,
    split_key: str,
    passage: Passage | None = None,
    images: ImageFiles | None = None,
) -> int:
    """How many patients the site will train on. Reads the patient column, those of the cohort rule, and nothing else.

    Except where broken image files are skipped: then each file is tried, because only a row with a usable file passes.

    The study takes this number as public, and plans the noise with it before any clinical value is read.

    >>> ids = {"id": np.array([7, 7, 8, 9])}
    >>> schema = Schema.parse({"patient": "id", "features": {"smoker": {"kind": "flag"}}})
    >>> count_training_patients(ids, schema, site="boston", holdout=0.0, split_key="k")
    3
    """
    source = source_of(source)
    images = images or ImageFiles()
    tried = schema.image is not None and images.broken == "skip" and isinstance(source, SourceSpec)
    read = read_columns(source, schema, None, Vocabulary({}), site, holdout, split_key, passage, files=tried)
    problems = row_problems(read, schema)
    if problems:
        raise refusal(source, site, problems)
    keys = read.keys
    if tried and schema.image is not None and schema.image_size is not None:
        root = images.root(source)
        found = image_column.find_unusable(read.features[schema.image].tolist(), root, schema.image_size)
        if len(found) == len(keys):
            raise refusal(source, site, [image_column.problem(schema.image, found, root)])
        keys = np.delete(keys, [one.row for one in found], axis=0)
    return len(distinct(keys[~held_out(keys, holdout)]))


def load(
    source: Place,
    schema: Schema,
    outcome: str,
    *,
    site: str,
    holdout: float,
    split_key: str,
    test_source: Place | None = None,
    classes: int | tuple[str, ...] = 2,
    passage: Passage | None = None,
    scaling: str = "bounds",
    profile: str = "",
    images: ImageFiles | None = None,
) -> SiteData:
    """Read, validate, encode and split one site's rows; every problem of a table in one `DataError`.

    With ``test_source`` the two tables are the split, and ``holdout`` must be 0. ``passage`` says whose rows may be used.
    With ``scaling="site"`` numbers are standardised by the training rows' own means (iFedAvg, paper 003, section 4): not
    private, see `standardise`. ``profile`` asks for the columns in figures: "exact", or "clipped" to the declared bounds.
    ``images`` says where the files of an image column are.

    >>> table = {"id": np.array([7, 7, 8]), "age": np.array([20.0, 30, 40]), "ill": np.array([0, 1, 0])}
    >>> schema = Schema.parse({"patient": "id", "features": {"age": {"kind": "number", "low": 20, "high": 40}}})
    >>> data = load(table, schema, "ill", site="boston", holdout=0.0, split_key="k")
    >>> data.train.patients, data.train.rows, data.test
    (2, 3, None)
    """
    if test_source is not None and holdout:
        raise StudyError(f"site {site!r} has its own test table, so holdout must be 0, found {holdout:g}")
    if outcome in schema.features or outcome == schema.patient:
        raise StudyError(f"the outcome {outcome!r} cannot also be a feature or the patient column; remove it there")
    # Standardising needs to know what is missing, so it is marked first, and unmarked where the schema asks for no mark.
    encoded = marked(schema) if scaling == "site" else schema
    arguments = (encoded, outcome, classes, site, split_key, passage, profile, images or ImageFiles())
    parts = [_part(source_of(source), holdout, *arguments)]
    if test_source is not None:
        parts.append(_part(source_of(test_source), 1.0, *arguments))
        known = [part.patients for part in parts]
        both = sum(map(len, known)) - len(distinct(np.concatenate(known)))
        if both and schema.patient is not None:
            raise DataError(f"site {site!r}: {both} patients are both in the training table and in the test table")
    train, test = parts[0].train, parts[-1].test
    class_rows = np.sum([part.class_rows for part in parts], axis=0)
    loaded = Loaded(
        rows=train.rows + test.rows,
        patients=train.patients + test.patients,
        train_patients=train.patients,
        test_patients=test.patients,
        class_rows=tuple(class_rows.tolist()),
        clipped=_added([part.counts.clipped for part in parts]),
        missing=_added([part.counts.missing for part in parts]),
        warnings=_warnings(parts, schema, site, expects_test=holdout > 0 or len(parts) > 1),
        skipped=tuple(f"{one.name}: {one.reason}" for part in parts for one in part.skipped),
    )
    scales: dict[int, tuple[float, float]] = {}
    if scaling == "site":
        scales = fitted_scales(train.x, encoded)
        kept = [feature_names(encoded).index(name) for name in feature_names(schema)]
        train, test = (replace(part, x=standardise(part.x, scales, encoded)[:, kept]) for part in (train, test))
        scales = {kept.index(column): scale for column, scale in scales.items()}
    return SiteData(train, test if test.rows else None, parts[-1].groups, loaded, scales, parts[0].profile)


@dataclass(frozen=True)
class _Part:
    """One table, encoded and split."""

    train: Patients
    test: Patients
    groups: dict[str, NDArray[np.str_]]
    patients: NDArray[np.uint64]
    counts: Counts
    class_rows: NDArray[np.int64]
    profile: Profile | None
    skipped: tuple[image_column.Unusable, ...] = ()


def _part(
    source: Source,
    holdout: float,
    schema: Schema,
    outcome: str,
    classes: int | tuple[str, ...],
    site: str,
    split_key: str,
    passage: Passage | None,
    profile: str,
    images: ImageFiles,
) -> _Part:
    read = read_columns(source, schema, outcome, outcome_vocabulary(classes), site, holdout, split_key, passage)
    order, counts = _order(read), Counts()
    profiled = {name: values[order] for name, values in read.features.items()} if profile else {}
    order, x, skipped, problems = _matrix(read, order, schema, source, images, counts)
    keys, y = read.keys[order], read.outcome[order].astype(np.int32)
    tested = int(np.count_nonzero(held_out(keys, holdout)))  # ordered by the hash, so these rows come first
    groups = {name: np.array(values[order[:tested]], dtype=np.str_) for name, values in read.groups.items()}
    problems += row_problems(read, schema) + value_problems(counts, schema, y, outcome, classes)
    problems += undeclared(read, schema)
    if problems:
        raise refusal(source, site, problems)
    first = first_rows(keys)
    split = int(np.searchsorted(first, tested))
    starts = np.append(first[split:], len(y)) - tested
    count = classes if isinstance(classes, int) else len(classes)
    # One group a patient, that of the first row: a patient can then move one group's sum only.
    group = None if read.protected is None else read.protected[order][first].astype(np.int32)
    return _Part(
        train=Patients(x[tested:], y[tested:], starts, None if group is None else group[split:]),
        test=Patients(
            x[:tested], y[:tested], np.append(first[:split], tested), None if group is None else group[:split]
        ),
        groups=groups,
        patients=keys[first],
        counts=counts,
        class_rows=np.bincount(y, minlength=count),
        profile=take(profiled, y, np.append(first, len(y)), schema, count, profile == "clipped") if profiled else None,
        skipped=skipped,
    )


def _matrix(
    read: Read, order: NDArray[np.intp], schema: Schema, source: Source, images: ImageFiles, counts: Counts
) -> tuple[NDArray[np.intp], NDArray[np.float32], tuple[image_column.Unusable, ...], list[str]]:
    """The order of the rows that train, their encoded values, the files that were skipped, and reasons to refuse."""
    if schema.image is None or schema.image_size is None or not isinstance(source, SourceSpec):
        return order, encode(read.features, schema, order, counts), (), []
    root = images.root(source)
    x, unusable = image_column.read_files(read.features[schema.image][order].tolist(), root, schema.image_size)
    if unusable and (images.broken == "refuse" or len(unusable) == len(order)):
        return order, x, (), [image_column.problem(schema.image, unusable, root)]
    gone = [one.row for one in unusable]
    return np.delete(order, gone), np.delete(x, gone, axis=0) if gone else x, tuple(unusable), []


def _order(read: Read) -> NDArray[np.intp]:
    """Rows by patient; the rows of one patient by a hash of their content, so that their order in the file is moot."""
    hi, lo = read.keys[:, 0], read.keys[:, 1]
    order = np.lexsort((lo, hi))
    if len(first_rows(read.keys[order])) == len(order):
        return order
    content = read.outcome.astype(np.uint64)
    for column in (*read.features.values(), *([] if read.protected is None else [read.protected])):
        content = (content ^ _bits(column)) * np.uint64(0x9E3779B97F4A7C15)
        content ^= content >> np.uint64(29)
    return np.lexsort((content, lo, hi))


def _bits(column: NDArray[Any]) -> NDArray[np.uint64]:
    """64 bits of each row's value: of a number itself, of an image or a file's name a digest."""
    if column.ndim == 1 and column.dtype.kind not in "OU":
        return column.view(np.uint64) if column.dtype == np.float64 else column.astype(np.uint64)
    raw = (value.encode() if isinstance(value, str) else np.ascontiguousarray(value).tobytes() for value in column)
    return np.array([int.from_bytes(hashlib.blake2b(one, digest_size=8).digest()) for one in raw], np.uint64)


def _warnings(parts: list[_Part], schema: Schema, site: str, *, expects_test: bool) -> tuple[str, ...]:
    """What a site may train with, but should know. The texts hold counts: they stay at the site."""
    train, test = parts[0].train, parts[-1].test
    rows, warnings = sum(part.train.rows + part.test.rows for part in parts), []
    for name, count in _added([part.counts.clipped for part in parts]).items():
        feature = schema.features[name]
        bounds = f"{feature.low:g} to {feature.high:g}" if isinstance(feature, Number) else ""
        warnings.append(f"column {name!r}: {count} of {rows_of(rows)} outside the declared {bounds}, clipped to it")
    for name, count in _added([part.counts.missing for part in parts]).items():
        told = "" if schema.missing_rule(name) == "indicator" else '; missing = "indicator" would tell the model which'
        warnings.append(
            f"column {name!r}: {count} of {rows_of(rows)} without a value, filled with the neutral one{told}"
        )
    skipped = [one for part in parts for one in part.skipped]
    if skipped and schema.image is not None:
        warnings.append(image_column.warning(schema.image, skipped, rows + len(skipped)))
    if train.rows and len(np.unique(train.y)) == 1:
        warnings.append("all training rows have the same outcome: the site can train, but alone it learns nothing")
    if not train.rows:
        warnings.append("every patient fell into the hold-out: the site has nobody to train on")
    if expects_test and not test.rows:
        warnings.append("no patient fell into the hold-out: the site has nobody to test on")
    return tuple(f"site {site!r}: {warning}" for warning in warnings)


def _added(parts: list[dict[str, int]]) -> dict[str, int]:
    return {name: sum(part.get(name, 0) for part in parts) for name in dict.fromkeys(n for part in parts for n in part)}
