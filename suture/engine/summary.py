"""What goes into ``result.json``: means and intervals over seeds, comparisons, the privacy
statement, the cohort.

Everything here is plain values computed from outcomes; nothing reads rows except `describing`,
which describes generated patients (or real ones where the study has no promise to keep, or asks for
it) and says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import product
from typing import Any

import numpy as np
from dp_accounting import NoOpDpEvent

from suture.engine.describe import described_cohort, describes
from suture.engine.federation import profiled, split
from suture.engine.plan import POOLED, World, network_of, participants, plan_of, rounds_of
from suture.evaluation.groups import worst
from suture.evaluation.significance import over_seeds, paired_t, welch_t
from suture.methods.registry import declared, references
from suture.privacy.accounting import accountant
from suture.privacy.accounting.events import as_event, compose, normal_form
from suture.privacy.software import VERSION
from suture.privacy.statement import Facts, no_privacy_statement, statement
from suture.schema.record import Statement
from suture.study import Study

Metrics = dict[str, float | None]
SITES_PER_SEED = 50
"""Up to so many sites, every seed's metrics are kept site by site too (the spread over clients and
seeds)."""
CURVE_POINTS = 12
"""At how many rounds the epsilon spent so far is computed for the privacy-utility curve."""


@dataclass(frozen=True)
class Outcome:
    """What one training (a method and a seed) gave."""

    seed: int
    overall: Metrics
    sites: dict[str, Metrics]
    groups: dict[str, dict[str, Metrics]]
    history: list[dict[str, Any]]
    roc: dict[str, list[float]]
    calibration: dict[str, list[Any]]
    epsilon: dict[str, float]
    noise: dict[str, float]
    bytes_up: int
    bytes_down: int
    rounds: int
    stopped: str | None
    seconds: float
    label: str
    facts: dict[str, Any] = field(default_factory=dict)
    """What else the method has to say about its model, such as FedCluster's groups."""
    fairness: dict[str, dict[str, Any]] = field(default_factory=dict)
    """For each group column: gaps between the groups, intervals, every group's rates."""
    thresholds: dict[str, Any] = field(default_factory=dict)
    """The same where sites decide by thresholds of their own for each protected group."""
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """For a method that mixes models: metrics and gaps of each model by itself."""
    absent: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Sites that missed rounds they were asked in."""
    protection: dict[str, Any] = field(default_factory=dict)
    """What was rejected or shortened, what masks cost and how far rounding can have moved a
    mean."""
    evaluation: dict[str, Any] = field(default_factory=dict)
    """On real patients: the figures of the charged evaluation, or why it stopped."""


def summarise(
    study: Study,
    world: World,
    outcomes: Mapping[str, Sequence[Outcome]],
    warnings: Sequence[str],
    command: str,
) -> dict[str, Any]:
    """The content of ``result.json``."""
    together = _together(study, world, outcomes)
    found = {
        name: _method(study, world, name, runs, together) for name, runs in outcomes.items() if runs
    }
    lead = found[study.method.name]
    data: dict[str, Any] = {
        "suture": VERSION,
        "format": 1,
        "release": release_terms(study, world),
        "name": study.name,
        "outcome": study.asked,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": study.seed,
        "seeds": [study.seed + i for i in range(study.evaluation.seeds)],
        "command": command,
        "method": study.method.name,
        **{key: lead[key] for key in ("metrics", "privacy", "communication", "history")},
        "methods": found,
        "cohort": described_cohort(study, world),
        "model": {
            **network_of(study, world).described(),
            **world.target.plain(),
            "scaling": study.model.scaling,
            # An image is one feature to a reader; its pixels' names would be thousands.
            "features": list(
                world.features if world.schema.image is None else world.schema.features
            ),
            "schema": world.schema.model_dump(mode="json", exclude_none=True),
        },
        "study": study.without_passwords().to_dict(),
        "warnings": list(warnings),
        "references": references(study.methods, study.private),
    }
    if world.ready:
        data["ready"] = world.ready
    if profiled(study):
        data["profiles"] = {
            name: hospital.data.profile.to_dict()
            for name, hospital in world.hospitals.items()
            if hospital.data.profile is not None
        }
    comparison = _comparison(study, outcomes)
    if comparison:
        data["comparison"] = comparison
    return data


def release_terms(study: Study, world: World) -> dict[str, Any]:
    """Whose patients these are, and whether the result holds exact figures about them: then it is
    not for release as it is."""
    kind = "generated" if world.generated else "simulation" if study.simulation else "real"
    shown = (
        any(site.exact_metrics for site in world.remote.values())
        if world.remote
        else any(hospital.data.test is not None for hospital in world.hospitals.values())
    )
    exact = kind == "real" and (shown or describes(study, world))
    return {
        "patients": kind,
        "exact": exact,
        "words": _RELEASE[kind] if kind != "real" or exact else "",
    }


_RELEASE = {
    "generated": "",
    "simulation": "SIMULATION, NOT FOR RELEASE: every run had a budget of its own, and no site's ledger was charged.",
    "real": "NOT FOR RELEASE AS IT IS: metrics and descriptions here are exact figures about real patients, which no budget "
    "paid for. A copy without them: suture report RUN --for-release FOLDER",
}


def _method(
    study: Study,
    world: World,
    name: str,
    runs: Sequence[Outcome],
    together: Mapping[str, float] | None,
) -> dict[str, Any]:
    overall, intervals = over_seeds([run.overall for run in runs])
    sites, site_intervals = _nested([run.sites for run in runs])
    groups = {group: _nested([run.groups[group] for run in runs])[0] for group in runs[0].groups}
    metrics: dict[str, Any] = {"global": overall, "sites": sites, "groups": groups}
    fair = {column: _fair([run.fairness[column] for run in runs]) for column in runs[0].fairness}
    if fair := fair | _withheld_gaps(study, world, name, runs[0]):
        metrics["fairness"] = fair
    if runs[0].thresholds:
        metrics["group_thresholds"] = _fair([run.thresholds for run in runs])
    if runs[0].parts:
        metrics["parts"] = {
            name: {
                "global": over_seeds([run.parts[name]["global"] for run in runs])[0],
                "fairness": _nested([run.parts[name]["fairness"] for run in runs])[0],
            }
            for name in runs[0].parts
        }
    lowest = worst(sites)
    metrics["mean_site"] = _mean_of(sites)
    metrics["worst_site"] = (
        {"site": lowest, **sites[lowest]} if lowest else {"site": None, **dict.fromkeys(overall)}
    )
    if len(runs) > 1:
        metrics["intervals"] = {"global": intervals, "sites": site_intervals}
    if any(run.evaluation for run in runs):
        metrics["evaluation"] = evaluated = _evaluated(runs)
        if evaluated["intervals"]:
            metrics["intervals"] = evaluated.pop("intervals")
    last = runs[0]
    stops = [run.stopped for run in runs if run.stopped]
    return {
        "label": last.label,
        "metrics": metrics,
        "per_seed": [
            {
                "seed": run.seed,
                "global": run.overall,
                **({"sites": run.sites} if len(sites) <= SITES_PER_SEED else {}),
                **({"parts": run.parts} if run.parts else {}),
                **(
                    {"fairness": {column: _plain(found) for column, found in run.fairness.items()}}
                    if run.fairness
                    else {}
                ),
            }
            for run in runs
        ],
        "privacy": _privacy(study, world, runs, name, together),
        "communication": {
            "bytes_up": round(float(np.mean([run.bytes_up for run in runs]))),
            "bytes_down": round(float(np.mean([run.bytes_down for run in runs]))),
            "rounds": last.rounds,
        },
        "history": _history(study, world, runs, name),
        "roc": last.roc,
        "calibration": last.calibration,
        "rounds_planned": study.method.rounds,
        "rounds_done": min(run.rounds for run in runs),
        "stopped": stops[0] if stops else None,
        "dropouts": _dropouts(runs),
        "facts": last.facts,
        "protection": _protection(study, last),
        "seconds": round(sum(run.seconds for run in runs), 3),
    }


def _evaluated(runs: Sequence[Outcome]) -> dict[str, Any]:
    """The charged evaluation of real patients: what it cost, all its figures in the last seed, and
    intervals whose ends are means over seeds, each of which covers noise and sampling."""
    known = [run.evaluation for run in runs if "all" in run.evaluation]
    if not known:
        return {**runs[-1].evaluation, "intervals": {}}

    def mean(ends: Sequence[Mapping[str, list[float] | None]]) -> dict[str, list[float]]:
        names = dict.fromkeys(name for one in ends for name in one)
        found = {name: [given for one in ends if (given := one.get(name))] for name in names}
        return {name: np.mean(given, axis=0).tolist() for name, given in found.items() if given}

    spans = [found["intervals"] for found in known]
    named = dict.fromkeys(site for one in spans for site in one["sites"])
    sites = {site: mean([one["sites"].get(site, {}) for one in spans]) for site in named}
    whole = mean([one["global"] for one in spans])
    return {**known[-1], "intervals": {"global": whole, "sites": sites}}


def _withheld_gaps(study: Study, world: World, name: str, run: Outcome) -> dict[str, Any]:
    """About real patients under a promise: the columns of groups that no noisy count was made of,
    each with the reason in place of its gaps."""
    method = plan_of(study, world, name).method
    if not study.private or world.simulated or not method.predicts or not world.target.two:
        return {}
    why = (
        f"the evaluation stopped: {run.evaluation['stopped']}"
        if "stopped" in run.evaluation
        else "only a column that schema.features declares as a category or a flag is counted"
        if run.evaluation
        else "the study plans no evaluation (evaluation.epsilon)"
    )
    none: dict[str, Any] = dict.fromkeys(("parity_gap", "odds_gap", "opportunity_gap"))
    none |= {"intervals": {}, "groups": {}, "withheld": why}
    return {column: dict(none) for column in world.schema.groups if column not in run.fairness}


def _plain(found: Mapping[str, Any]) -> Metrics:
    """The figures of a fairness record, without names, intervals and groups."""
    return {key: value for key, value in found.items() if isinstance(value, float) or value is None}


def _fair(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Fairness over seeds: means and intervals over seeds, or with one seed its own bootstrap
    intervals."""
    means, intervals = over_seeds([_plain(found) for found in records])
    groups = _nested([found["groups"] for found in records])[0]
    known = [name for name in groups if groups[name].get("accuracy") is not None]
    lowest = min(known, key=lambda name: groups[name]["accuracy"] or 0.0, default=None)
    kept = {"column": records[0]["column"]} if "column" in records[0] else {}
    shown = intervals if len(records) > 1 else records[0]["intervals"]
    return {**kept, **means, "worst_group": lowest, "intervals": shown, "groups": groups}


