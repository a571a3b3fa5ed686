"""A site's rows, validated, encoded, grouped by patient and split by patient (see `passage`).

Rows are ordered by their patient's hash and, within a patient, by their content: the order of a
file or of a server's answer changes nothing. Of a patient with more rows than ``schema.rows``, the
first in this order are used.

A table is never refused for what its rows hold (no rows at all are fine too): a refusal would tell
whoever asked something about the rows, and nobody has paid for it. What the schema does not declare
counts as missing, rows that cannot be used are left out, and `Loaded` lists the problems in counts,
never in values. All its figures are exact and unpaid, so they must not leave the site. Only where
whoever runs the study holds the rows (one machine) are they raised, by `refusal`.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from suture.errors import DataError, StudyError
from suture.privacy.unit import Patients
from suture.schema.outcome import TWO, Outcome, Survival
from suture.schema.table import Image, Number, Schema, feature_names
from suture.site import preprocess, reading
from suture.site.images import ImageFiles, Unusable, read_files, reasons
from suture.site.preprocess import MISSING, UNKNOWN, Counts
from suture.site.profile import Profile, table, take
from suture.site.sources import Column, Source, SourceSpec, source_of

Place: TypeAlias = Source | str | os.PathLike[str]
Order = NDArray[np.intp]

SHOWN = 10  # how many broken image files a refusal names


@dataclass(frozen=True)
class Loaded:
    """What was read: exact figures, for the site only."""

    rows: int
    patients: int
    train_patients: int
    test_patients: int
    class_rows: tuple[int, ...]  # rows of each class, training and test together
    clipped: dict[str, int] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    """Image files that could not be used, by name: listed in the site's home, and nowhere else."""
    problems: tuple[str, ...] = ()
    """What was left out or taken as missing, and why: counts, never values."""


@dataclass(frozen=True)
class SiteData:
    """One site's encoded rows. Stays in the site's process."""

    train: Patients
    test: Patients | None
    test_groups: dict[str, NDArray[np.str_]]  # for each group column, the group of each test row
    loaded: Loaded
    scales: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Mean and deviation of each number column, where the site standardised it; never leaves."""
    reserved: Patients | None = None
    """Test patients of whom nothing exact may be shown: only the door looks at them."""
    columns: Patients | None = None
    """The table's columns as the door takes them for a noisy profile, where asked for."""
    profile: Profile | None = None
    """The table's columns in figures; exact, so it leaves only where nothing is promised."""

    @property
    def nobody(self) -> Patients:
        """A table of these columns without a row."""
        return Patients(self.train.x[:0], self.train.y[:0], np.zeros(1, np.int64))


def count_training_patients(
    source: Place,
    schema: Schema,
    *,
    site: str,
    holdout: float,
    split_key: str,
    passage: reading.Passage | None = None,
    images: ImageFiles | None = None,
) -> int:
    """How many patients the site will train on; reads only the columns that decide that.

    Where broken image files are skipped, each file is tried too, because only a row with a usable
    file passes. Only for generated patients, simulations and studies without privacy: elsewhere
    sizes are declared, and nothing is counted.
    """
    source, images, size = source_of(source), images or ImageFiles(), schema.image_size
    tried = size is not None and images.broken == "skip" and isinstance(source, SourceSpec)
    wanted = reading.Wanted(
        schema, None, preprocess.Vocabulary({}), holdout, split_key, features=tried
    )
    read = reading.read_columns(source, wanted, site, passage)
    keys = read.keys
    if tried and schema.image is not None and size is not None:
        names, root = read.features[schema.image].tolist(), images.root(source)
        broken = [i for i, name in enumerate(names) if read_files([name], root, size)[1]]
        keys = np.delete(keys, broken, axis=0)
    return len(reading.distinct(keys[~reading.held_out(keys, holdout)]))


