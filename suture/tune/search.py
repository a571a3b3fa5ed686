"""`suture tune`: search a method's settings on patients whom the study never tests on.

Optuna proposes settings (tree-structured Parzen estimators: Bergstra, Bardenet, Bengio, Kégl 2011),
each trial is a whole training of the study, and trials that lag behind the median of the others at
the same share of their training are ended early. Trials are kept in SQLite, one transaction each,
so a search that was killed goes on where it stopped and proposes what it would have proposed.

Whose patients a search may see, and what that costs in privacy: `suture/tune/plan.py`. Which trial
is taken: there too.
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import math
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from suture.engine import conduct
from suture.errors import MissingExtra, PrivacyError, RunError, StudyError
from suture.methods.declared import Choice
from suture.privacy.files import write_whole
from suture.study import Study
from suture.tune.plan import Plan, Rule, Tried, candidates_for, choose, make_plan, settings

TENTHS = 10
WARM_UP, STARTERS = 5, 8
"""Nothing is ended early before half of its first training, nor while fewer trials than this are
finished."""
ATTEMPTS = 80
"""How often new settings are asked for instead of some that were tried; a space may be
exhausted."""

Say = Callable[[str], None]
BEST = Rule()


def tune(
    study: Study,
    *,
    out: str | Path,
    trials: int = 50,
    method: str | None = None,
    on: str | None = None,
    size: float | None = None,
    seed: int | None = None,
    threads: int | None = None,
    rule: Rule = BEST,
    only: Mapping[str, Sequence[str]] | None = None,
    say: Say = lambda text: None,
) -> dict[str, Any]:
    """Search until ``trials`` are done, in all; writes the best settings as a study file, and a
    table of all trials.

    ``rule`` says which trial is taken. A limit on bytes also steers the search; one on the
    calibration error does not. ``only`` limits
    settings to some of the values in their list.
    """
    optuna = _optuna()
    if trials < 1:
        raise StudyError(f"--trials: expected 1 or more, found {trials}")
    out = Path(out).resolve()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="suture-tune-")))
        plan = make_plan(
            study, method or study.method.name, scratch, on=on, size=size, seed=seed, only=only
        )
        plan = replace(plan, frugal=rule.frugal, most=rule.most_bytes, most_ece=rule.most_ece)
        stack.enter_context(_held(out))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        search = _open(optuna, out / "trials.sqlite", plan)
        say(f"{plan.method}: {trials} trials on {plan.data}; privacy: {plan.cost}")
        while (done := len(_counted(optuna, search))) < trials:
            _one(optuna, search, plan, done, trials, threads, say)
        return _finish(optuna, search, plan, out)


def prepare(
    study: Study,
    out: Path,
    method: str,
    count: int,
    only: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Any]:
    """For a site's own patients: a study with ``count`` candidates, whose run pays for the choice."""
    made = candidates_for(study, method, count, only)
    if out.exists():
        raise StudyError(f"{out} exists; nothing was written. Move it away first")
    told = (
        f"charged by the run, to each site's ledger before anything leaves: the study's promise, "
        f"for {count} candidates and the choice among them together"
    )
    head = f"# {count} candidates of suture tune (docs/tuning.md). Privacy: {told}.\n\n"
    write_whole(out, (head + made.without_passwords().to_toml()).encode())
    return {
        "method": method,
        "candidates": count,
        "privacy_cost": told,
        "study": str(out),
    }


# --- the search --------------------------------------------------------------------------------------------------------


def _optuna() -> Any:
    try:
        return import_module("optuna")
    except ImportError:
        raise MissingExtra("suture tune needs Optuna: pip install 'suture[tune]'") from None


@contextmanager
def _held(out: Path) -> Iterator[None]:
    """One search a folder at a time; the lock goes with the process, whatever ended it."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = (out / ".lock").open("w")
    except OSError as error:
        raise RunError(f"{out} cannot be written: {error}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(
                f"{out} is in use by another search; wait for it or choose another --out"
            ) from None
        yield


def _open(optuna: Any, path: Path, plan: Plan) -> Any:
    """The search in its file: a new one, or the same one to go on with."""
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    median = optuna.pruners.MedianPruner(n_startup_trials=STARTERS, n_warmup_steps=WARM_UP)
    search = optuna.create_study(
        storage=storage,
        study_name="suture",
        load_if_exists=True,
        direction="minimize" if plan.lower else "maximize",
        pruner=median if plan.may_end_early else optuna.pruners.NopPruner(),
    )
    mark = search.user_attrs.get("mark")
    if mark is None:
        search.set_user_attr("mark", plan.mark())
        own = _own_settings(plan)
        if own is not None:
            search.enqueue_trial(own)
    elif mark != plan.mark():
        raise RunError(
            f"{path} holds a search for another study, method or size; choose another --out"
        )
    state = optuna.trial.TrialState
    for left in search.get_trials(
        deepcopy=False, states=(state.RUNNING,)
    ):  # of a process that was killed
        search.tell(left.number, state=state.FAIL)
        search.enqueue_trial(left.params)
    return search


def _own_settings(plan: Plan) -> dict[str, Any] | None:
    """The study's own settings, as the first trial, where the space holds all of them."""
    tables = plan.trial.to_dict()
    found = {}
    for part in plan.space:
        table, key = part.name.split(".")
        value = tables.get(table, {}).get(key)
        inside = (
            value in part.values
            if isinstance(part, Choice)
            else value is not None and part.low <= value <= part.high
        )
        if not inside:
            return None
        found[part.name] = value
    return found


