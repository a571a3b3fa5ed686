"""Ready federations. Each file says where every figure in it comes from."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from suture.cohorts.cardio import cardio
from suture.cohorts.cohort import Cohort, CohortSite
from suture.cohorts.icu import icu
from suture.cohorts.outbreak import outbreak
from suture.cohorts.public import eicu, har, heart, pneumonia, vsn
from suture.cohorts.radiographs import radiographs
from suture.errors import StudyError

__all__ = [
    "COHORTS",
    "Cohort",
    "CohortSite",
    "cardio",
    "eicu",
    "har",
    "heart",
    "icu",
    "load",
    "outbreak",
    "pneumonia",
    "radiographs",
    "takes",
    "vsn",
]

COHORTS: dict[str, Callable[..., Cohort]] = {
    "cardio": cardio,
    "icu": icu,
    "eicu": eicu,
    "outbreak": outbreak,
    "heart": heart,
    "har": har,
    "vsn": vsn,
    "radiographs": radiographs,
    "pneumonia": pneumonia,
}
"""The built-in federations by the name a study file uses."""


def takes(name: str, option: str) -> bool:
    """Whether a federation has this option; False also for a federation that is not known.

    >>> takes("cardio", "test_fraction"), takes("cardio", "colour")
    (True, False)
    """
    return name in COHORTS and option in inspect.signature(COHORTS[name]).parameters


def load(name: str, seed: int, **options: Any) -> Cohort:
    """Build a federation by name.

    >>> load("cardio", 7, patients=300).name
    'cardio'
    >>> load("cardio", 7, patient=300)
    Traceback (most recent call last):
    suture.errors.StudyError: cohort 'cardio' has no option 'patient'; it takes split, patients, sites, test_fraction
    """
    if name not in COHORTS:
        raise StudyError(
            f"cohort {name!r} is not known; expected one of: {', '.join(sorted(COHORTS))}"
        )
    known = inspect.signature(COHORTS[name]).parameters
    kinds = {option: parameter for option, parameter in known.items() if option != "seed"}
    for option, value in options.items():
        if option not in kinds:
            raise StudyError(
                f"cohort {name!r} has no option {option!r}; it takes {', '.join(kinds)}"
            )
        # An option of the wrong type would otherwise surface as a TypeError deep in the generator.
        wanted = type(kinds[option].default)
        if isinstance(value, bool) or not isinstance(
            value, (int, float) if wanted is float else wanted
        ):
            example = f'"{kinds[option].default}"' if wanted is str else kinds[option].default
            raise StudyError(f"cohort {name!r}: {option} must look like {example}, found {value!r}")
    return COHORTS[name](seed, **options)
