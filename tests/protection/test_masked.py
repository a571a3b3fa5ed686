"""The secure sum over a network: right sums with dropouts at every stage, uniform views, and a
server that lies for nothing."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from suture.errors import PrivacyError, RunError
from suture.privacy.noise.source import derive, seeded_key
from suture.protection.envelope import seal, unseal
from suture.protection.masked import (
    PRIME,
    Collector,
    Sender,
    add_mask,
    element,
    join,
    mask_private,
    own_mask_key,
    pair_key,
    play,
    secure_total,
    split,
    unsigned,
    weights,
)
from suture.protection.terms import STAGES, Terms, threshold_of

SITES = tuple(f"site {i}" for i in range(20))
KEY = seeded_key(6, "masked")


def identity(site):
    return Ed25519PrivateKey.from_private_bytes(derive(KEY, "identity", site))


def terms_of(sites=SITES, threshold=None, session=b"s" * 32, asked=b"a" * 32):
    keys = tuple(identity(site).public_key().public_bytes_raw() for site in sites)
    return Terms(session, tuple(sites), keys, threshold or threshold_of(len(sites)), asked)


def senders_of(terms, salt=0):
    return {
        site: Sender(terms, site, identity(site), derive(KEY, "secret", site, salt))
        for site in terms.parties
    }


def words_of(sites=SITES, size=33):
    rng = np.random.default_rng(7)
    return {
        site: {
            "a": rng.integers(-(2**31), 2**31, size, dtype=np.int64).astype(np.int32),
            "b": rng.integers(-(2**62), 2**62, (2, 3), dtype=np.int64),
        }
        for site in sites
    }


def summed(words, sites):
    """The sum modulo 2^32 and 2^64, by Python's whole numbers."""
    found = {}
    for name, bits in (("a", 32), ("b", 64)):
        flat = [words[site][name].reshape(-1).tolist() for site in sites]
        whole = [
            (sum(column) + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)
            for column in zip(*flat, strict=True)
        ]
        found[name] = np.array(whole).reshape(words[sites[0]][name].shape)
    return found


def advance(collector, senders, words, until, leave=None):
    """Play honestly up to, and without, a stage."""
    for stage in STAGES[: STAGES.index(until)]:
        asked = collector.ask(stage)
        gone = (leave or {}).get(stage, ())
        given_ = {
            s: senders[s].answer(stage, m, words[s]) for s, m in asked.items() if s not in gone
        }
        collector.take(stage, given_)


# --- the sum is right ---------------------------------------------------------------------------------------------------


def test_everybody_stays_and_the_sum_is_exact():
    words = words_of()
    total = secure_total(words, key=KEY)
    expected = summed(words, SITES)
    assert total.survivors == SITES
    assert total.rejected == ()
    for name in ("a", "b"):
        assert total.words[name].dtype == words[SITES[0]][name].dtype
        np.testing.assert_array_equal(total.words[name], expected[name])


@pytest.mark.parametrize("stage", STAGES)
def test_six_of_twenty_may_leave_at_any_stage(stage):
    """Threshold 14 of 20. Who left before its words were masked is not in the sum; who left after
    is."""
    words, gone = words_of(), SITES[3:9]
    total = secure_total(words, key=KEY, leave={stage: gone})
    counted = stage in ("agree", "unmask")
    stayed = SITES if counted else tuple(site for site in SITES if site not in gone)
    assert total.survivors == stayed
    for name, expected in summed(words, stayed).items():
        np.testing.assert_array_equal(total.words[name], expected)


def test_dropouts_spread_over_all_stages():
    words = words_of()
    leave = {stage: [SITES[2 * i]] for i, stage in enumerate(STAGES)}
    total = secure_total(words, key=KEY, leave=leave)
    stayed = tuple(site for site in SITES if site not in (SITES[0], SITES[2], SITES[4]))
    assert total.survivors == stayed
    np.testing.assert_array_equal(total.words["a"], summed(words, stayed)["a"])


