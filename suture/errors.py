"""One small tree of errors: what was expected, what was found, where, and what to do next.

Every error a user can cause derives from `SutureError` and carries the exit code that the command
line ends with. Messages name sites, columns and counts, never a patient's values. What a site says
to a coordinator is less: one `Reason` out of a public list, because an error that depends on rows
tells of them.
"""

from __future__ import annotations

from enum import Enum


class SutureError(Exception):
    """Base of every error Suture raises on purpose."""

    exit_code = 1


class StudyError(SutureError):
    """The study file, or an argument, asks for something that is not possible or not understood."""

    exit_code = 2


class DataError(SutureError):
    """A site's rows are not what the schema declares."""

    exit_code = 3


class PrivacyError(SutureError):
    """The promise would be broken, so nothing was released."""

    exit_code = 4


class BudgetExhausted(PrivacyError):
    """Charging this event would spend more than the study's budget at this site."""


class UnknownEvent(PrivacyError):
    """An event that the accountant cannot compose: refused, because its cost is not known."""


class LedgerError(PrivacyError):
    """The ledger cannot be read, written or trusted; nothing may leave the site."""


class CharterError(PrivacyError):
    """The site's signed charter is missing, not to be trusted, or does not allow what was asked."""


class NotReady(PrivacyError):
    """Nobody at the site has signed that its table is ready for the study (``suture check``)."""


class RunError(SutureError):
    """A run folder is missing, incomplete, busy, or belongs to another study."""

    exit_code = 5


class TooFewSites(RunError):
    """Fewer sites answered a round than the study needs; nothing was averaged over the rest."""


class Reason(Enum):
    """Why a site refuses: all that a coordinator is ever told. None of them depends on a row.

    >>> Reason["BUDGET"].value
    'its budget does not pay for this release; more needs a newly approved study'
    """

    REQUEST = "the request is not one that this version of Suture knows; install the same version on both sides"
    TOO_LARGE = "the request is larger than the site accepts (largest_message in its site.toml)"
    APPLICATION = "the request came from an app that the site does not accept"
    STUDY = "the study is not one that the site has accepted; it accepts with: suture site accept"
    CHARTER = "the site's signed charter does not allow the study"
    READY = "nobody at the site has signed that its table is ready for this study (suture check study.toml --sign NAME)"
    NOT_OPEN = "the study is not open at the site; open and join it first"
    SETTINGS = "the study asks for something that the site's installed version cannot do"
    MESSAGE = (
        "the round's message does not hold what the method sends, or a number in it is out of range"
    )
    TURN = "the site has no part in this round, fold, seed or method"
    ANSWERED = "the round was answered already, with another message"
    BUDGET = "its budget does not pay for this release; more needs a newly approved study"
    MASKED = "what the method sends leaves the site under masks only"
    SESSION = "the site is in no sum that this stage could go on with; start a new sum"
    PEERS = "the site does not hold the identity of every other site in the sum ([peers] in its site.toml)"
    TOO_FEW = "a sum of so few sites would carry less noise than the promise counts on"
    EXACT = "exact figures about patients do not leave the site"
    WITNESS = "the site's ledger is older than its witnesses remember, or nobody vouches for it; see: suture ledger write-off"
    LEDGER = "the site's ledger cannot be read, written or trusted"
    TABLE = "the site's table cannot be opened, or lacks a column of the study; the site's log says which"
    FAULT = "the site failed; its own log says why"


class Refused(PrivacyError):
    """A site refused a request. The text is for the site's own log; a coordinator learns the
    `Reason` alone."""

    def __init__(self, text: str, reason: Reason = Reason.REQUEST) -> None:
        super().__init__(text)
        self.reason = reason


class MissingExtra(SutureError):
    """An optional dependency is not installed; the message holds the install command."""

    exit_code = 6
