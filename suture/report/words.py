"""How a result is put into words, numbers and tables: shared by page, figures, notebook and console,
so that they never disagree.

A result is untrusted text (study and hospital names are the user's), and any section but ``name``
and ``methods`` may be missing: `complete` makes it safe to show and fills in what is missing.
Nothing is called private unless a finite epsilon is stated for the method and for every hospital
that it lists.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, cast

from suture.schema.record import Intervals, MethodResult, Metrics, Plain, Record

Tree = TypeVar("Tree")
Found = Mapping[str, Any]
"""The plain answer of a command, as ``--json`` prints it."""

TEXTS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("texts.toml").read_text("utf-8"))
METRICS = {
    "auc": "AUC",
    "auprc": "AUPRC",
    "recall": "Recall (sensitivity)",
    "specificity": "Specificity",
    "precision": "Precision (PPV)",
    "f1": "F1",
    "accuracy": "Accuracy",
    "recall_at_90_specificity": "Recall at 90 % specificity",
    "ece": "Calibration error (ECE)",
    "brier": "Brier score",
    "loss": "Log loss",
    "auc_ovo": "AUC, one against one",
    "c_index": "C-index",
    "ibs": "Integrated Brier score",
    "calibration_gap": "Calibration gap at the horizon",
    "f1_weighted": "F1, weighted",
    "f1_macro": "F1, macro",
    "net_benefit": "Net benefit",
    "observed_over_expected": "Observed over expected",
    "slope": "Recalibration slope",
    "intercept": "Recalibration intercept",
}
QUALITY = ("auc", "auprc", "recall", "specificity", "precision", "f1", "accuracy", "auc_ovo",
           "f1_weighted", "f1_macro", "c_index", "ibs")  # fmt: skip
UNBOUNDED = ("net_benefit", "observed_over_expected", "slope", "intercept")
CARE = ("recall_at_90_specificity", "ece", "brier", "loss", "calibration_gap", *UNBOUNDED)
WITHHELD = "too few patients for this noise"
GROUPED = ("auc", "auprc", "recall", "specificity", "precision", "f1", "ece", "c_index", "ibs")
GAPS = {
    "parity_gap": "Share called positive",
    "odds_gap": "Equalised odds",
    "opportunity_gap": "True-positive rate",
    "worst_accuracy": "Accuracy of the worst group",
}
MOST_ROWS = 30
LOWER_IS_BETTER = frozenset({"ece", "brier", "loss", "ibs", "calibration_gap"})
NONE = "–"
NOISY = (
    "From noisy counts that were charged to the budget; withheld: fewer patients with or without the "
    "outcome than 15 deviations of the noise."
)
NO_PRIVACY = (
    "No differential privacy. Nothing in this run limits what the model, or the updates that were "
    "exchanged, can reveal about a single patient."
)
SHOWN = 6
"""How many notes are shown before the rest is folded away."""
ACCOUNTANTS = {
    "pld": "PLD",
    "rdp": "RDP",
    "basic": "basic",
    "gaussian": "Gaussian, exact",
}
FEW = 3
"""A note that at most this many hospitals share is kept as it is."""
_NOTE = re.compile(
    r"site '(?P<site>.+?)': (?P<before>.*?)(?P<count>[\d,]+) of (?P<all>[\d,]+)(?P<after> "
    r"rows?\b.*)",
    re.S,
)

# What stands in for a missing section. A statement that does not say whether it protects is judged
# by its epsilons.
_STATEMENT: dict[str, object] = {
    "protected": True, "unit": None, "neighbours": None, "sampling": None, "accountant": None,
    "delta": None, "epsilon": None, "sites": {}, "noise_multiplier": {}, "budget": None,
    "noise_source": None, "public": [], "not_covered": [], "statement": "", "patients": {},
}  # fmt: skip
_MEASURED: dict[str, object] = {"global": {}, "sites": {}, "groups": {}, "fairness": {}}
_METHOD: dict[str, object] = {
    "label": "", "metrics": {}, "privacy": {}, "communication": {}, "history": [], "roc": {},
    "calibration": {}, "rounds_planned": None, "rounds_done": None, "stopped": None,
    "protection": None, "seconds": None, "per_seed": [],
}  # fmt: skip
_SECTIONS: dict[str, Mapping[str, object]] = {
    "metrics": _MEASURED,
    "privacy": _STATEMENT,
    "communication": dict.fromkeys(("bytes_up", "bytes_down", "rounds")),
    "roc": {"fpr": [], "tpr": []},
    "calibration": {"predicted": [], "observed": [], "count": []},
}
_RECORD: dict[str, object] = {
    "suture": "", "format": "", "release": {}, "name": "", "outcome": "", "created": "",
    "seed": None, "seeds": [], "command": "", "method": "", "methods": {}, "cohort": {},
    "study": {}, "warnings": [], "references": [], "comparison": {},
}  # fmt: skip


def complete(result: Mapping[str, object]) -> Record:
    """The result, `tidy`, with an empty section for each one that is missing.

    ``method`` is the key of the study's method, or of the first one where that is not there.

    >>> whole = complete({"name": "x", "methods": {"a": {"history": None}}})
    >>> whole["method"], whole["methods"]["a"]["history"], whole["warnings"]
    ('a', [], [])
    """
    whole = _filled(tidy(result), _RECORD)
    methods = {key: _method(key, found) for key, found in _items(whole["methods"])}
    first = whole["method"] if whole["method"] in methods else next(iter(methods), "")
    cohort = _filled(whole["cohort"], {"source": "", "sites": {}, "features": {}})
    features = {key: _filled(found, {"label": key}) for key, found in _items(cohort["features"])}
    whole |= {
        "method": first,
        "methods": methods,
        "cohort": {**cohort, "features": features},
        "release": _filled(whole["release"], {"words": ""}),
        "comparison": _filled(
            whole["comparison"], {"against": first, "metric": "auc", "tests": {}}
        ),
    }
    return cast(Record, whole)


def _method(key: str, found: object) -> dict[str, object]:
    whole = _filled(found, {**_METHOD, "label": key})
    whole |= {name: _filled(whole[name], blank) for name, blank in _SECTIONS.items()}
    metrics = _filled(whole["metrics"], {"intervals": {}})
    metrics["intervals"] = _filled(metrics["intervals"], {"global": {}, "sites": {}})
    rounds = cast(list[object], whole["history"])
    whole["history"] = [_filled(entry, {**_MEASURED, "round": 0}) for entry in rounds]
    return {**whole, "metrics": metrics}


def _filled(found: object, blank: Mapping[str, object]) -> dict[str, object]:
    return {**blank, **{key: value for key, value in _items(found) if value is not None}}


def _items(found: object) -> Iterable[tuple[str, object]]:
    return found.items() if isinstance(found, Mapping) else ()


def tidy(tree: Tree) -> Tree:
    """The same with NaN and infinity as None, and without control characters in texts.

    A diverged run still gets its page, and no name can break a line, a terminal or the parser of a
    figure.

    >>> tidy({"a\\u2028b": [float("nan"), 1.5, "x\\x1b[31m"]})
    {'a b': [None, 1.5, 'x [31m']}
    """
    return cast(Tree, _tidied(tree))


def _tidied(tree: object) -> object:
    if isinstance(tree, float):
        return tree if math.isfinite(tree) else None
    if isinstance(tree, str):
        if tree.isprintable():
            return tree
        return "".join(c if c.isprintable() or c == "\n" else " " for c in tree)
    if isinstance(tree, Mapping):
        return {_tidied(str(key)): _tidied(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_tidied(value) for value in tree]
    return tree


def part(tree: object, *keys: str) -> dict[str, Any]:
    """A section of plain data, or an empty one.

    >>> part({"a": {"b": {"c": 1}}}, "a", "b"), part({}, "a", "b")
    ({'c': 1}, {})
    """
    for key in keys:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return dict(_items(tree))


def finite(value: object) -> float | None:
    """The value as a float, or None where it is missing, not a number, or infinite."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def number(value: object, digits: int = 3, sign: str = "") -> str:
    """A metric for people: three decimals, a dash where undefined."""
    found = finite(value)
    return NONE if found is None else f"{found:{sign}.{digits}f}"


