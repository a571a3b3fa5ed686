"""People who attend several hospitals: how many there are, and one group of rows for each.

Identifiers are compared as keyed hashes under a key that is made of all sites' secrets, so it exists
only where all of them are: on one machine, in the hands of whoever holds the tables anyway. Nothing
of the comparison is written down; how many people attend more than one hospital leaves only as a
noisy count that every site has paid for (`releases/overlap.py`).

*One count, sensitivity 1.* Let c be the number of people who are in two tables or more. Adding or
removing one patient's rows at one hospital changes whether that one person is in two tables, and
nobody else's standing: c moves by at most 1. So does adding or removing a person from all k tables
at once. The noise that pays for a patient of one hospital pays for the whole person.

*One site for each person* (``study.link_people``). Of the hospitals that a person attends, the one
with the smallest keyed hash of person and hospital keeps them; the others hold their rows back. No
row moves. The choice depends on that person's own hospitals alone. So two federations that differ
in one person, at all their hospitals, differ after the choice in one patient of one site, and that
site's promise is the person's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from suture.errors import StudyError
from suture.privacy.noise.source import derive
from suture.privacy.unit import Patients
from suture.schema.table import Schema
from suture.site import preprocess, reading
from suture.site.gate import Place
from suture.site.reading import Keys, Passage, distinct


def joint_secret(secrets: Mapping[str, bytes]) -> bytes:
    """A secret that only all sites together have."""
    held = b"".join(secrets[name] for name in sorted(secrets))
    return derive(hashlib.sha256(held).digest(), "people of several hospitals")


def patients_of(place: Place, schema: Schema, passage: Passage | None, key: str) -> Keys:
    """The site's patients who pass, each once, by keyed hash."""
    if schema.patient is None:
        raise StudyError("people are told apart by schema.patient, and the schema names none")
    wanted = reading.Wanted(schema, None, preprocess.Vocabulary({}), 0.0, key, features=False)
    found = [
        reading.read_columns(source, wanted, place.name, passage).keys
        for source in (place.source, place.test)
        if source is not None
    ]
    return distinct(np.concatenate(found))


def attended(keys: Mapping[str, Keys]) -> Patients:
    """One row for each person: the number of hospitals that they attend.

    >>> both, one = np.array([[1, 2]], np.uint64), np.array([[3, 4]], np.uint64)
    >>> attended({"a": both, "b": np.concatenate([both, one])}).x.ravel().tolist()
    [2.0, 1.0]
    """
    _, count = np.unique(np.concatenate(list(keys.values())), axis=0, return_counts=True)
    x = count.astype(np.float32)[:, None]
    return Patients(x, np.zeros(len(x), np.int32), np.arange(len(x) + 1))


def kept_elsewhere(keys: Mapping[str, Keys], secret: bytes) -> dict[str, Keys]:
    """For each site the people of its own who take part at another one."""
    everybody = np.concatenate(list(keys.values()))
    people, who = np.unique(everybody, axis=0, return_inverse=True)
    best, scores = np.full(len(people), np.iinfo(np.uint64).max), []
    at = 0
    for site, mine in keys.items():
        salt = np.frombuffer(derive(secret, site)[:8], np.uint64)[0]
        index = who.ravel()[at : at + len(mine)]
        scores.append((index, _mixed(mine[:, 1] ^ salt)))
        np.minimum.at(best, *scores[-1])
        at += len(mine)
    chosen = zip(keys.items(), scores, strict=True)
    return {site: mine[score > best[index]] for (site, mine), (index, score) in chosen}


def _mixed(values: np.ndarray[tuple[int, ...], np.dtype[np.uint64]]) -> Keys:
    """Every bit of the result depends on every bit of the value (SplitMix64; Steele et al. 2014):
    one to one, so two hospitals tie only where their salts do."""
    mixed = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
