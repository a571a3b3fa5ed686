"""Every figure in the README comes from docs/figures/demo.json, and the demo study still gives
them."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def figures():
    spec = importlib.util.spec_from_file_location("figures", ROOT / "docs" / "make_figures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def committed(figures):
    return json.loads(figures.FILE.read_text(encoding="utf-8"))


def test_the_readme_shows_the_committed_figures(figures, committed):
    assert figures.shown(README) == figures.table(committed)


def test_the_readme_states_no_other_measured_figure(figures):
    rest = README.replace(figures.shown(README), "").replace("Python 3.11", "")
    assert not re.findall(r"\d\.\d{2,}", rest)
    assert not re.findall(r"\b\d+(?:\.\d+)?\s?(?:x|times|s|ms|kB|MB|GB)\b", rest)


def test_the_readme_fits_on_a_screen():
    assert len(README.splitlines()) <= 70


@pytest.mark.slow
def test_the_demo_still_gives_the_committed_figures(figures, committed, tmp_path):
    found = figures.measured(ROOT / "examples" / "demo.toml", tmp_path / "demo")
    assert list(found["methods"]) == list(committed["methods"])
    for name, one in found["methods"].items():
        before = committed["methods"][name]
        assert one["bytes_up"] == before["bytes_up"]
        assert one["epsilon"] == pytest.approx(before["epsilon"], abs=1e-3)
        for key, value in one["metrics"].items():
            # Noise is keyed by versions and processor (`software`), so elsewhere it is another draw
            # of it: then the means of three seeds agree as far as both intervals, and 0.03, reach.
            there = one["halves"][key] + before["halves"][key] + 0.03
            limit = 2e-3 if found["software"] == committed["software"] else there
            assert value == pytest.approx(before["metrics"][key], abs=limit), (name, key)
        if found["software"] == committed["software"]:
            assert one["halves"] == pytest.approx(before["halves"], abs=2e-3), name
