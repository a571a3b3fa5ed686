"""The tables of a result as plain cells, for the page, the notebook and the console alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from suture.report.words import (
    LOWER_IS_BETTER,
    METRICS,
    NONE,
    Result,
    bounds,
    count,
    delta,
    duration,
    epsilon,
    finite,
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

QUALITY = ("auc", "auprc", "recall", "specificity", "precision", "f1", "accuracy", "auc_ovo", "f1_weighted", "f1_macro")
CARE = ("recall_at_90_specificity", "ece", "brier", "loss")
GROUPED = ("auc", "auprc", "recall", "specificity", "precision", "f1", "ece")
MOST_ROWS = 30


@dataclass(frozen=True)
class Cell:
    """One cell: its text, a smaller second line, whether it is the best of its column, half of its interval."""

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


def _known(result: Result, names: Sequence[str]) -> list[str]:
    found = [part(result, "methods", key, "metrics", "global") for key in part(result, "methods")]
    return [name for name in names if any(finite(metrics.get(name)) is not None for metrics in found)]


def quality(result: Result, names: Sequence[str] = QUALITY + CARE, caption: str = "Held-out patients") -> Table:
    """Methods x metrics over all hospitals, with 95 % intervals where several seeds ran.

    >>> table = quality({"name": "x", "methods": {"a": {"metrics": {"global": {"auc": 0.9}}}}})
    >>> table.heads, table.rows[0][1].text
    (('Method', 'AUC'), '0.900')
    """
    names = _known(result, names)
    keys = labels(result)
    best = {name: _best(result, name) for name in names} if len(keys) > 1 else {}
    rows = []
    for key, label in keys.items():
        metrics = part(result, "methods", key, "metrics")
        between = part(metrics, "intervals", "global")
        cells = [Cell(label, "the study's method" if key == primary(result) and len(keys) > 1 else "")]
        for name in names:
            value = finite(part(metrics, "global").get(name))
            winner = value is not None and value == best.get(name)
            reach = between.get(name)
            half = (reach[1] - reach[0]) / 2.0 if reach and span(reach) else None
            cells.append(Cell(number(value), span(bounds(between, name)), winner, half))
        rows.append(tuple(cells))
    lower = [METRICS[n] for n in names if n in LOWER_IS_BETTER]
    remark = "Bold: the best mean of a column. " if len(keys) > 1 else ""
    remark += f"Second line: 95 % interval over {repeats(result)}. " if any(c.note for r in rows for c in r[1:]) else ""
    remark += f"Lower is better: {', '.join(lower)}. " if lower else ""
    return Table(caption, ("Method", *(METRICS[n] for n in names)), tuple(rows), remark.strip())


def cost(result: Result) -> Table:
    """Methods x what they cost: proven epsilon at the worst hospital, bytes, rounds, time.

    >>> cost({"name": "x", "methods": {"a": {"communication": {"bytes_up": 2000}}}}).rows[0][1].text
    'none'
    """
    rows = []
    for key, label in labels(result).items():
        method = part(result, "methods", key)
        privacy, sent = part(method, "privacy"), part(method, "communication")
        worst = worst_hospital(method)
        safe = protected(method)
        planned, done = finite(method.get("rounds_planned")), finite(method.get("rounds_done"))
        rounds = count(done if done is not None else sent.get("rounds"))
        rows.append(
            (
                Cell(label),
                Cell(epsilon(privacy.get("epsilon")) if safe else "none", worst[0] if safe and worst else ""),
                Cell(delta(privacy.get("delta")) if safe else NONE),
                Cell(size(sent.get("bytes_up"))),
                Cell(size(sent.get("bytes_down"))),
                Cell(rounds, f"of {count(planned)} planned" if planned is not None and planned != done else ""),
                Cell(duration(method.get("seconds"))),
            )
        )
    heads = ("Method", "ε proven, worst hospital", "δ", "Sent by hospitals", "Sent to hospitals", "Rounds", "Time")
    remark = "Sent: all hospitals and rounds together; 1 MB = 1,000,000 bytes."
    if any(row[1].text != "none" for row in rows):
        remark = f"ε is rounded up. {remark}"
    return Table("Privacy and cost", heads, tuple(rows), remark)


def significance(result: Result) -> Table | None:
    """p-values of every method against the one compared with.

    >>> tests = {"b": {"difference": -0.01, "paired": {"t": -3.0, "p": 0.04}, "welch": {"t": -2.0, "p": 0.08}}}
    >>> found = {"name": "x", "methods": {"a": {}, "b": {}}, "comparison": {"against": "a", "tests": tests}}
    >>> [cell.text for cell in significance(found).rows[0]]
    ['b', '−0.010', '−3.00', '0.040', '−2.00', '0.080']
    """
    compared, names = part(result, "comparison"), labels(result)
    tests = part(compared, "tests")
    if not tests:
        return None
    against = str(compared.get("against", primary(result)))
    metric = str(compared.get("metric", "auc"))
    rows = []
    for key in tests:
        test = part(tests, key)
        paired, welch = part(test, "paired"), part(test, "welch")
        cells = [names.get(key, key), signed(test.get("difference")), signed(paired.get("t"), 2).replace("+", "")]
        cells += [p_value(paired.get("p")), signed(welch.get("t"), 2).replace("+", ""), p_value(welch.get("p"))]
        rows.append(tuple(Cell(text) for text in cells))
    title = METRICS.get(metric, metric)
    heads = ("Method", f"Difference in {title}", "t, paired", "p, paired", "t, Welch", "p, Welch")
    caption = f"{title} of each method minus that of {names.get(against, against)}"
    remark = (
        f"Two-sided t-tests over {repeats(result)}, not corrected for the number of comparisons. A dash: not defined."
    )
    return Table(caption, heads, tuple(rows), remark)


def hospital_metrics(result: Result) -> Table | None:
    """Every hospital's metrics under the study's method, lowest AUC first; long lists are cut and say so.

    >>> method = {"metrics": {"sites": {"a": {"auc": 0.8, "rows": 20}}}}
    >>> [cell.text for cell in hospital_metrics({"name": "x", "methods": {"m": method}}).rows[0][:3]]
    ['a', '20', '0.800']
    """
    metrics = part(result, "methods", primary(result), "metrics")
    sites = part(metrics, "sites")
    if not sites:
        return None
    lead = "auc" if any(finite(part(m).get("auc")) is not None for m in sites.values()) else "auc_ovo"
    order = sorted(sites, key=lambda s: (_or_infinity(part(sites, s).get(lead)), s))
    names = [n for n in (*GROUPED, "auc_ovo", "f1_weighted") if _any(sites, n)]
    rows = []
    for site in order[:MOST_ROWS]:
        found, between = part(sites, site), part(metrics, "intervals", "sites", site)
        cells = [Cell(site), Cell(count(found.get("rows")))]
        cells += [Cell(number(found.get(n)), span(bounds(between, n)) if n == lead else "") for n in names]
        rows.append(tuple(cells))
    remark = f"{labels(result)[primary(result)]}, lowest {METRICS[lead]} first. A dash: not defined (one class only)."
    if left := order[MOST_ROWS:]:
        values = [v for s in left if (v := finite(part(sites, s).get(lead))) is not None]
        reach = f", {METRICS[lead]} from {number(min(values))} to {number(max(values))}" if values else ""
        remark += f" And {len(left):,} more hospitals{reach}."
    heads = ("Hospital", "Test rows", *(METRICS[n] for n in names))
    return Table("Each hospital's held-out patients", heads, tuple(rows), remark)


def subgroups(result: Result) -> list[Table]:
    """One table a group, one row a value, under the study's method.

    >>> groups = {"sex": {"F": {"auc": 0.9, "rows": 80}, "M": {"auc": 0.8, "rows": 40}}}
    >>> [table.caption for table in subgroups({"name": "x", "methods": {"m": {"metrics": {"groups": groups}}}})]
    ['By sex']
    """
    groups = part(result, "methods", primary(result), "metrics", "groups")
    tables = []
    for group in groups:
        values = part(groups, group)
        if not values:
            continue
        names = [n for n in GROUPED if _any(values, n)]
        aucs = {v: a for v in values if (a := finite(part(values, v).get("auc"))) is not None}
        lowest = min(aucs, key=lambda v: aucs[v]) if len(aucs) > 1 else None
        rows = []
        for value in list(values)[:MOST_ROWS]:
            found = part(values, value)
            few = (finite(found.get("rows")) or 0.0) < 100
            cells = [
                Cell(value, "lowest AUC" if value == lowest else ""),
                Cell(count(found.get("rows")), "few" if few else ""),
            ]
            rows.append((*cells, *(Cell(number(found.get(n))) for n in names)))
        more = len(values) - len(rows)
        remark = f"And {more:,} more values." if more > 0 else ""
        tables.append(Table(f"By {group}", (group, "Test rows", *(METRICS[n] for n in names)), tuple(rows), remark))
    return tables


GAPS = {
    "parity_gap": "Share called positive",
    "odds_gap": "Equalised odds",
    "opportunity_gap": "True-positive rate",
    "worst_accuracy": "Accuracy of the worst group",
}


def gaps(result: Result) -> Table | None:
    """Largest differences between the groups of each column, for every method, with intervals.

    >>> found = {"sex": {"parity_gap": 0.1, "intervals": {"parity_gap": [0.05, 0.2]}, "worst_group": "F"}}
    >>> [c.text for c in gaps({"name": "x", "methods": {"m": {"label": "M", "metrics": {"fairness": found}}}}).rows[0]]
    ['M', 'sex', '0.100', '–', '–', '–']
    """
    rows = []
    for key, label in labels(result).items():
        metrics = part(result, "methods", key, "metrics")
        records = [(column, part(metrics, "fairness", column)) for column in part(metrics, "fairness")]
        if fitted := part(metrics, "group_thresholds"):
            records.append((f"{fitted.get('column')}, thresholds by group", fitted))
        for column, found in records:
            spans = part(found, "intervals")
            cells = [Cell(number(found.get(name)), span(spans.get(name))) for name in GAPS]
            rows.append((Cell(label), Cell(column, f"worst: {found.get('worst_group')}"), *cells))
    if not rows:
        return None
    remark = "Differences between the best and the worst group; a gap of noisy rates is never 0. Intervals: 95 %."
    return Table("Gaps between groups", ("Method", "Groups", *GAPS.values()), tuple(rows[:MOST_ROWS]), remark)


def promises(result: Result) -> Table | None:
    """Epsilon, noise and patients of every hospital under the study's method, largest epsilon first.

    >>> privacy = {"epsilon": 2.0, "sites": {"a": 1.5}, "noise_multiplier": {"a": 0.9}, "patients": {"a": 500}}
    >>> [cell.text for cell in promises({"name": "x", "methods": {"m": {"privacy": privacy}}}).rows[0]]
    ['a', '1.50', '0.900', '500']
    """
    privacy = part(result, "methods", primary(result), "privacy")
    sites = part(privacy, "sites")
    if not sites:
        return None
    noise, patients = part(privacy, "noise_multiplier"), part(privacy, "patients")
    cohort = part(result, "cohort", "sites")
    trained = {s: patients.get(s, part(cohort, s).get("train")) for s in sites}
    order = sorted(sites, key=lambda s: (finite(sites[s]) is not None, -(finite(sites[s]) or 0.0), s))
    rows = tuple(
        (Cell(s), Cell(epsilon(sites[s])), Cell(number(noise.get(s))), Cell(count(trained[s])))
        for s in order[:MOST_ROWS]
    )
    remark = "Largest ε first, rounded up. Noise: standard deviation over the clipping bound."
    if left := order[MOST_ROWS:]:
        remark += f" And {len(left):,} more hospitals, none with a larger ε."
    heads = ("Hospital", "ε proven", "Noise multiplier", "Training patients")
    return Table("What is proven at each hospital", heads, rows, remark)


def _any(found: Mapping[str, Any], name: str) -> bool:
    return any(finite(part(found, key).get(name)) is not None for key in found)


def _or_infinity(value: Any) -> float:
    found = finite(value)
    return float("inf") if found is None else found


def _best(result: Result, name: str) -> float | None:
    values = [
        v
        for key in part(result, "methods")
        if (v := finite(part(result, "methods", key, "metrics", "global").get(name))) is not None
    ]
    if len(values) < 2:
        return None
    return min(values) if name in LOWER_IS_BETTER else max(values)
