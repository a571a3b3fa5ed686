"""Figures: valid specifications, legible sizes, steady colours, honest thinning, PNG and SVG
without a browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.sample import sample

from suture.errors import StudyError
from suture.report.figures import MOST_PANELS, _smooth, figures_of, save
from suture.report.theme import PALETTE, method_colours
from suture.report.words import complete

ALL = ["comparison", "roc", "calibration", "convergence", "hospitals", "hospital_panels", "privacy_utility",
       "hospital_sizes", "histograms", "box_plots"]  # fmt: skip


@pytest.fixture(scope="module")
def full() -> dict[str, Any]:
    return sample(methods=6, sites=5, rounds=30, seeds=3)


def rows_in(spec: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Every table that a figure carries."""
    return [json.loads(text) for text in spec["datasets"].values()]


def test_every_figure_is_valid_and_drawn(full: dict[str, Any], tmp_path: Path) -> None:
    charts = figures_of(full)
    assert list(charts) == ALL
    for name, chart in charts.items():
        chart.to_dict(validate=True)
        save(chart, tmp_path / f"{name}.svg")
        svg = (tmp_path / f"{name}.svg").read_text()
        assert chart.to_dict()["title"]["text"] in svg, name
        assert "NaN" not in svg, name
        sizes = {float(part.split('px"')[0]) for part in svg.split('font-size="')[1:]}
        assert min(sizes) >= 12.0, name
        assert float(svg.split('width="')[1].split('"')[0]) <= 860, name
    save(charts["roc"], tmp_path / "roc.png")
    assert (tmp_path / "roc.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_curves_carry_the_results_numbers(full: dict[str, Any]) -> None:
    spec = figures_of(full)["roc"].to_dict()
    table = max(rows_in(spec), key=len)
    auc = full["methods"]["fedadam"]["metrics"]["global"]["auc"]
    own = [row for row in table if row["method"] == f"FedAdam (FedCVR), AUC {auc:.3f}"]
    assert [row["fpr"] for row in own] == [
        round(v, 4) for v in full["methods"]["fedadam"]["roc"]["fpr"]
    ]
    second = list(figures_of(full)["convergence"].to_dict()["datasets"].values())[1]
    last = [r for r in json.loads(second) if r["method"] == "FedAvg"][-1]
    assert last == {"method": "FedAvg", "round": 30,
                    "value": round(full["methods"]["fedavg"]["history"][-1]["global"]["f1"], 5)}  # fmt: skip


def test_a_method_keeps_its_colour_and_the_studys_own_is_blue(full: dict[str, Any]) -> None:
    scale = method_colours(complete(full)).to_dict()
    assert dict(zip(scale["domain"], scale["range"], strict=True))["FedAdam (FedCVR)"] == PALETTE[0]
    assert len(set(scale["range"])) == 6
    assert len(set(PALETTE)) == 8


def test_many_hospitals_are_thinned_and_it_says_so() -> None:
    many = sample(methods=2, sites=200, rounds=4, seeds=1)
    charts = figures_of(many)
    assert list(charts) == ALL
    spec = charts["hospital_panels"].to_dict()
    shown = {row["hospital"] for row in rows_in(spec)[0]}
    assert len(shown) == MOST_PANELS
    assert "24 of 200 hospitals" in spec["title"]["subtitle"]
    lowest = min(many["history"][-1]["sites"], key=lambda s: many["history"][-1]["sites"][s]["auc"])
    assert lowest in shown
    assert "30 largest of 200" in charts["box_plots"].to_dict()["title"]["subtitle"]


def test_long_histories_are_thinned_with_both_ends() -> None:
    history = [
        {"round": r, "global": {"auc": 0.5}, "sites": {"a": {"auc": 0.5}}} for r in range(1, 5001)
    ]
    result = {"name": "x", "methods": {"m": {"history": history}}}
    charts = figures_of(result)
    rounds = [row["round"] for row in rows_in(charts["convergence"].to_dict())[0]]
    assert len(rounds) == 200
    assert (rounds[0], rounds[-1]) == (1, 5000)
    assert len(rows_in(charts["hospital_panels"].to_dict())[0]) == 100


def test_what_is_missing_is_left_out() -> None:
    assert figures_of({"name": "x", "methods": {"a": {}}}) == {}
    names = list(
        figures_of(sample(methods=1, sites=1, rounds=2, seeds=1, private=False, cohort=False))
    )
    assert names == ["roc", "calibration", "convergence", "hospitals", "hospital_panels"]


def test_smoothing_keeps_all_mass() -> None:
    share = [1.0, 0.0, 0.0, 0.0, 0.0]
    assert _smooth(share).sum() == pytest.approx(1.0)


def test_other_endings_are_refused(full: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"png or .svg.*'roc.jpg'"):
        save(figures_of(full)["roc"], tmp_path / "roc.jpg")
