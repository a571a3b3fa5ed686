"""De-identification, first half: find the eighteen Safe Harbor identifiers in a table, by name and by value.

Every column is profiled in DuckDB over all of its rows (counts, distinct values, words, numbers, and a search for
identifiers anywhere inside the texts), and a sample of its distinct values is tried against every sign of
``identifiers.py``. The judgement weighs both with what the column's name hints at (``columns.py``). Values never leave
this module: a finding holds the column, the category, shares and counts, and what to do.

Safe Harbor is a legal floor (45 CFR 164.514(b)(2)), not a guarantee: see ``linkage.py`` for what remains. And a scan is a
help to the steward, who answers for it: what it misses is measured in docs/deidentification.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from suture.errors import DataError, StudyError
from suture.site.columns import hint_of, words_of
from suture.site.identifiers import CATEGORIES, INSIDE, SIGNS
from suture.site.records import Opened, SourceSpec, open_table, quoted, source_of

SAMPLE = 2000
FLAGS = {"0", "1", "y", "n", "yes", "no", "true", "false", "t", "f", "0.0", "1.0", "unknown", "na", "none"}
CLINICAL = re.compile(
    r"\b(cpt|icd|loinc|snomed|atc|ndc|drg|hcpcs|rxnorm|cui|diagnosis|diagnoses|dx|procedure|drug|medication|code system|gene|"
    r"variant|rs ?id|lab|test|result|value|unit|units|sex|gender|race|ethnicity|state|country)\b"
)
_CODE = re.compile(r"(?=[^\s]*\d)[A-Za-z0-9][A-Za-z0-9_./:#-]{3,}")
_MEDICAL_CODE = re.compile(
    r"[A-Z]\d[\dA-Z](?:\.[\dA-Z]{1,4})?|[A-Z]\d{2}[A-Z]{2}\d{2}|\d{3,5}-\d|\d{4,5}-\d{3,4}-\d{1,2}|rs\d+"
)
_WORD = r"[A-ZÀ-Þ][a-zà-ÿ'’]+(?:[-'’][A-ZÀ-Þ][a-zà-ÿ]+)*"
_NAME_SHAPE = re.compile(rf"{_WORD}(?:,? (?:{_WORD}|[A-Z]\.?)){{1,3}}")
_YEAR = re.compile(r"(?:18[89]|19\d|20\d)\d(?:\.0)?")
_AGE_BAND = re.compile(r"\d{1,3}\s?(?:-|to|–)\s?\d{1,3}|\d{1,3}\+|[<>]=?\s?\d{1,3}")
GENERALISED = {"year": "year only", "age": "ages over 89 as 90+", "zip3": "first three digits of the ZIP code"}


@dataclass(frozen=True)
class Finding:
    """What a column seems to be, and what to do with it. Holds no value."""

    column: str
    category: str | None
    """One of the eighteen, ``text`` for free text, or None."""
    sign: str
    share: float
    """Share of the values that show the sign."""
    confidence: str
    action: str
    """keep, drop, or generalise."""
    how: str = ""
    """With generalise: year, age or zip3."""
    inside: dict[str, float] = field(default_factory=dict)
    """For texts: share of values with an identifier of each category somewhere inside."""

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        words = "free text" if self.category == "text" else CATEGORIES.get(self.category or "", "")
        return {**asdict(self), "rule": words, "how": GENERALISED.get(self.how, "")}


@dataclass
class Profile:
    """A column's shape over all rows, and a sample of its distinct values (never shown)."""

    rows: int
    distinct: int
    numeric: float
    decimals: float
    words: float
    kind: str
    sample: list[tuple[str, int]]
    inside: dict[str, float]

    @property
    def spread(self) -> float:
        """Distinct values a row."""
        return self.distinct / self.rows if self.rows else 0.0

    def share(self, pattern: re.Pattern[str]) -> float:
        """Share of the sampled values that match as a whole."""
        total = sum(count for _, count in self.sample)
        return sum(count for value, count in self.sample if pattern.fullmatch(value)) / total if total else 0.0


def scan(
    path: str | os.PathLike[str] | SourceSpec, *, columns: Sequence[str] | None = None
) -> tuple[list[Finding], int]:
    """Judge every column of a CSV, Parquet or DuckDB file; returns the findings and the number of rows."""
    spec = source_of(path)
    if not isinstance(spec, SourceSpec) or spec.kind == "sql":
        raise StudyError("de-identification reads files: .csv, .parquet or .duckdb")
    with open_table(spec, list(columns or ()), site="this one") as opened:
        refuse_data_as_names(list(opened.names), opened.place)
        rows = int(_one(opened, f"SELECT count(*) FROM {opened.relation}")[0])
        if not rows:
            raise DataError(f"{opened.place}: the table has no rows")
        wanted = list(columns) if columns else list(opened.names)
        return [judge(name, profile(opened, name)) for name in wanted], rows


