"""``suture join``: a hospital that comes after training fits its own layers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from suture.cli.options import Json, answer, argument, command, group, option

app = group()


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
