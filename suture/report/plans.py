"""Plans for people: the budget over the rounds and the smallest safe epsilon, on the terminal and as a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from suture.errors import StudyError
from suture.report.figures_plan import WAYS, over_rounds
from suture.report.shell import fill, put
from suture.report.tables import Cell
from suture.report.tables import Table as Cells
from suture.report.theme import save

_TITLE = "Epsilon after each round, four ways of adding up"


def draw_history(found: Mapping[str, Any], path: Path) -> Path:
    """Write the budget over the rounds as PNG, SVG or a page (.html) with the table."""
    if not path.parent.is_dir():
        raise StudyError(f"the folder {path.parent} does not exist; make it first")
    chart = over_rounds(found)
    if path.suffix.lower() != ".html":
        save(chart, path)
        return path
    columns = ("Round", *WAYS.values())
    rows = tuple((Cell(f"{row['round']:,}"), *(Cell(_epsilon(row, way)) for way in WAYS)) for row in found["rows"])
    facts = [("Noise multiplier", f"{found['noise']:.4g}"), ("Delta", f"{found['delta']:g}")]
    facts.append(("Sampling rate", f"{found['sampling_rate']:.4g}"))
    if "rounds_that_fit" in found:
        fits = ", ".join(f"{WAYS[way]} {count:,}" for way, count in found["rounds_that_fit"].items())
        facts.append((f"Rounds within epsilon {found['budget']:g}", fits))
    context = {
        "name": "Privacy spent over the rounds",
        "intro": f"Unit: {found['unit']}; neighbours: {found['neighbours']}.",
        "tables": [Cells(_TITLE, columns, rows)],
        "notes": found["notes"],
        "footer": facts,
    }
    put(fill("tables.html", context, {"over_rounds": chart}, {"over_rounds": _TITLE}, "budget"), path)
    return path


def print_history(found: Mapping[str, Any], console: Console | None = None) -> None:
    """The table; a star marks where the square-root rule promises more than can be proven."""
    console = console or Console()
    table = Table(title=f"{_TITLE} (delta {found['delta']:g})", title_justify="left")
    table.add_column("round", justify="right")
    for text in WAYS.values():
        table.add_column(text, justify="right")
    for row in found["rows"]:
        table.add_row(f"{row['round']:,}", *(_epsilon(row, way) for way in WAYS))
    console.print(table)
    if "rounds_that_fit" in found:
        fits = ", ".join(f"{WAYS[way]} {count:,}" for way, count in found["rounds_that_fit"].items())
        console.print(f"rounds within epsilon {found['budget']:g}: {fits}", highlight=False)
    console.print(f"noise multiplier {found['noise']:.4g}, sampling rate {found['sampling_rate']:.4g}", highlight=False)
    for note in found["notes"]:
        console.print(f"- {note}", highlight=False)
    if "plot" in found:
        console.print(f"plot: {found['plot']}", highlight=False, soft_wrap=True)


def print_safe(found: Mapping[str, Any], console: Console | None = None) -> None:
    """The smallest safe epsilon, by mechanism, with and without sampling error."""
    console = console or Console()
    title = (
        f"Smallest epsilon at which the flag (rate above {found['threshold']:.3g}) is right with probability "
        f"{found['reliability']:g}"
    )
    table = Table(title=title, title_justify="left")
    for name in ("", "classical Gaussian", "analytic Gaussian", "best possible, any epsilon"):
        table.add_column(name, justify="left" if not name else "right")
    for key, text in (
        ("without_sampling_error", "noise alone"),
        ("with_sampling_error", "noise and sampling error"),
    ):
        part = found[key]
        cells = [_safe(part[name]) for name in ("classical", "analytic")]
        table.add_row(text, *cells, f"{part['best_possible']:.1%}")
    console.print(table)
    console.print(
        f"{found['patients']:,} patients, true rate {found['rate']:.3g}: {found['events_expected']:g} events expected, "
        f"{found['events_at_threshold']:g} at the threshold; delta {found['delta']:g}",
        highlight=False,
    )
    if not found["with_sampling_error"]["reachable"]:
        console.print(
            "- With sampling error counted the asked reliability is out of reach at this size, whatever the privacy: "
            "pool sites with a secure sum, or ask more patients.",
            highlight=False,
        )
    classical = found["without_sampling_error"]["classical"]
    if not classical["proven"]:
        console.print(
            f"- The classical formula is proven for epsilon below 1 only; its noise here is worth "
            f"{classical['true_epsilon']:g} in truth. Use the analytic figure.",
            highlight=False,
        )


def _safe(answer: Mapping[str, Any] | None) -> str:
    if answer is None:
        return "out of reach"
    return f"{answer['epsilon']:g}" + ("" if answer["proven"] else " (not proven)")


def _epsilon(row: Mapping[str, Any], way: str) -> str:
    star = "*" if way == "sqrt_rule" and row["sqrt_rule_promises_too_much"] else ""
    return "–" if row[way] is None else f"{row[way]:g}{star}"
