"""De-identification, first half: find the eighteen Safe Harbor identifiers in a table.

Every column is profiled in DuckDB over all of its rows (counts, distinct values, words, numbers,
and a search for identifiers anywhere inside the texts), and a sample of its distinct values is
tried against every sign of ``identifiers.py``. The judgement weighs both against what the column's
name hints at. A hint alone never decides: ``phone_consult`` is a yes or no, ``device_count`` a
number, ``drug_name`` no person. Values never leave this module: a finding holds the column, the
category, shares and counts, and what to do.

Safe Harbor is a legal floor (45 CFR 164.514(b)(2)), not a guarantee: see `apply.linkage` for what
remains. A scan helps the steward, who answers for the copy: what it misses is measured in
docs/deidentification.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from suture.errors import DataError, StudyError
from suture.site.deid.identifiers import CATEGORIES, INSIDE, SIGNS
from suture.site.sources import Opened, SourceSpec, open_table, quoted, source_of

if TYPE_CHECKING:
    import duckdb

Report: TypeAlias = dict[str, Any]
"""Plain JSON without a patient's value."""
SAMPLE = 2000

# --- what a column's name hints at ------------------------------------------------------------------------------------

_HINTS = r"""
    fax           (tele)?fax( no| nr| number)?|facsimile
    email         e ?mail|mail address
    ssn           ssn|social security( no| number| nr| num)?|soc sec|sin number
    health_plan   (health )?plan (id|no|number|beneficiary)|beneficiary( id| no| number)?
    health_plan   member (id|no|number)|subscriber( id| no| number)?|policy( id| no| number)?
    health_plan   insurance (id|no|number)|medicare( id| no| number)?|mbi|hicn
    health_plan   medicaid (id|no|number)
    record_number mrn|medical record( id| no| number)?|record (id|no|number)|chart (id|no|number)
    record_number patient (id|no|number|key|code)|pat id|pid|subject (id|no|number)
    record_number hospital (no|number)|nhs( no| number)?|encounter (id|no|number)
    record_number visit (id|no|number)|csn|case (id|no|number)|person id
    account       acc(oun)?t( id| no| num| number)?|iban|credit card( no| number)?|card (no|number)
    account       bank( account)?|billing (id|no|number)|invoice (id|no|number)
    licence       licen[cs]e( id| no| number)?|certificate( id| no| number)?|cert (id|no|number)|npi
    licence       dea( no| number)?|passport( no| number)?|driver.?s? licen[cs]e.*
    vehicle       vin|vehicle( id| identification.*| no| number)?|plate( no| number)?
    vehicle       licen[cs]e plate|registration plate|number plate
    device        device( id| identifier| no| number| serial)?|serial( no| number)?|imei
    device        mac( address)?|udi|implant( id| no| serial| number)?|pacemaker (id|no|serial)
    url           url|uri|web ?site|web page|homepage|link|web address
    ip            ip|ip ?addr(ess)?|ipv4|ipv6|host( name)?|client ip|remote addr
    biometric     biometric.*|finger ?print.*|iris.*|retina( scan| template)|voice ?print
    biometric     face ?print|minutiae|.*template hash
    photo         photo.*|portrait|face image|picture|image( file| path| url)?|avatar|mug ?shot
    photo         snapshot|selfie
    phone         (tele)?phone( no| number)?|tel|mobile( no| number)?|cell( phone)?( no| number)?
    phone         contact (no|number)|(home|work|day|emergency) (tele)?phone
    date          .*\b(date|datetime|timestamp|dob|dod|birthday)
    date          .*\b(admitted|discharged|admission|discharge|visit|death|birth) (day|dt|time|on)
    date          (admitted|discharged|died|born)( on| at)?|dt|.* dt|year of birth|birth year|yob
    date          admission|discharge|.*\bat time
    age           age|.* age|age (years|yrs|at .*|in years)|years old
    zip           zip( ?code)?.*|post(al)? ?code|plz|postcode
    geography     (street|home|mailing|postal|residential|patient)?( ?address)(line)?( line)?
    geography     addr(ess)?( line)?|street.*|city|town|county|village|precinct|parish
    geography     neighbou?rhood|municipality|lat(itude)?|lon(gitude)?|lng|geo ?code|gps
    geography     coordinates?|census tract|census block|tract|ward of residence|birth ?place
    geography     residence
    name          name
    name          (first|last|middle|full|given|family|maiden|patient|sur|nick|mother.?s?) ?(first |last |full |maiden )?name
    name          (father.?s?|contact|guardian|next of kin|physician|doctor|provider) ?(first |last |full |maiden )?name
    name          (nurse|attending|clinician|relative|employer|household member) ?(first |last |full |maiden )?name
    name          surname|forename|fname|lname|initials|patient|physician|doctor|attending|mother
    name          father|next of kin|guardian|signature
    text          (clinical |doctor |nursing |progress |free |discharge )?(notes?|comments?|remarks?)( text)?
    text          (clinical |doctor |nursing |progress |free |discharge )?(narrative|free text|summary)( text)?
    text          (clinical |doctor |nursing |progress |free |discharge )?(text|description|history)( text)?
    text          (clinical |doctor |nursing |progress |free |discharge )?(memo|report)( text)?
    other         .*\b(uuid|guid|token|hash)
    other         (study|sample|specimen|barcode|tracking|reference|ref|unique) ?(id|no|number|code|name)?
    other         (employee|user|login|customer|client|family|national|tax|device order) ?(id|no|number|code|name)?
    other         barcode|id|identifier|.* (id|identifier)|key|username|user|badge.*|kit (no|number)
"""
HINTS = [tuple(line.split(maxsplit=1)) for line in _HINTS.strip().splitlines()]
"""Category and pattern; the first that matches wins. Patterns are of the name's words (`words_of`)."""
NOT_A_PERSON = re.compile(
    r"\b(drug|medication|medicine|test|lab|procedure|product|brand|generic|hospital|ward|department|unit|clinic|study|file|column"
    r"|field|variable|diagnosis|disease|gene|species|vaccine|organism|antibiotic|panel|assay|allergen)\b"
)
COUNTED = re.compile(
    r"\b(count|n|num of|number "
    r"of|total|rate|score|index|level|type|kind|class|status|flag|verified|changed|opt in|opt out|"
    r"consult|reminder|present|missing|available|duration|days|weeks|months|hours|minutes|los|length|interval|since|until|group|band|bucket|"
    r"range|model|method|used|usage|sent|visits|attempts|reason|category|contacted|preferred|share|percent|pct|delta|diff)\b"
)


