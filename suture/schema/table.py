"""What a site's table must look like, declared in public before any row is read.

The width, the names and the scaling of the encoded features follow from the schema alone. Nothing
is fitted on rows: a mean or a maximum computed from patients would be a release that somebody has
to pay for, and every site would get its own. Numbers are scaled by their declared bounds,
categories and flags by their declared values.

| kind     | encoded as                                                         | missing (neutral fill)     |
|----------|--------------------------------------------------------------------|----------------------------|
| number   | one column, ``2 (x - low) / (high - low) - 1`` clipped to [-1, 1]  | 0, the middle of the bounds |
| flag     | one column, 0 or 1                                                 | 0.5                        |
| category | one column per declared value, 0 or 1                              | 0 in every column          |
| image    | one column per pixel, row by row, 0 (dark) to 1                    | see `Image`                |

A feature with ``missing = "indicator"``, which is the default, has one more column, 1 where the
value is missing, right after its own.

A number may also declare its ``normal`` range and clinical ``thresholds``. They do not change the
encoding: they give the readable concepts of `suture.models.concepts`. Any feature may be marked
``protected`` (an attribute that law or ethics protects) or ``proxy`` (it reflects the process of
care, not the patient's biology), so that explanations can warn.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    field_validator,
    model_validator,
)

from suture.errors import StudyError

Missing = Literal["fill", "indicator", "refuse"]
"""A missing value is filled, filled and marked in a column of its own, or refused with an error."""

Worse = Literal["high", "low", "both"]
"""Which direction of a number is known to raise the risk."""

EXAMPLES = {
    "number": 'age = { kind = "number", low = 18, high = 100, unit = "years" }',
    "category": 'sex = { kind = "category", values = ["F", "M"] }',
    "flag": 'smoker = { kind = "flag" }',
    "image": 'image = { kind = "image" }',
}
"""One correct line of each kind, shown by the errors."""

CLINICAL_EXAMPLE = 'rate = { kind = "number", low = 0, high = 60, normal = [12, 20], thresholds = { low = 8, high = 25 } }'


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Condition(_Frozen):
    """One condition of a cohort rule: ``min`` and ``max`` (both inclusive) on a number, or ``values``
    of a text. A row is in the cohort when every condition holds; a missing value holds for none.

    There is no SQL: an ethics board can read a rule, and two rules can be compared.
    """

    column: str = Field(min_length=1)
    min: float | None = None
    max: float | None = None
    values: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Condition:
        bounded = self.min is not None or self.max is not None
        if bounded == (self.values is not None):
            raise ValueError(
                'give min and max, or values; for example: { column = "age", min = 18, max = 89 }'
            )
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min must not be above max, found {self.min:g} and {self.max:g}")
        if self.values is not None and not self.values:
            raise ValueError("values is empty, so no row would be in the cohort")
        return self

    @property
    def words(self) -> str:
        """The condition for people.

        >>> Condition(column="age", min=18, max=89).words
        'age from 18 to 89'
        """
        if self.values is not None:
            return f"{self.column} one of {', '.join(sorted(self.values))}"
        if self.min is None:
            return f"{self.column} up to {self.max:g}"
        upper = "" if self.max is None else f" to {self.max:g}"
        return f"{self.column} from {self.min:g}{upper}"

    def plain(self) -> dict[str, JsonValue]:
        """Plain values; the order of ``values`` has no meaning and is not kept."""
        found = self.model_dump(mode="json", exclude_none=True)
        return found | ({} if self.values is None else {"values": sorted(self.values)})


def same_rule(first: Iterable[Condition], second: Iterable[Condition]) -> bool:
    """Whether two rules say the same; the order of conditions has no meaning."""
    one, other = (sorted(str(c.plain()) for c in rule) for rule in (first, second))
    return one == other


def rule_words(rule: Iterable[Condition]) -> str:
    """A rule for people."""
    return " and ".join(condition.words for condition in rule) or "every row"


class Thresholds(_Frozen):
    """Clinical cut-offs of a number, one or several on each side; a value *beyond* one (not at it)
    counts as past it.

    >>> Thresholds(low=8, high=[25, 35])
    Thresholds(low=(8.0,), high=(25.0, 35.0))
    """

    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    @field_validator("low", "high", mode="before")
    @classmethod
    def _one_or_several(cls, value: object) -> object:
        return (value,) if isinstance(value, int | float) else value


class Number(_Frozen):
    """A number with declared bounds; values outside are clipped to them, and counted."""

    kind: Literal["number"] = "number"
    low: float
    high: float
    unit: str = ""
    label: str = ""
    normal: tuple[float, float] | None = None
    thresholds: Thresholds | None = None
    worse: Worse | None = None
    """The direction known to raise the risk, from clinical knowledge; None: not known."""
    protected: bool = False
    proxy: bool = False
    missing: Missing | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Number:
        if self.normal is not None and not self.low <= self.normal[0] < self.normal[1] <= self.high:
            raise ValueError(
                f"normal must be a range within the bounds {self.low:g} to {self.high:g}, found "
                f"{list(self.normal)}; for example: {CLINICAL_EXAMPLE}"
            )
        if self.thresholds is not None:
            low, high = self.thresholds.low, self.thresholds.high
            cuts = [self.low, *low, *(self.normal or ()), *high, self.high]
            rising = all(a <= b for a, b in pairwise(cuts))
            differ = len({*low, *high}) == len(low) + len(high)
            inside = self.low not in low and self.high not in high
            if not (low or high) or not (rising and differ and inside):
                raise ValueError(
                    "thresholds must rise from the lower bound through low, the normal range and "
                    f"high to the upper bound, found {[float(f'{cut:g}') for cut in cuts]}; for "
                    f"example: {CLINICAL_EXAMPLE}"
                )
        # The width must be finite too, or scaling would divide by infinity.
        finite = math.isfinite(self.low) and math.isfinite(self.high - self.low)
        if not finite or self.low >= self.high:
            raise ValueError(
                f"bounds must be finite and low < high, found low = {self.low:g}, high = "
                f"{self.high:g}; for example: {EXAMPLES['number']}"
            )
        return self


class Category(_Frozen):
    """One of a few declared values, matched exactly (case counts, spaces around do not)."""

    kind: Literal["category"] = "category"
    values: tuple[str, ...]
    label: str = ""
    protected: bool = False
    proxy: bool = False
    missing: Missing | None = None

    @model_validator(mode="after")
    def _values(self) -> Category:
        trimmed = [value.strip() for value in self.values]
        # "1" and "1.0" count as one value: files write a whole number either way.
        different = {re.sub(r"^([+-]?[0-9]+)\.0+$", r"\1", value) for value in trimmed}
        if len(trimmed) < 2 or len(different) < len(trimmed) or "" in trimmed:
            raise ValueError(
                f"values must be two or more different, non-empty texts, found {list(self.values)}; "
                f"for example: {EXAMPLES['category']}"
            )
        if trimmed != list(self.values):
            raise ValueError(f"values must not begin or end with spaces; write {trimmed}")
        return self


class Flag(_Frozen):
    """Yes or no: 0/1, true/false, yes/no, y/n or t/f, in any case."""

    kind: Literal["flag"] = "flag"
    label: str = ""
    protected: bool = False
    proxy: bool = False
    missing: Missing | None = None


class Image(_Frozen):
    """A column that names one image file per row; in a built-in cohort, the images themselves. See
    docs/imaging.md.

    An image is resampled to ``size`` x ``size`` pixels of one channel from 0 to 1. It is the only
    feature of its schema: other columns can be groups. A file that is missing or broken is refused,
    or its row skipped, as the study's ``[images]`` table says.
    """

    kind: Literal["image"] = "image"
    size: int = Field(default=64, ge=8, le=1024)
    label: str = ""


Feature = Annotated[Number | Category | Flag | Image, Field(discriminator="kind")]


class Protected(_Frozen):
    """The column whose declared groups a fair method treats alike, one group per patient; missing
    means no group."""

    column: str
    values: tuple[str, ...]

    @model_validator(mode="after")
    def _values(self) -> Protected:
        Category(values=self.values)
        return self


class Schema(_Frozen):
    """The public description of every site's table: patient column, group columns, features in
    order.

    ``missing`` is the rule for features that do not state their own; by default a missing value is
    filled and marked.

    >>> schema = Schema(patient="id", features={"age": Number(low=18, high=98), "sex": Category(values=("F", "M"))})
    >>> feature_names(schema)
    ('age', 'age (missing)', 'sex = F', 'sex = M', 'sex (missing)')
    """

    patient: str | None = None
    groups: tuple[str, ...] = ()
    protected: Protected | None = None
    """Which of ``groups`` fair methods train for; other groups are only measured."""
    missing: Missing = "indicator"
    include: tuple[Condition, ...] = ()
    """The cohort rule: rows for which every condition holds; others never pass the wall."""
    rows: int = Field(default=64, ge=1)
    """The most rows of one patient that are used, chosen by their content, not by their order."""
    features: dict[str, Feature]

    @model_validator(mode="after")
    def _consistent(self) -> Schema:
        if not self.features:
            raise ValueError(f"at least one feature is needed; for example: {EXAMPLES['number']}")
        for name in (*self.features, *self.groups, self.patient or "id"):
            if name.strip() in ("", "*"):
                raise ValueError(f"a column needs a name, found {name!r}")
        if self.patient in self.features or self.patient in self.groups:
            raise ValueError(
                f"the patient column {self.patient!r} cannot be a feature or a group: it names one "
                "person; remove it from [schema.features] and groups"
            )
        if len(set(self.groups)) < len(self.groups):
            raise ValueError(f"groups must differ, found {list(self.groups)}")
        if self.protected is not None and self.protected.column not in self.groups:
            raise ValueError(
                f"protected.column must be one of groups {list(self.groups)}, found "
                f"{self.protected.column!r}; add it there"
            )
        if len(self.features) > 1 and self.image is not None:
            raise ValueError(
                "an image must be the only feature; move the other columns of [schema.features] to "
                "groups, or drop them"
            )
        twice = sorted(name for name, times in Counter(feature_names(self)).items() if times > 1)
        if twice:
            raise ValueError(f"two features give the encoded column {twice[0]!r}; rename one")
        return self

    def missing_rule(self, feature: str) -> Missing:
        """What happens to a missing value of this feature."""
        declared = self.features[feature]
        return "refuse" if isinstance(declared, Image) else declared.missing or self.missing

    @property
    def image(self) -> str | None:
        """The column that names image files, or None for an ordinary table."""
        return next((name for name, f in self.features.items() if isinstance(f, Image)), None)

    @property
    def image_size(self) -> int | None:
        """Pixels along each side of an image, or None for an ordinary table."""
        return next((f.size for f in self.features.values() if isinstance(f, Image)), None)

    @property
    def width(self) -> int:
        """How many encoded columns: the number of inputs of every model of the study."""
        return len(feature_names(self))

    @classmethod
    def parse(cls, data: Mapping[str, object], *, where: str = "schema") -> Schema:
        """Build a schema from plain data (a TOML table), or raise a StudyError naming the field."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise StudyError(explain(error, where)) from None