def load(
    source: Place,
    schema: Schema,
    outcome: str,
    *,
    site: str,
    holdout: float,
    split_key: str,
    test_source: Place | None = None,
    target: Outcome = TWO,
    passage: reading.Passage | None = None,
    scaling: str = "bounds",
    profile: str = "",
    images: ImageFiles | None = None,
) -> SiteData:
    """Read, encode and split one site's rows. What is wrong with them is listed in
    ``loaded.problems`` and refuses nothing.

    With ``test_source`` the two tables are the split, and ``holdout`` must be 0; patients in both
    are not tested on. ``passage`` says whose rows may be used. With ``scaling="site"`` numbers are
    standardised by the training rows' own means (iFedAvg, section 4): not private, see
    `standardise`. ``profile`` asks for the columns in figures: "exact", or "clipped" to the
    declared bounds, with the rows behind it. ``images`` says where the files of an image column
    are.

    >>> table = {"id": np.array([7, 7, 8]), "age": np.array([20.0, 30, 40]), "ill": np.array([0, 1, 0])}
    >>> schema = Schema.parse({"patient": "id", "features": {"age": {"kind": "number", "low": 20, "high": 40}}})
    >>> data = load(table, schema, "ill", site="boston", holdout=0.0, split_key="k")
    >>> data.train.patients, data.train.rows, data.test
    (2, 3, None)
    """
    if test_source is not None and holdout:
        raise StudyError(
            f"site {site!r} has its own test table, so holdout must be 0, found {holdout:g}"
        )
    survival = target if isinstance(target, Survival) else None
    for column in (outcome, *([survival.time] if survival else [])):
        if column not in schema.features and column != schema.patient:
            continue
        raise StudyError(
            f"the outcome {column!r} cannot also be a feature or the patient column; remove it "
            "there"
        )
    # Standardising needs to know what is missing, so that is marked first, and unmarked where the
    # schema asks for no mark.
    encoded = preprocess.marked(schema) if scaling == "site" else schema
    wanted = reading.Wanted(
        encoded, outcome, preprocess.outcome_vocabulary(target), holdout, split_key,
        survival=survival,
    )  # fmt: skip
    table = _Table(wanted, target, site, passage, profile, images or ImageFiles())
    parts = [table.read(source_of(source))]
    if test_source is not None:
        trained = reading.NOBODY if schema.patient is None else parts[0].patients
        tested = replace(table, wanted=replace(wanted, holdout=1.0), trained=trained)
        parts.append(tested.read(source_of(test_source)))
    train, test = parts[0].train, parts[-1].test
    loaded = Loaded(
        rows=train.rows + test.rows,
        patients=train.patients + test.patients,
        train_patients=train.patients,
        test_patients=test.patients,
        class_rows=tuple(np.sum([part.class_rows for part in parts], axis=0).tolist()),
        clipped=_added(part.counts.clipped for part in parts),
        missing=_added(part.counts.missing for part in parts),
        warnings=_warnings(parts, schema, site, expects_test=holdout > 0 or len(parts) > 1),
        skipped=tuple(f"{one.name}: {one.reason}" for part in parts for one in part.skipped),
        problems=(
            *(passage.problems if passage else ()),
            *parts[0].problems,
            *(f"test table: {problem}" for part in parts[1:] for problem in part.problems),
        ),
    )
    scales: dict[int, tuple[float, float]] = {}
    if scaling == "site":
        scales, names = preprocess.fitted_scales(train.x, encoded), feature_names(encoded)
        kept = [names.index(name) for name in feature_names(schema)]
        train = replace(train, x=preprocess.standardise(train.x, scales, encoded)[:, kept])
        test = replace(test, x=preprocess.standardise(test.x, scales, encoded)[:, kept])
        scales = {kept.index(column): scale for column, scale in scales.items()}
    return SiteData(
        train,
        test if test.rows else None,
        parts[-1].groups,
        loaded,
        scales,
        columns=parts[0].columns,
        profile=parts[0].profile,
    )


