"""The regulator's page says what the ledger says, and nothing that only the site may know."""

import csv
import io
import json
import re

from dp_accounting import GaussianDpEvent, NonPrivateDpEvent, ZCDpEvent

from suture.privacy.accounting.events import normal_form
from suture.privacy.ledger.ledger import Budget, Ledger
from suture.privacy.ledger.overview import FIELDS, event_words, overview, ranges, releases
from suture.report.console import print_ledger
from suture.report.statement import export_ledger, render, render_certificate

WRITTEN = "2026-11-15T20:30:00+00:00"


def ledger():
    found = Ledger.open(None, "boston")
    found.open_lifetime(Budget(20.0, 1e-4, "pld"))
    found.note(
        "cardio",
        "admitted",
        {
            "charter": "68687716",
            "protocol": "2026-14",
            "expires": "2027-12-31",
            "epsilon": 8.0,
            "delta": 1e-5,
        },
    )
    found.note("genome", "refused", {"charter": None, "why": ["not to be trusted"]}, again=True)
    found.note("cardio", "consent", {"patients": 98765, "patients without consent": 43210})
    found.note("*", "erased", {"tombstone": "feedbeef", "key": "00"}, again=True)
    found.open_study("cardio/fedavg", Budget(6.0, 1e-5, "pld"))
    for round_ in range(40):
        found.charge("cardio/fedavg", round_, GaussianDpEvent(4.83), round_.to_bytes(4, "big"))
    found.open_study("votes/veil", Budget(2.0, 1e-5, "rdp"))
    found.charge("votes/veil", 1, ZCDpEvent(0.02), b"v", what="votes")
    return found


def test_the_page_holds_every_figure_and_no_count_of_patients():
    page = render(overview(ledger()), written=WRITTEN)
    assert re.search(
        r"<th "
        r"scope=\"row\">cardio/fedavg</th><td>6\.00</td><td>6\.00</td><td>1e-5</td><td>Gaussian, exact</td><td>40</td>",
        page,
    )
    assert "lifetime budget" in page
    assert "cardio: ethics protocol 2026-14, valid until 2027-12-31, charter 68687716" in page
    assert "genome: not to be trusted" in page
    assert "only rows of patients with recorded consent" in page
    for secret in ("98765", "43210", "98,765", "feedbeef"):
        assert secret not in page
    assert "<script" not in page
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page


def test_what_is_not_private_is_said_first():
    found = Ledger.open(None, "<img src=x onerror=alert(1)>")
    found.open_study("open/fedavg (without privacy)", Budget(float("inf"), 1e-5, "pld"))
    found.charge("open/fedavg (without privacy)", 1, NonPrivateDpEvent(), b"x")
    page = render(overview(found), written=WRITTEN)
    assert "No differential privacy for open/fedavg (without privacy)" in page
    assert "<img src" not in page
    assert overview(found)["total"]["epsilon"] is None
    assert releases(found)[-1]["epsilon"] is None


def test_rows_and_files(tmp_path, capsys):
    found = ledger()
    rows = releases(found)
    assert [row["entry"] for row in rows[:7]] == [1, 2, "n1", "n2", "n3", 3, 4]
    assert rows[6]["event"] == "Gaussian, noise 4.83"
    assert rows[45]["epsilon"] == 5.9995 > rows[44]["epsilon"]
    assert rows[-1]["event"] == "zCDP, rho 0.02"
    assert rows[4]["event"] == "a patient was erased"
    paths = export_ledger(tmp_path / "x", overview(found), rows, FIELDS)
    content = json.loads((tmp_path / "x" / "ledger.json").read_text())
    assert content["rows"] == rows
    table = list(csv.DictReader(io.StringIO((tmp_path / "x" / "ledger.csv").read_text())))
    assert float(table[45]["epsilon"]) == 5.9995
    assert len(paths) == 3
    print_ledger({**overview(found), "rows": rows})
    assert "cardio/fedavg" in capsys.readouterr().out


def test_words():
    assert event_words(()) == "nothing about anyone"
    assert event_words(normal_form(NonPrivateDpEvent())) == "not private"
    assert ranges([]) == ""


def test_the_certificate_tells_held_out_from_drawn():
    keys = {
        "releases": 3,
        "first": WRITTEN,
        "last": WRITTEN,
        "delta": 1e-5,
        "accountant": "pld",
        "rounds": "1-3",
    }
    studies = [
        {"account": "a/fedavg", "epsilon": 1.234, "part": "may have been drawn in", **keys},
        {
            "account": "b/fedavg",
            "epsilon": 0.0,
            "part": "held out for testing: no model was trained on them",
            **keys,
        },
    ]
    page = render_certificate(
        {
            "site": "boston", "written": WRITTEN, "erased": WRITTEN, "tombstone": "00ff", "entry": 9, "hash": "ab",
            "studies": studies, "statement": ["Gone."], "total": {"epsilon": 1.234, "delta": 1e-5, "accountant": "pld"},
            "retraining": {"words": "training started at the start."},
        }
    )  # fmt: skip
    assert re.search(r"a/fedavg</th><td>1-3</td><td>3</td><td>1\.24</td>", page)
    assert re.search(r"b/fedavg</th><td>none \(held out\)</td><td>3</td><td>0</td>", page)
    assert "Training anew" in page
