"""`suture release percentiles`: where a value lies among all hospitals' patients, from noisy histograms that are charged.

Every hospital releases, at once, one histogram for each number that the model uses. A patient adds at most one unit to each
of the m histograms, so the vector's L2 sensitivity is sqrt(m), and one Gaussian event pays for all of them. Each hospital adds
its own full noise (no secure sum is assumed) and charges its own ledger first, to the account of the study's releases; the
sum over hospitals, and percentiles read off it, are post-processing.

The result is kept in the run's folder as ``percentiles.json``: it holds nothing but what was released, so it may travel with
the model. The same question on the same rows is the same release and is charged once.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from suture.errors import RunError, StudyError
from suture.explanation.patient import Histogram
from suture.models.concepts import dictionary
from suture.privacy.accountant import epsilon as epsilon_of_event
from suture.privacy.calibration import noise_for
from suture.releases import opened
from suture.result import Result
from suture.runfolder import RunFolder, write_whole
from suture.site.release import charge_and_add_noise, joint_histograms, read_each
from suture.site.schema import Number, Schema
from suture.world import survey

FILE = "percentiles.json"
BINS = 40


def release_percentiles(
    folder: str | Path,
    *,
    epsilon: float,
    delta: float | None = None,
    budget: float | None = None,
    bins: int = BINS,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Release every hospital's histograms of the numbers in a veil run's model, and keep their sum in the run's folder."""
    if not 0 < epsilon < math.inf:
        raise StudyError(f"expected an epsilon above 0 and finite, found {epsilon}")
    folder = Path(folder).resolve()
    result = Result.load(folder)
    schema = Schema.parse(result.data["model"]["schema"])
    columns = _columns(result, schema)
    _, study, base = RunFolder.open(folder)
    total, variance, spent, repeated = np.zeros(len(columns) * bins), 0.0, {}, 0
    here = survey(study, base, study.seed)
    for i, place in enumerate(here.places):
        with opened(study, place, here.schema, delta=delta, budget=budget) as desk:
            promise = desk.promise
            multiplier = noise_for(epsilon, promise.delta, 1.0, 1, promise.accountant)
            read = read_each(place.source, here.schema, study.outcome, columns, site=place.name, passage=desk.passage)
            content = hashlib.blake2b(b"".join(column.fingerprint() for column in read), digest_size=32).digest()
            noisy = charge_and_add_noise(
                joint_histograms(read, bins),
                multiplier,
                ledger=desk.ledger,
                account=desk.account,
                secret=desk.secret,
                question=f"histograms of {len(columns)} columns ({', '.join(columns)}), bins={bins}",
                content=content,
            )
            spent[place.name] = math.ceil(desk.ledger.spent(desk.account) * 1e4 * (1 - 1e-12)) / 1e4
            repeated += noisy.release.receipt.repeated
        total += noisy.counts
        variance += noisy.sd**2
        cost = epsilon_of_event(noisy.event, promise.delta, promise.accountant)
        say(
            f"[{i + 1}/{len(here.places)}] {place.name}: charged"
            + (" before" if noisy.release.receipt.repeated else "")
        )
    found = {
        "study": study.name,
        "hospitals": len(here.places),
        "bins": bins,
        "noise_sd": math.sqrt(variance),
        "epsilon": math.ceil(cost * 1e4 * (1 - 1e-12)) / 1e4,
        "delta": promise.delta,
        "counted": "each patient once for each number, in the bin of the mean of their rows",
        "histograms": {
            name: {"low": f.low, "high": f.high, "counts": total[i * bins : (i + 1) * bins].tolist()}
            for i, name in enumerate(columns)
            if isinstance(f := schema.features[name], Number)
        },
    }
    write_whole(folder / FILE, json.dumps(found, indent=1).encode())
    return {
        "written": str(folder / FILE),
        "columns": columns,
        "spent_by_site": spent,
        "repeated": repeated,
        **{key: found[key] for key in ("hospitals", "bins", "noise_sd", "epsilon", "delta", "counted")},
    }


def _columns(result: Result, schema: Schema) -> list[str]:
    """The numbers that the model uses: the schema and the model are public."""
    if result.data["method"] != "veil":
        raise StudyError(
            f"percentiles stand on the page of one patient, which needs veil; this run's method is {result.data['method']!r}"
        )
    items = dictionary(schema).items
    used = dict.fromkeys(items[i].feature for i in np.flatnonzero(result.model["weights"]))
    found = [name for name in used if isinstance(schema.features[name], Number)]
    if not found:
        raise StudyError("the model uses no number, so there is nothing to take a percentile of")
    return found


def load_percentiles(folder: Path) -> tuple[dict[str, Histogram], str]:
    """The federation's histograms of a run, and a sentence on what they are."""
    path = folder / FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        histograms = {
            name: Histogram(
                np.linspace(one["low"], one["high"], found["bins"] + 1),
                np.asarray(one["counts"], np.float64),
                float(found["noise_sd"]),
            )
            for name, one in found["histograms"].items()
        }
        cost = math.ceil(100 * found["epsilon"]) / 100
        words = (
            f"a histogram over all {found['hospitals']} hospitals with noise (epsilon {cost:g} at delta "
            f"{found['delta']:g} for every patient, charged to each hospital's ledger)"
        )
    except FileNotFoundError:
        raise RunError(
            f"{folder} has no histogram of the federation; release one first, which is charged to every site's ledger: suture "
            f"release percentiles {folder.name} --epsilon 1. Or leave out --percentiles federation"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} cannot be read: {type(error).__name__}; release it again") from None
    return histograms, words
