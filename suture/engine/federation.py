"""A study's federation on one machine: its sites, their public sizes, the plan, and then, only
then, their rows.

The order is the promise: sizes are declared in the study, noise is planned from them, the budget is
written into each site's ledger, and after that rows are read. Only where nobody is promised
anything (generated patients, a simulation, a study without [privacy]) are sizes counted, from the
patient column alone.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

import numpy as np

from suture import cohorts
from suture.engine.plan import POOLED, World, budget, participants, plan_of, reserved
from suture.errors import CharterError, PrivacyError, StudyError
from suture.evaluation.significance import grouped_folds
from suture.methods.registry import declared, known
from suture.privacy.accounting.planner import SitePlan
from suture.privacy.charter import Request
from suture.privacy.ledger.ledger import Ledger
from suture.privacy.noise.source import derive
from suture.privacy.unit import concatenate
from suture.schema.outcome import TWO, Classes
from suture.schema.table import Schema
from suture.site.cohort import Loaded, SiteData, count_training_patients, load, refusal
from suture.site.gate import (
    LEDGER,
    Admission,
    Place,
    admit,
    consented,
    note_counts,
    note_skipped,
    open_ledger,
    open_lifetime,
    passage_of,
    place_of,
    secret_of,
    site_secret,
)
from suture.site.hospital import Hospital
from suture.site.images import ImageFiles
from suture.site.people import joint_secret, kept_elsewhere, patients_of
from suture.site.reading import Passage, check_readable
from suture.site.ready import charging, demand, ready_of
from suture.study import Study

LEDGERS_ON_DISK = 200
"""With more generated sites than this their ledgers are kept in memory only: an open file each
would be too many."""


def survey(
    study: Study, base: Path, seed: int, only: str | None = None, place: Place | None = None
) -> World:
    """Find the sites and their public sizes. Where a size is declared, nothing of the table but its
    columns' names is read.

    At one site of a federation ``only`` is its name and ``place`` where its rows are; the others
    are not looked at. An ``only`` that no site has looks at none: what is public (schema, names) is
    found all the same.
    """
    if study.simulation and only is not None:
        raise StudyError(
            "simulation = true has no network: it is research on tables that whoever runs it "
            "holds. Run it on one machine "
            "(--engine embedded), or remove it and declare patients = ... in every [[site]]"
        )
    if study.cohort is not None:
        cohort = _cohort_of(study, seed)
        # Real patients keep a secret and a ledger of their own, wherever the run's folder goes;
        # generated ones need neither.
        homes = None if cohort.generated else base / ".suture" / cohort.name
        places = tuple(
            Place(site.name, site.region, site.table, site.test, homes and homes / site.name)
            for site in cohort.sites
        )
        schema = study.table or cohort.schema
        if study.images is not None and schema.image_size != study.images.size:
            found = (
                "no images"
                if schema.image_size is None
                else f"images of {schema.image_size} x {schema.image_size}"
            )
            raise StudyError(
                f"images.size is {study.images.size}, but cohort {cohort.name!r} has {found}; "
                "correct [images]"
            )
        generated, target = cohort.generated, study.target or Classes(written=cohort.classes)
        if study.private and schema.patient is None:
            raise StudyError(
                f"cohort {cohort.name!r} has no patient column, so no promise can be made to a "
                "patient; leave [privacy] out"
            )
        if study.private and not generated and not study.simulation:
            raise StudyError(
                f"cohort {cohort.name!r} holds real patients, whose number nobody declares: under "
                "[privacy] it is for "
                "research on one machine only. Write simulation = true in [study]"
            )
        names = tuple(found.name for found in places)
    else:
        names = tuple(site.name for site in study.sites)
        places = (
            (place,)
            if place
            else tuple(place_of(site, base) for site in study.sites if only in (None, site.name))
        )
        if study.table is None:
            raise StudyError("[[site]] tables need a [schema]")
        schema, generated, target = study.table, False, study.target or TWO
    places = tuple(found for found in places if only in (None, found.name))
    # Every site decides before any site is read.
    admissions = {
        place.name: _admit(study, schema, place, place.home)
        for place in places
        if place.home is not None
    }
    if study.simulation:
        places = tuple(replace(place, home=None) for place in places)
    sizes = {
        place.name: _size(study, schema, place, admissions.get(place.name), base)
        for place in places
    }
    here = World(
        seed,
        study.column,
        schema,
        generated,
        places,
        sizes,
        target,
        admissions=admissions,
        base=base,
        names=names,
        simulation=study.simulation,
    )
    weights = study.method.class_weights
    if isinstance(weights, tuple) and len(weights) != target.count:
        raise StudyError(
            f"method.class_weights needs one weight a class ({target.count}), found {len(weights)}"
        )
    return here


def _cohort_of(study: Study, seed: int) -> cohorts.Cohort:
    """The built-in federation that a study names."""
    if study.cohort is None:
        raise StudyError("the study names no cohort")
    options = study.cohort.options()
    if cohorts.takes(study.cohort.name, "test_fraction"):
        fresh = 0.0 if study.evaluation.folds else study.evaluation.holdout
        options = {"test_fraction": fresh, **options}
    if study.images is not None and cohorts.takes(study.cohort.name, "size"):
        options = {"size": study.images.size, **options}
    if study.private and options.get("split") == "paper":
        raise StudyError(
            'cohort split = "paper" shuffles, so one patient more moves others between training '
            "and test, and no promise "
            "to a patient holds; under [privacy] leave split out and set evaluation.holdout"
        )
    cohort = cohorts.load(study.cohort.name, seed, **options)
    if (
        not cohort.generated and seed != study.seed
    ):  # real patients are the same, and at the same sites, for every seed
        cohort = cohorts.load(study.cohort.name, study.seed, **options)
    if isinstance(study.outcome, str) and study.outcome != cohort.outcome:
        raise StudyError(
            f"study.outcome: cohort {cohort.name!r} has the outcome {cohort.outcome!r}, found "
            f"{study.outcome!r}"
        )
    return cohort


def request(study: Study, schema: Schema, site: str) -> Request:
    """What the study asks of a site, in the words that a charter answers to."""
    regions = {other.name: other.region for other in study.sites}
    return Request(
        study=study.name,
        plan=study.digest,
        outcome=study.asked,
        features=tuple(schema.features),
        groups=schema.groups,
        cohort=schema.include,
        site=site,
        regions=regions,
        sites_a_round=len(participants(list(regions), 1, study.method.participation, study.seed)),
        unit=study.privacy.unit if study.privacy else None,
        epsilon=study.privacy.epsilon if study.privacy else None,
        delta=study.privacy.delta if study.privacy else None,
        methods=study.methods,
        describe=bool(study.evaluation.describe),
        masked=study.protection.sum == "masked",
    )


def _admit(study: Study, schema: Schema, place: Place, home: Path) -> Admission:
    if study.simulation:
        return _admit_simulation(study, place, home)
    if (
        place.papers.none and not (home / LEDGER).exists()
    ):  # nothing to enforce: leave no trace before rows are read
        return Admission(None, Passage(""))
    with closing(open_ledger(place, None)) as ledger:
        return admit(ledger, site_secret(home), place.papers, request(study, schema, place.name))


def _admit_simulation(study: Study, place: Place, home: Path) -> Admission:
    """A simulation leaves the site's ledger alone; who is erased or does not consent stays out of
    it all the same."""
    if place.papers.charter is not None or place.papers.trust is not None:
        raise CharterError(
            f"site {place.name!r} takes part under a signed charter only, which simulation = true "
            "would go round; run the "
            "study without it, as approved"
        )
    return Admission(None, passing(study, place, home))


def passing(study: Study, place: Place, home: Path) -> Passage:
    """Who passes at a site, found without a trace in its ledger."""
    if not (home / LEDGER).exists():
        today, fresh = datetime.now(UTC).date(), Passage(secrets.token_hex(16))
        return consented(fresh, place.papers, study.name, today, place.name)
    with closing(Ledger.read(home / LEDGER)) as ledger:
        return passage_of(ledger, site_secret(home), place.papers, study.name, place.name)


def images_of(study: Study, base: Path) -> ImageFiles | None:
    """Where the study's image files are, if it has any."""
    return ImageFiles(base, study.images.folder, study.images.broken) if study.images else None


