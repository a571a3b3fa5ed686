"""FedCVR's claim, "server-side momentum acts as a temporal denoiser of DP noise" (section 9.1), put
to a fair test.

Every optimiser gets the same number of trials in every cell: the paper's own rates, then points of
one Halton sequence over its rates. Trials are judged on other patients than the report: other seeds
of a generated federation; on real tables, patients of the training part, with the test patients
taken out first. All weigh hospitals by size, so that optimisers differ in what the server does and
in nothing else. Optimisers are ablated within FedAdam: ``beta1 = 0`` takes the first moment away; a
``tau`` of a million times the updates takes the second away, and leaves server momentum (FedAvgM).

The claim predicts that FedAdam beats FedAvg under noise, that this advantage *grows* with noise,
and that the first moment brings it. `verdict` computes each as a paired difference over seeds.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import altair as alt
import numpy as np

from suture import cohorts
from suture.engine import conduct
from suture.errors import DataError
from suture.evaluation.significance import interval
from suture.papers.reproduction import Chart, Row, Tables, Work, rows_under, spread, summary
from suture.privacy.files import write_whole
from suture.report.theme import PALETTE, finish, table
from suture.study import Study
from suture.tune.plan import OTHER_SEED, without_tested

FLAT = 1e6
"""A tau beside which the root of every second moment vanishes: all coordinates get one step."""
CLIENT, SERVER = (0.01, 1.0), (0.003, 0.3)
FEDAVG, FEDADAM = "FedAvg", "FedAdam (FedCVR)"
FIRST, SECOND = "First moment alone", "Second moment alone"
# Label: the method's settings, the second rate that is searched with its range, and the paper's.
OPTIMISERS: dict[str, tuple[dict[str, str | float], str, tuple[float, float], float]] = {
    FEDAVG: ({"name": "fedavg"}, "", (1, 1), 1),
    FIRST: ({"name": "fedadam", "tau": FLAT}, "server_rate", (0.1 * FLAT, 3 * FLAT), FLAT),
    SECOND: ({"name": "fedadam", "beta1": 0.0}, "server_rate", SERVER, 0.1),
    FEDADAM: ({"name": "fedadam"}, "server_rate", SERVER, 0.1),
    "FedYogi": ({"name": "fedyogi"}, "server_rate", SERVER, 0.1),
    "FedAdagrad": ({"name": "fedadagrad"}, "server_rate", SERVER, 0.1),
    "FedProx": ({"name": "fedprox"}, "proximal", (0.001, 1), 0.1),
    "FedCluster": ({"name": "fedcluster"}, "", (1, 1), 1),
}
ABLATED = (FEDAVG, FIRST, SECOND, FEDADAM)
SIGMAS, PLAIN_AND_1 = (0.0, 0.5, 0.8, 1.0, 1.1, 1.5), (0.0, 1.0)
TRIALS, SEEDS, SEED = 6, 5, 42
MEMORY = Path("/dev/shm")
MATTERS = 0.01
"""The smallest difference of AUC that we call a finding."""

_FEW: dict[str, Any] = {"name": "cardio", "patients": 3000, "test_fraction": 2.0}
PLACES: dict[str, dict[str, Any]] = {
    "rule, specialised": _FEW,
    "rule, IID": {**_FEW, "split": "iid"},
    "drawn labels, specialised": {**_FEW, "labels": "drawn"},
    "drawn labels, IID": {**_FEW, "split": "iid", "labels": "drawn"},
    "UCI heart": {"name": "heart"},
    "Framingham": {"name": "framingham"},
    "the paper's 30,000": {"name": "cardio"},
    "epsilon below 1": {"name": "cardio"},
}
GENERATED, REAL = tuple(PLACES)[:4], tuple(PLACES)[4:6]
WHOLE, STRICT = tuple(PLACES)[6:]
LENGTHS = {WHOLE: (100, 5), STRICT: (20, 2)}
"""Rounds and local epochs; elsewhere 30 and 5. The 3,000 patients are what the
paper's Table 2 sums to."""


