"""De-identify a table (`suture deid`): find the eighteen Safe Harbor identifiers in it, and write a
copy, with a report that holds no value.

Safe Harbor is a legal floor (45 CFR 164.514(b)(2)), not a guarantee: see `linkage` for what is
left. A scan helps the steward, who answers for the copy: docs/deidentification.md says what it
misses.

Identifiers are dropped; dates become years, ages over 89 become "90+", ZIP codes their first three
digits (000 where the area has 20,000 people or fewer). A value that a generalisation does not
understand becomes empty, never passes through, and is counted. Years so long ago that they would
tell an age over 89 are joined into one ("1936 or before").

The patient column is dropped, unless codes are asked for (45 CFR 164.514(c) lets a site keep a way
back to the patient):

- ``random``: a code drawn for each patient, kept in a table at the site. Not derived from anything
  about the patient, which is what the rule asks for. The table must not leave the site.
- ``keyed``: HMAC-SHA256 of the identifier under the site's secret. The same code everywhere without
  a table; but it *is* derived from the identifier, so it does not meet the letter of Safe Harbor:
  the report says so, and an expert has to.

*Linkage risk* (`linkage`): how many patients a few harmless columns single out, with every name
already gone. Sweeney ("Simple Demographics Often Identify People Uniquely", 2000) found most of the
United States unique by birth date, sex and ZIP code. The measure is the size of each patient's
group: patients who share their values on the chosen quasi-identifiers. A group of one is a patient
whom anybody who knows those few facts can pick out of the table.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.console import Console
from rich.table import Table

from suture.errors import DataError, RunError, StudyError
from suture.privacy.files import file_digest
from suture.privacy.noise.source import derive
from suture.site.identifiers import (
    FIRST_NAMES,
    INSIDE,
    LAST_NAMES,
    LOOKS,
    RESTRICTED_ZIP3,
    SAFE,
    Finding,
    Report,
    Values,
    age_in,
    clean,
    fold,
    judge,
    per_year,
    refuse_data_as_names,
    year_in,
    zip3_in,
)
from suture.site.sources import DEID_REPORT, Opened, SourceSpec, open_table, source_of
from suture.site.sql import literal_path, quoted, quoted_name

if TYPE_CHECKING:
    import duckdb


SAMPLE = 2000
UNDECIDED = 8
"""Exit code of a scan that leaves columns for a person to look at."""
Source: TypeAlias = "str | os.PathLike[str] | SourceSpec"


def open_file(path: Source) -> SourceSpec:
    """The file to de-identify."""
    spec = source_of(path)
    if not isinstance(spec, SourceSpec) or spec.kind == "sql":
        raise StudyError("de-identification reads files: .csv, .parquet or .duckdb")
    return spec


def scan(
    path: Source,
    *,
    keep: Collection[str] = (),
    drop: Collection[str] = (),
    today: date | None = None,
) -> tuple[list[Finding], int]:
    """Judge every column of a file; returns the findings and the number of rows."""
    with open_table(open_file(path), [*keep, *drop], site="this one") as opened:
        found = _judged(opened, keep, drop, (today or date.today()).year)
        rows = int(one_row(opened, f"SELECT count(*) FROM {opened.relation}")[0])
        if not rows:
            raise DataError(f"{opened.place}: the table has no rows")
        return found, rows


def _judged(
    opened: Opened, keep: Collection[str], drop: Collection[str], year: int
) -> list[Finding]:
    refuse_data_as_names(list(opened.names), opened.place)
    names = ["", *opened.names, ""]
    judged = (
        judge(name, read_values(opened, name), year, (left, right))
        for left, name, right in zip(names, names[1:-1], names[2:], strict=False)
    )
    return [_decided(found, keep, drop) for found in judged]


def read_values(opened: Opened, column: str) -> Values:
    """One column's values: one pass over the rows, then work on distinct values only."""
    text, spec = _text(opened, column), opened.spec
    text = f"trim(translate({text}, {quoted(LOOKS[0])}, {quoted(LOOKS[1])}))"
    missing = "".join(f" AND {text} <> {quoted(word)}" for word in spec.missing)
    point = "replace(v, ',', '.')" if spec.decimal == "," else "v"
    number = f"CASE WHEN regexp_matches(v, '^[-+.,0-9]') THEN TRY_CAST({point} AS DOUBLE) END"
    counted = (
        f"SELECT v, n, {number} AS x FROM (SELECT {text} AS v, count(*)::BIGINT AS n FROM "
        f"{opened.relation} WHERE {text} <> ''{missing} GROUP BY 1)"
    )
    execute(opened, f"CREATE OR REPLACE TEMP TABLE suture_values AS {counted}")

    def total(what: str, condition: str) -> str:
        return f"coalesce(sum({what}) FILTER ({condition}), 0)::BIGINT"

    decimal = f"x IS NOT NULL AND x <> round(x) AND regexp_matches(v, '[.{spec.decimal}]')"
    spaces = "n * (length(v) - length(replace(v, ' ', '')) + 1)"
    parts = [total("n", "true"), "count(*)", total("n", "x IS NOT NULL"), total("n", decimal)]
    parts += [total(spaces, "true"), "coalesce(min(x), 0)", "coalesce(max(x), 0)"]
    found = one_row(opened, f"SELECT {', '.join(parts)} FROM suture_values")
    rows, distinct, numbers, decimals, words, least, most = found
    inside = {}
    if numbers < rows:
        hit = "x IS NULL AND regexp_matches(v, {})"
        each = [total("n", hit.format(quoted(pattern))) for pattern in INSIDE.values()]
        found = one_row(opened, f"SELECT {', '.join(each)} FROM suture_values")
        inside = {name: count / rows for name, count in zip(INSIDE, found, strict=True) if count}
    sample: list[tuple[str, float]] = []
    for part, whole in (("x IS NULL", rows - numbers), ("x IS NOT NULL", numbers)):
        chosen = f"SELECT v, n FROM suture_values WHERE {part} ORDER BY hash(v) LIMIT {SAMPLE}"
        drawn = execute(opened, chosen).fetchall()
        weight = whole / max(sum(n for _, n in drawn), 1)
        sample += [(value, n * weight) for value, n in drawn]
    execute(opened, "DROP TABLE suture_values")
    some, kind = max(rows, 1), opened.types[column]
    shares = (numbers / some, decimals / some, words / some)
    return Values(rows, distinct, *shares, least, most, kind, sample, inside)


