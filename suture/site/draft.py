"""A study drafted from one table, at the site: what ``suture init --from`` writes.

Which columns there are, of what kind, what marks a missing value, and for a recognised measure the
bounds, unit and thresholds of the public clinical dictionary. What only a person can say is left
out, so that the draft does not run until it is said: bounds of other numbers, which text of the
outcome counts as 1, how many patients train.

**The draft may leave the site; what is noted beside it may not.** A draft holds column names,
kinds, marks for "missing" from the public list in ``draft.toml``, and those values of a category
that at least `LEAST` patients have. No number in it comes from rows, unless a person asks for that,
and then it says so. Counts, and what they suggest, are `Draft.notes`: for whoever runs the command.
"""

from __future__ import annotations

import codecs
import csv
import fnmatch
import gzip
import math
import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from suture.errors import DataError, RunError, StudyError
from suture.schema import clinical
from suture.schema.table import Category, Feature, Flag, Number, explain
from suture.site.features import PATIENT, Column, read_features
from suture.site.omop import is_folder_of
from suture.site.preprocess import BINARY, sql_text, whole
from suture.site.sources import SourceSpec, open_table
from suture.site.sql import quoted
from suture.study import Study, toml_key, toml_value

WORDS: dict[str, Any] = tomllib.loads(
    files("suture.site").joinpath("draft.toml").read_text(encoding="utf-8")
)
LEAST: int = WORDS["least"]
MOST: int = WORDS["most"]
COLUMNS = 2_000  # the most columns that are drafted from
DISTINCT = 20_000  # the most different cells of a column that are looked at
_SHAPES = {name: re.compile(shape) for name, shape in WORDS["shapes"].items()}
_MARKS = frozenset(WORDS["missing"])
_CODES = frozenset(map(float, WORDS["codes"]))
Cells = dict[str, int]  # the different cells of a column, and how often they are there


@dataclass(frozen=True)
class Asked:
    """What the person who drafts has said."""

    outcome: str | None = None
    positive: str | None = None
    patient: str | None = None
    leave_out: tuple[str, ...] = ()
    """Names or patterns (``TIME*``) of columns that are no features."""
    bounds_from_rows: bool = False
    deal: int = 0
    """Hospitals of a simulation, to which patients are dealt out."""
    sites_by: str | None = None
    """The column whose values are the hospitals of a simulation."""


