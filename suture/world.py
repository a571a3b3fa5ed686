"""A study's federation on one machine: its sites, their public sizes, the plan, and then, only then, their rows.

The order is the promise: sizes are counted from the patient column alone, noise is planned from them, the budget is
written into each site's ledger, and after that clinical values are read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from suture import cohorts
from suture.errors import DataError, LedgerError, PrivacyError, StudyError
from suture.evaluation.resampling import grouped_folds
from suture.federation import participants, rounds_of
from suture.methods import Public, build
from suture.methods.base import Method, Phased
from suture.models.dense import Dense
from suture.privacy.ledger import Budget, Ledger
from suture.privacy.mechanisms import derive, secure_key, seeded_key
from suture.privacy.planner import SitePlan, plan_schedule, plan_site
from suture.privacy.unit import concatenate
from suture.site.cohort import Loaded, SiteData, count_training_patients, load
from suture.site.hospital import Hospital
from suture.site.records import Source
from suture.site.schema import Schema, feature_names
from suture.training.local import Local

if TYPE_CHECKING:
    from suture.study import Study

POOLED = "all hospitals"
WITHOUT_PRIVACY = " (without privacy)"
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


@dataclass
class World:
    """One federation: for real files the same for every seed, for a generated cohort fresh patients for each."""

    seed: int
    outcome: str
    schema: Schema
    generated: bool
    places: tuple[Place, ...]
    sizes: dict[str, int]
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    secrets: dict[str, bytes] = field(default_factory=dict)
    hospitals: dict[str, Hospital] = field(default_factory=dict)
    fold: int | None = None
    tested: dict[str, Hospital] = field(default_factory=dict)
    """With folds: hospitals that do not train here, all of whose patients are tested on."""

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the encoded columns, from the schema alone."""
        return feature_names(self.schema)


def survey(study: Study, base: Path, seed: int) -> World:
    """Find the sites and count their training patients; no clinical value is read."""
    if study.cohort is not None:
        options = study.cohort.options()
        fresh = 0.0 if study.evaluation.folds else study.evaluation.holdout
        cohort = cohorts.load(study.cohort.name, seed, **{"test_fraction": fresh, **options})
        if study.outcome != cohort.outcome:
            raise StudyError(
                f"study.outcome: cohort {cohort.name!r} has the outcome {cohort.outcome!r}, found {study.outcome!r}"
            )
        # Real patients keep their ledgers and secrets, wherever the run's folder goes.
        home = None if cohort.generated else base / ".suture" / cohort.name
        places = tuple(
            Place(site.name, site.region, site.table, site.test, home and home / site.name) for site in cohort.sites
        )
        schema = study.table or cohort.schema
        generated = cohort.generated
    else:
        places = tuple(
            Place(
                site.name,
                site.region,
                site.data.under(base),
                site.test.under(base) if site.test else None,
                base / site.home if site.home else base / ".suture" / site.name,
            )
            for site in study.sites
        )
        if study.table is None:
            raise StudyError("[[site]] tables need a [schema]")
        schema, generated = study.table, False
    sizes = {
        place.name: count_training_patients(
            place.source, schema, site=place.name, holdout=_holdout(study, place), split_key=str(study.seed)
        )
        for place in places
    }
    empty = [site for site, patients in sizes.items() if not patients]
    if empty:
        raise DataError(
            f"site {empty[0]!r}: every patient fell into the hold-out of {study.evaluation.holdout:g}, so there is nobody "
            "to train on; lower evaluation.holdout, or leave the site out of the study"
        )
    return World(seed, study.outcome, schema, generated, places, sizes)


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
                tested={name: _all_tested(whole.hospitals[name]) for name in out if name in whole.hospitals},
            )
        )
    return parts


def _all_tested(hospital: Hospital) -> Hospital:
    """A hospital whose training patients are test patients here. It trains nothing, so nothing is charged."""
    data = replace(hospital.data, test=hospital.data.train, test_groups={})
    return replace(hospital, data=data)


def method_of(study: Study, world: World, name: str) -> Method:
    """The method object: built from the study and from the federation's public sizes and schema."""
    network = Dense((len(world.features), *study.model.hidden, 1), study.model.activation)
    public = Public(world.schema, len(world.sizes), sum(world.sizes.values()))
    return build(name, study.method, network, local_of(study), public)


def local_of(study: Study) -> Local:
    """The settings of local training."""
    spec = study.method
    return Local(
        epochs=spec.local_epochs,
        batch=spec.batch,
        rate=spec.rate,
        momentum=spec.momentum,
        class_weights=spec.class_weights,
        clip=study.privacy.clip if study.privacy else None,
    )


