"""How well faults are found: planted in clean federations, one at a time, and looked for by both rules.

Truth is one cell, (site, feature). A rule's flags are cells too: the tests of `suture.interop.evidence` on exact
profiles, and the paper's "O" on the layers of an iFedAvg training (in b or w of any column of the feature; for a turned
outcome, on f_out). Recall: planted faults found. Precision: of all cells flagged in federations with a fault, the share
that is the fault. False alarms: reports on clean twins that flag anything.

The federations are `outbreak`'s clean twin, on which the tests' tolerances were chosen (at other seeds than here), and
five families that had no part in it (`cohorts.strangers`). ``python benchmarks/detector.py`` prints the same at length.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from suture.cohorts.cohort import Cohort, CohortSite
from suture.cohorts.faults import Fault, plant
from suture.cohorts.outbreak import OUTCOME, outbreak
from suture.cohorts.strangers import FAMILIES, stranger
from suture.interop.evidence import flags
from suture.interop.marks import circles
from suture.methods.base import Answer
from suture.methods.ifedavg import IFedAvg
from suture.models.dense import Dense
from suture.privacy.mechanisms import seeded_key
from suture.reproduce.cores import spread
from suture.runfolder import write_whole
from suture.site.cohort import load
from suture.site.preprocess import MISSING
from suture.site.profile import Profile, take
from suture.site.schema import Number, Schema, feature_names
from suture.training.local import Local
from suture.training.personal import Layers

Cell = tuple[str, str]
Say = Callable[[int, int], None]
STRENGTHS: dict[str, tuple[float, ...]] = {
    "unit": (12.0, 2.2046, 1 / 7.5),
    "offset": (2.0, 1.0, 0.75),
    "scale": (3.0, 0.4, 0.6),
    "positives_only": (1.0, 0.6, 0.3),
    "never": (1.0, 0.6, 0.3),
    "permuted": (1.0, 0.8, 0.6),
    "flip": (1.0,),
}
"""Kinds of faults with strengths from plain to faint (see `suture.cohorts.faults`)."""
COLUMNS = {
    "outbreak": dict.fromkeys(("unit", "offset", "scale"), "age")
    | {"positives_only": "diarrhoea", "never": "malaria", "permuted": "contact", "flip": OUTCOME},
    "other": dict.fromkeys(("unit", "offset", "scale"), "number 1")
    | {"positives_only": "flag 1", "never": "category 0", "permuted": "number 0", "flip": OUTCOME},
}
"""Where each kind is planted."""
SMALLEST = 150
"""A fault is planted at a site of at least so many patients; who is smaller can be clean only."""
SETS = ("outbreak", *FAMILIES)
ALL = "all together"
FIRST_SEED = 20_000
"""Nothing was tuned on these seeds or above."""


def federation(name: str, seed: int) -> Cohort:
    """A clean federation of one of `SETS`."""
    return outbreak(seed, faults="none", missing="fill") if name == "outbreak" else stranger(seed, name)


def profile_of(site: CohortSite, schema: Schema, outcome: str) -> Profile:
    """The exact profile of generated rows, one a patient."""
    columns: dict[str, NDArray[Any]] = {}
    for name, feature in schema.features.items():
        raw = np.asarray(site.table[name], np.float64)
        columns[name] = (
            raw
            if isinstance(feature, Number)
            else np.where(np.isnan(raw), MISSING, np.nan_to_num(raw)).astype(np.int16)
        )
    y = np.asarray(site.table[outcome], np.int32)
    return take(columns, y, np.arange(len(y) + 1), schema, 2, False)


def tested(profiles: Mapping[str, Profile], schema: Schema) -> set[Cell]:
    """The cells that the tests flag."""
    return {(flag.site, flag.feature) for flag in flags(profiles, schema)}


def marked(cohort: Cohort, rounds: int, seed: int) -> set[Cell]:
    """The cells that the paper's rule marks after training iFedAvg with both layers, clients standardised."""
    sites = {
        site.name: load(
            site.table, cohort.schema, cohort.outcome, site=site.name, holdout=0.0, split_key="score", scaling="site"
        ).train
        for site in cohort.sites
    }
    columns = feature_names(cohort.schema)
    local = Local(batch=32, rate=0.03, momentum=0.5, dropout=0.2, class_weights="inverse")
    method = IFedAvg(Dense((len(columns), 128, 64, 1), "tanh"), local, Layers("vector", "vector"), share=True)
    state = method.init(list(sites), np.random.default_rng(seed))
    own: dict[str, dict[str, Any]] = {name: {} for name in sites}
    for round_ in range(rounds):
        answers = []
        for name, data in sites.items():
            message, key = method.broadcast(state, name), seeded_key(seed, name, round_)
            payload, own[name] = method.site_step(data, own[name], message, None, key)
            answers.append(Answer(name, data.patients, payload))
        state = method.server_step(state, answers)
    flat = state["layers"].astype(np.float64)
    width, found = len(columns), set()
    names = list(sites)
    for at, labels in ((0, columns), (width, columns), (2 * width, (OUTCOME,) * 2), (2 * width + 2, (OUTCOME,) * 2)):
        for i, j in zip(*np.nonzero(circles(flat[:, at : at + len(labels)])), strict=True):
            found.add((names[i], labels[j].removesuffix(" (missing)").split(" = ")[0]))
    return found


@dataclass(frozen=True)
class Task:
    """One federation: which, at which seed, and whether the paper's rule is trained for it too."""

    name: str
    seed: int
    rounds: int = 0
    faults: bool = True
    strengths: int = 3