@pytest.mark.parametrize("stage", STAGES)
def test_fewer_than_the_threshold_end_the_sum_with_nothing_opened(stage):
    with pytest.raises(RunError, match=f"13 of 20 sites .* '{stage}', the threshold is 14"):
        secure_total(words_of(), key=KEY, leave={stage: SITES[:7]})


@settings(max_examples=15, deadline=None)
@given(st.integers(3, 9), st.data())
def test_any_dropouts_within_the_threshold_give_the_right_sum(count, data):
    sites = SITES[:count]
    left = data.draw(
        st.lists(st.sampled_from(sites), max_size=count - threshold_of(count), unique=True)
    )
    leave = {}
    for site in left:
        leave.setdefault(data.draw(st.sampled_from(STAGES)), []).append(site)
    words = words_of(sites, 3)
    total = secure_total(words, key=KEY, leave=leave)
    np.testing.assert_array_equal(total.words["b"], summed(words, total.survivors)["b"])


def test_stages_may_run_in_other_processes():
    """Between any two stages a sender lives on as sealed arrays."""
    terms = terms_of(SITES[:5])
    words = words_of(SITES[:5])
    kept = {site: seal(sender.state) for site, sender in senders_of(terms).items()}

    def carry(stage, messages):
        answers = {}
        for site, message in messages.items():
            sender = Sender.resume(terms, site, identity(site), unseal(kept[site]))
            answers[site] = sender.answer(
                stage, unseal(seal(message)), words[site] if stage == "mask" else None
            )
            kept[site] = seal(sender.state)
        return answers

    total = play(Collector(terms), carry)
    np.testing.assert_array_equal(total["a"], summed(words, SITES[:5])["a"])
    other = terms_of(SITES[:5], session=b"t" * 32)
    with pytest.raises(PrivacyError, match="belongs to another sum"):
        Sender.resume(other, SITES[0], identity(SITES[0]), unseal(kept[SITES[0]]))


# --- what the server sees -------------------------------------------------------------------------------------------------


def test_the_view_of_one_site_is_uniform():
    """Bytes of one site's masked words, for words that are all zero: chi-squared over 256 values,
    and over pairs of neighbouring bytes' high halves; each raises a false alarm once in 10,000."""
    sites = SITES[:5]
    terms = terms_of(sites)
    zeros = {site: {"x": np.zeros(50_000, np.int32)} for site in sites}
    collector, senders = Collector(terms), senders_of(terms)
    advance(collector, senders, zeros, "mask")
    seen = (
        senders[sites[1]]
        .answer("mask", collector.ask("mask")[sites[1]], zeros[sites[1]])["x"]
        .view(np.uint8)
    )
    assert stats.chisquare(np.bincount(seen, minlength=256)).pvalue > 1e-4
    pairs = (seen[:-1:2] >> 4).astype(int) * 16 + (seen[1::2] >> 4)
    assert stats.chisquare(np.bincount(pairs, minlength=256)).pvalue > 1e-4


def test_who_drops_out_after_masking_stays_hidden_by_its_own_mask():
    """A site whose words came in and that is then declared dropped: the server opens its pairwise
    masks and still sees uniform bytes, because nobody gives a share of its own mask (false alarm
    once in 10,000)."""
    sites = SITES[:6]
    terms, victim = terms_of(sites, threshold=4), sites[2]
    words = {site: {"x": np.zeros(50_000, np.int32)} for site in sites}
    collector, senders = Collector(terms), senders_of(terms)
    advance(collector, senders, words, "mask")
    asked = collector.ask("mask")
    answers = {site: senders[site].answer("mask", asked[site], words[site]) for site in sites}
    late = unsigned(answers.pop(victim))
    collector.take("mask", answers)
    for stage in ("agree", "unmask"):
        collector.take(
            stage, {s: senders[s].answer(stage, m) for s, m in collector.ask(stage).items()}
        )
    assert not np.any(collector.total()["x"])
    key = mask_private(collector._joined(2, collector._mask_key_is_right))
    for other, party in enumerate(sites):
        if party != victim:
            agreed = key.exchange(senders[party]._mask_key.public_key())
            add_mask(late, pair_key(terms, agreed, 2, other), -1 if other > 2 else +1)
    seen = late["x"].view(np.uint8)
    assert stats.chisquare(np.bincount(seen, minlength=256)).pvalue > 1e-4
    # With the site's own mask, which is not given, it would be open.
    add_mask(late, own_mask_key(senders[victim]._own_mask), -1)
    assert not np.any(late["x"])


