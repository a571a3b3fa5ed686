"""Faults to plant in generated federations, and clean federations to plant them in, so that what
finds faults can be scored against the truth.

| kind | what happens to one column at one site |
|---|---|
| `scale` | the recorded values spread around their own mean by the factor ``strength`` |
| `offset` | ``strength`` standard deviations are added |
| `unit` | every value is multiplied by ``strength`` (mg/dL to mmol/L of cholesterol: 1/38.67) |
| `positives_only` | the share ``strength`` of the values of rows without the outcome is lost |
| `never` | the share ``strength`` of all values is lost |
| `permuted` | the share ``strength`` of the values is shuffled among the site's rows |
| `flip` | the outcome is turned round (the column is the outcome) |

The tolerances of `interop.evidence` were chosen while looking at `outbreak`, so a score on `outbreak`
alone would flatter them. The families of `stranger` differ from it in what a test on means and
spreads could stumble over:

| family | columns |
|---|---|
| `gamma` | skewed: gamma of shape 0.8 to 3, and lognormal |
| `heavy` | Student's t with 3 degrees of freedom: the fourth moment does not exist |
| `mixture` | two humps, at shares that differ a little from site to site |
| `flags` | yes/no columns from 2 % to 50 %, and categories of five values |
| `correlated` | normal columns that share one factor (correlation 0.6) |

Their sites differ from each other by sampling, by prevalence (15 % to 85 %), by size (60 to 2,500
patients), by a shift of each column's mean of 0.1 standard deviations (as a standard deviation over
sites), of its spread by 5 %, of each share's log-odds by 0.15 and of the share recorded by 1 %. All
of that lies within the tolerances. All figures are chosen, none is fitted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from suture.cohorts.cohort import Cohort, CohortSite, Columns
from suture.errors import StudyError
from suture.schema.table import Category, Feature, Flag, Number, Schema

Floats = NDArray[np.float64]
KINDS = ("scale", "offset", "unit", "positives_only", "never", "permuted", "flip")
FAMILIES = ("gamma", "heavy", "mixture", "flags", "correlated")
OUTCOME = "outcome"
LEVEL = 20.0
"""Numbers of `stranger` are around this, with a deviation near 4, so that a factor is a change of
unit and not of sign."""


@dataclass(frozen=True)
class Fault:
    """One fault: where, what, how strong."""

    site: str
    column: str
    kind: str
    strength: float = 1.0


def plant(cohort: Cohort, faults: tuple[Fault, ...], seed: int) -> Cohort:
    """A copy of the federation with faults in it, in training and test rows alike.

    >>> from suture.cohorts.cardio import cardio
    >>> clean = cardio(1, patients=300)
    >>> ill = plant(clean, (Fault("geriatric", "cholesterol", "unit", 1 / 38.67),), 1)
    >>> bool(ill.sites[4].table["cholesterol"].max() < 10 < clean.sites[4].table["cholesterol"].min())
    True
    """
    for fault in faults:
        if fault.kind not in KINDS or fault.site not in {site.name for site in cohort.sites}:
            raise StudyError(
                f"cannot plant {fault}: expected a site of {cohort.name!r} and a kind of "
                f"{', '.join(KINDS)}"
            )
    sites = []
    for i, site in enumerate(cohort.sites):
        table, test = dict(site.table), None if site.test is None else dict(site.test)
        for n, fault in enumerate(faults):
            for k, part in enumerate((table, test)):
                if part and fault.site == site.name:
                    rng = np.random.default_rng([seed, 0xFA_17, i, n, k])
                    part[fault.column] = _changed(part, fault, cohort.outcome, rng)
        sites.append(replace(site, table=table, test=test))
    return replace(cohort, sites=tuple(sites))


def _changed(table: Columns, fault: Fault, outcome: str, rng: np.random.Generator) -> Floats:
    if fault.column not in table:
        raise StudyError(f"cannot plant {fault}: there is no column {fault.column!r}")
    values = np.asarray(table[fault.column], np.float64)
    if fault.kind == "flip":
        return 1 - table[outcome]
    if fault.kind == "unit":
        return values * fault.strength
    if fault.kind == "offset":
        return values + fault.strength * float(np.nanstd(values))
    if fault.kind == "scale":
        centre = float(np.nanmean(values))
        return centre + (values - centre) * fault.strength
    chosen = rng.random(len(values)) < fault.strength
    if fault.kind == "permuted":
        values = values.copy()
        values[chosen] = rng.permutation(values[chosen])
        return values
    if fault.kind == "positives_only":
        chosen &= np.asarray(table[outcome]) == 0
    return np.where(chosen, np.nan, values)


def stranger(seed: int, family: str, *, sites: int = 0) -> Cohort:
    """A clean federation of one family, of 6 to 16 sites unless ``sites`` says how many.

    >>> made = stranger(1, "gamma", sites=6)
    >>> len(made.sites), made.name, min(len(site.table["outcome"]) for site in made.sites) >= 60
    (6, 'gamma', True)
    """
    if family not in FAMILIES:
        raise StudyError(f"there is no family {family!r}; expected one of {', '.join(FAMILIES)}")
    rng = np.random.default_rng([seed, 0x57_A6, FAMILIES.index(family)])
    count = sites or int(rng.integers(6, 17))
    many = family == "flags"
    numbers = [f"number {i}" for i in range(3 if many else 9)]
    flags = [f"flag {i}" for i in range(12 if many else 4)]
    categories = [f"category {i}" for i in range(2 if many else 1)]
    tied = {name: float(rng.uniform(-0.9, 0.9)) for name in [*numbers, *flags]}
    tied["number 0"], tied["flag 0"] = 0.9, 0.9
    shape = {name: float(rng.uniform(0.8, 3.0)) for name in numbers}
    rarest = np.log(0.02 if many else 0.1)
    share = {name: float(np.exp(rng.uniform(rarest, np.log(0.5)))) for name in flags}
    share["flag 0"] = 0.35
    made = []
    for i in range(count):
        patients = int(np.exp(rng.uniform(np.log(60), np.log(2500))))
        y = (rng.random(patients) < rng.uniform(0.15, 0.85)).astype(np.int8)
        y[:20], y[20:40] = 0, 1  # both classes can be compared at the smallest site too
        common = rng.standard_normal(patients)
        table: Columns = {"patient_id": np.array([f"{i}-{k}" for k in range(patients)])}
        for name in numbers:
            noise = _standard(family, shape[name], int(name[-1]) % 2 == 0, common, rng)
            own = 0.1 * rng.standard_normal(), float(np.exp(0.05 * rng.standard_normal()))
            table[name] = LEVEL + 4.0 * (own[0] + own[1] * noise + tied[name] * y)
        for name in flags:
            odds = np.log(share[name] / (1 - share[name])) + 0.15 * rng.standard_normal()
            p = 1 / (1 + np.exp(-(odds + tied[name] * y)))
            table[name] = (rng.random(patients) < p).astype(np.float64)
        for name in categories:
            weights = np.array([0.4, 0.25, 0.2, 0.1, 0.05]) * np.exp(0.1 * rng.standard_normal(5))
            table[name] = rng.choice(5, patients, p=weights / weights.sum()).astype(np.float64)
        for name in list(table)[1:]:
            lost = float(np.clip(0.06 + 0.01 * rng.standard_normal(), 0, 1))
            table[name] = np.where(rng.random(patients) < lost, np.nan, table[name])
        made.append(CohortSite(f"site {i:02d}", "generated", {**table, OUTCOME: y}))
    features: dict[str, Feature] = {name: Number(low=-40, high=80) for name in numbers}
    features |= {name: Flag() for name in flags}
    features |= {name: Category(values=("0", "1", "2", "3", "4")) for name in categories}
    schema = Schema(patient="patient_id", missing="fill", features=features)
    words = f"Generated federation of the family {family!r}, seed {seed}. No real patient is in it."
    return Cohort(family, OUTCOME, schema, tuple(made), words)


def _standard(
    family: str, shape: float, even: bool, common: Floats, rng: np.random.Generator
) -> Floats:
    """Draws of the family's law with mean 0 and deviation 1."""
    n = len(common)
    if family == "gamma" and even:
        return np.asarray((rng.gamma(shape, 1.0, n) - shape) / np.sqrt(shape))
    if family == "gamma":
        # Lognormal of the same skewness range: sigma 0.5, mean exp(1/8), variance (e^(1/4) - 1)
        # e^(1/4).
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
