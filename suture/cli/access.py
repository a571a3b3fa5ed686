"""``suture access``: what a person may ask a site about their records."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from suture.cli.options import Json, answer, command, group, option

app = group()


@command(app, "suture access --site boston --patient 12345 --study study.toml")
def access(
    site: Annotated[str, option("The site.")],
    patient: Annotated[str, option("The patient's identifier; - reads it from standard input.")],
    study: Annotated[Path, option("A study file that has the site.")],
    known: Annotated[
        bool,
        option("The site's word that the patient was here, where no table shows it.", "--known"),
    ] = False,
    as_json: Json = False,
) -> None:
    """What a person may ask for: studies, rounds, consent at the time, epsilon, releases. At the site
    only."""
    from suture.engine.access import access as ask
    from suture.site.gate import named_place
    from suture.study import Study

    identifier = sys.stdin.readline().strip() if patient == "-" else patient
    place, asked = named_place(study, site), Study.from_toml(study)
    answer(ask(place, identifier, study=asked, known=known), as_json, _show)


def _show(found: dict[str, Any]) -> None:
    rows, erased = found["rows_in_the_table"], found["erased"]
    typer.echo(f"{found['access']}: {rows} rows now" + (f"; erased {erased}" if erased else ""))
    for one in found["studies"]:
        drawn = f" {one['rounds']}" if one["epsilon"] != 0 else ""
        epsilon = "no bound" if one["epsilon"] is None else f"epsilon {one['epsilon']:g}"
        typer.echo(f"{one['account']}: {one['part']}{drawn}")
        typer.echo(f"  {epsilon} at delta {one['delta']:g}; consent: {one['consent']}")
        typer.echo(f"  {one['releases']} releases ({', '.join(one['kinds'])}), {_dates(one)}")
        for note in one["charters"]:
            law = [f"{k} {v}" for k, v in note.items() if k not in ("entry", "time", "study")]
            typer.echo(f"  charter: {'; '.join(law)}")
    total = found["total"]["epsilon"]
    typer.echo("in all: " + ("no bound" if total is None else f"epsilon {total:g} at most"))
    for line in found["statement"]:
        typer.echo(line)


def _dates(one: dict[str, Any]) -> str:
    return f"{one['first'][:10]} to {one['last'][:10]}" if one["first"] else "none yet"
