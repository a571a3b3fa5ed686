"""Where each site's rows, ledger, secret and papers are: found from the study file, before any row
is read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from suture.errors import LedgerError, StudyError
from suture.privacy.files import write_whole
from suture.privacy.ledger.ledger import Budget, Ledger
from suture.privacy.noise.source import secure_key, seeded_key
from suture.site.gate import Papers
from suture.site.sources import Source
from suture.study import Site, Study

LEDGER = "ledger.sqlite"
LIFETIME = Budget(10.0, 1e-4, "pld")
"""What all studies together may spend on a real site's patients, where the site states nothing else
(`LifetimeSpec`)."""


@dataclass(frozen=True)
class Place:
    """Where one site's rows are, before any has been read."""

    name: str
    region: str
    source: Source
    test: Source | None
    home: Path | None
    """None for generated patients and in a simulation: ledger in the run folder or in memory,
    secret from the seed."""
    papers: Papers = field(default_factory=lambda: Papers(None, None))
    edition: int = 1
    """Raised by a person when the table's rows are new."""
    stated: Budget | None = None
    """The lifetime budget that the site states, if it states one."""

    @property
    def lifetime(self) -> Budget | None:
        """What all studies together may spend on the site's patients: every site with a home has a
        limit.

        >>> Place("a", "", {}, None, Path("home")).lifetime == LIFETIME, Place("a", "", {}, None, None).lifetime
        (True, None)
        """
        return None if self.home is None else self.stated or LIFETIME


def place_of(site: Site, base: Path) -> Place:
    """Where one site of a study file keeps everything; paths are relative to ``base``."""
    if site.data is None:
        raise StudyError(
            f"site {site.name!r} has no data = ... here, so only the site itself can read its "
            "rows: run the study through the hub that the sites are connected to (suture run "
            "study.toml --hub HUB), or name the table"
        )
    home = base / (site.home or Path(".suture") / site.name)
    charter = base / site.charter if site.charter else None
    trust = base / site.trust if site.trust else None
    consent = site.consent.under(base) if site.consent else None
    return Place(
        site.name,
        site.region,
        site.data.under(base),
        site.test.under(base) if site.test else None,
        home,
        Papers.at(home, charter, trust, consent),
        site.edition,
        Budget(**site.lifetime.model_dump()) if site.lifetime else None,
    )


def named_place(file: Path, site: str) -> Place:
    """One site of a study file, by name."""
    found = {item.name: item for item in Study.from_toml(file).sites}
    if site not in found:
        names = ", ".join(found) or "none: its patients are generated"
        raise StudyError(f"{file} has no site {site!r} of its own; it has: {names}")
    return place_of(found[site], file.resolve().parent)


def secret_of(place: Place, seed: int) -> bytes:
    """The site's secret: its own for real patients, derived from the seed for generated ones."""
    return seeded_key(seed, "site", place.name) if place.home is None else site_secret(place.home)


def open_ledger(place: Place, folder: Path | None) -> Ledger:
    """The site's own ledger; for generated patients one in the run folder, or in memory where
    ``folder`` is None."""
    if place.home is not None:
        _make(place.home)
        return Ledger.open(place.home / LEDGER, place.name)
    path = None if folder is None else folder / "ledgers" / f"{place.name}.sqlite"
    return Ledger.open(path, place.name, durable=False)


@contextmanager
def borrowed(place: Place, folder: Path | None) -> Iterator[Ledger]:
    """The site's ledger for a moment."""
    with closing(open_ledger(place, folder)) as ledger:
        yield ledger


def open_lifetime(place: Place, ledger: Ledger, *, private: bool = True) -> None:
    """Record the site's lifetime budget before anything is promised.

    The default is recorded with the first promise of privacy, where nothing is recorded yet: it
    does not replace what the site said earlier, and a study that promises nothing does not record
    it.

    >>> place, ledger = Place("a", "", {}, None, Path("home")), Ledger.open(None, "a")
    >>> open_lifetime(place, ledger, private=False)
    >>> ledger.lifetime is None
    True
    >>> open_lifetime(place, ledger)
    >>> ledger.lifetime == LIFETIME
    True
    """
    if place.lifetime is not None and (place.stated or (private and ledger.lifetime is None)):
        ledger.open_lifetime(place.lifetime)


def note_skipped(home: Path, skipped: Sequence[str]) -> None:
    """List the image files that were left out, by name, in the site's own folder: names may tell of
    patients."""
    _make(home)
    write_whole(home / "skipped-images.txt", ("\n".join(skipped) + "\n").encode())


def _make(home: Path) -> None:
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LedgerError(f"the site's home {home} cannot be made: {error}") from None


def site_secret(home: Path) -> bytes:
    """The site's secret: 32 bytes from the operating system, made once, readable by the site's user
    only."""
    path = home / "secret.key"
    _make(home)
    try:
        try:
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileExistsError:
            secret = path.read_bytes()
            if len(secret) != 32:
                raise LedgerError(
                    f"{path} should hold 32 bytes, found {len(secret)}; restore it from the site's "
                    "backup. A new secret is safe too, but then repeated releases are charged again"
                ) from None
            return secret
        with os.fdopen(handle, "wb") as file:
            secret = secure_key()
            file.write(secret)
            file.flush()
            os.fsync(file.fileno())
        return secret
    except OSError as error:
        raise LedgerError(f"the site's secret {path} cannot be read or written: {error}") from None
