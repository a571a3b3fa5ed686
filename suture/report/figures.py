"""The figures of a result, by name: methods, hospitals, groups of patients, and the cohort.

Each takes a complete result (see `words.complete`) and gives an Altair chart, or None where the
result lacks what the figure shows. All are drawn from counts and quantiles that the result holds;
no row reaches this module. Papers and other pages draw with `bias_accuracy` and `heat_map`.

A thousand panels inform nobody: at most `MOST_PANELS` hospitals are drawn, chosen over the whole
range from the worst to the best, with the worst always among them, and the figure says how many it
leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import altair as alt
import numpy as np
from numpy.typing import NDArray

from suture.report.theme import (
    GREY,
    INK,
    PALETTE,
    QUIET,
    Figure,
    finish,
    hospital_colours,
    hospital_hue,
    method_colours,
    save,
    table,
    tips,
)
from suture.report.words import (
    METRICS,
    Found,
    bounds,
    complete,
    labels,
    leading_metric,
    number,
    primary,
    repeats,
    span,
)
from suture.schema.record import FeatureSummary, Record

__all__ = ["figures_of", "save"]

COMPARED = ("auc", "auprc", "recall", "precision", "f1", "ece")
CONVERGENCE = ("auc", "f1", "recall", "loss")
MOST_ROUNDS = 200
"""More points than pixels say nothing more."""
MOST_PANELS, MOST_ROWS, MOST_DOTS = 24, 30, 100
MOST_STATIC = 60
"""A printed map shows at most this many columns: the most spread ones, and it says so."""

ROUND = alt.X("round:Q", title="Round", axis=alt.Axis(tickMinStep=1, tickCount=6, format="d"))
_RIGHT = alt.Legend(orient="right", offset=18)
_SHARES = alt.Axis(format="%", values=[0, 0.2, 0.4, 0.6, 0.8, 1.0])
_FROM_DATA = alt.Scale(zero=False)

Entry = TypeVar("Entry")


def figures_of(result: Mapping[str, object]) -> dict[str, Figure]:
    """Every figure this result can show, by a name that also serves as its file name.

    >>> list(figures_of({"name": "x", "methods": {"a": {"roc": {"fpr": [0, 1], "tpr": [0, 1]}}}}))
    ['roc']
    """
    makers: dict[str, Callable[[Record], Figure | None]] = {
        "comparison": comparison,
        "roc": roc,
        "calibration": calibration,
        "convergence": convergence,
        "hospitals": hospitals_compared,
        "hospital_panels": panels,
        "fairness": groups_by_round,
        "privacy_utility": privacy_utility,
        "hospital_sizes": sizes,
        "histograms": histograms,
        "box_plots": boxes,
    }
    whole = complete(result)
    return {name: chart for name, make in makers.items() if (chart := make(whole)) is not None}


def thin(entries: Sequence[Entry], most: int) -> list[Entry]:
    """All entries, or ``most`` of them at equal distances, with both ends.

    >>> thin(range(9), 3)
    [0, 4, 8]
    """
    if len(entries) <= most:
        return list(entries)
    return [entries[i] for i in np.linspace(0, len(entries) - 1, most).round().astype(int)]


def chosen(values: Mapping[str, float], most: int) -> list[str]:
    """Names from lowest to highest value: all, or the lowest ``most`` / 2 and as many of the rest.

    >>> chosen({str(i): i for i in range(100)}, 6)
    ['0', '1', '2', '3', '51', '99']
    """
    order = sorted(values, key=lambda name: (values[name], name))
    if len(order) <= most:
        return order
    lowest = (most + 1) // 2
    return order[:lowest] + thin(order[lowest:], most - lowest)


def _drawn_last(result: Record) -> list[tuple[str, str]]:
    """Keys and labels, with the study's own method at the end, so that its line lies on top."""
    return sorted(labels(result).items(), key=lambda item: item[0] == result["method"])


def _by_name(names: Sequence[str], field: str = "hospital", **axis: Any) -> alt.Y:
    """One row per name, with quiet labels."""
    quiet = alt.Axis(ticks=False, domain=False, labelPadding=8, **axis)
    return alt.Y(f"{field}:N", sort=list(names), title=None, axis=quiet)


