"""Tables 1 to 4 and 6 of iFedAvg, and what a turned outcome and the heart hospitals look like, from
finished trainings (`trainings.Trained`) by data set, seed and method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import numpy as np

from suture.papers.reproduction import Row, Tables, method_of
from suture.papers.reproduction import summary as mean_and_interval
from suture.result import Result
from suture.schema.record import Metrics


class Scored(TypedDict):
    """The part of a training that tables need: each client's metrics."""

    sites: dict[str, Metrics]


Results = Mapping[int, Mapping[str, Scored]]
"""By seed, then by method."""
Report = Mapping[str, Any]
"""What `suture interop` says of a run."""
METHODS = ("ifedavg", "apfl", "fedavg", "alone", "pooled")
PRIOR = "prior"
"""iFedAvg with a prior for its layers (`method.layer_spread`): ours, not the paper's."""
LABELS = {
    "ifedavg": "iFedAvg",
    PRIOR: "iFedAvg, prior",
    "apfl": "APFL",
    "fedavg": "FedAvg",
    "alone": "Local",
    "pooled": "Centralized",
}
LAYERED = "f_out"
"""iFedAvg with f_out as well (Table 6, Figures 18 and 20)."""
FEWEST = 10
"""Held-out rows that a client needs to count: the score of one row is 0 or 1. The authors leave out
clients under 133."""
PAPER = {
    ("f1", "mean"): {
        "outbreak prognosis": (0.669, 0.653, 0.670, 0.662, 0.673),
        "outbreak diagnosis": (0.867, 0.828, 0.773, 0.844, 0.861),
        "vsn": (0.928, 0.935, 0.871, 0.939, 0.943),
        "har": (0.994, 0.992, 0.967, 0.993, 0.988),
    },
    ("f1", "worst"): {
        "outbreak prognosis": (0.581, 0.546, 0.575, 0.560, 0.541),
        "outbreak diagnosis": (0.790, 0.662, 0.452, 0.654, 0.733),
        "vsn": (0.874, 0.874, 0.398, 0.884, 0.834),
        "har": (0.950, 0.972, 0.909, 0.974, 0.955),
    },
    ("auc", "mean"): {
        "outbreak prognosis": (0.725, 0.704, 0.726, 0.708, 0.74),
        "har": (1.0, 1.0, 0.999, 1.0, 1.0),
    },
    ("auc", "worst"): {
        "outbreak prognosis": (0.628, 0.573, 0.608, 0.567, 0.581),
        "outbreak diagnosis": (0.799, 0.694, 0.770, 0.689, 0.740),
        "vsn": (0.930, 0.936, 0.124, 0.950, 0.935),
        "har": (0.996, 0.997, 0.991, 0.997, 0.998),
    },
}
"""Tables 1 to 4, in the order of `METHODS`. Table 3's middle rows cannot be read off our copy and
are left out."""
PAPER_6 = {
    "outbreak prognosis": (0.002, 0.008),
    "outbreak diagnosis": (0.005, 0.008),
    "vsn": (0.002, None),
    "har": (None, -0.013),
}


def tables(
    found: Mapping[str, Results],
    more: Mapping[str, Results],
    heart: Report,
    turned: Sequence[Report],
    seeds: Sequence[int],
) -> Tables:
    """Every table of the paper in kind, and the two that say what the report finds."""
    further = {f"{name}, further seeds": results for name, results in more.items()}
    return {
        "table1": ("Table 1: mean over clients, weighted F1", scores(found, "f1", "mean")),
        "table2": ("Table 2: worst client, weighted F1", scores(found, "f1", "worst")),
        "difference": (
            "iFedAvg minus FedAvg, weighted F1, seed by seed",
            differences({**found, **further}),
        ),
        "table3": ("Table 3: mean over clients, AUC", scores(found, "auc", "mean")),
        "table4": ("Table 4: worst client, AUC", scores(found, "auc", "worst")),
        "table6": ("Table 6: what f_out adds, weighted F1", _table_6(found)),
        "flip": (
            "A turned outcome at Kalihun, seed by seed (Figure 19)",
            [_flip(report, seed) for seed, report in zip(seeds, turned, strict=False)],
        ),
        "heart": ("The four heart hospitals: what the report says unprompted", _findings(heart)),
    }


def client_scores(results: Results, method: str, metric: str) -> dict[str, list[float]]:
    """Every client's metric, one value per seed; clients with few held-out rows are left out (see
    `FEWEST`)."""
    found: dict[str, list[float]] = {}
    for by_method in results.values():
        for site, metrics in by_method[method]["sites"].items():
            value = metrics.get("f1_weighted")
            if metric == "auc":
                value = metrics.get("auc", metrics.get("auc_ovo"))
            if value is not None and (metrics.get("rows") or 0) >= FEWEST:
                found.setdefault(site, []).append(value)
    return found