# --- a server that lies ----------------------------------------------------------------------------------------------------


def test_a_server_that_tells_two_lists_of_dropouts_gets_no_share_at_all():
    """Half of the sites hear that the victim stayed (its own mask would be opened), the others that
    it left (its mask key would be). Each list gets fewer signatures than the threshold, and mixed
    signatures do not verify."""
    terms, words = terms_of(), words_of()
    collector, senders = Collector(terms), senders_of(terms)
    advance(collector, senders, words, "agree")
    everybody = np.arange(20, dtype=np.int32)
    without = np.delete(everybody, 5)
    signed = {}
    for i, site in enumerate(SITES):
        told = without if i % 2 and i != 5 else everybody
        signed[i] = senders[site].answer("agree", {"survivors": told})["signature"]
    refused = 0
    for i, site in enumerate(SITES):
        message = {"signers": everybody, "signatures": np.stack([signed[j] for j in range(20)])}
        if i % 2 and i != 5:
            message = {"signers": without, "signatures": np.stack([signed[j] for j in without])}
        with pytest.raises(PrivacyError, match="did not sign the list of survivors"):
            senders[site].answer("unmask", message)
        refused += 1
    assert refused == 20


def test_a_list_needs_threshold_signatures():
    terms, words = terms_of(), words_of()
    collector, senders = Collector(terms), senders_of(terms)
    advance(collector, senders, words, "agree")
    message = collector.ask("agree")[SITES[0]]
    signed = [senders[site].answer("agree", message)["signature"] for site in SITES[:13]]
    with pytest.raises(PrivacyError, match="'signers' lists 13 sites; 14"):
        senders[SITES[0]].answer(
            "unmask", {"signers": np.arange(13, dtype=np.int32), "signatures": np.stack(signed)}
        )


def test_no_site_signs_or_unmasks_twice():
    terms, words = terms_of(SITES[:5]), words_of(SITES[:5])
    collector, senders = Collector(terms), senders_of(terms)
    advance(collector, senders, words, "agree")
    site = senders[SITES[0]]
    site.answer("agree", {"survivors": np.arange(5, dtype=np.int32)})
    with pytest.raises(
        PrivacyError,
        match="stage 'agree', expected 'unmask'",
    ):
        site.answer("agree", {"survivors": np.arange(4, dtype=np.int32)})
    with pytest.raises(PrivacyError, match="expected None"):
        site.answer("unmask", {})


@pytest.mark.parametrize(
    ("survivors", "why"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], "14 are needed"),
        ([*range(1, 20)], "says that this site dropped out"),
        ([0, *range(19)], "twice"),
        ([*range(19), 20], "no party"),
        ([-1, *range(19)], "no party"),
    ],
)
def test_lists_that_cannot_be_are_refused(survivors, why):
    terms, words = terms_of(), words_of(size=1)
    collector, senders = Collector(terms), senders_of(terms)
    advance(collector, senders, words, "agree")
    with pytest.raises(PrivacyError, match=why):
        senders[SITES[0]].answer("agree", {"survivors": np.array(survivors, np.int32)})


