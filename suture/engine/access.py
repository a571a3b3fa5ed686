"""What a site can tell one person about their records: which studies may have used them, in which
rounds, under which consent and charter, at what epsilon, and what was released. At the site only;
nothing is written or charged.

Who was drawn in a round is a secret of the noise and is recorded nowhere, so an account lists the
rounds in which the patient *may* have been drawn. Two things rule that out: the split kept them for
testing (then the charged evaluation alone may have counted them), or the consent table says that
they had withdrawn on every day of a release. A patient whom the table does not name today may have
been named then: silence rules out nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import date
from functools import cache, reduce
from pathlib import Path
from typing import Any

from suture.engine.plan import WITHOUT_PRIVACY
from suture.errors import DataError, StudyError
from suture.methods.registry import known as known_methods
from suture.privacy.accounting.events import add, event_from_json, normal_form
from suture.privacy.ledger.accounts import Account, Reserved
from suture.privacy.ledger.chain import TESTED, Entry
from suture.privacy.ledger.ledger import Ledger
from suture.privacy.ledger.overview import overview, ranges, rounded_up
from suture.site import gate
from suture.site.gate import Place, is_held_out, rows_of
from suture.site.reading import among, hashed
from suture.study import Study

Consented = Callable[[str, date], bool | None]
"""Whether the patient consented (True), had withdrawn (False) or is not on record (None), by study
and day."""
MAY = "may have been drawn in"
HELD_OUT = "held out for testing: no model was trained on them"
COUNTED = f"{HELD_OUT}; the noisy evaluation counted them"
WITHDREW = "withdrawn before every release: their rows did not pass the wall"
LISTED = (
    *("account", "study", "rounds", "releases", "kinds"),
    *("first", "last", "delta", "accountant"),
)
MEANING = (
    "Whoever sees everything listed here, whatever else they know, can multiply their odds that "
    "this patient's records were used by at most e to the power of epsilon, except with a "
    "probability of about delta. That bound was fixed before the records were read, and it stays "
    "true after erasure."
)


def place_with_ledger(place: Place, patient: str) -> Path:
    """The site's home, or an error that says what is missing."""
    if place.home is None or not (place.home / gate.LEDGER).exists():
        raise StudyError(
            f"site {place.name!r} has no ledger at {place.home}; nothing was ever released here. "
            "Give the site's home"
        )
    if not patient.strip():
        raise StudyError("expected a patient's identifier, found an empty one")
    return place.home


def rows_here(place: Place, patient: str, study: Study | None) -> int | None:
    """How many rows of the study's tables are this patient's; None: no table was looked at."""
    if study is None or study.table is None:
        return None
    tables = [place.source, *([place.test] if place.test is not None else [])]
    return sum(rows_of(table, study.table, patient, site=place.name) for table in tables)


def refuse_unknown(site: str, rows: int | None, marked: bool) -> None:
    """A figure about somebody whom the site does not know would be made up."""
    if rows or marked:
        return
    where = (
        "no table was looked at, because --home names none"
        if rows is None
        else "no row of its table has this identifier"
    )
    raise DataError(
        f"site {site!r} does not know this patient: {where}. Nothing was written. Check the "
        "identifier and --study; if their rows were deleted before, say so with --known"
    )


def access(place: Place, patient: str, *, study: Study, known: bool = False) -> dict[str, Any]:
    """Everything that the site's ledger and gate hold on one person, for that person."""
    home = place_with_ledger(place, patient)
    secret, rows = gate.site_secret(home), rows_here(place, patient, study)
    with closing(Ledger.read(home / gate.LEDGER)) as ledger:
        erased = gate.erased_entry(ledger, secret, patient)
        refuse_unknown(place.name, rows, known or erased is not None)
        found = accounts_of(ledger, patient, place, study, secret)
        gates = overview(ledger)["admitted"]
    for item in found["studies"]:
        item["charters"] = [note for note in gates if note["study"] == item["study"]]
    return {
        "access": place.name,
        "rows_in_the_table": rows,
        "erased": None if erased is None else erased.time,
        **found,
        "statement": [
            "Who was drawn in which round is part of the secret noise and recorded nowhere: a "
            "round is listed if the patient may have been drawn in it.",
            MEANING,
            "Exact figures that a study published without noise are not covered by the bound.",
        ],
    }