def signed(value: object, digits: int = 3) -> str:
    """A difference with its sign."""
    return number(value, digits, "+").replace("-", "−")


def count(value: object) -> str:
    """A whole number with commas."""
    found = finite(value)
    return NONE if found is None else f"{round(found):,}"


def span(ends: Iterable[object] | None) -> str:
    """An interval, or nothing."""
    found = [finite(end) for end in ends or ()]
    return "" if len(found) != 2 or None in found else " to ".join(map(number, found))


def bounds(intervals: Intervals, name: str) -> list[float] | None:
    """A metric's interval, cut at what is possible: Student's can reach beyond 1, an AUC cannot.

    >>> bounds({"auc": [0.989, 1.009]}, "auc"), bounds({"loss": [0.9, 1.1]}, "loss"), bounds({}, "auc")
    ([0.989, 1.0], [0.9, 1.1], None)
    """
    found = intervals.get(name)
    if not span(found) or found is None:
        return None
    if name in UNBOUNDED:
        return list(found)
    return [max(found[0], 0.0), found[1] if name == "loss" else min(found[1], 1.0)]


def epsilon(value: object) -> str:
    """A proven epsilon, rounded *up*: a promise must not be printed smaller than it is.

    >>> epsilon(7.991), epsilon(8.0), epsilon(0.0003), epsilon(None)
    ('8.00', '8.00', '0.01', 'none')
    """
    found = finite(value)
    return "none" if found is None else f"{math.ceil(round(found * 100.0, 6)) / 100.0:.2f}"


