"""What goes into ``result.json``: means and intervals over seeds, comparisons, the privacy statement, the cohort.

Everything here is plain values computed from outcomes; nothing reads rows except `_cohort`, which describes generated
patients (or real ones where the study has no promise to keep, or asks for it) and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import product
from typing import Any

import numpy as np

from suture import __version__
from suture.evaluation.groups import worst
from suture.evaluation.significance import over_seeds, paired_t, welch_t
from suture.federation import participants, rounds_of
from suture.methods.base import Phased
from suture.models.describe import described
from suture.privacy import accountant
from suture.privacy.statement import no_privacy_statement, statement
from suture.report.describe import describe
from suture.site.cohort import SiteData
from suture.site.schema import Number
from suture.study import Study
from suture.world import POOLED, World, method_of, network_of, plan, profiled, split

Metrics = dict[str, float | None]
SITES_PER_SEED = 50
"""Up to so many sites, every seed's metrics are kept site by site too (the spread over clients and seeds)."""
MOST_DESCRIBED = 40
"""Histograms of the first so many numbers: hundreds of them would inform nobody."""
CURVE_POINTS = 12
"""At how many rounds the epsilon spent so far is computed for the privacy-utility curve."""

_FEDOPT = ("Adaptive Federated Optimization", "Reddi et al.", 2021, "arXiv:2003.00295")
_VEIL = (
    "VEIL: A Framework for Differentially Private, Interpretable, and Communication-Efficient Federated Learning",
    "Vallabhaneni",
    2025,
    "paper 000",
)
REFERENCES = {
    "fedavg": (
        "Communication-Efficient Learning of Deep Networks from Decentralized Data",
        "McMahan et al.",
        2017,
        "arXiv:1602.05629",
    ),
    "fedprox": ("Federated Optimization in Heterogeneous Networks", "Li et al.", 2020, "arXiv:1812.06127"),
    "fedadam": (
        "A Robust Framework for Secure Cardiovascular Risk Prediction (FedCVR)",
        "Tertulino, Alencar",
        2026,
        "arXiv:2603.13293",
    ),
    "fedyogi": _FEDOPT,
    "fedadagrad": _FEDOPT,
    "ifedavg": (
        "iFedAvg: Interpretable Data-Interoperability for Federated Learning",
        "Roschewitz, Hartley, Corinzia, Jaggi",
        2021,
        "arXiv:2107.06580",
    ),
    "apfl": ("Adaptive Personalized Federated Learning", "Deng, Kamani, Mahdavi", 2020, "arXiv:2003.13461"),
    "ditto": (
        "Ditto: Fair and Robust Federated Learning Through Personalization",
        "Li, Hu, Beirami, Smith",
        2021,
        "arXiv:2012.04221",
    ),
    "finetune": (
        "Salvaging Federated Learning by Local Adaptation",
        "Yu, Bagdasaryan, Shmatikov",
        2020,
        "arXiv:2002.04758",
    ),
    "scaffold": (
        "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
        "Karimireddy et al.",
        2020,
        "arXiv:1910.06378",
    ),
    "fedsgd": (
        "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation",
        "Kairouz, Liu, Steinke",
        2021,
        "arXiv:2102.06387",
    ),
    "moon": ("Model-Contrastive Federated Learning", "Li, He, Song", 2021, "arXiv:2103.16257"),
    "veil": _VEIL,
    "veil-printed": _VEIL,
    "fedcluster": (
        "FedDDB: Clustered Federated Learning based on Data Distribution Difference",
        "You et al.",
        2022,
        "ACAI 2022",
    ),
}
DP_REFERENCES = (
    ("Deep Learning with Differential Privacy", "Abadi et al.", 2016, "arXiv:1607.00133"),
    (
        "Rényi Differential Privacy of the Sampled Gaussian Mechanism",
        "Mironov, Talwar, Zhang",
        2019,
        "arXiv:1908.10530",
    ),
    (
        "Connect the Dots: Tighter Discrete Approximations of Privacy Loss Distributions",
        "Doroshenko et al.",
        2022,
        "arXiv:2207.04380",
    ),
)


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
    """What was rejected or shortened, what masks cost and how far rounding can have moved a mean."""


def summarise(
    study: Study, world: World, outcomes: Mapping[str, Sequence[Outcome]], warnings: Sequence[str], command: str
) -> dict[str, Any]:
    """The content of ``result.json``."""
    together = _together(study, world, outcomes)
    found = {name: _method(study, world, name, runs, together) for name, runs in outcomes.items() if runs}
    lead = found[study.method.name]
    data: dict[str, Any] = {
        "suture": __version__,
        "format": 1,
        "name": study.name,
        "outcome": study.outcome,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": study.seed,
        "seeds": [study.seed + i for i in range(study.evaluation.seeds)],
        "command": command,
        "method": study.method.name,
        **{key: lead[key] for key in ("metrics", "privacy", "communication", "history")},
        "methods": found,
        "cohort": _cohort(study, world),
        "model": {
            **described(network_of(study, world)),
            "classes": list(world.classes) if isinstance(world.classes, tuple) else world.classes,
            "scaling": study.model.scaling,
            # An image is one feature to a reader; its pixels' names would be thousands.
            "features": list(world.features if world.schema.image is None else world.schema.features),
            "schema": world.schema.model_dump(mode="json", exclude_none=True),
        },
        "study": study.without_passwords().to_dict(),
        "warnings": list(warnings),
        "references": _references(study),
    }
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


