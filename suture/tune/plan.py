"""A search before it starts (docs/tuning.md): whose patients it may see, how many of them, what that
costs in privacy, and which trial is taken.

On generated patients a search costs nothing; on the published sets (`PUBLIC`) nothing that is not
public already: their rows are written, without the test patients, into a scratch folder, and
searched on as a simulation. On a site's own patients every trial would be one more release, and the
choice between trials one more again: `candidates_for` writes a study with a few candidates instead,
whose run pays for all of them and for the choice (`suture/methods/select.py`).

The frugal rule is the one-standard-error rule (Breiman, Friedman, Olshen & Stone 1984, section
3.4.3), with bytes for the size of a tree, and with the error of the *difference* to the best trial:
folds are the same in every trial.
"""

from __future__ import annotations

import inspect
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from suture import cohorts
from suture.errors import PrivacyError, StudyError
from suture.methods.declared import Choice, Range, Space
from suture.methods.registry import declared
from suture.report.words import LOWER_IS_BETTER
from suture.site.reading import hashed, held_out, row_keys
from suture.study import Study


@dataclass(frozen=True)
class Tried:
    """A finished trial: its mean, its folds' values, and the bytes that a hospital sent in one
    training on average."""

    number: int
    value: float
    parts: tuple[float, ...]
    sent: float
    ece: float = 0.0
    """Expected calibration error, mean over folds."""


@dataclass(frozen=True)
class Rule:
    """Which trial is taken: the best, or the one that sends least among those as good (``frugal``),
    within limits on bytes and on the calibration error."""

    frugal: bool = False
    most_bytes: float | None = None
    most_ece: float | None = None


def choose(
    trials: Sequence[Tried],
    *,
    lower: bool = False,
    frugal: bool = False,
    most: float | None = None,
    most_ece: float | None = None,
) -> Tried:
    """The trial to take among those that send at most ``most`` bytes and are calibrated; the
    earlier one of equals.

    >>> a, b, c = Tried(0, 0.80, (0.82, 0.78), 90), Tried(1, 0.79, (0.795, 0.785), 50), Tried(2, 0.77, (0.79, 0.75), 10)
    >>> choose([a, b, c]).number, choose([a, b, c], frugal=True).number, choose([a, b, c], most=20).number
    (0, 1, 2)
    """
    allowed = [
        trial
        for trial in trials
        if (most is None or trial.sent <= most) and (most_ece is None or trial.ece <= most_ece)
    ]
    if not allowed:
        raise ValueError("expected a trial within the limit, found none")
    sign = -1 if lower else 1
    best = max(allowed, key=lambda trial: sign * trial.value)
    if not frugal:
        return best
    as_good = [
        trial for trial in allowed if sign * (best.value - trial.value) <= gap_error(best, trial)
    ]
    return min(as_good, key=lambda trial: (trial.sent, -sign * trial.value))


def gap_error(best: Tried, other: Tried) -> float:
    """The standard error of the mean difference, fold by fold; 0 where there is one fold only.

    >>> round(gap_error(Tried(0, 0.80, (0.82, 0.78), 90), Tried(1, 0.79, (0.795, 0.785), 50)), 4)
    0.015
    """
    gaps = [a - b for a, b in zip(best.parts, other.parts, strict=True)]
    return statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else 0.0


PUBLIC = ("heart", "har", "vsn", "framingham", "physionet")
REAL = (*PUBLIC, "eicu")
"""Federations of real people; whether any other is generated, the federation says itself."""


def without_tested(study: Study, scratch: Path) -> Study:
    """The same study on files in ``scratch`` that hold its training patients only."""
    import pandas as pd

    if study.cohort is None:
        raise StudyError("only a built-in federation can be searched on")
    if study.evaluation.folds:
        raise StudyError(
            f"evaluation.folds: with folds every hospital of {study.cohort.name!r} is tested on, "
            "so no patient is left to tune "
            "on. Set folds = 0, which holds out patients"
        )
    cohort = cohorts.load(study.cohort.name, study.seed, **study.cohort.options())
    schema, sites = study.table or cohort.schema, []
    for i, site in enumerate(cohort.sites):
        table = pd.DataFrame(site.table)
        if site.test is None:
            key, ids = str(study.seed), schema.patient
            known = (
                row_keys(len(table), key)
                if ids is None
                else hashed([str(v) for v in table[ids]], key)
            )
            table = table[~held_out(known, study.evaluation.holdout)]
        path = scratch / f"site-{i}.csv"
        table.to_csv(path, index=False)
        sites.append({"name": site.name, "region": site.region, "data": str(path)})
    fields = {
        key: value
        for key, value in study.to_dict().items()
        if key not in ("cohort", "schema", "classes", "sites")
    }
    labels = study.classes or (cohort.classes if isinstance(cohort.classes, tuple) else ())
    holdout = study.evaluation.holdout or 0.2
    fields["simulation"] = True
    fields["evaluation"] = {**fields["evaluation"], "holdout": float(np.round(holdout, 6))}
    return Study(
        **fields,
        sites=sites,
        schema=schema.model_dump(mode="json", by_alias=True, exclude_none=True),
        **({"classes": labels} if labels else {}),
    )