def _counted(optuna: Any, search: Any) -> list[Any]:
    """Trials that count: finished, ended early, or failed for a reason of their settings."""
    state = optuna.trial.TrialState
    done = search.get_trials(deepcopy=False, states=(state.COMPLETE, state.PRUNED, state.FAIL))
    return [trial for trial in done if trial.state != state.FAIL or "failed" in trial.user_attrs]


def _one(
    optuna: Any, search: Any, plan: Plan, done: int, trials: int, threads: int | None, say: Say
) -> None:
    trial, values = _proposed(optuna, search, plan, done)
    begun = time.perf_counter()
    watch = _Watch(optuna, trial, plan)
    state = optuna.trial.TrialState
    text = ", ".join(
        f"{key} {value}" for table in settings(values).values() for key, value in table.items()
    )
    try:
        result = conduct.run(
            plan.trial.replace(**settings(values)), base=plan.base, threads=threads, progress=watch
        )
        value = result.data["metrics"]["global"].get(plan.metric)
        if value is None or not math.isfinite(value):
            raise RunError(f"the trial has no {plan.metric}")
    except optuna.TrialPruned:
        trial.set_user_attr("seconds", time.perf_counter() - begun)
        search.tell(trial, state=state.PRUNED)
        say(f"[{done + 1}/{trials}] ended early at {watch.last:.4f}: {text}")
    except (RunError, PrivacyError) as error:  # settings that diverge, or that no noise can pay for
        trial.set_user_attr("failed", str(error))
        search.tell(trial, state=state.FAIL)
        say(f"[{done + 1}/{trials}] failed ({error}): {text}")
    else:
        parts, sent = _parts(result, plan.metric)
        trial.set_user_attr("seconds", time.perf_counter() - begun)
        trial.set_user_attr("parts", parts)
        trial.set_user_attr("bytes", sent)
        trial.set_user_attr("ece", result.data["metrics"]["global"].get("ece"))
        if plan.most is not None:
            trial.set_constraint("bytes", sent - plan.most)
        search.tell(trial, value)
        say(
            f"[{done + 1}/{trials}] {plan.metric} {value:.4f}, {sent:,.0f} bytes a hospital: {text}"
        )


def _parts(result: Any, metric: str) -> tuple[list[float], float]:
    """Each fold's value, and what a hospital sends in one training, on average."""
    data = result.data
    values = [run["global"].get(metric) for run in data["methods"][data["method"]]["per_seed"]]
    folds = int(data["study"]["evaluation"]["folds"])
    training = len(data["cohort"]["sites"]) * ((folds - 1) / folds if folds else 1.0)
    return [math.nan if value is None else value for value in values], data["communication"][
        "bytes_up"
    ] / training


def _proposed(optuna: Any, search: Any, plan: Plan, done: int) -> tuple[Any, dict[str, Any]]:
    """A trial with settings that were not tried yet: where all are whole numbers or names,
    proposals come twice.

    A sampler a trial, seeded by its number: a search that was interrupted proposes what it would
    have proposed.
    """
    tried = [settings(earlier.params) for earlier in _counted(optuna, search)]
    for attempt in range(ATTEMPTS):
        seed = plan.trial.seed + done + 1_000_000 * attempt
        likely = optuna.samplers.TPESampler(seed=seed, n_startup_trials=10, multivariate=True)
        search.sampler = (
            likely if attempt < ATTEMPTS // 4 else optuna.samplers.RandomSampler(seed=seed)
        )
        trial = search.ask()
        values = {part.name: _suggest(trial, part) for part in plan.space}
        if settings(values) not in tried or attempt == ATTEMPTS - 1:
            break
        search.tell(
            trial, state=optuna.trial.TrialState.FAIL
        )  # without a reason of its own: it does not count
    return trial, values


def _suggest(trial: Any, part: Any) -> Any:
    if isinstance(part, Choice):
        return trial.suggest_categorical(part.name, part.values)
    return trial.suggest_float(part.name, part.low, part.high, log=part.log)


class _Watch:
    """Reports the mean AUC so far at every tenth of every fold, and ends a trial that lags
    behind."""

    def __init__(self, optuna: Any, trial: Any, plan: Plan) -> None:
        self.optuna, self.trial = optuna, trial
        self.by_round = plan.metric == "auc"
        self.finished: dict[int, float] = {}
        self.last, self._told = math.nan, -1

    def __call__(self, step: conduct.Step) -> None:
        if step.auc is None or not self.by_round:
            return
        earlier = [auc for part, auc in self.finished.items() if part < step.part]
        self.last = (sum(earlier) + step.auc) / (len(earlier) + 1)
        if step.round == step.rounds:
            self.finished[step.part] = step.auc
        at = TENTHS * (step.part - 1) + TENTHS * step.round // step.rounds
        if at == self._told:
            return
        self._told = at
        self.trial.report(self.last, at)
        if at < TENTHS * step.parts and self.trial.should_prune():
            raise self.optuna.TrialPruned


