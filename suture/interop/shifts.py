"""The shift report of a finished run, or of profiles taken before one, as plain data for the page and the console.

What is used: the affine layers that sites showed (method.share_layers), with the paper's marks; the profiles of the
columns, with tests; and the sign of f_out's scale. Under DP the layers carry the training's noise, and profiles exist
only where a site released one and paid for it (`suture interop --before --epsilon`).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture.errors import RunError
from suture.interop.evidence import ALPHA, TOLERANCE, flags, tests_made
from suture.interop.findings import Finding, findings
from suture.interop.marks import circles, crosses, largest_deviation
from suture.site.profile import Profile
from suture.site.schema import Schema

Layer = dict[str, Any]


def of_run(result: Mapping[str, Any], model: Mapping[str, NDArray[Any]], *, pseudonyms: bool = False) -> dict[str, Any]:
    """The report of a run whose lead method is iFedAvg and whose sites show their layers."""
    method = result["study"]["method"]
    if result["method"] != "ifedavg" or "layers" not in model:
        raise RunError(
            'this run shows no layers: it needs method.name = "ifedavg" with method.share_layers = true under [method]; '
            "run the study again with them"
        )
    schema = Schema.parse(result["model"]["schema"])
    sites = [str(site) for site in model["sites"].tolist()]
    layers = _layers(model["layers"], method, result["model"], schema)
    profiles = {site: Profile.from_dict(found) for site, found in (result.get("profiles") or {}).items()}
    found = findings(flags(profiles, schema), schema, profiles) if len(profiles) >= 3 else []
    found = _with_turned(found, sites, layers)
    private = bool(result["privacy"].get("protected"))
    notices = []
    if largest_deviation(len(sites)) <= 2:
        notices.append(
            f"With {len(sites)} hospitals the paper's “O” cannot occur: one of {len(sites)} values is never more than 2 "
            "standard deviations from their mean. The tests on this page do not depend on it."
        )
    if private:
        notices.append("The layers were trained under differential privacy: part of what they show is noise.")
    if not profiles:
        notices.append("No profile of the columns is part of this run, so nothing but the layers was looked at.")
    return _report(
        str(result["name"]), sites, schema, found, layers, notices, len(profiles), private,
        _classes(result["model"]), pseudonyms, "suture interop RUN",
    )  # fmt: skip


def of_profiles(
    name: str, profiles: Mapping[str, Profile], schema: Schema, *, epsilon: float | None, delta: float, classes: int
) -> dict[str, Any]:
    """The report of profiles alone, taken before training; ``epsilon`` None says that they are exact."""
    found = findings(flags(profiles, schema), schema, profiles)
    notices = []
    if len(profiles) < 3:
        notices.append("Fewer than three sites: there are no others to compare with.")
    if epsilon is None:
        notices.append("Profiles are exact: this is for the eyes of those who may see the rows themselves.")
    else:
        notices.append(
            f"Each site released its profile once with epsilon {epsilon:g}, delta {delta:g}, charged to its ledger. Noise "
            "hides small differences, more so at small sites; values outside the bounds count as the bound."
        )
    return _report(
        name, list(profiles), schema, found, {}, notices, len(profiles), epsilon is not None, classes, False,
        "suture interop --before STUDY",
    )  # fmt: skip


def _classes(model: Mapping[str, Any]) -> int:
    classes = model.get("classes", 2)
    return len(classes) if isinstance(classes, list) else int(classes)


def _about(columns: Sequence[str], schema: Schema) -> list[str]:
    """Each encoded column in words, where the schema has any: "ca" alone tells a reader of the map nothing."""
    words = {name: feature.label for name, feature in schema.features.items() if feature.label}
    found = []
    for column in columns:
        name = column if column in words else column.partition(" =")[0].partition(" (missing)")[0]
        found.append(words[name] + column.removeprefix(name) if name in words else "")
    return found


def _layers(
    flat: NDArray[Any], method: Mapping[str, Any], model: Mapping[str, Any], schema: Schema
) -> dict[str, Layer]:
    """The layers by name, with the paper's marks."""
    features, classes = list(model["features"]), model.get("classes", 2)
    labels = [f"class {c}" for c in range(classes)] if isinstance(classes, int) else list(classes)
    found: dict[str, Layer] = {}
    at = 0
    for end, kind, columns in (("in", method["input_layer"], features), ("out", method["output_layer"], labels)):
        if kind == "none":
            continue
        for letter in ("b", "w"):
            values = np.asarray(flat[:, at : at + len(columns)], np.float64)
            at += len(columns)
            found[f"{letter}_{end}"] = {
                "columns": columns,
                "about": _about(columns, schema) if end == "in" else [""] * len(columns),
                "values": np.round(values, 6).tolist(),
                "circles": circles(values).astype(int).tolist(),
                "crosses": crosses(values).astype(int).tolist(),
            }
    return found


