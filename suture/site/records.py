"""From a cohort file to one SQL query, for DuckDB and PostgreSQL alike.

A `Records` (OMOP: `omop`, FHIR: `fhir`) supplies the same few views, whatever its tables are:

| view                                  | columns                                                          |
|---------------------------------------|------------------------------------------------------------------|
| person                                | person, born (20240131), sex                                     |
| visit, condition, drug, procedure     | person, start, stop                                              |
| measurement                           | person, start, stop, value, unit_id, unit_text                   |
| death; observation                    | person, start; person, start, stop                               |

and a predicate that says whether an event is of a concept set. Everything else is here, once.

A value is converted to the column's unit, row by row, and kept as a whole number of millionths. So
sums are exact, "first" and "last" have no ties that matter, and the result is the same to the last
bit whatever the engine, its threads and the order of the rows. No row can make a query fail: what
cannot be read is NULL. Which rows and values a person has depends on that person's records alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from suture.schema.clinical import convert, recognise
from suture.site.features import (
    PATIENT,
    VALUES,
    Bound,
    Column,
    Concepts,
    Domain,
    Event,
    Features,
    Observed,
    Window,
)
from suture.site.sql import quoted_name

View = Literal[Domain, "person", "observation"]
Ask = Callable[[str], list[tuple[object, ...]]]
"""Asks a database, and gives its rows."""
INDEX = "the index"
_MOST = 9e12  # beyond it a number of millionths does not fit 64 bits
_WHOLE, _HALF, _LOW = (f"{n}::HUGEINT" for n in (2**64, 2**63, 2**64 - 1))


class Records(Protocol):
    """What a source of clinical records supplies."""

    @property
    def ask(self) -> Ask:
        """Asks where the records are."""

    @property
    def postgres(self) -> bool:
        """Whether PostgreSQL answers; else DuckDB does."""

    def view(self, name: View) -> str:
        """The relation of a view; an error where its table is not there."""

    def match(self, sets: Sequence[Concepts], column: Literal["code", "value"] = "code") -> str:
        """Whether an event ``e``, or its coded value, is of one of the concept sets."""

    def unit_name(self, unit_id: int) -> str:
        """The UCUM code of a unit's concept; empty where it is not known."""

    def text(self, value: str) -> str:
        """An SQL string."""

    def absent(self, concepts: Concepts) -> list[str]:
        """What of a concept set cannot be looked up here, in words."""

    def faults(self) -> list[str]:
        """What is wrong with the records as such, counted, in words; for the site only."""


class Found(NamedTuple):
    """What is found in the records of a column; ``about`` is a finding of ``check.toml``."""

    about: str
    column: str
    problem: str


@dataclass(frozen=True)
class Unit:
    """A unit in which events of a column are recorded: how often, and its factor and offset."""

    unit_id: int
    text: str
    events: int
    name: str
    change: tuple[float, float] | None


