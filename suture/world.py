"""A study's federation on one machine: its sites, their public sizes, the plan, and then, only then, their rows.

The order is the promise: sizes are counted from the patient column alone, noise is planned from them, the budget is
written into each site's ledger, and after that clinical values are read.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from suture import cohorts
from suture.errors import DataError, LedgerError, PrivacyError, StudyError
from suture.evaluation.resampling import grouped_folds
from suture.federation import participants, rounds_of
from suture.methods import METHODS, NOT_PRIVATE, Public, build
from suture.methods.base import Method, Phased
from suture.models.dense import Dense
from suture.models.network import Network
from suture.models.residual import Residual
from suture.privacy.charter import Request
from suture.privacy.ledger import Budget, Ledger
from suture.privacy.mechanisms import derive, secure_key, seeded_key
from suture.privacy.planner import SitePlan, plan_schedule, plan_site
from suture.privacy.unit import concatenate
from suture.runfolder import write_whole
from suture.site.cohort import Loaded, SiteData, count_training_patients, load
from suture.site.gate import Admission, Papers, admit, note_counts
from suture.site.hospital import Hospital
from suture.site.image_column import ImageFiles
from suture.site.passage import Passage
from suture.site.records import Source
from suture.site.schema import Schema, feature_names
from suture.training.local import Local

if TYPE_CHECKING:
    from suture.site.consent import ConsentSpec
    from suture.study import Site, Study

POOLED = "all hospitals"
WITHOUT_PRIVACY = " (without privacy)"
LEDGER = "ledger.sqlite"
LEDGERS_ON_DISK = 200
"""With more generated sites than this their ledgers are kept in memory only: an open file each would be too many."""


@dataclass(frozen=True)
class Place:
    """Where one site's rows are, before any has been read."""

    name: str
    region: str
    source: Source
    test: Source | None
    home: Path | None
    """None for generated patients: ledger in the run folder or in memory, secret from the seed."""
    papers: Papers = field(default_factory=lambda: Papers(None, None))
    lifetime: Budget | None = None


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


def place_of(site: Site, base: Path) -> Place:
    """Where one site of a study file keeps everything; paths are relative to ``base``."""
    home = base / (site.home or Path(".suture") / site.name)
    consent = cast("ConsentSpec", site.consent.under(base)) if site.consent else None
    named = (base / site.charter if site.charter else None, base / site.trust if site.trust else None)
    lifetime = Budget(**site.lifetime.model_dump()) if site.lifetime else None
    if site.data is None:
        raise StudyError(
            f"site {site.name!r} has no data = ... here, so only the site itself can read its rows: run the study through "
            "the hub that the sites are connected to (suture run study.toml --hub HUB), or name the table"
        )
    return Place(
        site.name,
        site.region,
        site.data.under(base),
        site.test.under(base) if site.test else None,
        home,
        Papers.at(home, *named, consent),
        lifetime,
    )


def named_place(file: Path, site: str) -> Place:
    """One site of a study file, by name."""
    from suture.study import Study

    study = Study.from_toml(file)
    found = {item.name: item for item in study.sites}
    if site not in found:
        names = ", ".join(found) or "none: its patients are generated"
        raise StudyError(f"{file} has no site {site!r} of its own; it has: {names}")
    return place_of(found[site], file.resolve().parent)


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


def method_of(study: Study, world: World, name: str) -> Method:
    """The method object: built from the study and from the federation's public sizes and schema."""
    _suits(study, world, name)
    network = network_of(study, world)
    public = Public(world.schema, len(world.sizes), sum(world.sizes.values()), world.sizes)
    return build(name, study.method, network, local_settings(study), public)


def network_of(study: Study, world: World) -> Network:
    """The network: its shape follows from the study and from public declarations."""
    outputs, model = 1 if world.class_count == 2 else world.class_count, study.model
    if model.kind == "dense":
        return Dense((len(world.features), *model.hidden, outputs), model.activation)
    size = math.isqrt(len(world.features))
    if size * size != len(world.features):
        raise StudyError(
            f'model.kind = "residual" needs square images, found rows of {len(world.features)} numbers; use "dense" for tables'
        )
    weights = None if model.weights is None else str(world.base / model.weights)
    return Residual(size, model.depth, model.width, outputs, weights)


def _suits(study: Study, world: World, name: str) -> None:
    """Concepts are made from two outcomes and from values on the scale of their declared bounds."""
    if name not in ("veil", "veil-printed"):
        return
    if world.class_count != 2:
        raise StudyError(
            f"method {name!r} tells two outcomes apart, found {world.class_count} classes; use another method"
        )
    if study.model.scaling == "site":
        raise StudyError(f'method {name!r} reads values on the scale of their bounds; leave out model.scaling = "site"')


def local_settings(study: Study) -> Local:
    """The settings of local training."""
    spec = study.method
    return Local(
        epochs=spec.local_epochs,
        batch=spec.batch,
        rate=spec.rate,
        momentum=spec.momentum,
        class_weights=spec.class_weights,
        dropout=study.model.dropout,
        decay=spec.rate_decay,
        decays=spec.rate_steps,
        clip=study.privacy.clip if study.privacy else None,
        most_steps=spec.local_steps or 0,
    )


