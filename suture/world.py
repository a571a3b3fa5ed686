"""A study's federation on one machine: its sites, their public sizes, the plan, and then, only then, their rows.

The order is the promise: sizes are counted from the patient column alone, noise is planned from them, the budget is
written into each site's ledger, and after that clinical values are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from suture import cohorts
from suture.errors import DataError, PrivacyError, StudyError
from suture.evaluation.resampling import grouped_folds
from suture.federation import participants
from suture.methods import METHODS
from suture.places import LEDGER, Place, note_skipped, open_ledger, place_of, secret_of, site_secret
from suture.planning import POOLED, account, budget, method_of, plan
from suture.privacy.charter import Request
from suture.privacy.ledger import Ledger
from suture.privacy.mechanisms import derive
from suture.privacy.unit import concatenate
from suture.site.cohort import Loaded, SiteData, count_training_patients, load
from suture.site.gate import Admission, admit, note_counts
from suture.site.hospital import Hospital
from suture.site.image_column import ImageFiles
from suture.site.passage import Passage
from suture.site.schema import Schema, feature_names

if TYPE_CHECKING:
    from suture.study import Study

LEDGERS_ON_DISK = 200
"""With more generated sites than this their ledgers are kept in memory only: an open file each would be too many."""


@dataclass(frozen=True)
class Told:
    """What a site that is elsewhere says about itself when it joins: public figures and the terms it takes part on."""

    patients: int
    region: str = ""
    generated: bool = False
    charter: str | None = None
    """The charter it enforces, in words; None: no charter."""
    exact_metrics: bool = False
    described: Mapping[str, Any] = field(default_factory=dict)
    """Exact counts and shares, where patients are generated or nothing is promised."""
    warnings: tuple[str, ...] = ()


@dataclass
class World:
    """One federation: for real files the same for every seed, for a generated cohort fresh patients for each."""

    seed: int
    outcome: str
    schema: Schema
    generated: bool
    places: tuple[Place, ...]
    sizes: dict[str, int]
    classes: int | tuple[str, ...] = 2
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    secrets: dict[str, bytes] = field(default_factory=dict)
    hospitals: dict[str, Hospital] = field(default_factory=dict)
    admissions: dict[str, Admission] = field(default_factory=dict)
    """What the gate of each site with real patients decided."""
    fold: int | None = None
    tested: dict[str, Hospital] = field(default_factory=dict)
    """With folds: hospitals that do not train here, all of whose patients are tested on."""
    base: Path = Path()
    """What paths in the study are relative to."""
    names: tuple[str, ...] = ()
    """All sites of the study in order, also those that are not looked at here."""
    told: dict[str, Told] = field(default_factory=dict)
    """Where the sites are elsewhere: what they say about themselves. There are no hospitals here then."""

    def warnings(self) -> list[str]:
        """What reading the rows brought up, for the result."""
        if self.told:
            return [text for site in self.told.values() for text in site.warnings]
        return [text for hospital in self.hospitals.values() for text in hospital.data.loaded.warnings]

    def terms(self) -> dict[str, str | None]:
        """What each site's gate enforced, in words."""
        if self.told:
            return {site: told.charter for site, told in self.told.items()}
        return {site: admission.terms for site, admission in self.admissions.items()}

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the encoded columns, from the schema alone."""
        return feature_names(self.schema)

    @property
    def class_count(self) -> int:
        """How many outcomes are told apart."""
        return self.classes if isinstance(self.classes, int) else len(self.classes)


def survey(study: Study, base: Path, seed: int, only: str | None = None, place: Place | None = None) -> World:
    """Find the sites and count their training patients; no clinical value is read.

    At one site of a federation ``only`` is its name and ``place`` where its rows are; the others are not looked at. An
    ``only`` that no site has looks at none: what is public (schema, names) is found all the same.
    """
    if study.cohort is not None:
        cohort = _cohort_of(study, seed)
        # Real patients keep a secret and a ledger of their own, wherever the run's folder goes; generated ones need neither.
        homes = None if cohort.generated else base / ".suture" / cohort.name
        places = tuple(
            Place(site.name, site.region, site.table, site.test, homes and homes / site.name) for site in cohort.sites
        )
        schema = study.table or cohort.schema
        if study.images is not None and schema.image_size != study.images.size:
            found = "no images" if schema.image_size is None else f"images of {schema.image_size} x {schema.image_size}"
            raise StudyError(
                f"images.size is {study.images.size}, but cohort {cohort.name!r} has {found}; correct [images]"
            )
        generated, classes = cohort.generated, study.classes or cohort.classes
        if study.private and schema.patient is None:
            raise StudyError(
                f"cohort {cohort.name!r} has no patient column, so no promise can be made to a patient; leave [privacy] out"
            )
        names = tuple(found.name for found in places)
    else:
        names = tuple(site.name for site in study.sites)
        places = (place,) if place else tuple(place_of(site, base) for site in study.sites if only in (None, site.name))
        if study.table is None:
            raise StudyError("[[site]] tables need a [schema]")
        schema, generated, classes = study.table, False, study.classes or 2
    places = tuple(found for found in places if only in (None, found.name))
    # Every site decides before any site is read.
    admissions = {place.name: _admit(study, schema, place, place.home) for place in places if place.home is not None}
    sizes = {place.name: _count(study, schema, place, admissions.get(place.name), base) for place in places}
    empty = [site for site, patients in sizes.items() if not patients]
    if empty:
        raise DataError(
            f"site {empty[0]!r}: every patient fell into the hold-out of {study.evaluation.holdout:g}, so there is nobody "
            "to train on; lower evaluation.holdout, or leave the site out of the study"
        )
    here = World(
        seed, study.outcome, schema, generated, places, sizes, classes, admissions=admissions, base=base, names=names
    )
    weights = study.method.class_weights
    if isinstance(weights, tuple) and len(weights) != here.class_count:
        raise StudyError(f"method.class_weights needs one weight a class ({here.class_count}), found {len(weights)}")
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
            'cohort split = "paper" shuffles, so one patient more moves others between training and test, and no promise '
            "to a patient holds; under [privacy] leave split out and set evaluation.holdout"
        )
    cohort = cohorts.load(study.cohort.name, seed, **options)
    if study.outcome != cohort.outcome:
        raise StudyError(
            f"study.outcome: cohort {cohort.name!r} has the outcome {cohort.outcome!r}, found {study.outcome!r}"
        )
    return cohort


def request(study: Study, schema: Schema, site: str) -> Request:
    """What the study asks of a site, in the words that a charter answers to."""
    regions = {other.name: other.region for other in study.sites}
    return Request(
        study=study.name,
        outcome=study.outcome,
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
    )


def _admit(study: Study, schema: Schema, place: Place, home: Path) -> Admission:
    if place.papers.none and not (home / LEDGER).exists():  # nothing to enforce: leave no trace before rows are read
        return Admission(None, Passage(""))
    with closing(open_ledger(place, None)) as ledger:
        return admit(ledger, site_secret(home), place.papers, request(study, schema, place.name))


def images_of(study: Study, base: Path) -> ImageFiles | None:
    """Where the study's image files are, if it has any."""
    return ImageFiles(base, study.images.folder, study.images.broken) if study.images else None


