"""One self-contained page for an attack: the picture, the figures, and what they mean.

Pictures show generated or public records only, never a site's rows (see `suture.attacking`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from suture.report import figures_attacks
from suture.report.shell import fill, put
from suture.report.tables import Cell, Table
from suture.report.theme import save

Found = Mapping[str, Any]

INVERSION_REFERENCES = (
    "Phong, Aono, Hayashi, Wang, Moriai (2018). Privacy-Preserving Deep Learning via Additively Homomorphic Encryption. "
    "IEEE TIFS.",
    "Geiping, Bauermeister, Dröge, Moeller (2020). Inverting Gradients: How Easy Is It to Break Privacy in Federated "
    "Learning? NeurIPS.",
    "Dimitrov, Baader, Müller, Vechev (2024). SPEAR: Exact Gradient Inversion of Batches in Federated Learning. NeurIPS.",
)
MEMBERSHIP_REFERENCES = (
    "Carlini, Chien, Nasr, Song, Terzis, Tramèr (2022). Membership Inference Attacks From First Principles. IEEE S&P.",
    "Humphries, Oya, Tulloch, Rafuse, Goldberg, Hengartner, Kerschbaum (2023). Investigating Membership Inference Attacks "
    "under Data Dependencies. IEEE CSF.",
    "Kairouz, Oh, Viswanath (2015). The Composition Theorem for Differential Privacy. ICML.",
)


def write(found: Found, folder: Path) -> list[str]:
    """Write ``attack.html`` and every figure as PNG into a folder; returns the files' names."""
    folder.mkdir(parents=True, exist_ok=True)
    charts = figures(found)
    for name, chart in charts.items():
        save(chart, folder / f"{name}.png")
    path = folder / "attack.html"
    put(render(found, charts), path)
    return [path.name, *(f"{name}.png" for name in charts)]


def figures(found: Found) -> dict[str, Any]:
    """Every figure of an attack, by a name that also serves as its file name."""
    if found["attack"] == "membership":
        return {"advantage": figures_attacks.advantage(found), "strict": figures_attacks.strict(found)}
    shown = [subject for subject in found["subjects"] if subject["shown"]]
    charts = {f"pictures-{i + 1}": figures_attacks.pictures(subject) for i, subject in enumerate(shown)}
    return {**charts, "errors": figures_attacks.errors(found), "line-up": figures_attacks.line_up(found)}


def render(found: Found, charts: Mapping[str, Any] | None = None) -> str:
    """The page as text."""
    charts = figures(found) if charts is None else charts
    content = _membership(found) if found["attack"] == "membership" else _inversion(found, charts)
    captions = content.pop("captions")
    return fill("attacks.html", content, charts, captions, f"attack-{found['attack']}")


def _noise(level: Found) -> str:
    return "–" if level["noise_multiplier"] is None else f"{level['noise_multiplier']:.3g}"


def _table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    return Table(caption, tuple(heads), tuple(tuple(Cell(text) for text in row) for row in rows))


def inversion_headline(found: Found) -> str:
    """The attack in two sentences."""
    worst = max(subject["levels"][0]["max_abs_error"] for subject in found["subjects"])
    records = sum(subject["levels"][0]["records"] for subject in found["subjects"])
    exact = sum(subject["levels"][0]["exact_records"] for subject in found["subjects"])
    protected = [level for subject in found["subjects"] for level in subject["levels"] if (level["epsilon"] or 99) <= 8]
    better = max((level["better_than_mean_guess"] for level in protected), default=0.0)
    return (
        f"From unprotected updates {exact} of {records} records came back exactly (largest error of any feature "
        f"{worst:.1e}). At ε of 8 and below, the same attack came closer than guessing the population's mean for at most "
        f"{better:.0%} of the records."
    )


def membership_headline(found: Found) -> str:
    """The attack in two sentences."""
    first, *rest = found["levels"]
    inside = all(a["within_bound"] for level in found["levels"] for a in level["adversaries"].values())
    best = max(a["advantage"] for a in first["adversaries"].values())
    text = (
        f"Without protection the adversary tells almost always whether the carrier was there (advantage {best:.2f}). "
    )
    if rest:
        last = max(a["advantage"] for a in rest[-1]["adversaries"].values())
        text += f"At ε = {rest[-1]['epsilon']:g} the advantage is {last:.2f}. "
    return text + (
        "Every measured interval lies within what differential privacy allows."
        if inside
        else "An interval reaches above what differential privacy allows: run more trials, and audit the training."
    )


