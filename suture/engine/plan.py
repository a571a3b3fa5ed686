"""What a study promises at each site, from public figures alone: the method, its network, its
noise, its ledger account."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

from dp_accounting.dp_event import DpEvent

from suture.engine.round import participants, rounds_of
from suture.errors import PrivacyError, StudyError
from suture.methods.base import Method, Phased
from suture.methods.registry import NOT_PRIVATE, Public, build
from suture.models.network import Network, shaped
from suture.privacy.accounting.events import (
    GAUSSIAN,
    ZCDP,
    NormalForm,
    Step,
    add,
    as_event,
    event_to_text,
    normal_form,
)
from suture.privacy.accounting.planner import SitePlan, noise_for, plan_schedule, plan_site
from suture.privacy.ledger.ledger import Budget
from suture.training.local import Local

if TYPE_CHECKING:
    from suture.engine.federation import World
    from suture.study import Study


POOLED = "all hospitals"
WITHOUT_PRIVACY = " (without privacy)"


def method_of(study: Study, world: World, name: str) -> Method:
    """The method object: built from the study and from the federation's public sizes and schema."""
    _suits(study, world, name)
    network = network_of(study, world)
    public = Public(world.schema, len(world.sizes), sum(world.sizes.values()), world.sizes)
    return build(name, study.method, network, local_settings(study), public)


def network_of(study: Study, world: World) -> Network:
    """The network: its shape follows from the study and from public declarations."""
    outputs, model = 1 if world.class_count == 2 else world.class_count, study.model
    return shaped(model.kind, model, len(world.features), outputs, world.base)


def _suits(study: Study, world: World, name: str) -> None:
    """Concepts are made from two outcomes and from values on the scale of their declared bounds."""
    if name not in ("veil", "veil-printed"):
        return
    if world.class_count != 2:
        raise StudyError(
            f"method {name!r} tells two outcomes apart, found {world.class_count} classes; use "
            "another method"
        )
    if study.model.scaling == "site":
        raise StudyError(
            f"method {name!r} reads values on the scale of their bounds; leave out model.scaling = "
            '"site"'
        )


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

    On real patients every seed trains on the same people, so the budget covers all seeds together;
    in a simulation each run has a budget of its own.
    """
    if study.privacy is None:
        return {}
    if built.name in NOT_PRIVATE:
        raise PrivacyError(NOT_PRIVATE[built.name])
    privacy, method = study.privacy, study.method
    sizes = {POOLED: sum(world.sizes.values())} if built.pooled else world.sizes
    takes_part = rounds_of(list(sizes), method.rounds, method.participation, study.seed)
    spare = study.protection.spare_rounds
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
    study: Study, world: World, built: Phased, sizes: Mapping[str, int]
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
    steps: dict[Step, int] = {}
    rho = 0.0
    for event in events:
        form = normal_form(event)
        rho = max(rho, sum(step.noise * count for step, count in form if step.kind == ZCDP))
        for step, count in form:
            if step.kind != ZCDP:
                steps[step] = max(steps.get(step, 0), count)
    if rho:
        steps[Step(ZCDP, rho, 1.0)] = 1
    return as_event(tuple(sorted(steps.items())))


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
