"""Generated federations with planted faults, so that what finds faults can be scored against the
truth: Ebola treatment centres in the manner of iFedAvg, and families that are unlike them.

Kinds of fault, families, and where the centres' figures come from: docs/ready-federations.md.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from suture.cohorts import Cohort, CohortSite, Columns, one_of, within
from suture.cohorts.public import split_as_printed
from suture.errors import StudyError
from suture.schema.table import Category, Feature, Flag, Number, Schema

Floats = NDArray[np.float64]
KINDS = (
    "scale", "offset", "unit", "positives_only", "never", "permuted", "recoded", "ticked", "swapped", "flip",
)  # fmt: skip
FAMILIES = ("gamma", "heavy", "mixture", "flags", "correlated")
OUTCOME = "outcome"
LEVEL = 20.0
"""Numbers of `stranger` are around this (deviation near 4): a factor cannot change the sign."""


@dataclass(frozen=True)
class Fault:
    """One fault: where, what, how strong."""

    site: str
    column: str
    kind: str
    strength: float = 1.0
    other: str = ""


def plant(cohort: Cohort, faults: tuple[Fault, ...], seed: int) -> Cohort:
    """A copy of the federation with faults in it, in training and test rows alike."""
    names, columns = {site.name for site in cohort.sites}, {"", *cohort.sites[0].table}
    for fault in faults:
        known = fault.kind in KINDS and fault.site in names
        if not known or not {fault.column, fault.other} <= columns:
            raise StudyError(
                f"cannot plant {fault}: expected a site and a column of {cohort.name!r} and a kind "
                f"of {', '.join(KINDS)}"
            )
    sites = []
    for i, site in enumerate(cohort.sites):
        table, test = dict(site.table), None if site.test is None else dict(site.test)
        for n, fault in enumerate(faults):
            for k, part in enumerate((table, test)):
                if part and fault.site == site.name:
                    rng = np.random.default_rng([seed, 0xFA_17, i, n, k])
                    part |= _changed(part, fault, cohort.outcome, rng)
        sites.append(replace(site, table=table, test=test))
    return replace(cohort, sites=tuple(sites))


def _changed(table: Columns, fault: Fault, outcome: str, rng: np.random.Generator) -> Columns:
    if fault.kind == "swapped":
        return {fault.column: table[fault.other], fault.other: table[fault.column]}
    return {fault.column: _values(table, fault, outcome, rng)}


def _values(table: Columns, fault: Fault, outcome: str, rng: np.random.Generator) -> Floats:
    values = np.asarray(table[fault.column], np.float64)
    if fault.kind == "flip":
        return 1 - table[outcome]
    if fault.kind == "recoded":
        return 1 - values
    if fault.kind == "ticked":
        return np.where(values == 0, np.nan, values)
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
    """A clean federation of one family, of 6 to 16 sites unless ``sites`` says how many."""
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


_FIGURES = tomllib.loads(Path(__file__).with_name("outbreak.toml").read_text("utf-8"))
PROGNOSIS, DIAGNOSIS, SIGNS = (_FIGURES[key] for key in ("prognosis", "diagnosis", "signs"))
FAULTS = {
    "diagnosis": (
        Fault("Foya", "diarrhoea", "positives_only"),
        Fault("Foya", "malaria", "positives_only"),
        Fault("Kalihun", "malaria", "never"),
        Fault("Kalihun", "referral_time", "offset", 1.5),
    ),
    "prognosis": (Fault("Freetown", "ct", "scale", 0.4), Fault("Port-Loko", "ct", "unit", 0.3)),
}
OUTLIER = "Bong"
WORDED_OTHERWISE = {
    kind: tuple(Fault(OUTLIER, sign, kind) for sign in SIGNS if sign != "male")
    for kind in ("recoded", "ticked")
}
MISSING = 0.06
_BOUNDS = {
    "age": Number(low=0, high=95, unit="years", label="Age"),
    "referral_time": Number(
        low=0, high=30, unit="days", label="Days from first symptom to admission"
    ),
    "ct": Number(low=8, high=45, unit="cycles", label="Viral load (Ct value; lower is more virus)"),
}


def _schema(task: str, missing: str) -> Schema:
    numbers = {name: one for name, one in _BOUNDS.items() if name != "ct" or task == "prognosis"}
    flags = {name: Flag(label=name.replace("_", " ").capitalize()) for name in SIGNS}
    schema = Schema(patient="patient_id", groups=("male",), features={**numbers, **flags})
    return schema.model_copy(update={"missing": missing})


def _numbers(
    task: str, y: NDArray[np.int8], own: dict[str, float], rng: np.random.Generator
) -> Columns:
    """Age, referral time and Ct, given the outcome and the centre's own shifts."""
    n, old = len(y), 4.0 if task == "prognosis" else 1.0
    age = rng.normal(31 + old * y + 15 * own["age"], 15, n)
    scale = (1.9 + 0.35 * y * (task == "diagnosis")) * np.exp(0.6 * own["referral_time"])
    time = rng.gamma(2.6, scale, n)
    found = {"age": np.clip(age, 0, 95).round(), "referral_time": np.clip(time, 0, 30)}
    if task == "prognosis":
        found["ct"] = np.clip(rng.normal(27.5 - 5.0 * y + 4.5 * own["ct"], 4.5), 8, 45)
    return found


