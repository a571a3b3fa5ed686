"""The page: self-contained, complete, safe against any name, and really drawn by a browser without
a network."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from support.sample import sample

from suture.report import shell as shell_module
from suture.report.page import render, write

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)


class Outline(HTMLParser):
    """Headings, tags and attributes of a page, without what scripts and styles contain."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._inside: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._inside and self._inside[-1] == tag:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


@pytest.fixture(scope="module")
def full() -> dict[str, Any]:
    return sample(methods=6, sites=5, rounds=20, seeds=3)


@pytest.fixture(scope="module")
def full_page(full: dict[str, Any]) -> str:
    return render(full)


def test_every_section_is_there(full_page: str) -> None:
    outline = Outline(full_page)
    ids = {attrs.get("id") for tag, attrs in outline.tags if tag == "h2"}
    assert ids == {
        "results",
        "curves",
        "convergence",
        "hospitals",
        "groups",
        "privacy",
        "cohort",
        "references",
        "reproduce",
    }
    assert sum(tag == "h1" for tag, _ in outline.tags) == 1
    assert sum(tag == "figure" for tag, _ in outline.tags) == 10
    for text in ("Adaptive Federated Optimization", "suture run study.toml", "42, 43, 44", "p, Welch", "12 values of",
                 "add or remove one patient", "Taken as public", "Not covered by the promise", "PLD",
                 "no real patient is described", "15 November 2026, 20:30 UTC"):  # fmt: skip
        assert text in outline.words, text
    assert "No differential privacy" not in outline.words


def test_nothing_is_fetched(full_page: str) -> None:
    page = full_page
    for tag, attrs in Outline(page).tags:
        assert tag not in ("link", "img", "iframe", "object", "embed"), tag
        assert "src" not in attrs, tag
        assert not str(attrs.get("href") or "#").startswith(("http", "//", "file")), attrs
    policy = next(
        str(a["content"])
        for t, a in Outline(page).tags
        if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'")
    assert "unsafe-eval" not in policy
    assert re.search(r"script-src '[^']+' '[^']+'$", policy)


def test_notes_after_the_sixth_are_folded_and_none_is_lost() -> None:
    result = sample(methods=1, sites=2, rounds=3, seeds=1)
    result["warnings"] = [f"column {i}: a value was clipped" for i in range(40)]
    open_, folded = render(result).split("<details><summary>", 1)
    assert open_.count("a value was clipped") + folded.count("a value was clipped") == 40
    assert open_.count("a value was clipped") <= 6
    assert re.match(r"3[4-9] more</summary>", folded)


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{7*7}}\u2028"


def test_names_never_become_code() -> None:
    result = sample(methods=2, sites=2, rounds=3, seeds=2)
    result["name"] = result["outcome"] = result["command"] = result["created"] = result[
        "suture"
    ] = HOSTILE
    result["warnings"] = [HOSTILE]
    result["references"] = [
        {"title": HOSTILE, "authors": HOSTILE, "year": HOSTILE, "where": HOSTILE}
    ]
    for method in result["methods"].values():
        method["label"] = method["stopped"] = HOSTILE
        for name in ("statement", "unit", "neighbours", "sampling", "accountant", "noise_source"):
            method["privacy"][name] = HOSTILE
        method["privacy"]["public"] = method["privacy"]["not_covered"] = [HOSTILE]
        method["privacy"]["sites"] = {HOSTILE: 1.0}
        method["metrics"]["sites"] = {HOSTILE: method["metrics"]["global"]}
        method["metrics"]["groups"] = {HOSTILE: {HOSTILE: method["metrics"]["global"]}}
        for entry in method["history"]:
            entry["sites"] = {HOSTILE: entry["global"]}
    result["cohort"]["sites"] = {HOSTILE: {"patients": 5, "prevalence": 0.5}}
    feature = {"label": HOSTILE, "unit": HOSTILE, "edges": [0, 1, 2], "counts": {HOSTILE: [1, 2]}}
    result["cohort"]["features"] = {HOSTILE: feature}
    page = render(result)
    outline = Outline(page)
    assert sum(tag == "script" for tag, _ in outline.tags) == 3
    assert not any(tag == "img" for tag, _ in outline.tags)
    assert "<script>alert" not in page
    assert "{{7*7}}" in page
    assert "49" not in outline.words.split()


def test_no_privacy_is_the_first_thing_said() -> None:
    page = render(sample(methods=1, sites=2, rounds=3, seeds=1, private=False))
    outline = Outline(page)
    assert 'class="banner"' in page
    assert outline.words.index("No differential privacy") < outline.words.index("Results")
    assert "ε proven, worst hospital δ" in outline.words
    mixed = sample(methods=2, sites=2, rounds=3, seeds=1)
    mixed["methods"]["fedprox"]["privacy"]["sites"]["young-clinic"] = None
    assert "without differential privacy: FedProx." in Outline(render(mixed)).words


