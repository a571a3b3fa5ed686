"""Where a site's rows are, and how they are opened: CSV, Parquet and DuckDB files, SQL servers, arrays in memory.

DuckDB reads the files (Parquet and CSV are built in; nothing is downloaded). A SQL server is asked through its ADBC
driver, and DuckDB reads the answer where it lies. All give columns to the same validation in `preprocess`.

Messages of DuckDB and of SQL drivers can quote the row they failed on. They are therefore never passed on: this module
says in its own words what went wrong, with the line number at most. Nothing is spilled to disk either: DuckDB's
temporary files would be rows outside the wall, in clear.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import importlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from suture.errors import DataError, MissingExtra, StudyError
from suture.site.schema import explain

if TYPE_CHECKING:
    import duckdb

_KINDS = {".csv": "csv", ".txt": "csv", ".tsv": "csv", ".gz": "csv", ".parquet": "parquet", ".pq": "parquet"}
_KINDS |= {".duckdb": "duckdb", ".ddb": "duckdb", ".db": "duckdb"}
_DRIVERS = {
    "postgresql": "adbc_driver_postgresql",
    "postgres": "adbc_driver_postgresql",
    "sqlite": "adbc_driver_sqlite",
}
_SEPARATORS = {",": '","', ";": '";"', "\t": '"\\t"', "|": '"|"'}


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
    """Texts that stand for a missing value in this table, such as ``["NA", "?"]``. Empty cells always do."""
    table: str | None = None
    url: str | None = Field(None, repr=False)
    query: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"path": str(value)} if isinstance(value, str | os.PathLike) else value

    @model_validator(mode="after")
    def _one_place(self) -> SourceSpec:
        if (self.path is None) == (self.url is None):
            raise ValueError(
                'give a path or a url, for example "boston.csv" or { url = "postgresql://...", query = "..." }'
            )
        if self.url is not None and (not self.query or urlsplit(self.url).scheme not in _DRIVERS):
            raise ValueError('a server needs { url = "postgresql://host/database", query = "SELECT ..." }')
        if self.path is not None and Path(self.path).suffix.lower() not in _KINDS:
            raise ValueError(f"expected a file ending in .csv, .csv.gz, .tsv, .parquet or .duckdb, found {self.path!r}")
        if self.table is not None and self.kind != "duckdb":
            raise ValueError("table goes with a .duckdb file only")
        return self

    @property
    def kind(self) -> str:
        """csv, parquet, duckdb or sql."""
        return "sql" if self.path is None else _KINDS[Path(self.path).suffix.lower()]

    def under(self, folder: Path) -> SourceSpec:
        """The same source with its path seen from a folder (that of the study file).

        >>> SourceSpec(path="boston.csv").under(Path("studies")).path
        'studies/boston.csv'
        """
        return self if self.path is None else self.model_copy(update={"path": str(Path(folder) / self.path)})

    def without_password(self) -> SourceSpec:
        """The same place with no password in it, for anything that is written down.

        >>> spec = SourceSpec(url="postgresql://reader:secret@db.example/ward", query="SELECT * FROM stays")
        >>> spec.without_password().url
        'postgresql://reader@db.example/ward'
        """
        parts = urlsplit(self.url or "")
        if parts.password is None:
            return self
        user, _, host = parts.netloc.rpartition("@")
        netloc = f"{user.split(':', 1)[0]}@{host}"
        return self.model_copy(update={"url": parts._replace(netloc=netloc).geturl()})

    def describe(self) -> str:
        """The source for messages: never the user name, the password or the query."""
        if self.url is None:
            return Path(self.path or "").name
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"


Source: TypeAlias = SourceSpec | Mapping[str, NDArray[Any]]
"""Anything `cohort.load` reads: a file, a server, or columns in memory (generated cohorts)."""


def source_of(value: Source | str | os.PathLike[str]) -> Source:
    """A source from a path, or the source itself.

    >>> source_of("boston.parquet").kind
    'parquet'
    """
    if not isinstance(value, str | os.PathLike):
        return value
    try:
        return SourceSpec.model_validate(value)
    except ValidationError as error:
        raise StudyError(explain(error, "data")) from None


@dataclass(frozen=True)
class Opened:
    """A table that is open for one reading: each column's SQL name and DuckDB type, and what to select from."""

    names: dict[str, str]
    types: dict[str, str]
    relation: str
    connection: duckdb.DuckDBPyConnection
    place: str

    def select(self, expressions: Mapping[str, str]) -> dict[str, NDArray[Any]]:
        """Evaluate SQL expressions over all rows, in one pass, into arrays."""
        import duckdb

        wanted = ", ".join(f'{sql} AS "{name}"' for name, sql in expressions.items())
        try:
            found = self.connection.execute(f"SELECT {wanted} FROM {self.relation}").fetchnumpy()
        except duckdb.Error as error:
            raise DataError(f"{self.place}: {_own_words(error, len(self.names))}") from None
        return {name: np.asarray(column) for name, column in found.items()}


