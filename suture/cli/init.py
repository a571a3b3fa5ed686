"""``suture init``: an example study to start from, or a draft from a table."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from suture.cli.options import Json, answer, argument, command, group, listed, option
from suture.errors import StudyError

app = group()


@dataclass(frozen=True)
class Table:
    """Options of a draft."""

    source: Annotated[
        str | None,
        option(
            "Draft a study from this table, at its site: a file, or a server's URL; or from a "
            "cohort file, features.toml.",
            "--from",
        ),
    ] = None
    records: Annotated[
        str | None,
        option(
            "With --from features.toml: the OMOP folder, .duckdb file or postgresql:// server, or "
            "the FHIR folder."
        ),
    ] = None
    outcome: Annotated[str | None, option("With --from: the column to predict.")] = None
    positive: Annotated[
        str | None, option('With --from: the text of the outcome that counts as 1, such as "<30".')
    ] = None
    patient: Annotated[str | None, option("With --from: the column that names a person.")] = None
    leave_out: Annotated[
        str | None, option("With --from: columns that are no features, such as 'TIME*,DEATH'.")
    ] = None
    table: Annotated[str | None, option("With --from FILE.duckdb: which table.")] = None
    query: Annotated[str | None, option("With --from URL: the query.")] = None
    bounds_from_rows: Annotated[
        bool, option("With --from: take bounds that the dictionary lacks from rows (not private).")
    ] = False
    deal: Annotated[
        int, option("With --from: a simulation with so many hospitals, patients dealt out by hash.")
    ] = 0
    sites_by: Annotated[
        str | None, option("With --from: a simulation with one hospital per value of this column.")
    ] = None


@command(app, "suture init study --from rows.csv --outcome died")
def init(
    table: Table,
    folder: Annotated[Path, argument("Folder to write into.")] = Path(),
    files: Annotated[
        bool, option("Also write the generated hospitals as CSV files, one per hospital.")
    ] = False,
    patients: Annotated[int, option("With --files: number of generated patients in all.")] = 3000,
    images: Annotated[
        int,
        option(
            "Instead, four generated hospitals with this many radiographs each, as DICOM and PNG "
            "files."
        ),
    ] = 0,
    as_json: Json = False,
) -> None:
    """Write a study file to start from: an example (with --files or --images, with example hospitals),
    or with --from a draft from a table of your own."""
    from suture.cohorts.starter import write_imaging_starter, write_starter

    if (table.source is not None) + files + bool(images) > 1:
        raise StudyError("give one of --from, --files (tables) and --images (radiographs)")
    if table.source is not None:
        return _draft(folder, table, as_json)
    if table != Table():
        raise StudyError("--outcome and the other options of a draft need --from FILE")
    made = (
        write_imaging_starter(folder, images)
        if images
        else write_starter(folder, files=files, patients=patients)
    )
    written = [str(path) for path in made]
    checked = f"check {written[0]} --sign NAME && suture " if files or images else ""
    done = f"next: suture {checked}run {written[0]}"
    return answer({"written": written}, as_json, *written, done)


def _draft(folder: Path, table: Table, as_json: bool) -> None:
    from suture.methods.registry import STARTER
    from suture.site.draft import Asked, draft, draft_records

    place: dict[str, Any] = {"path": table.source, "table": table.table}
    if "://" in str(table.source):
        place = {"url": table.source, "query": table.query}
    told = {**vars(table), "leave_out": tuple(listed(table.leave_out))}
    asked = Asked(**{key.name: told[key.name] for key in fields(Asked)})
    if str(table.source).endswith(".toml"):
        if table.records is None:
            raise StudyError("--from features.toml needs --records: where the records are")
        made = draft_records(Path(str(table.source)), table.records, asked)
    else:
        made = draft({key: value for key, value in place.items() if value is not None}, asked)
    path = made.write(folder, STARTER["lead"])
    found = {"written": [str(path)], "left": made.gaps, "notes": made.notes}
    lines = [str(path), *(f"left for a person: {gap}" for gap in made.gaps)]
    notes = [f"for you alone: {note}" for note in made.notes]
    then = "run" if table.deal or table.sites_by else "check"
    done = f"next: {'fill in what is left, then ' if made.gaps else ''}suture {then} {path}"
    answer(found, as_json, *lines, *notes, done)
