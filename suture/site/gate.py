"""The gate: a site's own decision, before any row is read, whether a study may run here and who of its patients passes.

The site's home may hold ``charter.toml`` (or the study names another place) and ``trust.pub``, the keys it trusts. What
the charter does not allow is refused, all reasons at once, and noted in the site's ledger; so is every admission. A
site that has trusted keys and no charter refuses everything: whoever writes the study file cannot switch the gate off.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path

from suture.errors import CharterError
from suture.privacy.chain import ADMITTED
from suture.privacy.charter import Charter, Objection, Request, objections, read_charter, trust
from suture.privacy.keys import read_public
from suture.privacy.ledger import Ledger
from suture.site.consent import ConsentSpec, read_consent
from suture.site.erasure import erased_keys, passage_key
from suture.site.passage import Passage

CHARTER, TRUST = "charter.toml", "trust.pub"
REFUSED, CONSENT = "refused", "consent"


@dataclass(frozen=True)
class Papers:
    """Where a site keeps what the gate looks at; None: not there."""

    charter: Path | None
    trust: Path | None
    consent: ConsentSpec | None = None

    @classmethod
    def at(cls, home: Path, charter: Path | None, trusted: Path | None, consent: ConsentSpec | None) -> Papers:
        """What lies in the site's home, and what the study names.

        A charter may come from anywhere, since a trusted key must have signed it. The keys may not: those in the home
        count, whatever a study file says.
        """
        own = {name: home / name for name in (CHARTER, TRUST) if (home / name).exists()}
        return cls(charter or own.get(CHARTER), own.get(TRUST) or trusted, consent)

    @property
    def none(self) -> bool:
        """Whether there is nothing here to enforce."""
        return self.charter is None and self.trust is None and self.consent is None


@dataclass(frozen=True)
class Admission:
    """The gate's answer: the charter it rests on (None: no charter is enforced here), and who passes."""

    charter: Charter | None
    passage: Passage

    @property
    def exact_metrics(self) -> bool:
        """Whether exact figures about this site's patients may leave."""
        return self.charter is None or self.charter.exact_metrics

    @property
    def terms(self) -> str | None:
        """The charter in words, for a result; None: no charter is enforced here."""
        withheld = "" if self.exact_metrics else ", exact figures withheld"
        return f"protocol {self.charter.protocol}, charter {self.charter.digest}{withheld}" if self.charter else None


def check(papers: Papers, request: Request, today: date) -> tuple[Charter | None, list[Objection]]:
    """The charter, if there is one to be trusted, and every objection to the request."""
    if papers.charter is None and papers.trust is None:
        return None, []
    if papers.charter is None:
        return None, [Objection("no charter", "this site takes part under a signed charter only, and holds none")]
    if papers.trust is None:
        return None, [
            Objection("no trusted key", f"this site has a charter and no trusted key to check it with ({TRUST})")
        ]
    try:
        charter = trust(read_charter(papers.charter), read_public(papers.trust), papers.charter.name)
    except CharterError as error:
        return None, [Objection("not to be trusted", str(error))]
    return charter, objections(charter, request, today)


def admit(ledger: Ledger, secret: bytes, papers: Papers, request: Request) -> Admission:
    """Refuse, or say who passes; both are noted. Reads the charter and the consent table, and none of the rows."""
    today = date.fromisoformat(ledger.now()[:10])
    charter, found = check(papers, request, today)
    if found:
        facts = {"charter": charter and charter.digest, "why": [item.name for item in found]}
        entry = ledger.note(request.study, REFUSED, facts, again=True)
        reasons = "".join(f"\n  - {item.text}" for item in found)
        raise CharterError(
            f"site {request.site!r} refuses study {request.study!r}; nothing was read (noted as entry {entry.seq} of its "
            f"ledger):{reasons}"
        )
    if charter is not None:
        terms = {"charter": charter.digest, "protocol": charter.protocol, "expires": str(charter.expires)}
        limits = {"epsilon": charter.epsilon, "delta": charter.delta, "exact metrics": charter.exact_metrics}
        ledger.note(request.study, ADMITTED, {**terms, **limits})
    passage = Passage(passage_key(secret), erased=erased_keys(ledger, secret))
    if papers.consent is not None:
        passage.consenting, passage.withdrawn = read_consent(
            papers.consent, study=request.study, today=today, key=passage.key, site=request.site
        )
    return Admission(charter, passage)


def note_counts(ledger: Ledger, study: str, passage: Passage) -> None:
    """Note at the site how many did not pass at the last reading, and why."""
    ledger.note(study, CONSENT, passage.tally)
