"""Ready federations: each is one file that says where every figure in it comes from."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from suture.cohorts.cardio import cardio
from suture.cohorts.cohort import Cohort, CohortSite
from suture.cohorts.eicu import eicu
from suture.cohorts.icu import icu
from suture.errors import StudyError

__all__ = ["COHORTS", "Cohort", "CohortSite", "cardio", "eicu", "icu", "load"]

COHORTS: dict[str, Callable[..., Cohort]] = {"cardio": cardio, "eicu": eicu, "icu": icu}
"""The built-in federations by the name a study file uses."""


def load(name: str, seed: int, **options: Any) -> Cohort:
    """Build a federation by name.

    >>> load("cardio", 7, patients=300).name
    'cardio'
    >>> load("cardio", 7, patient=300)
    Traceback (most recent call last):
    suture.errors.StudyError: cohort 'cardio' has no option 'patient'; it takes split, patients, sites, test_fraction
    """
    if name not in COHORTS:
        raise StudyError(f"cohort {name!r} is not known; expected one of: {', '.join(sorted(COHORTS))}")
    known = inspect.signature(COHORTS[name]).parameters
    kinds = {option: parameter for option, parameter in known.items() if option != "seed"}
    for option, value in options.items():
        if option not in kinds:
            raise StudyError(f"cohort {name!r} has no option {option!r}; it takes {', '.join(kinds)}")
        # An option of the wrong type would otherwise surface as a TypeError deep in the generator.
        wanted = type(kinds[option].default)
        if isinstance(value, bool) or not isinstance(value, (int, float) if wanted is float else wanted):
            example = f'"{kinds[option].default}"' if wanted is str else kinds[option].default
            raise StudyError(f"cohort {name!r}: {option} must look like {example}, found {value!r}")
    return COHORTS[name](seed, **options)
