"""A scan, a copy and a measurement of de-identification, for people. Column names and shares only,
never a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from rich.console import Console
from rich.table import Table

Report: TypeAlias = Mapping[str, Any]


def print_scan(found: Report) -> None:
    """Columns to act on first, then how many are kept."""
    console = Console(highlight=False)
    console.print(_columns(found["columns"], f"{found['file']}: {found['rows']:,} rows"))
    kept = [row["column"] for row in found["columns"] if row["action"] == "keep"]
    console.print(f"kept as they are: {', '.join(kept) or 'none'}")
    console.print("A scan helps the steward, who answers for the copy: check every kept column.")


def print_apply(found: Report) -> None:
    """What was done to each column, and who can still be singled out."""
    console = Console(highlight=False)
    title = f"{found['input']} to {found['output']}: {found['rows']:,} rows"
    console.print(_columns(found["columns"], title))
    if found["codes"]:
        console.print(f"patients: {found['codes']}")
    risk = found["linkage"]
    if risk is not None:
        shares = {
            "unique": "patients alone in their group",
            "in_groups_under_5": "in groups under 5",
            "in_groups_under_11": "in groups under 11",
        }
        title = f"Linkage on {', '.join(risk['before']['quasi_identifiers'])}"
        table = _table(title, [""], ["smallest group", *shares.values()])
        for when in ("before", "after"):
            part = risk[when]
            cells = (f"{part[key]:.1%}" for key in shares)
            table.add_row(when, f"{part['smallest_group']:,}", *cells)
        console.print(table)
    console.print(found["floor"])


def print_evaluation(found: Report) -> None:
    """Recall and precision on the planted table."""
    console = Console(highlight=False)
    shares = {
        "recall": "recall",
        "recall_honest_names": "honest names",
        "recall_misleading_names": "misleading names",
        "precision": "precision",
        "category_right": "category right",
    }
    title = f"{found['identifiers']} planted columns of {found['columns']}"
    table = _table(title, [], [*shares.values()])
    table.add_row(*(f"{found[key]:.1%}" for key in shares))
    console.print(table)
    lists = {
        "missed": "missed",
        "wrongly_taken": "taken wrongly",
        "category_wrong": "other category",
    }
    for key, text in lists.items():
        console.print(f"{text}: {', '.join(found[key]) or 'none'}")


def print_dicom(found: Report) -> None:
    """What became of a folder of DICOM files, and which copies a person must look at."""
    console = Console(highlight=False)
    console.print(
        f"{found['written']:,} of {found['files']:,} files written to {found['out']}; "
        f"{found['elements_read']:,} header elements read, {found['private_elements_removed']:,} "
        f"of them private; {len(found['kept'])} kinds kept"
    )
    console.print(f"kept: {', '.join(found['kept'])}")
    for one in found["skipped"]:
        console.print(f"skipped: {one['file']} ({one['reason']})")
    stated = ", ".join(f"{word} {count:,}" for word, count in found["burnt_in_annotation"].items())
    console.print(f"burnt-in annotation by the header (0028,0301): {stated}")
    look = sorted({*found["text_found"], *found["text_stated"]})
    if look:
        console.print(
            f"LOOK AT THESE {len(look):,}: text seems to be burnt into the pixels, which no header "
            "can be cleaned of:"
        )
        for name in look:
            console.print(f"  {name}")
    console.print(
        "The search for text misses some (docs/imaging.md says how many): look at images before "
        "you give them away."
    )


def _columns(rows: Sequence[Report], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    for name in ("column", "category", "sign", "share", "confidence", "action"):
        table.add_column(name, justify="right" if name == "share" else "left", overflow="fold")
    for row in rows:
        if row["action"] == "keep" and row["category"] is None:
            continue
        inside = ", ".join(f"{name} {share:.1%}" for name, share in row["inside"].items())
        sign = f"{row['sign']}; inside: {inside}" if inside else row["sign"]
        action = f"{row['action']}: {row['how']}" if row["how"] else row["action"]
        rule, share = row["rule"] or "–", f"{row['share']:.0%}"
        table.add_row(row["column"], rule, sign, share, row["confidence"], action)
    return table


def _table(title: str, left: Sequence[str], right: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in (*left, *right):
        table.add_column(name, justify="left" if name in left else "right")
    return table