def summary(results: Results, method: str, metric: str, which: str) -> float:
    """Mean over clients, or the worst client, of the clients' means over seeds."""
    means = [float(np.mean(values)) for values in client_scores(results, method, metric).values()]
    return float(np.mean(means)) if which == "mean" else min(means)


def scores(found: Mapping[str, Results], metric: str, which: str) -> list[Row]:
    """One of Tables 1 to 4."""
    rows = []
    for name, results in found.items():
        row: Row = {"data": name, "seeds": len(results)}
        printed = PAPER[metric, which].get(name, (None,) * len(METHODS))
        for method, paper in zip(METHODS, printed, strict=True):
            row[f"paper {LABELS[method]}"] = paper
            row[f"our {LABELS[method]}"] = summary(results, method, metric, which)
            if method == "ifedavg":
                row[LABELS[PRIOR]] = summary(results, PRIOR, metric, which)
        rows.append(row)
    return rows


def differences(found: Mapping[str, Results]) -> list[Row]:
    """iFedAvg, as printed and with a prior, against FedAvg on the same splits, with Student's
    interval over seeds.

    Three figures: the mean over clients, the lowest client of each seed (whichever it is with
    either method), and the client that is FedAvg's worst in Table 2. The last flatters iFedAvg,
    since FedAvg's worst is partly bad luck.
    """
    return [
        _difference(name, results, method)
        for name, results in found.items()
        for method in ("ifedavg", PRIOR)
    ]


def _difference(name: str, results: Results, method: str) -> Row:
    mine, theirs = (client_scores(results, one, "f1") for one in (method, "fedavg"))
    worst = min(theirs, key=lambda site: float(np.mean(theirs[site])))
    means, lowest = [], []
    for seed, by_method in results.items():
        a, b = (
            [values[0] for values in client_scores({seed: by_method}, one, "f1").values()]
            for one in (method, "fedavg")
        )
        means.append(float(np.mean(a) - np.mean(b)))
        lowest.append(min(a) - min(b))
    at_worst = [a - b for a, b in zip(mine[worst], theirs[worst], strict=True)]
    return {
        "data": name,
        "method": LABELS[method],
        "seeds": len(results),
        **mean_and_interval("mean over clients", means),
        **mean_and_interval("lowest client", lowest),
        "FedAvg's worst client": worst,
        **mean_and_interval("at FedAvg's worst", at_worst),
    }


def _table_6(found: Mapping[str, Results]) -> list[Row]:
    rows = []
    for name, results in found.items():
        row: Row = {"data": name}
        printed = PAPER_6.get(name, (None, None))
        for which, head, paper in zip(
            ("mean", "worst"), ("average", "worst"), printed, strict=True
        ):
            with_, without = (summary(results, one, "f1", which) for one in (LAYERED, "ifedavg"))
            row |= {f"paper {head}": paper, f"our {head}": with_ - without}
        rows.append(row)
    return rows


def _flip(report: Report, seed: int) -> Row:
    values = report["layers"]["w_out"]["values"]
    scales = {site: min(some) for site, some in zip(report["sites"], values, strict=True)}
    turned = scales.pop("Kalihun")
    rest = min(scales.values())
    found = "yes" if turned < 0 < rest else "no"
    row: Row = {"seed": str(seed), "w_out at Kalihun": turned, "lowest w_out elsewhere": rest}
    return {**row, "found": found}


def _findings(report: Report) -> list[Row]:
    keys = ("site", "label", "kind", "direction", "detail")
    found = [item for item in report["findings"] if item["kind"] != "recorded more often"]
    return [{key: item[key] for key in keys} for item in found]


def private_row(dataset: str, epsilon: float | None, runs: Sequence[Result]) -> Row:
    """iFedAvg and FedAvg under the same promise: mean and worst client, and what was proven."""
    row: Row = {
        "data": dataset,
        "epsilon": "none" if epsilon is None else f"{epsilon:g}",
        "seeds": len(runs),
    }
    for method in ("ifedavg", "fedavg"):
        found: dict[str, list[float]] = {}
        for run in runs:
            for site, metrics in method_of(run, method)["metrics"]["sites"].items():
                value = metrics["f1_weighted"]
                found.setdefault(site, []).extend([] if value is None else [value])
        means = [float(np.mean(values)) for values in found.values()]
        row[f"{LABELS[method]}, mean"] = float(np.mean(means))
        row[f"{LABELS[method]}, worst"] = min(means)
    proven = None if epsilon is None else max(float(run.privacy["epsilon"]) for run in runs)
    return {**row, "proven at most": proven}