def execute(opened: Opened, query: str) -> duckdb.DuckDBPyConnection:
    """Run a query; DuckDB's own message is not passed on, because it can quote a row."""
    import duckdb

    try:
        return opened.connection.execute(query)
    except duckdb.Error as error:
        raise DataError(
            f"{opened.place}: reading failed ({type(error).__name__}); check that every line has "
            "the columns of the header, that quotes are closed, and --separator and --encoding"
        ) from None


def one_row(opened: Opened, query: str) -> tuple[Any, ...]:
    """The one row of a query's answer."""
    return tuple(execute(opened, query).fetchone() or ())


# --- the copy ---------------------------------------------------------------------------------------------------------

CODES = {
    "none": "the patient column is dropped: rows of one patient can no longer be told to belong "
    "together",
    "random": "a random code for each patient, kept in a table at the site, as 45 CFR 164.514(c) "
    "asks",
    "keyed": "HMAC-SHA256 under the site's secret: derived from the identifier, so not Safe Harbor "
    "by its letter; an expert has to determine that the risk is very small (45 CFR 164.514(b)(1))",
}
FLOOR = (
    "Safe Harbor removes what is on a list. It bounds nothing: patients who are alone in their "
    "group can be found again by anyone who knows those few facts. Differential privacy is what "
    "bounds a release."
)


TEXTS = ("drop", "redact")