def words_of(column: str) -> str:
    """A column's name as lower-case words.

    >>> words_of("PatientLastName"), words_of("zip_code5"), words_of("home.Phone#")
    ('patient last name', 'zip code', 'home phone')
    """
    text = re.sub(r"([a-zà-ÿ])([A-Z])", r"\1 \2", column)
    text = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1 \2", text)
    return re.sub(r"[^A-Za-zÀ-ÿ']+", " ", text).strip().lower()


def hint_of(column: str) -> str | None:
    """The category a column's name hints at (also ``age``, ``zip`` and ``text``), or None.

    >>> [hint_of(name) for name in ("last_name", "drug_name", "DOB", "zip", "phone_consult_count", "heart_rate")]
    ['name', None, 'date', 'zip', None, None]
    """
    words = words_of(column)
    for category, pattern in HINTS:
        if re.fullmatch(pattern, words):
            if category == "name" and NOT_A_PERSON.search(words):
                return None
            if COUNTED.search(words) and category not in ("text", "age", "record_number"):
                return None
            return category
    return None


# --- what its values look like ----------------------------------------------------------------------------------------

_FLAGS = "0 1 y n yes no true false t f 0.0 1.0 unknown na none"
FLAGS = set(_FLAGS.split())
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
_EIGHT_DIGITS = re.compile(r"\d{8}")
_AGE_BAND = re.compile(r"\d{1,3}\s?(?:-|to|–)\s?\d{1,3}|\d{1,3}\+|[<>]=?\s?\d{1,3}")
GENERALISED = {
    "year": "year only",
    "age": "ages over 89 as 90+",
    "zip3": "first three digits of the ZIP code",
}


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

    def as_dict(self) -> Report:
        """Plain JSON."""
        words = "free text" if self.category == "text" else CATEGORIES.get(self.category or "", "")
        return {**asdict(self), "rule": words, "how": GENERALISED.get(self.how, "")}


