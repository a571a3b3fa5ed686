"""Where a site's rows are, and how they are opened: CSV, Parquet and DuckDB files, SQL servers,
arrays in memory.

DuckDB reads the files (Parquet and CSV are built in; nothing is downloaded). A SQL server is asked
through its ADBC driver, and DuckDB reads the answer where it lies. All give columns to the same
validation in `preprocess`.

Messages of DuckDB and of SQL drivers can quote the row they failed on. They are therefore never
passed on: this module says in its own words what went wrong, with the line number at most. Nothing
is spilled to disk either: DuckDB's temporary files would be rows outside the wall, in clear.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import importlib
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from suture.errors import DataError, MissingExtra, StudyError
from suture.schema.table import explain
from suture.site.features import PATIENT, Features, read_features
from suture.site.fhir import Fhir, files_of
from suture.site.omop import Omop, tables_listed, tables_of_folder
from suture.site.records import Found, Query, Records
from suture.site.sql import literal_path, quoted, quoted_name

if TYPE_CHECKING:
    import duckdb

_KINDS = {
    **dict.fromkeys((".csv", ".txt", ".tsv", ".gz"), "csv"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".duckdb", ".ddb", ".db"), "duckdb"),
}
_POSTGRES = ("postgresql", "postgres")
_DRIVERS = {
    **dict.fromkeys(_POSTGRES, "adbc_driver_postgresql"),
    "sqlite": "adbc_driver_sqlite",
}
_SEPARATORS = {",": '","', ";": '";"', "\t": '"\\t"', "|": '"|"'}
_LONGEST_LINE = 16 << 20
_WRONG_ENCODING = (
    'the text is not in the expected encoding; set encoding = "latin-1" (or "utf-16", "utf-8") '
    'beside the path: data = { path = "...", encoding = "latin-1" }, or --encoding latin-1'
)
Column: TypeAlias = NDArray[Any]
Columns: TypeAlias = dict[str, Column]


class Share(BaseModel):
    """The ``number``-th of ``of`` shares of a table's patients, by a hash of the column ``by``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    by: str
    number: int = Field(ge=1)
    of: int = Field(ge=1)


DEID_REPORT = ".report.json"
"""What `suture deid apply` appends to a table's name for its report; the gate looks for it."""


