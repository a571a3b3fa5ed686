"""One self-contained page for an attack: the pictures, the figures, and what they mean.

Pictures show generated or public records only, never a site's rows (see
`suture.attacks.gradient_inversion.populations`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
from rich.console import Console

from suture.attacks.gradient_inversion import SIDE
from suture.attacks.membership import ADVERSARIES
from suture.report.console import grid, titled
from suture.report.shell import fill, put
from suture.report.theme import INK, PALETTE, QUIET, Figure, Rows, finish, save, table
from suture.report.words import NONE, Found, Table, plain

BELOW = "ε of the whole study, all spent on this one message"
BELOW_TRAINING = "ε of the training"
LEAST_SHOWN = 0.005
"""Where a logarithmic axis ends."""
TEXTS: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("page.toml").read_text("utf-8")
)


def write(found: Found, folder: Path) -> list[str]:
    """Write ``attack.html`` and every figure as PNG into a folder; returns the files' names."""
    folder.mkdir(parents=True, exist_ok=True)
    charts = figures(found)
    for name, chart in charts.items():
        save(chart, folder / f"{name}.png")
    put(render(found, charts), folder / "attack.html")
    return ["attack.html", *(f"{name}.png" for name in charts)]


def render(found: Found, charts: Mapping[str, Figure] | None = None) -> str:
    """The page as text."""
    charts = figures(found) if charts is None else charts
    of_membership = found["attack"] == "membership"
    pictures = [name for name in charts if name.startswith("pictures")]
    captions = {
        **dict.fromkeys(pictures, "Original, and what the attack makes of its update."),
        "errors": "Solid: gradient inversion. Dashed: the best guess of an adversary who knows everything else.",
        "line-up": "How often the strongest adversary names the right record.",
        "advantage": "Points: measured. Dashed: the most that any adversary can have.",
        "strict": "A cautious adversary, who accuses one innocent table in a hundred.",
    }
    context = {
        "name": "Membership inference" if of_membership else "Gradient inversion",
        "headline": headline(found),
        "parts": _membership_parts(found) if of_membership else _inversion_parts(found, pictures),
        "references": TEXTS["membership" if of_membership else "inversion"]["references"],
        "meaning": found["meaning"] + ".",
    }
    return fill("attacks.html", context, charts, captions, f"attack-{found['attack']}")


def print_attack(found: Found, console: Console | None = None) -> None:
    """The page's headline and tables on a terminal."""
    console = console or Console()
    of_membership = found["attack"] == "membership"
    for made in [_membership_table(found)] if of_membership else _inversion_tables(found):
        rows = ([cell.text for cell in row] for row in made.rows)
        console.print(grid(titled(made.caption), made.heads, rows))
    for text in found.get("left_out", []):
        console.print(f"left out: {text}", highlight=False)
    console.print(headline(found), highlight=False)


def headline(found: Found) -> str:
    """The attack in two or three sentences."""
    if found["attack"] == "membership":
        return _membership_headline(found["levels"])
    first = [subject["levels"][0] for subject in found["subjects"]]
    levels = [level for subject in found["subjects"] for level in subject["levels"]]
    protected = [level for level in levels if (level["epsilon"] or 99) <= 8]
    better = max((level["better_than_mean_guess"] for level in protected), default=0.0)
    exact, records = (sum(level[key] for level in first) for key in ("exact_records", "records"))
    worst = max(level["max_abs_error"] for level in first)
    return (
        f"From unprotected updates {exact} of {records} records came back exactly (largest error "
        f"of any feature {worst:.1e}). At ε of 8 and below, the same attack came closer than "
        f"guessing the population's mean for at most {better:.0%} of the records."
    )


def _membership_headline(levels: Sequence[Found]) -> str:
    inside = all(a["within_bound"] for level in levels for a in level["adversaries"].values())
    best = [max(a["advantage"] for a in level["adversaries"].values()) for level in levels]
    text = (
        "Without protection the adversary tells almost always whether the carrier was there "
        f"(advantage {best[0]:.2f}). "
    )
    if len(levels) > 1:
        text += f"At ε = {levels[-1]['epsilon']:g} the advantage is {best[-1]:.2f}. "
    if inside:
        return f"{text}Every measured interval lies within what differential privacy allows."
    return (
        f"{text}An interval reaches above what differential privacy allows: run more trials, and "
        "audit the training."
    )