@dataclass(frozen=True)
class Values:
    """A column's values: their shape over all rows, and a sample of distinct ones (never shown)."""

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
        """Distinct values per row."""
        return self.distinct / self.rows if self.rows else 0.0

    def share(self, fits: Callable[[str], object]) -> float:
        """Share of the sampled values that fit."""
        total = sum(count for _, count in self.sample)
        return sum(count for value, count in self.sample if fits(value)) / total if total else 0.0


def open_file(path: str | os.PathLike[str] | SourceSpec) -> SourceSpec:
    """The file to de-identify."""
    spec = source_of(path)
    if not isinstance(spec, SourceSpec) or spec.kind == "sql":
        raise StudyError("de-identification reads files: .csv, .parquet or .duckdb")
    return spec


def scan(
    path: str | os.PathLike[str] | SourceSpec, *, columns: Sequence[str] | None = None
) -> tuple[list[Finding], int]:
    """Judge every column of a CSV, Parquet or DuckDB file; returns the findings and the number of
    rows."""
    with open_table(open_file(path), list(columns or ()), site="this one") as opened:
        refuse_data_as_names(list(opened.names), opened.place)
        rows = int(one_row(opened, f"SELECT count(*) FROM {opened.relation}")[0])
        if not rows:
            raise DataError(f"{opened.place}: the table has no rows")
        wanted = list(columns) if columns else list(opened.names)
        return [judge(name, read_values(opened, name)) for name in wanted], rows


def refuse_data_as_names(names: Sequence[str], place: str) -> None:
    """Refuse a file without a header: it would put a patient's values where names are printed."""
    strong = [sign for sign in SIGNS if sign.strong and sign.category not in ("photo", "biometric")]
    if any(sign.fits(name) for name in names for sign in strong):
        raise DataError(
            f"{place}: the first line looks like a patient's data, not like column names (they are "
            "not shown); add a header line"
        )


def read_values(opened: Opened, column: str) -> Values:
    """One column's values: one pass over the rows, then work on distinct values only."""
    name, kind = opened.names[column], opened.types[column]
    text = f"trim(CAST({name} AS VARCHAR))"
    execute(
        opened,
        f"CREATE OR REPLACE TEMP TABLE suture_values AS SELECT {text} AS v, count(*)::BIGINT AS n "
        f"FROM {opened.relation} WHERE {name} IS NOT NULL AND {text} <> '' GROUP BY 1",
    )

    def total(what: str, condition: str) -> str:
        return f"coalesce(sum({what}) FILTER ({condition}), 0)::BIGINT"

    numeric = "TRY_CAST(v AS DOUBLE) IS NOT NULL"
    anything = quoted("|".join(f"(?:{pattern})" for pattern in INSIDE.values()))
    decimal = f"{numeric} AND contains(v, '.') AND NOT regexp_full_match(v, '.*\\.0+')"
    spaces = "n * (length(v) - length(replace(v, ' ', '')) + 1)"
    hit = f"NOT {numeric} AND regexp_matches(v, {{}})"
    parts = [total("n", "true"), "count(*)", total("n", numeric), total("n", decimal)]
    parts += [total(spaces, "true"), total("n", hit.format(anything))]
    counted = one_row(opened, f"SELECT {', '.join(parts)} FROM suture_values")
    rows, distinct, numbers, decimals, words, hits = counted
    inside = {}
    if hits:
        each = [total("n", hit.format(quoted(pattern))) for pattern in INSIDE.values()]
        found = one_row(opened, f"SELECT {', '.join(each)} FROM suture_values")
        inside = {name: count / rows for name, count in zip(INSIDE, found, strict=True) if count}
    chosen = f"SELECT v, n FROM suture_values ORDER BY hash(v) LIMIT {SAMPLE}"
    sample = execute(opened, chosen).fetchall()
    execute(opened, "DROP TABLE suture_values")
    some = max(rows, 1)
    shares = (numbers / some, decimals / some, words / some)
    return Values(rows, distinct, *shares, kind, sample, inside)


