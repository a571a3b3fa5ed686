"""``suture join``: a hospital that comes after training fits its own layers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from suture.cli.options import Json, print_json

EXAMPLE = 'Example: suture join runs/heart heart.toml --site "VA Long Beach"'


def join(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a finished ifedavg run.")
    ],
    study: Annotated[
        Path, typer.Argument(metavar="STUDY", help="A study file that holds the new site.")
    ],
    site: Annotated[str, typer.Option(help="The hospital that joins; only its rows are read.")],
    rounds: Annotated[int, typer.Option(help="Rounds of fitting.")] = 100,
    out: Annotated[Path | None, typer.Option(help="Where to write. Default: joined/SITE.")] = None,
    as_json: Json = False,
) -> None:
    """Fit a late hospital's own layers around a finished run's network: at the hospital, nothing is
    sent."""
    from suture.interop.join import join as fit

    found = fit(folder, study, site=site, rounds=rounds, out=out)
    if as_json:
        print_json(found)
    else:
        from suture.report.console import print_join

        print_join(found)
