"""The FedCVR paper's own work: on Suture beside Flower + PyTorch + Opacus, and the whole of Table 7.

The work is that of arXiv:2603.13293, Tables 3 and 5: five hospitals of 13,130 to 1,270 patients, a
6-64-32-1 network, five local epochs of DP-SGD per round (Poisson sampling, 32 expected, clip 1,
sigma 1, rate 0.01), Adam at the server, and metrics of all test patients and of each hospital after
every round. Both sides have the same rows, steps, network and metrics, and every usable core;
start-up and a first round are left out. Compared is wall-clock time per DP-SGD step taken by any
hospital.

What differs favours Flower and Opacus: Suture also charges ledgers, seals messages and draws its
noise from a cryptographic generator, which Opacus does only in its slower secure mode.

Table 7 is timed from the study to the finished run folder: six methods, five seeds, 100 rounds, the
true hospital sizes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suture.errors import MissingExtra, RunError

if TYPE_CHECKING:
    from suture.study import Study

Figures = dict[str, Any]
Say = Callable[[str], None]
NEEDED = ("torch", "opacus", "flwr", "ray")
MOST_SECONDS = 1800
QUICK_ROUNDS = 10
_LONGEST_RAY_FOLDER = 40
"""Ray's sockets add 64 characters to its folder's path, and a socket's path may have 107."""
_QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
"""Nothing is reported to the makers of Flower or Ray, and BLAS adds no threads."""


def cores() -> int:
    """How many cores this process may use, which is what both sides get."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def work(*, rounds: int, patients: int = 30_000) -> Study:
    """The study at sigma = 1 as `suture reproduce fedcvr` runs it, for one seed and with one round
    more, the warm-up.

    >>> study = work(rounds=3)
    >>> study.method.rounds, study.method.local_epochs, study.privacy.noise_multiplier
    (4, 5, 1.0)
    """
    from suture.papers import fedcvr

    return fedcvr.study(1.0).replace(
        cohort={"patients": patients},
        method={"rounds": rounds + 1},
        evaluation={"compare": [], "seeds": 1},
    )


def measure(
    *,
    quick: bool = False,
    say: Say = lambda _: None,
    patients: int = 30_000,
    rounds: int | None = None,
) -> Figures:
    """Measure both sides in one run, Suture before and after Flower, so that a machine that slows
    down slows both.

    Processor time is among the figures because other work on the machine stretches it far less than
    wall-clock time; it covers all of Suture's process, but of Flower's only the hospitals'
    training.

    Raises `MissingExtra` where PyTorch, Opacus, Flower or Ray is not installed.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise MissingExtra(
            f"the comparison with Flower needs {', '.join(missing)}: pip install 'suture[bench]'"
        )
    theirs_rounds = rounds or (1 if quick else 3)
    ours_rounds = rounds or (10 if quick else 20)
    study, theirs_study = (work(rounds=n, patients=patients) for n in (ours_rounds, theirs_rounds))
    say(f"FedCVR on Suture, {ours_rounds} rounds, {cores()} threads")
    ours = [suture_rounds(study)]
    say(f"FedCVR on Flower + Opacus, {theirs_rounds} rounds, {cores()} Ray actors (about a minute)")
    theirs = flower_rounds(theirs_study)
    say(f"FedCVR on Suture again, {ours_rounds} rounds")
    ours.append(suture_rounds(study))
    steps = sum(side["steps"] for side in ours)
    mine, mine_cpu = (sum(side[key] for side in ours) / steps for key in ("seconds", "cpu"))
    flower, flower_cpu = theirs["seconds"] / theirs["steps"], theirs["cpu"] / theirs["steps"]
    return {
        "fedcvr_vs_flower_opacus": flower / mine,
        "suture_us_per_step": 1e6 * mine,
        "flower_us_per_step": 1e6 * flower,
        "suture_us_per_step_each_time": [1e6 * side["seconds"] / side["steps"] for side in ours],
        "suture_cpu_us_per_step": 1e6 * mine_cpu,
        "flower_cpu_us_per_step": 1e6 * flower_cpu,
        "ratio_of_cpu_time": flower_cpu / mine_cpu,
        "suture_steps": steps,
        "flower_steps": theirs["steps"],
        "suture_auc": ours[0]["auc"],
        "flower_auc": theirs["auc"],
        "cores": cores(),
        "flower_backend": "Flower simulation on Ray, one CPU per hospital",
    }


def suture_rounds(study: Study) -> Figures:
    """Seconds and steps of every round but the first on the embedded engine, including ledgers and
    metrics."""
    from suture.engine import conduct
    from suture.training.local import Local, steps

    times: list[tuple[float, float]] = []
    result = conduct.run(
        study,
        threads=cores(),
        progress=lambda _: times.append((time.perf_counter(), time.process_time())),
    )
    local = Local(epochs=study.method.local_epochs, batch=study.method.batch)
    a_round = sum(steps(site["train"], local) for site in result.data["cohort"]["sites"].values())
    return {
        "seconds": times[-1][0] - times[0][0],
        "cpu": times[-1][1] - times[0][1],
        "steps": a_round * (len(times) - 1),
        "auc": result.data["metrics"]["global"]["auc"],
    }