@dataclass(frozen=True)
class _Part:
    """One table, encoded and split."""

    train: Patients
    test: Patients
    groups: dict[str, NDArray[np.str_]]
    patients: reading.Keys
    counts: Counts
    class_rows: NDArray[np.int64]
    columns: Patients | None
    profile: Profile | None
    skipped: tuple[Unusable, ...]
    beyond: int  # rows left out because their patient has more than ``schema.rows``
    problems: tuple[str, ...]


@dataclass(frozen=True)
class _Table:
    """How one table is read."""

    wanted: reading.Wanted
    target: Outcome
    site: str
    passage: reading.Passage | None
    profile: str
    images: ImageFiles
    trained: reading.Keys = field(default_factory=lambda: reading.NOBODY)
    """Patients who are trained on in another table, and so not tested on in this one."""

    def read(self, source: Source) -> _Part:
        """Read, validate, order, encode and split the table."""
        schema, profile, counts = self.wanted.schema, self.profile, Counts()
        read = reading.read_columns(source, self.wanted, self.site, self.passage)
        problems, found = _row_problems(read, schema), read.outcome
        # Each row and patient is looked at alone: neighbouring tables stay neighbours behind this.
        both = reading.among(read.keys, self.trained)
        if both.any():
            patients = len(reading.distinct(read.keys[both]))
            problems.append(
                f"{patients} patients are also in the training table; they are not tested on"
            )
        usable, noted = (found >= 0) & ~both, counts
        if not usable.all():  # values are counted over all rows, also over those left out
            noted = Counts()
            for name, feature in schema.features.items():
                if not isinstance(feature, Image):
                    noted.note(name, feature, read.features[name])
        read = read.only(usable)
        order = _order(read)
        given = read.features if profile else {}
        profiled = preprocess.plausible({name: values[order] for name, values in given.items()})
        order, x, skipped = self._matrix(read, order, source, counts)
        if skipped and self.images.broken == "refuse":
            problems.append(
                f"{_unusable(schema, skipped, len(order))} ({reasons(skipped)}). "
                'Repair them, or set broken = "skip" in [images] to leave their rows out'
            )
        problems += _value_problems(noted, self.wanted, found, self.target)
        first = reading.first_rows(read.keys[order])
        within = np.arange(len(order)) - np.repeat(first, np.diff(np.append(first, len(order))))
        kept = within < schema.rows  # the rows within each patient's first ones
        beyond = len(order) - int(np.count_nonzero(kept))
        if beyond:
            order, x = order[kept], x[kept]
            profiled = {name: values[kept] for name, values in profiled.items()}
        keys, y = read.keys[order], read.outcome[order].astype(np.int32)
        # Rows are ordered by the hash, so test rows come first.
        tested = int(np.count_nonzero(reading.held_out(keys, self.wanted.holdout)))
        first = reading.first_rows(keys)
        starts, split = np.append(first, len(y)), int(np.searchsorted(first, tested))
        # One group per patient, that of the first row: nobody moves more than one group's sum.
        group = None
        if read.protected is not None:
            group = np.maximum(read.protected[order][first], MISSING).astype(np.int32)
        ours, theirs = (None, None) if group is None else (group[split:], group[:split])
        clipped, count, classes = profile == "clipped", self.target.count, self.target.classes(y)
        return _Part(
            train=Patients(x[tested:], y[tested:], starts[split:] - tested, ours),
            test=Patients(x[:tested], y[:tested], np.append(first[:split], tested), theirs),
            groups={n: np.array(g[order[:tested]], np.str_) for n, g in read.groups.items()},
            patients=keys[first],
            counts=counts,
            class_rows=np.bincount(classes, minlength=count),
            columns=table(profiled, classes, starts, schema) if clipped else None,
            profile=take(profiled, classes, starts, schema, count, clipped) if profiled else None,
            skipped=skipped,
            beyond=beyond,
            problems=tuple(problems),
        )

    def _matrix(
        self, read: reading.Read, order: Order, source: Source, counts: Counts
    ) -> tuple[Order, NDArray[np.float32], tuple[Unusable, ...]]:
        """The order of the rows that train, their encoded values, and the skipped files."""
        schema = self.wanted.schema
        if schema.image is None or schema.image_size is None or not isinstance(source, SourceSpec):
            return order, preprocess.encode(read.features, schema, order, counts), ()
        names = read.features[schema.image][order].tolist()
        x, unusable = read_files(names, self.images.root(source), schema.image_size)
        gone = [one.row for one in unusable]
        return np.delete(order, gone), np.delete(x, gone, axis=0) if gone else x, tuple(unusable)