def _dropouts(runs: Sequence[Outcome]) -> dict[str, dict[str, Any]]:
    """Sites that missed rounds they were asked in, over all seeds: how many, and why the last
    time."""
    found: dict[str, dict[str, Any]] = {}
    for run in runs:
        for site, missed in run.absent.items():
            so_far = found.setdefault(site, {"rounds": 0})
            so_far.update(rounds=so_far["rounds"] + missed["rounds"], why=missed["why"])
    return found


def _protection(study: Study, run: Outcome) -> dict[str, Any] | None:
    """How updates were put together, in the last seed's own figures; None for the usual mean."""
    if study.protection.plain and not run.protection:
        return None
    return {**study.protection.model_dump(mode="json"), **run.protection}


def _mean_of(sites: Mapping[str, Metrics]) -> Metrics:
    """The plain mean over sites of every metric: what the typical hospital, not the typical
    patient, gets."""
    names = dict.fromkeys(name for found in sites.values() for name in found if name != "rows")
    known = {
        name: [v for found in sites.values() if (v := found.get(name)) is not None]
        for name in names
    }
    return {name: float(np.mean(values)) if values else None for name, values in known.items()}


def _nested(
    records: Sequence[Mapping[str, Metrics]],
) -> tuple[dict[str, Metrics], dict[str, dict[str, list[float]]]]:
    """Means and intervals over seeds for every site or group value that any seed has."""
    means: dict[str, Metrics] = {}
    intervals: dict[str, dict[str, list[float]]] = {}
    for key in dict.fromkeys(key for record in records for key in record):
        means[key], intervals[key] = over_seeds(
            [record[key] for record in records if key in record]
        )
    return means, intervals