# --- what comes out ----------------------------------------------------------------------------------------------------


def _finish(optuna: Any, search: Any, plan: Plan, out: Path) -> dict[str, Any]:
    state = optuna.trial.TrialState
    counted = sorted(_counted(optuna, search), key=lambda trial: trial.number)
    complete = [trial for trial in counted if trial.state == state.COMPLETE]
    if not complete:
        raise RunError(
            f"no trial of {len(counted)} came to an end; the first says: "
            f"{counted[0].user_attrs.get('failed')}"
        )
    best = _taken(complete, plan)
    rows = [_row(trial, plan, best is trial) for trial in counted]
    tuned = plan.study.replace(**_merge({"method": {"name": plan.method}}, settings(best.params)))
    tuned = tuned.replace(name=f"{plan.study.name} tuned"[:80])
    write_whole(
        out / "study.toml",
        (_header(plan, best, len(counted)) + tuned.without_passwords().to_toml()).encode(),
    )
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(out / "trials.csv", text.getvalue().encode())
    found = {
        "method": plan.method,
        "metric": plan.metric,
        "best": {"trial": best.number, "value": best.value, "settings": settings(best.params)},
        "rule": _rule(plan),
        "trials": len(counted),
        "ended_early": sum(trial.state == state.PRUNED for trial in counted),
        "failed": sum(trial.state == state.FAIL for trial in counted),
        "seconds": sum(trial.user_attrs.get("seconds", 0.0) for trial in counted),
        "searched_on": plan.data,
        "privacy_cost": plan.cost,
        "space": {part.name: part.words() for part in plan.space},
        "rows": rows,
        "study": str(out / "study.toml"),
        "table": str(out / "trials.csv"),
        "result": str(out / "tuning.json"),
    }
    write_whole(out / "tuning.json", json.dumps(found, indent=1, allow_nan=False).encode())
    return found


def _taken(complete: list[Any], plan: Plan) -> Any:
    """The trial that the rule takes."""
    if not plan.frugal and plan.most is None and plan.most_ece is None:
        return (min if plan.lower else max)(complete, key=lambda trial: trial.value)
    known = {trial.number: trial for trial in complete if "bytes" in trial.user_attrs}
    tried = []
    for number, trial in known.items():
        found, ece = trial.user_attrs, trial.user_attrs.get("ece")
        tried.append(
            Tried(
                number,
                trial.value,
                tuple(found["parts"]),
                found["bytes"],
                math.inf if ece is None else ece,
            )
        )
    try:
        return known[
            choose(
                tried, lower=plan.lower, frugal=plan.frugal, most=plan.most, most_ece=plan.most_ece
            ).number
        ]
    except ValueError:
        least = min((one.sent for one in tried), default=math.inf)
        raise RunError(
            f"no trial sends at most {plan.most or math.inf:,.0f} bytes with an ECE of at most "
            f"{plan.most_ece or math.inf:g}; "
            f"the fewest bytes were {least:,.0f}. Raise --most-bytes or --most-ece, or make more "
            "trials"
        ) from None


def _rule(plan: Plan) -> str:
    limit = (
        ""
        if plan.most is None
        else f", of those that send at most {plan.most:,.0f} bytes a hospital"
    )
    limit += (
        ""
        if plan.most_ece is None
        else f", with a calibration error (ECE) of at most {plan.most_ece:g}"
    )
    if plan.frugal:
        return f"the fewest bytes within one standard error (of the difference, over folds) of the best{limit}"
    return f"the best{limit}"


def _row(trial: Any, plan: Plan, best: bool) -> dict[str, Any]:
    names = {"COMPLETE": "finished", "PRUNED": "ended early", "FAIL": "failed"}
    flat = settings(trial.params)
    reached = max(trial.intermediate_values.items())[1] if trial.intermediate_values else None
    value = reached if trial.value is None else trial.value
    return {
        "trial": trial.number,
        plan.metric: value,
        "state": "best" if best else names[trial.state.name],
        **{
            part.name: flat.get(part.name.split(".")[0], {}).get(part.name.split(".")[1])
            for part in plan.space
        },
        "bytes": None if "bytes" not in trial.user_attrs else round(trial.user_attrs["bytes"]),
        "ece": trial.user_attrs.get("ece"),
        "seconds": round(trial.user_attrs.get("seconds", 0.0), 2),
    }


def _merge(
    first: dict[str, dict[str, Any]], second: dict[str, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    return {key: {**first.get(key, {}), **second.get(key, {})} for key in {**first, **second}}


def _header(plan: Plan, best: Any, count: int) -> str:
    return (
        f"# Found by suture tune: {plan.metric} {best.value:.4f}, trial {best.number} of {count} "
        f"for {plan.method},\n"
        f"# {_rule(plan)},\n# on {plan.data}.\n"
        f"# Privacy cost of the search: {plan.cost}. Measure it with: suture run study.toml\n\n"
    )
