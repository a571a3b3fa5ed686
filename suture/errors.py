"""One small tree of errors: what was expected, what was found, where, and what to do next.

Every error a user can cause derives from `SutureError` and carries the exit code that the command line ends with.
Messages name sites, columns and counts, never a patient's values.
"""


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


class RunError(SutureError):
    """A run folder is missing, incomplete, busy, or belongs to another study."""

    exit_code = 5


class TooFewSites(RunError):
    """Fewer sites answered a round than the study needs; nothing was averaged over the rest."""


class Refused(PrivacyError):
    """A site refused a request; the message holds the site's reason."""


class MissingExtra(SutureError):
    """An optional dependency is not installed; the message holds the install command."""

    exit_code = 6
