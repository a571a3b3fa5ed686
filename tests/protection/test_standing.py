"""One key agreement for many sums: totals, packed words, and what a lying server gets."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from suture.errors import PrivacyError, RunError
from suture.privacy.noise.source import derive, seeded_key
from suture.protection.envelope import seal
from suture.protection.masked import (
    Standing,
    _in_process,
    roster_of,
    secure_total,
    standing_sum,
    standing_total,
)

SITES = tuple("abcde")
ASKED = seeded_key(1, "question")


def federation(threshold=0.7, sites=SITES):
    """Sites that have agreed on keys; more than 0.7 of 5 is 4."""
    terms, signers = _in_process(seeded_key(7), sites, threshold, bytes(32))
    made = {
        site: Standing(terms, site, signer, seeded_key(3, site))
        for site, signer in zip(sites, signers, strict=True)
    }
    roster = roster_of({one.me: one.advertise() for one in made.values()})
    for one in made.values():
        one.agree(roster)
    return made, roster


def told(present, attempt=0):
    return {"present": np.array(present, np.int32), "attempt": np.array([attempt], np.int32)}


def masked(one, words, present=range(5), asked=ASKED, attempt=0):
    return one.mask(*one.begin(asked, told(list(present), attempt)), words)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-(2**15), 2**15 - 1), min_size=5, max_size=5), st.integers(18, 31))
def test_packed_words_add_up_modulo_their_length(values, bits):
    made, _ = federation()
    name = f"e0w{bits}"
    answers = {
        site: masked(one, {name: np.array([value, -value], np.int32)})
        for (site, one), value in zip(made.items(), values, strict=True)
    }
    assert answers["a"][name].dtype == np.uint8
    assert len(answers["a"][name]) == -(-2 * bits // 8)
    total = sum(values)
    if abs(total) < 2 ** (bits - 1):
        assert standing_sum(answers, SITES)[name].tolist() == [total, -total]


def test_both_protocols_pack_and_give_the_same_total():
    words = {site: {"e0w12": np.array([i, -3], np.int32)} for i, site in enumerate(SITES)}
    whole, once = secure_total(words), standing_total(words, SITES)
    assert whole.words["e0w12"].tolist() == once.words["e0w12"].tolist() == [10, -15]
    later = standing_total(words, SITES, first=False)
    assert later.cost.up["a"] < 30 < once.cost.up["a"] < whole.cost.up["a"]
    # After the first sum a list and a number go down; before, 5 keys of 32 bytes, signed with 64.
    assert once.cost.down["a"] - later.cost.down["a"] >= 5 * 96 + 32
    assert later.cost.down["a"] < 60


def test_one_message_is_uniform_and_masks_differ_from_sum_to_sum():
    made, _ = federation()
    zero = {"w": np.zeros(20_000, np.int32)}
    first, second = (masked(made["a"], zero, attempt=i)["w"].view(np.uint32) for i in (1, 2))
    assert not np.any(first == second) or np.mean(first == second) < 1e-3
    # The mean of 20,000 uniform numbers in [0, 1): five deviations are a false alarm in 1.7 million.
    assert abs(np.mean(first / 2**32) - 0.5) < 5 * np.sqrt(1 / 12 / 20_000)


@pytest.mark.parametrize("change", ["list", "question", "attempt"])
def test_sites_told_different_things_give_the_server_nothing(change):
    """Masks cancel only between sites that were told the same: any difference leaves noise of 32
    bits, which is within 1000 of the true sum with a chance of 5e-7."""
    made, _ = federation()
    words = {"w": np.array([5], np.int32)}
    answers = {site: masked(one, words) for site, one in made.items() if site != "e"}
    other = {
        "list": {"present": [1, 2, 3, 4]},
        "question": {"asked": seeded_key(2, "another")},
        "attempt": {"attempt": 9},
    }[change]
    answers["e"] = masked(made["e"], words, **other)
    assert abs(int(standing_sum(answers, SITES)["w"][0]) - 25) > 1000


def test_a_site_that_leaves_leaves_nothing_to_open():
    made, _ = federation()
    words = {"w": np.array([5], np.int32)}
    answers = {site: masked(one, words) for site, one in made.items()}
    without = {site: answers[site] for site in "abcd"}
    with pytest.raises(RunError, match="nothing can be opened"):
        standing_sum(without, SITES)
    # Also for a server that adds up what it has: e's masks are missing from it.
    assert abs(int(standing_sum(without, "abcd")["w"][0]) - 20) > 1000
    # The next attempt is a sum of its own, with a shorter list.
    again = {s: masked(made[s], words, range(4), attempt=1) for s in "abcd"}
    assert standing_sum(again, "abcd")["w"].tolist() == [20]


def test_what_a_site_refuses():
    made, roster = federation()
    one, words = made["a"], {"w": np.array([5], np.int32)}
    masked(one, words)
    with pytest.raises(PrivacyError, match="answered already"):
        masked(one, words)
    for message, why in (
        (told([0, 1, 2]), "4 are needed"),
        (told([1, 2, 3, 4]), "lacks this site"),
        (told([0, 1, 2, 2]), "names a site twice"),
        (told([0, 1, 2, 7]), "no party"),
        ({"present": told([0, 1, 2, 3])["present"]}, "number of the attempt"),
    ):
        with pytest.raises(PrivacyError, match=why):
            one.begin(ASKED, message)
    with pytest.raises(PrivacyError, match="already"):
        one.agree(roster)


def test_keys_that_their_site_has_not_signed_are_refused():
    """A server in the middle: its own key in the place of another site's."""
    terms, signers = _in_process(seeded_key(7), SITES, 0.7, bytes(32))
    made = [
        Standing(terms, site, signer, seeded_key(3, site))
        for site, signer in zip(SITES, signers, strict=True)
    ]
    server = Ed25519PrivateKey.from_private_bytes(seeded_key(9))
    for forge in ("key", "signature", "equal", "session"):
        keys = {one.me: dict(one.advertise()) for one in made}
        if forge == "key":
            keys[1]["keys"] = np.frombuffer(derive(seeded_key(9), "key"), np.uint8)
        elif forge == "signature":
            keys[1]["signature"] = np.frombuffer(server.sign(b"anything"), np.uint8)
        elif forge == "equal":
            keys[1] = dict(keys[2])
        else:  # keys of another agreement, signed for it
            other, _ = _in_process(seeded_key(8), SITES, 0.7, bytes(32))
            assert other.digest != terms.digest
            text = Standing(other, "b", _in_process(seeded_key(8), SITES, 0.7, bytes(32))[1][1], seeded_key(4))  # fmt: skip
            keys[1] = dict(text.advertise())
        with pytest.raises(PrivacyError, match=r"not signed|equal"):
            made[0].agree(roster_of(keys))
        made[0]._agreed.clear()
    with pytest.raises(PrivacyError, match="needed"):
        made[0].agree(roster_of({one.me: one.advertise() for one in made[:3]}))


def test_other_shapes_are_not_added():
    made, _ = federation()
    answers = {s: masked(one, {"w": np.zeros(2, np.int32)}) for s, one in made.items() if s != "a"}
    answers["a"] = masked(made["a"], {"w": np.zeros(3, np.int32)})
    with pytest.raises(RunError, match="different shapes"):
        standing_sum(answers, SITES)
    with pytest.raises(RunError):
        standing_sum({**answers, "a": {"w12": np.zeros(1, np.float32)}}, SITES)
    assert len(seal(answers["b"])) < 20