def level_name(level: Found) -> str:
    """How a level of protection is written on an axis."""
    if str(level.get("level", "")).startswith("study"):
        return "the study"
    return "none" if level["epsilon"] is None else f"{level['epsilon']:g}"


def _noise(level: Found) -> str:
    return NONE if level["noise_multiplier"] is None else f"{level['noise_multiplier']:.3g}"


def _inversion_parts(found: Found, pictures: list[str]) -> list[Found]:
    *tables, batches = _inversion_tables(found)
    texts = TEXTS["inversion"]
    judged = [texts["judged"], *found["left_out"]]
    return [
        _part("One record, seen through its update", [texts["how"]], pictures, []),
        _part("How much is learned, against ε", judged, ["errors", "line-up"], tables),
        _part("Several records in one unprotected update", [texts["batches"]], [], [batches]),
    ]


def _part(title: str, texts: list[str], figures: list[str], tables: list[Table]) -> Found:
    return {"title": title, "texts": texts, "figures": figures, "tables": tables}


def _inversion_tables(found: Found) -> list[Table]:
    """One table per subject, then the one of small batches."""
    heads = ["ε", "Noise multiplier", "RMS error", "Exact records", "Better than mean guess",
             "Best guess, RMS error", f"Line-up of {found['line_up']}"]  # fmt: skip
    tables, batches = [], []
    for subject in found["subjects"]:
        rows = [
            [level_name(level), _noise(level), f"{level['rms_error']:.2g}",
             f"{level['exact_records']} of {level['records']}",
             f"{level['better_than_mean_guess']:.0%}", f"{level['best_guess_rms']:.2g}",
             f"{level['best_line_up_hits']:.0%} ({level['best_line_up_low']:.0%}–{level['best_line_up_high']:.0%})"]
            for level in subject["levels"]
        ]  # fmt: skip
        mean, line_up = f"{subject['chance']['mean']:.2g}", f"{subject['chance']['line_up']:.0%}"
        rows.append(["chance", "", mean, "", "", mean, line_up])
        network = "-".join(map(str, subject["network"]))
        title = f"{subject['name']}: {subject['features']} features, network {network}"
        tables.append(plain(title, heads, rows))
        for batch in subject["batches"]:
            count, worst = batch["records"], batch["max_abs_error"]
            exact = f"{batch['exact_records']} of {count}"
            name = f"{subject['name']}, {count} records in one update"
            batches.append([name, exact, NONE if worst is None else f"{worst:.1e}"])
    title = "Exact reconstruction of small batches, no noise"
    return [*tables, plain(title, ["Update", "Exact", "Largest error"], batches)]


def _membership_parts(found: Found) -> list[Found]:
    training = found["training"]
    setting = (
        f"{found['patients']} generated patients, one of them {found['target']}; "
        f"{training['steps']} steps of DP-SGD with batches of {training['batch']}; "
        f"{found['runs']:,} trainings with and as many without the carrier at each ε."
    )
    texts, tables = [setting, TEXTS["membership"]["how"]], [_membership_table(found)]
    return [_part("Was the carrier in the table?", texts, ["advantage", "strict"], tables)]


def _membership_table(found: Found) -> Table:
    heads = ["ε", "Noise multiplier", "Adversary", "TPR", "FPR", "Advantage", "95 % interval",
             "DP allows", "TPR at 1 % FPR", "DP allows"]  # fmt: skip
    rows = [
        [level_name(level), _noise(level), ADVERSARIES[key],
         f"{a['tpr']:.3f}", f"{a['fpr']:.3f}", f"{a['advantage']:.3f}",
         f"{a['advantage_low']:.3f} to {a['advantage_high']:.3f}",
         f"{level['advantage_bound']:.3f}", f"{a['strict_tpr']:.3f}", f"{level['tpr_bound']:.3f}"]
        for level in found["levels"] for key, a in level["adversaries"].items()
    ]  # fmt: skip
    return plain("Attack success against ε", heads, rows)


def figures(found: Found) -> dict[str, Figure]:
    """Every figure of an attack, by a name that also serves as its file name."""
    if found["attack"] == "membership":
        return {"advantage": _advantage(found), "strict": _strict(found)}
    shown = [subject for subject in found["subjects"] if subject["shown"]]
    charts = {f"pictures-{i}": _pictures(subject) for i, subject in enumerate(shown, start=1)}
    return {**charts, "errors": _errors(found), "line-up": _line_up(found)}


