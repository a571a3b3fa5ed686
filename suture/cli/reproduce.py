"""``suture reproduce``: a paper's experiments, its numbers beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from suture.cli.options import (
    Json,
    Quick,
    Threads,
    answer,
    argument,
    command,
    group,
    interruptible,
    option,
    progress_bar,
)

app = group()


@command(app, "suture reproduce fedcvr --quick --out reproduced/fedcvr")
def reproduce(
    paper: Annotated[str, argument("Which paper: fedcvr, chapter, ifedavg, radiology or veil.")],
    quick: Quick = False,
    out: Annotated[
        Path | None, option("Folder for tables and figures. Default: reproduced/<paper>.")
    ] = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Run a paper's experiments: its printed figures beside ours, its claimed epsilon beside the
    proven one."""
    from suture.papers import reproduce as run_paper
    from suture.report.console import print_reproduction

    target = out or Path("reproduced") / (f"{paper}-quick" if quick else paper)
    with progress_bar() as progress, interruptible("start it again; finished parts are kept"):
        found = run_paper(paper, out=target, quick=quick, threads=threads, progress=progress)
    answer(found, as_json, print_reproduction)
