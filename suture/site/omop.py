"""OMOP CDM 5.4 as a source of records: a folder of CSV or Parquet files, a DuckDB file, or a
PostgreSQL server. The tables as the common data model names them; vocabulary tables where codes are
to be looked up (``concept``), mapped (``concept_relationship``) or have descendants
(``concept_ancestor``).

https://ohdsi.github.io/CommonDataModel/cdm54.html
"""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from suture.errors import DataError
from suture.site.features import Concepts
from suture.site.records import Ask, View, in_use
from suture.site.sql import escaped, literal_path, quoted, quoted_name

_TABLES: dict[View, tuple[str, str]] = {  # the table, and what its columns begin with
    "visit": ("visit_occurrence", "visit"),
    "condition": ("condition_occurrence", "condition"),
    "measurement": ("measurement", "measurement"),
    "drug": ("drug_exposure", "drug"),
    "procedure": ("procedure_occurrence", "procedure"),
    "death": ("death", "death"),
    "observation": ("observation_period", "observation_period"),
    "person": ("person", "person"),
}
_WORDS = ("concept", "concept_relationship", "concept_ancestor")
_ENDINGS = (".parquet", ".csv", ".csv.gz", ".tsv", ".tsv.gz")
_SAME = {
    "BIGINT": ("bigint", "integer", "smallint"),
    "TIMESTAMP": ("timestamp", "timestamp without time zone"),
    "DOUBLE PRECISION": ("double", "double precision"),
}
_SEX = {8507: "male", 8532: "female", 8521: "other"}


@dataclass(frozen=True)
class Table:
    """Where one table is, and the type of each of its columns, all in small letters."""

    relation: str
    columns: Mapping[str, str]


def tables_of_folder(folder: Path, ask: Ask, *, lenient: bool) -> dict[str, Table]:
    """The CDM tables among a folder's files; ``lenient`` leaves out lines that cannot be read."""
    found = {}
    for name in (*(table for table, _ in _TABLES.values()), *_WORDS):
        for path in sorted(folder.iterdir()):
            if path.name.lower() in {name + ending for ending in _ENDINGS}:
                parquet = path.name.lower().endswith(".parquet")
                found[name] = _parquet(path, ask) if parquet else _csv(path, lenient)
    return found


def tables_listed(rows: Iterable[Sequence[object]], schemas: Sequence[str]) -> dict[str, Table]:
    """The CDM tables of a database, from (schema, table, column, type); of the first schema that has
    each."""
    places: dict[str, dict[str, dict[str, str]]] = {}
    known = {*(table for table, _ in _TABLES.values()), *_WORDS}
    for schema, table, column, kind in (map(str, row) for row in rows):
        if table.lower() in known and (not schemas or schema in schemas):
            relation = f"{quoted_name(schema)}.{quoted_name(table)}"
            named = places.setdefault(table.lower(), {}).setdefault(f"{schema}\0{relation}", {})
            named[column.lower()] = kind.lower()
    found = {}
    for table, several in places.items():
        order = {one: schemas.index(one.split("\0")[0]) if schemas else 0 for one in several}
        first = min(several, key=lambda one: order[one])
        found[table] = Table(first.split("\0")[1], several[first])
    return found


def _parquet(path: Path, ask: Ask) -> Table:
    relation = f"read_parquet({literal_path(path)})"
    try:
        rows = ask(f"DESCRIBE SELECT * FROM {relation}")
    except DataError:
        raise DataError(f"{path.name}: cannot be read as Parquet") from None
    return Table(relation, {str(row[0]).lower(): str(row[1]).lower() for row in rows})


def _csv(path: Path, lenient: bool) -> Table:
    """Columns are read as text, so that no cell can end the reading. Files of the vocabulary server
    Athena have tabs and quotes that quote nothing."""
    opening = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        with opening(path, "rt", encoding="utf-8-sig", errors="replace", newline="") as file:
            line = file.readline(1 << 20)
    except (OSError, EOFError) as error:
        raise DataError(f"{path.name}: cannot be read ({type(error).__name__})") from None
    mark = max("\t,;|", key=line.count)
    names = [name.strip().lower() for name in next(csv.reader([line], delimiter=mark), [])]
    if len(names) < 2:
        raise DataError(f"{path.name}: the first line must hold the columns' names")
    unique = [name if name and name not in names[:i] else f"c{i}" for i, name in enumerate(names)]
    quote = "''" if mark == "\t" else "'\"'"
    columns = ", ".join(f"{quoted(name)}: 'VARCHAR'" for name in unique)
    options = f"delim = {quoted(mark)}, quote = {quote}, escape = {quote}, columns = {{{columns}}}"
    if lenient:
        options += ", ignore_errors = true, strict_mode = false"
    relation = f"read_csv({literal_path(path)}, auto_detect = false, header = true, {options})"
    return Table(relation, dict.fromkeys(unique, "varchar"))