def _order(read: reading.Read) -> Order:
    """Rows by patient, and by a hash of their content, so that their order in the file is moot."""
    hi, lo = read.keys[:, 0], read.keys[:, 1]
    order = np.lexsort((lo, hi))
    if len(reading.first_rows(read.keys[order])) == len(order):
        return order
    content = read.outcome.astype(np.uint64)
    for column in (*read.features.values(), *([] if read.protected is None else [read.protected])):
        content = (content ^ _bits(column)) * np.uint64(0x9E3779B97F4A7C15)
        content ^= content >> np.uint64(29)
    return np.lexsort((content, lo, hi))


def _bits(column: Column) -> NDArray[np.uint64]:
    """64 bits of each row's value: a number's own, or a digest of an image or a file's name."""
    if column.ndim == 1 and column.dtype.kind not in "OU":
        return column.view(np.uint64) if column.dtype == np.float64 else column.astype(np.uint64)
    found = []
    for value in column:
        data = value.encode() if isinstance(value, str) else np.ascontiguousarray(value).tobytes()
        found.append(int.from_bytes(hashlib.blake2b(data, digest_size=8).digest()))
    return np.array(found, np.uint64)


# --- warnings and problems: counts, never values ----------------------------------------------------------------------


def _warnings(
    parts: list[_Part], schema: Schema, site: str, *, expects_test: bool
) -> tuple[str, ...]:
    """What a site may train with, but should know. The texts hold counts: they stay at the site."""
    train, test = parts[0].train, parts[-1].test
    rows, warnings = sum(part.train.rows + part.test.rows for part in parts), []
    for name, count in _added(part.counts.clipped for part in parts).items():
        feature = schema.features[name]
        bounds = f"{feature.low:g} to {feature.high:g}" if isinstance(feature, Number) else ""
        outside = f"{count} of {_rows(rows)} outside the declared {bounds}"
        warnings.append(f"column {name!r}: {outside}, clipped to it")
    for name, count in _added(part.counts.missing for part in parts).items():
        rule = schema.missing_rule(name)
        if rule != "refuse":  # else a problem, and said there
            hint = (
                "" if rule == "indicator" else '; missing = "indicator" would tell the model which'
            )
            absent = f"{count} of {_rows(rows)} without a value"
            warnings.append(f"column {name!r}: {absent}, filled with the neutral one{hint}")
    skipped = [one for part in parts for one in part.skipped]
    if skipped:
        files = _unusable(schema, skipped, rows)
        warnings.append(f"{files}, their rows are skipped ({reasons(skipped)})")
    beyond = sum(part.beyond for part in parts)
    if beyond:
        first = f"the first {schema.rows} of their patient (schema.rows)"
        warnings.append(f"{_rows(beyond)} beyond {first}, not used")
    if train.rows and len(np.unique(train.y)) == 1:
        words = "the site can train, but alone it learns nothing"
        warnings.append(f"all training rows have the same outcome: {words}")
    if not train.rows:
        warnings.append("every patient fell into the hold-out: the site has nobody to train on")
    if expects_test and not test.rows:
        warnings.append("no patient fell into the hold-out: the site has nobody to test on")
    return tuple(f"site {site!r}: {warning}" for warning in warnings)


