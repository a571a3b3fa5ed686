"""The privacy statement: what is promised to a patient, in figures for programs and in words for a
privacy officer.

Every figure in the words comes from `Facts`; epsilons are rounded up where they are printed. JSON
has no infinity, so a study without a finite epsilon says ``null`` and ``protected: false``.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from suture.errors import PrivacyError
from suture.privacy.accounting.accountant import ACCOUNTANTS
from suture.privacy.unit import NEIGHBOURS
from suture.schema.record import Statement

_WORDS: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("statement.toml").read_text("utf-8")
)


@dataclass(frozen=True)
class Facts:
    """What a training promised and spent; ``epsilon`` is what each site's ledger says was spent."""

    delta: float
    accountant: str
    budget: float | None
    clip: float
    batch: int
    epsilon: Mapping[str, float]
    noise_multiplier: Mapping[str, float]
    patients: Mapping[str, int]
    rounds: int
    local_epochs: int
    local_steps: int | None = None
    seeds: int = 1
    generated: bool = False
    simulation: bool = False
    described: bool = False
    together: Mapping[str, float] | None = None
    charters: Mapping[str, str | None] | None = None
    """The signed charter that each site's gate enforced; None where it enforced none."""
    mechanism: str | None = None
    """How a method that does not train by DP-SGD protects what it releases, in words."""
    linked: bool = False
    """Every person takes part at one hospital only."""
    overlap: Mapping[str, float] | None = None
    """The noisy number of people who attend several hospitals, where it was asked for and paid."""
    shown_layers: bool = False
    """Sites also show layers of their own, which the same charges paid for."""
    proof: str | None = None
    """What the figures rest on, where it is not the accountant itself (`proof_of`)."""
    sums: Literal["trusted", "masked"] | None = None
    """How the secure sum that the promise needs was computed; None: the promise needs none."""

    def __post_init__(self) -> None:
        if self.accountant not in ACCOUNTANTS or not self.epsilon:
            raise PrivacyError(
                f"expected an accountant of {ACCOUNTANTS} and at least one site, found "
                f"{self.accountant!r}"
            )
        sites = set(self.epsilon)
        if sites != set(self.noise_multiplier) or not sites <= set(self.patients):
            raise PrivacyError(
                "expected epsilon, noise multiplier and number of patients for the same sites"
            )

    @property
    def worst(self) -> str:
        """The site that spent most."""
        return max(self.epsilon, key=lambda site: self.epsilon[site])


def statement(facts: Facts) -> Statement:
    """The privacy block of a result.

    >>> block = statement(Facts(delta=1e-5, accountant="pld", budget=8.0, clip=1.0, batch=32, epsilon={"a": 7.9991},
    ...     noise_multiplier={"a": 1.1}, patients={"a": 500}, rounds=10, local_epochs=1))
    >>> block["protected"], block["epsilon"], block["statement"].split(". ")[0]
    (True, 7.9991, 'The unit of privacy is the patient, with all of their rows')
    """
    f, epsilon = facts, facts.epsilon[facts.worst]
    if not math.isfinite(epsilon):
        return {**no_privacy_statement(sites=list(f.epsilon)), "budget": f.budget}
    source = "site secret from the operating system"
    if f.generated or f.simulation:
        patients = "generated patients" if f.generated else "real patients, not for release"
        source = f"seeded: simulation on {patients}"
    not_covered = [_WORDS["exact_metrics"], *([_WORDS["description"]] if f.described else [])]
    not_covered += _WORDS["not_covered"]
    words = [
        _unit_words(f),
        _epsilon_words(f),
        f.mechanism or _mechanism_words(f),
        _WORDS["sums"][f.sums] if f.sums else "",
        _WORDS["shown_layers"] if f.shown_layers else "",
        *_caution_words(epsilon, f.delta, {site: f.patients[site] for site in f.epsilon}),
        _runs_words(f),
        people_words(f.linked, f.overlap) if len(f.epsilon) > 1 else "",
        _together_words(f.together),
        _charter_words(f.charters or {}),
        "Taken as public: " + "; ".join(_WORDS["public"]) + ".",
        "Not covered: " + "; ".join(not_covered) + ".",
    ]
    return {
        "protected": True,
        "unit": "patient",
        "neighbours": NEIGHBOURS,
        "sampling": _WORDS["sampling" if f.mechanism is None else "no_sampling"],
        "accountant": f.proof or f.accountant,
        "delta": f.delta,
        "epsilon": epsilon,
        "sites": dict(f.epsilon),
        "together": dict(f.together) if f.together else None,
        "charters": dict(f.charters) if f.charters else None,
        "noise_multiplier": dict(f.noise_multiplier),
        "budget": f.budget,
        "clip": f.clip,
        "noise_source": source,
        "public": list(_WORDS["public"]),
        "not_covered": not_covered,
        "statement": "\n\n".join(text for text in words if text),
    }


