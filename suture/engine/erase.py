"""A patient's right to be erased: tombstone at the site, certificate, and training anew without
them.

What was released cannot be called back. The certificate therefore says two things: from now on the
patient's rows pass the wall of this site no more, and what was released before is bounded, because
every release was differentially private for the patient with all of their rows. Who was drawn in a
round is a secret of the noise, so the certificate lists the rounds in which the patient *may* have
been drawn.

Training anew removes the patient from the model itself. It is a new study, under a name of its own:
the old one's questions have their answers, and would get them again. It is a new release about
everybody else, at every site, and is reserved as such; where the budget does not pay for all of it,
it is refused before it begins. Releases are deterministic functions of what they are computed from
(docs/design.md), so the new run is exactly what it would be had the patient never been there.
"""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any, Literal

from suture.engine import conduct, federation
from suture.engine.access import (
    MEANING,
    WITHDREW,
    accounts_of,
    place_with_ledger,
    refuse_unknown,
    rows_here,
)
from suture.engine.folder import RunFolder, before_key
from suture.engine.plan import (
    POOLED,
    budget,
    first_rounds,
    plan_of,
    reserved,
    rounds_of,
)
from suture.errors import BudgetExhausted, DataError, RunError
from suture.methods.registry import declared
from suture.privacy.accounting.events import add, compose, normal_form
from suture.privacy.ledger.accounts import Account
from suture.privacy.ledger.ledger import Ledger
from suture.result import Result
from suture.site import gate
from suture.site.gate import Place, erase_at_site
from suture.study import Study

How = Literal["checkpoint", "scratch"]


def erase(
    place: Place,
    patient: str,
    *,
    study: Study | None = None,
    out: Path | None = None,
    known: bool = False,
) -> dict[str, Any]:
    """Write the tombstone and the certificate (JSON and a page); returns the certificate.

    ``study`` tells which of its patients are held out, so that they are not said to have been
    trained on. Somebody whom the site does not know, or who had withdrawn before every release, gets
    neither: there is no influence to certify. ``known`` is the site's word that they were here.
    """
    home = place_with_ledger(place, patient)
    secret, rows = gate.site_secret(home), rows_here(place, patient, study)
    with closing(Ledger.open(home / gate.LEDGER, place.name)) as ledger:
        marked = gate.erased_entry(ledger, secret, patient) is not None
        refuse_unknown(place.name, rows, known or marked)
        found = accounts_of(ledger, patient, place, study, secret)
        if not marked and found["studies"] and all(s["part"] == WITHDREW for s in found["studies"]):
            raise DataError(
                f"site {place.name!r}: this patient had withdrawn before every release, so no "
                "study used their rows and there is no influence to certify. Nothing was written; "
                "their rows do not pass the wall while the consent table says so"
            )
        entry, new = erase_at_site(ledger, secret, patient)
    mark = json.loads(entry.event)["tombstone"]
    certificate = {
        "certificate": "erasure",
        "site": place.name,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "tombstone": mark,
        "erased": entry.time,
        "entry": entry.seq,
        "hash": entry.hash,
        "new": new,
        "rows_still_in_the_table": rows,
        **found,
        "retraining": None,
        "statement": _words(rows),
    }
    stem = (out or home / "erasures") / f"erasure-{mark[:12]}"
    return _write(certificate, stem)


def _words(rows: int | None) -> list[str]:
    still = {
        None: "Whether the patient's rows are still in the site's tables was not looked at.",
        0: "No row of this patient is in the study's table now.",
    }.get(
        rows,
        "The patient's rows are still in the study's table; deleting them there is for whoever "
        "keeps that table.",
    )
    return [
        "The patient is excluded from every later run at this site, whichever study asks: a keyed "
        "hash of their identifier "
        "is in the site's ledger, and rows that match it do not pass the wall.",
        still,
        MEANING,
        "Exact metrics that a study published without noise are not covered by the bound.",
    ]


def add_retraining(certificate: dict[str, Any], done: dict[str, Any]) -> dict[str, Any]:
    """The certificate, written again with what was trained anew."""
    stem = Path(certificate["files"][0]).with_suffix("")
    plain = {key: value for key, value in certificate.items() if key != "files"}
    return _write({**plain, "retraining": done}, stem)


def _write(certificate: dict[str, Any], stem: Path) -> dict[str, Any]:
    from suture.report.shell import put
    from suture.report.statement import render_certificate

    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
        put(json.dumps(certificate, indent=1, allow_nan=False) + "\n", stem.with_suffix(".json"))
        put(render_certificate(certificate), stem.with_suffix(".html"))
    except OSError as error:
        raise RunError(
            f"the certificate cannot be written: {error}; the tombstone stands"
        ) from None
    return {
        **certificate,
        "files": [str(stem.with_suffix(f".{kind}")) for kind in ("json", "html")],
    }