def _pictures(subject: Found) -> Figure:
    """One record: as it is, then as reconstructed at each level of protection."""
    titles = {"original": "original", "none": "from an unprotected update"}
    order, rows = [], []
    for shown in subject["shown"]:
        label = shown["label"]
        name = titles.get(label, f"ε = {label}" if label[0].isdigit() else f"noise of {label}")
        order.append(name)
        rows += [
            {"panel": name, "x": i % SIDE, "y": i // SIDE, "v": round(float(v), 3)}
            for i, v in enumerate(shown["values"])
        ]
    axis = alt.Axis(labels=False, ticks=False, domain=False, grid=False, title=None)
    greys = alt.Scale(range=["#000", "#fff"], domain=subject["range"])
    tiles = alt.Chart(table(rows)).mark_rect()
    tiles = tiles.encode(
        x=alt.X("x:O", axis=axis),
        y=alt.Y("y:O", axis=axis),
        color=alt.Color("v:Q", scale=greys, legend=None),
    )
    facet = alt.Facet("panel:N", title=None, sort=order)
    chart = tiles.properties(width=140, height=140).facet(facet=facet, columns=5, spacing=14)
    title = f"What an update gives away: {subject['name']}"
    return finish(chart, title, "Same record, same attack; only the noise differs")


def _errors(found: Found) -> Figure:
    """Reconstruction error against epsilon, in units of chance."""
    kinds = {"inversion": "rms_error", "best possible guess": "best_guess_rms"}
    rows = [
        {"level": level_name(level), "subject": subject["name"], "attack": kind,
         "ratio": max(level[key] / subject["chance"]["mean"], 1e-7)}
        for subject in found["subjects"]
        for level in subject["levels"]
        for kind, key in kinds.items()
    ]  # fmt: skip
    order, names = _order(found)
    log = alt.Scale(type="log", domain=[1e-7, 10], nice=False)
    ticks = alt.Axis(values=[1e-6, 1e-4, 1e-2, 1], format=".0e")
    lines = alt.Chart(table(rows))
    lines = lines.mark_line(point=alt.OverlayMarkDef(size=60), strokeWidth=2).encode(
        x=_levels(order, BELOW),
        y=alt.Y("ratio:Q", title="Error / error of guessing the mean", scale=log, axis=ticks),
        color=_colours("subject", names),
        strokeDash=alt.StrokeDash("attack:N", legend=None, sort=list(kinds)),
        tooltip=["subject:N", "attack:N", "level:O", alt.Tooltip("ratio:Q", format=".3g")],
    )
    chart = alt.layer(lines, *_chance(1.0, order)).properties(width=640, height=320)
    note = "Below the line: something was learned about the record"
    return finish(chart, "Error of the reconstruction against ε", note)


def _line_up(found: Found) -> Figure:
    """How often the right record is picked out of a line-up, against epsilon."""
    rows = [
        {"level": level_name(level), "subject": subject["name"],
         "hits": level["best_line_up_hits"], "low": level["best_line_up_low"],
         "high": level["best_line_up_high"]}
        for subject in found["subjects"]
        for level in subject["levels"]
    ]  # fmt: skip
    order, names = _order(found)
    scale, title = alt.Scale(domain=[0, 1]), "Picked out of the line-up"
    x = _levels(order, BELOW)
    layers = _points(rows, "subject", names, x, alt.Y("low:Q", title=title, scale=scale), "hits")
    chance = found["subjects"][0]["chance"]["line_up"]
    chart = alt.layer(layers, *_chance(chance, order)).properties(width=640, height=280)
    note = f"The true record among {found['line_up']}, by the likeliest update; 95 % intervals"
    return finish(chart, "Who was it? The strongest adversary", note)


def _advantage(found: Found) -> Figure:
    """Membership advantage against epsilon, with the bound of differential privacy."""
    scale = alt.Scale(domain=[0, 1])
    y = alt.Y("low:Q", title="Advantage (true − false positive rate)", scale=scale)
    title = "Was the carrier in the table? Advantage against ε"
    return _membership(found, "advantage", "advantage_bound", y, 0.0, title)


def _strict(found: Found) -> Figure:
    """True positive rate at one false positive in a hundred, with its bound."""
    scale = alt.Scale(type="log", domain=[LEAST_SHOWN, 1], nice=False)
    y = alt.Y("low:Q", title="True positive rate at 1 % false positives", scale=scale)
    title = "One false accusation in a hundred: how many right ones?"
    return _membership(found, "strict_tpr", "tpr_bound", y, LEAST_SHOWN, title)


def _membership(found: Found, key: str, bound: str, y: alt.Y, least: float, title: str) -> Figure:
    """What each adversary reached, with intervals, and the most that is allowed."""
    labels = {who: f"adversary {text}" for who, text in ADVERSARIES.items()}
    rows = [
        {"level": level_name(level), "adversary": label,
         "value": max(level["adversaries"][who][key], least),
         "low": max(level["adversaries"][who][f"{key}_low"], least),
         "high": level["adversaries"][who][f"{key}_high"]}
        for level in found["levels"]
        for who, label in labels.items()
    ]  # fmt: skip
    limits = [
        {"level": level_name(level), "bound": level[bound], "what": "most that DP allows"}
        for level in found["levels"]
    ]
    x = _levels([level_name(level) for level in found["levels"]], BELOW_TRAINING)
    points = _points(rows, "adversary", list(labels.values()), x, y, "value")
    dots = alt.OverlayMarkDef(color=INK, size=36)
    line = alt.Chart(table(limits)).mark_line(
        strokeWidth=2.5, strokeDash=[7, 4], color=INK, point=dots
    )
    shown = ["what:N", alt.Tooltip("bound:Q", format=".3f")]
    middle = {**limits[len(limits) // 2], "text": "most that DP allows anyone"}
    label = alt.Chart(table([middle]))
    label = label.mark_text(align="left", dx=10, dy=-10, color=INK, fontSize=13)
    chart = alt.layer(
        line.encode(x=x, y="bound:Q", tooltip=shown),
        points,
        label.encode(x=x, y="bound:Q", text="text:N"),
    ).properties(width=640, height=320)
    runs = f"{found['runs'] // 2:,} attacked runs per world"
    return finish(chart, title, f"{runs}; 95 % intervals; δ = {found['delta']:g}")


def _order(found: Found) -> tuple[list[str], list[str]]:
    """The levels of protection, and the names of the subjects."""
    subjects = found["subjects"]
    return [level_name(level) for level in subjects[0]["levels"]], [s["name"] for s in subjects]


def _levels(order: Sequence[str], title: str) -> alt.X:
    """The axis of levels; its domain is given, or each layer would sort it in its own way."""
    axis = alt.Axis(labelAngle=0, labelAlign="center", labelLimit=130)
    return alt.X("level:O", title=title, scale=alt.Scale(domain=list(order)), axis=axis)


def _points(
    rows: Rows, colour: str, names: Sequence[str], x: alt.X, low: alt.Y, value: str
) -> Figure:
    """Dots with their intervals, side by side at each level."""
    aside = alt.XOffset(f"{colour}:N", sort=list(names), scale=alt.Scale(paddingOuter=0.6))
    base = alt.Chart(table(rows)).encode(x=x, xOffset=aside, color=_colours(colour, names))
    figures = [alt.Tooltip(f"{key}:Q", format=".3f") for key in (value, "low", "high")]
    dots = base.mark_point(filled=True, size=70, opacity=1)
    return alt.layer(
        base.mark_rule(strokeWidth=2).encode(y=low, y2="high:Q"),
        dots.encode(y=f"{value}:Q", tooltip=[f"{colour}:N", "level:O", *figures]),
    )


def _chance(value: float, order: Sequence[str]) -> tuple[alt.Chart, alt.Chart]:
    """A dashed line at chance, and its name."""
    rule = alt.Chart(table([{"v": value}]))
    rule = rule.mark_rule(strokeDash=[5, 4], color=QUIET, strokeWidth=1.5)
    label = alt.Chart(table([{"v": value, "level": order[-1], "text": "chance"}]))
    label = label.mark_text(align="left", dx=26, dy=-8, color=QUIET, fontSize=13)
    return rule.encode(y="v:Q"), label.encode(x=_levels(order, BELOW), y="v:Q", text="text:N")


def _colours(field: str, names: Sequence[str]) -> alt.Color:
    scale = alt.Scale(domain=list(names), range=list(PALETTE[: len(names)]))
    legend = alt.Legend(orient="bottom", columns=3, symbolType="circle", symbolSize=90)
    return alt.Color(f"{field}:N", title=None, sort=list(names), scale=scale, legend=legend)
