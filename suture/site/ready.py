"""A person's "ready": the signed word of somebody at a site that its table was checked for one study.

``suture check study.toml --sign NAME`` writes it into the site's home. A ledger of real patients is
locked: it neither promises nor charges anything, for whatever command, until `charging` has seen the
ready. It names the study by its digest, the site and the edition of its table, and is signed with a
key that is derived from the site's secret: who does not hold the secret can neither make one nor
change one, and one for another study, site or edition does not count. A statistic trains nothing: it
counts as any study with the same name, sites and columns (`Study.table_digest`), for which the table
was checked. How many findings there were is in it for the site alone; what leaves is who signed, and
when.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from suture.errors import NotReady, StudyError, SutureError
from suture.privacy.files import write_whole
from suture.privacy.ledger.ledger import Ledger
from suture.privacy.noise.source import derive
from suture.privacy.signing import sign, verifies
from suture.schema.record import Signer
from suture.site.gate import Place, open_ledger, site_secret

READY = "ready"
LONGEST = 80


def ready_file(home: Path, study: str) -> Path:
    """Where the ready for a study, by its digest, is kept."""
    return home / READY / f"{study[:16]}.json"


def charging(
    place: Place,
    folder: Path | None,
    study: str,
    table: str = "",
    *,
    needed: bool = True,
) -> Ledger:
    """The site's ledger, open for promises and charges: the only way to one. Where a ready is
    needed and nobody signed, it is refused, and no ledger is made."""
    if place.needs_ready and needed:
        demand(place, study, table)
    ledger = open_ledger(place, folder)
    ledger.locked = False
    return ledger


def sign_ready(
    place: Place,
    study: str,
    by: str,
    when: datetime,
    *,
    looks: int,
    stops: int,
    even_so: str,
    table: str = "",
) -> Path:
    """Write the ready of a site; refused where something says stop and nobody says why not."""
    home, by = _home(place), " ".join(by.split())
    if not by or len(by) > LONGEST or not by.isprintable():
        raise StudyError(f"--sign: expected a person's name of 1 to {LONGEST} characters")
    if stops and not even_so.strip():
        raise NotReady(
            f"site {place.name!r} was not signed as ready: {stops} of the findings say stop. Correct "
            'the table or the study, or sign all the same and say why: --even-so "reason"'
        )
    content = {
        **_about(place, study), "table": table, "by": by, "when": when.isoformat(timespec="seconds"),
        "looks accepted": looks, "stops overruled": stops, "even so": even_so.strip(),
    }  # fmt: skip
    signed = {**content, "signature": sign(READY, content, _key(home))}
    path = ready_file(home, study)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(path, json.dumps(signed, indent=1).encode(), mode=0o600)
    return path


def ready_of(place: Place, study: str, table: str = "") -> Signer | None:
    """Who signed for this study, site and edition, or with ``table`` for any study of that table;
    None: nobody, or it is not to be trusted. No row is looked at."""
    files = [ready_file(_home(place), study)]
    if table:
        files += sorted((_home(place) / READY).glob("*.json"))
    found = (_signer(place, path, study, table) for path in files)
    return next(filter(None, found), None)


def _signer(place: Place, path: Path, study: str, table: str) -> Signer | None:
    try:
        content = json.loads(path.read_bytes())
        if table and content["table"] == table:
            study = str(content["study"])
        signature, mine = str(content.pop("signature")), _about(place, study)
        found: Signer = {"by": content["by"], "when": content["when"]}
        genuine = verifies(READY, content, signature, _key(_home(place)).public_key())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SutureError):
        return None
    same = all(content.get(key) == value for key, value in mine.items())
    return found if genuine and same else None


def demand(place: Place, study: str, table: str = "") -> Signer:
    """Who signed, or a refusal in words that say nothing about rows."""
    found = ready_of(place, study, table)
    if found is None:
        other = ready_file(_home(place), study).exists()
        stale = "; the one in its home is for another site or edition, or was changed"
        raise NotReady(
            f"site {place.name!r}: nobody has signed that its table is ready for this study "
            f"({study[:12]}){stale if other else ''}. Look at it, then sign: suture check "
            "study.toml --sign NAME. Nothing was read or charged"
        )
    return found


def _about(place: Place, study: str) -> dict[str, object]:
    return {"study": study, "site": place.name, "edition": place.edition}


def _home(place: Place) -> Path:
    if place.home is None:
        raise StudyError(f"site {place.name!r} has no home: its patients need no ready")
    return place.home


def _key(home: Path) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(derive(site_secret(home), "ready"))