def feature_names(schema: Schema) -> tuple[str, ...]:
    """The names of the encoded columns, in order.

    >>> feature_names(Schema(features={"film": Image(size=8)}))[-1]
    'film 7,7'
    """
    names: list[str] = []
    for name, feature in schema.features.items():
        if isinstance(feature, Image):
            names += [f"{name} {i},{j}" for i in range(feature.size) for j in range(feature.size)]
            continue
        values = feature.values if isinstance(feature, Category) else ()
        names += [f"{name} = {value}" for value in values] or [name]
        if schema.missing_rule(name) == "indicator":
            names.append(f"{name} (missing)")
    return tuple(names)


def explain(error: ValidationError, where: str) -> str:
    """A pydantic error in the words of a study file: one line per problem, the field's path first,
    the fix last. Works for any model that holds a schema (``where=""`` for a whole study).

    >>> try:
    ...     Schema.model_validate({"features": {"sex": {"kind": "category"}}})
    ... except ValidationError as error:
    ...     print(explain(error, "schema"))
    schema.features.sex.values: Field required; for example: sex = { kind = "category", values = ["F", "M"] }
    """
    lines = []
    for problem in error.errors():
        location = [str(part) for part in problem["loc"]]
        message, kind = problem["msg"].removeprefix("Value error, "), None
        if "features" in location:
            # After features.<name>, pydantic names the branch of the union it tried; a study file
            # has no such level.
            branch = location.index("features") + 2
            if location[branch : branch + 1] and location[branch] in EXAMPLES:
                kind = location.pop(branch)
        if problem["type"].startswith("union_tag"):
            message, kind = 'kind must be "number", "category", "flag" or "image"', "number"
        if problem["type"] == "extra_forbidden":
            message = "this setting is not known"
        if "for example" not in message and kind is not None:
            message += f"; for example: {EXAMPLES[kind]}"
        lines.append(f"{'.'.join(part for part in [where, *location] if part)}: {message}")
    return "\n".join(lines)