@dataclass(frozen=True)
class Cell:
    """One optimiser at one amount of noise on one federation (`STRICT`: at one epsilon)."""

    place: str
    level: float
    optimiser: str
    trials: int = TRIALS
    seeds: int = SEEDS
    rounds: int = 30
    epochs: int = 5

    def study(self, seed: int, settings: Mapping[str, str | float]) -> Study:
        """One training."""
        cohort = PLACES[self.place]
        how = "epsilon" if self.place == STRICT else "noise_multiplier"
        private = {"unit": "patient", "delta": 1e-5, how: self.level}
        outcome = "cvd_in_10_years" if cohort["name"] == "framingham" else "high_risk"
        about = {"rounds": self.rounds, "local_epochs": self.epochs, "weighting": "size"}
        return Study(
            name="claim",
            outcome=outcome,
            seed=seed,
            cohort=cohort,
            simulation=self.place in REAL,
            method={**about, **settings},
            evaluation={"every": self.rounds},
            **({"privacy": private} if self.level else {}),
        )

    def candidates(self) -> list[dict[str, str | float]]:
        """The paper's own rates, then points of a Halton sequence, the same for every optimiser.

        >>> [one["rate"] for one in Cell("rule, IID", 1.0, "FedAvg", trials=3).candidates()]
        [0.01, 0.1, 0.0316]
        """
        from scipy.stats import qmc

        fixed, name, (low, high), printed = OPTIMISERS[self.optimiser]
        found = [{**fixed, "rate": 0.01, **({name: printed} if name else {})}]
        for x, y in qmc.Halton(2, scramble=False).random(self.trials)[1:]:
            rate, other = (a * (b / a) ** at for (a, b), at in ((CLIENT, x), ((low, high), y)))
            second = {name: float(f"{other:.3g}")} if name else {}
            found.append({**fixed, "rate": float(f"{rate:.3g}"), **second})
        return found


class Found(TypedDict):
    """What a cell found: the settings taken (one, or one per split of a real table), and the AUC of
    each seed's test patients."""

    settings: list[dict[str, str | float]]
    auc: list[float]


Grid = dict[Cell, Found]


def cells(quick: bool) -> list[Cell]:
    """Everything that is trained, long trainings first."""
    few: dict[str, int] = {"trials": 3, "seeds": 2, "rounds": 10, "epochs": 2} if quick else {}
    whole, strict = ({} if quick else dict(zip(("rounds", "epochs"), LENGTHS[one], strict=True))
                     for one in (WHOLE, STRICT))  # fmt: skip
    found = [Cell(WHOLE, 1.0, one, **(few | whole)) for one in (FEDAVG, FEDADAM)]
    levels = (0.5,) if quick else (0.3, 0.5, 0.9)
    found += [Cell(STRICT, e, one, **(few | strict)) for e in levels for one in (FEDAVG, FEDADAM)]
    for place in GENERATED[::2]:
        for sigma in PLAIN_AND_1 if quick else SIGMAS:
            names = [*OPTIMISERS] if sigma == 1.0 else [*OPTIMISERS][:6]
            found += [Cell(place, sigma, one, **few) for one in names]
    for place in (*REAL, *(() if quick else GENERATED[1::2])):
        some = ({"seeds": 3} if place in REAL else {}) | few
        found += [Cell(place, sigma, one, **some) for sigma in PLAIN_AND_1 for one in ABLATED]
    return found


