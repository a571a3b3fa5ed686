"""Everything that is printed on a terminal (Rich), and the summary in a notebook (HTML).

Text from a study is shown as text: Rich markup in a hospital's name is not interpreted, and HTML is
escaped.
"""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.panel import Panel
from rich.table import Table as RichTable
from rich.text import Text

from suture.report import words
from suture.report.words import Found, complete, delta, epsilon
from suture.schema.record import Record

METRICS = (
    "auc",
    "auprc",
    "recall",
    "precision",
    "f1",
    "accuracy",
    "ece",
    "auc_ovo",
    "c_index",
    "ibs",
    "f1_weighted",
)
SHORT = {
    "Recall (sensitivity)": "Recall",
    "Precision (PPV)": "Prec.",
    "Accuracy": "Acc.",
    "Calibration error (ECE)": "ECE",
    "ε proven, worst hospital": "ε proven",
    "Sent by hospitals": "Up",
    "Sent to hospitals": "Down",
}
ACCOUNTANTS = {"basic": "basic composition", "rdp": "RDP", "pld": "PLD"}
COMPOSITIONS = {
    "basic": "Basic composition",
    "sqrt_rule": "Square-root rule (no proof)",
    "rdp": "Rényi DP",
    "pld": "PLD",
}
"""Ways of adding up the epsilons of several rounds."""
OVER_ROUNDS = "Epsilon after each round, four ways of adding up"


def summary_table(result: Mapping[str, object], wide: bool = False) -> RichTable:
    """Methods x metrics, with proven epsilon and bytes sent; 80 columns unless ``wide``.

    >>> table = summary_table({"name": "demo", "methods": {"a": {"metrics": {"global": {"auc": 0.9}}}}})
    >>> [str(column.header) for column in table.columns]
    ['Method', 'AUC', 'ε', 'Up', 'Down']
    """
    whole = complete(result)
    heads, rows = _summary(whole)
    heads[-3] = heads[-3] if wide else "ε"
    table = _simple(whole["name"], padding=(0, 1) if wide else 0)
    for i, head in enumerate(heads):
        # Figures never wrap or shorten; where space is short, the method's name is broken over
        # lines.
        name = Text(SHORT.get(head, head))
        table.add_column(name, justify="right" if i else "left", no_wrap=bool(i), overflow="fold")
    for label, *cells, spent, up, down in rows:
        bold = "bold red" if spent.text == "none" else ""
        shown = []
        for cell in cells:  # half of the interval stands on a second line
            half = "" if cell.half is None else f"\n±{cell.half:.3f}".replace("±0.", "±.")
            shown.append(Text(cell.text + half, style="bold" if cell.best else ""))
        last = [Text(spent.text, style=bold), Text(up.text), Text(down.text)]
        table.add_row(Text(label.text), *shown, *last)
    return table


def privacy_panel(result: Record) -> Panel:
    """What is proven at each hospital under the study's method, or that nothing is."""
    method = words.primary(result)
    if not words.protected(method):
        text, title = Text(words.NO_PRIVACY), "Privacy: none"
        return Panel(text, title=title, border_style="red", title_align="left")
    first, _, more = method["privacy"]["statement"].strip().partition("\n\n")
    parts: list[RenderableType] = [Text(first), Text("")] if first else []
    if (found := words.promises(result)) is not None:
        parts.append(_rich(found))
    elif not first:
        parts.append(Text(words.headline(result)))
    if more.strip():
        rest = "The whole statement, with what is taken as public and what is not covered, is in"
        parts.append(Text(f"{rest} the report."))
    return Panel(Group(*parts), title="Privacy", border_style="green", title_align="left")


