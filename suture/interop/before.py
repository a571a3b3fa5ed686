"""The check before training: profiles of the columns, from all sites or at one.

- At one site (``site``): free, for that site's own eyes. There is nobody to compare with, so columns are held against
  the declared schema: never recorded, outside the bounds, recorded by outcome, without any spread.
- Across sites with ``epsilon``: each site releases its profile once, with noise, charged to its ledger under an account
  of its own (``<study>/interop``), before it leaves. Asking again for the same rows repeats the release and costs nothing.
- Across sites without it: exact profiles. Refused where the study promises privacy.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from suture import places, world
from suture.errors import PrivacyError, StudyError
from suture.interop.evidence import FEWEST
from suture.interop.findings import Finding
from suture.interop.shifts import of_profiles
from suture.places import Place
from suture.privacy.budget import Budget
from suture.privacy.calibration import dpsgd_event, noise_for
from suture.privacy.mechanisms import derive
from suture.privacy.release import Release
from suture.site.cohort import load
from suture.site.gate import admit
from suture.site.passage import Passage
from suture.site.profile import Profile, profile_columns, protect
from suture.site.schema import Number, Schema
from suture.study import Study
from suture.world import World

OUTSIDE = 0.05
"""A share of values outside the bounds that is worth a question at the site itself."""


def check(study: Study, base: Path, *, epsilon: float | None = None, site: str | None = None) -> dict[str, Any]:
    """The report before training: of one site by itself, or of all against each other."""
    if epsilon is not None and (epsilon <= 0 or site is not None):
        raise StudyError("--epsilon must be above 0 and is for all sites together; a single site's own check is free")
    if epsilon is None and site is None and study.private:
        raise PrivacyError(
            "this study promises privacy, so sites may not compare exact profiles: give --epsilon for noisy ones, charged "
            "to every ledger, or --site NAME for one site's own free check"
        )
    here = world.survey(study, base, study.seed)
    if here.schema.image is not None:
        raise StudyError(
            "suture interop compares columns of numbers, categories and flags; this study's feature is an image"
        )
    if site is not None:
        return _alone(study, here, site)
    if epsilon is None:
        profiles = {place.name: _profile(study, here, place, "exact") for place in here.places}
        return of_profiles(study.name, profiles, here.schema, epsilon=None, delta=0.0, classes=here.class_count)
    if here.schema.patient is None:
        raise StudyError("a private profile needs schema.patient: without patients there is nobody to promise to")
    delta = study.privacy.delta if study.privacy else 1e-5
    accountant = study.privacy.accountant if study.privacy else "pld"
    profiles = _released(study, here, Budget(epsilon, delta, accountant))
    return of_profiles(study.name, profiles, here.schema, epsilon=epsilon, delta=delta, classes=here.class_count)


def _profile(study: Study, here: World, place: Place, kind: str, passage: Passage | None = None) -> Profile:
    """The profile of those whom the site's gate lets pass: who is erased or withdrew is not in it."""
    admission = here.admissions.get(place.name)
    passage = passage or (admission.passage if admission else None)
    data = load(
        place.source,
        here.schema,
        here.outcome,
        site=place.name,
        holdout=0.0,
        split_key=str(study.seed),
        classes=here.classes,
        passage=passage,
        profile=kind,
    )
    if data.profile is None:
        raise StudyError(f"site {place.name!r}: no profile was taken")
    return data.profile


def _released(study: Study, here: World, budget: Budget) -> dict[str, Profile]:
    """Gate, promise, read, pay, release: in that order, site by site. A charter is asked about this epsilon."""
    account = f"{study.name}/interop"
    noise = noise_for(budget.epsilon, budget.delta, 1.0, 1, budget.accountant)
    event = dpsgd_event(noise, 1.0, 1)
    found = {}
    for place in here.places:
        secret = places.secret_of(place, here.seed)
        ledger = places.open_ledger(place, None)
        try:
            passage = None
            if place.home is not None:
                asked = world.request(study, here.schema, place.name)
                asked = replace(asked, unit="patient", epsilon=budget.epsilon, delta=budget.delta)
                passage = admit(ledger, secret, place.papers, asked).passage
            if place.lifetime is not None:
                ledger.open_lifetime(place.lifetime)
            ledger.open_study(account, budget)
            exact = _profile(study, here, place, "clipped", passage)
            content = repr((exact.to_dict(), here.schema.model_dump_json(), noise)).encode()
            mark = derive(secret, "profile", content)
            receipt = ledger.charge(account, 1, event, mark)
            noisy = protect(exact, here.schema, noise, derive(secret, "randomness", mark))
            names = ("patients", "recorded", "total", "squares")
            Release({name: getattr(noisy, name) for name in names}, event, receipt)  # nothing leaves but as one
            found[place.name] = noisy
        finally:
            ledger.close()
    return found


