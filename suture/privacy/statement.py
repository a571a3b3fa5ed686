"""The privacy statement: what is promised to a patient, in figures for programs and in words for a privacy officer.

Every figure in the words comes from the arguments; epsilons are rounded up where they are printed. JSON has no
infinity, so a study without a finite epsilon says ``null`` and ``protected: false``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from suture.errors import PrivacyError
from suture.privacy.accountant import ACCOUNTANTS
from suture.privacy.unit import NEIGHBOURS

_NAMES = {
    "pld": "privacy loss distributions (PLD)",
    "rdp": "Renyi differential privacy (RDP)",
    "basic": "basic composition",
}
_SAMPLING = "Poisson, by patient: each patient takes part in a step with probability batch/patients, on their own"
_OPERATING_SYSTEM = "site secret from the operating system"
_SEEDED = "seeded: simulation on generated patients"
_PUBLIC = [
    "the number of training patients at each site (sampling rate and number of steps follow from it; it is held fixed when "
    "tables with and without a patient are compared)",
    "the declared bounds, categories and units of the features (they scale values; nothing is fitted on rows)",
    "the schema: names and kinds of columns, the outcome, the groups",
    "the study's settings: model, method, rounds, batch, clip, noise multiplier, budget",
    "the participation schedule: which sites take part in which rounds",
]
_NOT_COVERED = [
    "a choice of settings, features or seeds made by someone who looked at patients' data, or at earlier results on "
    "them",
    "side channels: the time a step takes, memory, network traffic, logs of the operating system",
    "floating point: noise is drawn from a cryptographic generator but added in floating point, whose rounding is "
    "known to "
    "leak more than the theorem allows to an attacker who sees the exact bits",
    "what is learned about a patient without their record, for instance from the pattern that the model finds in "
    "others",
    "what a site does with its own rows inside its own walls, a ledger that is deleted or moved away included",
    "a person who is a patient of several hospitals: each hospital keeps its promise, and the costs add up",
]
_EXACT_METRICS = (
    "metrics in this result (accuracy, AUC and the like, overall, per site and per group), and the warnings about data "
    "quality: they are computed exactly, without noise, and carry no guarantee"
)
_DESCRIPTION = (
    "the cohort description (histograms, box plots, prevalence, counts): exact, without noise, and not in the budget"
)


SHOWN_LAYERS = (
    "Each hospital's own layers, which are shown beside the model, were clipped and noised together with the network, as one "
    "gradient a patient: the epsilon above covers both, and showing the layers cost nothing more."
)


def statement(
    *,
    delta: float,
    accountant: str,
    budget: float | None,
    clip: float,
    batch: int,
    epsilon: Mapping[str, float],
    noise_multiplier: Mapping[str, float],
    patients: Mapping[str, int],
    rounds: int,
    local_epochs: int,
    local_steps: int | None = None,
    seeds: int = 1,
    generated: bool = False,
    described: bool = False,
    together: Mapping[str, float] | None = None,
    charters: Mapping[str, str | None] | None = None,
    mechanism: str | None = None,
    shown_layers: bool = False,
) -> dict[str, Any]:
    """The privacy block of a result. ``epsilon`` is what each site's ledger says was spent.

    ``charters`` names the signed charter that each site's gate enforced, None where it enforced none. ``mechanism`` says
    in words how a method that does not train by DP-SGD protects what it releases. ``shown_layers``: sites also show the
    layers of their own (iFedAvg), which the same charges paid for.

    >>> block = statement(delta=1e-5, accountant="pld", budget=8.0, clip=1.0, batch=32, epsilon={"a": 7.9991, "b": 6.0},
    ...     noise_multiplier={"a": 1.1, "b": 0.9}, patients={"a": 500, "b": 900}, rounds=10, local_epochs=1)
    >>> block["protected"], block["epsilon"], block["sites"]["b"]
    (True, 7.9991, 6.0)
    >>> block["statement"].split(". ")[0]
    'The unit of privacy is the patient, with all of their rows'
    """
    if accountant not in ACCOUNTANTS or not epsilon:
        raise PrivacyError(f"expected an accountant of {ACCOUNTANTS} and at least one site, found {accountant!r}")
    if set(epsilon) != set(noise_multiplier) or not set(epsilon) <= set(patients):
        raise PrivacyError("expected epsilon, noise multiplier and number of patients for the same sites")
    worst = max(epsilon, key=lambda site: epsilon[site])
    if not math.isfinite(epsilon[worst]):
        return {**no_privacy_statement(sites=list(epsilon)), "budget": budget}
    words = [
        _unit_words(generated),
        _epsilon_words(epsilon, worst, delta, accountant, budget),
        mechanism or _mechanism_words(noise_multiplier, clip, batch, rounds, local_epochs, local_steps),
        SHOWN_LAYERS if shown_layers else "",
        *_caution_words(epsilon[worst], delta, {site: patients[site] for site in epsilon}),
        _runs_words(seeds, generated),
        _together_words(together),
        _charter_words(charters),
    ]
    not_covered = [_EXACT_METRICS, *([_DESCRIPTION] if described else []), *_NOT_COVERED]
    return {
        "protected": True,
        "unit": "patient",
        "neighbours": NEIGHBOURS,
        "sampling": _SAMPLING if mechanism is None else "none: every patient takes part in every release",
        "accountant": accountant,
        "delta": delta,
        "epsilon": epsilon[worst],
        "sites": dict(epsilon),
        "together": dict(together) if together else None,
        "charters": dict(charters) if charters else None,
        "noise_multiplier": dict(noise_multiplier),
        "budget": budget,
        "clip": clip,
        "noise_source": _SEEDED if generated else _OPERATING_SYSTEM,
        "public": list(_PUBLIC),
        "not_covered": not_covered,
        "statement": "\n\n".join(
            [
                *(text for text in words if text),
                "Taken as public: " + "; ".join(_PUBLIC) + ".",
                "Not covered: " + "; ".join(not_covered) + ".",
            ]
        ),
    }


def no_privacy_statement(*, sites: Sequence[str] = ()) -> dict[str, Any]:
    """The block of a study without [privacy]: the same keys, and no doubt left.

    >>> no_privacy_statement()["statement"].split(":")[0]
    'NO DIFFERENTIAL PRIVACY'
    """
    nothing: dict[str, float | None] = dict.fromkeys(sites)
    return {
        "protected": False,
        "unit": None,
        "neighbours": None,
        "sampling": None,
        "accountant": None,
        "delta": None,
        "epsilon": None,
        "sites": nothing,
        "together": None,
        "charters": None,
        "noise_multiplier": dict(nothing),
        "budget": None,
        "clip": None,
        "noise_source": None,
        "public": [],
        "not_covered": ["everything: the model, the updates, the metrics and the cohort description"],
        "statement": (
            "NO DIFFERENTIAL PRIVACY: this study has no [privacy] section, so nothing is promised to any patient. "
            "Records stayed "
            "at their sites, but the model updates and the final model were computed from them without clipping and "
            "without "
            "noise, and may reveal who took part and what their records say. Epsilon is infinite. Do not share the "
            "model or "
            "this result beyond those who may see the records themselves. To protect patients, add [privacy] with "
            "unit, "
            "epsilon, delta, accountant and clip to the study file, and run it again."
        ),
    }


def round_up(value: float, digits: int = 2) -> str:
    """A figure for print, never smaller than the value.

    >>> round_up(7.991), round_up(0.0004), round_up(29.9), round_up(8.0)
    ('8', '0.0004', '29.9', '8')
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "infinity"
    # Two decimals, or two significant figures for what is smaller than that.
    decimals = max(digits, 1 - math.floor(math.log10(abs(value))))
    scale = 10.0**decimals
    return f"{math.ceil(value * scale * (1 - 1e-13)) / scale:.{decimals}f}".rstrip("0").rstrip(".")