def test_signatures_of_another_sum_do_not_count():
    """The same sites, the same lists, an earlier session: replayed keys and replayed signatures are
    refused."""
    words = words_of(SITES[:5])
    old, new = terms_of(SITES[:5], session=b"o" * 32), terms_of(SITES[:5], session=b"n" * 32)
    before, earlier = Collector(old), senders_of(old)
    advance(before, earlier, words, "unmask")
    replay = before.ask("unmask")[SITES[0]]
    collector, senders = Collector(new), senders_of(new)
    advance(collector, senders, words, "agree")
    senders[SITES[0]].answer("agree", {"survivors": np.arange(5, dtype=np.int32)})
    with pytest.raises(PrivacyError, match="did not sign"):
        senders[SITES[0]].answer("unmask", replay)
    third = senders_of(new, 1)[SITES[0]]
    third.answer("advertise", {})
    with pytest.raises(PrivacyError, match="are not signed by it"):
        third.answer("share", before.ask("share")[SITES[0]])


def test_a_server_cannot_put_its_own_keys_in_place_of_a_site():
    terms = terms_of(SITES[:5])
    collector, senders = Collector(terms), senders_of(terms)
    advance(collector, senders, {s: {} for s in SITES}, "share")
    message = collector.ask("share")[SITES[0]]
    mine = np.frombuffer(
        X25519PrivateKey.from_private_bytes(bytes(32)).public_key().public_bytes_raw(), np.uint8
    )
    keys = message["keys"].copy()
    keys[3, 32:64] = mine
    with pytest.raises(PrivacyError, match="keys of 'site 3' are not signed by it"):
        senders[SITES[0]].answer("share", {**message, "keys": keys})


def test_shares_that_were_changed_or_exchanged_are_refused():
    terms, words = terms_of(SITES[:5]), words_of(SITES[:5])
    for change in ("flip", "exchange"):
        collector, senders = Collector(terms), senders_of(terms)
        advance(collector, senders, words, "mask")
        message = collector.ask("mask")[SITES[0]]
        shares = message["shares"].copy()
        if change == "flip":
            shares[1, 7] ^= 1
        else:
            shares[[0, 1]] = shares[[1, 0]]
        with pytest.raises(PrivacyError, match="cannot be opened"):
            senders[SITES[0]].answer("mask", {**message, "shares": shares}, words[SITES[0]])


def test_sites_that_were_asked_different_things_open_nothing():
    """A server that sends one site another model could read its answer out of the sum (Pasquini et
    al. 2022): what was asked is part of the terms, so its keys are not accepted by the others, nor
    theirs by it."""
    sites = SITES[:5]
    same, other = terms_of(sites), terms_of(sites, asked=b"b" * 32)
    collector, senders = Collector(same), senders_of(same)
    senders[sites[2]] = senders_of(other)[sites[2]]
    collector.take(
        "advertise", {s: sender.answer("advertise", {}) for s, sender in senders.items()}
    )
    assert collector.rejected == [("site 2", "advertise", "keys that are not signed by the site")]
    with pytest.raises(PrivacyError, match="are not signed by it"):
        senders[sites[2]].answer("share", collector.ask("share")[sites[0]])


def test_a_false_share_is_noticed_and_got_round():
    sites = SITES[:6]
    terms, words = terms_of(sites, threshold=5), words_of(sites)
    for cheats in (1, 2):
        collector, senders = Collector(terms), senders_of(terms)
        advance(collector, senders, words, "unmask")
        answers = {s: senders[s].answer("unmask", m) for s, m in collector.ask("unmask").items()}
        for site in sites[1 : 1 + cheats]:
            answers[site]["shares"] = answers[site]["shares"] ^ 1
        collector.take("unmask", answers)
        if cheats == 1:
            np.testing.assert_array_equal(collector.total()["b"], summed(words, sites)["b"])
        else:
            with pytest.raises(RunError, match="do not fit together"):
                collector.total()


