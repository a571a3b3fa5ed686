"""The server's side of the secure sum: it carries messages between sites and ends with their sum,
or nothing.

The protocol and its stages are described in `masked.py`. The server holds no secret. It can refuse
to do its work, and it can lie; `Sender` ensures that neither shows it one site's words.

    collector = Collector(terms)
    total = play(collector, carry)  # carry(stage, messages by site) -> answers that came, by site

`secure_total` plays all sides in one process, for the embedded engine (``sum = "masked"``), so that
cost and rounding show there. All secrets are then in that process: it hides nothing from whoever
runs it.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeGuard

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from suture.errors import PrivacyError, RunError
from suture.privacy.noise.source import Array, Arrays, State, derive, secure_key
from suture.protection.envelope import layout, seal, unseal
from suture.protection.masked import Sender
from suture.protection.terms import (
    KEYS_BYTES,
    SEALED_BYTES,
    SHARE_BYTES,
    SIGNATURE_BYTES,
    STAGES,
    THRESHOLD,
    Bytes,
    Stage,
    Terms,
    add_mask,
    agreement_text,
    commitment,
    join,
    keys_text,
    mask_private,
    own_mask_key,
    pair_key,
    threshold_of,
    unsigned,
    weights,
)

Answers = Mapping[str, Arrays]
Carry = Callable[[Stage, Answers], Answers]
Rejected = tuple[str, Stage, str]
"""A site, the stage of its answer, and what was wrong with it."""


def play(collector: Collector, carry: Carry) -> State:
    """All stages of one sum; ``carry`` takes messages to the sites and brings answers back."""
    for stage in STAGES:
        collector.take(stage, carry(stage, collector.ask(stage)))
    return collector.total()


class Collector:
    """The server in one sum; `play` leaves ``survivors`` (in the total) and ``rejected``."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.rejected: list[Rejected] = []
        self._present = list(range(len(terms.parties)))
        self._keys: dict[int, Bytes] = {}
        self._signed_keys: dict[int, Bytes] = {}
        self._sealed: dict[int, dict[int, Bytes]] = {}
        self._words: dict[int, Arrays] = {}
        self._signatures: dict[int, Bytes] = {}
        self._shares: dict[int, dict[int, int]] = {}
        self._known_weights: dict[tuple[int, ...], list[int]] = {}

    @property
    def survivors(self) -> tuple[str, ...]:
        """The sites whose words are in the total."""
        return tuple(self.terms.parties[party] for party in sorted(self._words))

    def ask(self, stage: Stage) -> dict[str, State]:
        """One message for every site that is still there."""
        names = self.terms.parties
        if stage == "mask":
            return {names[party]: self._sealed_for(party) for party in self._present}
        message: State = {}
        if stage == "share":
            message = {
                "parties": _listed(self._keys),
                "keys": _stacked(self._keys),
                "signatures": _stacked(self._signed_keys),
            }
        elif stage == "agree":
            message = {"survivors": _listed(self._words)}
        elif stage == "unmask":
            signed = self._signatures
            message = {"signers": _listed(signed), "signatures": _stacked(signed)}
        return {names[party]: message for party in self._present}

    def take(self, stage: Stage, answers: Answers) -> None:
        """Take the answers that came; other sites have dropped out. Too few left: `RunError`."""
        use = {
            "advertise": self._take_keys,
            "share": self._take_sealed,
            "mask": self._take_words,
            "agree": self._take_signature,
            "unmask": self._take_shares,
        }[stage]
        expected, self._present = set(self._present), []
        for party, site in enumerate(self.terms.parties):
            if site not in answers:
                continue
            wrong = use(party, answers[site]) if party in expected else "no answer was expected"
            self._present.append(party)
            if wrong:
                self._reject(party, stage, wrong)
        if stage == "advertise":
            self._drop_equal_keys()
        if stage == "mask":
            self._drop_odd_layouts()
        if len(self._present) < self.terms.threshold:
            raise RunError(
                f"secure sum: {len(self._present)} of {len(self.terms.parties)} sites completed "
                f"stage {stage!r}, the threshold is {self.terms.threshold}; nothing was opened. "
                "The round can be tried again, as a new sum"
            )

    def _reject(self, party: int, stage: Stage, why: str) -> None:
        self.rejected.append((self.terms.parties[party], stage, why))
        self._present.remove(party)

    def total(self) -> State:
        """The sum of the survivors' words, in their own word length."""
        survivors = sorted(self._words)
        gone = sorted(set(self._sealed) - set(survivors))
        first = self._words[survivors[0]]
        total = {name: np.zeros_like(array) for name, array in unsigned(first).items()}
        for party in survivors:
            for name, array in unsigned(self._words[party]).items():
                total[name] += array
            add_mask(total, own_mask_key(self._joined(party, self._own_mask_is_right)), -1)
        for party in gone:
            self._remove_pair_masks(total, party, survivors)
        return {name: array.view(first[name].dtype) for name, array in total.items()}

    # --- answers, one by one: each returns what is wrong with it, or nothing -----------------

    def _take_keys(self, party: int, answer: Arrays) -> str:
        keys, signature = answer.get("keys"), answer.get("signature")
        if not _is_bytes(keys, KEYS_BYTES) or not _is_bytes(signature, SIGNATURE_BYTES):
            return "malformed keys"
        # Sites check this too, but one bad signature would make all of them refuse.
        text = keys_text(self.terms, party, keys.tobytes())
        if not self.terms.verified(party, signature.tobytes(), text):
            return "keys that are not signed by the site"
        if not all(_makes_secrets(keys[start : start + 32].tobytes()) for start in (0, 32)):
            return "a key of low order"
        self._keys[party], self._signed_keys[party] = keys, signature
        return ""

    def _drop_equal_keys(self) -> None:
        """Sites refuse a list with equal keys. Who copied whom is unknown: all are left out."""
        halves = {
            party: [keys[start : start + 32].tobytes() for start in (0, 32)]
            for party, keys in self._keys.items()
        }
        counts = Counter(half for both in halves.values() for half in both)
        for party, both in halves.items():
            if any(counts[half] > 1 for half in both):
                self._reject(party, "advertise", "a key that another site advertises too")
                del self._keys[party], self._signed_keys[party]

    def _take_sealed(self, party: int, answer: Arrays) -> str:
        to, shares = answer.get("to"), answer.get("shares")
        others = [other for other in sorted(self._keys) if other != party]
        if to is None or to.tolist() != others or not _is_bytes(shares, len(others), SEALED_BYTES):
            return "malformed shares"
        self._sealed[party] = {other: shares[i] for i, other in enumerate(others)}
        return ""

    def _take_words(self, party: int, answer: Arrays) -> str:
        if not answer or any(array.dtype not in (np.int32, np.int64) for array in answer.values()):
            return "no words of 32 or 64 bits"
        self._words[party] = answer
        return ""

    def _drop_odd_layouts(self) -> None:
        """Words of another shape than most sites' cannot be added; their site has dropped out."""
        layouts = {party: layout(words) for party, words in self._words.items()}
        usual = Counter(layouts.values()).most_common(1)
        for party, found in layouts.items():
            if found != usual[0][0]:
                self._reject(party, "mask", "words of another shape than the other sites'")
                del self._words[party]

    def _take_signature(self, party: int, answer: Arrays) -> str:
        signature = answer.get("signature")
        if not _is_bytes(signature, SIGNATURE_BYTES):
            return "a malformed signature"
        roster = np.zeros((len(self.terms.parties), KEYS_BYTES), np.uint8)
        for other, keys in self._keys.items():
            roster[other] = keys
        digest = hashlib.sha256(roster.tobytes()).digest()
        text = agreement_text(self.terms, digest, sorted(self._sealed), sorted(self._words))
        if not self.terms.verified(party, signature.tobytes(), text):
            return "a signature on another list"
        self._signatures[party] = signature
        return ""

    def _take_shares(self, party: int, answer: Arrays) -> str:
        of, shares = answer.get("of"), answer.get("shares")
        shared = sorted(self._sealed)
        if of is None or of.tolist() != shared or not _is_bytes(shares, len(shared), SHARE_BYTES):
            return "malformed shares"
        self._shares[party] = {
            other: int.from_bytes(shares[i].tobytes(), "little") for i, other in enumerate(shared)
        }
        return ""

    # --- putting together --------------------------------------------------------------------

    def _sealed_for(self, party: int) -> State:
        sealed = {o: shares[party] for o, shares in self._sealed.items() if o != party}
        return {"from": _listed(sealed), "shares": _stacked(sealed)}

    def _joined(self, party: int, right: Callable[[int, int], bool]) -> int:
        """A site's shared secret. A false share is noticed, and avoided if others suffice."""
        helpers, need = sorted(self._shares), self.terms.threshold
        for start in range(len(helpers)):
            chosen = [helpers[(start + i) % len(helpers)] for i in range(need)]
            secret = join([self._shares[helper][party] for helper in chosen], self._weights(chosen))
            if right(party, secret):
                return secret
            if len(helpers) == need:
                break
        raise RunError(
            f"secure sum: the shares of {self.terms.parties[party]!r} do not fit together (a site "
            "sent a false one); the total was not opened"
        )

    def _weights(self, chosen: Sequence[int]) -> list[int]:
        """Computed once for each set of helpers: it is the same for every site's secret."""
        helpers = tuple(chosen)
        if helpers not in self._known_weights:
            self._known_weights[helpers] = weights(helpers)
        return self._known_weights[helpers]

    def _own_mask_is_right(self, party: int, secret: int) -> bool:
        return commitment(self.terms, party, secret) == self._keys[party][64:].tobytes()

    def _mask_key_is_right(self, party: int, secret: int) -> bool:
        public = mask_private(secret).public_key().public_bytes_raw()
        return public == self._keys[party][32:64].tobytes()

    def _remove_pair_masks(self, total: State, gone: int, survivors: Sequence[int]) -> None:
        """The masks that survivors agreed with a site that left before it sent its words."""
        key = mask_private(self._joined(gone, self._mask_key_is_right))
        for party in survivors:
            public = X25519PublicKey.from_public_bytes(self._keys[party][32:64].tobytes())
            mask = pair_key(self.terms, key.exchange(public), party, gone)
            # The survivor added it with + if it comes first; take that away again.
            add_mask(total, mask, -1 if party < gone else +1)


