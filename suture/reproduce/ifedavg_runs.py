"""The trainings behind iFedAvg's tables: one small file each, made side by side, kept, and never made twice.

A training here is a plain loop over a method's own functions, at clients whose rows are public or generated: no patient
is promised anything and nothing is released, so there is no ledger, no envelope and no measurement between rounds. What
`suture run` does with the same method and settings differs in its random draws only. Jobs share nothing, so each gets a
core to itself.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture import cohorts, planning
from suture.cohorts.cohort import Cohort
from suture.evaluation.metrics import measure
from suture.methods import Public, build
from suture.methods.base import Answer, Method
from suture.models.dense import Dense
from suture.privacy.mechanisms import seeded_key
from suture.privacy.unit import concatenate
from suture.reproduce.cores import spread
from suture.runfolder import write_whole
from suture.site.cohort import SiteData, load
from suture.site.schema import feature_names
from suture.study import Study
from suture.training.local import at_round

Say = Callable[[int, str], None]


@dataclass(frozen=True)
class Job:
    """One training: a study (whose cohort, seed and settings say everything) and the method to train in it."""

    study: Study
    method: str

    @property
    def key(self) -> str:
        """A name for its file that changes with every setting."""
        content = self.study.model_dump_json(exclude_defaults=True) + self.method
        return (
            f"{self.study.name}-{self.method}".replace(" ", "-")
            + "-"
            + hashlib.sha256(content.encode()).hexdigest()[:8]
        )


def of_study(study: Study, **options: Any) -> Cohort:
    """The federation of a study without privacy, at its own seed; ``options`` change the study's own."""
    if study.cohort is None:
        raise ValueError("a reproduction trains on a built-in cohort")
    return cohorts.load(study.cohort.name, study.seed, **{**study.cohort.options(), **options})


def rows_of(cohort: Cohort, *, profile: str = "") -> dict[str, SiteData]:
    """Every client's rows, standardised at the client, in the split that the cohort brings along."""
    return {
        site.name: load(
            site.table, cohort.schema, cohort.outcome, site=site.name, holdout=0.0, split_key="reproduction",
            test_source=site.test, classes=cohort.classes, scaling="site", profile=profile,
        )
        for site in cohort.sites
    }  # fmt: skip


def method_of(study: Study, cohort: Cohort, name: str) -> Method:
    """The method with the study's settings. Momentum is off for APFL, as in the paper (appendix A.3)."""
    classes = cohort.classes if isinstance(cohort.classes, int) else len(cohort.classes)
    sizes = (len(feature_names(cohort.schema)), *study.model.hidden, 1 if classes == 2 else classes)
    local = planning.local_settings(study)
    rows = sum(len(site.table[cohort.outcome]) for site in cohort.sites)
    network = Dense(sizes, study.model.activation)
    return build(name, study.method, network, local, Public(cohort.schema, len(cohort.sites), rows))


def train(job: Job) -> dict[str, Any]:
    """Every client's metrics on its own held-out rows after the last round, and the layers where they are shown."""
    begun, study, cohort = time.perf_counter(), job.study, of_study(job.study)
    sites, method = rows_of(cohort), method_of(job.study, cohort, job.method)
    trainers = {name: data.train for name, data in sites.items()}
    if method.pooled:
        trainers = {planning.POOLED: concatenate(list(trainers.values()))}
    state = method.init(list(trainers), np.random.default_rng([study.seed, 0x1F_ED]))
    own: dict[str, dict[str, NDArray[Any]]] = {name: {} for name in {**trainers, **sites}}
    local = planning.local_settings(study)
    for round_ in range(1, study.method.rounds + 1):
        now: Any = replace(method, local=at_round(local, round_, study.method.rounds))  # type: ignore[type-var]
        answers = []
        for name, data in trainers.items():
            key = seeded_key(study.seed, job.method, name, round_)
            payload, own[name] = now.site_step(data, own[name], now.broadcast(state, name), None, key)
            answers.append(Answer(name, data.patients, payload))
        state = now.server_step(state, answers)
    found = {}
    for name, site in sites.items():
        if site.test is not None:
            risk = method.predict(state, own[name], site.test.x, name)
            found[name] = measure(site.test.y, risk, 0.5, rows=site.test.rows)
    layers = np.round(state["layers"].astype(np.float64), 6).tolist() if "layers" in state else None
    return {"sites": found, "layers": layers, "clients": list(sites), "seconds": time.perf_counter() - begun}


def kept(job: Job, folder: Path) -> dict[str, Any] | None:
    """What an earlier call has written for exactly this job."""
    path = folder / f"{job.key}.json"
    found: dict[str, Any] | None = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    return found


def _one(folder: Path, job: Job) -> tuple[str, float]:
    found = train(job)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{job.key}.json", json.dumps(found, allow_nan=False).encode())
    return job.key, found["seconds"]


def train_all(jobs: Sequence[Job], folder: Path, *, workers: int | None = None, say: Say = lambda _, __: None) -> None:
    """Make what is missing, as many at once as there are cores. A job that was interrupted begins anew; none takes longer
    than a few minutes.
    """
    left = [job for job in jobs if kept(job, folder) is None]
    done = len(jobs) - len(left)
    say(done, "trainings that are there")
    for _, (key, took) in spread(partial(_one, folder), left, workers):
        done += 1
        say(done, f"{key}, {took:.0f} s")
