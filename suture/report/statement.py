"""The privacy statement of one site on one page, for a regulator: what was released about its
patients, at what cost.

It is written from the site's verified ledger (`suture.privacy.ledger.overview.overview`) and leaves
the site. So it holds no count of patients and no reason that speaks of one: how many did not
consent, or were erased, stays in the ledger at the site. The page has no script, prints on one
sheet for a handful of studies, and the same template serves the certificate of erasure.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from suture.errors import RunError
from suture.report.shell import fill, put
from suture.report.words import (
    ACCOUNTANTS,
    NONE,
    TEXTS,
    Found,
    delta,
    epsilon,
    finite,
    moment,
    tidy,
)

MOST_ROWS = 12
MOST_REFUSALS = 6


@dataclass(frozen=True)
class Section:
    """A heading, paragraphs, a table (where it has rows), and lists side by side."""

    title: str
    paragraphs: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    rows: Sequence[Sequence[str]] = ()
    remark: str = ""
    lists: tuple[tuple[str, Sequence[str]], ...] = ()


def render(found: Found, *, written: str) -> str:
    """The page as text, from a ledger's overview; ``written`` is the moment of writing."""
    found = tidy(found)
    total, accounts = found["total"], found["accounts"]
    open_ = [item["account"] for item in accounts if item["epsilon"] is None and item["releases"]]
    figures = [
        (epsilon(total["epsilon"]), f"ε spent in all, at δ {delta(total['delta'])}"),
        (f"{found['releases']:,}", "releases since the ledger began"),
        (f"{len({item['study'] for item in accounts}):,}", "studies"),
    ]
    if found["lifetime"] is not None:
        figures.insert(1, (epsilon(found["lifetime"]), "lifetime budget ε, all studies together"))
    warnings = [
        f"No differential privacy for {', '.join(open_)}: nothing limits what those releases "
        "reveal about a patient."
    ]
    period = f"{moment(found['first'])} to {moment(found['last'])}"
    chained = "each chained to the one before; verified when this was written"
    check = (
        "suture ledger verify --home <the site's home>; the last entry's hash must be the one above"
    )
    context: dict[str, object] = {
        "title": f"Privacy statement: {found['site']}",
        "period": period if found["first"] else "no entries yet",
        "headline": _headline(found),
        "warnings": warnings if open_ else [],
        "figures_line": figures,
        "sections": [_studies(accounts), _gate(found), _meaning(total["epsilon"], total["delta"])],
        "footer": [
            ("Written", moment(written)),
            ("Ledger", f"{found['entries']:,} entries, {chained}"),
            ("Last entry", found["head"]),
            ("To check", check),
        ],
    }
    return fill("statement.html", context, {}, {}, found["site"])


def _headline(found: Found) -> str:
    total = found["total"]
    if not found["releases"]:
        return "Nothing computed from patients' records has been released by this site."
    if total["epsilon"] is None:
        return "Some of what this site released carries no privacy guarantee; the table says which."
    bound = f"({epsilon(total['epsilon'])}, {delta(total['delta'])})"
    return (
        f"Everything this site released about its patients is {bound}-differentially private, all "
        "studies together. The unit is the patient, with all of their rows."
    )


def _studies(accounts: Sequence[Found]) -> Section:
    largest = sorted(accounts, key=lambda item: -(finite(item["epsilon"]) or math.inf))
    rows = [
        (item["account"], epsilon(item["epsilon"]) if item["releases"] else "0",
         epsilon(item["budget"]), delta(item["delta"]),
         str(ACCOUNTANTS.get(item["accountant"], item["accountant"])),
         f"{item['releases']:,}", _days(item))
        for item in largest[:MOST_ROWS]
    ]  # fmt: skip
    more = len(accounts) - len(rows)
    remark = (
        "ε is rounded up. A budget is fixed before rows are read, and each release is charged "
        "before it leaves."
    )
    remark += f" And {more:,} more accounts; the exported ledger lists all." if more else ""
    heads = ("Study / method", "ε spent", "ε budget", "δ", "Accountant", "Releases", "Dates")
    return Section("What each study spent", heads=heads, rows=rows, remark=remark)


def _days(item: Found) -> str:
    if item["first"] is None:
        return NONE
    begin, end = _day(item["first"]), _day(item["last"])
    return begin if begin == end else f"{begin} – {end}"


def _day(value: object) -> str:
    return moment(value).split(",")[0]


