"""The trainings behind VEIL's table: which studies with which settings, one per core, each kept and
never repeated."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from suture import cohorts
from suture.cohorts.cohort import Cohort
from suture.papers.reproduction import Work, spread
from suture.papers.veil.references import references
from suture.privacy.files import write_whole
from suture.study import Study

EPSILONS = (1.0, 5.0, 10.0, 15.0)
SEED, FOLDS = 42, 5
MEMORY = Path("/dev/shm")
Settings = dict[str, str | float]

# Key: label, method settings, clip (None: the method bounds contributions itself). Each row is what
# `suture tune --frugal` picks from 20 trials at epsilon 5 on the icu study with seed 1042 and 3
# folds of hospitals (few: the best that fits); docs/tuning.md has the studies and trials.
#   secure:    suture tune secure.toml --trials 20 --frugal --size 1
#   few:       suture tune secure.toml --trials 20 --size 1 --most-bytes 375 --most-ece 0.01
#              --only rounds=4,5 --only teams=12,16
#   moments:   suture tune moments.toml --trials 20 --frugal; votes: the same with votes.toml
#   baselines: suture tune baselines.toml --trials 20 --frugal --method fedavg,scaffold
#   without privacy: suture tune moon.toml --trials 20 --frugal, and the same with printed.toml, of
#              whose trials the best with 10 or 20 rounds is taken, to save time
# fmt: off
SETTINGS: dict[str, tuple[str, Settings, float | None]] = {
    "secure": ("VEIL, secure sums", {"name": "veil", "mode": "secure", "rounds": 8, "teams": 8}, None),
    "few": ("VEIL, secure sums, few bytes",
            {"name": "veil", "mode": "secure", "rounds": 5, "concepts": 52, "teams": 12}, None),
    "moments": ("VEIL, votes and moments",
                {"name": "veil", "mode": "votes+moments", "rounds": 10, "picks": 6, "quorum": 2.7,
                 "server_rate": 0.263}, None),
    "votes": ("VEIL, votes", {"name": "veil", "mode": "votes", "rounds": 20, "picks": 2, "quorum": 1.64,
                              "server_rate": 0.133}, None),
    "fedavg": ("DP-FedAvg",
               {"name": "fedavg", "rounds": 10, "local_epochs": 2, "batch": 128, "rate": 1.99}, 1.41),
    "scaffold": ("DP-SCAFFOLD",
                 {"name": "scaffold", "rounds": 20, "local_epochs": 5, "batch": 128, "rate": 0.154}, 2.84),
}
WITHOUT: dict[str, tuple[str, Settings]] = {
    "moon": ("MOON (not private)", {"name": "moon", "rounds": 10, "local_epochs": 5, "batch": 64,
                                    "rate": 0.328, "contrast": 0.1, "temperature": 1.0}),
}
PRINTED: Settings = {"name": "veil-printed", "rounds": 10, "local_epochs": 2, "batch": 256, "rate": 2.07,
                     "picks": 20, "quorum": 0.026, "server_rate": 0.108}
# fmt: on


@dataclass(frozen=True)
class Federation:
    """One federation of the table, whole or in its quick version."""

    name: str
    quick: bool = False

    @property
    def options(self) -> dict[str, int]:
        """Arguments of `cohorts.load`."""
        return {"hospitals": 36, "patients": 10_000} if self.name == "icu" and self.quick else {}

    @property
    def folds(self) -> int:
        """How many parts of hospitals are tested in turn."""
        return 2 if self.quick else FOLDS

    @property
    def epsilons(self) -> tuple[float, ...]:
        """The epsilons of the private rows."""
        if not self.quick:
            return EPSILONS
        return (1.0, 5.0) if self.name == "icu" else (5.0,)

    def load(self) -> Cohort:
        """The hospitals; a `DataError` where their files are missing."""
        return cohorts.load(self.name, SEED, **self.options)

    def study(self, key: str, epsilon: float | None) -> Study:
        """One method at one epsilon (None: without privacy)."""
        _, method, clip = SETTINGS[key] if key in SETTINGS else (*WITHOUT[key], None)
        private = {"unit": "patient", "epsilon": epsilon, "delta": 1e-5}
        private |= {} if clip is None else {"clip": clip}
        name = f"{key} epsilon {epsilon:g}" if epsilon is not None else f"{key} without privacy"
        return Study(
            name=self._named(name),
            outcome="died_in_hospital",
            seed=SEED,
            simulation=self.name != "icu",  # eICU's patients are real; icu's are generated
            cohort={"name": self.name, **self.options},
            # MOON contrasts representations, so it needs a hidden layer; the others are logistic
            # regressions.
            model={"hidden": [32] if key == "moon" else []},
            method=method,
            evaluation={"folds": self.folds},
            **({"privacy": private} if epsilon is not None else {}),
        )

    def printed(self, claimed: float) -> Study:
        """Algorithm 1 as printed, at the epsilon that it claims; not private."""
        name, method = f"as printed, claims {claimed:g}", {**PRINTED, "claimed_epsilon": claimed}
        return self.study("votes", None).replace(name=self._named(name), method=method)

    def _named(self, name: str) -> str:
        return name if self.name == "icu" else f"{self.name} {name}"

    def studies(self) -> list[Study]:
        """Everything that is trained, long trainings first."""
        found = [self.printed(epsilon) for epsilon in self.epsilons]
        found += [self.study(key, None) for key in WITHOUT]
        every = (*self.epsilons, None)
        return found + [self.study(key, e) for key in reversed(SETTINGS) for e in every]

    def references(self, out: Path) -> Path:
        """The file of the models that are neither private nor federated."""
        return out / "runs" / f"references-{self.name}{'-quick' if self.quick else ''}.json"


@dataclass(frozen=True)
class Job:
    """A study to train, or (None) a federation's references to fit."""

    study: Study | None
    federation: Federation
    work: Work

    @property
    def done(self) -> bool:
        """Whether exactly this was done before. References do not record the settings that made
        them, so they are always made again."""
        if self.study is None:
            return False
        there = (self.work.folder(self.study) / "result.json").exists()
        return there and self.work.holds(self.study)


def train(present: Sequence[Federation], work: Work) -> None:
    """Make all references, and train what is not there yet, one job per core."""
    alone = replace(work, threads=1, progress=None)
    jobs = [Job(None, one, alone) for one in present]
    jobs += [Job(study, one, alone) for one in present for study in one.studies()]
    left = [job for job in jobs if not job.done]
    done = len(jobs) - len(left)
    for i, seconds in spread(_work, left, work.threads):
        done += 1
        study = left[i].study
        name = study.name if study else f"references on {left[i].federation.name}"
        work.say(f"{name}, {seconds:.0f} s", done, len(jobs), SEED)


def _work(job: Job) -> float:
    begun = time.perf_counter()
    if job.study is not None:
        _run(job.study, job.work)
    else:
        found = references(job.federation.load(), SEED, job.federation.folds)
        file = job.federation.references(job.work.out)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(found, allow_nan=False).encode())
    return time.perf_counter() - begun


def _run(study: Study, work: Work) -> None:
    """Train. Only a run on generated patients can be resumed; anything else in the folder is
    replaced."""
    folder = work.folder(study)
    if folder.exists() and (study.simulation or not work.holds(study)):
        shutil.rmtree(folder)
    # Real patients' ledgers are on disk, with a write for every release. The demo's patients are
    # public and every run here is a simulation, so these ledgers are kept in memory where there is
    # such a folder, and are deleted with the run.
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as home:
        work.run(study, base=Path(home))
