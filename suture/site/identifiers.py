"""What the eighteen Safe Harbor identifiers are called and look like, in eight languages.

A column's name is read word by word against a lexicon (`identifiers.toml`), in any letter case, with
or without accents, written together or apart; its values are tried against signs: shapes, check
digits (python-stdnum) and lists of common names and cities (`names.toml`). `judge` weighs both. A
hint alone never decides: ``phone_consult`` is a yes or no, ``device_count`` a number.

There are four verdicts: drop, generalise, keep, and *look*. A column is kept only if it is recognised
as harmless, by its name and its values; what is recognised as neither waits for a person. Values
never leave: a `Finding` holds the column, the category, shares and counts, and what to do.

The list is that of 45 CFR 164.514(b)(2)(i), (A) to (R). A sign is no proof: names have no shape, and
a number is an identifier because of what it stands for. docs/deidentification.md says what is missed.
"""

from __future__ import annotations

import importlib
import ipaddress
import re
import tomllib
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date, timedelta
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from suture.errors import DataError
from suture.schema.clinical import recognise

Report: TypeAlias = dict[str, Any]  # plain JSON without a patient's value
_DATA, _LISTS = (
    tomllib.loads((Path(__file__).parent / name).read_text(encoding="utf-8"))
    for name in ("identifiers.toml", "names.toml")
)
CATEGORIES: dict[str, str] = _DATA["categories"]
RESTRICTED_ZIP3 = frozenset(_DATA["values"]["restricted_zip3"].split())
"""Three-digit areas of 20,000 people or fewer, by Census 2000 (the 17 of the guidance of 2012) or
2010. The rule binds to the current census: pass newer ones to `apply`."""
INSIDE: dict[str, str] = _DATA["inside"]
"""What texts are searched for, by category."""
LOOKS: tuple[str, str] = (_DATA["looks"]["from"], _DATA["looks"]["to"])
_CLEAN = {ord(c): LOOKS[1][i] if i < len(LOOKS[1]) else None for i, c in enumerate(LOOKS[0])}
_PLAIN = str.maketrans({"ß": "ss", "ł": "l", "ø": "o", "æ": "ae", "œ": "oe", "đ": "d", "ı": "i"})


def clean(text: str) -> str:
    """A text without letters that only look like ours, and without those that nobody sees."""
    return text.translate(_CLEAN).strip()


def fold(text: str) -> str:
    """Lower case, without accents.

    >>> fold("Prénom"), fold("STRASSE") == fold("Straße"), fold("Nаme")  # with a Cyrillic a
    ('prenom', True, 'name')
    """
    apart = unicodedata.normalize("NFKD", clean(text).lower().translate(_PLAIN))
    return "".join(c for c in apart if not unicodedata.combining(c))


def _folded(text: str) -> frozenset[str]:
    return frozenset(fold(text).split())


FIRST_NAMES, LAST_NAMES = (_folded(" ".join(_LISTS[key].values())) for key in ("first", "last"))
CITIES = frozenset(fold(c.strip()) for text in _LISTS["cities"].values() for c in text.split(","))
FLAGS, SAFE, UNITS = (_folded(_DATA["values"][key]) for key in ("flags", "safe", "units"))
_MONTHS = {w: i for i, names in enumerate(_DATA["values"]["months"], 1) for w in names.split()}
_PER_YEAR = {w: int(n) for n, text in _DATA["values"]["age_units"].items() for w in text.split()}

# --- what a column's name hints at ------------------------------------------------------------------------------------

_TAGS: dict[str, frozenset[str]] = {}
for _tag, _by_language in _DATA["words"].items():
    for _word in _folded(" ".join(_by_language.values())):
        _TAGS[_word] = _TAGS.get(_word, frozenset()) | {_tag}
_STEMS = {word[:-1]: tags for word, tags in _TAGS.items() if word.endswith("*")}
_ENDS = {word[1:]: tags for word, tags in _TAGS.items() if word.startswith("*")}
_RULES = [(rule.split(": ")[0], rule.split(": ")[1].split()) for rule in _DATA["hints"]["rules"]]
CLINICAL = ("coded", "measure", "year")
"""Hints that a column is nobody's, if its values agree."""


