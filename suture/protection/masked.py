"""The sum under masks: the server gets masked words and learns only their sum.

Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth: Practical Secure
Aggregation for Privacy-Preserving Machine Learning. CCS 2017, Figure 4, in its form against a
server that lies (with signatures and the consistency check). docs/secure-sums.md has the protocol on
one screen, its five stages (`advertise`, `share`, `mask`, `agree`, `unmask`: 0 to 4 in the paper)
and what is proven. In each stage `Collector.ask` makes the server's messages, `Sender.answer`
answers, `Collector.take` takes the answers; a site that does not answer has dropped out. `play` is
the whole loop.

Whoever got shares of both secrets of one site could read its words, so a site gives only one share
per site, once, for one list that at least ``threshold`` sites have signed. Two lists would need more
signers than there are (see `Terms`).

Keys: X25519 (RFC 7748) and HKDF with SHA-256 (RFC 5869); PRG: AES-128 in counter mode; all from
`cryptography`. Secret sharing is the only mathematics written here (Shamir: How to Share a Secret.
Communications of the ACM, 1979): the secret is the value at 0 of a polynomial of degree t - 1 with
uniformly random coefficients over the field of p = 2^255 - 19 elements; the share of party i is its
value at i + 1.

A `Sender` serves one sum. Where the next stage may run in another process, save `Sender.state` at
the site *before* the answer leaves, delete it after the sum, and continue with `Sender.resume`. A
site that lost its state has dropped out.

With ``keys = "study"`` there are no shares and no five stages: sites agree on keys once
(`Standing`), and a sum is one exchange. A sum that a site leaves is not opened, and is tried again
without it as another sum. `secure_total` plays all sides in one process, for the
embedded engine; it hides nothing from whoever runs that process.

What a caller must ensure:
- A release is masked in one sum only: the same words in two sums with different survivors give the
  server one site's words. A repeated round needs a new session, new noise and a new charge.
- `Terms.asked` is a digest of everything that decides what a site adds; whatever it leaves out, the
  server could tell each site differently (`suture.engine.gather`).
- Identities are public keys that the site itself has enrolled, never ones that the server names.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TypeGuard

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from suture.errors import PrivacyError, RunError
from suture.privacy.noise.source import Array, Arrays, Keystream, State, derive, secure_key
from suture.protection.envelope import layout, seal, unseal
from suture.protection.secure_sum import pack_words, plain_words, word_length, wrapped
from suture.protection.terms import STAGES, THRESHOLD, Stage, Terms, threshold_of

Bytes = NDArray[np.uint8]
PRIME = 2**255 - 19
SHARE_BYTES = 32
KEYS_BYTES, SIGNATURE_BYTES, SEALED_BYTES = 96, 64, 2 * SHARE_BYTES + 16
Answers = Mapping[str, Arrays]
Carry = Callable[[Stage, Answers], Answers]
Rejected = tuple[str, Stage, str]
"""A site, the stage of its answer, and what was wrong with it."""


# --- Shamir's secret sharing ---------------------------------------------------------------


def element(key: bytes, *labels: str | int | bytes) -> int:
    """A pseudo-random element of the field: 512 bits reduced, within 2^-256 of uniform."""
    wide = derive(key, *labels, "low") + derive(key, *labels, "high")
    return int.from_bytes(wide, "little") % PRIME


def split(secret: int, threshold: int, parties: int, key: bytes) -> list[int]:
    """The shares of parties 0, 1, ...; ``key`` gives the coefficients: secret, and used once."""
    if not 1 <= threshold <= parties or not 0 <= secret < PRIME:
        raise PrivacyError(f"expected 1 <= threshold <= parties, found {threshold} of {parties}")
    coefficients = [element(key, "coefficient", i) for i in range(threshold - 1, 0, -1)]
    shares = []
    for place in range(1, parties + 1):
        value = 0
        # Places are small, so one reduction at the end is cheaper than one per step.
        for coefficient in coefficients:
            value = value * place + coefficient
        shares.append((value * place + secret) % PRIME)
    return shares


@lru_cache(maxsize=64)  # the same for every site's secret
def weights(parties: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's weights at 0: the secret is the sum of weight times share over these parties."""
    places = [party + 1 for party in parties]
    if len(set(places)) != len(places) or min(places, default=1) < 1:
        raise PrivacyError("shares of different parties are needed, each once")
    found = []
    for place in places:
        above, below = 1, 1
        for other in places:
            if other != place:
                above = above * other % PRIME
                below = below * (other - place) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(found)