def _table(
    task: str, name: str, size: tuple[int, float], own: dict[str, float], rng: np.random.Generator
) -> Columns:
    patients, rate = size
    y = np.zeros(patients, np.int8)
    y[: round(patients * rate)] = 1
    rng.shuffle(y)
    table: Columns = {"patient_id": np.array([f"{name}-{i}" for i in range(patients)])}
    table.update(_numbers(task, y, own, rng))
    for sign, shares in SIGNS.items():
        p = np.array(shares[task == "prognosis"])[y]
        logit = np.log(p / (1 - p)) + own[sign]
        table[sign] = (rng.random(patients) < 1 / (1 + np.exp(-logit))).astype(np.float64)
    for column in list(table)[1:]:
        if column != "male":
            table[column] = np.where(rng.random(patients) < MISSING, np.nan, table[column])
    table[OUTCOME] = y
    return table


def outbreak(
    seed: int,
    *,
    task: str = "diagnosis",
    faults: str = "planted",
    flip: str = "",
    variation: float = 0.1,
    missing: str = "indicator",
    test_fraction: float = 0.0,
    split: str = "hash",
) -> Cohort:
    """The treatment centres; ``flip`` names a centre whose outcome is turned round (Figure 19).

    With ``test_fraction`` fresh patients are drawn for testing and everybody printed is trained on;
    with ``split = "paper"`` (and ``test_fraction = 0``) test patients are taken out of those
    printed, as the paper does.
    """
    one_of("outbreak", "task", task, *FAULTS)
    one_of("outbreak", "faults", faults, "planted", *WORDED_OTHERWISE, "none")
    one_of("outbreak", "missing", missing, "indicator", "fill")
    within("outbreak", "test_fraction", test_fraction, 0, 10)
    within("outbreak", "variation", variation, 0)
    centres = PROGNOSIS if task == "prognosis" else DIAGNOSIS
    one_of("outbreak", "flip", flip, "", *centres)
    schema, sites = _schema(task, missing), []
    for i, (name, (patients, rate)) in enumerate(centres.items()):
        rng = np.random.default_rng([seed, 0x0E_B0_1A, task == "prognosis", i])
        own = {column: variation * float(rng.standard_normal()) for column in schema.features}
        table = _table(task, name, (patients, rate), own, rng)
        fresh = round(test_fraction * patients)
        test = _table(task, f"{name}-test", (fresh, rate), own, rng) if fresh else None
        sites.append(CohortSite(name, "generated", table, test))
    planted = FAULTS[task] if faults != "none" else ()
    planted += WORDED_OTHERWISE.get(faults, ())
    if flip:
        planted = (*planted, Fault(flip, OUTCOME, "flip"))
    words = f"Generated Ebola treatment centres in the manner of iFedAvg, {task}; seed {seed}."
    words += " No real patient is in it."
    whole = plant(Cohort("outbreak", OUTCOME, schema, tuple(sites), words), planted, seed)
    return split_as_printed(whole, split, seed)
