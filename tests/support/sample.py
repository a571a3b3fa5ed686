"""Random but plausible results for the report's tests, shaped as ``result.json``; metrics by the
real code."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import expit

from suture.evaluation.groups import by_group, worst
from suture.evaluation.metrics import LIGHT, measure, reliability, roc_curve
from suture.evaluation.significance import over_seeds, paired_t, welch_t
from suture.report.describe import describe

METHODS = {
    "fedavg": ("FedAvg", 1.55),
    "fedprox": ("FedProx", 1.65),
    "fedcluster": ("FedCluster", 1.75),
    "fedadagrad": ("FedAdagrad", 1.9),
    "fedyogi": ("FedYogi", 2.1),
    "fedadam": ("FedAdam (FedCVR)", 2.4),
    "alone": ("Each hospital alone", 1.2),
    "pooled": ("Pooled (not federated)", 2.6),
}
SITES = {
    "young-clinic": (13130, 0.05),
    "hypertension-centre": (4730, 0.41),
    "metabolic-hospital": (9250, 0.19),
    "general-practice": (1620, 0.08),
    "geriatric": (1270, 0.47),
}
STATEMENT = """Each hospital's contribution is differentially private for its patients: whether one patient, with all \
of the patient's rows, took part changes the probability of any outcome by at most the factor e^epsilon, except with \
probability delta.

Randomness comes from an AES counter generator keyed at the site. Site sizes, declared bounds and the schema are public.

