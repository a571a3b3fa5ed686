"""The privacy statement of one site on one page, for a regulator: what was released about its patients, at what cost.

It is written from the site's verified ledger (`suture.privacy.books.overview`) and leaves the site. So it holds no count
of patients and no reason that speaks of one: how many did not consent, or were erased, stays in the ledger at the site.
The page has no script, prints on one sheet for a handful of studies, and the same template serves the certificate of
erasure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from suture.report.shell import fill
from suture.report.words import NONE, delta, epsilon, finite, moment, tidy

ACCOUNTANTS = {"pld": "PLD", "rdp": "RDP", "basic": "basic"}
MOST_ROWS = 12
NOT_COVERED = (
    "exact metrics and counts that a study was allowed to publish without noise (its own report lists them)",
    "side channels: time, memory, network traffic, logs of the operating system",
    "rounding of floating-point noise, which can reveal more than the theorem says to whoever sees exact bits",
    "what is learned about a patient from the pattern in other patients' records",
    "a patient who is treated at several hospitals: each keeps its own ledger, and the costs add up",
)


@dataclass(frozen=True)
class Grid:
    """A table: column heads, rows of text, a closing remark."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    remark: str = ""


@dataclass(frozen=True)
class Section:
    """A heading, paragraphs, a table, and lists side by side."""

    title: str
    paragraphs: tuple[str, ...] = ()
    table: Grid | None = None
    lists: tuple[tuple[str, Sequence[str]], ...] = field(default=())


def render(found: Mapping[str, Any], *, written: str) -> str:
    """The page as text, from `books.overview`; ``written`` is the moment of writing.

    >>> page = render({"site": "<b>", "entries": 0, "head": "00", "first": None, "last": None, "releases": 0,
    ...     "accounts": [], "total": {"epsilon": 0.0, "delta": 1e-5, "accountant": "pld"}, "lifetime": None,
    ...     "admitted": [], "refused": [], "consent": [], "erased": 0}, written="2026-11-15T20:30:00Z")
    >>> "<script" in page, "&lt;b&gt;" in page
    (False, True)
    """
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
        f"No differential privacy for {', '.join(open_)}: nothing limits what those releases reveal about a patient."
    ]
    context: dict[str, Any] = {
        "title": f"Privacy statement: {found['site']}",
        "period": f"{moment(found['first'])} to {moment(found['last'])}" if found["first"] else "no entries yet",
        "headline": _headline(found),
        "warnings": warnings if open_ else [],
        "figures_line": figures,
        "sections": [_studies(accounts), _gate(found), _meaning(total["epsilon"], total["delta"])],
        "footer": [
            ("Written", moment(written)),
            ("Ledger", f"{found['entries']:,} entries, each chained to the one before; verified when this was written"),
            ("Last entry", found["head"]),
            ("To check", "suture ledger verify --home <the site's home>; the last entry's hash must be the one above"),
        ],
    }
    return fill("statement.html", context, {}, {}, str(found["site"]))


def _headline(found: Mapping[str, Any]) -> str:
    total = found["total"]
    if not found["releases"]:
        return "Nothing computed from patients' records has been released by this site."
    if finite(total["epsilon"]) is None:
        return "Some of what this site released carries no privacy guarantee; the table says which."
    return (
        f"Everything this site released about its patients is ({epsilon(total['epsilon'])}, {delta(total['delta'])})-"
        "differentially private, all studies together. The unit is the patient, with all of their rows."
    )


def _studies(accounts: Sequence[Mapping[str, Any]]) -> Section:
    rows = tuple(
        (
            str(item["account"]),
            epsilon(item["epsilon"]) if item["releases"] else "0",
            epsilon(item["budget"]),
            delta(item["delta"]),
            ACCOUNTANTS.get(item["accountant"], str(item["accountant"])),
            f"{item['releases']:,}",
            _days(item["first"], item["last"]),
        )
        for item in sorted(accounts, key=lambda item: -(finite(item["epsilon"]) or math.inf))[:MOST_ROWS]
    )
    more = len(accounts) - len(rows)
    remark = "ε is rounded up. A budget is fixed before rows are read, and each release is charged before it leaves."
    remark += f" And {more:,} more accounts; the exported ledger lists all." if more else ""
    heads = ("Study / method", "ε spent", "ε budget", "δ", "Accountant", "Releases", "Dates")
    return Section("What each study spent", table=Grid(heads, rows, remark) if rows else None)


def _days(first: Any, last: Any) -> str:
    if first is None:
        return NONE
    begin, end = (moment(value).split(",")[0] for value in (first, last))
    return begin if begin == end else f"{begin} – {end}"


