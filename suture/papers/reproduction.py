"""What every reproduction shares: runs that are kept, work spread over cores, tables that print the
paper's figures beside ours, and the page that shows them.

A column ``paper X`` and a column ``our X`` are printed as one, X. ``X sd``, ``X 95% low`` and
``X 95% high`` are printed inside the cell of X.
"""

from __future__ import annotations

import csv
import io
import json
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import numpy as np

from suture.cohorts import Cohort
from suture.engine import conduct
from suture.engine.conduct import Progress, Step
from suture.evaluation.significance import interval
from suture.privacy.files import write_whole
from suture.privacy.software import VERSION
from suture.report.console import cell, side_by_side
from suture.report.shell import fill, put
from suture.report.theme import save
from suture.report.words import Cell
from suture.report.words import Table as PageTable
from suture.result import Result
from suture.schema.outcome import Classes
from suture.schema.record import MethodResult
from suture.site.cohort import SiteData, load
from suture.study import Study

Row = dict[str, str | float | None]
"""One row of a table: a column's name, and what is printed there."""
Tables = dict[str, tuple[str, list[Row]]]
"""A table's name, its title, and its rows, which all have the same columns."""
Chart = Any
"""An Altair figure: single, layered, faceted or concatenated."""


def printed(paper: str) -> dict[str, Any]:
    """What a paper prints, and our notes on it: the TOML file beside its module."""
    return tomllib.loads(Path(__file__).with_name(f"{paper}.toml").read_text("utf-8"))


class Table(TypedDict):
    """A table in ``tables.json``."""

    title: str
    rows: list[Row]


class More(TypedDict, total=False):
    """What only some papers have beside tables."""

    over: str
    """What intervals are over, where it is not seeds."""
    seconds: float
    table_7_seconds: float
    p_hat: dict[str, str]
    dashboard: dict[str, str]


class Content(More):
    """What a reproduction found: the content of ``tables.json``."""

    paper: str
    title: str
    quick: bool
    tables: dict[str, Table]
    notes: list[str]
    figures: list[str]
    page: str


@dataclass(frozen=True)
class Work:
    """One call of ``suture reproduce``: which paper, where to, and how it runs."""

    paper: str
    out: Path
    quick: bool = False
    threads: int | None = None
    progress: Progress | None = None

    def folder(self, study: Study) -> Path:
        """Where a study's run is kept.

        >>> study = Study(name="as printed, claims 5", outcome="y", cohort="cardio")
        >>> Work("veil", Path("out")).folder(study).as_posix()
        'out/runs/as-printed-claims-5'
        """
        return self.out / "runs" / study.name.replace(" ", "-").replace(",", "")

    def holds(self, study: Study) -> bool:
        """Whether the study's folder has a run, finished or not, of exactly this study."""
        folder = self.folder(study)
        return (folder / "run.json").exists() and Study.from_toml(folder / "study.toml") == study

    def finished(self, study: Study) -> bool:
        """Whether the study's folder has a finished run of exactly this study."""
        return (self.folder(study) / "result.json").exists() and self.holds(study)

    def run(self, study: Study, base: Path | None = None) -> Result:
        """Reuse a finished run of exactly this study, resume an unfinished one, or start it.

        ``base`` is where ledgers are kept. A folder that holds another study (of an earlier
        version, say) is refused: the budget spent on that study remains spent.
        """
        folder, command = self.folder(study), f"suture reproduce {self.paper}"
        threads, progress = self.threads, self.progress
        if self.holds(study):
            return conduct.resume(folder, threads=threads, progress=progress, command=command)
        return conduct.run(
            study, out=folder, base=base, threads=threads, progress=progress, command=command
        )

    def say(self, text: str, done: int, parts: int, seed: int = 0) -> None:
        """Report how many of the parts are done."""
        if self.progress:
            self.progress(Step(text, seed, done, parts, 1, 1, None))

    def publish(
        self,
        title: str,
        tables: Tables,
        notes: Sequence[str],
        drawn: Mapping[str, tuple[Chart, str]],
        more: More | None = None,
    ) -> Content:
        """Write figures (PNG, SVG), tables (CSV, JSON) and the page; ``drawn`` holds each figure with
        its caption."""
        more = more or {}
        over = more.get("over", "seeds")
        (self.out / "figures").mkdir(parents=True, exist_ok=True)
        figures = [f"figures/{name}.{kind}" for name in drawn for kind in ("png", "svg")]
        for name in figures:
            save(drawn[Path(name).stem][0], self.out / name)
        for name, (_, rows) in tables.items():
            text = io.StringIO()
            writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
            write_whole(self.out / f"{name}.csv", text.getvalue().encode())
        page = self.out / "index.html"
        intro = "The paper's printed figures beside ours."
        if self.quick:
            intro += f" Quick version: fewer patients, rounds and {over}. A look, not a result."
        context = {
            "name": title,
            "intro": intro,
            "tables": [page_table(head, rows, over) for head, rows in tables.values()],
            "notes": notes,
            "footer": [("Suture", VERSION), ("Command", f"suture reproduce {self.paper}")],
        }
        charts = {name: chart for name, (chart, _) in drawn.items()}
        captions = {name: caption for name, (_, caption) in drawn.items()}
        put(fill("tables.html", context, charts, captions, self.paper), page)
        content: Content = {
            "paper": self.paper,
            "title": title,
            "quick": self.quick,
            "tables": {
                name: {"title": head, "rows": rows} for name, (head, rows) in tables.items()
            },
            "notes": list(notes),
            "figures": figures,
            "page": str(page),
            **more,
        }
        written = json.dumps(content, indent=1, allow_nan=False).encode()
        write_whole(self.out / "tables.json", written)
        return content


