"""One HTML file for one result: it opens without a network, ten years from now, and prints.

The drawing libraries (Vega, Vega-Lite) are written into the page; a content security policy in the page forbids every
connection and every script but the two that are named by their hash, so that a hospital's or a study's name can never
run as code, whatever it contains.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from suture.report import tables
from suture.report.figures import figures_of
from suture.report.theme import VEGALITE
from suture.report.words import (
    NO_PRIVACY,
    Result,
    delta,
    epsilon,
    finite,
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
    "hospitals": "How well the model serves each hospital.",
    "hospital_panels": "Each hospital's own patients over the rounds, beside the whole federation.",
    "privacy_utility": "Quality against the privacy spent so far.",
    "hospital_sizes": "How large the hospitals are, and how common the outcome is at each.",
    "histograms": "How the features are distributed.",
    "box_plots": "How the hospitals differ in each feature.",
    "categories": "How the hospitals differ in their categories.",
}

_DRAW = """
"use strict";
(function () {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  function download(view, kind, name, button) {
    view.toImageURL(kind, kind === "png" ? 2 : 1).then(function (url) {
      const link = document.createElement("a");
      link.href = url; link.download = name + "." + kind;
      document.body.appendChild(link); link.click(); link.remove();
    }).catch(function (error) { button.textContent = "Could not write the file: " + error; });
  }
  for (const figure of document.querySelectorAll("figure[data-figure]")) {
    const name = figure.dataset.figure, box = figure.querySelector(".chart");
    vegaEmbed(box, figures[name], {actions: false, renderer: "svg", ast: true}).then(function (drawn) {
      figure.dataset.drawn = "yes";
      for (const button of figure.querySelectorAll("button[data-kind]")) {
        button.disabled = false;
        button.addEventListener("click", function () {
          download(drawn.view, button.dataset.kind, figure.dataset.file, button);
        });
      }
    }).catch(function (error) {
      figure.dataset.drawn = "no"; box.textContent = "Could not draw this figure: " + error;
    });
  }
})();
"""


def write(result: Result, path: Path) -> None:
    """Write the page; whoever has the old one open never sees half of the new one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write({"name": "demo", "methods": {"fedavg": {"label": "FedAvg"}}}, Path(folder) / "report.html")
    ...     "No differential privacy" in (Path(folder) / "report.html").read_text(encoding="utf-8")
    True
    """
    part_written = path.with_name(path.name + ".part")
    part_written.write_text(render(result), encoding="utf-8", newline="\n")
    os.replace(part_written, path)


def render(result: Result) -> str:
    """The page as text.

    >>> "<script>alert" in render({"name": "<script>alert(1)</script>", "methods": {"a": {}}})
    False
    """
    clean = tidy(result)
    charts = {name: chart.to_dict(validate=False) for name, chart in figures_of(clean).items()}
    libraries, draw = _libraries(), Markup(_DRAW)
    environment = Environment(
        loader=PackageLoader("suture", "report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    style = environment.get_template("page.css").render()
    return environment.get_template("page.html").render(
        **_context(clean),
        figures=_figures(clean, charts),
        specs=_script_safe(charts),
        libraries=libraries,
        draw=draw,
        style=Markup(style),
        policy=f"default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; "
        f"script-src '{_digest(libraries)}' '{_digest(draw)}'",
    )


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
        "warnings": [*(str(w) for w in result.get("warnings") or []), *_own_warnings(result)],
        "quality": tables.quality(result, tables.QUALITY, "Quality on held-out patients of all hospitals"),
        "care": tables.quality(result, tables.CARE, "Clinical threshold, calibration and loss"),
        "cost": tables.cost(result),
        "significance": tables.significance(result),
        "hospital_table": tables.hospital_metrics(result),
        "hospital_count": len(hospitals(result)),
        "subgroups": tables.subgroups(result),
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
        ("Command", str(result.get("command") or "")),
        ("Result format", str(result.get("format") or "")),
    ]
    return [(name, value) for name, value in facts if value]


def _figures(result: Result, charts: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    study = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in str(result.get("name", "")))
    study = study.strip("-")[:40] or "study"
    return {name: {"caption": CAPTIONS[name], "file": f"{study}-{name.replace('_', '-')}"} for name in charts}


def _script_safe(value: Any) -> Markup:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)


@functools.lru_cache(maxsize=1)
def _libraries() -> Markup:
    text = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", VEGALITE)
    return Markup(text.replace("\r\n", "\n").replace("</script", "<\\/script"))


def _digest(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
