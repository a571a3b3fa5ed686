"""Sums under masks over the wire: one process's numbers but for the noise, only sums for the
coordinator, no release twice."""

from typing import ClassVar

import numpy as np
import pytest
from support.loopback import Loopback
from test_parity import study

from suture.engine import conduct
from suture.errors import Reason, Refused, RunError
from suture.network import wire
from suture.network.coordinator import Remote
from suture.network.wire import application_hash
from suture.privacy.ledger.ledger import Ledger
from suture.protection.envelope import seal, unseal
from suture.protection.masked import Sender
from suture.study import Study

MASKED = {"evaluation": {"seeds": 1}, "protection": {"sum": "masked"}}


class Watching(Loopback):
    """Keeps what the coordinator gets to see, and may lose a site's answers from a stage on."""

    def __init__(self, lost=(), **settings):
        super().__init__(**settings)
        self.seen, self.lost = [], lost

    def exchange(self, requests, seconds):
        answers = super().exchange(requests, seconds)
        for site, data in requests.items():
            header = wire.unpack(data).header
            self.seen.append((site, header["op"], header.get("stage"), answers[site]))
            if (site, header.get("stage"), header.get("round")) in self.lost:
                answers[site] = RunError(f"site {site!r} gave no answer")
        return answers


def equal(here, there):
    """The very numbers: what masks give without noise."""
    assert all(np.array_equal(here.model[name], there.model[name]) for name in here.model)
    assert here.data["metrics"] == there.data["metrics"]


def alike(here, there):
    """What noise does not decide. A sum between machines is a release of its own, with keys of its
    own in its noise."""
    assert not all(np.array_equal(here.model[name], there.model[name]) for name in here.model)
    assert {name: array.shape for name, array in here.model.items()} == {
        n: a.shape for n, a in there.model.items()
    }
    assert here.data["privacy"] == there.data["privacy"]
    for name, one in here.data["methods"].items():
        other = there.data["methods"][name]
        assert one["rounds_done"] == other["rounds_done"]
        assert one["dropouts"] == other["dropouts"] == {}


def charged(folder, site):
    """The rounds in a site's ledger."""
    ledger = Ledger.read(folder / ".suture" / site / "ledgers" / f"{site}.sqlite")
    rounds = sorted(entry.round for entry in ledger.entries() if entry.round > 0)
    ledger.close()
    return rounds


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("method", ["fedavg", "finetune"])
def test_masked_rounds_give_what_one_process_gives(method, private, tmp_path):
    asked = study(method, **MASKED)
    if (
        not private
    ):  # in one batch: which patients are in a batch is drawn anew for every sum, as noise is
        asked = study(method, **MASKED, privacy=None).replace(method={"batch": 4096})
    here = conduct.run(asked, threads=1)
    carrier = Watching()
    there = conduct.run(asked, base=tmp_path, engine=Remote(carrier))
    (alike if private else equal)(here, there)
    if private:
        assert charged(tmp_path, "community") == [1, 2, 3, 4]
    # No site ever sent an update, and each was shown the others' ledger ends.
    assert {op for _, op, _, _ in carrier.seen} == {"open", "witness", "join", "stage", "score"}


def test_veil_in_secure_mode_needs_masks_between_machines(tmp_path):
    asked = study("veil", evaluation={"seeds": 1}).replace(method={"mode": "secure", "rounds": 6})
    with pytest.raises(Refused, match=Reason.MASKED.value):
        conduct.run(asked, base=tmp_path, engine=Remote(Loopback()))
    asked = asked.replace(protection={"sum": "masked"})
    here = conduct.run(asked, threads=1)
    (tmp_path / "b").mkdir()
    alike(here, conduct.run(asked, base=tmp_path / "b", engine=Remote(Loopback())))
    assert charged(tmp_path / "b", "community") == [1, 2, 3, 4, 5, 6]