def _history(
    study: Study, world: World, runs: Sequence[Outcome], name: str
) -> list[dict[str, Any]]:
    """Every round's metrics, averaged over the seeds that reached it, with the epsilon spent where
    it was computed."""
    spent = _epsilon_by_round(study, world, runs, name)
    entries = []
    for i in range(max(len(run.history) for run in runs)):
        here = [run.history[i] for run in runs if i < len(run.history)]
        overall, intervals = over_seeds([entry["global"] for entry in here])
        entry: dict[str, Any] = {"round": here[0]["round"], "global": overall}
        if intervals:
            entry["intervals"] = intervals
        entry["sites"] = _nested([item["sites"] for item in here])[0]
        for kind in ("fairness", "groups"):
            if here[0].get(kind):
                records = [item[kind] for item in here if item.get(kind)]
                entry[kind] = _by_kind(kind, records)
        entry["epsilon"] = spent.get(entry["round"])
        entries.append(entry)
    return entries


def _by_kind(kind: str, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One round's gaps by column, or rates by column and group, averaged over seeds."""
    if kind == "fairness":
        return _nested(records)[0]
    return {column: _nested([record[column] for record in records])[0] for column in records[0]}


def _epsilon_by_round(
    study: Study, world: World, runs: Sequence[Outcome], name: str
) -> dict[int, float]:
    """Epsilon of the worst hospital after some of the rounds, by the study's accountant; with
    folds, of the first fold."""
    if study.privacy is None or not runs[0].rounds:
        return {}
    part = next(iter(split(study, world)))
    plans = plan_of(study, part, name).sites
    leader = max(plans, key=lambda site: plans[site].epsilon)
    last = runs[0].rounds
    chosen = sorted({round(r) for r in np.linspace(1, last, min(last, CURVE_POINTS))})
    spent, taken = {}, 0
    for round_ in range(1, last + 1):
        taken += leader in participants(list(plans), round_, study.method.participation, study.seed)
        if round_ in chosen:
            event = plans[leader].spent_after(taken)
            spent[round_] = accountant.epsilon(event, study.privacy.delta, study.privacy.accountant)
    return spent


def _together(
    study: Study, world: World, outcomes: Mapping[str, Sequence[Outcome]]
) -> dict[str, float] | None:
    """Epsilon per hospital of everything that all methods of a comparison sent about the same real
    patients."""
    if study.privacy is None or world.generated or len(study.methods) < 2:
        return None
    events: dict[str, list[tuple[Any, int]]] = {site: [] for site in world.sizes}
    # A run of one fold is known by the hospitals that trained in it.
    for (name, runs), part in product(outcomes.items(), split(study, world)):
        plans = plan_of(study, part, name).sites
        for run in runs:
            if run.epsilon.keys() != part.sizes.keys():
                continue
            taken = rounds_of(list(plans), run.rounds, study.method.participation, study.seed)
            for site in part.sizes:
                key = POOLED if declared(name).moves_rows else site
                if taken[key]:
                    beside = as_event(plans[key].beside) if plans[key].beside else NoOpDpEvent()
                    spent = compose([(plans[key].spent_after(taken[key]), 1), (beside, 1)])
                    events[site].append((spent, 1))
    delta, kind = study.privacy.delta, study.privacy.accountant
    return {site: accountant.epsilon(compose(found), delta, kind) for site, found in events.items()}


def _privacy(
    study: Study,
    world: World,
    runs: Sequence[Outcome],
    name: str,
    together: Mapping[str, float] | None,
) -> Statement:
    if study.privacy is None:
        return no_privacy_statement(sites=list(world.sizes))
    one, method = declared(name), plan_of(study, world, name).method
    tested = plan_of(study, next(iter(split(study, world))), name).evaluation
    trained = dict.fromkeys(site for run in runs for site in run.epsilon)
    epsilon = {
        site: max(run.epsilon[site] for run in runs if site in run.epsilon) for site in trained
    }
    noise = {site: next(run.noise[site] for run in runs if site in run.noise) for site in trained}
    plan = next(iter(plan_of(study, world, name).sites.values()))
    spent = normal_form(plan.spent_after(runs[0].rounds))
    facts = Facts(
        delta=study.privacy.delta,
        accountant=study.privacy.accountant,
        budget=study.privacy.epsilon,
        clip=study.privacy.clip,
        batch=study.method.batch,
        epsilon=epsilon,
        noise_multiplier=noise,
        patients=world.sizes
        if not one.moves_rows
        else dict.fromkeys(world.sizes, sum(world.sizes.values())),
        rounds=runs[0].rounds,
        local_epochs=study.method.local_epochs,
        local_steps=study.method.local_steps,
        seeds=study.evaluation.seeds,
        generated=world.generated,
        simulation=world.simulation,
        described=describes(study, world),
        together=together,
        charters=None if world.simulated else world.terms(),
        mechanism=method.mechanism(),
        linked=study.link_people,
        overlap=_overlap(study, world),
        shown_layers=one.shows_layers(study.method.own(one.settings)),
        proof=accountant.proof_of(spent, study.privacy.delta, study.privacy.accountant),
        sums=study.protection.sum
        if method.needs == "secure sum" or (tested and tested.method.honest_sites > 1)
        else None,
        evaluation=None
        if world.simulated
        else next(iter(tested.sites.values())).epsilon
        if tested
        else 0.0,
        counted_on=tested.method.honest_sites if tested else 1,
    )
    return {**statement(facts), "patients": world.sizes}


def _overlap(study: Study, world: World) -> dict[str, float] | None:
    """The last noisy count of people in several hospitals, as noted in the ledgers."""
    for ledger in world.ledgers.values():
        for note in reversed(ledger.notes("overlap", study.name)):
            return dict(json.loads(note.event))
    return None


def _comparison(study: Study, outcomes: Mapping[str, Sequence[Outcome]]) -> dict[str, Any] | None:
    """Every other method against the leading one on ``evaluation.metric``, seed by seed."""
    lead, metric = study.method.name, study.evaluation.metric
    mine = [run.overall.get(metric) for run in outcomes[lead]]
    tests = {}
    for name, runs in outcomes.items():
        theirs = [run.overall.get(metric) for run in runs]
        pairs = [
            (a, b) for a, b in zip(theirs, mine, strict=False) if a is not None and b is not None
        ]
        if name == lead or not pairs:
            continue
        a, b = [p[0] for p in pairs], [p[1] for p in pairs]
        tests[name] = {
            "difference": float(np.mean(a) - np.mean(b)),
            "paired": _keep(paired_t, a, b),
            "welch": _keep(welch_t, a, b),
        }
    return {"against": lead, "metric": metric, "tests": tests} if tests else None


def _keep(
    test: Callable[[Sequence[float], Sequence[float]], Metrics],
    a: Sequence[float],
    b: Sequence[float],
) -> Metrics:
    found = test(a, b)
    return {"t": found.get("t"), "p": found.get("p"), "df": found.get("df")}
