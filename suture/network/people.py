"""People of several hospitals, counted between machines: `suture/site/people.py` has the protocol and
what it proves.

For every two sites the coordinator carries three messages, and can read none of them:

| stage | to | it gives | it gets |
|---|---|---|---|
| `ask`    | the first  | nothing | its blinded people, signed for the second |
| `answer` | the second | those | the same, blinded again, and its own, signed for the first |
| `count`  | the first  | those | a noisy count |

A site pays at its first stage of each pair, before anything leaves. It takes part only if its person
has said so (``compares_people`` in site.toml), the study that it has pinned says what it costs
(``overlap``), and it holds the other site's identity: who could pass for a site could ask about
anybody. Every message follows from the site's secret, its rows and what is public, so that a repeat
is the same; another question in the same place is refused.
"""

from __future__ import annotations

import hashlib
import math
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from suture.engine import federation
from suture.engine.plan import World
from suture.engine.round import Engine
from suture.errors import Reason, Refused, StudyError
from suture.network.coordinator import Remote
from suture.network.settings import SiteSettings
from suture.network.wire import Header, Request
from suture.network.witnesses import Witnesses, read_identity
from suture.privacy.accounting.events import normal_form
from suture.privacy.canonical import digest
from suture.privacy.door import Context, Rows, Session, opened, root_key
from suture.privacy.ledger.ledger import Ledger
from suture.privacy.noise.source import derive
from suture.privacy.signing import sign, verifies
from suture.privacy.software import software
from suture.privacy.unit import Patients
from suture.protection.envelope import seal, unseal
from suture.site import gate
from suture.site.people import (
    OVERLAP,
    POINT,
    Pair,
    blinded,
    comparisons,
    matched,
    patients_of,
    raised,
)
from suture.site.reading import Keys
from suture.site.ready import charging
from suture.study import Study

SIGNATURE = 64
LEARNS = (
    "The coordinator learns the noisy counts of people whom two hospitals share. Each hospital "
    "learns the same count with its own noise taken off, never the exact one, nor who it is. "
    "Identifiers leave only blinded. This holds while both hospitals run Suture unaltered: one that "
    "does not can test identifiers that it knows against the other's (docs/privacy.md)."
)