def check_columns(found: Sequence[str], wanted: Sequence[str], place: str) -> None:
    """All wanted columns that are not there, in one error, each with the closest names that are.

    >>> check_columns(["patient_id", "Age"], ["patient_id", "age"], "site 'boston' (boston.csv)")
    Traceback (most recent call last):
    suture.errors.DataError: site 'boston' (boston.csv): column 'age' is missing (did you mean 'Age'?). \
Columns found: patient_id, Age
    """
    absent = [name for name in dict.fromkeys(wanted) if name not in found]
    if not absent:
        return
    folded = {name.casefold(): name for name in found}
    parts = []
    for name in absent:
        near = [repr(folded[match]) for match in difflib.get_close_matches(name.casefold(), list(folded), 2, 0.7)]
        parts.append(f"column {name!r} is missing" + (f" (did you mean {' or '.join(near)}?)" if near else ""))
    shown = ", ".join(found[:30]) + (f" and {len(found) - 30} more" if len(found) > 30 else "")
    raise DataError(f"{place}: {'; '.join(parts)}. Columns found: {shown}")


@contextmanager
def open_table(spec: SourceSpec, wanted: Sequence[str], *, site: str) -> Iterator[Opened]:
    """Open a file or a server's answer for one reading of the wanted columns; others are never fetched."""
    place = f"site {site!r} ({spec.describe()})"
    if spec.kind == "sql":
        with _ask_server(spec, wanted, place) as opened:
            yield opened
        return
    path = Path(spec.path or "")
    if path.is_dir():
        raise DataError(f"{place}: expected a file, found a folder; name one file in it, such as {path.name}/rows.csv")
    if not path.exists():
        raise DataError(
            f"{place}: there is no such file; expected it at {path}. Correct `data` of this site in the study"
        )
    if path.stat().st_size == 0:
        raise DataError(f"{place}: the file is empty; expected a header and rows")
    opening = {"csv": _open_csv, "parquet": _open_parquet, "duckdb": _open_duckdb}[spec.kind]
    opened = opening(spec, path, place)
    try:
        check_columns(list(opened.names), wanted, place)
        yield opened
    finally:
        opened.connection.close()


def _settings() -> dict[str, str | bool | int | float | list[str]]:
    """No downloads, no temporary files (they would hold rows), bounded memory."""
    return {
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "temp_directory": "",
        "memory_limit": "1GB",
        "threads": str(min(4, os.cpu_count() or 1)),
    }


_databases: dict[int, duckdb.DuckDBPyConnection] = {}


def _connect() -> duckdb.DuckDBPyConnection:
    """A connection of this reading's own, on one empty in-memory database a process (a new one takes 10 ms)."""
    import duckdb

    database = _databases.get(os.getpid())  # by process: DuckDB's threads do not survive a fork
    if database is None:
        database = _databases.setdefault(os.getpid(), duckdb.connect(config=_settings()))
    return database.cursor()


def quoted(value: str) -> str:
    """An SQL string.

    >>> quoted("O'Hara")
    "'O''Hara'"
    """
    return "'" + value.replace("'", "''") + "'"


def quoted_name(value: str) -> str:
    """An SQL identifier."""
    return '"' + value.replace('"', '""') + '"'


def literal_path(path: Path) -> str:
    """A path as SQL string in which * ? [ mean themselves (DuckDB reads patterns)."""
    return quoted(re.sub(r"([*?\[])", r"[\1]", str(path)))


def _open_csv(spec: SourceSpec, path: Path, place: str) -> Opened:
    separator = spec.separator or ("\t" if ".tsv" in path.suffixes else ",")
    names = _header(path, spec.encoding, separator, place)
    if len(names) == 1:
        other = next((mark for mark in _SEPARATORS if mark != separator and mark in names[0]), None)
        if other is not None:
            raise DataError(
                f"{place}: found one column only, with {_SEPARATORS[other]} in its name; "
                f'set data = {{ path = "{spec.path}", separator = {_SEPARATORS[other]} }}'
            )
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        raise DataError(f"{place}: column {twice[0]!r} is there twice; rename one of them in the header")
    columns = ", ".join(f"'c{i}': 'VARCHAR'" for i in range(len(names)))
    relation = (
        f"read_csv({literal_path(path)}, auto_detect = false, header = true, delim = {quoted(separator)}, "
        f"quote = '\"', escape = '\"', encoding = '{spec.encoding}', columns = {{{columns}}})"
    )
    sql = {name: f"c{i}" for i, name in enumerate(names)}
    return Opened(sql, dict.fromkeys(names, "VARCHAR"), relation, _connect(), place)


def _header(path: Path, encoding: str, separator: str, place: str) -> list[str]:
    """The column names, from the first line."""
    opening = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        with opening(path, "rt", encoding="utf-8-sig" if encoding == "utf-8" else encoding, newline="") as lines:
            names = [name.strip() for name in next(csv.reader(lines, delimiter=separator), [])]
    except (UnicodeError, OSError, EOFError, csv.Error) as error:
        if isinstance(error, UnicodeError):
            raise DataError(f"{place}: {_WRONG_ENCODING}") from None
        raise DataError(f"{place}: the header cannot be read ({type(error).__name__})") from None
    if not any(names):
        raise DataError(f"{place}: the first line is empty; expected the column names")
    return names