def _size(
    study: Study, schema: Schema, place: Place, admission: Admission | None, base: Path
) -> int:
    """The public size: as declared, or counted where the study may count. Nobody at all counts as
    one: noise has a scale."""
    declared = study.declared(place.name)
    if declared is not None:
        check_readable(place.source, schema, study.column, site=place.name, survival=study.survival)
        return declared
    if (
        study.private and place.home is not None
    ):  # the study says so itself, but for a copy that lost the size
        raise StudyError(
            f"site {place.name!r} declares no size, and a table is not counted for a study that "
            "promises privacy: write "
            "patients = 1000 (a round number, about as many as train there) in its [[site]]"
        )
    counted = count_training_patients(
        place.source,
        schema,
        site=place.name,
        holdout=holdout(study, place),
        split_key=str(study.seed),
        passage=admission.passage if admission else None,
        images=images_of(study, base),
    )
    return max(1, counted)


def split(study: Study, whole: World) -> list[World]:
    """The federations that train: the whole one, or one for each fold of hospitals. From names and
    sizes alone."""
    if not study.evaluation.folds:
        return [whole]
    if study.evaluation.folds > len(whole.sizes):
        raise StudyError(
            f"evaluation.folds: {study.evaluation.folds} folds need as many sites, found "
            f"{len(whole.sizes)}"
        )
    parts = []
    for i, out in enumerate(grouped_folds(whole.sizes, study.evaluation.folds, study.seed)):
        inside = [name for name in whole.sizes if name not in out]
        parts.append(
            replace(
                whole,
                fold=i + 1,
                places=tuple(place for place in whole.places if place.name not in out),
                sizes={name: whole.sizes[name] for name in inside},
                hospitals={
                    name: whole.hospitals[name] for name in inside if name in whole.hospitals
                },
                tested={
                    name: _all_tested(study, whole, name) for name in out if name in whole.hospitals
                },
                held={name: whole.sizes[name] for name in whole.sizes if name in out},
            )
        )
    return parts


