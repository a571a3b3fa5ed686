"""``suture interop``: which hospital's columns differ, before training or after it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from suture.cli.options import Json, print_json
from suture.errors import StudyError

EXAMPLE = "Example: suture interop runs/heart"


def interop(
    folder: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="The run folder.", show_default=False)
    ] = None,
    before: Annotated[
        Path | None, typer.Option(help="A study file: check its columns before training.")
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="With --before: compare noisy profiles, charged to every site's ledger."),
    ] = None,
    site: Annotated[
        str | None, typer.Option(help="With --before: one site's own check, free.")
    ] = None,
    pseudonyms: Annotated[
        bool, typer.Option(help="Call hospitals by numbers, in a random order.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write into. Default: the run folder.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Which hospital's columns differ, how surely, what it probably means, and what to ask: page,
    maps and JSON."""
    from suture.interop.report import of_run, write_report

    if (folder is None) == (before is None):
        raise StudyError("give a run folder, or --before STUDY: suture interop runs/heart")
    if before is None and (epsilon is not None or site is not None):
        raise StudyError(
            "--epsilon and --site belong to --before: a finished run has paid for what it shows"
        )
    if before is not None:
        from suture.interop.before_training import check
        from suture.study import Study

        found = check(Study.from_toml(before), before.resolve().parent, epsilon=epsilon, site=site)
        target = out or (Path("interop") / site if site else Path("interop"))
    else:
        from suture.result import Result

        result = Result.load(Path(str(folder)))
        found = of_run(result.data, result.model, pseudonyms=pseudonyms)
        target = out or Path(str(folder))
    written = write_report(found, target)
    if as_json:
        print_json({**found, "written": written})
    else:
        from suture.report.console import print_interop

        print_interop(found, written)
