"""`suture release percentiles`: where a value lies among all hospitals' patients, read off noisy
histograms that are charged.

Every hospital releases, at once, one histogram for each number that the model uses. A patient adds
at most one unit to each of the m histograms, so the vector's L2 sensitivity is sqrt(m), and one
Gaussian event pays for all of them. Each hospital adds its own full noise (no secure sum is
assumed) and charges its own ledger first, to the account of the study's releases; the sum over
hospitals, and percentiles read off it, are post-processing.

The result is kept in the run's folder as ``percentiles.json``. It holds nothing but what was
released, so it may travel with the model. The same question about the same rows is the same
release and is charged once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from suture.engine.federation import ask_ready, survey
from suture.errors import RunError, StudyError
from suture.explain.run import Answer, ConceptModel, FinishedRun, Floats
from suture.privacy.accounting.accountant import epsilon as epsilon_of_event
from suture.privacy.accounting.planner import noise_for
from suture.privacy.files import write_whole
from suture.releases.query import counting, joint_histograms, open_account, read_each
from suture.schema.table import Number

FILE = "percentiles.json"
BINS = 40


@dataclass(frozen=True)
class Histogram:
    """A noisy histogram of one number over the federation: public edges, noisy counts, and the
    standard deviation of the noise in each."""

    edges: Floats
    counts: Floats
    deviation: float

    def below(self, value: float) -> tuple[float, float]:
        """The share of patients below a value, interpolated between the edges, and half of the 95 %
        interval that noise leaves around it."""
        sums = np.concatenate(([0.0], np.cumsum(self.counts)))
        total, count = float(sums[-1]), len(self.counts)
        if total <= 0:
            return 0.5, 0.5
        # True cumulative counts never fall: take the mean of the smallest rising curve above and
        # the largest below.
        above, under = np.maximum.accumulate(sums), np.minimum.accumulate(sums[::-1])[::-1]
        share = float(np.clip(np.interp(value, self.edges, (above + under) / 2) / total, 0, 1))
        bins = float(np.clip(np.interp(value, self.edges, np.arange(count + 1)), 0, count))
        spread = math.sqrt((1 - share) ** 2 * bins + share**2 * (count - bins))
        return share, min(0.5, 1.959964 * self.deviation * spread / total)


def release_percentiles(
    folder: str | Path,
    *,
    epsilon: float,
    delta: float | None = None,
    budget: float | None = None,
    bins: int = BINS,
    say: Callable[[str], None] = lambda text: None,
) -> Answer:
    """Release every hospital's histograms of the numbers in the model, and keep their sum in the
    run's folder."""
    if not 0 < epsilon < math.inf:
        raise StudyError(f"expected an epsilon above 0 and finite, found {epsilon}")
    run = FinishedRun.open(folder)
    bounds = _numbers(run.concept_model("the page with percentiles"))
    columns = list(bounds)
    total, variance, repeated = np.zeros(len(columns) * bins), 0.0, 0
    spent: dict[str, float] = {}
    world = survey(run.study, run.base, run.study.seed)
    ask_ready(run.study, world, needed=True)
    for i, place in enumerate(world.places, start=1):
        with open_account(run.study, place, world.schema, delta=delta, budget=budget) as site:
            promise = site.budget
            multiplier = noise_for(epsilon, promise.delta, 1.0, 1, promise.accountant)
            about = (place.source, world.schema, run.study.column, columns)
            read = read_each(*about, site=place.name, passage=site.passage)
            tally = joint_histograms(read, bins)
            what = f"histograms of {len(columns)} columns ({', '.join(columns)}), bins={bins}"
            question = ("percentiles", tuple(columns), bins)
            noisy = site.release(tally, counting(tally, multiplier), question, what)
            spent[place.name] = _rounded_up(site.ledger.spent(site.name))
            repeated += noisy.receipt.repeated
        total += noisy.counts
        variance += noisy.sd**2
        cost = epsilon_of_event(noisy.event, promise.delta, promise.accountant)
        before = " before" if noisy.receipt.repeated else ""
        say(f"[{i}/{len(world.places)}] {place.name}: charged{before}")
    facts = {
        "hospitals": len(world.places),
        "bins": bins,
        "noise_sd": math.sqrt(variance),
        "epsilon": _rounded_up(cost),
        "delta": promise.delta,
        "counted": "each patient once for each number, in the bin of the mean of their rows",
    }
    histograms = {
        name: {"low": bounds[name][0], "high": bounds[name][1], "counts": counts.tolist()}
        for name, counts in zip(columns, np.split(total, len(columns)), strict=True)
    }
    found = {"study": run.study.name, **facts, "histograms": histograms}
    write_whole(run.folder / FILE, json.dumps(found, indent=1).encode())
    written = {"written": str(run.folder / FILE), "columns": columns}
    return {**written, "spent_by_site": spent, "repeated": repeated, **facts}


def _rounded_up(epsilon: float) -> float:
    """To four decimals: what was spent must not be stated smaller than it is."""
    return math.ceil(epsilon * 1e4 * (1 - 1e-12)) / 1e4


def _numbers(model: ConceptModel) -> dict[str, tuple[float, float]]:
    """The numbers that the model uses, with their declared bounds: schema and model are public."""
    items, features = model.concepts.items, model.schema.features
    used = dict.fromkeys(items[i].feature for i in np.flatnonzero(model.weights))
    found = {name: (f.low, f.high) for name in used if isinstance(f := features[name], Number)}
    if not found:
        raise StudyError("the model uses no number, so there is nothing to take a percentile of")
    return found


def load_percentiles(folder: Path) -> tuple[dict[str, Histogram], str]:
    """The federation's histograms of a run, and a sentence that says what they are."""
    path = folder / FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        bins, deviation = found["bins"], float(found["noise_sd"])
        histograms = {}
        for name, one in found["histograms"].items():
            edges = np.linspace(one["low"], one["high"], bins + 1)
            histograms[name] = Histogram(edges, np.asarray(one["counts"], np.float64), deviation)
        cost = math.ceil(100 * found["epsilon"]) / 100
        words = (
            f"a histogram over all {found['hospitals']} hospitals with noise (epsilon {cost:g} at "
            f"delta {found['delta']:g} for every patient, charged to each hospital's ledger)"
        )
    except FileNotFoundError:
        raise RunError(
            f"{folder} has no histogram of the federation; release one first, which is charged to "
            f"every site's ledger: suture release percentiles {folder.name} --epsilon 1. Or leave "
            "out --percentiles federation"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} cannot be read: {type(error).__name__}; release it again") from None
    return histograms, words
