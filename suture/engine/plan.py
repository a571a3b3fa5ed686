"""What a study promises at each site, from public figures alone: who takes part when, the method,
its network, its noise, its ledger account. All of it is one `Plan` per method, made once.

`World` is the federation that a plan is for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from dp_accounting.dp_event import DpEvent

from suture.errors import PrivacyError, StudyError
from suture.methods.base import Method
from suture.methods.declared import Public
from suture.methods.registry import build, declared
from suture.models.network import KINDS, Network, shaped
from suture.privacy.accounting.events import (
    GAUSSIAN,
    NormalForm,
    Step,
    add,
    amounts,
    event_to_text,
    normal_form,
    of_amounts,
)
from suture.privacy.accounting.planner import SitePlan, noise_for, plan_schedule, plan_site
from suture.privacy.ledger.ledger import Budget, Ledger
from suture.schema.outcome import TWO, Classes, Outcome
from suture.schema.record import Signer
from suture.schema.table import Schema, feature_names
from suture.site.gate import Admission, Place
from suture.site.hospital import Hospital
from suture.study import Study
from suture.training.local import Local

POOLED = "all hospitals"
WITHOUT_PRIVACY = " (without privacy)"


@dataclass(frozen=True)
class RemoteSite:
    """What a site that is elsewhere says about itself when it joins: public figures and the terms
    it takes part on."""

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
    """One federation: for real files the same for every seed, for a generated cohort fresh patients
    for each."""

    seed: int
    outcome: str
    schema: Schema
    generated: bool
    places: tuple[Place, ...]
    sizes: dict[str, int]
    target: Outcome = TWO
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
    remote: dict[str, RemoteSite] = field(default_factory=dict)
    """Where the sites are elsewhere: what they say about themselves. There are no hospitals here
    then."""
    plans: dict[tuple[int, str], Plan] = field(default_factory=dict)
    """By fold and method, once made (`plan_of`)."""
    ready: dict[str, Signer | None] = field(default_factory=dict)
    """For each site whose table must be checked: who signed that it is ready, if anybody did."""
    simulation: bool = False
    """Whether the study says so: real rows in the hands of whoever runs it, and nothing of it for
    release."""

    @property
    def simulated(self) -> bool:
        """Whether nobody outside is promised anything, so that every run has a ledger, a secret and
        a budget of its own."""
        return self.generated or self.simulation

    def warnings(self) -> list[str]:
        """What reading the rows brought up, for the result."""
        if self.remote:
            return [text for site in self.remote.values() for text in site.warnings]
        return [
            text for hospital in self.hospitals.values() for text in hospital.data.loaded.warnings
        ]

    def hear_ready(self, site: str, said: Mapping[str, object] | None) -> None:
        """Keep who signed at a site that is elsewhere, as it says, and nothing else that it says."""
        self.ready[site] = None
        if said is not None:
            self.ready[site] = {"by": str(said["by"])[:80], "when": str(said["when"])[:40]}

    def terms(self) -> dict[str, str | None]:
        """What each site's gate enforced, in words."""
        if self.remote:
            return {site: one.charter for site, one in self.remote.items()}
        return {site: admission.terms for site, admission in self.admissions.items()}

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the encoded columns, from the schema alone."""
        return feature_names(self.schema)


def participants(sites: Sequence[str], round_: int, fraction: float, seed: int) -> list[str]:
    """The sites of one round: a public draw, at least one site, in the study's order.

    >>> participants(["a", "b", "c", "d"], 1, 0.5, 42)
    ['a', 'c']
    >>> participants(["a", "b"], 1, 1.0, 42)
    ['a', 'b']
    """
    if fraction >= 1:
        return list(sites)
    count = max(1, round(fraction * len(sites)))
    rng = np.random.default_rng([seed, 7, round_])
    chosen = set(rng.choice(len(sites), count, replace=False).tolist())
    return [site for i, site in enumerate(sites) if i in chosen]


def rounds_of(sites: Sequence[str], rounds: int, fraction: float, seed: int) -> dict[str, int]:
    """How often each site takes part: known before training, so the noise can be planned for it."""
    if fraction >= 1:
        return dict.fromkeys(sites, rounds)
    counts = dict.fromkeys(sites, 0)
    for round_ in range(1, rounds + 1):
        for site in participants(sites, round_, fraction, seed):
            counts[site] += 1
    return counts


def first_rounds(sites: Sequence[str], rounds: int, fraction: float, seed: int) -> dict[str, int]:
    """The first round of each site that takes part at all: before it, no patient of the site can be
    in the model.

    >>> first_rounds(["a", "b", "c", "d"], 9, 0.5, 42)
    {'a': 1, 'c': 1, 'b': 2, 'd': 4}
    """
    found: dict[str, int] = {}
    for round_ in range(1, rounds + 1):
        for site in participants(sites, round_, fraction, seed):
            found.setdefault(site, round_)
        if len(found) == len(sites):
            break
    return found


def method_of(study: Study, world: World, name: str) -> Method:
    """The method object: built from the study and from the federation's public sizes and schema."""
    public = public_of(study, world)
    return build(name, study.method, network_of(study, world), local_settings(study), public)