@dataclass(frozen=True)
class Omop:
    """The common data model behind one connection."""

    ask: Ask
    tables: Mapping[str, Table]
    postgres: bool = False
    _ids: dict[str, tuple[list[int], list[int], list[str]]] = field(default_factory=dict)

    # --- views --------------------------------------------------------------------------------------------------------

    def view(self, name: View) -> str:
        """The relation of a view."""
        table, prefix = _TABLES[name]
        found = self._table(
            table,
            f"the cohort file needs each {name} in it; if this site records none, give an empty table",
        )
        if name == "person":
            return self._person(found)
        person, kind = self._int(found, "person_id"), "exposure_" if name == "drug" else ""
        begin = "" if name in ("measurement", "procedure", "death") else "start_"
        start = self._when(found, f"{prefix}_{kind}{begin}")
        if name == "death":
            shown = f"{person} AS person, min({start}) AS start"
            return f"SELECT {shown} FROM {found.relation} GROUP BY 1"
        stop = self._when(found, f"{prefix}_{kind}end_")
        shown = f"{person} AS person, {start} AS start, {stop} AS stop"
        if name == "observation":
            return f"SELECT {shown} FROM {found.relation}"
        shown += f", {self._int(found, f'{prefix}_concept_id')} AS concept"
        shown += f", {self._int(found, f'{prefix}_source_concept_id')} AS source"
        if name == "measurement":
            value = self._cast(found, "value_as_number", "DOUBLE PRECISION")
            shown += f", {value} AS value, {self._int(found, 'value_as_concept_id')} AS result"
            shown += f", coalesce({self._int(found, 'unit_concept_id')}, 0) AS unit_id"
            text = "unit_source_value" if "unit_source_value" in found.columns else "''"
            shown += f", coalesce(trim({text}), '') AS unit_text"
        return f"SELECT {shown} FROM {found.relation}"

    def _person(self, table: Table) -> str:
        parts = []
        least = {
            "year": ("1800 AND 2200", "NULL"),
            "month": ("1 AND 12", "7"),
            "day": ("1 AND 31", "1"),
        }
        for part, (range_, otherwise) in least.items():
            told = self._int(table, f"{part}_of_birth")
            given = [f"CASE WHEN {told} BETWEEN {range_} THEN {told} END"]
            if "birth_datetime" in table.columns:
                born = in_use(self._cast(table, "birth_datetime", "TIMESTAMP"))
                given.append(f"CAST(extract({part} FROM {born}) AS BIGINT)")
            parts.append(f"coalesce({', '.join(given)}, {otherwise})")
        sex = " ".join(f"WHEN {key} THEN '{word}'" for key, word in _SEX.items())
        shown = f"min({parts[0]} * 10000 + {parts[1]} * 100 + {parts[2]}) AS born"
        shown += f", min(CASE {self._int(table, 'gender_concept_id')} {sex} END) AS sex"
        person = self._int(table, "person_id")
        where = f"WHERE {person} IS NOT NULL GROUP BY 1"
        return f"SELECT {person} AS person, {shown} FROM {table.relation} {where}"

    def _table(self, name: str, why: str) -> Table:
        if name not in self.tables:
            raise DataError(f"the OMOP table {name} is not here, and {why}")
        return self.tables[name]

    def _cast(self, table: Table, column: str, kind: str) -> str:
        """A column in a type, as it is where it has it: only so can a scan skip what does not fit."""
        if table.columns.get(column) in _SAME[kind]:
            return column
        column = column if column in table.columns else "NULL"
        return f"{'CAST' if self.postgres else 'TRY_CAST'}({column} AS {kind})"

    def _int(self, table: Table, column: str) -> str:
        return self._cast(table, column, "BIGINT")

    def _when(self, table: Table, prefix: str) -> str:
        """The time, where the table has one, else the day at its beginning."""
        given = [name for end in ("datetime", "date") if (name := prefix + end) in table.columns]
        casts = [self._cast(table, name, "TIMESTAMP") for name in given] or [
            "CAST(NULL AS TIMESTAMP)"
        ]
        times = [in_use(cast) for cast in casts]
        return times[0] if len(times) == 1 else f"coalesce({', '.join(times)})"

    # --- concepts -----------------------------------------------------------------------------------------------------

    def match(self, sets: Sequence[Concepts], column: Literal["code", "value"] = "code") -> str:
        """Whether an event, or its coded value, is of one of the concept sets."""
        if any(one.every for one in sets):
            return "true"
        looked_up = [self._looked_up(one) for one in sets]
        standard = sorted({number for one in looked_up for number in one[0]})
        sources = sorted({number for one in looked_up for number in one[1]})
        name = "e.concept" if column == "code" else "e.result"
        rules = [_among(name, standard)] if standard else []
        rules += [_among("e.source", sources)] if sources and column == "code" else []
        return f"({' OR '.join(rules)})" if rules else "false"

    def absent(self, concepts: Concepts) -> list[str]:
        """Codes that this vocabulary does not have, and descendants that cannot be looked up."""
        return [] if concepts.every else self._looked_up(concepts)[2]

    def _looked_up(self, concepts: Concepts) -> tuple[list[int], list[int], list[str]]:
        """Concepts that events can have, those that only their source can, and what is missing."""
        key = concepts.model_dump_json()
        if key not in self._ids:
            self._ids[key] = self._look_up(concepts)
        return self._ids[key]

    def _look_up(self, concepts: Concepts) -> tuple[list[int], list[int], list[str]]:
        found, sources, words = set(concepts.omop), set[int](), list[str]()
        codes = {name: one for name, one in concepts.codes.items() if name != "ActCode"}
        if codes:
            table = self._table("concept", "codes are looked up in it (or give omop = [ids])")
        for vocabulary, several in codes.items():
            listed = ", ".join(map(self.text, several))
            rows = self.ask(
                f"SELECT DISTINCT {self._int(table, 'concept_id')}, concept_code, "
                f"coalesce(standard_concept, '') FROM {table.relation} WHERE lower(vocabulary_id) = "
                f"{self.text(vocabulary.lower())} AND concept_code IN ({listed})"
            )
            known = {str(row[1]) for row in rows}
            words += [
                f"{vocabulary} {code} is not in this site's concept table"
                for code in several
                if code not in known
            ]
            found |= {int(str(row[0])) for row in rows}
            sources |= {int(str(row[0])) for row in rows if row[2] != "S"}
        if sources and "concept_relationship" in self.tables:
            found |= self._related(
                "concept_relationship", "concept_id_1", "concept_id_2", sources,
                " AND relationship_id = 'Maps to'",
            )  # fmt: skip
        if concepts.descendants and "concept_ancestor" not in self.tables:
            words.append(f"there is no concept_ancestor table for descendants of {concepts.words}")
        elif concepts.descendants and found:
            of, to = "ancestor_concept_id", "descendant_concept_id"
            found |= self._related("concept_ancestor", of, to, found)
        return sorted(found), sorted(sources), words

    def _related(
        self, table: str, of: str, to: str, ids: Iterable[int], rule: str = ""
    ) -> set[int]:
        found = self.tables[table]
        given, kind = _among(self._int(found, of), sorted(ids)), self._int(found, to)
        rows = self.ask(f"SELECT DISTINCT {kind} FROM {found.relation} WHERE {given}{rule}")
        return {int(str(row[0])) for row in rows if row[0] is not None}

    def unit_name(self, unit_id: int) -> str:
        """The UCUM code of a unit's concept."""
        return self._units.get(unit_id, "")

    @cached_property
    def _units(self) -> dict[int, str]:
        if "concept" not in self.tables:
            return {}
        rows = self.ask(
            f"SELECT {self._int(self.tables['concept'], 'concept_id')}, concept_code FROM "
            f"{self.tables['concept'].relation} WHERE lower(vocabulary_id) = 'ucum'"
        )
        return {int(str(row[0])): str(row[1]) for row in rows if row[0] is not None}

    def text(self, value: str) -> str:
        """An SQL string."""
        return escaped(value) if self.postgres else quoted(value)

    def faults(self) -> list[str]:
        """Persons who cannot be told apart or have no age."""
        person = self._table("person", "the patients are in it")
        born, key = self._int(person, "year_of_birth"), self._int(person, "person_id")
        rows, named, people, aged = map(int, map(str, self.ask(
            f"SELECT count(*), count({key}), count(DISTINCT {key}), count({born}) FROM "
            f"{person.relation}"
        )[0]))  # fmt: skip
        told = {
            "rows of person have no whole number as person_id; nobody is in them": rows - named,
            "rows of person repeat a person_id; each person counts once": named - people,
            "rows of person have no year_of_birth; no age is known": rows - aged,
        }
        return [f"{n:,} {words}" for words, n in told.items() if n]


def _among(column: str, ids: Sequence[int]) -> str:
    listed = ", ".join(map(str, ids))
    return f"{column} = {listed}" if len(ids) == 1 else f"{column} IN ({listed})"


def is_folder_of(folder: Path) -> bool:
    """Whether a folder holds a person table."""
    return any(
        re.fullmatch(r"person\.(parquet|csv|tsv)(\.gz)?", p.name.lower()) for p in folder.iterdir()
    )