def execute(opened: Opened, query: str) -> duckdb.DuckDBPyConnection:
    """Run a query; a failure is told in our own words, because DuckDB's message can quote the row
    it failed on."""
    import duckdb

    try:
        return opened.connection.execute(query)
    except duckdb.Error as error:
        raise DataError(
            f"{opened.place}: reading failed ({type(error).__name__}); check that every line has "
            "the columns of the header, that quotes are closed and that the text is UTF-8"
        ) from None


def one_row(opened: Opened, query: str) -> tuple[Any, ...]:
    """The one row of a query's answer."""
    return tuple(execute(opened, query).fetchone() or ())


# --- the judgement ----------------------------------------------------------------------------------------------------


def judge(column: str, seen: Values) -> Finding:
    """Weigh a column's name against its values."""
    hint, clinical = hint_of(column), bool(CLINICAL.search(words_of(column)))
    if not seen.rows:
        return _keep(column, "empty")
    if seen.kind.startswith(("DATE", "TIMESTAMP")):
        return _act(column, "date", "date type", confidence="high", how="year")
    if {value.lower() for value, _ in seen.sample} <= FLAGS:
        return _keep(column, "yes or no")
    found = _by_value(column, hint, seen, clinical) or _by_name(column, hint, seen)
    if found is None and not clinical:
        found = _by_shape(column, seen)
    if found is None and seen.inside:
        category, share = max(seen.inside.items(), key=lambda item: item[1])
        found = _act(column, category, "inside some values", share, inside=seen.inside)
    return found or _keep(column, "number" if seen.numeric > 0.95 else "category or code")


def _keep(column: str, why: str) -> Finding:
    return Finding(column, None, why, 0.0, "", "keep")


def _act(
    column: str,
    category: str,
    sign: str,
    share: float = 1.0,
    confidence: str = "medium",
    how: str = "",
    inside: dict[str, float] | None = None,
) -> Finding:
    action = "generalise" if how else "drop"
    return Finding(column, category, sign, share, confidence, action, how, inside or {})


def _by_value(column: str, hint: str | None, seen: Values, clinical: bool) -> Finding | None:
    """Signs that count alone: at least half of the values show one."""
    shares: dict[str, tuple[float, str]] = {}
    for sign in SIGNS:
        if sign.strong:
            share = seen.share(sign.fits)
            if share > shares.get(sign.category, (0.0, ""))[0]:
                shares[sign.category] = (share, sign.name)
    if not shares:
        return None
    best = max(shares, key=lambda category: (shares[category][0], category == hint))
    share, name = shares[best]
    if share < 0.5:
        # A tenth of the values in a column of something else are still people's: taken, unless the
        # name is clinical.
        mixed = share > 0.02 and not clinical and hint is None
        return _act(column, best, f"some values: {name}", share) if mixed else None
    if hint in ("fax", "phone") and best in ("fax", "phone"):
        best = hint  # the two have one shape
    how = "year" if best == "date" else "zip3" if name == "ZIP+4" else ""
    inside = seen.inside if seen.words > 4 and not how else {}
    return _act(column, best, name, share, "high", how, inside)


