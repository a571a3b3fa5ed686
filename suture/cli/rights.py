"""``suture erase`` and ``suture access``: what a person may ask a site about their records."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from suture.cli.options import Json, answer, command, group, option
from suture.errors import StudyError

app = group()


@dataclass(frozen=True)
class Person:
    """Who asks, and where."""

    site: Annotated[str, option("The site.")]
    patient: Annotated[str, option("The patient's identifier; - reads it from standard input.")]
    known: Annotated[
        bool,
        option("The site's word that the patient was here, where no table shows it.", "--known"),
    ] = False

    @property
    def identifier(self) -> str:
        """The patient's identifier."""
        return sys.stdin.readline().strip() if self.patient == "-" else self.patient


@command(app, "suture erase --site boston --patient 12345 --study study.toml")
def erase(
    person: Person,
    study: Annotated[Path | None, option("A study file that has the site.")] = None,
    home: Annotated[Path | None, option("Instead of --study: the site's home folder.")] = None,
    retrain: Annotated[
        str | None, option("Train anew without the patient: checkpoint or scratch.")
    ] = None,
    run: Annotated[
        Path | None, option("With --retrain checkpoint: the run folder to go on from.")
    ] = None,
    name: Annotated[
        str | None,
        option(
            "With --retrain: the new study's name, which has its own budget. Default: <study>-anew.",
            "--as",
        ),
    ] = None,
    out: Annotated[Path | None, option("With --retrain: the new run's folder.")] = None,
    as_json: Json = False,
) -> None:
    """Erase a patient at a site: excluded from every later run, with a certificate; optionally
    train anew without them."""
    from suture.engine import erase as erasing
    from suture.engine.embedded import Embedded
    from suture.site.gate import named_place
    from suture.study import Study

    if (study is None) == (home is None):
        raise StudyError("give --study FILE, or --home FOLDER")
    if retrain not in (None, "checkpoint", "scratch") or (retrain is not None and study is None):
        raise StudyError("--retrain takes checkpoint or scratch, and needs --study")
    if retrain is None and (run is not None or name is not None or out is not None):
        raise StudyError("--run, --as and --out go with --retrain")
    site = person.site
    asked = Study.from_toml(study) if study is not None else None
    place = (
        named_place(study, site) if study is not None else erasing.place_for(Path(str(home)), site)
    )
    found = erasing.erase(place, person.identifier, study=asked, known=person.known)
    if retrain is not None and asked is not None and study is not None:
        new = erasing.renamed(asked, name)
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        _, done = erasing.retrain(
            new,
            place,
            "checkpoint" if retrain == "checkpoint" else "scratch",
            base=study.resolve().parent,
            out=(out or Path("runs") / f"{new.name}-without-{stamp}").resolve(),
            run=run.resolve() if run else None,
            file=study.resolve(),
            command="suture erase",
            engine=Embedded(signed_as=asked.digest),
        )
        found = erasing.add_retraining(found, done)
    earlier = "" if found["new"] else " (earlier)"
    lines = [f"erased at site {site!r}, entry {found['entry']} of its ledger{earlier}"]
    lines += found["files"]
    if found.get("retraining"):
        lines.append(f"{found['retraining']['words']}\nnew run: {found['retraining']['out']}")
    answer(found, as_json, *lines)


@command(app, "suture access --site boston --patient 12345 --study study.toml")
def access(
    person: Person,
    study: Annotated[Path, option("A study file that has the site.")],
    as_json: Json = False,
) -> None:
    """What a person may ask for: studies, rounds, consent at the time, epsilon, releases. At the site
    only."""
    from suture.engine.access import access as ask
    from suture.site.gate import named_place
    from suture.study import Study

    place, asked = named_place(study, person.site), Study.from_toml(study)
    answer(ask(place, person.identifier, study=asked, known=person.known), as_json, _show)


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
