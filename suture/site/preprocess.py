"""From a table's columns to the encoded matrix, by the public rules of the schema alone.

DuckDB parses files and servers' answers (text, numbers, what counts as missing); NumPy parses
columns in memory. Both give the same typed columns (a test holds them equal), and one function
encodes them.

| found                                             | becomes                                              |
|---------------------------------------------------|------------------------------------------------------|
| empty, NULL, NaN, a text of the source's `missing` | missing                                             |
| a number column with text, or an infinity          | missing, counted                                    |
| a number outside its bounds                        | the nearer bound, counted                           |
| a category or flag that is not declared            | missing, counted; the value is never shown          |
| an outcome that is not declared                    | its row is left out, counted                        |

Nothing is refused here: see `cohort`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from suture.errors import StudyError
from suture.schema.clinical import convert, recognise
from suture.schema.outcome import MISSING as MISSING
from suture.schema.outcome import UNKNOWN as UNKNOWN
from suture.schema.outcome import Outcome, Positive
from suture.schema.table import Category, Feature, Flag, Image, Number, Schema
from suture.site.images import in_memory
from suture.site.sources import Column, Columns, Opened, SourceSpec
from suture.site.sql import quoted

YES, NO = ("1", "true", "yes", "y", "t"), ("0", "false", "no", "n", "f")
_NUMERIC = re.compile(r"^(U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|DOUBLE|DECIMAL.*|BOOLEAN)$")
_WHOLE = r"^([+-]?[0-9]+)\.0+$"


@dataclass(frozen=True)
class Vocabulary:
    """The texts of a flag, a category or an outcome, and the code each stands for."""

    codes: dict[str, int]
    fold: bool = False  # whether case is ignored
    other: int = UNKNOWN  # the code of every other text

    def code(self, text: str | None) -> int:
        """The code of one text."""
        if text is None or not text.strip():
            return MISSING
        text = whole(text.strip())
        return self.codes.get(text.lower() if self.fold else text, self.other)

    def sql(self, text: str) -> str:
        """The same in SQL, for an expression that gives trimmed text or NULL."""
        whole_text = f"regexp_replace({text}, '{_WHOLE}', '\\1')"
        value = f"lower({whole_text})" if self.fold else whole_text
        cases = " ".join(f"WHEN {quoted(known)} THEN {code}" for known, code in self.codes.items())
        return f"(CASE WHEN {text} IS NULL THEN {MISSING} ELSE CASE {value} {cases} ELSE {self.other} END END)::SMALLINT"


def whole(text: str) -> str:
    """A whole number written as a float (as pandas does beside missing values) without its zeros.

    >>> whole("3.0"), whole("3.5")
    ('3', '3.5')
    """
    return re.sub(_WHOLE, r"\1", text)


BINARY = Vocabulary({**dict.fromkeys(NO, 0), **dict.fromkeys(YES, 1)}, fold=True)
"""Flags and binary outcomes."""


def vocabulary_of(feature: Category | Flag) -> Vocabulary:
    if isinstance(feature, Flag):
        return BINARY
    return Vocabulary({whole(value): i for i, value in enumerate(feature.values)})


def outcome_vocabulary(outcome: Outcome) -> Vocabulary:
    """The texts of an outcome: 0/1 and yes/no for two classes, 0 to k - 1, the given labels, or one
    text against all others.

    >>> from suture.schema.outcome import Classes
    >>> positive = outcome_vocabulary(Classes(written=Positive(text="<30")))
    >>> [positive.code(text) for text in ("<30", ">30", "NO", None)]
    [1, 0, 0, -1]
    """
    classes = outcome.texts.written
    if isinstance(classes, Positive):
        return Vocabulary({whole(classes.text.strip()): 1}, other=0)
    if classes == 2:
        return BINARY
    labels = map(str, range(classes)) if isinstance(classes, int) else map(whole, classes)
    return Vocabulary({label: i for i, label in enumerate(labels)})


# --- parsing in SQL ---------------------------------------------------------------------------------------------------


def sql_text(opened: Opened, column: str) -> str:
    """Trimmed text, NULL where missing."""
    kind, name = opened.types[column], opened.names[column]
    text = f"trim(CAST({name} AS VARCHAR), e' \\t\\r\\n')"
    if kind in ("FLOAT", "DOUBLE"):
        # As `whole` does in memory: 1.0 at one site and 1 at another are one identifier or group.
        plain = f"regexp_replace({text}, '{_WHOLE}', '\\1')"
        text = f"CASE WHEN isnan({name}) THEN NULL ELSE {plain} END"
    text = f"nullif({text}, '')"
    if opened.spec.missing:
        markers = ", ".join(quoted(marker.strip()) for marker in opened.spec.missing)
        text = f"CASE WHEN {text} IN ({markers}) THEN NULL ELSE {text} END"
    if column in opened.spec.sentinels:
        codes = ", ".join(quoted(whole(code.strip())) for code in opened.spec.sentinels[column])
        plain = f"regexp_replace({text}, '{_WHOLE}', '\\1')"
        text = f"CASE WHEN {plain} IN ({codes}) THEN NULL ELSE {text} END"
    return f"({text})"


def sql_number(opened: Opened, column: str, feature: Feature | None = None) -> str:
    """A double: NaN where missing, infinite where it is not a number. In the unit of the feature,
    where the source says that its own is another."""
    if column in opened.spec.units:
        factor, offset = unit_change(opened.spec, column, feature)
        return f"({_sql_plain(opened, column)} * {factor!r}::DOUBLE + {offset!r}::DOUBLE)"
    return _sql_plain(opened, column)


def unit_change(spec: SourceSpec, column: str, feature: Feature | None) -> tuple[float, float]:
    """Factor and offset from the source's unit of a column to the schema's."""
    unit, wanted = spec.units[column], feature.unit if isinstance(feature, Number) else ""
    labelled = feature.label if feature is not None else ""
    found = wanted and convert(unit, wanted, recognise(column) or recognise(labelled))
    if not found:
        what = f"to the {wanted!r} of the schema" if wanted else "to a unit: the schema has none"
        raise StudyError(
            f"data.units: column {column!r} cannot be converted from {unit!r} {what}. Units are "
            'written in UCUM or as "mg/dL", "mmol/L", "°F"; mass and moles need a measure that the '
            "clinical dictionary knows by the column's name or label"
        )
    return found


def _sql_plain(opened: Opened, column: str) -> str:
    """A column as a double, in its own unit."""
    kind, name, spec = opened.types[column], opened.names[column], opened.spec
    markers = spec.missing or column in spec.sentinels
    if _NUMERIC.match(kind) and not markers:
        return f"coalesce(CAST({name} AS DOUBLE), 'nan'::DOUBLE)"
    text = sql_text(opened, column)
    # Markers come first, because they may look like numbers ("-999"). Without any, the text is only
    # looked at where the plain cast fails: half the time for a file of a million rows.
    plain = text if markers else f"CAST({name} AS VARCHAR)"
    if spec.thousands and kind == "VARCHAR":
        mark, point = re.escape(spec.thousands), re.escape(spec.decimal)
        groups = f"^\\s*[+-]?[0-9]{{1,3}}({mark}[0-9]{{3}})+({point}[0-9]+)?\\s*$"
        bare = f"replace({plain}, {quoted(spec.thousands)}, '')"
        plain = f"CASE WHEN regexp_matches({plain}, {quoted(groups)}) THEN {bare} ELSE {plain} END"
    if spec.decimal == "," and kind == "VARCHAR":
        plain = f"replace({plain}, ',', '.')"
    other = f"CASE WHEN {text} IS NULL THEN 'nan' ELSE 'inf' END::DOUBLE"
    return f"coalesce(TRY_CAST({plain} AS DOUBLE), {other})"


def sql_typed(opened: Opened, column: str, feature: Feature) -> str:
    """A feature as its typed column; for an image, the name of its file, or an empty text."""
    if isinstance(feature, Number):
        return sql_number(opened, column, feature)
    text = sql_text(opened, column)
    if isinstance(feature, Image):
        return f"coalesce({text}, '')"
    return vocabulary_of(feature).sql(text)


# --- parsing in NumPy -------------------------------------------------------------------------------------------------


def as_text(value: object) -> str | None:
    """One value of a column in memory as DuckDB would write it; None where missing."""
    if value is None or value is np.ma.masked:
        return None
    if isinstance(value, float | np.floating):
        return None if np.isnan(value) else whole(str(value))
    if isinstance(value, bool | np.bool_):
        return str(value).lower()
    return (value.decode() if isinstance(value, bytes) else str(value)).strip() or None


def texts(column: Column) -> list[str | None]:
    """A column in memory as trimmed text."""
    if column.dtype.kind in "iu" and not np.ma.isMaskedArray(column):
        return list(map(str, column.tolist()))
    return [as_text(v) for v in (column if np.ma.isMaskedArray(column) else column.tolist())]


def _plain_number(text: str | None) -> float:
    try:
        return np.nan if text is None else float(text)
    except ValueError:
        return np.inf


def numbers(column: Column) -> NDArray[np.float64]:
    """A number column in memory, as `sql_number` gives it."""
    if column.dtype.kind not in "biuf":
        return np.array([_plain_number(text) for text in texts(column)], np.float64)
    values = np.asarray(np.ma.getdata(column), np.float64)
    if not np.ma.isMaskedArray(column):
        return values
    return np.where(np.ma.getmaskarray(column), np.nan, values)


def codes(column: Column, vocabulary: Vocabulary) -> NDArray[np.int16]:
    """A category, flag or outcome in memory, as `Vocabulary.sql` gives it."""
    if column.dtype.kind in "biuU" and not np.ma.isMaskedArray(column):
        values, inverse = np.unique(column, return_inverse=True)
        table = np.array([vocabulary.code(as_text(value)) for value in values.tolist()], np.int16)
        return table[inverse] if len(values) else table
    found = texts(column)
    known = {text: vocabulary.code(text) for text in set(found)}
    return np.array([known[text] for text in found], np.int16)


def typed(column: Column, feature: Feature) -> Column:
    """A feature in memory as its typed column, as `sql_typed` gives it; images as they are."""
    if isinstance(feature, Number):
        return numbers(column)
    return column if isinstance(feature, Image) else codes(column, vocabulary_of(feature))


# --- encoding ---------------------------------------------------------------------------------------------------------


@dataclass
class Counts:
    """What encoding met, for each column. Computed from rows: for the site only, never sent."""

    clipped: dict[str, int] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)
    not_a_number: dict[str, int] = field(default_factory=dict)
    not_declared: dict[str, int] = field(default_factory=dict)

    def note(self, name: str, feature: Feature, values: Column) -> NDArray[np.bool_]:
        """Count missing and undeclared values; returns where there is no usable value."""
        if isinstance(feature, Number):
            absent, wrong, into = np.isnan(values), np.isinf(values), self.not_a_number
        else:
            absent, wrong, into = values == MISSING, values == UNKNOWN, self.not_declared
        _count(into, name, wrong)
        _count(self.missing, name, absent)
        unusable: NDArray[np.bool_] = absent | wrong
        return unusable


def encode(
    columns: Columns, schema: Schema, order: NDArray[np.intp] | None, counts: Counts
) -> NDArray[np.float32]:
    """The encoded matrix, rows in the given order; takes each column out of ``columns``.

    The one place where values become inputs: every entry is finite and within [-1, 1], whatever the
    rows hold, so a single wild value cannot push a patient's gradient anywhere that clipping does
    not already bound. What the schema does not declare counts as missing; a missing value is
    filled, and marked where the schema says "indicator".

    >>> from suture.schema.table import Schema
    >>> schema = Schema(missing="fill", features={"age": Number(low=20, high=80), "smoker": Flag(missing="indicator")})
    >>> columns = {"age": np.array([20.0, 50.0, 99.0]), "smoker": np.array([0, 1, -1], np.int16)}
    >>> counts = Counts()
    >>> encode(columns, schema, None, counts).tolist(), counts.clipped, counts.missing
    ([[-1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.5, 1.0]], {'age': 1}, {'smoker': 1})
    """
    rows = len(columns[next(iter(schema.features))])
    matrix = np.zeros((rows, schema.width), np.float32)
    for name, feature, j, mark in _places(schema):
        values = columns.pop(name) if order is None else columns.pop(name)[order]
        if isinstance(feature, Image):  # which is then the only feature
            return in_memory(values, feature.size, name)
        absent = counts.note(name, feature, values)
        if isinstance(feature, Number):
            outside = ((values < feature.low) | (values > feature.high)) & ~absent
            _count(counts.clipped, name, outside)
            matrix[:, j] = np.where(absent, 0.0, scale(values, feature))
        elif isinstance(feature, Flag):
            matrix[:, j] = np.where(absent, 0.5, values == 1)
        else:
            for code in range(len(feature.values)):
                matrix[:, j + code] = values == code
        if mark is not None:
            matrix[:, mark] = absent
    return matrix


def scale(values: NDArray[np.float64], feature: Number) -> NDArray[np.float64]:
    """Bounds to -1 and 1, the middle to 0, values outside to the nearer bound."""
    inside = np.clip(values, feature.low, feature.high)
    # In this order the quotient cannot exceed 1: rounding keeps x - low <= high - low.
    scaled: NDArray[np.float64] = 2 * ((inside - feature.low) / (feature.high - feature.low)) - 1
    return scaled


def marked(schema: Schema) -> Schema:
    """The same schema with a mark beside every feature that may be missing."""
    features = dict(schema.features)
    for name, feature in features.items():
        if schema.missing_rule(name) == "fill":
            features[name] = feature.model_copy(update={"missing": "indicator"})
    return schema.model_copy(update={"features": features})


def _places(schema: Schema) -> Iterator[tuple[str, Feature, int, int | None]]:
    """Each feature, the place of its first encoded column, and that of its mark, if it has one."""
    at = 0
    for name, feature in schema.features.items():
        width = len(feature.values) if isinstance(feature, Category) else 1
        marked = schema.missing_rule(name) == "indicator"
        yield name, feature, at, at + width if marked else None
        at += width + marked


def fitted_scales(x: NDArray[np.float32], schema: Schema) -> dict[int, tuple[float, float]]:
    """Mean and standard deviation of each number column, by its place, over the rows that have a
    value (over all rows without a mark for missing values).

    Exact statistics of rows: they stay at the site, and a study with a promise refuses them. A
    column without spread keeps a deviation of 1.

    >>> schema = Schema(missing="indicator", features={"age": Number(low=0, high=2)})
    >>> fitted_scales(np.array([[-1, 0], [1, 0], [0, 1]], np.float32), schema)
    {0: (0.0, 1.0)}
    """
    found = {}
    for _, feature, j, mark in _places(schema):
        if not isinstance(feature, Number):
            continue
        values = x[:, j].astype(np.float64)
        if mark is not None:
            values = values[x[:, mark] == 0]
        spread = float(values.std()) if len(values) else 0.0
        found[j] = (float(values.mean()) if len(values) else 0.0, spread if spread > 1e-9 else 1.0)
    return found


def standardise(
    x: NDArray[np.float32], scales: dict[int, tuple[float, float]], schema: Schema
) -> NDArray[np.float32]:
    """Number columns to mean 0 and deviation 1; what is missing and marked stays 0, now the mean.

    A category that is missing and marked becomes 0.5 in each of its columns, as a missing flag is
    already: iFedAvg (section 4) fills binary columns this way after standardising.

    >>> schema = Schema(missing="indicator", features={"age": Number(low=0, high=2), "w": Category(values=("a", "b"))})
    >>> x = np.array([[0.5, 0, 1, 0, 0], [0, 1, 0, 0, 1]], np.float32)
    >>> standardise(x, {0: (0.25, 0.5)}, schema).tolist()
    [[0.5, 0.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.5, 0.5, 1.0]]
    """
    out = x.copy()
    for _, feature, j, mark in _places(schema):
        if isinstance(feature, Number):
            mean, spread = scales[j]
            scaled = (x[:, j] - mean) / spread
            out[:, j] = scaled if mark is None else np.where(x[:, mark] == 1, 0.0, scaled)
        elif isinstance(feature, Category) and mark is not None:
            out[x[:, mark] == 1, j:mark] = 0.5
    return out


def plausible(columns: Columns) -> Columns:
    """Typed columns in which what the schema does not declare is missing, as `encode` takes it.

    >>> plausible({"age": np.array([1.0, np.inf]), "sex": np.array([1, -2], np.int16)})
    {'age': array([ 1., nan]), 'sex': array([ 1, -1], dtype=int16)}
    """
    return {
        name: np.where(np.isinf(column), np.nan, column)
        if column.dtype.kind == "f"
        else np.where(column == UNKNOWN, np.int16(MISSING), column)
        for name, column in columns.items()
    }


def _count(into: dict[str, int], name: str, where: NDArray[np.bool_]) -> None:
    found = int(np.count_nonzero(where))
    if found:
        into[name] = found