def print_result(result: Mapping[str, object], console: Console | None = None) -> None:
    """The whole result for a terminal: sentence, summary, p-values, privacy, warnings."""
    console = console or Console()
    whole = complete(result)
    if terms := whole["release"]["words"]:
        console.print(Text(terms, style="bold red"))
    if nobody := words.unchecked(whole):
        console.print(Text(nobody, style="bold red"))
    console.print(summary_table(whole, wide=console.width >= 110))
    legend = "ε: proven at the worst hospital. Up, down: bytes sent by and to all hospitals."
    if any(cell.note for row in _summary(whole)[1] for cell in row[1:-3]):
        private = any(map(words.noisy, whole["methods"].values()))
        over = "for noise and sampling" if private else f"over {words.repeats(whole)}"
        legend += f" ±: half of the 95 % interval {over}."
    console.print(Text(f"{legend}\n", style="dim"))
    console.print(Text(words.headline(whole)))
    if (compared := words.significance(whole)) is not None:
        console.print(_rich(compared))
    console.print(privacy_panel(whole))
    without = words.unprotected(whole)
    if without and len(without) < len(whole["methods"]):
        text = f"Without differential privacy: {', '.join(without)}"
        console.print(Text(text, style="bold red"))
    for key, method in whole["methods"].items():
        if method["stopped"]:
            console.print(Text(f"Stopped early, {key}: {method['stopped']}", style="yellow"))
    if signers := words.signers(whole):
        console.print(Text(f"Tables signed as ready: {signers}", style="dim"))
    warnings = words.merged_notes(map(str, whole["warnings"]))
    for warning in warnings[: words.SHOWN]:
        console.print(Text(f"Note: {warning}", style="yellow"))
    if (more := len(warnings) - words.SHOWN) > 0:
        console.print(Text(f"Note: {more} more notes are in the report", style="yellow"))


LEVELS = {"stop": "bold red", "look": "yellow", "fine": "dim"}
MOST_FINE = 12


def print_check(found: Mapping[str, Any], console: Console | None = None) -> None:
    """What was found in each site's table, the worst first."""
    console = console or Console()
    for site in found["sites"]:
        figures, shown = site["figures"], RichTable.grid(padding=(0, 1))
        shown.add_column(no_wrap=True)
        shown.add_column()
        share = f"; outcome in {figures['prevalence']:.1%}" if "prevalence" in figures else ""
        patients = f"{figures['patients']:,} patients ({figures['train']:,} train"
        head = f"{site['site']}: {figures['rows']:,} rows of {patients}, {figures['test']:,} test)"
        console.print(Text(f"{head}{share}", style="bold"))
        fine = [one for one in site["findings"] if one["level"] == "fine"][MOST_FINE:]
        for one in (one for one in site["findings"] if one not in fine):
            style = LEVELS[one["level"]]
            text = Text.assemble((one["column"], style), ": " if one["column"] else "", one["text"])
            why = [
                f"Likely cause: {one['cause']}." if one["cause"] else "",
                one["do"][:1].upper() + one["do"][1:],
            ]
            if one["level"] != "fine" and (words := " ".join(filter(None, why))):
                text.append(f"\n{words}", "dim")
            shown.add_row(Text(one["level"], style), text)
        console.print(shown)
        more = f"{len(fine)} more are fine; " if fine else ""
        count = f"{site['stop']} stop, {site['look']} look; {more}all of it: {site['file']}"
        console.print(Text(f"{count}\n"), soft_wrap=True)


