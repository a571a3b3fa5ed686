"""De-identification, second half: write the copy, with a report that holds no value.

Identifiers are dropped; dates become years, ages over 89 become "90+", ZIP codes their first three digits (000 where the
area has 20,000 people or fewer). A value that a generalisation does not understand becomes empty, never passes through,
and is counted. Years so long ago that they would tell an age over 89 are joined into one ("1936 or before").

The patient column is dropped, unless codes are asked for (45 CFR 164.514(c) lets a site keep a way back to the patient):

- ``random``: a code drawn for each patient, kept in a table at the site. Not derived from anything about the patient,
  which is what the rule asks for. The table must not leave the site.
- ``keyed``: HMAC-SHA256 of the identifier under the site's secret. The same code everywhere without a table; but it *is*
  derived from the identifier, so it does not meet the letter of Safe Harbor: the report says so, and an expert has to.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from suture.errors import DataError, RunError, StudyError
from suture.privacy.mechanisms import derive
from suture.site.deidentify import Finding, execute, judge, profile, refuse_data_as_names
from suture.site.identifiers import RESTRICTED_ZIP3
from suture.site.linkage import linkage
from suture.site.records import Opened, SourceSpec, literal_path, open_table, quoted, quoted_name, source_of

CODES = ("none", "random", "keyed")
FLOOR = (
    "Safe Harbor removes what is on a list. It bounds nothing: patients who are alone in their group can be found again by "
    "anyone who knows those few facts. Differential privacy is what bounds a release."
)


def apply(
    path: str | os.PathLike[str],
    out: Path,
    *,
    patient: str | None = None,
    codes: str = "none",
    secret: bytes | None = None,
    code_table: Path | None = None,
    keep: Sequence[str] = (),
    drop: Sequence[str] = (),
    quasi: Sequence[str] = (),
    restricted: Sequence[str] = (),
    today: date | None = None,
) -> dict[str, Any]:
    """Scan, then write a de-identified copy (CSV or Parquet by its ending) and return the report; plain JSON, no value."""
    spec = source_of(path)
    if not isinstance(spec, SourceSpec) or spec.kind == "sql":
        raise StudyError("de-identification reads files: .csv, .parquet or .duckdb")
    _check(out, codes, patient, secret, code_table)
    with open_table(spec, [*keep, *drop, *quasi, *([patient] if patient else [])], site="this one") as opened:
        refuse_data_as_names(list(opened.names), opened.place)
        findings = {name: _decided(judge(name, profile(opened, name)), keep, drop) for name in opened.names}
        cap = (today or date.today()).year - 90
        zips = RESTRICTED_ZIP3 | set(restricted)
        written = {n: _expression(opened, n, f, cap, zips) for n, f in findings.items() if f.action != "drop"}
        if patient is not None:
            written.pop(patient, None)
            if codes != "none":
                _make_codes(opened, patient, codes, secret, code_table)
                key = f"trim(CAST({opened.names[patient]} AS VARCHAR))"
                code = f"(SELECT code FROM suture_codes WHERE id = {key})"
                written = {patient: code, **written}
        if not written:
            raise DataError(f"{opened.place}: every column is an identifier; nothing would be left")
        lost = _lost(opened, findings, written)
        risk = _risk(opened, quasi, patient, findings, written)
        rows = _write(opened, written, out)
    report = {
        "input": spec.describe(),
        "output": out.name,
        "rows": rows,
        "columns": [_row(f, patient, codes, lost) for f in findings.values()],
        "patient": patient,
        "codes": _code_words(codes) if patient else "",
        "linkage": risk,
        "floor": FLOOR,
    }
    _put(out.with_name(out.name + ".report.json"), json.dumps(report, indent=1, allow_nan=False).encode())
    return report


def _check(out: Path, codes: str, patient: str | None, secret: bytes | None, code_table: Path | None) -> None:
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
        raise StudyError("keyed codes need the site's secret: --home, the folder that holds secret.key")
    if codes == "random" and code_table is None:
        raise StudyError("random codes are kept in a table at the site: --code-table codes.json")


def _decided(found: Finding, keep: Sequence[str], drop: Sequence[str]) -> Finding:
    """The steward's word stands, and is recorded."""
    if found.column in keep and found.action != "keep":
        return Finding(found.column, found.category, "kept by the steward", found.share, found.confidence, "keep")
    if found.column in drop:
        return Finding(found.column, found.category or "other", "dropped by the steward", found.share, "high", "drop")
    return found