def apply(
    path: Source,
    out: Path,
    *,
    patient: str | None = None,
    codes: str = "none",
    secret: bytes | None = None,
    code_table: Path | None = None,
    keep: Sequence[str] = (),
    drop: Sequence[str] = (),
    drop_unsure: bool = False,
    text: str = "drop",
    quasi: Sequence[str] = (),
    restricted: Sequence[str] = (),
    today: date | None = None,
) -> Report:
    """Scan, then write a de-identified copy (CSV or Parquet) and return a report without values.

    A column that the scan is unsure of is never written: name it in ``keep`` or ``drop``, or leave
    out all of them with ``drop_unsure``; otherwise nothing is written at all."""
    spec = open_file(path)
    _check(out, codes, patient, secret, code_table)
    if text not in TEXTS:
        raise StudyError(f"expected text {' or '.join(TEXTS)}, found {text!r}")
    named = [*keep, *drop, *quasi, *([patient] if patient else [])]
    year = (today or date.today()).year
    with open_table(spec, named, site="this one") as opened:
        found = _judged(opened, keep, drop, year)
        findings = {f.column: _settled(f, text) for f in found}
        unsure = [f.column for f in found if f.action == "look" and f.column != patient]
        if unsure and not drop_unsure:
            raise DataError(
                f"{opened.place}: {len(unsure)} columns are not recognised, so nothing was written: "
                f"{', '.join(unsure)}. Look at them, then decide on each with --keep COLUMN or "
                "--drop COLUMN; --drop-unsure leaves out all of them"
            )
        zips = RESTRICTED_ZIP3 | set(restricted)
        written = {
            name: opened.names[name]
            if f.action == "keep"
            else _mapped(opened, name, _change(opened, findings, name, year, zips))
            for name, f in findings.items()
            if f.action != "drop" and name != patient
        }
        if patient is not None and codes != "none":
            ids = _codes(_distinct(opened, patient), codes, secret, code_table)
            written = {patient: _mapped(opened, patient, ids.get), **written}
        if not written:
            raise DataError(f"{opened.place}: every column is an identifier; nothing would be left")
        lost = _lost(opened, findings, written)
        risk = None
        if quasi:
            who = None if patient is None else opened.names[patient]
            before = {name: _text(opened, name) for name in quasi}
            after = {name: written.get(name, "NULL") for name in quasi}
            after |= {name: "NULL" for name in quasi if name == patient}
            risk = {"before": linkage(opened, before, who), "after": linkage(opened, after, who)}
        rows = _write(opened, written, out)
    columns = [{**f.as_dict(), "left_empty": lost.get(f.column, 0)} for f in findings.values()]
    for row in columns:
        if row["column"] == patient:
            row["action"] = "drop" if codes == "none" else f"replace by {codes} codes"
    report = {
        "input": spec.describe(),
        "output": out.name,
        "sha256": file_digest(out),
        "rows": rows,
        "columns": columns,
        "unsure": unsure,
        "kept_by_steward": [name for name in keep if findings[name].sign == KEPT],
        "dropped_by_steward": list(drop),
        "patient": patient,
        "codes": CODES[codes] if patient else "",
        "linkage": risk,
        "floor": FLOOR,
    }
    content = json.dumps(report, indent=1, allow_nan=False).encode()
    _put(out.with_name(out.name + DEID_REPORT), content)
    return report


def _check(
    out: Path, codes: str, patient: str | None, secret: bytes | None, code_table: Path | None
) -> None:
    if out.suffix.lower() not in (".csv", ".parquet"):
        raise StudyError(f"the copy is written as .csv or .parquet, found {out.name!r}")
    if out.exists():
        raise RunError(f"{out} exists already; choose another name")
    if not out.parent.is_dir():
        raise RunError(f"the folder {out.parent} does not exist; make it first")
    if codes not in CODES:
        raise StudyError(f"expected codes {', '.join(CODES)}; found {codes!r}")
    if codes != "none" and patient is None:
        raise StudyError("codes stand for patients: name the patient column with --patient")
    if codes == "keyed" and secret is None:
        raise StudyError("keyed codes need the site's secret: --home, the folder of secret.key")
    if codes == "random" and code_table is None:
        raise StudyError("random codes are kept in a table at the site: --code-table codes.json")


KEPT, DROPPED = "kept by the steward", "dropped by the steward"


def _decided(found: Finding, keep: Collection[str], drop: Collection[str]) -> Finding:
    """The steward's word stands, and is recorded."""
    if found.column in keep and found.action != "keep":
        return replace(found, sign=KEPT, action="keep", how="", inside={})
    if found.column in drop:
        decided = replace(found, category=found.category or "other", sign=DROPPED)
        return replace(decided, confidence="high", action="drop", how="", inside={})
    return found


