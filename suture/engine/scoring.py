"""Who is served how: gaps between groups, thresholds by group, and the parts of a mixed method, for
one training.

On generated patients, in simulations and without a promise all of it is measured on test patients,
exactly. About real patients under a promise nothing is: what is known of them is the charged
evaluation (`with_evaluation`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture.engine.plan import World
from suture.engine.round import Engine
from suture.engine.summary import Outcome
from suture.evaluation.groups import fairness, gaps, gaps_and_rates, group_thresholds
from suture.evaluation.metrics import measure_lightly
from suture.methods.base import Method
from suture.site.hospital import Member
from suture.study import Study

Scores = Mapping[str, tuple[NDArray[np.int32], NDArray[np.float32]]]
Columns = dict[str, NDArray[np.str_]]


def together(scores: Scores) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Labels and risks of all sites' test rows, in the order of the sites.

    >>> together({"a": (np.array([0, 1]), np.array([0.1, 0.9], np.float32)), "b": (np.zeros(0), np.zeros(0))})[0].tolist()
    [0, 1]
    """
    filled = [pair for pair in scores.values() if len(pair[0])]
    if not filled:
        return np.zeros(0, np.int32), np.zeros(0, np.float32)
    return np.concatenate([pair[0] for pair in filled]), np.concatenate(
        [pair[1] for pair in filled]
    )


def columns_of(engine: Engine, readers: Mapping[str, Any], here: World, scores: Scores) -> Columns:
    """The group of every test row that was scored, for each column; nothing where no site may let
    exact figures leave, nor with folds. A site that is away has no scores this time, and its groups
    of an earlier round do not count.
    """
    told = {
        site: found
        for site, found in engine.groups(readers, here).items()
        if site in scores and len(scores[site][0])
    }
    return {
        name: np.concatenate([found[name] for found in told.values()])
        for name in here.schema.groups
        if told
    }


def after_round(
    y: NDArray[Any], p: NDArray[Any], columns: Columns, threshold: float
) -> dict[str, Any]:
    """One round's gaps by column, and rates by column and group, for the history."""
    if p.ndim != 1 or not len(y) or not columns:
        return {}
    both = {column: gaps_and_rates(y, p, values, threshold) for column, values in columns.items()}
    return {
        "fairness": {column: fair for column, (fair, _) in both.items()},
        "groups": {column: each for column, (_, each) in both.items()},
    }


def owners(readers: Mapping[str, Any]) -> NDArray[np.int64] | None:
    """Whose each test row is, so that intervals are over patients; None where only the sites
    know."""
    members = [reader for reader in readers.values() if isinstance(reader, Member)]
    if len(members) < len(readers):
        return None
    tests = [member.hospital.data.test for member in members]
    counts = np.concatenate(
        [np.zeros(0, np.int64), *(np.diff(test.starts) for test in tests if test is not None)]
    )
    return np.repeat(np.arange(len(counts)), counts)


def thresholds(
    study: Study,
    here: World,
    method: Method,
    state: dict[str, NDArray[Any]],
    readers: Mapping[str, Any],
    scores: Scores,
) -> dict[str, Any]:
    """The gaps where every site decides by its own thresholds for each protected group, fitted on
    its training patients.

    The thresholds stay at the site. Measured in one process only: elsewhere training rows are out
    of reach.
    """
    protected, usual = here.schema.protected, study.evaluation.threshold
    if not study.evaluation.group_thresholds or protected is None or here.tested:
        return {}
    said, labels, names, whose = [], [], [], []
    for site, member in readers.items():
        data = member.hospital.data if isinstance(member, Member) else None
        if data is None or data.test is None or data.test.group is None or data.train.group is None:
            continue
        own = method.predict(state, member.own, data.train.x, site)
        cut = group_thresholds(own, np.repeat(data.train.group, np.diff(data.train.starts)), usual)
        codes = np.repeat(data.test.group, np.diff(data.test.starts))
        limits = np.array([cut.get(int(code), usual) for code in codes])
        said.append((scores[site][1] >= limits).astype(np.float32))
        labels.append(data.test.y)
        names.append(data.test_groups[protected.column])
        whose.append(
            np.repeat([f"{site} {i}" for i in range(data.test.patients)], np.diff(data.test.starts))
        )
    if not said:
        return {}
    y, p = np.concatenate(labels), np.concatenate(said)
    found = fairness(y, p, np.concatenate(names), patients=np.concatenate(whose))
    return {"column": protected.column, "accuracy": float(np.mean(y == p)), **found}


