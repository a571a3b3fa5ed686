"""What is wrong with a site's table for one study, before anything is promised or charged: findings
in three levels, with the column and the likely cause.

"stop" would waste the budget or refuse the run, "look" needs a person's eye, "fine" is worth
knowing. Everything here is computed from rows, exact and unpaid: it is told to the site alone and
never sent. The words are in `check.toml`; they hold counts, declared values and codes for
"missing", never a patient's value.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from functools import cached_property
from importlib.resources import files
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from suture.schema import clinical
from suture.schema.table import Category, Flag, Image, Number
from suture.site.preprocess import MISSING, NO, UNKNOWN, YES, sql_text
from suture.site.reading import Passage, Read, Wanted, distinct, held_out, read_columns
from suture.site.sources import Source, SourceSpec, open_table

Level = Literal["stop", "look", "fine"]
Floats = NDArray[np.float64]
LEVELS: tuple[Level, ...] = ("stop", "look", "fine")
OFTEN, SELDOM, FEW, LEAST = 0.10, 0.01, 3, 10
"""Shares of a column's values that say stop and look, from how many rows on; patients of an outcome
or group below which little can be learnt or measured."""
GIVES_AWAY, NEARLY = 0.99, 0.95  # the AUC of a single column that says stop, and look
_WORDS: dict[str, Any] = tomllib.loads(
    files("suture.site").joinpath("check.toml").read_text(encoding="utf-8")
)
_NO_DATE = ("1900-01-01", "1899-12-31", "1899-12-30", "1753-01-01", "0001-01-01", "9999-12-31")


@dataclass(frozen=True)
class Finding:
    """One thing that a person at the site should know."""

    level: Level
    about: str
    text: str
    column: str = ""
    cause: str = ""
    do: str = ""

    def plain(self) -> dict[str, str]:
        """For JSON."""
        return asdict(self)


def say(about: str, column: str = "", *, n: int = 0, of: int = 0, **facts: Any) -> Finding:
    """A finding in the words of `check.toml`; ``level``, ``cause`` and ``do`` may be given.

    >>> say("missing", "bmi", n=30, of=400, level="fine").text
    '30 of 400 rows (7.5%) have no value'
    """
    known = _WORDS[about]
    part, rows = f"{n:,} of {_rows(of)} ({_share(n / max(of, 1))})", _rows(n)
    words = {key: facts.get(key) or known.get(key, "") for key in ("level", "text", "cause", "do")}
    told = {"n": n, "of": of, "part": part, "rows": rows, **facts}
    words = {key: text.format(**told) if key in known else text for key, text in words.items()}
    return Finding(about=about, column=column, **words)


def check_table(
    source: Source, wanted: Wanted, site: str, passage: Passage, declared: int | None, today: date
) -> tuple[dict[str, float], list[Finding]]:
    """A table in figures, and what is found in the columns that the study names, the worst first.
    ``declared``: the size that the study states."""
    look = _Look(source, wanted, site, passage, today)
    patients, y = distinct(look.read.keys), look.read.outcome
    tested = int(np.count_nonzero(held_out(patients, wanted.holdout)))
    train = len(patients) - tested
    figures = {"rows": len(y), "patients": len(patients), "train": train, "test": tested}
    found = [*look.everything()]
    if declared is not None and train:
        off = max(train / declared, declared / train)
        level = "stop" if off >= 2 else "look" if off > 1.25 else "fine"
        unit = max(1, 10 ** (len(str(train)) - 2))  # two digits are enough, and tell less
        better = round(train / unit) * unit
        found.append(say("size", level=level, declared=declared, train=train, better=better))
    if look.labels == 2 and (y >= 0).any():
        return {**figures, "prevalence": float(np.mean(y[y >= 0] == 1))}, by_level(found)
    return dict(figures), by_level(found)


def by_level(found: Sequence[Finding]) -> list[Finding]:
    """What says stop first."""
    return sorted(found, key=lambda one: LEVELS.index(one.level))


@dataclass(frozen=True)
class _Look:
    """One table: its typed columns, and single ones as text where those raise a question."""

    source: Source
    wanted: Wanted
    site: str
    passage: Passage
    today: date

    @cached_property
    def read(self) -> Read:
        return read_columns(self.source, self.wanted, self.site, self.passage)

    @property
    def labels(self) -> int:
        return max(self.wanted.labels.codes.values()) + 1

    def texts(self, name: str) -> list[str]:
        """A column, trimmed, without empty cells."""
        if not isinstance(self.source, SourceSpec):
            return []
        schema = self.wanted.schema
        whole = [name, *(c.column for c in schema.include), schema.patient or name]
        with open_table(self.source, whole, site=self.site) as opened:
            asked = {"text": f"coalesce({sql_text(opened, name)}, '')"}
            asked |= self.passage.expressions(opened, schema)
            return [str(t) for t in self.passage.kept(opened.select(asked))["text"] if t]

    def everything(self) -> Iterator[Finding]:
        read, schema = self.read, self.wanted.schema
        for problem in (*self.passage.problems, *read.unreadable):
            yield say("unreadable", problem=problem)
        if read.no_patient:
            yield say("nobody", schema.patient or "", n=read.no_patient)
        if not len(read.keys):
            yield say("empty")
            return
        yield from self.outcome()
        for name, feature in schema.features.items():
            values = read.features[name]
            if isinstance(feature, Image):
                continue
            yield from self.missing(name, values)
            if isinstance(feature, Number):
                yield from self.number(name, feature, values)
            else:
                yield from self.category(name, feature, values)
            yield from self.leak(name, values)
        yield from self.rows()
        yield from self.groups()

    # --- the outcome, and what gives it away --------------------------------------------------------------------------

    def outcome(self) -> Iterator[Finding]:
        name, y, labels = self.wanted.outcome or "", self.read.outcome, self.wanted.labels
        if absent := int(np.count_nonzero(y == MISSING)):
            yield say("outcome-missing", name, n=absent, of=len(y))
        if strange := int(np.count_nonzero(y == UNKNOWN)):
            why = self.spelling([*labels.codes], name, labels.fold)
            yield say("outcome-undeclared", name, n=strange, of=len(y), **why)
        behind = [len(distinct(self.read.keys[y == label])) for label in range(self.labels)]
        least = behind.index(min(behind))
        if (y >= 0).any() and behind[least] < LEAST:
            about = "outcome-rare" if behind[least] else "outcome-constant"
            yield say(about, name, n=behind[least], label=least)

    def leak(self, name: str, values: NDArray[Any]) -> Iterator[Finding]:
        """A column that tells the outcome by itself was most likely recorded after it."""
        y = self.read.outcome
        there, known = ~np.isnan(values) if values.dtype.kind == "f" else values >= 0, y >= 0
        for label in range(1, self.labels):
            ill, well = y == label, known & (y != label)
            if min(map(np.count_nonzero, (ill, well))) < LEAST:
                continue
            share = {"with_it": float(there[ill].mean()), "without": float(there[well].mean())}
            if max(share.values()) >= 0.2 and min(share.values()) <= 0.001:
                only = label if share["with_it"] > 0.1 else f"not {label}"
                yield say("leak-recorded", name, label=only)
                return
            if abs(share["with_it"] - share["without"]) >= 2 * NEARLY - 1:
                yield say("leak-often", name, label=label, **share)
                return
            ill, well = ill & there, well & there
            if min(map(np.count_nonzero, (ill, well))) < LEAST:
                continue
            auc = _auc(values, ill, well)
            if auc >= NEARLY:
                yield say("leak", name, level="stop" if auc >= GIVES_AWAY else "look", auc=auc)
                return

    # --- values -------------------------------------------------------------------------------------------------------

    def missing(self, name: str, values: NDArray[Any]) -> Iterator[Finding]:
        gone, of = np.isnan(values) if values.dtype.kind == "f" else values == MISSING, len(values)
        n = int(np.count_nonzero(gone))
        if n == of:
            yield say("column-empty", name)
        elif n and self.wanted.schema.missing_rule(name) == "refuse":
            yield say("missing-refused", name, n=n, of=of)
        elif n:
            yield say("missing", name, n=n, of=of, level="look" if n >= 0.9 * of else "fine")

    def number(self, name: str, feature: Number, values: Floats) -> Iterator[Finding]:
        there, of = values[np.isfinite(values)], len(values)
        if strange := int(np.count_nonzero(np.isinf(values))):
            why = _written([t for t in self.texts(name) if not _is_number(t)])
            yield say("not-a-number", name, n=strange, of=of, **why)
        if not len(there):
            return
        outside = (there < feature.low) | (there > feature.high)
        codes = [v for v in np.unique(there[outside]) if _code(v, there, feature)]
        for value in codes:
            n = int(np.count_nonzero(there == value))
            yield say("clipped-sentinel", name, n=n, of=of, value=value)
        rest, inside = there[outside & ~np.isin(there, codes)], there[~outside]
        measure = clinical.recognise(name, feature.unit)
        if len(rest):
            yield _clipped(name, feature, len(there), rest, measure)
        if len(inside):
            yield from _odd(name, feature, inside, measure, alone=not len(rest))
        if len(there) >= 20 and there.min() == there.max():
            yield say("constant", name)
        late = int(np.count_nonzero((inside > self.today.year) & (inside < 2200)))
        if late and re.search(r"(^|[\s_.-])(year|yr|jahr|annee|ano)($|[\s_.-])", name.lower()):
            yield say("year-future", name, n=late, of=of)

    def category(self, name: str, feature: Category | Flag, values: Any) -> Iterator[Finding]:
        flag = isinstance(feature, Flag)
        declared = (*NO, *YES) if isinstance(feature, Flag) else feature.values
        if strange := int(np.count_nonzero(values == UNKNOWN)):
            why = self.spelling(declared, name, flag)
            yield say("undeclared", name, n=strange, of=len(values), **why)
        seen = np.bincount(values[values >= 0], minlength=2 if flag else len(declared))
        if np.count_nonzero(seen) == 1 and seen.sum() >= 20:
            yield say("constant", name)
        elif not flag and seen.sum():
            for about, which in (("unseen", seen == 0), ("rare", (seen > 0) & (seen < 5))):
                if which.any():
                    yield say(about, name, values=", ".join(np.array(declared)[which]))

    def spelling(self, declared: Sequence[str], name: str, fold: bool) -> dict[str, str]:
        """Why values are not the declared ones, by most of them, and what to do."""
        known, votes = {value.casefold() for value in declared}, Counter[str]()
        firsts, numbered = {value[:1] for value in known}, {"0", "1"} <= known
        for text in self.texts(name):
            plain = re.sub(r"\.0+$", "", text).casefold()
            if re.sub(r"\.0+$", "", text) in declared or (fold and plain in known):
                continue
            missing = re.fullmatch(_WORDS["written"][0]["shape"], plain)
            votes["letter case" if plain in known
                  else "missing code" if missing
                  else "coded 1 and 2" if numbered and plain.isdigit()
                  else "spelling" if plain[:1] in firsts else "undeclared"] += 1  # fmt: skip
        cause = votes.most_common(1)[0][0] if votes else "undeclared"
        do = "write the declared values in the export, or declare these for all sites"
        return {"cause": cause, "do": _WORDS["written"][0]["do"] if cause == "missing code" else do}

    # --- rows, patients, groups ---------------------------------------------------------------------------------------

    def rows(self) -> Iterator[Finding]:
        read, schema, of = self.read, self.wanted.schema, len(self.read.keys)
        name = schema.patient
        counts = np.unique(read.keys, axis=0, return_counts=True)[1]
        if name is not None:
            if (several := int(np.count_nonzero(counts > 1))) > 0:
                most = int(counts.max())
                yield say("several-rows", name, n=several, patients=len(counts), most=most)
            if beyond := int(np.maximum(counts - schema.rows, 0).sum()):
                yield say("rows-unused", name, n=beyond, of=of, rows_each=schema.rows)
            ids = {text.casefold(): text for text in set(self.texts(name))}
            alike = len(set(self.texts(name))) - len({re.sub(r"^0+(?=.)", "", t) for t in ids})
            if alike:
                yield say("alike", name, n=alike)
        kinds = zip(schema.features.values(), read.features.values(), strict=True)
        numbers = [v for f, v in kinds if isinstance(f, Number)]
        if not any(len(np.unique(v)) > 50 for v in numbers):
            return  # rows of few values are equal by chance
        told = np.isfinite(np.column_stack(numbers)).any(axis=1)
        plain = [np.nan_to_num(v.astype(np.float64), nan=-1e99) for v in read.features.values()]
        content = np.column_stack([*plain, read.outcome])[told]
        keyed = np.column_stack([read.keys[told].view(np.float64), content])
        same = len(keyed) - _different(keyed)
        others = len(keyed) - _different(content) - same
        for about, n, sure in (("same-row", same, True), ("same-values", others, len(numbers) > 2)):
            if sure and n >= max(2, SELDOM * of):
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
            large = [f"{label} {n:,}" for label, n in zip(labels, behind, strict=True) if n >= LEAST]
            yield say("groups", name, listed=", ".join(large) or "none of 10 or more")
            if len(large) < len(labels):
                yield say("group-small", name, n=len(labels) - len(large), of=len(labels))
        if read.protected is not None and schema.protected is not None:
            name = schema.protected.column
            if strange := int(np.count_nonzero(read.protected == UNKNOWN)):
                why = self.spelling(schema.protected.values, name, False)
                yield say("undeclared", name, n=strange, of=len(read.keys), **why)
        for name in dict.fromkeys((*schema.groups, *(c.column for c in schema.include))):
            texts = self.texts(name)
            dates = [t[:10] for t in texts if re.fullmatch(r"\d{4}-\d{2}-\d{2}([ T].*)?", t)]
            none = sum(day in _NO_DATE for day in dates)
            late = sum(day > self.today.isoformat() for day in dates if day not in _NO_DATE)
            for about, n in (("date-none", none), ("date-future", late)):
                if n:
                    yield say(about, name, n=n, of=len(texts))


def _auc(values: NDArray[Any], ill: NDArray[np.bool_], well: NDArray[np.bool_]) -> float:
    """How often an ill patient's value is the larger (or the smaller) one, ties counting half; of a
    category, its share of the outcome."""
    both = ill | well
    score, positive = values[both], ill[both]
    if values.dtype.kind != "f":
        score = (np.bincount(score, positive) / np.maximum(np.bincount(score), 1))[score]
    _, place, count = np.unique(score, return_inverse=True, return_counts=True)
    rank, n = (np.cumsum(count) - (count - 1) / 2)[place], int(np.count_nonzero(positive))
    above = (float(rank[positive].sum()) - n * (n + 1) / 2) / (n * (len(rank) - n))
    return max(above, 1 - above)


def _clipped(
    name: str, feature: Number, of: int, rest: Floats, measure: clinical.Measure | None
) -> Finding:
    """Values beyond the bounds that are no code: another unit, a date, or a bound that does not
    fit."""
    low, share = int(np.count_nonzero(rest < feature.low)), len(rest) / of
    parts = ((low, f"below {feature.low:g}"), (len(rest) - low, f"above {feature.high:g}"))
    sides = " and ".join(f"{n:,} {side}" for n, side in parts if n)
    sides += f", of {_rows(of)} ({_share(share)}),"
    level = "fine" if len(rest) < FEW else "stop" if share >= OFTEN else "look"
    if unit := _unit(name, feature, rest, measure):
        cause = f"unit: {unit}"
        to = feature.unit or "the declared unit"
        return say("clipped-unit", name, level=level, cause=cause, sides=sides, unit=to)
    if np.mean((rest >= 19000101) & (rest <= 22001231) & (rest // 100 % 100 <= 12)) >= 0.8:
        return say("clipped-date", name, sides=sides)
    level = "fine" if share < SELDOM else level
    usual = f"; plausible values are {measure.low:g} to {measure.high:g}" if measure else ""
    return say("clipped-bound", name, level=level, sides=sides, usual=usual)


def _unit(name: str, feature: Number, rest: Floats, measure: clinical.Measure | None) -> str:
    """The unit that brings most values from outside the bounds inside them; "" where none does.

    It must give ordinary values; or, where nobody knows what is ordinary, the values must lie apart
    from the bounds: what begins at a bound is cut off by it.
    """
    edge = np.where(rest > feature.high, rest - feature.high, feature.low - rest)
    apart = float(np.quantile(edge, 0.1)) > 0.1 * (feature.high - feature.low)
    normal = feature.normal or (measure.normal if measure else None)
    low, high = normal or (feature.low, feature.high)
    best: list[tuple[float, str]] = []
    for unit, factor, offset in _other_units(feature, measure):
        moved = rest * factor + offset
        middle = float(np.median(moved))
        fits = np.mean((moved >= feature.low) & (moved <= feature.high)) >= 0.8
        if fits and ((0.5 * low <= middle <= 2 * high) if normal else apart):
            best.append((abs(middle - (low + high) / 2), unit))
    return min(best)[1] if best else ""


def _other_units(
    feature: Number, measure: clinical.Measure | None
) -> Iterator[tuple[str, float, float]]:
    """Units in which a column may have been recorded, with factor and offset to the declared one."""
    if measure is not None:
        yield from clinical.other_units(measure, feature.unit)
        return
    for power in (10, 100, 1000):
        yield f"{power} times too large", 1 / power, 0.0
        yield f"{power} times too small", float(power), 0.0


def _odd(
    name: str, feature: Number, inside: Floats, measure: clinical.Measure | None, *, alone: bool
) -> Iterator[Finding]:
    """Values within the bounds that are most likely not what they seem."""
    values, counts = np.unique(inside, return_counts=True)
    of, zero = len(inside), int(counts[values == 0].sum())
    if measure and feature.low <= 0 < measure.low and zero >= max(FEW, SELDOM * of):
        yield say("sentinel-zero", name, n=zero, of=of, low=measure.low)
        return
    for end, rest in ((-1, values[:-1]), (0, values[1:])):
        value, n = values[end], int(counts[end])
        if n >= FEW and len(rest) >= 10 and _repeated(value):
            gap = min(abs(value - rest[0]), abs(value - rest[-1]))
            if gap > 0.5 * (rest[-1] - rest[0]):
                yield say("sentinel", name, n=n, of=of, value=value)
    normal, middle = feature.normal or (measure.normal if measure else None), float(np.median(inside))
    if normal is None or not alone or normal[0] / 3 <= middle <= 3 * normal[1]:
        return
    for unit, factor, offset in _other_units(feature, measure):
        if 0.7 * normal[0] <= middle * factor + offset <= 1.5 * normal[1]:
            facts = {"cause": f"unit: {unit}", "low": normal[0], "high": normal[1]}
            yield say("unit", name, unit=feature.unit or "the declared unit", **facts)
            return


def _code(value: float, there: Floats, feature: Number) -> bool:
    """Whether a value outside the bounds is a code for "missing": written as one, and away from the
    bound or alone beyond it."""
    if not _repeated(value) and value not in (-1, -9):
        return False
    high = value > feature.high
    beyond = np.unique(there[there > feature.high] if high else there[there < feature.low])
    away = abs(value - (feature.high if high else feature.low)) / (feature.high - feature.low)
    often = np.count_nonzero(there == value) >= FEW and all(map(_repeated, beyond))
    return bool(away > 0.25 or value < 0 <= feature.low or often)


def _repeated(value: float) -> bool:
    """Whether a number is written as codes for "missing" are.

    >>> [_repeated(value) for value in (-999, 99.9, 888, 9, 98.6, 77)]
    [True, True, True, False, False, False]
    """
    digits = f"{abs(value):.10g}".replace(".", "")
    return set(digits) in ({"9"}, {"8"}, {"7"}) and len(digits) >= (2 if digits[0] == "9" else 3)


def _written(texts: Sequence[str]) -> dict[str, str]:
    """Why cells are no numbers, by the shape of most of them, and what to do."""
    kinds = _WORDS["written"]
    votes = Counter(
        next(i for i, kind in enumerate(kinds) if re.fullmatch(kind["shape"], text, re.S))
        for text in texts
    )
    kind = kinds[votes.most_common(1)[0][0] if votes else -1]
    return {"cause": kind["cause"], "do": kind["do"]}


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def _different(rows: Floats) -> int:
    """How many different rows."""
    return len(set(np.ascontiguousarray(rows).view(f"V{rows.shape[1] * 8}").ravel().tolist()))


def _rows(count: int) -> str:
    return f"{count:,} row" + ("" if count == 1 else "s")


def _share(share: float) -> str:
    return "all" if share == 1 else f"{100 * share:.2g}%"
