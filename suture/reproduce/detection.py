"""How well faults are found: planted in a clean federation, one at a time, and looked for by both rules.

The federation is the clean twin of `outbreak`. Truth is one cell, (site, feature). A rule's flags are cells too: the
tests of `suture.interop.evidence` on exact profiles, and the paper's "O" on the layers of an iFedAvg training (in b or
w of any column of the feature; for a turned outcome, on f_out). Recall: planted faults found. Precision: of all cells
flagged in federations with a fault, the share that is the fault. False alarms: what is flagged in the clean twins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from suture.cohorts.cohort import Cohort
from suture.cohorts.faults import Fault, plant
from suture.cohorts.outbreak import OUTCOME, outbreak
from suture.interop.evidence import flags
from suture.interop.marks import circles
from suture.methods.ifedavg import IFedAvg
from suture.models.dense import Dense
from suture.privacy.mechanisms import seeded_key
from suture.site.cohort import SiteData, load
from suture.site.schema import feature_names
from suture.training.local import Local
from suture.training.personal import Layers

Cell = tuple[str, str]
FAULTS: tuple[tuple[str, str, tuple[float, ...]], ...] = (
    ("unit", "age", (12.0, 2.2046, 1 / 7.5)),
    ("offset", "age", (2.0, 1.0, 0.75)),
    ("scale", "age", (3.0, 0.4, 0.6)),
    ("positives_only", "diarrhoea", (1.0, 0.6, 0.3)),
    ("never", "malaria", (1.0, 0.6, 0.3)),
    ("permuted", "contact", (1.0, 0.8, 0.6)),
    ("flip", OUTCOME, (1.0,)),
)
"""Kind, column, and strengths from plain to faint (see `suture.cohorts.faults`)."""
SITES = ("Bong", "Makeni", "Kalihun")
"""Where faults are planted, one after the other: 529, 848 and 1,173 patients."""


def loaded(cohort: Cohort) -> dict[str, SiteData]:
    """Every site's rows with their profile."""
    return {
        site.name: load(
            site.table, cohort.schema, cohort.outcome, site=site.name, holdout=0.0, split_key="score", profile="exact"
        )
        for site in cohort.sites
    }


def tested(cohort: Cohort, sites: dict[str, SiteData]) -> set[Cell]:
    """The cells that the tests flag."""
    profiles = {name: data.profile for name, data in sites.items() if data.profile is not None}
    return {(flag.site, flag.feature) for flag in flags(profiles, cohort.schema)}


def marked(cohort: Cohort, sites: dict[str, SiteData], rounds: int, seed: int) -> set[Cell]:
    """The cells that the paper's rule marks after training iFedAvg with both layers."""
    columns = feature_names(cohort.schema)
    local = Local(batch=32, rate=0.01, momentum=0.5, dropout=0.2, class_weights="balanced")
    method = IFedAvg(Dense((len(columns), 128, 64, 1), "tanh"), local, Layers("vector", "vector"), share=True)
    state = method.init(list(sites), np.random.default_rng(seed))
    own: dict[str, dict[str, Any]] = {name: {} for name in sites}
    from suture.methods.base import Answer

    for round_ in range(rounds):
        answers = []
        for name, data in sites.items():
            message, key = method.broadcast(state, name), seeded_key(seed, name, round_)
            payload, own[name] = method.site_step(data.train, own[name], message, None, key)
            answers.append(Answer(name, data.train.patients, payload))
        state = method.server_step(state, answers)
    flat = state["layers"].astype(np.float64)
    width, found = len(columns), set()
    names = list(sites)
    for at, labels in ((0, columns), (width, columns), (2 * width, (OUTCOME,) * 2), (2 * width + 2, (OUTCOME,) * 2)):
        for i, j in zip(*np.nonzero(circles(flat[:, at : at + len(labels)])), strict=True):
            found.add((names[i], labels[j].removesuffix(" (missing)").split(" = ")[0]))
    return found


def score(
    seeds: Sequence[int], rounds: int, strengths: int = 3, say: Callable[[str], None] = lambda _: None
) -> dict[str, list[dict[str, Any]]]:
    """Recall and precision by fault and strength, and false alarms on the clean twins, for both rules."""
    table, totals = [], {"tests": [0, 0], "paper": [0, 0]}
    for kind, column, levels in FAULTS:
        for strength in levels[:strengths]:
            hits = {"tests": 0, "paper": 0}
            for n, seed in enumerate(seeds):
                site = SITES[n % len(SITES)]
                cohort = plant(outbreak(seed, faults="none"), (Fault(site, column, kind, strength),), seed)
                rows = loaded(cohort)
                for rule, cells in (("tests", tested(cohort, rows)), ("paper", marked(cohort, rows, rounds, seed))):
                    hit = (site, column) in cells
                    hits[rule] += hit
                    totals[rule][0] += hit
                    totals[rule][1] += len(cells)
            say(f"{kind}, strength {strength:.3g}: tests {hits['tests']}, paper {hits['paper']} of {len(seeds)}")
            table.append(
                {"fault": kind, "column": column, "strength": f"{strength:.3g}", "seeds": len(seeds),
                 "found by our tests": hits["tests"] / len(seeds), "found by the paper's O": hits["paper"] / len(seeds)}
            )  # fmt: skip
    return {"faults": table, "rules": _rules(table, totals, seeds, rounds)}


def _rules(
    table: list[dict[str, Any]], totals: dict[str, list[int]], seeds: Sequence[int], rounds: int
) -> list[dict[str, Any]]:
    """One row a rule: recall over all faults, precision, and what it flags where nothing is wrong."""
    clean: dict[str, list[int]] = {"tests": [], "paper": []}
    cells = 1
    for seed in seeds:
        cohort = outbreak(seed, faults="none")
        rows = loaded(cohort)
        cells = len(rows) * (len(cohort.schema.features) + 1)
        clean["tests"].append(len(tested(cohort, rows)))
        clean["paper"].append(len(marked(cohort, rows, rounds, seed)))
    names = {"tests": "our tests (stated: 1 % of reports)", "paper": "the paper's 2 SD"}
    return [
        {
            "rule": names[rule],
            "recall": float(np.mean([row[f"found by {key}"] for row in table])),
            "precision": totals[rule][0] / max(1, totals[rule][1]),
            "clean twins with a false flag": float(np.mean([count > 0 for count in clean[rule]])),
            "false flags a clean twin": float(np.mean(clean[rule])),
            "cells a twin": cells,
        }
        for rule, key in (("tests", "our tests"), ("paper", "the paper's O"))
    ]
