"""Writes the tables of docs/interoperability.md from what ``suture reproduce ifedavg`` has found.

python docs/make_ifedavg.py reproduced/ifedavg
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

PAGE = Path(__file__).with_name("interoperability.md")
METHODS = ("iFedAvg", "iFedAvg, prior", "FedAvg", "APFL", "Local", "Centralized")
Rows = list[dict[str, str | float | None]]


def figure(row: dict[str, str | float | None], key: str, places: int = 3) -> str:
    """A figure, with its interval where there is one."""
    value, low, high = (row.get(f"{key}{end}") for end in ("", " 95% low", " 95% high"))
    if not isinstance(value, float):
        return "–" if value is None else str(value)
    reach = f" ({low:.{places}f} to {high:.{places}f})" if low is not None else ""
    return f"{value:.{places}f}{reach}"


def our(row: dict[str, str | float | None], method: str) -> str:
    return figure(row, method if method in row else f"our {method}")


def scores(mean: Rows, worst: Rows) -> list[list[str]]:
    """Mean over clients, then the worst client below it."""
    lines = []
    for a, b in zip(mean, worst, strict=True):
        cells = [f"{our(a, one)}<br>{our(b, one)}" for one in METHODS]
        lines.append([str(a["data"]), str(a["seeds"]), *cells])
    return lines


def plain(rows: Rows) -> list[list[str]]:
    heads = [key for key in rows[0] if not key.endswith((" 95% low", " 95% high"))]
    return [[figure(row, key) for key in heads] for row in rows]


def main(folder: Path) -> None:
    tables = json.loads((folder / "tables.json").read_text(encoding="utf-8"))["tables"]
    found = {name: plain(one["rows"]) for name, one in tables.items()}
    if {"table1", "table2"} <= set(tables):
        found["scores"] = scores(tables["table1"]["rows"], tables["table2"]["rows"])

    def written(match: re.Match[str]) -> str:
        """The heads stand in the page; a row that was not measured again stays."""
        head, rule, *old = match[3].strip().split("\n")
        lines = {line.split(" | ")[0]: [line] for line in old} if match[1] == "scores" else {}
        for cells in found.get(match[1], []):
            lines[f"| {cells[0]}"] = [*lines.get(f"| {cells[0]}", []), f"| {' | '.join(cells)} |"]
            if match[1] == "scores":
                lines[f"| {cells[0]}"] = lines[f"| {cells[0]}"][-1:]
        body = [line for some in lines.values() for line in some] or old
        return "\n".join([f"<!-- table: {match[1]} -->", head, rule, *body, "<!-- end -->"])

    block = re.compile(r"<!-- table: (\w+) -->(\n)(.*?)<!-- end -->", re.DOTALL)
    PAGE.write_text(block.sub(written, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