def _method(
    study: Study, world: World, name: str, runs: Sequence[Outcome], together: Mapping[str, float] | None
) -> dict[str, Any]:
    overall, intervals = over_seeds([run.overall for run in runs])
    sites, site_intervals = _nested([run.sites for run in runs])
    groups = {group: _nested([run.groups[group] for run in runs])[0] for group in runs[0].groups}
    metrics: dict[str, Any] = {"global": overall, "sites": sites, "groups": groups}
    if runs[0].fairness:
        metrics["fairness"] = {column: _fair([run.fairness[column] for run in runs]) for column in runs[0].fairness}
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
    metrics["worst_site"] = {"site": lowest, **sites[lowest]} if lowest else {"site": None, **dict.fromkeys(overall)}
    if len(runs) > 1:
        metrics["intervals"] = {"global": intervals, "sites": site_intervals}
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


def _plain(found: Mapping[str, Any]) -> Metrics:
    """The figures of a fairness record, without names, intervals and groups."""
    return {key: value for key, value in found.items() if isinstance(value, float) or value is None}


def _fair(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Fairness over seeds: means and intervals over seeds, or with one seed its own bootstrap intervals."""
    means, intervals = over_seeds([_plain(found) for found in records])
    groups = _nested([found["groups"] for found in records])[0]
    lowest = min(groups, key=lambda name: _accuracy(groups[name]), default=None)
    kept = {"column": records[0]["column"]} if "column" in records[0] else {}
    shown = intervals if len(records) > 1 else records[0]["intervals"]
    return {**kept, **means, "worst_group": lowest, "intervals": shown, "groups": groups}


def _accuracy(found: Metrics) -> float:
    accuracy = found.get("accuracy")
    return 2.0 if accuracy is None else accuracy


def _dropouts(runs: Sequence[Outcome]) -> dict[str, dict[str, Any]]:
    """Sites that missed rounds they were asked in, over all seeds: how many, and why the last time."""
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
    """The plain mean over sites of every metric: what the typical hospital, not the typical patient, gets."""
    names = dict.fromkeys(name for found in sites.values() for name in found if name != "rows")
    known = {name: [v for found in sites.values() if (v := found.get(name)) is not None] for name in names}
    return {name: float(np.mean(values)) if values else None for name, values in known.items()}


def _nested(records: Sequence[Mapping[str, Metrics]]) -> tuple[dict[str, Metrics], dict[str, dict[str, list[float]]]]:
    """Means and intervals over seeds for every site or group value that any seed has."""
    means: dict[str, Metrics] = {}
    intervals: dict[str, dict[str, list[float]]] = {}
    for key in dict.fromkeys(key for record in records for key in record):
        means[key], intervals[key] = over_seeds([record[key] for record in records if key in record])
    return means, intervals


def _history(study: Study, world: World, runs: Sequence[Outcome], name: str) -> list[dict[str, Any]]:
    """Every round's metrics, averaged over the seeds that reached it, with the epsilon spent where it was computed."""
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


def _epsilon_by_round(study: Study, world: World, runs: Sequence[Outcome], name: str) -> dict[int, float]:
    """Epsilon of the worst hospital after some of the rounds, by the study's accountant; with folds, of the first fold."""
    if study.privacy is None or not runs[0].rounds:
        return {}
    part = next(iter(split(study, world)))
    plans = plan(study, part, method_of(study, part, name))
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


def _together(study: Study, world: World, outcomes: Mapping[str, Sequence[Outcome]]) -> dict[str, float] | None:
    """Epsilon per hospital of everything that all methods of a comparison sent about the same real patients."""
    if study.privacy is None or world.generated or len(study.methods) < 2:
        return None
    events: dict[str, list[tuple[Any, int]]] = {site: [] for site in world.sizes}
    # A run of one fold is known by the hospitals that trained in it.
    for (name, runs), part in product(outcomes.items(), split(study, world)):
        plans = plan(study, part, method_of(study, part, name))
        for run in runs:
            if run.epsilon.keys() != part.sizes.keys():
                continue
            taken = rounds_of(list(plans), run.rounds, study.method.participation, study.seed)
            for site in part.sizes:
                key = POOLED if name == "pooled" else site
                if taken[key]:
                    events[site].append((plans[key].spent_after(taken[key]), 1))
    delta, kind = study.privacy.delta, study.privacy.accountant
    return {site: accountant.epsilon(accountant.compose(found), delta, kind) for site, found in events.items()}


def _privacy(
    study: Study, world: World, runs: Sequence[Outcome], name: str, together: Mapping[str, float] | None
) -> dict[str, Any]:
    if study.privacy is None:
        return no_privacy_statement(sites=list(world.sizes))
    method = method_of(study, world, name)
    trained = dict.fromkeys(site for run in runs for site in run.epsilon)
    epsilon = {site: max(run.epsilon[site] for run in runs if site in run.epsilon) for site in trained}
    noise = {site: next(run.noise[site] for run in runs if site in run.noise) for site in trained}
    found = statement(
        delta=study.privacy.delta,
        accountant=study.privacy.accountant,
        budget=study.privacy.epsilon,
        clip=study.privacy.clip,
        batch=study.method.batch,
        epsilon=epsilon,
        noise_multiplier=noise,
        patients=world.sizes if name != "pooled" else dict.fromkeys(world.sizes, sum(world.sizes.values())),
        rounds=runs[0].rounds,
        local_epochs=study.method.local_epochs,
        local_steps=study.method.local_steps,
        seeds=study.evaluation.seeds,
        generated=world.generated,
        described=describes(study, world),
        together=together,
        charters=None if world.generated else world.terms(),
        mechanism=method.mechanism() if isinstance(method, Phased) else None,
        shown_layers=study.method.share_layers and name == "ifedavg",
    )
    return {**found, "patients": world.sizes}


def _comparison(study: Study, outcomes: Mapping[str, Sequence[Outcome]]) -> dict[str, Any] | None:
    """Every other method against the leading one on ``evaluation.metric``, seed by seed."""
    lead, metric = study.method.name, study.evaluation.metric
    mine = [run.overall.get(metric) for run in outcomes[lead]]
    tests = {}
    for name, runs in outcomes.items():
        theirs = [run.overall.get(metric) for run in runs]
        pairs = [(a, b) for a, b in zip(theirs, mine, strict=False) if a is not None and b is not None]
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
    test: Callable[[Sequence[float], Sequence[float]], Metrics], a: Sequence[float], b: Sequence[float]
) -> Metrics:
    found = test(a, b)
    return {"t": found.get("t"), "p": found.get("p"), "df": found.get("df")}


