"""How good a scan is: recall and precision over columns whose truth is known."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from suture.site.deidentify import Finding


def score(findings: Sequence[Finding], truth: Mapping[str, str], honest: Collection[str] = ()) -> dict[str, Any]:
    """Recall and precision of acting on a column (drop or generalise), and of naming its category.

    >>> found = Finding("SSN", "ssn", "", 1.0, "high", "drop")
    >>> kept = Finding("age", None, "", 0.0, "", "keep")
    >>> score([found, kept], {"SSN": "ssn", "age": "date"})["recall"]
    0.5
    """
    acted = {f.column: f for f in findings if f.action != "keep"}
    missed = [name for name in truth if name not in acted]
    wrong = [name for name in acted if name not in truth]
    right = [name for name in truth if name in acted]
    named = [name for name in right if acted[name].category == truth[name]]
    found: dict[str, Any] = {
        "columns": len(findings),
        "identifiers": len(truth),
        "recall": len(right) / len(truth) if truth else None,
        "precision": len(right) / len(acted) if acted else None,
        "category_right": len(named) / len(right) if right else None,
        "missed": missed,
        "wrongly_taken": wrong,
        "category_wrong": [name for name in right if name not in named],
    }
    for label, chosen in (("honest", True), ("misleading", False)):
        part = [name for name in truth if (name in honest) == chosen]
        found[f"recall_{label}_names"] = sum(name in acted for name in part) / len(part) if part else None
    return found
