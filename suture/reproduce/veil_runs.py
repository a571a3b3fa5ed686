"""The trainings behind VEIL's table: which studies with which settings, run a core to each, kept, and never run twice."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suture.conduct import Progress, Step
from suture.reproduce.cores import spread
from suture.reproduce.runs import folder_of, run_once, same
from suture.reproduce.veil_references import references
from suture.runfolder import write_whole
from suture.study import Study

EPSILONS = (1.0, 5.0, 10.0, 15.0)
SEED, FOLDS = 42, 5
MEMORY = Path("/dev/shm")

# key -> label, method settings, clip (None: the method bounds contributions itself). Every row: what `suture tune --frugal`
# takes of 20 trials at epsilon 5 on the icu study with seed 1042, 3 folds of hospitals (few: the best that fits);
# docs/tuning.md has studies and trials.
#   secure:    suture tune secure.toml --trials 20 --frugal --size 1
#   few:       suture tune secure.toml --trials 20 --size 1 --most-bytes 375 --most-ece 0.01 --only rounds=4,5
#              --only teams=12,16
#   moments:   suture tune moments.toml --trials 20 --frugal        votes: the same with votes.toml
#   baselines: suture tune baselines.toml --trials 20 --frugal --method fedavg,scaffold
#   without privacy: suture tune moon.toml --trials 20 --frugal     and the same with printed.toml, of whose trials the best
#   with 10 or 20 rounds is taken, for time
_VOTES = {"name": "veil", "mode": "votes", "rounds": 20, "picks": 2, "quorum": 1.64, "server_rate": 0.133}
_MOMENTS = {"name": "veil", "mode": "votes+moments", "rounds": 10, "picks": 6, "quorum": 2.7, "server_rate": 0.263}
_SCAFFOLD = {"name": "scaffold", "rounds": 20, "local_epochs": 5, "batch": 128, "rate": 0.154}
SETTINGS: dict[str, tuple[str, dict[str, Any], float | None]] = {
    "secure": ("VEIL, secure sums", {"name": "veil", "mode": "secure", "rounds": 8, "teams": 8}, None),
    "few": (
        "VEIL, secure sums, few bytes",
        {"name": "veil", "mode": "secure", "rounds": 5, "concepts": 52, "teams": 12},
        None,
    ),
    "moments": ("VEIL, votes and moments", _MOMENTS, None),
    "votes": ("VEIL, votes", _VOTES, None),
    "fedavg": ("DP-FedAvg", {"name": "fedavg", "rounds": 10, "local_epochs": 2, "batch": 128, "rate": 1.99}, 1.41),
    "scaffold": ("DP-SCAFFOLD", _SCAFFOLD, 2.84),
}
_MOON = {
    "name": "moon",
    "rounds": 10,
    "local_epochs": 5,
    "batch": 64,
    "rate": 0.328,
    "contrast": 0.1,
    "temperature": 1.0,
}
WITHOUT = {"moon": ("MOON (not private)", _MOON)}
PRINTED = {
    "name": "veil-printed",
    "rounds": 10,
    "local_epochs": 2,
    "batch": 256,
    "rate": 2.07,
    "picks": 20,
    "quorum": 0.026,
    "server_rate": 0.108,
}


def study(key: str, epsilon: float | None, *, quick: bool = False, cohort: str = "icu") -> Study:
    """One method at one epsilon (None: without privacy) on one federation."""
    if key in SETTINGS:
        _, method, clip = SETTINGS[key]
    else:
        (_, method), clip = WITHOUT[key], None
    private: dict[str, Any] = {"unit": "patient", "epsilon": epsilon, "delta": 1e-5}
    if clip is not None:
        private["clip"] = clip
    name = f"{key} epsilon {epsilon:g}" if epsilon is not None else f"{key} without privacy"
    return Study(
        name=name if cohort == "icu" else f"{cohort} {name}",
        outcome="died_in_hospital",
        seed=SEED,
        cohort=cohort_of(quick, cohort),
        # MOON contrasts representations, so it needs a hidden layer; the others are logistic regressions.
        model={"hidden": [32] if key == "moon" else []},
        method=method,
        evaluation={"folds": folds(quick)},
        **({"privacy": private} if epsilon is not None else {}),
    )


def printed(claimed: float, *, quick: bool = False, cohort: str = "icu") -> Study:
    """Algorithm 1 as printed, at the epsilon that it claims; not private."""
    base = study("votes", None, quick=quick, cohort=cohort)
    name = f"as printed, claims {claimed:g}"
    return base.replace(
        name=name if cohort == "icu" else f"{cohort} {name}", method={**PRINTED, "claimed_epsilon": claimed}
    )


def cohort_of(quick: bool, cohort: str) -> dict[str, Any]:
    """The cohort as a study names it."""
    if cohort == "icu" and quick:
        return {"name": "icu", "hospitals": 36, "patients": 10_000}
    return {"name": cohort}


def options(quick: bool, cohort: str) -> dict[str, Any]:
    """The same as arguments of `cohorts.load`."""
    return {key: value for key, value in cohort_of(quick, cohort).items() if key != "name"}


def folds(quick: bool) -> int:
    """How many parts of hospitals are tested in turn."""
    return 2 if quick else FOLDS


def epsilons_of(quick: bool, cohort: str) -> tuple[float, ...]:
    """Those of the table's private rows."""
    return ((1.0, 5.0) if cohort == "icu" else (5.0,)) if quick else EPSILONS


