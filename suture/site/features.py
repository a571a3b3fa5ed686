"""The cohort language: what ``features.toml`` may say, the same for OMOP and FHIR.

A file says whose rows there are (`Cohort`: an index event, ages, observation), and what each column
holds: a `Column` is an event (visit, condition, measurement, drug, procedure, death) of a concept
set, in a window around the index, taken as one value; or the person's age or sex. Everything is
declared, nothing is SQL: an ethics board can read it, and every literal is checked here before it
can reach a database.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from suture.errors import StudyError
from suture.schema import clinical
from suture.schema.table import explain

PATIENT = "person_id"
"""The column that names the patient: OMOP's person_id, or FHIR's Patient.id."""

Domain = Literal["visit", "condition", "measurement", "drug", "procedure", "death"]
CODED: tuple[Domain, ...] = ("visit", "condition", "measurement", "drug", "procedure")
Take = Literal["first", "last", "min", "max", "mean", "count", "any", "days"]
VALUES = ("first", "last", "min", "max", "mean")
"""What is taken of an event's number; a count, yes or no and days need none."""

# PostgreSQL cuts names after 63 bytes; letters, digits and _ need no quoting anywhere.
Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,59}$")]
# No quote, backslash or space: a code is safe in any SQL string.
Code = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/^+-]{0,59}$")]
Vocabulary = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._:/-]{0,199}$")]

VISITS: Mapping[str, Mapping[str, tuple[int | str, ...]]] = {
    "inpatient": {"omop": (9201, 262), "ActCode": ("IMP", "ACUTE", "NONAC")},
    "emergency": {"omop": (9203, 262), "ActCode": ("EMER",)},
    "outpatient": {"omop": (9202,), "ActCode": ("AMB",)},
}
"""Kinds of visits by name: OMOP's standard concepts, and HL7's codes of Encounter.class."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Concepts(_Frozen):
    """A concept set: codes by vocabulary, OMOP concept ids, and whether their descendants count.

    >>> Concepts.model_validate({"LOINC": ["8480-6"], "omop": [3004249]}).words
    'LOINC 8480-6, OMOP 3004249'
    """

    codes: dict[Vocabulary, tuple[Code, ...]] = Field(default_factory=dict)
    omop: tuple[Annotated[int, Field(ge=1, lt=2**31)], ...] = ()
    descendants: bool = False

    @model_validator(mode="before")
    @classmethod
    def _by_vocabulary(cls, value: object) -> object:
        if isinstance(value, str) or (isinstance(value, list | tuple) and value):
            words = [value] if isinstance(value, str) else list(value)
            strange = [word for word in words if word != "any" and word not in VISITS]
            if strange:
                raise ValueError(
                    f"expected {', '.join(VISITS)}, any, the name of a set under [concepts], or "
                    f'codes such as {{ SNOMED = ["38341003"] }}, found {strange[0]!r}'
                )
            if "any" in words:
                return {}
            kinds = [VISITS[word] for word in words]
            merged = {key: [one for kind in kinds for one in kind[key]] for key in kinds[0]}
            return {
                "omop": tuple(dict.fromkeys(merged["omop"])),
                "codes": {"ActCode": merged["ActCode"]},
            }
        if isinstance(value, Mapping) and "codes" not in value:
            own = {key: value[key] for key in ("omop", "descendants") if key in value}
            return {**own, "codes": {k: v for k, v in value.items() if k not in own}}
        return value

    @property
    def every(self) -> bool:
        """Whether the set names no concept, which means every event of its kind."""
        return not self.codes and not self.omop

    @property
    def words(self) -> str:
        """The set for people."""
        parts = [f"{vocabulary} {code}" for vocabulary, one in self.codes.items() for code in one]
        return ", ".join([*parts, *(f"OMOP {one}" for one in self.omop)]) or "every event"


class Bound(_Frozen):
    """One end of a window: days or hours from the start or the end of the index event."""

    anchor: Literal["start", "end"]
    amount: int = Field(ge=-40_000, le=40_000)
    unit: Literal["d", "h"]


class Window(_Frozen):
    """When an event counts, both ends included; None: no limit. Days are those of the calendar."""

    low: Bound | None = None
    high: Bound | None = None

    @model_validator(mode="before")
    @classmethod
    def _pair(cls, value: object) -> object:
        """
        >>> Window.model_validate(["-365d", "end+30d"]).high
        Bound(anchor='end', amount=30, unit='d')
        """
        if not isinstance(value, list | tuple):
            return value
        if len(value) != 2:
            raise ValueError('a window has two ends, for example ["-365d", "0d"]')
        return dict(zip(("low", "high"), map(_bound, value), strict=True))


def _bound(text: object) -> dict[str, object] | None:
    if text == "ever":
        return None
    found = re.fullmatch(r"(start|end)?(?:([+-]?\d{1,5})([dh]))?", str(text))
    if found is None or not text:
        raise ValueError(
            'an end of a window is "ever", "-30d", "24h", "start", "end" or "end+30d", found '
            f"{text!r}"
        )
    anchor, amount, unit = found.groups()
    return {"anchor": anchor or "start", "amount": int(amount or 0), "unit": unit or "d"}


class Event(_Frozen):
    """Events of one kind: exactly one of the domains, and what their value must be."""

    visit: Concepts | None = None
    condition: Concepts | None = None
    measurement: Concepts | None = None
    drug: Concepts | None = None
    procedure: Concepts | None = None
    death: bool = False
    value: Concepts | None = None
    """Of a measurement: the coded results that count."""
    above: float | None = Field(None, allow_inf_nan=False)
    below: float | None = Field(None, allow_inf_nan=False)
    unit: str = Field("", max_length=40)
    """Of a measurement: the unit of its number, of ``above`` and of ``below``."""

    @property
    def domain(self) -> Domain | None:
        """Which kind of event; None: none is named."""
        given = [*self._sets, *(["death"] if self.death else [])]
        known: tuple[Domain, ...] = (*CODED, "death")
        return next((name for name in known if [name] == given), None)

    @property
    def concepts(self) -> Concepts:
        """The concept set of the event."""
        return next(iter(self._sets.values()), Concepts())

    @property
    def _sets(self) -> dict[str, Concepts]:
        return {name: one for name, one in self if name in CODED and isinstance(one, Concepts)}

    @property
    def measure(self) -> clinical.Measure | None:
        """The one measure of the clinical dictionary that the LOINC codes name."""
        known = [clinical.by_loinc(code) for code in self.concepts.codes.get("LOINC", ())]
        names = {one.name: one for one in known if one is not None}
        return next(iter(names.values())) if len(names) == 1 and None not in known else None

    @property
    def target(self) -> str:
        """The unit of the column: as declared, else the dictionary's for the measure."""
        return self.unit or (self.measure.unit if self.measure else "")

    @property
    def numeric(self) -> bool:
        """Whether a number decides whether the event counts."""
        return self.above is not None or self.below is not None

    def _checked(self) -> None:
        if self.domain is None:
            raise ValueError(
                f"name one kind of event ({', '.join(CODED)} or death = true), for example "
                'measurement = { LOINC = ["2160-0"] }'
            )
        if self.domain != "measurement" and (self.numeric or self.unit or self.value):
            raise ValueError("unit, value, above and below go with a measurement")
        if self.unit and not clinical.is_unit(self.unit):
            raise ValueError(f"unit {self.unit!r} is not known; write it in UCUM, such as mg/dL")
        if self.numeric and not self.target:
            raise ValueError('above and below need a unit, such as unit = "mg/dL"')


