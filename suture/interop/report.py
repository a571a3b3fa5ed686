"""`suture interop`: the report of a finished run, or of profiles taken before one: its content as
plain data (``interop.json``), its page, and its maps.

What is used: the affine layers that sites showed (method.share_layers), with the paper's marks; the
profiles of the columns, with tests; and the sign of f_out's scale. Under DP the layers carry the
training's noise, and profiles exist only where a site released one and paid for it (`suture interop
--before --epsilon`). Nothing here reads a row.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from suture.errors import RunError
from suture.interop.evidence import (
    ALPHA,
    TEXTS,
    TOLERANCE,
    Finding,
    circles,
    crosses,
    findings,
    flags,
    largest_deviation,
    tests_made,
    turned_round,
)
from suture.methods.registry import declared, readable
from suture.privacy.files import write_whole
from suture.privacy.software import VERSION
from suture.report.figures import heat_map
from suture.report.shell import fill, put, script_safe
from suture.report.theme import save
from suture.report.words import Table, plain, tidy
from suture.schema.table import Schema
from suture.site.profile import Profile

Report = dict[str, Any]
"""The content of ``interop.json``."""
SCRIPT = (files("suture.report") / "heatmap.js").read_text(encoding="utf-8")
"""Draws maps that stay legible with hundreds of features. It holds no text of a study: names and
numbers come as JSON, and are only ever written as text."""


class Layer(TypedDict):
    """One layer of every site: values and marks, sites x columns."""

    columns: list[str]
    about: list[str]
    values: list[list[float]]
    circles: list[list[int]]
    crosses: list[int]


WIDE = 60
"""A map of more columns begins with those furthest from neutral: with many hospitals nearly every
column has a mark."""
FOLD, MOST_FINDINGS = 60, 40
"""With more findings than this, each hospital is folded to one line; and the most that are shown of
one hospital."""


def of_run(
    result: Mapping[str, Any], model: Mapping[str, NDArray[Any]], *, pseudonyms: bool = False
) -> Report:
    """The report of a run whose leading method has layers that its sites show."""
    if declared(result["method"]).model != "layers" or "layers" not in model:
        raise RunError(
            f'this run shows no layers: it needs method.name = "{readable("layers")}" with '
            "method.share_layers = true under [method]; run the study again with them"
        )
    schema = Schema.parse(result["model"]["schema"])
    classes = result["model"].get("classes", 2)
    labels = [f"class {c}" for c in range(classes)] if isinstance(classes, int) else list(classes)
    sites = [str(site) for site in model["sites"].tolist()]
    columns = {"in": list(result["model"]["features"]), "out": labels}
    layers = _layers(model["layers"], result["study"]["method"], columns, schema)
    profiles = {
        site: Profile.from_dict(found) for site, found in (result.get("profiles") or {}).items()
    }
    found = findings(flags(profiles, schema), schema, profiles) if len(profiles) >= 3 else []
    private = bool(result["privacy"].get("protected"))
    notices = []
    if largest_deviation(len(sites)) <= 2:
        notices.append(
            f"With {len(sites)} hospitals the paper's “O” cannot occur: one of {len(sites)} values "
            "is never more than 2 standard deviations from their mean. The tests on this page do "
            "not depend on it."
        )
    if private:
        notices.append(
            "The layers were trained under differential privacy: part of what they show is noise."
        )
    if not profiles:
        notices.append(
            "No profile of the columns is part of this run, so only the layers were looked at."
        )
    return _report(
        str(result["name"]), sites, schema, _with_turned(found, sites, layers), notices,
        classes=len(labels), profiles=len(profiles), private=private, command="suture interop RUN",
        layers=layers, pseudonyms=pseudonyms,
    )  # fmt: skip


def of_profiles(
    name: str,
    profiles: Mapping[str, Profile],
    schema: Schema,
    *,
    epsilon: float | None,
    delta: float,
    classes: int,
) -> Report:
    """The report of profiles alone, taken before training; without ``epsilon`` they are exact."""
    notices = []
    if len(profiles) < 3:
        notices.append("Fewer than three sites: there are no others to compare with.")
    if epsilon is None:
        notices.append(
            "Profiles are exact: this is for the eyes of those who may see the rows themselves."
        )
    else:
        notices.append(
            f"Each site released its profile once with epsilon {epsilon:g}, delta {delta:g}, "
            "charged to its ledger. Noise hides small differences, more so at small sites; values "
            "outside the bounds count as the bound."
        )
    found = findings(flags(profiles, schema), schema, profiles)
    return _report(
        name, list(profiles), schema, found, notices, classes=classes, profiles=len(profiles),
        private=epsilon is not None, command="suture interop --before STUDY",
    )  # fmt: skip


def _layers(
    flat: NDArray[np.float32],
    method: Mapping[str, str],
    columns: Mapping[str, list[str]],
    schema: Schema,
) -> dict[str, Layer]:
    """The layers by name, with the paper's marks."""
    words = {name: feature.label for name, feature in schema.features.items() if feature.label}

    def about(column: str) -> str:
        """A column in words, where the schema has any: "ca" alone tells a reader of the map
        nothing."""
        name = column if column in words else column.partition(" =")[0].partition(" (missing)")[0]
        return words[name] + column.removeprefix(name) if name in words else ""

    found: dict[str, Layer] = {}
    at = 0
    for end, setting in (("in", "input_layer"), ("out", "output_layer")):
        if method[setting] == "none":
            continue
        names = columns[end]
        for letter in ("b", "w"):
            values = np.asarray(flat[:, at : at + len(names)], np.float64)
            at += len(names)
            found[f"{letter}_{end}"] = {
                "columns": names,
                "about": [about(name) if end == "in" else "" for name in names],
                "values": np.round(values, 6).tolist(),
                "circles": circles(values).astype(int).tolist(),
                "crosses": crosses(values).astype(int).tolist(),
            }
    return found