def html_repr(result: Mapping[str, object]) -> str:
    """The summary as one HTML table, for notebooks."""
    whole = complete(result)
    heads, rows = _summary(whole)
    style = "padding:4px 10px;border-bottom:1px solid #d9dce1;text-align:right"
    head = "".join(
        f'<th scope="col" style="{style}">{html.escape(SHORT.get(h, h))}</th>' for h in heads
    )
    body = "".join(f"<tr>{''.join(_html_cell(c, style) for c in row)}</tr>" for row in rows)
    banner = ""
    if not words.protected(words.primary(whole)):
        banner = f'<p style="color:#b3261e;font-weight:bold">{html.escape(words.NO_PRIVACY)}</p>'
    return (
        f'<div style="font-family:sans-serif"><p><strong>{html.escape(whole["name"])}</strong>: '
        f"{html.escape(words.headline(whole))}</p>{banner}"
        f'<table style="border-collapse:collapse"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _summary(result: Record) -> tuple[list[str], list[tuple[words.Cell, ...]]]:
    """Heads and rows of the summary: a method's quality, then its epsilon and the bytes sent.

    Where there are two classes, the weighted F1 is left to the report, so that the table stays
    narrow.
    """
    two = any("auc" in method["metrics"]["global"] for method in result["methods"].values())
    quality = words.quality(result, METRICS[:-1] if two else METRICS)
    cost = words.cost(result)
    pairs = zip(quality.rows, cost.rows, strict=True)
    rows = [(*first, second[1], second[3], second[4]) for first, second in pairs]
    return [*quality.heads, cost.heads[1], cost.heads[3], cost.heads[4]], rows


def grid(
    table: RichTable,
    heads: Iterable[str | Text],
    rows: Iterable[Iterable[str | Text]],
    left: Collection[int] = (0,),
    fold: bool = False,
) -> RichTable:
    """Fill a table: the columns numbered in ``left`` read from the left, the others are figures."""
    for i, head in enumerate(heads):
        side: JustifyMethod = "left" if i in left else "right"
        table.add_column(head, justify=side, overflow="fold" if fold else "ellipsis")
    for row in rows:
        table.add_row(*row)
    return table


def titled(title: str | Text) -> RichTable:
    """An empty table under a title at its left."""
    return RichTable(title=title, title_justify="left")


def _simple(title: str, padding: int | tuple[int, int] = (0, 1)) -> RichTable:
    name = Text(title) if title else None
    return RichTable(
        title=name, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False, padding=padding
    )


def _rich(found: words.Table) -> RichTable:
    heads = (Text(SHORT.get(head, head)) for head in found.heads)
    rows = ([Text(cell.text) for cell in row] for row in found.rows)
    table = grid(_simple(found.caption), heads, rows, fold=True)
    if found.remark:
        table.caption = Text(found.remark)
        table.caption_justify = "left"
    return table


def _html_cell(cell: words.Cell, style: str) -> str:
    text = html.escape(cell.text)
    text = f"<strong>{text}</strong>" if cell.best else text
    if cell.note:
        quiet = "color:#5f6368;font-size:85%"
        text += f'<br><span style="{quiet}">{html.escape(cell.note)}</span>'
    return f'<td style="{style}">{text}</td>'


def _wide(console: Console | None, width: int = 120) -> Console:
    """A console that leaves room for tables where the output is a file or a pipe."""
    if console is not None:
        return console
    console = Console()
    return console if console.is_terminal else Console(width=width)


def _say(console: Console, *lines: str, style: str | None = None) -> None:
    """Lines as they are: no markup, no colours for numbers."""
    for line in lines:
        console.print(line, style=style, highlight=False, markup=False)


def _list_files(console: Console, names: Sequence[str]) -> None:
    for name in names:
        console.print(name, highlight=False, soft_wrap=True, markup=False)


def print_tables(tables: Sequence[words.Table], console: Console | None = None) -> None:
    """Tables as a page shows them."""
    console = _wide(console)
    for table in tables:
        console.print(_rich(table))


def print_plan(found: Found, console: Console | None = None) -> None:
    """The missing figure by accountant, for each hospital and for the worst."""
    console = _wide(console)
    asked = next(
        key for key, value in found.items() if isinstance(value, Mapping) and "pld" in value
    )
    names, hospitals, rows = list(found[asked]), found.get("hospitals", []), []
    for hospital in hospitals:
        patients = hospital.get("patients")
        label = f"{patients:,} patients" if isinstance(patients, int) else "hospital"
        rows.append((label, *(_number(hospital[asked].get(name)) for name in names)))
    if len(hospitals) != 1:
        rows.append(("all (the worst governs)", *map(_number, found[asked].values())))
    heads = ("hospital", *(ACCOUNTANTS.get(name, name) for name in names))
    console.print(grid(titled(f"{asked}, by accountant"), heads, rows))
    _say(console, f"unit: {found['unit']}; neighbours: {found['neighbours']}")
    _say(console, f"sampling: {found['sampling']}")


def print_history(found: Found, console: Console | None = None) -> None:
    """Epsilon by round; a star marks where the square-root rule promises more than is proven."""
    console = console or Console()
    title = f"{OVER_ROUNDS} (delta {found['delta']:g})"
    rows = ((f"{row['round']:,}", *epsilons(row)) for row in found["rows"])
    console.print(grid(titled(title), ("round", *COMPOSITIONS.values()), rows, left=()))
    if "rounds_that_fit" in found:
        _say(console, f"rounds within epsilon {found['budget']:g}: {rounds_that_fit(found)}")
    noise, rate = found["noise"], found["sampling_rate"]
    _say(console, f"noise multiplier {noise:.4g}, sampling rate {rate:.4g}")
    _say(console, *(f"- {note}" for note in found["notes"]))
    if "plot" in found:
        _list_files(console, [f"plot: {found['plot']}"])


def epsilons(row: Found) -> list[str]:
    """The epsilons of one round, as `COMPOSITIONS` orders them."""
    star = "*" if row["sqrt_rule_promises_too_much"] else ""
    return [
        words.NONE if row[way] is None else f"{row[way]:g}{star if way == 'sqrt_rule' else ''}"
        for way in COMPOSITIONS
    ]


def rounds_that_fit(found: Found) -> str:
    """How many rounds fit the budget, for each way of adding up."""
    return ", ".join(f"{COMPOSITIONS[way]} {n:,}" for way, n in found["rounds_that_fit"].items())


def print_safe(found: Found, console: Console | None = None) -> None:
    """The smallest safe epsilon, by mechanism, with and without sampling error."""
    console = console or Console()
    title = (
        f"Smallest epsilon at which the flag (rate above {found['threshold']:.3g}) is right with "
        f"probability {found['reliability']:g}"
    )
    heads = ("", "classical Gaussian", "analytic Gaussian", "best possible, any epsilon")
    alone, sampled = found["without_sampling_error"], found["with_sampling_error"]
    parts = {"noise alone": alone, "noise and sampling error": sampled}
    rows = (
        (text, _safe(part["classical"]), _safe(part["analytic"]), f"{part['best_possible']:.1%}")
        for text, part in parts.items()
    )
    console.print(grid(titled(title), heads, rows))
    _say(
        console,
        f"{found['patients']:,} patients, true rate {found['rate']:.3g}: "
        f"{found['events_expected']:g} events expected, {found['events_at_threshold']:g} at the "
        f"threshold; delta {found['delta']:g}",
    )
    if not sampled["reachable"]:
        _say(
            console,
            "- With sampling error included, this reliability is out of reach at this size, "
            "whatever the privacy: pool sites with a secure sum, or recruit more patients.",
        )
    if not alone["classical"]["proven"]:
        _say(
            console,
            "- The classical formula is proven only for epsilon below 1; the true epsilon of its "
            f"noise here is {alone['classical']['true_epsilon']:g}. Use the analytic figure.",
        )


def _safe(answer: Found | None) -> str:
    if answer is None:
        return "out of reach"
    return f"{answer['epsilon']:g}" + ("" if answer["proven"] else " (not proven)")


def print_bench(found: Found, console: Console | None = None) -> None:
    """Ratios first, then what could not be measured and why."""
    console, rows = _wide(console), []
    for key, text in words.TEXTS["benches"].items():
        value, unit = found.get(key), " s" if key.endswith("seconds") else " x"
        rows.append((text, "not measured" if value is None else f"{value:,.1f}{unit}"))
    title = "How many times faster Suture is, measured side by side"
    console.print(grid(titled(title), ("comparison", "figure"), rows))
    skipped = found.get("skipped") or {}
    reasons = skipped.values() if isinstance(skipped, Mapping) else skipped
    _say(console, *(f"skipped: {reason}" for reason in reasons))


def print_interop(found: Found, written: Sequence[str], console: Console | None = None) -> None:
    """Whom to ask what, one row per finding, then where the page is."""
    console = _wide(console)
    _say(console, found["headline"], style="bold")
    if found["findings"]:
        keys = {"hospital": "site", "feature": "label", "what": "kind", "direction": "direction",
                "ask": "ask"}  # fmt: skip
        rows = ([Text(str(item[key])) for key in keys.values()] for item in found["findings"])
        console.print(grid(_simple(""), keys, rows, left=range(len(keys)), fold=True))
    _say(console, *(f"- {notice}" for notice in found["notices"]))
    _list_files(console, written)


def print_join(found: Found, console: Console | None = None) -> None:
    """What the fitted layers bring the hospital that joined, what it paid, and where they are."""
    console = _wide(console)
    text = f"{found['site']} joined {found['run']}: layers fitted in {found['rounds']} rounds"
    _say(console, f"{text}, the network is unchanged.", style="bold")
    for name, value in (found["after"] or {}).items():
        was = found["before"][name]
        if value is not None and was is not None:
            _say(console, f"{name}: {was:.3f} without layers, {value:.3f} with them")
    _say(console, found["statement"])
    _list_files(console, found["written"])


def print_ledger(found: Found, console: Console | None = None) -> None:
    """A ledger: accounts first, then every row."""
    console, total = _wide(console, 150), found["total"]
    accounts: list[Sequence[str | Text]] = []
    for item in found["accounts"]:
        figures = (epsilon(item["epsilon"]), epsilon(item["budget"]), delta(item["delta"]))
        releases = f"{item['releases']:,}"
        accounts.append((Text(item["account"]), *figures, releases, item["rounds"]))
    figures = (epsilon(total["epsilon"]), epsilon(found["lifetime"]), delta(total["delta"]))
    accounts.append(("all together", *figures, "", ""))
    heads = ("account", "ε spent", "ε budget", "δ", "releases", "rounds")
    table = titled(Text(f"Site {found['site']}: accounts"))
    table.box = box.SIMPLE_HEAD
    console.print(grid(table, heads, accounts, left=(0, 5), fold=True))
    rows: list[list[str | Text]] = []
    for row in found["rows"]:
        spent = epsilon(row["epsilon"]) if row["kind"] == "release" else ""
        round_ = "" if row["round"] is None else row["round"]
        cells = (row["entry"], row["time"][:19], row["study"], round_, row["what"], row["event"])
        rows.append([*(Text(str(cell)) for cell in cells), spent])
    columns = ("entry", "time", "study", "round", "what", "event", "ε so far")
    entries = RichTable(box=box.SIMPLE_HEAD)
    console.print(grid(entries, columns, rows, left=(1, 2, 4, 5), fold=True))


def print_reproduction(found: Found, console: Console | None = None) -> None:
    """Every table of a reproduction, with the paper's figures above ours."""
    console = _wide(console)
    console.print(found["title"], style="bold")
    for table in found["tables"].values():
        console.print(_side_by_side_table(table["title"], table["rows"]))
    _say(console, *(f"- {note}" for note in found.get("notes", [])))
    _list_files(console, [f"page: {found['page']}"])


def _side_by_side_table(title: str, rows: Sequence[Found]) -> RichTable:
    columns = side_by_side(rows)
    table = _simple(title)
    table.show_lines = any(len(parts) > 1 for _, parts in columns)
    for head, parts in columns:
        text = len(parts) == 1 and any(isinstance(row[parts[0]], str) for row in rows)
        name = f"{head}\npaper\nours" if len(parts) > 1 else head
        side = "left" if text else "right"
        table.add_column(name, justify=side, overflow="fold", vertical="middle")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*("\n".join(cell(row, part) for part in parts) for _, parts in columns))
    return table


