"""What a study promises at each site, from public figures alone: the method, its network, its noise, its ledger account."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from suture.errors import PrivacyError, StudyError
from suture.federation import participants, rounds_of
from suture.methods import NOT_PRIVATE, Public, build
from suture.methods.base import Method, Phased
from suture.models.dense import Dense
from suture.models.network import Network
from suture.models.residual import Residual
from suture.privacy.ledger import Budget
from suture.privacy.planner import SitePlan, plan_schedule, plan_site
from suture.training.local import Local

if TYPE_CHECKING:
    from suture.study import Study
    from suture.world import World


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
