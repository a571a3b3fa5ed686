"""The public clinical dictionary: what a column's name says about the measurement in it.

`clinical.toml` beside this file holds some 200 vital signs, laboratory values, scores and body
measures with their spellings, codes, units and plausible bounds, each with its source. It is public
knowledge: a bound taken from here costs no privacy, whatever the rows hold.

A name is taken apart into a core, the statistic (``_max``, ``mean_``) and the unit (``_mg_dl``,
``(mmHg)``). The core must be a known spelling as a whole, and a unit must be one in which that
measure is recorded: a column that is wrongly recognised would be clipped to bounds of something
else, so what is doubtful is not recognised.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from suture.schema.table import Number, Thresholds, Worse

LEVELS = frozenset({"", "first", "last", "min", "max", "mean", "median"})
"""Statistics whose values lie in the measure's own bounds; a count or a slope does not."""


@dataclass(frozen=True)
class Measure:
    """One measurement of the dictionary; units are UCUM codes."""

    name: str
    label: str
    unit: str
    low: float
    high: float
    sources: tuple[str, ...]
    names: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()
    with_unit: tuple[str, ...] = ()
    loinc: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    """Other units in which sites record it."""
    normal: tuple[float, float] | None = None
    thresholds: Thresholds | None = None
    worse: Worse | None = None
    molar: float | None = None
    """Grams per mole, where molar units are in use."""
    valence: int | None = None
    """Equivalents per mole, where equivalents are in use."""
    linear: tuple[tuple[str, float, float], ...] = ()
    """Units with a published formula: (unit, factor, offset)."""

    @property
    def shown(self) -> str:
        """The unit as people write it; empty for a plain number."""
        return "" if self.unit in ("1", "{score}") else shown(self.unit)

    def number(self) -> Number:
        """The measure as a feature of a schema.

        >>> recognise("lactate").number().thresholds
        Thresholds(low=(), high=(4.0, 10.0))
        """
        return Number(
            low=self.low, high=self.high, unit=self.shown, label=self.label, normal=self.normal,
            thresholds=self.thresholds, worse=self.worse,
        )  # fmt: skip


@dataclass(frozen=True)
class Named:
    """What a column's name says: the measure, the statistic ("" for none), the unit ("": not said)."""

    measure: Measure
    statistic: str = ""
    unit: str = ""