def _method_colour(result: Record) -> alt.Color:
    """A method's colour, with a legend at the bottom where there are several."""
    many = len(result["methods"])
    legend = alt.Legend(orient="bottom", columns=min(4, many), offset=14, symbolSize=180)
    scale = method_colours(result)
    return alt.Color("method:N", scale=scale, title=None, legend=legend if many > 1 else None)


def _diagonal() -> alt.Chart:
    line = alt.Chart(table([{"x": 0, "y": 0}, {"x": 1, "y": 1}]))
    line = line.mark_line(color=GREY, strokeDash=[5, 4], strokeWidth=1.5)
    drawn: alt.Chart = line.encode(x="x:Q", y="y:Q")
    return drawn


def roc(result: Record) -> Figure | None:
    """ROC curves of every method, on held-out patients of all hospitals together. Curve and legend
    are of one training, the first seed's: a mean over seeds is the area under no curve."""
    rows, legend, seeds = [], {}, 1
    for key, label in _drawn_last(result):
        method = result["methods"][key]
        runs = [run["global"] for run in method["per_seed"]]
        auc = (runs or [method["metrics"]["global"]])[0].get("auc")
        seeds = max(seeds, len(runs))
        legend[label] = f"{label}, AUC {number(auc)}" if auc is not None else label
        points = zip(method["roc"]["fpr"], method["roc"]["tpr"], strict=False)
        rows += [
            {"method": legend[label], "fpr": round(x, 4), "tpr": round(y, 4), "order": i}
            for i, (x, y) in enumerate(points)
        ]
    if not rows:
        return None
    shared = method_colours(result).to_dict()
    colours = alt.Scale(domain=[legend[n] for n in shared["domain"]], range=shared["range"])
    lines = alt.Chart(table(rows)).mark_line(strokeWidth=2.2, interpolate="linear")
    without, with_ = "patients without the outcome", "patients with the outcome"
    lines = lines.encode(
        x=alt.X("fpr:Q", title=f"False positives among {without}", axis=_SHARES),
        y=alt.Y("tpr:Q", title=f"True positives among {with_}", axis=_SHARES),
        color=alt.Color("method:N", scale=colours, title=None, legend=_RIGHT),
        order="order:Q",
        tooltip=tips(method="Method", fpr="False positive rate|.1%", tpr="True positive rate|.1%"),
    )
    chart = alt.layer(_diagonal(), lines).properties(width=420, height=420)
    note = "Held-out patients of all hospitals together; dashed: a coin toss"
    note += ". Curves and AUC of the first seed" if seeds > 1 else ""
    return finish(chart, "ROC curve", note)


def calibration(result: Record) -> Figure | None:
    """Predicted against observed risk, one line per method; dashed: perfectly calibrated."""
    rows = []
    for key, label in _drawn_last(result):
        curve = result["methods"][key]["calibration"]
        points = zip(curve["predicted"], curve["observed"], curve["count"], strict=False)
        rows += [
            {"method": label, "p": round(p, 4), "o": round(o, 4), "rows": n} for p, o, n in points
        ]
    if not rows:
        return None
    observed, whole = "Observed share of patients with the outcome", alt.Scale(domain=[0, 1])
    base = alt.Chart(table(rows)).encode(
        x=alt.X("p:Q", title="Predicted risk", axis=_SHARES, scale=whole),
        y=alt.Y("o:Q", title=observed, axis=_SHARES, scale=whole),
        color=alt.Color("method:N", scale=method_colours(result), title=None, legend=_RIGHT),
    )
    shown = tips(method="Method", p="Predicted|.1%", o="Observed|.1%", rows="Rows|,d")
    area = alt.Size("rows:Q", scale=alt.Scale(type="sqrt", range=[25, 260]), legend=None)
    dots = base.mark_circle(opacity=0.9).encode(size=area, tooltip=shown)
    chart = alt.layer(_diagonal(), base.mark_line(strokeWidth=1.8), dots)
    note = "Larger dots stand for more rows; dashed: predictions that come true exactly"
    return finish(chart.properties(width=420, height=420), "Calibration", note)


