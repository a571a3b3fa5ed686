"""A site's own settings, ``site.toml`` in its home: who it is, where its rows are, what it accepts. Never the study's.

The same settings drive the sites that `suture run --engine flower` starts on one machine; there the rows are where the
study file says, or come from the study's cohort.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from suture.errors import StudyError
from suture.settings import LifetimeSpec, Name, Site, explain
from suture.site.consent import ConsentSpec
from suture.site.records import SourceSpec

SITE = "site.toml"


class HubAddress(BaseModel):
    """Where the hub is, and how the site knows that it is the hub."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: str
    certificate: str | None = "ca.pem"
    """The authority that signed the hub's certificate. None: no encryption, for tests on one machine only."""
    key: str | None = "node.key"
    """The site's own key (ECDSA), which the hub knows from enrolment."""


class SiteSettings(BaseModel):
    """What a site decides for itself. Relative paths are relative to its home, the folder of ``site.toml``."""

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
    """What may leave about test patients: nothing, the site's own figures, or every patient's label and risk."""
    charter_needed: bool = True
    """Whether a study is refused that no signed charter in the home allows."""
    identity: str = "identity.key"
    """The site's key for sums under masks (Ed25519, 32 raw bytes)."""
    peers: dict[str, Annotated[str, Field(pattern="^[0-9a-f]{64}$")]] = Field(default_factory=dict)
    """The other sites' public identities, which this site has got from them itself, not from the hub."""
    applications: tuple[str, ...] = ()
    """Hashes of Flower apps that are accepted besides the one of the installed version. None is ever run."""
    largest_message: int = Field(default=256 << 20, ge=1 << 16)
    """Bytes; anything larger is refused unread."""
    poll_seconds: float = Field(default=2.0, gt=0)
    """How often an idle site asks the hub for work; while there is work it asks far more often."""

    def site(self) -> Site:
        """This site as an entry of a study."""
        return Site(
            name=self.name,
            data=self.data,
            test=self.test,
            region=self.region,
            home=".",
            charter=self.charter,
            trust=self.trust,
            consent=self.consent,
            lifetime=self.lifetime,
        )


def read_settings(home: Path) -> SiteSettings:
    """The settings in a site's home."""
    path = home / SITE
    try:
        return SiteSettings(**tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise StudyError(f"{home} is not a site's home (no {SITE} in it); make one with: suture site init") from None
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise StudyError(f"{path} cannot be read: {error}") from None
    except ValidationError as error:
        raise StudyError(f"{path}: {explain(error)}") from None
