"""``suture interop`` and ``join``: which hospital's columns differ, before training or after it; and a
hospital that comes after training and fits its own layers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from suture.cli.options import Json, answer, argument, command, group, option
from suture.errors import StudyError

app = group()


@command(app, "suture interop runs/heart")
def interop(
    folder: Annotated[Path | None, argument("The run folder.", "RUN", show_default=False)] = None,
    before: Annotated[
        Path | None, option("A study file: check its columns before training.")
    ] = None,
    epsilon: Annotated[
        float | None,
        option("With --before: compare noisy profiles, charged to every site's ledger."),
    ] = None,
    site: Annotated[str | None, option("With --before: one site's own check, free.")] = None,
    pseudonyms: Annotated[bool, option("Call hospitals by numbers, in a random order.")] = False,
    out: Annotated[Path | None, option("Folder to write into. Default: the run folder.")] = None,
    as_json: Json = False,
) -> None:
    """Which hospital's columns differ, how surely, what it probably means, and what to ask: page,
    maps and JSON."""
    from suture.interop.report import of_run, write_report
    from suture.report.console import print_interop

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
    answer({**found, "written": written}, as_json, lambda _: print_interop(found, written))


@command(app, 'suture join runs/heart heart.toml --site "VA Long Beach"')
def join(
    folder: Annotated[Path, argument("The folder of a finished ifedavg run.", "RUN")],
    study: Annotated[Path, argument("A study file that holds the new site.", "STUDY")],
    site: Annotated[str, option("The hospital that joins; only its rows are read.")],
    rounds: Annotated[int, option("Rounds of fitting.")] = 100,
    out: Annotated[Path | None, option("Where to write. Default: joined/SITE.")] = None,
    as_json: Json = False,
) -> None:
    """Fit a late hospital's own layers around a finished run's network: at the hospital, nothing is
    sent."""
    from suture.interop.join import join as fit
    from suture.report.console import print_join

    answer(fit(folder, study, site=site, rounds=rounds, out=out), as_json, print_join)
