"""The secure sum over a network, the server's side: it carries messages between sites and ends with their sum, or nothing.

The protocol and its stages are described in `masked.py`. The server holds no secret. It can refuse to do its work, and it
can lie; `Sender` sees to it that neither shows it one site's words.

    collector = Collector(terms)
    total = play(collector, carry)     # carry(stage, messages by site) -> answers of the sites that answered
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from numpy.typing import NDArray

from suture.errors import RunError
from suture.protection.masks import add_mask, commitment, mask_private, own_mask_key, pair_key, unsigned
from suture.protection.shamir import SHARE_BYTES, join, weights
from suture.protection.terms import (
    KEYS_BYTES,
    SEALED_BYTES,
    SIGNATURE_BYTES,
    STAGES,
    Arrays,
    Bytes,
    Stage,
    Terms,
    agreement_text,
    keys_text,
)

Answers = Mapping[str, Arrays]
Carry = Callable[[Stage, Mapping[str, Arrays]], Answers]


def play(collector: Collector, carry: Carry) -> dict[str, NDArray[Any]]:
    """All stages of one sum; ``carry`` takes the messages to the sites and brings back what was answered in time."""
    for stage in STAGES:
        collector.take(stage, carry(stage, collector.ask(stage)))
    return collector.total()


class Collector:
    """The server in one sum. After `play`: ``survivors`` (whose words are in the total) and ``rejected`` (what was odd)."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.rejected: list[tuple[str, Stage, str]] = []
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

    def ask(self, stage: Stage) -> dict[str, dict[str, NDArray[Any]]]:
        """One message for every site that is still there."""
        names = self.terms.parties
        message: dict[str, NDArray[Any]] = {}
        if stage == "advertise":
            return {names[party]: {} for party in self._present}
        if stage == "share":
            keyed = sorted(self._keys)
            message = {
                "parties": np.array(keyed, np.int32),
                "keys": np.stack([self._keys[party] for party in keyed]),
                "signatures": np.stack([self._signed_keys[party] for party in keyed]),
            }
            return {names[party]: message for party in self._present}
        if stage == "mask":
            return {names[party]: self._sealed_for(party) for party in self._present}
        if stage == "agree":
            message = {"survivors": np.array(sorted(self._words), np.int32)}
            return {names[party]: message for party in self._present}
        signers = sorted(self._signatures)
        message = {
            "signers": np.array(signers, np.int32),
            "signatures": np.stack([self._signatures[party] for party in signers]),
        }
        return {names[party]: message for party in self._present}

    def take(self, stage: Stage, answers: Answers) -> None:
        """Take the answers that came; sites without a well-formed one have dropped out. Too few: `RunError`."""
        use = {
            "advertise": self._take_keys,
            "share": self._take_sealed,
            "mask": self._take_words,
            "agree": self._take_signature,
            "unmask": self._take_shares,
        }[stage]
        expected, stayed = set(self._present), []
        for party, answer in sorted(
            (self.terms.parties.index(s), a) for s, a in answers.items() if s in self.terms.parties
        ):
            problem = use(party, answer) if party in expected else "no answer was expected"
            if problem:
                self.rejected.append((self.terms.parties[party], stage, problem))
            else:
                stayed.append(party)
        self._present = stayed
        if stage == "advertise":
            self._drop_equal_keys()
        if stage == "mask":
            self._drop_odd_layouts()
        if len(self._present) < self.terms.threshold:
            raise RunError(
                f"secure sum: {len(self._present)} of {len(self.terms.parties)} sites completed stage {stage!r}, "
                f"the threshold is {self.terms.threshold}; nothing was opened. The round can be tried again, as a new sum"
            )

    def total(self) -> dict[str, NDArray[Any]]:
        """The sum of the survivors' words, in their own word length."""
        survivors = sorted(self._words)
        gone = sorted(set(self._sealed) - set(survivors))
        first = self._words[survivors[0]]
        total = {name: np.zeros_like(array) for name, array in unsigned(first).items()}
        for party in survivors:
            for name, array in unsigned(self._words[party]).items():
                total[name] += array
        for party in survivors:
            own = self._joined(party, self._own_mask_is_right)
            add_mask(total, own_mask_key(own), -1)
        for party in gone:
            self._remove_pair_masks(total, party, survivors)
        return {name: array.view(first[name].dtype) for name, array in total.items()}

    # --- answers, one by one: each returns what is wrong with it, or nothing ------------------------------------------

    def _take_keys(self, party: int, answer: Arrays) -> str:
        keys, signature = answer.get("keys"), answer.get("signature")
        if not _is_bytes(keys, KEYS_BYTES) or not _is_bytes(signature, SIGNATURE_BYTES):
            return "malformed keys"
        # Sites check this too; one bad signature would make all of them refuse, so it must not get that far.
        text = keys_text(self.terms, party, keys.tobytes())
        if not self.terms.verified(party, signature.tobytes(), text):
            return "keys that are not signed by the site"
        if not all(_makes_secrets(keys[start : start + 32].tobytes()) for start in (0, 32)):
            return "a key of low order"
        self._keys[party], self._signed_keys[party] = keys, signature
        return ""

    def _drop_equal_keys(self) -> None:
        """Sites refuse a list with equal keys, and who copied whom cannot be known: all of them are left out."""
        halves = [keys[start : start + 32].tobytes() for keys in self._keys.values() for start in (0, 32)]
        counts = Counter(halves)
        for party in list(self._keys):
            if any(counts[self._keys[party][start : start + 32].tobytes()] > 1 for start in (0, 32)):
                self.rejected.append((self.terms.parties[party], "advertise", "a key that another site advertises too"))
                del self._keys[party], self._signed_keys[party]
                self._present.remove(party)

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
        """Words of another shape than most sites' cannot be added; their site counts as dropped out."""
        layouts = {party: _layout(words) for party, words in self._words.items()}
        if not layouts:
            return
        usual = Counter(layouts.values()).most_common(1)[0][0]
        for party in [party for party, layout in layouts.items() if layout != usual]:
            self.rejected.append((self.terms.parties[party], "mask", "words of another shape than the other sites'"))
            del self._words[party]
            self._present.remove(party)

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
        self._shares[party] = {other: int.from_bytes(shares[i].tobytes(), "little") for i, other in enumerate(shared)}
        return ""

    # --- putting together --------------------------------------------------------------------------------------------

    def _sealed_for(self, party: int) -> dict[str, NDArray[Any]]:
        others = [other for other in sorted(self._sealed) if other != party]
        return {"from": np.array(others, np.int32), "shares": np.stack([self._sealed[o][party] for o in others])}

    def _joined(self, party: int, right: Callable[[int, int], bool]) -> int:
        """A site's shared secret. A false share is noticed, and got round where more sites than needed have answered."""
        helpers, need = sorted(self._shares), self.terms.threshold
        for start in range(len(helpers)):
            chosen = [helpers[(start + i) % len(helpers)] for i in range(need)]
            secret = join([self._shares[helper][party] for helper in chosen], self._weights(chosen))
            if right(party, secret):
                return secret
            if len(helpers) == need:
                break
        raise RunError(
            f"secure sum: the shares of {self.terms.parties[party]!r} do not fit together (a site sent a false one); "
            "the total was not opened"
        )

    def _weights(self, chosen: Sequence[int]) -> list[int]:
        """Computed once for each set of helpers: it is the same for every site's secret."""
        if tuple(chosen) not in self._known_weights:
            self._known_weights[tuple(chosen)] = weights(chosen)
        return self._known_weights[tuple(chosen)]

    def _own_mask_is_right(self, party: int, secret: int) -> bool:
        return commitment(self.terms, party, secret) == self._keys[party][64:].tobytes()

    def _mask_key_is_right(self, party: int, secret: int) -> bool:
        public = mask_private(secret).public_key().public_bytes_raw()
        return public == self._keys[party][32:64].tobytes()

    def _remove_pair_masks(self, total: dict[str, NDArray[Any]], gone: int, survivors: Sequence[int]) -> None:
        """The masks that survivors agreed with a site that left before it sent its words."""
        key = mask_private(self._joined(gone, self._mask_key_is_right))
        for party in survivors:
            public = X25519PublicKey.from_public_bytes(self._keys[party][32:64].tobytes())
            mask = pair_key(self.terms, key.exchange(public), party, gone)
            # The survivor added it with + if it comes first; take that away again.
            add_mask(total, mask, -1 if party < gone else +1)


def _makes_secrets(public: bytes) -> bool:
    """Whether agreeing with this key gives a secret; with a point of low order it gives zero whatever the other key is."""
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        return False
    return True


def _is_bytes(array: NDArray[Any] | None, *shape: int) -> TypeGuard[Bytes]:
    return array is not None and array.dtype == np.uint8 and array.shape == shape


def _layout(words: Arrays) -> tuple[Any, ...]:
    return tuple((name, words[name].dtype.str, words[name].shape) for name in sorted(words))
