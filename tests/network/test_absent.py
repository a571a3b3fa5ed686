"""Sites that are missing: never in silence. Deadlines, minimum sites, budgets that end at one site,
late answers."""

import time

import numpy as np
import pytest
from support.loopback import Loopback
from test_parity import same, study

from suture.engine import conduct
from suture.errors import BudgetExhausted, RunError, TooFewSites
from suture.network.coordinator import Remote


class Flaky(Loopback):
    """Some sites do not answer some rounds."""

    def __init__(self, missing, **settings):
        super().__init__(**settings)
        self.missing = missing

    def exchange(self, requests, seconds):
        from suture.network import wire

        answers = super().exchange(requests, seconds)
        for site, data in requests.items():
            header = wire.unpack(data).header
            if header["op"] == "step" and header["round"] in self.missing.get(site, ()):
                answers[site] = TooFewSites(f"site {site!r} gave no answer within {seconds:g} s")
        return answers


ONE = {"evaluation": {"seeds": 1}}


def test_every_site_must_answer_unless_the_study_says_less(tmp_path):
    asked = study("fedavg", **ONE)
    with pytest.raises(
        TooFewSites,
        match=r"round 2: 4 sites answered, 5 are needed \(community: site 'community' gave",
    ):
        conduct.run(asked, base=tmp_path, engine=Remote(Flaky({"community": {2}})))


def test_dropouts_are_counted_and_the_others_go_on(tmp_path):
    asked = study("fedavg", federation={"minimum_sites": 4}, **ONE)
    found = conduct.run(asked, base=tmp_path, engine=Remote(Flaky({"community": {2, 3}})))
    dropouts = found.data["methods"]["fedavg"]["dropouts"]
    assert dropouts == {
        "community": {"rounds": 2, "why": "site 'community' gave no answer within 600 s"}
    }
    assert found.data["methods"]["fedavg"]["rounds_done"] == 4
    full = conduct.run(study("fedavg", **ONE), threads=1)
    assert full.data["methods"]["fedavg"]["dropouts"] == {}
    assert not np.array_equal(full.model["params"], found.model["params"])
    with pytest.raises(TooFewSites):
        conduct.run(
            asked, base=tmp_path / "b", engine=Remote(Flaky({"community": {2}, "geriatric": {2}}))
        )


def test_a_run_that_failed_for_want_of_sites_is_resumed_to_the_same_numbers(tmp_path):
    asked = study("scaffold", **ONE)
    carrier = Flaky({"community": {3}})
    with pytest.raises(TooFewSites):
        conduct.run(asked, base=tmp_path, out=tmp_path / "run", engine=Remote(carrier))
    again = conduct.resume(tmp_path / "run", engine=Remote(Loopback()))
    same(conduct.run(asked, threads=1), again)


def test_a_site_without_budget_stops_all_or_drops_out_if_the_study_says_so(tmp_path):
    privacy = {"unit": "patient", "epsilon": 3.0, "noise_multiplier": 1.6}
    asked = study("fedavg", privacy=privacy, cohort={"name": "cardio", "patients": 400}, **ONE)
    here = conduct.run(asked, threads=1)
    assert (
        0 < here.data["methods"]["fedavg"]["rounds_done"] < 4
    )  # the small sites sample more, and spend faster
    same(here, conduct.run(asked, base=tmp_path, engine=Remote(Loopback())))
    less = asked.replace(federation={"minimum_sites": 1})
    one = conduct.run(less, threads=1)
    two = conduct.run(less, base=tmp_path / "b", engine=Remote(Loopback()))
    assert one.data["methods"]["fedavg"]["dropouts"]
    assert (
        one.data["methods"]["fedavg"]["rounds_done"] > here.data["methods"]["fedavg"]["rounds_done"]
    )
    assert (
        one.data["methods"]["fedavg"]["dropouts"].keys()
        == two.data["methods"]["fedavg"]["dropouts"].keys()
    )
    assert np.array_equal(one.model["params"], two.model["params"])
    assert all(epsilon <= 3.0 for epsilon in one.data["privacy"]["sites"].values())
    assert one.data["privacy"] == two.data["privacy"]


def test_a_budget_that_pays_for_no_round_is_said(tmp_path):
    privacy = {"unit": "patient", "epsilon": 0.01, "noise_multiplier": 0.5}
    with pytest.raises(BudgetExhausted, match="does not pay for a single round"):
        conduct.run(
            study("fedavg", privacy=privacy, **ONE), base=tmp_path, engine=Remote(Loopback())
        )


def test_an_answer_for_another_round_or_by_another_site_is_rejected(tmp_path):
    from suture.network import wire

    class Liar(Loopback):
        def exchange(self, requests, seconds):
            answers = super().exchange(requests, seconds)
            first = next(iter(answers))
            message = wire.unpack(answers[first])
            if "round" in message.header:
                message.header["round"] += self.settings_round
                answers[first] = wire.pack(message)
            return answers

    liar = Liar()
    liar.settings_round = 1
    with pytest.raises(RunError, match="answered round 2 instead of 1"):
        conduct.run(study("fedavg", **ONE), base=tmp_path, engine=Remote(liar))


def test_an_exchange_ends_at_its_deadline():
    pytest.importorskip("flwr")
    from suture.network import certificates
    from suture.network.flower import Flower, Hub

    ca, _ = certificates.new_authority("nobody")
    operator = {"hub": "localhost:9", "ca": ca.decode(), "token": "t", "secret": "00" * 32}
    carrier = Flower(Hub(operator))
    begun = time.monotonic()
    found = carrier.exchange({"boston": b"x"}, 1.0)
    assert time.monotonic() - begun < 3
    assert isinstance(found["boston"], TooFewSites)
    assert "does not answer" in str(found["boston"])
    carrier.close()


def test_a_run_killed_after_its_last_round_still_says_what_was_spent(tmp_path):
    asked = study("fedavg", **ONE)
    carrier = Loopback()
    conduct.run(asked, base=tmp_path, out=tmp_path / "run", engine=Remote(carrier))
    here = conduct.run(asked, threads=1)
    (tmp_path / "run" / "result.json").unlink()
    meta = next((tmp_path / "run" / "checkpoints").glob("*.npz"))
    with np.load(meta) as archive:
        arrays = {name: archive[name] for name in archive.files}
    import json

    kept = json.loads(arrays["meta"].tobytes())
    kept["outcome"] = None  # every round is done, the measuring is not
    arrays["meta"] = np.frombuffer(json.dumps(kept).encode(), np.uint8)
    np.savez(meta, **arrays)
    same(here, conduct.resume(tmp_path / "run", engine=Remote(Loopback())))