def _makes_secrets(public: bytes) -> bool:
    """Whether agreeing with this key gives a secret; with a point of low order it gives zero."""
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        return False
    return True


def _listed(by_party: Mapping[int, object]) -> Array:
    return np.array(sorted(by_party), np.int32)


def _stacked(by_party: Mapping[int, Bytes]) -> Array:
    return np.stack([by_party[party] for party in sorted(by_party)])


def _is_bytes(array: Array | None, *shape: int) -> TypeGuard[Bytes]:
    return array is not None and array.dtype == np.uint8 and array.shape == shape


# --- in one process ----------------------------------------------------------------------------


@dataclass
class Cost:
    """Bytes by site each way (sealed, without the network's overhead) and processor seconds."""

    up: dict[str, int] = field(default_factory=dict)
    down: dict[str, int] = field(default_factory=dict)
    site_seconds: dict[str, float] = field(default_factory=dict)
    server_seconds: float = 0.0


@dataclass(frozen=True)
class Total:
    """The sum, whose words are in it, what was rejected, and the cost."""

    words: State
    survivors: tuple[str, ...]
    rejected: tuple[Rejected, ...]
    cost: Cost


def secure_total(
    words: Mapping[str, Arrays],
    *,
    threshold: float = THRESHOLD,
    asked: bytes = bytes(32),
    key: bytes | None = None,
    leave: Mapping[Stage, Collection[str]] | None = None,
    threads: int = 1,
) -> Total:
    """The sum of every site's words by the whole protocol.

    More than a share of ``threshold`` of the sites must stay. ``leave`` says who does not answer
    which stage, and ``key`` replaces the operating system's randomness (both for tests).

    >>> import numpy as np
    >>> total = secure_total({site: {"x": np.array([i, -1])} for i, site in enumerate("abc")})
    >>> total.words["x"].tolist(), total.survivors
    ([3, -3], ('a', 'b', 'c'))
    """
    key, cost = key or secure_key(), Cost()
    parties, needed = tuple(words), threshold_of(len(words), threshold)
    signers = [Ed25519PrivateKey.from_private_bytes(derive(key, "identity", s)) for s in parties]
    public = tuple(signer.public_key().public_bytes_raw() for signer in signers)
    terms = Terms(derive(key, "session"), parties, public, needed, asked)
    senders = {
        site: Sender(terms, site, signer, derive(key, "secret", site))
        for site, signer in zip(parties, signers, strict=True)
    }
    refused: list[Rejected] = []
    collector, begun = Collector(terms), time.thread_time()

    def answer(stage: Stage, site: str, message: bytes) -> bytes | None:
        started, mine = time.thread_time(), words[site] if stage == "mask" else None
        try:
            return seal(senders[site].answer(stage, unseal(message), mine))
        except PrivacyError as error:
            refused.append((site, stage, str(error)))
            return None
        finally:
            spent = time.thread_time() - started
            cost.site_seconds[site] = cost.site_seconds.get(site, 0.0) + spent

    def carry(stage: Stage, messages: Mapping[str, Arrays]) -> dict[str, Arrays]:
        nonlocal begun
        sealed = _sealed(messages)
        cost.server_seconds += time.thread_time() - begun
        silent = (leave or {}).get(stage, ())
        asked_now = [site for site in messages if site not in silent]
        for site in messages:
            cost.down[site] = cost.down.get(site, 0) + len(sealed[site])
        found = _map(lambda site: answer(stage, site, sealed[site]), asked_now, threads)
        begun = time.thread_time()
        for site, data in found:
            cost.up[site] = cost.up.get(site, 0) + len(data or b"")
        return {site: unseal(data) for site, data in found if data is not None}

    total = play(collector, carry)
    cost.server_seconds += time.thread_time() - begun
    return Total(total, collector.survivors, tuple(collector.rejected + refused), cost)


def _sealed(messages: Mapping[str, Arrays]) -> dict[str, bytes]:
    """Every site's message as bytes; one that is the same object for all is sealed once."""
    known: dict[int, bytes] = {}
    for message in messages.values():
        if id(message) not in known:
            known[id(message)] = seal(message)
    return {site: known[id(message)] for site, message in messages.items()}


def _map(
    function: Callable[[str], bytes | None], sites: list[str], threads: int
) -> list[tuple[str, bytes | None]]:
    if threads == 1:
        return [(site, function(site)) for site in sites]
    with ThreadPoolExecutor(threads) as pool:
        return list(zip(sites, pool.map(function, sites), strict=True))