def _gate(found: Found) -> Section:
    keys = ("protocol", "charter", "expires", "study")
    admitted = [
        f"{study}: ethics protocol {protocol}, valid until {expires}, charter {digest}"
        for protocol, digest, expires, study in sorted(
            {tuple(item[key] for key in keys) for item in found["admitted"]}
        )
    ]
    refused = [
        f"{_day(item['time'])}, {item['study']}: {', '.join(item['why'])}"
        for item in found["refused"]
    ]
    if (earlier := len(refused) - MOST_REFUSALS) > 0:
        refused = [*refused[-MOST_REFUSALS:], f"and {earlier:,} earlier"]
    consent = "only rows of patients with recorded consent were used"
    patients = [f"{study}: {consent}" for study in found["consent"]]
    patients = patients or ["No consent table was used."]
    if found["erased"]:
        patients.append("Patients who asked to be erased are excluded from every later run.")
    no_charter = ["No signed charter was enforced at this site."]
    lists = (
        ("Approved by a signed charter", admitted or no_charter),
        ("Refused, before any row was read", refused or ["Nothing was refused."]),
        ("Patients", patients),
    )
    return Section("What the site's gate did", lists=lists)


def _meaning(worst: float | None, delta_: float) -> Section:
    if worst is None:
        words = (
            "Where ε is none there is no limit to what a release may reveal. Elsewhere, whoever "
            "sees the releases can change their odds that a certain patient took part by at most a "
            "factor of e to the power of ε."
        )
    else:
        factor = ""
        if worst < 16:
            least = math.exp(worst)
            factor = f" = {math.ceil(least * 10) / 10 if worst < 5 else math.ceil(least):,}"
        words = (
            "Whoever sees everything that was released, whatever else they know, can multiply "
            "their odds that a certain patient's records were used by at most "
            f"e^{epsilon(worst)}{factor}, except with a probability of about {delta(delta_)}. "
            "Smaller is stronger; above 10 the promise is weak."
        )
    return Section("What this means", (words,), lists=(("Not covered", TEXTS["not_covered"]),))


def _why(item: Found) -> str:
    if not item["part"].startswith("held out"):
        return "none (withdrawn)"
    return "none (held out)" if item["epsilon"] == 0 else "none (held out); its evaluation"


def render_certificate(found: Found) -> str:
    """The certificate of erasure as a page."""
    found = tidy(found)
    total, studies = found["total"], found["studies"]
    drawn = [item["part"].startswith("may") for item in studies]
    counted = [may or item["epsilon"] != 0 for item, may in zip(studies, drawn, strict=True)]
    rows = [
        (item["account"], (item["rounds"] or NONE) if may else _why(item),
         f"{item['releases']:,}", epsilon(item["epsilon"]) if item["epsilon"] != 0 else "0",
         delta(item["delta"]), _days(item))
        for item, may in zip(studies, drawn, strict=True)
    ]  # fmt: skip
    heads = ("Study / method", "Rounds they may have been drawn in", "Releases", "ε", "δ", "Dates")
    remark = "Who was drawn in a round is part of the secret noise, and is not recorded. ε is rounded up."
    sections = [
        Section("What was released before", heads=heads, rows=rows, remark=remark),
        Section("What this means", tuple(found["statement"])),
    ]
    if retraining := found.get("retraining"):
        words = f"The study was trained again without the patient. {retraining['words']}"
        sections.insert(1, Section("Training anew", (words,)))
    unbounded = ["Some releases carry no privacy guarantee; for them there is no bound."]
    everything = f"ε of everything they may be in, at δ {delta(total['delta'])}"
    keyed = "a keyed hash; without the site's secret it stands for nobody"
    context: dict[str, object] = {
        "title": f"Certificate of erasure: {found['site']}",
        "period": f"Erased {moment(found['erased'])}",
        "headline": "From this moment the patient's records are used by no study at this site.",
        "warnings": unbounded if total["epsilon"] is None else [],
        "figures_line": [
            (epsilon(total["epsilon"]), everything),
            (f"{sum(counted):,}", "studies and methods they may be in"),
        ],
        "sections": sections,
        "footer": [
            ("Written", moment(found["written"])),
            ("Reference", f"{found['tombstone']} ({keyed})"),
            ("Ledger", f"entry {found['entry']:,}, hash {found['hash']}"),
        ],
    }
    return fill("statement.html", context, {}, {}, found["site"])


def export_ledger(
    out: Path, overview: Found, rows: Sequence[Found], fields: Sequence[str]
) -> list[str]:
    """Write ``ledger.json``, ``ledger.csv`` and ``statement.html``; returns their paths."""
    text = io.StringIO()
    table = csv.DictWriter(text, fields, lineterminator="\n")
    table.writeheader()
    table.writerows({key: _csv_cell(value) for key, value in row.items()} for row in rows)
    everything = json.dumps({**overview, "rows": list(rows)}, indent=1, allow_nan=False)
    written = datetime.now(UTC).isoformat(timespec="seconds")
    content = {
        "ledger.json": everything + "\n",
        "ledger.csv": text.getvalue(),
        "statement.html": render(overview, written=written),
    }
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, body in content.items():
            put(body, out / name)
    except OSError as error:
        raise RunError(f"{out} cannot be written: {error}") from None
    return [str(out / name) for name in content]


def _csv_cell(value: object) -> object:
    """A text that a spreadsheet would run as a formula is kept a text."""
    formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if formula else value