def _by_name(column: str, hint: str | None, seen: Values) -> Finding | None:
    """What the name hints at, unless the values speak against it."""
    measured, number = seen.decimals > 0.1, seen.numeric > 0.95
    if hint is None:
        return None
    if hint == "age":
        banded = seen.share(_AGE_BAND.fullmatch) > 0.9
        return None if banded else _act(column, "date", "named as an age", 1.0, "high", "age")
    if hint == "zip":
        return _act(column, "geography", "named as a ZIP code", 1.0, "high", "zip3")
    if hint == "date":
        years = seen.share(_YEAR.fullmatch) >= 0.9 or seen.share(_EIGHT_DIGITS.fullmatch) >= 0.9
        if not number or years:
            return _act(column, "date", "named as a date", how="year")
        few = measured or seen.distinct < 400
        return None if few else _act(column, "date", "named as a date", confidence="low")
    if hint == "text":
        prose = seen.words >= 3 or (seen.spread > 0.5 and seen.numeric < 0.5 and seen.distinct > 20)
        return _act(column, "text", "free text", inside=seen.inside) if prose else None
    if hint == "geography":
        return _act(column, hint, "named as a place")
    few = seen.distinct <= 12 and seen.spread < 0.05
    if measured or (number and seen.distinct <= 12) or (few and hint != "name"):
        return None
    return _act(column, hint, "named as one", inside=seen.inside if seen.words > 4 else {})


_SHAPES = (  # sign, least share of the values, least spread
    ("ten digits", 0.98, 0.5),
    ("IMEI", 0.95, 0.5),
    ("compact date", 0.95, 0.0),
    ("ZIP code", 0.99, 0.0),
    ("postcode", 0.95, 0.0),
    ("number plate", 0.95, 0.5),
    ("city and state", 0.8, 0.0),
    ("city", 0.5, 0.0),
)


def _by_shape(column: str, seen: Values) -> Finding | None:
    """Signs that many columns could show: nearly every value must, and the column must be able to
    single people out."""
    many = seen.distinct >= 20
    weak = {s.name: (seen.share(s.fits), s.category) for s in SIGNS if not s.strong}
    for name, least, spread in _SHAPES:
        share, category = weak[name]
        if share >= least and seen.spread >= spread and (many or category == "geography"):
            how = {"compact date": "year", "ZIP code": "zip3"}.get(name, "")
            return _act(column, category, name, share, how=how)
    if seen.words >= 5 and seen.spread > 0.1 and seen.distinct > 20:
        return _act(column, "text", "free text", inside=seen.inside)
    shape, listed = seen.share(_NAME_SHAPE.fullmatch), weak["person"][0]
    named = shape > 0.8 and listed > (0.2 if many else 0.5)
    if named or (many and shape > 0.9 and seen.spread > 0.5):
        return _act(column, "name", "shaped as names", shape)
    if many and weak["surname"][0] > 0.3:
        return _act(column, "name", "common names", weak["surname"][0])
    return _code(column, seen)


def _code(column: str, seen: Values) -> Finding | None:
    """A code that singles rows or patients out."""
    if seen.decimals > 0.01 or seen.rows < 20:
        return None
    if seen.numeric > 0.95:
        widths = {len(value) for value, _ in seen.sample}
        long = min(widths) >= 9 or (len(widths) == 1 and min(widths) >= 6)
        return _act(column, "other", "unique number") if seen.spread > 0.95 and long else None
    share = seen.share(_CODE.fullmatch)
    single = seen.spread > 0.5 or (seen.spread > 0.1 and seen.distinct > 200)
    if share > 0.95 and seen.share(_MEDICAL_CODE.fullmatch) < 0.5 and single:
        return _act(column, "other", "unique code", share)
    if seen.share(lambda value: len(value) > 40 and " " not in value) > 0.9 and seen.spread > 0.5:
        return _act(column, "biometric", "long encoded data", confidence="low")
    return None
