"""One HTML file for one result: it opens without a network, ten years from now, and prints (see `shell`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from suture.report import notes, tables
from suture.report.figures import figures_of
from suture.report.shell import fill, put
from suture.report.words import (
    NO_PRIVACY,
    Result,
    delta,
    epsilon,
    finite,
    gathered,
    headline,
    hospitals,
    labels,
    moment,
    part,
    primary,
    protected,
    tidy,
    unprotected,
)

CAPTIONS = {
    "comparison": "How the methods compare on held-out patients.",
    "roc": "The further a curve lies to the upper left, the better the model tells patients apart.",
    "calibration": "Whether predicted risks come true: points below the dashed line are predicted too high.",
    "convergence": "How quality develops over the rounds of the federation.",
    "fairness": "The share of each group called positive over the rounds: lines that meet mean parity.",
    "hospitals": "How well the model serves each hospital.",
    "hospital_panels": "Each hospital's own patients over the rounds, beside the whole federation.",
    "privacy_utility": "Quality against the privacy spent so far.",
    "hospital_sizes": "How large the hospitals are, and how common the outcome is at each.",
    "histograms": "How the features are distributed.",
    "box_plots": "How the hospitals differ in each feature.",
    "categories": "How the hospitals differ in their categories.",
}


def write(result: Result, path: Path) -> None:
    """Write the page; whoever has the old one open never sees half of the new one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write({"name": "demo", "methods": {"fedavg": {"label": "FedAvg"}}}, Path(folder) / "report.html")
    ...     "No differential privacy" in (Path(folder) / "report.html").read_text(encoding="utf-8")
    True
    """
    put(render(result), path)


def render(result: Result) -> str:
    """The page as text.

    >>> "<script>alert" in render({"name": "<script>alert(1)</script>", "methods": {"a": {}}})
    False
    """
    clean = tidy(result)
    charts = figures_of(clean)
    return fill("page.html", _context(clean), charts, CAPTIONS, str(clean.get("name", "")))


def _context(result: Result) -> dict[str, Any]:
    key = primary(result)
    method = part(result, "methods", key)
    open_methods = unprotected(result)
    return {
        "name": str(result.get("name", "")),
        "outcome": str(result.get("outcome") or ""),
        "created": moment(result["created"]) if result.get("created") else "",
        "headline": headline(result),
        "banner": _banner(result, open_methods),
        "warnings": [*_own_warnings(result), *notes.gathered_notes(map(str, result.get("warnings") or []))],
        "shown_warnings": notes.SHOWN,
        "quality": tables.quality(result, tables.QUALITY, "Quality on held-out patients of all hospitals"),
        "care": tables.quality(result, tables.CARE, "Clinical threshold, calibration and loss"),
        "cost": tables.cost(result),
        "significance": tables.significance(result),
        "hospital_table": tables.hospital_metrics(result),
        "hospital_count": len(hospitals(result)),
        "subgroups": tables.subgroups(result),
        "gaps": tables.gaps(result),
        "stopped": [f"{label}: {why}" for k, label in labels(result).items()
                    if (why := part(result, "methods", k).get("stopped"))],
        "method_label": labels(result).get(key, key),
        "protected": protected(method),
        "promises": tables.promises(result),
        **_privacy_words(part(method, "privacy")),
        "source": _source(result),
        "references": [_reference(r) for r in result.get("references") or [] if isinstance(r, Mapping)],
        "footer": _footer(result),
        "no_privacy": NO_PRIVACY,
    }  # fmt: skip


def _privacy_words(privacy: Mapping[str, Any]) -> dict[str, Any]:
    facts = [
        ("Unit of privacy", privacy.get("unit")),
        ("Neighbouring data", privacy.get("neighbours")),
        ("Sampling", privacy.get("sampling")),
        ("Accountant", str(privacy.get("accountant") or "").upper()),
        ("Budget", f"ε = {privacy['budget']:g}" if finite(privacy.get("budget")) is not None else ""),
        ("Proven, worst hospital", f"ε = {epsilon(privacy.get('epsilon'))} at δ = {delta(privacy.get('delta'))}"),
        ("Source of noise", privacy.get("noise_source")),
    ]
    public, not_covered = ([str(item) for item in privacy.get(k) or []] for k in ("public", "not_covered"))
    # A paragraph that only strings together the items of a list below it is left to the list.
    paragraphs = [
        p.strip()
        for p in str(privacy.get("statement") or "").split("\n\n")
        if p.strip() and not any(items and _only_lists(p, items) for items in (public, not_covered))
    ]
    return {
        "facts": [(name, str(value)) for name, value in facts if value],
        "statement": paragraphs,
        "public": public,
        "not_covered": not_covered,
    }


def _only_lists(paragraph: str, items: list[str]) -> bool:
    lead, _, rest = paragraph.strip().partition(": ")
    return len(lead) < 40 and rest.rstrip(".") == "; ".join(items)


def _banner(result: Result, open_methods: list[str]) -> str:
    if not open_methods:
        return ""
    if len(open_methods) == len(part(result, "methods")):
        return NO_PRIVACY
    names = ", ".join(open_methods)
    return f"Some methods ran without differential privacy: {names}. Their results are not a private alternative."


def _own_warnings(result: Result) -> list[str]:
    found = []
    for key, label in labels(result).items():
        privacy = part(result, "methods", key, "privacy")
        spent, budget = finite(privacy.get("epsilon")), finite(privacy.get("budget"))
        if spent is not None and budget is not None and spent > budget * (1.0 + 1e-9):
            found.append(f"{label}: the proven ε of {epsilon(spent)} is above the study's budget of {budget:g}.")
    return found


def _source(result: Result) -> str:
    return {
        "generated": "These patients are generated by a program; no real patient is described.",
        "files": "These figures describe the rows of the hospitals exactly. They are not covered by privacy.",
    }.get(str(part(result, "cohort").get("source") or ""), "")


def _reference(reference: Mapping[str, Any]) -> str:
    authors, year = str(reference.get("authors") or ""), reference.get("year")
    lead = f"{authors} ({year})." if authors and year else f"{authors or year}." if authors or year else ""
    where = f" {reference['where']}." if reference.get("where") else ""
    return f"{lead} {reference.get('title', '')}.{where}".strip()


def _footer(result: Result) -> list[tuple[str, str]]:
    seeds = [str(s) for s in result.get("seeds") or []]
    facts = [
        ("Suture", str(result.get("suture") or "")),
        ("Seed", str(result["seed"]) if result.get("seed") is not None else ""),
        ("Seeds averaged over", ", ".join(seeds) if len(seeds) > 1 else ""),
        ("Updates", gathered(part(result, "methods", primary(result)).get("protection"))),
        ("Command", str(result.get("command") or "")),
        ("Result format", str(result.get("format") or "")),
    ]
    return [(name, value) for name, value in facts if value]
