"""``suture init``: an example study to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from suture.cli.options import Json, answer, argument, command, group, option
from suture.errors import StudyError

app = group()


@command(app, "suture init demo --files")
def init(
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
    """Write an example study file (and, with --files or --images, example hospitals) to start
    from."""
    from suture.cohorts.starter import write_imaging_starter, write_starter

    if files and images:
        raise StudyError("--files writes tables and --images writes radiographs; give one of them")
    made = (
        write_imaging_starter(folder, images)
        if images
        else write_starter(folder, files=files, patients=patients)
    )
    written = [str(path) for path in made]
    answer({"written": written}, as_json, *written, f"next: suture run {written[0]}")