def join(shares: Sequence[int], weighted: Sequence[int]) -> int:
    """The secret, from shares and the `weights` of their parties, in the same order.

    >>> shares = split(7, 2, 3, bytes(32))
    >>> join([shares[1], shares[2]], weights((1, 2)))
    7
    """
    return sum(share * weight for share, weight in zip(shares, weighted, strict=True)) % PRIME


# --- masks, and what is signed -------------------------------------------------------------------


def raw(data: bytes) -> Bytes:
    """Bytes as an array that an envelope carries."""
    return np.frombuffer(data, np.uint8)


def _to_bytes(value: int) -> bytes:
    return value.to_bytes(SHARE_BYTES, "little")


def _commitment(terms: Terms, party: int, own_mask: int) -> bytes:
    """Lets the server check a reassembled own mask; reveals nothing about it."""
    return derive(_to_bytes(own_mask), "commitment", terms.digest, party)


def mask_private(seed: int) -> X25519PrivateKey:
    """The key behind a site's pairwise masks, from the field element that is shared out."""
    return X25519PrivateKey.from_private_bytes(derive(_to_bytes(seed), "mask key"))


def own_mask_key(own_mask: int) -> bytes:
    """The key of PRG(b_u)."""
    return derive(_to_bytes(own_mask), "own mask")


def pair_key(terms: Terms, agreed: bytes, one: int, other: int) -> bytes:
    """The key of PRG(s_uv), the same for both."""
    return _expand(agreed, derive(terms.digest, "pair", min(one, other), max(one, other)))


def _expand(agreed: bytes, info: bytes) -> bytes:
    return HKDF(SHA256(), 32, None, info).derive(agreed)


def unsigned(words: Arrays) -> State:
    """A copy as unsigned words, which wrap (modulo 2^32 or 2^64), in the order of their names."""
    found: State = {}
    for name in sorted(words):
        kind = words[name].dtype
        if kind not in (np.int32, np.int64):
            raise RunError(f"secure sum: {name!r} has type {kind}, expected int32 or int64 words")
        wide = np.uint32 if kind == np.int32 else np.uint64
        found[name] = np.array(words[name], order="C").view(wide)
    return found


def packed(masked: Arrays, words: Arrays) -> State:
    """Masked words as they travel. Words of b bits are uniform modulo 2^b under their masks, and
    masks cancel there too, so that only b bits of each are sent."""
    found: State = {}
    for name, array in masked.items():
        plain, bits = array.view(words[name].dtype), word_length(name)
        found[name] = pack_words(plain, bits) if bits else plain
    return found


def add_mask(words: Arrays, key: bytes, sign: int) -> None:
    """Add or subtract PRG(key) in place, over all arrays in the order of their names."""
    stream = Keystream(key)
    step = np.add if sign > 0 else np.subtract
    buffer = np.empty(1 << 17, np.uint8)
    for array in words.values():
        flat = array.reshape(-1)
        mask = buffer.view(array.dtype)
        for start in range(0, len(flat), len(mask)):
            piece = flat[start : start + len(mask)]
            stream.fill(mask[: len(piece)])
            step(piece, mask[: len(piece)], out=piece)


def keys_text(terms: Terms, party: int, keys: bytes) -> bytes:
    """What a site signs when it advertises."""
    return b"suture secure sum keys 1\n" + derive(terms.digest, "keys", party, keys)


def _agreement_text(
    terms: Terms, roster: bytes, shared: Sequence[int], survivors: Sequence[int]
) -> bytes:
    """What a site signs in the consistency check: all that the server told it."""
    lists = [str(sorted(shared)), str(sorted(survivors))]
    return b"suture secure sum survivors 1\n" + derive(terms.digest, "survivors", roster, *lists)


# --- a site --------------------------------------------------------------------------------------

_NONCE = bytes(12)


