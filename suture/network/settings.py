"""A site's own settings, ``site.toml`` in its home: who it is, where its rows are, what it accepts.
Never the study's.

The same settings drive the sites that `suture run --engine flower` starts on one machine; there the
rows are where the study file says, or come from the study's cohort.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from suture.errors import Reason, Refused, StudyError
from suture.site.sources import ConsentSpec, SourceSpec
from suture.study import LifetimeSpec, Name, Site, explain

SITE, STATUS = "site.toml", "status.json"


class HubAddress(BaseModel):
    """Where the hub is, and how the site knows that it is the hub."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: str
    certificate: str | None = "ca.pem"
    """The authority that signed the hub's certificate. None: no encryption, for tests."""
    key: str | None = "node.key"
    """The site's own key (ECDSA), which the hub knows from enrolment."""


class SiteSettings(BaseModel):
    """What a site decides for itself. Relative paths are relative to its home."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    hub: HubAddress
    data: SourceSpec | None = None
    test: SourceSpec | None = None
    region: str = ""
    cohort: bool = False
    """Rows come from the built-in cohort that the study names: simulation."""
    charter: str | None = None
    """By default ``charter.toml`` in the home."""
    trust: str | None = None
    """Keys that may sign charters, where the home has no ``trust.pub``."""
    consent: ConsentSpec | None = None
    lifetime: LifetimeSpec | None = None
    exact_metrics: Literal["none", "figures", "scores"] = "none"
    """What may leave about test patients: nothing, the site's figures, or every score."""
    charter_needed: bool = True
    """Whether a study is refused that no signed charter in the home allows."""
    ready_needed: bool = True
    """Whether a study is refused here until a person has signed that the table is ready for it."""
    accepts: tuple[Annotated[str, Field(pattern="^[0-9a-f]{64}$")], ...] = ()
    """Digests of studies accepted without a charter, besides those in ``studies``."""
    compares_people: bool = False
    """Whether blinded identifiers may be compared with those of peers (`suture overlap`)."""
    identity: str = "identity.key"
    """The site's key for sums under masks and for the end of its ledger (Ed25519, 32 raw bytes)."""
    witnesses: int | None = Field(default=None, ge=0)
    """How many peers must vouch for the site's ledger; by default more than half."""
    tick: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Answers leave at whole multiples of so many seconds after the request; by default 0.05 for
    1,000 declared patients."""
    peers: dict[str, Annotated[str, Field(pattern="^[0-9a-f]{64}$")]] = Field(default_factory=dict)
    """The other sites' public identities, as they gave them, not the hub."""
    applications: tuple[str, ...] = ()
    """Hashes of other Flower apps that are accepted. None is ever run."""
    largest_message: int = Field(default=256 << 20, ge=1 << 16)
    """Bytes; anything larger is refused unread."""
    poll_seconds: float = Field(default=2.0, gt=0)
    """How often an idle site asks the hub for work; while there is work it asks far more often."""

    def site(self, asked: Site) -> Site:
        """This site as an entry of a study: its declared size, edition and region are the study's,
        all else is its own.

        A study that places the site in another region than the site itself is refused.
        """
        if self.region and self.region != asked.region:
            raise Refused(
                f"this site is in region {self.region!r}, and the study says {asked.region!r}",
                Reason.STUDY,
            )
        return Site(
            name=self.name,
            patients=asked.patients,
            edition=asked.edition,
            data=self.data,
            test=self.test,
            region=asked.region,
            home=".",
            charter=self.charter,
            trust=self.trust,
            consent=self.consent,
            lifetime=self.lifetime,
        )


def read_settings(home: Path) -> SiteSettings:
    path = home / SITE
    try:
        return SiteSettings(**tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise StudyError(
            f"{home} is not a site's home (no {SITE} in it); make one with: suture site init"
        ) from None
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise StudyError(f"{path} cannot be read: {error}") from None
    except ValidationError as error:
        raise StudyError(f"{path}: {explain(error)}") from None
