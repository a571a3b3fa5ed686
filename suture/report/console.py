"""A result on the console (Rich) and in a notebook (HTML): the summary table and the privacy promise.

Text from the study is shown as text: Rich markup in a hospital's name stays what it is, and HTML is escaped.
"""

from __future__ import annotations

import html

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table as RichTable
from rich.text import Text

from suture.report import notes, tables
from suture.report.words import NO_PRIVACY, Result, headline, part, primary, protected, repeats, tidy, unprotected

SHOWN = ("auc", "auprc", "recall", "precision", "f1", "accuracy", "ece", "auc_ovo", "f1_weighted")
SHORT = {
    "Recall (sensitivity)": "Recall",
    "Precision (PPV)": "Prec.",
    "Accuracy": "Acc.",
    "Calibration error (ECE)": "ECE",
    "ε proven, worst hospital": "ε proven",
    "Sent by hospitals": "Up",
    "Sent to hospitals": "Down",
}


def summary_table(result: Result, wide: bool = False) -> RichTable:
    """Methods x metrics, with the epsilon proven at the worst hospital and the bytes sent; 80 columns unless ``wide``.

    >>> table = summary_table({"name": "demo", "methods": {"a": {"metrics": {"global": {"auc": 0.9}}}}})
    >>> [str(column.header) for column in table.columns]
    ['Method', 'AUC', 'ε', 'Up', 'Down']
    """
    quality, cost = tables.quality(result, _shown(result)), tables.cost(result)
    heads = [*quality.heads, cost.heads[1] if wide else "ε", cost.heads[3], cost.heads[4]]
    gap = (0, 1) if wide else 0
    table = RichTable(
        title=Text(str(result.get("name", ""))), box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False, padding=gap
    )
    for i, head in enumerate(heads):
        # Figures never wrap or shorten; where room is short it is the method's name that breaks over lines.
        name = Text(SHORT.get(head, head))
        table.add_column(name, justify="right" if i else "left", no_wrap=bool(i), overflow="fold")
    for first, second in zip(quality.rows, cost.rows, strict=True):
        cells = [Text(first[0].text)]
        cells += [Text(cell.text + _half(cell), style="bold" if cell.best else "") for cell in first[1:]]
        none = second[1].text == "none"
        cells += [Text(second[1].text, style="bold red" if none else ""), Text(second[3].text), Text(second[4].text)]
        table.add_row(*cells)
    return table


def privacy_panel(result: Result) -> Panel:
    """What is proven at each hospital under the study's method, or that nothing is.

    >>> privacy_panel({"name": "demo", "methods": {"a": {}}}).title
    'Privacy: none'
    """
    method = part(result, "methods", primary(result))
    if not protected(method):
        return Panel(Text(NO_PRIVACY), title="Privacy: none", border_style="red", title_align="left")
    statement = str(part(method, "privacy").get("statement") or "").strip()
    first, _, more = statement.partition("\n\n")
    parts: list[RenderableType] = [Text(first), Text("")] if first else []
    found = tables.promises(result)
    if found is not None:
        parts.append(_rich(found))
    if found is None and not statement:
        parts.append(Text(headline(result)))
    if more.strip():
        parts.append(
            Text("The whole statement, with what is taken as public and what is not covered, is in the report.")
        )
    return Panel(Group(*parts), title="Privacy", border_style="green", title_align="left")


def print_result(result: Result, console: Console | None = None) -> None:
    """The whole result for a terminal: sentence, summary, p-values, privacy, warnings.

    >>> import io
    >>> page = Console(file=io.StringIO(), width=100)
    >>> print_result({"name": "demo", "methods": {"a": {"metrics": {"global": {"auc": 0.9}}}}}, page)
    >>> "without differential privacy" in page.file.getvalue()
    True
    """
    console = console or Console()
    result = tidy(result)
    console.print(summary_table(result, wide=console.width >= 110))
    legend = "ε: proven at the worst hospital. Up, down: bytes sent by and to all hospitals."
    if any(cell.note for row in tables.quality(result, _shown(result)).rows for cell in row[1:]):
        legend += f" ±: half of the 95 % interval over {repeats(result)}."
    console.print(Text(f"{legend}\n", style="dim"))
    console.print(Text(headline(result)))
    if (compared := tables.significance(result)) is not None:
        console.print(_rich(compared))
    console.print(privacy_panel(result))
    open_methods = unprotected(result)
    if open_methods and len(open_methods) < len(part(result, "methods")):
        console.print(Text(f"Without differential privacy: {', '.join(open_methods)}", style="bold red"))
    for key in part(result, "methods"):
        if why := part(result, "methods", key).get("stopped"):
            console.print(Text(f"Stopped early, {key}: {why}", style="yellow"))
    warnings = notes.gathered_notes(map(str, result.get("warnings") or []))
    for warning in warnings[: notes.SHOWN]:
        console.print(Text(f"Note: {warning}", style="yellow"))
    if (more := len(warnings) - notes.SHOWN) > 0:
        console.print(Text(f"Note: {more} more notes are in the report", style="yellow"))


def html_repr(result: Result) -> str:
    """The summary as one HTML table, for notebooks.

    >>> html_repr({"name": "<b>", "methods": {"a": {"metrics": {"global": {"auc": 0.9}}}}}).startswith("<div")
    True
    """
    quality, cost = tables.quality(result, _shown(result)), tables.cost(result)
    heads = [*quality.heads, *(cost.heads[i] for i in (1, 3, 4))]
    style = "padding:4px 10px;border-bottom:1px solid #d9dce1;text-align:right"
    head = "".join(f'<th scope="col" style="{style}">{html.escape(SHORT.get(h, h))}</th>' for h in heads)
    rows = []
    for first, second in zip(quality.rows, cost.rows, strict=True):
        cells = [*first, second[1], second[3], second[4]]
        rows.append("<tr>" + "".join(_cell(cell, style) for cell in cells) + "</tr>")
    banner = ""
    if not protected(part(result, "methods", primary(result))):
        banner = f'<p style="color:#b3261e;font-weight:bold">{html.escape(NO_PRIVACY)}</p>'
    title = html.escape(str(result.get("name", "")))
    return (
        f'<div style="font-family:sans-serif"><p><strong>{title}</strong>: {html.escape(headline(result))}</p>{banner}'
        f'<table style="border-collapse:collapse"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _shown(result: Result) -> tuple[str, ...]:
    """Two classes have an F1 of their own; the weighted one stands in the report only, so that the table stays narrow."""
    one = any("auc" in part(result, "methods", key, "metrics", "global") for key in part(result, "methods"))
    return SHOWN[:-1] if one else SHOWN


def _half(cell: tables.Cell) -> str:
    """Half of the interval, on a second line."""
    return "" if cell.half is None else f"\n±{cell.half:.3f}".replace("±0.", "±.")


def _rich(found: tables.Table) -> RichTable:
    table = RichTable(title=Text(found.caption), box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for i, head in enumerate(found.heads):
        table.add_column(Text(SHORT.get(head, head)), justify="right" if i else "left", overflow="fold")
    for row in found.rows:
        table.add_row(*(Text(cell.text) for cell in row))
    if found.remark:
        table.caption = Text(found.remark)
        table.caption_justify = "left"
    return table


def _cell(cell: tables.Cell, style: str) -> str:
    text = html.escape(cell.text)
    note = f'<br><span style="color:#5f6368;font-size:85%">{html.escape(cell.note)}</span>' if cell.note else ""
    return f'<td style="{style}">{f"<strong>{text}</strong>" if cell.best else text}{note}</td>'