@dataclass
class Draft:
    """A study in the making. A feature that is None is a number whose bounds a person must state."""

    spec: SourceSpec
    asked: Asked
    patient: str | None = None
    outcome: str = ""
    positive: str | None = None
    features: dict[str, Feature | None] = field(default_factory=dict)
    remarks: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    gaps: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    sites: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Hospitals of a simulation, each with its part of the table."""

    def write(self, folder: Path, method: str) -> Path:
        """Write the study file, whole or not at all."""
        path, text = folder / "study.toml", self.text(folder, method)
        if not self.gaps:
            Study.from_text(text)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise RunError(f"{path} exists already; choose another folder") from None
        return path

    def text(self, folder: Path, method: str) -> str:
        """The study file, with paths as seen from its folder."""
        seen = "" if not self.asked.bounds_from_rows else WORDS["head"]["seen"]
        records = self.spec.features is not None
        table = _line(Path(self.spec.features or self.spec.describe()).name)
        name = (Path(table).name.removesuffix(".gz").rpartition(".")[0] or "draft")[:80]
        head = WORDS["head"]["records" if records else "text"].format(
            table=table, least=LEAST, seen=seen
        )
        data = self.spec.without_password().model_dump(mode="json", exclude_defaults=True)
        for key in {"path", "omop", "fhir", "features"} & set(data):
            if "://" not in data[key]:
                data[key] = os.path.relpath(data[key], folder)
        study: dict[str, Any] = {"name": name, "outcome": self.outcome}
        study |= {} if self.positive is None else {"positive": self.positive}
        study |= {"simulation": True} if self.sites else {}
        sites = [{"name": n, "data": data | part} for n, part in (self.sites or {name: {}}).items()]
        features = self.features.items()
        groups = [n for n, one in features if isinstance(one, Category | Flag) and one.protected]
        schema = {"patient": self.patient or "", **({"groups": groups} if groups else {})}
        lines = [head.strip(), "[study]", *self._lines(study)]
        for site in sites:
            lines += ["", "[[site]]", *self._lines(site)]
        lines += ["", "[schema]", *self._lines(schema), "", "[schema.features]"]
        told = {n: {"kind": "number"} if one is None else _plain(one) for n, one in features}
        lines += self._lines(told)
        lines += [f"# left out: {toml_key(n)} ({why})" for n, why in self.left_out.items()]
        return "\n".join([*lines, WORDS["head"]["rest"].format(method=method)])

    def _lines(self, table: Mapping[str, Any]) -> Iterator[str]:
        for key, value in table.items():
            remark = f"  # {_line(self.remarks[key])}" if key in self.remarks else ""
            yield f"{toml_key(key)} = {toml_value(value)}{remark}"


def _plain(feature: Feature) -> dict[str, Any]:
    return {"kind": feature.kind, **feature.model_dump(mode="json", exclude_defaults=True)}


def _line(text: str) -> str:
    """Text for one line of a comment, whatever it holds."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def draft(place: Mapping[str, Any], asked: Asked) -> Draft:
    """Look at a table, column by column, and draft a study on it. ``place`` is what ``data`` of a
    site would say."""
    try:
        spec = sniffed(SourceSpec.model_validate(dict(place)))
    except ValidationError as error:
        raise StudyError(explain(error, "--from")) from None
    cells, types, problems = _read(spec)
    if spec.encoding == "utf-8" and any("encoding" in problem for problem in problems):
        spec = spec.model_copy(update={"encoding": "latin-1"})
        cells, types, problems = _read(spec)
    made = Draft(_marked(spec, cells), asked, notes=problems)
    made.patient = _role(made, "patient", asked.patient, list(cells))
    made.outcome = _role(made, "outcome", asked.outcome, list(cells)) or ""
    for name, found in cells.items():
        values = {value: count for value, count in found.items() if value not in _MARKS}
        if name == made.outcome:
            _outcome(made, values)
        elif name not in (made.patient, asked.sites_by):
            why = _no_feature(name, types[name], values, asked.leave_out)
            why = why or _feature(made, name, values)
            if why:
                made.left_out[name] = WORDS["why"][why]
            elif re.search(WORDS["after"], name, re.IGNORECASE):
                made.remarks[name] = "known only after the outcome? Then leave it out"
    if not made.features:
        reasons = "; ".join(f"{toml_key(n)}: {why}" for n, why in [*made.left_out.items()][:20])
        raise DataError(f"{spec.describe()}: no column can be a feature ({reasons})")
    _hospitals(made, list(cells))
    return made


def draft_records(cohort: Path, place: str, asked: Asked) -> Draft:
    """Draft a study on the table that a cohort file makes of OMOP's or FHIR's records, without
    reading any."""
    declared, folder = read_features(cohort), Path(place)
    fhir = folder.is_dir() and not is_folder_of(folder)
    told = {"fhir" if fhir else "omop": place, "features": str(cohort)}
    try:
        made = Draft(SourceSpec.model_validate(told), asked, PATIENT)
    except ValidationError as error:
        raise StudyError(explain(error, "--records")) from None
    if asked.sites_by or asked.positive or asked.bounds_from_rows:
        raise StudyError(
            "--sites-by, --positive and --bounds-from-rows look at rows; leave them out"
        )
    made.outcome = _role(made, "outcome", asked.outcome, list(declared.outcome)) or ""
    for name, column in declared.features.items():
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in asked.leave_out):
            made.left_out[name] = WORDS["why"]["asked"]
        else:
            _declared(made, name, column)
    _hospitals(made, list(declared.columns))
    return made


