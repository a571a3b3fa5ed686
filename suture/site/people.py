"""People who attend several hospitals: how many there are, and one group of rows for each.

**On one machine** identifiers are compared as keyed hashes under a key that is made of all sites' secrets, so it exists
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

**Between machines** two hospitals at a time compare blinded points (`Pair`): Diffie-Hellman private
set intersection (Meadows 1986) in the group Ristretto255, whose arithmetic is libsodium's (rbcl). With
H a hash into the group, the first sends a H(x) for its people x; the second answers with b a H(x) and
with b H(y) for its own y, both sorted; the first counts how many a b H(y) are among the answers. Both
know 2t invented strangers: the first sends them all, the second owns t + Y of them, Y being its noise,
so that nobody learns the exact count. docs/privacy.md has the proof and its limits.
"""

from __future__ import annotations

import hashlib
import importlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from types import ModuleType

import numpy as np
from dp_accounting import DpEvent, SelfComposedDpEvent

from suture.errors import MissingExtra, StudyError
from suture.privacy.accounting.planner import Budget, noise_for
from suture.privacy.noise.mechanisms import Counts
from suture.privacy.noise.source import derive
from suture.privacy.unit import Patients
from suture.schema.table import Schema
from suture.site import preprocess, reading
from suture.site.gate import Place
from suture.site.reading import Keys, Passage, distinct
from suture.study import Study

OVERLAP = "overlap"
POINT = 32
ROOM = 2
"""A hospital's set is filled up to so many times its declared patients, who are those in training."""
MOST_HOSPITALS = 20


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


# --- between machines -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """One comparison of two hospitals, as everybody knows it."""

    first: str
    second: str
    number: int
    sizes: tuple[int, int]
    """To how many people each set is filled up, or cut."""
    mechanism: Counts

    @property
    def middle(self) -> int:
        """What is taken off the count: half of the strangers."""
        return math.ceil(10 * self.mechanism.sigma)

    def elements(self, keys: Keys, secret: bytes, first: bool, planted: int = 0) -> list[bytes]:
        """A hospital's set: people, strangers, and random fillings, in a secret order."""
        size = self.sizes[not first]
        known = [b"person" + key.tobytes() for key in keys]
        known = sorted(known, key=lambda one: derive(secret, "who is left out", one))[:size]
        strangers = (
            2 * self.middle if first else min(max(self.middle + planted, 0), 2 * self.middle)
        )
        known += [b"stranger%d" % i for i in range(strangers)]
        filled = range(size + 2 * self.middle - len(known))
        known += [b"nobody" + derive(secret, "filling", i) for i in filled]
        return sorted(known, key=lambda one: derive(secret, "order", one))


@dataclass(frozen=True)
class Comparisons:
    """Every two hospitals of a study, and what the counts cost each of them."""

    pairs: tuple[Pair, ...]
    budget: Budget
    event: DpEvent
    """Of all counts that one hospital is in."""

    def of(self, one: str, other: str) -> Pair:
        """The comparison of two hospitals."""
        for pair in self.pairs:
            if {pair.first, pair.second} == {one, other}:
                return pair
        raise StudyError(f"the study does not compare {one!r} with {other!r}")


def comparisons(study: Study) -> Comparisons:
    """What `suture overlap` asks of sites that are elsewhere, from the study alone."""
    sizes = {site.name: site.patients for site in study.sites}
    if study.overlap is None or study.table is None or study.table.patient is None:
        raise StudyError(
            "people of hospitals that are elsewhere are counted for a study that says what it costs: "
            "write overlap = 0.1 (an epsilon) in [study], and schema.patient. The sites accept the "
            "study with it"
        )
    if not 2 <= len(sizes) <= MOST_HOSPITALS or None in sizes.values():
        raise StudyError(
            f"people are compared between 2 to {MOST_HOSPITALS} [[site]]s that declare patients = ..."
        )
    promised, rounds = study.privacy, len(sizes) - 1
    delta, accountant = (promised.delta, promised.accountant) if promised else (1e-5, "pld")
    noise = noise_for(study.overlap, delta, 1.0, rounds, accountant)
    mechanism = Counts(1, 1.0, noise)
    room = {name: ROOM * int(patients or 0) for name, patients in sizes.items()}
    pairs = [
        Pair(one, other, i, (room[one], room[other]), mechanism)
        for i, (one, other) in enumerate(combinations(sizes, 2), start=1)
    ]
    budget = Budget(study.overlap, delta, accountant)
    return Comparisons(tuple(pairs), budget, SelfComposedDpEvent(mechanism.event, rounds))


def blinded(elements: Iterable[bytes], secret: bytes) -> bytes:
    """The elements as points of the group, times the secret."""
    sodium, key = _sodium(), _scalar(secret)
    hashes = (hashlib.sha512(b"suture people 1" + one).digest() for one in elements)
    points = (sodium.crypto_core_ristretto255_from_hash(one) for one in hashes)
    return b"".join(sodium.crypto_scalarmult_ristretto255(key, point) for point in points)


def raised(points: bytes, secret: bytes, size: int) -> bytes:
    """Another hospital's points times the secret, sorted; refused unless they are ``size`` different
    ones."""
    sodium, key = _sodium(), _scalar(secret)
    apart = [points[i : i + POINT] for i in range(0, len(points), POINT)]
    if len(points) != size * POINT or len(set(apart)) != size:
        raise StudyError(f"expected {size} different points of another hospital")
    try:
        return b"".join(sorted(sodium.crypto_scalarmult_ristretto255(key, p) for p in apart))
    except RuntimeError:
        raise StudyError("another hospital sent something that is no point of the group") from None


def matched(mine: bytes, theirs: bytes) -> Patients:
    """One row for each of the first hospital's points: whether the second has it too."""
    both = [{one[i : i + POINT] for i in range(0, len(one), POINT)} for one in (mine, theirs)]
    x = (np.arange(len(both[0])) < len(both[0] & both[1])).astype(np.float32)[:, None]
    return Patients(x, np.zeros(len(x), np.int32), np.arange(len(x) + 1))


def _scalar(secret: bytes) -> bytes:
    wide = hashlib.sha512(derive(secret, "scalar")).digest()
    found: bytes = _sodium().crypto_core_ristretto255_scalar_reduce(wide)
    return found


def _sodium() -> ModuleType:
    try:
        return importlib.import_module("rbcl")
    except ImportError:
        raise MissingExtra(
            "comparing people between machines needs rbcl: pip install 'suture[overlap]'"
        ) from None
