"""Tombstones: patients who asked to be erased, known to the site by a keyed hash and to nobody else by anything.

A tombstone is the first 128 bits of SHA-256 over a key, derived from the site's secret, and the patient's identifier.
Identifiers are few and could be tried one by one against a plain hash; without the secret they cannot be tried against
this one. Tombstones are notes in the site's ledger, so one that is removed shows. Each carries a name of the key: with
another secret the tombstones would match nobody, and that must be an error, not a silence.
"""

from __future__ import annotations

import json

import numpy as np

from suture.errors import LedgerError
from suture.privacy.ledger import Entry, Ledger
from suture.privacy.mechanisms import derive
from suture.site.passage import NOBODY, Keys
from suture.site.preprocess import sql_text, texts
from suture.site.records import Source, SourceSpec, open_table, quoted
from suture.site.schema import Schema
from suture.site.split import hashed, held_out

ERASED = "erased"
EVERY_STUDY = "*"


def passage_key(secret: bytes) -> str:
    """The key under which a site compares identifiers.

    >>> passage_key(bytes(32)) == passage_key(bytes(32)), passage_key(bytes(32)) == passage_key(bytes(31) + b"x")
    (True, False)
    """
    return derive(secret, "passage").hex()


def tombstone(secret: bytes, patient: str) -> str:
    """What stands for an erased patient.

    >>> len(tombstone(bytes(32), "p1")), tombstone(bytes(32), " p1 ") == tombstone(bytes(32), "p1")
    (32, True)
    """
    return bytes(hashed([patient.strip()], passage_key(secret)).astype(">u8").tobytes()).hex()


def erase_at_site(ledger: Ledger, secret: bytes, patient: str) -> tuple[Entry, bool]:
    """Write the tombstone, once; returns its note and whether it was new."""
    mark = tombstone(secret, patient)
    for entry in ledger.notes(ERASED):
        if json.loads(entry.event)["tombstone"] == mark:
            return entry, False
    facts = {"tombstone": mark, "key": _name(secret)}
    return ledger.note(EVERY_STUDY, ERASED, facts, again=True), True


def erased_keys(ledger: Ledger, secret: bytes) -> Keys:
    """The keys of all erased patients."""
    notes = [json.loads(entry.event) for entry in ledger.notes(ERASED)]
    if not notes:
        return NOBODY
    strange = sum(note["key"] != _name(secret) for note in notes)
    if strange:
        raise LedgerError(
            f"site {ledger.site!r}: {strange} of {len(notes)} erased patients were marked under another secret and can no "
            "longer be recognised, so nobody may pass; restore secret.key from the site's backup, or erase them again "
            "in a new home"
        )
    content = b"".join(bytes.fromhex(note["tombstone"]) for note in notes)
    return np.frombuffer(content, ">u8").astype(np.uint64).reshape(-1, 2)


def rows_of(source: Source, schema: Schema, patient: str, *, site: str) -> int:
    """How many rows of a table are this patient's: read at the site, for the patient's own certificate."""
    if schema.patient is None:
        return 0
    if not isinstance(source, SourceSpec):
        return sum(text == patient.strip() for text in texts(np.asanyarray(source[schema.patient])))
    with open_table(source, [schema.patient], site=site) as opened:
        mine = f"{sql_text(opened, source, schema.patient)} = {quoted(patient.strip())}"
        return int(opened.select({"rows": f"count(*) FILTER (WHERE {mine})"})["rows"][0])


def is_held_out(patient: str, holdout: float, split_key: str) -> bool:
    """Whether the split keeps this patient for testing, so that no model was trained on them.

    >>> is_held_out("p1", 1.0, "42"), is_held_out("p1", 0.0, "42")
    (True, False)
    """
    return bool(held_out(hashed([patient.strip()], split_key), holdout)[0])


def _name(secret: bytes) -> str:
    return derive(secret, "name of the passage key").hex()[:16]