def _describe(connection: duckdb.DuckDBPyConnection, relation: str) -> tuple[dict[str, str], dict[str, str]]:
    rows = connection.execute(f"DESCRIBE SELECT * FROM {relation}").fetchall()
    return {row[0]: quoted_name(row[0]) for row in rows}, {row[0]: str(row[1]) for row in rows}


def _open_parquet(spec: SourceSpec, path: Path, place: str) -> Opened:
    import duckdb

    connection, relation = _connect(), f"read_parquet({literal_path(path)})"
    try:
        return Opened(*_describe(connection, relation), relation, connection, place)
    except duckdb.Error as error:
        raise DataError(f"{place}: cannot be read as Parquet ({type(error).__name__})") from None


def _open_duckdb(spec: SourceSpec, path: Path, place: str) -> Opened:
    import duckdb

    try:
        connection = duckdb.connect(str(path), read_only=True, config=_settings())
    except duckdb.Error as error:
        raise DataError(
            f"{place}: cannot be opened as a DuckDB file ({type(error).__name__}); is another program writing "
            "to it, or was it written by a newer DuckDB?"
        ) from None
    tables = [row[0] for row in connection.execute("SELECT table_name FROM information_schema.tables").fetchall()]
    table = spec.table or (tables[0] if len(tables) == 1 else None)
    if table not in tables:
        connection.close()
        found = ", ".join(sorted(tables)) or "none"
        raise DataError(
            f'{place}: which table? Set data = {{ path = "{spec.path}", table = "..." }}; tables found: {found}'
        )
    relation = quoted_name(str(table))
    return Opened(*_describe(connection, relation), relation, connection, place)


@contextmanager
def _ask_server(spec: SourceSpec, wanted: Sequence[str], place: str) -> Iterator[Opened]:
    """Send the query, narrowed to the wanted columns, and let DuckDB read the Arrow batches of the answer."""
    driver = _driver(spec)
    query = (spec.query or "").strip().rstrip(";")
    try:
        with driver.connect(spec.url) as server, server.cursor() as cursor:
            cursor.execute(f"SELECT * FROM ({query}) AS suture_rows LIMIT 0")
            check_columns([column[0] for column in cursor.description], wanted, place)
            columns = ", ".join(quoted_name(name) for name in dict.fromkeys(wanted)) or "1 AS nothing"
            cursor.execute(f"SELECT {columns} FROM ({query}) AS suture_rows")
            connection = _connect()
            try:
                connection.register("suture_answer", cursor.fetch_record_batch())
                yield Opened(*_describe(connection, "suture_answer"), "suture_answer", connection, place)
            finally:
                connection.close()
    except driver.Error as error:
        raise DataError(f"{place}: {_server_words(error)}") from None


def _driver(spec: SourceSpec) -> Any:
    """The ADBC driver of the url's scheme, or the install command."""
    name = _DRIVERS[urlsplit(spec.url or "").scheme]
    try:
        importlib.import_module("pyarrow")
        return importlib.import_module(f"{name}.dbapi")
    except ImportError:
        raise MissingExtra("reading from PostgreSQL needs its ADBC driver: pip install 'suture[sql]'") from None


def _server_words(error: Exception) -> str:
    """What a SQL server refused. Its message is shown only where it cannot quote a row."""
    state = str(getattr(error, "sqlstate", None) or "")
    # Classes 08 (connection), 28 (log-in), 3D (no such database) and 42 (syntax, unknown table, no permission) speak of
    # the request; all others (22: "invalid input syntax ...: '<value>'") may quote a patient's value.
    if state[:2] in ("08", "28", "3D", "42"):
        first = str(error).strip().splitlines()[0]
        return f"the server refused (SQLSTATE {state}): {first}"
    if type(error).__name__ == "OperationalError" or not state.strip("0\x00"):
        return (
            "the server cannot be reached or did not answer; check the url, the network and the password (PGPASSWORD)"
        )
    return f"the query failed at the server with SQLSTATE {state}; run it there to see why"


_WRONG_ENCODING = (
    'the text is not in the expected encoding; set encoding = "latin-1" (or "utf-16", "utf-8") beside the path: '
    'data = { path = "...", encoding = "latin-1" }'
)


def _own_words(error: Exception, columns: int) -> str:
    """A reading error without the row that DuckDB quotes in it."""
    message = str(error)
    found = re.search(r"CSV Error on Line: (\d+)", message)
    line = f" (line {found.group(1)})" if found else ""
    if re.search(r"unicode|utf-8 encoded|not utf-16|encod", message.split("Original Line")[0], re.IGNORECASE):
        return _WRONG_ENCODING + line
    if found:
        return (
            f"a line does not have the {columns} columns of the header, or a quote is not closed{line}; "
            "check the line, or the separator"
        )
    if "suture_answer" in message:
        return "the server broke off its answer; run the query there to see why (its message may quote a row)"
    return f"reading failed ({type(error).__name__})"