OTHER_SEED = 1000
"""Generated patients of a search come from the study's seed plus this: none of them is in the
study."""
FOLDS = 3
SIZE = 0.25
LARGE = 20_000
"""A generated federation of more patients than this is searched on `SIZE` of its hospitals, of the
same size each."""


@dataclass(frozen=True)
class Plan:
    """One search: the study that every trial changes, the space, and where it is kept."""

    study: Study
    trial: Study
    method: str
    space: Space
    base: Path
    cost: str
    data: str
    frugal: bool = False
    most: float | None = None
    most_ece: float | None = None

    @property
    def metric(self) -> str:
        """What is searched for."""
        return self.study.evaluation.metric

    @property
    def lower(self) -> bool:
        """Whether less of it is better."""
        return self.metric in LOWER_IS_BETTER

    @property
    def may_end_early(self) -> bool:
        """Whether the median of the others says something about a trial that has not ended.

        Not under a limit on bytes: the trials within it may all lag behind those beyond it. And not
        where the method says that the middle of a training tells nothing about its end.
        """
        spec, one = self.trial.method, declared(self.trial.method.name)
        return self.most is None and one.early(spec.own(one.settings))

    def mark(self) -> str:
        """What must be equal for two searches to be one."""
        trial = self.trial.to_dict() | {"sites": [site.name for site in self.trial.sites]}
        limit = [] if self.most is None else [self.most]
        return json.dumps([trial, [repr(part) for part in self.space], *limit], sort_keys=True)


def make_plan(
    study: Study,
    method: str,
    scratch: Path,
    *,
    on: str | None = None,
    size: float | None = None,
    seed: int | None = None,
    only: Mapping[str, Sequence[str]] | None = None,
) -> Plan:
    """Whose rows the trials train and are measured on, and why that costs nothing; or a refusal."""
    space = narrowed(space_of(study, method), only or {})
    if study.private and declared(method).unproven:
        raise PrivacyError(declared(method).unproven)
    if size is not None and not 0 < size <= 1:
        raise StudyError(
            f"--size: expected a share of the hospitals, over 0 and up to 1, found {size:g}"
        )
    start = study.seed + OTHER_SEED if seed is None else seed
    if study.seed <= start < study.seed + study.evaluation.seeds:
        raise StudyError(
            f"--seed {start} is one of the study's own ({study.seed} and "
            f"{study.evaluation.seeds - 1} more): its patients are "
            "tested on. Choose another"
        )
    source, trial = study, study
    if on is not None:
        if on not in cohorts.COHORTS or not _generated(on, start):
            raise StudyError(
                f"--on: expected a generated federation (cardio, icu, outbreak), found {on!r}"
            )
        fields = {
            key: value
            for key, value in study.to_dict().items()
            if key not in ("sites", "schema", "classes", "positive")
        }
        source = Study(**{**fields, "cohort": {"name": on}, "outcome": _small(on, start).outcome})
    fields = {"method": {"name": method}, "seed": start}
    if source.cohort is not None and _generated(source.cohort.name, start):
        shrunk = _shrunk(source, size)
        folds = min(FOLDS, source.evaluation.folds) if source.evaluation.folds else 0
        trial = source.replace(
            **fields, cohort=shrunk, evaluation={"folds": folds, "seeds": 1, "compare": []}
        )
        words = ", ".join(
            f"{key} {value:,}" if isinstance(value, int) else f"{key} {value}"
            for key, value in shrunk.items()
        )
        data = f"generated patients ({words}, seed {start}), {_manner(trial)}"
        return Plan(
            study, trial, method, space, scratch, "nothing: the patients are generated", data
        )
    if source.cohort is not None and source.cohort.name in PUBLIC:
        inner = without_tested(source, scratch)
        trial = inner.replace(**fields, evaluation={"seeds": 1, "compare": []})
        data = f"the published set {source.cohort.name!r} without the study's test patients, {_manner(trial)}"
        return Plan(study, trial, method, space, scratch, "nothing: the rows are public", data)
    raise PrivacyError(
        "a search on a site's own patients is refused: each trial would be one more release, and so "
        "would be the choice among trials by exact figures. State [privacy], and a few candidates "
        "are written into one study that pays for all of them; or search on a generated "
        "federation: suture tune study.toml --on icu"
    )


