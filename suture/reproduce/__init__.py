"""One file a paper: its printed figures beside ours, claimed epsilon beside proven epsilon."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from suture.errors import StudyError

if TYPE_CHECKING:
    from suture.conduct import Progress

PAPERS = ("fedcvr", "chapter", "ifedavg", "veil", "radiology")


def reproduce(
    paper: str, *, out: Path, quick: bool = False, threads: int | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Run a paper's experiments and write its tables and figures into ``out``; finished parts are kept and reused."""
    if paper not in PAPERS:
        raise StudyError(f"unknown paper {paper!r}; expected one of {', '.join(PAPERS)}")
    from suture.reproduce import chapter, fedcvr, ifedavg, radiology, veil

    if paper == "chapter":
        return chapter.reproduce(out)
    runs = {
        "fedcvr": fedcvr.reproduce,
        "ifedavg": ifedavg.reproduce,
        "veil": veil.reproduce,
        "radiology": radiology.reproduce,
    }
    return runs[paper](out, quick=quick, threads=threads, progress=progress)