def _count(study: Study, schema: Schema, place: Place, admission: Admission | None, base: Path) -> int:
    passage = admission.passage if admission else None
    holdout, key = _holdout(study, place), str(study.seed)
    patients = count_training_patients(
        place.source,
        schema,
        site=place.name,
        holdout=holdout,
        split_key=key,
        passage=passage,
        images=images_of(study, base),
    )
    if passage is not None and passage.kept_back:
        with closing(open_ledger(place, None)) as ledger:
            note_counts(ledger, study.name, passage)
    return patients


def split(study: Study, whole: World) -> list[World]:
    """The federations that train: the whole one, or one for each fold of hospitals. From names and sizes alone."""
    if not study.evaluation.folds:
        return [whole]
    if study.evaluation.folds > len(whole.sizes):
        raise StudyError(
            f"evaluation.folds: {study.evaluation.folds} folds need as many sites, found {len(whole.sizes)}"
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
                hospitals={name: whole.hospitals[name] for name in inside if name in whole.hospitals},
                tested={name: _all_tested(whole, name) for name in out if name in whole.hospitals},
            )
        )
    return parts


def _all_tested(whole: World, name: str) -> Hospital:
    """A hospital whose training patients are test patients here. It trains nothing, so nothing is charged.

    Where its charter withholds exact figures, nobody is tested on: no figure about its patients is computed.
    """
    hospital, admission = whole.hospitals[name], whole.admissions.get(name)
    allowed = admission is None or admission.exact_metrics
    return replace(hospital, data=replace(hospital.data, test=hospital.data.train if allowed else None, test_groups={}))


