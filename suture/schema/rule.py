"""A cohort rule: which rows a study is about, as plain conditions that a charter, a study and a
site read alike.

No SQL: a condition names a column and gives a range or a list of values, so an ethics board can
read it and two rules can be compared for being the same. A row is in the cohort when every
condition holds; a missing value holds for none.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator


class Condition(BaseModel):
    """``min`` and ``max`` (both inclusive) on a number, or ``values`` of a text.

    >>> Condition(column="age", min=18, max=89).words
    'age from 18 to 89'
    >>> Condition(column="ward", values=("icu", "cardiology")).words
    'ward one of cardiology, icu'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

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
        """The condition for people."""
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
    """Whether two rules say the same; the order of conditions has no meaning.

    >>> a, b = Condition(column="age", min=18), Condition(column="sex", values=("F", "M"))
    >>> same_rule([a, b], [b, a]), same_rule([a], [a, b])
    (True, False)
    """
    one, other = (sorted(str(c.plain()) for c in rule) for rule in (first, second))
    return one == other


def rule_words(rule: Iterable[Condition]) -> str:
    """A rule for people.

    >>> rule_words([])
    'every row'
    """
    return " and ".join(condition.words for condition in rule) or "every row"
