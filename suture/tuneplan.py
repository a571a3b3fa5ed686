"""A search before it starts: whose patients it may see, how many of them, and what that costs in privacy.

**What a search costs in privacy.** On generated patients nothing: nobody is there. On the published sets `heart`, `har` and
`vsn` nothing that is not public already; rows of test patients are taken out before the search sees a table. On a site's
own patients every trial would be one more release, and the choice between trials one more again (it is made from exact
validation figures), so it is refused; ``on`` searches on a generated federation instead.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suture import cohorts
from suture.errors import PrivacyError, StudyError
from suture.methods import NOT_PRIVATE
from suture.report.words import LOWER_IS_BETTER
from suture.spaces import Space, narrowed, space_of
from suture.study import Study
from suture.tunedata import PUBLIC, REAL, without_tested

OTHER_SEED = 1000
"""Generated patients of a search come from the study's seed plus this: none of them is in the study."""
FOLDS = 3
SIZE = 0.25
LARGE = 20_000
"""A generated federation of more patients than this is searched on `SIZE` of its hospitals, of the same size each."""


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

        Not under a limit on bytes: the trials within it may all lag behind those beyond it. And not in VEIL's secure mode: its
        first three rounds only measure, so that a short training has no model yet where a longer one has.
        """
        spec = self.trial.method
        return self.most is None and not (spec.name == "veil" and spec.mode == "secure")

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
    if study.private and method in NOT_PRIVATE:
        raise PrivacyError(NOT_PRIVATE[method])
    if size is not None and not 0 < size <= 1:
        raise StudyError(f"--size: expected a share of the hospitals, over 0 and up to 1, found {size:g}")
    start = study.seed + OTHER_SEED if seed is None else seed
    if study.seed <= start < study.seed + study.evaluation.seeds:
        raise StudyError(
            f"--seed {start} is one of the study's own ({study.seed} and {study.evaluation.seeds - 1} more): its patients are "
            "tested on. Choose another"
        )
    source, trial = study, study
    if on is not None:
        if on not in cohorts.COHORTS or not _generated(on, start):
            raise StudyError(f"--on: expected a generated federation (cardio, icu, outbreak), found {on!r}")
        fields = {key: value for key, value in study.to_dict().items() if key not in ("sites", "schema", "classes")}
        source = Study(**{**fields, "cohort": {"name": on}, "outcome": _small(on, start).outcome})
    fields = {"method": {"name": method}, "seed": start}
    if source.cohort is not None and _generated(source.cohort.name, start):
        shrunk = _shrunk(source, size)
        folds = min(FOLDS, source.evaluation.folds) if source.evaluation.folds else 0
        trial = source.replace(**fields, cohort=shrunk, evaluation={"folds": folds, "seeds": 1, "compare": []})
        words = ", ".join(
            f"{key} {value:,}" if isinstance(value, int) else f"{key} {value}" for key, value in shrunk.items()
        )
        data = f"generated patients ({words}, seed {start}), {_manner(trial)}"
        return Plan(study, trial, method, space, scratch, "nothing: the patients are generated", data)
    if source.cohort is not None and source.cohort.name in PUBLIC:
        inner = without_tested(source, scratch)
        trial = inner.replace(**fields, evaluation={"seeds": 1, "compare": []})
        data = f"the published set {source.cohort.name!r} without the study's test patients, {_manner(trial)}"
        return Plan(study, trial, method, space, scratch, "nothing: the rows are public", data)
    promised = f" {study.privacy.epsilon:g}" if study.privacy and study.privacy.epsilon else ""
    raise PrivacyError(
        f"tuning on a site's own patients is refused: each trial would be one more release at epsilon{promised}, and "
        "so would be the choice among trials by exact figures, which no ledger here pays for. Search on a generated federation "
        "instead and run the settings found: suture tune study.toml --on icu"
    )


def _manner(trial: Study) -> str:
    folds = trial.evaluation.folds
    return f"{folds} folds of hospitals" if folds else f"{trial.evaluation.holdout:.0%} of patients held out"


def _small(name: str, seed: int) -> cohorts.Cohort:
    """A federation as small as it can be had: asked for what it is, not for its rows."""
    few = {key: value for key, value in (("patients", 200), ("hospitals", 2)) if cohorts.takes(name, key)}
    return cohorts.load(name, seed, **few)


def _generated(name: str, seed: int) -> bool:
    return name not in REAL and _small(name, seed).generated


def _shrunk(study: Study, size: float | None) -> dict[str, Any]:
    """The cohort with fewer hospitals of the same size each; a small one is left as it is unless a size was asked for."""
    spec = study.cohort
    if spec is None:
        raise StudyError("only a built-in federation can be made smaller")
    given: dict[str, Any] = {"name": spec.name, **spec.options()}
    patients = _default(spec.name, "patients") if "patients" not in given else given["patients"]
    share = size if size is not None else (SIZE if patients is not None and patients > LARGE else 1.0)
    for key, least in (("hospitals", 2 * FOLDS), ("patients", 100)):
        whole = given.get(key, _default(spec.name, key))
        if isinstance(whole, int) and share < 1:
            given[key] = max(min(least, whole), round(share * whole))
    return given


def _default(name: str, option: str) -> Any:
    found = inspect.signature(cohorts.COHORTS[name]).parameters.get(option)
    return None if found is None else found.default