class SourceSpec(BaseModel):
    """What ``data = ...`` of a site says: a path, a path with its details, or a server and a query.

    >>> SourceSpec.model_validate("boston.csv").kind
    'csv'
    >>> SourceSpec(url="postgresql://reader:secret@db.example/ward", query="SELECT * FROM stays").describe()
    'postgresql://db.example/ward'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str | None = None
    separator: str | None = Field(None, min_length=1, max_length=1)
    encoding: Literal["utf-8", "latin-1", "utf-16"] = "utf-8"
    decimal: Literal[".", ","] = "."
    missing: tuple[str, ...] = ()
    """Texts that mean a missing value here, such as ``["NA", "?"]``. Empty cells always do."""
    sentinels: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """The same for single columns: ``{ chol = ["0", "-999"] }``; a whole number in any spelling."""
    thousands: Literal[",", ".", " ", "'"] | None = None
    """What stands between groups of three digits: ``","`` in 1,234.5."""
    units: dict[str, str] = Field(default_factory=dict)
    """The unit of a column here, where it differs from the schema's: ``{ chol = "mmol/L" }``."""
    table: str | None = None
    url: str | None = Field(None, repr=False)
    query: str | None = None
    omop: str | None = Field(None, repr=False)
    """OMOP CDM 5.4: a folder of CSV or Parquet files, a ``.duckdb`` file, or a PostgreSQL server."""
    fhir: str | None = None
    """FHIR R4: a folder of NDJSON files or bundles."""
    features: str | None = None
    """The cohort file that makes a table of OMOP's or FHIR's records."""
    schemas: tuple[str, ...] = ()
    """Where a database has the OMOP tables, in the order in which they are looked for."""
    only: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Which rows of the table are this site's: values of some columns."""
    share: Share | None = None
    """Which of the table's patients are this site's, where sites are made up for a simulation."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: object) -> object:
        return {"path": str(value)} if isinstance(value, str | os.PathLike) else value

    @model_validator(mode="after")
    def _one_place(self) -> SourceSpec:
        if [self.path, self.url, self.omop, self.fhir].count(None) != 3:
            raise ValueError(
                'give a path or a url, omop or fhir, for example "boston.csv" or { url = '
                '"postgresql://...", query = "..." }'
            )
        if (self.features is None) != (self.omop is None and self.fhir is None):
            raise ValueError(
                'omop and fhir go with a cohort file: { omop = "cdm", features = "features.toml" }'
            )
        if self.server and self.url is None and urlsplit(self.server).scheme not in _POSTGRES:
            raise ValueError(
                "omop: expected a folder, a .duckdb file or postgresql://host/database"
            )
        if self.url is not None and (not self.query or urlsplit(self.url).scheme not in _DRIVERS):
            example = 'url = "postgresql://host/database", query = "SELECT ..."'
            raise ValueError(f"a server needs {{ {example} }}")
        if self.path is not None and Path(self.path).suffix.lower() not in _KINDS:
            raise ValueError(
                "expected a file ending in .csv, .csv.gz, .tsv, .parquet or .duckdb, found "
                f"{self.path!r}"
            )
        if self.thousands == self.decimal:
            raise ValueError(f"thousands and decimal are both {self.decimal!r}; they must differ")
        if self.table is not None and self.kind != "duckdb":
            raise ValueError("table goes with a .duckdb file only")
        return self

    @property
    def kind(self) -> str:
        """csv, parquet, duckdb, sql, omop or fhir."""
        if self.features is not None:
            return "fhir" if self.omop is None else "omop"
        return "sql" if self.path is None else _KINDS[Path(self.path).suffix.lower()]

    @property
    def server(self) -> str | None:
        """The server's URL; None: the rows are in files."""
        return self.omop if self.omop is not None and "://" in self.omop else self.url

    def under(self, folder: Path) -> Self:
        """The same source with its paths seen from a folder (that of the study file)."""
        places = {"path": self.path, "fhir": self.fhir, "features": self.features}
        places |= {} if self.server else {"omop": self.omop}
        seen = {key: str(Path(folder) / one) for key, one in places.items() if one is not None}
        return self.model_copy(update=seen)

    def without_password(self) -> Self:
        """The same place with no password in it, for anything that is written down."""
        parts = urlsplit(self.server or "")
        if parts.password is None:
            return self
        user, _, host = parts.netloc.rpartition("@")
        netloc, at = f"{user.split(':', 1)[0]}@{host}", "url" if self.omop is None else "omop"
        return self.model_copy(update={at: parts._replace(netloc=netloc).geturl()})

    def describe(self) -> str:
        """The source for messages: never the user name, the password or the query."""
        if self.server is None:
            return Path(self.path or self.omop or self.fhir or "").name
        parts = urlsplit(self.server)
        return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"


class ConsentSpec(SourceSpec):
    """What ``consent = ...`` of a site says: where the table is, and which column is which."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    patient: str
    study: str | None = None
    """The column that names the study; without it, a consent is for every study."""
    given: str | None = Field(default=None, alias="from")
    """The column of the day from which consent is valid; without it, it has always been valid."""
    withdrawn: str | None = None
    """The column of the day of withdrawal; an empty cell means not withdrawn."""


Source: TypeAlias = SourceSpec | Mapping[str, Column]
"""A file, a server, or columns in memory (generated cohorts)."""


def source_of(value: Source | str | os.PathLike[str]) -> Source:
    """A source from a path, or the source itself."""
    if not isinstance(value, str | os.PathLike):
        return value
    try:
        return SourceSpec.model_validate(value)
    except ValidationError as error:
        raise StudyError(explain(error, "data")) from None


@dataclass(frozen=True)
class Opened:
    """A table that is open for one reading: its columns' SQL names and DuckDB types."""

    spec: SourceSpec
    place: str
    connection: duckdb.DuckDBPyConnection
    relation: str
    names: dict[str, str]
    types: dict[str, str]
    lenient: str = ""
    """The same table without the lines that cannot be read, where the source has lines."""
    problems: list[str] = field(default_factory=list)
    """What was left out, for the site only: outsiders must not see whether a line can be read."""

    def select(self, expressions: Mapping[str, str]) -> Columns:
        """Evaluate SQL expressions over all rows, in one pass, into arrays."""
        import duckdb

        wanted = ", ".join(f'{sql} AS "{name}"' for name, sql in expressions.items())
        words = ""
        for relation in filter(None, (self.relation, self.lenient)):
            try:
                found = self.connection.execute(f"SELECT {wanted} FROM {relation}").fetchnumpy()
            except duckdb.Error as error:
                columns = 0 if self.spec.features else len(self.names)
                words = words or _own_words(error, columns)
                continue
            self.problems.extend([words] if words else [])
            return {name: np.asarray(column) for name, column in found.items()}
        raise DataError(f"{self.place}: {words}")