Job = TypeVar("Job")
Found = TypeVar("Found")


def spread(
    work: Callable[[Job], Found], jobs: Sequence[Job], workers: int | None = None
) -> Iterator[tuple[int, Found]]:
    """Run ``workers`` jobs at a time (default: one per core); yield each job's number and result.

    Jobs start in the given order, so the long ones belong first. They run in processes, because
    Python's lock lets only one thread work at a time. When the loop is left, by an error or an
    interruption, no further job starts.

    >>> sorted(spread(abs, [-3, 4], workers=1))
    [(0, 3), (1, 4)]
    """
    workers = min(workers or os.cpu_count() or 1, len(jobs))
    if workers <= 1:
        yield from ((i, work(job)) for i, job in enumerate(jobs))
        return
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    try:
        waiting = {pool.submit(work, job): i for i, job in enumerate(jobs)}
        for future in as_completed(waiting):
            yield waiting[future], future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def rows_of(
    cohort: Cohort, *, scaling: str, key: str = "reproduction", profile: str = ""
) -> dict[str, SiteData]:
    """Every site's rows, encoded, in the split that the cohort has (else all train). Patients come
    in the order of their hashes under ``key``."""
    about = partial(
        load, schema=cohort.schema, outcome=cohort.outcome, target=Classes(written=cohort.classes)
    )
    read = partial(about, holdout=0.0, split_key=key, scaling=scaling, profile=profile)
    return {
        site.name: read(site.table, site=site.name, test_source=site.test) for site in cohort.sites
    }


def method_of(result: Result, name: str = "") -> MethodResult:
    """What a run found for one method, by default its first."""
    found: MethodResult = result.data["methods"][name or result.data["method"]]
    return found


def seconds_of(result: Result, methods: Sequence[str] = ()) -> float:
    """How long a run took, or some of its methods."""
    names = methods or list(result.data["methods"])
    return sum(method_of(result, name)["seconds"] or 0.0 for name in names)


def by_seed(result: Result, metric: str, method: str = "") -> list[float]:
    """A metric over all test patients, for each seed in which it is defined."""
    found = [run["global"].get(metric) for run in method_of(result, method)["per_seed"]]
    return [value for value in found if value is not None]


def summary(name: str, values: Sequence[float], *, sd: bool = False) -> Row:
    """Columns for the mean of a figure and the ends of its 95 % interval; ``sd`` adds its deviation.

    >>> summary("our AUC", [0.9])
    {'our AUC': 0.9, 'our AUC 95% low': None, 'our AUC 95% high': None}
    """
    mean, low, high = interval(values)
    row: Row = {name: mean}
    if sd:
        row[f"{name} sd"] = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {**row, f"{name} 95% low": low, f"{name} 95% high": high}


def rows_under(heads: str, lines: Iterable[Sequence[str | float | None]]) -> list[Row]:
    """Rows of a table from the heads of its columns and the values of each line.

    >>> rows_under("risk | our share", [("low", 0.9)])
    [{'risk': 'low', 'our share': 0.9}]
    """
    return [dict(zip(heads.split(" | "), line, strict=True)) for line in lines]


def number(value: object) -> float:
    """A cell that holds a number, for arithmetic on it."""
    if not isinstance(value, int | float):
        raise TypeError(f"expected a number, found {value!r}")
    return value


def page_table(title: str, rows: list[Row], over: str) -> PageTable:
    """A table as the page shows it; ``over`` says what its intervals are over."""
    columns = side_by_side(rows)
    paired = any(len(parts) > 1 for _, parts in columns)
    heads = tuple(f"{head}, ours" if len(parts) > 1 else head for head, parts in columns)
    cells = tuple(tuple(_cell(row, parts) for _, parts in columns) for row in rows)
    remark = f"Small: the paper's figure, and our 95 % interval over {over}." if paired else ""
    if paired and any(key.endswith(" sd") for key in rows[0]):
        remark = f"±: standard deviation over {over}. {remark}"
    return PageTable(title, heads, cells, remark)


def _cell(row: Row, parts: tuple[str, ...]) -> Cell:
    key = parts[-1]
    low, high = row.get(f"{key} 95% low"), row.get(f"{key} 95% high")
    notes = [f"paper {cell(row, parts[0])}"] if len(parts) > 1 and row[parts[0]] is not None else []
    if low is not None and high is not None:
        notes.append(f"{low:.3f} to {high:.3f}")
    kept = [text.replace(" ", "\N{NO-BREAK SPACE}") for text in (cell(row, key), *notes)]
    return Cell(kept[0] if key.startswith("our ") else cell(row, key), "\n".join(kept[1:]))