def _settled(found: Finding, text: str) -> Finding:
    """What is done in the copy: nobody's decision leaves a column out, texts as asked."""
    if found.action == "look":
        return replace(found, action="drop", sign=f"left out, nobody decided: {found.sign}")
    if found.category == "text" and text == "redact" and found.sign != DROPPED:
        return replace(found, action="generalise", how="redact")
    return found


def _text(opened: Opened, column: str) -> str:
    return f"trim(CAST({opened.names[column]} AS VARCHAR))"


def _distinct(opened: Opened, column: str) -> list[str]:
    text = _text(opened, column)
    named = f"FROM {opened.relation} WHERE nullif({text}, '') IS NOT NULL"
    return [
        row[0] for row in execute(opened, f"SELECT DISTINCT {text} {named} ORDER BY 1").fetchall()
    ]


Change: TypeAlias = Callable[[str], str | None]


def _mapped(opened: Opened, column: str, change: Change) -> str:
    """A column of the copy in SQL: every distinct value through a function; NULL where it says None."""
    import pandas

    values, table = _distinct(opened, column), f"suture_map_{list(opened.names).index(column)}"
    frame = pandas.DataFrame({"v": values, "g": [change(value) for value in values]}, dtype=str)
    opened.connection.register("suture_frame", frame)
    execute(opened, f"CREATE OR REPLACE TEMP TABLE {table} AS SELECT v, g FROM suture_frame")
    opened.connection.unregister("suture_frame")
    return f"(SELECT g FROM {table} WHERE v = {_text(opened, column)})"


def _change(
    opened: Opened, findings: Mapping[str, Finding], column: str, year: int, zips: frozenset[str]
) -> Change:
    """How a column's values are generalised; None is written as an empty cell."""
    how, oldest = findings[column].how, year - 90
    if how == "age":
        return partial(age_in, per_year=per_year(column))
    if how == "zip3":
        return partial(zip3_in, restricted=zips)
    if how == "redact":
        people = [f.column for f in findings.values() if f.category in ("name", "geography")]
        return redactor(
            [v for name in people for v in _distinct(opened, name)], _distinct(opened, column)
        )

    def only_year(text: str) -> str | None:
        found = year_in(text, year, named=True)
        return None if found is None else f"{oldest} or before" if found <= oldest else str(found)

    return only_year


_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_OLD = re.compile(r"\b(?:9\d|1[0-2]\d)(?=[- ]?(?:y|j|a[nñ]|lat|lata|M?onat))")
_NUMBER = re.compile(r"\b(?=\w*\d\w*\d\w*\d)(?=\w*[A-Za-z])\w+|\d{5,}")
BLACK = "█"


def redactor(people: Iterable[str], texts: Iterable[str]) -> Change:
    """Blacks out in a text: every pattern of `INSIDE`; long numbers and codes; ages over 89; words of
    the table's own names and places, in any letter case; common names; and every capitalised word
    that the column's texts never write small. A rare name in small letters that the table does not
    hold elsewhere stays."""
    known = {
        word for value in people for word in _WORD.findall(fold(value)) if len(word) > 2
    } - SAFE
    small = {word for text in texts for word in _WORD.findall(clean(text)) if word.islower()}
    listed = (FIRST_NAMES | LAST_NAMES) - SAFE
    patterns = [*(re.compile(python(pattern)) for pattern in INSIDE.values()), _NUMBER]

    def one(found: re.Match[str]) -> str:
        word = found[0]
        plain = fold(word)
        unseen = not word.islower() and plain not in SAFE and word.lower() not in small
        return BLACK if plain in known or plain in listed or unseen else word

    def redact(text: str) -> str:
        text = clean(text)
        for pattern in patterns:
            text = pattern.sub(BLACK, text)
        return _WORD.sub(one, _OLD.sub("90+", text))

    return redact


def python(pattern: str) -> str:
    """A pattern of `INSIDE` as Python's regular expressions write it."""
    upper = "[A-ZÀ-ÖØ-ÞĄĆĘŁŃŚŹŻ]"
    return pattern.replace(r"\p{Lu}", upper).replace(r"[\pL\w", r"[\w").replace(r"\pL", r"[^\W\d_]")