def test_odd_answers_are_rejected_and_recorded():
    sites = SITES[:7]
    terms, words = terms_of(sites, threshold=4), words_of(sites)
    collector, senders = Collector(terms), senders_of(terms)
    advance(collector, senders, words, "mask")
    asked = collector.ask("mask")
    answers = {site: senders[site].answer("mask", asked[site], words[site]) for site in sites}
    answers[sites[0]] = {"a": np.zeros(3, np.float32)}
    answers[sites[1]] = {**answers[sites[1]], "a": answers[sites[1]]["a"][:-1]}
    answers["stranger"] = answers[sites[2]]
    collector.take("mask", answers)
    for stage in ("agree", "unmask"):
        collector.take(
            stage, {s: senders[s].answer(stage, m) for s, m in collector.ask(stage).items()}
        )
    np.testing.assert_array_equal(collector.total()["a"], summed(words, sites[2:])["a"])
    assert collector.rejected == [
        ("site 0", "mask", "no words of 32 or 64 bits"),
        ("site 1", "mask", "words of another shape than the other sites'"),
    ]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"parties": SITES[:2]}, "at least 3 sites"),
        ({"threshold": 10}, "above half of the 20"),
        ({"threshold": 21}, "above half of the 20"),
        ({"parties": (SITES[1], *SITES[1:])}, "different sites"),
        ({"session": b"short"}, "32 bytes"),
    ],
)
def test_terms_that_protect_nobody_are_refused(change, why):
    good = terms_of()
    fields = {
        name: getattr(good, name)
        for name in ("session", "parties", "identities", "threshold", "asked")
    }
    with pytest.raises(PrivacyError, match=why):
        Terms(**{**fields, **change})


def test_a_key_that_was_not_enrolled_is_refused():
    with pytest.raises(PrivacyError, match="not the one that was enrolled"):
        Sender(terms_of(), SITES[0], identity(SITES[1]), bytes(32))
    with pytest.raises(PrivacyError, match="not a party"):
        Sender(terms_of(), "stranger", identity("stranger"), bytes(32))


# --- Shamir ----------------------------------------------------------------------------------------------------------------


def test_shares_of_a_known_polynomial():
    """Threshold 3, coefficients read off the shares: a parabola through three of them gives the
    fourth and the secret."""
    key = seeded_key(1)
    a, b = element(key, "coefficient", 1), element(key, "coefficient", 2)
    shares = split(123, 3, 4, key)
    assert shares == [(123 + a * x + b * x * x) % PRIME for x in (1, 2, 3, 4)]
    for chosen in ([0, 1, 2], [3, 1, 0]):
        assert join([shares[i] for i in chosen], weights(tuple(chosen))) == 123
    assert join([shares[0], shares[1]], weights((0, 1))) != 123


def test_fewer_shares_than_the_threshold_fit_every_secret():
    """For any two shares and any secret there is exactly one parabola: nothing is learnt from two
    of three."""
    shares = split(5, 3, 5, seeded_key(2))
    for secret in (0, 1, PRIME - 1):
        # The third share that would give this secret, by interpolation at place 3 through (0,
        # secret), 1 and 2.
        third = (secret - 3 * shares[0] + 3 * shares[1]) % PRIME
        assert join([shares[0], shares[1], third], weights((0, 1, 2))) == secret


@settings(max_examples=30, deadline=None)
@given(st.integers(0, PRIME - 1), st.integers(1, 12), st.data())
def test_any_threshold_shares_give_the_secret_back(secret, threshold, data):
    parties = data.draw(st.integers(threshold, 20))
    shares = split(secret, threshold, parties, seeded_key(3, secret))
    chosen = data.draw(st.permutations(range(parties)))[:threshold]
    assert join([shares[i] for i in chosen], weights(tuple(chosen))) == secret


def test_shamir_refuses_what_cannot_be():
    with pytest.raises(PrivacyError, match="threshold"):
        split(1, 4, 3, bytes(32))
    with pytest.raises(PrivacyError, match="each once"):
        weights((1, 1))
