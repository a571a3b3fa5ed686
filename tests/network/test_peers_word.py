"""What a peer remembers of a site's ledger, and what the site does with its word."""

import json

import pytest
from dp_accounting import GaussianDpEvent

from suture.errors import LedgerError, Reason, Refused
from suture.network.settings import SiteSettings
from suture.network.witnesses import ROLLED_BACK, Witnesses, new_identity, peers_memories
from suture.privacy.ledger.ledger import Budget, Ledger

EVENT = GaussianDpEvent(50.0)


@pytest.fixture
def opening(tmp_path):
    """The two sides of a new opening: the site's, and its peer's."""
    keys = {}
    for name in ("site", "peer"):
        (tmp_path / name).mkdir()
        keys[name] = new_identity(tmp_path / name / "identity.key")

    def made(name):
        settings = SiteSettings(name=name, hub={"address": "nowhere:1"}, peers=keys)
        return Witnesses(settings, tmp_path / name, generated=False)

    return lambda: (made("site"), made("peer"))


def chain(*marks):
    ledger = Ledger.open(None, "site")
    ledger.open_study("study", Budget(6.0, 1e-5, "pld"))
    for mark in marks:
        ledger.charge("study", 1, EVENT, mark)
    return ledger


def word(site, peer, ledger):
    return {"peer": peer.vouch({"site": site.own(ledger.head())})["site"]}


def a_study(opening, ledger, *marks):
    site, peer = opening()
    site.check(ledger, word(site, peer, ledger))
    for mark in marks:
        ledger.charge("study", 2, EVENT, mark)
        assert word(site, peer, ledger)["peer"]["entries"] == ledger.head().entries


def test_a_chain_that_was_set_back_and_has_grown_past_what_is_remembered_is_still_refused(
    opening, tmp_path
):
    a_study(opening, chain(b"1"), b"2", b"3")
    fork = chain(b"1", b"other 2", b"other 3", b"other 4", b"other 5")
    for _ in range(2):  # asking again does not wear the peer's memory out
        site, peer = opening()
        said = word(site, peer, fork)
        assert said["peer"]["entries"] == 4
        assert word(site, peer, fork)["peer"]["entries"] == 4
        with pytest.raises(Refused, match="remembers entry 4") as refused:
            site.check(fork, said)
        assert refused.value.reason is Reason.WITNESS
    fork.write_off(peers_memories(tmp_path / "site")["peer"])
    a_study(opening, fork)


def test_what_a_peer_said_once_counts_though_its_word_is_kept_back_later(opening, tmp_path):
    a_study(opening, chain(b"1"), b"2")
    site, peer = opening()
    old = chain(b"1")
    with pytest.raises(Refused, match="remembers entry 3"):
        site.check(old, word(site, peer, old))
    settings = SiteSettings(name="site", hub={"address": "nowhere:1"}, witnesses=0)
    careless = Witnesses(settings, tmp_path / "site", generated=False)
    with pytest.raises(Refused, match="remembers entry 3"):
        careless.check(old, {})
    old.write_off(peers_memories(tmp_path / "site")["peer"])
    careless.check(old, {})


def test_a_file_that_is_no_statement_is_an_error(tmp_path):
    (tmp_path / ROLLED_BACK).write_text(json.dumps({"peer": {"entries": 3}}))
    with pytest.raises(LedgerError, match="KeyError"):
        peers_memories(tmp_path)
