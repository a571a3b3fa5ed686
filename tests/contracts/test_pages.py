"""Pages that cannot drift: every page is in the site's navigation, every link leads somewhere, every
cited preprint is listed, and every file, module and test that a page names is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
        *(page for page in (ROOT / "docs").rglob("*.md") if "gallery" not in page.parts),
        ROOT / "benchmarks/README.md",
    ]
)


def anchors(path):
    """Headings as GitHub turns them into anchors."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.M):
        found.add(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_inside_the_repository_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there), target


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_merge_left_its_marks(page):
    assert not re.search(r"^(<{7}|>{7}) |^={7}$", page.read_text(encoding="utf-8"), re.M)


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    for page in PAGES:
        if page.is_relative_to(ROOT / "docs"):
            assert f" {page.relative_to(ROOT / 'docs')}\n" in navigation, page.name


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_and_module_that_a_page_names_is_there(page):
    text = page.read_text(encoding="utf-8")
    kinds = r"(?<![\w./-])((?:suture|tests|benchmarks|examples)/[\w/-]+\.(?:py|md|toml|ipynb))\b"
    for name in re.findall(kinds, text):
        made = f"--- /dev/null\n+++ b/{name}\n" in text  # a change in the page makes it
        assert made or (ROOT / name).exists(), name
    for name in re.findall(r"`((?:suture|tests|examples)/[\w/]*/)`", text):
        assert (ROOT / name).is_dir(), name
    for name in re.findall(r"`(suture(?:\.[a-z_]+)+)", text):
        parts = name.split(".")
        whole, parent = ROOT.joinpath(*parts), ROOT.joinpath(*parts[:-1])
        found = [whole, whole.with_suffix(".py"), parent.with_suffix(".py"), parent / "__init__.py"]
        assert any(path.exists() for path in found), name


def test_every_preprint_that_is_cited_is_in_the_list():
    listed = set(
        re.findall(
            r"arXiv:(\d{4}\.\d{5})", (ROOT / "docs/references.md").read_text(encoding="utf-8")
        )
    )
    for path in [*(ROOT / "suture").rglob("*.py"), *PAGES]:
        cited = set(re.findall(r"arXiv:(\d{4}\.\d{5})", path.read_text(encoding="utf-8")))
        assert cited <= listed, path


def test_every_file_the_references_name_is_there():
    for name in re.findall(
        r"`(\w+/\w+\.py)`", (ROOT / "docs/references.md").read_text(encoding="utf-8")
    ):
        assert (ROOT / "suture" / name).exists(), name