def _exact(study: Study, world: World, site: str) -> bool:
    """Whether exact figures about a site's test patients may be computed: never about real patients
    under a promise, and otherwise as the site's charter says."""
    if study.private and not world.simulated:
        return False
    admission = world.admissions.get(site)
    return admission is None or admission.exact_metrics


def _all_tested(study: Study, whole: World, name: str) -> Hospital:
    """A hospital whose training patients are test patients here. It trains nothing. Where exact
    figures may not leave, its patients are kept for the charged evaluation."""
    hospital = whole.hospitals[name]
    train = hospital.data.train
    shown, hidden = (train, None) if _exact(study, whole, name) else (None, train)
    return replace(
        hospital, data=replace(hospital.data, test=shown, reserved=hidden, test_groups={})
    )


def ask_ready(study: Study, world: World, *, needed: bool, signed_as: str = "") -> None:
    """Who at each site has signed that its table is ready for this study; refused where it is
    needed and nobody has."""
    ask = demand if needed else ready_of
    for place in world.places:
        if place.needs_ready:
            world.ready[place.name] = ask(place, signed_as or study.digest, checked_as(study))


def checked_as(study: Study) -> str:
    """The table for which a ready counts as this study's: a statistic needs no other."""
    statistic = all(declared(name).model == "none" for name in study.methods)
    return study.table_digest if statistic else ""


def promise(
    study: Study,
    world: World,
    folder: Path | None,
    *,
    ready_needed: bool = True,
    signed_as: str = "",
) -> None:
    """Open every site's ledger and write each method's budget into it, before any clinical value is
    read, and only where a person has said that the table is ready (``signed_as``: for the study
    with this digest, of which this one is a repetition).

    Training without privacy has an account of its own, and is refused where privacy was promised
    before.
    """
    ask_ready(study, world, needed=ready_needed, signed_as=signed_as)
    if len(world.places) > LEDGERS_ON_DISK:
        folder = None
    for place in world.places:
        world.secrets[place.name] = secret_of(place, world.seed)
        word = (signed_as or study.digest, checked_as(study))
        world.ledgers[place.name] = charging(place, folder, *word, needed=ready_needed)
        open_lifetime(place, world.ledgers[place.name], private=study.private)
    others = [f"{study.name}/{other}" for other in known()]
    planned: dict[tuple[str, str], list[SitePlan | None]] = {}
    for part, method in product(split(study, world), study.methods):
        here = [place.name for place in part.places]
        if not here:
            continue
        plan = plan_of(study, part, method)
        name, plans = plan.account, plan.sites
        for site in here:
            ledger = world.ledgers[site]
            if not study.private and not world.simulated and any(map(ledger.promised, others)):
                raise PrivacyError(
                    f"site {site!r} has promised privacy to {study.name!r}; running it again "
                    "without privacy would break "
                    "that promise. Keep the [privacy] table, or start a study under another name"
                )
            planned.setdefault((site, name), []).append(plans.get(POOLED) or plans.get(site))
    for (site, name), found in planned.items():
        made = [one for one in found if one is not None]
        for one in found:
            world.ledgers[site].open_study(
                name, budget(study, one), reserved(made) if made else None
            )


