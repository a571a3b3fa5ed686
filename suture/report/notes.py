"""The sites' notes for a reader: what many hospitals have in common is said once.

A note reads ``site 'name': what``. With 152 hospitals and 17 laboratory values there are thousands of them, alike but for
their counts; a reader wants one line a column, and which hospital is hit worst.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

SHOWN = 6
"""How many notes are shown before the rest is folded away."""
FEW = 3
"""Notes that at most this many hospitals share stay as they are."""
_NOTE = re.compile(
    r"site '(?P<site>.+?)': (?P<before>.*?)(?P<count>[\d,]+) of (?P<all>[\d,]+)(?P<after> rows?\b.*)", re.S
)


def gathered_notes(warnings: Iterable[str]) -> list[str]:
    """The notes, those that differ only in hospital and counts put together, in the order of their first.

    >>> gathered_notes(f"site 'h{i}': column 'bmi': {i} of 20 rows without a value" for i in range(1, 5))
    ["column 'bmi': 10 of 80 rows without a value (at 4 hospitals; most at h4: 4 of 20)"]
    >>> gathered_notes(["site 'a': column 'bmi': 1 of 20 rows without a value", "something else"])
    ["site 'a': column 'bmi': 1 of 20 rows without a value", 'something else']
    """
    groups: dict[tuple[str, ...], list[tuple[str, int, int, str]]] = {}
    for text in warnings:
        if (found := _NOTE.fullmatch(text)) is None:
            groups.setdefault(("", text), []).append(("", 0, 0, text))
            continue
        part, whole = (int(found[name].replace(",", "")) for name in ("count", "all"))
        # "1 row" and "2 rows" are the same note.
        after = re.sub(r"^ row\b", " rows", found["after"])
        groups.setdefault((found["before"], after), []).append((found["site"], part, whole, text))
    notes: list[str] = []
    for (before, after), members in groups.items():
        if not members[0][0]:
            notes.append(after)
        elif len(members) <= FEW:
            notes.extend(text for *_, text in members)
        else:
            site, part, whole, _ = max(members, key=lambda member: member[1] / max(member[2], 1))
            total = f"{sum(m[1] for m in members):,} of {sum(m[2] for m in members):,}"
            where = f"(at {len(members)} hospitals; most at {site}: {part:,} of {whole:,})"
            notes.append(f"{before}{total}{after} {where}")
    return notes
