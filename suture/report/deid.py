"""A scan, a copy and a measurement of de-identification, for people. Column names and shares only, never a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

ACTIONS = {"drop": "drop", "generalise": "generalise", "keep": "keep"}


def print_scan(found: Mapping[str, Any], console: Console | None = None) -> None:
    """Columns to act on first, then how many are kept."""
    console = console or Console()
    console.print(_columns(found["columns"], f"{found['file']}: {found['rows']:,} rows"))
    kept = [row["column"] for row in found["columns"] if row["action"] == "keep"]
    console.print(f"kept as they are: {', '.join(kept) or 'none'}", highlight=False)
    console.print(
        "A scan helps the steward, who answers for the copy: look at every column that is kept.", highlight=False
    )


def print_apply(found: Mapping[str, Any], console: Console | None = None) -> None:
    """What was done to each column, and who can still be singled out."""
    console = console or Console()
    console.print(_columns(found["columns"], f"{found['input']} to {found['output']}: {found['rows']:,} rows"))
    if found["codes"]:
        console.print(f"patients: {found['codes']}", highlight=False)
    risk = found["linkage"]
    if risk is not None:
        table = Table(title=f"Linkage on {', '.join(risk['before']['quasi_identifiers'])}", title_justify="left")
        for name in ("", "smallest group", "patients alone in their group", "in groups under 5", "in groups under 11"):
            table.add_column(name, justify="left" if not name else "right")
        for when in ("before", "after"):
            part = risk[when]
            shares = (f"{part[key]:.1%}" for key in ("unique", "in_groups_under_5", "in_groups_under_11"))
            table.add_row(when, f"{part['smallest_group']:,}", *shares)
        console.print(table)
    console.print(found["floor"], highlight=False)


def print_evaluation(found: Mapping[str, Any], console: Console | None = None) -> None:
    """Recall and precision on the planted table."""
    console = console or Console()
    table = Table(title=f"{found['identifiers']} planted columns of {found['columns']}", title_justify="left")
    for name in ("recall", "honest names", "misleading names", "precision", "category right"):
        table.add_column(name, justify="right")
    keys = ("recall", "recall_honest_names", "recall_misleading_names", "precision", "category_right")
    table.add_row(*(f"{found[key]:.1%}" for key in keys))
    console.print(table)
    for key, text in (("missed", "missed"), ("wrongly_taken", "taken wrongly"), ("category_wrong", "other category")):
        console.print(f"{text}: {', '.join(found[key]) or 'none'}", highlight=False)


def print_dicom(found: Mapping[str, Any], console: Console | None = None) -> None:
    """What became of a folder of DICOM files, and which copies a person must look at."""
    console = console or Console()
    console.print(
        f"{found['written']:,} of {found['files']:,} files written to {found['out']}; {found['elements_read']:,} header "
        f"elements read, {found['private_elements_removed']:,} of them private; {len(found['kept'])} kinds kept",
        highlight=False,
    )
    console.print(f"kept: {', '.join(found['kept'])}", highlight=False)
    for one in found["skipped"]:
        console.print(f"skipped: {one['file']} ({one['reason']})", highlight=False)
    stated = ", ".join(f"{word} {count:,}" for word, count in found["burnt_in_annotation"].items())
    console.print(f"burnt-in annotation by the header (0028,0301): {stated}", highlight=False)
    look = sorted({*found["text_found"], *found["text_stated"]})
    if look:
        console.print(
            f"LOOK AT THESE {len(look):,}: text seems to be burnt into the pixels, which no header can be cleaned of:"
        )
        for name in look:
            console.print(f"  {name}", highlight=False)
    console.print(
        "The search for text misses some (docs/imaging.md says how many): whoever gives images away looks at them first.",
        highlight=False,
    )


def _columns(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    for name in ("column", "category", "sign", "share", "confidence", "action"):
        table.add_column(name, justify="right" if name == "share" else "left", overflow="fold")
    for row in rows:
        if row["action"] == "keep" and row["category"] is None:
            continue
        sign = row["sign"]
        if row["inside"]:
            sign += "; inside: " + ", ".join(f"{name} {share:.1%}" for name, share in row["inside"].items())
        action = f"{row['action']}: {row['how']}" if row["how"] else row["action"]
        table.add_row(row["column"], row["rule"] or "–", sign, f"{row['share']:.0%}", row["confidence"], action)
    return table
