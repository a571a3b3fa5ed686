"""Generated patients with follow-up: exponential hazards with known ratios, censored at random."""

from pathlib import Path

import numpy as np
import pandas as pd

from suture.schema.outcome import Survival
from suture.study import Study

OUTCOME = {"time": "days", "event": "death", "horizon": 100.0, "intervals": 8}
SURVIVAL = Survival(**OUTCOME)
FEATURES = {
    "age": {"kind": "number", "low": 20, "high": 100, "missing": "fill"},
    "marker": {"kind": "number", "low": -5, "high": 5, "missing": "fill"},
    "smoker": {"kind": "flag", "missing": "fill"},
}


def frame(n: int, seed: int, effect: float = 1.0) -> pd.DataFrame:
    """One row per patient; log hazard = effect (.05 (age - 60) + .5 marker + .4 smoker)."""
    rng = np.random.default_rng(seed)
    age, marker = np.clip(rng.normal(60, 12, n), 20, 100), np.clip(rng.normal(0, 1.2, n), -5, 5)
    smoker = rng.integers(0, 2, n)
    score = effect * (0.05 * (age - 60) + 0.5 * marker + 0.4 * smoker)
    hidden, left = rng.exponential(120 / np.exp(score)), rng.uniform(10, 200, n)
    return pd.DataFrame(
        {
            "id": [f"{seed}-{i}" for i in range(n)],
            "age": age,
            "marker": marker,
            "smoker": smoker,
            "days": np.round(np.minimum(hidden, left), 2),
            "death": (hidden <= left).astype(int),
            "score": score,
        }
    )


def study(folder: Path, sites: int = 3, each: int = 400, effect: float = 1.0, **more) -> Study:
    """A simulation on files; tables may be given in part."""
    places = []
    for i in range(sites):
        frame(each, i, effect).to_csv(folder / f"s{i}.csv", index=False)
        places.append({"name": f"s{i}", "data": f"s{i}.csv"})
    fields = {
        "name": "followed",
        "outcome": OUTCOME,
        "simulation": True,
        "sites": places,
        "schema": {"patient": "id", "features": FEATURES},
        "model": {"hidden": [8]},
        "method": {"name": "additive", "rounds": 30},
        "evaluation": {"every": 1000, "holdout": 0.3},
        **more,
    }
    return Study(**fields)
