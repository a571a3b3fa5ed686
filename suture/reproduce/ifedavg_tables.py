"""Tables 1 to 4 and 6 of iFedAvg, and what a turned outcome and the heart hospitals look like, from finished trainings.

A result here is what `ifedavg_runs.train` returns; results come by data set, seed and method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import t as student

Results = Mapping[int, Mapping[str, Mapping[str, Any]]]
"""By seed, then by method."""
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
"""Held-out rows that a client needs to count: the score of one row is 0 or 1. The authors leave out clients under 133."""
PAPER = {
    "f1": {
        "mean": {
            "outbreak prognosis": (0.669, 0.653, 0.670, 0.662, 0.673),
            "outbreak diagnosis": (0.867, 0.828, 0.773, 0.844, 0.861),
            "vsn": (0.928, 0.935, 0.871, 0.939, 0.943),
            "har": (0.994, 0.992, 0.967, 0.993, 0.988),
        },
        "worst": {
            "outbreak prognosis": (0.581, 0.546, 0.575, 0.560, 0.541),
            "outbreak diagnosis": (0.790, 0.662, 0.452, 0.654, 0.733),
            "vsn": (0.874, 0.874, 0.398, 0.884, 0.834),
            "har": (0.950, 0.972, 0.909, 0.974, 0.955),
        },
    },
    "auc": {
        "mean": {"outbreak prognosis": (0.725, 0.704, 0.726, 0.708, 0.74), "har": (1.0, 1.0, 0.999, 1.0, 1.0)},
        "worst": {
            "outbreak prognosis": (0.628, 0.573, 0.608, 0.567, 0.581),
            "outbreak diagnosis": (0.799, 0.694, 0.770, 0.689, 0.740),
            "vsn": (0.930, 0.936, 0.124, 0.950, 0.935),
            "har": (0.996, 0.997, 0.991, 0.997, 0.998),
        },
    },
}
"""Tables 1 to 4, in the order of `METHODS`. Table 3's middle rows cannot be read off our copy and are left out."""
PAPER_6 = {
    "outbreak prognosis": (0.002, 0.008),
    "outbreak diagnosis": (0.005, 0.008),
    "vsn": (0.002, None),
    "har": (None, -0.013),
}


def tables(
    found: Mapping[str, Results],
    more: Mapping[str, Results],
    heart: Mapping[str, Any],
    turned: Sequence[Mapping[str, Any]],
    seeds: Sequence[int],
) -> dict[str, Any]:
    """Every table of the paper in kind, and the two that say what the report finds."""
    return {
        "table1": {"title": "Table 1: mean over clients, weighted F1", "rows": _table(found, "f1", "mean")},
        "table2": {"title": "Table 2: worst client, weighted F1", "rows": _table(found, "f1", "worst")},
        "difference": {
            "title": "iFedAvg minus FedAvg, weighted F1, seed by seed",
            "rows": _differences({**found, **{f"{name}, further seeds": results for name, results in more.items()}}),
        },
        "table3": {"title": "Table 3: mean over clients, AUC", "rows": _table(found, "auc", "mean")},
        "table4": {"title": "Table 4: worst client, AUC", "rows": _table(found, "auc", "worst")},
        "table6": {"title": "Table 6: what f_out adds, weighted F1", "rows": _table_6(found)},
        "flip": {"title": "A turned outcome at Kalihun, seed by seed (Figure 19)", "rows": _flips(turned, seeds)},
        "heart": {"title": "The four heart hospitals: what the report says unprompted", "rows": _findings(heart)},
    }


def client_scores(results: Results, method: str, metric: str) -> dict[str, list[float]]:
    """Every client's metric, one value a seed; clients with few held-out rows are left out (see `FEWEST`)."""
    found: dict[str, list[float]] = {}
    for by_method in results.values():
        for site, metrics in by_method[method]["sites"].items():
            value = metrics.get("f1_weighted") if metric == "f1" else metrics.get("auc", metrics.get("auc_ovo"))
            if value is not None and (metrics.get("rows") or 0) >= FEWEST:
                found.setdefault(site, []).append(value)
    return found