def no_privacy_statement(*, sites: Sequence[str] = ()) -> Statement:
    """The block of a study without [privacy]: the same keys, and no doubt left."""
    everything = "everything: the model, the updates, the metrics and the cohort description"
    keys = [key for key in Statement.__annotations__ if key != "patients"]  # a figure of runs alone
    return cast(
        Statement,
        {
            **dict.fromkeys(keys),
            "protected": False,
            "sites": dict.fromkeys(sites),
            "noise_multiplier": dict.fromkeys(sites),
            "public": [],
            "not_covered": [everything],
            "statement": _WORDS["nothing"],
        },
    )


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


def _unit_words(f: Facts) -> str:
    whom = _WORDS["sums_only" if f.sums else "everyone"]
    kind = "generated" if f.generated else "simulated" if f.simulation else ""
    unit: str = _WORDS["unit"].format(neighbours=NEIGHBOURS, whom=whom)
    return unit + (_WORDS[kind] if kind else "")


def _epsilon_words(f: Facts) -> str:
    ordered = sorted(f.epsilon.items(), key=lambda item: -item[1])
    each = ", ".join(f"{site} {round_up(value)}" for site, value in ordered)
    proof, most = _WORDS["accountants"][f.proof or f.accountant], round_up(f.epsilon[f.worst])
    bounded = f.budget is not None and math.isfinite(f.budget)
    words: str = _WORDS["epsilon"] + _WORDS["budget" if bounded else "no_budget"]
    return words.format(
        proof=proof, delta=f.delta, most=most, worst=f.worst, each=each, budget=f.budget
    )


def _mechanism_words(f: Facts) -> str:
    low, high = min(f.noise_multiplier.values()), max(f.noise_multiplier.values())
    most = "" if f.local_steps is None else f", at most {f.local_steps} steps"
    noise = f"{low:g}" if low == high else f"{low:g} to {high:g}, by hospital,"
    words: str = _WORDS["mechanism"]
    return words.format(
        rounds=f.rounds, epochs=f.local_epochs, steps=most, batch=f.batch, clip=f.clip, noise=noise
    )


def _caution_words(worst: float, delta: float, patients: Mapping[str, int]) -> list[str]:
    words = _WORDS["meaning"].format(worst=round_up(worst), factor=_factor(worst), delta=delta)
    words += _WORDS["weak"] if worst > 10 else ""
    crowded = {site: count for site, count in patients.items() if delta * count >= 0.1}
    if not crowded:
        return [words]
    sites, most = ", ".join(crowded), max(crowded.values())
    return [words, _WORDS["large_delta"].format(delta=delta, sites=sites, most=most)]


def _factor(epsilon: float) -> str:
    if epsilon > 700:
        return ""
    factor = math.exp(epsilon)
    if factor < 1000:
        return f" = {round_up(factor)}"
    power = math.floor(math.log10(factor))
    return f" = {math.ceil(factor / 10.0**power * 10) / 10:g}e{power}"


def _together_words(together: Mapping[str, float] | None) -> str:
    """For methods compared on the same patients: whoever sees them all sees more."""
    if not together:
        return ""
    worst = max(together, key=lambda site: together[site])
    words: str = _WORDS["together"]
    return words.format(most=round_up(together[worst]), worst=worst)


def _charter_words(charters: Mapping[str, str | None]) -> str:
    enforced = ", ".join(f"{site} ({charter})" for site, charter in charters.items() if charter)
    without = ", ".join(site for site, charter in charters.items() if not charter)
    words = [f"Each site's gate enforced its signed charter at: {enforced}."] if enforced else []
    return " ".join([*words, *([f"No charter was enforced at: {without}."] if without else [])])


def people_words(linked: bool, overlap: Mapping[str, float] | None) -> str:
    """What the promise covers for a person who attends several hospitals."""
    found = "" if linked else _WORDS["nobody_counted"]
    if overlap is not None:
        found = _WORDS["overlap"].format(people=max(0, int(overlap["people"])))
    words: str = _WORDS["linked" if linked else "not_linked"]
    return words.format(found=found)


def _runs_words(f: Facts) -> str:
    words: str = _WORDS["seeds_apart" if f.generated or f.simulation else "seeds_together"]
    return words.format(seeds=f.seeds) if f.seeds > 1 else ""