def refuse_data_as_names(names: Sequence[str], place: str) -> None:
    """A file without a header would put a patient's values where names are printed."""
    strong = [sign for sign in SIGNS if sign.strong and sign.category not in ("photo", "biometric")]
    if any(sign.fits(name) for name in names for sign in strong):
        raise DataError(
            f"{place}: the first line looks like a patient's data, not like column names (they are not shown); "
            "add a header line"
        )


def profile(opened: Opened, column: str) -> Profile:
    """One column's profile: one pass over the rows, then work on distinct values only."""
    name, kind = opened.names[column], opened.types[column]
    execute(
        opened,
        f"CREATE OR REPLACE TEMP TABLE suture_values AS SELECT trim(CAST({name} AS VARCHAR)) AS v, count(*)::BIGINT AS n "
        f"FROM {opened.relation} WHERE {name} IS NOT NULL AND trim(CAST({name} AS VARCHAR)) <> '' GROUP BY 1",
    )
    numeric = "TRY_CAST(v AS DOUBLE) IS NOT NULL"
    anything = quoted("|".join(f"(?:{pattern})" for pattern in INSIDE.values()))
    rows, distinct, numbers, decimals, words, hits = _one(
        opened,
        f"SELECT coalesce(sum(n), 0)::BIGINT, count(*), coalesce(sum(n) FILTER ({numeric}), 0)::BIGINT, "
        f"coalesce(sum(n) FILTER ({numeric} AND contains(v, '.') AND NOT regexp_full_match(v, '.*\\.0+')), 0)::BIGINT, "
        f"coalesce(sum(n * (length(v) - length(replace(v, ' ', '')) + 1)), 0)::BIGINT, "
        f"coalesce(sum(n) FILTER (NOT {numeric} AND regexp_matches(v, {anything})), 0)::BIGINT FROM suture_values",
    )
    inside = {}
    if hits:
        parts = ", ".join(
            f"coalesce(sum(n) FILTER (NOT {numeric} AND regexp_matches(v, {quoted(pattern)})), 0)::BIGINT"
            for pattern in INSIDE.values()
        )
        found = _one(opened, f"SELECT {parts} FROM suture_values")
        inside = {category: count / rows for category, count in zip(INSIDE, found, strict=True) if count}
    sample = execute(opened, f"SELECT v, n FROM suture_values ORDER BY hash(v) LIMIT {SAMPLE}").fetchall()
    execute(opened, "DROP TABLE suture_values")
    some = max(rows, 1)
    return Profile(rows, distinct, numbers / some, decimals / some, words / some, kind, sample, inside)


def execute(opened: Opened, query: str) -> Any:
    """Run a query; a failure is told in our own words, because DuckDB's message can quote the row it failed on."""
    import duckdb

    try:
        return opened.connection.execute(query)
    except duckdb.Error as error:
        raise DataError(
            f"{opened.place}: reading failed ({type(error).__name__}); check that every line has the columns of the header, "
            "that quotes are closed and that the text is UTF-8"
        ) from None


def _one(opened: Opened, query: str) -> tuple[Any, ...]:
    return tuple(execute(opened, query).fetchone() or ())


def judge(column: str, seen: Profile) -> Finding:
    """Weigh a column's name against its values."""
    hint, clinical = hint_of(column), bool(CLINICAL.search(words_of(column)))
    if not seen.rows:
        return _keep(column, "empty")
    if seen.kind.startswith(("DATE", "TIMESTAMP")):
        return Finding(column, "date", "date type", 1.0, "high", "generalise", "year")
    if {value.lower() for value, _ in seen.sample} <= FLAGS:
        return _keep(column, "yes or no")
    found = _by_value(column, hint, seen) or _by_name(column, hint, seen)
    if found is None and not clinical:
        found = _by_shape(column, hint, seen)
    if found is None and seen.inside:
        category, share = max(seen.inside.items(), key=lambda item: item[1])
        found = Finding(column, category, "inside some values", share, "medium", "drop", inside=seen.inside)
    return found or _keep(column, "number" if seen.numeric > 0.95 else "category or code")


def _by_value(column: str, hint: str | None, seen: Profile) -> Finding | None:
    """Signs that count alone: at least half of the values show one."""
    total = sum(count for _, count in seen.sample)
    shares: dict[str, tuple[float, str]] = {}
    for sign in SIGNS:
        if sign.strong:
            share = sum(count for value, count in seen.sample if sign.fits(value)) / total
            if share > shares.get(sign.category, (0.0, ""))[0]:
                shares[sign.category] = (share, sign.name)
    if not shares:
        return None
    best = max(shares, key=lambda category: (shares[category][0], category == hint))
    share, name = shares[best]
    if share < 0.5:
        # A tenth of the values in a column of something else are still people's: taken, unless the name is clinical.
        mixed = share > 0.02 and not CLINICAL.search(words_of(column)) and hint is None
        return Finding(column, best, f"some values: {name}", share, "medium", "drop") if mixed else None
    if hint in ("fax", "phone") and best in ("fax", "phone"):
        best = hint  # the two have one shape
    if best == "date":
        return Finding(column, best, name, share, "high", "generalise", "year")
    if best == "geography" and name == "ZIP+4":
        return Finding(column, best, name, share, "high", "generalise", "zip3")
    return Finding(column, best, name, share, "high", "drop", inside=seen.inside if seen.words > 4 else {})


