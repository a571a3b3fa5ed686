"""How a result is put into words and numbers: shared by the page, the figures and the console, so they never disagree.

A result is untrusted text (study and hospital names are the user's) and any section but ``name`` and ``methods`` may be
missing. Nothing is called private unless a finite epsilon stands for the method and for every hospital it lists.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

Result = Mapping[str, Any]

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
    "f1_weighted": "F1, weighted",
    "f1_macro": "F1, macro",
}
LOWER_IS_BETTER = frozenset({"ece", "brier", "loss"})
NONE = "–"
NO_PRIVACY = (
    "No differential privacy. Nothing in this run limits what the model, or the updates that were exchanged, "
    "can reveal about a single patient."
)


def finite(value: Any) -> float | None:
    """The value as a float, or None where it is missing, not a number, or infinite.

    >>> finite(1), finite(None), finite(float("nan")), finite("0.9")
    (1.0, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def tidy(tree: Any) -> Any:
    """The result with NaN and infinity as None, and without control characters or exotic line ends in its texts.

    A diverged run still gets its page, and no name can break a line, a terminal or the parser of a figure.

    >>> tidy({"a\\u2028b": [float("nan"), 1.5, "x\\x1b[31m"]})
    {'a b': [None, 1.5, 'x [31m']}
    """
    if isinstance(tree, float):
        return tree if math.isfinite(tree) else None
    if isinstance(tree, str):
        return tree if tree.isprintable() else "".join(c if c.isprintable() or c == "\n" else " " for c in tree)
    if isinstance(tree, Mapping):
        return {tidy(str(key)): tidy(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [tidy(value) for value in tree]
    return tree


def part(tree: Any, *keys: str) -> dict[str, Any]:
    """A section of the result, or an empty one.

    >>> part({"a": {"b": {"c": 1}}}, "a", "b"), part({}, "a", "b")
    ({'c': 1}, {})
    """
    for key in keys:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return dict(tree) if isinstance(tree, Mapping) else {}


def repeats(result: Any) -> str:
    """What a result's intervals are over.

    >>> repeats({"study": {"evaluation": {"folds": 5}}}), repeats({"study": {"evaluation": {"seeds": 5}}})
    ('folds', 'seeds')
    """
    return "folds" if (finite(part(result, "study", "evaluation").get("folds")) or 0) > 1 else "seeds"


def number(value: Any, digits: int = 3) -> str:
    """A metric for people: three decimals, a dash where undefined.

    >>> number(0.95712), number(None)
    ('0.957', '–')
    """
    found = finite(value)
    return NONE if found is None else f"{found:.{digits}f}"


def count(value: Any) -> str:
    """A whole number with thin grouping.

    >>> count(13130), count(None)
    ('13,130', '–')
    """
    found = finite(value)
    return NONE if found is None else f"{round(found):,}"


def percent(value: Any) -> str:
    """A share as a percentage.

    >>> percent(0.1712)
    '17.1 %'
    """
    found = finite(value)
    return NONE if found is None else f"{100.0 * found:.1f} %"


def span(bounds: Any, digits: int = 3) -> str:
    """An interval, or nothing.

    >>> span([0.951, 0.9634]), span(None)
    ('0.951 to 0.963', '')
    """
    if not isinstance(bounds, list | tuple) or len(bounds) != 2 or any(finite(b) is None for b in bounds):
        return ""
    return f"{bounds[0]:.{digits}f} to {bounds[1]:.{digits}f}"


def bounds(intervals: Mapping[str, Any], name: str) -> list[float] | None:
    """A metric's interval, cut at what is possible: Student's interval can reach beyond 1, an AUC cannot.

    >>> bounds({"auc": [0.989, 1.009]}, "auc"), bounds({"loss": [0.9, 1.1]}, "loss"), bounds({}, "auc")
    ([0.989, 1.0], [0.9, 1.1], None)
    """
    found = intervals.get(name)
    if not isinstance(found, list | tuple) or len(found) != 2:
        return None
    low, high = finite(found[0]), finite(found[1])
    if low is None or high is None:
        return None
    return [max(low, 0.0), high if name == "loss" else min(high, 1.0)]


def epsilon(value: Any) -> str:
    """A proven epsilon, rounded *up* to two decimals: a promise must not be printed smaller than it is.

    >>> epsilon(7.991), epsilon(8.0), epsilon(0.0003), epsilon(None)
    ('8.00', '8.00', '0.01', 'none')
    """
    found = finite(value)
    return "none" if found is None else f"{math.ceil(round(found * 100.0, 6)) / 100.0:.2f}"


def delta(value: Any) -> str:
    """A delta in short scientific form.

    >>> delta(1e-5), delta(2.5e-6)
    ('1e-5', '2.5e-6')
    """
    found = finite(value)
    if found is None:
        return NONE
    mantissa, exponent = f"{found:.1e}".split("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"


def p_value(value: Any) -> str:
    """A p-value as journals print it.

    >>> p_value(0.00002), p_value(0.0412), p_value(None)
    ('< 0.001', '0.041', '–')
    """
    found = finite(value)
    if found is None:
        return NONE
    return "< 0.001" if found < 0.001 else f"{found:.3f}"


def signed(value: Any, digits: int = 3) -> str:
    """A difference with its sign.

    >>> signed(0.0123), signed(-0.004)
    ('+0.012', '−0.004')
    """
    found = finite(value)
    return NONE if found is None else f"{found:+.{digits}f}".replace("-", "−")


def size(value: Any) -> str:
    """Bytes for people (1 kB = 1,000 bytes).

    >>> size(512), size(1_234_567), size(None)
    ('512 B', '1.2 MB', '–')
    """
    found = finite(value)
    if found is None:
        return NONE
    for unit in ("B", "kB", "MB", "GB"):
        if found < 1000.0:
            return f"{found:.0f} {unit}" if unit == "B" else f"{found:.1f} {unit}"
        found /= 1000.0
    return f"{found:.1f} TB"


def duration(value: Any) -> str:
    """Seconds for people.

    >>> duration(3.21), duration(192)
    ('3.2 s', '3 min 12 s')
    """
    found = finite(value)
    if found is None:
        return NONE
    return f"{found:.1f} s" if found < 60 else f"{int(found // 60)} min {round(found % 60):d} s"


def moment(value: Any) -> str:
    """The date of a result; text that is not a date is passed on as it is.

    >>> moment("2026-11-15T20:30:00Z"), moment("yesterday")
    ('15 November 2026, 20:30 UTC', 'yesterday')
    """
    try:
        found = datetime.fromisoformat(str(value))
    except ValueError:
        return str(value)
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    found = found.astimezone(UTC)
    return f"{found.day} {found:%B %Y, %H:%M} UTC"


def primary(result: Result) -> str:
    """The key of the method the study is about: ``method`` where it names one, else the first.

    >>> primary({"name": "x", "method": "gone", "methods": {"fedavg": {}, "fedadam": {}}})
    'fedavg'
    """
    methods = part(result, "methods")
    chosen = result.get("method")
    return str(chosen) if chosen in methods else next(iter(methods), "")


def labels(result: Result) -> dict[str, str]:
    """What each method is called; two methods with the same label are told apart by their key.

    >>> labels({"methods": {"a": {"label": "Avg"}, "b": {"label": "Avg"}, "c": {}}})
    {'a': 'Avg (a)', 'b': 'Avg (b)', 'c': 'c'}
    """
    found = {key: str(part(result, "methods", key).get("label") or key) for key in part(result, "methods")}
    values = list(found.values())
    return {key: f"{label} ({key})" if values.count(label) > 1 else label for key, label in found.items()}


def protected(method: Mapping[str, Any]) -> bool:
    """True only where a finite epsilon is stated for the method and for every hospital that it lists.

    >>> protected({"privacy": {"epsilon": 8.0, "sites": {"a": 7.9}}}), protected({"privacy": {"epsilon": None}})
    (True, False)
    >>> protected({"privacy": {"epsilon": 8.0, "sites": {"a": None}}}), protected({})
    (False, False)
    """
    privacy = part(method, "privacy")
    if privacy.get("protected") is False or finite(privacy.get("epsilon")) is None:
        return False
    return all(finite(value) is not None for value in part(privacy, "sites").values())


def unprotected(result: Result) -> list[str]:
    """Labels of the methods that ran without differential privacy.

    >>> unprotected({"methods": {"a": {"privacy": {"epsilon": 1.0}}, "b": {}}})
    ['b']
    """
    names = labels(result)
    return [names[key] for key in names if not protected(part(result, "methods", key))]


def worst_hospital(method: Mapping[str, Any]) -> tuple[str, float] | None:
    """The hospital with the largest proven epsilon.

    >>> worst_hospital({"privacy": {"sites": {"a": 1.0, "b": 2.0}}})
    ('b', 2.0)
    """
    sites = {name: e for name, v in part(method, "privacy", "sites").items() if (e := finite(v)) is not None}
    return max(sites.items(), key=lambda item: item[1]) if sites else None


def hospitals(result: Result) -> list[str]:
    """Every hospital named by the cohort or by a method's metrics, in the order first met.

    >>> method = {"metrics": {"sites": {"x": {}, "y": {}}}}
    >>> hospitals({"methods": {"a": method}, "cohort": {"sites": {"z": {}, "x": {}}}})
    ['z', 'x', 'y']
    """
    names = dict.fromkeys(part(result, "cohort", "sites"))
    for key in part(result, "methods"):
        names.update(dict.fromkeys(part(result, "methods", key, "metrics", "sites")))
    return list(names)


def headline(result: Result) -> str:
    """The result in one sentence.

    >>> headline({"name": "x", "methods": {"fedavg": {"metrics": {"global": {"auc": 0.95}}}}})
    'fedavg reaches AUC 0.950 on held-out patients, without differential privacy.'
    """
    key = primary(result)
    method = part(result, "methods", key)
    metric, value = leading_metric(method)
    where = ""
    if sites := hospitals(result):
        where = f", trained at {len(sites):,} {'hospital' if len(sites) == 1 else 'hospitals'}"
        total = sum(finite(s.get("train")) or 0 for s in part(result, "cohort", "sites").values())
        where += f" on {total:,.0f} patients," if total else ","
    between = span(bounds(part(method, "metrics", "intervals", "global"), metric))
    text = f"{labels(result).get(key, key)}{where} reaches {METRICS[metric]} {number(value)}"
    text += f" (95\u00a0% interval {between})" if between else ""
    if not protected(method):
        return f"{text} on held-out patients, without differential privacy."
    privacy = part(method, "privacy")
    unit = f"{privacy['unit']}-level " if privacy.get("unit") else ""
    bound = f"ε\u00a0=\u00a0{epsilon(privacy.get('epsilon'))} or less, δ\u00a0=\u00a0{delta(privacy.get('delta'))}"
    return f"{text} on held-out patients, with {unit}differential privacy proven at every hospital ({bound})."


def leading_metric(method: Mapping[str, Any]) -> tuple[str, float | None]:
    """The metric that leads summaries: AUC where it is known, else the first known one.

    >>> leading_metric({"metrics": {"global": {"auc": None, "f1": 0.5}}})
    ('f1', 0.5)
    """
    found = part(method, "metrics", "global")
    for name in ("auc", "auc_ovo", *METRICS):
        if (value := finite(found.get(name))) is not None:
            return name, value
    return "auc", None


def gathered(protection: Any) -> str:
    """How the sites' updates became one, for the foot of a page; nothing for the usual mean.

    >>> gathered({"sum": "masked", "error": 1.164e-07, "shortened": 2, "rejected": {}})
    'opened as sums under masks only; rounding moved an entry of a mean by at most 1.2e-07; 2 shortened to the norm bound'
    >>> gathered({"aggregation": "median", "rejected": {"oslo": {"rounds": 3, "why": "the update is not finite"}}})
    'put together by median; rejected from oslo in 3 rounds: the update is not finite'
    >>> gathered(None)
    ''
    """
    if not isinstance(protection, Mapping):
        return ""
    masked, rule = protection.get("sum") == "masked", str(protection.get("aggregation") or "mean")
    said = ["opened as sums under masks only" if masked else f"put together by {rule}"]
    if masked and (error := finite(protection.get("error"))):
        said.append(f"rounding moved an entry of a mean by at most {error:.1e}")
    if shortened := finite(protection.get("shortened")):
        said.append(f"{shortened:.0f} shortened to the norm bound")
    rejected = protection.get("rejected")
    for site, told in (rejected if isinstance(rejected, Mapping) else {}).items():
        if isinstance(told, Mapping):
            said.append(f"rejected from {site} in {told.get('rounds')} rounds: {told.get('why')}")
    return "; ".join(said)