@cache
def _file() -> dict[str, Any]:
    text = files("suture.schema").joinpath("clinical.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def dictionary() -> dict[str, Measure]:
    """Every measure by its name.

    >>> dictionary()["glucose"].molar
    180.156
    """
    found = {}
    for name, told in _file()["measures"].items():
        given = {key: tuple(v) if isinstance(v, list) else v for key, v in told.items()}
        low, high = given.pop("bounds")
        cuts: dict[str, Any] | None = told.get("thresholds")
        found[name] = Measure(**{
            **given, "name": name, "low": low, "high": high,
            "thresholds": None if cuts is None else Thresholds(**cuts),
            "linear": tuple((u, *pair) for u, pair in told.get("linear", {}).items()),
            "sources": tuple(_file()["sources"][key] for key in told["sources"]),
        })  # fmt: skip
    return found


def by_loinc(code: str) -> Measure | None:
    """The measure with a LOINC code; None where two share it or none has it.

    >>> by_loinc("8480-6").name
    'systolic'
    """
    found = [one for one in dictionary().values() if code in one.loinc]
    return found[0] if len(found) == 1 else None


def plain(text: str) -> str:
    """Letters and digits alone, accents and case folded.

    >>> plain("Größe (cm)"), plain("µmol/L"), plain("Hct %")
    ('grossecm', 'umoll', 'hctpct')
    """
    folded = text.replace("%", "pct").replace("µ", "u").replace("μ", "u").replace("ß", "ss")
    return re.sub(r"[^a-z0-9]", "", unicodedata.normalize("NFKD", folded).lower())


def shown(unit: str) -> str:
    """A UCUM code as people write it.

    >>> shown("mm[Hg]"), shown("mg/kg")
    ('mmHg', 'mg/kg')
    """
    return str(_file()["units"].get(unit, [unit])[0])


@cache
def _spellings() -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """UCUM codes by exact spelling, and by folded spelling ("G/L" and "g/L" are two units)."""
    exact, folded = {}, dict[str, tuple[str, ...]]()
    for code, written in _file()["units"].items():
        for text in (code, *written):
            exact[text] = code
            folded[plain(text)] = tuple(dict.fromkeys((*folded.get(plain(text), ()), code)))
    return exact, folded


def unit_codes(text: str) -> tuple[str, ...]:
    """The UCUM codes that a written unit may mean, exact spelling first; () where none is known.

    >>> unit_codes("mmHg"), unit_codes("MG/DL"), unit_codes("bananas")
    (('mm[Hg]',), ('mg/dL',), ())
    """
    exact, folded = _spellings()
    text = text.strip()
    return (exact[text],) if text in exact else folded.get(plain(text), ())


@cache
def _cores() -> tuple[dict[str, Measure], dict[str, Measure], dict[str, Measure]]:
    """Measures by folded spelling, by exact symbol, and by spelling that needs a unit."""
    every = dictionary().values()
    return (
        {plain(text): one for one in every for text in one.names},
        {text: one for one in every for text in one.symbols},
        {plain(text): one for one in every for text in one.with_unit},
    )


@cache
def _statistics() -> dict[str, str]:
    return {word: kind for kind, words in _file()["statistics"].items() for word in words}


def recognise(column: str, unit: str = "") -> Measure | None:
    """The measure that a column's name (and its unit, where it is known) stands for.

    >>> [recognise(name).name for name in ("TOTCHOL", "chol_mg_dl", "HR_max", "Temp (°C)", "d1_sysbp_min")]
    ['cholesterol', 'cholesterol', 'heart_rate', 'temperature', 'systolic']
    >>> recognise("ca"), recognise("chol_mmhg"), recognise("glucose", "mmHg")
    (None, None, None)
    """
    found = read_name(column, unit)
    return None if found is None else found.measure


def read_name(column: str, unit: str = "") -> Named | None:
    """The measure, the statistic and the unit that a column's name says.

    >>> found = read_name("creat_max_umol_l")
    >>> found.measure.name, found.statistic, found.unit
    ('creatinine', 'max', 'umol/L')
    """
    if len(column) > 200:
        return None
    codes = unit_codes(unit) if unit.strip() else ()
    if unit.strip() and not codes:
        return None
    for words, inside in _without_unit(column):
        for core, statistic in _without_statistic(words):
            given = inside or codes
            measure = _measure(core, bool(given))
            if measure is None:
                continue
            allowed = [one for one in given if one in (measure.unit, *measure.units)]
            if (given and not allowed) or (inside and codes and not set(inside) & set(codes)):
                return None
            return Named(measure, statistic, allowed[0] if allowed else "")
    return None


def _without_unit(column: str) -> Iterator[tuple[list[str], tuple[str, ...]]]:
    """The name's words, whole and then without a unit at their end, with that unit's codes."""
    inside = re.fullmatch(r"(.+?)[\s_]*[\[(]([^\[\]()]+)[\])]\s*", column)
    if inside is not None:
        codes = unit_codes(inside.group(2))
        if codes:
            yield _words(inside.group(1)), codes
        return
    words = _words(column)
    yield words, ()
    for tail in range(1, min(6, len(words))):
        written = plain("".join(words[-tail:]))
        if written not in _statistics():  # "hr_min" is the lowest, not "per minute"
            codes = _spellings()[1].get(written, ())
            if codes:
                yield words[:-tail], codes


def _without_statistic(words: list[str]) -> Iterator[tuple[list[str], str]]:
    yield words, ""
    apart = [part for word in words for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[^A-Z]+", word)]
    for parts in (words, apart):
        if len(parts) > 1:
            known = _statistics()
            if parts[-1].lower() in known:
                yield parts[:-1], known[parts[-1].lower()]
            if parts[0].lower() in known:
                yield parts[1:], known[parts[0].lower()]


def _words(text: str) -> list[str]:
    return [word for word in re.split(r"[\s_.,;:/\\|-]+", text.strip()) if word]


def _measure(words: list[str], beside_unit: bool) -> Measure | None:
    names, symbols, with_unit = _cores()
    core = plain("".join(words))
    window = re.sub(r"^(d|h|day|hour)[0-9]+", "", core)  # of the first day, of the first hour
    found = names.get(core) or names.get(window) or symbols.get("".join(words))
    return found or (with_unit.get(core) if beside_unit else None)


# --- units ------------------------------------------------------------------------------------------------------------


def convert(unit: str, target: str, measure: Measure | None = None) -> tuple[float, float] | None:
    """Factor and offset from one unit to another, as written or in UCUM; None where there is none.

    Pint converts; the dictionary adds what no unit library can know: the molar mass, the valence of
    equivalents, and published formulas.

    >>> convert("°F", "Cel"), convert("mmol/L", "mg/dL", recognise("glucose"))
    ((0.555555555556, -17.7777777778), (18.0156, 0.0))
    >>> convert("mEq/L", "mmol/L", recognise("magnesium")), convert("mmol/L", "mg/dL")
    ((0.5, 0.0), None)
    """
    known = () if measure is None else (measure.unit, *measure.units)
    start, end = _code(unit, known), _code(target, known)
    if start == end:
        return 1.0, 0.0
    published = {} if measure is None else {u: (by, plus) for u, by, plus in measure.linear}
    if measure is not None and end == measure.unit and start in published:
        return published[start]
    molar, valence = (measure.molar, measure.valence or 0) if measure else (None, 0)
    try:
        return _converted(start, end, molar, valence)
    except ValueError:
        return None


def other_units(measure: Measure, unit: str = "") -> Iterator[tuple[str, float, float]]:
    """The other units of a measure as people write them, with factor and offset to ``unit`` (by
    default the measure's own).

    >>> [(unit, factor) for unit, factor, _ in other_units(recognise("creatinine"))]
    [('µmol/L', 0.011312)]
    """
    target = unit or measure.unit
    for code in (measure.unit, *measure.units):
        found = convert(code, target, measure)
        if found is not None and found != (1.0, 0.0):
            yield shown(code), *found


def _code(unit: str, known: tuple[str, ...]) -> str:
    """The UCUM code of a written unit, preferring those of the measure; else the text itself."""
    codes = unit_codes(unit)
    return next((code for code in codes if code in known), codes[0] if codes else unit.strip())


def is_unit(text: str) -> bool:
    """Whether a written unit is known, here or to UCUM.

    >>> is_unit("mmHg"), is_unit("ug/h"), is_unit("bananas")
    (True, True, False)
    """
    return bool(unit_codes(text)) or convert(f"10.{text.strip()}", text) is not None


@cache
def _registry() -> Any:
    from ucumvert import PintUcumRegistry  # half a second, only where a unit differs

    return PintUcumRegistry()


@cache
def _converted(start: str, end: str, molar: float | None, valence: int) -> tuple[float, float]:
    """Through Pint; a ValueError where the units do not fit."""
    import pint
    from lark.exceptions import LarkError

    registry, scale = _registry(), 1.0
    units = []
    for code, power in ((start, -1), (end, 1)):
        moles = re.sub(r"(?<![a-z])([mun]?)eq\b", r"\1mol", code)
        if moles != code:
            if not valence:
                raise ValueError(f"{code} needs a valence")
            scale *= valence**power
        try:
            units.append(registry.from_ucum(moles))
        except (LarkError, pint.PintError, ValueError):
            raise ValueError(f"{code} is not a unit") from None
    one, other = units
    about = {"mw": registry.Quantity(molar, "g/mol")} if molar else None
    try:
        ends = [
            registry.Quantity(value * one.magnitude, one.units)
            .to(other.units, *(["chemistry"] if about else []), **(about or {}))
            .magnitude
            / other.magnitude
            for value in (0.0, 1.0)
        ]
    except pint.PintError:
        raise ValueError(f"{start} is not converted to {end}") from None
    # twelve figures: what two floating-point numbers cannot tell apart is one factor
    return float(f"{scale * (ends[1] - ends[0]):.12g}"), float(f"{scale * ends[0]:.12g}")