def words_of(column: str) -> list[str]:
    """A column's name as folded words.

    >>> words_of("PatientLastName"), words_of("ZIP_code5"), words_of("home.Téléphone#")
    (['patient', 'last', 'name'], ['zip', 'code5'], ['home', 'telephone'])
    """
    text = re.sub(r"([^\W\d_A-ZÀ-Þ])([A-ZÀ-Þ])", r"\1 \2", clean(column))
    text = re.sub(r"([A-ZÀ-Þ]+)([A-ZÀ-Þ][^\W\d_A-ZÀ-Þ])", r"\1 \2", text)
    return re.findall(r"[a-z0-9]+", fold(text))


def _known(word: str) -> frozenset[str] | None:
    """The tags of a word, or of the stem or the end that it shows."""
    found = _TAGS.get(word) or _TAGS.get(word.removesuffix("s"))
    if found is None and len(word) > 3:
        stems = [stem for stem in _STEMS if word.startswith(stem)]
        found = _STEMS[max(stems, key=len)] if stems else None
    return found


SHORT = _folded("id nr no dt nm cd dx bp hr yn")
"""The only words of two letters that end a word which is written together."""
LANGUAGES = [["en"], ["fr"], ["ar"], ["es"], ["nl"], ["pl"], ["pt"]]


@cache
def _compound(word: str) -> frozenset[str] | None:
    """The tags of a word that is made of known ones: patientennachname, datanascita, lastname."""
    for cut in range(len(word) - 2, 2, -1):
        head = _known(word[:cut])
        if head is None:
            continue
        for link in ("", "s", "n", "en", "es"):
            rest = word[cut:].removeprefix(link) if word[cut:].startswith(link) else ""
            if len(rest) < 3 and rest not in SHORT:
                continue
            if tail := _known(rest) or _compound(rest):
                return head | tail
    return None


@cache
def tags_of(column: str) -> frozenset[str]:
    """What the words of a column's name stand for; ``unknown`` where a word stands for nothing."""
    # A letter says something alone (k: potassium), and nothing beside words (k_nummer); nor does the
    # language that ends a name (NomFr).
    spoken = words_of(column)
    words = [word for word in spoken[: -1 if spoken[-1:] in LANGUAGES else None] if len(word) > 1]
    words, tags, at = words or spoken, set[str](), 0
    while at < len(words):
        for size in (4, 3, 2, 1):
            joined = "".join(words[at : at + size])
            found = _known(joined) if at + size <= len(words) else None
            if found is not None:
                break
        if found is None:
            bare = re.sub(r"\d+", "", words[at])
            found = _known(bare) or _compound(bare)
            tails = (_compound(bare[cut:]) for cut in range(3, len(bare) - 5) if found is None)
            if tail := next(filter(None, tails), None):
                found = tail | {"unknown"}
            if found is None:
                ends = [end for end in _ENDS if len(bare) > len(end) and bare.endswith(end)]
                found = frozenset({"unknown"}) | (_ENDS[max(ends, key=len)] if ends else set())
            found = found if bare else frozenset()
        tags |= found
        at += size
    return frozenset(tags)


@cache
def hint_of(column: str) -> str | None:
    """What a column's name hints at: a category, ``age``, ``zip``, ``postcode``, ``birthpart``,
    ``datepart``, ``text``, ``where``, one of `CLINICAL`, ``counted``, ``number`` (of something unknown), or None."""
    tags = tags_of(column)
    fit = (
        hint
        for hint, wanted in _RULES
        if all((tag[1:] not in tags) if tag[0] == "!" else (tag in tags) for tag in wanted)
    )
    hint = next(fit, None)
    measure = recognise(column) if hint in (None, "number") else None
    return hint if measure is None else "age" if measure.name == "age" else "measure"