def _unit_words(generated: bool) -> str:
    words = (
        "The unit of privacy is the patient, with all of their rows. Two tables are neighbours when one can be had "
        "from the "
        f"other by this: {NEIGHBOURS}. The promise of each hospital holds against anyone who sees everything it sent "
        f"(the server, "
        "the other hospitals, whoever receives the final model), whatever else they know."
    )
    if generated:
        words += (
            " The patients of this run were generated by a program. The noise is derived from the study's seed so "
            "that the run "
            "can be repeated: the figures say what would be promised if these were real patients and the noise "
            "secret."
        )
    return words


def _epsilon_words(
    epsilon: Mapping[str, float], worst: str, delta: float, accountant: str, budget: float | None
) -> str:
    each = ", ".join(f"{site} {round_up(value)}" for site, value in sorted(epsilon.items(), key=lambda item: -item[1]))
    words = (
        f"Proven by {_NAMES[accountant]}, at delta = {delta:g}: epsilon is at most {round_up(epsilon[worst])}, at "
        f"{worst}, the "
        f"hospital that spent most. By hospital: {each}. Figures are rounded up."
    )
    if budget is not None and math.isfinite(budget):
        words += (
            f" The budget of each hospital was epsilon {budget:g}, fixed before any row was read; each charged its "
            f"ledger before "
            "an update left, and a charge beyond the budget stops training."
        )
    else:
        words += " The noise was fixed before any row was read; each hospital charged its ledger before an update left."
    return words