def profiled(study: Study) -> bool:
    """Whether exact profiles of the columns belong to the run: sites show their layers, and nothing
    is promised."""
    shown = (declared(name) for name in study.methods)
    return not study.private and any(
        one.shows_layers(study.method.own(one.settings)) for one in shown
    )


def read_rows(study: Study, world: World, *, strict: bool = True) -> None:
    """Fill the world's hospitals with rows.

    Whoever runs a study on one machine holds the rows, and is told everything that is wrong with
    them (``strict``). A site of a network trains on what it can use, whatever the rows hold, and
    keeps `Loaded.problems` to itself.
    """
    if study.link_people:
        _link(study, world)
    for place in world.places:
        data = load_site(study, world, place, strict=strict)
        admission = world.admissions.get(place.name)
        if place.home is not None and admission is not None and admission.passage.kept_back:
            note_counts(world.ledgers[place.name], study.name, admission.passage)
        ledgers = (world.ledgers[place.name],)
        world.hospitals[place.name] = Hospital(
            place.name,
            data,
            ledgers,
            world.secrets[place.name],
            place.region,
            place.edition,
            keeps=place.home is not None,
        )


def _link(study: Study, world: World) -> None:
    """Let every person take part at one of their hospitals; the others hold their rows back."""
    passages = {name: admission.passage for name, admission in world.admissions.items()}
    secret = joint_secret(world.secrets)
    keys = {
        place.name: patients_of(place, world.schema, passages[place.name], secret.hex())
        for place in world.places
    }
    for name, elsewhere in kept_elsewhere(keys, secret).items():
        passages[name].linked, passages[name].elsewhere = secret.hex(), elsewhere


def load_site(study: Study, world: World, place: Place, *, strict: bool = True) -> SiteData:
    """One site's rows, of those whom its gate lets pass. Where exact figures may not leave, none
    are computed."""
    admission = world.admissions.get(place.name)
    data = load(
        place.source,
        world.schema,
        world.outcome,
        site=place.name,
        holdout=holdout(study, place),
        split_key=str(study.seed),
        test_source=place.test,
        target=world.target,
        passage=admission.passage if admission else None,
        scaling=study.model.scaling,
        profile="exact" if profiled(study) and world.schema.image is None else "",
        images=images_of(study, world.base),
    )
    if data.loaded.skipped and place.home is not None:
        note_skipped(place.home, data.loaded.skipped)
    if strict and data.loaded.problems:
        raise refusal(place.source, place.name, data.loaded)
    # Nobody to train on counts as one, as in `_size`: the mechanism needs a size.
    declared = study.declared(place.name) or (None if data.train.patients else 1)
    data = replace(data, train=replace(data.train, declared=declared))
    if _exact(study, world, place.name):
        return data
    withheld = replace(data.loaded, warnings=(), test_patients=0)
    return SiteData(data.train, None, {}, withheld, reserved=data.test)


def pool(hospitals: Mapping[str, Hospital]) -> Hospital:
    """All rows in one place, paid for from every hospital's ledger (simulation only)."""
    parts = list(hospitals.values())
    train = concatenate([part.data.train for part in parts])
    rows = np.sum([part.data.loaded.class_rows for part in parts], axis=0)
    loaded = Loaded(train.rows, train.patients, train.patients, 0, tuple(rows.tolist()))
    secret = derive(parts[0].secret, POOLED, *(part.secret for part in parts))
    ledgers = tuple(ledger for part in parts for ledger in part.ledgers)
    return Hospital(
        POOLED, SiteData(train, None, {}, loaded), ledgers, secret, keeps=parts[0].keeps
    )


def holdout(study: Study, place: Place) -> float:
    """The share of a site's patients that is tested on."""
    return 0.0 if place.test is not None or study.evaluation.folds else study.evaluation.holdout
