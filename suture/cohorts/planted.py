"""A table with identifiers of all eighteen Safe Harbor categories planted in it, to measure
de-identification with.

Each category is under an honest column name and under misleading ones (social security numbers as
``lab_value_2``), beside harmless columns, some of which look like identifiers
(``phone_consult``, five-digit procedure codes, drugs with two capitalised words). Half of the
people have names that are on no list of common names. Everybody is invented. ``planted.toml`` has
the columns.
"""

from __future__ import annotations

import string
import tomllib
from pathlib import Path

import numpy as np

_READ = tomllib.loads(Path(__file__).with_name("planted.toml").read_text("utf-8"))
PLANTED: dict[str, tuple[str, str]] = _READ["planted"]
"""Column: its category, and the pattern of a value."""
HARMLESS: dict[str, str] = _READ["harmless"]
HONEST = frozenset(_READ["honest"].split())
_FIRST, _LAST = _READ["first"].split(), _READ["last"].split()
_SYMBOLS = {
    "": "ABCDEFGHJKLMNPQRSTUVWXYZ" + string.digits,
    "plate": "BCDFGHJKLM",
    "base64": string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/",
    "vin": "ABCDEFGHJKLMNPRSTUVWXYZ" + string.digits,
}
_VIN_VALUES = dict(zip(_SYMBOLS["vin"], map(int, "12345678123457923456789" + string.digits), strict=True))  # fmt: skip
_VIN_WEIGHTS = (8, 7, 6, 5, 4, 3, 2, 10, 0, 9, 8, 7, 6, 5, 4, 3, 2)


class _Draw(string.Formatter):
    """Fills patterns: ``{kind:arguments}`` is a draw by the method of that name, from left to
    right."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def one(self, pattern: str) -> str:
        """A value of a column."""
        return "".join(
            text + (vars(_Draw)[kind](self, *self._arguments(kind, about or "")) if kind else "")
            for text, kind, about, _ in self.parse(pattern)
        )

    @staticmethod
    def _arguments(kind: str, about: str) -> list[str]:
        return about.split("|" if kind == "any" else None)

    def any(self, *values: str) -> str:
        return str(self.rng.choice(values))

    def whole(self, low: str, high: str, form: str = "d") -> str:
        return format(int(self.rng.integers(int(low), int(high))), form)

    def several(self, count: str, low: str, high: str, form: str, between: str) -> str:
        drawn = self.rng.integers(int(low), int(high), int(count))
        return between.join(format(int(value), form) for value in drawn)

    def law(self, name: str, first: str, second: str, form: str) -> str:
        laws = {"gamma": self.rng.gamma, "normal": self.rng.normal, "uniform": self.rng.uniform}
        value = laws[name](float(first), float(second))
        return str(int(value)) if form == "whole" else format(value, form)

    def digits(self, count: str) -> str:
        return "".join(map(str, self.rng.integers(0, 10, int(count))))

    def mixed(self, count: str, symbols: str = "") -> str:
        lower = symbols == "lower"
        text = "".join(self.rng.choice(list(_SYMBOLS["" if lower else symbols]), int(count)))
        return text.lower() if lower else text

    def person(self) -> str:
        first = self.any(*_FIRST)
        middle = "" if self.rng.random() < 0.5 else f" {self.any(*'ABCDEF')}."
        return f"{first}{middle} {self.family()}"

    def family(self) -> str:
        return self.any(*_LAST) + ("" if self.rng.random() < 0.7 else "-" + self.any(*_LAST))

    def address(self) -> str:
        number = self.whole("1", "2000")
        return f"{number} {self.any(*_READ['streets'])} {self.any(*_READ['kinds'])}"

    def day(self, form: str) -> str:
        drawn = np.datetime64("1925-01-01") + self.rng.integers(0, 36_000)
        return str(drawn.item().strftime(form))

    def phone(self) -> str:
        limits = ((201, 989), (200, 999), (0, 10_000))
        parts = [self.rng.integers(*ends) for ends in limits]
        form = ("({}) {}-{:04d}", "{}-{}-{:04d}", "+1 {} {} {:04d}")[self.rng.integers(3)]
        return form.format(*parts)

    def vin(self) -> str:
        text = self.mixed("17", "vin")
        rest = sum(w * _VIN_VALUES[c] for w, c in zip(_VIN_WEIGHTS, text, strict=True)) % 11
        return text[:8] + ("X" if rest == 10 else str(rest)) + text[9:]

    def note(self) -> str:
        text = self.any(*_READ["prose"])
        if self.rng.random() < 0.1:
            text += f", call {self.phone()}"
        return f"{text}; {self.any(*_READ['prose'])}"


def planted(rows: int, seed: int) -> dict[str, list[str]]:
    """The table, column by column, in an order that gives nothing away."""
    rng = np.random.default_rng(seed)
    draw, patterns = _Draw(rng), {**{name: one for name, (_, one) in PLANTED.items()}, **HARMLESS}
    order = rng.permutation(list(patterns)).tolist()
    return {name: [draw.one(patterns[name]) for _ in range(rows)] for name in order}
