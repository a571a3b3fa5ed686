"""`suture interop --before`: profiles of the columns before training, from all sites or at one.

- At one site (``site``): free, for that site's own eyes. There is nobody to compare with, so
  columns are held against the declared schema: never recorded, outside the bounds, recorded by
  outcome, without any spread.
- Across sites with ``epsilon``: each site releases its profile once, with noise, charged to its
  ledger under an account of its own (``<study>/interop``), before it leaves. Asking again for the
  same rows repeats the release and costs nothing.
- Across sites without it: exact profiles. Refused where the study promises privacy.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from suture.engine import federation
from suture.engine.plan import World
from suture.errors import PrivacyError, StudyError
from suture.interop.evidence import FEWEST, Finding, Words, label_of, recorded_by_outcome
from suture.interop.report import Report, of_profiles
from suture.privacy.accounting.events import normal_form
from suture.privacy.accounting.planner import Budget, plan_schedule
from suture.privacy.canonical import digest
from suture.privacy.door import Context, Session, opened, root_key
from suture.privacy.software import software
from suture.protection.envelope import seal, unseal
from suture.protection.secure_sum import Grid, Share
from suture.schema.table import Number, Schema
from suture.site import gate
from suture.site.cohort import SiteData, load
from suture.site.gate import Place, admit
from suture.site.profile import (
    Profile,
    contributions,
    from_sums,
    profile_columns,
    sensitivity,
    width,
)
from suture.site.reading import Passage
from suture.site.ready import charging
from suture.study import Study

OUTSIDE = 0.05
"""A share of values outside the bounds that is worth a question at the site itself."""


def check(
    study: Study, base: Path, *, epsilon: float | None = None, site: str | None = None
) -> Report:
    """The report before training: of one site by itself, or of all against each other."""
    if epsilon is not None and (epsilon <= 0 or site is not None):
        raise StudyError(
            "--epsilon must be above 0 and is for all sites together; a single site's own check is "
            "free"
        )
    if epsilon is None and site is None and study.private:
        raise PrivacyError(
            "this study promises privacy, so sites may not compare exact profiles: give --epsilon "
            "for noisy ones, charged to every ledger, or --site NAME for one site's own free check"
        )
    here = federation.survey(study, base, study.seed)
    if here.schema.image is not None:
        raise StudyError(
            "suture interop compares columns of numbers, categories and flags; this study's "
            "feature is an image"
        )
    if site is not None:
        return _alone(study, here, site)
    delta = 0.0
    if epsilon is None:
        profiles = {place.name: _profile(study, here, place) for place in here.places}
    else:
        if here.schema.patient is None:
            raise StudyError(
                "a private profile needs schema.patient: without patients there is nobody to "
                "promise to"
            )
        delta = study.privacy.delta if study.privacy else 1e-5
        accountant = study.privacy.accountant if study.privacy else "pld"
        profiles = _released(study, here, Budget(epsilon, delta, accountant))
    classes = here.target.count
    return of_profiles(
        study.name, profiles, here.schema, epsilon=epsilon, delta=delta, classes=classes
    )


def _columns(
    study: Study, here: World, place: Place, kind: str, passage: Passage | None = None
) -> SiteData:
    """The columns of those whom the site's gate lets pass: who is erased or withdrew is not in
    them."""
    admission = here.admissions.get(place.name)
    passage = passage or (admission.passage if admission else None)
    return load(
        place.source, here.schema, here.outcome, site=place.name, holdout=0.0,
        split_key=str(study.seed), target=here.target, passage=passage, profile=kind,
    )  # fmt: skip


def _profile(study: Study, here: World, place: Place) -> Profile:
    found = _columns(study, here, place, "exact").profile
    if found is None:
        raise StudyError(f"site {place.name!r}: no profile was taken")
    return found


def _released(study: Study, here: World, budget: Budget) -> dict[str, Profile]:
    """Ready, gate, promise, read, pay, release: in that order, site by site. A charter is asked
    about this epsilon."""
    federation.ask_ready(study, here, needed=True)
    account, classes = f"{study.name}/interop", here.target.count

    def share(noise: float) -> Share:
        size = width(here.schema, classes)
        return Share(Grid(sensitivity(here.schema), 1 / (2 * noise**2), size))

    planned = plan_schedule(
        "interop", 1, lambda noise: [share(noise).event], delta=budget.delta,
        accountant=budget.accountant, epsilon=budget.epsilon,
    )  # fmt: skip
    noise = planned.noise_multiplier
    mechanism = share(noise)
    found = {}
    for place in here.places:
        secret = gate.secret_of(place, here.seed)
        with closing(charging(place, None, study.digest)) as ledger:
            passage = None
            if place.home is not None:
                asked = federation.request(study, here.schema, place.name)
                asked = replace(asked, unit="patient", epsilon=budget.epsilon, delta=budget.delta)
                asked = replace(asked, masked=False)  # a profile is one site's own
                passage = admit(ledger, secret, place.papers, asked).passage
            gate.open_lifetime(place, ledger)
            ledger.open_study(account, budget, normal_form(mechanism.event))
            asked_for = digest((classes, mechanism))
            context = Context(
                study.digest, place.name, place.edition, account, "interop", 0, 0, 1, asked_for
            )
            ledger.charge(account, 1, mechanism.event, context.mark, what="profile")
            kept = ledger.kept(context.mark.hex())
            if kept is None:
                data = _columns(study, here, place, "clipped", passage)
                rows = data.columns or data.nobody
                root = root_key(secret, context, {}, rows.fingerprint(), software())
                event, name = mechanism.event, place.name
                session = Session(rows, event, root, round_=1, site=name, noise=noise)
                sealed = session.release(
                    "sums", mechanism, lambda block: contributions(block, here.schema, classes)
                )
                kept = seal(opened({"sums": sealed}))
                ledger.keep(context.mark.hex(), kept)
        sums = mechanism.grid.open(unseal(kept)["sums"].astype(np.int64))
        found[place.name] = from_sums(sums, here.schema, classes, mechanism.grid.noise)
    return found


def _alone(study: Study, here: World, site: str) -> Report:
    places = {place.name: place for place in here.places}
    if site not in places:
        raise StudyError(
            f"--site: the study has no site {site!r}; expected one of {', '.join(places)}"
        )
    profile, name = _profile(study, here, places[site]), f"{study.name}, {site}"
    classes, profiles = here.target.count, {site: profile}
    report = of_profiles(name, profiles, here.schema, epsilon=None, delta=0.0, classes=classes)
    items = [{**asdict(item), "learned": ""} for item in against_schema(site, profile, here.schema)]
    headline = f"{len(items)} questions to {site} before training."
    return {
        **report,
        "findings": items,
        "headline": headline if items else f"No question to {site}.",
        "nothing": "Every column is recorded, within its bounds, and for both outcomes alike.",
        "notices": [
            "One site by itself, held against the declared schema. Exact: for this site's own eyes."
        ],
        "method": [
            "A column is asked about if nobody has a value, if it never varies, if over "
            f"{OUTSIDE:.0%} of its values are outside the declared bounds, or if patients with and "
            "without the outcome have a value at rates that differ by more than 0.2."
        ],
        "tolerance": {},
        "command": f"suture interop --before STUDY --site {site}",
    }


def against_schema(site: str, profile: Profile, schema: Schema) -> list[Finding]:
    """What one site can see by itself, exactly and without a test."""
    found = []
    columns = [name for name, _ in profile_columns(schema)]
    for i, (name, feature) in enumerate(schema.features.items()):
        label, known = label_of(schema, name), float(profile.recorded[i].sum())
        words = []
        if not known:
            words.append(Words("never recorded", "lower", "No patient has a value."))
        elif isinstance(feature, Number):
            at = columns.index(name)
            low, high = (float(value) / known for value in profile.outside[i])
            mean, square = (float(p[at].sum()) / known for p in (profile.total, profile.squares))
            if low + high > OUTSIDE:
                bounds = f"{feature.low:g} to {feature.high:g} {feature.unit}".strip()
                detail = (
                    f"{low:.0%} of the values are below and {high:.0%} above the declared {bounds}."
                )
                side = "lower" if low > high else "higher"
                words.append(Words("outside the bounds", side, detail))
            if float(profile.patients.sum()) > 1 and square - mean * mean < 1e-9:
                words.append(Words("one value only", "narrower", "All values are the same."))
        if known and len(profile.patients) == 2 and profile.patients.min() >= FEWEST:
            without, having = (float(n) for n in profile.recorded[i] / profile.patients)
            if abs(having - without) > 0.2:
                detail = f"Recorded for {having:.0%} of patients with the outcome and {without:.0%} without."
                words.append(recorded_by_outcome(having > without, detail))
        certainty = "exact (these are your own rows)"
        found += [Finding.of((site, name, label), one, 0.0, certainty) for one in words]
    return found