def comparison(result: Record) -> Figure | None:
    """One dot per method with its 95 % interval over seeds, one panel per metric."""
    names = labels(result)
    if len(names) < 2:
        return None  # one dot compares with nothing; the summary table says it
    lead = leading_metric(primary(result))[0]
    known = {metric: rows for metric in COMPARED if (rows := _final(result, metric))}
    if not known and (rows := _final(result, lead)):
        known = {lead: rows}
    if not known:
        return None
    shown = []
    for i, (metric, rows) in enumerate(known.items()):
        y = _by_name(list(names.values()), "method", labels=i % 3 == 0, grid=True)
        base = alt.Chart(table(rows)).encode(y=y)
        colour = alt.Color("method:N", scale=method_colours(result), legend=None)
        title = METRICS[metric]
        x = alt.X("low:Q", title=title, scale=_FROM_DATA, axis=alt.Axis(tickCount=4))
        bar = base.mark_rule(strokeWidth=2.5).encode(x=x, x2="high:Q", color=colour)
        words = tips(method="Method", value=f"{title}|.3f", interval="95 % interval")
        dot = base.mark_circle(size=95, opacity=1)
        dot = dot.encode(x="value:Q", color=colour, tooltip=words)
        shown.append(alt.layer(bar, dot).properties(width=190, height=max(90, 26 * len(names))))
    note = "One seed: no intervals"
    if any(row["interval"] for rows in known.values() for row in rows):
        note = f"Dots: mean over {repeats(result)}; lines: 95 % interval"
    if "ece" in known:
        note += ". Lower is better for the calibration error, higher for the others"
    chart = alt.concat(*shown, columns=3, spacing={"row": 24, "column": 22})
    return finish(chart, "Methods compared", note)


