"""The protocol as an attacker sees it: what a server, alone or with sites on its side, can and
cannot get out of a sum."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from suture.errors import PrivacyError
from suture.privacy.noise.source import derive, seeded_key
from suture.protection.masked import (
    Collector,
    Sender,
    add_mask,
    join,
    keys_text,
    mask_private,
    own_mask_key,
    pair_key,
    raw,
    unsigned,
    weights,
)
from suture.protection.terms import STAGES, Terms

KEY = seeded_key(13, "lying server")
SITES = tuple(f"site {i}" for i in range(6))


def identity(site):
    return Ed25519PrivateKey.from_private_bytes(derive(KEY, "identity", site))


def terms_of(**changes):
    keys = tuple(identity(site).public_key().public_bytes_raw() for site in SITES)
    fields = {
        "session": b"s" * 32,
        "parties": SITES,
        "identities": keys,
        "threshold": 4,
        "asked": b"a" * 32,
    }
    return Terms(**{**fields, **changes})


def begun(terms, until, words=None):
    """An honest sum up to, and without, a stage."""
    senders = {
        site: Sender(terms, site, identity(site), derive(KEY, "secret", site))
        for site in terms.parties
    }
    collector = Collector(terms)
    words = words or {
        site: {"x": np.array([i, -i], np.int32)} for i, site in enumerate(terms.parties)
    }
    for stage in STAGES[: STAGES.index(until)]:
        collector.take(
            stage,
            {s: senders[s].answer(stage, m, words[s]) for s, m in collector.ask(stage).items()},
        )
    return collector, senders, words


def attack_with_two_lists(colluding):
    """The server shows the victim's side a list with it and the others one without; colluding sites
    sign both lists and give both shares. Returns the victim's words if that many shares of both its
    secrets came together, else None."""
    terms, victim = terms_of(), 0
    words = {site: {"x": np.array([41 + i, -7], np.int32)} for i, site in enumerate(SITES)}
    collector, senders, _ = begun(terms, "agree", words)
    masked = unsigned(collector._words[victim])
    corrupt = list(range(6 - colluding, 6))
    honest = [i for i in range(6) if i not in corrupt]
    half = (len(honest) + 1) // 2
    groups = {"with": honest[:half], "without": honest[half:]}
    lists = {"with": list(range(6)), "without": [i for i in range(6) if i != victim]}
    own, key = {}, {}
    for name, group in groups.items():
        told = {"survivors": np.array(lists[name], np.int32)}
        signatures = {i: senders[SITES[i]].answer("agree", told)["signature"] for i in group}
        for i in corrupt:
            twice = Sender.resume(terms, SITES[i], identity(SITES[i]), senders[SITES[i]].state)
            signatures[i] = twice.answer("agree", told)["signature"]
        signers = sorted(signatures)
        message = {
            "signers": np.array(signers, np.int32),
            "signatures": np.stack([signatures[i] for i in signers]),
        }
        for i in group:
            try:
                shares = senders[SITES[i]].answer("unmask", message)
            except PrivacyError:
                continue
            (own if name == "with" else key)[i] = int.from_bytes(
                shares["shares"][victim].tobytes(), "little"
            )
    for i in corrupt:
        held = senders[SITES[i]]._kept["held"][victim]
        own[i], key[i] = (
            int.from_bytes(held[start : start + 32].tobytes(), "little") for start in (0, 32)
        )
    if len(own) < terms.threshold or len(key) < terms.threshold:
        return None
    opened = [
        join([found[i] for i in sorted(found)], weights(tuple(sorted(found))))
        for found in (own, key)
    ]
    add_mask(masked, own_mask_key(opened[0]), -1)
    private = mask_private(opened[1])
    for other in range(1, 6):
        agreed = private.exchange(senders[SITES[other]]._mask_key.public_key())
        add_mask(masked, pair_key(terms, agreed, victim, other), -1)
    return masked["x"].view(np.int32).tolist()


def test_two_lists_gain_nothing_with_as_many_colluders_as_the_theorem_allows():
    """Six sites, threshold 4: 2 x 4 > 6 + 1."""
    assert terms_of().colluding == 1
    for colluding in (0, 1):
        assert attack_with_two_lists(colluding) is None


def test_the_bound_is_tight():
    """With one colluder more the same attack reads the victim's words: the condition of the theorem
    is needed."""
    assert attack_with_two_lists(2) == [41, -7]


def test_two_lists_of_who_shared_gain_nothing():
    """Site 0 does not hear of site 5's shares, so its masks differ from what the others think:
    nobody unmasks."""
    terms = terms_of()
    collector, senders, words = begun(terms, "mask")
    asked = collector.ask("mask")
    asked[SITES[0]] = {
        "from": asked[SITES[0]]["from"][:-1],
        "shares": asked[SITES[0]]["shares"][:-1],
    }
    collector.take(
        "mask", {site: senders[site].answer("mask", asked[site], words[site]) for site in SITES[:5]}
    )
    told = {"survivors": np.arange(5, dtype=np.int32)}
    signed = [senders[site].answer("agree", told)["signature"] for site in SITES[:5]]
    for site in SITES[:5]:
        with pytest.raises(PrivacyError, match="did not sign the list"):
            senders[site].answer(
                "unmask", {"signers": told["survivors"], "signatures": np.stack(signed)}
            )


@pytest.mark.parametrize(
    "change",
    [
        {"threshold": 5},
        {"asked": b"b" * 32},
        {"session": b"t" * 32},
        {"parties": (*SITES[:5], "another")},
        {"parties": SITES[:5], "identities": terms_of().identities[:5]},
        {"identities": (*terms_of().identities[:5], bytes(32))},
    ],
)
def test_a_site_that_was_told_other_terms_is_accepted_by_nobody(change):
    mine, others = terms_of(**change), terms_of()
    rest = begun(others, "share")
    sender = Sender(mine, SITES[0], identity(SITES[0]), bytes(32))
    advert = sender.answer("advertise", {})
    assert not others.verified(
        0, advert["signature"].tobytes(), keys_text(others, 0, advert["keys"].tobytes())
    )
    with pytest.raises(PrivacyError, match="refuses"):
        sender.answer("share", rest[0].ask("share")[SITES[0]])


def test_words_are_masked_once():
    """Masks are used once: with other words under the same masks the server would see the
    difference."""
    collector, senders, words = begun(terms_of(), "mask")
    message = collector.ask("mask")[SITES[0]]
    senders[SITES[0]].answer("mask", message, words[SITES[0]])
    with pytest.raises(PrivacyError, match="each stage is answered once"):
        senders[SITES[0]].answer("mask", message, words[SITES[1]])


def signed(terms, party, keys):
    """Keys that an enrolled site chose badly, signed by it."""
    return {
        "keys": raw(keys),
        "signature": raw(identity(SITES[party]).sign(keys_text(terms, party, keys))),
    }


def test_a_key_of_low_order_is_refused():
    """An enrolled site that advertises the point 0 would make a mask that everybody knows: the
    server leaves it out, and where the server does not, every site refuses before it shares
    anything."""
    terms = terms_of()
    collector, senders, _ = begun(terms, "advertise")
    answers = {site: senders[site].answer("advertise", {}) for site in SITES}
    good = answers[SITES[5]]["keys"].tobytes()
    for keys in (bytes(32) + good[32:], good[:32] + bytes(32) + good[64:]):
        fresh = Collector(terms)
        fresh.take("advertise", {**answers, SITES[5]: signed(terms, 5, keys)})
        assert fresh.rejected == [("site 5", "advertise", "a key of low order")]
    collector.take("advertise", answers)
    message = collector.ask("share")[SITES[0]]
    bad = signed(terms, 5, keys)
    rows, signatures = message["keys"].copy(), message["signatures"].copy()
    rows[5], signatures[5] = bad["keys"], bad["signature"]
    with pytest.raises(PrivacyError, match="'site 5' advertised a key of low order"):
        senders[SITES[0]].answer("share", {**message, "keys": rows, "signatures": signatures})


def test_equal_keys_are_refused():
    """A site that repeats another's key could be taken for it; the paper's check that all keys
    differ."""
    terms = terms_of()
    collector, senders, _ = begun(terms, "share")
    message = collector.ask("share")[SITES[0]]
    keys = message["keys"].copy()
    keys[5, :64] = keys[4, :64]
    signatures = message["signatures"].copy()
    signatures[5] = raw(identity(SITES[5]).sign(keys_text(terms, 5, keys[5].tobytes())))
    with pytest.raises(PrivacyError, match="two of the public keys are equal"):
        senders[SITES[0]].answer("share", {**message, "keys": keys, "signatures": signatures})


def test_one_copied_key_does_not_stop_a_sum():
    """The server leaves out whoever shares a key, since it cannot know who copied; the others go
    on."""
    terms = terms_of()
    collector, senders, words = begun(terms, "advertise")
    answers = {site: senders[site].answer("advertise", {}) for site in SITES}
    answers[SITES[5]] = signed(terms, 5, answers[SITES[4]]["keys"].tobytes())
    collector.take("advertise", answers)
    why = "a key that another site advertises too"
    assert collector.rejected == [("site 4", "advertise", why), ("site 5", "advertise", why)]
    for stage in STAGES[1:]:
        collector.take(
            stage,
            {s: senders[s].answer(stage, m, words[s]) for s, m in collector.ask(stage).items()},
        )
    assert collector.total()["x"].tolist() == [0 + 1 + 2 + 3, -6]


arrays = st.one_of(
    nps.arrays(
        np.int32, nps.array_shapes(min_dims=1, max_dims=2, max_side=6), elements=st.integers(-3, 9)
    ),
    nps.arrays(np.uint8, nps.array_shapes(min_dims=1, max_dims=2, max_side=6)),
    nps.arrays(
        np.float32,
        nps.array_shapes(min_dims=1, max_dims=1, max_side=3),
        elements=st.floats(0, 1, width=32),
    ),
)
names = st.sampled_from(["parties", "keys", "signatures", "from", "shares", "survivors", "signers"])


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(STAGES[1:]), st.dictionaries(names, arrays, max_size=4), st.booleans())
def test_no_malformed_message_is_answered(stage, noise, on_top):
    """Whatever replaces a stage's message, or parts of it: the site refuses in words, and is out of
    the sum for good."""
    collector, senders, words = begun(terms_of(), stage)
    message = {**collector.ask(stage)[SITES[0]], **noise} if on_top else noise
    honest = collector.ask(stage)[SITES[0]]
    same = set(honest) <= set(message) and all(
        np.array_equal(message[n], honest[n]) for n in honest
    )
    if same:
        return
    if stage == "agree" and "survivors" in message and message["survivors"].dtype == np.int32:
        listed = message["survivors"].tolist()
        if 0 in listed and listed == sorted(set(listed)) and len(listed) >= 4 and listed[-1] < 6:
            return  # another list that may be true: the signature says which
    with pytest.raises(PrivacyError, match="'site 0' refuses"):
        senders[SITES[0]].answer(stage, message, words[SITES[0]])
    with pytest.raises(PrivacyError, match="expected None"):
        senders[SITES[0]].answer(stage, honest, words[SITES[0]])
