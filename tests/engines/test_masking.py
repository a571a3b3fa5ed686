"""Sums under masks over the wire: the embedded engine's numbers, nothing but sums for the coordinator, no release twice."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from loopback import Loopback
from test_parity import study

from suture import conduct
from suture.engines import wire
from suture.engines.remote import Remote
from suture.errors import Refused, RunError
from suture.privacy.ledger import Ledger
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


@pytest.mark.parametrize("method", ["fedavg", "finetune"])
def test_masked_rounds_give_what_one_process_gives(method, tmp_path):
    asked = study(method, **MASKED)
    here = conduct.run(asked, threads=1)
    carrier = Watching()
    there = conduct.run(asked, base=tmp_path, engine=Remote(carrier))
    assert all(np.array_equal(here.model[name], there.model[name]) for name in here.model)
    assert here.data["metrics"] == there.data["metrics"]
    assert {op for _, op, _, _ in carrier.seen} == {"open", "join", "stage", "score"}  # no site ever sent an update


def test_veil_in_secure_mode_needs_masks_between_machines(tmp_path):
    asked = study("veil", evaluation={"seeds": 1}).replace(method={"mode": "secure", "rounds": 6})
    with pytest.raises(Refused, match="under masks only"):
        conduct.run(asked, base=tmp_path, engine=Remote(Loopback()))
    asked = asked.replace(protection={"sum": "masked"})
    here = conduct.run(asked, threads=1)
    (tmp_path / "b").mkdir()
    there = conduct.run(asked, base=tmp_path / "b", engine=Remote(Loopback()))
    assert all(np.array_equal(here.model[name], there.model[name]) for name in here.model)


def test_teams_are_summed_apart_between_machines(tmp_path):
    """Fifteen hospitals in three teams: what one process gives; every sum in its own session; a dropout in one team."""
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
    assert all(np.array_equal(here.model[name], there.model[name]) for name in here.model)
    begun = [site for site, _, stage, _ in carrier.seen if stage == "advertise"]
    # Moments and looks of two teams, curvature of the third, one step of all.
    assert len(begun) == 2 * (15 - 5) + 5 + 15
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
    asked = study("fedavg", privacy=privacy, **MASKED)
    carrier = Watching([(site, "mask", 1) for site in ("community", "geriatric")])
    with pytest.raises(RunError, match="nothing was opened"):
        conduct.run(asked, base=tmp_path, engine=Remote(carrier))
    carrier.lost = ()
    conduct.run(asked, base=tmp_path, engine=Remote(carrier))
    ledger = Ledger.read(tmp_path / ".suture" / "community" / "ledgers" / "community.sqlite")
    rounds = [entry.round for entry in ledger.entries() if entry.round > 0]
    ledger.close()
    assert sorted(rounds) == [1, 1, 2, 3, 4]  # the first round twice: the same words are never in two sums


def test_strange_identities_and_stages_out_of_turn_are_refused(tmp_path):
    asked = study("fedavg", **MASKED)
    carrier = Watching()
    carrier.start(asked, tmp_path, tmp_path)
    desk = carrier.desks["community"]
    lonely = desk.settings.model_copy(update={"peers": {}})
    desk.settings = lonely
    with pytest.raises(RunError, match="holds no identity of"):
        conduct.run(asked, base=tmp_path, engine=Remote(carrier))
    names = {"study": "0" * 64, "seed": 42, "fold": 0, "method": "fedavg", "round": 1}
    answer = carrier.desks["geriatric"].answer(wire.pack(wire.request("stage", stage="unmask", **names)), "no app")
    assert wire.unpack(answer).header["ok"] is False


class Flattering(Watching):
    """A coordinator that tells each site that all the others are tiny: with these weights a sum would be its update."""

    def __init__(self, victims):
        super().__init__()
        self.victims = victims

    def exchange(self, requests, seconds):
        changed = {}
        for site, data in requests.items():
            message = wire.unpack(data)
            if message.header["op"] == "join" and site in self.victims:
                sizes = {name: size if name == site else 1 for name, size in message.header["sites"].items()}
                data = wire.pack(wire.Message({**message.header, "sites": sizes}, message.body))
            changed[site] = data
        return super().exchange(changed, seconds)


@pytest.mark.parametrize("victims", [("community",), ("community", "geriatric", "cardiology")])
def test_sites_that_were_told_other_sizes_are_in_no_sum_together(victims, tmp_path):
    with pytest.raises(RunError):
        conduct.run(study("fedavg", **MASKED), base=tmp_path, engine=Remote(Flattering(victims)))
