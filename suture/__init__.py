"""Suture: hospitals train one model together while every record stays behind its own wall.

>>> import suture
>>> study = suture.Study(name="demo", outcome="high_risk", cohort="cardio", method={"rounds": 2})
>>> result = suture.run(study)  # doctest: +SKIP
>>> result.to_frame()  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from suture.engine.conduct import resume, run
    from suture.errors import (
        BudgetExhausted,
        CharterError,
        DataError,
        LedgerError,
        MissingExtra,
        PrivacyError,
        RunError,
        StudyError,
        SutureError,
        UnknownEvent,
    )
    from suture.privacy.accounting.questions import answer as plan
    from suture.privacy.ledger.ledger import Ledger
    from suture.result import Result
    from suture.study import Study

__all__ = [
    "BudgetExhausted",
    "CharterError",
    "DataError",
    "Ledger",
    "LedgerError",
    "MissingExtra",
    "PrivacyError",
    "Result",
    "RunError",
    "Study",
    "StudyError",
    "SutureError",
    "UnknownEvent",
    "plan",
    "resume",
    "run",
]

_HOMES = {
    "Ledger": ("suture.privacy.ledger.ledger", "Ledger"),
    "Result": ("suture.result", "Result"),
    "Study": ("suture.study", "Study"),
    "plan": ("suture.privacy.accounting.questions", "answer"),
    "resume": ("suture.engine.conduct", "resume"),
    "run": ("suture.engine.conduct", "run"),
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: the command line must answer ``--help`` at once."""
    if name in _HOMES:
        module, attribute = _HOMES[name]
        return getattr(import_module(module), attribute)
    if name in __all__:
        return getattr(import_module("suture.errors"), name)
    raise AttributeError(f"module 'suture' has no attribute {name!r}")