def plan(study: Study, world: World, built: Method) -> dict[str, SitePlan]:
    """The promise at each site for one method, from public figures alone.

    On real patients every seed trains on the same people, so the budget covers all seeds together.
    """
    if study.privacy is None:
        return {}
    privacy, method = study.privacy, study.method
    sizes = {POOLED: sum(world.sizes.values())} if built.pooled else world.sizes
    if isinstance(built, Phased):
        return _phased(study, world, built, sizes)
    takes_part = rounds_of(list(sizes), method.rounds, method.participation, study.seed)
    repeats = _repeats(study, world)
    return {
        site: plan_site(
            site,
            patients,
            method.batch,
            rounds=max(1, takes_part[site]) * repeats,
            local_epochs=method.local_epochs,
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
    made: dict[tuple[int, ...], SitePlan] = {}
    plans = {}
    for site, patients in sizes.items():
        rounds = tuple(turns[site] or [1]) * repeats
        if rounds not in made:  # nothing here depends on the number of patients: equal schedules are planned once
            made[rounds] = plan_schedule(
                site,
                patients,
                lambda noise, rounds=rounds: [built.round_event(r, 1, noise) for r in rounds],  # type: ignore[misc]
                delta=privacy.delta,
                accountant=privacy.accountant,
                epsilon=privacy.epsilon,
                noise_multiplier=privacy.noise_multiplier,
            )
        plans[site] = replace(made[rounds], site=site, patients=patients, batch=patients)
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
        world.secrets[place.name] = (
            seeded_key(world.seed, "site", place.name) if place.home is None else _secret(place.home)
        )
        world.ledgers[place.name] = open_ledger(place, folder)
    for part, method in product(split(study, world), study.methods):
        name = account(study, part, method)
        plans = plan(study, part, method_of(study, part, method))
        for site in part.sizes:
            ledger = world.ledgers[site]
            if not study.private and ledger.promised(name.removesuffix(WITHOUT_PRIVACY)):
                raise PrivacyError(
                    f"site {site!r} has promised privacy to {study.name!r}; running it again without privacy would break "
                    "that promise. Keep the [privacy] table, or start a study under another name"
                )
            ledger.open_study(name, budget(study, plans.get(POOLED) or plans.get(site)))


def open_ledger(place: Place, folder: Path | None) -> Ledger:
    """The site's own ledger; for generated patients one in the run folder, or in memory where ``folder`` is None."""
    if place.home is not None:
        return Ledger.open(place.home / "ledger.sqlite", place.name)
    path = None if folder is None else folder / "ledgers" / f"{place.name}.sqlite"
    return Ledger.open(path, place.name, durable=False)


def read_rows(study: Study, world: World) -> None:
    """Fill the world's hospitals with rows."""
    for place in world.places:
        data = load(
            place.source,
            world.schema,
            world.outcome,
            site=place.name,
            holdout=_holdout(study, place),
            split_key=str(study.seed),
            test_source=place.test,
        )
        if data.train.patients != world.sizes[place.name]:
            raise DataError(
                f"site {place.name!r}: {world.sizes[place.name]} training patients were counted and "
                f"{data.train.patients} were read; the table changed in between. Run again on a table that stands still"
            )
        ledgers = (world.ledgers[place.name],)
        world.hospitals[place.name] = Hospital(place.name, data, ledgers, world.secrets[place.name], place.region)


def pool(hospitals: Mapping[str, Hospital]) -> Hospital:
    """All rows in one place, paid for from every hospital's ledger (simulation only)."""
    parts = list(hospitals.values())
    train = concatenate([part.data.train for part in parts])
    classes = np.bincount(train.y, minlength=2)
    loaded = Loaded(train.rows, train.patients, train.patients, 0, tuple(classes.tolist()))
    secret = derive(parts[0].secret, POOLED, *(part.secret for part in parts))
    ledgers = tuple(ledger for part in parts for ledger in part.ledgers)
    return Hospital(POOLED, SiteData(train, None, {}, loaded), ledgers, secret)


def _holdout(study: Study, place: Place) -> float:
    return 0.0 if place.test is not None or study.evaluation.folds else study.evaluation.holdout


def _secret(home: Path) -> bytes:
    """The site's secret: 32 bytes from the operating system, made once, readable by the site's user only."""
    path = home / "secret.key"
    try:
        home.mkdir(parents=True, exist_ok=True)
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