def per_year(column: str) -> int:
    """How many of the units that a column's name gives an age in make a year.

    >>> per_year("age_months"), per_year("Alter")
    (12, 1)
    """
    return max((_PER_YEAR[w] for w in words_of(column) if len(w) > 2 and w in _PER_YEAR), default=1)


# --- what its values look like ----------------------------------------------------------------------------------------


def vin(text: str) -> bool:
    """A vehicle identification number's check digit (49 CFR 565.15)."""
    values = dict(zip("ABCDEFGHJKLMNPRSTUVWXYZ0123456789", [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 7, 9, 2, 3, 4, 5, 6, 7,
                      8, 9, *range(10)], strict=True))  # fmt: skip
    weights = (8, 7, 6, 5, 4, 3, 2, 10, 0, 9, 8, 7, 6, 5, 4, 3, 2)
    rest = sum(w * values.get(c, 0) for w, c in zip(weights, text.upper(), strict=True)) % 11
    return text[8].upper() == ("X" if rest == 10 else str(rest))


def ip_address(text: str) -> bool:
    """A version 4 or 6 address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _dea(text: str) -> bool:
    a, b, c, d, e, f, check = (int(digit) for digit in text[2:])
    return (a + c + e + 2 * (b + d + f)) % 10 == check


def _telephone(text: str) -> bool:
    return 7 <= sum(c.isdigit() for c in text) <= 18 and not dated(text) and not measured(text)


def year_in(text: str, this_year: int, *, named: bool = False) -> int | None:
    """The year of a date in any common form, of eight languages; None if it is not understood. Where
    the column is ``named`` as a date, bare years, spreadsheet serials and seconds since 1970 count.

    >>> [year_in(t, 2026) for t in ("02-JUN-52", "3. Mai 1952", "1952/06/02", "120/80", "19520602")]
    [1952, 1952, 1952, None, 1952]
    >>> year_in("19148", 2026, named=True), year_in("19148", 2026)
    (1952, None)
    """
    parts = re.findall(r"[a-z]+|\d+", re.sub(r"[t ,]*\d{1,2}[:h]\d{2}.*$", "", fold(text)))
    digits = [part for part in parts if part.isdigit()]
    months = [word for word in parts if word in _MONTHS]
    others = [
        word for word in parts if not word.isdigit() and word not in _MONTHS and len(word) > 2
    ]
    if len(parts) == 1 and digits:
        return _bare_year(digits[0], named)
    years = [part for part in digits if re.fullmatch(r"(?:1[89]|20)\d\d", part)]
    rest = [int(part) for part in digits if part not in years]
    if len(years) > 1 or len(others) > 1 or len(months) > 1:
        return None
    if not years:
        if len(rest) + len(months) != 3 or len(digits[-1]) != 2:
            return None
        # A year of two digits is the latest that is not in the future.
        short = rest.pop()
        year = this_year - (this_year - short) % 100
    else:
        year = int(years[0])
    if len(rest) + len(months) not in (1, 2) or not all(1 <= part <= 31 for part in rest):
        return None
    return year if months or min(rest) <= 12 else None


def _bare_year(digits: str, named: bool) -> int | None:
    if len(digits) in (8, 12, 14):
        for form in (
            (digits[:4], digits[4:6], digits[6:8]),
            (digits[4:8], digits[2:4], digits[:2]),
        ):
            try:
                found = date(*map(int, form))
            except ValueError:
                continue
            if 1880 <= found.year <= 2100:
                return found.year
    if not named:
        return None
    if re.fullmatch(r"(?:1[89]|20)\d\d", digits):
        return int(digits)
    if len(digits) in (4, 5):
        return (date(1899, 12, 30) + timedelta(int(digits))).year
    if len(digits) in (10, 13):
        return 1970 + int(digits[:10]) // 31_556_952
    return None


def dated(text: str) -> bool:
    """Whether a text is a date."""
    return year_in(text, 2026) is not None


_AGE = re.compile(r"(\d{1,5}(?:[.,]\d+)?)\s*([a-z]*)\.?(?:\s*(?:old|alt|\d+\s*[a-z]+))?")
_BAND = re.compile(r"(\d{1,3})\s*[a-z]*\s*(?:-|to|bis|a|tot|ate|do|and|<)\s*(\d{1,3})\s*[a-z]*")
_BEYOND = re.compile(r"(?:[<>]=?|[a-z ]{0,14}?)\s*(\d{1,3})\s*(?:\+|[a-z ]{0,20})")


def age_in(text: str, per_year: int = 1) -> str | None:
    """An age with everything over 89 as "90+"; None if it is not understood.

    >>> [age_in(t) for t in ("91", "92 ans", "90-99", "85-94", "61 Jahre", "14 months", ">89", "old")]
    ['90+', '90+', '90+', '85+', '61', '14 months', '90+', None]
    """
    plain = fold(text)
    if (found := _AGE.fullmatch(plain)) and (unit := _PER_YEAR.get(found[2] or "y")):
        number, unit = float(found[1].replace(",", ".")), unit if found[2] else per_year
        if number > 89 * unit:
            return "90+"
        return plain if unit > 1 and found[2] else f"{number:g}"
    if found := _BAND.fullmatch(plain):
        low, high = int(found[1]), int(found[2])
        return "90+" if low > 89 * per_year else f"{low}+" if high > 89 * per_year else text.strip()
    if found := _BEYOND.fullmatch(plain):
        under = plain.startswith("<") or re.match(r"under|unter|moins|menos|meno|onder|poni", plain)
        over = int(found[1]) >= 89 * per_year and not (under and int(found[1]) <= 90 * per_year)
        return "90+" if over else text.strip()
    return None


def zip3_in(text: str, restricted: frozenset[str]) -> str | None:
    """The first three digits of a ZIP code; 000 where few people live."""
    found = re.fullmatch(r"(\d{3,5})(?:\.0)?(?:-\d{4})?", clean(text))
    if found is None:
        return None
    zip3 = found[1].zfill(5)[:3]  # a spreadsheet drops the zero in front of a New England ZIP code
    return "000" if zip3 in restricted else zip3


_MEASURE = re.compile(
    r"[<>=≤≥~±]{0,2}\s*[-+]?(?:\d+(?:[.,]\d*)*|[.,]\d+)(?:e[-+]?\d+)?\s*([a-zµμ°%]*)(?:/[\wµμ.²^]+){0,2}"
    r"|\d{1,3}(?:[.,]\d+)?\s*[/:x]\s*\d{1,4}(?:[.,]\d+)?(?::\d\d)?\s*([a-zµμ]*)"
    r"|[0-8]?\d(?:[.,]\d+)?\s?-\s?[0-8]?\d(?:[.,]\d+)?"
)


def measured(text: str) -> bool:
    """A number with or without a unit, a blood pressure, a ratio, a time of day, a range below 90.

    >>> [measured(text) for text in ("120/80", "< 0,5 mg/dL", "1:80", "12 Lee", "Lee")]
    [True, True, True, False, False]
    """
    found = _MEASURE.fullmatch(text.strip().lower())
    return found is not None and all(not unit or fold(unit) in UNITS for unit in found.groups())


def harmless(text: str) -> bool:
    """A value that is recognised: a measurement, or made of words that categories are made of."""
    words = re.findall(r"[^\W\d_]+", fold(text))
    return measured(text) or (bool(words) and all(w in SAFE or w in FLAGS for w in words)
                              and sum(c.isdigit() for c in text) < 4) or text.lower() in FLAGS  # fmt: skip


def person(text: str) -> int:
    """How many words of the text are common first or last names, and not words of categories."""
    words = re.findall(r"[^\W\d_]+", fold(text))
    return sum((w in FIRST_NAMES or w in LAST_NAMES) and w not in SAFE for w in words)


_CHECKS: dict[str, Callable[[str], bool]] = {
    "ip_address": ip_address,
    "vin": vin,
    "dea": _dea,
    "telephone": _telephone,
    "dated": dated,
    "compact_date": lambda text: _bare_year(text, named=False) is not None,
    "city": lambda text: fold(text) in CITIES,
    "kvnr": lambda text: importlib.import_module("stdnum.luhn").is_valid(
        f"{ord(text[0].upper()) - 64:02d}{text[1:]}"
    ),
}


@dataclass(frozen=True)
class Sign:
    """One shape of values: a pattern for the whole value, and an optional check of its content."""

    name: str
    category: str
    pattern: str
    check: str = ""
    least: float = 0.0
    """Least share of the values; 0 for a strong sign, which counts alone."""
    spread: float = 0.0
    mixed: float = 0.02
    """From which share on a strong sign is more than chance."""
    how: str = ""

    @property
    def proven(self) -> bool:
        """Whether a check digit speaks for it, whatever the column is called."""
        return bool(self.least) and self.check.startswith(("stdnum", "kvnr", "compact"))

    def fits(self, text: str) -> bool:
        """Whether a whole value shows the sign."""
        if _compiled(self.pattern).fullmatch(text) is None:
            return False
        if self.check.startswith("stdnum"):
            return bool(importlib.import_module(self.check).is_valid(text))
        return not self.check or _CHECKS[self.check](text)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


SIGNS = tuple(Sign(**sign) for sign in _DATA["sign"])


@dataclass(frozen=True)
class Finding:
    """What a column seems to be, and what to do with it. Holds no value."""

    column: str
    category: str | None  # one of the eighteen, ``text`` for free text, or None
    sign: str
    share: float  # share of the values that show the sign
    confidence: str
    action: str  # keep, drop, generalise, or look: not recognised, a person decides
    how: str = ""  # with generalise: year, age, zip3 or redact
    inside: dict[str, float] = field(default_factory=dict)
    """For texts: share of values with an identifier of each category somewhere inside."""

    def as_dict(self) -> Report:
        """Plain JSON."""
        words = "free text" if self.category == "text" else CATEGORIES.get(self.category or "", "")
        return {**asdict(self), "rule": words, "how": _DATA["how"].get(self.how, "")}


@dataclass(frozen=True)
class Values:
    """A column's values: their shape over all rows, and a sample of distinct ones (never shown)."""

    rows: int
    distinct: int
    numeric: float
    decimals: float
    words: float
    least: float
    most: float
    kind: str
    sample: list[tuple[str, float]]
    """Distinct values, and for how many rows each stands: texts first, so that few texts among many
    numbers are all seen."""
    inside: dict[str, float]

    @property
    def spread(self) -> float:
        """Distinct values per row."""
        return self.distinct / self.rows if self.rows else 0.0

    @property
    def grades(self) -> bool:
        """So few values in so many rows that they are grades or classes."""
        return self.distinct <= 12 and self.rows >= 4 * self.distinct

    @property
    def few(self) -> bool:
        """A handful of values that return again and again."""
        return self.distinct <= 12 and self.spread < 0.05

    def share(self, fits: Callable[[str], object]) -> float:
        """Share of the sampled values that fit."""
        total = sum(count for _, count in self.sample)
        return sum(count for value, count in self.sample if fits(value)) / total if total else 0.0