def _mechanism_words(
    noise_multiplier: Mapping[str, float],
    clip: float,
    batch: int,
    rounds: int,
    local_epochs: int,
    local_steps: int | None = None,
) -> str:
    low, high = min(noise_multiplier.values()), max(noise_multiplier.values())
    work = f"{local_epochs} local epochs" + ("" if local_steps is None else f", at most {local_steps} steps")
    noise = f"{low:g}" if low == high else f"{low:g} to {high:g}, by hospital,"
    return (
        f"Training ran {rounds} rounds of {work}. In each step every patient is drawn on their "
        f"own with "
        f"probability {batch}/(number of training patients); the gradients of a patient's rows are added up and "
        f"clipped to norm "
        f"{clip:g}; Gaussian noise of standard deviation {noise} times that norm is added to the sum. Accounting is "
        f"for exactly "
        "this: Poisson sampling and as many steps as were taken."
    )


def _caution_words(worst: float, delta: float, patients: Mapping[str, int]) -> list[str]:
    words = (
        f"What it means: seeing the model can multiply anyone's odds that a certain patient took part by at most "
        f"e^{round_up(worst)}"
        f"{_factor(worst)}, except with a probability of about {delta:g}."
    )
    if worst > 10:
        words += " An epsilon above 10 is a weak promise: proven, but not one to rely on alone."
    found = [words]
    crowded = [site for site, count in patients.items() if delta * count >= 0.1]
    if crowded:
        found.append(
            f"Delta = {delta:g} is not small for {', '.join(crowded)}: it should be well under one in the number of "
            f"patients "
            f"({max(patients[site] for site in crowded)} at most)."
        )
    return found


def _factor(epsilon: float) -> str:
    if epsilon > 700:
        return ""
    factor = math.exp(epsilon)
    return f" = {round_up(factor)}" if factor < 1000 else f" = {_scientific(factor)}"


def _scientific(value: float) -> str:
    power = math.floor(math.log10(value))
    return f"{math.ceil(value / 10.0**power * 10) / 10:g}e{power}"


def _together_words(together: Mapping[str, float] | None) -> str:
    """Methods compared on the same patients: each keeps its promise, and whoever sees them all sees more."""
    if not together:
        return ""
    worst = max(together, key=lambda site: together[site])
    return (
        "Several methods were compared on the same patients. The promise above is this method's; against anyone who sees "
        f"what all of them sent, the proven epsilon is {round_up(together[worst])}, at {worst}."
    )


def _charter_words(charters: Mapping[str, str | None] | None) -> str:
    if not charters:
        return ""
    enforced = [f"{site} ({charter})" for site, charter in charters.items() if charter]
    without = [site for site, charter in charters.items() if not charter]
    words = f"Each site's gate enforced its signed charter at: {', '.join(enforced)}." if enforced else ""
    return " ".join(filter(None, [words, f"No charter was enforced at: {', '.join(without)}." if without else ""]))


def _runs_words(seeds: int, generated: bool) -> str:
    if seeds <= 1:
        return ""
    if generated:
        return f"The study was run with {seeds} seeds, each accounted on its own: the epsilon is the dearest run's."
    return f"The study was run with {seeds} seeds on the same patients: the epsilon covers all {seeds} runs together."