def side_by_side(rows: Sequence[Found]) -> list[tuple[str, tuple[str, ...]]]:
    """Columns by heading; the paper's figure and ours share one, spreads and intervals have none.

    >>> side_by_side([{"name": "x", "paper AUC": 0.9, "our AUC": 0.91, "our AUC sd": 0.01}])
    [('name', ('name',)), ('AUC', ('paper AUC', 'our AUC'))]
    """
    keys = [key for key in rows[0] if not key.endswith((" sd", " 95% low", " 95% high"))]
    columns: list[tuple[str, tuple[str, ...]]] = []
    for key in keys:
        plain = key.removeprefix("paper ").removeprefix("our ")
        both = (f"paper {plain}", f"our {plain}")
        if not set(both) <= set(keys):
            columns.append((key, (key,)))
        elif key.startswith("paper "):
            columns.append((plain, both))
    return columns


def cell(row: Found, key: str) -> str:
    """One figure, with its standard deviation where there is one.

    >>> cell({"our AUC": 0.9, "our AUC sd": 0.01}, "our AUC"), cell({"p": 0.0002}, "p")
    ('0.900 ± 0.010', '0.0002')
    """
    spread = row.get(f"{key} sd")
    if isinstance(row[key], float) and spread is not None:
        return f"{row[key]:.3f} ± {spread:.3f}"
    return _number(row[key])