def test_teams_are_summed_apart_between_machines(tmp_path):
    """Fifteen hospitals in two teams: what one process gives; every sum in its own session; a
    dropout in one team."""
    asked = Study(
        name="teams",
        outcome="died_in_hospital",
        cohort={"name": "icu", "hospitals": 15, "patients": 4000},
        model={"hidden": []},
        method={"name": "veil", "mode": "secure", "rounds": 4, "concepts": 10},
        privacy={"unit": "patient", "epsilon": 8.0},
        protection={"sum": "masked"},
        federation={"minimum_sites": 14},
    )
    here = conduct.run(asked, threads=1)
    carrier = Watching()
    there = conduct.run(asked, base=tmp_path, engine=Remote(carrier))
    alike(here, there)
    begun = [site for site, _, stage, _ in carrier.seen if stage == "advertise"]
    # Moments and looks of two teams, two steps of all: everybody in every round.
    assert len(begun) == 4 * 15
    gone = begun[0]
    (tmp_path / "b").mkdir()
    lost = conduct.run(asked, base=tmp_path / "b", engine=Remote(Watching([(gone, "mask", 1)])))
    assert lost.data["methods"]["veil"]["dropouts"][gone]["rounds"] == 1
    assert lost.metrics["global"]["auc"] == pytest.approx(there.metrics["global"]["auc"], abs=0.05)


def test_a_site_that_drops_out_is_counted_and_the_sum_of_the_others_is_opened(tmp_path):
    asked = study("fedavg", federation={"minimum_sites": 4}, **MASKED)
    found = conduct.run(asked, base=tmp_path, engine=Remote(Watching([("community", "mask", 2)])))
    assert found.data["methods"]["fedavg"]["dropouts"]["community"]["rounds"] == 1


def test_a_round_asked_again_is_a_new_release_with_its_own_charge(tmp_path):
    privacy = {"unit": "patient", "epsilon": 50.0, "noise_multiplier": 1.0}
    asked = study(
        "fedavg", privacy=privacy, evaluation={"seeds": 1}, protection={"sum": "masked", "spare": 0}
    )
    carrier = Watching([(site, "mask", 1) for site in ("community", "geriatric")])
    with pytest.raises(RunError, match="nothing was opened"):
        conduct.run(asked, base=tmp_path, engine=Remote(carrier))
    carrier.lost = ()
    found = conduct.run(asked, base=tmp_path, engine=Remote(carrier))
    # The first round twice, since the same words are never in two sums; so the plan of four has no
    # fourth round left.
    assert charged(tmp_path, "community") == [1, 1, 2, 3]
    assert found.data["methods"]["fedavg"]["rounds_done"] == 3


def test_strange_identities_and_stages_out_of_turn_are_refused(tmp_path):
    asked = study("fedavg", **MASKED)
    carrier = Watching()
    carrier.start(asked, tmp_path, tmp_path)
    handler = carrier.handlers["community"]
    lonely = handler.settings.model_copy(update={"peers": {}})
    handler.settings = lonely
    with pytest.raises(RunError, match="does not hold the identity of every other site"):
        conduct.run(asked, base=tmp_path, engine=Remote(carrier))
    names = {"seed": 42, "fold": 0, "method": "fedavg", "round": 1, "heads": {}, "vouched": {}}
    geriatric = carrier.handlers["geriatric"]

    def reason(app=None, **given):
        request = wire.request(
            "stage", seal({}), **{**names, "study": asked.digest, "stage": "unmask", **given}
        )
        return wire.unpack(geriatric.answer(wire.pack(request), app or application_hash())).header[
            "reason"
        ]

    assert reason(study="0" * 64) == Reason.NOT_OPEN.name
    assert reason(app="no app") == Reason.APPLICATION.name
    opened = wire.request("open", study=asked.public().to_toml(), seed=42)
    geriatric.answer(wire.pack(opened), application_hash())
    assert reason() == Reason.NOT_OPEN.name  # opened, and not joined
    sizes = {
        name: handler._open(asked.public().to_toml(), 42).world.sizes[name]
        for name, handler in carrier.handlers.items()
    }
    joins = wire.request("join", study=asked.digest, seed=42, sites=sizes, vouched={})
    assert wire.unpack(geriatric.answer(wire.pack(joins), application_hash())).header["ok"]
    assert reason() == Reason.SESSION.name
    assert reason(stage="mask") == Reason.SESSION.name
    assert reason(stage="anything") == Reason.SESSION.name


class Flattering(Watching):
    """A coordinator that tells each site that all the others are tiny: with these weights a sum
    would be its update."""

    def __init__(self, victims):
        super().__init__()
        self.victims = victims

    def exchange(self, requests, seconds):
        changed = {}
        for site, data in requests.items():
            message = wire.unpack(data)
            if message.header["op"] == "join" and site in self.victims:
                sizes = {
                    name: size if name == site else 1
                    for name, size in message.header["sites"].items()
                }
                data = wire.pack(wire.Message({**message.header, "sites": sizes}, message.body))
            changed[site] = data
        return super().exchange(changed, seconds)