Not covered: the exact metrics in this report, which are computed on generated patients."""


def sample(
    methods: int = 6,
    sites: int = 5,
    rounds: int = 100,
    seeds: int = 5,
    private: bool = True,
    cohort: bool = True,
) -> dict[str, Any]:
    """A result with these numbers of methods, hospitals, rounds and seeds."""
    rng = np.random.default_rng(7)
    places = _places(sites, rng)
    keys = list(METHODS)[:methods] if methods > 1 else ["fedadam"]
    truth = {
        name: (rng.random(max(40, n // 5)) < share).astype(np.int32)
        for name, (n, share) in places.items()
    }
    result: dict[str, Any] = {
        "suture": "0.1.0", "format": 1, "name": "cardio", "outcome": "high_risk", "created": "2026-11-15T20:30:00Z",
        "seed": 42, "seeds": list(range(42, 42 + seeds)), "command": "suture run study.toml",
        "method": "fedadam" if "fedadam" in keys else keys[0],
        "methods": {key: _method(key, truth, places, rounds, seeds, private, rng) for key in keys},
    }  # fmt: skip
    chosen = result["methods"][result["method"]]
    result |= {name: chosen[name] for name in ("metrics", "privacy", "communication", "history")}
    if seeds > 1 and methods > 1:
        result["comparison"] = _comparison(result)
    if cohort:
        result["cohort"] = _cohort(places, rng)
    result["warnings"] = [
        "site 'geriatric': 12 values of cholesterol outside 100 to 400 mg/dL were clipped"
    ]
    result["references"] = [
        {
            "title": "Adaptive Federated Optimization",
            "authors": "Reddi et al.",
            "year": 2021,
            "where": "ICLR",
        },
        {
            "title": "Deep Learning with Differential Privacy",
            "authors": "Abadi et al.",
            "year": 2016,
            "where": "CCS",
        },
    ]
    return result


def _places(sites: int, rng: np.random.Generator) -> dict[str, tuple[int, float]]:
    if sites <= len(SITES):
        return dict(list(SITES.items())[:sites])
    sizes = rng.lognormal(6.5, 0.9, sites).astype(int) + 60
    return {
        f"hospital-{i + 1:03d}": (int(n), float(rng.uniform(0.05, 0.4)))
        for i, n in enumerate(sizes)
    }


def _scores(y: np.ndarray, strength: float, rng: np.random.Generator) -> np.ndarray:
    return expit(strength * 0.75 * (y * 2 - 1) + rng.normal(0, 1.3, len(y)) - 0.6)


def _method(
    key: str,
    truth: dict[str, np.ndarray],
    places: dict,
    rounds: int,
    seeds: int,
    private: bool,
    rng: Any,
) -> dict[str, Any]:
    label, strength = METHODS[key]
    shift = {name: rng.normal(0, 0.25) for name in truth}
    runs = []
    for _ in range(seeds):
        seed_shift = rng.normal(0, 0.05)
        scores = {
            name: _scores(y, strength + shift[name] + seed_shift, rng) for name, y in truth.items()
        }
        runs.append(scores)
    y = np.concatenate(list(truth.values()))
    overall = [measure(y, np.concatenate(list(s.values())), rows=len(y)) for s in runs]
    by_site = {
        name: [measure(truth[name], s[name], rows=len(truth[name])) for s in runs] for name in truth
    }
    sites = {name: over_seeds(found)[0] for name, found in by_site.items()}
    p = np.concatenate(list(runs[0].values()))
    groups = {
        "sex": rng.choice(["F", "M"], len(y)),
        "ethnicity": rng.choice(["A", "B", "C", "D"], len(y)),
    }
    low = worst(sites) or ""
    metrics: dict[str, Any] = {
        "global": over_seeds(overall)[0],
        "sites": sites,
        "worst_site": {"site": low, **sites[low]},
        "groups": by_group(y, p, groups),
    }
    if seeds > 1:
        metrics["intervals"] = {
            "global": over_seeds(overall)[1],
            "sites": {name: over_seeds(found)[1] for name, found in by_site.items()},
        }
    return {
        "label": label,
        "metrics": metrics,
        "per_seed": [{"seed": 42 + i, "global": found} for i, found in enumerate(overall)],
        "privacy": _privacy(places, private),
        "communication": {"bytes_up": 1_234_567 * len(places), "bytes_down": 1_230_000 * len(places), "rounds": rounds},
        "history": _history(metrics, rounds, private, strength, rng),
        "roc": roc_curve(y, p),
        "calibration": reliability(y, p),
        "rounds_planned": rounds, "rounds_done": rounds, "stopped": None, "seconds": 3.2,
    }  # fmt: skip


def _privacy(places: dict, private: bool) -> dict[str, Any]:
    if not private:
        return {
            "protected": False,
            "epsilon": None,
            "sites": dict.fromkeys(places),
            "statement": "",
        }
    return {
        "protected": True, "unit": "patient", "neighbours": "add or remove one patient, with all of the patient's rows",
        "sampling": "Poisson by patient", "accountant": "pld", "delta": 1e-5, "epsilon": 7.998, "budget": 8.0,
        "sites": {name: 7.9 + 0.098 * i / max(len(places) - 1, 1) for i, name in enumerate(places)},
        "noise_multiplier": {name: round(0.6 + 40.0 / n**0.6, 3) for name, (n, _) in places.items()},
        "patients": {name: n for name, (n, _) in places.items()},
        "noise_source": "AES-256 counter generator, keyed by the operating system",
        "public": ["number of patients at each site", "declared bounds", "schema"],
        "not_covered": ["exact metrics in simulation"], "statement": STATEMENT,
    }  # fmt: skip


def _history(
    metrics: dict, rounds: int, private: bool, strength: float, rng: Any
) -> list[dict[str, Any]]:
    pace = 18.0 - 5.0 * strength
    start = {"auc": 0.5, "f1": 0.1, "accuracy": 0.6, "precision": 0.15, "recall": 0.1, "loss": 0.72}

    def at(found: dict, r: int, noise: float) -> dict[str, float | None]:
        rest = np.exp(-r / max(pace, 3.0))
        return {
            m: None
            if (v := found[m]) is None
            else float(v + (start[m] - v) * rest + rng.normal(0, noise) * rest**0.3)
            for m in LIGHT
        }

    return [
        {
            "round": r,
            "global": at(metrics["global"], r, 0.006),
            "sites": {name: at(found, r, 0.012) for name, found in metrics["sites"].items()},
            "epsilon": 7.998 * (0.12 + 0.88 * (r / rounds) ** 0.6) if private else None,
        }
        for r in range(1, rounds + 1)
    ]


def _comparison(result: dict[str, Any]) -> dict[str, Any]:
    against = result["method"]
    auc = {
        key: [run["global"]["auc"] for run in m["per_seed"]] for key, m in result["methods"].items()
    }
    tests = {}
    for key, values in auc.items():
        if key != against:
            paired, welch = paired_t(values, auc[against]), welch_t(values, auc[against])
            tests[key] = {"difference": paired["difference"], "paired": paired, "welch": welch}
    return {"against": against, "metric": "auc", "tests": tests}


def _cohort(places: dict, rng: Any) -> dict[str, Any]:
    columns, sites = {}, {}
    for name, (n, share) in places.items():
        centre = 35 + 60 * share
        columns[name] = {
            "age": rng.normal(centre, 9, n),
            "systolic": rng.normal(118 + 40 * share, 14, n),
            "cholesterol": rng.normal(225, 35, n),
        }
        sites[name] = {
            "region": "EU", "patients": n, "rows": n, "train": n - n // 5, "test": n // 5, "prevalence": share
        }  # fmt: skip
    bounds = {
        "age": {"low": 18, "high": 100, "unit": "years", "label": "Age"},
        "systolic": {"low": 80, "high": 220, "unit": "mmHg", "label": "Systolic pressure"},
        "cholesterol": {"low": 100, "high": 400, "unit": "mg/dL", "label": "Cholesterol"},
    }
    return {"source": "generated", "sites": sites, "features": describe(columns, bounds)}
