"""A person at each site who has signed that the table is ready, as `suture check --sign` writes it."""

from datetime import UTC, datetime
from pathlib import Path

from suture.site import ready
from suture.site.gate import Place, place_of
from suture.study import Study

WHEN = datetime(2026, 11, 18, 9, 30, tzinfo=UTC)


def sign(place: Place, digest: str, by: str = "A. Kowal") -> Path:
    """The ready of one site, without a look at its rows."""
    return ready.sign_ready(place, digest, by, WHEN, looks=0, stops=0, even_so="")


def sign_all(study: Study, base: Path) -> None:
    """The ready of every site of a study on this machine."""
    for site in study.sites:
        sign(place_of(site, base), study.digest)


def sign_home(home: Path, settings: object, study: Study) -> None:
    """The ready of a network site, in its home."""
    asked = next(site for site in study.sites if site.name == settings.name)
    sign(place_of(settings.site(asked), home), study.digest)
