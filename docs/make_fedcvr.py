"""Writes the figures of docs/fedcvr.md from what ``suture reproduce fedcvr`` has found.

python docs/make_fedcvr.py reproduced/fedcvr
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

PAGE = Path(__file__).with_name("fedcvr.md")
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"


def cell(row: dict[str, object], key: str, places: int) -> str:
    value, low, high = row.get(key), row.get(f"{key} 95% low"), row.get(f"{key} 95% high")
    if not isinstance(value, float):
        return "–" if value is None else str(value)
    if isinstance(low, float) and isinstance(high, float) and places == 4:
        return f"{value:+.4f} ({low:+.4f} to {high:+.4f})"
    return f"{value:.{places}f}"


def markdown(rows: list[dict[str, object]], places: int) -> str:
    heads = [key for key in rows[0] if not key.endswith((" 95% low", " 95% high"))]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        found = [cell(row, key, 1 if key.startswith("effect size") else places) for key in heads]
        lines.append("| " + " | ".join(found) + " |")
    return "\n".join(lines)


def main(folder: Path) -> None:
    found = json.loads((folder / "tables.json").read_text(encoding="utf-8"))
    tables, notes = found["tables"], found["notes"]
    parts = [
        BEGIN,
        "## What came out",
        f"`suture reproduce fedcvr`. {notes[0]}",
        markdown(tables["verdict"]["rows"], 4),
        "Test AUC, mean over seeds, each optimiser tuned with equal trials on other patients:",
        markdown(tables["claim_auc"]["rows"], 3),
        END,
    ]
    page = PAGE.read_text(encoding="utf-8")
    after = page.split(END, 1)[1] if END in page else page.split(BEGIN, 1)[1]
    PAGE.write_text(page.split(BEGIN, 1)[0] + "\n\n".join(parts) + after, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
