"""`suture overlap`: how many people attend more than one of a study's hospitals, as one noisy count
(`suture/site/people.py` has the sensitivity). Every site's gate is asked and every ledger charged
before anybody is compared; the answer is kept in every ledger, and asking again costs nothing."""

from __future__ import annotations

import math
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from suture.engine import federation
from suture.errors import StudyError
from suture.privacy.accounting.events import normal_form
from suture.privacy.accounting.planner import Budget, noise_for
from suture.privacy.canonical import digest
from suture.privacy.door import Context, Rows, Session, opened, root_key
from suture.privacy.noise.mechanisms import Counts
from suture.privacy.software import software
from suture.privacy.unit import Patients
from suture.protection.envelope import seal, unseal
from suture.site import gate
from suture.site.people import OVERLAP, attended, joint_secret, patients_of
from suture.site.ready import charging, demand
from suture.study import Study

LEARNS = (
    "Whoever runs this command holds all the tables, and their computer compares keyed hashes of "
    "identifiers in memory. Everybody else learns the noisy count alone: no hospital learns which "
    "of its patients attend another one, and nobody learns which hospitals share them."
)


def overlap(
    study: Study, base: Path, *, epsilon: float, delta: float | None = None
) -> dict[str, Any]:
    """Charge every site, then count people in two tables or more, with noise."""
    if not 0 < epsilon < math.inf:
        raise StudyError(f"expected an epsilon above 0 and finite, found {epsilon}")
    if study.simulation or not study.sites or study.table is None or study.table.patient is None:
        raise StudyError(
            "people are counted over [[site]] tables with a schema.patient, and not in a simulation"
        )
    if len(study.sites) < 2:
        raise StudyError("people attend several hospitals only where a study has two or more")
    promised = study.privacy
    delta = delta or (promised.delta if promised else 1e-5)
    accountant = promised.accountant if promised else "pld"
    account, schema = f"{study.name}/{OVERLAP}", study.table
    mechanism = Counts(1, 1.0, noise_for(epsilon, delta, 1.0, 1, accountant))
    places = [gate.place_of(site, base) for site in study.sites]
    secrets = {place.name: gate.secret_of(place, study.seed) for place in places}
    asked_for = digest((tuple((p.name, p.edition) for p in places), mechanism))
    contexts = {
        p.name: Context(study.digest, p.name, p.edition, account, OVERLAP, 0, 0, 0, asked_for)
        for p in places
    }
    for place in places:
        demand(place, study.digest)
    with ExitStack() as stack:
        ledgers = {
            p.name: stack.enter_context(closing(charging(p, None, study.digest))) for p in places
        }
        passages = {}
        for place in places:
            asked = federation.request(study, schema, place.name)
            asked = replace(asked, unit="patient", epsilon=epsilon, delta=delta, masked=False)
            ledger = ledgers[place.name]
            admission = gate.admit(ledger, secrets[place.name], place.papers, asked)
            passages[place.name] = admission.passage
        for place in places:
            ledger = ledgers[place.name]
            gate.open_lifetime(place, ledger)
            ledger.open_study(
                account, Budget(epsilon, delta, accountant), normal_form(mechanism.event)
            )
        for name, ledger in ledgers.items():
            ledger.charge(account, 0, mechanism.event, contexts[name].mark, what=OVERLAP)
        marks = {name: context.mark.hex() for name, context in contexts.items()}
        kept = next(filter(None, (one.kept(marks[n]) for n, one in ledgers.items())), None)
        if kept is None:
            secret = joint_secret(secrets)
            people = attended(
                {p.name: patients_of(p, schema, passages[p.name], secret.hex()) for p in places}
            )
            root = root_key(secret, contexts[places[0].name], {}, people.fingerprint(), software())
            session = Session(
                people, mechanism.event, root, round_=0, site=places[0].name,
                noise=mechanism.multiplier,
            )  # fmt: skip
            kept = seal(opened({"people": session.release("people", mechanism, _several)}))
        count, sd = int(unseal(kept)["people"][0]), float(mechanism.sigma)
        for name, ledger in ledgers.items():
            if ledger.kept(marks[name]) is None:
                ledger.keep(marks[name], kept)
                facts = {"people": count, "noise": sd, "hospitals": len(places)}
                ledger.note(study.name, OVERLAP, facts)
    return {
        "study": study.name,
        "sites": [place.name for place in places],
        "people": count,
        "interval": [max(0, math.floor(count - 1.96 * sd)), max(0, math.ceil(count + 1.96 * sd))],
        "noise_sd": sd,
        "sensitivity": 1,
        "epsilon": epsilon,
        "delta": delta,
        "accountant": accountant,
        "account": account,
        "linked": study.link_people,
        "learns": LEARNS,
    }


def _several(block: Patients) -> Rows:
    """A person adds 1 if they attend two hospitals or more."""
    return (block.x >= 2).astype(np.float64), np.ones(block.rows)
