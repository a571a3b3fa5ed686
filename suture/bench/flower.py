"""FedCVR's own work on Suture and on Flower + PyTorch + Opacus, side by side: same rows, steps, network and metrics.

The work is paper 001's (arXiv:2603.13293, Tables 3 and 5): five hospitals of 13,130 to 1,270 patients, a 6-64-32-1
network, five local epochs of DP-SGD a round (Poisson sampling, 32 expected, clip 1, sigma 1, rate 0.01), Adam at the
server, metrics of all test patients and of each hospital after every round. Both sides get every usable core; start-up
and a first round are left out on both. What is compared is wall-clock time over DP-SGD steps taken by all hospitals.

What differs is in Flower's and Opacus's favour: Suture also charges ledgers, seals messages and draws its noise from a
cryptographic generator, which Opacus does only in its slower secure mode.
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

INSTALL = "pip install 'suture[bench]'"
NEEDED = ("torch", "opacus", "flwr", "ray")
MOST_SECONDS = 1800
_LONGEST_RAY_FOLDER = 40
"""Ray puts sockets 64 characters below its folder, and a socket's path may have 107."""


def cores() -> int:
    """The cores this process may use, which both sides get.

    >>> cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def work(*, rounds: int, patients: int = 30_000) -> Study:
    """FedCVR at sigma = 1 as `suture reproduce fedcvr` runs it, for one seed and one round more, the warm-up.

    >>> study = work(rounds=3)
    >>> study.methods, study.method.rounds, study.method.local_epochs, study.privacy.noise_multiplier
    (('fedadam',), 4, 5, 1.0)
    """
    from suture.reproduce import fedcvr

    return fedcvr.study(1.0).replace(
        cohort={"patients": patients}, method={"rounds": rounds + 1}, evaluation={"compare": [], "seeds": 1}
    )


def measure(
    *,
    quick: bool = False,
    say: Callable[[str], None] = lambda _: None,
    patients: int = 30_000,
    rounds: int | None = None,
) -> dict[str, Any]:
    """Both sides in one run; Suture before and after Flower, so that a machine that slows down slows both.

    Processor time is among the figures because other work on the machine stretches it far less than wall-clock time:
    all of Suture's process, but of Flower's only the hospitals' training.

    Raises `MissingExtra` where PyTorch, Opacus, Flower or Ray is not installed.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise MissingExtra(f"the comparison with Flower needs {', '.join(missing)}: {INSTALL}")
    theirs_rounds = rounds or (1 if quick else 3)
    ours_rounds = rounds or (10 if quick else 20)
    say(f"FedCVR on Suture, {ours_rounds} rounds, {cores()} threads")
    ours = [suture_rounds(work(rounds=ours_rounds, patients=patients))]
    say(f"FedCVR on Flower + Opacus, {theirs_rounds} measured rounds, {cores()} Ray actors (about a minute)")
    theirs = flower_rounds(work(rounds=theirs_rounds, patients=patients))
    say(f"FedCVR on Suture again, {ours_rounds} rounds")
    ours.append(suture_rounds(work(rounds=ours_rounds, patients=patients)))
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
        "flower_backend": "Flower simulation on Ray, one CPU a hospital",
    }


def suture_rounds(study: Study) -> dict[str, Any]:
    """Seconds and steps of every round but the first on the embedded engine, ledgers and metrics included."""
    from suture import conduct
    from suture.training.local import Local, steps

    times: list[tuple[float, float]] = []
    result = conduct.run(
        study, threads=cores(), progress=lambda _: times.append((time.perf_counter(), time.process_time()))
    )
    local = Local(epochs=study.method.local_epochs, batch=study.method.batch)
    a_round = sum(steps(site["train"], local) for site in result.data["cohort"]["sites"].values())
    return {
        "seconds": times[-1][0] - times[0][0],
        "cpu": times[-1][1] - times[0][1],
        "steps": a_round * (len(times) - 1),
        "auc": result.data["metrics"]["global"]["auc"],
    }


def flower_rounds(study: Study) -> dict[str, Any]:
    """The same from `suture.bench.flower_app` in a process of its own; ``cpu`` is the hospitals' training alone."""
    with tempfile.TemporaryDirectory(prefix="suture-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        _write_work(study, folder)
        _run_app(folder)
        times = json.loads((folder / "times.json").read_text())
    sums: dict[str, Any] = {key: sum(times[key]) for key in ("seconds", "steps", "cpu")}
    return {**sums, "auc": times["auc"]}


def _write_work(study: Study, folder: Path) -> None:
    """Exactly the encoded rows that Suture trains on and the settings that it trains with, as plain files."""
    import numpy as np

    from suture import world
    from suture.site.cohort import load

    here = world.survey(study, folder, study.seed)
    arrays: dict[str, Any] = {}
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
            raise RunError(f"site {place.name!r} has no test patients; the comparison measures on them every round")
        arrays[f"x{i}"], arrays[f"y{i}"] = data.train.x, data.train.y
        arrays[f"test_x{i}"], arrays[f"test_y{i}"] = data.test.x, data.test.y
    np.savez(folder / "work.npz", **arrays)
    method, privacy = study.method, study.privacy
    if privacy is None:
        raise RunError("the comparison is of private training; the study has no [privacy]")
    named = ("local_epochs", "batch", "rate", "server_rate", "beta1", "beta2", "tau")
    settings = {
        **{name: getattr(method, name) for name in named},
        "clip": privacy.clip,
        "noise_multiplier": privacy.noise_multiplier,
        "sizes": [len(here.features), *study.model.hidden, 1],
        "sites": [place.name for place in here.places],
        "rounds": method.rounds - 1,
        "cores": cores(),
        "ray": str(folder / "ray") if len(str(folder / "ray")) <= _LONGEST_RAY_FOLDER else None,
    }
    (folder / "work.json").write_text(json.dumps(settings))


def _environment(folder: Path) -> dict[str, str]:
    """Nothing is reported to Flower's or Ray's makers, nothing is left in the home folder, no BLAS thread is added."""
    import suture

    root = str(Path(suture.__file__).resolve().parents[1])
    return {
        **os.environ,
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "FLWR_HOME": str(folder / "flwr"),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))),
    }


def _run_app(folder: Path) -> None:
    log = folder / "flower.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "suture.bench.flower_app", str(folder)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_environment(folder),
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
        limit = f"was stopped after {MOST_SECONDS} s" if code == -1 else f"ended with exit code {code}"
        raise RunError(f"the Flower side {limit}; the end of its log:\n{tail}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """An interrupted or late simulation is asked to end (Ray then stops its servers), and made to if it does not."""
    if process.poll() is not None:
        return
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(15)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