def check_columns(found: Sequence[str], wanted: Sequence[str], place: str) -> None:
    """All wanted columns that are not there, in one error, each with the closest names that are."""
    absent = [name for name in dict.fromkeys(wanted) if name not in found]
    if not absent:
        return
    folded = {name.casefold(): name for name in found}
    parts = []
    for name in absent:
        near = difflib.get_close_matches(name.casefold(), list(folded), 2, 0.7)
        hint = " or ".join(repr(folded[match]) for match in near)
        parts.append(f"column {name!r} is missing" + (f" (did you mean {hint}?)" if hint else ""))
    shown = ", ".join(found[:30]) + (f" and {len(found) - 30} more" if len(found) > 30 else "")
    raise DataError(f"{place}: {'; '.join(parts)}. Columns found: {shown}")


@contextmanager
def open_table(spec: SourceSpec, wanted: Sequence[str] | None, *, site: str) -> Iterator[Opened]:
    """Open a file or a server's answer; only the wanted columns (None: all) are ever fetched."""
    place = f"site {site!r} ({spec.describe()})"
    if wanted is not None:
        wanted = [*wanted, *spec.only, *([spec.share.by] if spec.share else [])]
    if spec.kind in ("sql", "omop", "fhir"):
        asking = _ask_server if spec.kind == "sql" else _ask_records
        with asking(spec, wanted, place) as opened:
            yield _only(opened)
        return
    path = Path(spec.path or "")
    if path.is_dir():
        raise DataError(
            f"{place}: expected a file, found a folder; name one file in it, such as "
            f"{path.name}/rows.csv"
        )
    if not path.exists():
        raise DataError(
            f"{place}: there is no such file; expected it at {path}. Correct the path in the study"
        )
    if path.stat().st_size == 0:
        raise DataError(f"{place}: the file is empty; expected a header and rows")
    opening = {"csv": _open_csv, "parquet": _open_parquet, "duckdb": _open_duckdb}
    opened = opening[spec.kind](spec, path, place)
    try:
        check_columns(list(opened.names), [*(wanted or ()), *spec.sentinels], place)
        yield _only(opened)
    finally:
        opened.connection.close()


def _only(opened: Opened) -> Opened:
    """The rows that are this site's, where several sites share a table."""
    rules, share = [], opened.spec.share

    def plain(name: str) -> str:
        text = f"trim(CAST({opened.names[name]} AS VARCHAR))"
        return f"regexp_replace({text}, '^([+-]?[0-9]+)\\.0+$', '\\1')"

    for name, values in opened.spec.only.items():
        rules.append(f"{plain(name)} IN ({', '.join(map(quoted, values)) or 'NULL'})")
    if share is not None:
        digits = f"substr(sha256('suture share:' || {plain(share.by)}), 1, 15)"
        rules.append(f"('0x' || {digits})::UBIGINT % {share.of} = {share.number - 1}")
    if not rules:
        return opened
    where = f"WHERE {' AND '.join(rules)}"
    relation, lenient = (f"(SELECT * FROM {r} {where})" for r in (opened.relation, opened.lenient))
    return replace(opened, relation=relation, lenient=lenient if opened.lenient else "")


# No downloads, no temporary files (they would hold rows), bounded memory.
_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "temp_directory": "",
    "memory_limit": "1GB",
    "threads": str(min(4, os.cpu_count() or 1)),
}
_databases: dict[int, duckdb.DuckDBPyConnection] = {}