def public_of(study: Study, world: World) -> Public:
    """What everybody knows about the federation."""
    return Public(
        world.schema,
        len(world.sizes),
        sum(world.sizes.values()),
        world.sizes,
        outcome=world.target,
        epsilon=study.privacy.epsilon if study.privacy else None,
        masked=study.protection.sum == "masked",
        images=world.schema.image is not None,
        featured=KINDS[study.model.kind].featured,
        scaling=study.model.scaling,
        delta=study.privacy.delta if study.privacy else 1e-5,
        honest=study.protection.honest_of(len(world.sizes)),
    )


def network_of(study: Study, world: World) -> Network:
    """The network: its shape follows from the study and from public declarations."""
    kind = study.model.kind if isinstance(world.target, Classes) else "hazards"
    if kind == "hazards" and study.model.kind != "dense":
        raise StudyError(
            f"model.kind = {study.model.kind!r} tells classes apart; an outcome with follow-up needs "
            '"dense"'
        )
    return shaped(kind, study.model, len(world.features), world.target.outputs, world.base)


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


@dataclass(frozen=True)
class Plan:
    """One method's part in a study, from public figures alone. Made once for a federation (or a
    fold of it) and carried through the run."""

    method: Method
    sites: Mapping[str, SitePlan]
    """The promise at each site, or at the one site whose table is here; empty without privacy."""
    account: str
    evaluation: Evaluation | None


def plan_of(study: Study, world: World, name: str) -> Plan:
    """The plan of one of the study's methods in this federation."""
    key = (world.fold or 0, name)
    if key not in world.plans:
        method = method_of(study, world, name)
        alone = world.places[0].name if len(world.places) == 1 else None
        sites = _promises(study, world, method, alone)
        tested = evaluation(study, world, name) if method.predicts else None
        method = method.planned(next((one.noise_multiplier for one in sites.values()), None))
        world.plans[key] = Plan(method, sites, account(study, world, name), tested)
    return world.plans[key]


def _promises(
    study: Study, world: World, built: Method, only: str | None = None
) -> dict[str, SitePlan]:
    """The promise at each site (or ``only`` one) for one method.

    On real patients every seed trains on the same people, so the budget covers all seeds together;
    in a simulation each run has a budget of its own.
    """
    if study.privacy is None:
        return {}
    if declared(built.name).unproven:
        raise PrivacyError(declared(built.name).unproven)
    privacy, method = study.privacy, study.method
    sizes = {POOLED: sum(world.sizes.values())} if built.pooled else world.sizes
    takes_part = rounds_of(list(sizes), method.rounds, method.participation, study.seed)
    spare = study.protection.spare_rounds
    if only is not None and only not in world.sizes:
        return {}
    if built.phased:
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
            rounds=(max(1, takes_part[site]) + spare) * repeats,
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
    """How many trainings one patient's budget covers: real patients are the same for every seed and
    most folds."""
    return 1 if world.simulated else study.evaluation.seeds * max(1, study.evaluation.folds - 1)


