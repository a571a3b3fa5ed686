"""One HTML file for one result: it opens without a network, ten years from now, and prints (see
`shell`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from suture.report import words
from suture.report.figures import figures_of
from suture.report.shell import fill, put
from suture.schema.record import Record, Statement


def write(result: Mapping[str, object], path: Path) -> None:
    """Write the page; whoever has the old one open never sees half of the new one."""
    put(render(result), path)


def render(result: Mapping[str, object]) -> str:
    """The page as text."""
    whole = words.complete(result)
    return fill(
        "page.html", _context(whole), figures_of(whole), words.TEXTS["captions"], whole["name"]
    )


def _context(result: Record) -> dict[str, object]:
    method, names = words.primary(result), words.labels(result)
    stops = {names[key]: found["stopped"] for key, found in result["methods"].items()}
    quality = "Quality on held-out patients of all hospitals"
    return {
        "name": result["name"],
        "outcome": result["outcome"],
        "created": words.moment(result["created"]) if result["created"] else "",
        "headline": words.headline(result),
        "banner": " ".join(
            filter(
                None,
                (result["release"]["words"], words.unchecked(result), _unprotected_words(result)),
            )
        ),
        "warnings": [*_overspent(result), *words.merged_notes(map(str, result["warnings"]))],
        "shown_warnings": words.SHOWN,
        "quality": words.quality(result, words.QUALITY, quality),
        "care": words.quality(result, words.CARE, "Clinical threshold, calibration and loss"),
        "cost": words.cost(result),
        "significance": words.significance(result),
        "hospital_table": words.hospital_metrics(result),
        "subgroups": words.subgroups(result),
        "gaps": words.gaps(result),
        "stopped": [f"{label}: {why}" for label, why in stops.items() if why],
        "method_label": names.get(result["method"], ""),
        "protected": words.protected(method),
        "promises": words.promises(result),
        **_privacy_words(method["privacy"]),
        "source": words.TEXTS["sources"].get(result["cohort"]["source"], ""),
        "references": [
            f"{found['authors']} ({found['year']}). {found['title']}. {found['where']}."
            for found in result["references"]
        ],
        "footer": _footer(result),
        "no_privacy": words.NO_PRIVACY,
    }


def _privacy_words(privacy: Statement) -> dict[str, object]:
    budget, public, not_covered = privacy["budget"], privacy["public"], privacy["not_covered"]
    proven = f"ε = {words.epsilon(privacy['epsilon'])} at δ = {words.delta(privacy['delta'])}"
    facts = {
        "Unit of privacy": privacy["unit"],
        "Neighbouring data": privacy["neighbours"],
        "Sampling": privacy["sampling"],
        "Accountant": words.ACCOUNTANTS.get(privacy["accountant"] or "", ""),
        "Budget": "" if budget is None else f"ε = {budget:g}",
        "Proven, worst hospital": proven,
        "Source of noise": privacy["noise_source"],
    }
    listed = {"; ".join(items) for items in (public, not_covered) if items}
    paragraphs = []
    for text in filter(None, map(str.strip, privacy["statement"].split("\n\n"))):
        # A paragraph that only strings together the items of a list below it is left to the list.
        lead, _, rest = text.partition(": ")
        if len(lead) >= 40 or rest.rstrip(".") not in listed:
            paragraphs.append(text)
    return {
        "facts": [(name, value) for name, value in facts.items() if value],
        "statement": paragraphs,
        "public": public,
        "not_covered": not_covered,
    }


def _unprotected_words(result: Record) -> str:
    names = words.unprotected(result)
    if not names:
        return ""
    if len(names) == len(result["methods"]):
        return words.NO_PRIVACY
    return (
        f"Some methods ran without differential privacy: {', '.join(names)}. Their results are not "
        "a private alternative."
    )


def _overspent(result: Record) -> list[str]:
    found = []
    for key, label in words.labels(result).items():
        privacy = result["methods"][key]["privacy"]
        spent, budget = privacy["epsilon"], privacy["budget"]
        if spent is not None and budget is not None and spent > budget * (1.0 + 1e-9):
            above = f"is above the study's budget of {budget:g}."
            found.append(f"{label}: the proven ε of {words.epsilon(spent)} {above}")
    return found


def _footer(result: Record) -> list[tuple[str, str]]:
    seeds = [str(seed) for seed in result["seeds"]]
    facts = {
        "Suture": result["suture"],
        "Seed": "" if result["seed"] is None else str(result["seed"]),
        "Seeds averaged over": ", ".join(seeds) if len(seeds) > 1 else "",
        "Updates": words.combined(words.primary(result)["protection"]),
        "Tables signed as ready": words.signers(result),
        "Command": result["command"],
        "Result format": str(result["format"]),
    }
    return [(name, value) for name, value in facts.items() if value]
