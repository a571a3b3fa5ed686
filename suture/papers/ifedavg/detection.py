"""How well two rules find faults that are planted, one at a time, in clean federations.

Truth is one cell, (site, feature). A rule's flags are cells too: the tests of
`suture.interop.evidence` on exact profiles, and the paper's "O" on the layers of an iFedAvg
training (in b or w of any column of the feature; for a turned outcome, on f_out). Recall: planted
faults found. Precision: of all cells flagged in federations with a fault, the share that is the
fault. False alarms: reports on clean twins that flag anything.

The federations are `outbreak`'s clean twin, on which the tests' tolerances were chosen (at other
seeds than here), and five families that had no part in it (`cohorts.outbreak.stranger`). ``python
benchmarks/detector.py`` prints the same at length.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NotRequired, TypedDict

import numpy as np
from scipy.stats import beta

from suture.cohorts import Cohort, CohortSite, Columns
from suture.cohorts.outbreak import FAMILIES, OUTCOME, Fault, outbreak, plant, stranger
from suture.interop.evidence import circles, flags
from suture.methods.ifedavg import IFedAvg
from suture.models.dense import Dense
from suture.papers.ifedavg.trainings import play
from suture.papers.reproduction import Row, Tables, Work, rows_of, rows_under, spread
from suture.privacy.files import write_whole
from suture.privacy.noise.source import seeded_key
from suture.schema.table import Number, Schema, feature_names
from suture.site.preprocess import MISSING
from suture.site.profile import Profile, take
from suture.training.affine import Layers
from suture.training.local import Local

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
"""Kinds of faults with strengths from plain to faint (see `suture.cohorts.outbreak`)."""
COLUMNS = {
    "outbreak": dict.fromkeys(("unit", "offset", "scale"), "age")
    | {"positives_only": "diarrhoea", "never": "malaria", "permuted": "contact", "flip": OUTCOME},
    "other": dict.fromkeys(("unit", "offset", "scale"), "number 1")
    | {"positives_only": "flag 1", "never": "category 0", "permuted": "number 0", "flip": OUTCOME},
}
"""Where each kind is planted."""
SMALLEST = 150
"""A fault is planted only at a site of at least this many patients."""
SETS = ("outbreak", *FAMILIES)
ALL = "all together"
FIRST_SEED = 20_000
"""Nothing was tuned on these seeds or above."""


def federation(name: str, seed: int) -> Cohort:
    """A clean federation of one of `SETS`."""
    if name == "outbreak":
        return outbreak(seed, faults="none", missing="fill")
    return stranger(seed, name)


def profile_of(site: CohortSite, schema: Schema, outcome: str) -> Profile:
    """The exact profile of generated rows, one per patient."""
    columns: Columns = {}
    for name, feature in schema.features.items():
        raw = np.asarray(site.table[name], np.float64)
        coded = np.where(np.isnan(raw), MISSING, np.nan_to_num(raw)).astype(np.int16)
        columns[name] = raw if isinstance(feature, Number) else coded
    y = np.asarray(site.table[outcome], np.int32)
    return take(columns, y, np.arange(len(y) + 1), schema, 2, False)


def marked(cohort: Cohort, rounds: int, seed: int) -> set[Cell] | None:
    """The cells that the paper's rule marks after training iFedAvg with both layers, on rows that
    each client standardises; None without a training."""
    if not rounds:
        return None
    read = rows_of(cohort, scaling="site", key="score")
    clients = {name: data.train for name, data in read.items()}
    columns = feature_names(cohort.schema)
    local = Local(batch=32, rate=0.03, momentum=0.5, dropout=0.2, class_weights="inverse")
    network, layers = Dense((len(columns), 128, 64, 1), "tanh"), Layers("vector", "vector")
    method = IFedAvg(network, local, layers, share=True)
    start = method.init(list(clients), np.random.default_rng(seed))

    def key_at(name: str, round_: int) -> bytes:
        return seeded_key(seed, name, round_ - 1)

    state, _ = play(lambda _: method, clients, start, key_at, rounds)
    flat, names, found, at = state["layers"].astype(np.float64), list(clients), set(), 0
    for labels in (columns, columns, (OUTCOME,) * 2, (OUTCOME,) * 2):
        for i, j in zip(*np.nonzero(circles(flat[:, at : at + len(labels)])), strict=True):
            found.add((names[i], labels[j].removesuffix(" (missing)").split(" = ")[0]))
        at += len(labels)
    return found


class Score(TypedDict):
    """How many cells a rule flags, and whether the planted one is among them."""

    flags: int
    hit: bool


class Looked(TypedDict):
    """What both rules say about one federation; ``kind`` is empty where nothing is planted."""

    set: str
    seed: int
    kind: str
    strength: float
    cells: int
    tests: Score
    paper: NotRequired[Score]


@dataclass(frozen=True)
class Task:
    """One federation: which, at which seed, and for how many rounds the paper's rule is trained."""

    name: str
    seed: int
    rounds: int = 0
    faults: bool = True
    strengths: int = 3