def _alone(study: Study, here: World, site: str) -> dict[str, Any]:
    places = {place.name: place for place in here.places}
    if site not in places:
        raise StudyError(f"--site: the study has no site {site!r}; expected one of {', '.join(places)}")
    profile = _profile(study, here, places[site], "exact")
    report = of_profiles(
        f"{study.name}, {site}", {site: profile}, here.schema, epsilon=None, delta=0.0, classes=here.class_count
    )
    items = [{**item.to_dict(), "learned": ""} for item in against_schema(site, profile, here.schema)]
    return {
        **report,
        "findings": items,
        "headline": f"{len(items)} questions to {site} before training." if items else f"No question to {site}.",
        "nothing": "Every column is recorded, within its bounds, and for both outcomes alike.",
        "notices": ["One site by itself, held against the declared schema. Exact: for this site's own eyes."],
        "method": [
            f"A column is asked about if nobody has a value, if it never varies, if over {OUTSIDE:.0%} of its values are "
            "outside the declared bounds, or if patients with and without the outcome have a value at rates that differ "
            "by more than 0.2."
        ],
        "tolerance": {},
        "command": f"suture interop --before STUDY --site {site}",
    }


def against_schema(site: str, profile: Profile, schema: Schema) -> list[Finding]:
    """What one site can see by itself, exactly and without a test."""
    found, everybody = [], float(profile.patients.sum())
    columns = [name for name, _ in profile_columns(schema)]
    exact = "exact (these are your own rows)"
    for i, (name, feature) in enumerate(schema.features.items()):
        label = feature.label or name.replace("_", " ")
        there = float(profile.recorded[i].sum())
        if there == 0:
            found.append(_own(site, name, label, "never recorded", "lower", "No patient has a value.",
                              f"{label} is not in your table, or under another name or code.",
                              f"Is {label} measured, and under which name?", exact))  # fmt: skip
            continue
        low, high = (float(value) / there for value in profile.outside[i])
        if isinstance(feature, Number) and low + high > OUTSIDE:
            side = "lower" if low > high else "higher"
            bounds = f"{feature.low:g} to {feature.high:g} {feature.unit}".strip()
            found.append(_own(site, name, label, "outside the bounds", side,
                              f"{low:.0%} of the values are below and {high:.0%} above the declared {bounds}.",
                              f"{label} is probably in another unit here, or a code such as 0 stands for missing.",
                              f"In which unit is {label} written?", exact))  # fmt: skip
        share = profile.recorded[i] / profile.patients.clip(1.0)
        if len(share) == 2 and profile.patients.min() >= FEWEST and abs(share[1] - share[0]) > 0.2:
            side = "more for positives" if share[1] > share[0] else "more for negatives"
            found.append(_own(site, name, label, "recorded by outcome", side,
                              f"Recorded for {share[1]:.0%} of patients with the outcome and {share[0]:.0%} without.",
                              "A model can read the outcome off the gap.",
                              f"When is {label} written down, and for whom is it left out?", exact))  # fmt: skip
        if isinstance(feature, Number) and everybody > 1:
            at = columns.index(name)
            mean = float(profile.total[at].sum()) / there
            if float(profile.squares[at].sum()) / there - mean * mean < 1e-9:
                found.append(_own(site, name, label, "one value only", "narrower", "All values are the same.",
                                  f"{label} is a default or a code.", f"Where does {label} come from?", exact))  # fmt: skip
    return found


def _own(
    site: str, feature: str, label: str, kind: str, direction: str, detail: str, means: str, ask: str, sure: str
) -> Finding:
    return Finding(site, feature, label, kind, direction, detail, 0.0, sure, means, ask)
