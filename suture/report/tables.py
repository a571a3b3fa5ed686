"""The tables of a result as plain cells, for the page, the notebook and the console alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from suture.report.words import (
    LOWER_IS_BETTER,
    METRICS,
    NONE,
    bounds,
    count,
    delta,
    duration,
    epsilon,
    labels,
    number,
    p_value,
    part,
    primary,
    protected,
    repeats,
    signed,
    size,
    span,
    worst_hospital,
)
from suture.schema.record import Metrics, Record

QUALITY = ("auc", "auprc", "recall", "specificity", "precision", "f1", "accuracy", "auc_ovo",
           "f1_weighted", "f1_macro")  # fmt: skip
CARE = ("recall_at_90_specificity", "ece", "brier", "loss")
GROUPED = ("auc", "auprc", "recall", "specificity", "precision", "f1", "ece")
GAPS = {
    "parity_gap": "Share called positive",
    "odds_gap": "Equalised odds",
    "opportunity_gap": "True-positive rate",
    "worst_accuracy": "Accuracy of the worst group",
}
MOST_ROWS = 30


@dataclass(frozen=True)
class Cell:
    """Its text, a smaller second line, whether it is its column's best, half of its interval."""

    text: str
    note: str = ""
    best: bool = False
    half: float | None = None


@dataclass(frozen=True)
class Table:
    """A caption, column heads, rows (the first cell heads its row) and a closing remark."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    remark: str = ""


def plain(
    caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], remark: str = ""
) -> Table:
    """A table of texts only."""
    return Table(caption, tuple(heads), tuple(tuple(map(Cell, row)) for row in rows), remark)


def _known(found: Sequence[Metrics], names: Sequence[str]) -> list[str]:
    """Those of the names that at least one set of metrics has a value for."""
    return [name for name in names if any(metrics.get(name) is not None for metrics in found)]


def quality(result: Record, names: Sequence[str], caption: str = "Held-out patients") -> Table:
    """Methods x metrics over all hospitals, with 95 % intervals where several seeds ran."""
    methods, keys = result["methods"], labels(result)
    overall = {key: method["metrics"]["global"] for key, method in methods.items()}
    names = _known(list(overall.values()), names)
    best = {name: _best(list(overall.values()), name) for name in names}
    rows = []
    for key, label in keys.items():
        between = methods[key]["metrics"]["intervals"]["global"]
        own = key == result["method"] and len(keys) > 1
        cells = [Cell(label, "the study's method" if own else "")]
        for name in names:
            value, ends = overall[key].get(name), between.get(name)
            half = (ends[1] - ends[0]) / 2.0 if ends and span(ends) else None
            wins = value is not None and value == best[name]
            cells.append(Cell(number(value), span(bounds(between, name)), wins, half))
        rows.append(tuple(cells))
    remarks = ["Bold: the best mean of a column."] if len(keys) > 1 else []
    if any(cell.note for row in rows for cell in row[1:]):
        remarks.append(f"Second line: 95 % interval over {repeats(result)}.")
    if lower := [METRICS[name] for name in names if name in LOWER_IS_BETTER]:
        remarks.append(f"Lower is better: {', '.join(lower)}.")
    heads = ("Method", *(METRICS[name] for name in names))
    return Table(caption, heads, tuple(rows), " ".join(remarks))


def _best(found: Sequence[Metrics], name: str) -> float | None:
    """The best value; None where there is nothing to compare with."""
    values = [value for metrics in found if (value := metrics.get(name)) is not None]
    if len(values) < 2:
        return None
    return min(values) if name in LOWER_IS_BETTER else max(values)


def cost(result: Record) -> Table:
    """Methods x what they cost: proven epsilon at the worst hospital, bytes, rounds, time."""
    rows = []
    for key, label in labels(result).items():
        method = result["methods"][key]
        privacy, sent, private = method["privacy"], method["communication"], protected(method)
        planned, done = method["rounds_planned"], method["rounds_done"]
        short = f"of {count(planned)} planned" if planned is not None and planned != done else ""
        spent = Cell(epsilon(privacy["epsilon"]), worst_hospital(method))
        rows.append((
            Cell(label), spent if private else Cell("none"),
            Cell(delta(privacy["delta"]) if private else NONE), Cell(size(sent["bytes_up"])),
            Cell(size(sent["bytes_down"])), Cell(count(sent["rounds"] if done is None else done), short),
            Cell(duration(method["seconds"])),
        ))  # fmt: skip
    heads = ("Method", "ε proven, worst hospital", "δ", "Sent by hospitals", "Sent to hospitals",
             "Rounds", "Time")  # fmt: skip
    remark = "Sent: all hospitals and rounds together; 1 MB = 1,000,000 bytes."
    if any(row[1].text != "none" for row in rows):
        remark = f"ε is rounded up. {remark}"
    return Table("Privacy and cost", heads, tuple(rows), remark)


def significance(result: Record) -> Table | None:
    """p-values of every method against the one compared with."""
    compared, names = result["comparison"], labels(result)
    if not compared["tests"]:
        return None
    rows = []
    for key, test in compared["tests"].items():
        cells = [names.get(key, key), signed(test.get("difference"))]
        for kind in ("paired", "welch"):
            found = part(test, kind)
            cells += [signed(found.get("t"), 2).replace("+", ""), p_value(found.get("p"))]
        rows.append(cells)
    title = METRICS.get(compared["metric"], compared["metric"])
    heads = ("Method", f"Difference in {title}", "t, paired", "p, paired", "t, Welch", "p, Welch")
    against = names.get(compared["against"], compared["against"])
    remark = (
        f"Two-sided t-tests over {repeats(result)}, not corrected for the number of comparisons. "
        "A dash: not defined."
    )
    return plain(f"{title} of each method minus that of {against}", heads, rows, remark)


def hospital_metrics(result: Record) -> Table | None:
    """Every hospital's metrics under the study's method, lowest AUC first; long lists are cut."""
    metrics = primary(result)["metrics"]
    sites = metrics["sites"]
    if not sites:
        return None
    every = list(sites.values())
    lead = "auc" if _known(every, ["auc"]) else "auc_ovo"
    known = {site: value for site, m in sites.items() if (value := m.get(lead)) is not None}
    order = sorted(sites, key=lambda site: (known.get(site, math.inf), site))
    names = _known(every, (*GROUPED, "auc_ovo", "f1_weighted"))
    rows = []
    for site in order[:MOST_ROWS]:
        between = span(bounds(metrics["intervals"]["sites"].get(site, {}), lead))
        cells = [Cell(site), Cell(count(sites[site].get("rows")))]
        cells += [Cell(number(sites[site].get(n)), between if n == lead else "") for n in names]
        rows.append(tuple(cells))
    label, title = labels(result)[result["method"]], METRICS[lead]
    remark = f"{label}, lowest {title} first. A dash: not defined (one class only)."
    if left := order[MOST_ROWS:]:
        values = [known[site] for site in left if site in known]
        ends = f", {title} from {number(min(values))} to {number(max(values))}" if values else ""
        remark += f" And {len(left):,} more hospitals{ends}."
    heads = ("Hospital", "Test rows", *(METRICS[name] for name in names))
    return Table("Each hospital's held-out patients", heads, tuple(rows), remark)


def subgroups(result: Record) -> list[Table]:
    """One table per group column, one row per value, under the study's method."""
    groups = primary(result)["metrics"]["groups"]
    return [_subgroup(group, values) for group, values in groups.items() if values]


