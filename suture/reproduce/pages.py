"""A reproduction on paper: figures as PNG and SVG, tables as CSV, and one page with all of it."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt

from suture import __version__
from suture.report import figures as made
from suture.report import figures_cohort
from suture.report.shell import fill, put
from suture.report.tables import Cell, Table
from suture.report.terminal import cell, side_by_side
from suture.report.theme import PALETTE, finish, save, table
from suture.result import Result
from suture.runfolder import write_whole

METRICS = {"accuracy": "Accuracy", "precision": "Precision", "recall": "Recall", "f1": "F1", "loss": "Loss"}


def charts(results: Mapping[float | None, Result]) -> dict[str, Any]:
    """Figures 3 to 8 of FedCVR, in kind, from our runs."""
    main = results[1.0].data
    without_alone = {**main, "methods": {name: m for name, m in main["methods"].items() if name != "alone"}}
    return {
        "figure3_histograms": figures_cohort.histograms(main),
        "figure4_box_plots": figures_cohort.boxes(main),
        "figure5_evolution": _evolution(main),
        "figure6_hospitals_alone": _alone(main),
        "figure7_roc": made.roc(without_alone),
        "figure8_noise": _noise(results),
    }


def _lines(rows: list[dict[str, Any]], colour: str, order: Sequence[str], title: str) -> Any:
    """Metric against round, one line a series, the y axis named by its metric."""
    return (
        alt.Chart(table(rows))
        .mark_line(strokeWidth=2)
        .encode(
            x=alt.X("round:Q", title="Round", axis=alt.Axis(tickMinStep=1, tickCount=6, format="d")),
            y=alt.Y("value:Q", title=title, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=6)),
            color=alt.Color(
                f"{colour}:N",
                title=None,
                sort=list(order),
                scale=alt.Scale(domain=list(order), range=list(PALETTE[: len(order)])),
                legend=alt.Legend(orient="bottom", columns=5),
            ),
            tooltip=[f"{colour}:N", "round:Q", alt.Tooltip("value:Q", format=".3f")],
        )
    )


def _evolution(main: Mapping[str, Any]) -> Any:
    history = main["methods"]["fedadam"]["history"]
    rows = [
        {"round": entry["round"], "metric": label, "value": entry["global"][key]}
        for entry in history
        for key, label in METRICS.items()
    ]
    chart = _lines(rows, "metric", list(METRICS.values()), "Metric, or loss").properties(width=640, height=320)
    return finish(
        chart, "FedCVR over the rounds", "Noise multiplier 1.0, test patients of all hospitals, mean over seeds"
    )


def _alone(main: Mapping[str, Any]) -> Any:
    """Each hospital's own model on its own test patients, and the federated model on everybody's."""
    sites = list(main["cohort"]["sites"])
    rows = [
        {"round": entry["round"], "panel": site, "metric": METRICS[key], "value": entry["sites"][site][key]}
        for entry in main["methods"]["alone"]["history"]
        for site in sites
        for key in ("accuracy", "recall", "f1")
        if entry["sites"][site][key] is not None
    ] + [
        {"round": entry["round"], "panel": "federated (FedCVR)", "metric": METRICS[key], "value": entry["global"][key]}
        for entry in main["methods"]["fedadam"]["history"]
        for key in ("accuracy", "recall", "f1")
    ]
    order = [METRICS[key] for key in ("accuracy", "recall", "f1")]
    chart = (
        _lines(rows, "metric", order, "Metric")
        .properties(width=230, height=150)
        .facet(facet=alt.Facet("panel:N", title=None, sort=[*sites, "federated (FedCVR)"]), columns=3, spacing=24)
        .resolve_axis(x="independent", y="independent")
    )
    return finish(
        chart, "Hospitals alone, and the federation", "Noise multiplier 1.0; each hospital on its own patients"
    )


def _noise(results: Mapping[float | None, Result]) -> Any:
    names = {sigma: "no noise" if sigma is None else f"noise multiplier {sigma}" for sigma in results}
    panels = []
    for key in ("f1", "loss"):
        rows = [
            {"round": entry["round"], "noise": names[sigma], "value": entry["global"][key]}
            for sigma, result in results.items()
            for entry in result.data["methods"]["fedadam"]["history"]
        ]
        panels.append(_lines(rows, "noise", list(names.values()), METRICS[key]).properties(width=340, height=260))
    chart = alt.hconcat(*panels, spacing=36)
    return finish(chart, "What noise does to FedCVR", "Test patients of all hospitals, mean over seeds")


def save_figures(drawn: Mapping[str, Any], out: Path) -> list[str]:
    """Write every figure as PNG and SVG; returns the file names."""
    folder = out / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, chart in drawn.items():
        for kind in ("png", "svg"):
            save(chart, folder / f"{name}.{kind}")
            written.append(f"figures/{name}.{kind}")
    return written


def write_csv(tables: Mapping[str, Mapping[str, Any]], out: Path) -> None:
    """Every table with all of its columns, for a spreadsheet."""
    for name, found in tables.items():
        text = io.StringIO()
        writer = csv.DictWriter(text, list(found["rows"][0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(found["rows"])
        write_whole(out / f"{name}.csv", text.getvalue().encode())


def write(found: Mapping[str, Any], drawn: Mapping[str, Any], captions: Mapping[str, str], out: Path) -> Path:
    """One page with every table, note and figure."""
    over = found.get("over", "seeds")
    tables = [_table(table["title"], table["rows"], over) for table in found["tables"].values()]
    footer = [("Suture", __version__), ("Command", f"suture reproduce {found['paper']}")]
    intro = "The paper's printed figures beside ours."
    if found["quick"]:
        intro += f" Quick version: fewer patients, rounds and {over}. A look, not a result."
    context = {"name": found["title"], "intro": intro, "tables": tables, "notes": found["notes"], "footer": footer}
    path = out / "index.html"
    put(fill("tables.html", context, drawn, captions, found["paper"]), path)
    return path


def _table(title: str, rows: Sequence[Mapping[str, Any]], over: str) -> Table:
    columns = side_by_side(rows)
    paired = any(len(parts) > 1 for _, parts in columns)
    heads = tuple(f"{head}, ours" if len(parts) > 1 else head for head, parts in columns)
    cells = tuple(tuple(_cell(row, parts) for _, parts in columns) for row in rows)
    remark = f"Small: the paper's figure, and our 95 % interval over {over}." if paired else ""
    if paired and any(key.endswith(" sd") for key in rows[0]):
        remark = f"±: standard deviation over {over}. {remark}"
    return Table(title, heads, cells, remark)


def _cell(row: Mapping[str, Any], parts: tuple[str, ...]) -> Cell:
    key = parts[-1]
    low, high = row.get(f"{key} 95% low"), row.get(f"{key} 95% high")
    notes = [f"paper {cell(row, parts[0])}"] if len(parts) > 1 and row[parts[0]] is not None else []
    if low is not None and high is not None:
        notes.append(f"{low:.3f} to {high:.3f}")
    kept = [text.replace(" ", "\N{NO-BREAK SPACE}") for text in (cell(row, key), *notes)]
    return Cell(kept[0] if key.startswith("our ") else cell(row, key), "\n".join(kept[1:]))