def accounts_of(
    ledger: Ledger, patient: str, place: Place, study: Study | None, secret: bytes
) -> dict[str, Any]:
    """The accounts that the patient may be in, and what all of those cost together."""
    listed: list[dict[str, Any]] = []
    total, unlimited = Reserved(), False
    accounts, consent = ledger.books().studies, _consent(place, patient, secret)
    charges: dict[str, list[Entry]] = {}
    for entry in ledger.entries():
        if entry.is_charge:
            charges.setdefault(entry.study, []).append(entry)
    for item in overview(ledger)["accounts"]:
        mine, known = charges.get(item["account"], []), accounts[item["account"]]
        days = {date.fromisoformat(entry.time[:10]) for entry in mine}
        words, part = _consent_words(consent, item["study"], days)
        epsilon = item["epsilon"] if part == MAY else 0.0
        if part == MAY and study and _held_out(item["account"], patient, place, study):
            tests = [entry for entry in mine if entry.what == TESTED]
            part, epsilon = (COUNTED if tests else HELD_OUT), _cost(known, tests)
        spared = part not in (MAY, COUNTED)
        rounds = ranges(entry.round for entry in mine if entry.what != TESTED)
        listed.append({
            **{key: item[key] for key in LISTED},
            "rounds": rounds, "epsilon": epsilon, "part": part, "consent": words,
        })  # fmt: skip
        total = total if spared else total + known.budget
        unlimited = unlimited or (not spared and not known.budget.promises and bool(known.spent))
    delta = float(total.delta) or (ledger.lifetime.delta if ledger.lifetime else 1e-5)
    whole = None if unlimited else float(total.epsilon)
    return {"studies": listed, "total": {"epsilon": whole, "delta": delta, "accountant": "basic"}}


def _cost(account: Account, entries: Sequence[Entry]) -> float | None:
    """The epsilon of some of an account's charges alone, rounded up; None: no bound."""
    events = (normal_form(event_from_json(json.loads(entry.event))) for entry in entries)
    return rounded_up(replace(account, spent=reduce(add, events, ())).epsilon) if entries else 0.0


def _consent(place: Place, patient: str, secret: bytes) -> Consented | None:
    """What the consent table says of the patient; None where the site has no such table."""
    spec = place.papers.consent
    if spec is None:
        return None
    key = gate.passage_key(secret)
    mine = hashed([patient.strip()], key)

    @cache
    def on(study: str, day: date) -> bool | None:
        given, withdrawn, _ = gate.read_consent(
            spec, study=study, today=day, key=key, site=place.name
        )
        return True if among(mine, given)[0] else False if among(mine, withdrawn)[0] else None

    return on


def _consent_words(consent: Consented | None, study: str, days: set[date]) -> tuple[str, str]:
    """Consent at the time of the releases, and what follows for the patient's part in them."""
    if consent is None or not days:
        return ("the site has no consent table" if consent is None else "nothing released", MAY)
    told = [consent(study, day) for day in sorted(days)]
    if all(one is False for one in told):
        return "withdrawn on every day of a release", WITHDREW
    given, many = sum(one is True for one in told), len(told)
    if given == many:
        return "given on every day of a release", MAY
    return f"given on {given} of {many} days of releases, by the table of today", MAY


def _held_out(account: str, patient: str, place: Place, study: Study) -> bool:
    """Whether a training never used the patient: only the split of the study at hand can say so."""
    trainings = {
        f"{study.name}/{method}{suffix}"
        for method in known_methods()
        for suffix in ("", WITHOUT_PRIVACY)
    }
    if account not in trainings or place.test is not None or study.evaluation.folds:
        return False
    return is_held_out(patient, study.evaluation.holdout, str(study.seed))