def look(task: Task) -> list[Looked]:
    """What the rules say about a clean federation, then about every fault and strength in it."""
    clean = federation(task.name, task.seed)
    schema, outcome = clean.schema, clean.outcome
    profiles = {site.name: profile_of(site, schema, outcome) for site in clean.sites}
    cells = len(profiles) * (len(schema.features) + 1)

    def looked(cohort: Cohort, now: Mapping[str, Profile], fault: Fault | None = None) -> Looked:
        truth = (fault.site, fault.column) if fault else None
        ours = {(flag.site, flag.feature) for flag in flags(now, schema)}
        paper = marked(cohort, task.rounds, task.seed)
        found: Looked = {
            "set": task.name,
            "seed": task.seed,
            "kind": fault.kind if fault else "",
            "strength": fault.strength if fault else 0.0,
            "cells": cells,
            "tests": {"flags": len(ours), "hit": truth in ours},
        }
        if paper is not None:
            found["paper"] = {"flags": len(paper), "hit": truth in paper}
        return found

    found = [looked(clean, profiles)]
    if not task.faults:
        return found
    rng = np.random.default_rng([task.seed, 0xD0_0D])
    large = [site.name for site in clean.sites if len(site.table[OUTCOME]) >= SMALLEST]
    columns = COLUMNS.get(task.name, COLUMNS["other"])
    for kind, strengths in STRENGTHS.items():
        for strength in strengths[: task.strengths]:
            where = large[int(rng.integers(len(large)))]
            fault = Fault(where, columns[kind], kind, strength)
            cohort = plant(clean, (fault,), task.seed)
            ill = next(site for site in cohort.sites if site.name == where)
            now = {**profiles, where: profile_of(ill, schema, outcome)}
            found.append(looked(cohort, now, fault))
    return found


def gather(
    tasks: Sequence[Task], workers: int | None = None, say: Say = lambda _, __: None
) -> list[Looked]:
    """Look at every federation, one task per core; ``say`` is told how many of how many are done."""
    found: dict[int, list[Looked]] = {}
    for i, records in spread(look, tasks, workers):
        found[i] = records
        say(len(found), len(tasks))
    return [record for i in sorted(found) for record in found[i]]


def plan(quick: bool) -> list[Task]:
    """Few federations with the paper's rule trained on them, more for the tests, and many clean
    twins."""
    trained, faulty, clean = (1, 2, 6) if quick else (1, 10, 120)
    rounds = 10 if quick else 60
    return [
        Task(name, FIRST_SEED + i, rounds=rounds if i < trained else 0, faults=i < faulty)
        for name in SETS
        for i in range(clean)
    ]


def by_fault(records: Sequence[Looked]) -> list[Row]:
    """Recall by kind and strength, over all sets."""
    lines = []
    for kind, strength in ((kind, one) for kind, some in STRENGTHS.items() for one in some):
        mine = [one for one in records if (one["kind"], one["strength"]) == (kind, strength)]
        both = [one for one in mine if "paper" in one]
        if mine:
            hits, there = (_share([one["tests"]["hit"] for one in some]) for some in (mine, both))
            paper = _share([one["paper"]["hit"] for one in both])
            lines.append((kind, f"{strength:.3g}", len(mine), hits, len(both), there, paper))
    return rows_under(
        "fault | strength | federations | found by our tests | of | found by our tests there | "
        "found by the paper's O",
        lines,
    )


def by_set(records: Sequence[Looked]) -> list[Row]:
    """Recall, precision and false alarms by set and over all, for both rules; the paper's where it
    was trained."""
    lines = []
    for name in (*SETS, ALL):
        mine = [one for one in records if name in (one["set"], ALL)]
        rules = {
            "our tests (stated: 0.01)": [(one["kind"], one["tests"]) for one in mine],
            "the paper's 2 SD": [(one["kind"], one["paper"]) for one in mine if "paper" in one],
        }
        for rule, scores in rules.items():
            ill = [score for kind, score in scores if kind]
            clean = [score["flags"] for kind, score in scores if not kind]
            if not clean:
                continue
            hits, flagged = sum(one["hit"] for one in ill), sum(one["flags"] for one in ill)
            recall = hits / len(ill) if ill else None
            precision = hits / flagged if flagged else None
            alarms, twins = sum(count > 0 for count in clean), len(clean)
            rates = (alarms / twins, upper(alarms, twins), float(np.mean(clean)))
            lines.append((name, rule, len(ill), recall, precision, twins, alarms, *rates))
    return rows_under(
        "set | rule | faults | recall | precision | clean twins | with a false flag | "
        "false-alarm rate | at most (95 %) | false flags a twin",
        lines,
    )


def upper(events: int, trials: int) -> float:
    """Clopper and Pearson's upper 95 % bound on a rate."""
    return float(beta.ppf(0.95, events + 1, trials - events)) if events < trials else 1.0


def _share(hits: Sequence[bool]) -> float | None:
    return float(np.mean(hits)) if hits else None


def tables(work: Work) -> Tables:
    """Both tables. What was measured is kept and measured once, a quick run apart from a whole
    one."""
    path = work.out / ("detection-quick.json" if work.quick else "detection.json")
    if not path.exists():
        say = partial(work.say, "federations looked at for planted faults")
        measured = json.dumps(gather(plan(work.quick), work.threads, say))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, measured.encode())
    records: list[Looked] = json.loads(path.read_text(encoding="utf-8"))
    return {
        "rules": ("Finding planted faults: our tests and the paper's rule", by_set(records)),
        "faults": ("Faults found, by kind and strength, over all sets", by_fault(records)),
    }
