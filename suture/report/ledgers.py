"""A ledger on the terminal and in files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from suture.errors import RunError
from suture.report.shell import put
from suture.report.statement_page import render
from suture.report.words import delta, epsilon


def print_ledger(found: Mapping[str, Any], console: Console | None = None) -> None:
    """Accounts first, then every row."""
    console = console or Console()
    console = console if console.is_terminal else Console(width=150)
    accounts = Table(title=f"Site {escape(found['site'])}: accounts", title_justify="left", box=box.SIMPLE_HEAD)
    for head, side in (("account", "left"), ("ε spent", "right"), ("ε budget", "right"), ("δ", "right"),
                       ("releases", "right"), ("rounds", "left")):  # fmt: skip
        accounts.add_column(head, justify="right" if side == "right" else "left", overflow="fold")
    for item in found["accounts"]:
        cells = (item["account"], epsilon(item["epsilon"]), epsilon(item["budget"]), delta(item["delta"]))
        accounts.add_row(*map(escape, cells), f"{item['releases']:,}", item["rounds"])
    total, lifetime = found["total"], found["lifetime"]
    accounts.add_row("all together", epsilon(total["epsilon"]), epsilon(lifetime), delta(total["delta"]), "", "")
    console.print(accounts)
    rows = Table(box=box.SIMPLE_HEAD)
    for head in ("entry", "time", "study", "round", "what", "event", "ε so far"):
        rows.add_column(head, justify="right" if head in ("entry", "round", "ε so far") else "left", overflow="fold")
    for row in found["rows"]:
        spent = epsilon(row["epsilon"]) if row["kind"] == "release" else ""
        cells = (row["time"][:19], row["study"], "" if row["round"] is None else str(row["round"]), row["what"])
        rows.add_row(str(row["entry"]), *map(escape, cells), escape(row["event"]), spent)
    console.print(rows)


def export_ledger(
    out: Path, overview: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], fields: Sequence[str]
) -> list[str]:
    """Write ``ledger.json``, ``ledger.csv`` and ``statement.html``; returns their paths."""
    text = io.StringIO()
    table = csv.DictWriter(text, fields, lineterminator="\n")
    table.writeheader()
    table.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    written = datetime.now(UTC).isoformat(timespec="seconds")
    content = {
        "ledger.json": json.dumps({**overview, "rows": list(rows)}, indent=1, allow_nan=False) + "\n",
        "ledger.csv": text.getvalue(),
        "statement.html": render(overview, written=written),
    }
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, body in content.items():
            put(body, out / name)
    except OSError as error:
        raise RunError(f"{out} cannot be written: {error}") from None
    return [str(out / name) for name in content]


def _cell(value: Any) -> Any:
    """A text that a spreadsheet would run as a formula is kept a text."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