def flower_rounds(study: Study) -> Figures:
    """The same for `suture.bench.flower_app` in a process of its own; ``cpu`` is that of the
    hospitals' training alone."""
    with tempfile.TemporaryDirectory(prefix="suture-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        _write_work(study, folder)
        _run_app(folder)
        times = json.loads((folder / "times.json").read_text())
    sums: Figures = {key: sum(times[key]) for key in ("seconds", "steps", "cpu")}
    return {**sums, "auc": times["auc"]}


def _write_work(study: Study, folder: Path) -> None:
    """Write the encoded rows and the settings that Suture trains with as plain files."""
    import numpy as np

    from suture.engine import federation
    from suture.site.cohort import load

    here = federation.survey(study, folder, study.seed)
    arrays: Figures = {}
    for i, place in enumerate(here.places):
        data = load(
            place.source,
            here.schema,
            here.outcome,
            site=place.name,
            holdout=0.0,
            split_key=str(study.seed),
            test_source=place.test,
        )
        if data.test is None:
            raise RunError(
                f"site {place.name!r} has no test patients; every round is measured on them"
            )
        arrays[f"x{i}"], arrays[f"y{i}"] = data.train.x, data.train.y
        arrays[f"test_x{i}"], arrays[f"test_y{i}"] = data.test.x, data.test.y
    np.savez(folder / "work.npz", **arrays)
    method, privacy = study.method, study.privacy
    if privacy is None:
        raise RunError("the comparison is of private training; the study has no [privacy]")
    named = ("local_epochs", "batch", "rate", "server_rate", "beta1", "beta2", "tau")
    stated = method.model_dump()
    settings = {
        **{name: stated[name] for name in named},
        "clip": privacy.clip,
        "noise_multiplier": privacy.noise_multiplier,
        "sizes": [len(here.features), *study.model.hidden, 1],
        "sites": [place.name for place in here.places],
        "rounds": method.rounds - 1,
        "cores": cores(),
        "ray": str(folder / "ray") if len(str(folder / "ray")) <= _LONGEST_RAY_FOLDER else None,
    }
    (folder / "work.json").write_text(json.dumps(settings))


def _run_app(folder: Path) -> None:
    root, log = str(Path(__file__).resolve().parents[2]), folder / "flower.log"
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    # Nothing is left in the home folder.
    own = {**_QUIET, "FLWR_HOME": str(folder / "flwr"), "PYTHONPATH": paths}
    with log.open("wb") as output:
        command = [sys.executable, "-m", "suture.bench.flower_app", str(folder)]
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **own},
            start_new_session=True,
        )
        try:
            code = process.wait(MOST_SECONDS)
        except subprocess.TimeoutExpired:
            code = -1
        finally:
            _stop(process)
    if code or not (folder / "times.json").exists():
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        end = (
            f"was stopped after {MOST_SECONDS} s" if code == -1 else f"ended with exit code {code}"
        )
        raise RunError(f"the Flower side {end}; the end of its log:\n{tail}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask an interrupted or late simulation to end (Ray then stops its servers), and kill it if it
    does not."""
    if process.poll() is not None:
        return
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(15)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def table(*, quick: bool = False) -> Study:
    """Table 7 as `suture reproduce fedcvr` runs it, without the reference model of a single
    hospital, which is not in the table.

    >>> study = table()
    >>> len(study.methods), study.evaluation.seeds, study.method.rounds
    (6, 5, 100)
    """
    from suture.papers import fedcvr

    study = fedcvr.study(1.0)
    compare = [name for name in fedcvr.ORDER if name != fedcvr.LEAD]
    changed = study.replace(evaluation={"compare": compare})
    if quick:
        return changed.replace(method={"rounds": QUICK_ROUNDS}, evaluation={"seeds": 1})
    return changed


def measure_table(
    *, quick: bool = False, say: Say = lambda _: None, study: Study | None = None
) -> Figures:
    """Wall-clock seconds from study to finished run folder: patients, noise planning, training,
    metrics, report.

    Quick runs a fiftieth of the rounds; the scaled time is an estimate, so it has a name of its own
    and ``fedcvr_table_seconds`` stays None.
    """
    from suture.engine import conduct

    whole, wanted = table(), study or table(quick=quick)
    seeds, rounds = wanted.evaluation.seeds, wanted.method.rounds
    share = (whole.method.rounds * whole.evaluation.seeds) / (rounds * seeds)
    say(f"Table 7: {len(wanted.methods)} methods, {seeds} seeds, {rounds} rounds")
    with tempfile.TemporaryDirectory(prefix="suture-") as folder:
        begun = time.perf_counter()
        result = conduct.run(wanted, out=Path(folder) / "run", threads=cores())
        seconds = time.perf_counter() - begun
    methods = result.data["methods"]
    found: Figures = {
        "fedcvr_table_seconds": seconds if share == 1 else None,
        "seconds": seconds,
        "methods": list(wanted.methods),
        "seeds": seeds,
        "rounds": rounds,
        "auc": {name: methods[name]["metrics"]["global"]["auc"] for name in wanted.methods},
        "cores": cores(),
    }
    if share != 1:
        found["seconds_scaled_to_all_rounds_and_seeds"] = seconds * share
    return found