def measure(cell: Cell) -> Found:
    """Tune on other patients, then train on each seed and measure on its test patients."""
    # A simulation's ledgers are written for every release; in memory they do not wait for a disk.
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as scratch:
        auc = partial(_auc, scratch=Path(scratch))
        if cell.place not in REAL:
            start = SEED + OTHER_SEED
            best = max(cell.candidates(), key=lambda one: auc(cell.study(start, one)))
            tested = [auc(cell.study(SEED + i, best)) for i in range(cell.seeds)]
            return {"settings": [best], "auc": tested}
        taken, tested = [], []
        for seed in range(SEED, SEED + cell.seeds):  # another split of the same people each
            inner = without_tested(cell.study(seed, {"name": "fedavg"}), Path(scratch))
            inner = inner.replace(seed=seed + OTHER_SEED)
            about = [cell.study(seed, one).method.model_dump() for one in cell.candidates()]
            trials = [auc(inner.replace(method=method)) for method in about]
            taken.append(cell.candidates()[int(np.argmax(trials))])
            tested.append(auc(cell.study(seed, taken[-1])))
        return {"settings": taken, "auc": tested}


def _auc(study: Study, scratch: Path) -> float:
    """AUC on the study's test patients; half where the training diverges."""
    with tempfile.TemporaryDirectory(dir=scratch) as home:
        found = conduct.run(study, base=Path(home), threads=1).data["metrics"]["global"].get("auc")
    return 0.5 if found is None else float(found)


def _kept(out: Path, cell: Cell) -> Found:
    """A cell's result, from its file where that holds exactly this cell."""
    digest = "-".join(str(part) for part in asdict(cell).values())
    name = "".join(letter if letter.isalnum() else "-" for letter in digest)
    path = out / "runs" / "claim" / f"{name}.json"
    about = {"cell": asdict(cell), "on": PLACES[cell.place], "candidates": cell.candidates()}
    if path.exists():
        held = json.loads(path.read_text("utf-8"))
        kept: Found = held.pop("found")
        if held == about:
            return kept
    found = measure(cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps({**about, "found": found}, allow_nan=False).encode())
    return found


def run(work: Work) -> tuple[Grid, list[str]]:
    """Every cell whose data are there, one per core at a time; and what is missing."""
    missing, absent = [], set()
    for place in REAL:
        try:
            cohorts.load(PLACES[place]["name"], SEED)
        except DataError as error:
            absent.add(place)
            missing.append(f"{place} was not there, so its rows are missing: {error}")
    jobs = [cell for cell in cells(work.quick) if cell.place not in absent]
    grid: Grid = {}
    for i, found in spread(partial(_kept, work.out), jobs, work.threads):
        grid[jobs[i]] = found
        work.say(f"{jobs[i].optimiser}, {jobs[i].place}, {jobs[i].level:g}", len(grid), len(jobs))
    return {cell: grid[cell] for cell in jobs}, missing


# --- what it says -----------------------------------------------------------------------------


class Effects:
    """Paired differences of AUC, seed by seed."""

    def __init__(self, grid: Grid) -> None:
        self.auc = {(c.place, c.level, c.optimiser): np.array(f["auc"]) for c, f in grid.items()}

    def levels(self, place: str) -> list[float]:
        """The amounts of noise that were tried there."""
        return sorted({level for where, level, _ in self.auc if where == place})

    def everywhere(self, *names: str) -> list[str]:
        """The generated federations that have these optimisers at each of their noise levels."""
        return [
            place
            for place in GENERATED
            if (levels := self.levels(place))
            and all((place, level, name) in self.auc for level in levels for name in names)
        ]

    def gain(self, place: str, level: float, one: str, other: str) -> Any:
        """One optimiser's AUC less another's."""
        return self.auc[place, level, one] - self.auc[place, level, other]

    def moment(self, place: str, level: float, which: str) -> Any:
        """A moment's main effect in the two by two of FedAvg, each moment alone, and FedAdam."""
        rest = SECOND if which == FIRST else FIRST
        with_it = self.gain(place, level, which, FEDAVG) + self.gain(place, level, FEDADAM, rest)
        return with_it / 2

    def noisy(self, places: Iterable[str], what: Callable[[str, float], Any]) -> list[float]:
        """The mean over places and noise above 0, for each seed."""
        found = [what(place, level) for place in places for level in self.levels(place) if level]
        return [float(value) for value in np.mean(found, axis=0)]

    def growth(self, places: Sequence[str], what: Callable[[str, float], Any]) -> list[float]:
        """The same, less its mean without noise."""
        plain = np.mean([what(place, 0.0) for place in places], axis=0)
        return [a - float(b) for a, b in zip(self.noisy(places, what), plain, strict=True)]