def _by_name(column: str, hint: str | None, seen: Profile) -> Finding | None:
    """What the name hints at, unless the values speak against it."""
    if hint is None:
        return None
    measured = seen.decimals > 0.1
    if hint == "age":
        if seen.share(_AGE_BAND) > 0.9:
            return None
        return Finding(column, "date", "named as an age", 1.0, "high", "generalise", "age")
    if hint == "zip":
        return Finding(column, "geography", "named as a ZIP code", 1.0, "high", "generalise", "zip3")
    if hint == "date":
        if seen.numeric > 0.95 and seen.share(_YEAR) < 0.9 and seen.share(re.compile(r"\d{8}")) < 0.9:
            return (
                None
                if measured or seen.distinct < 400
                else Finding(column, "date", "named as a date", 1.0, "low", "drop")
            )
        return Finding(column, "date", "named as a date", 1.0, "medium", "generalise", "year")
    if hint == "text":
        prose = seen.words >= 3 or (seen.spread > 0.5 and seen.numeric < 0.5 and seen.distinct > 20)
        return Finding(column, "text", "free text", 1.0, "medium", "drop", inside=seen.inside) if prose else None
    few = seen.distinct <= 12 and seen.spread < 0.05
    if hint == "geography":
        return Finding(column, hint, "named as a place", 1.0, "medium", "drop")
    if measured or (seen.numeric > 0.95 and seen.distinct <= 12):
        return None
    if few and hint != "name":
        return None
    return Finding(column, hint, "named as one", 1.0, "medium", "drop", inside=seen.inside if seen.words > 4 else {})


def _by_shape(column: str, hint: str | None, seen: Profile) -> Finding | None:
    """Signs that many columns could show: nearly every value must, and the column must be able to single people out."""
    total = sum(count for _, count in seen.sample)
    many = seen.distinct >= 20
    weak = {
        sign.name: (sum(count for value, count in seen.sample if sign.fits(value)) / total, sign.category)
        for sign in SIGNS
        if not sign.strong
    }
    for name, least, spread in (
        ("ten digits", 0.98, 0.5),
        ("IMEI", 0.95, 0.5),
        ("compact date", 0.95, 0.0),
        ("ZIP code", 0.99, 0.0),
        ("postcode", 0.95, 0.0),
        ("number plate", 0.95, 0.5),
        ("city and state", 0.8, 0.0),
        ("city", 0.5, 0.0),
    ):
        share, category = weak[name]
        if share >= least and seen.spread >= spread and (many or category == "geography"):
            how = {"compact date": "year", "ZIP code": "zip3"}.get(name, "")
            return Finding(column, category, name, share, "medium", "generalise" if how else "drop", how)
    if seen.words >= 5 and seen.spread > 0.1 and seen.distinct > 20:
        return Finding(column, "text", "free text", 1.0, "medium", "drop", inside=seen.inside)
    shape, listed = seen.share(_NAME_SHAPE), weak["person"][0]
    if (shape > 0.8 and listed > (0.2 if many else 0.5)) or (many and shape > 0.9 and seen.spread > 0.5):
        return Finding(column, "name", "shaped as names", shape, "medium", "drop")
    if many and weak["surname"][0] > 0.3:
        return Finding(column, "name", "common names", weak["surname"][0], "medium", "drop")
    return _code(column, seen)


def _code(column: str, seen: Profile) -> Finding | None:
    """A code that singles rows or patients out."""
    if seen.decimals > 0.01 or seen.rows < 20:
        return None
    widths = {len(value) for value, _ in seen.sample}
    if seen.numeric > 0.95:
        fixed = len(widths) == 1 and min(widths) >= 6
        long = min(widths) >= 9
        unique = seen.spread > 0.95
        return Finding(column, "other", "unique number", 1.0, "medium", "drop") if unique and (fixed or long) else None
    share = seen.share(_CODE)
    if (
        share > 0.95
        and seen.share(_MEDICAL_CODE) < 0.5
        and (seen.spread > 0.5 or (seen.spread > 0.1 and seen.distinct > 200))
    ):
        return Finding(column, "other", "unique code", share, "medium", "drop")
    long_text = sum(count for value, count in seen.sample if len(value) > 40 and " " not in value)
    if long_text > 0.9 * sum(count for _, count in seen.sample) and seen.spread > 0.5:
        return Finding(column, "biometric", "long encoded data", 1.0, "low", "drop")
    return None


def _keep(column: str, why: str) -> Finding:
    return Finding(column, None, why, 0.0, "", "keep")
