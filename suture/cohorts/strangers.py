"""Federations to judge the interoperability tests on, of shapes that the tests' tolerances were not set on.

The tolerances of `interop.evidence` were chosen while looking at `outbreak`. A score on `outbreak` alone would therefore
flatter them. These families differ from it in what a test on means and spreads could stumble over:

| family | columns |
|---|---|
| `gamma` | skewed: gamma of shape 0.8 to 3, and lognormal |
| `heavy` | Student's t with 3 degrees of freedom: the fourth moment does not exist |
| `mixture` | two humps, at shares that differ a little from site to site |
| `flags` | yes/no columns from 2 % to 50 %, and categories of five values |
| `correlated` | normal columns that share one factor (correlation 0.6) |

Everything is clean here: sites differ from each other by sampling, by prevalence (15 % to 85 %), by size (60 to 2,500
patients), by a shift of each column's mean of 0.1 standard deviations (as a standard deviation over sites), of its
spread by 5 %, of each share's log-odds by 0.15 and of the share recorded by 1 %. All of that lies within the tolerances.
Faults are planted by `faults.plant`. All figures are chosen, none is fitted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture.cohorts.cohort import Cohort, CohortSite
from suture.errors import StudyError
from suture.site.schema import Category, Flag, Number, Schema

FAMILIES = ("gamma", "heavy", "mixture", "flags", "correlated")
OUTCOME = "outcome"
LEVEL = 20.0
"""Numbers sit around this, with a deviation near 4, so that a factor is a change of unit and not of sign."""


def stranger(seed: int, family: str, *, sites: int = 0) -> Cohort:
    """A clean federation of one family; ``sites`` 0 draws between 6 and 16.

    >>> made = stranger(1, "gamma", sites=6)
    >>> len(made.sites), made.name, min(len(site.table["outcome"]) for site in made.sites) >= 60
    (6, 'gamma', True)
    """
    if family not in FAMILIES:
        raise StudyError(f"there is no family {family!r}; expected one of {', '.join(FAMILIES)}")
    rng = np.random.default_rng([seed, 0x57_A6, FAMILIES.index(family)])
    count = sites or int(rng.integers(6, 17))
    numbers = [f"number {i}" for i in range(3 if family == "flags" else 9)]
    flags = [f"flag {i}" for i in range(12 if family == "flags" else 4)]
    categories = [f"category {i}" for i in range(2 if family == "flags" else 1)]
    tied = {name: float(rng.uniform(-0.9, 0.9)) for name in [*numbers, *flags]}
    tied["number 0"], tied["flag 0"] = 0.9, 0.9
    shape = {name: float(rng.uniform(0.8, 3.0)) for name in numbers}
    share = {
        name: float(np.exp(rng.uniform(np.log(0.02 if family == "flags" else 0.1), np.log(0.5)))) for name in flags
    }
    share["flag 0"] = 0.35
    made = []
    for i in range(count):
        patients = int(np.exp(rng.uniform(np.log(60), np.log(2500))))
        y = (rng.random(patients) < rng.uniform(0.15, 0.85)).astype(np.int8)
        y[:20], y[20:40] = 0, 1  # both classes can be compared at the smallest site too
        common = rng.standard_normal(patients)
        table: dict[str, NDArray[Any]] = {"patient_id": np.array([f"{i}-{k}" for k in range(patients)])}
        for name in numbers:
            noise = _standard(family, shape[name], int(name[-1]) % 2 == 0, common, rng)
            own = 0.1 * rng.standard_normal(), float(np.exp(0.05 * rng.standard_normal()))
            table[name] = LEVEL + 4.0 * (own[0] + own[1] * noise + tied[name] * y)
        for name in flags:
            logit = np.log(share[name] / (1 - share[name])) + 0.15 * rng.standard_normal() + tied[name] * y
            table[name] = (rng.random(patients) < 1 / (1 + np.exp(-logit))).astype(np.float64)
        for name in categories:
            weights = np.array([0.4, 0.25, 0.2, 0.1, 0.05]) * np.exp(0.1 * rng.standard_normal(5))
            table[name] = rng.choice(5, patients, p=weights / weights.sum()).astype(np.float64)
        for name in list(table)[1:]:
            lost = float(np.clip(0.06 + 0.01 * rng.standard_normal(), 0, 1))
            table[name] = np.where(rng.random(patients) < lost, np.nan, table[name])
        made.append(CohortSite(f"site {i:02d}", "generated", {**table, OUTCOME: y}))
    features: dict[str, Any] = {name: Number(low=-40, high=80) for name in numbers}
    features |= {name: Flag() for name in flags}
    features |= {name: Category(values=("0", "1", "2", "3", "4")) for name in categories}
    schema = Schema(patient="patient_id", missing="fill", features=features)
    words = f"Generated federation of the family {family!r}, seed {seed}, to judge tests on. No real patient is in it."
    return Cohort(family, OUTCOME, schema, tuple(made), words)


def _standard(
    family: str, shape: float, even: bool, common: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Draws of the family's law with mean 0 and deviation 1."""
    n = len(common)
    if family == "gamma" and even:
        return np.asarray((rng.gamma(shape, 1.0, n) - shape) / np.sqrt(shape))
    if family == "gamma":
        # Lognormal of the same skewness range: sigma 0.5, mean exp(1/8), variance (e^(1/4) - 1) e^(1/4).
        centre, variance = np.exp(0.125), (np.exp(0.25) - 1) * np.exp(0.25)
        return np.asarray((rng.lognormal(0.0, 0.5, n) - centre) / np.sqrt(variance))
    if family == "heavy":
        return np.asarray(rng.standard_t(3, n) / np.sqrt(3.0))
    if family == "mixture":
        upper = rng.random(n) < 0.3 + 0.02 * rng.standard_normal()
        raw = np.where(upper, 2.0, -0.857) + rng.standard_normal(n)
        return np.asarray(raw / np.sqrt(1 + 0.3 * 0.7 * 2.857**2))
    if family == "correlated":
        return np.asarray(np.sqrt(0.6) * common + np.sqrt(0.4) * rng.standard_normal(n))
    return np.asarray(rng.standard_normal(n))
