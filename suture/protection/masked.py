"""A site's side of the secure sum: the server gets masked words and learns only their sum.

Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth: Practical Secure
Aggregation for Privacy-Preserving Machine Learning. CCS 2017, Figure 4, in its form against a
server that lies (with signatures and the consistency check). The server's side is `collector.py`.

A sum has five stages. In each the server sends every remaining site one message and gets one
answer; both are named arrays that an envelope carries. `Collector.ask` makes the messages,
`Sender.answer` answers, `Collector.take` takes the answers; a site that does not answer has dropped
out. `collector.play` is the whole loop.

| stage       | the server sends               | a site answers                                     | paper |
|-------------|--------------------------------|----------------------------------------------------|-------|
| `advertise` | nothing                        | two public keys and a commitment, signed           | 0     |
| `share`     | everybody's signed keys        | for every other site: its shares, encrypted        | 1     |
| `mask`      | the shares for this site       | its words plus masks                               | 2     |
| `agree`     | who sent masked words          | its signature on that list (and on all before)     | 3     |
| `unmask`    | the signatures                 | for each site one share: of its own mask if it is  | 4     |
|             |                                | on the list, of its mask key if it dropped out     |       |

A site's words get its own mask PRG(b_u), and for every other site v plus or minus PRG(s_uv), which
cancels in the sum. All sites hold shares of both secrets: b_u is opened for those who stayed, the
key behind s_uv for those who dropped out. Whoever got both for one site could read its words, so a
site gives only one share per site, once, for one list that at least ``threshold`` sites have
signed. Two lists would need more signers than there are (see `Terms`).

A `Sender` serves one sum. Its secrets come from ``secret`` (the operating system's; injected in
simulation and tests) and are gone with the object. Where the next stage may run in another process,
save `Sender.state` at the site *before* the answer leaves, delete it after the sum, and continue
with `Sender.resume`. A site that lost its state answers nothing more: it has dropped out.

What a caller must ensure (docs/secure-sums.md):
- A release is masked in one sum only. The same words in two sums with different survivors give the
  server the difference, which is one site's words. A repeated round therefore needs a new session,
  new noise and a new charge.
- `Terms.asked` is a digest of everything that decides what a site adds (study, method, model,
  round, every site's size, norm bound): sites only open sums of answers to the same question.
  Whatever the digest leaves out, the server could tell each site differently, and so make all sites
  but one add nothing (`suture.engine.gather`).
- Identities are public keys that the site itself has enrolled, never ones that the server names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from suture.errors import PrivacyError
from suture.privacy.noise.source import Arrays, State, derive
from suture.protection.terms import (
    KEYS_BYTES,
    SEALED_BYTES,
    SHARE_BYTES,
    SIGNATURE_BYTES,
    STAGES,
    Bytes,
    Stage,
    Terms,
    add_mask,
    agreement_text,
    commitment,
    element,
    expand,
    keys_text,
    mask_private,
    own_mask_key,
    pair_key,
    raw,
    split,
    to_bytes,
    unsigned,
)

_NONCE = bytes(12)


class Sender:
    """One site in one sum. Each stage is answered once, in order; violations are refused."""

    def __init__(
        self, terms: Terms, party: str, identity: Ed25519PrivateKey, secret: bytes
    ) -> None:
        if party not in terms.parties:
            raise PrivacyError(f"secure sum: site {party!r} is not a party of it")
        self.terms, self.me = terms, terms.parties.index(party)
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

    @property
    def party(self) -> str:
        """The site's name."""
        return self.terms.parties[self.me]

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

    # --- the stages --------------------------------------------------------------------------

    def _advertise(self, _: Arrays) -> State:
        own = self._public + commitment(self.terms, self.me, self._own_mask)
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
            both = to_bytes(mask_shares[party]) + to_bytes(key_shares[party])
            sealed[i] = raw(AESGCM(self._channel(self.me, party)).encrypt(_NONCE, both, None))
        held[self.me, :SHARE_BYTES] = raw(to_bytes(mask_shares[self.me]))
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
        return {name: array.view(words[name].dtype) for name, array in masked.items()}

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
        """What is signed in the consistency check: all that the server told this site."""
        shared = self._kept["shared"].tolist()
        return agreement_text(self.terms, self._roster_digest, shared, survivors)

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
        return expand(self._agreed(self._channel_key, other, 0), info)

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
        if found is None or found.dtype != np.uint8 or found.shape != (count, length):
            raise self._refusal(f"expected {count} times {length} bytes as {name!r}")
        return found

    def _refusal(self, why: str) -> PrivacyError:
        return PrivacyError(f"secure sum, site {self.party!r} refuses: {why}")
