"""Ready federations, built when asked for. Each file says where its figures come from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

from suture.cohorts.cohort import Cohort
from suture.errors import StudyError

__all__ = ["COHORTS", "Cohort", "load", "takes"]
Builder = Callable[..., Cohort]


class _Builders(Mapping[str, Builder]):
    """Functions by name, imported when one is looked up: a study needs one federation of eleven."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self.modules = modules

    def __getitem__(self, name: str) -> Builder:
        found: Builder = vars(import_module(f"suture.cohorts.{self.modules[name]}"))[name]
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.modules)

    def __len__(self) -> int:
        return len(self.modules)


COHORTS = _Builders({
    **{name: name for name in ("cardio", "icu", "outbreak", "radiographs")},
    **dict.fromkeys(("eicu", "heart", "har", "vsn", "pneumonia", "physionet", "framingham"), "public"),
})  # fmt: skip
"""The built-in federations by the name a study file uses, and the module of each."""


def takes(name: str, option: str) -> bool:
    """Whether a federation has this option; False also for a federation that is not known."""
    return name in COHORTS and option in inspect.signature(COHORTS[name]).parameters


def load(name: str, seed: int, **options: Any) -> Cohort:
    """Build a federation by name.

    >>> load("cardio", 7, patients=300).name
    'cardio'
    >>> load("cardio", 7, patient=300)
    Traceback (most recent call last):
    suture.errors.StudyError: cohort 'cardio' has no option 'patient'; it takes split, patients, sites, test_fraction, labels
    """
    if name not in COHORTS:
        raise StudyError(
            f"cohort {name!r} is not known; expected one of: {', '.join(sorted(COHORTS))}"
        )
    kinds = dict(inspect.signature(COHORTS[name]).parameters)
    del kinds["seed"]
    for option, value in options.items():
        if option not in kinds:
            raise StudyError(
                f"cohort {name!r} has no option {option!r}; it takes {', '.join(kinds)}"
            )
        # An option of the wrong type would otherwise surface as a TypeError deep in the generator.
        wanted = type(kinds[option].default)
        accepted = (int, float) if wanted is float else wanted
        if isinstance(value, bool) or not isinstance(value, accepted):
            example = f'"{kinds[option].default}"' if wanted is str else kinds[option].default
            raise StudyError(f"cohort {name!r}: {option} must look like {example}, found {value!r}")
    return COHORTS[name](seed, **options)