class Column(Event):
    """One column: what is taken of the events in a window; or the person's age or sex."""

    person: Literal["age", "sex"] | None = None
    window: Window = Window(high=Bound(anchor="start", amount=0, unit="d"))
    """By default everything up to and including the day of the index."""
    take: Take | None = None
    label: str = ""

    @model_validator(mode="after")
    def _one_meaning(self) -> Column:
        if self.person is not None:
            if self.model_fields_set - {"person", "label"}:
                raise ValueError(f'person = "{self.person}" stands alone')
            return self
        self._checked()
        if self.taken in VALUES and self.domain != "measurement":
            raise ValueError(f'a {self.domain} has no number; take is "any", "count" or "days"')
        if self.death and self.taken == "count":
            raise ValueError('a death is taken as "any" or "days"')
        if self.taken in VALUES and not self.target:
            raise ValueError(
                "a unit is needed, because the clinical dictionary does not know these codes: unit "
                '= "mg/dL", or unit = "1" for a plain number'
            )
        return self

    @property
    def taken(self) -> Take:
        """What is taken: by default the last number of a measurement, else yes or no."""
        return self.take or ("last" if self.domain == "measurement" else "any")


class Observed(_Frozen):
    """Days around the index over which a person must be under observation."""

    before: int = Field(0, ge=0, le=40_000)
    after: int = Field(0, ge=0, le=40_000)


class Cohort(Event):
    """Whose rows there are: one for each index event that counts."""

    which: Literal["first", "last", "every"] = "first"
    age: tuple[int, int] | None = None
    observed: Observed | None = None

    @model_validator(mode="after")
    def _one_event(self) -> Cohort:
        self._checked()
        if self.domain == "death":
            raise ValueError("death cannot be the index event: nothing happens after it")
        return self


class Features(_Frozen):
    """A whole ``features.toml``."""

    cohort: Cohort
    features: dict[Name, Column] = Field(min_length=1)
    outcome: dict[Name, Column] = Field(default_factory=dict)
    """Columns that a study may predict."""

    @model_validator(mode="after")
    def _names(self) -> Features:
        folded = [name.lower() for name in (PATIENT, *self.features, *self.outcome)]
        twice = sorted({name for name in folded if folded.count(name) > 1})
        if twice:
            raise ValueError(f"column {twice[0]!r} is there twice (letter case apart); rename one")
        return self

    @property
    def columns(self) -> dict[str, Column]:
        """Every column but the patient's."""
        return {**self.features, **self.outcome}

    @property
    def deadly(self) -> bool:
        """Whether deaths are looked at, so that nothing may be counted after one."""
        return any(column.death for column in self.columns.values())

    @classmethod
    def parse(cls, text: str, where: str) -> Features:
        """Read a file's text, with the sets of ``[concepts]`` put where they are named."""
        try:
            tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise StudyError(f"{where}: not valid TOML: {error}") from None
        sets = tables.pop("concepts", {})
        try:
            return cls.model_validate(_filled(tables, sets if isinstance(sets, dict) else {}))
        except ValidationError as error:
            raise StudyError(explain(error, where)) from None


def read_features(path: Path) -> Features:
    """Read ``features.toml``."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError):
        raise StudyError(f"{path}: expected a cohort file there, and it cannot be read") from None
    return Features.parse(text, path.name)


def _filled(tables: dict[str, Any], sets: dict[str, Any]) -> dict[str, Any]:
    """The tables with each named concept set in place of its name."""
    found: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, dict):
            found[key] = _filled(value, sets)
        elif key in (*CODED, "value") and isinstance(value, str) and value in sets:
            found[key] = sets[value]
        else:
            found[key] = value
    return found