def _connect() -> duckdb.DuckDBPyConnection:
    """A connection to the process's one empty in-memory database (a new one takes 10 ms)."""
    import duckdb

    database = _databases.get(os.getpid())  # by process: DuckDB's threads do not survive a fork
    if database is None:
        database = _databases.setdefault(os.getpid(), duckdb.connect(config=_SETTINGS))
    return database.cursor()


def _open_csv(spec: SourceSpec, path: Path, place: str) -> Opened:
    separator = spec.separator or ("\t" if ".tsv" in path.suffixes else ",")
    names = _header(path, spec.encoding, separator, place)
    others = [mark for mark in _SEPARATORS if mark != separator and mark in names[0]]
    if len(names) == 1 and others:
        mark = _SEPARATORS[others[0]]
        raise DataError(
            f"{place}: found one column only, with {mark} in its name; set data = "
            f'{{ path = "{spec.path}", separator = {mark} }}, or --separator {mark}'
        )
    twice = sorted(name for name, times in Counter(names).items() if name and times > 1)
    if twice:
        raise DataError(f"{place}: column {twice[0]!r} is there twice; rename one in the header")
    columns = ", ".join(f"'c{i}': 'VARCHAR'" for i in range(len(names)))
    relation = (
        f"read_csv({literal_path(path)}, auto_detect = false, header = true, quote = '\"', "
        f"escape = '\"', delim = {quoted(separator)}, encoding = '{spec.encoding}', "
        f"columns = {{{columns}}}"
    )
    lenient = "ignore_errors = true, strict_mode = false"
    lenient = f"{relation}, {lenient}, max_line_size = {_LONGEST_LINE})"
    sql, types = {name: f"c{i}" for i, name in enumerate(names)}, dict.fromkeys(names, "VARCHAR")
    return Opened(spec, place, _connect(), f"{relation})", sql, types, lenient)


def _header(path: Path, encoding: str, separator: str, place: str) -> list[str]:
    opening = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        kind = "utf-8-sig" if encoding == "utf-8" else encoding
        # Bytes that are no text further down are a row's business, and must not be seen here.
        with opening(path, "rt", encoding=kind, newline="", errors="replace") as lines:
            names = [name.strip() for name in next(csv.reader(lines, delimiter=separator), [])]
        if any("\ufffd" in name for name in names):
            raise UnicodeError
    except (UnicodeError, OSError, EOFError, csv.Error) as error:
        if isinstance(error, UnicodeError):
            raise DataError(f"{place}: {_WRONG_ENCODING}") from None
        raise DataError(f"{place}: the header cannot be read ({type(error).__name__})") from None
    if not any(names):
        raise DataError(f"{place}: the first line is empty; expected the column names")
    return names


def _described(
    spec: SourceSpec, place: str, connection: duckdb.DuckDBPyConnection, relation: str
) -> Opened:
    rows = connection.execute(f"DESCRIBE SELECT * FROM {relation}").fetchall()
    names, types = {row[0]: quoted_name(row[0]) for row in rows}, {r[0]: str(r[1]) for r in rows}
    return Opened(spec, place, connection, relation, names, types)


def _open_parquet(spec: SourceSpec, path: Path, place: str) -> Opened:
    import duckdb

    try:
        return _described(spec, place, _connect(), f"read_parquet({literal_path(path)})")
    except duckdb.Error as error:
        raise DataError(f"{place}: cannot be read as Parquet ({type(error).__name__})") from None


def _database(path: Path, place: str) -> duckdb.DuckDBPyConnection:
    import duckdb

    try:
        return duckdb.connect(str(path), read_only=True, config=_SETTINGS)
    except duckdb.Error as error:
        raise DataError(
            f"{place}: cannot be opened as a DuckDB file ({type(error).__name__}); is another "
            "program writing to it, or was it written by a newer DuckDB?"
        ) from None