def refuse_data_as_names(names: Sequence[str], place: str) -> None:
    """Refuse a file without a header, or with people in it: what it prints would name a patient."""
    strong = [s for s in SIGNS if not s.least and s.category not in ("photo", "biometric")]

    def of_somebody(name: str) -> bool:
        words = set(re.findall(r"[a-z]+", fold(name)))
        both = words & FIRST_NAMES and words & LAST_NAMES and len(words) > 1 and person(name) > 1
        known = any(_known(word) for word in words)
        return bool(both and not known) or any(sign.fits(clean(name)) for sign in strong)

    if any(of_somebody(name) for name in names):
        raise DataError(
            f"{place}: the first line looks like a patient's data, not like column names (they are "
            "not shown); add a header line, or rename the columns that are called after people"
        )


# --- the judgement ----------------------------------------------------------------------------------------------------

_CODE = re.compile(r"(?=[^\s]*\d)[A-Za-z0-9][A-Za-z0-9_./:#-]{3,}")
_GROUPS = re.compile(r"(?!.*[^\W\d_]{4})(?:[^\s]{1,5} )+[^\s]{1,5}")
_MEDICAL_CODE = re.compile(
    r"[A-Z]\d[\dA-Z](?:\.?[\dA-Z]{1,4})?[+*!]?|[A-Z]\d{2}[A-Z]{2}\d{2}|\d{3,5}-\d|\d{4,5}-\d{3,4}-\d{1,2}"
    r"|rs\d+|\d-\d{3}(?:\.\w{1,2})?|[A-Z]{4}\d{3}|\d{3}\.\d{1,2}|[VE]\d{2,3}\.\d"
)
_PART = r"(?:[^\W\d_a-z][^\W\d_]*|van|von|der|den|de|del|della|di|da|do|dos|das|la|le|ter|ten|zu|y|e)[.]?"
_NAME = rf"{_PART}(?:[-'’]{_PART})*"
_NAME_SHAPE = re.compile(rf"(?:\w{{1,5}}\.\s?)*{_NAME}(?:,? {_NAME}){{1,5}}")