def _inversion(found: Found, charts: Mapping[str, Any]) -> dict[str, Any]:
    heads = ["ε", "Noise multiplier", "RMS error", "Exact records", "Better than mean guess", "Best guess, RMS error",
             f"Line-up of {found['line_up']}"]  # fmt: skip
    tables = []
    for subject in found["subjects"]:
        chance = subject["chance"]
        rows = [
            [figures_attacks.level_name(level), _noise(level),
             f"{level['rms_error']:.2g}", f"{level['exact_records']} of {level['records']}",
             f"{level['better_than_mean_guess']:.0%}", f"{level['best_guess_rms']:.2g}",
             f"{level['best_line_up_hits']:.0%} ({level['best_line_up_low']:.0%}–{level['best_line_up_high']:.0%})"]
            for level in subject["levels"]
        ]  # fmt: skip
        rows.append(
            ["chance", "", f"{chance['mean']:.2g}", "", "", f"{chance['mean']:.2g}", f"{chance['line_up']:.0%}"]
        )
        name = f"{subject['name']}: {subject['features']} features, network {'-'.join(map(str, subject['network']))}"
        tables.append(_table(name, heads, rows))
    batch_rows = [
        [f"{s['name']}, {b['records']} records in one update", f"{b['exact_records']} of {b['records']}",
         "–" if b["max_abs_error"] is None else f"{b['max_abs_error']:.1e}"]
        for s in found["subjects"] for b in s["batches"]
    ]  # fmt: skip
    shown = [name for name in charts if name.startswith("pictures")]
    return {
        "name": "Gradient inversion",
        "headline": inversion_headline(found),
        "parts": [
            {"title": "One record, seen through its update", "texts": [_HOW_INVERTED], "figures": shown, "tables": []},
            {"title": "How much is learned, against ε", "texts": [_HOW_JUDGED, *found["left_out"]],
             "figures": ["errors", "line-up"], "tables": tables},
            {"title": "Several records in one unprotected update", "texts": [_BATCHES], "figures": [],
             "tables": [_table("Exact reconstruction of small batches, no noise", ["Update", "Exact", "Largest error"],
                               batch_rows)]},
        ],
        "captions": {**dict.fromkeys(shown, "Original, and what the attack makes of its update."),
                     "errors": "Solid: gradient inversion. Dashed: the best guess of an adversary who knows everything else.",
                     "line-up": "How often the strongest adversary names the right record."},
        "references": INVERSION_REFERENCES,
        "meaning": found["meaning"] + ".",
    }  # fmt: skip


def _membership(found: Found) -> dict[str, Any]:
    heads = ["ε", "Noise multiplier", "Adversary", "TPR", "FPR", "Advantage", "95 % interval", "DP allows",
             "TPR at 1 % FPR", "DP allows"]  # fmt: skip
    rows = [
        [figures_attacks.level_name(level), _noise(level),
         figures_attacks.ADVERSARIES[key].removeprefix("adversary "), f"{a['tpr']:.3f}", f"{a['fpr']:.3f}",
         f"{a['advantage']:.3f}", f"{a['advantage_low']:.3f} to {a['advantage_high']:.3f}",
         f"{level['advantage_bound']:.3f}", f"{a['strict_tpr']:.3f}", f"{level['tpr_bound']:.3f}"]
        for level in found["levels"] for key, a in level["adversaries"].items()
    ]  # fmt: skip
    training = found["training"]
    setting = (
        f"{found['patients']} generated patients, one of them {found['target']}; {training['steps']} steps of DP-SGD with "
        f"batches of {training['batch']}; {found['runs']:,} trainings with and as many without the carrier at each ε."
    )
    return {
        "name": "Membership inference",
        "headline": membership_headline(found),
        "parts": [
            {"title": "Was the carrier in the table?", "texts": [setting, _HOW_ATTACKED], "figures": ["advantage", "strict"],
             "tables": [_table("Attack success against ε", heads, rows)]},
        ],
        "captions": {"advantage": "Points: measured. Dashed: the most that any adversary can have.",
                     "strict": "A cautious adversary, who accuses one innocent table in a hundred."},
        "references": MEMBERSHIP_REFERENCES,
        "meaning": found["meaning"] + ".",
    }  # fmt: skip


_HOW_INVERTED = (
    "The adversary holds the model that was sent to the hospital and the update that came back, about a single record. The "
    "first layer's gradient is the record times a factor, and the bias's gradient is that factor: their ratio is the record. "
    "Under noise the same attack takes the closest such product in least squares."
)
_HOW_JUDGED = (
    "Chance is guessing the population's mean. The best possible guess belongs to an adversary who knows the population, the "
    "model and the noise, and averages over all records it might have been; it can never be worse than chance on average, "
    "and how far it is below is what the message really gives away."
)
_BATCHES = (
    "The gradient of a few records spans the same space as the records do, so few numbers are left to find: by the units "
    "that each record leaves inactive, or by a least-squares fit of the model's own backward pass. Where both fail it is "
    "luck, not protection."
)
_HOW_ATTACKED = (
    "The adversary knows every other patient, trains shadow models with and without the carrier, fits a normal distribution "
    "to what is observed in each case, and decides by the likelihood ratio, on runs that are not among the shadows."
)


def print_attack(found: Found, console: Console | None = None) -> None:
    """The page's headline and tables on a terminal."""
    console = console or Console()
    content = _membership(found) if found["attack"] == "membership" else _inversion(found, {})
    for part in content["parts"]:
        for table in part["tables"]:
            shown = RichTable(title=table.caption, title_justify="left")
            for i, head in enumerate(table.heads):
                shown.add_column(head, justify="right" if i else "left")
            for row in table.rows:
                shown.add_row(*(cell.text for cell in row))
            console.print(shown)
    for text in found.get("left_out", []):
        console.print(f"left out: {text}", highlight=False)
    console.print(content["headline"], highlight=False)
