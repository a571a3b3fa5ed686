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
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from suture.errors import StudyError
from suture.schema.rule import Condition

Missing = Literal["fill", "indicator", "refuse"]
"""A missing value is filled, filled and marked in a column of its own, or refused with an error."""

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
    """A number with declared bounds; values outside are clipped to them, and counted.

    >>> Number(low=18, high=100, unit="years").high
    100.0
    >>> Number(low=0, high=60, unit="/min", normal=(12, 20), thresholds={"low": 8, "high": 25}).thresholds.high
    (25.0,)
    """

    kind: Literal["number"] = "number"
    low: float
    high: float
    unit: str = ""
    label: str = ""
    normal: tuple[float, float] | None = None
    thresholds: Thresholds | None = None
    protected: bool = False
    proxy: bool = False
    missing: Missing | None = None

    @model_validator(mode="after")
    def _clinical(self) -> Number:
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
        return self

    @model_validator(mode="after")
    def _bounds(self) -> Number:
        # The width must be finite too, or scaling would divide by infinity.
        finite = math.isfinite(self.low) and math.isfinite(self.high - self.low)
        if not finite or self.low >= self.high:
            raise ValueError(
                f"bounds must be finite and low < high, found low = {self.low:g}, high = "
                f"{self.high:g}; for example: {EXAMPLES['number']}"
            )
        return self


class Category(_Frozen):
    """One of a few declared values, matched exactly (case counts, spaces around do not).

    >>> Category(values=("F", "M")).values
    ('F', 'M')
    """

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
    """Yes or no: 0/1, true/false, yes/no, y/n or t/f, in any case.

    >>> Flag(label="smokes now").kind
    'flag'
    """

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

    >>> Image(size=32).size
    32
    """

    kind: Literal["image"] = "image"
    size: int = Field(default=64, ge=8, le=1024)
    label: str = ""


Feature = Annotated[Number | Category | Flag | Image, Field(discriminator="kind")]


class Protected(_Frozen):
    """The column whose declared groups a fair method treats alike, one group per patient; missing
    means no group.

    >>> Protected(column="sex", values=("F", "M")).values
    ('F', 'M')
    """

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
        """What happens to a missing value of this feature.

        >>> schema = Schema(missing="refuse", features={"smoker": Flag(missing="fill"), "diabetic": Flag()})
        >>> schema.missing_rule("smoker"), schema.missing_rule("diabetic")
        ('fill', 'refuse')
        """
        declared = self.features[feature]
        return "refuse" if isinstance(declared, Image) else declared.missing or self.missing

    @property
    def image(self) -> str | None:
        """The column that names image files, or None for an ordinary table.

        >>> Schema(features={"film": Image()}).image
        'film'
        """
        return next((name for name, f in self.features.items() if isinstance(f, Image)), None)

    @property
    def image_size(self) -> int | None:
        """Pixels along each side of an image, or None for an ordinary table.

        >>> Schema(features={"film": Image(size=32)}).image_size, Schema(features={"smoker": Flag()}).image_size
        (32, None)
        """
        return next((f.size for f in self.features.values() if isinstance(f, Image)), None)

    @property
    def width(self) -> int:
        """How many encoded columns: the number of inputs of every model of the study.

        >>> Schema(features={"sex": Category(values=("F", "M"), missing="indicator")}).width
        3
        """
        return len(feature_names(self))

    @classmethod
    def parse(cls, data: Mapping[str, object], *, where: str = "schema") -> Schema:
        """Build a schema from plain data (a TOML table), or raise a StudyError naming the field.

        >>> Schema.parse({"features": {"smoker": {"kind": "flag"}}}).width
        2
        >>> Schema.parse({"features": {"age": {"kind": "date"}}})
        Traceback (most recent call last):
        suture.errors.StudyError: schema.features.age: kind must be "number", "category", "flag" or "image"; \
for example: age = { kind = "number", low = 18, high = 100, unit = "years" }
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise StudyError(explain(error, where)) from None


def feature_names(schema: Schema) -> tuple[str, ...]:
    """The names of the encoded columns, in order.

    >>> age, smoker = Number(low=18, high=98), Flag(missing="fill")
    >>> feature_names(Schema(missing="indicator", features={"age": age, "smoker": smoker}))
    ('age', 'age (missing)', 'smoker')
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