def _final(result: Record, metric: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for key, label in labels(result).items():
        metrics = result["methods"][key]["metrics"]
        value, ends = metrics["global"].get(metric), bounds(metrics["intervals"]["global"], metric)
        if value is not None:
            low, high = ends or (value, value)
            row = {"method": label, "value": value, "low": low, "high": high}
            rows.append({**row, "interval": span(ends)})
    return rows


def convergence(result: Record) -> Figure | None:
    """Metrics after every round: one panel per metric, one line per method."""
    names, known = labels(result), {}
    for metric in CONVERGENCE:
        rows = [
            {"method": label, "round": entry["round"], "value": round(value, 5)}
            for key, label in _drawn_last(result)
            for entry in thin(result["methods"][key]["history"], MOST_ROUNDS)
            if (value := entry["global"].get(metric)) is not None
        ]
        if rows:
            known[metric] = rows
    if not known:
        return None
    single = len(known) == 1
    size = {"width": 640 if single else 310, "height": 320 if single else 200}
    shown: list[alt.Chart] = []
    for metric, rows in known.items():
        title = METRICS[metric]
        line = alt.Chart(table(rows)).mark_line(strokeWidth=2)
        line = line.encode(
            x=ROUND,
            y=alt.Y("value:Q", title=title, scale=_FROM_DATA, axis=alt.Axis(tickCount=6)),
            color=_method_colour(result),
            tooltip=tips(method="Method", round="Round|", value=f"{title}|.3f"),
        )
        shown.append(line.properties(**size))
    chart = alt.concat(*shown, columns=2, spacing={"row": 26, "column": 40})
    who = f"{next(iter(names.values()))}. " if len(names) == 1 else ""
    note = f"{who}Held-out patients of all hospitals together, over the rounds"
    return finish(shown[0] if single else chart, "Convergence", note)


def privacy_utility(result: Record) -> Figure | None:
    """AUC against the epsilon spent, round by round."""
    names = labels(result)
    rows = [
        {"method": label, "epsilon": round(spent, 4), "value": round(auc, 5), "at": entry["round"]}
        for key, label in _drawn_last(result)
        for entry in thin(result["methods"][key]["history"], MOST_ROUNDS)
        if (spent := entry.get("epsilon")) is not None
        and (auc := entry["global"].get("auc")) is not None
    ]
    if not rows:
        return None
    axis = "Privacy spent: epsilon proven at the worst hospital (smaller is more private)"
    scale = alt.Scale(type="linear", nice=True)
    lines = alt.Chart(table(rows)).mark_line(strokeWidth=2.2)
    lines = lines.encode(
        x=alt.X("epsilon:Q", title=axis, scale=scale, axis=alt.Axis(tickCount=8)),
        y=alt.Y("value:Q", title="AUC", scale=_FROM_DATA, axis=alt.Axis(tickCount=6)),
        color=_method_colour(result),
        order="at:Q",
        tooltip=tips(method="Method", at="Round|", epsilon="Epsilon|.2f", value="AUC|.3f"),
    )
    who = "Each line follows one method" if len(names) > 1 else next(iter(names.values()))
    note = f"{who}, round by round, on held-out patients of all hospitals"
    chart = alt.layer(lines).properties(width=640, height=320)
    return finish(chart, "Privacy against usefulness", note)


def hospitals_compared(result: Record) -> Figure | None:
    """The leading metric at every hospital, one dot per method; intervals for the study's own."""
    names, first = labels(result), result["method"]
    metric = leading_metric(primary(result))[0]

    def at_sites(key: str) -> dict[str, float]:
        sites = result["methods"][key]["metrics"]["sites"] if key else {}
        return {site: v for site, found in sites.items() if (v := found.get(metric)) is not None}

    scores = at_sites(first)
    if not scores:
        return None
    axis, own = METRICS[metric], names[first]
    title = f"{axis} at every hospital"
    if len(scores) > MOST_ROWS:
        low = min(scores, key=lambda name: (scores[name], name))
        note = f"{own}, {len(scores):,} hospitals. Lowest: {low}, {scores[low]:.3f}"
        bins, style = min(30, max(8, len(scores) // 6)), alt.Axis(tickCount=8, format=".2f")
        bars = _histogram(list(scores.values()), bins, axis, style, PALETTE[0])
        start = alt.Tooltip("from:Q", title="From", format=".3f")
        bars = bars.encode(tooltip=[start, *tips(to="To|.3f", hospitals="Hospitals|")])
        return finish(bars.properties(width=640, height=240), title, note)
    note = "Lowest first"
    if len(names) * len(scores) > MOST_DOTS:
        names, note = {first: own}, f"{own}, lowest first"
    rows = [
        {"method": label, "hospital": site, "value": value}
        for key, label in names.items()
        for site, value in at_sites(key).items()
        if site in scores
    ]
    intervals = primary(result)["metrics"]["intervals"]["sites"]
    whiskers = [
        {"method": own, "hospital": site, "low": ends[0], "high": ends[1]}
        for site in scores
        if (ends := bounds(intervals.get(site, {}), metric))
    ]
    many = len(names) > 1
    legend = alt.Legend(orient="bottom", columns=4, offset=14) if many else None
    y = _by_name(chosen(scores, MOST_ROWS), grid=True)
    aside = alt.YOffset("method:N", sort=list(names.values())) if many else alt.value(0)
    colour = alt.Color("method:N", scale=method_colours(result), title=None, legend=legend)
    x = alt.X("value:Q", title=axis, scale=_FROM_DATA, axis=alt.Axis(tickCount=8))
    shown = tips(hospital="Hospital", method="Method", value=f"{axis}|.3f")
    dots = alt.Chart(table(rows)).mark_circle(size=80, opacity=1)
    layers = [dots.encode(x=x, y=y, yOffset=aside, color=colour, tooltip=shown)]
    if whiskers:
        rule = alt.Chart(table(whiskers)).mark_rule(strokeWidth=2.5)
        low_end = alt.X("low:Q", title=axis, scale=_FROM_DATA)
        layers.insert(0, rule.encode(x=low_end, x2="high:Q", y=y, yOffset=aside, color=colour))
        note += f". Lines: 95 % interval of {own} over {repeats(result)}"
    height = max(90, max(24, 12 + 9 * len(names)) * len(scores))
    return finish(alt.layer(*layers).properties(width=560, height=height), title, note)


def _histogram(
    values: Sequence[float], bins: int, title: str, axis: alt.Axis, colour: str
) -> alt.Chart:
    """How many hospitals have which value."""
    counts, edges = np.histogram(values, bins=bins)
    rows = [
        {"from": float(a), "to": float(b), "hospitals": int(n)}
        for a, b, n in zip(edges[:-1], edges[1:], counts, strict=True)
    ]
    whole = alt.Axis(tickMinStep=1, format="d", tickCount=5)
    bars = alt.Chart(table(rows)).mark_bar(color=colour, binSpacing=1)
    drawn: alt.Chart = bars.encode(
        x=alt.X("from:Q", bin="binned", title=title, axis=axis),
        x2="to:Q",
        y=alt.Y("hospitals:Q", title="Hospitals", axis=whole),
    )
    return drawn


def panels(result: Record) -> Figure | None:
    """Every hospital over the rounds, with the whole federation behind it."""
    method = primary(result)
    metric = leading_metric(method)[0]
    last = {
        site: value
        for entry in method["history"]
        for site, metrics in entry["sites"].items()
        if (value := metrics.get(metric)) is not None
    }
    if not last:
        return None
    shown, rows = chosen(last, MOST_PANELS), []
    for entry in thin(method["history"], 100):
        whole = entry["global"].get(metric)
        both = None if whole is None else round(whole, 4)
        rows += [
            {"hospital": site, "round": entry["round"], "value": round(value, 4), "all": both}
            for site in shown
            if (value := entry["sites"].get(site, {}).get(metric)) is not None
        ]
    columns = min(4, len(shown)) if len(shown) != 5 else 3
    width = {4: 155, 3: 215}.get(columns, 320)
    title, few = METRICS[metric], alt.Axis(tickCount=4, tickMinStep=1, format="d")
    base = alt.Chart().encode(
        x=alt.X("round:Q", title="Round", axis=few),
        tooltip=tips(
            hospital="Hospital", round="Round|", value="This hospital|.3f", all="Federation|.3f"
        ),
    )
    behind = base.mark_line(color=GREY, strokeWidth=1.8, strokeDash=[4, 3])
    y = alt.Y("value:Q", title=title, scale=_FROM_DATA, axis=alt.Axis(tickCount=4))
    chart = alt.layer(
        behind.encode(y=alt.Y("all:Q", title=title, scale=_FROM_DATA)),
        base.mark_line(strokeWidth=2.2).encode(y=y, color=hospital_hue(result)),
        data=table(rows),
    ).properties(width=width, height=130)
    header = alt.Header(labelLimit=width, labelOrient="top", labelAnchor="start", title=None)
    facet = alt.Facet("hospital:N", sort=shown, title=None, header=header)
    grid = chart.facet(facet=facet, columns=columns, spacing=22)
    if len(shown) % columns:  # else the last row's axis would hang under an empty place
        grid = grid.resolve_axis(x="independent")
    note = f"{labels(result)[result['method']]}, lowest first. Dashed grey: the whole federation"
    if len(shown) < len(last):
        half = (MOST_PANELS + 1) // 2
        note += f". {len(shown)} of {len(last):,} hospitals: the {half} lowest, "
        note += f"{len(shown) - half} spread over the rest"
    return finish(grid, f"{title}, hospital by hospital", note)


def groups_by_round(result: Record) -> Figure | None:
    """The share of each group called positive after every round, one panel per group column."""
    entries = [entry for entry in primary(result)["history"] if entry["groups"]]
    entries = entries[:: max(1, len(entries) // MOST_ROUNDS)]
    shown = []
    for column in entries[-1]["groups"] if entries else ():
        rows = [
            {"group": name, "round": entry["round"], "value": round(value, 4)}
            for entry in entries
            for name, metrics in entry["groups"].get(column, {}).items()
            if (value := metrics.get("positive_rate")) is not None
        ]
        if not rows:
            continue
        line = alt.Chart(table(rows), title=column)
        line = line.mark_line(strokeWidth=2, point=len(entries) == 1).encode(
            x=ROUND,
            y=alt.Y("value:Q", title="Called positive", axis=alt.Axis(format="%", tickCount=5)),
            color=alt.Color("group:N", title=None, scale=alt.Scale(range=PALETTE)),
            tooltip=["group:N", "round:Q", alt.Tooltip("value:Q", format=".1%")],
        )
        shown.append(line.properties(width=310, height=200))
    if not shown:
        return None
    chart = alt.concat(*shown, columns=2).resolve_scale(color="independent")
    who = labels(result)[result["method"]]
    note = f"{who}. Held-out patients of all hospitals together"
    return finish(chart, "Groups over the rounds", note)


def sizes(result: Record) -> Figure | None:
    """Patients of each hospital, and the share of them with the outcome, largest hospital first."""
    known = {
        name: (float(n), site.get("prevalence"))
        for name, site in result["cohort"]["sites"].items()
        if (n := site.get("patients")) is not None
    }
    if not known:
        return None
    order = sorted(known, key=lambda name: (-known[name][0], name))
    # Of each figure: its title, colour, formats on the axis, in bars, and of many hospitals; values.
    facts = {
        "patients": ("Patients", PALETTE[0], (",d", ",d", ",d"), [known[n][0] for n in order]),
        "prevalence": (
            "Rows with the outcome",
            PALETTE[1],
            ("%", ".1%", "~%"),
            [share for name in order if (share := known[name][1]) is not None],
        ),
    }
    charts: list[Figure] = []
    if len(known) > MOST_ROWS:
        for title, colour, styles, values in facts.values():
            if values:
                axis = alt.Axis(format=styles[2], tickCount=5)
                spread = _histogram(values, 20, title, axis, colour)
                charts.append(spread.properties(width=310, height=210))
        return finish(alt.hconcat(*charts, spacing=36), "Hospitals", f"{len(known):,} hospitals")
    rows = [{"hospital": n, "patients": known[n][0], "prevalence": known[n][1]} for n in order]
    data, height = table(rows), max(70, (30 if len(known) < 12 else 20) * len(known))
    for field, (title, colour, styles, values) in facts.items():
        if not values:
            continue
        y = alt.Y("hospital:N", sort=order, title=None, axis=None) if charts else _by_name(order)
        base = alt.Chart(data).encode(y=y)
        # The domain leaves room for the number written behind the longest bar.
        room = alt.Scale(domain=[0, 1.22 * max(values)], nice=False)
        ticks = alt.Axis(tickCount=4, format=styles[0])
        x = alt.X(f"{field}:Q", title=title, axis=ticks, scale=room)
        bars = base.mark_bar(color=colour, height={"band": 0.62}).encode(x=x)
        text = base.mark_text(align="left", dx=6, fontSize=12, color=INK)
        text = text.encode(x=f"{field}:Q", text=alt.Text(f"{field}:Q", format=styles[1]))
        width = 240 if charts else 280
        charts.append(alt.layer(bars, text).properties(width=width, height=height))
    both = alt.hconcat(*charts, spacing=36) if len(charts) > 1 else charts[0]
    return finish(both, "Hospitals", "Largest first")


def histograms(result: Record) -> Figure | None:
    """One panel per feature: bars for all hospitals, one smoothed line each for up to eight."""
    features, colours = _features(result), hospital_colours(result)
    width = 290 if len(features) in (1, 2, 4) else 180
    charts = [chart for f in features if (chart := _shares_of(f, colours, width)) is not None]
    if not charts:
        return None
    note = "Bars: all hospitals together. "
    note += "Lines: each hospital, smoothed" if colours is not None else "Line: the same, smoothed"
    spacing = {"row": 26, "column": 30}
    chart = alt.concat(*charts, columns=_columns(len(charts)), spacing=spacing)
    return finish(chart, "Distributions", note)


def boxes(result: Record) -> Figure | None:
    """Box plots of every number, hospital by hospital."""
    features = [found for found in _features(result) if found.get("box")]
    if not features:
        return None
    everywhere = list(dict.fromkeys(site for found in features for site in found["box"]))
    shown, sites = everywhere, result["cohort"]["sites"]
    if len(everywhere) > MOST_ROWS:
        size = {n: sites[n].get("patients", 0) if n in sites else 0 for n in everywhere}
        shown = sorted(everywhere, key=lambda name: (-size[name], name))[:MOST_ROWS]
    hue, columns = hospital_hue(result), _columns(len(features))
    charts = []
    for i, found in enumerate(features):
        y = _by_name(shown, labels=i % columns == 0)
        known = [site for site in shown if site in found["box"]]
        width = 190 if columns == 3 else 270
        panel = _box_panel(found, known, hue, y)
        charts.append(panel.properties(width=width, height=max(70, 24 * len(known))))
    note = "Box: middle half of patients, line: median, whiskers: within 1.5 times the box"
    if len(shown) < len(everywhere):
        note += f". The {len(shown)} largest of {len(everywhere):,} hospitals"
    chart = alt.concat(*charts, columns=columns, spacing={"row": 26, "column": 26})
    return finish(chart, "Ranges at each hospital", note)


def _columns(panels: int) -> int:
    return min(3, panels) if panels != 4 else 2


def _features(result: Record) -> list[FeatureSummary]:
    features = result["cohort"]["features"].values()
    return [found for found in features if found.get("edges") and found.get("counts")]


def _axis_title(feature: FeatureSummary) -> str:
    unit = feature.get("unit")
    return f"{feature['label']} ({unit})" if unit else feature["label"]


def _shares_of(feature: FeatureSummary, colours: alt.Scale | None, width: int) -> Figure | None:
    edges = np.asarray(feature["edges"], dtype=float)
    counts = {
        site: np.asarray(found, dtype=float)
        for site, found in feature["counts"].items()
        if len(found) == len(edges) - 1
    }
    whole = np.sum(list(counts.values()), axis=0) if counts else np.zeros(0)
    if not whole.sum():
        return None
    bars = [
        {"from": float(a), "to": float(b), "share": round(float(v), 5)}
        for a, b, v in zip(edges[:-1], edges[1:], whole / whole.sum(), strict=True)
    ]
    middle = (edges[:-1] + edges[1:]) / 2
    lines = [
        {"hospital": site, "x": float(x), "share": round(float(v), 5)}
        for site, found in (counts if colours else {"all hospitals": whole}).items()
        if found.sum()
        for x, v in zip(middle, _smooth(found / found.sum()), strict=True)
    ]
    # Channels are given as objects: for a text Altair looks through its schema, 2 ms each, panel by
    # panel.
    ticks = alt.Axis(tickCount=4, grid=False)
    x = alt.X("from:Q", bin="binned", title=_axis_title(feature), axis=ticks)
    y = alt.Y("share:Q", title="Share of rows", axis=alt.Axis(format="~%", tickCount=4))
    layer = alt.Chart(table(bars)).mark_bar(color="#d5d8dd", binSpacing=0)
    hue: alt.Color | alt.ColorValue = alt.ColorValue(PALETTE[0])
    if colours is not None:
        below = alt.Legend(orient="bottom", columns=3, offset=14)
        hue = alt.Color("hospital:N", scale=colours, title=None, legend=below)
    line = alt.Chart(table(lines)).mark_line(strokeWidth=2, interpolate="monotone")
    curve = line.encode(x=alt.X("x:Q"), y=y, color=hue, tooltip=tips(hospital="Hospital"))
    both = alt.layer(layer.encode(x=x, x2=alt.X2("to:Q"), y=y), curve)
    return both.properties(width=width, height=170)


def _smooth(share: NDArray[np.float64]) -> NDArray[np.float64]:
    """A Gaussian kernel 1.5 bins wide, corrected at the ends so that no mass leaks out."""
    at = np.arange(len(share))
    kernel = np.exp(-0.5 * ((at[:, None] - at[None, :]) / 1.5) ** 2)
    return np.asarray((kernel / kernel.sum(axis=0, keepdims=True)) @ share)


def _box_panel(
    feature: FeatureSummary, sites: Sequence[str], hue: alt.Color | alt.ColorValue, y: alt.Y
) -> Figure:
    rows = [{"hospital": site, **feature["box"][site]} for site in sites]
    base = alt.Chart(table(rows)).encode(
        y=y,
        tooltip=tips(
            hospital="Hospital", median="Median|.1f", q1="Lower quartile|.1f",
            q3="Upper quartile|.1f", outliers="Values beyond the whiskers|,d",
        ),
    )  # fmt: skip
    title, band = _axis_title(feature), {"band": 0.6}
    x = alt.X("low:Q", title=title, scale=_FROM_DATA, axis=alt.Axis(tickCount=5))
    whisker = base.mark_rule(strokeWidth=1.5, color=QUIET).encode(x=x, x2=alt.X2("high:Q"))
    box = base.mark_bar(height=band).encode(x=alt.X("q1:Q"), x2=alt.X2("q3:Q"), color=hue)
    median = base.mark_tick(color="white", thickness=2.5, height=band)
    return alt.layer(whisker, box, median.encode(x=alt.X("median:Q")))


def bias_accuracy(rows: Sequence[Mapping[str, object]], title: str, subtitle: str) -> Figure:
    """Accuracy against a gap; ours with intervals, the fair radiology paper's as diamonds."""
    below = alt.Legend(orient="bottom", columns=3)
    shapes = alt.Scale(domain=["ours", "paper"], range=["circle", "diamond"])
    figures = [alt.Tooltip("gap:Q", format=".3f"), alt.Tooltip("accuracy:Q", format=".1%")]
    shown = []
    for what in dict.fromkeys(str(row["what"]) for row in rows):
        base = alt.Chart(table([row for row in rows if row["what"] == what])).encode(
            x=alt.X("gap:Q", title=what, scale=alt.Scale(domainMin=0), axis=alt.Axis(tickCount=6)),
            y=alt.Y("accuracy:Q", title="Accuracy", scale=_FROM_DATA, axis=alt.Axis(format="%")),
            color=alt.Color("name:N", title=None, scale=alt.Scale(range=PALETTE), legend=below),
        )
        points = base.mark_point(size=110, filled=True, opacity=1).encode(
            shape=alt.Shape("whose:N", title=None, scale=shapes),
            tooltip=["name:N", "whose:N", *figures],
        )
        across = base.mark_rule(clip=True).encode(x="gap_low:Q", x2="gap_high:Q")
        along = base.mark_rule().encode(y="accuracy_low:Q", y2="accuracy_high:Q")
        shown.append((across + along + points).properties(width=310, height=280))
    return finish(alt.concat(*shown, columns=2), title, subtitle)


def heat_map(made: Found, heading: str) -> Figure:
    """A map of `suture.interop.report` for print; of many columns, only the most spread."""
    hospitals = made["rows"]
    values = np.array(made["values"], np.float64).reshape(len(hospitals), -1)
    order = np.arange(values.shape[1])
    note = "O: over 2 SD from the column's mean. x: the whole column varies unusually"
    if len(order) > MOST_STATIC:
        order = np.sort(np.argsort(-values.std(axis=0))[:MOST_STATIC])
        note += f". The {MOST_STATIC} most spread of {values.shape[1]} columns"
    names = {j: made["columns"][j] + (" (x)" if made["crosses"][j] else "") for j in order.tolist()}
    cells = [
        {"hospital": site, "column": name, "value": float(values[i, j]),
         "mark": "O" if made["circles"][i][j] else ""}
        for i, site in enumerate(hospitals)
        for j, name in names.items()
    ]  # fmt: skip
    neutral, colours = made["neutral"], [PALETTE[0], "#ffffff", PALETTE[1]]
    ends = [neutral - made["reach"], neutral, neutral + made["reach"]]
    scale = alt.Scale(domain=ends, range=colours, clamp=True, interpolate="rgb")
    upright = alt.Axis(labelAngle=-90, labelLimit=160)
    base = alt.Chart(table(cells)).encode(
        x=alt.X("column:N", sort=list(names.values()), title=None, axis=upright),
        y=alt.Y("hospital:N", sort=hospitals, title=None),
    )
    tiles = base.mark_rect(stroke="#e3e6ea")
    tiles = tiles.encode(color=alt.Color("value:Q", scale=scale, title=made["title"]))
    marks = base.mark_text(fontSize=13, fontWeight=700).encode(text="mark:N")
    size = {"width": max(160, 18 * len(names)), "height": max(80, 20 * len(hospitals))}
    return finish(alt.layer(tiles, marks).properties(**size), heading, note)
