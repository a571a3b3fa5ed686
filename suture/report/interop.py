"""The interoperability page and its figures, from the plain content of ``interop.json`` (see `suture.interop.shifts`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from suture import __version__
from suture.report.heatmap import SCRIPT, heat, static
from suture.report.shell import fill, put, script_safe
from suture.report.tables import Cell, Table
from suture.report.words import tidy

HEADINGS = {
    "b_in": (
        "Shifts before the network: b",
        "Added to a column; the sign says in which direction a hospital's values are moved.",
    ),
    "w_in": ("Scales before the network: w", "Multiplies a column; below 1 the column counts less here, above 1 more."),
    "b_out": ("Shifts after the network: b", "Added to the score of each class."),
    "w_out": (
        "Scales after the network: w",
        "Multiplies the score of each class; below 0 the outcome is turned round.",
    ),
}
WIDE = 60
"""A map of more columns begins with those furthest from neutral: with many hospitals nearly every column has a mark."""
FOLD, MOST_FINDINGS = 60, 40
"""With more findings than this, hospitals are folded to a line each; and the most that are shown of one hospital."""
TESTS = {
    "recorded": "Share of patients with a value",
    "recorded by outcome": "The same, with the outcome minus without",
    "mean": "Mean within a class, in standard deviations of the others",
    "spread": "Log of the standard deviation (0.405 is a factor of 1.5)",
    "tie": "Difference between the classes, in standard deviations",
}


def heat_maps(found: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The data of every map that the sites' layers allow."""
    maps = {}
    for name, layer in found["layers"].items():
        values = np.array(layer["values"], np.float64)
        maps[name] = heat(
            name[0], found["sites"], layer["columns"], values, np.array(layer["circles"], bool),
            np.array(layer["crosses"], bool), float(name.startswith("w")), layer.get("about", ()),
        )  # fmt: skip
    return maps


def figures(found: Mapping[str, Any]) -> dict[str, Any]:
    """Every map as a figure for print."""
    return {f"heat_{name}": static(made, HEADINGS[name][0]) for name, made in heat_maps(tidy(found)).items()}


def write(found: Mapping[str, Any], path: Path) -> None:
    """Write the page whole."""
    put(render(found), path)


def render(found: Mapping[str, Any]) -> str:
    """The page as text.

    >>> page = render({"name": "<b>", "sites": [], "layers": {}, "findings": [], "notices": [], "headline": "none",
    ...     "banner": "", "method": [], "tolerance": {}, "nothing": "Nothing.", "command": "suture interop"})
    >>> "<b>: interop" in page, "&lt;b&gt;" in page
    (False, True)
    """
    clean = tidy(found)
    maps = heat_maps(clean)
    groups: dict[str, list[dict[str, Any]]] = {}
    for item in clean["findings"]:
        minor = item["kind"] == "recorded more often"
        groups.setdefault(item["site"], []).append({**item, "minor": minor})
    context = {
        "name": clean["name"],
        "headline": clean["headline"],
        "banner": clean["banner"],
        "notices": clean["notices"],
        "nothing": clean["nothing"],
        "findings": list(groups.items()),
        "folded": len(clean["findings"]) > FOLD,
        "most": MOST_FINDINGS,
        "output": _output(clean),
        "maps": [
            {
                "name": name,
                "heading": HEADINGS[name][0],
                "words": HEADINGS[name][1],
                "marked": len(made["columns"]) > WIDE and (any(made["crosses"]) or any(map(any, made["circles"]))),
                "wide": len(made["columns"]) > WIDE,
            }
            for name, made in maps.items()
        ],
        "method": clean["method"],
        "tolerances": _tolerances(clean["tolerance"]),
        "footer": [("Suture", __version__), ("Command", clean["command"])],
        "heat_data": script_safe(maps),
    }
    return fill("interop.html", context, {}, {}, str(clean["name"]), SCRIPT if maps else "")


def _output(found: Mapping[str, Any]) -> Table | None:
    """f_out of every hospital, where there is one: the place where a turned outcome shows."""
    layer = found["layers"].get("w_out")
    if layer is None:
        return None
    rows = tuple(
        (Cell(site), *(Cell(f"{value:.2f}") for value in values), Cell("turned round" if min(values) < 0 else ""))
        for site, values in zip(found["sites"], layer["values"], strict=True)
    )
    remark = "A negative scale turns the outcome round: the hospital's labels run against everybody else's."
    return Table(
        "What each hospital's output layer learned: w", ("Hospital", *layer["columns"], "Outcome"), rows, remark
    )


def _tolerances(tolerance: Mapping[str, float]) -> Table | None:
    if not tolerance:
        return None
    rows = tuple((Cell(TESTS[name]), Cell(f"{value:g}")) for name, value in tolerance.items() if name in TESTS)
    return Table("What counts as an ordinary difference between hospitals", ("Figure", "Tolerance"), rows)