# --- training anew ----------------------------------------------------------------------------------------------------


def retrain(
    study: Study,
    place: Place,
    how: How,
    *,
    base: Path,
    out: Path,
    run: Path | None = None,
    file: Path | None = None,
    **options: Any,
) -> tuple[Result, dict[str, Any]]:
    """Train without the erased patient: from the last checkpoint before their site's first round,
    or from scratch.

    ``study`` has a name that no ledger knows yet (`renamed`). Either way the result is exactly what
    it would be had the patient never been there. From the checkpoint, the rounds before are taken
    over from the run folder ``run``; where it has none (most often because the site took part from
    the first round on, so that the checkpoint is the start) training starts at the start.
    """
    schedule = (study.method.rounds, study.method.participation, study.seed)
    firsts = first_rounds([site.name for site in study.sites], *schedule)
    # Pooled training, and folds of hospitals (each with a schedule of its own), start at the start.
    scratch = any(declared(name).moves_rows for name in study.methods) or study.evaluation.folds
    before = 0 if scratch else firsts.get(place.name, study.method.rounds + 1) - 1
    skipped = before if how == "checkpoint" else 0
    _refuse_if_too_dear(study, base, skipped)
    folder, taken = None, False
    if skipped and run is not None:
        folder = RunFolder.create(out, study, base, file)
        taken = _take_over(run, folder.path, study, skipped)
    result = (
        conduct.resume(folder.path, **options)
        if folder is not None
        else conduct.run(study, out=out, base=base, file=file, **options)
    )
    words = f"The site's first round was {before + 1}; " + (
        f"the checkpoint after round {before} was taken over."
        if taken
        else "training started at the start."
        if not before
        else f"rounds 1 to {before} were computed again, as the new study's own."
    )
    return result, {
        "how": how,
        "from_round": skipped if taken else 0,
        "out": str(out),
        "words": words,
    }


def renamed(study: Study, name: str | None = None) -> Study:
    """The study under the name of a training anew.

    >>> renamed(Study(name="cardio", outcome="high_risk", cohort="cardio")).name
    'cardio-anew'
    """
    return study.replace(name=name or f"{study.name}-anew")


def _take_over(run: Path, folder: Path, study: Study, round_: int) -> bool:
    found = False
    for method in study.methods:
        for seed in range(study.seed, study.seed + study.evaluation.seeds):
            old = run / "checkpoints" / f"{before_key(f'{method}-{seed}', round_)}.npz"
            if old.exists():
                shutil.copyfile(old, folder / "checkpoints" / f"{method}-{seed}.npz")
                found = True
    return found


def _refuse_if_too_dear(study: Study, base: Path, skipped: int) -> None:
    """Every site must be able to pay for every round that is new, or nothing is begun."""
    here = federation.survey(study, base, study.seed)
    parts = [
        (part, plan_of(study, part, method))
        for part, method in product(federation.split(study, here), study.methods)
    ]
    for place in here.places:
        with closing(gate.open_ledger(place, None)) as ledger:
            books = ledger.books()
        books.lifetime = books.lifetime or place.lifetime
        for part, plan in parts:
            plans, name = plan.sites, plan.account
            planned = plans.get(POOLED) or plans.get(place.name)
            if planned is None or place.name not in part.sizes:
                continue
            # The rounds that the site takes part in up to the checkpoint, and in all.
            done, taken = (
                rounds_of(list(plans), until, study.method.participation, study.seed)[planned.site]
                for until in (skipped, study.method.rounds)
            )
            # The evaluation is paid for again: the model is another one.
            form = add(
                normal_form(compose([(planned.spent_after(taken, done), study.evaluation.seeds)])),
                planned.beside,
            )
            new = name not in books.studies
            promise, whole = budget(study, planned), reserved([planned])
            for why in (
                books.too_much_to_open(name, promise, whole) if new else books.too_much(name, form)
            ):
                raise BudgetExhausted(
                    f"training without the patient was not begun: at site {place.name!r}, account "
                    f"{name!r}, {why}. To the "
                    "ledger it is a new release about all the other patients; it needs a budget of "
                    "its own, under a "
                    "study name that is new: --as NAME (the patient is erased all the same)"
                )
            if new:
                books.studies[name] = Account(promise, plan=whole)
                books.reserved += promise
            books.studies[name].spent = add(books.studies[name].spent, form)


def place_for(home: Path, site: str | None) -> Place:
    """A site known by its home alone: enough for a tombstone and a certificate."""
    path = home / gate.LEDGER
    with closing(Ledger.read(path)) as ledger:
        name = ledger.site
    if site is not None and site != name:
        raise DataError(f"{home} is the home of site {name!r}, found --site {site!r}")
    return Place(name, "", {}, None, home)


__all__ = ["add_retraining", "erase", "place_for", "renamed", "retrain"]
