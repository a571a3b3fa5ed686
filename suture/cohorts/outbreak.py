"""Generated Ebola treatment centres in the manner of iFedAvg: sizes and rates of its Tables 7 and 8.

The real data (Ebola Data Platform) are not public. *Paper* below: printed there. *Chosen*: ours,
round figures in the range that published triage and prognosis scores describe (Hartley et al.
2017), not fitted to anything.

- Sizes and rates: *paper*, Table 7 (prognosis: deaths among confirmed patients) and Table 8
  (diagnosis: confirmed among suspects), row by row. Every centre has exactly its printed number of
  training patients with the outcome, rounded.
- Symptoms, age, sex, contact, malaria, referral time, Ct value (prognosis): *chosen*, see `SIGNS`
  and `_numbers`. Given the outcome they are drawn independently, so only the outcome ties them.
- Variation: every centre has its own small shift of each symptom's log-odds and of each number's
  mean (`variation`, in logits and standard deviations), in the clean twin too.
- Missing at random: 6 % of every column, everywhere. *Chosen*.
- Faults (`faults = "planted"`), after the paper's examples; the clean twin (`"none"`) has the same
  patients without them:
    diagnosis: Foya records diarrhoea and malaria for confirmed patients only (Figures 4, 17);
    Kalihun never records malaria (Figure 17) and its referral times are longer (Figure 16).
    prognosis: Freetown's Ct values are more concentrated (Figure 3); Port-Loko gives viral load on
    another scale.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from suture.cohorts.cohort import Cohort, CohortSite, Columns, one_of, within
from suture.cohorts.faults import Fault, plant
from suture.cohorts.public import split_as_printed
from suture.schema.table import Flag, Number, Schema

PROGNOSIS = {
    "Guéckédou": (1366, 0.6698), "Monrovia": (1154, 0.5685), "Kalihun": (852, 0.4437),
    "Donka (EJPDEJ)": (748, 0.4987), "Foya": (450, 0.66), "Bo": (440, 0.3863), "Donka (EFFVXT)": (418, 0.378),
    "Kerry-Town": (263, 0.4259), "Port-Loko": (181, 0.6575), "Makeni": (176, 0.5682), "Bong": (168, 0.5),
    "Freetown": (166, 0.5),
}  # fmt: skip
"""Table 7: patients and mortality."""
DIAGNOSIS = {
    "Donka": (1975, 0.3787), "Guéckédou": (1517, 0.9005), "Kalihun": (1173, 0.7263), "Makeni": (848, 0.2075),
    "Foya": (564, 0.7979), "Bong": (529, 0.3176), "Bo": (519, 0.8478), "Port-Loko": (477, 0.3795),
    "Kerry-Town": (275, 0.9564), "Kambia": (217, 0.2166), "Magburaka": (155, 0.2903), "Nzérékoré": (137, 0.5766),
}  # fmt: skip
"""Table 8: patients and positivity."""

SIGNS = {
    "fever": ((0.55, 0.85), (0.80, 0.85)), "fatigue": ((0.60, 0.85), (0.75, 0.88)),
    "headache": ((0.60, 0.62), (0.64, 0.58)), "muscle_pain": ((0.45, 0.60), (0.55, 0.60)),
    "vomiting": ((0.40, 0.62), (0.55, 0.64)), "diarrhoea": ((0.30, 0.60), (0.50, 0.70)),
    "bleeding": ((0.05, 0.16), (0.08, 0.24)), "cough": ((0.40, 0.28), (0.30, 0.28)),
    "swallowing": ((0.12, 0.30), (0.22, 0.36)), "conjunctivitis": ((0.10, 0.32), (0.26, 0.36)),
    "hiccups": ((0.04, 0.14), (0.08, 0.22)), "confusion": ((0.04, 0.10), (0.04, 0.18)),
    "contact": ((0.25, 0.60), (0.55, 0.55)), "malaria": ((0.35, 0.18), (0.18, 0.20)), "male": ((0.52, 0.49), (0.49, 0.49)),
}  # fmt: skip
"""Share of patients with each sign, without and with the outcome: for diagnosis, for prognosis."""

FAULTS = {
    "diagnosis": (
        Fault("Foya", "diarrhoea", "positives_only"),
        Fault("Foya", "malaria", "positives_only"),
        Fault("Kalihun", "malaria", "never"),
        Fault("Kalihun", "referral_time", "offset", 1.5),
    ),
    "prognosis": (Fault("Freetown", "ct", "scale", 0.4), Fault("Port-Loko", "ct", "unit", 0.3)),
}
MISSING = 0.06
OUTCOME = "outcome"
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
    """Age, referral time and Ct, given the outcome and the centre's own shifts (in standard
    deviations)."""
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

    >>> [(site.name, len(site.table["age"])) for site in outbreak(1).sites][:2]
    [('Donka', 1975), ('Guéckédou', 1517)]
    """
    one_of("outbreak", "task", task, *FAULTS)
    one_of("outbreak", "faults", faults, "planted", "none")
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
    planted = FAULTS[task] if faults == "planted" else ()
    if flip:
        planted = (*planted, Fault(flip, OUTCOME, "flip"))
    words = f"Generated Ebola treatment centres in the manner of iFedAvg, {task}; seed {seed}."
    words += " No real patient is in it."
    whole = plant(Cohort("outbreak", OUTCOME, schema, tuple(sites), words), planted, seed)
    return split_as_printed(whole, split, seed)