def _declared(made: Draft, name: str, column: Column) -> None:
    """A column of a cohort file as a feature, with the clinical dictionary's bounds."""
    measure, label = column.measure or clinical.recognise(name), column.label
    if column.person == "sex":
        made.features[name] = Category(
            values=("female", "male", "other"), label=label, protected=True
        )
    elif column.person == "age":
        made.features[name] = Number(low=0, high=100, unit="years", label=label or "Age")
    elif column.taken == "any":
        made.features[name] = Flag(label=label)
    elif column.taken == "count":
        made.features[name] = Number(low=0, high=20, label=label)
        made.remarks[name] = "our choice of bounds: a count above 20 becomes 20"
    elif (change := measure and clinical.convert(measure.unit, column.target, measure)) and measure:
        bounds = measure.number()
        if change != (1.0, 0.0):
            low, high = (
                float(f"{x * change[0] + change[1]:.6g}") for x in (measure.low, measure.high)
            )
            bounds = Number(
                low=low, high=high, unit=clinical.shown(column.target), worse=measure.worse
            )
        label = label or f"{measure.label}, {column.taken}"
        made.features[name] = bounds.model_copy(update={"label": label})
        made.remarks[name] = "from the dictionary"
    else:
        _bounds(made, name, ())


def _hospitals(made: Draft, names: Sequence[str]) -> None:
    """The hospitals of a simulation; else a gap: nobody but a person declares a site's size."""
    by, deal = made.asked.sites_by, made.asked.deal
    if deal < 0 or deal == 1 or (deal and (by or not made.patient)):
        raise StudyError("--deal: expected 2 or more hospitals, a --patient and no --sites-by")
    if deal and made.patient:
        for i in range(1, deal + 1):
            made.sites[f"hospital-{i}"] = {"share": {"by": made.patient, "number": i, "of": deal}}
    elif by is not None:
        if by not in names:
            raise StudyError(f"--sites-by: there is no column {by!r}")
        for value in sorted(_often(made, by)):
            made.sites[re.sub(r"[/\\]", "-", value)] = {"only": {by: [value]}}
        if len(made.sites) < 2:
            raise StudyError(f"--sites-by: {by!r} has no two values of {LEAST} patients or more")
    else:
        made.gaps.append("site.patients: about how many patients train here? A round number")


# --- the table --------------------------------------------------------------------------------------------------------