def _open_duckdb(spec: SourceSpec, path: Path, place: str) -> Opened:
    connection = _database(path, place)
    listed = connection.execute("SELECT table_name FROM information_schema.tables").fetchall()
    tables = sorted(row[0] for row in listed)
    table = spec.table or (tables[0] if len(tables) == 1 else None)
    if table not in tables:
        connection.close()
        raise DataError(
            f'{place}: which table? Set data = {{ path = "{spec.path}", table = "..." }}; tables '
            f"found: {', '.join(tables) or 'none'}"
        )
    return _described(spec, place, connection, quoted_name(str(table)))


@contextmanager
def _ask_server(spec: SourceSpec, wanted: Sequence[str] | None, place: str) -> Iterator[Opened]:
    """Send the query, narrowed to the wanted columns; DuckDB reads the answer's Arrow batches."""
    driver = _driver(spec)
    query = (spec.query or "").strip().rstrip(";")
    try:
        with driver.connect(spec.url) as server, server.cursor() as cursor:
            cursor.execute(f"SELECT * FROM ({query}) AS suture_rows LIMIT 0")
            found = [column[0] for column in cursor.description]
            wanted = found if wanted is None else wanted
            check_columns(found, [*wanted, *spec.sentinels], place)
            columns = ", ".join(map(quoted_name, dict.fromkeys(wanted))) or "1 AS nothing"
            cursor.execute(f"SELECT {columns} FROM ({query}) AS suture_rows")
            with closing(_connect()) as connection:
                connection.register("suture_answer", cursor.fetch_record_batch())
                yield _described(spec, place, connection, "suture_answer")
    except driver.Error as error:
        raise DataError(f"{place}: {_server_words(error)}") from None


def _driver(spec: SourceSpec) -> ModuleType:
    name = _DRIVERS[urlsplit(spec.server or "").scheme]
    try:
        importlib.import_module("pyarrow")
        return importlib.import_module(f"{name}.dbapi")
    except ImportError:
        raise MissingExtra(
            "reading from PostgreSQL needs its ADBC driver: pip install 'suture[sql]'"
        ) from None


# --- clinical records -------------------------------------------------------------------------------------------------


@contextmanager
def _ask_records(spec: SourceSpec, wanted: Sequence[str] | None, place: str) -> Iterator[Opened]:
    """The table that the cohort file makes of OMOP's or FHIR's records, where they are."""
    asked = record_columns(spec, wanted or (), place)
    wanted = list(dict.fromkeys([PATIENT, *asked.columns] if wanted is None else wanted))
    bare = spec.model_copy(update={"units": {}})  # the query has converted them
    with _records(spec, place) as (records, strict, connection):
        query = Query(records, asked, spec.units)
        with _placed(place):
            told = query.sql(wanted)
        if connection is not None:
            opened = _described(bare, place, connection, f"({told})")
            if strict is not None:
                first = replace(query, records=strict).sql(wanted)
                opened = replace(opened, relation=f"({first})", lenient=f"({told})")
            yield opened
            return
    served = bare.model_copy(update={"url": spec.server, "query": told})
    with _ask_server(served, wanted, place) as opened:
        yield opened


def record_columns(spec: SourceSpec, wanted: Sequence[str], place: str) -> Features:
    """The cohort file, if it makes the wanted columns. No record is read."""
    asked = read_features(Path(spec.features or ""))
    check_columns([PATIENT, *asked.columns], [*wanted, *spec.sentinels, *spec.units], place)
    if spec.server is None:
        _beside(spec, place).close()
    return asked


def record_findings(spec: SourceSpec, wanted: Sequence[str], *, site: str) -> list[Found]:
    """Concepts and units that a site does not have, and faults of its records: counted from rows, so
    for the site alone."""
    asked = read_features(Path(spec.features or ""))
    columns = [name for name in wanted if name in asked.columns]
    place = f"site {site!r} ({spec.describe()})"
    with _records(spec, place) as (records, _, _), _placed(place):
        return Query(records, asked, spec.units).findings(columns)