def promise(study: Study, world: World, folder: Path | None) -> None:
    """Open every site's ledger and write each method's budget into it, before any clinical value is read.

    Training without privacy has an account of its own, and is refused where privacy was promised before.
    """
    if len(world.places) > LEDGERS_ON_DISK:
        folder = None
    for place in world.places:
        world.secrets[place.name] = secret_of(place, world.seed)
        world.ledgers[place.name] = open_ledger(place, folder)
        if place.lifetime is not None:
            world.ledgers[place.name].open_lifetime(place.lifetime)
    others = [f"{study.name}/{other}" for other in METHODS]
    for part, method in product(split(study, world), study.methods):
        name = account(study, part, method)
        here = [place.name for place in part.places]
        plans = plan(study, part, method_of(study, part, method), here[0] if len(here) == 1 else None) if here else {}
        for site in here:
            ledger = world.ledgers[site]
            if not study.private and not world.generated and any(map(ledger.promised, others)):
                raise PrivacyError(
                    f"site {site!r} has promised privacy to {study.name!r}; running it again without privacy would break "
                    "that promise. Keep the [privacy] table, or start a study under another name"
                )
            ledger.open_study(name, budget(study, plans.get(POOLED) or plans.get(site)))


def profiled(study: Study) -> bool:
    """Whether exact profiles of the columns belong to the run: sites show their layers, and nothing is promised."""
    return study.method.share_layers and not study.private and "ifedavg" in study.methods


def read_rows(study: Study, world: World) -> None:
    """Fill the world's hospitals with rows."""
    for place in world.places:
        data = load_site(study, world, place)
        if data.train.patients != world.sizes[place.name]:
            raise DataError(
                f"site {place.name!r}: {world.sizes[place.name]} training patients were counted and "
                f"{data.train.patients} were read; the table changed in between. Run again on a table that stands still"
            )
        ledgers = (world.ledgers[place.name],)
        world.hospitals[place.name] = Hospital(place.name, data, ledgers, world.secrets[place.name], place.region)


def load_site(study: Study, world: World, place: Place) -> SiteData:
    """One site's rows, of those whom its gate lets pass. Where exact figures may not leave, none are computed."""
    admission = world.admissions.get(place.name)
    data = load(
        place.source,
        world.schema,
        world.outcome,
        site=place.name,
        holdout=_holdout(study, place),
        split_key=str(study.seed),
        test_source=place.test,
        classes=world.classes,
        passage=admission.passage if admission else None,
        scaling=study.model.scaling,
        profile="exact" if profiled(study) and world.schema.image is None else "",
        images=images_of(study, world.base),
    )
    if data.loaded.skipped and place.home is not None:
        note_skipped(place.home, data.loaded.skipped)
    if admission is None or admission.exact_metrics:
        return data
    return SiteData(data.train, None, {}, replace(data.loaded, warnings=(), test_patients=0))


def pool(hospitals: Mapping[str, Hospital]) -> Hospital:
    """All rows in one place, paid for from every hospital's ledger (simulation only)."""
    parts = list(hospitals.values())
    train = concatenate([part.data.train for part in parts])
    classes = np.bincount(train.y, minlength=len(parts[0].data.loaded.class_rows))
    loaded = Loaded(train.rows, train.patients, train.patients, 0, tuple(classes.tolist()))
    secret = derive(parts[0].secret, POOLED, *(part.secret for part in parts))
    ledgers = tuple(ledger for part in parts for ledger in part.ledgers)
    return Hospital(POOLED, SiteData(train, None, {}, loaded), ledgers, secret)


def _holdout(study: Study, place: Place) -> float:
    return 0.0 if place.test is not None or study.evaluation.folds else study.evaluation.holdout