def _subgroup(group: str, values: Mapping[str, Metrics]) -> Table:
    names = _known(list(values.values()), GROUPED)
    aucs = {value: auc for value, m in values.items() if (auc := m.get("auc")) is not None}
    lowest = min(aucs, key=lambda value: aucs[value]) if len(aucs) > 1 else None
    rows = []
    for value, found in list(values.items())[:MOST_ROWS]:
        few = (found.get("rows") or 0) < 100
        cells = [Cell(value, "lowest AUC" if value == lowest else "")]
        cells.append(Cell(count(found.get("rows")), "few" if few else ""))
        rows.append((*cells, *(Cell(number(found.get(name))) for name in names)))
    more = len(values) - len(rows)
    heads = (group, "Test rows", *(METRICS[name] for name in names))
    return Table(f"By {group}", heads, tuple(rows), f"And {more:,} more values." if more else "")


def gaps(result: Record) -> Table | None:
    """Largest differences between the groups of each column, for every method, with intervals."""
    rows = []
    for key, label in labels(result).items():
        metrics = result["methods"][key]["metrics"]
        found = dict(metrics["fairness"])
        if fitted := metrics.get("group_thresholds"):
            found[f"{fitted.get('column')}, thresholds by group"] = fitted
        for column, gap in found.items():
            between = gap.get("intervals", {})
            cells = [Cell(number(gap.get(name)), span(between.get(name))) for name in GAPS]
            rows.append((Cell(label), Cell(column, f"worst: {gap.get('worst_group')}"), *cells))
    if not rows:
        return None
    heads = ("Method", "Groups", *GAPS.values())
    remark = (
        "Differences between the best and the worst group; a gap of noisy rates is never 0. "
        "Intervals: 95 %."
    )
    return Table("Gaps between groups", heads, tuple(rows[:MOST_ROWS]), remark)


def promises(result: Record) -> Table | None:
    """Epsilon, noise and patients of every hospital, largest epsilon first."""
    privacy, cohort = primary(result)["privacy"], result["cohort"]["sites"]
    sites, noise = privacy["sites"], privacy["noise_multiplier"]
    if not sites:
        return None
    patients = {site: found.get("train") for site, found in cohort.items()} | privacy["patients"]
    order = sorted(sites, key=lambda s: (sites[s] is not None, -(sites[s] or 0.0), s))
    rows = [
        (s, epsilon(sites[s]), number(noise.get(s)), count(patients.get(s)))
        for s in order[:MOST_ROWS]
    ]
    remark = "Largest ε first, rounded up. Noise: standard deviation over the clipping bound."
    if left := order[MOST_ROWS:]:
        remark += f" And {len(left):,} more hospitals, none with a larger ε."
    heads = ("Hospital", "ε proven", "Noise multiplier", "Training patients")
    return plain("What is proven at each hospital", heads, rows, remark)