@contextmanager
def _placed(place: str) -> Iterator[None]:
    """What is wrong with records, said with where they are."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{place}: {error}") from None


@contextmanager
def _records(
    spec: SourceSpec, place: str
) -> Iterator[tuple[Records, Records | None, duckdb.DuckDBPyConnection | None]]:
    """The records behind a connection; text files without the lines that cannot be read, and beside
    them with every line."""
    if spec.server is not None:
        driver = _driver(spec)
        try:
            with driver.connect(spec.server) as server, server.cursor() as cursor:

                def ask(query: str) -> list[tuple[object, ...]]:
                    cursor.execute(query)
                    return [tuple(row) for row in cursor.fetchall()]

                tables = tables_listed(ask(_LISTED.format(rule=_VISIBLE)), spec.schemas)
                yield Omop(ask, tables, postgres=True), None, None
        except driver.Error as error:
            raise DataError(f"{place}: {_server_words(error)}") from None
        return
    with closing(_beside(spec, place)) as connection:

        def told(query: str) -> list[tuple[object, ...]]:
            import duckdb

            try:
                return connection.execute(query).fetchall()
            except duckdb.Error as error:
                raise DataError(_own_words(error, 0)) from None

        connection.execute("SET TimeZone = 'UTC'")
        folder = Path(spec.omop or spec.fhir or "")
        if spec.fhir is not None:
            files = files_of(folder)
            if not files:
                raise DataError(f"{place}: no .ndjson or .json file is in the folder")
            yield Fhir(told, files), None, connection
        elif folder.is_dir():
            with _placed(place):
                lenient, tables = (
                    tables_of_folder(folder, told, lenient=one) for one in (True, False)
                )
            records = Omop(told, lenient)
            # concepts, once looked up, are shared
            strict = None if tables == lenient else replace(records, tables=tables)
            yield records, strict, connection
        else:
            tables = tables_listed(told(_LISTED.format(rule="true")), spec.schemas)
            yield Omop(told, tables), None, connection


_LISTED = "SELECT table_schema, table_name, column_name, data_type FROM information_schema.columns WHERE {rule}"
_VISIBLE = "table_schema NOT IN ('information_schema', 'pg_catalog')"


def _beside(spec: SourceSpec, place: str) -> duckdb.DuckDBPyConnection:
    """A connection beside the files of records, or to their database."""
    path = Path(spec.omop or spec.fhir or "")
    if not path.exists():
        raise DataError(f"{place}: there is nothing at {path}; correct the path in the study")
    if path.is_dir():
        return _connect()
    if spec.fhir is not None or _KINDS.get(path.suffix.lower()) != "duckdb":
        raise DataError(f"{place}: expected a folder{'' if spec.fhir else ' or a .duckdb file'}")
    return _database(path, place)


def _server_words(error: Exception) -> str:
    """What a SQL server refused. Its message is shown only where it cannot quote a row."""
    state = str(vars(error).get("sqlstate") or "")
    # Classes 08 (connection), 28 (log-in), 3D (no such database) and 42 (syntax, unknown table, no
    # permission) speak of the request; all others (22: "invalid input syntax ...: '<value>'") may
    # quote a patient's value.
    if state[:2] in ("08", "28", "3D", "42"):
        first = str(error).strip().splitlines()[0]
        return f"the server refused (SQLSTATE {state}): {first}"
    if type(error).__name__ == "OperationalError" or not state.strip("0\x00"):
        return (
            "the server cannot be reached or did not answer; check the url, the network and the "
            "password (PGPASSWORD)"
        )
    return f"the query failed at the server with SQLSTATE {state}; run it there to see why"


def _own_words(error: Exception, columns: int) -> str:
    """A reading error without the row that DuckDB quotes in it."""
    message = str(error)
    found = re.search(r"CSV Error on Line: (\d+)", message)
    line = f" (line {found.group(1)})" if found else ""
    before = message.split("Possible Solution")[0].splitlines()
    own = "\n".join(text for text in before if not text.startswith("Original Line"))
    if re.search(r"unicode|utf-8 encoded|not utf-16|encod", own, re.IGNORECASE):
        return _WRONG_ENCODING + line
    if found:
        many = f"{columns} " if columns else ""
        return (
            f"a line does not have the {many}columns of the header, or a quote is not closed{line}; "
            "check the line, or the separator"
        )
    if "suture_answer" in message:
        return (
            "the server broke off its answer; run the query there to see why (its message may "
            "quote a row)"
        )
    return f"reading failed ({type(error).__name__})"