def _coded(text: str) -> bool:
    """A code, also in groups: ``AB 12 34 56 C``."""
    whole = text.replace(" ", "") if _GROUPS.fullmatch(text) else text
    digits = sum(c.isdigit() for c in text)
    fits = _CODE.fullmatch(whole) and (whole == text or digits > 4)
    return bool(fits) and not measured(text)


def judge(column: str, seen: Values, this_year: int, beside: Sequence[str] = ()) -> Finding:
    """Weigh a column's name against its values. ``beside``: the columns to its left and right."""
    hint = hint_of(column)
    if hint == "number" and tags_of(column) <= {"number", "qualifier"}:
        # A number of nothing in particular beside a street is the house's.
        hint = "geography" if any(hint_of(other) == "geography" for other in beside) else hint
    if not seen.rows:
        return _keep(column, "empty")
    if seen.kind.startswith(("DATE", "TIMESTAMP")):
        return _act(column, "date", "date type", confidence="high", how="year")
    if all(value.lower() in FLAGS for value, _ in seen.sample):
        return _keep(column, "yes or no")
    return (
        _by_value(column, hint, seen)
        or _by_name(column, hint, seen, this_year)
        or _by_shape(column, hint, seen)
        or _by_inside(column, seen)
        or _recognised(column, hint, seen)
    )


