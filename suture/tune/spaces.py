"""What `suture tune` searches: one list of settings a method, written out. docs/tuning.md shows the
same table.

Settings that are part of the promise (epsilon, delta, the share of honest hospitals) or of the
question (the model's shape, who is held out) are never searched. Clipping is: the noise grows with
it, so the promise is the same at any value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from suture.errors import StudyError

if TYPE_CHECKING:
    from suture.study import Study

ROUNDS = (10, 20, 50)


@dataclass(frozen=True)
class Choice:
    """One of a few values of ``table.key``."""

    name: str
    values: tuple[Any, ...]

    def words(self) -> str:
        """For the table on the page.

        >>> Choice("method.rounds", (10, 20)).words()
        '10, 20'
        """
        return ", ".join(map(str, self.values))


@dataclass(frozen=True)
class Range:
    """Any value from ``low`` to ``high``, evenly spread, or evenly over orders of magnitude with
    ``log``."""

    name: str
    low: float
    high: float
    log: bool = True

    def words(self) -> str:
        """For the table on the page.

        >>> Range("method.rate", 0.03, 3.0).words()
        '0.03 to 3, log'
        """
        return f"{self.low:g} to {self.high:g}{', log' if self.log else ''}"


Space = tuple[Choice | Range, ...]

LOCAL: Space = (
    Choice("method.rounds", ROUNDS),
    Choice("method.local_epochs", (1, 2, 5)),
    Choice("method.batch", (16, 32, 64, 128, 256)),
    Range("method.rate", 0.03, 3.0),
)
CLIP = Range("privacy.clip", 0.1, 3.0)
_SERVER = Range("method.server_rate", 0.003, 0.3)
OWN: dict[str, Space] = {
    "fedavg": (),
    "fedprox": (Range("method.proximal", 0.001, 1.0),),
    "fedadam": (_SERVER,),
    "fedyogi": (_SERVER,),
    "fedadagrad": (_SERVER,),
    "fedcluster": (Choice("method.clusters", (2, 3, 4)), Choice("method.warmup", (2, 5))),
    "ifedavg": (),
    "apfl": (Range("method.alpha", 0.1, 0.9, log=False),),
    "ditto": (Range("method.proximal", 0.001, 1.0),),
    "finetune": (Choice("method.tuning", (0.1, 0.2, 0.4)),),
    "scaffold": (),
    "moon": (
        Choice("method.contrast", (0.1, 1.0, 5.0, 10.0)),
        Choice("method.temperature", (0.1, 0.5, 1.0)),
    ),
    # its penalty trades the metric away on purpose: not something to search by that metric
    "fairfed": (),
    "alone": (),
    "pooled": (),
}
"""What a method that trains by gradient steps has beside `LOCAL`."""
VEIL: dict[str, Space] = {
    "votes": (
        Choice("method.rounds", ROUNDS),
        Choice("method.picks", (1, 2, 4, 6, 8, 12)),
        Range("method.quorum", 0.0, 3.0, log=False),
        Range("method.server_rate", 0.03, 1.0),
        Choice("method.concepts", (20, 40, 60)),
    ),
    "secure": (
        Choice("method.rounds", (4, 5, 6, 8, 10)),
        Choice("method.concepts", (28, 36, 44, 52, 60)),
        Choice("method.teams", (4, 8, 12, 16)),
    ),
}
VEIL["votes+moments"] = VEIL["votes"]
PRINTED: Space = (
    Choice("method.rounds", ROUNDS),
    Choice("method.local_epochs", (1, 2, 5)),
    Choice("method.batch", (16, 32, 64, 128, 256)),
    Range("method.rate", 0.03, 3.0),
    Choice("method.picks", (2, 5, 10, 20)),
    Range("method.quorum", 0.01, 0.5),
    Range("method.server_rate", 0.03, 1.0),
)


def space_of(study: Study, method: str) -> Space:
    """The settings that are searched for a method in this study.

    >>> from suture.study import Study
    >>> [part.name for part in space_of(Study(name="a", outcome="high_risk", cohort="cardio"), "fedadam")]
    ['method.rounds', 'method.local_epochs', 'method.batch', 'method.rate', 'method.server_rate']
    """
    if method == "veil":
        return VEIL[study.method.mode]
    if method == "veil-printed":
        return PRINTED
    if method == "fedsgd":  # one whole gradient a round: no local steps to tune
        return (LOCAL[0], *((CLIP,) if study.private else ()), _SERVER)
    if method not in OWN:
        raise StudyError(
            f"--method: there is no search space for {method!r}; expected one of "
            f"{', '.join(known())}"
        )
    return (*LOCAL, *((CLIP,) if study.private else ()), *OWN[method])


def narrowed(space: Space, only: Mapping[str, Sequence[str]]) -> Space:
    """The space with some settings limited to a few of their values, given as text.

    >>> narrowed((Choice("method.rounds", (4, 5, 6)),), {"rounds": ["4", "5"]})
    (Choice(name='method.rounds', values=(4, 5)),)
    """
    names = [part.name.split(".")[1] for part in space]
    for key in only:
        if key not in names:
            raise StudyError(f"--only: expected one of {', '.join(names)}, found {key!r}")
    found: list[Choice | Range] = []
    for part, name in zip(space, names, strict=True):
        if name not in only:
            found.append(part)
        elif isinstance(part, Choice):
            kept = tuple(value for value in part.values if str(value) in only[name])
            if len(kept) < len(only[name]):
                raise StudyError(
                    f"--only {name}: expected values out of {part.words()}, found "
                    f"{', '.join(only[name])}"
                )
            found.append(replace(part, values=kept))
        else:
            raise StudyError(
                f"--only {name}: any value from {part.words()} is searched; only settings with a "
                "list can be limited"
            )
    return tuple(found)


def known() -> tuple[str, ...]:
    """The methods that can be tuned.

    >>> {"fedavg", "veil"} <= set(known())
    True
    """
    return (*OWN, "fedsgd", "veil", "veil-printed")


def settings(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Flat names as tables of a study; numbers rounded to three figures, which is how they are
    tried and written.

    >>> settings({"method.rate": 0.12345, "method.rounds": 10, "privacy.clip": 0.98765})
    {'method': {'rate': 0.123, 'rounds': 10}, 'privacy': {'clip': 0.988}}
    """
    tables: dict[str, dict[str, Any]] = {}
    for name, value in found.items():
        table, key = name.split(".")
        tables.setdefault(table, {})[key] = (
            float(f"{value:.3g}") if isinstance(value, float) else value
        )
    return tables
