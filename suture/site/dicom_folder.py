"""De-identify a DICOM file or a folder of them (`suture deid dicom`): new files under new names, all or nothing.

File names often hold a patient's name or number, so each copy is named by the code of its image. Which code was which file
is written only where the site asks for it (``names``), to a table that must stay there.
"""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from suture.errors import DataError, StudyError
from suture.site.dicom_deid import deidentify, write
from suture.site.images import BrokenImage

SHOWN = 10


def deidentify_folder(
    source: Path,
    out: Path,
    *,
    secret: bytes,
    broken: str = "refuse",
    keep_names: bool = False,
    names: Path | None = None,
) -> dict[str, Any]:
    """Write a de-identified copy of every radiograph; returns counts, and which copies seem to have text in the pixels.

    With ``broken = "refuse"`` one file that is no readable radiograph stops everything, and nothing is written.
    """
    if broken not in ("refuse", "skip"):
        raise StudyError(f'--broken must be "refuse" or "skip", found {broken!r}')
    if not source.exists():
        raise DataError(f"{source} does not exist; give a DICOM file or a folder of them")
    for target in (out, names):
        if target is not None and target.exists():
            raise StudyError(f"{target} exists already; choose another name, nothing is overwritten")
    if out.resolve().is_relative_to(source.resolve()) and source.is_dir():
        raise StudyError(f"{out} lies inside {source}; copies belong outside the folder they are made from")
    files = sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]
    if not files:
        raise DataError(f"{source} holds no files")
    beside = out.with_name(f".{out.name}.{os.getpid()}")
    beside.mkdir(parents=True)
    try:
        found, pairs = _copies(files, source, beside, secret, broken, keep_names)
        if names is not None:
            _write_names(names, pairs)
        (beside if source.is_dir() else beside / pairs[0][1]).rename(out)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return {"out": str(out), **found}


def _copies(
    files: Sequence[Path], source: Path, beside: Path, secret: bytes, broken: str, keep_names: bool
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    root = source if source.is_dir() else source.parent
    reports: list[dict[str, Any]] = []
    pairs: list[tuple[str, str]] = []
    refused: list[tuple[str, str]] = []
    for path in files:
        name = str(path.relative_to(root))
        try:
            new, report = deidentify(path, secret)
        except BrokenImage as error:
            refused.append((name, str(error)))
            continue
        copy = name if keep_names else f"{str(new.SOPInstanceUID).removeprefix('2.25.')}.dcm"
        if (beside / copy).exists():
            raise DataError(
                f"{name} and another file are copies of one image (the same SOP instance); remove one of them"
            )
        (beside / copy).parent.mkdir(parents=True, exist_ok=True)
        write(new, beside / copy)
        reports.append({**report, "file": copy})
        pairs.append((name, copy))
    if refused and (broken == "refuse" or not pairs):
        shown = "; ".join(f"{name} ({reason})" for name, reason in refused[:SHOWN])
        more = f"; and {len(refused) - SHOWN} more" if len(refused) > SHOWN else ""
        raise DataError(
            f"{len(refused)} of {len(files)} files under {root} cannot be de-identified: {shown}{more}. Nothing was written; "
            "remove them, or leave them out with --broken skip"
        )
    return _summary(reports, refused, len(files)), pairs


def _summary(reports: Sequence[dict[str, Any]], refused: Sequence[tuple[str, str]], files: int) -> dict[str, Any]:
    stated = [report["burnt_in"] or "not stated" for report in reports]
    return {
        "files": files,
        "written": len(reports),
        "skipped": [{"file": name, "reason": reason} for name, reason in refused],
        "elements_read": sum(report["elements"] for report in reports),
        "private_elements_removed": sum(report["private"] for report in reports),
        "kept": sorted({name for report in reports for name in report["kept"]}),
        "burnt_in_annotation": {word: stated.count(word) for word in ("YES", "NO", "not stated") if word in stated},
        "text_found": [report["file"] for report in reports if report["text_found"]],
        "text_stated": [report["file"] for report in reports if report["burnt_in"] == "YES"],
    }


def _write_names(path: Path, pairs: Sequence[tuple[str, str]]) -> None:
    """The table that leads back: readable by the site's user only."""
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(handle, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("file", "copy"))
        writer.writerows(pairs)