def studies(cohort: str, quick: bool) -> list[Study]:
    """Everything that is trained on one federation, long ones first."""
    epsilons = epsilons_of(quick, cohort)
    found = [printed(e, quick=quick, cohort=cohort) for e in epsilons]
    found += [study(key, None, quick=quick, cohort=cohort) for key in WITHOUT]
    return found + [study(key, e, quick=quick, cohort=cohort) for key in reversed(SETTINGS) for e in (*epsilons, None)]


@dataclass(frozen=True)
class Job:
    """A study to train, or (None) a federation's references to fit."""

    study: Study | None
    cohort: str
    quick: bool
    out: Path

    @property
    def file(self) -> Path:
        """What is there once the job is done."""
        if self.study is None:
            return self.out / "runs" / f"references-{self.cohort}{'-quick' if self.quick else ''}.json"
        return folder_of(self.study, self.out) / "result.json"

    @property
    def done(self) -> bool:
        """Whether exactly this was done before. References say nowhere which settings made them: they are made every time."""
        return self.study is not None and self.file.exists() and same(self.study, self.file.parent)


def train(present: Sequence[str], out: Path, quick: bool, threads: int | None, progress: Progress | None) -> None:
    """All studies and references that are not there yet, a core to each."""
    wanted = [Job(None, cohort, quick, out) for cohort in present]
    wanted += [Job(one, cohort, quick, out) for cohort in present for one in studies(cohort, quick)]
    left = [job for job in wanted if not job.done]
    done = len(wanted) - len(left)
    for i, seconds in spread(_work, left, threads):
        done += 1
        if progress:
            one = left[i].study
            name = f"references on {left[i].cohort}" if one is None else one.name
            progress(Step(f"{name}, {seconds:.0f} s", SEED, done, len(wanted), 1, 1, None))


def _work(job: Job) -> float:
    begun = time.perf_counter()
    if job.study is not None:
        _run(job.study, job.out)
    else:
        found = references(cohort_of(job.quick, job.cohort), SEED, folds(job.quick))
        job.file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(job.file, json.dumps(found, allow_nan=False).encode())
    return time.perf_counter() - begun


def _run(wanted: Study, out: Path) -> None:
    """Train. Only a run on generated patients can be resumed; whatever else is in the folder is replaced."""
    folder = folder_of(wanted, out)
    generated = wanted.cohort is not None and wanted.cohort.name == "icu"
    if folder.exists() and not (generated and same(wanted, folder)):
        shutil.rmtree(folder)
    # Real patients' ledgers are durable, on disk, a write for every release. The demo's patients are public, and every run
    # here is a simulation, so these ledgers are kept in memory where there is such a folder, and go with the run.
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as home:
        run_once(wanted, out, "veil", base=Path(home), threads=1)
