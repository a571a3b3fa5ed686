"""``suture deid``: find identifiers in a file, write a copy without them, measure how well that
works."""

from __future__ import annotations

import csv
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from suture.cli.options import Json, Reading, answer, argument, command, group, listed, option
from suture.errors import StudyError

app = group(
    "deid",
    "Find the eighteen Safe Harbor identifiers in a table, and write a copy without them. Never "
    "prints a value.",
    "suture deid scan rows.csv",
)
File = Annotated[Path, argument("A .csv, .parquet or .duckdb file.")]


@dataclass(frozen=True)
class Decided:
    """What a person decided about columns."""

    keep: Annotated[
        list[str] | None, option("Keep this column whatever the scan says; repeat.")
    ] = None
    drop: Annotated[
        list[str] | None, option("Drop this column whatever the scan says; repeat.")
    ] = None


def _secret(home: Path) -> bytes:
    try:
        return (home / "secret.key").read_bytes()
    except OSError:
        raise StudyError(f"{home} holds no secret.key; a site's first run makes it") from None


@command(app, "suture deid scan rows.csv --separator ';' --encoding latin-1 --json")
def scan(file: File, reading: Reading, decided: Decided, as_json: Json = False) -> None:
    """Say of every column what it seems to be, and what to do with it. Exit code 8: some columns are
    not recognised, and wait for your --keep or --drop."""
    from suture.site.deid import UNDECIDED, print_scan
    from suture.site.deid import scan as look

    findings, rows = look(reading.of(file), keep=decided.keep or (), drop=decided.drop or ())
    columns = [finding.as_dict() for finding in findings]
    unsure = [finding.column for finding in findings if finding.action == "look"]
    found = {"file": file.name, "rows": rows, "columns": columns, "unsure": unsure}
    answer(found, as_json, print_scan)
    if unsure:
        raise typer.Exit(UNDECIDED)


@command(app, "suture deid apply rows.csv --out clean.csv --quasi age,sex,zip --patient mrn")
def apply(
    file: File,
    out: Annotated[Path, option("The copy: a new .csv or .parquet file.")],
    reading: Reading,
    decided: Decided,
    patient: Annotated[str | None, option("The column that identifies the patient.")] = None,
    codes: Annotated[str, option("Codes for patients: none, random or keyed.")] = "none",
    code_table: Annotated[
        Path | None, option("With random codes: the table, which stays here.")
    ] = None,
    home: Annotated[
        Path | None, option("With keyed codes: the site's folder, with secret.key.")
    ] = None,
    quasi: Annotated[
        str | None, option("Columns to measure linkage on, separated by commas.")
    ] = None,
    drop_unsure: Annotated[
        bool, option("Leave out every column that the scan is unsure of.", "--drop-unsure")
    ] = False,
    text: Annotated[str, option("Free text: drop, or redact (blacked out, not safe).")] = "drop",
    as_json: Json = False,
) -> None:
    """Write a de-identified copy and its report; measure who can still be singled out."""
    from suture.site.deid import apply as copy
    from suture.site.deid import print_apply

    found = copy(
        reading.of(file),
        out,
        patient=patient,
        codes=codes,
        secret=None if home is None else _secret(home),
        code_table=code_table,
        keep=decided.keep or (),
        drop=decided.drop or (),
        drop_unsure=drop_unsure,
        text=text,
        quasi=listed(quasi),
    )
    answer(found, as_json, print_apply)


@command(app, "suture deid dicom films films-clean --home .suture/boston --names names.csv")
def dicom(
    source: Annotated[Path, argument("A DICOM file, or a folder of them.", "IN")],
    out: Annotated[Path, argument("The new file or folder.", "OUT")],
    home: Annotated[
        Path | None, option("The site's folder, with secret.key: the same codes every time.")
    ] = None,
    broken: Annotated[
        str, option("Files that are no readable radiographs: refuse or skip.")
    ] = "refuse",
    keep_names: Annotated[
        bool, option("Keep file names; they often name patients.", "--keep-names")
    ] = False,
    names: Annotated[Path | None, option("Write which file became which; it stays here.")] = None,
    as_json: Json = False,
) -> None:
    """De-identify DICOM headers after the standard's basic profile; warn about text burnt into the
    pixels."""
    from suture.privacy.noise.source import secure_key
    from suture.site.dicom import deidentify_folder, print_dicom

    # Without a home the codes are random: the same within this folder, and nobody can make them
    # again.
    secret = secure_key() if home is None else _secret(home)
    found = deidentify_folder(
        source, out, secret=secret, broken=broken, keep_names=keep_names, names=names
    )
    answer(found, as_json, print_dicom)


@command(app, "suture deid evaluate --rows 3000 --json")
def evaluate(
    rows: Annotated[int, option("Rows of the generated table.")] = 3000,
    seed: Annotated[int, option("Which table.")] = 1,
    as_json: Json = False,
) -> None:
    """Recall and precision of a scan on a generated table with all eighteen categories planted."""
    from suture.cohorts.planted import HONEST, PLANTED, planted
    from suture.site.deid import print_evaluation, score
    from suture.site.deid import scan as look

    if not 20 <= rows <= 1_000_000:
        raise StudyError(f"expected 20 to 1,000,000 rows, found {rows}")
    table = planted(rows, seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "planted.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(table)
            writer.writerows(zip(*table.values(), strict=True))
        findings, _ = look(path)
    scored = score(findings, {name: kind for name, (kind, _) in PLANTED.items()}, HONEST)
    answer({"rows": rows, "seed": seed, **scored}, as_json, print_evaluation)