def _keep(column: str, why: str) -> Finding:
    return Finding(column, None, why, 0.0, "", "keep")


def _look(column: str, why: str, category: str | None = None, share: float = 0.0) -> Finding:
    return Finding(column, category, why, share, "", "look")


def _act(
    column: str,
    category: str,
    sign: str,
    share: float = 1.0,
    confidence: str = "medium",
    how: str = "",
    inside: dict[str, float] | None = None,
) -> Finding:
    action = "generalise" if how else "drop"
    return Finding(column, category, sign, share, confidence, action, how, inside or {})


def _by_value(column: str, hint: str | None, seen: Values) -> Finding | None:
    """Signs that count alone: at least half of the values show one."""
    shares: dict[str, tuple[float, Sign]] = {}
    for sign in SIGNS:
        share = 0.0 if sign.least else seen.share(sign.fits)
        if share >= sign.mixed and share > shares.get(sign.category, (0.0, sign))[0]:
            shares[sign.category] = (share, sign)
    if not shares:
        return None
    best = max(shares, key=lambda category: (shares[category][0], category == hint))
    share, sign = shares[best]
    if share < 0.5:
        if hint is not None and hint not in (*CLINICAL, "counted"):
            return None  # its name says what it is
        # A tenth of the values are still people's: taken, unless the column's name is clinical.
        why = f"some values: {sign.name}"
        clinical = hint in CLINICAL
        return _look(column, why, best, share) if clinical else _act(column, best, why, share)
    if hint in ("fax", "phone") and best in ("fax", "phone"):
        best = hint  # the two have one shape
    how = "year" if best == "date" else "zip3" if sign.name == "ZIP+4" else ""
    inside = seen.inside if seen.words > 4 and not how else {}
    return _act(column, best, sign.name, share, "high", how, inside)