@dataclass
class Query:
    """The query of a cohort file at one source, for some of its columns."""

    records: Records
    asked: Features
    assumed: Mapping[str, str] = field(default_factory=dict)
    """The unit, by column, of events that state none; by default the column's."""
    units: dict[str, list[Unit]] = field(default_factory=dict)
    """The units that events of a column are in, once they are looked up."""

    def sql(self, wanted: Sequence[str]) -> str:
        """The query whose rows are the cohort's, with the patient and the wanted columns."""
        columns = {name: self.asked.columns[name] for name in wanted if name != PATIENT}
        person = f"person AS ({self.records.view('person')})"
        self._look_up_units(columns)
        parts = [person, self._index()]
        shown, joins = {PATIENT: "i.person"}, ""
        by_domain: dict[Domain, dict[str, Column]] = {}
        for name, column in columns.items():
            if column.domain is None:
                shown[name] = f"i.{column.person}"
            else:
                by_domain.setdefault(column.domain, {})[name] = column
        for domain, some in by_domain.items():
            parts.append(f"of_{domain} AS ({self._taken(domain, some)})")
            joins += f" LEFT JOIN of_{domain} ON of_{domain}.row = i.row"
            for name, column in some.items():
                shown[name] = _whole(column, f"of_{domain}.{quoted_name(name)}")
        listed = ", ".join(f"{shown[name]} AS {quoted_name(name)}" for name in (PATIENT, *columns))
        return f"WITH {', '.join(parts)} SELECT {listed} FROM ix i{joins}"

    # --- the cohort -----------------------------------------------------------------------------------------------

    def _index(self) -> str:
        """The index events that count, with the person's age and sex, numbered."""
        cohort, records = self.asked.cohort, self.records
        domain: Domain = cohort.domain or "visit"
        day = "(extract(year FROM e.start) * 10000 + extract(month FROM e.start) * 100"
        day = f"{day} + extract(day FROM e.start))"
        age = f"CAST(floor(CAST({day} - p.born AS DOUBLE PRECISION) / 10000) AS BIGINT)"
        rules = [records.match([cohort.concepts]), "e.start IS NOT NULL"]
        rules += self._value_rules(INDEX, cohort)
        if cohort.age is not None:
            rules.append(f"{age} BETWEEN {cohort.age[0]} AND {cohort.age[1]}")
        dead, start = "", "CAST(e.start AS DATE)"
        if self.asked.deadly:
            dead = f"SELECT 1 FROM ({records.view('death')}) d WHERE d.person = e.person"
            rules.append(f"NOT EXISTS ({dead} AND CAST(d.start AS DATE) < {start})")
        if cohort.observed is not None:
            rules.append(self._observed(start, cohort.observed, dead))
        order = "DESC" if cohort.which == "last" else "ASC"
        stop = "greatest(coalesce(e.stop, e.start), e.start)"
        found = f"e.person, e.start, {stop} AS stop, {age} AS age, p.sex"
        source = f"({records.view(domain)}) e JOIN person p ON p.person = e.person"
        rows = f"SELECT DISTINCT {found} FROM {source} WHERE {' AND '.join(rules)}"
        if cohort.which != "every" and not records.postgres:
            end = "max" if cohort.which == "last" else "min"  # of the age too: it grows with time
            kept = f"arg_{end}({stop}, {_key(f'epoch_us({stop})')}) AS stop"
            found = f"e.person, {end}(e.start) AS start, {kept}, {end}({age}) AS age"
            rows = f"SELECT {found}, min(p.sex) AS sex FROM {source} WHERE {' AND '.join(rules)} GROUP BY e.person"
        elif cohort.which != "every":
            rows = rows.replace("DISTINCT", "DISTINCT ON (e.person)", 1)
            rows += f" ORDER BY e.person, e.start {order}, {stop} {order}"
        return f"ix AS MATERIALIZED (SELECT *, row_number() OVER () AS row FROM ({rows}) c)"

    def _observed(self, start: str, observed: Observed, dead: str) -> str:
        """Under observation around the index; whoever dies within it was followed to the end."""
        last = f"{start} + {observed.after}"
        until = f"CAST(o.stop AS DATE) >= {last}"
        if self.asked.deadly:
            until = f"({until} OR EXISTS ({dead} AND CAST(d.start AS DATE) <= {last}))"
        return (
            f"EXISTS (SELECT 1 FROM ({self.records.view('observation')}) o WHERE o.person = e.person "
            f"AND CAST(o.start AS DATE) <= {start} - {observed.before} AND {until})"
        )

    # --- the columns ----------------------------------------------------------------------------------------------

    def _taken(self, domain: Domain, columns: Mapping[str, Column]) -> str:
        """One pass over the events of a domain, with one value for each column and index event."""
        sets = {self.records.match([one.concepts]) for one in columns.values()}
        windows = [one.window for one in columns.values()]
        # a death may have no day, so none is left out beforehand
        widest = next((w for w in windows if all(_within(one, w) for one in windows)), None)
        widest = None if domain == "death" else widest
        either = self.records.match([one.concepts for one in columns.values()])
        rules = [] if either == "true" else [either]
        rules += _inside(widest) if widest else []
        taken = []
        for name, column in columns.items():
            where = [self.records.match([column.concepts])] if len(sets) > 1 else []
            where += [] if column.window == widest else _inside(column.window)
            where += self._value_rules(name, column)
            taken.append(f"{self._take(name, column, ' AND '.join(where))} AS {quoted_name(name)}")
        only = f" WHERE {' AND '.join(rules)}" if rules else ""
        source = f"ix i JOIN ({self.records.view(domain)}) e ON e.person = i.person"
        return f"SELECT i.row, {', '.join(taken)} FROM {source}{only} GROUP BY i.row"

    def _take(self, name: str, column: Column, where: str) -> str:
        only = f" FILTER (WHERE {where})" if where else ""
        if column.death and column.taken != "days":  # a death without a day may be in any window
            return f"max(CASE WHEN {where or 'true'} THEN 1 WHEN e.start IS NULL THEN 2 ELSE 0 END)"
        if column.taken == "count":
            return f"count(*){only}"
        if column.taken == "any":
            return f"max(1){only}"
        if column.taken == "days":
            return f"min(CAST(e.start AS DATE)){only} - min(CAST(i.start AS DATE))"
        return self._number(column.taken, _millionths(self._value(name, column)), where)

    def _number(self, taken: str, value: str, where: str) -> str:
        only = f" FILTER (WHERE {where})" if where else ""
        if taken == "mean":
            count = f"nullif(count({value}){only}, 0)"
            return f"CAST(sum({value}){only} AS DOUBLE PRECISION) / ({count} * 1000000)"
        if taken in ("min", "max"):
            return f"CAST({taken}({value}){only} AS DOUBLE PRECISION) / 1000000"
        if self.records.postgres:
            where = " AND ".join(filter(None, (where, f"{value} IS NOT NULL")))
            only = f" FILTER (WHERE {where})"
            way = "ASC" if taken == "first" else "DESC"
            found = f"(array_agg({value} ORDER BY e.start {way}, {value} {way}){only})[1]"
        else:  # by time, then by value: one key of 128 bits is compared quickest
            key = f"{'min' if taken == 'first' else 'max'}({_key(value)}){only}"
            found = f"CAST(({key} & {_LOW}) - {_HALF} AS BIGINT)"
        return f"CAST({found} AS DOUBLE PRECISION) / 1000000"

    # --- values and units -----------------------------------------------------------------------------------------

    def _value_rules(self, name: str, event: Event) -> list[str]:
        rules = [] if event.value is None else [self.records.match([event.value], "value")]
        for sign, bound in ((">", event.above), ("<", event.below)):
            if bound is not None:
                limit = f"CAST({round(bound * 1e6)} AS BIGINT)"
                rules.append(f"{_millionths(self._value(name, event))} {sign} {limit}")
        return rules

    def _value(self, name: str, event: Event) -> str:
        """The number of an event, in the column's unit; NULL where its unit is not converted."""
        changes: dict[tuple[float, float] | None, dict[str, None]] = {}
        of: dict[int, set[tuple[float, float] | None]] = {}
        for unit in self.units.get(name, ()):
            of.setdefault(unit.unit_id, set()).add(unit.change)
        for unit in self.units.get(name, ()):
            here = f"e.unit_id = {unit.unit_id}"
            if len(of[unit.unit_id]) > 1 or not unit.unit_id:  # the concept alone does not say it
                here += f" AND e.unit_text = {self.records.text(unit.text)}"
            changes.setdefault(unit.change, {})[here] = None
        if set(changes) <= {(1.0, 0.0)}:
            return "e.value"
        cases = ""
        for change, where in changes.items():
            if change is not None:
                factor, offset = (f"CAST({one!r} AS DOUBLE PRECISION)" for one in change)
                value = (
                    f"CASE WHEN abs(e.value) < {_MOST:.0f} THEN e.value * {factor} + {offset} END"
                )
                value = "e.value" if change == (1.0, 0.0) else value
                cases += f" WHEN {' OR '.join(where)} THEN {value}"
        return f"(CASE{cases} END)" if cases else "CAST(NULL AS DOUBLE PRECISION)"

    def _look_up_units(self, columns: Mapping[str, Column]) -> None:
        """Which units the events of these columns, and of the index, are in: a pass of its own."""
        events: dict[str, Event] = {
            name: one for name, one in columns.items()
            if one.domain == "measurement" and (one.taken in VALUES or one.numeric)
        }  # fmt: skip
        if self.asked.cohort.numeric:
            events[INDEX] = self.asked.cohort
        events = {n: one for n, one in events.items() if one.target and n not in self.units}
        if not events:
            return
        match = {name: self.records.match([one.concepts]) for name, one in events.items()}
        counts = ", ".join(f"count(*) FILTER (WHERE {rule})" for rule in match.values())
        either = self.records.match([one.concepts for one in events.values()])
        found = self.records.ask(
            f"SELECT e.unit_id, e.unit_text, {counts} FROM ({self.records.view('measurement')}) e "
            f"WHERE ({either}) AND e.value IS NOT NULL GROUP BY e.unit_id, e.unit_text"
        )
        for at, (name, event) in enumerate(events.items()):
            of = [(row[0], row[1], row[2 + at]) for row in found if row[2 + at]]
            self.units[name] = [self._unit(name, event, *one) for one in of]

    def _unit(self, name: str, event: Event, unit_id: object, text: object, n: object) -> Unit:
        number, written = int(str(unit_id)), str(text)
        code = (self.records.unit_name(number) if number else "") or written
        code = code or (f"OMOP {number}" if number else "")
        meant = code or self.assumed.get(name, event.target)
        change = convert(meant, event.target, event.measure or recognise(name))
        return Unit(number, written, int(str(n)), code, change)

    # --- what is not there, for the site ------------------------------------------------------------------------------

    def findings(self, wanted: Sequence[str]) -> list[Found]:
        """Concepts and units that a column has none of here, and faults of the records; all counted
        from rows, so for the site alone."""
        columns: dict[str, Event] = {INDEX: self.asked.cohort}
        columns |= {name: self.asked.columns[name] for name in wanted if name != PATIENT}
        self._look_up_units({n: c for n, c in columns.items() if isinstance(c, Column)})
        found = []
        for name, event in columns.items():
            sets = [event.concepts, *([event.value] if event.value else [])]
            words = [text for one in sets for text in self.records.absent(one)]
            found += [Found("record-concept", name, text) for text in words]
            found += self._unit_words(name, event)
        for domain in dict.fromkeys(event.domain for event in columns.values()):
            if domain is not None and domain != "death":
                some = {n: one for n, one in columns.items() if one.domain == domain}
                found += self._none_of(domain, some)
        return [*found, *(Found("record-fault", "", words) for words in self.records.faults())]

    def _none_of(self, domain: Domain, some: Mapping[str, Event]) -> list[Found]:
        rules = [self.records.match([one.concepts]) for one in some.values()]
        counts = ", ".join(f"count(*) FILTER (WHERE {rule})" for rule in rules)
        row = self.records.ask(f"SELECT {counts} FROM ({self.records.view(domain)}) e")[0]
        none = [name for name, n in zip(some, row, strict=True) if not n]
        words = {name: f"no {domain} of {some[name].concepts.words} is here" for name in none}
        return [Found("record-concept", name, text) for name, text in words.items()]

    def _unit_words(self, name: str, event: Event) -> list[Found]:
        units, found = self.units.get(name, ()), []
        every = sum(one.events for one in units)
        for unit in units:
            if unit.change is None:
                stated = f"are in {unit.name!r}" if unit.name else "state no unit"
                found.append(Found("record-unit", name, f"{unit.events:,} of {every:,} values {stated}, "
                                   f"not converted to {event.target!r}; they count as missing"))  # fmt: skip
        silent = sum(one.events for one in units if not one.name and one.change is not None)
        if silent and name not in self.assumed:
            text = f"{silent:,} of {every:,} values state no unit; taken to be in {event.target!r}"
            found.append(Found("record-silent", name, text))
        return found