def _with_turned(found: list[Finding], sites: Sequence[str], layers: Mapping[str, Layer]) -> list[Finding]:
    """A finding for every site whose f_out turned negative, unless its profile said so already."""
    if "w_out" not in layers:
        return found
    known = {item.site for item in found if item.kind == "outcome turned round"}
    extra = [
        Finding(
            site, "outcome", "outcome", "outcome turned round", "reversed",
            f"The output layer's scale became negative ({min(values):.2f}): the shared model is right here when reversed.",
            0.0, "a sign, without a false-alarm rate of its own",
            "The outcome is probably coded the other way here: 0 for what others call 1.",
            "What does 1 stand for in your outcome column?",
        )
        for site, values in zip(sites, layers["w_out"]["values"], strict=True)
        if min(values) < 0 and site not in known
    ]  # fmt: skip
    return [*extra, *found]


def _learned(item: Finding, sites: Sequence[str], layers: Mapping[str, Layer]) -> str:
    """What the input layer of this site learned for this feature, most unusual column first."""
    if "w_in" not in layers or item.site not in sites:
        return ""
    row, parts = list(sites).index(item.site), []
    for j, column in enumerate(layers["w_in"]["columns"]):
        if column != item.feature and not column.startswith((f"{item.feature} =", f"{item.feature} (missing)")):
            continue
        b, w = layers["b_in"]["values"][row][j], layers["w_in"]["values"][row][j]
        marks = [name for name in ("b_in", "w_in") if layers[name]["circles"][row][j]]
        parts.append((abs(b) + abs(w - 1), f"{column}: b = {b:+.2f}, w = {w:.2f}{' (O)' if marks else ''}"))
    if not parts:
        return ""
    return "The model's correction: " + "; ".join(text for _, text in sorted(parts, reverse=True)[:2]) + "."


def _report(
    name: str, sites: Sequence[str], schema: Schema, found: Sequence[Finding], layers: Mapping[str, Layer],
    notices: Sequence[str], profiles: int, private: bool, classes: int, pseudonyms: bool, command: str,
) -> dict[str, Any]:  # fmt: skip
    shown = _pseudonyms(sites) if pseudonyms else {site: site for site in sites}
    items = [{**item.to_dict(), "site": shown[item.site], "learned": _learned(item, sites, layers)} for item in found]
    rows = list(range(len(sites)))
    if pseudonyms:
        rows.sort(key=lambda i: shown[sites[i]])
        items.sort(key=lambda item: item["site"])
    ordered = {
        key: {**layer, **{part: [layer[part][i] for i in rows] for part in ("values", "circles")}}
        for key, layer in layers.items()
    }
    where = len({item["site"] for item in items})
    headline = (
        f"{len(items):,} {'question' if len(items) == 1 else 'questions'} to {where} of {len(sites)} hospitals."
        if items
        else f"No question to any of {len(sites)} hospitals."
    )
    count = tests_made(len(sites), schema, classes)
    method = [
        "Each figure of a hospital's column is compared with the median of the other hospitals', within classes where the "
        "outcome matters. A difference is reported only where it is beyond the tolerance of the table below by more than "
        f"chance allows: with {count:,} tests corrected for (Bonferroni), the probability of one false report or more is "
        f"at most {ALPHA:g} if all hospitals are within the tolerances, as far as estimates are close to normal.",
        "What a difference means is a rule of thumb, for the hospital to confirm. A hospital that differs is not wrong: a "
        "different population is a reason to keep it in, a fault in recording one to correct it first.",
    ]
    if layers:
        method.append(
            "The marks on the maps are the paper's (Roschewitz et al., arXiv:2107.06580, section 5.2). They carry no "
            "false-alarm rate: they point to where to look, and the tests say what to rely on."
        )
    return {
        "name": name,
        "sites": [shown[sites[i]] for i in rows],
        "pseudonyms": pseudonyms,
        "headline": headline,
        "banner": "" if private else "Exact figures of rows are in this report: it is not covered by privacy.",
        "notices": list(notices),
        "nothing": "No difference beyond the tolerances." if profiles >= 3 else "Nothing was tested.",
        "findings": items,
        "layers": ordered,
        "alpha": ALPHA,
        "tests": count,
        "tolerance": {key: value for key, value in TOLERANCE.items() if key != "flip"} if profiles else {},
        "method": method if profiles else method[2:],
        "command": command,
    }


def _pseudonyms(sites: Sequence[str]) -> dict[str, str]:
    """Names that say nothing, in an order that nobody can repeat."""
    order = list(sites)
    secrets.SystemRandom().shuffle(order)
    return {site: f"hospital {i + 1:02d}" for i, site in enumerate(order)}