def _number(value: float | str | None) -> str:
    if value is None:
        return words.NONE
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if value != 0 and (abs(value) < 1e-3 or abs(value) >= 1e6):
        return f"{value:.2g}"
    if abs(value) < 1:
        return f"{value:.3f}"
    return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


def print_methods(found: Sequence[Found], console: Console | None = None) -> None:
    """One line per method, best first where they were ranked; then where their settings are."""
    console = _wide(console)
    ranked = bool(found) and "points" in found[0]
    rows = []
    for row in found:
        papers = "; ".join(f"{p['authors']} {p['year']}, {p['where']}" for p in row["papers"])
        plain = ("yes" if row["private"] else "no", papers or "a reference")
        rows.append((row["name"], *((f"{row['points']:g}", row["why"]) if ranked else plain)))
    table = RichTable(title="Methods for this study, best first" if ranked else "Methods", box=None)
    heads = ("method", "suits", "why") if ranked else ("method", "private", "paper")
    console.print(grid(table, heads, rows, left=range(3)))
    points = "Points are what each method declares for such a federation, not a measurement."
    _say(console, *([points] if ranked else []))
    _say(console, "Settings: docs/study.md, [method]; as data: suture methods --json")


def print_search(searches: Sequence[Found]) -> None:
    """The ten best trials of each search, the one taken first; then where the table is."""
    console = _wide(None, 140)
    for found in searches:
        best = next(row for row in found["rows"] if row["state"] == "best")
        others = [row for row in found["rows"] if row["state"] == "finished"]
        ranked = [best, *sorted(others, key=lambda row: -row[found["metric"]])]
        rows = (
            [f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()]
            for row in ranked[:10]
        )
        title = f"{found['method']}: {found['trials']} trials; taken: {found['rule']}"
        left = [i for i, name in enumerate(best) if name == "state"]
        console.print(grid(titled(title), (name.split(".")[-1] for name in best), rows, left=left))
        ended = f"{found['ended_early']} ended early, {found['failed']} failed, {found['seconds']:.0f} s of training"
        _say(console, f"{ended}. Searched on {found['searched_on']}.")
        _say(console, f"Privacy cost of the search: {found['privacy_cost']}.")
        _list_files(console, [f"table: {found['table']}", f"next: suture run {found['study']}"])


