"""Faults to plant in a generated federation, so that what finds them can be scored against the truth.

| kind | what happens to one column at one site |
|---|---|
| `scale` | the recorded values spread around their own mean by the factor ``strength`` |
| `offset` | ``strength`` standard deviations are added |
| `unit` | every value is multiplied by ``strength`` (mg/dL to mmol/L of cholesterol: 1/38.67) |
| `positives_only` | the share ``strength`` of the values of rows without the outcome is lost |
| `never` | the share ``strength`` of all values is lost |
| `permuted` | the share ``strength`` of the values is dealt out anew among the site's rows |
| `flip` | the outcome is turned round (the column is the outcome) |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture.cohorts.cohort import Cohort
from suture.errors import StudyError

KINDS = ("scale", "offset", "unit", "positives_only", "never", "permuted", "flip")
Table = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Fault:
    """One fault: where, what, how strong."""

    site: str
    column: str
    kind: str
    strength: float = 1.0


def plant(cohort: Cohort, faults: tuple[Fault, ...], seed: int) -> Cohort:
    """The federation with faults in it, in training and test rows alike; the original is left as it was.

    >>> from suture.cohorts.cardio import cardio
    >>> clean = cardio(1, patients=300)
    >>> ill = plant(clean, (Fault("geriatric", "cholesterol", "unit", 1 / 38.67),), 1)
    >>> bool(ill.sites[4].table["cholesterol"].max() < 10 < clean.sites[4].table["cholesterol"].min())
    True
    """
    for fault in faults:
        if fault.kind not in KINDS or fault.site not in {site.name for site in cohort.sites}:
            raise StudyError(
                f"cannot plant {fault}: expected a site of {cohort.name!r} and a kind of {', '.join(KINDS)}"
            )
    sites = []
    for i, site in enumerate(cohort.sites):
        table, test = dict(site.table), None if site.test is None else dict(site.test)
        for n, fault in enumerate(faults):
            if fault.site == site.name:
                for k, part in enumerate((table, test)):
                    if part:
                        rng = np.random.default_rng([seed, 0xFA_17, i, n, k])
                        part[fault.column] = _changed(part, fault, cohort.outcome, rng)
        sites.append(replace(site, table=table, test=test))
    return replace(cohort, sites=tuple(sites))


def _changed(table: Table, fault: Fault, outcome: str, rng: np.random.Generator) -> NDArray[Any]:
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
