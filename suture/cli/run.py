"""``suture run``: run a study, or resume an interrupted one."""

from __future__ import annotations

import contextlib
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from suture.cli.options import (
    Engines,
    Json,
    answer,
    argument,
    command,
    group,
    interruptible,
    listed,
    option,
    progress_bar,
    say,
)
from suture.errors import StudyError

if TYPE_CHECKING:
    from suture.result import Result

SUBSET = 7
"""The exit code of a run that finished, but in which some site missed rounds."""
_SHOWN = ("release", "name", "method", "metrics", "privacy", "communication", "comparison", "ready",
          "warnings")  # fmt: skip

app = group()


@command(app, "suture run study.toml --out runs/cardio --json")
def run(
    where: Engines,
    study: Annotated[Path | None, argument("The study file.", show_default=False)] = None,
    resume: Annotated[Path | None, option("Resume the interrupted run in this folder.")] = None,
    out: Annotated[Path | None, option("The run folder. Default: runs/<study>-<time>.")] = None,
    methods: Annotated[
        str | None, option("Methods to compare, separated by commas; the first leads.")
    ] = None,
    seeds: Annotated[int | None, option("Number of seeds, instead of evaluation.seeds.")] = None,
    as_json: Json = False,
) -> None:
    """Run a study, or resume an interrupted one; writes result.json, model.npz and report.html."""
    from suture.engine import conduct
    from suture.study import Study

    words = "suture " + " ".join(sys.argv[1:])
    if (study is None) == (resume is None):
        raise StudyError("give a study file, or --resume RUN: suture run study.toml")
    if resume is not None:
        if out is not None or methods is not None or seeds is not None:
            raise StudyError(
                "--resume goes on with the study as it was; --out, --methods and --seeds do not "
                "apply"
            )
        with progress_bar() as progress, _resumable(resume):
            place = where.open(resume)
            result = conduct.resume(resume, progress=progress, command=words, engine=place)
    else:
        path = Path(str(study))
        asked = Study.from_toml(path)
        if methods is not None:
            names = listed(methods)
            if not names:
                raise StudyError(
                    f"--methods: expected names separated by commas, found {methods!r}"
                )
            asked = asked.replace(method={"name": names[0]}, evaluation={"compare": names[1:]})
        if seeds is not None:
            asked = asked.replace(evaluation={"seeds": seeds})
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        folder = out or Path("runs") / f"{asked.name}-{stamp}"
        with progress_bar() as progress, _resumable(folder):
            result = conduct.run(
                asked,
                out=folder,
                base=path.resolve().parent,
                progress=progress,
                command=words,
                file=path.resolve(),
                engine=where.open(),
            )
    _show(result, as_json)
    missed = {
        site for found in result.data["methods"].values() for site in found.get("dropouts", {})
    }
    if missed:
        say(
            f"suture: {', '.join(sorted(missed))} missed rounds; the result is of the others there "
            "(see dropouts in it)"
        )
        raise typer.Exit(SUBSET)


def _resumable(folder: Path) -> contextlib.AbstractContextManager[None]:
    return interruptible(f"resume with: suture run --resume {folder}")


def _show(result: Result, as_json: bool) -> None:
    from suture.report.console import print_result

    folder, lead = Path(str(result.folder)), result.data["methods"][result.data["method"]]
    found = {
        "out": str(folder),
        "result": str(folder / "result.json"),
        "report": str(folder / "report.html"),
        **{key: lead[key] for key in ("rounds_planned", "rounds_done", "stopped")},
        **{key: result.data.get(key) for key in _SHOWN},
    }
    near = os.path.relpath(folder)
    near = str(folder) if near.startswith("..") else near
    files = (f"result: {near}/result.json", f"report: {near}/report.html")
    answer(found, as_json, lambda _: print_result(result.data), *files)