def test_what_is_not_covered_is_said_once() -> None:
    result = sample(methods=1, sites=2, rounds=2, seeds=1)
    privacy = result["methods"]["fedadam"]["privacy"]
    privacy["not_covered"] = ["exact metrics", "side channels: time"]
    privacy["statement"] = (
        "First.\n\nNot covered: exact metrics; side channels: time.\n\nNot covered: exact metrics."
    )
    words = Outline(render(result)).words
    assert words.count("side channels: time") == 1
    assert "Not covered: exact metrics." in words


def test_a_budget_overrun_is_said(full_page: str) -> None:
    over = sample(methods=1, sites=2, rounds=2, seeds=1)
    over["methods"]["fedadam"]["privacy"]["epsilon"] = 8.3
    assert "the proven ε of 8.30 is above the study's budget of 8." in Outline(render(over)).words
    assert "above the study's budget" not in Outline(full_page).words


@pytest.mark.parametrize(
    "result",
    [
        {"name": "bare", "methods": {"fedavg": {}}},
        {"name": "none", "methods": {}},
        {"name": "nan", "methods": {"a": {"metrics": {"global": {"auc": math.nan, "f1": math.inf}}}}},
        {"name": "empty", "methods": {"a": {"metrics": {"sites": {"x": {}}, "groups": {"sex": {}}}, "history": []}},
         "cohort": {"sites": {}, "features": {}}, "comparison": {}, "warnings": None, "references": None},
    ],
    ids=["bare", "no methods", "nan", "empty"],
)  # fmt: skip
def test_missing_sections_leave_a_page(result: dict[str, Any]) -> None:
    outline = Outline(render(result))
    assert result["name"] in outline.words
    assert "nan" not in outline.words.lower().replace(result["name"], "")


def test_a_thousand_hospitals_stay_readable() -> None:
    page = render(sample(methods=1, sites=1000, rounds=2, seeds=1, cohort=False))
    assert len(page) < 2_000_000
    assert "And 970 more hospitals" in Outline(page).words


def test_write_replaces_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    write({"name": "new", "methods": {"a": {}}}, path)
    assert path.read_text(encoding="utf-8").rstrip().endswith("</html>")
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium browser: apt-get install chromium")
@pytest.mark.parametrize("kind", ["full", "hostile"])
def test_a_browser_draws_every_figure(
    kind: str, full_page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "full":
        (tmp_path / "report.html").write_text(full_page, encoding="utf-8")
    else:
        result = sample(methods=2, sites=2, rounds=3, seeds=1)
        result["name"] = HOSTILE
        result["methods"]["fedavg"]["label"] = HOSTILE
        result["methods"]["fedprox"]["metrics"]["sites"] = {HOSTILE: result["metrics"]["global"]}
        # Press every download button, and note what would be saved instead of saving it.
        noted = (
            "document.body.dataset[kind] = link.download + ' ' + url.slice(0, 21); link.remove();"
        )
        pressed = shell_module._DRAW.replace("link.click(); link.remove();", noted)
        pressed = pressed.replace(
            "button.disabled = false;", "button.disabled = false; setTimeout(() => button.click());"
        )
        assert noted in pressed
        monkeypatch.setattr(shell_module, "_DRAW", pressed)
        write(result, tmp_path / "report.html")
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
               "--disable-background-networking", "--disable-component-update", "--disable-sync",
               "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path / 'profile'}",
               "--virtual-time-budget=8000", "--enable-logging=stderr", "--dump-dom",
               (tmp_path / "report.html").as_uri()]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "Could not draw this figure" not in ran.stdout.split("<script")[0]
    figures = re.findall(r"<figure[^>]*>", ran.stdout)
    assert len(figures) >= 9
    assert all('data-drawn="yes"' in figure for figure in figures), figures
    assert ran.stdout.count("<svg") >= len(figures)
    assert "Content Security Policy" not in ran.stderr
    outline = Outline(ran.stdout)
    assert not any(tag == "img" for tag, _ in outline.tags)
    if kind == "hostile":
        body = next(attrs for tag, attrs in outline.tags if tag == "body")
        assert re.fullmatch(
            r"script--script-alert[\w-]+\.png data:image/png;base64", body["data-png"] or ""
        )
        assert re.fullmatch(
            r"script--script-alert[\w-]+\.svg (data:image/svg\S+|blob:\S+)", body["data-svg"] or ""
        )