class SitePeople:
    """One site's side."""

    def __init__(
        self, study: Study, plan: str, world: World, settings: SiteSettings, home: Path
    ) -> None:
        self._study, self._plan, self._settings, self._home = study, plan, settings, home
        self._place = world.places[0]
        if not settings.compares_people or world.generated:
            raise Refused("this site compares no people (compares_people)", Reason.SETTINGS)
        self._secret = gate.secret_of(self._place, study.seed)
        self._asked = comparisons(study)

    def answer(self, given: Request, body: bytes, witnesses: Witnesses) -> tuple[Header, bytes]:
        """Check who asks, pay, and go on."""
        pair, stage = self._asked.of(self._settings.name, given["peer"]), given["stage"]
        first = pair.first == self._settings.name
        if stage not in (("ask", "count") if first else ("answer",)):
            raise Refused(f"stage {stage[:10]!r} is not this site's part", Reason.TURN)
        sent = body if stage == "ask" else self._checked(pair, stage, given["peer"], body)
        needed = self._settings.ready_needed
        with closing(charging(self._place, None, self._plan, needed=needed)) as ledger:
            witnesses.check(ledger, given["vouched"])
            vouched = witnesses.passed(ledger, given)
            context = self._context(pair)
            keys = self._paid(ledger, pair, context)
            key = derive(self._secret, OVERLAP, context.mark)
            if stage == "ask":
                found = self._signed(pair, stage, blinded(pair.elements(keys, key, True), key))
                said: Header = {}
            elif stage == "answer":
                found, said = self._second(ledger, pair, context, keys, key, sent), {}
            else:
                found, said = b"", {"people": self._count(ledger, pair, context, key, sent)}
            return {**said, "vouched": vouched, "head": witnesses.own(ledger.head())}, found

    def _context(self, pair: Pair) -> Context:
        place, account = self._place, f"{self._study.name}/{OVERLAP}"
        about = (self._plan, place.name, place.edition, account, OVERLAP, 0, 0, pair.number)
        return Context(*about, digest(pair))

    def _paid(self, ledger: Ledger, pair: Pair, context: Context) -> Keys:
        """Gate, promise, charge; only then who the site's people are, under a name for this study."""
        place, study, budget = self._place, self._study, self._asked.budget
        if study.table is None:
            raise StudyError("[[site]] tables need a [schema]")
        asked = federation.request(study, study.table, place.name)
        asked = replace(asked, unit="patient", epsilon=budget.epsilon, delta=budget.delta)
        passage = gate.admit(
            ledger, self._secret, place.papers, replace(asked, masked=False)
        ).passage
        gate.open_lifetime(place, ledger)
        ledger.open_study(context.account, budget, normal_form(self._asked.event))
        event = pair.mechanism.event
        ledger.charge(context.account, pair.number, event, context.mark, what=OVERLAP)
        return patients_of(place, study.table, passage, self._plan)

    def _second(
        self, ledger: Ledger, pair: Pair, context: Context, keys: Keys, key: bytes, sent: bytes
    ) -> bytes:
        """The first's points, blinded again, and this site's, with strangers for noise. One
        question is answered."""
        mark, question = context.mark.hex(), hashlib.sha256(sent).digest()
        kept = ledger.kept(mark)
        if kept is None:
            again = raised(sent, key, pair.sizes[0] + 2 * pair.middle)
            nobody = Patients(np.zeros((1, 1), np.float32), np.zeros(1, np.int32), np.arange(2))
            noise = self._released(pair, context, nobody, keys.tobytes())
            mine = blinded(pair.elements(keys, key, False, noise), key)
            points = sorted(mine[i : i + POINT] for i in range(0, len(mine), POINT))
            kept = question + self._signed(pair, "answer", b"".join([again, *points]))
            ledger.keep(mark, kept)
        if kept[:32] != question:
            raise Refused("another question was answered for this pair", Reason.ANSWERED)
        return kept[32:]

    def _count(self, ledger: Ledger, pair: Pair, context: Context, key: bytes, sent: bytes) -> int:
        """How many of the second's points are this site's too, with noise; once."""
        mark = context.mark.hex()
        kept = ledger.kept(mark)
        if kept is None:
            sizes = [size + 2 * pair.middle for size in pair.sizes]
            cut = sizes[0] * POINT
            table = matched(raised(sent[cut:], key, sizes[1]), sent[:cut])
            count = self._released(pair, context, table, b"")
            kept = seal({"people": np.array([count - pair.middle])})
            ledger.keep(mark, kept)
        return int(unseal(kept)["people"][0])

    def _released(self, pair: Pair, context: Context, table: Patients, rows: bytes) -> int:
        """How many rows of the table are marked, through the door."""
        content = table.fingerprint() + hashlib.sha256(rows).digest()
        root = root_key(self._secret, context, {}, content, software())
        session = Session(
            table, pair.mechanism.event, root, round_=pair.number, site=self._place.name,
            noise=pair.mechanism.multiplier,
        )  # fmt: skip
        found = opened({OVERLAP: session.release(OVERLAP, pair.mechanism, _marked)})
        return int(found[OVERLAP][0])

    def _signed(self, pair: Pair, stage: str, points: bytes) -> bytes:
        key = read_identity(self._home, self._settings)
        content = _about(self._plan, pair, stage, points)
        return bytes.fromhex(sign(OVERLAP, content, key)) + points

    def _checked(self, pair: Pair, stage: str, peer: str, body: bytes) -> bytes:
        """What the peer sent, if the peer signed it."""
        known, points = self._settings.peers.get(peer), body[SIGNATURE:]
        if known is None:
            raise Refused(f"this site does not hold the identity of {peer!r}", Reason.PEERS)
        before = "ask" if stage == "answer" else "answer"
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(known))
        content = _about(self._plan, pair, before, points)
        if not verifies(OVERLAP, content, body[:SIGNATURE].hex(), key):
            raise Refused(f"the message was not signed by {peer!r}", Reason.MESSAGE)
        return points


def _about(plan: str, pair: Pair, stage: str, points: bytes) -> dict[str, object]:
    sites = [pair.first, pair.second]
    said = hashlib.sha256(points).hexdigest()
    return {"study": plan, "sites": sites, "stage": stage, "points": said}


def _marked(block: Patients) -> Rows:
    return block.x.astype(np.float64), np.ones(block.rows)


def overlap_between(engine: Engine, study: Study, base: Path) -> dict[str, Any]:
    """Noisy counts of the people of every two hospitals, which are elsewhere."""
    asked = comparisons(study)
    if not isinstance(engine, Remote):
        raise StudyError("hospitals that are elsewhere are asked with --hub or --engine flower")
    engine.begin(study, base, None, study.seed)
    found: list[dict[str, Any]] = []
    sd = math.sqrt(2) * float(asked.pairs[0].mechanism.sigma)
    for pair in asked.pairs:
        body = engine.people(pair.first, pair.second, "ask")[1]
        body = engine.people(pair.second, pair.first, "answer", body)[1]
        count = int(engine.people(pair.first, pair.second, "count", body)[0]["people"])
        low, high = (max(0, round(count + side * 1.96 * sd)) for side in (-1, 1))
        sites = [pair.first, pair.second]
        found.append({"sites": sites, "people": count, "interval": [low, high]})
    counts = [max(0, int(one["people"])) for one in found]
    return {
        "study": study.name,
        "sites": [site.name for site in study.sites],
        "pairs": found,
        "at_least": max(counts),
        "at_most": sum(counts),
        "noise_sd": sd,
        "sensitivity": 1,
        "epsilon": asked.budget.epsilon,
        "delta": asked.budget.delta,
        "accountant": asked.budget.accountant,
        "account": f"{study.name}/{OVERLAP}",
        "linked": False,
        "learns": LEARNS,
    }