def _by_name(column: str, hint: str | None, seen: Values, this_year: int) -> Finding | None:
    """What the name hints at, unless the values speak against it."""
    number = seen.numeric > 0.95
    if hint is None or hint in (*CLINICAL, "counted"):
        return None
    if hint == "age":
        if seen.share(age_in) < 0.5:
            return None
        banded = not number and all(age_in(value) == value for value, _ in seen.sample)
        kept = _keep(column, "age bands, none over 89 apart from 90+")
        return kept if banded else _act(column, "date", "named as an age", 1.0, "high", "age")
    if hint in ("birthpart", "datepart"):
        if hint == "datepart" and number:
            return _look(column, "part of a date, or a count", "date")
        return _act(column, "date", "part of a date")
    if hint == "text":
        prose = seen.words >= 3 or (seen.spread > 0.5 and seen.numeric < 0.5 and seen.distinct > 20)
        return _act(column, "text", "free text", inside=seen.inside) if prose else None
    if hint == "date":
        if seen.share(lambda value: year_in(value, this_year, named=True)) >= 0.5:
            long = not number or seen.most >= 1800  # shorter numbers are days since something
            return _act(column, "date", "named as a date", how="year") if long else None
        few = number and (seen.decimals > 0.1 or seen.distinct < 400)
        return None if few else _act(column, "date", "named as a date", confidence="low")
    if number and (seen.grades or (seen.decimals > 0.1 and hint != "geography")):
        return None
    if hint == "zip":
        return _act(column, "geography", "named as a ZIP code", 1.0, "high", "zip3")
    if hint == "where" and (number or seen.grades or seen.share(harmless) > 0.5):
        return None
    if hint in ("geography", "postcode", "where"):
        return _act(column, "geography", "named as a place")
    if hint == "number":
        coded = number or seen.share(_CODE.fullmatch) > 0.5
        single = coded and seen.rows >= 20 and seen.spread > 0.5 and not 0 < seen.most < 10_000
        return _act(column, "other", "named as a number", confidence="low") if single else None
    if seen.few and hint != "name":
        return None
    return _act(column, hint, "named as one", inside=seen.inside if seen.words > 4 else {})


def _by_shape(column: str, hint: str | None, seen: Values) -> Finding | None:
    """Signs that many columns could show: nearly every value must, and must single people out. Under
    a clinical name only a check digit counts."""
    many = seen.distinct >= 20
    for sign in sorted(SIGNS, key=lambda sign: not sign.proven):
        if sign.least and (sign.proven or hint not in CLINICAL) and seen.spread >= sign.spread:
            enough = seen.distinct >= (5 if sign.proven else 20) or sign.category == "geography"
            if enough and (share := seen.share(sign.fits)) >= sign.least:
                return _act(column, sign.category, sign.name, share, how=sign.how)
    clinical, number = hint in CLINICAL, seen.numeric > 0.95
    if not clinical and seen.words >= 5 and seen.spread > 0.1 and seen.distinct > 20:
        return _act(column, "text", "free text", inside=seen.inside)
    shape, listed = seen.share(_NAME_SHAPE.fullmatch), seen.share(person)
    if seen.share(lambda value: person(value) > 1) > 0.2:
        return _act(column, "name", "common names", listed)
    if not clinical and shape > 0.8 and (listed > 0.5 or (many and max(listed, seen.spread) > 0.5)):
        return _act(column, "name", "shaped as names", shape)
    if not clinical and many and listed > 0.3:
        return _act(column, "name", "common names", listed)
    numbered = bool(tags_of(column) & {"number", "id"})  # a department's number returns
    spare = clinical and not (numbered and seen.spread > 0.95)
    if seen.decimals > 0.01 or seen.rows < 20 or (spare and (number or seen.spread < 0.9)):
        return None
    if number:
        widths = {len(value) for value, _ in seen.sample}
        long = min(widths) >= 9 or (len(widths) == 1 and min(widths) >= 6)
        long = long or (numbered and min(widths) >= 5)
        return _act(column, "other", "unique number") if seen.spread > 0.95 and long else None
    share = seen.share(_coded)
    single = seen.spread > 0.5 or (seen.spread > 0.1 and seen.distinct > 200)
    if share > 0.95 and seen.share(_MEDICAL_CODE.fullmatch) < 0.5 and single:
        return _act(column, "other", "unique code", share)
    if seen.share(lambda value: len(value) > 40 and " " not in value) > 0.9 and seen.spread > 0.5:
        return _act(column, "biometric", "long encoded data", confidence="low")
    return None