def judged(low: float | None, high: float | None) -> str:
    """What an interval of a claimed gain says.

    >>> judged(0.012, 0.03), judged(0.002, 0.004), judged(-0.01, 0.004)
    ('yes', 'too small to matter', 'no')
    >>> judged(-0.02, 0.03), judged(-0.03, -0.01), judged(0.001, 0.02)
    ('undecided', 'the opposite', 'yes, perhaps too small to matter')
    """
    if low is None or high is None or (low <= 0 and high >= MATTERS):
        return "undecided"
    if high < 0:
        return "the opposite"
    if low <= 0:
        return "no"
    if low >= MATTERS:
        return "yes"
    return "yes, perhaps too small to matter" if high >= MATTERS else "too small to matter"


def verdict(grid: Grid, printed: Sequence[float]) -> list[Row]:
    """The claims, the effect of each with its interval, and what that says. ``printed`` is FedAdam's
    gain over FedAvg at the paper's rates, seed by seed."""
    effects = Effects(grid)
    adam = partial(effects.gain, one=FEDADAM, other=FEDAVG)
    places, ablated = effects.everywhere(FEDAVG, FEDADAM), effects.everywhere(*ABLATED)
    tried: list[tuple[str, Sequence[float]]] = [
        ("At the paper's rates, sigma 1, 30,000 patients: FedAdam beats FedAvg", printed),
        ("The same, each tuned with equal trials", list(adam(WHOLE, 1.0))),
        ("Under noise, tuned, generated federations: FedAdam beats FedAvg", effects.noisy(places, adam)),
        ("That advantage grows with noise", effects.growth(places, adam)),
    ]  # fmt: skip
    for which in (FIRST, SECOND):
        by = partial(effects.moment, which=which)
        name = which.split()[0].lower()
        tried.append((f"Under noise the {name} moment helps", effects.noisy(ablated, by)))
        tried.append((f"It helps more than without noise ({name})", effects.growth(ablated, by)))
    for rival in ("FedYogi", "FedAdagrad"):
        gain, where = (
            partial(effects.gain, one=FEDADAM, other=rival),
            effects.everywhere(FEDADAM, rival),
        )
        tried.append((f"Under noise FedAdam beats {rival}", effects.noisy(where, gain)))
    for place in filter(effects.levels, REAL):
        tried += [
            (f"{place}, under noise: FedAdam beats FedAvg", effects.noisy([place], adam)),
            (f"{place}: that advantage grows with noise", effects.growth([place], adam)),
        ]
    rows = []
    for claim, values in tried:
        mean, low, high = interval(values)
        sd = float(np.std(values, ddof=1))
        row: Row = {"claim": claim, **summary("effect on AUC", values)}
        row |= {"effect size (mean / sd)": mean / sd if sd else None, "verdict": judged(low, high)}
        rows.append(row)
    return rows