def parts(
    method: Method,
    state: dict[str, NDArray[Any]],
    readers: Mapping[str, Any],
    columns: Columns,
    threshold: float,
) -> dict[str, dict[str, Any]]:
    """Where a method mixes models: each of them by itself, over all test patients (in one process
    only)."""
    found: dict[str, list[NDArray[np.float32]]] = {}
    labels = []
    for site, member in readers.items():
        test = member.hospital.data.test if isinstance(member, Member) else None
        if test is None:
            continue
        labels.append(test.y)
        for name, p in method.parts(state, member.own, test.x, site).items():
            found.setdefault(name, []).append(p)
    measured = {}
    for name, risks in found.items():
        y, p = np.concatenate(labels), np.concatenate(risks)
        if p.ndim == 1:
            fair = {column: gaps(y, p, values, threshold) for column, values in columns.items()}
            measured[name] = {"global": measure_lightly(y, p, threshold), "fairness": fair}
    return measured


def with_evaluation(outcome: Outcome, found: dict[str, Any]) -> Outcome:
    """An outcome whose figures are those of the charged evaluation: metrics and intervals over all
    sites, by site and by group; None where they are withheld."""
    if "all" not in found:
        return replace(outcome, evaluation=found)
    split: dict[str, dict[str, Mapping[str, Any]]] = {"site": {}}
    for name, figures in found["parts"].items():
        kind, value = name.split(": ", 1)
        split.setdefault(kind, {})[value] = figures
    sites = split.pop("site")
    groups = {kind: {v: _values(f) for v, f in parts.items()} for kind, parts in split.items()}
    fair = {
        column: {**_gaps(found["gaps"][column]), "groups": groups[column]}
        for column in found["gaps"]
    }
    cuts = found["all"].get("thresholds", {"specificity": [], "sensitivity": []})
    missed = [1 - rate for rate in reversed(cuts["specificity"])]
    ends = {
        "global": _values(found["all"], "interval"),
        "sites": {site: _values(figures, "interval") for site, figures in sites.items()},
    }
    return replace(
        outcome,
        overall=_values(found["all"]),
        sites={site: _values(figures) for site, figures in sites.items()},
        groups=groups,
        fairness=fair,
        roc={"fpr": [0.0, *missed, 1.0], "tpr": [0.0, *reversed(cuts["sensitivity"]), 1.0]}
        if missed
        else {"fpr": [], "tpr": []},
        calibration=found["all"].get("calibration", outcome.calibration),
        evaluation={**found, "intervals": ends},
    )


def _values(figures: Mapping[str, Any], key: str = "value") -> dict[str, Any]:
    """One entry of every figure, by the names that results have for them."""
    return {
        "recall" if name == "sensitivity" else name: figure[key]
        for name, figure in figures.items()
        if isinstance(figure, dict) and key in figure
    }


def _gaps(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Gaps by the names that results have for them; of equalised odds the larger one."""
    odds = max(found["sensitivity"], found["specificity"], key=lambda gap: gap["value"] or 0.0)
    named = {
        "parity_gap": found["flagged"], "odds_gap": odds, "opportunity_gap": found["sensitivity"],
    }  # fmt: skip
    ends = {name: gap["interval"] for name, gap in named.items() if gap["interval"]}
    return {name: gap["value"] for name, gap in named.items()} | {"intervals": ends}
