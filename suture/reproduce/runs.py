"""Runs of a reproduction, one folder a study: made once, used again, resumed after an interruption."""

from __future__ import annotations

from pathlib import Path

from suture import conduct
from suture.conduct import Progress
from suture.result import Result
from suture.study import Study


def folder_of(wanted: Study, out: Path) -> Path:
    """Where a study's run is under the reproduction's folder.

    >>> folder_of(Study(name="as printed, claims 5", outcome="y", cohort="cardio"), Path("out")).as_posix()
    'out/runs/as-printed-claims-5'
    """
    return out / "runs" / wanted.name.replace(" ", "-").replace(",", "")


def same(wanted: Study, folder: Path) -> bool:
    """Whether the run in a folder, finished or not, is of exactly this study."""
    return (folder / "run.json").exists() and Study.from_toml(folder / "study.toml") == wanted


def run_once(
    wanted: Study,
    out: Path,
    paper: str,
    *,
    base: Path | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Result:
    """A finished run of exactly this study is used as it is, an unfinished one is resumed. ``base`` is where ledgers are.

    A folder that holds another study (of an earlier version, say) is refused: what was spent for it stays spent.
    """
    folder, command = folder_of(wanted, out), f"suture reproduce {paper}"
    if same(wanted, folder):
        return conduct.resume(folder, threads=threads, progress=progress, command=command)
    return conduct.run(wanted, out=folder, base=base, threads=threads, progress=progress, command=command)