def _gate(found: Mapping[str, Any]) -> Section:
    charters = {(item["protocol"], item["charter"], item["expires"], item["study"]) for item in found["admitted"]}
    admitted = [
        f"{study}: ethics protocol {protocol}, valid until {expires}, charter {digest}"
        for protocol, digest, expires, study in sorted(charters)
    ]
    refused = [
        f"{moment(item['time']).split(',')[0]}, {item['study']}: {', '.join(item['why'])}" for item in found["refused"]
    ]
    shown = refused[-6:] + ([f"and {len(refused) - 6:,} earlier"] if len(refused) > 6 else [])
    consent = [f"{study}: only rows of patients with recorded consent were used" for study in found["consent"]]
    erased = ["Patients who asked to be erased are excluded from every later run."] if found["erased"] else []
    lists = (
        ("Approved by a signed charter", admitted or ["No signed charter was enforced at this site."]),
        ("Refused, before any row was read", shown or ["Nothing was refused."]),
        ("Patients", [*(consent or ["No consent table was used."]), *erased]),
    )
    return Section("What the site's gate did", lists=lists)


def _meaning(worst: Any, delta_: Any) -> Section:
    value = finite(worst)
    words = "Whoever sees everything that was released, whatever else they know, "
    if value is None:
        words = "Where ε is none there is no limit to what a release may reveal. Elsewhere, whoever sees the releases "
        words += "can change their odds that a certain patient took part by at most a factor of e to the power of ε."
    else:
        factor = (
            f" = {math.ceil(math.exp(value) * 10) / 10:,.1f}" if value < 5 else f" = {math.ceil(math.exp(value)):,}"
        )
        factor = factor if value < 16 else ""
        words += f"can multiply their odds that a certain patient's records were used by at most e^{epsilon(value)}{factor}, "
        words += (
            f"except with a probability of about {delta(delta_)}. Smaller is stronger; above 10 the promise is weak."
        )
    return Section("What this means", (words,), lists=(("Not covered", NOT_COVERED),))


def render_certificate(found: Mapping[str, Any]) -> str:
    """The certificate of erasure as a page.

    >>> page = render_certificate({"site": "boston", "written": "2026-11-15T20:30:00Z", "erased": "2026-11-15T20:30:00Z",
    ...     "tombstone": "00ff", "entry": 3, "hash": "ab", "studies": [], "statement": ["Gone."], "retraining": None,
    ...     "total": {"epsilon": 0.0, "delta": 1e-5, "accountant": "pld"}})
    >>> "Certificate of erasure" in page, "00ff" in page
    (True, True)
    """
    found = tidy(found)
    total = found["total"]
    rows = tuple(
        (
            str(item["account"]),
            str(item["rounds"] or NONE) if item["part"].startswith("may") else "none (held out)",
            f"{item['releases']:,}",
            epsilon(item["epsilon"]) if item["epsilon"] != 0 else "0",
            delta(item["delta"]),
            _days(item["first"], item["last"]),
        )
        for item in found["studies"]
    )
    heads = ("Study / method", "Rounds they may have been drawn in", "Releases", "ε", "δ", "Dates")
    remark = "Who was drawn in a round is part of the secret noise, and is not recorded. ε is rounded up."
    bound = f"({epsilon(total['epsilon'])}, {delta(total['delta'])})" if finite(total["epsilon"]) is not None else None
    context: dict[str, Any] = {
        "title": f"Certificate of erasure: {found['site']}",
        "period": f"Erased {moment(found['erased'])}",
        "headline": "From this moment the patient's records are used by no study at this site.",
        "warnings": [] if bound else ["Some releases carry no privacy guarantee; for them there is no bound."],
        "figures_line": [
            (epsilon(total["epsilon"]), f"ε of everything they may be in, at δ {delta(total['delta'])}"),
            (
                f"{sum(item['part'].startswith('may') for item in found['studies']):,}",
                "studies and methods they may be in",
            ),
        ],
        "sections": [
            Section("What was released before", table=Grid(heads, rows, remark) if rows else None),
            Section("What this means", tuple(found["statement"])),
        ],
        "footer": [
            ("Written", moment(found["written"])),
            ("Reference", f"{found['tombstone']} (a keyed hash; without the site's secret it stands for nobody)"),
            ("Ledger", f"entry {found['entry']:,}, hash {found['hash']}"),
        ],
    }
    retraining = found.get("retraining")
    if retraining:
        words = (f"The study was trained again without the patient. {retraining['words']}",)
        context["sections"].insert(1, Section("Training anew", words))
    return fill("statement.html", context, {}, {}, str(found["site"]))