def sniffed(spec: SourceSpec) -> SourceSpec:
    """Encoding and separator of a text file, from its first megabyte."""
    path, place = Path(spec.path or ""), spec.describe()
    if spec.path is None or not path.exists():
        return spec
    if not path.is_file():
        raise DataError(f"{place}: expected a file, found a folder, a pipe or a device")
    if spec.kind != "csv":
        return spec
    try:
        with (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rb") as file:
            start = file.read(1 << 20)
    except (OSError, EOFError) as error:
        raise DataError(f"{place}: cannot be read ({type(error).__name__})") from None
    if start.startswith((b"PK\x03\x04", b"\xd0\xcf\x11\xe0")):
        raise DataError(f"{place}: this is a spreadsheet, not text; save it as CSV (UTF-8)")
    if start.startswith(codecs.BOM_UTF16_BE):
        raise DataError(f"{place}: UTF-16 with the big end first; save it as CSV (UTF-8)")
    encoding = "utf-16" if start.startswith(codecs.BOM_UTF16_LE) else "utf-8"
    if b"\0" in start and encoding == "utf-8":
        raise DataError(f"{place}: zero bytes, so it is not text; save it as CSV (UTF-8)")
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(start)
    except UnicodeDecodeError:
        encoding, text = "latin-1", start.decode("latin-1")
    lines = text.lstrip("\ufeff").splitlines()[:40]
    mark = spec.separator or _separator(lines, place)
    usual = "\t" if ".tsv" in path.suffixes else ","
    given = {"encoding": encoding, "separator": None if mark == usual else mark}
    return spec.model_copy(update=given)


def _separator(lines: Sequence[str], place: str) -> str:
    scores = {}
    for mark in ",;\t|":
        try:
            widths = [len(row) for row in csv.reader(lines, delimiter=mark) if row] or [1]
        except csv.Error:
            continue
        common = max(set(widths), key=lambda width: (widths.count(width), width))
        scores[mark] = (common > 1, widths.count(common), common, widths[0])
    best = max(scores, key=lambda mark: scores[mark], default=",")
    wide, _, common, first = scores.get(best, (False, 0, 0, 0))
    if wide and first != common:
        raise DataError(
            f"{place}: the first line has {first} columns and most others {common}; is there a "
            "title above the header? Remove it"
        )
    return best


def _read(spec: SourceSpec) -> tuple[dict[str, Cells], dict[str, str], list[str]]:
    """The cells of every column, the columns' types, and what could not be read."""
    place = spec.describe()
    with open_table(spec, None, site="here") as opened:
        names, types = [name for name in opened.names if name], dict(opened.types)
    if len(names) > COLUMNS:
        raise DataError(f"{place}: {len(names):,} columns; choose at most {COLUMNS:,} first")
    plain = {clinical.plain(name) for name in names}
    if "value" in plain and plain & {*WORDS["event"]}:
        raise DataError(
            f"{place}: one row per measurement, with its name in one column and its value in "
            "another; a draft needs one row per examination or stay"
        )
    if names and all(_SHAPES["number"].fullmatch(name) for name in names):
        raise DataError(f"{place}: the first line holds numbers; write the columns' names there")
    cells, problems = {}, dict[str, None]()
    for name in names:
        cells[name], said = _counts(spec, name)
        problems |= dict.fromkeys(said)
    if not any(cells.values()):
        raise DataError(f"{place}: no row holds anything; expected rows below the header")
    return cells, types, list(problems)


def _counts(
    spec: SourceSpec, name: str, patient: str | None = None, *, each: bool = True
) -> tuple[Cells, list[str]]:
    """A column's different cells (or all that are not missing, as one), with their rows or their
    patients; marks first, then the most frequent."""
    with open_table(spec, [name, *([patient] if patient else [])], site="here") as opened:
        text, marks = sql_text(opened, name), ", ".join(map(quoted, [*_MARKS, *map(str, _CODES)]))
        text = text if each else f"CASE WHEN {text} NOT IN ({marks}) THEN '' END"
        people = f"DISTINCT {sql_text(opened, patient)}" if patient else "*"

        def grouped(relation: str) -> str:
            return (
                f"(SELECT {text} AS v, count({people}) AS n FROM {relation} WHERE {text} IS NOT NULL "
                f"GROUP BY v ORDER BY v IN ({marks}) DESC, n DESC, v LIMIT {DISTINCT})"
            )

        lenient = grouped(opened.lenient) if opened.lenient else ""
        asked = replace(opened, relation=grouped(opened.relation), lenient=lenient)
        found = asked.select({"v": "v", "n": "n"})
    return dict(zip(found["v"].tolist(), found["n"].tolist(), strict=True)), asked.problems


def _marked(spec: SourceSpec, cells: Mapping[str, Cells]) -> SourceSpec:
    """The source with its marks for missing values, its decimal comma and its thousands."""
    rows = dict.fromkeys(_SHAPES, 0)
    for found in cells.values():
        for shape, pattern in _SHAPES.items():
            rows[shape] += sum(n for cell, n in found.items() if pattern.fullmatch(cell))
    marks = sorted({cell for found in cells.values() for cell in found if cell in _MARKS})
    given: dict[str, Any] = {"missing": tuple(marks)}
    decimals = rows["comma"] - rows["groups"] + rows["groups_sure"]  # 12,5 but not 1,234
    if rows["groups_sure"] and not decimals > rows["groups_sure"]:
        given["thousands"] = ","
    elif decimals > 0 or rows["dots_sure"]:
        given["decimal"] = ","
        given |= {"thousands": "."} if rows["dots_sure"] else {}
    elif rows["comma"]:
        raise DataError(
            f'{spec.describe()}: numbers like "1,234" can be 1234 or 1.234, and nothing here tells '
            "which; write them without the comma"
        )
    return spec.model_copy(update=given)


# --- columns ----------------------------------------------------------------------------------------------------------


def _share(values: Cells, *shapes: str) -> float:
    """The share of cells that have one of the shapes."""
    fitting = sum(n for v, n in values.items() if any(_SHAPES[s].fullmatch(v) for s in shapes))
    return fitting / max(1, sum(values.values()))


def _role(made: Draft, role: str, given: str | None, names: Sequence[str]) -> str | None:
    """The column of the patient or the outcome: as given, or by its name."""
    if given is not None and given not in names:
        shown = ", ".join(map(toml_key, names[:30]))
        raise StudyError(f"--{role}: there is no column {given!r}; found {shown}")
    known = WORDS[role]
    called = [(known.index(key), n) for n in names if (key := clinical.plain(n)) in known]
    if given is None and called and (role == "patient" or len(called) == 1):
        made.remarks[role] = "by its name: check"
        return min(called)[1]
    if given is None:
        place = "study.outcome" if role == "outcome" else "schema.patient"
        made.gaps.append(f"{place}: which column is the {role}?")
        made.remarks[role] = "for a person"
    return given


def _no_feature(name: str, kind: str, values: Cells, leave_out: Sequence[str]) -> str:
    """Why a column is no feature (a key of [why] in draft.toml); empty where it may be one."""
    plain, numeric = clinical.plain(name), _share(values, "number", "comma", "groups") >= 0.8
    signs = {
        "asked": any(fnmatch.fnmatchcase(name, pattern) for pattern in leave_out),
        "control": not name.isprintable(),
        "date": "DATE" in kind or "TIME" in kind or plain in WORDS["date"]
        or _share(values, "date") >= 0.8,
        "nested": "[" in kind or "STRUCT" in kind or "MAP" in kind or kind == "BLOB",
        "identifier": plain in WORDS["identifier"]
        or re.search(r"(^|[_\s])id$|[a-z]ID$|^id[_\s]|(stay|admission|visit)id$", name, re.I)
        is not None,
        "site": plain in WORDS["site"],
        "pair": _share(values, "pair") >= 0.5,
        "unit": not numeric and len(values) > 3 and _share(values, "unit") >= 0.5,
        "text": not numeric and len(values) > 10 * MOST,
    }  # fmt: skip
    return next((why for why, holds in signs.items() if holds), "")


def _feature(made: Draft, name: str, values: Cells) -> str:
    """Add a column to the draft as a number, a flag or a category; or why it is none of them.

    One patient alone must not decide what a draft says, so only values that enough patients have
    count: a flag is one whether or not somebody here has it.
    """
    if sum(_counts(made.spec, name, made.patient, each=False)[0].values()) < LEAST:
        return "rare"
    named = clinical.read_name(name)
    named = named if named is not None and named.statistic in clinical.LEVELS else None
    numbers = {value: x for value in values if (x := _number(value, made.spec)) is not None}
    mostly = sum(values[value] for value in numbers) >= 0.8 * sum(values.values())
    if mostly and (named is not None or len(numbers) > MOST // 3):
        _add_number(made, name, values, numbers, named)
        return ""
    every = list(numbers.values()) if len(numbers) == len(values) else []
    _add_marks(made, name, {value for value, x in numbers.items() if _alone(x, every)})
    often, protected = _often(made, name), clinical.plain(name) in WORDS["protected"]
    if often and all(BINARY.code(value) >= 0 for value in often):
        made.features[name] = Flag(protected=protected)
    elif 2 <= len(often) <= MOST:
        made.features[name] = Category(values=tuple(sorted(often)), protected=protected)
    else:
        return "text" if often[2:] else "rare"
    return ""


def _number(cell: str, spec: SourceSpec) -> float | None:
    """A cell as the site will read it; None where it is no number."""
    if spec.thousands == "," and _SHAPES["groups"].fullmatch(cell):
        cell = cell.replace(",", "")
    if spec.thousands == "." and re.fullmatch(r"[+-]?\d{1,3}(\.\d{3})+(,\d+)?", cell):
        cell = cell.replace(".", "")
    cell = cell.replace(",", ".") if spec.decimal == "," else cell
    return float(cell) if _SHAPES["number"].fullmatch(cell) else None


def _alone(code: float, every: Collection[float]) -> bool:
    """Whether a code for "missing" lies far outside all values that are no such codes."""
    others = [x for x in every if x not in _CODES] if code in _CODES else []
    if not others:
        return False
    return min(others) >= 0 or code < 3 * min(others) if code < 0 else code > 3 * max(1.0, *others)


def _add_marks(made: Draft, name: str, marks: Collection[str]) -> None:
    if marks:
        given = {**made.spec.sentinels, name: tuple(sorted({whole(mark) for mark in marks}))}
        made.spec = made.spec.model_copy(update={"sentinels": given})


def _add_number(
    made: Draft, name: str, values: Cells, numbers: dict[str, float], named: clinical.Named | None
) -> None:
    wrong = sum(values.values()) - sum(values[value] for value in numbers)
    if wrong:
        made.notes.append(f"{toml_key(name)}: {wrong:,} cells are no number; they count as missing")
    if named is None:
        every = list(numbers.values())
        marks = {value for value, x in numbers.items() if _alone(x, every)}
        _add_marks(made, name, marks)
        _bounds(made, name, [x for value, x in numbers.items() if value not in marks])
        return
    measure, known = named.measure, named.unit or named.measure.unit

    def inside(unit: str) -> set[str]:
        by, plus = clinical.convert(unit, measure.unit, measure) or (math.nan, 0.0)
        return {v for v, x in numbers.items() if measure.low <= x * by + plus <= measure.high}

    # The unit of the name, or the dictionary's, unless twice as many values fit another.
    others = () if named.unit else measure.units
    fits = {unit: sum(values[v] for v in inside(unit)) for unit in (known, *others)}
    best = max(fits, key=lambda unit: fits[unit])
    unit = best if fits[best] > 2 * fits[known] else known
    odd, within = _CODES | {0.0}, inside(unit)
    marks = {value for value, x in numbers.items() if x in odd and value not in within}
    _add_marks(made, name, marks)
    if unit != measure.unit:
        units = {**made.spec.units, name: clinical.shown(unit)}
        made.spec = made.spec.model_copy(update={"units": units})
    counted = sum(values[value] for value in numbers if value not in marks)
    if fits[unit] < 0.9 * counted:
        made.notes.append(
            f"{toml_key(name)}: {1 - fits[unit] / counted:.0%} of the values lie outside "
            f"{measure.low:g} to {measure.high:g} {measure.shown}: another unit, or not "
            f"{measure.label}?"
        )
    label = f"{measure.label}, {named.statistic}" if named.statistic else measure.label
    made.features[name] = measure.number().model_copy(update={"label": label})
    made.remarks[name] = "from the dictionary"
    if measure.units and not named.unit:
        made.remarks[name] += f"; is it in {clinical.shown(unit)} here? The name does not say"


def _bounds(made: Draft, name: str, numbers: Sequence[float]) -> None:
    """Bounds that no dictionary knows: left for a person, or, if asked, seen on rows."""
    if not made.asked.bounds_from_rows or len(set(numbers)) < 2:
        made.features[name] = None
        made.remarks[name] = "low = ..., high = ...: for a person, from clinical knowledge"
        made.gaps.append(f"schema.features.{toml_key(name)}: low and high")
        return
    step = 10.0 ** math.floor(math.log10(max(numbers) - min(numbers)))
    low, high = math.floor(min(numbers) / step) * step, math.ceil(max(numbers) / step) * step
    made.features[name] = Number(low=float(f"{low:.9g}"), high=float(f"{high:.9g}"))
    made.remarks[name] = "seen on rows"


def _often(made: Draft, name: str) -> list[str]:
    """Values that enough patients have, each in its most common letter case; others are noted."""
    found, cased = _counts(made.spec, name, made.patient)[0], dict[str, str]()
    for value, patients in found.items():
        if patients >= LEAST and value.isprintable() and len(value) <= 80:
            cased.setdefault(whole(value).casefold(), whole(value))
    plain = all(BINARY.code(value) >= 0 for value in cased.values())
    if {whole(v) for v in found if not plain or BINARY.code(v) < 0} - {*cased.values()}:
        made.notes.append(
            f"{toml_key(name)}: values of fewer than {LEAST} patients, or in another letter case, "
            "are not written; they count as missing"
        )
    return list(cased.values())


def _outcome(made: Draft, values: Cells) -> None:
    made.positive, often = made.asked.positive, _often(made, made.outcome)
    if made.positive is not None and made.positive not in values:
        raise StudyError(f"--positive: no cell of {made.outcome!r} reads {made.positive!r}")
    if made.positive is not None or all(BINARY.code(value) >= 0 for value in often):
        return
    meant = [value for value in often if clinical.plain(value) in WORDS["positive"]]
    if len(meant) == 1 and len(often) == 2:
        made.positive, made.remarks["positive"] = meant[0], "by its meaning: check"
        return
    made.positive, shown = "", ", ".join(map(toml_value, often)) if len(often) <= MOST else "many"
    made.remarks["positive"] = f"for a person: which value counts as 1? Here: {shown}"
    made.gaps.append("study.positive: which value of the outcome counts as 1?")