def _phased(
    study: Study, world: World, built: Method, sizes: Mapping[str, int]
) -> dict[str, SitePlan]:
    """The plan of a method whose rounds differ: the rounds that a site takes part in, as often as
    there are seeds."""
    if study.privacy is None:
        return {}
    privacy, spec = study.privacy, study.method
    repeats = _repeats(study, world)
    turns: dict[str, list[int]] = {site: [] for site in sizes}
    for round_ in range(1, spec.rounds + 1):
        for site in participants(list(sizes), round_, spec.participation, study.seed):
            turns[site].append(round_)
    made: dict[tuple[int, tuple[str, ...]], SitePlan] = {}
    plans = {}
    for site, patients in sizes.items():
        rounds = tuple(turns[site] or [1])
        # Equal schedules are planned once: what a site is asked is known by what it would cost at
        # noise 1.
        counted = patients if built.by_size else 1
        asked = tuple(event_to_text(built.round_event(r, site, counted, 1.0)) for r in rounds)
        if (counted, asked) not in made:

            def events(
                noise: float,
                site: str = site,
                counted: int = counted,
                rounds: tuple[int, ...] = rounds,
            ) -> list[DpEvent]:
                once = [built.round_event(r, site, counted, noise) for r in rounds]
                return (once + [dearest(once)] * study.protection.spare_rounds) * repeats

            made[counted, asked] = plan_schedule(
                site,
                patients,
                events,
                delta=privacy.delta,
                accountant=privacy.accountant,
                epsilon=privacy.epsilon,
                noise_multiplier=privacy.noise_multiplier,
            )
        plans[site] = replace(made[counted, asked], site=site, patients=patients, batch=patients)
    return plans


def dearest(events: Sequence[DpEvent]) -> DpEvent:
    """What a spare round may cost: as much as any of the rounds, so that it can stand in for each
    of them.

    >>> from dp_accounting import ZCDpEvent
    >>> dearest([ZCDpEvent(0.1), ZCDpEvent(0.3)])
    ZCDpEvent(rho=0.3, xi=0.0)
    """
    most: dict[Step, float] = {}
    for event in events:
        for step, amount in amounts(normal_form(event)).items():
            most[step] = max(most.get(step, 0.0), amount)
    return of_amounts(most)


def account(study: Study, world: World, method: str) -> str:
    """The ledger account of a method. Generated patients are new for every seed, and a simulation
    promises nobody anything: each seed and each fold then has its own."""
    name = f"{study.name}/{method}"
    if world.simulated:
        name += f"/{world.seed}" + ("" if world.fold is None else f"/fold {world.fold}")
    return name if study.private else name + WITHOUT_PRIVACY


@dataclass(frozen=True)
class Evaluation:
    """What a site may release about its test patients after a training: once for each seed and
    fold, with this noise."""

    account: str
    budget: Budget
    noise: float
    times: int

    @property
    def plan(self) -> NormalForm:
        """All of it."""
        return ((Step(GAUSSIAN, self.noise, 1.0), self.times),)


def evaluation(study: Study, world: World, method: str) -> Evaluation | None:
    """The noisy evaluation of real patients, where the study asks for one."""
    privacy, epsilon = study.privacy, study.evaluation.epsilon
    if privacy is None or epsilon is None or world.simulated:
        return None
    times = study.evaluation.seeds * max(1, study.evaluation.folds)
    noise = noise_for(epsilon, privacy.delta, 1.0, times, privacy.accountant)
    promise = Budget(epsilon, privacy.delta, privacy.accountant)
    return Evaluation(f"{account(study, world, method)}/evaluation", promise, noise, times)


def budget(study: Study, planned: SitePlan | None) -> Budget:
    """What the ledger is told: the epsilon promised, or what the stated noise will cost over the
    planned rounds."""
    if study.privacy is None or planned is None:
        return Budget(float("inf"), 1e-5, "pld")
    return Budget(
        study.privacy.epsilon or planned.epsilon, study.privacy.delta, study.privacy.accountant
    )


def reserved(plans: Sequence[SitePlan]) -> NormalForm:
    """Everything that an account may be charged, which the site's ledger reserves as a whole.

    Each plan covers all trainings of the account; where folds of hospitals differ in it, each fold
    has its share.
    """
    whole = {normal_form(planned.spent_after(planned.rounds_paid)) for planned in plans}
    if len(whole) == 1:
        return whole.pop()
    shares = (
        normal_form(planned.spent_after(planned.rounds_paid // len(plans))) for planned in plans
    )
    return reduce(add, shares, ())