def _with_turned(
    found: list[Finding], sites: Sequence[str], layers: Mapping[str, Layer]
) -> list[Finding]:
    """A finding for every site whose f_out turned negative, unless its profile said so already."""
    if "w_out" not in layers:
        return found
    known = {item.site for item in found if item.kind == "outcome turned round"}
    extra = []
    for site, values in zip(sites, layers["w_out"]["values"], strict=True):
        if min(values) < 0 and site not in known:
            words = turned_round(
                f"The output layer's scale became negative ({min(values):.2f}): the shared model "
                "is right here when reversed."
            )
            certainty = "a sign, without a false-alarm rate of its own"
            extra.append(Finding.of((site, "outcome", "outcome"), words, 0.0, certainty))
    return [*extra, *found]


def _learned(item: Finding, sites: Sequence[str], layers: Mapping[str, Layer]) -> str:
    """What the input layer of this site learned for this feature, most unusual column first."""
    if "w_in" not in layers or item.site not in sites:
        return ""
    row, shifts, scales = list(sites).index(item.site), layers["b_in"], layers["w_in"]
    parts = []
    for j, column in enumerate(scales["columns"]):
        if column == item.feature or column.startswith(
            (f"{item.feature} =", f"{item.feature} (missing)")
        ):
            b, w = shifts["values"][row][j], scales["values"][row][j]
            mark = " (O)" if shifts["circles"][row][j] or scales["circles"][row][j] else ""
            parts.append((abs(b) + abs(w - 1), f"{column}: b = {b:+.2f}, w = {w:.2f}{mark}"))
    if not parts:
        return ""
    texts = [text for _, text in sorted(parts, reverse=True)[:2]]
    return f"The model's correction: {'; '.join(texts)}."


def _report(
    name: str,
    sites: list[str],
    schema: Schema,
    found: Sequence[Finding],
    notices: list[str],
    *,
    classes: int,
    profiles: int,
    private: bool,
    command: str,
    layers: Mapping[str, Layer] | None = None,
    pseudonyms: bool = False,
) -> Report:
    layers = layers or {}
    shown = {site: site for site in sites}
    if pseudonyms:  # names that say nothing, in an order that nobody can repeat
        order = secrets.SystemRandom().sample(sites, len(sites))
        shown = {site: f"hospital {i + 1:02d}" for i, site in enumerate(order)}
    items = [
        {**asdict(item), "site": shown[item.site], "learned": _learned(item, sites, layers)}
        for item in found
    ]
    rows = list(range(len(sites)))
    if pseudonyms:
        rows.sort(key=lambda i: shown[sites[i]])
        items.sort(key=lambda item: str(item["site"]))
    ordered = {
        key: {
            **layer,
            "values": [layer["values"][i] for i in rows],
            "circles": [layer["circles"][i] for i in rows],
        }
        for key, layer in layers.items()
    }
    where, hospitals = len({item["site"] for item in items}), f"{len(sites)} hospitals."
    headline = f"No question to any of {hospitals}"
    if items:
        noun = "question" if len(items) == 1 else "questions"
        headline = f"{len(items):,} {noun} to {where} of {hospitals}"
    count = tests_made(len(sites), schema, classes)
    tested = (
        "Each figure of a hospital's column is compared with the median of the other hospitals', "
        "within classes where the outcome matters. A difference is reported only where it is "
        "beyond the tolerance of the table below by more than chance allows: with "
        f"{count:,} tests corrected for (Bonferroni), the probability of one false report or more "
        f"is at most {ALPHA:g} if all hospitals are within the tolerances, as far as estimates are "
        "close to normal."
    )
    exact = "Exact figures of rows are in this report: it is not covered by privacy."
    nothing = "No difference beyond the tolerances." if profiles >= 3 else "Nothing was tested."
    tolerance = {key: value for key, value in TOLERANCE.items() if key in TEXTS["tests"]}
    return {
        "name": name,
        "sites": [shown[sites[i]] for i in rows],
        "pseudonyms": pseudonyms,
        "headline": headline,
        "banner": "" if private else exact,
        "notices": notices,
        "nothing": nothing,
        "findings": items,
        "layers": ordered,
        "alpha": ALPHA,
        "tests": count,
        "tolerance": tolerance if profiles else {},
        "method": [
            *((tested, TEXTS["meaning"]) if profiles else ()),
            *((TEXTS["marks"],) if layers else ()),
        ],
        "command": command,
    }