def print_audit(found: Found) -> None:
    """Claimed beside measured epsilon, test by test, and the verdict."""
    console, rows = Console(), []
    for test in found["tests"]:
        figures = ["", "", ""]
        if "claimed" in test:
            values = (test["claimed"]["epsilon"], test["measured"]["epsilon"], test["reach"])
            figures = ["∞" if value is None else f"{value:.2f}" for value in values]
        rows.append((test["what"], *figures, "BROKEN" if test["broken"] else "consistent"))
    size = f"{found['patients']:,} patients"
    table = titled(f"{found['study']}, {found['method']} at {found['site']} ({size})")
    heads = ("test", "claimed ε", "measured ε ≥", "could show", "verdict")
    console.print(grid(table, heads, rows, left=(0, 4)))
    _say(console, *(f"left out: {text}" for text in found["left_out"]), f"{found['scope']}.")
    verdict = f"verdict: {found['verdict']} (false alarms: {found['rate']:g})"
    _say(console, verdict, style="bold")


def print_release(found: Found) -> None:
    """The noisy figures, then the price."""
    console = Console(highlight=False)
    title = f"{found['kind']} of {found['column']} at {found['site']}, with noise"
    names, rows = _released(found)
    console.print(grid(titled(title), names, rows, left=() if names[0] != "bin" else (0,)))
    free = " (the same release as before: not charged again)" if found["repeated"] else ""
    console.print(
        f"cost: epsilon {found['epsilon']:g} at delta {found['delta']:g}{free}; noise of "
        f"{found['noise_sd']:.3g} on every count ({found['mechanism']}); {found['contribution']}"
    )
    console.print(
        f"spent by this study's releases here: {found['spent']:g} of {found['budget']:g} "
        f"({found['accountant']})"
    )
    together = found["spent_by_all_accounts"]
    console.print(
        "the site's ledger also holds a training without privacy: no bound holds for everything "
        "together"
        if together is None
        else f"everything in the site's ledger together: epsilon {together:g}"
    )


def _released(found: Found) -> tuple[list[str], list[list[str]]]:
    if found["kind"] == "rate":
        noise, sampled = found["interval"], found["interval_with_sampling"]
        names = ["rate", "95 % interval (noise)", "95 % interval (noise and sampling)"]
        spans = [_span(noise, ".2%"), _span(sampled, ".2%")]
        row = [_form(found["rate"], ".2%"), *spans, f"{found['patients']:,.0f}"]
        return [*names, "patients, noisy"], [row]
    if found["kind"] == "histogram":
        rows = []
        for b in found["bins"]:
            count, share = _form(b["count"], ",.0f"), _form(b["share"], ".1%")
            rows.append([b["bin"], count, _span(b["interval"], ",.0f"), share])
        return ["bin", "patients, noisy", "95 % interval", "share"], rows
    rows = [
        [f"{q['quantile']:g}", _form(q["value"], ".4g"), _span(q["interval"], ".4g")]
        for q in found["quantiles"]
    ]
    return ["quantile", "value", "95 % interval"], rows


def _form(value: float | None, form: str) -> str:
    return words.NONE if value is None else format(value, form)


def _span(ends: list[float], form: str) -> str:
    return f"{ends[0]:{form}} to {ends[1]:{form}}"
