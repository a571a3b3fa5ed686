"""Answers on the terminal that are not a run: plans, benchmarks, reproductions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

ACCOUNTANTS = {"basic": "basic composition", "rdp": "RDP", "pld": "PLD"}
BENCHES = {
    "dpsgd_vs_opacus": "DP-SGD step against Opacus, 6-64-32-1, batch 32, one thread",
    "dpsgd_vs_plain_torch": "DP-SGD step against a non-private PyTorch step, same network",
    "dpsgd_wide_vs_opacus": "DP-SGD step against Opacus, 261-128-64-12",
    "fedcvr_vs_flower_opacus": "FedCVR's work against Flower + Opacus, all cores",
    "fedcvr_table_seconds": "Table 7 of FedCVR in full, seconds",
}


def _wide() -> Console:
    """A console that leaves room for tables where the output is not a terminal but a file or a pipe."""
    console = Console()
    return console if console.is_terminal else Console(width=120)


def print_plan(found: Mapping[str, Any], console: Console | None = None) -> None:
    """The missing figure by accountant, for each hospital and for the worst."""
    console = console or _wide()
    asked = next(key for key, value in found.items() if isinstance(value, Mapping) and "pld" in value)
    table = Table(title=f"{asked}, by accountant", title_justify="left")
    table.add_column("hospital")
    for name in found[asked]:
        table.add_column(ACCOUNTANTS.get(name, name), justify="right")
    hospitals = found.get("hospitals", [])
    for hospital in hospitals:
        label = f"{hospital['patients']:,} patients" if isinstance(hospital.get("patients"), int) else "hospital"
        table.add_row(label, *(_number(hospital[asked].get(name)) for name in found[asked]))
    if len(hospitals) != 1:
        table.add_row("all (the worst governs)", *(_number(value) for value in found[asked].values()))
    console.print(table)
    console.print(f"unit: {found['unit']}; neighbours: {found['neighbours']}", highlight=False)
    console.print(f"sampling: {found['sampling']}", highlight=False)


def print_bench(found: Mapping[str, Any], console: Console | None = None) -> None:
    """Ratios first, then what could not be measured and why."""
    console = console or _wide()
    table = Table(title="How many times faster Suture is, measured side by side", title_justify="left")
    table.add_column("comparison")
    table.add_column("figure", justify="right")
    for key, text in BENCHES.items():
        value = found.get(key)
        unit = " s" if key.endswith("seconds") else " x"
        table.add_row(text, "not measured" if value is None else f"{value:,.1f}{unit}")
    console.print(table)
    skipped = found.get("skipped") or {}
    for reason in skipped.values() if isinstance(skipped, Mapping) else skipped:
        console.print(f"skipped: {reason}", highlight=False)


def print_interop(found: Mapping[str, Any], written: Sequence[str], console: Console | None = None) -> None:
    """Whom to ask what, one row a finding, then where the page is."""
    console = console or _wide()
    console.print(found["headline"], style="bold", highlight=False, markup=False)
    if found["findings"]:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for head in ("hospital", "feature", "what", "direction", "ask"):
            table.add_column(head, overflow="fold")
        for item in found["findings"]:
            cells = (item["site"], item["label"], item["kind"], item["direction"], item["ask"])
            table.add_row(*(Text(str(cell)) for cell in cells))
        console.print(table)
    for notice in found["notices"]:
        console.print(f"- {notice}", highlight=False, markup=False)
    for name in written:
        console.print(name, highlight=False, soft_wrap=True, markup=False)


def print_join(found: Mapping[str, Any], console: Console | None = None) -> None:
    """What the fitted layers bring the hospital that joined, what it paid, and where they are."""
    console = console or _wide()
    text = (
        f"{found['site']} joined {found['run']}: layers fitted in {found['rounds']} rounds, the network is unchanged."
    )
    console.print(text, style="bold", highlight=False, markup=False)
    for name, value in (found["after"] or {}).items():
        was = found["before"][name]
        if value is not None and was is not None:
            console.print(f"{name}: {was:.3f} without layers, {value:.3f} with them", highlight=False, markup=False)
    console.print(found["statement"], highlight=False, markup=False)
    for name in found["written"]:
        console.print(name, highlight=False, soft_wrap=True, markup=False)


def print_reproduction(found: Mapping[str, Any], console: Console | None = None) -> None:
    """Every table of a reproduction, the paper's columns beside ours."""
    console = console or _wide()
    console.print(found["title"], style="bold")
    for table in found["tables"].values():
        console.print(rows_table(table["title"], table["rows"]))
    for note in found.get("notes", []):
        console.print(f"- {note}", highlight=False)
    console.print(f"page: {found['page']}", highlight=False, soft_wrap=True)


def rows_table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Rows of equal keys as a table; what the paper prints stands above what we found."""
    columns = side_by_side(rows)
    paired = any(len(parts) > 1 for _, parts in columns)
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, show_lines=paired)
    for head, parts in columns:
        text = len(parts) == 1 and any(isinstance(row[parts[0]], str) for row in rows)
        table.add_column(
            f"{head}\npaper\nours" if len(parts) > 1 else head,
            justify="left" if text else "right",
            overflow="fold",
            vertical="middle",
        )
    for row in rows:
        table.add_row(*("\n".join(cell(row, part) for part in parts) for _, parts in columns))
    return table


def side_by_side(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, tuple[str, ...]]]:
    """Columns by their heading: the paper's figure and ours share one.

    >>> side_by_side([{"method": "a", "paper auc": "0.9", "our auc": 0.91, "our p": 0.1}])
    [('method', ('method',)), ('auc', ('paper auc', 'our auc')), ('our p', ('our p',))]
    """
    keys = shown(rows)
    columns: list[tuple[str, tuple[str, ...]]] = []
    for key in keys:
        plain = key.removeprefix("paper ").removeprefix("our ")
        both = (f"paper {plain}", f"our {plain}")
        if not set(both) <= set(keys):
            columns.append((key, (key,)))
        elif key.startswith("paper "):
            columns.append((plain, both))
    return columns


def shown(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns worth a reader's eye.

    >>> shown([{"our AUC": 0.9, "our AUC sd": 0.01, "our AUC 95% low": 0.88}])
    ['our AUC']
    """
    return [key for key in rows[0] if not key.endswith((" sd", " 95% low", " 95% high"))]


def cell(row: Mapping[str, Any], key: str) -> str:
    """One figure, with its standard deviation where there is one.

    >>> cell({"our AUC": 0.9, "our AUC sd": 0.01}, "our AUC"), cell({"p": 0.0002}, "p")
    ('0.900 ± 0.010', '0.0002')
    """
    spread = row.get(f"{key} sd")
    if isinstance(row[key], float) and spread is not None:
        return f"{row[key]:.3f} ± {spread:.3f}"
    return _number(row[key])


def _number(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if value != 0 and (abs(value) < 1e-3 or abs(value) >= 1e6):
        return f"{value:.2g}"
    return f"{value:.3f}" if abs(value) < 1 else f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