def write_report(found: Report, folder: Path) -> list[str]:
    """Write ``interop.html``, ``interop.json`` and a PNG of every map; returns the file names."""
    folder.mkdir(parents=True, exist_ok=True)
    page, data = folder / "interop.html", folder / "interop.json"
    put(render(found), page)
    write_whole(data, json.dumps(found, indent=1, allow_nan=False).encode())
    written = [page, data]
    for name, made in heat_maps(tidy(found)).items():
        written.append(folder / f"interop-heat-{name.replace('_', '-')}.png")
        save(heat_map(made, TEXTS["headings"][name][0]), written[-1])
    return [str(path) for path in written]


def heat_maps(found: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The data of every map that the sites' layers allow: rows are hospitals, columns features.

    Colour is the distance from the neutral value (0 for shifts, 1 for scales) and ends at its 99 %
    quantile, so that no wild cell blanks the rest.
    """
    maps = {}
    for name, layer in found["layers"].items():
        values, neutral = np.array(layer["values"], np.float64), float(name.startswith("w"))
        away = np.abs(values - neutral)
        reach = float(np.quantile(away, 0.99)) if away.size else 0.0
        maps[name] = {
            "title": name[0],
            "rows": list(found["sites"]),
            "columns": list(layer["columns"]),
            "about": list(layer.get("about", ())) or [""] * len(layer["columns"]),
            "values": np.round(values, 5).tolist(),
            "circles": np.array(layer["circles"], int).tolist(),
            "crosses": np.array(layer["crosses"], int).tolist(),
            "neutral": neutral,
            "reach": max(reach, 1e-6),
        }
    return maps


def render(found: Mapping[str, object]) -> str:
    """The page as text."""
    clean: Report = tidy(dict(found))
    maps = heat_maps(clean)
    groups: dict[str, list[dict[str, object]]] = {}
    for item in clean["findings"]:
        minor = item["kind"] == "recorded more often"
        groups.setdefault(item["site"], []).append({**item, "minor": minor})
    shown = []
    for name, made in maps.items():
        wide, (heading, words) = len(made["columns"]) > WIDE, TEXTS["headings"][name]
        marked = wide and (any(made["crosses"]) or any(map(any, made["circles"])))
        about = {"name": name, "heading": heading, "words": words}
        shown.append({**about, "marked": marked, "wide": wide})
    context = {
        **{key: clean[key] for key in ("name", "headline", "banner", "notices", "nothing")},
        "findings": list(groups.items()),
        "folded": len(clean["findings"]) > FOLD,
        "most": MOST_FINDINGS,
        "output": _output_table(clean),
        "maps": shown,
        "method": clean["method"],
        "tolerances": _tolerance_table(clean["tolerance"]),
        "footer": [("Suture", VERSION), ("Command", clean["command"])],
        "heat_data": script_safe(maps),
    }
    return fill("interop.html", context, {}, {}, str(clean["name"]), SCRIPT if maps else "")


def _output_table(found: Report) -> Table | None:
    """f_out of every hospital, where there is one: the place where a turned outcome shows."""
    layer = found["layers"].get("w_out")
    if layer is None:
        return None
    rows = [
        (site, *(f"{value:.2f}" for value in values), "turned round" if min(values) < 0 else "")
        for site, values in zip(found["sites"], layer["values"], strict=True)
    ]
    return plain(
        "What each hospital's output layer learned: w",
        ("Hospital", *layer["columns"], "Outcome"),
        rows,
        "A negative scale turns the outcome round: the hospital's labels run against everybody "
        "else's.",
    )


def _tolerance_table(tolerance: Mapping[str, float]) -> Table | None:
    rows = [(TEXTS["tests"][name], f"{value:g}") for name, value in tolerance.items()]
    caption = "What counts as an ordinary difference between hospitals"
    return plain(caption, ("Figure", "Tolerance"), rows) if rows else None