def _expression(opened: Opened, column: str, found: Finding, cap: int, zips: frozenset[str] | set[str]) -> str:
    name, kind = opened.names[column], opened.types[column]
    text = f"trim(CAST({name} AS VARCHAR))"
    if found.how == "year":
        year = f"TRY_CAST(regexp_extract({text}, '(?:^|[^0-9])((?:18|19|20)[0-9]{{2}})(?:[^0-9]|$)', 1) AS INTEGER)"
        compact = f"CASE WHEN regexp_full_match({text}, '[0-9]{{8}}') THEN TRY_CAST(left({text}, 4) AS INTEGER) END"
        year = f"year({name})" if kind.startswith(("DATE", "TIMESTAMP")) else f"coalesce({compact}, {year})"
        return f"CASE WHEN {year} <= {cap} THEN '{cap} or before' ELSE CAST({year} AS VARCHAR) END"
    if found.how == "age":
        number = (
            f"TRY_CAST(regexp_extract({text}, '^([0-9]{{1,3}}(?:[.][0-9]+)?)\\s*(?:y|yrs?|years?)?$', 1) AS DOUBLE)"
        )
        return f"CASE WHEN {number} > 89 THEN '90+' ELSE regexp_replace(CAST({number} AS VARCHAR), '[.]0$', '') END"
    if found.how == "zip3":
        # A spreadsheet drops the zero in front of a New England ZIP code.
        digits = f"lpad(regexp_extract({text}, '^([0-9]{{3,5}})(?:[.]0)?(?:-[0-9]{{4}})?$', 1), 5, '0')"
        none = f"NOT regexp_full_match({text}, '[0-9]{{3,5}}(?:[.]0)?(?:-[0-9]{{4}})?')"
        listed = ", ".join(quoted(zip3) for zip3 in sorted(zips))
        return f"CASE WHEN {none} THEN NULL WHEN left({digits}, 3) IN ({listed}) THEN '000' ELSE left({digits}, 3) END"
    return name


def _lost(opened: Opened, findings: dict[str, Finding], written: dict[str, str]) -> dict[str, int]:
    """How many values a generalisation did not understand and left empty."""
    changed = [n for n, f in findings.items() if f.how and n in written]
    if not changed:
        return {}
    parts = ", ".join(
        f"count(*) FILTER (nullif(trim(CAST({opened.names[n]} AS VARCHAR)), '') IS NOT NULL AND ({written[n]}) IS NULL)"
        for n in changed
    )
    found = execute(opened, f"SELECT {parts} FROM {opened.relation}").fetchone() or ()
    return dict(zip(changed, map(int, found), strict=True))


def _risk(
    opened: Opened, quasi: Sequence[str], patient: str | None, findings: dict[str, Finding], written: dict[str, str]
) -> dict[str, Any] | None:
    if not quasi:
        return None
    who = None if patient is None else opened.names[patient]
    before = linkage(opened, {n: f"trim(CAST({opened.names[n]} AS VARCHAR))" for n in quasi}, who)
    after = linkage(opened, {n: written.get(n, "NULL") if n != patient else "NULL" for n in quasi}, who)
    return {"before": before, "after": after}


def _make_codes(opened: Opened, patient: str, codes: str, secret: bytes | None, table: Path | None) -> None:
    name = f"trim(CAST({opened.names[patient]} AS VARCHAR))"
    found = execute(
        opened,
        f"SELECT DISTINCT {name} FROM {opened.relation} WHERE nullif({name}, '') IS NOT NULL ORDER BY 1",
    ).fetchall()
    ids = [row[0] for row in found]
    known: dict[str, str] = {}
    if codes == "keyed":
        key = derive(secret or b"", "patient codes")
        known = {i: hmac.new(key, i.encode(), hashlib.sha256).hexdigest()[:24] for i in ids}
    elif table is not None:
        if table.exists():
            known = json.loads(table.read_text(encoding="utf-8"))
        taken = set(known.values())
        for i in ids:
            while i not in known:
                code = secrets.token_hex(8)
                if code not in taken:
                    known[i] = code
                    taken.add(code)
        _put(table, json.dumps(known).encode(), mode=0o600)
    import pandas

    frame = pandas.DataFrame({"id": ids, "code": [known[i] for i in ids]})
    opened.connection.register("suture_code_frame", frame)
    opened.connection.execute("CREATE OR REPLACE TEMP TABLE suture_codes AS SELECT id, code FROM suture_code_frame")
    opened.connection.unregister("suture_code_frame")


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


def _row(found: Finding, patient: str | None, codes: str, lost: dict[str, int]) -> dict[str, Any]:
    row = found.as_dict()
    if found.column == patient:
        row |= {"action": "drop" if codes == "none" else f"replace by {codes} codes"}
    return row | {"left_empty": lost.get(found.column, 0)}


def _code_words(codes: str) -> str:
    return {
        "none": "the patient column is dropped: rows of one patient can no longer be told to belong together",
        "random": "a random code for each patient, kept in a table at the site, as 45 CFR 164.514(c) asks",
        "keyed": "HMAC-SHA256 under the site's secret: derived from the identifier, so not Safe Harbor by its letter; "
        "an expert has to determine that the risk is very small (45 CFR 164.514(b)(1))",
    }[codes]