def plan(study: Study, world: World, built: Method, only: str | None = None) -> dict[str, SitePlan]:
    """The promise at each site (or ``only`` one) for one method, from public figures alone.

    On real patients every seed trains on the same people, so the budget covers all seeds together.
    """
    if study.privacy is None:
        return {}
    if built.name in NOT_PRIVATE:
        raise PrivacyError(NOT_PRIVATE[built.name])
    privacy, method = study.privacy, study.method
    sizes = {POOLED: sum(world.sizes.values())} if built.pooled else world.sizes
    takes_part = rounds_of(list(sizes), method.rounds, method.participation, study.seed)
    if isinstance(built, Phased):
        made = _phased(study, world, built, sizes)
        return made if only is None else {only: made[only]}
    if only is not None and not built.pooled:
        sizes = {only: sizes[only]}
    repeats = _repeats(study, world)
    return {
        site: plan_site(
            site,
            patients,
            method.batch,
            rounds=max(1, takes_part[site]) * repeats,
            local_epochs=method.local_epochs,
            local_steps=method.local_steps,
            epsilon=privacy.epsilon,
            noise_multiplier=privacy.noise_multiplier,
            delta=privacy.delta,
            accountant=privacy.accountant,
        )
        for site, patients in sizes.items()
    }


def _repeats(study: Study, world: World) -> int:
    """How many trainings one patient's budget covers: real patients are the same for every seed and most folds."""
    return 1 if world.generated else study.evaluation.seeds * max(1, study.evaluation.folds - 1)


def _phased(study: Study, world: World, built: Phased, sizes: Mapping[str, int]) -> dict[str, SitePlan]:
    """The plan of a method whose rounds differ: the rounds that a site takes part in, as often as there are seeds."""
    if study.privacy is None:
        return {}
    privacy, spec = study.privacy, study.method
    repeats = _repeats(study, world)
    turns: dict[str, list[int]] = {site: [] for site in sizes}
    for round_ in range(1, spec.rounds + 1):
        for site in participants(list(sizes), round_, spec.participation, study.seed):
            turns[site].append(round_)
    made: dict[tuple[int, tuple[int, ...]], SitePlan] = {}
    plans = {}
    for site, patients in sizes.items():
        rounds = tuple(turns[site] or [1]) * repeats
        # Where nothing depends on the number of patients, equal schedules are planned once.
        counted = patients if getattr(built, "by_size", False) else 1
        if (counted, rounds) not in made:
            made[counted, rounds] = plan_schedule(
                site,
                patients,
                lambda noise, rounds=rounds, counted=counted: [  # type: ignore[misc]
                    built.round_event(r, counted, noise) for r in rounds
                ],
                delta=privacy.delta,
                accountant=privacy.accountant,
                epsilon=privacy.epsilon,
                noise_multiplier=privacy.noise_multiplier,
            )
        plans[site] = replace(made[counted, rounds], site=site, patients=patients, batch=patients)
    return plans


def account(study: Study, world: World, method: str) -> str:
    """The ledger account of a method. Generated patients are new for every seed, so each seed has its own."""
    name = f"{study.name}/{method}/{world.seed}" if world.generated else f"{study.name}/{method}"
    if world.generated and world.fold is not None:
        name += f"/fold {world.fold}"
    return name if study.private else name + WITHOUT_PRIVACY


def budget(study: Study, planned: SitePlan | None) -> Budget:
    """What the ledger is told: the epsilon promised, or what the stated noise will cost over the planned rounds."""
    if study.privacy is None or planned is None:
        return Budget(float("inf"), 1e-5, "pld")
    return Budget(study.privacy.epsilon or planned.epsilon, study.privacy.delta, study.privacy.accountant)


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


def secret_of(place: Place, seed: int) -> bytes:
    """The site's secret: its own for real patients, derived from the seed for generated ones."""
    return seeded_key(seed, "site", place.name) if place.home is None else site_secret(place.home)


def open_ledger(place: Place, folder: Path | None) -> Ledger:
    """The site's own ledger; for generated patients one in the run folder, or in memory where ``folder`` is None."""
    if place.home is not None:
        _make(place.home)
        return Ledger.open(place.home / LEDGER, place.name)
    path = None if folder is None else folder / "ledgers" / f"{place.name}.sqlite"
    return Ledger.open(path, place.name, durable=False)


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


def note_skipped(home: Path, skipped: Sequence[str]) -> None:
    """The image files that were left out, by name, in the site's own folder: names may tell of patients."""
    _make(home)
    write_whole(home / "skipped-images.txt", ("\n".join(skipped) + "\n").encode())


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


def _make(home: Path) -> None:
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LedgerError(f"the site's home {home} cannot be made: {error}") from None


def site_secret(home: Path) -> bytes:
    """The site's secret: 32 bytes from the operating system, made once, readable by the site's user only."""
    path = home / "secret.key"
    _make(home)
    try:
        try:
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileExistsError:
            secret = path.read_bytes()
            if len(secret) != 32:
                raise LedgerError(
                    f"{path} should hold 32 bytes, found {len(secret)}; restore it from the site's backup. A new secret "
                    "is safe too, but then repeated releases are charged again"
                ) from None
            return secret
        with os.fdopen(handle, "wb") as file:
            secret = secure_key()
            file.write(secret)
            file.flush()
            os.fsync(file.fileno())
        return secret
    except OSError as error:
        raise LedgerError(f"the site's secret {path} cannot be read or written: {error}") from None