class Sender:
    """One site in one sum. Each stage is answered once, in order; violations are refused."""

    def __init__(
        self, terms: Terms, party: str, identity: Ed25519PrivateKey, secret: bytes
    ) -> None:
        if party not in terms.parties:
            raise PrivacyError(f"secure sum: site {party!r} is not a party of it")
        self.terms, self.party, self.me = terms, party, terms.parties.index(party)
        if identity.public_key().public_bytes_raw() != terms.identities[self.me]:
            raise PrivacyError(
                f"secure sum: the key of site {party!r} is not the one that was enrolled for it"
            )
        self._identity = identity
        self._kept: State = {"stage": np.zeros(1, np.int32), "secret": raw(secret)}
        self._agreements: dict[bytes, bytes] = {}

    @classmethod
    def resume(cls, terms: Terms, party: str, identity: Ed25519PrivateKey, state: Arrays) -> Sender:
        """The same sender in another process, from its `state`."""
        sender = cls(terms, party, identity, state["secret"].tobytes())
        if state["terms"].tobytes() != terms.digest:
            raise PrivacyError("secure sum: the kept state belongs to another sum")
        sender._kept = {name: np.array(array) for name, array in state.items() if name != "terms"}
        return sender

    @property
    def state(self) -> State:
        """Everything that must survive until the next stage; secret, never leaves the site."""
        return {**self._kept, "terms": raw(self.terms.digest)}

    def answer(self, stage: Stage, message: Arrays, words: Arrays | None = None) -> State:
        """The answer to one stage; ``words`` (int32 or int64 arrays) are needed for `mask`."""
        at = int(self._kept["stage"][0])
        expected = STAGES[at] if 0 <= at < len(STAGES) else None
        # A stage counts as begun before it is answered: a failed one is never tried again.
        self._kept["stage"] = np.array([len(STAGES)], np.int32)
        if stage != expected:
            raise self._refusal(
                f"was asked for stage {stage!r}, expected {expected!r}; each stage is answered once"
            )
        if stage == "mask":
            found = self._mask(message, words or {})
        else:
            others = {"advertise": self._advertise, "share": self._share, "agree": self._agree}
            found = others.get(stage, self._unmask)(message)
        self._kept["stage"] = np.array([at + 1], np.int32)
        return found

    def _advertise(self, _: Arrays) -> State:
        own = self._public + _commitment(self.terms, self.me, self._own_mask)
        signature = self._identity.sign(keys_text(self.terms, self.me, own))
        return {"keys": raw(own), "signature": raw(signature)}

    def _share(self, message: Arrays) -> State:
        terms, n = self.terms, len(self.terms.parties)
        present = self._some(message, "parties", least=terms.threshold)
        keys = self._bytes(message, "keys", len(present), KEYS_BYTES)
        signatures = self._bytes(message, "signatures", len(present), SIGNATURE_BYTES)
        for i, party in enumerate(present):
            text = keys_text(terms, party, keys[i].tobytes())
            if not terms.verified(party, signatures[i].tobytes(), text):
                raise self._refusal(f"keys of {terms.parties[party]!r} are not signed by it")
        public = [key[start : start + 32].tobytes() for key in keys for start in (0, 32)]
        if len(set(public)) != len(public):
            raise self._refusal("two of the public keys are equal")
        roster = np.zeros((n, KEYS_BYTES), np.uint8)
        roster[present] = keys
        if roster[self.me].tobytes()[:64] != self._public:
            raise self._refusal("its own keys were exchanged")
        self._kept |= {"roster": roster, "keyed": np.array(present, np.int32)}
        secrets = [derive(self._secret, f"polynomial {which}") for which in "bs"]
        mask_shares = split(self._own_mask, terms.threshold, n, secrets[0])
        key_shares = split(self._mask_seed, terms.threshold, n, secrets[1])
        others = [party for party in present if party != self.me]
        sealed = np.zeros((len(others), SEALED_BYTES), np.uint8)
        held = np.zeros((n, 2 * SHARE_BYTES), np.uint8)
        for i, party in enumerate(others):
            self._agreed(self._mask_key, party, 32)  # refuses a useless key before sharing anything
            both = _to_bytes(mask_shares[party]) + _to_bytes(key_shares[party])
            sealed[i] = raw(AESGCM(self._channel(self.me, party)).encrypt(_NONCE, both, None))
        held[self.me, :SHARE_BYTES] = raw(_to_bytes(mask_shares[self.me]))
        self._kept["held"] = held
        return {"to": np.array(others, np.int32), "shares": sealed}

    def _mask(self, message: Arrays, words: Arrays) -> State:
        terms, keyed = self.terms, set(self._kept["keyed"].tolist())
        others = self._some(message, "from", least=terms.threshold - 1)
        sealed = self._bytes(message, "shares", len(others), SEALED_BYTES)
        if self.me in others or not keyed.issuperset(others):
            raise self._refusal("shares from a site that has not advertised keys, or from itself")
        for i, party in enumerate(others):
            channel, site = AESGCM(self._channel(party, self.me)), terms.parties[party]
            try:
                both = channel.decrypt(_NONCE, sealed[i].tobytes(), None)
            except InvalidTag:
                raise self._refusal(f"the shares from {site!r} cannot be opened") from None
            self._kept["held"][party] = raw(both)
        self._kept["shared"] = np.array(sorted([*others, self.me]), np.int32)
        masked = unsigned(words)
        if not masked:
            raise self._refusal("there are no words to mask")
        add_mask(masked, own_mask_key(self._own_mask), +1)
        for party in others:
            secret = self._agreed(self._mask_key, party, 32)
            add_mask(masked, pair_key(terms, secret, self.me, party), +1 if self.me < party else -1)
        return packed(masked, words)

    def _agree(self, message: Arrays) -> State:
        survivors = self._some(message, "survivors", least=self.terms.threshold)
        if self.me not in survivors:
            raise self._refusal("the server's list wrongly says that this site dropped out")
        if not set(self._kept["shared"].tolist()).issuperset(survivors):
            raise self._refusal("the server's list names a site that shared no keys")
        self._kept["survivors"] = np.array(survivors, np.int32)
        return {"signature": raw(self._identity.sign(self._transcript(survivors)))}

    def _unmask(self, message: Arrays) -> State:
        terms, survivors = self.terms, self._kept["survivors"].tolist()
        signers = self._some(message, "signers", least=terms.threshold)
        signatures = self._bytes(message, "signatures", len(signers), SIGNATURE_BYTES)
        if not set(survivors).issuperset(signers):
            raise self._refusal("a site signed that is not on the list of survivors")
        text = self._transcript(survivors)
        for i, party in enumerate(signers):
            if not terms.verified(party, signatures[i].tobytes(), text):
                raise self._refusal(
                    f"{terms.parties[party]!r} did not sign the list of survivors that this site "
                    "was shown; nothing is unmasked"
                )
        shared, stayed = self._kept["shared"], set(survivors)
        shares = np.zeros((len(shared), SHARE_BYTES), np.uint8)
        for i, party in enumerate(shared.tolist()):
            # Never both: the share of its own mask for who stayed, of its mask key for who left.
            start = 0 if party in stayed else SHARE_BYTES
            shares[i] = self._kept["held"][party, start : start + SHARE_BYTES]
        return {"of": shared, "shares": shares}

    # --- keys, and checks of messages -------------------------------------------------------

    @property
    def _secret(self) -> bytes:
        return derive(self._kept["secret"].tobytes(), "sender", self.terms.digest, self.me)

    @cached_property
    def _channel_key(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(derive(self._secret, "channel"))

    @cached_property
    def _mask_seed(self) -> int:
        return element(self._secret, "mask key")

    @cached_property
    def _mask_key(self) -> X25519PrivateKey:
        return mask_private(self._mask_seed)

    @cached_property
    def _own_mask(self) -> int:
        return element(self._secret, "own mask")

    @cached_property
    def _public(self) -> bytes:
        own = (self._channel_key, self._mask_key)
        return b"".join(key.public_key().public_bytes_raw() for key in own)

    @cached_property
    def _roster_digest(self) -> bytes:
        return hashlib.sha256(self._kept["roster"].tobytes()).digest()

    def _transcript(self, survivors: Sequence[int]) -> bytes:
        shared = self._kept["shared"].tolist()
        return _agreement_text(self.terms, self._roster_digest, shared, survivors)

    def _agreed(self, key: X25519PrivateKey, party: int, start: int) -> bytes:
        public = self._kept["roster"][party, start : start + 32].tobytes()
        if public not in self._agreements:
            try:
                self._agreements[public] = key.exchange(X25519PublicKey.from_public_bytes(public))
            except ValueError:
                site = self.terms.parties[party]
                raise self._refusal(f"{site!r} advertised a key of low order") from None
        return self._agreements[public]

    def _channel(self, sender: int, receiver: int) -> bytes:
        """The key of one message between two sites, and of no other, so its nonce may be fixed."""
        other = receiver if sender == self.me else sender
        info = derive(self.terms.digest, "channel", self._roster_digest, sender, receiver)
        return _expand(self._agreed(self._channel_key, other, 0), info)

    def _some(self, message: Arrays, name: str, least: int) -> list[int]:
        """A list of parties: each once, in order, enough of them."""
        found = message.get(name)
        if found is None or found.ndim != 1 or found.dtype != np.int32:
            raise self._refusal(f"expected a list of sites as {name!r}")
        listed, n = found.tolist(), len(self.terms.parties)
        if listed != sorted(set(listed)) or not all(0 <= party < n for party in listed):
            raise self._refusal(f"the list {name!r} names a site twice, or one that is no party")
        if len(listed) < least:
            raise self._refusal(f"{name!r} lists {len(listed)} sites; {least} are needed")
        return [int(party) for party in listed]

    def _bytes(self, message: Arrays, name: str, count: int, length: int) -> Bytes:
        found = message.get(name)
        if not _is_bytes(found, count, length):
            raise self._refusal(f"expected {count} times {length} bytes as {name!r}")
        return found

    def _refusal(self, why: str) -> PrivacyError:
        return PrivacyError(f"secure sum, site {self.party!r} refuses: {why}")


# --- the server ----------------------------------------------------------------------------------


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

    @property
    def survivors(self) -> tuple[str, ...]:
        """The sites whose words are in the total."""
        return tuple(self.terms.parties[party] for party in sorted(self._words))

    def ask(self, stage: Stage) -> dict[str, State]:
        """One message for every site that is still there."""
        names, message = self.terms.parties, State()
        if stage == "mask":
            found = {}
            for party in self._present:
                sealed = {o: shares[party] for o, shares in self._sealed.items() if o != party}
                found[names[party]] = {"from": _listed(sealed), "shares": _stacked(sealed)}
            return found
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

    def total(self) -> State:
        """The sum of the survivors' words, in their own word length."""
        survivors = sorted(self._words)
        gone = sorted(set(self._sealed) - set(survivors))  # they shared, but sent no words
        first = self._words[survivors[0]]
        total = _added([self._words[party] for party in survivors])
        for party in survivors:
            add_mask(total, own_mask_key(self._joined(party, self._own_mask_is_right)), -1)
        for left in gone:  # remove the masks that survivors had agreed with it
            key = mask_private(self._joined(left, self._mask_key_is_right))
            for party in survivors:
                public = X25519PublicKey.from_public_bytes(self._keys[party][32:64].tobytes())
                mask = pair_key(self.terms, key.exchange(public), party, left)
                # The survivor added it with + if it comes first; take that away again.
                add_mask(total, mask, -1 if party < left else +1)
        return as_sent(total, first)

    def _reject(self, party: int, stage: Stage, why: str) -> None:
        self.rejected.append((self.terms.parties[party], stage, why))
        self._present.remove(party)

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
        try:
            self._words[party] = taken_words(answer)
        except RunError:
            return "no words of 32 or 64 bits"
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
        text = _agreement_text(self.terms, digest, sorted(self._sealed), sorted(self._words))
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

    def _joined(self, party: int, right: Callable[[int, int], bool]) -> int:
        """A site's shared secret. A false share is noticed, and avoided if others suffice."""
        helpers, need = sorted(self._shares), self.terms.threshold
        for start in range(len(helpers)):
            chosen = [helpers[(start + i) % len(helpers)] for i in range(need)]
            shares = [self._shares[helper][party] for helper in chosen]
            secret = join(shares, weights(tuple(chosen)))
            if right(party, secret):
                return secret
            if len(helpers) == need:
                break
        raise RunError(
            f"secure sum: the shares of {self.terms.parties[party]!r} do not fit together (a site "
            "sent a false one); the total was not opened"
        )

    def _own_mask_is_right(self, party: int, secret: int) -> bool:
        return _commitment(self.terms, party, secret) == self._keys[party][64:].tobytes()

    def _mask_key_is_right(self, party: int, secret: int) -> bool:
        public = mask_private(secret).public_key().public_bytes_raw()
        return public == self._keys[party][32:64].tobytes()


def taken_words(answer: Arrays) -> State:
    """Words of 32 or 64 bits from an answer, packed or not; anything else is refused."""
    found = plain_words(answer)
    if not found or any(array.dtype not in (np.int32, np.int64) for array in found.values()):
        raise RunError("secure sum: expected words of 32 or 64 bits, or packed ones")
    return found


def _added(words: Sequence[Arrays]) -> State:
    """The sum of words of one layout, unsigned, so that it wraps."""
    total = unsigned(words[0])
    for one in words[1:]:
        for name, array in unsigned(one).items():
            total[name] += array
    return total


def as_sent(total: State, first: Arrays) -> State:
    """A total in the words' own length: of packed ones modulo 2^bits, around 0."""
    found: State = {}
    for name, array in total.items():
        plain, bits = array.view(first[name].dtype), word_length(name)
        found[name] = wrapped(plain, bits).astype(np.int32) if bits else plain
    return found


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


# --- one key agreement for many sums ---------------------------------------------------------------


class Standing:
    """One site's keys for all sums of a training, without shares (docs/secure-sums.md, "One key
    agreement"). A sum's masks follow from a digest of all that it is about, the list of its sites
    included: they cancel only if every site on one list has answered the same question."""

    def __init__(
        self, terms: Terms, party: str, identity: Ed25519PrivateKey, secret: bytes
    ) -> None:
        # The rules of who may be a party are those of any sum; its secret gives the key.
        self._sender = Sender(terms, party, identity, secret)
        self.terms, self.me, self._identity = terms, self._sender.me, identity
        self._key = X25519PrivateKey.from_private_bytes(derive(secret, "standing", terms.digest))
        self.public = self._key.public_key().public_bytes_raw()
        self._agreed: dict[int, bytes] = {}
        self._used: set[bytes] = set()

    def advertise(self) -> State:
        """The site's public key, signed."""
        signature = self._identity.sign(keys_text(self.terms, self.me, self.public))
        return {"keys": raw(self.public), "signature": raw(signature)}

    def agree(self, message: Arrays) -> None:
        """Take everybody's keys, once; each must be signed by the identity that this site holds."""
        if self._agreed:
            raise self._sender._refusal("keys were agreed on already")
        present = self._sender._some(message, "parties", least=self.terms.threshold)
        keys = self._sender._bytes(message, "keys", len(present), 32)
        signatures = self._sender._bytes(message, "signatures", len(present), SIGNATURE_BYTES)
        if len({key.tobytes() for key in keys}) < len(present):
            raise self._sender._refusal("two of the public keys are equal")
        for i, party in enumerate(present):
            key, text = keys[i].tobytes(), keys_text(self.terms, party, keys[i].tobytes())
            if not self.terms.verified(party, signatures[i].tobytes(), text):
                site = self.terms.parties[party]
                raise self._sender._refusal(f"keys of {site!r} are not signed by it")
            try:
                agreed = self._key.exchange(X25519PublicKey.from_public_bytes(key))
            except ValueError:
                raise self._sender._refusal("a key of low order was advertised") from None
            self._agreed[party] = agreed

    def begin(self, asked: bytes, message: Arrays) -> tuple[bytes, list[int]]:
        """The digest of a sum and its sites, from what the server says of it; refused before
        anything is paid."""
        present = self._sender._some(message, "present", least=self.terms.threshold)
        attempt = message.get("attempt")
        if attempt is None or attempt.shape != (1,) or attempt.dtype != np.int32:
            raise self._sender._refusal("expected the number of the attempt")
        if self.me not in present or not set(self._agreed).issuperset(present):
            raise self._sender._refusal("the list lacks this site, or names one without a key")
        digest = derive(self.terms.digest, "sum", asked, int(attempt[0]), str(present))
        if digest in self._used:
            raise self._sender._refusal("this very sum was answered already")
        return digest, present

    def mask(self, digest: bytes, present: Sequence[int], words: Arrays) -> State:
        """The site's words under the masks of one sum. A mask is used once."""
        if digest in self._used:
            raise self._sender._refusal("this very sum was answered already")
        self._used.add(digest)
        masked = unsigned(words)
        if not masked:
            raise self._sender._refusal("there are no words to mask")
        for party in present:
            if party != self.me:
                pair = derive(digest, "pair", min(self.me, party), max(self.me, party))
                sign = +1 if self.me < party else -1
                add_mask(masked, _expand(self._agreed[party], pair), sign)
        return packed(masked, words)


def standing_sum(answers: Answers, present: Sequence[str]) -> State:
    """The total of a sum of standing keys; refused unless every site on its list has answered."""
    absent = [site for site in present if site not in answers]
    if absent:
        raise RunError(f"secure sum: {', '.join(absent)} sent no words; nothing can be opened")
    words = [taken_words(answers[site]) for site in present]
    if any(layout(one) != layout(words[0]) for one in words):
        raise RunError("secure sum: sites sent words of different shapes; nothing was opened")
    return as_sent(_added(words), words[0])


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
    """The sum of every site's words by the whole protocol, with new keys.

    More than a share of ``threshold`` of the sites must stay. ``leave`` says who does not answer
    which stage, and ``key`` replaces the operating system's randomness (both for tests).

    >>> import numpy as np
    >>> total = secure_total({site: {"x": np.array([i, -1])} for i, site in enumerate("abc")})
    >>> total.words["x"].tolist(), total.survivors
    ([3, -3], ('a', 'b', 'c'))
    """
    key, cost = key or secure_key(), Cost()
    terms, signers = _in_process(key, tuple(words), threshold, asked)
    parties = terms.parties
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
        # A message that is the same object for all sites is sealed once.
        distinct = {id(message): message for message in messages.values()}
        bodies = {name: seal(message) for name, message in distinct.items()}
        sealed = {site: bodies[id(message)] for site, message in messages.items()}
        cost.server_seconds += time.thread_time() - begun
        silent = (leave or {}).get(stage, ())
        asked_now = [site for site in messages if site not in silent]
        for site in messages:
            cost.down[site] = cost.down.get(site, 0) + len(sealed[site])
        with ThreadPoolExecutor(threads) as pool:
            each = map if threads == 1 else pool.map
            found = list(each(lambda site: answer(stage, site, sealed[site]), asked_now))
        begun = time.thread_time()
        answers = dict(zip(asked_now, found, strict=True))
        for site, data in answers.items():
            cost.up[site] = cost.up.get(site, 0) + len(data or b"")
        return {site: unseal(data) for site, data in answers.items() if data is not None}

    total = play(collector, carry)
    cost.server_seconds += time.thread_time() - begun
    return Total(total, collector.survivors, tuple(collector.rejected + refused), cost)


def _in_process(
    key: bytes, parties: tuple[str, ...], threshold: float, asked: bytes
) -> tuple[Terms, list[Ed25519PrivateKey]]:
    signers = [Ed25519PrivateKey.from_private_bytes(derive(key, "identity", s)) for s in parties]
    public = tuple(signer.public_key().public_bytes_raw() for signer in signers)
    needed = threshold_of(len(parties), threshold)
    return Terms(derive(key, "session"), parties, public, needed, asked), signers


def standing_total(
    words: Mapping[str, Arrays],
    parties: Sequence[str],
    *,
    threshold: float = THRESHOLD,
    asked: bytes = bytes(32),
    first: bool = True,
) -> Total:
    """The same with standing keys: a sum of those ``parties`` that have words. The bytes of the key
    agreement count in the ``first`` sum only; later ones make it again, in this process alone.

    >>> total = standing_total({s: {"x": np.array([i])} for i, s in enumerate("abc")}, "abc")
    >>> total.words["x"].tolist()
    [3]
    """
    key, cost, begun = secure_key(), Cost(), time.thread_time()
    terms, signers = _in_process(key, tuple(parties), threshold, bytes(32))
    sites = {
        site: Standing(terms, site, signer, derive(key, "secret", site))
        for site, signer in zip(terms.parties, signers, strict=True)
        if site in words
    }
    keys = {terms.parties.index(site): one.advertise() for site, one in sites.items()}
    roster = roster_of(keys)
    present = {"present": roster["parties"], "attempt": np.zeros(1, np.int32)}
    sent = len(seal(present)) + (len(seal(roster)) + 32 if first else 0)
    answers = {}
    for site, one in sites.items():
        one.agree(roster)
        answers[site] = one.mask(*one.begin(asked, present), words[site])
        cost.up[site] = len(seal(answers[site]))
        cost.up[site] += len(seal(keys[one.me])) if first else 0
        cost.down[site] = sent
    total = standing_sum(answers, list(sites))
    cost.server_seconds = time.thread_time() - begun
    return Total(total, tuple(sites), (), cost)


def roster_of(keys: Mapping[int, Arrays]) -> State:
    """Everybody's signed keys, as the server passes them on."""
    return {
        "parties": _listed(keys),
        "keys": _stacked({i: one["keys"].astype(np.uint8) for i, one in keys.items()}),
        "signatures": _stacked({i: one["signature"].astype(np.uint8) for i, one in keys.items()}),
    }