def delta(value: object) -> str:
    """A delta in short scientific form."""
    found = finite(value)
    if found is None:
        return NONE
    mantissa, exponent = f"{found:.1e}".split("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"


def p_value(value: object) -> str:
    """A p-value as journals print it."""
    found = finite(value)
    return "< 0.001" if found is not None and found < 0.001 else number(found)


def size(value: object) -> str:
    """Bytes for people (1 kB = 1,000 bytes)."""
    found = finite(value)
    if found is None:
        return NONE
    for unit in ("B", "kB", "MB", "GB"):
        if found < 1000.0:
            return f"{found:.0f} {unit}" if unit == "B" else f"{found:.1f} {unit}"
        found /= 1000.0
    return f"{found:.1f} TB"


def duration(value: object) -> str:
    """Seconds for people."""
    found = finite(value)
    if found is None:
        return NONE
    return f"{found:.1f} s" if found < 60 else f"{int(found // 60)} min {round(found % 60):d} s"


def moment(value: object) -> str:
    """A date for people; text that is not a date is passed on as it is."""
    try:
        found = datetime.fromisoformat(str(value))
    except ValueError:
        return str(value)
    found = (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    return f"{found.day} {found:%B %Y, %H:%M} UTC"


def repeats(result: Record) -> str:
    """What a result's intervals are taken over."""
    folds = part(result["study"], "evaluation").get("folds")
    return "folds" if (finite(folds) or 0) > 1 else "seeds"


def primary(result: Record) -> MethodResult:
    """The study's method, or an empty one where no method ran."""
    found = result["methods"].get(result["method"])
    return cast(MethodResult, _method("", {})) if found is None else found


def labels(result: Record) -> dict[str, str]:
    """What each method is called; a key sets apart two methods with the same label.

    >>> labels(complete({"methods": {"a": {"label": "Avg"}, "b": {"label": "Avg"}, "c": {}}}))
    {'a': 'Avg (a)', 'b': 'Avg (b)', 'c': 'c'}
    """
    found = {key: method["label"] for key, method in result["methods"].items()}
    names = list(found.values())
    return {k: f"{name} ({k})" if names.count(name) > 1 else name for k, name in found.items()}


def protected(method: MethodResult) -> bool:
    """True only if a finite epsilon is stated for the method and for every hospital it lists."""
    privacy = method["privacy"]
    every = (privacy["epsilon"], *privacy["sites"].values())
    return privacy["protected"] and None not in every


def unprotected(result: Record) -> list[str]:
    """Labels of the methods that ran without differential privacy."""
    return [name for key, name in labels(result).items() if not protected(result["methods"][key])]


def worst_hospital(method: MethodResult) -> str:
    """The hospital with the largest proven epsilon, or nothing."""
    sites = {name: e for name, e in method["privacy"]["sites"].items() if e is not None}
    return max(sites, key=lambda name: sites[name], default="")


def hospitals(result: Record) -> list[str]:
    """Every hospital named by the cohort or by a method's metrics, in the order first met."""
    names = dict.fromkeys(result["cohort"]["sites"])
    for method in result["methods"].values():
        names |= dict.fromkeys(method["metrics"]["sites"])
    return list(names)


def headline(result: Record) -> str:
    """The result in one sentence."""
    method = primary(result)
    metric, value = leading_metric(method)
    where = ""
    if sites := hospitals(result):
        where = f", trained at {len(sites):,} {'hospital' if len(sites) == 1 else 'hospitals'}"
        total = sum(site.get("train") or 0 for site in result["cohort"]["sites"].values())
        where += f" on {total:,.0f} patients," if total else ","
    between = span(bounds(method["metrics"]["intervals"]["global"], metric))
    who = labels(result).get(result["method"], "")
    text = f"{who}{where} reaches {METRICS[metric]} {number(value)}"
    text += f" (95\u00a0% interval {between})" if between else ""
    if not protected(method):
        return f"{text} on held-out patients, without differential privacy."
    privacy = method["privacy"]
    unit = f"{privacy['unit']}-level " if privacy["unit"] else ""
    bound = f"ε\u00a0=\u00a0{epsilon(privacy['epsilon'])} or less, δ\u00a0=\u00a0{delta(privacy['delta'])}"
    return f"{text} on held-out patients, with {unit}differential privacy proven at every hospital ({bound})."


def leading_metric(method: MethodResult) -> tuple[str, float | None]:
    """The metric that leads summaries: AUC where it is known, else the first known one."""
    found = method["metrics"]["global"]
    for name in ("auc", "auc_ovo", "c_index", *METRICS):
        if (value := found.get(name)) is not None:
            return name, value
    return "auc", None


def combined(protection: Mapping[str, Plain] | None) -> str:
    """How the sites' updates were combined, for the foot of a page; nothing for the usual mean."""
    if protection is None:
        return ""
    masked, rule = protection.get("sum") == "masked", str(protection.get("aggregation") or "mean")
    parts = ["opened as sums under masks only" if masked else f"combined by {rule}"]
    if masked and (error := finite(protection.get("error"))):
        parts.append(f"rounding moved an entry of a mean by at most {error:.1e}")
    if shortened := finite(protection.get("shortened")):
        parts.append(f"{shortened:.0f} shortened to the norm bound")
    for site, found in _items(protection.get("rejected")):
        if isinstance(found, Mapping):
            rounds, why = found.get("rounds"), found.get("why")
            parts.append(f"rejected from {site} in {rounds} rounds: {why}")
    return "; ".join(parts)


def unchecked(result: Record) -> str:
    """Where nobody checked the table before the run, aloud; nothing where somebody did everywhere.

    >>> unchecked(complete({"ready": {"north": None, "east": {"by": "A. Kowal", "when": "2026-11-18T09:00:00+00:00"}}}))
    'NOT CHECKED: nobody signed that the table of north was checked before this run (suture check).'
    """
    sites = [site for site, signer in result.get("ready", {}).items() if signer is None]
    tables = "tables" if len(sites) > 1 else "table"
    were = "were" if len(sites) > 1 else "was"
    words = f"nobody signed that the {tables} of {', '.join(sites)} {were} checked before this run"
    return f"NOT CHECKED: {words} (suture check)." if sites else ""


def signers(result: Record) -> str:
    """Who signed that each site's table is ready, and when.

    >>> signers(complete({"ready": {"east": {"by": "A. Kowal", "when": "2026-11-18T09:00:00+00:00"}}}))
    'east by A. Kowal, 18 November 2026, 09:00 UTC'
    """
    found = {site: signer for site, signer in result.get("ready", {}).items() if signer}
    return "; ".join(f"{s} by {one['by']}, {moment(one['when'])}" for s, one in found.items())


def merged_notes(warnings: Iterable[str]) -> list[str]:
    """The sites' notes, with those that differ only in hospital and counts merged into one.

    A note reads ``site 'name': what``. With 152 hospitals and 17 laboratory values there are
    thousands of them; a reader wants one line per column, and which hospital is hit worst.

    >>> merged_notes(f"site 'h{i}': column 'bmi': {i} of 20 rows without a value" for i in range(1, 5))
    ["column 'bmi': 10 of 80 rows without a value (at 4 hospitals; most at h4: 4 of 20)"]
    """
    groups: dict[tuple[str, ...], list[tuple[str, int, int, str]]] = {}
    for text in warnings:
        if (found := _NOTE.fullmatch(text)) is None:
            groups.setdefault(("", text), []).append(("", 0, 0, text))
            continue
        part, whole = (int(found[name].replace(",", "")) for name in ("count", "all"))
        # "1 row" and "2 rows" are the same note.
        after = re.sub(r"^ row\b", " rows", found["after"])
        groups.setdefault((found["before"], after), []).append((found["site"], part, whole, text))
    notes: list[str] = []
    for (before, after), members in groups.items():
        if not members[0][0]:
            notes.append(after)
        elif len(members) <= FEW:
            notes.extend(text for *_, text in members)
        else:
            site, part, whole, _ = max(members, key=lambda member: member[1] / max(member[2], 1))
            total = f"{sum(m[1] for m in members):,} of {sum(m[2] for m in members):,}"
            where = f"(at {len(members)} hospitals; most at {site}: {part:,} of {whole:,})"
            notes.append(f"{before}{total}{after} {where}")
    return notes


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


def noisy(method: MethodResult) -> bool:
    """Whether the metrics come from the charged evaluation of real patients."""
    return bool(method["metrics"].get("evaluation"))


def _measured(value: float | None, between: str, method: MethodResult) -> Cell:
    """A metric with its interval, or that it is withheld."""
    if value is None and noisy(method):
        stopped = "stopped" in method["metrics"].get("evaluation", {})
        return Cell("none", "the evaluation stopped") if stopped else Cell("withheld", WITHHELD)
    return Cell(number(value), between)


def _known(found: Sequence[Metrics], names: Sequence[str]) -> list[str]:
    """Those of the names that at least one set of metrics has a value for."""
    return [name for name in names if any(metrics.get(name) is not None for metrics in found)]


def quality(result: Record, names: Sequence[str], caption: str = "Held-out patients") -> Table:
    """Methods x metrics over all hospitals, with 95 % intervals where several seeds ran."""
    methods, keys = result["methods"], labels(result)
    overall = {key: method["metrics"]["global"] for key, method in methods.items()}
    private = any(map(noisy, methods.values()))
    names = _known(list(overall.values()), names) or (["auc"] if private else [])
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
            cell = _measured(value, span(bounds(between, name)), methods[key])
            cells.append(Cell(cell.text, cell.note, wins, half))
        rows.append(tuple(cells))
    remarks = ["Bold: the best mean of a column."] if len(keys) > 1 else []
    if any(cell.note for row in rows for cell in row[1:]):
        over = "for noise and sampling together" if private else f"over {repeats(result)}"
        remarks.append(f"Second line: 95 % interval {over}.")
    if private:
        remarks.append(NOISY)
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
    own = primary(result)
    metrics = own["metrics"]
    sites = metrics["sites"]
    if not sites:
        return None
    every = list(sites.values())
    lead = next(
        iter(_known(every, ["auc", "auc_ovo", "c_index"])), "auc" if noisy(own) else "auc_ovo"
    )
    known = {site: value for site, m in sites.items() if (value := m.get(lead)) is not None}
    order = sorted(sites, key=lambda site: (known.get(site, math.inf), site))
    names = _known(every, (*GROUPED, "auc_ovo", "f1_weighted")) or ["auc"]
    rows = []
    for site in order[:MOST_ROWS]:
        found = metrics["intervals"]["sites"].get(site, {})
        cells = [Cell(site), Cell(count(sites[site].get("rows")))]
        cells += [
            _measured(
                sites[site].get(n), span(bounds(found, n)) if n == lead or noisy(own) else "", own
            )
            for n in names
        ]
        rows.append(tuple(cells))
    label, title = labels(result)[result["method"]], METRICS[lead]
    undefined = NOISY if noisy(own) else "A dash: not defined (one class only)."
    remark = f"{label}, lowest {title} first. {undefined}"
    if left := order[MOST_ROWS:]:
        values = [known[site] for site in left if site in known]
        ends = f", {title} from {number(min(values))} to {number(max(values))}" if values else ""
        remark += f" And {len(left):,} more hospitals{ends}."
    heads = ("Hospital", "Test rows", *(METRICS[name] for name in names))
    if noisy(own):  # nobody may know how many there are
        heads, rows = (heads[0], *heads[2:]), [(row[0], *row[2:]) for row in rows]
    return Table("Each hospital's held-out patients", heads, tuple(rows), remark)


def subgroups(result: Record) -> list[Table]:
    """One table per group column, one row per value, under the study's method."""
    groups = primary(result)["metrics"]["groups"]
    own = primary(result)
    return [_subgroup(group, values, own) for group, values in groups.items() if values]


def _subgroup(group: str, values: Mapping[str, Metrics], own: MethodResult) -> Table:
    names = _known(list(values.values()), GROUPED) or ["auc"]
    aucs = {value: auc for value, m in values.items() if (auc := m.get("auc")) is not None}
    lowest = min(aucs, key=lambda value: aucs[value]) if len(aucs) > 1 else None
    rows = []
    for value, found in list(values.items())[:MOST_ROWS]:
        few = not noisy(own) and (found.get("rows") or 0) < 100
        cells = [Cell(value, "lowest AUC" if value == lowest else "")]
        cells.append(Cell(count(found.get("rows")), "few" if few else ""))
        measured = (_measured(found.get(name), "", own) for name in names)
        rows.append((*cells, *(Cell(cell.text) for cell in measured)))
    more = len(values) - len(rows)
    heads = (group, "Test rows", *(METRICS[name] for name in names))
    if noisy(own):
        heads, rows = (heads[0], *heads[2:]), [(row[0], *row[2:]) for row in rows]
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
            own = result["methods"][key]
            cells = [
                _measured(finite(gap.get(name)), span(between.get(name)), own)
                if name in gap
                else Cell(NONE)
                for name in GAPS
            ]
            note = f"worst: {gap['worst_group']}" if gap.get("worst_group") else ""
            if why := gap.get("withheld"):
                note, cells = why, [Cell("withheld")] * len(GAPS)
            rows.append((Cell(label), Cell(column, note), *cells))
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