@pytest.mark.parametrize("victims", [("community",), ("community", "geriatric", "cardiology")])
def test_sites_that_were_told_other_sizes_are_in_no_sum_together(victims, tmp_path):
    with pytest.raises(RunError):
        conduct.run(study("fedavg", **MASKED), base=tmp_path, engine=Remote(Flattering(victims)))


ONCE = {"evaluation": {"seeds": 1}, "protection": {"sum": "masked", "keys": "study"}}


@pytest.mark.parametrize("private", [False, True])
def test_standing_keys_give_what_one_process_gives_in_one_exchange_a_round(private, tmp_path):
    asked = study("fedavg", **ONCE)
    if not private:
        asked = study("fedavg", **ONCE, privacy=None).replace(method={"batch": 4096})
    here = conduct.run(asked, threads=1)
    carrier = Watching()
    there = conduct.run(asked, base=tmp_path, engine=Remote(carrier))
    (alike if private else equal)(here, there)
    stages = [stage for site, _, stage, _ in carrier.seen if site == "community" and stage]
    assert stages == ["advertise", "mask", "mask", "mask", "mask"]
    assert "step" not in {op for _, op, _, _ in carrier.seen}
    if private:
        assert charged(tmp_path, "community") == [1, 2, 3, 4]
    sent = [run.data["methods"]["fedavg"]["communication"] for run in (here, there)]
    assert sent[0]["bytes_up"] == sent[1]["bytes_up"]
    assert abs(sent[0]["bytes_down"] - sent[1]["bytes_down"]) < 100 * 5 * 4


def test_a_site_that_leaves_a_sum_of_standing_keys_costs_a_spare_round(tmp_path):
    asked = study("fedavg", federation={"minimum_sites": 4}, **ONCE)
    carrier = Watching([("community", "mask", 2)])
    found = conduct.run(asked, base=tmp_path, engine=Remote(carrier))
    told = found.data["methods"]["fedavg"]
    assert told["rounds_done"] == 4
    assert told["protection"]["spare"] == 1
    # Left out from the second attempt on, and charged for the one that was never opened.
    assert told["dropouts"]["community"]["rounds"] == 3
    assert charged(tmp_path, "community") == [1, 2]
    assert charged(tmp_path, "geriatric") == [1, 2, 2, 3, 4]
    assert max(found.data["privacy"]["sites"].values()) <= 8.0


class Repeating(Watching):
    """Asks a site for the same sum again, and for the same with another list."""

    def exchange(self, requests, seconds):
        answers = super().exchange(requests, seconds)
        data = requests.get("community")
        if data is not None and wire.unpack(data).header.get("stage") == "mask":
            site, sent = self.handlers["community"], wire.unpack(data)
            again = wire.unpack(site.answer(data, application_hash()))
            self.same.append(again.body == wire.unpack(answers["community"]).body)
            body = {**unseal(sent.body), "present": np.arange(3, dtype=np.int32)}
            short = wire.request(sent.header["op"], seal(body), **self.names(sent.header))
            self.refused.append(wire.unpack(site.answer(wire.pack(short), application_hash())))
        return answers

    same: ClassVar[list] = []
    refused: ClassVar[list] = []

    @staticmethod
    def names(header):
        return {key: header[key] for key in header if key not in ("op", "version", "protocol")}


def test_a_request_asked_again_has_the_same_answer_and_a_short_list_none(tmp_path, monkeypatch):
    said, refusal = [], Sender._refusal
    monkeypatch.setattr(
        Sender, "_refusal", lambda self, why: said.append(why) or refusal(self, why)
    )
    carrier = Repeating()
    conduct.run(study("fedavg", **ONCE), base=tmp_path, engine=Remote(carrier))
    assert carrier.same == [True] * 4
    assert not any(answer.header["ok"] for answer in carrier.refused)
    assert [why for why in said if "needed" in why] == ["'present' lists 3 sites; 4 are needed"] * 3
    assert said.count("keys were agreed on already") == 1  # in round 1, whose request brought them
    assert charged(tmp_path, "community") == [1, 2, 3, 4]
