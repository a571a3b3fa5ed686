"""From a study to a result: survey, plan, open the accounts, read, train, measure, write.

`run` and `resume` are what the command line and a notebook call. Progress is a callable, so that
the same code serves a terminal, a notebook and a test.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from suture.engine import federation, gather, scoring
from suture.engine.embedded import Embedded
from suture.engine.folder import RunFolder, before_key
from suture.engine.plan import POOLED, World, first_rounds, participants, plan_of
from suture.engine.round import (
    Engine,
    Party,
    Training,
    global_and_sites,
    start,
    train,
)
from suture.engine.summary import Outcome, summarise
from suture.errors import (
    BudgetExhausted,
    PrivacyError,
    RunError,
    StudyError,
    SutureError,
    TooFewSites,
)
from suture.evaluation.groups import by_column, by_group
from suture.evaluation.metrics import (
    calibration_of,
    cross_fitted,
    ece,
    measure,
    measure_lightly,
    roc_curve,
)
from suture.methods import registry
from suture.methods.base import State
from suture.methods.declared import Declared
from suture.models.dense import Dense
from suture.privacy.door import protected
from suture.result import Result
from suture.study import Study
from suture.training.local import Local

SITES_IN_HISTORY = 50
"""With more sites than this, every round's history holds the global metrics only; the final metrics
hold all sites."""


@dataclass(frozen=True)
class Step:
    """Where a run is, for a progress display."""

    method: str
    seed: int
    part: int
    parts: int
    round: int
    rounds: int
    auc: float | None


Progress = Callable[[Step], None]


def run(
    study: Study | str | Path,
    *,
    out: str | Path | None = None,
    base: str | Path | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    command: str = "suture.run(study)",
    file: Path | None = None,
    engine: Engine | None = None,
    methods: Iterable[Declared] = (),
    unchecked: bool = False,
    begin: State | None = None,
) -> Result:
    """Run a study (an object, or the path of a study file), by default on the embedded engine.

    ``out`` is the run folder; without it nothing but the sites' own ledgers is written. ``base`` is
    what paths in the study are relative to (default: the study file's folder, or the working
    folder). ``file`` is where the study came from, if it was changed after reading; a resumed run
    takes database passwords from there. ``engine`` is where the sites are: see
    `suture.network`. ``methods`` are methods of your own that the study names (docs/methods.md).
    ``unchecked`` runs on real patients also where nobody has signed that a site's table is ready
    (docs/check.md), and the result says so; an ``engine`` that is given decides this itself.
    ``begin`` is put into the server's state before the first round, such as a model to evaluate.
    """
    if not isinstance(study, Study):
        file = Path(study).resolve()
        base = base or file.parent
        study = Study.from_toml(file)
    root = Path(base or ".").resolve()
    registry.bring(methods)
    study = _check(study)
    engine = engine or Embedded(threads, unchecked=unchecked)
    if out is None:
        return _conduct(study, root, None, engine, progress, command, resumed=False, begin=begin)
    folder = RunFolder.create(Path(out).resolve(), study, root, file, engine.recorded)
    try:
        with folder.held():
            return _conduct(study, root, folder, engine, progress, command, resumed=False)
    except SutureError:
        folder.remove_if_unused()
        raise


def resume(
    folder: str | Path,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
    command: str = "suture.resume(folder)",
    engine: Engine | None = None,
    unchecked: bool = False,
) -> Result:
    """Go on with an interrupted run: the same model and figures as if it had not been
    interrupted."""
    opened, study, base = RunFolder.open(Path(folder).resolve())
    with opened.held():
        if (opened.path / "result.json").exists():
            return Result.load(opened.path)
        engine = engine or Embedded(threads, unchecked=unchecked)
        return _conduct(study, base, opened, engine, progress, command, resumed=True)


def _check(study: Study) -> Study:
    """Refuse what cannot run; the study with the settings of methods that were brought along."""
    study = study.replace()
    for name in study.methods:
        one = registry.declared(name)
        if study.private and one.unproven:
            raise PrivacyError(one.unproven)
        # A statistic asks for sums only, and may need to know a schema to be built.
        if not study.protection.plain and one.model != "none":
            built = registry.build(name, study.method, Dense((2, 2, 1)), Local(), study.facts())
            gather.check(built, study.protection)
    if (
        study.evaluation.holdout == 0
        and any(registry.declared(name).model != "none" for name in study.methods)
        and not study.evaluation.folds
        and not any(site.test for site in study.sites)
    ):
        raise StudyError(
            "evaluation.holdout is 0 and no site has a test table: there is nothing to measure on"
        )
    return study


def _conduct(
    study: Study,
    base: Path,
    folder: RunFolder | None,
    engine: Engine,
    progress: Progress | None,
    command: str,
    *,
    resumed: bool,
    begin: State | None = None,
) -> Result:
    if study.simulation and engine.name != "embedded":
        raise StudyError(
            "simulation = true has no network: it is research on tables that whoever runs it "
            "holds. Leave --engine and --hub "
            "out, or remove simulation and declare patients = ... in every [[site]]"
        )
    outcomes: dict[str, list[Outcome]] = {name: [] for name in study.methods}
    first: World | None = None
    model: dict[str, Any] = {}
    warnings: list[str] = []
    parts, part = len(study.methods) * study.evaluation.seeds * max(1, study.evaluation.folds), 0
    with engine:
        for seed in range(study.seed, study.seed + study.evaluation.seeds):
            # Real rows are read once; generated patients are new for every seed, and so is the
            # budget of a simulation.
            keep = first is not None and not first.simulated
            here = (
                first
                if first and keep
                else engine.gather(study, base, folder.path if folder else None, seed)
            )
            for fold, name in product(federation.split(study, here), study.methods):
                part += 1
                job = _Job(study, fold, name, seed, folder, engine, progress, part, parts)
                outcome, training = job.run(resumed, begin or {})
                if outcome is None:
                    paid = f"{len(outcomes[name])} of {study.evaluation.seeds} seeds"
                    warnings.append(f"{name}: on the same patients the budget paid for {paid}")
                    continue
                outcomes[name].append(outcome)
                if why := outcome.evaluation.get("stopped"):
                    warnings.append(f"{name}, seed {seed}: no private evaluation: {why}")
                if name == study.method.name and not model:
                    model = dict(training.state)
            if first is None:
                first = here
                warnings += here.warnings()
            else:
                _close(here, first)
    if first is None:
        raise StudyError("evaluation.seeds: expected at least 1")
    data = summarise(study, first, outcomes, warnings, command)
    _close(first, None)
    result = Result(data, model)
    if folder is not None:
        result.save(folder.path)
    return result


def _close(here: World, keep: World | None) -> None:
    if here is keep:
        return
    for ledger in here.ledgers.values():
        ledger.close()


class _Job:
    """One training: a method and a seed."""

    def __init__(
        self,
        study: Study,
        here: World,
        name: str,
        seed: int,
        folder: RunFolder | None,
        engine: Engine,
        progress: Progress | None,
        part: int,
        parts: int,
    ) -> None:
        self.study, self.world, self.seed = study, here, seed
        self.folder, self.engine, self.progress = folder, engine, progress
        self.part, self.parts = part, parts
        self.plan = plan_of(study, here, name)
        self.method = self.plan.method
        asked = participants(list(here.sizes), 1, study.method.participation, study.seed)
        gather.check(self.method, study.protection, len(asked))
        self.key = f"{name}-{seed}" if here.fold is None else f"{name}-{seed}-fold-{here.fold}"
        self.account = self.plan.account
        self._saved = time.monotonic()
        self._seen: State = {}
        self._spent: dict[str, float] = {}
        """What each site's ledger said after the evaluation, where there was one."""
        # Kept for good, so that a patient who is erased later can be trained without from before
        # their first round on.
        firsts = first_rounds(
            list(self.plan.sites or here.sizes),
            study.method.rounds,
            study.method.participation,
            study.seed,
        )
        self._kept_rounds = {first - 1 for first in firsts.values() if first > 1}

    def run(self, resumed: bool, begin: State) -> tuple[Outcome | None, Training]:
        """Train, or take up where the checkpoint left off, and measure. None: no budget was left
        for this seed."""
        begun = time.perf_counter()
        trainers, readers = self.engine.members(self.study, self.world, self.plan, self.seed)
        kept = self.folder.load(self.key) if self.folder else None
        if kept is not None:
            training, own, finished = kept
            for site, state in own.items():
                trainers[site].own = state
            if finished is not None:
                return Outcome(**finished), training
        else:
            training = start(self.method, list(trainers), self.seed)
            training.state = {**training.state, **begin}
        self._seen = training.state
        spec = self.study.method
        try:
            training = train(
                self.method,
                trainers,
                self.engine,
                training,
                rounds=spec.rounds,
                fraction=spec.participation,
                seed=self.study.seed,
                after_round=lambda done: self._after_round(done, trainers, readers),
                minimum=self.study.federation.minimum_sites,
                protection=self.study.protection,
            )
        except TooFewSites as error:
            raise TooFewSites(
                f"{error}. The run is kept up to the round before: go on with suture run --resume "
                "once they are back"
            ) from None
        if training.stopped is not None:
            if training.round == 0 and self.seed > self.study.seed and not self.world.simulated:
                return None, training
            if training.round == 0 or not (
                resumed or any(member.new_charges for member in trainers.values())
            ):
                raise self._nothing_left(training.stopped, trainers)
        seen = training.history[-1]["round"] if training.history else 0
        if self.method.predicts and seen < training.round:
            self._look(training, readers)  # the budget ended it between two looks
        tested = self._evaluate(training, trainers)
        outcome = self._measure(training, trainers, readers, time.perf_counter() - begun, tested)
        if self.folder:
            self.folder.save(self.key, training, _own(trainers), outcome.__dict__)
        return outcome, training

    def _evaluate(self, training: Training, trainers: Mapping[str, Party]) -> dict[str, Any]:
        """The charged evaluation of the model, where one was planned: its figures, or why there are
        none. Sites score with what left them under the promise, and with nothing else of their
        own."""
        plan = self.plan.evaluation
        if plan is None:
            return {}
        members, _ = self.engine.members(self.study, self.world, plan, self.seed)
        for site, member in members.items():
            member.own = protected(trainers[site].own) if site in trainers else {}
        first = start(plan.method, list(members), self.seed)
        first.state = {**training.state, **first.state}
        try:
            done = train(
                plan.method,
                members,
                self.engine,
                first,
                rounds=plan.rounds,
                fraction=plan.participation,
                seed=self.study.seed,
                after_round=lambda _: None,
                protection=plan.protection,
            )
        except RunError as error:  # sites are missing: the model is finished, and goes out without
            done = replace(first, stopped=f"{error}. What it was charged stays charged")
        for site, member in members.items():
            self._spent[site] = member.spent()
            if site in trainers:
                trainers[site].new_charges += member.new_charges
        if done.stopped is not None:
            return {"stopped": done.stopped}
        epsilon = next(iter(plan.sites.values())).epsilon
        return {**plan.method.facts(done.state), "epsilon": epsilon}

    def _nothing_left(self, why: str, trainers: Mapping[str, Party]) -> BudgetExhausted:
        if any(member.charged() for member in trainers.values()):
            return BudgetExhausted(
                f"study {self.account!r} has no budget left: {why}. What the budget paid for is in "
                "the earlier run; more "
                "rounds need a new study with a newly approved budget"
            )
        return BudgetExhausted(
            f"study {self.account!r}: the budget does not pay for a single round: {why}. Raise "
            "privacy.noise_multiplier, "
            "leave it out (noise is then calibrated to the rounds), or train with smaller batches; "
            "see: suture plan"
        )

    def _after_round(
        self, training: Training, trainers: Mapping[str, Party], readers: Mapping[str, Party]
    ) -> None:
        every, last = self.study.evaluation.every, training.round == self.study.method.rounds
        if self.method.predicts and (training.round % every == 0 or last):
            self._look(training, readers)
        if self.folder and training.round in self._kept_rounds:
            self.folder.save(before_key(self.key, training.round), training, _own(trainers), None)
        now = time.monotonic()
        if self.folder and now - self._saved >= self.engine.checkpoint_seconds:
            self.folder.save(self.key, training, _own(trainers), None)
            self._saved = now

    def _look(self, training: Training, readers: Mapping[str, Party]) -> None:
        """How the model of this round does on test patients, for the history and for whoever
        waits."""
        threshold, target = self.study.evaluation.threshold, self.world.target
        scores = self.engine.scores(readers, self.method, training.state, training.round)
        columns = scoring.columns_of(self.engine, readers, self.world, scores)
        if len(readers) > SITES_IN_HISTORY:
            scores = {
                "all": (
                    np.concatenate([y for y, _ in scores.values() if len(y)]),
                    np.concatenate([p for y, p in scores.values() if len(y)]),
                )
            }
        overall, sites = global_and_sites(
            scores, lambda y, p: measure_lightly(y, p, threshold, target)
        )
        entry = {
            "round": training.round,
            "global": overall,
            "sites": sites if len(readers) <= SITES_IN_HISTORY else {},
        }
        entry.update(scoring.after_round(*scoring.together(scores), columns, threshold))
        entry.update(self.method.noted(self._seen, training.state))
        self._seen = training.state
        training.history.append(entry)
        if self.progress:
            step = Step(
                self.method.label,
                self.seed,
                self.part,
                self.parts,
                training.round,
                self.study.method.rounds,
                overall.get("auc"),
            )
            self.progress(step)

    def _measure(
        self,
        training: Training,
        trainers: Mapping[str, Party],
        readers: Mapping[str, Party],
        seconds: float,
        tested: dict[str, Any],
    ) -> Outcome:
        threshold, target = self.study.evaluation.threshold, self.world.target
        scores = {}
        if self.method.predicts:
            scores = self.engine.scores(readers, self.method, training.state, training.round)
        overall, sites = global_and_sites(
            scores, lambda y, p: measure(y, p, threshold, rows=len(y), target=target)
        )
        figures = self.engine.figures(readers)
        sites |= figures
        y, p = scoring.together(scores)
        two = target.two  # the curves are those of one risk; otherwise there is none to draw
        groups = scoring.columns_of(self.engine, readers, self.world, scores) if len(y) else {}
        if two:
            overall["ece_mass"] = ece(y, p, kind="mass")
            at_sites = [cross_fitted(*pair) for pair in scores.values() if len(pair[0])]
            overall["ece_at_site"] = ece(y, np.concatenate(at_sites)) if at_sites else None
        protected = self.study.private
        # Over a network a member knows what its own last answer said, before the evaluation.
        spent = {
            site: max(member.spent(), self._spent.get(site, 0.0))
            for site, member in trainers.items()
            if protected
        }
        noise = {
            site: member.noise for site, member in trainers.items() if member.noise is not None
        }
        if self.method.pooled:
            spent = dict.fromkeys(self.world.sizes, spent[POOLED]) if spent else {}
            noise = dict.fromkeys(self.world.sizes, noise[POOLED]) if noise else {}
        outcome = Outcome(
            seed=self.seed,
            overall=overall,
            sites=sites,
            groups=by_group(y, p, groups, threshold, target),
            history=training.history,
            roc=roc_curve(y, p) if two else {"fpr": [], "tpr": []},
            calibration=calibration_of(target, y, p),
            epsilon=spent,
            noise=noise,
            bytes_up=training.bytes_up,
            bytes_down=training.bytes_down,
            rounds=training.round,
            stopped=training.stopped,
            absent=training.absent,
            seconds=seconds,
            label=self.method.label,
            protection=training.protection,
            facts=self.method.facts(training.state),
            fairness=by_column(
                y, p, groups, threshold, patients=scoring.owners(readers), seed=self.seed
            )
            if two
            else {},
            thresholds=scoring.thresholds(
                self.study, self.world, self.method, training.state, readers, scores
            )
            if two
            else {},
            parts=scoring.parts(self.method, training.state, readers, groups, threshold),
        )
        return scoring.with_evaluation(outcome, tested) if tested else outcome


def _own(members: Mapping[str, Party]) -> dict[str, dict[str, Any]]:
    return {site: member.own for site, member in members.items() if member.own}
