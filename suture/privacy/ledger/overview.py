"""A ledger as plain values: every release with its running epsilon, every account and every note.

For the privacy officer (``suture ledger show``), for programs (``export``) and for the regulator's
page. Infinite epsilons are None, as JSON has no infinity. Each total names its theorem
(``accounts.py``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from suture.privacy.accounting.events import (
    GAUSSIAN,
    LAPLACE,
    ZCDP,
    NormalForm,
    add,
    event_from_json,
    normal_form,
)
from suture.privacy.accounting.planner import promise_from_text
from suture.privacy.ledger.accounts import BASIC, Account
from suture.privacy.ledger.chain import ADMITTED, Entry
from suture.privacy.ledger.ledger import Ledger

Facts = dict[str, Any]
"""Plain JSON."""

FIELDS = (
    *("entry", "time", "kind", "study", "round", "what"),
    *("event", "epsilon", "delta", "accountant", "hash"),
)


def releases(ledger: Ledger) -> list[Facts]:
    """Every row of the ledger; a release has the epsilon that its account had spent by then.

    >>> from dp_accounting import GaussianDpEvent
    >>> from suture.privacy.accounting.planner import Budget
    >>> ledger = Ledger.open(None, "boston")
    >>> ledger.open_study("cardio/fedavg", Budget(6.0, 1e-5, "pld"))
    >>> _ = ledger.charge("cardio/fedavg", 1, GaussianDpEvent(5.0), b"x")
    >>> [(row["kind"], row["event"], row["epsilon"]) for row in releases(ledger)]
    [('promise', 'epsilon 6 at delta 1e-05 by pld', None), ('release', 'Gaussian, noise 5', 0.7256)]
    """
    accounts, spent = ledger.books().studies, dict[str, Account]()
    rows = []
    for entry in ledger.rows():
        row: Facts = dict.fromkeys(FIELDS)
        row |= {"entry": entry.seq, "time": entry.time, "study": entry.study}
        row |= {"what": entry.what, "hash": entry.hash}
        if entry.is_note:
            row |= {"kind": "note", "event": _note_words(entry)}
            if entry.what != ADMITTED:
                row["entry"] = f"n{entry.seq}"  # notes have a chain and numbers of their own
        elif entry.is_write_off:
            row |= {"kind": "write-off", "event": _write_off_words(entry)}
        elif entry.is_promise:
            budget, plan = promise_from_text(entry.event)
            planned = "" if plan is None else f"; the plan: {event_words(plan)}"
            row |= {"kind": "promise", "event": budget.words + planned}
        else:
            form = normal_form(event_from_json(json.loads(entry.event)))
            known = accounts[entry.study]
            state = spent.setdefault(entry.study, Account(known.budget, plan=known.plan))
            state.spent = add(state.spent, form)
            row |= {"kind": "release", "round": entry.round, "event": event_words(form)}
            row |= {"epsilon": rounded_up(state.epsilon), "delta": known.budget.delta}
            row["accountant"] = known.budget.accountant
        rows.append(row)
    return rows


def overview(ledger: Ledger) -> Facts:
    """Accounts, lifetime budget, what the gate did, and the head: all that a statement needs."""
    rows, books = ledger.rows(), ledger.books()
    lifetime, head = books.lifetime, ledger.head()
    notes = [row for row in rows if row.is_note]
    # Where nothing is reserved, nothing is spent at any delta.
    delta = head.delta or (lifetime.delta if lifetime else 1e-5)
    total = {"epsilon": rounded_up(books.epsilon), "delta": delta, "accountant": "basic"}
    return {
        "site": ledger.site,
        "entries": head.entries,
        "head": head.hash,
        "first": rows[0].time if rows else None,
        "last": rows[-1].time if rows else None,
        "releases": sum(row.is_charge for row in rows),
        "accounts": [_account(name, found, rows) for name, found in books.studies.items()],
        "total": {**total, "theorem": BASIC},
        "lifetime": None if lifetime is None else lifetime.epsilon,
        "lifetime_delta": None if lifetime is None else lifetime.delta,
        "written_off": [_note(row) for row in rows if row.is_write_off],
        "admitted": [_note(row) for row in notes if row.what == ADMITTED],
        "refused": [_note(row) for row in notes if row.what == "refused"],
        "consent": sorted({row.study for row in notes if row.what == "consent"}),
        "erased": sum(row.what == "erased" for row in notes),
    }


def event_words(form: NormalForm) -> str:
    """An event in words.

    >>> from suture.privacy.accounting.events import Step
    >>> event_words(((Step(GAUSSIAN, 1.1, 0.02), 200), (Step(GAUSSIAN, 8.0, 1.0), 1)))
    '200 x Gaussian, noise 1.1, patients sampled at 0.02; Gaussian, noise 8'
    """
    parts = []
    for step, count in form:
        words = {
            GAUSSIAN: f"Gaussian, noise {step.noise:.6g}",
            LAPLACE: f"Laplace, noise {step.noise:.6g}",
            ZCDP: f"zCDP, rho {step.noise:.6g}",
        }.get(step.kind, "not private")
        sampled = f", patients sampled at {step.rate:.6g}" if step.rate < 1 else ""
        parts.append(f"{count:,} x {words}{sampled}" if count > 1 else words + sampled)
    return "; ".join(parts) or "nothing about anyone"


def ranges(numbers: Iterable[int]) -> str:
    """Rounds in words.

    >>> ranges([1, 2, 3, 7, 9, 10])
    '1-3, 7, 9-10'
    """
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(f"{a}-{b}" if b > a else str(a) for a, b in found)


def _note_words(entry: Entry) -> str:
    """A note's facts for people; a tombstone is not shown."""
    if entry.what == "erased":
        return "a patient was erased"
    facts = json.loads(entry.event).items()
    return "; ".join(f"{key} {', '.join(v) if isinstance(v, list) else v}" for key, v in facts)


def _write_off_words(entry: Entry) -> str:
    facts = json.loads(entry.event)
    return (
        f"{facts['found']:,} entries found where {facts['entries']:,} were seen; since then "
        f"epsilon {facts['reserved epsilon']:g} and delta {facts['reserved delta']:g} count as "
        "reserved, and all earlier accounts are closed"
    )


def _note(entry: Entry) -> Facts:
    return {"entry": entry.seq, "time": entry.time, "study": entry.study, **json.loads(entry.event)}


def _account(name: str, account: Account, rows: list[Entry]) -> Facts:
    mine = [row for row in rows if row.is_charge and row.study == name]
    budget = account.budget
    return {
        "account": name,
        "study": name.split("/")[0],
        "promised": budget.promises,
        "budget": budget.epsilon if budget.promises else None,
        "delta": budget.delta,
        "accountant": account.proof,
        "epsilon": rounded_up(account.epsilon),
        "theorem": account.theorem,
        "planned": account.plan is not None,
        "closed": bool(account.closed),
        "releases": account.charges,
        "rounds": ranges(account.rounds),
        "kinds": sorted({row.what for row in mine}),
        "first": mine[0].time if mine else None,
        "last": mine[-1].time if mine else None,
    }


def rounded_up(found: float) -> float | None:
    """Rounded up to four decimals."""
    return math.ceil(found * 1e4 * (1 - 1e-13)) / 1e4 if math.isfinite(found) else None
