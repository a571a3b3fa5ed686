"""Figures of plans: drawn from a handful of rows, as pictures and as a page with the table."""

from pathlib import Path

from suture.privacy.accounting.questions import budget_over_rounds
from suture.report.plans import draw_history, over_rounds, reliability


def test_the_budget_over_the_rounds(tmp_path: Path) -> None:
    found = budget_over_rounds(rounds=4, round_epsilon=1.0, budget=8.0)
    spec = over_rounds(found).to_dict(validate=True)
    assert spec["title"]["text"] == "Privacy spent over the rounds"
    page = draw_history(found, tmp_path / "budget.html").read_text(encoding="utf-8")
    assert "Rounds within epsilon 8" in page
    assert draw_history(found, tmp_path / "budget.svg").read_text().startswith("<svg")


def test_how_often_a_flag_is_right() -> None:
    point = {"site": "4,000 patients", "epsilon": 1.0, "right": 0.9, "mechanism": "analytic"}
    spec = reliability([point], 0.01, 0.95).to_dict(validate=True)
    assert spec["title"]["text"] == "How often the safety flag is right"