def own_patients(study: Study, on: str | None) -> bool:
    """Whether a search would be on patients of the study's sites, about whom it makes a promise."""
    real = study.cohort is None or study.cohort.name == "eicu"
    return on is None and real and study.private


def candidates_for(
    study: Study, method: str, count: int, only: Mapping[str, Sequence[str]] | None = None
) -> Study:
    """The study with candidates: its own settings, and others drawn at random from the search
    space. Nothing is read; the run of it trains all, chooses, and pays within the same promise."""
    if not 2 <= count <= MOST_CANDIDATES:
        raise StudyError(
            f"--trials: on a site's own patients expected 2 to {MOST_CANDIDATES} candidates, found "
            f"{count}: they share one budget"
        )
    # Every candidate has as many rounds as the study says.
    whole = [part for part in space_of(study, method) if part.name != "method.rounds"]
    space = narrowed(tuple(whole), only or {})
    if not declared(method).chooses or not space:
        why = (
            "has nothing to search: its settings follow from public figures"
            if declared(method).chooses
            else "does not end in one model that candidates could be compared by"
        )
        raise StudyError(f"suture tune: {method} {why}. Name another --method")
    base = study.replace(method={"name": method})
    table = base.to_dict()
    rng, found = np.random.default_rng(study.seed), list[dict[str, Any]]()
    found.append({part.name: table[part.name.split(".")[0]].get(_key(part)) for part in space})
    for _ in range(100 * count):
        drawn = {part.name: _drawn(part, rng) for part in space}
        if len(found) < count and settings(drawn) not in map(settings, found):
            found.append(drawn)
    if len(found) < count:
        raise StudyError(f"--trials: there are only {len(found)} different candidates")
    named = [
        {key: v for part in settings(one).values() for key, v in part.items() if v is not None}
        for one in found
    ]
    rounds = 1 + count * study.method.rounds
    return base.replace(
        name=f"{study.name} tuned"[:80], method={"rounds": rounds, "candidates": named}
    )


MOST_CANDIDATES = 8
"""Each of k candidates gets the budget over the root of k: more are not worth it."""


def _key(part: Choice | Range) -> str:
    return part.name.split(".")[1]


def _drawn(part: Choice | Range, rng: np.random.Generator) -> Any:
    if isinstance(part, Choice):
        return part.values[int(rng.integers(len(part.values)))]
    if part.log:
        return float(np.exp(rng.uniform(math.log(part.low), math.log(part.high))))
    return float(rng.uniform(part.low, part.high))


def _manner(trial: Study) -> str:
    folds = trial.evaluation.folds
    return (
        f"{folds} folds of hospitals"
        if folds
        else f"{trial.evaluation.holdout:.0%} of patients held out"
    )


def _small(name: str, seed: int) -> cohorts.Cohort:
    """A federation as small as it can be had: asked for what it is, not for its rows."""
    few = {
        key: value
        for key, value in (("patients", 200), ("hospitals", 2))
        if cohorts.takes(name, key)
    }
    return cohorts.load(name, seed, **few)


def _generated(name: str, seed: int) -> bool:
    return name not in REAL and _small(name, seed).generated


def _shrunk(study: Study, size: float | None) -> dict[str, Any]:
    """The cohort with fewer hospitals of the same size each; a small one is left as it is unless a
    size was asked for."""
    spec = study.cohort
    if spec is None:
        raise StudyError("only a built-in federation can be made smaller")
    given: dict[str, Any] = {"name": spec.name, **spec.options()}
    patients = _default(spec.name, "patients") if "patients" not in given else given["patients"]
    share = (
        size if size is not None else (SIZE if patients is not None and patients > LARGE else 1.0)
    )
    for key, least in (("hospitals", 2 * FOLDS), ("patients", 100)):
        whole = given.get(key, _default(spec.name, key))
        if isinstance(whole, int) and share < 1:
            given[key] = max(min(least, whole), round(share * whole))
    return given


def _default(name: str, option: str) -> Any:
    found = inspect.signature(cohorts.COHORTS[name]).parameters.get(option)
    return None if found is None else found.default


# --- what is searched -------------------------------------------------------------------------


def space_of(study: Study, method: str) -> Space:
    """The settings that are searched for a method in this study: what the method declares.

    >>> from suture.study import Study
    >>> [part.name for part in space_of(Study(name="a", outcome="high_risk", cohort="cardio"), "fedadam")]
    ['method.rounds', 'method.local_epochs', 'method.batch', 'method.rate', 'method.server_rate']
    """
    one = declared(method)
    return one.searched(study.method.own(one.settings), study.private)


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