def describes(study: Study, world: World) -> bool:
    asked = study.evaluation.describe
    return asked if asked is not None else (world.generated or study.privacy is None)


def _cohort(study: Study, world: World) -> dict[str, Any]:
    """Sizes (public) always; prevalences and histograms only where `_describes` allows them."""
    shown = describes(study, world)
    sites: dict[str, dict[str, Any]] = {}
    columns: dict[str, dict[str, Any]] = {}
    every = {name: f for name, f in world.schema.features.items() if isinstance(f, Number)}
    numbers = dict(list(every.items())[:MOST_DESCRIBED])
    for name, told in world.told.items():
        sites[name] = {"region": told.region, "train": told.patients, **(told.described if shown else {})}
    for name, hospital in world.hospitals.items():
        data = hospital.data
        sites[name] = {"region": hospital.region, "train": data.train.patients}
        if not shown:
            continue
        sites[name].update(counted(data, world.class_count))
        where = {feature: world.features.index(feature) for feature in numbers}
        columns[name] = {
            feature: (_bounded(data, at) + 1) / 2 * (numbers[feature].high - numbers[feature].low)
            + numbers[feature].low
            for feature, at in where.items()
        }
    cohort: dict[str, Any] = {"source": "generated" if world.generated else "files", "sites": sites}
    if columns and numbers:
        bounds = {
            name: {
                "low": f.low,
                "high": f.high,
                "unit": f.unit,
                "label": f.label or name.replace("_", " ").capitalize(),
            }
            for name, f in numbers.items()
        }
        cohort["features"] = describe(columns, bounds)
    return cohort


def counted(data: SiteData, classes: int) -> dict[str, Any]:
    """Exact counts and shares of a site's rows: for generated patients, or where the study promises nothing."""
    test = data.test.patients if data.test else 0
    rows = data.train.rows + (data.test.rows if data.test else 0)
    shares = np.bincount(data.train.y, minlength=classes) / data.train.rows
    found: dict[str, Any] = {"patients": data.train.patients + test, "rows": rows, "test": test}
    if classes == 2:
        return {**found, "prevalence": float(shares[1])}
    return {**found, "class_shares": [float(share) for share in shares]}


def _bounded(data: SiteData, at: int) -> Any:
    """A column of training rows on the scale of its declared bounds, whatever the site trains on."""
    mean, spread = data.scales.get(at, (0.0, 1.0))
    return data.train.x[:, at] * spread + mean


def _references(study: Study) -> list[dict[str, Any]]:
    rows = [REFERENCES[name] for name in study.methods if name in REFERENCES]
    if study.privacy is not None:
        rows += DP_REFERENCES
    keys = ("title", "authors", "year", "where")
    return [dict(zip(keys, row, strict=True)) for row in dict.fromkeys(rows)]
