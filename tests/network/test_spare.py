"""Spare rounds: a sum that breaks off after the masks is tried again as a new release, planned for,
and never more often."""

import pytest
from support.loopback import Loopback
from test_parity import study

from suture.engine import conduct
from suture.errors import RunError
from suture.network import wire
from suture.network.coordinator import Remote
from suture.network.masking import NotOpened
from suture.privacy.ledger.ledger import Ledger

MASKED = {"evaluation": {"seeds": 1}, "protection": {"sum": "masked"}}
KILLED = ("community", "geriatric")
"""Of five sites four must stay, so it takes two to break a sum."""


class Killing(Loopback):
    """Sites forget everything in memory (as after -9) right before ``stage``, ``times`` times in
    all."""

    def __init__(self, times, stage="agree"):
        super().__init__()
        self.left, self.stage, self.kills = times, stage, 0

    def exchange(self, requests, seconds):
        headers = [wire.unpack(data).header for data in requests.values()]
        first = len(requests) > len(
            KILLED
        )  # not the same stage asked again, after the study was opened again
        if first and self.left and any(header.get("stage") == self.stage for header in headers):
            self.left -= 1
            self.kills += 1
            for site in KILLED:
                self.handlers[site].close()
        return super().exchange(requests, seconds)


def charges(base, site):
    ledger = Ledger.read(base / ".suture" / site / "ledgers" / f"{site}.sqlite")
    try:
        return sorted(entry.round for entry in ledger.entries() if entry.round > 0)
    finally:
        ledger.close()


@pytest.mark.parametrize("stage", ["agree", "unmask"])
def test_three_kills_after_the_masks_and_all_rounds_are_done(stage, tmp_path):
    carrier = Killing(3, stage)
    found = conduct.run(study("fedavg", **MASKED), base=tmp_path, engine=Remote(carrier))
    told = found.data["methods"]["fedavg"]
    assert carrier.kills == 3
    assert told["rounds_done"] == 4
    assert told["protection"]["spare"] == 3
    for site in KILLED:
        assert charges(tmp_path, site) == [1, 1, 1, 1, 2, 3, 4]
    assert max(found.data["privacy"]["sites"].values()) <= 8.0


def test_a_fourth_kill_ends_the_run_and_no_ledger_pays_more_than_was_planned(tmp_path):
    with pytest.raises(NotOpened, match="was not opened"):
        conduct.run(study("fedavg", **MASKED), base=tmp_path, engine=Remote(Killing(4)))
    assert charges(tmp_path, "community") == [1, 1, 1, 1]


def test_a_sum_that_breaks_off_before_the_masks_costs_nothing_and_uses_no_spare(tmp_path):
    with pytest.raises(RunError, match="was not opened") as caught:
        conduct.run(study("fedavg", **MASKED), base=tmp_path, engine=Remote(Killing(9, "share")))
    assert not isinstance(caught.value, NotOpened)
    assert charges(tmp_path, "community") == []
