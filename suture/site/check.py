"""What is wrong with a site's table for one study, before anything is promised or charged.

A finding says "stop" (the budget would be wasted, or the run refused), "look" (a person should) or
"fine" (worth knowing), with the column and the likely cause. All of it is computed from rows, exact
and unpaid: it is told to the site alone and never sent. The words are in `check.toml`; they hold
counts, declared values and codes for "missing", never a patient's value.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suture.schema import clinical
from suture.schema.table import Category, Image, Number
from suture.site.preprocess import MISSING, UNKNOWN, Vocabulary, sql_text, vocabulary_of, whole
from suture.site.reading import Passage, Read, Wanted, distinct, held_out, read_columns
from suture.site.sources import SourceSpec, open_table, record_findings

LEVELS = ("stop", "look", "fine")
OFTEN, SELDOM, FEW, LEAST = 0.10, 0.01, 3, 10
"""Shares of values that say stop and look, from so many rows on; too few patients to learn from."""
GIVES_AWAY, NEARLY = 0.99, 0.95  # the AUC of a single column that says stop, and look
_NO_DATE = ("1900-01-01", "1899-12-31", "1899-12-30", "1753-01-01", "0001-01-01", "9999-12-31")
_WORDS: dict[str, Any] = tomllib.loads(
    files("suture.site").joinpath("check.toml").read_text(encoding="utf-8")
)


class Finding(NamedTuple):
    """One thing that a person at the site should know."""

    level: str
    about: str
    column: str
    text: str
    cause: str
    do: str


def say(about: str, column: str = "", **facts: Any) -> Finding:
    """A finding in the words of `check.toml`; ``level``, ``cause`` and ``do`` may be given.

    >>> say("missing", "bmi", n=30, of=400, level="fine").text
    '30 of 400 rows (7.5%) have no value'
    """
    n, of = facts.get("n", 0), facts.get("of", 0)
    part = f"{n:,} of {of:,} rows ({100 * n / max(of, 1):.3g}%)"
    told = {"column": column, "part": part, **facts}
    words = {k: str(facts.get(k) or _WORDS[about].get(k, "")) for k in Finding._fields[3:]}
    filled = {key: text.format(**told) for key, text in words.items()}
    return Finding(facts.get("level") or _WORDS[about]["level"], about, column, **filled)


def check_table(
    source: SourceSpec, wanted: Wanted, site: str, passage: Passage, size: int | None, today: date
) -> tuple[dict[str, float], list[Finding]]:
    """A table in figures, and what is found in the columns that the study names. ``size``: how many
    training patients the study declares."""
    table = _Table(source, wanted, site, passage, today)
    people, y = distinct(table.read.keys), table.read.outcome
    test = int(np.count_nonzero(held_out(people, wanted.holdout)))
    train, found = len(people) - test, [*table.findings()]
    figures: dict[str, float] = {"rows": len(y), "patients": len(people), "train": train}
    figures["test"] = test
    if max(wanted.labels.codes.values()) == 1 and (y >= 0).any():
        figures["prevalence"] = float(np.mean(y[y >= 0]))
    if size is not None and train:
        off, unit = max(train / size, size / train), max(1, 10 ** (len(str(train)) - 2))
        better = round(train / unit) * unit  # two digits are enough, and tell less
        level = "stop" if off >= 2 else "look" if off > 1.25 else "fine"
        found.append(say("size", level=level, declared=size, train=train, better=better))
    return figures, found


@dataclass(frozen=True)
class _Table:
    """Typed columns, and single ones as text where those raise a question."""

    source: SourceSpec
    wanted: Wanted
    site: str
    passage: Passage
    today: date

    @cached_property
    def read(self) -> Read:
        found = read_columns(self.source, self.wanted, self.site, self.passage)
        survival = self.wanted.survival
        return (
            found if survival is None else replace(found, outcome=survival.classes(found.outcome))
        )

    def texts(self, name: str) -> list[str]:
        """A column, trimmed, without empty cells."""
        schema = self.wanted.schema
        needed = [name, *(rule.column for rule in schema.include), schema.patient or name]
        with open_table(self.source, needed, site=self.site) as opened:
            asked = {"text": f"coalesce({sql_text(opened, name)}, '')"}
            asked |= self.passage.expressions(opened, schema)
            return [whole(str(t)) for t in self.passage.kept(opened.select(asked))["text"] if t]

    def findings(self) -> Iterator[Finding]:
        read, schema = self.read, self.wanted.schema
        for problem in (*self.passage.problems, *read.unreadable):
            yield say("unreadable", problem=problem)
        if self.source.features is not None:
            for one in record_findings(self.source, self.wanted.columns, site=self.site):
                yield say(one.about, one.column, problem=one.problem)
        if read.no_patient:
            yield say("nobody", schema.patient or "", n=read.no_patient)
        if not len(read.keys):
            yield say("empty")
            return
        yield from self.outcome(self.wanted.outcome or "")
        for name, feature in schema.features.items():
            if isinstance(feature, Image):
                continue
            values = read.features[name]
            numeric = isinstance(feature, Number)
            gone, of = np.isnan(values) if numeric else values == MISSING, len(values)
            if n := int(np.count_nonzero(gone)):
                refuse = schema.missing_rule(name) == "refuse"
                about = "column-empty" if n == of else "missing-refused" if refuse else "missing"
                level = "" if about != "missing" else "look" if n >= 0.9 * of else "fine"
                yield say(about, name, n=n, of=of, level=level)
            if isinstance(feature, Number):
                yield from self.number(name, feature, values)
            else:
                yield from self.category(name, vocabulary_of(feature), values)
            there = np.isfinite(values) if numeric else values >= 0
            yield from self.leak(name, values, there)
        yield from self.rows(schema.patient or "")
        yield from self.groups()

    # --- the outcome, and what gives it away --------------------------------------------------------------------------

    def outcome(self, name: str) -> Iterator[Finding]:
        y, labels, keys = self.read.outcome, self.wanted.labels, self.read.keys
        why = self.spelling(labels, name) if (y == UNKNOWN).any() or len(labels.codes) == 1 else {}
        for about, code, facts in (("missing", MISSING, {}), ("undeclared", UNKNOWN, why)):
            if n := int(np.count_nonzero(y == code)):
                yield say(f"outcome-{about}", name, n=n, of=len(y), **facts)
        behind = [len(distinct(keys[y == k])) for k in range(max(labels.codes.values()) + 1)]
        n, label = min((count, label) for label, count in enumerate(behind))
        if (y >= 0).any() and n < LEAST:
            cased = why if why.get("cause") == "letter case" and not n else {}
            # None of 300 leaves a true share below 1 %, at 95 % (the rule of three).
            facts = {"level": "stop" if not n and len(y) >= 300 else "look", **cased}
            yield say("outcome-rare" if n else "outcome-constant", name, n=n, label=label, **facts)

    def leak(self, name: str, values: NDArray[Any], there: NDArray[np.bool_]) -> Iterator[Finding]:
        """A column that tells the outcome by itself was most likely recorded after it."""
        y = self.read.outcome
        for label in range(1, max(y.max(), 1) + 1):
            ill, well = y == label, (y >= 0) & (y != label)
            if min(map(np.count_nonzero, (ill, well))) < LEAST:
                continue
            first, second = float(there[ill].mean()), float(there[well].mean())
            only = max(first, second) >= 0.2 and min(first, second) <= 0.001
            if only or abs(first - second) >= 2 * NEARLY - 1:
                facts = {"label": label, "first": first, "second": second}
                yield say("leak-recorded", name, level="stop" if only else "look", **facts)
                return
            ill, well = ill & there, well & there
            if min(map(np.count_nonzero, (ill, well))) >= LEAST:
                auc = _auc(values, ill, ill | well)
                if auc >= NEARLY:
                    yield say("leak", name, level="stop" if auc >= GIVES_AWAY else "look", auc=auc)
                    return

    # --- values -------------------------------------------------------------------------------------------------------

    def number(self, name: str, feature: Number, values: NDArray[Any]) -> Iterator[Finding]:
        there, of = values[np.isfinite(values)], len(values)
        if n := int(np.count_nonzero(np.isinf(values))):
            kinds, texts = _WORDS["written"], [t for t in self.texts(name) if not _is_number(t)]
            shapes = Counter(_shape(text) for text in texts)
            kind = kinds[shapes.most_common(1)[0][0] if shapes else -1]
            yield say("not-a-number", name, n=n, of=of, cause=kind["cause"], do=kind["do"])
        if not len(there):
            return
        codes = _codes(there, feature)
        for value in codes:
            inside = feature.low <= value <= feature.high
            facts = {"n": int(np.count_nonzero(there == value)), "of": of, "value": value}
            yield say("sentinel" if inside else "clipped-sentinel", name, **facts)
        there = there[~np.isin(there, codes)]
        measure = clinical.recognise(name, feature.unit) or clinical.recognise(feature.label)
        rest = there[(there < feature.low) | (there > feature.high)]
        if len(rest):
            yield _clipped(name, feature, there, rest, measure)
        elif len(there):
            yield from _inside(name, feature, there, measure)
        if len(there) >= 20 and there.min() == there.max():
            yield say("constant", name)
        late = int(np.count_nonzero((there > self.today.year) & (there < 2200)))
        if late and re.search(r"(^|[\s_.-])(year|yr|jahr|annee|ano)($|[\s_.-])", name.lower()):
            yield say("year-future", name, n=late, of=of)

    def category(self, name: str, known: Vocabulary, values: NDArray[Any]) -> Iterator[Finding]:
        n = int(np.count_nonzero(values == UNKNOWN))
        if n:
            yield say("undeclared", name, n=n, of=len(values), **self.spelling(known, name))
        seen = np.bincount(values[values >= 0], minlength=max(known.codes.values()) + 1)
        if not n and np.count_nonzero(seen) == 1 and seen.sum() >= 20:
            yield say("constant", name)
        elif not known.fold and seen.sum():
            for about, which in (("unseen", seen == 0), ("rare", (seen > 0) & (seen < 5))):
                if which.any():
                    yield say(about, name, values=", ".join(np.array([*known.codes])[which]))

    def spelling(self, known: Vocabulary, name: str) -> dict[str, str]:
        """Why values are not the declared ones, by most of them, and what to do."""
        folded, votes = {text.casefold() for text in known.codes}, Counter[str]()
        for text in self.texts(name):
            plain = text.casefold()
            if (plain if known.fold else text) in known.codes or (
                len(known.codes) == 1 and plain not in folded  # all other texts are allowed
            ):
                continue
            absent = _shape(plain) == 0
            coded, begins = plain.isdigit() and known.fold, plain[:1] in {f[:1] for f in folded}
            votes["letter case" if plain in folded else "missing code" if absent
                  else "coded 1 and 2" if coded else "spelling" if begins else "undeclared"] += 1  # fmt: skip
        cause = votes.most_common(1)[0][0] if votes else "undeclared"
        return {"cause": cause, "do": _WORDS["written"][0 if cause == "missing code" else -2]["do"]}

    # --- rows, patients, groups ---------------------------------------------------------------------------------------

    def rows(self, name: str) -> Iterator[Finding]:
        read, schema, of = self.read, self.wanted.schema, len(self.read.keys)
        counts = np.unique(read.keys, axis=0, return_counts=True)[1]
        if name:
            several, most = int(np.count_nonzero(counts > 1)), int(counts.max())
            if several:
                yield say("several-rows", name, n=several, patients=len(counts), most=most)
            if beyond := int(np.maximum(counts - schema.rows, 0).sum()):
                yield say("rows-unused", name, n=beyond, of=of, each=schema.rows)
            texts = set(self.texts(name))
            if alike := len(texts) - len({t.casefold().lstrip("0") or "0" for t in texts}):
                yield say("alike", name, n=alike)
        if schema.image is not None:
            return
        columns = [np.nan_to_num(np.asarray(v, float), nan=-1e99) for v in read.features.values()]
        numbers = [v for v in columns if len(np.unique(v)) > 50]
        if not numbers:
            return  # rows of few values are equal by chance
        told = (np.column_stack(numbers) > -1e99).any(axis=1)
        content = np.column_stack([*columns, read.outcome])[told]
        same = len(content) - _different(np.column_stack([read.keys[told].view(float), content]))
        others = len(content) - _different(content) - same
        for about, n, least in (("same-row", same, 1), ("same-values", others, 3)):
            if len(numbers) >= least and n >= max(2, SELDOM * of):
                yield say(about, n=n, of=of)

    def groups(self) -> Iterator[Finding]:
        read, schema = self.read, self.wanted.schema
        tested = held_out(read.keys, self.wanted.holdout)
        for name, groups in read.groups.items():
            labels, place = np.unique(groups[tested].astype(str), return_inverse=True)
            if len(labels) > 50:
                yield say("groups-many", name, n=len(labels))
                continue
            behind = [len(distinct(read.keys[tested][place == i])) for i in range(len(labels))]
            large = [f"{one} {n:,}" for one, n in zip(labels, behind, strict=True) if n >= LEAST]
            yield say("groups", name, listed=", ".join(large) or "none of 10 or more")
            if len(large) < len(labels):
                yield say("group-small", name, n=len(labels) - len(large), of=len(labels))
        codes, protected = read.protected, schema.protected
        if protected and codes is not None and (n := int(np.count_nonzero(codes == UNKNOWN))):
            why = self.spelling(vocabulary_of(Category(values=protected.values)), protected.column)
            yield say("undeclared", protected.column, n=n, of=len(codes), **why)
        for name in dict.fromkeys((*schema.groups, *(rule.column for rule in schema.include))):
            texts, today = self.texts(name), self.today.isoformat()
            days = [t[:10] for t in texts if re.fullmatch(r"\d{4}-\d{2}-\d{2}([ T].*)?", t)]
            late = sum(day > today for day in days if day not in _NO_DATE)
            for about, n in (("none", sum(day in _NO_DATE for day in days)), ("future", late)):
                if n:
                    yield say(f"date-{about}", name, n=n, of=len(texts))


def _auc(values: NDArray[Any], ill: NDArray[np.bool_], both: NDArray[np.bool_]) -> float:
    """How often an ill patient's value is the larger (or the smaller) one, ties counting half; of a
    category, its share of the outcome."""
    score, positive = values[both], ill[both]
    if values.dtype.kind != "f":
        score = (np.bincount(score, positive) / np.maximum(np.bincount(score), 1))[score]
    _, place, count = np.unique(score, return_inverse=True, return_counts=True)
    rank, n = (np.cumsum(count) - (count - 1) / 2)[place], int(np.count_nonzero(positive))
    above = (float(rank[positive].sum()) - n * (n + 1) / 2) / (n * (len(rank) - n))
    return max(above, 1 - above)


Values = NDArray[np.float64]
Measure = clinical.Measure | None


def _clipped(name: str, feature: Number, there: Values, rest: Values, measure: Measure) -> Finding:
    """Values beyond the bounds that are no code: another unit, a date, or a bound that does not
    fit."""
    low, share = int(np.count_nonzero(rest < feature.low)), len(rest) / len(there)
    parts = ((low, f"below {feature.low:g}"), (len(rest) - low, f"above {feature.high:g}"))
    sides = " and ".join(f"{n:,} {side}" for n, side in parts if n)
    facts: dict[str, Any] = {"sides": f"{sides}, of {len(there):,} rows ({100 * share:.3g}%),"}
    level = "fine" if len(rest) < FEW else "stop" if share >= OFTEN else "look"
    edge = np.where(rest > feature.high, rest - feature.high, feature.low - rest)
    apart = float(np.quantile(edge, 0.1)) > 0.1 * (feature.high - feature.low)
    if unit := _unit(feature, rest, measure, apart):
        return say("clipped-unit", name, level=level, found=unit, cause=f"unit: {unit}", **facts)
    if np.mean((rest >= 19000101) & (rest <= 22001231) & (rest // 100 % 100 <= 12)) >= 0.8:
        return say("clipped-date", name, **facts)
    facts["usual"] = f"; plausible is {measure.low:g} to {measure.high:g}" if measure else ""
    return say("clipped-bound", name, level="fine" if share < SELDOM else level, **facts)


def _unit(feature: Number, values: Values, measure: Measure, apart: bool) -> str:
    """The unit that makes most of these values ordinary ones; "" where none does. Where nobody says
    what is ordinary they must lie ``apart`` from the bounds: what begins at one is cut off by it."""
    normal = feature.normal or (measure.normal if measure else None)
    low, high = normal or (feature.low, feature.high)
    found: list[tuple[float, str]] = []
    for unit, factor, offset in _units(feature, measure):
        moved = values * factor + offset
        middle = float(np.median(moved))
        fits = np.mean((moved >= feature.low) & (moved <= feature.high)) >= 0.8
        if fits and ((0.5 * low <= middle <= 2 * high) if normal else apart):
            found.append((abs(middle - (low + high) / 2) if normal else len(found), unit))
    return min(found)[1] if found else ""


def _units(feature: Number, measure: Measure) -> Iterator[tuple[str, float, float]]:
    """Units in which a column may have been recorded, with factor and offset to the declared one."""
    if measure is not None:
        yield from clinical.other_units(measure, feature.unit)
    for power in (10, 100, 1000) if measure is None else ():
        yield f"{power} times too large", 1 / power, 0.0
        yield f"{power} times too small", float(power), 0.0


def _inside(name: str, feature: Number, there: Values, measure: Measure) -> Iterator[Finding]:
    """Values within the bounds that are most likely not what they seem."""
    zero, normal = int(np.count_nonzero(there == 0)), feature.normal or (measure and measure.normal)
    if measure and feature.low <= 0 < measure.low and zero >= max(FEW, SELDOM * len(there)):
        yield say("sentinel-zero", name, n=zero, of=len(there), low=measure.low)
    elif normal and not normal[0] / 3 <= float(np.median(there)) <= 3 * normal[1]:
        unit = _unit(feature, there, measure, apart=False)
        facts = {"low": normal[0], "high": normal[1], "found": unit}
        yield from [say("unit", name, cause=f"unit: {unit}", **facts)] if unit else []


def _codes(there: Values, feature: Number) -> list[float]:
    """Values that stand for "missing": written as such codes are, and negative where nothing is or
    far from every other value. Within the bounds it takes several of them.

    >>> _codes(np.array([20.0, 45, 88, -999, 99, 99.9]), Number(low=0, high=90))
    [-999.0]
    """
    values, counts = np.unique(there, return_counts=True)
    written = np.array([_repeated(v) or v in (-1, -9) for v in values])
    rest = values[~written]
    if not written.any() or not len(rest):
        return []
    gap = 0.5 * max(rest[-1] - rest[0], 1e-9)
    far = (values > rest[-1] + gap) | (values < rest[0] - gap) | ((values < 0) & (feature.low >= 0))
    outside = (values < feature.low) | (values > feature.high)
    return [float(v) for v in values[written & far & (outside | (counts >= FEW))]]


def _repeated(value: float) -> bool:
    """Whether a number is written as codes for "missing" are.

    >>> [_repeated(value) for value in (-999, 99.9, 888, 9, 98.6, 77)]
    [True, True, True, False, False, False]
    """
    digits = f"{abs(value):.10g}".replace(".", "")
    return set(digits) in ({"9"}, {"8"}, {"7"}) and len(digits) >= (2 if digits[0] == "9" else 3)


def _shape(text: str) -> int:
    """Which of the known shapes a cell has that holds no number; the last fits everything."""
    kinds = enumerate(_WORDS["written"])
    return next(i for i, kind in kinds if re.fullmatch(kind["shape"], text, re.S))


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def _different(rows: Values) -> int:
    """How many different rows."""
    return len(set(np.ascontiguousarray(rows).view(f"V{rows.shape[1] * 8}").ravel().tolist()))
