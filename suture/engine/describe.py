"""A cohort in figures: public sizes always, exact counts and histograms only where the study may
show them."""

from __future__ import annotations

from typing import Any

import numpy as np

from suture.engine.plan import World
from suture.report.describe import describe
from suture.schema.outcome import Outcome
from suture.schema.table import Number
from suture.site.cohort import SiteData
from suture.study import Study

MOST_DESCRIBED = 40
"""Histograms of the first so many numbers: hundreds of them would inform nobody."""


def describes(study: Study, world: World) -> bool:
    """Whether exact figures about rows may be shown: asked for, generated, or nothing is
    promised."""
    asked = study.evaluation.describe
    return asked if asked is not None else (world.generated or study.privacy is None)


def described_cohort(study: Study, world: World) -> dict[str, Any]:
    """Sizes (public) always; prevalences and histograms only where `describes` allows them."""
    shown = describes(study, world)
    sites: dict[str, dict[str, Any]] = {}
    columns: dict[str, dict[str, Any]] = {}
    every = {name: f for name, f in world.schema.features.items() if isinstance(f, Number)}
    numbers = dict(list(every.items())[:MOST_DESCRIBED])
    encoded = world.features
    where = {feature: encoded.index(feature) for feature in numbers}
    for name, site in world.remote.items():
        sites[name] = {
            "region": site.region,
            "train": site.patients,
            **(site.described if shown else {}),
        }
    for name, hospital in world.hospitals.items():
        data = hospital.data
        sites[name] = {"region": hospital.region, "train": world.sizes[name]}
        if not shown:
            continue
        sites[name].update(counted(data, world.target))
        columns[name] = {
            feature: (_bounded(data, at) + 1) / 2 * (numbers[feature].high - numbers[feature].low)
            + numbers[feature].low
            for feature, at in where.items()
        }
    cohort: dict[str, Any] = {"source": "generated" if world.generated else "files", "sites": sites}
    if columns and numbers:
        bounds = {
            name: {
                "low": f.low,
                "high": f.high,
                "unit": f.unit,
                "label": f.label or name.replace("_", " ").capitalize(),
            }
            for name, f in numbers.items()
        }
        cohort["features"] = describe(columns, bounds)
    return cohort


def counted(data: SiteData, target: Outcome) -> dict[str, Any]:
    """Exact counts and shares of a site's rows: for generated patients, or where the study promises
    nothing."""
    test = data.test.patients if data.test else 0
    rows = data.train.rows + (data.test.rows if data.test else 0)
    shares = np.bincount(target.classes(data.train.y), minlength=target.count) / max(
        1, data.train.rows
    )
    found: dict[str, Any] = {"patients": data.train.patients + test, "rows": rows, "test": test}
    if target.count == 2:
        return {**found, "prevalence": float(shares[1])}
    return {**found, "class_shares": [float(share) for share in shares]}


def _bounded(data: SiteData, at: int) -> Any:
    """A column of training rows on the scale of its declared bounds, whatever the site trains
    on."""
    mean, spread = data.scales.get(at, (0.0, 1.0))
    return data.train.x[:, at] * spread + mean