def _lost(
    opened: Opened, findings: Mapping[str, Finding], written: Mapping[str, str]
) -> dict[str, int]:
    """How many values a generalisation did not understand and left empty."""
    changed = [name for name, found in findings.items() if found.how and name in written]
    if not changed:
        return {}
    parts = (
        f"count(*) FILTER (nullif({_text(opened, name)}, '') IS NOT NULL AND "
        f"({written[name]}) IS NULL)"
        for name in changed
    )
    found = one_row(opened, f"SELECT {', '.join(parts)} FROM {opened.relation}")
    return dict(zip(changed, map(int, found), strict=True))


def _codes(
    ids: Sequence[str], codes: str, secret: bytes | None, table: Path | None
) -> dict[str, str]:
    """A code for every patient, keyed or drawn; drawn ones are kept in the table."""
    if codes == "keyed":
        key = derive(secret or b"", "patient codes")
        return {i: hmac.new(key, i.encode(), hashlib.sha256).hexdigest()[:24] for i in ids}
    known: dict[str, str] = {}
    if table is not None and table.exists():
        known = json.loads(table.read_text(encoding="utf-8"))
    taken = set(known.values())
    for i in ids:
        while i not in known:
            code = secrets.token_hex(8)
            if code not in taken:
                known[i] = code
                taken.add(code)
    if table is not None:
        _put(table, json.dumps(known).encode(), mode=0o600)
    return known


def _write(opened: Opened, written: dict[str, str], out: Path) -> int:
    """Write beside, then rename: never half a copy."""
    import duckdb

    columns = ", ".join(f"{sql} AS {quoted_name(name)}" for name, sql in written.items())
    beside = out.with_name(f".{out.name}.{os.getpid()}")
    form = "FORMAT csv, HEADER" if out.suffix.lower() == ".csv" else "FORMAT parquet"
    query = f"COPY (SELECT {columns} FROM {opened.relation}) TO {literal_path(beside)} ({form})"
    try:
        rows = opened.connection.execute(query).fetchone()
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(out)
    except (duckdb.Error, OSError) as error:
        beside.unlink(missing_ok=True)
        raise DataError(
            f"{opened.place}: the copy cannot be written ({type(error).__name__}); nothing was left"
        ) from None
    return int(rows[0]) if rows else 0


