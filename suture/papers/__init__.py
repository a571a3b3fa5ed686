"""The papers that Suture reproduces, one folder each: their printed figures beside ours, and the
epsilon they claim beside the one that is proven."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from suture.errors import StudyError

if TYPE_CHECKING:
    from suture.engine.conduct import Progress
    from suture.papers.reproduction import Content

PAPERS = {
    "fedcvr": "suture.papers.fedcvr",
    "chapter": "suture.papers.privacy_stack",
    "ifedavg": "suture.papers.ifedavg",
    "veil": "suture.papers.veil",
    "radiology": "suture.papers.radiology",
}
"""A paper's name on the command line, and its folder. A folder is imported when it is needed."""


def reproduce(
    paper: str,
    *,
    out: Path,
    quick: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Content:
    """Run a paper's experiments and write its tables and figures into ``out``; finished parts are
    kept and reused."""
    from suture.papers.reproduction import Work

    if paper not in PAPERS:
        raise StudyError(f"unknown paper {paper!r}; expected one of {', '.join(PAPERS)}")
    found: Content = import_module(PAPERS[paper]).reproduce(
        Work(paper, out, quick, threads, progress)
    )
    return found