def in_use(time: str) -> str:
    """A time of these centuries, else NULL: no window around it can leave the calendar."""
    years = "TIMESTAMP '1800-01-01' AND TIMESTAMP '2200-01-01'"
    return f"CASE WHEN {time} BETWEEN {years} THEN {time} END"


def _whole(column: Column, found: str) -> str:
    """What a column shows where no event was found, too."""
    if column.death and column.taken != "days":
        return f"CASE {found} WHEN 2 THEN NULL WHEN 1 THEN 1 ELSE 0 END"
    return f"coalesce({found}, 0)" if column.taken in ("count", "any") else found


def _within(inner: Window, outer: Window) -> bool:
    """Whether one window lies in another; ends that cannot be compared do not."""
    for one, other, sign in ((inner.low, outer.low, 1), (inner.high, outer.high, -1)):
        if other is not None and (
            one is None
            or (one.anchor, one.unit) != (other.anchor, other.unit)
            or sign * one.amount < sign * other.amount
        ):
            return False
    return True


def _inside(window: Window) -> list[str]:
    """Whether an event is in the window of an index event. The calendar's days, unless hours are
    said."""
    rules = []
    for bound, sign in ((window.low, ">="), (window.high, "<=")):
        if bound is not None:
            rules.append(_beside(bound, sign))
    return rules


def _beside(bound: Bound, sign: str) -> str:
    anchor = "i.start" if bound.anchor == "start" else "i.stop"
    if bound.unit == "h":
        return f"e.start {sign} {anchor} + INTERVAL '{bound.amount} hours'"
    later = bound.amount + (sign == "<=")  # up to a day: before the next one begins
    return f"e.start {sign[:1] if sign == '<=' else sign} CAST(CAST({anchor} AS DATE) + ({later}) AS TIMESTAMP)"


def _key(value: str) -> str:
    """DuckDB: the time of an event and a whole number, as one number in their order."""
    return f"(epoch_us(e.start)::HUGEINT * {_WHOLE} + ({value} + {_HALF}))"


def _millionths(value: str) -> str:
    """A number to six decimals, as a whole number; floor, because engines round halves apart."""
    whole = f"CAST(floor({value} * 1000000 + 0.5) AS BIGINT)"
    return f"(CASE WHEN abs({value}) < {_MOST:.0f} THEN {whole} END)"