def _row_problems(read: reading.Read, schema: Schema) -> list[str]:
    """Unreadable lines and rows of nobody (both left out), and undeclared protected groups."""
    problems = list(read.unreadable)
    if read.no_patient:
        problems.append(
            f"column {schema.patient!r}: {_rows(read.no_patient)} without a patient identifier; "
            "fill it in, or remove them (a row that belongs to nobody cannot be protected)"
        )
    count = 0 if read.protected is None else int(np.count_nonzero(read.protected == UNKNOWN))
    if schema.protected is not None and count:
        problems.append(
            f"column {schema.protected.column!r}: {_rows(count)} of a group that "
            "schema.protected.values does not declare; declare it for all sites, or leave the cell "
            "empty (no group)"
        )
    return problems


def _value_problems(
    counts: Counts, wanted: reading.Wanted, y: NDArray[np.integer], target: Outcome
) -> list[str]:
    """Rows without an outcome, and values that the schema does not declare."""
    schema, outcome, problems = wanted.schema, wanted.outcome, []
    missing, unknown = int(np.count_nonzero(y == MISSING)), int(np.count_nonzero(y == UNKNOWN))
    if missing:
        words = "without an outcome; fill it in, or remove them"
        problems.append(f"outcome {outcome!r}: {_rows(missing)} {words}")
    if unknown:
        written = target.texts.written
        labels = written if isinstance(written, tuple) else (f"0 to {target.count - 1}",)
        named = ", ".join(labels)
        expected = "0 or 1 (or true/false, yes/no)" if written == 2 else f"one of {named}"
        if wanted.survival is not None:
            expected += f", or with a {wanted.survival.time!r} that is no number of 0 or more"
        problems.append(
            f"outcome {outcome!r}: {_rows(unknown)} with something else than {expected}"
        )
    for name, count in counts.not_a_number.items():
        problems.append(
            f"column {name!r}: {_rows(count)} with text or an infinity where a number is expected; "
            'for decimal commas set decimal = ",", for texts that mean "missing" set missing = '
            '["NA"], beside the path of the data'
        )
    for name, count in counts.not_declared.items():
        flag = schema.features[name].kind == "flag"
        expected = "0/1, true/false or yes/no" if flag else "a value declared in the schema"
        problems.append(
            f"column {name!r}: {_rows(count)} with something else than {expected}; correct them, "
            f"or extend schema.features.{name} for all sites"
        )
    for name, count in counts.missing.items():
        if schema.missing_rule(name) == "refuse":
            rule = 'and the schema says missing = "refuse"'
            problems.append(f"column {name!r}: {_rows(count)} without a value, {rule}")
    return problems


def refusal(source: Source, site: str, loaded: Loaded) -> DataError:
    """All problems of one site in one error, for whoever holds the rows."""
    problems, files = list(loaded.problems), loaded.skipped
    if files and any("image files" in problem for problem in problems):
        more = f"; and {len(files) - SHOWN} more" if len(files) > SHOWN else ""
        problems.append(f"the files: {'; '.join(files[:SHOWN])}{more}")
    where = source.describe() if isinstance(source, SourceSpec) else "in memory"
    place = f"site {site!r} ({where})"
    if len(problems) == 1:
        return DataError(f"{place}: {problems[0]}")
    lines = "\n".join(f"  - {problem}" for problem in problems)
    return DataError(f"{place}: {len(problems)} problems\n{lines}")


def _unusable(schema: Schema, skipped: Sequence[Unusable], usable: int) -> str:
    count, rows = len(skipped), usable + len(skipped)
    return f"column {schema.image!r}: {count:,} of {rows:,} image files cannot be used"


def _added(parts: Iterable[dict[str, int]]) -> dict[str, int]:
    return dict(sum(map(Counter, parts), Counter[str]()))


def _rows(count: int) -> str:
    return f"{count:,} row" + ("" if count == 1 else "s")
