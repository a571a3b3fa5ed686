"""Console and notebook: everything fits 80 columns, nothing from the study is taken for markup."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from support.sample import sample

from suture.report.console import html_repr, print_result, summary_table


def shown(result: dict, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_result(result, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [80, 140])
def test_eight_methods_fit(width: int) -> None:
    result = sample(methods=8, sites=5, rounds=3, seeds=3)
    text = shown(result, width)
    assert max(len(line) for line in text.splitlines()) <= width
    for key, method in result["methods"].items():
        assert f"{method['metrics']['global']['auc']:.3f}" in text, key
    assert "FedAdam (FedCVR)" in text
    assert "geriatric" in text
    assert "p, Welch" in text


def test_no_privacy_is_said() -> None:
    text = shown(sample(methods=1, sites=2, rounds=3, seeds=1, private=False))
    assert "Privacy: none" in text
    assert "No differential privacy." in text
    mixed = sample(methods=2, sites=2, rounds=3, seeds=1)
    mixed["methods"]["fedprox"]["privacy"] = {"epsilon": None}
    assert "Without differential privacy: FedProx" in shown(mixed)


def test_stopped_and_warnings_are_said() -> None:
    result = sample(methods=1, sites=2, rounds=3, seeds=1)
    result["methods"]["fedadam"]["stopped"] = "budget spent at 'geriatric' after 42 of 100 rounds"
    text = " ".join(shown(result).split())
    assert "budget spent at 'geriatric' after 42 of 100 rounds" in text
    assert "12 values of cholesterol" in text


def test_notes_of_many_hospitals_do_not_bury_the_table() -> None:
    result = sample(methods=1, sites=2, rounds=3, seeds=1)
    result["warnings"] = [f"column {i}: a value was clipped" for i in range(40)]
    text = shown(result)
    assert text.count("a value was clipped") == 6
    assert "34 more notes are in the report" in text


def test_markup_and_html_stay_text() -> None:
    name = "[bold red]x[/] <script>alert(1)</script>"
    result = {"name": name, "methods": {"a": {"label": "[link=http://x]y[/link]<i>"}}}
    text = shown(result, 140)
    assert "[bold red]x[/] <script>" in text
    assert "[link=http://x]y[/link]<i>" in text
    page = html_repr(result)
    assert "<script>" not in page
    assert "<i>" not in page
    assert "No differential privacy" in page


def test_columns_follow_the_metrics_there_are() -> None:
    table = summary_table(
        {
            "name": "x",
            "methods": {"a": {"metrics": {"global": {"auc_ovo": 0.9, "f1_weighted": 0.8}}}},
        }
    )
    heads = [str(column.header) for column in table.columns]
    assert heads == ["Method", "AUC, one against one", "F1, weighted", "ε", "Up", "Down"]