def look(task: Task) -> list[dict[str, Any]]:
    """One record a federation: the clean twin first, then one for every fault and strength."""
    clean = federation(task.name, task.seed)
    profiles = {site.name: profile_of(site, clean.schema, clean.outcome) for site in clean.sites}
    cells = len(profiles) * (len(clean.schema.features) + 1)
    found = [_record(task, "", 0.0, None, tested(profiles, clean.schema), _paper(clean, task), cells)]
    if not task.faults:
        return found
    rng = np.random.default_rng([task.seed, 0xD0_0D])
    large = [site.name for site in clean.sites if len(site.table[OUTCOME]) >= SMALLEST]
    columns = COLUMNS.get(task.name, COLUMNS["other"])
    for kind, strengths in STRENGTHS.items():
        for strength in strengths[: task.strengths]:
            where, column = large[int(rng.integers(len(large)))], columns[kind]
            cohort = plant(clean, (Fault(where, column, kind, strength),), task.seed)
            ill = next(site for site in cohort.sites if site.name == where)
            now = {**profiles, where: profile_of(ill, cohort.schema, cohort.outcome)}
            truth = (where, column)
            found.append(_record(task, kind, strength, truth, tested(now, cohort.schema), _paper(cohort, task), cells))
    return found


def _paper(cohort: Cohort, task: Task) -> set[Cell] | None:
    return marked(cohort, task.rounds, task.seed) if task.rounds else None


def _record(
    task: Task, kind: str, strength: float, truth: Cell | None, ours: set[Cell], paper: set[Cell] | None, cells: int
) -> dict[str, Any]:
    record: dict[str, Any] = {"set": task.name, "seed": task.seed, "kind": kind, "strength": strength, "cells": cells}
    for rule, flagged in (("tests", ours), ("paper", paper)):
        if flagged is not None:
            record[rule] = {"flags": len(flagged), "hit": truth in flagged if truth else False}
    return record


def gather(tasks: Sequence[Task], workers: int | None = None, say: Say = lambda _, __: None) -> list[dict[str, Any]]:
    """All records, a core to each task; ``say`` hears how many of how many federations were looked at."""
    found: dict[int, list[dict[str, Any]]] = {}
    for i, records in spread(look, tasks, workers):
        found[i] = records
        say(len(found), len(tasks))
    return [record for i in sorted(found) for record in found[i]]


def plan(quick: bool) -> list[Task]:
    """Few federations with the paper's rule trained on them, more for the tests, and many clean twins."""
    trained, faulty, clean = (1, 2, 6) if quick else (1, 10, 120)
    return [
        Task(name, FIRST_SEED + i, rounds=(10 if quick else 60) if i < trained else 0, faults=i < faulty)
        for name in SETS
        for i in range(clean)
    ]


def by_fault(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Recall by kind and strength, over all sets."""
    rows = []
    for kind, strengths in STRENGTHS.items():
        for strength in strengths:
            mine = [record for record in records if record["kind"] == kind and record["strength"] == strength]
            both = [record for record in mine if "paper" in record]
            if mine:
                rows.append({
                    "fault": kind, "strength": f"{strength:.3g}", "federations": len(mine),
                    "found by our tests": _share(record["tests"]["hit"] for record in mine),
                    "of": len(both),
                    "found by our tests there": _share(record["tests"]["hit"] for record in both),
                    "found by the paper's O": _share(record["paper"]["hit"] for record in both),
                })  # fmt: skip
    return rows


def by_set(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Recall, precision and false alarms by set and over all, for both rules; the paper's where it was trained."""
    rows = []
    for name in (*SETS, ALL):
        for rule, label in (("tests", "our tests (stated: 0.01)"), ("paper", "the paper's 2 SD")):
            mine = [record for record in records if name in (record["set"], ALL) and rule in record]
            ill = [record for record in mine if record["kind"]]
            clean = [record for record in mine if not record["kind"]]
            if not clean:
                continue
            hits, flagged = (sum(record[rule][key] for record in ill) for key in ("hit", "flags"))
            alarms = sum(record[rule]["flags"] > 0 for record in clean)
            rows.append({
                "set": name, "rule": label, "faults": len(ill),
                "recall": hits / len(ill) if ill else None, "precision": hits / flagged if flagged else None,
                "clean twins": len(clean), "with a false flag": alarms,
                "false-alarm rate": alarms / len(clean), "at most (95 %)": upper(alarms, len(clean)),
                "false flags a twin": float(np.mean([record[rule]["flags"] for record in clean])),
            })  # fmt: skip
    return rows


def upper(events: int, trials: int) -> float:
    """Clopper and Pearson's upper 95 % bound on a rate.

    >>> round(upper(0, 299), 4)
    0.01
    """
    return float(beta.ppf(0.95, events + 1, trials - events)) if events < trials else 1.0


def _share(hits: Any) -> float | None:
    values = list(hits)
    return float(np.mean(values)) if values else None


def tables(
    out: Path, *, quick: bool = False, workers: int | None = None, say: Say = lambda _, __: None
) -> dict[str, Any]:
    """Both tables; what was measured is kept in ``out`` and measured once, a quick look apart from the whole."""
    path = out / ("detection-quick.json" if quick else "detection.json")
    if path.exists():
        records = json.loads(path.read_text(encoding="utf-8"))
    else:
        records = gather(plan(quick), workers, say)
        out.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(records).encode())
    return {
        "rules": {"title": "Finding planted faults: our tests and the paper's rule", "rows": by_set(records)},
        "faults": {"title": "Faults found, by kind and strength, over all sets", "rows": by_fault(records)},
    }