def _by_inside(column: str, seen: Values) -> Finding | None:
    """An identifier somewhere inside a value, be it in one row."""
    if not seen.inside:
        return None
    category, share = max(seen.inside.items(), key=lambda item: item[1])
    return _act(column, category, "inside some values", share, inside=seen.inside)


def _recognised(column: str, hint: str | None, seen: Values) -> Finding:
    """Keep what is recognised as harmless, by name and values; the rest is for a person to look at."""
    clinical = hint in (*CLINICAL, "counted")
    known = seen.share(harmless)
    plain = seen.numeric > 0.95 and (seen.grades or hint == "where")
    plain = plain or (hint in ("text", "where") and known > 0.999)
    if hint is not None and not clinical and not plain:
        category = hint if hint in CATEGORIES else None
        return _look(column, "its name and its values do not agree", category)
    if seen.numeric > 0.95 and known > 0.999:
        return _number(column, hint, seen)
    if known > 0.999:
        return _keep(column, "measurements or words of a category")
    if known > 0.95:
        return _look(column, "some values are not recognised", share=1 - known)
    coded = seen.share(lambda value: _MEDICAL_CODE.fullmatch(value) or harmless(value))
    if coded > 0.95 and (clinical or coded > 0.999):
        return _keep(column, "medical codes")
    if seen.distinct <= 12 and seen.rows >= 20 and all(len(value) <= 3 for value, _ in seen.sample):
        return _keep(column, "short codes")
    single = seen.distinct >= 20 and seen.spread > 0.5
    if hint == "coded" and single and seen.words >= 5:
        return _act(column, "text", "free text", inside=seen.inside)
    if hint == "coded" and not single and seen.share(lambda value: person(value) > 1) < 0.02:
        towns = seen.share(lambda value: fold(value) in CITIES)
        if max(seen.share(person), towns) < 0.3:
            return _keep(column, "category or code, by its name")
    return _look(column, "text that is not recognised", "name")


def _number(column: str, hint: str | None, seen: Values) -> Finding:
    """A number that is measured is kept; one that could be an age, a place or a key is not."""
    widths = {len(value) for value, _ in seen.sample}
    whole, long = seen.decimals < 0.01, len(widths) == 1 and min(widths) >= 6
    keys = whole and seen.rows >= 20 and seen.distinct > 50
    if keys and seen.spread > 0.95 and (long or hint != "measure"):
        return _look(column, "whole numbers, another in every row", "other")
    if hint in CLINICAL:
        return _keep(column, "number")
    if keys and seen.spread > 0.5 and min(widths) >= 5:
        return _look(column, "whole numbers that could be a key", "other")
    if whole and seen.distinct >= 30 and seen.least >= 0 and 90 <= seen.most <= 125:
        return _look(column, "whole numbers that could be ages", "date")
    fine = seen.share(lambda value: len(value.partition(".")[2]) >= 4) > 0.9
    if fine and 5 < abs(seen.least + seen.most) / 2 <= 180 and seen.most - seen.least < 15:
        return _look(column, "numbers that could be coordinates", "geography")
    return _keep(column, "number")