def summary(results: Results, method: str, metric: str, which: str) -> float:
    """Mean over clients, or the worst client, of the clients' means over seeds."""
    means = [float(np.mean(values)) for values in client_scores(results, method, metric).values()]
    return float(np.mean(means)) if which == "mean" else min(means)


def _table(found: Mapping[str, Results], metric: str, which: str) -> list[dict[str, Any]]:
    rows = []
    for name, results in found.items():
        row: dict[str, Any] = {"data": name, "seeds": len(results)}
        printed = PAPER[metric][which].get(name, (None,) * len(METHODS))
        for method, paper in zip(METHODS, printed, strict=True):
            row[f"paper {LABELS[method]}"] = paper
            row[f"our {LABELS[method]}"] = summary(results, method, metric, which)
            if method == "ifedavg":
                row[LABELS[PRIOR]] = summary(results, PRIOR, metric, which)
        rows.append(row)
    return rows


def interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Student's 95 % interval of the mean over seeds; nothing from a single seed.

    >>> [round(float(end), 3) for end in interval([0.1, 0.3])]
    [-1.071, 1.471]
    """
    if len(values) < 2:
        return None, None
    half = float(student.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values)))
    return float(np.mean(values)) - half, float(np.mean(values)) + half


def _differences(found: Mapping[str, Results]) -> list[dict[str, Any]]:
    """iFedAvg, as printed and with a prior, against FedAvg on the same splits, with Student's interval over seeds.

    Three figures: the mean over clients, the lowest client of each seed (whichever it is with either method), and the
    client that is FedAvg's worst in Table 2. The last flatters iFedAvg, since FedAvg's worst is partly bad luck.
    """
    return [_difference(name, results, method) for name, results in found.items() for method in ("ifedavg", PRIOR)]


def _difference(name: str, results: Results, method: str) -> dict[str, Any]:
    mine, theirs = (client_scores(results, one, "f1") for one in (method, "fedavg"))
    worst = min(theirs, key=lambda site: float(np.mean(theirs[site])))
    gaps: dict[str, list[float]] = {"mean over clients": [], "lowest client": []}
    for seed, by_method in results.items():
        a, b = (
            [values[0] for values in client_scores({seed: by_method}, one, "f1").values()] for one in (method, "fedavg")
        )
        gaps["mean over clients"].append(float(np.mean(a) - np.mean(b)))
        gaps["lowest client"].append(min(a) - min(b))
    gaps["at FedAvg's worst"] = [a - b for a, b in zip(mine[worst], theirs[worst], strict=True)]
    row: dict[str, Any] = {"data": name, "method": LABELS[method], "seeds": len(results)}
    for what, values in gaps.items():
        if what == "at FedAvg's worst":
            row["FedAvg's worst client"] = worst
        low, high = interval(values)
        row |= {what: float(np.mean(values)), f"{what} 95% low": low, f"{what} 95% high": high}
    return row


def _table_6(found: Mapping[str, Results]) -> list[dict[str, Any]]:
    rows = []
    for name, results in found.items():
        mean, worst = PAPER_6.get(name, (None, None))
        ours = {
            which: summary(results, LAYERED, "f1", which) - summary(results, "ifedavg", "f1", which)
            for which in ("mean", "worst")
        }
        rows.append(
            {
                "data": name,
                "paper average": mean,
                "our average": ours["mean"],
                "paper worst": worst,
                "our worst": ours["worst"],
            }
        )
    return rows


def _flips(reports: Sequence[Mapping[str, Any]], seeds: Sequence[int]) -> list[dict[str, Any]]:
    rows = []
    for seed, report in zip(seeds, reports, strict=False):
        scales = {
            site: min(values) for site, values in zip(report["sites"], report["layers"]["w_out"]["values"], strict=True)
        }
        rest = [value for site, value in scales.items() if site != "Kalihun"]
        rows.append({"seed": str(seed), "w_out at Kalihun": scales["Kalihun"], "lowest w_out elsewhere": min(rest),
                     "found": "yes" if scales["Kalihun"] < 0 < min(rest) else "no"})  # fmt: skip
    return rows


def _findings(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    keys = ("site", "label", "kind", "direction", "detail")
    return [{key: item[key] for key in keys} for item in report["findings"] if item["kind"] != "recorded more often"]