def _put(path: Path, content: bytes, mode: int = 0o644) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        handle = os.open(beside, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise RunError(f"{path} cannot be written: {error.strerror}") from None


def linkage(opened: Opened, quasi: Mapping[str, str], patient: str | None) -> Report:
    """Group sizes on SQL expressions of the quasi-identifiers, and of the patient column."""
    chosen = ", ".join(f"{sql} AS q{i}" for i, sql in enumerate(quasi.values()))
    names = ", ".join(f"q{i}" for i in range(len(quasi)))
    # A patient with several rows counts once for every combination of values they show.
    one = f"SELECT DISTINCT {patient} AS p, {chosen}" if patient is not None else f"SELECT {chosen}"
    under = ", ".join(f"coalesce(sum(c) FILTER (c < {n}), 0)::BIGINT" for n in (2, 5, 11))
    smallest, groups, total, *small = one_row(
        opened,
        f"WITH one AS ({one} FROM {opened.relation}), sizes AS (SELECT count(*) AS c FROM one "
        f"GROUP BY {names}) SELECT min(c), count(*), sum(c)::BIGINT, {under} FROM sizes",
    )
    alone, under_5, under_11 = (count / total if total else 0.0 for count in small)
    return {
        "quasi_identifiers": list(quasi),
        "smallest_group": int(smallest or 0),
        "groups": int(groups or 0),
        "unique": alone,
        "in_groups_under_5": under_5,
        "in_groups_under_11": under_11,
    }


def score(
    findings: Sequence[Finding], truth: Mapping[str, str], honest: Collection[str] = ()
) -> Report:
    """Recall and precision of acting on columns of known truth, and of naming their category. A
    column left to a person counts neither as found nor as taken, and is listed."""
    acted = {f.column: f for f in findings if f.action in ("drop", "generalise")}
    unsure = {f.column for f in findings if f.action == "look"}
    right = [name for name in truth if name in acted]
    named = [name for name in right if acted[name].category == truth[name]]
    true = [name for name in truth if name in honest]
    false = [name for name in truth if name not in honest]

    def share(part: Sequence[str], whole: Collection[str]) -> float | None:
        return len(part) / len(whole) if whole else None

    return {
        "columns": len(findings),
        "identifiers": len(truth),
        "recall": share(right, truth),
        "precision": share(right, acted),
        "category_right": share(named, right),
        "unsure": sorted(unsure),
        "kept_silently": [n for n in truth if n not in acted and n not in unsure],
        "missed": [name for name in truth if name not in acted],
        "wrongly_taken": [name for name in acted if name not in truth],
        "category_wrong": [name for name in right if name not in named],
        "recall_honest_names": share([name for name in true if name in acted], true),
        "recall_misleading_names": share([name for name in false if name in acted], false),
    }


# --- for people -------------------------------------------------------------------------------------------------------


def print_scan(found: Report) -> None:
    """Columns to act on first, then how many are kept."""
    console = Console(highlight=False)
    console.print(_columns(found["columns"], f"{found['file']}: {found['rows']:,} rows"))
    kept = [row["column"] for row in found["columns"] if row["action"] == "keep"]
    console.print(f"kept as they are: {', '.join(kept) or 'none'}")
    if found["unsure"]:
        console.print(
            f"unsure, look: {', '.join(found['unsure'])}. Decide on each with --keep COLUMN or --drop "
            "COLUMN; until then no copy is written"
        )
    console.print("A scan helps the steward, who answers for the copy: check every kept column.")


def print_apply(found: Report) -> None:
    """What was done to each column, and who can still be singled out."""
    console = Console(highlight=False)
    title = f"{found['input']} to {found['output']}: {found['rows']:,} rows"
    console.print(_columns(found["columns"], title))
    if found["codes"]:
        console.print(f"patients: {found['codes']}")
    risk = found["linkage"]
    if risk is not None:
        shares = {
            "unique": "patients alone in their group",
            "in_groups_under_5": "in groups under 5",
            "in_groups_under_11": "in groups under 11",
        }
        title = f"Linkage on {', '.join(risk['before']['quasi_identifiers'])}"
        table = _table(title, "", "smallest group", *shares.values())
        for when in ("before", "after"):
            part = risk[when]
            cells = (f"{part[key]:.1%}" for key in shares)
            table.add_row(when, f"{part['smallest_group']:,}", *cells)
        console.print(table)
    console.print(found["floor"])


def print_evaluation(found: Report) -> None:
    """Recall and precision on the planted table."""
    console = Console(highlight=False)
    shares = {
        "recall": "recall",
        "recall_honest_names": "honest names",
        "recall_misleading_names": "misleading names",
        "precision": "precision",
        "category_right": "category right",
    }
    title = f"{found['identifiers']} planted columns of {found['columns']}"
    table = _table(title, *shares.values())
    table.add_row(*(f"{found[key]:.1%}" for key in shares))
    console.print(table)
    lists = {
        "missed": "missed",
        "kept_silently": "of these kept silently",
        "unsure": "left to a person",
        "wrongly_taken": "taken wrongly",
        "category_wrong": "other category",
    }
    for key, text in lists.items():
        console.print(f"{text}: {', '.join(found[key]) or 'none'}")


def _columns(rows: Sequence[Report], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    for name in ("column", "category", "sign", "share", "confidence", "action"):
        table.add_column(name, justify="right" if name == "share" else "left", overflow="fold")
    for row in rows:
        if row["action"] == "keep" and row["category"] is None:
            continue
        inside = ", ".join(f"{name} {share:.1%}" for name, share in row["inside"].items())
        sign = f"{row['sign']}; inside: {inside}" if inside else row["sign"]
        action = f"{row['action']}: {row['how']}" if row["how"] else row["action"]
        rule, share = row["rule"] or "–", f"{row['share']:.0%}"
        table.add_row(row["column"], rule, sign, share, row["confidence"], action)
    return table


def _table(title: str, *heads: str) -> Table:
    table = Table(title=title, title_justify="left")
    for head in heads:
        table.add_column(head, justify="right" if head else "left")
    return table
