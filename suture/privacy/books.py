"""What a ledger says, as plain values: every release with its running epsilon, every account, everything noted.

For the privacy officer (``suture ledger show``), for programs (``export``) and for the regulator's page. Epsilons that
are infinite are None: JSON has no infinity, and no figure is better than a wrong one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from suture.privacy.accountant import epsilon_of
from suture.privacy.accounts import Account
from suture.privacy.budget import Budget
from suture.privacy.events import GAUSSIAN, LAPLACE, ZCDP, NormalForm, add, event_from_json, normal_form
from suture.privacy.ledger import ALL_STUDIES, Entry, Ledger

FIELDS = ("entry", "time", "kind", "study", "round", "what", "event", "epsilon", "delta", "accountant", "hash")


def releases(ledger: Ledger) -> list[dict[str, Any]]:
    """Every row of the ledger; a release has the epsilon that its account had spent by then.

    >>> from dp_accounting import GaussianDpEvent
    >>> ledger = Ledger.open(None, "boston")
    >>> ledger.open_study("cardio/fedavg", Budget(6.0, 1e-5, "pld"))
    >>> _ = ledger.charge("cardio/fedavg", 1, GaussianDpEvent(5.0), b"x")
    >>> [(row["kind"], row["event"], row["epsilon"]) for row in releases(ledger)]
    [('promise', 'epsilon 6 at delta 1e-05 by pld', None), ('release', 'Gaussian, noise 5', 0.7256)]
    """
    accounts, spent = ledger.books().studies, dict[str, NormalForm]()
    rows = []
    for entry in ledger.rows():
        row: dict[str, Any] = dict.fromkeys(FIELDS)
        row |= {"entry": entry.seq, "time": entry.time, "study": entry.study, "what": entry.what, "hash": entry.hash}
        if entry.is_note:
            row |= {"kind": "note", "event": note_words(entry)}
        elif entry.is_promise:
            row |= {"kind": "promise", "event": Budget.from_text(entry.event).words}
        else:
            form = normal_form(event_from_json(json.loads(entry.event)))
            spent[entry.study] = add(spent.get(entry.study, ()), form)
            budget = accounts[entry.study].budget
            row |= {"kind": "release", "round": entry.round, "event": event_words(form)}
            row |= {"epsilon": _epsilon(spent[entry.study], budget)}
            row |= {"delta": budget.delta, "accountant": budget.accountant}
        rows.append(row)
    return rows


def overview(ledger: Ledger) -> dict[str, Any]:
    """Accounts, lifetime budget, what the gate did, and the head: all that a statement needs.

    >>> ledger = Ledger.open(None, "boston")
    >>> overview(ledger)["accounts"], overview(ledger)["lifetime"]
    ([], None)
    """
    rows, books = ledger.rows(), ledger.books()
    lifetime = books.lifetime
    accounts = [_account(name, found, rows) for name, found in books.studies.items()]
    budgets = [found.budget for found in books.studies.values()]
    # Without a lifetime budget the site's total is stated at the largest delta that any study was promised.
    chosen = lifetime or Budget(math.inf, max((b.delta for b in budgets), default=1e-5), "pld")
    head = ledger.head()
    return {
        "site": ledger.site,
        "entries": head.entries,
        "head": head.hash,
        "first": rows[0].time if rows else None,
        "last": rows[-1].time if rows else None,
        "releases": sum(row.is_charge for row in rows),
        "accounts": accounts,
        "total": {"epsilon": _epsilon(books.total, chosen), "delta": chosen.delta, "accountant": chosen.accountant},
        "lifetime": None if lifetime is None else lifetime.epsilon,
        "admitted": [_note(row) for row in rows if row.is_note and row.what == "admitted"],
        "refused": [_note(row) for row in rows if row.is_note and row.what == "refused"],
        "consent": sorted({row.study for row in rows if row.is_note and row.what == "consent"}),
        "erased": sum(row.is_note and row.what == "erased" for row in rows),
    }


def event_words(form: NormalForm) -> str:
    """An event for people.

    >>> from suture.privacy.events import Step
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
    """Rounds for people.

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


def note_words(entry: Entry) -> str:
    """A note's facts for people; a tombstone is not shown."""
    facts = json.loads(entry.event)
    if entry.what == "erased":
        return "a patient was erased"
    return "; ".join(f"{key} {', '.join(v) if isinstance(v, list) else v}" for key, v in facts.items())


def _note(entry: Entry) -> dict[str, Any]:
    return {"entry": entry.seq, "time": entry.time, "study": entry.study, **json.loads(entry.event)}


def _account(name: str, account: Account, rows: list[Entry]) -> dict[str, Any]:
    mine = [row for row in rows if row.is_charge and row.study == name]
    budget = account.budget
    return {
        "account": name,
        "study": name.split("/")[0],
        "promised": budget.promises,
        "budget": budget.epsilon if budget.promises else None,
        "delta": budget.delta,
        "accountant": budget.accountant,
        "epsilon": _epsilon(account.spent, budget),
        "releases": account.charges,
        "rounds": ranges(account.rounds),
        "kinds": sorted({row.what for row in mine}),
        "first": mine[0].time if mine else None,
        "last": mine[-1].time if mine else None,
    }


def _epsilon(form: NormalForm, budget: Budget) -> float | None:
    """Rounded up to four decimals."""
    found = epsilon_of(form, budget.delta, budget.accountant)
    return math.ceil(found * 1e4 * (1 - 1e-13)) / 1e4 if math.isfinite(found) else None


__all__ = ["ALL_STUDIES", "FIELDS", "event_words", "note_words", "overview", "ranges", "releases"]
