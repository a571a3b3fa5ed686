"""Figures of the attacks: original beside reconstructed, error against epsilon, advantage against its bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from suture.report.theme import INK, PALETTE, QUIET, finish, table

Found = Mapping[str, Any]
BELOW = "ε of the whole study, all spent on this one message"
BELOW_TRAINING = "ε of the training"
LEAST_SHOWN = 0.005
"""Where a logarithmic axis ends."""
ADVERSARIES = {"update": "adversary sees the update", "model": "adversary asks the model"}


def _levels(order: Sequence[str], title: str) -> alt.X:
    """The axis of levels; the domain is given, because layers would each sort it in their own way."""
    axis = alt.Axis(labelAngle=0, labelAlign="center", labelLimit=130)
    return alt.X("level:O", title=title, scale=alt.Scale(domain=list(order)), axis=axis)


def level_name(level: Found) -> str:
    """How a level of protection is written on an axis.

    >>> level_name({"epsilon": None}), level_name({"epsilon": 0.5}), level_name({"epsilon": 8.0, "level": "study 'a'"})
    ('none', '0.5', 'the study')
    """
    if str(level.get("level", "")).startswith("study"):
        return "the study"
    return "none" if level["epsilon"] is None else f"{level['epsilon']:g}"


def pictures(subject: Found, side: int = 28) -> Any:
    """One record: as it is, then as reconstructed at each level of protection."""
    titles = {"original": "original", "none": "from an unprotected update"}
    order, rows = [], []
    for shown in subject["shown"]:
        label = shown["label"]
        name = titles.get(label, f"ε = {label}" if label[0].isdigit() else f"noise of {label}")
        order.append(name)
        rows += [
            {"panel": name, "x": i % side, "y": i // side, "v": round(float(v), 3)}
            for i, v in enumerate(shown["values"])
        ]
    low, high = subject["range"]
    axis = alt.Axis(labels=False, ticks=False, domain=False, grid=False, title=None)
    base = alt.Chart(table(rows)).mark_rect()
    chart = (
        base.encode(
            x=alt.X("x:O", axis=axis),
            y=alt.Y("y:O", axis=axis),
            color=alt.Color("v:Q", scale=alt.Scale(range=["#000", "#fff"], domain=[low, high]), legend=None),
        )
        .properties(width=140, height=140)
        .facet(facet=alt.Facet("panel:N", title=None, sort=order), columns=5, spacing=14)
    )
    return finish(
        chart, f"What an update gives away: {subject['name']}", "Same record, same attack; only the noise differs"
    )


def errors(found: Found) -> Any:
    """Reconstruction error against epsilon, in units of chance."""
    rows = []
    for subject in found["subjects"]:
        chance = subject["chance"]["mean"]
        for level in subject["levels"]:
            for kind, key in (("inversion", "rms_error"), ("best possible guess", "best_guess_rms")):
                ratio = max(level[key] / chance, 1e-7)
                rows.append({"level": level_name(level), "subject": subject["name"], "attack": kind, "ratio": ratio})
    order = [level_name(level) for level in found["subjects"][0]["levels"]]
    names = [subject["name"] for subject in found["subjects"]]
    base = alt.Chart(table(rows))
    lines = base.mark_line(point=alt.OverlayMarkDef(size=60), strokeWidth=2).encode(
        x=_levels(order, BELOW),
        y=alt.Y(
            "ratio:Q",
            title="Error / error of guessing the mean",
            scale=alt.Scale(type="log", domain=[1e-7, 10], nice=False),
            axis=alt.Axis(values=[1e-6, 1e-4, 1e-2, 1], format=".0e"),
        ),
        color=_colours("subject", names),
        strokeDash=alt.StrokeDash("attack:N", legend=None, sort=["inversion", "best possible guess"]),
        tooltip=["subject:N", "attack:N", "level:O", alt.Tooltip("ratio:Q", format=".3g")],
    )
    chart = alt.layer(lines, *_line_at(1.0, "chance", order, BELOW)).properties(width=640, height=320)
    return finish(
        chart, "Error of the reconstruction against ε", "Below the line: something was learned about the record"
    )


def line_up(found: Found) -> Any:
    """How often the right record is picked out of a line-up, against epsilon."""
    rows = []
    for subject in found["subjects"]:
        for level in subject["levels"]:
            rows.append(
                {
                    "level": level_name(level),
                    "subject": subject["name"],
                    "hits": level["best_line_up_hits"],
                    "low": level["best_line_up_low"],
                    "high": level["best_line_up_high"],
                }
            )
    order = [level_name(level) for level in found["subjects"][0]["levels"]]
    names = [subject["name"] for subject in found["subjects"]]
    chart = _intervals(rows, order, names, "subject", "hits", "Picked out of the line-up", BELOW)
    chance = found["subjects"][0]["chance"]["line_up"]
    chart = alt.layer(chart, *_line_at(chance, "chance", order, BELOW)).properties(width=640, height=280)
    text = f"The true record among {found['line_up']}, by the likeliest update; 95 % intervals"
    return finish(chart, "Who was it? The strongest adversary", text)


def advantage(found: Found) -> Any:
    """Membership advantage against epsilon, with the bound of differential privacy."""
    return _membership(
        found, ("advantage", "advantage_low", "advantage_high"), "advantage_bound",
        "Advantage (true − false positive rate)", "Was the carrier in the table? Advantage against ε",
    )  # fmt: skip


def strict(found: Found) -> Any:
    """True positive rate at one false positive in a hundred, with its bound."""
    return _membership(
        found, ("strict_tpr", "strict_tpr_low", "strict_tpr_high"), "tpr_bound",
        "True positive rate at 1 % false positives", "One false accusation in a hundred: how many right ones?",
        alt.Scale(type="log", domain=[LEAST_SHOWN, 1], nice=False),
    )  # fmt: skip


def _membership(
    found: Found, keys: Sequence[str], bound: str, axis: str, title: str, scale: alt.Scale | None = None
) -> Any:
    rows, limits = [], []
    least = 0.0 if scale is None else LEAST_SHOWN
    for level in found["levels"]:
        name = level_name(level)
        limits.append({"level": name, "bound": level[bound], "what": "most that DP allows"})
        for key, label in ADVERSARIES.items():
            value, low, high = (level["adversaries"][key][k] for k in keys)
            rows.append(
                {"level": name, "adversary": label, "value": max(value, least), "low": max(low, least), "high": high}
            )
    order = [level_name(level) for level in found["levels"]]
    points = _intervals(rows, order, list(ADVERSARIES.values()), "adversary", "value", axis, BELOW_TRAINING, scale)
    line = (
        alt.Chart(table(limits))
        .mark_line(strokeWidth=2.5, strokeDash=[7, 4], color=INK, point=alt.OverlayMarkDef(color=INK, size=36))
        .encode(x=_levels(order, BELOW_TRAINING), y="bound:Q", tooltip=["what:N", alt.Tooltip("bound:Q", format=".3f")])
    )
    label = (
        alt.Chart(table([{**limits[len(limits) // 2], "text": "most that DP allows anyone"}]))
        .mark_text(align="left", dx=10, dy=-10, color=INK, fontSize=13)
        .encode(x=_levels(order, BELOW_TRAINING), y="bound:Q", text="text:N")
    )
    chart = alt.layer(line, points, label).properties(width=640, height=320)
    return finish(chart, title, f"{found['runs'] // 2:,} attacked runs a world; 95 % intervals; δ = {found['delta']:g}")


def _intervals(
    rows: list[dict[str, Any]], order: Sequence[str], names: Sequence[str], colour: str, value: str, title: str, below: str,
    scale: alt.Scale | None = None,
) -> Any:  # fmt: skip
    base = alt.Chart(table(rows)).encode(
        x=_levels(order, below),
        xOffset=alt.XOffset(f"{colour}:N", sort=list(names), scale=alt.Scale(paddingOuter=0.6)),
        color=_colours(colour, names),
    )
    span = base.mark_rule(strokeWidth=2).encode(
        y=alt.Y("low:Q", title=title, scale=scale or alt.Scale(domain=[0, 1])), y2="high:Q"
    )
    tips = [f"{colour}:N", "level:O", *(alt.Tooltip(f"{key}:Q", format=".3f") for key in (value, "low", "high"))]
    dots = base.mark_point(filled=True, size=70, opacity=1).encode(y=f"{value}:Q", tooltip=tips)
    return alt.layer(span, dots)


def _line_at(value: float, text: str, order: Sequence[str], below: str) -> tuple[Any, Any]:
    rule = alt.Chart(table([{"v": value}])).mark_rule(strokeDash=[5, 4], color=QUIET, strokeWidth=1.5).encode(y="v:Q")
    label = (
        alt.Chart(table([{"v": value, "level": order[-1], "text": text}]))
        .mark_text(align="left", dx=26, dy=-8, color=QUIET, fontSize=13)
        .encode(x=_levels(order, below), y="v:Q", text="text:N")
    )
    return rule, label


def _legend() -> alt.Legend:
    return alt.Legend(orient="bottom", columns=3, symbolType="circle", symbolSize=90)


def _colours(field: str, names: Sequence[str]) -> alt.Color:
    scale = alt.Scale(domain=list(names), range=list(PALETTE[: len(names)]))
    return alt.Color(f"{field}:N", title=None, sort=list(names), scale=scale, legend=_legend())
