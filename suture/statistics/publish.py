"""A statistic from a study, and its tables as a page, CSV, LaTeX and Word."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from suture.engine import conduct
from suture.engine.conduct import Progress
from suture.engine.round import Engine
from suture.errors import MissingExtra, StudyError
from suture.methods.base import State
from suture.privacy.files import write_whole
from suture.privacy.software import VERSION
from suture.report.shell import fill, put
from suture.report.theme import Figure, save
from suture.report.words import Cell, Table
from suture.result import Result
from suture.study import Study


def asking(
    study: Study,
    name: str,
    epsilon: float,
    rounds: int = 1,
    holdout: float = 0.0,
    **settings: object,
) -> Study:
    """The study that asks for a statistic of the same sites, columns and patients.

    It has an account of its own in each site's ledger, ``<study>/<statistic>``, beside the
    trainings, and a digest of its own, which a charter must approve.
    """
    if study.table is None and study.cohort is None:
        raise StudyError("a statistic needs a [schema]: it says which columns there are")
    promise = {"unit": "patient", "epsilon": epsilon}
    if study.privacy is not None:
        promise["delta"] = study.privacy.delta
    return Study(
        **{
            **study.to_dict(),
            "method": {"name": name, "rounds": rounds, **settings},
            "privacy": promise,
            "evaluation": {"holdout": holdout},
        }
    )


def ask(
    study: Study,
    name: str,
    *,
    epsilon: float,
    rounds: int = 1,
    base: Path | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
    command: str = "suture",
    begin: State | None = None,
    holdout: float = 0.0,
    **settings: object,
) -> Result:
    """Run a statistic: charged at every site, then noisy. Asked again, real sites answer as before
    and charge nothing."""
    asked = asking(study, name, epsilon, rounds, holdout, **settings)
    return conduct.run(
        asked, base=base, engine=engine, progress=progress, command=command, begin=begin
    )


def figures_of(result: Result) -> Mapping[str, Any]:
    """What the statistic found."""
    found: Mapping[str, Any] = result.data["methods"][result.data["method"]]["facts"]
    return found


def publish(
    result: Result,
    out: Path,
    title: str,
    tables: Sequence[Table],
    figures: Mapping[str, Figure] | None = None,
) -> list[Path]:
    """Write ``<name>.json``, ``.html``, ``.csv``, ``.tex`` and, with python-docx, ``.docx``."""
    out.mkdir(parents=True, exist_ok=True)
    name, drawn = result.data["method"], dict(figures or {})
    promise = result.data["methods"][name]["privacy"]
    generated = result.data["release"]["patients"] == "generated"
    intro = ("Generated patients, not real ones. " if generated else "") + (
        f"{result.data['name']}: epsilon {promise['epsilon']:.2f} (delta {promise['delta']:g}) at "
        "each site, for everything on this page together."
    )
    notes = [promise["statement"]]
    if result.data["release"]["words"]:
        notes.insert(0, result.data["release"]["words"])
    context = {
        "name": title,
        "intro": intro,
        "tables": tables,
        "notes": notes,
        "footer": [("Suture", VERSION), ("Command", result.data["command"])],
    }
    page = out / f"{name}.html"
    captions = dict.fromkeys(drawn, title)
    put(fill("tables.html", context, drawn, captions, name), page)
    written = [page]
    for key, chart in drawn.items():
        save(chart, out / f"{key}.png")
        written.append(out / f"{key}.png")
    whole = json.dumps(result.data, indent=1, allow_nan=False)
    for kind, content in (("csv", _csv(tables)), ("tex", _latex(tables)), ("json", whole)):
        write_whole(out / f"{name}.{kind}", content.encode())
        written.append(out / f"{name}.{kind}")
    try:
        write_whole(out / f"{name}.docx", _word(title, intro, tables, notes))
        written.append(out / f"{name}.docx")
    except MissingExtra:
        pass
    return written


def _lines(table: Table) -> list[list[str]]:
    """Heads and rows as texts: a cell's note, its interval, stands in brackets."""
    return [
        list(table.heads),
        *(
            [cell.text + (f" ({cell.note})" if cell.note else "") for cell in row]
            for row in table.rows
        ),
    ]


def _csv(tables: Sequence[Table]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for table in tables:
        writer.writerows(_lines(table))
    return text.getvalue()


_LATEX = str.maketrans(
    {**{c: f"\\{c}" for c in "&%$#_{}"}, "~": "\\textasciitilde{}", "^": "\\textasciicircum{}",
     "\\": "\\textbackslash{}", "–": "--"}
)  # fmt: skip


def _latex(tables: Sequence[Table]) -> str:
    parts = []
    for table in tables:
        heads, *rows = ([cell.translate(_LATEX) for cell in line] for line in _lines(table))
        body = "\n".join(" & ".join(row) + r" \\" for row in rows)
        columns = "l" + "r" * (len(heads) - 1)
        parts.append(
            f"\\begin{{table}}\n\\caption{{{table.caption.translate(_LATEX)}}}\n"
            f"\\begin{{tabular}}{{{columns}}}\n\\hline\n{' & '.join(heads)} \\\\\n\\hline\n{body}\n"
            "\\hline\n\\end{tabular}\n\\end{table}\n"
        )
    return "\n".join(parts)


def _word(title: str, intro: str, tables: Sequence[Table], notes: Sequence[str]) -> bytes:
    try:
        from docx import Document
    except ImportError:
        raise MissingExtra("Word files need python-docx: pip install 'suture[word]'") from None
    document = Document()
    document.add_heading(title, 1)
    document.add_paragraph(intro)
    for table in tables:
        lines = _lines(table)
        document.add_paragraph(table.caption)
        grid = document.add_table(len(lines), len(lines[0]), style="Light List")
        for row, line in zip(grid.rows, lines, strict=True):
            for cell, text in zip(row.cells, line, strict=True):
                cell.text = text
        if table.remark:
            document.add_paragraph(table.remark)
    for note in notes:
        document.add_paragraph(note)
    written = io.BytesIO()
    document.save(written)
    return written.getvalue()


def shown(figure: Mapping[str, Any], digits: int = 1, scale: float = 1.0) -> Cell:
    """A figure with its interval; a dash where it is withheld."""
    if figure["value"] is None:
        return Cell("–", "withheld: noise")
    low, high = figure["interval"]
    return Cell(
        f"{scale * figure['value']:,.{digits}f}",
        f"{scale * low:,.{digits}f} to {scale * high:,.{digits}f}",
    )


def narrow(table: Table, columns: int) -> Table:
    """The first columns of a table with their intervals, for a terminal; the files have all."""
    rows = tuple(
        tuple(Cell(c.text + (f" ({c.note})" if c.note else "")) for c in row[:columns])
        for row in table.rows
    )
    left = len(table.heads) - columns
    remark = table.remark + (f" {left} more columns are in the files." if left > 0 else "")
    return Table(table.caption, table.heads[:columns], rows, remark)