def sentence(rows: Sequence[Row], grid: Grid) -> str:
    """The verdict in words, made from the figures."""
    by_name = {str(row["claim"]): row for row in rows}
    as_printed, tuned, noisy, grows = list(by_name.values())[:4]
    first, more = (by_name[name] for name in (
        "Under noise the first moment helps", "It helps more than without noise (first)"
    ))  # fmt: skip

    def said(row: Row) -> str:
        mean, low, high = (row[f"effect on AUC{end}"] for end in ("", " 95% low", " 95% high"))
        reach = "" if low is None or high is None else f" ({low:+.4f} to {high:+.4f})"
        return f"{mean:+.4f}{reach}"

    answers = [str(row["verdict"]) for row in (noisy, grows, more)]
    answer = "supported" if all(one.startswith("yes") for one in answers) else "undecided"
    if {"no", "the opposite", "too small to matter"} & set(answers):
        answer = "not supported"
    strict = [cell for cell in grid if cell.place == STRICT]
    least = min(cell.level for cell in strict)
    best = max(float(np.mean(grid[cell]["auc"])) for cell in strict if cell.level == least)
    return (
        f"Verdict: 'server-side Adam filters DP noise' is {answer} here. FedAdam's gain over FedAvg is "
        f"{said(as_printed)} at the paper's rates and {said(tuned)} when both are tuned with equal "
        f"trials; over all noisy generated cells {said(noisy)}, and {said(grows)} more than without "
        f"noise. The first moment's own effect under noise is {said(first)}, {said(more)} more than "
        f"without. At epsilon {least:g} the AUC is {best:.3f}; the paper expects about 0.5 below 1."
    )


def tables(grid: Grid, printed: Sequence[float]) -> tuple[Tables, str]:
    """The verdict, its sentence, and the figures behind it."""
    rows, effects, by_place = verdict(grid, printed), Effects(grid), []
    for place in PLACES:
        for level in effects.levels(place):
            noise = f"epsilon {level:g}" if place == STRICT else f"{level:g}"
            row: Row = {"federation": place, "noise": noise}
            for name in OPTIMISERS:
                values = effects.auc.get((place, level, name))
                row |= {name: None} if values is None else summary(name, list(values))
            by_place.append(row)
    keys = list(dict.fromkeys(key for row in by_place for key in row))
    rates = ("rate", "server_rate", "proximal")
    taken = rows_under(
        "federation | noise | optimiser | trials | settings",
        (
            (cell.place, cell.level, cell.optimiser, cell.trials,
             "; ".join(", ".join(f"{k} {v:g}" for k, v in one.items() if k in rates) for one in found["settings"]))
            for cell, found in grid.items()
        ),
    )  # fmt: skip
    made: Tables = {
        "verdict": ("The claim put to a fair test: effects on AUC, paired over seeds", rows),
        "claim_auc": ("Test AUC by noise and optimiser, each tuned with equal trials on other patients",
                      [{key: row.get(key) for key in keys} for row in by_place]),
        "claim_settings": ("Settings taken", taken),
    }  # fmt: skip
    return made, sentence(rows, grid)


def chart(grid: Grid) -> Chart:
    """Each optimiser's AUC less FedAvg's against the noise, one panel per federation."""
    effects, names = Effects(grid), [*OPTIMISERS][1:6]
    rows = [
        {"federation": place, "noise": level, "optimiser": name}
        | dict(zip(("gain", "low", "high"), summary("", list(effects.gain(place, level, name, FEDAVG))).values(), strict=True))
        for place in (*GENERATED, *REAL)
        for level in effects.levels(place)
        for name in names
        if (place, level, name) in effects.auc
    ]  # fmt: skip
    colour = alt.Color("optimiser:N", title=None, sort=names, legend=alt.Legend(orient="bottom"),
                       scale=alt.Scale(domain=names, range=list(PALETTE[: len(names)])))  # fmt: skip
    base = alt.Chart().encode(x=alt.X("noise:Q", title="Noise multiplier"), color=colour)
    up = alt.Y("gain:Q", title="AUC less FedAvg's")
    layers = (
        alt.Chart().mark_rule(color="#888888", strokeDash=[5, 4]).encode(y=alt.datum(0))
        + base.mark_line(point=True, strokeWidth=2).encode(y=up)
        + base.mark_rule(opacity=0.5).encode(y="low:Q", y2="high:Q")
    )
    panels = layers.properties(width=250, height=180, data=table(rows)).facet(
        facet=alt.Facet("federation:N", title=None, sort=list(PLACES)), columns=3
    )
    note = "Each tuned with equal trials on other patients; bars: 95 % intervals over seeds"
    return finish(panels.resolve_scale(y="independent"), "Do server optimisers filter noise?", note)
